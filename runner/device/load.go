package device

import (
	"cmp"
	"context"
	"encoding/binary"
	"slices"

	"ipufarm/protocol/machine"
	"ipufarm/protocol/profile"
	"ipufarm/protocol/program"
)

// maxFile bounds an artifact that the device would have to allocate.
const maxFile = 4 << 30

// placement says where the bytes of one artifact live.
type placement struct {
	size   uint64    // bytes of the artifact
	slices [][]slice // by index of the tile
}

type slice struct {
	address, size uint32
	offset        uint64
}

// runtimeSpans are taken by code that every package would carry: entry stub and
// support code, and the runtime with the kernels. Nothing of a package may be
// written or read there while it runs.
var runtimeSpans = [...]span{
	{machine.MemoryBase, machine.ApertureBase},
	{machine.SupportBase, machine.TableBase},
}

// Load resets the device and loads a package: segments into memory, then the
// command stream of every tile is decoded from there. Code, tables and commands
// cannot be written afterwards, so decoding once is the same as decoding each
// record when it is reached. Errors are *Fault. After an error the device holds
// no package.
func (d *Device) Load(p *program.Package) error {
	tiles := d.tiles
	d.tiles, d.plan, d.initialized = nil, nil, false
	if err := checkHeader(p); err != nil {
		return err
	}
	index := make([]int32, machine.Tiles)
	for i := range index {
		index[i] = none
	}
	order := make([]*program.TileImage, len(p.Tiles))
	for i := range p.Tiles {
		order[i] = &p.Tiles[i]
	}
	slices.SortStableFunc(order, func(a, b *program.TileImage) int { return cmp.Compare(a.PhysicalTile, b.PhysicalTile) })
	for i, image := range order {
		if image.PhysicalTile >= machine.Tiles {
			return deviceFault(RulePackage, "tile %d, a card has 0 to %d", image.PhysicalTile, machine.Tiles-1)
		}
		if index[image.PhysicalTile] != none {
			return deviceFault(RulePackage, "tile %d has two images", image.PhysicalTile)
		}
		index[image.PhysicalTile] = int32(i)
	}
	// Memory of the package before is used again.
	tiles = slices.Grow(tiles, len(order))[:len(order)]
	faults := make([]*Fault, len(order))
	parallel(context.Background(), d.options.Workers, len(order), func(_, i int) {
		if tiles[i] == nil {
			tiles[i] = new(tile)
		}
		faults[i] = tiles[i].load(order[i], d.options.ZeroMemory, runOffset(p))
	})
	if f := first(faults); f != nil {
		return f
	}
	d.tiles, d.index = tiles, index
	var err error
	for _, b := range []struct {
		what string
		list []program.Binding
		to   *placement
	}{{"weight", p.Weights, &d.weights}, {"input", p.Inputs, &d.inputs}, {"output", p.Outputs, &d.outputs}} {
		if *b.to, err = d.bind(b.what, b.list); err != nil {
			d.tiles = nil
			return err
		}
	}
	d.plan = make([][]profile.Step, len(tiles))
	for _, t := range p.ProfileTiles {
		if t.PhysicalTile < machine.Tiles && index[t.PhysicalTile] != none {
			d.plan[index[t.PhysicalTile]] = t.Steps
		}
	}
	return nil
}

func checkHeader(p *program.Package) error {
	switch {
	case p.Target != program.Target:
		return deviceFault(RulePackage, "target %q, this device is %q", p.Target, program.Target)
	case p.TileMemoryBase != machine.MemoryBase || p.TileMemorySize != machine.MemorySize:
		return deviceFault(RulePackage, "tile memory 0x%X with %d bytes, this device has 0x%X with %d",
			p.TileMemoryBase, p.TileMemorySize, uint32(machine.MemoryBase), machine.MemorySize)
	case len(p.Tiles) == 0:
		return deviceFault(RulePackage, "no tile images")
	}
	return nil
}

// runOffset is where in the command stream the "run" call starts, in bytes.
func runOffset(p *program.Package) uint32 {
	for _, c := range p.HostExchange.Calls {
		if c.Name == "run" {
			return c.Command
		}
	}
	for _, e := range p.EntryPoints {
		if e.Name == "run" {
			return e.Command
		}
	}
	return 0
}

