package program

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"ipufarm/protocol/machine"
	"ipufarm/protocol/profile"
)

// Summary is what a package holds, counted. Bytes are bytes, tiles physical ids.
type Summary struct {
	CompilerVersion string           `json:"compiler_version"`
	Target          string           `json:"target"`
	Tiles           int              `json:"tiles"`
	Segments        int              `json:"segments"`
	SegmentBytes    SegmentBytes     `json:"segment_bytes"`
	ImageBytesMax   TileBytes        `json:"image_bytes_max"` // data of all segments of a tile
	TableBytesMax   TileBytes        `json:"table_bytes_max"` // distinct exchange rows of a tile
	CommandsMax     TileBytes        `json:"commands_max"`    // records of a tile
	Inputs          []BindingSummary `json:"inputs"`
	Outputs         []BindingSummary `json:"outputs"`
	Weights         []BindingSummary `json:"weights"`
	Calls           []CallSummary    `json:"host_calls"`
	Phases          []PhaseSummary   `json:"phases"`
	Kernels         []KernelSummary  `json:"kernels"`
	LargestRows     []RowSummary     `json:"largest_rows"`
	ProfileSteps    int              `json:"profile_steps"`
}

// SegmentBytes splits the memory of all segments of all tiles by what it is for.
type SegmentBytes struct {
	Rows     int `json:"rows"`     // distinct exchange rows
	Commands int `json:"commands"` // command records
	Other    int `json:"other"`    // data that is neither
	Zero     int `json:"zero"`     // memory after the data
}

// TileBytes is the largest of something and the first tile that has it.
type TileBytes struct {
	Bytes int    `json:"bytes"`
	Tile  uint32 `json:"tile"`
}

func (m *TileBytes) see(bytes int, tile uint32) {
	if bytes > m.Bytes {
		*m = TileBytes{bytes, tile}
	}
}

type BindingSummary struct {
	Name   string   `json:"name"`
	DType  string   `json:"dtype"`
	Shape  []uint32 `json:"shape"`
	Slices int      `json:"slices"`
	Tiles  int      `json:"tiles"`
	Bytes  uint64   `json:"bytes"` // of all slices, copies included
}

type CallSummary struct {
	Name    string `json:"name"`
	Command uint32 `json:"command"`
	Inputs  int    `json:"input_slices"`
	Outputs int    `json:"output_slices"`
	Phases  uint32 `json:"phases"`
}

// PhaseSummary is one exchange of all tiles. Events are scheduled cycles.
type PhaseSummary struct {
	Phase       uint32 `json:"phase"`
	Active      int    `json:"active_tiles"` // tiles that have a row
	RowBytesMax int    `json:"row_bytes_max"`
	Horizon     int32  `json:"horizon_events"`
	SendBytes   int    `json:"send_bytes"`
	Controls    int    `json:"controls"`
}

type KernelSummary struct {
	Kernel string `json:"kernel"`
	Calls  int    `json:"calls"`
	Tiles  int    `json:"tiles"`
	Most   int    `json:"calls_max"` // on one tile
}

// RowSummary is one exchange row.
type RowSummary struct {
	Tile    uint32 `json:"tile"`
	Phase   uint32 `json:"phase"`
	Bytes   int    `json:"bytes"`
	Horizon int32  `json:"horizon_events"`
	Sends   int    `json:"sends"`
}

// largestRows is how many rows a summary lists.
const largestRows = 8

// Summarize counts what a package holds. The package must have passed Verify;
// the error is that of Verify otherwise.
func Summarize(p *Package) (*Summary, error) {
	// Empty lists, so that JSON says [] and not null.
	s := &Summary{CompilerVersion: p.CompilerVersion, Target: p.Target, Tiles: len(p.Tiles),
		Calls: []CallSummary{}, Phases: []PhaseSummary{}, Kernels: []KernelSummary{}, LargestRows: []RowSummary{}}
	calls := make([]KernelSummary, KernelCount)
	for i := range p.Tiles {
		t := &p.Tiles[i]
		if err := s.addTile(t, calls); err != nil {
			return nil, fmt.Errorf("%s: %w", TileName(t.PhysicalTile), err)
		}
	}
	for k, c := range calls {
		if c.Calls > 0 {
			c.Kernel = Kernel(k).String()
			s.Kernels = append(s.Kernels, c)
		}
	}
	s.Inputs, s.Outputs, s.Weights = summarizeBindings(p.Inputs), summarizeBindings(p.Outputs), summarizeBindings(p.Weights)
	for _, c := range p.HostExchange.Calls {
		s.Calls = append(s.Calls, CallSummary{c.Name, c.Command, len(c.Inputs), len(c.Outputs), c.Phases})
	}
	for i := range p.ProfileTiles {
		s.ProfileSteps += len(p.ProfileTiles[i].Steps)
	}
	return s, nil
}

