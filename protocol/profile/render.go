package profile

import (
	"cmp"
	_ "embed"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"strings"

	"ipufarm/protocol/machine"
)

//go:embed page/page.html
var pageHTML string

//go:embed page/page.css
var pageCSS string

//go:embed page/page.js
var pageJS string

// RenderMeta is what the page says about the run beyond its profile.
type RenderMeta struct {
	Title    string     // what ran, for example the workload and its tiles
	Device   string     // what it ran on
	Measured bool       // cycles were counted by hardware; otherwise the page says that they are modelled
	Facts    []Metadata // further lines of the header, in order
}

// maxClasses bounds how many distinct descriptions of samples a page carries.
// Profiles whose metadata differs on every sample exceed it; their pages then do
// without metadata and say so.
const maxClasses = 1 << 16

// page is the data of profile.html, in the form that page.js reads. Cycles are
// those of the profile; the page subtracts Start where it shows them.
type page struct {
	Title   string     `json:"title"`
	Origin  string     `json:"origin"`
	Device  string     `json:"device"`
	Facts   []Metadata `json:"facts"`
	ClockHz uint64     `json:"clock_hz"`
	Start   uint32     `json:"start"` // of the crop
	End     uint32     `json:"end"`
	Base    uint32     `json:"base"` // cycle that the first gap of each tile counts from

	Tiles       []uint32 `json:"tiles"` // physical
	Logical     []int    `json:"logical"`
	TileCompute []uint64 `json:"tile_compute"`

	Samples int      `json:"samples"`
	Strings []string `json:"strings"`
	Classes []int    `json:"classes"` // classFields numbers each
	Metas   [][]int  `json:"metas"`   // strings: name, value, name, value..

	CriticalTile      string      `json:"critical_tile"`
	CriticalTileKinds Kinds       `json:"critical_tile_kinds"`
	CriticalPathKinds Kinds       `json:"critical_path_kinds"`
	MeanKinds         meanKinds   `json:"mean_kinds"`
	Path              []uint32    `json:"path"` // index in Tiles, start, end of each piece
	Operations        []operation `json:"operations"`
	Barriers          []Barrier   `json:"barriers"`
}

// meanKinds are Kinds of an average tile.
type meanKinds struct {
	Compute         float64 `json:"compute"`
	Exchange        float64 `json:"exchange"`
	Synchronization float64 `json:"synchronization"`
	Idle            float64 `json:"idle"`
}

func mean(k Kinds, tiles int) meanKinds {
	n := float64(max(tiles, 1))
	// Hundredths of a cycle are beyond what anyone sees.
	round := func(x uint64) float64 { return float64(int64(float64(x)/n*100+0.5)) / 100 }
	return meanKinds{round(k.Compute), round(k.Exchange), round(k.Synchronization), round(k.Idle)}
}

// operation is a row of the page's operation table.
type operation struct {
	Name  string    `json:"name"`
	Mean  meanKinds `json:"mean"`
	Path  uint64    `json:"path"`  // cycles on the critical path
	Tiles int       `json:"tiles"` // that compute in it
	Start uint32    `json:"start"`
	End   uint32    `json:"end"`

	kinds    Kinds
	lastTile int // index of the last tile seen computing, plus 1
}

// class is what samples can have in common.
type class struct {
	operation, kernel, kind, barrier, phase, epoch, meta int
}

