// Package exchange schedules one exchange phase: it decides at which event each
// transfer leaves, so that every word meets its receiver's mux and pointer at
// the right time, and writes the rows that make it so.
//
//	p.Check()            is it a parallel copy at all?
//	Solve(p)             start events (list scheduling on per-tile timelines)
//	Encode(p, schedule)  instruction words for every tile
//	Verify(p, rows)      decode the words again and prove that they do p
//
// The fabric is modelled as non-blocking: only the one send stream and the one
// receive stream of each tile, and its SRAM elements, limit a phase. Rules,
// latencies and encodings come from the exchange instruction reference and the
// topology tables of a published C600 bring-up (July to September 2026), whose
// rows were produced by SDK tools and replayed on a card.
package exchange

import (
	"crypto/sha256"
	"encoding/binary"
)

// Receiver is one destination of a transfer: a logical tile and a byte address
// in its SRAM, a multiple of 4.
type Receiver struct {
	Tile    int32
	Address uint32
}

// Transfer moves Words 32-bit words from one tile to one or more others. Its
// receivers are Problem.Receivers[First : First+Count].
type Transfer struct {
	Source  int32  // logical tile
	Address uint32 // byte address on the source, a multiple of 4
	Words   int32  // 1..4,148
	First   int32
	Count   int32
}

// Problem is one exchange phase: transfers between logical tiles 0..Tiles-1
// that may run in any order and at the same time. Everything is in flat arrays,
// because a large phase has more than a million transfers.
type Problem struct {
	Tiles     int
	Transfers []Transfer
	Receivers []Receiver

	// Widths forces the items of transfers, where it is not nil: 32 or 64 bits by
	// transfer, or 0 to choose freely.
	Widths []uint8
	// Moves are the source addresses by later iteration and transfer when the
	// phase is part of a loop. One schedule serves all iterations, each with rows
	// of its own: those of Iteration.
	Moves [][]uint32
}

// Iteration returns the problem of one iteration of the loop; 0 is the first.
func (p *Problem) Iteration(i int) *Problem {
	q := &Problem{Tiles: p.Tiles, Transfers: p.Transfers, Receivers: p.Receivers, Widths: p.Widths}
	if i > 0 {
		q.Transfers = append([]Transfer(nil), p.Transfers...)
		for t := range q.Transfers {
			q.Transfers[t].Address = p.Moves[i-1][t]
		}
	}
	return q
}

// width returns the items that a transfer must have, or 0.
func (p *Problem) width(t int32) uint8 {
	if p.Widths == nil {
		return 0
	}
	return p.Widths[t]
}

// reads returns the SRAM elements that a transfer is sent from, in any iteration.
func (p *Problem) reads(t int32) uint32 {
	x := &p.Transfers[t]
	e := elements(x.Address, x.Words)
	for _, addresses := range p.Moves {
		e |= elements(addresses[t], x.Words)
	}
	return e
}

// receivers returns the receivers of transfer t.
func (p *Problem) receivers(t int32) []Receiver {
	x := &p.Transfers[t]
	return p.Receivers[x.First : x.First+x.Count]
}

// Digest names the problem: equal digests mean equal problems, transfer by
// transfer, and so equal schedules.
func (p *Problem) Digest() [32]byte {
	h := sha256.New()
	buf := make([]byte, 0, 1<<16)
	flush := func(room int) {
		if len(buf)+room > cap(buf) {
			h.Write(buf)
			buf = buf[:0]
		}
	}
	word := func(x uint32) { buf = binary.LittleEndian.AppendUint32(buf, x) }
	buf = append(buf, "exchange problem 1\n"...)
	word(uint32(p.Tiles))
	word(uint32(len(p.Transfers)))
	for t := range p.Transfers {
		x := &p.Transfers[t]
		flush(16)
		word(uint32(x.Source))
		word(x.Address)
		word(uint32(x.Words))
		word(uint32(x.Count))
		for _, r := range p.receivers(int32(t)) {
			flush(8)
			word(uint32(r.Tile))
			word(r.Address)
		}
	}
	for t := range p.Widths {
		flush(4)
		word(1<<31 | uint32(p.Widths[t]))
	}
	for _, addresses := range p.Moves {
		for _, a := range addresses {
			flush(4)
			word(1<<30 | a)
		}
	}
	h.Write(buf)
	return [32]byte(h.Sum(nil))
}