// addTile adds a tile; calls is indexed by kernel.
func (s *Summary) addTile(t *TileImage, calls []KernelSummary) error {
	commands, err := t.Commands()
	if err != nil {
		return err
	}
	data, exchanges, table := 0, 0, 0
	onTile := make([]int, KernelCount)
	seen := map[[2]uint32]bool{}
	for _, c := range commands {
		switch c.Kind {
		case Call:
			onTile[c.Kernel]++
		case Exchange:
			if err := s.addExchange(t, c, exchanges); err != nil {
				return err
			}
			exchanges++
			if key := [2]uint32{c.Args[ArgRow], c.Args[ArgRowBytes]}; !seen[key] {
				seen[key] = true
				table += int(key[1])
			}
		}
	}
	for k, n := range onTile {
		if n > 0 {
			calls[k].Calls += n
			calls[k].Tiles++
			calls[k].Most = max(calls[k].Most, n)
		}
	}
	for i := range t.Segments {
		g := &t.Segments[i]
		data += len(g.Data)
		s.SegmentBytes.Zero += int(g.MemorySize) - len(g.Data)
	}
	s.Segments += len(t.Segments)
	s.SegmentBytes.Rows += table
	s.SegmentBytes.Commands += len(commands) * CommandBytes
	// Rows may overlap and an End may lie in zero-filled memory, so the rest can
	// only be told up to those.
	s.SegmentBytes.Other += max(0, data-table-len(commands)*CommandBytes)
	s.ImageBytesMax.see(data, t.PhysicalTile)
	s.TableBytesMax.see(table, t.PhysicalTile)
	s.CommandsMax.see(len(commands)*CommandBytes, t.PhysicalTile)
	return nil
}

// addExchange adds one exchange of one tile; index counts exchanges of the tile.
func (s *Summary) addExchange(t *TileImage, c Command, index int) error {
	if index == len(s.Phases) {
		s.Phases = append(s.Phases, PhaseSummary{Phase: c.Label})
	}
	words, err := t.Row(c)
	if err != nil || words == nil {
		return err
	}
	row, err := machine.DecodeRow(words)
	if err != nil {
		return err
	}
	phase := &s.Phases[index]
	phase.Active++
	phase.RowBytesMax = max(phase.RowBytesMax, 4*len(words))
	phase.Horizon = max(phase.Horizon, row.Horizon)
	phase.Controls += len(row.Controls)
	for _, send := range row.Sends {
		phase.SendBytes += int(send.End() - send.Address)
	}
	s.LargestRows = append(s.LargestRows, RowSummary{t.PhysicalTile, c.Label, 4 * len(words), row.Horizon, len(row.Sends)})
	slices.SortStableFunc(s.LargestRows, func(a, b RowSummary) int { return cmp.Compare(b.Bytes, a.Bytes) })
	s.LargestRows = s.LargestRows[:min(len(s.LargestRows), largestRows)]
	return nil
}

func summarizeBindings(list []Binding) []BindingSummary {
	all := make([]BindingSummary, 0, len(list))
	for i := range list {
		b := &list[i]
		s := BindingSummary{Name: b.Name, DType: b.DType, Shape: b.Shape, Slices: len(b.Slices)}
		tiles := map[uint32]bool{}
		for _, slice := range b.Slices {
			s.Bytes += slice.Size
			tiles[slice.Tile] = true
		}
		s.Tiles = len(tiles)
		all = append(all, s)
	}
	return all
}

// InspectOptions choose what Inspect prints.
type InspectOptions struct {
	Tile int  // physical tile to print in detail; negative: the whole package in short
	JSON bool // one JSON object instead of text
}

