package program

import (
	"cmp"
	"fmt"
	"slices"
	"unicode"
	"unicode/utf8"

	"ipufarm/protocol/machine"
	"ipufarm/protocol/profile"
)

// configSpace is the size of the device's configuration window in bytes
// (published driver notes, 2026-08: a 512 KiB base address register).
const configSpace = 512 << 10

// maxSegments bounds the segments of one tile, so that looking for the one that
// holds an address stays cheap for a package that was made to be slow. Real
// images have fewer than ten.
const maxSegments = 1024

// Check states every promise that a package makes by itself, without looking at
// what its commands and rows mean. The first broken promise is the error; it
// names the tile (physical and logical), binding or segment. The rules are those
// of the published package notes (2026-08) and of the types in program.go.
func (p *Package) Check() error {
	for _, check := range []func() error{
		p.checkTarget,
		p.checkTiles,
		p.checkBindings,
		p.checkHost,
		p.checkEntryPoints,
		p.checkConfig,
		p.checkPlans,
		p.checkDebug,
	} {
		if err := check(); err != nil {
			return fmt.Errorf("package: %w", err)
		}
	}
	return nil
}

// TileName names a physical tile for people, with its logical number.
func TileName(physical uint32) string { return profile.TileName(physical) }

// FileSize is the size of the artifact that belongs to a binding list.
func FileSize(list []Binding) uint64 {
	size := uint64(0)
	for i := range list {
		for _, s := range list[i].Slices {
			size = max(size, s.FileOffset+s.Size)
		}
	}
	return size
}

// DTypeBytes is the size of an element of a binding, 0 for an unknown dtype.
func DTypeBytes(dtype string) int {
	switch dtype {
	case "f143":
		return 1
	case "f16":
		return 2
	case "f32", "u32":
		return 4
	}
	return 0
}

func (p *Package) checkTarget() error {
	if p.SchemaVersion != SchemaVersion {
		return fmt.Errorf("schema version %d, want %d", p.SchemaVersion, SchemaVersion)
	}
	if p.Target != Target {
		return fmt.Errorf("target %q, want %q", p.Target, Target)
	}
	if p.TileMemoryBase != machine.MemoryBase || p.TileMemorySize != machine.MemorySize {
		return fmt.Errorf("tile memory of %d bytes at 0x%X, a tile of %s has %d at 0x%X",
			p.TileMemorySize, p.TileMemoryBase, Target, machine.MemorySize, machine.MemoryBase)
	}
	return nil
}

func (p *Package) checkTiles() error {
	if len(p.Tiles) == 0 {
		return fmt.Errorf("no tiles, at least one is needed")
	}
	for i := range p.Tiles {
		t := &p.Tiles[i]
		if t.PhysicalTile >= machine.Tiles {
			return fmt.Errorf("tile %d does not exist, the device has tiles 0 to %d", t.PhysicalTile, machine.Tiles-1)
		}
		if i > 0 && t.PhysicalTile <= p.Tiles[i-1].PhysicalTile {
			return fmt.Errorf("%s follows %s, tiles must ascend without repetition",
				TileName(t.PhysicalTile), TileName(p.Tiles[i-1].PhysicalTile))
		}
		if err := t.check(); err != nil {
			return fmt.Errorf("%s: %w", TileName(t.PhysicalTile), err)
		}
	}
	return nil
}

func (t *TileImage) check() error {
	if len(t.Segments) > maxSegments {
		return fmt.Errorf("%d segments, at most %d are accepted", len(t.Segments), maxSegments)
	}
	for i := range t.Segments {
		if err := t.Segments[i].check(); err != nil {
			return fmt.Errorf("segment %d: %w", i, err)
		}
	}
	order := make([]int, len(t.Segments))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(t.Segments[a].Address, t.Segments[b].Address) })
	for i := 1; i < len(order); i++ {
		a, b := &t.Segments[order[i-1]], &t.Segments[order[i]]
		if a.end() > b.Address {
			return fmt.Errorf("segments %d (%s) and %d (%s) overlap", order[i-1], span(a.Address, a.MemorySize), order[i], span(b.Address, b.MemorySize))
		}
	}
	if t.EntryPoint%4 != 0 || t.EntryPoint < machine.MemoryBase || t.EntryPoint >= machine.Region0End {
		return fmt.Errorf("entry point 0x%X, code is fetched from words in 0x%X..0x%X", t.EntryPoint, machine.MemoryBase, machine.Region0End)
	}
	if a := t.DiagnosticAddress; a != 0 && (a%4 != 0 || a < machine.MemoryBase || a >= machine.MemoryEnd) {
		return fmt.Errorf("diagnostic address 0x%X is not a word of tile memory", a)
	}
	if t.CommandAddress%8 != 0 {
		return fmt.Errorf("command stream at 0x%X, must be 8-byte aligned", t.CommandAddress)
	}
	s := t.segmentOf(t.CommandAddress)
	if s == nil {
		return fmt.Errorf("command stream at 0x%X lies in no segment", t.CommandAddress)
	}
	if room := s.end() - t.CommandAddress; room < CommandBytes {
		return fmt.Errorf("command stream at 0x%X has %d bytes left in its segment, a record has %d", t.CommandAddress, room, CommandBytes)
	}
	return nil
}

