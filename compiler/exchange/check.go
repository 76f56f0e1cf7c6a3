package exchange

import (
	"fmt"
	"math"

	"ipufarm/protocol/machine"
)

// ProblemError says which transfer makes a problem impossible.
type ProblemError struct {
	Transfer int32
	Other    int32 // the transfer it collides with, or -1
	Reason   string
}

func (e *ProblemError) Error() string {
	if e.Other >= 0 {
		return fmt.Sprintf("exchange transfer %d and transfer %d: %s", e.Transfer, e.Other, e.Reason)
	}
	return fmt.Sprintf("exchange transfer %d: %s", e.Transfer, e.Reason)
}

// tileName shows both numberings of a logical tile.
func tileName(tile int32) string {
	if tile < 0 || tile >= machine.Tiles {
		return fmt.Sprintf("tile %d", tile)
	}
	return fmt.Sprintf("tile %d (physical %d)", tile, machine.Physical(int(tile)))
}

// Check says whether the problem is a parallel copy that the hardware can do:
// known tiles and addresses, whole words, no message that only its sender
// receives, no two writers of one word, and nobody who writes what another
// transfer of the phase still has to read.
func (p *Problem) Check() error {
	if p.Tiles < 1 || p.Tiles > machine.Tiles {
		return fmt.Errorf("exchange problem has %d tiles, accepted are 1..%d", p.Tiles, machine.Tiles)
	}
	if len(p.Transfers) > math.MaxInt32 || len(p.Receivers) > math.MaxInt32 {
		return fmt.Errorf("exchange problem has %d transfers and %d receivers, accepted are up to %d", len(p.Transfers), len(p.Receivers), math.MaxInt32)
	}
	if p.Widths != nil && len(p.Widths) != len(p.Transfers) {
		return fmt.Errorf("exchange problem has %d widths for %d transfers", len(p.Widths), len(p.Transfers))
	}
	for i, addresses := range p.Moves {
		if len(addresses) != len(p.Transfers) {
			return fmt.Errorf("exchange problem has %d source addresses in iteration %d for %d transfers", len(addresses), i+1, len(p.Transfers))
		}
	}
	heard := make([]int32, p.Tiles) // heard[tile] == t+1: transfer t has this receiver already
	total := 0
	for t := range p.Transfers {
		if err := p.checkTransfer(int32(t), heard); err != nil {
			return err
		}
		if total += int(p.Transfers[t].Count); total > len(p.Receivers) {
			return &ProblemError{int32(t), -1, "shares receivers with an earlier transfer"}
		}
	}
	return p.checkMemory()
}

func (p *Problem) checkTransfer(t int32, heard []int32) error {
	x := &p.Transfers[t]
	fail := func(format string, args ...any) error {
		return &ProblemError{t, -1, fmt.Sprintf(format, args...)}
	}
	if x.Source < 0 || int(x.Source) >= p.Tiles {
		return fail("source tile %d, accepted are 0..%d", x.Source, p.Tiles-1)
	}
	if x.Words < 1 || x.Words > machine.MaxWords {
		return fail("%d words, accepted are 1..%d", x.Words, machine.MaxWords)
	}
	for i := range len(p.Moves) + 1 {
		if a := p.sourceAddress(i, t); !inMemory(a, x.Words) {
			return fail("source 0x%X, %d words on %s, must be 4-byte aligned and inside 0x%X..0x%X",
				a, x.Words, tileName(x.Source), machine.MemoryBase, machine.MemoryEnd)
		}
	}
	if w := p.width(t); w != 0 && w != 32 && w != 64 {
		return fail("width %d, accepted are 32 and 64", w)
	}
	if x.Count < 1 || x.First < 0 || int64(x.First)+int64(x.Count) > int64(len(p.Receivers)) {
		return fail("receivers %d+%d, want at least one of the %d of the problem", x.First, x.Count, len(p.Receivers))
	}
	for _, r := range p.receivers(t) {
		if r.Tile < 0 || int(r.Tile) >= p.Tiles {
			return fail("receiver tile %d, accepted are 0..%d", r.Tile, p.Tiles-1)
		}
		if !inMemory(r.Address, x.Words) {
			return fail("destination 0x%X, %d words on %s, must be 4-byte aligned and inside 0x%X..0x%X",
				r.Address, x.Words, tileName(r.Tile), machine.MemoryBase, machine.MemoryEnd)
		}
		if heard[r.Tile] == t+1 {
			return fail("%s is a receiver twice", tileName(r.Tile))
		}
		heard[r.Tile] = t + 1
		if r.Tile != x.Source {
			continue
		}
		if x.Count == 1 {
			return fail("%s is the only receiver of its own message, which the hardware does not deliver", tileName(r.Tile))
		}
		if elements(r.Address, x.Words)&p.reads(t) != 0 {
			return fail("%s hears itself from 0x%X to 0x%X in one SRAM element, must be in different ones",
				tileName(r.Tile), x.Address, r.Address)
		}
	}
	return nil
}

// sourceAddress returns where a transfer is sent from in an iteration.
func (p *Problem) sourceAddress(iteration int, t int32) uint32 {
	if iteration == 0 {
		return p.Transfers[t].Address
	}
	return p.Moves[iteration-1][t]
}

