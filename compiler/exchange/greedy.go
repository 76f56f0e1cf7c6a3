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
	*urgency
	units []unit
	next  []int32 // the next unit of each stream: all units of a source and receiver
	dest  []int32 // receiver of each stream
	first []int32 // the unfinished streams of tile t are first[t]..last[t]-1
	last  []int32

	refreshed int32
	receiver  []receiverState
	heap      senderHeap
	turn      []int32 // by tile: where its next scan begins
}

// receiverState is what a scan reads of a receiver.
type receiverState struct {
	free    int32 // end of its mux timeline
	urgency int32
}

// Weights of the choice, found by experiment on the bench families.
const (
	waitWeight   = 32   // a sender's wait against a receiver's gap
	urgencyBonus = 20   // events that serving an urgent receiver is worth
	gapEvents    = 32   // longer gaps are of receivers that nobody wants: they count less again
	farEvents    = 4096 // longer waits are all alike
	refreshEvery = 64   // events between updates of the urgencies
	maxScan      = 320  // streams that one decision looks at
)

func newGreedy(p *Problem, order []int32, units []unit) *greedy {
	l := newLister(p, order, units)
	g := &greedy{
		lister: l, urgency: newUrgency(l), units: units,
		first: make([]int32, p.Tiles+1), receiver: make([]receiverState, p.Tiles), turn: make([]int32, p.Tiles),
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
		g.receiver[d] = receiverState{g.recvFree[d], g.of(g.recvFree[d] + g.recvLeft[d])}
		push(s)
	}
}

// refresh brings the urgencies up to date.
func (g *greedy) refresh(now int32) {
	g.refreshed = now
	g.update(g.lister)
	for t := range g.receiver {
		g.receiver[t].urgency = g.of(max(g.recvFree[t], now) + g.recvLeft[t])
	}
}

// choose returns the best stream of a sender and the start of its next unit. Of
// many streams it looks at some, and at the next ones when it is asked again.
func (g *greedy) choose(s int32) (at, start int32) {
	base, last := g.first[s], g.last[s]
	if last-base > maxScan {
		base = min(base+g.turn[s], last-maxScan)
		last = base + maxScan
		g.turn[s] = last - g.first[s]
		if last == g.last[s] {
			g.turn[s] = 0
		}
	}
	mux := g.routes.from(s)
	now := g.sendFree[s]
	clear := g.controls[s].clear(now)
	wait := g.of(now+g.sendLeft[s]) * waitWeight
	best := int32(math.MaxInt32)
	for i, d := range g.dest[base:last] {
		r := g.receiver[d]
		ahead := r.free - int32(mux[d]) - now
		score := cost(ahead, 0, wait, r.urgency)
		if score >= best {
			continue
		}
		late := max(0, ahead)
		if shift := g.nearlyLegal(&g.units[g.next[base+int32(i)]], d, int32(mux[d]), now, late, clear) - late; shift > 0 {
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
// the ends of a unit would be legal, counted from now as late is. clear has a bit
// for each event from now on at which the sender may begin.
func (g *greedy) nearlyLegal(u *unit, d, mux, now, late int32, clear uint64) int32 {
	begins := g.begins[d]
	x := now + mux - 1
	lag := g.routes.lag[d]
	for range 16 {
		if late < 64 && clear>>late&1 == 0 {
			late++
			continue
		}
		if !begins.either(x+late) && !begins.either(x+late+u.words) && !begins.either(x+late+lag) {
			break
		}
		late++
	}
	return late
}
