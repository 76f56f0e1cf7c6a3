package device

import (
	"cmp"
	"math/bits"
	"slices"
	"sort"
	"sync/atomic"

	"ipufarm/protocol/machine"
	"ipufarm/protocol/program"
)

// landingEvents must pass between the last write and the end of the receiver's
// row (SDK rows end at P + n + 5).
const landingEvents = 5

// receive turns what a tile's muxes listen to into moves.
func (d *Device) receive(_, i int) *Fault {
	t, end := d.tiles[i], &d.exchange.ends[i]
	if !end.active {
		return nil
	}
	lag := int32(machine.PointerLag(t.physical))
	for k, c := range end.sources {
		if c.Value == machine.Neutral {
			continue
		}
		w := window{t.physical, int(c.Value), c.Event, end.sources[k+1].Event, lag, false}
		if f := d.listen(i, w); f != nil {
			return f
		}
	}
	if f := d.receivePairs(i, lag); f != nil {
		return f
	}
	if f := d.checkFormats(t, end); f != nil {
		return f
	}
	return d.land(i)
}

// receivePairs follows the paired mux of the tile and of its partner: both
// members of a pair receive what either selects. A 64-bit item is written one
// event later than a 32-bit word.
func (d *Device) receivePairs(i int, lag int32) *Fault {
	t, end := d.tiles[i], &d.exchange.ends[i]
	partner := d.at(machine.Partner(t.physical))
	if len(end.pairs) > 0 && (partner < 0 || !d.exchange.ends[partner].active) {
		return t.exchangeFault(RuleFormat, end.pairs[0].Event, "64-bit receive, but partner %s takes no part in the phase", named(machine.Partner(t.physical)))
	}
	both := 0
	for _, issuer := range [2]int32{int32(i), partner} {
		if issuer < 0 || len(d.exchange.ends[issuer].pairs) == 0 {
			continue
		}
		both++
		tile := d.tiles[issuer]
		pairs := d.exchange.ends[issuer].pairs
		for k, c := range pairs {
			if c.Value == machine.Neutral {
				continue
			}
			// The value names the lane of the sender's pair that the issuer borrows.
			source := int(c.Value) ^ tile.physical&2
			if machine.MuxTime(source, tile.physical) > machine.MuxTime(source, machine.Partner(tile.physical)) {
				return tile.exchangeFault(RuleFormat, c.Event, "selects %s for 64-bit items, but its partner is the earlier member of the pair", named(source))
			}
			w := window{tile.physical, source, c.Event, pairs[k+1].Event, lag + 1, true}
			if f := d.listen(i, w); f != nil {
				return f
			}
		}
	}
	if both > 0 {
		slices.SortStableFunc(end.moves, func(a, b move) int { return cmp.Compare(a.event, b.event) })
	}
	for k := 1; k < len(end.moves); k++ {
		if a, b := &end.moves[k-1], &end.moves[k]; b.event < a.event+a.items {
			return t.exchangeFault(RuleCollision, b.event, "words of %s and of %s are written at one event", named(d.tiles[a.source].physical), named(d.tiles[b.source].physical))
		}
	}
	return nil
}

// at returns the index of a physical tile, or -1.
func (d *Device) at(physical int) int32 { return d.index[physical] }

// window is what a mux listens to during the events [start, end) of its tile.
type window struct {
	issuer, source int // physical ids: whose mux, and whom it selects
	start, end     int32
	lag            int32 // from the mux to the write
	wide           bool
}

// listen adds to tile i the pieces of the source's sends that pass during a
// window. Every event of the window must bring an item. Addresses of the
// destination are not known yet.
func (d *Device) listen(i int, w window) *Fault {
	t, end := d.tiles[i], &d.exchange.ends[i]
	from := d.at(w.source)
	if from < 0 {
		return t.exchangeFault(RuleSource, w.start, "mux selects %s, which is not part of the package", named(w.source))
	}
	e := &d.exchange.ends[from]
	shift := int32(machine.MuxTime(w.source, w.issuer)) + 1 // from the sender's event to the mux
	direction := uint8(machine.Direction(w.source, t.physical))
	at, stop := w.start-shift, w.end-shift // in events of the sender
	k := sort.Search(len(e.sends), func(k int) bool { return e.sends[k].Start+e.sends[k].Items > at })
	for ; at < stop; k++ {
		if k == len(e.sends) || e.sends[k].Start > at {
			return t.exchangeFault(RuleSource, at+shift, "mux selects %s, which sends nothing at its event %d", named(w.source), at)
		}
		s := &e.sends[k]
		switch {
		case s.Wide != w.wide:
			return t.exchangeFault(RuleFormat, at+shift, "%s sends %d-byte items, the mux takes %d-byte ones", named(w.source), itemBytes(s.Wide), itemBytes(w.wide))
		case s.Direction&direction == 0:
			return t.exchangeFault(RuleDirection, at+shift, "%s sends by direction mask %d at its event %d, this tile is reached by %d", named(w.source), s.Direction, at, direction)
		}
		until := min(stop, s.Start+s.Items)
		end.moves = append(end.moves, move{
			source: from, send: int32(k), from: s.Address + uint32(at-s.Start)*itemBytes(s.Wide),
			event: at + shift + w.lag, items: until - at, wide: w.wide,
		})
		if from != int32(i) && atomic.LoadUint32(&e.heard[k]) == 0 {
			atomic.StoreUint32(&e.heard[k], 1)
		}
		at = until
	}
	return nil
}

