package device

import (
	"context"
	"fmt"
	"math/bits"

	"ipufarm/protocol/machine"
	"ipufarm/protocol/program"
)

// An exchange phase, as the fabric sees it (published exchange instruction
// reference of a C600): a word carries no destination. A tile's row says when it
// sends which words; another row says when its mux listens to whom and where the
// receive pointer stands. A word sent at event e reaches the mux of tile d at
// e + MuxTime + 1 on d's timeline and is written PointerLag events later, at the
// pointer of that event. All rows start at the same event 0 (assumed: no skew).
//
// A phase is simulated in passes over all tiles, each in parallel:
//
//	open     decode the row; sends, controls, what one row alone can do wrong
//	receive  follow mux, format and pointer: pieces of sends become moves
//	check    what sends and receives of a tile and its partner must not do together
//	relay    words that are sent after they arrived in the same phase
//	move     copy the words
//
// Everything is intervals; a word is looked at alone only when it is relayed.

// exchange is the state of one phase, reused by the next.
type exchange struct {
	ends    []endpoint
	faults  []*Fault
	patches []patch
}

// endpoint is the part of one tile.
type endpoint struct {
	active bool
	row    machine.ExchangeRow
	code   uint32 // elements that code is fetched from

	sends    []machine.Send // addresses absolute
	heard    []uint32       // of each send: another tile receives a part (atomic)
	sources  []machine.Control
	pairs    []machine.Control
	pointers []machine.Control
	formats  []machine.Control

	moves  []move // in the order of their writes
	landed []move // buffer of the same
	relays []int32
	staged [][]byte // of each send, its words if they are relayed
	words  uint64
}

// move is a piece of a send that lands at consecutive addresses.
type move struct {
	source   int32 // index of the tile
	send     int32 // index in its sends
	from, to uint32
	event    int32 // at which the first item is written
	items    int32
	wide     bool
}

// itemBytes is the size of an item.
func (m *move) itemBytes() uint32 { return itemBytes(m.wide) }

func (m *move) bytes() uint32 { return uint32(m.items) * m.itemBytes() }

func itemBytes(wide bool) uint32 {
	if wide {
		return 8
	}
	return 4
}

// runExchange runs the phase that all tiles are at.
func (d *Device) runExchange(ctx context.Context) (Phase, error) {
	e := &d.exchange
	if len(e.ends) != len(d.tiles) {
		*e = exchange{ends: make([]endpoint, len(d.tiles)), faults: make([]*Fault, len(d.tiles))}
	}
	for _, pass := range []func(w, i int) *Fault{d.open, d.receive, d.check} {
		err := parallel(ctx, d.options.Workers, len(d.tiles), func(w, i int) { e.faults[i] = pass(w, i) })
		if err != nil {
			return Phase{}, err
		}
		if f := first(e.faults); f != nil {
			return Phase{}, f
		}
	}
	if f := d.relay(); f != nil {
		return Phase{}, f
	}
	if err := parallel(ctx, d.options.Workers, len(d.tiles), func(_, i int) { d.move(i) }); err != nil {
		return Phase{}, err
	}
	return d.leave(), nil
}

// leave moves the clocks over the barrier and sums the phase up.
func (d *Device) leave() Phase {
	p := Phase{
		Label:        d.tiles[0].commands[d.tiles[0].next].Label,
		FirstArrival: d.tiles[0].clock,
	}
	for i, t := range d.tiles {
		end := &d.exchange.ends[i]
		p.FirstArrival, p.LastArrival = min(p.FirstArrival, t.clock), max(p.LastArrival, t.clock)
		if end.active {
			p.ActiveTiles++
			p.Horizon = max(p.Horizon, end.row.Horizon)
		}
		p.Receives += len(end.moves)
		p.Words += end.words
	}
	for i, t := range d.tiles {
		end := &d.exchange.ends[i]
		t.pass(p.LastArrival, end.active, end.row.Horizon, d.options.CollectSamples)
	}
	return p
}

// exchangeFault makes a fault of the exchange that the tile is at.
func (t *tile) exchangeFault(rule Rule, event int32, format string, args ...any) *Fault {
	f := t.fault(rule, format, args...)
	f.Phase, f.Event = int(t.commands[t.next].Label), int(event)
	return f
}

// named writes both ids of a tile.
func named(physical int) string {
	return fmt.Sprintf("tile %d (logical %d)", physical, machine.Logical(physical))
}

// open decodes a tile's row and checks what the row does on its own.
func (d *Device) open(w, i int) *Fault {
	t, end := d.tiles[i], &d.exchange.ends[i]
	end.sends, end.heard, end.staged = end.sends[:0], end.heard[:0], nil
	end.sources, end.pairs, end.pointers, end.formats = end.sources[:0], end.pairs[:0], end.pointers[:0], end.formats[:0]
	end.moves, end.relays, end.words = end.moves[:0], end.relays[:0], 0
	args := &t.commands[t.next].Args
	address, size := args[program.ArgRow], args[program.ArgRowBytes]
	end.active = size > 0
	end.row.Horizon = 0
	if !end.active {
		return nil
	}
	scratch := d.scratch[w]
	scratch.words = t.words(scratch.words, address, int(size/4))
	if err := end.row.Decode(scratch.words); err != nil {
		return t.exchangeFault(RuleRow, none, "row 0x%X: %v", address, err)
	}
	end.code = t.codeElements | fetched(span{address, address + size})
	if f := d.openSends(t, end, args[program.ArgOutgoingBase]); f != nil {
		return f
	}
	if f := t.openControls(end); f != nil {
		return f
	}
	return t.checkIncomingBase(end, args[program.ArgIncomingBase])
}

