package program

import (
	"encoding/binary"
	"fmt"
	"slices"

	"ipufarm/protocol/machine"
)

// Verify decodes a package file and checks everything that can be checked without
// running it: the promises of Check; that every tile's command stream decodes to
// its End; that all tiles join the same exchange phases in the same order; that
// every exchange row lies in executable memory and decodes; that what a row sends
// lies in tile memory.
func Verify(file []byte) (*Package, error) {
	p, err := Decode(file)
	if err != nil {
		return nil, err
	}
	if err := p.Check(); err != nil {
		return nil, err
	}
	if err := p.checkStreams(); err != nil {
		return nil, fmt.Errorf("package: %w", err)
	}
	return p, nil
}

// Commands decodes the command stream of a tile, with its End. The image must
// have passed Check.
func (t *TileImage) Commands() ([]Command, error) {
	s := t.segmentOf(t.CommandAddress)
	if s == nil {
		return nil, fmt.Errorf("command stream at 0x%X lies in no segment", t.CommandAddress)
	}
	var commands []Command
	offset := t.CommandAddress - s.Address
	for ; uint64(offset)+CommandBytes <= uint64(s.MemorySize); offset += CommandBytes {
		// Memory after the data is zero, and so is an End record.
		var record [CommandBytes]byte
		if int(offset) < len(s.Data) {
			copy(record[:], s.Data[offset:])
		}
		c, err := DecodeCommand(record[:])
		if err != nil {
			return nil, fmt.Errorf("command %d at 0x%X: %w", len(commands), s.Address+offset, err)
		}
		commands = append(commands, c)
		if c.Kind == End {
			return commands, nil
		}
	}
	return nil, fmt.Errorf("command stream at 0x%X runs out of its segment after %d records without an end", t.CommandAddress, len(commands))
}

// Row returns the words of the row of an Exchange record: none if the tile only
// joins the barrier.
func (t *TileImage) Row(c Command) ([]uint32, error) {
	address, size := c.Args[ArgRow], c.Args[ArgRowBytes]
	if address == 0 && size == 0 {
		return nil, nil
	}
	if address%8 != 0 || size%4 != 0 || size == 0 {
		return nil, fmt.Errorf("exchange row of %d bytes at 0x%X, want whole words at a multiple of 8", size, address)
	}
	s := t.segmentOf(address)
	if s == nil || uint64(address-s.Address)+uint64(size) > uint64(len(s.Data)) {
		return nil, fmt.Errorf("exchange row %s does not lie in the data of one segment", span(address, size))
	}
	if s.Flags&Execute == 0 {
		return nil, fmt.Errorf("exchange row %s lies in a segment that is not executable", span(address, size))
	}
	data := s.Data[address-s.Address:][:size]
	words := make([]uint32, size/4)
	for i := range words {
		words[i] = binary.LittleEndian.Uint32(data[4*i:])
	}
	return words, nil
}

// checkStreams is the part of Verify that reads commands and rows.
func (p *Package) checkStreams() error {
	var phases, first []uint32 // of this tile, of the first tile
	shortest := uint32(1<<32 - 1)
	var rows rowChecker
	for i := range p.Tiles {
		t := &p.Tiles[i]
		commands, err := t.Commands()
		if err != nil {
			return fmt.Errorf("%s: %w", TileName(t.PhysicalTile), err)
		}
		phases = phases[:0]
		rows.start(t)
		for j, c := range commands {
			if c.Kind != Exchange {
				continue
			}
			phases = append(phases, c.Label)
			if err := rows.check(c); err != nil {
				return fmt.Errorf("%s: command %d (exchange phase %d): %w", TileName(t.PhysicalTile), j, c.Label, err)
			}
		}
		if i == 0 {
			first = slices.Clone(phases)
		} else if err := samePhases(first, phases); err != nil {
			return fmt.Errorf("%s: %w as on %s", TileName(t.PhysicalTile), err, TileName(p.Tiles[0].PhysicalTile))
		}
		shortest = min(shortest, uint32(len(commands)*CommandBytes))
		if err := p.checkPlanLength(t.PhysicalTile, len(commands)-1); err != nil {
			return err
		}
	}
	for _, c := range p.HostExchange.Calls {
		if c.Command >= shortest {
			return fmt.Errorf("host call %q starts at command offset %d, the shortest stream has %d bytes", c.Name, c.Command, shortest)
		}
	}
	for _, e := range p.EntryPoints {
		if e.Command >= shortest {
			return fmt.Errorf("entry point %q starts at command offset %d, the shortest stream has %d bytes", e.Name, e.Command, shortest)
		}
	}
	return nil
}