// checkFormats: 32-bit words are written while the format is 0, 64-bit items
// while it is the direction of their route, which is set two events ahead.
func (d *Device) checkFormats(t *tile, end *endpoint) *Fault {
	k, format := 0, uint32(0)
	for j := range end.moves {
		m := &end.moves[j]
		start, want := m.event, uint32(0)
		if m.wide {
			start -= 2
			want = uint32(machine.Direction(d.tiles[m.source].physical, t.physical))
		}
		for k < len(end.formats) && end.formats[k].Event <= start {
			format = end.formats[k].Value
			k++
		}
		event := start
		for {
			if format != want {
				return t.exchangeFault(RuleFormat, event, "receive format is %d where %d-byte items need %d", format, m.itemBytes(), want)
			}
			if k == len(end.formats) || end.formats[k].Event >= start+m.items {
				break
			}
			event, format = end.formats[k].Event, end.formats[k].Value
			k++
		}
	}
	return nil
}

// land gives every move its address: the pointer of the event at which it is
// written, counted on from the words written since. A move that a pointer changes
// in the middle of becomes several.
func (d *Device) land(i int) *Fault {
	t, end := d.tiles[i], &d.exchange.ends[i]
	base := t.commands[t.next].Args[program.ArgIncomingBase]
	pointers, landed := end.pointers, end.landed[:0]
	known, cursor := false, uint64(0)
	for _, m := range end.moves {
		for rest := m.items; rest > 0; rest -= m.items {
			for len(pointers) > 0 && pointers[0].Event <= m.event {
				known, cursor = true, uint64(base)+4*uint64(pointers[0].Value)
				pointers = pointers[1:]
			}
			if !known {
				return t.exchangeFault(RulePointer, m.event, "a word of %s is written before the receive pointer was set", named(d.tiles[m.source].physical))
			}
			m.items = rest
			if len(pointers) > 0 {
				m.items = min(rest, pointers[0].Event-m.event)
			}
			if f := t.checkLanding(end, &m, cursor); f != nil {
				return f
			}
			m.to = uint32(cursor)
			landed = append(landed, m)
			cursor += uint64(m.bytes())
			end.words += uint64(m.bytes() / 4)
			m.event += m.items
			m.from += m.bytes()
		}
	}
	end.moves, end.landed = landed, end.moves
	if n := len(landed); n > 0 {
		last := &landed[n-1]
		if done := last.event + last.items; end.row.Horizon < done+landingEvents {
			return t.exchangeFault(RuleHorizon, end.row.Horizon, "row ends at event %d, but words are written up to event %d and need %d more to land", end.row.Horizon, done, landingEvents)
		}
	}
	return nil
}

// checkLanding checks where a move writes.
func (t *tile) checkLanding(end *endpoint, m *move, to uint64) *Fault {
	bytes := m.bytes()
	switch {
	case to%uint64(m.itemBytes()) != 0:
		return t.exchangeFault(RuleAlignment, m.event, "receive at 0x%X must be aligned to %d bytes", to, m.itemBytes())
	case to < machine.MemoryBase || to+uint64(bytes) > machine.MemoryEnd:
		return t.exchangeFault(RuleRange, m.event, "receive at 0x%X with %d bytes lies outside of tile memory", to, bytes)
	}
	address := uint32(to)
	if code, bad := t.damaged(address, address+bytes); bad {
		return t.exchangeFault(RuleCode, m.event, "receive at 0x%X with %d bytes would overwrite code at 0x%X..0x%X", to, bytes, code.start, code.end)
	}
	if hit := machine.ElementMask(address, bytes) & end.code; hit != 0 {
		return t.exchangeFault(RuleFetch, m.event, "receive at 0x%X with %d bytes writes SRAM element %d, which code is fetched from", to, bytes, bits.TrailingZeros32(hit))
	}
	return nil
}