// openSends adds OUTGOING_BASE to the sends and checks their addresses. That no
// control and no send falls into a base write is how rows are encoded: one
// instruction after the other.
func (d *Device) openSends(t *tile, end *endpoint, base uint32) *Fault {
	writes := end.row.BaseWrites
	for _, w := range writes {
		switch {
		case !w.Outgoing:
			return t.exchangeFault(RuleBase, w.Event, "writes INCOMING_BASE inside a row, which no observed row does")
		case w.Register != 15:
			return t.exchangeFault(RuleBase, w.Event, "writes OUTGOING_BASE from register m%d, of which only m15 (zero) has a known value", w.Register)
		}
	}
	for _, s := range end.row.Sends {
		for len(writes) > 0 && writes[0].Event <= s.Start {
			base, writes = 0, writes[1:]
		}
		bytes := uint64(s.Items) * uint64(itemBytes(s.Wide))
		address := uint64(base) + uint64(s.Address)
		switch {
		case address%uint64(itemBytes(s.Wide)) != 0:
			return t.exchangeFault(RuleAlignment, s.Start, "send from 0x%X must be aligned to %d bytes", address, itemBytes(s.Wide))
		case address < machine.MemoryBase || address+bytes > machine.MemoryEnd:
			return t.exchangeFault(RuleRange, s.Start, "send from 0x%X with %d bytes lies outside of tile memory", address, bytes)
		}
		s.Address = uint32(address)
		if hit := machine.ElementMask(s.Address, uint32(bytes)) & end.code; hit != 0 {
			return t.exchangeFault(RuleFetch, s.Start, "send from 0x%X with %d bytes reads SRAM element %d, which code is fetched from", address, bytes, bits.TrailingZeros32(hit))
		}
		end.sends = append(end.sends, s)
		end.heard = append(end.heard, 0)
	}
	return nil
}

// openControls sorts controls by register and checks that none collides with
// another, with the first words of a send, or with the end of the row.
func (t *tile) openControls(end *endpoint) *Fault {
	controls, sends := end.row.Controls, end.sends
	for k, c := range controls {
		if k > 0 && controls[k-1].Event == c.Event && (controls[k-1].Kind != machine.Source || c.Kind != machine.Pointer) {
			return t.exchangeFault(RuleCollision, c.Event, "%v and %v controls at one event; only source and pointer go together", controls[k-1].Kind, c.Kind)
		}
		for len(sends) > 0 && sends[0].Start+1 < c.Event {
			sends = sends[1:]
		}
		if len(sends) > 0 && sends[0].Start <= c.Event {
			return t.exchangeFault(RuleCollision, c.Event, "%v control at the first or second word of a send that starts at event %d", c.Kind, sends[0].Start)
		}
		switch c.Kind {
		case machine.Source:
			end.sources = append(end.sources, c)
		case machine.PairSource:
			end.pairs = append(end.pairs, c)
		case machine.Pointer:
			end.pointers = append(end.pointers, c)
		case machine.Format:
			end.formats = append(end.formats, c)
			if c.Value > 2 {
				return t.exchangeFault(RuleFormat, c.Event, "receive format %d, known are 0 to 2", c.Value)
			}
		}
	}
	for _, list := range [][]machine.Control{end.sources, end.pairs} {
		for _, c := range list {
			if c.Value >= machine.Tiles && c.Value != machine.Neutral {
				return t.exchangeFault(RuleSource, c.Event, "%v control selects 0x%X, which is neither a tile nor neutral", c.Kind, c.Value)
			}
		}
		if n := len(list); n > 0 && list[n-1].Value != machine.Neutral {
			return t.exchangeFault(RuleConnected, list[n-1].Event, "row ends with the %v at %s, without a neutral select", list[n-1].Kind, named(int(list[n-1].Value)))
		}
	}
	if n := len(end.formats); n > 0 && end.formats[n-1].Value != 0 {
		return t.exchangeFault(RuleConnected, end.formats[n-1].Event, "row ends with receive format %d", end.formats[n-1].Value)
	}
	return nil
}

// checkIncomingBase: a nonzero base goes with exactly one pointer, of value 0;
// mixed with absolute pointers a card silently leaves the destination unchanged.
func (t *tile) checkIncomingBase(end *endpoint, base uint32) *Fault {
	switch {
	case base == 0:
	case base%4 != 0:
		return t.exchangeFault(RuleAlignment, none, "INCOMING_BASE 0x%X must be a multiple of 4", base)
	case len(end.pointers) > 1 || len(end.pointers) == 1 && end.pointers[0].Value != 0:
		return t.exchangeFault(RuleBase, end.pointers[0].Event, "INCOMING_BASE 0x%X with pointer 0x%X and %d pointers in all; a base needs a single pointer 0", base, end.pointers[0].Value, len(end.pointers))
	}
	return nil
}
