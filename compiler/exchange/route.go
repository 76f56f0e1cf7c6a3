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

// listen is how many events a receiver's mux stays on the source of a transfer
// of n events. It is n, except for a tile that hears itself and would have to
// deselect as the very send begins, which is forbidden: then the tile sends
// nothing else for a moment, and the mux leaves in that time. offset is
// routes.mux of the route.
func listen(source, dest int32, offset, n int32) int32 {
	if source == dest && (n == -offset || n == 1-offset) {
		return beginEvents + 1 - offset
	}
	return n
}

// Event constants of the row builder.
const (
	beginEvents  = 2 // events at the start of a send at which no control may act
	sendGap      = 2 // shortest pause between two sends, if there is one; see emit
	firstSend    = 2 // earliest send; see emit
	senderTail   = 6 // a sending row lasts at least this long
	receiverTail = 5 // events of a receiving row after its last word
)
