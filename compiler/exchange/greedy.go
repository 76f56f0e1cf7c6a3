package exchange

import (
	"math"
	"slices"

	"ipufarm/protocol/machine"
)

// greedy is the policy for point-to-point phases: it takes the tile whose send
// timeline ends first and picks the cheapest of its next units. A unit is cheap
// when it starts at once and its receiver has just become free: otherwise one of
// the two loses events for good, which costs more the less slack the tile has
// until the latest tile finishes. Of units that cost alike, the receiver with the
// least slack goes first.
type greedy struct {
	*lister
	*urgency
	units []unit
	// Streams are the units of one source and receiver, in order. The unfinished
	// ones of tile t are first[t]..last[t]-1, busiest receivers first.
	next, dest  []int32 // by stream: its next unit, its receiver
	first, last []int32 // by tile
	turn        []int32 // by tile: where its next scan of other streams begins

	receiver  []receiverState
	refreshed int32 // event of the last update of the urgencies
	heap      senderHeap
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

	// A decision looks at so many streams, whatever the size of the phase.
	hotScan  = 24 // to the busiest receivers
	coldScan = 72 // of the others, in turn
	maxTop   = 8  // of these, looked at twice
)

func newGreedy(p *sorted, units []unit) *greedy {
	l := newLister(p, units)
	g := &greedy{
		lister: l, urgency: newUrgency(l), units: units,
		first: make([]int32, p.Tiles+1), turn: make([]int32, p.Tiles), receiver: make([]receiverState, p.Tiles),
	}
	for i := range units {
		if i == 0 || units[i-1].last {
			g.first[units[i].source+1]++
			g.next = append(g.next, int32(i))
		}
	}
	for t := range p.Tiles {
		g.first[t+1] += g.first[t]
		g.receiver[t].free = g.recvFree[t]
		slices.SortStableFunc(g.next[g.first[t]:g.first[t+1]], func(a, b int32) int {
			return int(g.recvLeft[g.destOf(b)] - g.recvLeft[g.destOf(a)])
		})
	}
	for _, u := range g.next {
		g.dest = append(g.dest, g.destOf(u))
	}
	g.last = slices.Clone(g.first[1:])
	g.refresh(0)
	return g
}

func (g *greedy) destOf(unit int32) int32 { return g.p.Receivers[g.units[unit].first].Tile }

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
			copy(g.next[at:g.last[s]], g.next[at+1:])
			copy(g.dest[at:g.last[s]], g.dest[at+1:])
			g.last[s]--
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

// choose returns the best stream of a sender and the start of its next unit. The
// few that look best are asked when their controls would be legal.
func (g *greedy) choose(s int32) (at, start int32) {
	now := g.sendFree[s]
	c := chooser{greedy: g, mux: g.routes.from(s), now: now, wait: g.of(now+g.sendLeft[s]) * waitWeight}
	first, last := g.first[s], g.last[s]
	if last-first <= hotScan+coldScan {
		c.scan(first, last)
	} else {
		c.scan(first, first+hotScan)
		from := min(first+max(hotScan, g.turn[s]), last-coldScan)
		c.scan(from, from+coldScan)
		if g.turn[s] = from + coldScan - first; from+coldScan == last {
			g.turn[s] = 0
		}
	}
	clear := g.controls[s].clear(now)
	best := int32(math.MaxInt32)
	for _, x := range c.top[:c.n] {
		if x.score >= best {
			break
		}
		d := g.dest[x.stream]
		ahead := g.receiver[d].free - int32(c.mux[d]) - now
		late := max(0, ahead)
		legal := g.nearlyLegal(&g.units[g.next[x.stream]], d, int32(c.mux[d]), now, late, clear)
		if score := cost(ahead, legal-late, c.wait, g.receiver[d].urgency); score < best {
			best, at, start = score, x.stream, now+legal
		}
	}
	return at, start
}

// chooser is one decision.
type chooser struct {
	*greedy
	mux  *[machine.Tiles]int8
	now  int32 // the sender is free
	wait int32 // cost of one event of its time
	top  [maxTop]candidate
	n    int
}

// candidate is a stream that looks cheap.
type candidate struct{ score, stream int32 }

// scan keeps the cheapest of a range of streams.
func (c *chooser) scan(from, to int32) {
	for i, d := range c.dest[from:to] {
		r := c.receiver[d]
		score := cost(r.free-int32(c.mux[d])-c.now, 0, c.wait, r.urgency)
		if c.n == len(c.top) {
			if score >= c.top[c.n-1].score {
				continue
			}
			c.n--
		}
		k := c.n
		for ; k > 0 && c.top[k-1].score > score; k-- {
			c.top[k] = c.top[k-1]
		}
		c.top[k] = candidate{score, from + int32(i)}
		c.n++
	}
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
