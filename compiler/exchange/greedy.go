package exchange

import "math"

// greedy is the policy for point-to-point phases: it takes the tile whose send
// timeline ends first and picks the cheapest of its next units. A unit is cheap when
// it starts at once and its receiver has just become free: otherwise one of the
// two loses events for good, which costs more the less slack the tile has until
// the latest tile finishes. Of units that cost alike, the receiver with the
// least slack goes first.
type greedy struct {
	*lister
	units []unit
	next  []int32 // the next unit of each stream: all units of a source and receiver
	dest  []int32 // receiver of each stream
	first []int32 // the unfinished streams of tile t are first[t]..last[t]-1
	last  []int32

	latest    int32 // event at which the busiest tile would finish without waiting
	scale     int32 // slack events for one step in the urgency table
	steps     [256]int32
	refreshed int32
	receiver  []receiverState
	heap      senderHeap
}

// receiverState is what a scan reads of a receiver.
type receiverState struct {
	free    int32 // end of its mux timeline
	urgency int32
}

// Weights of the choice, found by experiment on the bench families.
const (
	urgencyTop   = 1024 // weight of an event on a tile without slack
	urgencyFloor = 100  // and on a tile with plenty
	waitWeight   = 32   // a sender's wait against a receiver's gap
	urgencyBonus = 20   // events that serving an urgent receiver is worth
	gapEvents    = 32   // longer gaps are of receivers that nobody wants: they count less again
	farEvents    = 4096 // longer waits are all alike
	refreshEvery = 64   // events between updates of the urgencies
)

func newGreedy(p *Problem, order []int32, units []unit) *greedy {
	g := &greedy{
		lister: newLister(p, order, units), units: units,
		first: make([]int32, p.Tiles+1), receiver: make([]receiverState, p.Tiles),
	}
	for i := range units {
		if i == 0 || units[i-1].last {
			g.first[units[i].source+1]++
			g.next = append(g.next, int32(i))
			g.dest = append(g.dest, p.Receivers[units[i].first].Tile)
		}
	}
	for t := range p.Tiles {
		g.first[t+1] += g.first[t]
		g.receiver[t].free = g.recvFree[t]
	}
	g.last = append([]int32(nil), g.first[1:]...)
	for i := range g.steps {
		g.steps[i] = urgencyFloor + int32(math.Exp2(-float64(i)/8)*urgencyTop)
	}
	g.refresh(0)
	g.scale = max(1, g.latest/512)
	g.refresh(0)
	return g
}

// run places all units. Senders are ordered in the receivers' time: a tile whose
// words arrive late must decide later, or it would find everybody taken.
func (g *greedy) run() {
	push := func(s int32) {
		if g.first[s] < g.last[s] {
			g.heap.push(senderKey{g.sendFree[s] + g.routes.mean[s], -g.sendLeft[s], s})
		}
	}
	for s := range int32(g.p.Tiles) {
		push(s)
	}
	for len(g.heap) > 0 {
		k := g.heap.pop()
		if k.time >= g.refreshed+refreshEvery {
			g.refresh(k.time)
		}
		s := k.tile
		at, start := g.choose(s)
		u, d := &g.units[g.next[at]], g.dest[at]
		g.place(u, start)
		if g.next[at]++; u.last {
			g.last[s]--
			g.next[at], g.dest[at] = g.next[g.last[s]], g.dest[g.last[s]]
		}
		g.receiver[d] = receiverState{g.recvFree[d], g.urgency(g.recvFree[d] + g.recvLeft[d])}
		push(s)
	}
}

// refresh brings latest and the receivers' urgencies up to date.
func (g *greedy) refresh(now int32) {
	g.refreshed = now
	g.latest = 0
	for t := range g.receiver {
		g.latest = max(g.latest, g.sendFree[t]+g.sendLeft[t], g.recvFree[t]+g.recvLeft[t])
	}
	for t := range g.receiver {
		g.receiver[t].urgency = g.urgency(max(g.recvFree[t], now) + g.recvLeft[t])
	}
}

// urgency is the weight of a tile that would finish at an event if it never
// waited again.
func (g *greedy) urgency(finish int32) int32 {
	slack := max(0, g.latest-finish) / max(1, g.scale)
	return g.steps[min(slack, int32(len(g.steps)-1))]
}

// choose returns the best stream of a sender and the start of its next unit.
func (g *greedy) choose(s int32) (at, start int32) {
	mux := g.routes.from(s)
	now := g.sendFree[s]
	wait := g.urgency(now+g.sendLeft[s]) * waitWeight
	best := int32(math.MaxInt32)
	base := g.first[s]
	for i, d := range g.dest[base:g.last[s]] {
		r := g.receiver[d]
		ahead := r.free - int32(mux[d]) - now
		score := cost(ahead, 0, wait, r.urgency)
		if score >= best {
			continue
		}
		late := max(0, ahead)
		if shift := g.nearlyLegal(&g.units[g.next[base+int32(i)]], d, now+late) - late - now; shift > 0 {
			if score = cost(ahead, shift, wait, r.urgency); score >= best {
				continue
			}
			late += shift
		}
		best, at, start = score, base+int32(i), now+late
	}
	return at, start
}

// cost weighs a start that is so many events after both tiles are free; ahead is
// how long after the sender the receiver becomes free.
func cost(ahead, shift, wait, urgency int32) int32 {
	late := min(max(0, ahead)+shift, farEvents)
	gap := max(0, -ahead) + shift
	if gap > gapEvents {
		gap = max(0, 2*gapEvents-gap)
	}
	return late*wait + (gap-urgencyBonus)*urgency
}

// nearlyLegal returns the first of the next few events at which the controls at
// the ends of a unit would be legal.
func (g *greedy) nearlyLegal(u *unit, d, start int32) int32 {
	controls, begins := g.controls[u.source], g.begins[d]
	x := int32(g.routes.from(u.source)[d]) - 1
	lag := g.routes.lag[d]
	for range 16 {
		if !controls.either(start) && !begins.either(start+x) && !begins.either(start+x+u.words) && !begins.either(start+x+lag) {
			break
		}
		start++
	}
	return start
}
