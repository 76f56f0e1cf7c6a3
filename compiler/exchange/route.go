package exchange

import (
	"sync"

	"ipufarm/protocol/machine"
)

// routes are the topology numbers of the card by logical tile, in the order in
// which the scheduler scans them.
type routes struct {
	// mux[source*Tiles+dest] is machine.MuxTime + 1: the events from a send to
	// the moment when the receiver's mux must be on its source, -77..113.
	mux [machine.Tiles * machine.Tiles]int8
	// lag[dest] is machine.PointerLag, from mux to SRAM write.
	lag [machine.Tiles]int32
	// mean[source] is the average of mux over all receivers.
	mean [machine.Tiles]int32
}

var loadRoutes = sync.OnceValue(func() *routes {
	r := new(routes)
	var physical [machine.Tiles]int
	for l := range physical {
		physical[l] = machine.Physical(l)
		r.lag[l] = int32(machine.PointerLag(physical[l]))
	}
	for s, ps := range physical {
		for d, pd := range physical {
			r.mux[s*machine.Tiles+d] = int8(machine.MuxTime(ps, pd) + 1)
			r.mean[s] += int32(r.mux[s*machine.Tiles+d])
		}
		r.mean[s] /= machine.Tiles
	}
	return r
})

// from returns the mux offsets of all receivers of a source.
func (r *routes) from(source int32) *[machine.Tiles]int8 {
	return (*[machine.Tiles]int8)(r.mux[int(source)*machine.Tiles:])
}

// hear is the mux offset at which a tile receives a transfer. Both members of a
// pair receive 64-bit items by the mux of the one that they reach first.
func (r *routes) hear(source, dest int32, wide bool) int32 {
	mux := r.from(source)
	if wide {
		return int32(min(mux[dest], mux[partner(dest)]))
	}
	return int32(mux[dest])
}

// issues reports whether a member of a pair sets the mux of a 64-bit receive.
func (r *routes) issues(source, dest int32) bool {
	mux := r.from(source)
	return mux[dest] < mux[partner(dest)]
}

func direction(source, dest int32) uint32 {
	return uint32(machine.Direction(machine.Physical(int(source)), machine.Physical(int(dest))))
}

// partner is the other tile of a pair.
func partner(tile int32) int32 { return tile ^ 1 }

// Event constants of the row builder.
const (
	beginEvents  = 2 // events at the start of a send at which no control may act
	sendGap      = 2 // shortest pause between two sends, if there is one; see emit
	firstSend    = 3 // earliest send; see emit
	senderTail   = 6 // a sending row lasts at least this long
	receiverTail = 5 // events of a receiving row after its last word

	// Of a 64-bit receive, against the pointer of an ordinary one:
	pairFormat  = -1 // the format acts an event earlier
	pairPointer = 1  // and the pointer an event later
)

// halved is how many words of a transfer leave before a pause of sendGap events,
// or 0 when all leave at once. A tile that hears itself would have to deselect
// 28 or 29 words just as the very send begins, which is forbidden; two halves can
// be heard.
func (p *Problem) halved(t int32) int32 {
	x := &p.Transfers[t]
	if x.Words < 27 || x.Words > 29 || !hearsItself(x.Source, p.receivers(t)) {
		return 0
	}
	if end := x.Words + loadRoutes().hear(x.Source, x.Source, false); end < 0 || end >= beginEvents {
		return 0
	}
	return x.Words / 2
}

func hearsItself(source int32, receivers []Receiver) bool {
	for _, r := range receivers {
		if r.Tile == source {
			return true
		}
	}
	return false
}