// load fills a tile's memory from its image and decodes its command stream.
func (t *tile) load(image *program.TileImage, zero bool, offset uint32) *Fault {
	if t.memory == nil {
		t.memory = make([]byte, machine.MemorySize)
	} else if zero {
		clear(t.memory)
	}
	if !zero {
		poison(t.memory)
	}
	t.physical = int(image.PhysicalTile)
	t.logical = machine.Logical(t.physical)
	t.protected = append(t.protected[:0], runtimeSpans[:]...)
	t.codeElements = 0
	for _, s := range runtimeSpans {
		t.codeElements |= machine.ElementMask(s.start, s.end-s.start)
	}
	segments := make([]span, 0, len(image.Segments))
	for i := range image.Segments {
		s := &image.Segments[i]
		if s.MemorySize == 0 && len(s.Data) == 0 {
			continue
		}
		end := uint64(s.Address) + uint64(s.MemorySize)
		if uint64(len(s.Data)) > uint64(s.MemorySize) {
			return t.fault(RulePackage, "segment 0x%X has %d bytes of data for %d of memory", s.Address, len(s.Data), s.MemorySize)
		}
		if s.Address < machine.MemoryBase || end > machine.LoadEnd {
			return t.fault(RulePackage, "segment 0x%X..0x%X, the loader fills 0x%X..0x%X", s.Address, end, uint32(machine.MemoryBase), uint32(machine.LoadEnd))
		}
		segments = append(segments, span{s.Address, uint32(end)})
		memory := t.bytes(s.Address, int(s.MemorySize))
		clear(memory[copy(memory, s.Data):])
		if s.Flags&program.Execute != 0 {
			t.protect(span{s.Address, uint32(end)})
		}
	}
	slices.SortFunc(segments, func(a, b span) int { return cmp.Compare(a.start, b.start) })
	for i := 1; i < len(segments); i++ {
		if segments[i].start < segments[i-1].end {
			return t.fault(RulePackage, "segments 0x%X and 0x%X overlap", segments[i-1].start, segments[i].start)
		}
	}
	return t.decode(image.CommandAddress, offset)
}

// protect makes bytes unwritable.
func (t *tile) protect(s span) { t.protected = append(t.protected, s) }

// decode reads the command stream up to its End, and protects it and the rows
// that it names.
func (t *tile) decode(address, offset uint32) *Fault {
	t.commands = t.commands[:0]
	start := uint64(address) + uint64(offset)
	if address%8 != 0 || offset%program.CommandBytes != 0 {
		return t.fault(RuleAlignment, "command stream 0x%X at offset %d, must be aligned to 8 bytes and a whole record", address, offset)
	}
	for at := start; ; at += program.CommandBytes {
		f := t.fault(RuleCommand, "")
		f.Record = len(t.commands)
		if at < machine.MemoryBase || at+program.CommandBytes > machine.Region0End {
			f.Detail = "record outside of 0x4C000..0x80000, the only memory that code runs from; the stream has no end record"
			if at == start {
				f.Detail = "the command stream starts outside of 0x4C000..0x80000, the only memory that code runs from"
			}
			return f
		}
		c, err := program.DecodeCommand(t.bytes(uint32(at), program.CommandBytes))
		if err != nil {
			f.Detail = err.Error()
			return f
		}
		t.commands = append(t.commands, c)
		if c.Kind == program.End {
			break
		}
		if c.Kind == program.Exchange {
			if f := t.checkRow(&c, len(t.commands)-1); f != nil {
				return f
			}
		}
	}
	stream := span{uint32(start), uint32(start) + uint32(len(t.commands))*program.CommandBytes}
	t.protect(stream)
	t.codeElements |= fetched(stream)
	t.protected = merged(t.protected)
	return nil
}

