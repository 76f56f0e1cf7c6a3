package device

import (
	"cmp"
	"slices"

	"ipufarm/protocol/machine"
)

// move copies the words that tile i receives, in the order of their writes. The
// words of a send come from the sender's memory, which nobody writes there during
// the phase, or from its staged copy.
func (d *Device) move(i int) {
	t, end := d.tiles[i], &d.exchange.ends[i]
	for j := range end.moves {
		m := &end.moves[j]
		copy(t.bytes(m.to, int(m.bytes())), d.sent(m.source, m.send, m.from, m.bytes()))
	}
}

// sent returns what a piece of a send carries.
func (d *Device) sent(source, send int32, from, bytes uint32) []byte {
	end := &d.exchange.ends[source]
	if end.staged != nil && end.staged[send] != nil {
		return end.staged[send][from-end.sends[send].Address:][:bytes]
	}
	return d.tiles[source].bytes(from, int(bytes))
}

// patch is one word of a relayed send that was received before it leaves: it
// carries what the feeding send carried.
type patch struct {
	event      int32  // at which the word leaves
	tile, send int32  // of the relayed send
	from       uint32 // address of the word on its tile
	feeder     int32  // tile, send and address of the word that arrived there
	feederSend int32
	feederFrom uint32
}

// maxPatches bounds the words that one phase may relay.
const maxPatches = 1 << 25

// relay stages the sends whose bytes are also received in this phase: each word
// carries what memory holds at the event at which it leaves. A received word was
// sent earlier (no route is shorter than 19 events), so taking the words in the
// order of their events finds every feeder complete.
func (d *Device) relay() *Fault {
	e := &d.exchange
	patches := e.patches[:0]
	for i, t := range d.tiles {
		end := &e.ends[i]
		if len(end.relays) == 0 {
			continue
		}
		end.staged = make([][]byte, len(end.sends))
		for _, k := range end.relays {
			s := &end.sends[k]
			end.staged[k] = slices.Clone(t.bytes(s.Address, int(s.End()-s.Address)))
			for j := range end.moves {
				m := &end.moves[j]
				if m.event >= s.Start+s.Items {
					break
				}
				patches = appendPatches(patches, int32(i), k, s, m)
				if len(patches) > maxPatches {
					return t.exchangeFault(RuleLimit, m.event, "more than %d words are received and sent on in one phase", maxPatches)
				}
			}
		}
	}
	// Stable: of two writes to a word before it leaves, the later one stays last.
	slices.SortStableFunc(patches, func(a, b patch) int { return cmp.Compare(a.event, b.event) })
	for k := range patches {
		p := &patches[k]
		end := &e.ends[p.tile]
		copy(end.staged[p.send][p.from-end.sends[p.send].Address:][:4], d.sent(p.feeder, p.feederSend, p.feederFrom, 4))
	}
	e.patches = patches
	return nil
}

// appendPatches adds the words of send k of a tile that move m writes before they leave.
func appendPatches(patches []patch, tile, k int32, s *machine.Send, m *move) []patch {
	lo, hi := max(s.Address, m.to), min(s.End(), m.to+m.bytes())
	for a := lo; a < hi; a += 4 {
		leaves := s.Start + int32((a-s.Address)/itemBytes(s.Wide))
		written := m.event + int32((a-m.to)/m.itemBytes())
		if written < leaves {
			patches = append(patches, patch{leaves, tile, k, a, m.source, m.send, m.from + (a - m.to)})
		}
	}
	return patches
}