// Render writes profile.html: one file without any reference to the network. Its
// samples are packed as variable-length numbers (gap, length, class), about six
// bytes each, so that a full-size run makes a page of a few megabytes.
func Render(w io.Writer, p *Profile, meta RenderMeta) error {
	if err := p.Check(); err != nil {
		return err
	}
	b := newPageBuilder(p, meta)
	packed := b.samples(true)
	if len(b.classes) > maxClasses {
		b = newPageBuilder(p, meta)
		packed = b.samples(false)
		b.page.Facts = append(b.page.Facts, Metadata{"Left out", fmt.Sprintf(
			"properties of steps, because they make more than %d different descriptions; profile query reads them from the profile", maxClasses)})
	}
	b.totals()
	data, err := json.Marshal(&b.page) // escapes <, > and &, so no name can end the script element
	if err != nil {
		return err
	}
	parts := map[string]string{
		"{{title}}":   html.EscapeString(b.page.Title),
		"{{style}}":   pageCSS,
		"{{data}}":    string(data),
		"{{samples}}": base64.StdEncoding.EncodeToString(packed),
		"{{script}}":  pageJS,
	}
	rest := pageHTML
	for {
		before, after, found := strings.Cut(rest, "{{")
		if _, err := io.WriteString(w, before); err != nil || !found {
			return err
		}
		name, tail, _ := strings.Cut(after, "}}")
		if _, err := io.WriteString(w, parts["{{"+name+"}}"]); err != nil {
			return err
		}
		rest = tail
	}
}

// pageBuilder collects the tables of a page.
type pageBuilder struct {
	page     page
	p        *Profile
	split    splitter
	strings  map[string]int
	classes  map[class]int
	metas    map[string]int
	metaKey  []byte
	operated map[string]int // index in page.Operations
}

func newPageBuilder(p *Profile, meta RenderMeta) *pageBuilder {
	x := p.splitter()
	b := &pageBuilder{p: p, split: x, strings: map[string]int{}, classes: map[class]int{}, metas: map[string]int{}, operated: map[string]int{}}
	b.page = page{
		Title: cmp.Or(meta.Title, "Profile"), Origin: "modelled cycles, simulated device", Device: meta.Device,
		Facts: append([]Metadata{}, meta.Facts...), ClockHz: p.ClockHz, Start: x.start, End: x.end, Base: x.end,
		Tiles: []uint32{}, Logical: []int{}, TileCompute: []uint64{}, Strings: []string{}, Classes: []int{}, Metas: [][]int{},
		Path: []uint32{}, Operations: []operation{}, Barriers: append([]Barrier{}, x.barriers...),
	}
	if meta.Measured {
		b.page.Origin = "measured cycles"
	}
	for i := range p.Tiles {
		t := &p.Tiles[i]
		b.page.Tiles = append(b.page.Tiles, t.PhysicalTile)
		b.page.Logical = append(b.page.Logical, machine.Logical(int(t.PhysicalTile)))
		b.page.Samples += len(t.Samples)
		if len(t.Samples) > 0 {
			b.page.Base = min(b.page.Base, t.Samples[0].StartCycle)
		}
	}
	return b
}

func (b *pageBuilder) text(s string) int {
	k, ok := b.strings[s]
	if !ok {
		k = len(b.page.Strings)
		b.strings[s] = k
		b.page.Strings = append(b.page.Strings, s)
	}
	return k
}

// meta returns the number of a list of properties.
func (b *pageBuilder) meta(list []Metadata) int {
	b.metaKey = b.metaKey[:0]
	for _, m := range list {
		b.metaKey = binary.AppendUvarint(b.metaKey, uint64(b.text(m.Name)))
		b.metaKey = binary.AppendUvarint(b.metaKey, uint64(b.text(m.Value)))
	}
	k, ok := b.metas[string(b.metaKey)]
	if !ok {
		k = len(b.page.Metas)
		b.metas[string(b.metaKey)] = k
		numbers := []int{}
		for _, m := range list {
			numbers = append(numbers, b.text(m.Name), b.text(m.Value))
		}
		b.page.Metas = append(b.page.Metas, numbers)
	}
	return k
}

// samples packs the samples of all tiles; it stops early when there are more than
// maxClasses classes.
func (b *pageBuilder) samples(withMetadata bool) []byte {
	packed := make([]byte, 0, 8*b.page.Samples)
	for i := range b.p.Tiles {
		t := &b.p.Tiles[i]
		packed = binary.AppendUvarint(packed, uint64(len(t.Samples)))
		now := b.page.Base
		for j := range t.Samples {
			s := &t.Samples[j]
			packed = binary.AppendUvarint(packed, uint64(s.StartCycle-now))
			packed = binary.AppendUvarint(packed, uint64(s.EndCycle-s.StartCycle))
			packed = binary.AppendUvarint(packed, uint64(b.class(&s.Step, withMetadata)))
			now = s.EndCycle
		}
		if len(b.classes) > maxClasses && withMetadata {
			return nil
		}
	}
	return packed
}