func (s *Segment) check() error {
	end := uint64(s.Address) + uint64(s.MemorySize)
	switch {
	case s.MemorySize == 0:
		return fmt.Errorf("empty")
	case s.Address < machine.EntryPoint || end > machine.LoadEnd:
		return fmt.Errorf("%s, the loader fills 0x%X..0x%X", span(s.Address, s.MemorySize), machine.EntryPoint, machine.LoadEnd)
	case s.Address%4 != 0 || s.MemorySize%4 != 0:
		return fmt.Errorf("%s, must start and end at whole words", span(s.Address, s.MemorySize))
	case s.Address < machine.ApertureEnd && end > machine.ApertureBase:
		return fmt.Errorf("%s overlaps the host exchange aperture 0x%X..0x%X", span(s.Address, s.MemorySize), machine.ApertureBase, machine.ApertureEnd)
	case uint64(len(s.Data)) > uint64(s.MemorySize):
		return fmt.Errorf("%d bytes of data for %d bytes of memory", len(s.Data), s.MemorySize)
	case s.Flags == 0 || s.Flags > Read|Write|Execute:
		return fmt.Errorf("flags 0x%X, want a combination of read (1), write (2) and execute (4)", s.Flags)
	case s.Flags&Execute != 0 && end > machine.Region0End:
		return fmt.Errorf("%s is executable, code is fetched below 0x%X only", span(s.Address, s.MemorySize), machine.Region0End)
	}
	return nil
}

// end is the address after a segment that passed its check.
func (s *Segment) end() uint32 { return s.Address + s.MemorySize }

// segmentOf returns the segment that holds an address, nil if there is none.
func (t *TileImage) segmentOf(address uint32) *Segment {
	for i := range t.Segments {
		if s := &t.Segments[i]; address >= s.Address && uint64(address) < uint64(s.Address)+uint64(s.MemorySize) {
			return s
		}
	}
	return nil
}

func span(address, size uint32) string {
	return fmt.Sprintf("0x%X..0x%X", address, uint64(address)+uint64(size))
}

// image returns the image of a tile, nil if the package has none.
func (p *Package) image(physical uint32) *TileImage {
	i, found := slices.BinarySearchFunc(p.Tiles, physical, func(t TileImage, tile uint32) int {
		return cmp.Compare(t.PhysicalTile, tile)
	})
	if !found {
		return nil
	}
	return &p.Tiles[i]
}

// checkName refuses what would break a table, a path or a terminal.
func checkName(what, name string) error {
	if name == "" {
		return fmt.Errorf("%s without a name", what)
	}
	if !utf8.ValidString(name) {
		return fmt.Errorf("%s name %.60q is not UTF-8", what, name)
	}
	for _, r := range name {
		if unicode.IsControl(r) {
			return fmt.Errorf("%s name %.60q has a control character", what, name)
		}
	}
	return nil
}

// placed is one slice of a binding, for the checks that look at all of them.
type placed struct {
	RegionSlice
	binding string
}

func (p *Package) checkBindings() error {
	seen := map[string]string{}
	var written []placed // what the host writes before the device runs
	for _, list := range []struct {
		name     string
		bindings []Binding
	}{{"inputs", p.Inputs}, {"outputs", p.Outputs}, {"weights", p.Weights}} {
		all, err := p.checkList(list.name, list.bindings, seen)
		if err != nil {
			return fmt.Errorf("%s: %w", list.name, err)
		}
		if list.name != "outputs" {
			written = append(written, all...)
		}
	}
	return p.checkWritten(written)
}