func samePhases(want, got []uint32) error {
	for i := range min(len(want), len(got)) {
		if want[i] != got[i] {
			return fmt.Errorf("exchange %d is phase %d, not %d", i, got[i], want[i])
		}
	}
	if len(want) != len(got) {
		return fmt.Errorf("%d exchanges, not %d", len(got), len(want))
	}
	return nil
}

// checkPlanLength checks that a tile's profile plan, if it has one, does not name
// more steps than the tile takes.
func (p *Package) checkPlanLength(tile uint32, commands int) error {
	i, found := slices.BinarySearchFunc(p.ProfileTiles, tile, func(plan TileProfilePlan, tile uint32) int {
		return int(plan.PhysicalTile) - int(tile)
	})
	if found && len(p.ProfileTiles[i].Steps) > commands {
		return fmt.Errorf("profile plan for %s names %d steps, its stream has %d commands", TileName(tile), len(p.ProfileTiles[i].Steps), commands)
	}
	return nil
}

// maxRowBytes bounds the rows that one tile may name, each counted once. Rows that
// overlap can name more bytes than the tile has; without a bound a small package
// could keep Verify busy for hours.
const maxRowBytes = 8 * machine.MemorySize

// rowChecker checks the rows of one tile after the other, each distinct row once.
type rowChecker struct {
	tile  *TileImage
	seen  map[[2]uint32]sendRange // by address and size
	bytes int
	row   machine.ExchangeRow
}

// sendRange is what a row reads, relative to OUTGOING_BASE; empty if it sends
// nothing, or changes the base to a value that only a run knows.
type sendRange struct{ from, to uint32 }

func (r *rowChecker) start(t *TileImage) {
	*r = rowChecker{tile: t, seen: map[[2]uint32]sendRange{}, row: r.row}
}

// check checks the row of an Exchange record and what it sends.
func (r *rowChecker) check(c Command) error {
	key := [2]uint32{c.Args[ArgRow], c.Args[ArgRowBytes]}
	sends, known := r.seen[key]
	if !known {
		var err error
		if sends, err = r.decode(c); err != nil {
			return err
		}
		r.seen[key] = sends
	}
	if sends.from == sends.to {
		return nil
	}
	base := uint64(c.Args[ArgOutgoingBase])
	if from, to := base+uint64(sends.from), base+uint64(sends.to); from < machine.MemoryBase || to > machine.MemoryEnd {
		return fmt.Errorf("row sends from 0x%X..0x%X, tile memory is 0x%X..0x%X", from, to, machine.MemoryBase, machine.MemoryEnd)
	}
	return nil
}

func (r *rowChecker) decode(c Command) (sendRange, error) {
	if r.bytes += int(c.Args[ArgRowBytes]); r.bytes > maxRowBytes {
		return sendRange{}, fmt.Errorf("more than %d bytes of different rows, a tile has %d bytes of memory", maxRowBytes, machine.MemorySize)
	}
	words, err := r.tile.Row(c)
	if err != nil || words == nil {
		return sendRange{}, err
	}
	if err := r.row.Decode(words); err != nil {
		return sendRange{}, err
	}
	if len(r.row.BaseWrites) > 0 || len(r.row.Sends) == 0 {
		return sendRange{}, nil
	}
	sends := sendRange{from: 1<<32 - 1}
	for _, s := range r.row.Sends {
		sends.from, sends.to = min(sends.from, s.Address), max(sends.to, s.End())
	}
	return sends, nil
}