func inMemory(address uint32, words int32) bool {
	return address&3 == 0 && address >= machine.MemoryBase && address < machine.MemoryEnd &&
		uint32(words)*4 <= machine.MemoryEnd-address
}

func elements(address uint32, words int32) uint32 {
	return machine.ElementMask(address, uint32(words)*4)
}

// checkMemory finds words of a tile that are written twice, or both written
// and sent from. One bitmap of the tile's words serves all tiles in turn.
func (p *Problem) checkMemory() error {
	in, out := p.endpoints()
	var written wordSet
	for tile := range int32(p.Tiles) {
		received := in.of(tile)
		for i, e := range received {
			t := in.transfer[e]
			if written.add(p.Receivers[e].Address, p.Transfers[t].Words) {
				continue
			}
			for _, f := range received[:i] {
				if o := in.transfer[f]; overlap(p.Receivers[e].Address, p.Transfers[t].Words, p.Receivers[f].Address, p.Transfers[o].Words) {
					return &ProblemError{o, t, fmt.Sprintf("both write 0x%X of %s", max(p.Receivers[e].Address, p.Receivers[f].Address), tileName(tile))}
				}
			}
		}
		for _, t := range out.of(tile) {
			for i := range len(p.Moves) + 1 {
				if err := p.checkRead(t, p.sourceAddress(i, t), in, &written); err != nil {
					return err
				}
			}
		}
		for _, e := range received {
			written.remove(p.Receivers[e].Address, p.Transfers[in.transfer[e]].Words)
		}
	}
	return nil
}

// checkRead refuses a transfer that is sent from words that the phase writes.
func (p *Problem) checkRead(t int32, address uint32, in *byTile, written *wordSet) error {
	x := &p.Transfers[t]
	if !written.any(address, x.Words) {
		return nil
	}
	for _, e := range in.of(x.Source) {
		if o := in.transfer[e]; overlap(address, x.Words, p.Receivers[e].Address, p.Transfers[o].Words) {
			return &ProblemError{t, o, fmt.Sprintf("the first reads 0x%X of %s, which the second writes", max(address, p.Receivers[e].Address), tileName(x.Source))}
		}
	}
	return nil
}

func overlap(a uint32, aWords int32, b uint32, bWords int32) bool {
	return a < b+uint32(bWords)*4 && b < a+uint32(aWords)*4
}

// byTile lists items by the tile they belong to, in input order.
type byTile struct {
	first    []int32 // items of tile t are items[first[t]:first[t+1]]
	items    []int32
	transfer []int32 // receivers only: the transfer of each receiver
}

func (b *byTile) of(tile int32) []int32 { return b.items[b.first[tile]:b.first[tile+1]] }

// endpoints lists the receivers (by index in p.Receivers) and the transfers
// (by index in p.Transfers) of every tile.
func (p *Problem) endpoints() (in, out *byTile) {
	in = &byTile{first: make([]int32, p.Tiles+2), transfer: make([]int32, len(p.Receivers))}
	out = &byTile{first: make([]int32, p.Tiles+2), items: make([]int32, len(p.Transfers))}
	total := int32(0)
	for t := range p.Transfers {
		x := &p.Transfers[t]
		out.first[x.Source+2]++
		total += x.Count
		for _, r := range p.receivers(int32(t)) {
			in.first[r.Tile+2]++
		}
	}
	in.items = make([]int32, total)
	for i := 2; i < p.Tiles+2; i++ {
		in.first[i] += in.first[i-1]
		out.first[i] += out.first[i-1]
	}
	for t := range p.Transfers {
		x := &p.Transfers[t]
		out.items[out.first[x.Source+1]] = int32(t)
		out.first[x.Source+1]++
		for e := x.First; e < x.First+x.Count; e++ {
			tile := p.Receivers[e].Tile
			in.transfer[e] = int32(t)
			in.items[in.first[tile+1]] = e
			in.first[tile+1]++
		}
	}
	return in, out
}

// wordSet is a set of words of one tile's memory.
type wordSet [(machine.MemorySize/4 + 63) / 64]uint64

// each calls f for every bitmap word that the range touches.
func (s *wordSet) each(address uint32, words int32, f func(w *uint64, mask uint64)) {
	at := (address - machine.MemoryBase) / 4
	for n := uint32(words); n > 0; {
		shift := at & 63
		k := min(n, 64-shift)
		f(&s[at>>6], ^uint64(0)>>(64-k)<<shift)
		at, n = at+k, n-k
	}
}

// add adds a range and reports whether all of it was new.
func (s *wordSet) add(address uint32, words int32) bool {
	fresh := true
	s.each(address, words, func(w *uint64, mask uint64) {
		fresh = fresh && *w&mask == 0
		*w |= mask
	})
	return fresh
}

func (s *wordSet) any(address uint32, words int32) bool {
	found := false
	s.each(address, words, func(w *uint64, mask uint64) { found = found || *w&mask != 0 })
	return found
}

func (s *wordSet) remove(address uint32, words int32) {
	s.each(address, words, func(w *uint64, mask uint64) { *w &^= mask })
}