// checkList checks the bindings of one list, which share a file, and returns
// their slices. Seen holds the list of every name so far.
func (p *Package) checkList(list string, bindings []Binding, seen map[string]string) ([]placed, error) {
	var all []placed
	for i := range bindings {
		b := &bindings[i]
		if err := checkName(fmt.Sprintf("binding %d", i), b.Name); err != nil {
			return nil, err
		}
		if other, ok := seen[b.Name]; ok {
			return nil, fmt.Errorf("binding %q appears twice (before in %s)", b.Name, other)
		}
		seen[b.Name] = list
		if err := p.checkBinding(b); err != nil {
			return nil, fmt.Errorf("binding %q: %w", b.Name, err)
		}
		for _, s := range b.Slices {
			all = append(all, placed{s, b.Name})
		}
	}
	file := make([]extent, len(all))
	for i, s := range all {
		file[i] = extent{s.FileOffset, s.Size, i}
	}
	if _, i, err := cover(file, list == "outputs"); err != nil {
		return nil, fmt.Errorf("binding %q: slice on %s: %w", all[i].binding, TileName(all[i].Tile), err)
	}
	return all, nil
}

func (p *Package) checkBinding(b *Binding) error {
	element := DTypeBytes(b.DType)
	if element == 0 {
		return fmt.Errorf("dtype %.20q, want f16, f32, f143 or u32", b.DType)
	}
	const maxBytes = machine.Tiles * machine.MemorySize
	need := uint64(element)
	for _, n := range b.Shape {
		if n == 0 || need*uint64(n) > maxBytes {
			return fmt.Errorf("shape %v is empty or larger than the device", b.Shape)
		}
		need *= uint64(n)
	}
	held := uint64(0)
	for i, s := range b.Slices {
		switch {
		case p.image(s.Tile) == nil:
			return fmt.Errorf("slice %d: %s has no image in this package", i, TileName(s.Tile))
		case s.Size == 0 || s.Size > machine.MemorySize || s.TileAddress < machine.MemoryBase || uint64(s.TileAddress)+s.Size > machine.MemoryEnd:
			return fmt.Errorf("slice %d on %s: %d bytes at 0x%X, tile memory is 0x%X..0x%X",
				i, TileName(s.Tile), s.Size, s.TileAddress, machine.MemoryBase, machine.MemoryEnd)
		case s.TileAddress%4 != 0 || s.Size%4 != 0 || s.FileOffset%4 != 0:
			return fmt.Errorf("slice %d on %s: %d bytes at 0x%X from file offset %d, the host moves whole words",
				i, TileName(s.Tile), s.Size, s.TileAddress, s.FileOffset)
		case s.FileOffset > 1<<48:
			return fmt.Errorf("slice %d on %s: file offset %d is beyond any file", i, TileName(s.Tile), s.FileOffset)
		}
		held += s.Size
	}
	if held < need {
		return fmt.Errorf("%d bytes in slices, shape %v of %s needs %d", held, b.Shape, b.DType, need)
	}
	return nil
}

// extent is a piece of a file.
type extent struct {
	offset, size uint64
	owner        int // index of the slice that it belongs to
}

// cover checks that extents cover their file from the start without a gap and,
// for a file that the device writes, without two extents for one byte. It returns
// how many bytes they cover, or the owner of the first wrong one. It sorts list.
func cover(list []extent, exclusive bool) (covered uint64, owner int, err error) {
	slices.SortFunc(list, func(a, b extent) int {
		return cmp.Or(cmp.Compare(a.offset, b.offset), cmp.Compare(a.size, b.size))
	})
	for _, e := range list {
		if e.offset > covered {
			return covered, e.owner, fmt.Errorf("the file bytes %d..%d before it belong to no slice", covered, e.offset)
		}
		if exclusive && e.offset < covered {
			return covered, e.owner, fmt.Errorf("its file bytes from %d belong to another slice, too", e.offset)
		}
		covered = max(covered, e.offset+e.size)
	}
	return covered, 0, nil
}