// Inspect prints a package that passed Verify for people or, with JSON, programs.
func Inspect(w io.Writer, p *Package, o InspectOptions) error {
	var value any
	var print func(io.Writer)
	if o.Tile >= 0 {
		d, err := Detail(p, uint32(o.Tile))
		if err != nil {
			return err
		}
		value, print = d, d.print
	} else {
		s, err := Summarize(p)
		if err != nil {
			return err
		}
		value, print = s, s.print
	}
	if o.JSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(value)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	print(t)
	return t.Flush()
}

func (s *Summary) print(w io.Writer) {
	fmt.Fprintf(w, "package for %s by %q\n", s.Target, s.CompilerVersion)
	fmt.Fprintf(w, "tiles\t%d\n", s.Tiles)
	b := s.SegmentBytes
	fmt.Fprintf(w, "segments\t%d: %d bytes of exchange rows, %d of commands, %d of other data, %d zero\n", s.Segments, b.Rows, b.Commands, b.Other, b.Zero)
	fmt.Fprintf(w, "largest image\t%d bytes, %s\n", s.ImageBytesMax.Bytes, TileName(s.ImageBytesMax.Tile))
	fmt.Fprintf(w, "largest table\t%d bytes of rows, %s\n", s.TableBytesMax.Bytes, TileName(s.TableBytesMax.Tile))
	fmt.Fprintf(w, "longest stream\t%d commands, %s\n", s.CommandsMax.Bytes/CommandBytes, TileName(s.CommandsMax.Tile))
	fmt.Fprintf(w, "profile plan\t%d steps\n", s.ProfileSteps)
	for _, c := range s.Calls {
		fmt.Fprintf(w, "host call\t%s at command offset %d: %d input slices, %d output slices, %d phases\n", c.Name, c.Command, c.Inputs, c.Outputs, c.Phases)
	}
	for _, list := range []struct {
		name     string
		bindings []BindingSummary
	}{{"input", s.Inputs}, {"output", s.Outputs}, {"weight", s.Weights}} {
		if len(list.bindings) == 0 {
			continue
		}
		fmt.Fprintf(w, "\n%s\tdtype\tshape\tslices\ttiles\tbytes\n", list.name)
		for _, b := range list.bindings {
			fmt.Fprintf(w, "%s\t%s\t%v\t%d\t%d\t%d\n", b.Name, b.DType, b.Shape, b.Slices, b.Tiles, b.Bytes)
		}
	}
	if len(s.Phases) > 0 {
		fmt.Fprint(w, "\nphase\tactive tiles\thorizon events\tsent bytes\tcontrols\tlargest row bytes\n")
		for _, p := range s.Phases {
			fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%d\t%d\n", p.Phase, p.Active, p.Horizon, p.SendBytes, p.Controls, p.RowBytesMax)
		}
	}
	if len(s.Kernels) > 0 {
		fmt.Fprint(w, "\nkernel\tcalls\ttiles\tmost on a tile\n")
		for _, k := range s.Kernels {
			fmt.Fprintf(w, "%s\t%d\t%d\t%d\n", k.Kernel, k.Calls, k.Tiles, k.Most)
		}
	}
	if len(s.LargestRows) > 0 {
		fmt.Fprint(w, "\nlargest rows\tphase\tbytes\thorizon events\tsends\n")
		for _, r := range s.LargestRows {
			fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\n", TileName(r.Tile), r.Phase, r.Bytes, r.Horizon, r.Sends)
		}
	}
}

// TileDetail is everything about one tile.
type TileDetail struct {
	Tile     uint32          `json:"tile"`
	Logical  int             `json:"logical_tile"`
	Entry    uint32          `json:"entry_point"`
	Segments []SegmentDetail `json:"segments"`
	Slices   []SliceDetail   `json:"slices"`
	Commands []CommandDetail `json:"commands"`
}

type SegmentDetail struct {
	Address    uint32 `json:"address"`
	MemorySize uint32 `json:"memory_size"`
	DataBytes  int    `json:"data_bytes"`
	Flags      string `json:"flags"`
}

type SliceDetail struct {
	List       string `json:"list"`
	Binding    string `json:"binding"`
	Address    uint32 `json:"address"`
	Size       uint64 `json:"size"`
	FileOffset uint64 `json:"file_offset"`
}