// class returns the number of a step's class.
func (b *pageBuilder) class(s *Step, withMetadata bool) int {
	c := class{operation: b.text(s.Operation), kernel: b.text(s.Kernel), kind: int(s.Kind), barrier: -1, phase: int(s.Phase), epoch: int(s.Epoch)}
	if s.joins() {
		c.barrier = b.split.index[barrierKey{s.Epoch, s.Phase}]
	}
	if withMetadata {
		c.meta = b.meta(s.Metadata)
	} else {
		c.meta = b.meta(nil)
	}
	k, ok := b.classes[c]
	if !ok {
		k = len(b.classes)
		b.classes[c] = k
		b.page.Classes = append(b.page.Classes, c.operation, c.kernel, c.kind, c.barrier, c.phase, c.epoch, c.meta)
	}
	return k
}

// totals fills everything but the samples.
func (b *pageBuilder) totals() {
	var all Kinds
	for i := range b.p.Tiles {
		kinds := b.tile(i)
		all.plus(kinds)
		b.page.TileCompute = append(b.page.TileCompute, kinds.Compute)
	}
	b.page.MeanKinds = mean(all, len(b.p.Tiles))
	var tile uint32
	b.page.CriticalTileKinds, tile = b.p.ByKind()
	b.page.CriticalTile = TileName(tile)
	index := map[uint32]uint32{}
	for i, t := range b.page.Tiles {
		index[t] = uint32(i)
	}
	for _, s := range b.p.CriticalPath() {
		b.page.CriticalPathKinds.plus(s.Kinds())
		b.page.Path = append(b.page.Path, index[s.Tile], s.Start, s.End)
		if s.Step != nil {
			b.operation(s.Step.Operation).Path += uint64(s.End - s.Start)
		}
	}
	for i := range b.page.Operations {
		o := &b.page.Operations[i]
		o.Mean = mean(o.kinds, len(b.p.Tiles))
	}
}

// tile adds a tile to the operations and returns its cycles. Time that no sample
// covers is idle, and belongs to the operation that the tile does next, or did
// last.
func (b *pageBuilder) tile(i int) (sum Kinds) {
	x := &b.split
	now, samples := x.start, b.p.Tiles[i].Samples
	idle := func(o *operation, until uint32) {
		if until = min(until, x.end); until > now {
			gap := Kinds{Idle: uint64(until - now)}
			o.kinds.plus(gap)
			sum.plus(gap)
		}
	}
	if len(samples) == 0 {
		return Kinds{Idle: uint64(x.end - x.start)}
	}
	for j := range samples {
		s := &samples[j]
		o := b.operation(s.Step.Operation)
		idle(o, s.StartCycle)
		k := x.split(s)
		o.kinds.plus(k)
		sum.plus(k)
		now = max(now, s.EndCycle)
		if k.Total() > 0 {
			o.Start, o.End = min(o.Start, max(s.StartCycle, x.start)), max(o.End, s.EndCycle)
		}
		if s.Step.Kind == KindCompute && o.lastTile != i+1 {
			o.lastTile = i + 1
			o.Tiles++
		}
		if j == len(samples)-1 {
			idle(o, x.end)
		}
	}
	return sum
}

// operation returns the row of an operation.
func (b *pageBuilder) operation(name string) *operation {
	k, ok := b.operated[name]
	if !ok {
		k = len(b.page.Operations)
		b.operated[name] = k
		b.page.Operations = append(b.page.Operations, operation{Name: cmp.Or(name, "(no operation)"), Start: b.split.end})
	}
	return &b.page.Operations[k]
}