// checkWritten checks what the host writes: only memory meant for data, no byte
// twice, and nothing that the image protects.
func (p *Package) checkWritten(all []placed) error {
	slices.SortFunc(all, func(a, b placed) int {
		return cmp.Or(cmp.Compare(a.Tile, b.Tile), cmp.Compare(a.TileAddress, b.TileAddress), cmp.Compare(a.Size, b.Size))
	})
	for i, s := range all {
		if s.TileAddress < machine.DataBase {
			return fmt.Errorf("binding %q: 0x%X on %s, data starts at 0x%X", s.binding, s.TileAddress, TileName(s.Tile), machine.DataBase)
		}
		if i > 0 && all[i-1].Tile == s.Tile && uint64(all[i-1].TileAddress)+all[i-1].Size > uint64(s.TileAddress) {
			return fmt.Errorf("bindings %q and %q both write 0x%X on %s", all[i-1].binding, s.binding, s.TileAddress, TileName(s.Tile))
		}
		image := p.image(s.Tile)
		for j := range image.Segments {
			g := &image.Segments[j]
			if g.Flags&Write == 0 && uint64(g.Address) < uint64(s.TileAddress)+s.Size && s.TileAddress < g.end() {
				return fmt.Errorf("binding %q: %s on %s overlaps segment %d (%s), which is not writable",
					s.binding, span(s.TileAddress, uint32(s.Size)), TileName(s.Tile), j, span(g.Address, g.MemorySize))
			}
		}
	}
	return nil
}

func (p *Package) checkHost() error {
	h := &p.HostExchange
	pages := map[uint32]uint64{}
	for _, page := range h.Pages {
		if _, ok := pages[page.Index]; ok {
			return fmt.Errorf("host page %d appears twice", page.Index)
		}
		if page.Size == 0 {
			return fmt.Errorf("host page %d is empty", page.Index)
		}
		pages[page.Index] = page.Size
	}
	if size, ok := pages[h.CommandPage]; len(pages) > 0 && (!ok || h.CommandOffset >= size) {
		return fmt.Errorf("host commands at offset %d of page %d, which has %d bytes", h.CommandOffset, h.CommandPage, size)
	}
	attached := map[uint32]bool{}
	for _, index := range h.AttachOrder {
		if _, ok := pages[index]; !ok {
			return fmt.Errorf("attach order names host page %d, which does not exist", index)
		}
		if attached[index] {
			return fmt.Errorf("attach order names host page %d twice", index)
		}
		attached[index] = true
	}
	seen := map[string]bool{}
	for i := range h.Calls {
		c := &h.Calls[i]
		if seen[c.Name] {
			return fmt.Errorf("host call %.40q appears twice", c.Name)
		}
		seen[c.Name] = true
		if err := p.checkCall(c, pages); err != nil {
			return fmt.Errorf("host call %.40q: %w", c.Name, err)
		}
	}
	if !seen["run"] {
		return fmt.Errorf(`no host call "run"`)
	}
	if len(p.Weights) > 0 && !seen["initialize"] {
		return fmt.Errorf(`%d weights but no host call "initialize"`, len(p.Weights))
	}
	return nil
}

func (p *Package) checkCall(c *HostCall, pages map[uint32]uint64) error {
	var inputs, outputs []Binding
	// Every batch is a phase of its own; on hardware two marks frame a batch, and
	// the last batch of a run needs no second one (published host notes, 2026-08).
	in, out := uint64(len(c.InputBatchEnds)), uint64(len(c.OutputBatchEnds))
	phases := uint64(0)
	switch c.Name {
	case "initialize":
		inputs = p.Weights
		phases = 2 * in
	case "run":
		inputs, outputs = p.Inputs, p.Outputs
		if in+out > 0 {
			phases = 2*(in+out) - 1
		}
	default:
		return fmt.Errorf(`unknown, want "initialize" or "run"`)
	}
	if c.Invocations == 0 {
		return fmt.Errorf("0 invocations, want at least 1")
	}
	if c.Command%CommandBytes != 0 {
		return fmt.Errorf("command offset %d is not a multiple of the %d bytes of a record", c.Command, CommandBytes)
	}
	if c.Phases != 0 && uint64(c.Phases) != phases {
		return fmt.Errorf("%d phases, its %d input and %d output batches need %d", c.Phases, in, out, phases)
	}
	if err := checkHostSlices(c.Inputs, c.InputBatchEnds, pages, FileSize(inputs), false); err != nil {
		return fmt.Errorf("inputs: %w", err)
	}
	if err := checkHostSlices(c.Outputs, c.OutputBatchEnds, pages, FileSize(outputs), true); err != nil {
		return fmt.Errorf("outputs: %w", err)
	}
	return nil
}

