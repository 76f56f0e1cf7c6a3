package device

import (
	"slices"

	"ipufarm/protocol/machine"
)

// check tests what needs both sides of a tile, or its partner: borrowed lanes,
// one SRAM element for a send and a receive, a tile that only hears itself. It
// also finds the sends whose words arrive in the same phase.
func (d *Device) check(w, i int) *Fault {
	t, end, scratch := d.tiles[i], &d.exchange.ends[i], d.scratch[w]
	if f := d.checkLanes(t, end); f != nil {
		return f
	}
	if len(end.sends) == 0 || len(end.moves) == 0 {
		return nil
	}
	for j := range end.moves {
		m := &end.moves[j]
		if int(m.source) != i {
			continue
		}
		if end.heard[m.send] == 0 {
			return t.exchangeFault(RuleLoopback, m.event, "the tile is the only receiver of its send at event %d", end.sends[m.send].Start)
		}
		if machine.ElementMask(m.from, m.bytes())&machine.ElementMask(m.to, m.bytes()) != 0 {
			return t.exchangeFault(RuleClash, m.event, "the tile receives its own words from 0x%X at 0x%X, in the same SRAM element", m.from, m.to)
		}
	}
	if f := t.checkElements(end, scratch); f != nil {
		return f
	}
	end.findRelays(scratch)
	return nil
}

// checkLanes: 64-bit sends borrow the transmit lane of the partner.
func (d *Device) checkLanes(t *tile, end *endpoint) *Fault {
	partner := none
	var lane []machine.Send
	for k := range end.sends {
		s := &end.sends[k]
		if !s.Wide {
			continue
		}
		if partner == none {
			partner = machine.Partner(t.physical)
			at := d.at(partner)
			if at < 0 {
				return t.exchangeFault(RuleLane, s.Start, "64-bit send borrows the lane of %s, which is not part of the package", named(partner))
			}
			lane = d.exchange.ends[at].sends
		}
		for len(lane) > 0 && lane[0].Start+lane[0].Items <= s.Start {
			lane = lane[1:]
		}
		if len(lane) > 0 && lane[0].Start < s.Start+s.Items {
			return t.exchangeFault(RuleLane, max(s.Start, lane[0].Start), "64-bit send borrows the lane of %s, which sends itself", named(partner))
		}
	}
	return nil
}

// access is one effective SRAM element in use during the events [start, end).
type access struct {
	start, end int32
	element    int32
}

// accesses appends the elements that items of a contiguous stream touch, the first
// at event start, each held until tail events after its last item.
func accesses(list []access, address uint32, items, start int32, wide bool, tail int32) []access {
	size := itemBytes(wide)
	for items > 0 {
		n := min(items, int32((elementEnd(address)-address)/size))
		list = append(list, access{start, start + n + tail, int32(machine.Element(address))})
		address += uint32(n) * size
		start += n
		items -= n
	}
	return list
}

// elementEnd is the first address after the effective element of an address.
func elementEnd(address uint32) uint32 {
	if address < machine.Region1Base {
		return address&^(machine.Element0Size-1) + machine.Element0Size
	}
	return (address-machine.Region1Base)&^(machine.Element1Size-1) + machine.Element1Size + machine.Region1Base
}

// checkElements: at no event may a send read the element that a receive writes. A
// sender holds its first six events, a receiver the five after a write (published
// windows of the bring-up's scheduler, which hardware accepts).
func (t *tile) checkElements(end *endpoint, scratch *scratch) *Fault {
	const senderEvents = 6
	reads, writes := scratch.reads[:0], scratch.writes[:0]
	for k := range end.sends {
		s := &end.sends[k]
		reads = accesses(reads, s.Address, s.Items, s.Start, s.Wide, 0)
		reads[len(reads)-1].end = max(reads[len(reads)-1].end, senderEvents)
	}
	for j := range end.moves {
		m := &end.moves[j]
		writes = accesses(writes, m.to, m.items, m.event, m.wide, landingEvents)
	}
	scratch.reads, scratch.writes = reads, writes
	for _, r := range reads {
		for len(writes) > 0 && writes[0].end <= r.start {
			writes = writes[1:]
		}
		for _, w := range writes {
			if w.start >= r.end {
				break
			}
			if w.element == r.element {
				return t.exchangeFault(RuleClash, max(r.start, w.start), "a send reads and a receive writes SRAM element %d", r.element)
			}
		}
	}
	return nil
}

// granuleBytes is the resolution at which reads and writes are compared before
// they are compared exactly.
const granuleBytes = 256

// findRelays lists the sends of which a byte is also received in this phase.
func (end *endpoint) findRelays(scratch *scratch) {
	if scratch.granules == nil {
		scratch.granules = make([]uint64, (machine.MemorySize/granuleBytes+63)/64)
	}
	granules := scratch.granules
	clear(granules)
	for j := range end.moves {
		m := &end.moves[j]
		for g := granule(m.to); g <= granule(m.to+m.bytes()-1); g++ {
			granules[g/64] |= 1 << (g % 64)
		}
	}
	for k := range end.sends {
		s := &end.sends[k]
		for g := granule(s.Address); g <= granule(s.End()-1); g++ {
			if granules[g/64]>>(g%64)&1 == 0 {
				continue
			}
			if slices.ContainsFunc(end.moves, func(m move) bool { return m.to < s.End() && s.Address < m.to+m.bytes() }) {
				end.relays = append(end.relays, int32(k))
			}
			break
		}
	}
}

func granule(address uint32) uint32 { return (address - machine.MemoryBase) / granuleBytes }