// CommandDetail is one record, disassembled; Row only of an exchange with a row.
type CommandDetail struct {
	Index     int        `json:"index"`
	Address   uint32     `json:"address"`
	Text      string     `json:"text"`
	Operation string     `json:"operation,omitempty"` // from the profile plan
	Row       *RowDetail `json:"row,omitempty"`
}

type RowDetail struct {
	Words   int      `json:"words"`
	Horizon int32    `json:"horizon_events"`
	Events  []string `json:"events"`
}

// Detail disassembles one tile of a package that passed Verify.
func Detail(p *Package, tile uint32) (*TileDetail, error) {
	t := p.image(tile)
	if t == nil {
		return nil, fmt.Errorf("the package has no image for %s, it has %d tiles from %d to %d",
			TileName(tile), len(p.Tiles), p.Tiles[0].PhysicalTile, p.Tiles[len(p.Tiles)-1].PhysicalTile)
	}
	d := &TileDetail{Tile: tile, Logical: machine.Logical(int(tile)), Entry: t.EntryPoint}
	for _, g := range t.Segments {
		d.Segments = append(d.Segments, SegmentDetail{g.Address, g.MemorySize, len(g.Data), flagText(g.Flags)})
	}
	for _, list := range []struct {
		name     string
		bindings []Binding
	}{{"inputs", p.Inputs}, {"outputs", p.Outputs}, {"weights", p.Weights}} {
		for _, b := range list.bindings {
			for _, s := range b.Slices {
				if s.Tile == tile {
					d.Slices = append(d.Slices, SliceDetail{list.name, b.Name, s.TileAddress, s.Size, s.FileOffset})
				}
			}
		}
	}
	commands, err := t.Commands()
	if err != nil {
		return nil, err
	}
	steps := p.plan(tile)
	for i, c := range commands {
		line := CommandDetail{Index: i, Address: t.CommandAddress + uint32(i*CommandBytes), Text: Disassemble(c)}
		if i < len(steps) {
			line.Operation = steps[i].Operation
		}
		if c.Kind == Exchange {
			if line.Row, err = rowDetail(t, c); err != nil {
				return nil, fmt.Errorf("%s: command %d: %w", TileName(tile), i, err)
			}
		}
		d.Commands = append(d.Commands, line)
	}
	return d, nil
}

// plan returns the planned steps of a tile.
func (p *Package) plan(tile uint32) []profile.Step {
	for i := range p.ProfileTiles {
		if p.ProfileTiles[i].PhysicalTile == tile {
			return p.ProfileTiles[i].Steps
		}
	}
	return nil
}

func flagText(flags uint32) string {
	text := []byte("rwx")
	for i := range text {
		if flags>>i&1 == 0 {
			text[i] = '-'
		}
	}
	return string(text)
}

// argumentNames are the arguments of the kernels as kernels.go gives them; an @
// marks an address.
var argumentNames = [KernelCount]string{
	KernelGEMM:         "@left @right @out rows kPanels cPanels flags scale",
	KernelReduce:       "@local @remote stride remotes @out n flags @a @b scale",
	KernelAdd:          "@a @b @out n",
	KernelAddRows:      "@in @row @out rows width",
	KernelLayerNorm:    "@in @gamma @beta @out rows width flags scale outStride",
	KernelAddLayerNorm: "@a @b @sum @gamma @beta @out rows width flags scale outStride",
	KernelGELU:         "@in @out n flags scale",
	KernelBiasGELU:     "@in @bias @out rows width flags scale",
	KernelSoftmax:      "@in @out @sums rows keys padded @factor",
	KernelNormalise:    "@in @sums @out rows cols flags scale",
	KernelCast:         "@in @out n scale",
	KernelCastPanels:   "@in @out rows cols scale",
	KernelCastLeft:     "@in @out rows cols inStride scale",
	KernelPackLeft:     "@in @out rows cols inStride",
	KernelPackRight:    "@in @out rows cols flags inStride",
	KernelUnpack:       "@in @out rows cols outStride",
	KernelCopy:         "@source @destination bytes",
	KernelCopyStrided:  "@source @destination rows words sourceStride destinationStride",
	KernelFill:         "@destination bytes",
}