// checkHostSlices checks the slices of one direction of a call. A call without
// slices moves its file as the bindings say.
func checkHostSlices(list []HostSlice, batchEnds []uint32, pages map[uint32]uint64, fileSize uint64, exclusive bool) error {
	file := make([]extent, len(list))
	for i, s := range list {
		size, ok := pages[s.Page]
		switch {
		case !ok:
			return fmt.Errorf("slice %d: host page %d does not exist", i, s.Page)
		case s.Size == 0 || s.Size > size || s.PageOffset > size-s.Size:
			return fmt.Errorf("slice %d: %d bytes at offset %d of host page %d, which has %d", i, s.Size, s.PageOffset, s.Page, size)
		case s.Size > fileSize || s.FileOffset > fileSize-s.Size:
			return fmt.Errorf("slice %d: %d bytes at file offset %d, the file has %d", i, s.Size, s.FileOffset, fileSize)
		}
		file[i] = extent{s.FileOffset, s.Size, i}
	}
	covered, i, err := cover(file, exclusive)
	if err != nil {
		return fmt.Errorf("slice %d: %w", i, err)
	}
	if len(list) > 0 && covered != fileSize {
		return fmt.Errorf("slices cover %d bytes of a file of %d", covered, fileSize)
	}
	for i, end := range batchEnds {
		if uint64(end) > uint64(len(list)) || end == 0 || i > 0 && end <= batchEnds[i-1] {
			return fmt.Errorf("batch ends %v, must ascend from 1 to at most the %d slices", batchEnds, len(list))
		}
	}
	if n := len(batchEnds); n > 0 && int(batchEnds[n-1]) != len(list) {
		return fmt.Errorf("the last batch ends after slice %d of %d", batchEnds[n-1], len(list))
	}
	return nil
}

func (p *Package) checkEntryPoints() error {
	seen := map[string]bool{}
	for i, e := range p.EntryPoints {
		if err := checkName(fmt.Sprintf("entry point %d", i), e.Name); err != nil {
			return err
		}
		if seen[e.Name] {
			return fmt.Errorf("entry point %q appears twice", e.Name)
		}
		seen[e.Name] = true
		if e.Command%CommandBytes != 0 {
			return fmt.Errorf("entry point %q: command offset %d is not a multiple of the %d bytes of a record", e.Name, e.Command, CommandBytes)
		}
	}
	return nil
}

func (p *Package) checkConfig() error {
	seen := map[uint32]bool{}
	for _, w := range p.DeviceConfigWrites {
		if w.Offset%4 != 0 || w.Offset >= configSpace {
			return fmt.Errorf("device configuration write to 0x%X, want a word below 0x%X", w.Offset, configSpace)
		}
		if seen[w.Offset] {
			return fmt.Errorf("device configuration offset 0x%X appears twice", w.Offset)
		}
		seen[w.Offset] = true
	}
	return nil
}

func (p *Package) checkPlans() error {
	for i := range p.ProfileTiles {
		plan := &p.ProfileTiles[i]
		if p.image(plan.PhysicalTile) == nil {
			return fmt.Errorf("profile plan for %s, which has no image in this package", TileName(plan.PhysicalTile))
		}
		if i > 0 && plan.PhysicalTile <= p.ProfileTiles[i-1].PhysicalTile {
			return fmt.Errorf("profile plan for %s follows that for %s, must ascend without repetition",
				TileName(plan.PhysicalTile), TileName(p.ProfileTiles[i-1].PhysicalTile))
		}
		for j := range plan.Steps {
			err := plan.Steps[j].Check()
			if err == nil && plan.Steps[j].LocalIndex != uint32(j) {
				err = fmt.Errorf("has local index %d, must count from 0", plan.Steps[j].LocalIndex)
			}
			if err != nil {
				return fmt.Errorf("profile plan for %s: step %d: %w", TileName(plan.PhysicalTile), j, err)
			}
		}
	}
	return nil
}

func (p *Package) checkDebug() error {
	for i, s := range p.DebugSymbols {
		if err := checkName(fmt.Sprintf("debug symbol %d", i), s.Name); err != nil {
			return err
		}
		if s.Address < machine.MemoryBase || s.Address >= machine.MemoryEnd {
			return fmt.Errorf("debug symbol %q at 0x%X, outside tile memory", s.Name, s.Address)
		}
	}
	for i, r := range p.DebugRegions {
		if err := checkName(fmt.Sprintf("debug region %d", i), r.Name); err != nil {
			return err
		}
		if r.PhysicalTile != AllTiles && p.image(r.PhysicalTile) == nil {
			return fmt.Errorf("debug region %q on %s, which has no image in this package", r.Name, TileName(r.PhysicalTile))
		}
		if r.Address < machine.MemoryBase || uint64(r.Address)+uint64(r.Size) > machine.MemoryEnd {
			return fmt.Errorf("debug region %q: %s lies outside tile memory", r.Name, span(r.Address, r.Size))
		}
	}
	return nil
}