// merged sorts spans and joins those that touch, or nearly: rows start at
// multiples of 8 and leave a word between them.
func merged(spans []span) []span {
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.start, b.start) })
	n := 0
	for _, s := range spans[1:] {
		if s.start < spans[n].end+8 {
			spans[n].end = max(spans[n].end, s.end)
			continue
		}
		n++
		spans[n] = s
	}
	return spans[:n+1]
}

// fetched is the set of elements that fetching a span of code touches, look-ahead
// included.
func fetched(s span) uint32 {
	end := min(s.end+machine.FetchGuard, machine.MemoryEnd)
	return machine.ElementMask(s.start, end-s.start)
}

// checkRow checks where the row of an exchange record lies and protects it.
func (t *tile) checkRow(c *program.Command, record int) *Fault {
	row, size := c.Args[program.ArgRow], c.Args[program.ArgRowBytes]
	if row == 0 && size == 0 {
		return nil
	}
	end := uint64(row) + uint64(size)
	var f *Fault
	switch {
	case row%8 != 0 || size%4 != 0 || size == 0:
		f = t.fault(RuleAlignment, "row 0x%X with %d bytes, must start at a multiple of 8 and have whole words", row, size)
	case row < machine.MemoryBase || end > machine.Region0End:
		f = t.fault(RuleRange, "row 0x%X with %d bytes, code runs from 0x%X..0x%X only", row, size, uint32(machine.MemoryBase), uint32(machine.Region0End))
	default:
		t.protect(span{row, uint32(end)})
		return nil
	}
	f.Record, f.Phase = record, int(c.Label)
	return f
}

// damaged returns the protected span that [start, end) would damage.
func (t *tile) damaged(start, end uint32) (span, bool) {
	for _, p := range t.protected {
		if start < p.end && p.start < end {
			return p, true
		}
	}
	return span{}, false
}

// bind checks a list of bindings and sorts its slices by tile.
func (d *Device) bind(what string, bindings []program.Binding) (placement, error) {
	p := placement{slices: make([][]slice, len(d.tiles))}
	for i := range bindings {
		b := &bindings[i]
		for _, s := range b.Slices {
			if s.Tile >= machine.Tiles || d.index[s.Tile] == none {
				return p, deviceFault(RuleHost, "%s %q has a slice on tile %d, which the package has no image for", what, b.Name, s.Tile)
			}
			t := d.tiles[d.index[s.Tile]]
			end := uint64(s.TileAddress) + s.Size
			switch {
			case s.TileAddress < machine.MemoryBase || s.Size > machine.MemorySize || end > machine.MemoryEnd:
				return p, t.fault(RuleHost, "%s %q: slice at 0x%X with %d bytes lies outside of tile memory", what, b.Name, s.TileAddress, s.Size)
			case s.TileAddress%4 != 0 || s.Size%4 != 0 || s.FileOffset%4 != 0:
				return p, t.fault(RuleHost, "%s %q: slice at 0x%X with %d bytes from file offset %d, the host moves whole 32-bit words", what, b.Name, s.TileAddress, s.Size, s.FileOffset)
			case s.FileOffset > maxFile || s.FileOffset+s.Size > maxFile:
				return p, t.fault(RuleHost, "%s %q: slice ends at byte %d of its file, at most %d are accepted", what, b.Name, s.FileOffset+s.Size, uint64(maxFile))
			}
			if code, bad := t.damaged(s.TileAddress, uint32(end)); bad {
				return p, t.fault(RuleHost, "%s %q: slice at 0x%X with %d bytes touches code at 0x%X..0x%X", what, b.Name, s.TileAddress, s.Size, code.start, code.end)
			}
			p.size = max(p.size, s.FileOffset+s.Size)
			at := d.index[s.Tile]
			p.slices[at] = append(p.slices[at], slice{s.TileAddress, uint32(s.Size), s.FileOffset})
		}
	}
	return p, nil
}

// words reads n 32-bit words of memory into dst.
func (t *tile) words(dst []uint32, address uint32, n int) []uint32 {
	src := t.bytes(address, 4*n)
	dst = dst[:0]
	for i := 0; i < len(src); i += 4 {
		dst = append(dst, binary.LittleEndian.Uint32(src[i:]))
	}
	return dst
}