// Disassemble prints one decoded record on a line: addresses (and the factor of a
// softmax, which is F32 bits) in hex, scales with their sign.
func Disassemble(c Command) string {
	var b strings.Builder
	switch c.Kind {
	case End:
		b.WriteString("end")
	case Exchange:
		fmt.Fprintf(&b, "exchange phase=%d", c.Label)
		if c.Args[ArgRow] == 0 {
			b.WriteString(" barrier only")
			break
		}
		fmt.Fprintf(&b, " row=0x%X bytes=%d incoming=0x%X outgoing=0x%X", c.Args[ArgRow], c.Args[ArgRowBytes], c.Args[ArgIncomingBase], c.Args[ArgOutgoingBase])
	case Call:
		fmt.Fprintf(&b, "%v #%d", c.Kernel, c.Label)
		for i, name := range strings.Fields(argumentNames[c.Kernel]) {
			switch {
			case name[0] == '@':
				fmt.Fprintf(&b, " %s=0x%X", name[1:], c.Args[i])
			case name == "scale":
				fmt.Fprintf(&b, " %s=%d", name, int32(c.Args[i]))
			default:
				fmt.Fprintf(&b, " %s=%d", name, c.Args[i])
			}
		}
	}
	return b.String()
}

// rowDetail lists what a row does, in order of time.
func rowDetail(t *TileImage, c Command) (*RowDetail, error) {
	words, err := t.Row(c)
	if err != nil || words == nil {
		return nil, err
	}
	row, err := machine.DecodeRow(words)
	if err != nil {
		return nil, err
	}
	type event struct {
		at   int32
		text string
	}
	var events []event
	for _, s := range row.Sends {
		width := 32
		if s.Wide {
			width = 64
		}
		events = append(events, event{s.Start, fmt.Sprintf("send %d x %d bits from 0x%X, direction %d, until %d",
			s.Items, width, c.Args[ArgOutgoingBase]+s.Address, s.Direction, s.Start+s.Items)})
	}
	for _, k := range row.Controls {
		text := fmt.Sprintf("%v %d", k.Kind, k.Value)
		switch {
		case k.Kind == machine.Pointer:
			text = fmt.Sprintf("receive to 0x%X", c.Args[ArgIncomingBase]+4*k.Value)
		case k.Kind != machine.Format && k.Value == machine.Neutral:
			text = fmt.Sprintf("%v neutral", k.Kind)
		case k.Kind != machine.Format:
			text = fmt.Sprintf("%v %s", k.Kind, TileName(k.Value))
		}
		events = append(events, event{k.Event, text})
	}
	for _, b := range row.BaseWrites {
		base := "incoming"
		if b.Outgoing {
			base = "outgoing"
		}
		events = append(events, event{b.Event, fmt.Sprintf("%s base from register %d", base, b.Register)})
	}
	slices.SortStableFunc(events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	d := &RowDetail{Words: len(words), Horizon: row.Horizon}
	for _, e := range events {
		d.Events = append(d.Events, fmt.Sprintf("%d: %s", e.at, e.text))
	}
	return d, nil
}

func (d *TileDetail) print(w io.Writer) {
	fmt.Fprintf(w, "%s, entry point 0x%X\n", TileName(d.Tile), d.Entry)
	fmt.Fprint(w, "\nsegment\tmemory\tdata bytes\tflags\n")
	for i, g := range d.Segments {
		fmt.Fprintf(w, "%d\t%s\t%d\t%s\n", i, span(g.Address, g.MemorySize), g.DataBytes, g.Flags)
	}
	fmt.Fprint(w, "\nbinding\tmemory\tbytes\tfile offset\n")
	for _, s := range d.Slices {
		fmt.Fprintf(w, "%s %s\t%s\t%d\t%d\n", s.List, s.Binding, span(s.Address, uint32(s.Size)), s.Size, s.FileOffset)
	}
	fmt.Fprint(w, "\ncommand\taddress\n")
	for _, c := range d.Commands {
		fmt.Fprintf(w, "%d\t0x%X\t%s\t%s\n", c.Index, c.Address, c.Operation, c.Text)
		if c.Row != nil {
			fmt.Fprintf(w, "\t\t\trow of %d words, horizon %d events\n", c.Row.Words, c.Row.Horizon)
			for _, e := range c.Row.Events {
				fmt.Fprintf(w, "\t\t\t  %s\n", e)
			}
		}
	}
}
