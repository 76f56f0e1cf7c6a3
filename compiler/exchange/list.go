package exchange

import (
	"math"
)

// lister is one run of the list scheduler. Every tile has two timelines that
// only grow at the end: what it sends, and what its mux listens to. The lister
// repeatedly takes the tile whose send timeline ends first, picks one of its
// streams, and appends a few of the stream's transfers to the timelines of the
// tile and of all receivers.
type lister struct {
	p      *Problem
	routes *routes
	policy policy
	order  []int32
	starts []int32

	active []stream // like streams.all, but finished ones are swapped out
	first  []int32  // the live streams of tile t are active[first[t]:last[t]]
	last   []int32

	sendFree, recvFree []int32 // by tile: where the timelines end
	sendLeft, recvLeft []int32 // by tile: words not placed yet
	horizon            []int32

	controls []eventSet // by tile: events at which a receive control takes effect
	begins   []eventSet // by tile: first events of sends
	hazards  []hazard

	heap senderHeap
}

func newLister(p *Problem, g *streams, pol policy) *lister {
	l := &lister{
		p: p, routes: loadRoutes(), policy: pol, order: g.order,
		starts:   make([]int32, len(p.Transfers)),
		active:   append([]stream(nil), g.all...),
		first:    g.bySource[:p.Tiles],
		last:     append([]int32(nil), g.bySource[1:]...),
		sendFree: make([]int32, p.Tiles), recvFree: make([]int32, p.Tiles),
		horizon:  make([]int32, p.Tiles),
		controls: make([]eventSet, p.Tiles), begins: make([]eventSet, p.Tiles),
		hazards: newHazards(p),
	}
	l.sendLeft, l.recvLeft = p.work()
	for t := range l.recvFree {
		l.recvFree[t] = 1 // no control can act at event 0
		l.sendFree[t] = firstSend
		if l.first[t] < l.last[t] {
			l.heap.push(l.key(int32(t), firstSend))
		}
	}
	return l
}

// key orders senders by time, then by most words left, then by tile.
func (l *lister) key(tile, time int32) senderKey {
	return senderKey{time, -l.sendLeft[tile], tile, 0}
}

func (l *lister) run() {
	for len(l.heap) > 0 {
		k := l.heap.pop()
		s := k.tile
		at, start := l.choose(s, k.time)
		if start > k.time+l.policy.slack && k.waits < l.policy.patience {
			k.time = start
			k.waits++
			l.heap.push(k)
			continue
		}
		l.place(s, at, start)
		if l.first[s] < l.last[s] {
			l.heap.push(l.key(s, l.sendFree[s]))
		}
	}
}

// choose returns the stream of a sender to serve next, and its earliest start.
// Of the streams that can start within the policy's slack it takes the one
// whose receiver would finish last, otherwise the one that can start first.
func (l *lister) choose(s, now int32) (at, start int32) {
	mux := l.routes.from(s)
	start = math.MaxInt32
	bestEnd := int32(-1)
	limit := now + l.policy.slack
	for i := l.first[s]; i < l.last[s]; i++ {
		x := &l.active[i]
		e, end := now, int32(0)
		for _, r := range l.p.Receivers[x.first : x.first+x.count] {
			e = max(e, l.recvFree[r.Tile]-int32(mux[r.Tile]))
			end = max(end, l.recvFree[r.Tile]+l.recvLeft[r.Tile])
		}
		switch {
		case e <= limit:
			if start > limit || end > bestEnd {
				at, start, bestEnd = i, e, end
			}
		case e < start || e == start && end > bestEnd:
			at, start, bestEnd = i, e, end
		}
	}
	return at, start
}

// retries is how many start events a batch is tried at before it is broken up.
const retries = 24

// place appends transfers of a stream to the timelines as soon as legal: a
// batch, or one transfer where the controls of a batch do not fit.
func (l *lister) place(s, at, start int32) {
	x := &l.active[at]
	b := l.batch(s, x)
	for tries := 0; ; tries++ {
		move := l.clash(&b, start)
		if move == 0 {
			break
		}
		start += move
		if tries == retries && b.to > b.from+1 {
			b = l.batchOf(s, x, 1)
		}
	}
	l.commit(&b, start)
	x.next = b.to
	if x.next == x.end {
		l.last[s]--
		l.active[at] = l.active[l.last[s]]
	}
}

// batch is a run of transfers of one stream that leave without a pause.
type batch struct {
	source    int32
	from, to  int32 // transfers order[from:to]
	words     int32
	elements  uint32 // SRAM elements of all source bytes
	receivers []Receiver
}

// batch takes the next transfers of a stream up to the policy's words. A tile
// that hears itself gets single transfers, whose elements Check has separated.
func (l *lister) batch(s int32, x *stream) batch {
	for _, r := range l.p.Receivers[x.first : x.first+x.count] {
		if r.Tile == s {
			return l.batchOf(s, x, 1)
		}
	}
	return l.batchOf(s, x, l.policy.batch)
}

func (l *lister) batchOf(s int32, x *stream, words int32) batch {
	b := batch{source: s, from: x.next, to: x.next, receivers: l.p.Receivers[x.first : x.first+x.count]}
	for b.to < x.end {
		t := &l.p.Transfers[l.order[b.to]]
		if b.to > b.from && b.words+t.Words > words {
			break
		}
		b.words += t.Words
		b.elements |= elements(t.Address, t.Words)
		b.to++
	}
	return b
}

// clash says how many events a batch must move before it is worth another try,
// or 0 if it may start at this event. The batch begins after the timelines of
// its tiles, so what is left to check are the events of controls and begins,
// and the SRAM elements.
func (l *lister) clash(b *batch, start int32) int32 {
	mux := l.routes.from(b.source)
	first := &l.p.Transfers[l.order[b.from]]
	if h := &l.hazards[b.source]; h.elements&b.elements != 0 {
		if end := h.receives.blocks(start, max(start+b.words, senderTail), h.elements&b.elements); end > 0 {
			return end - start
		}
	}
	if pause := start - l.sendFree[b.source]; pause > 0 && pause < sendGap && l.sendFree[b.source] > firstSend {
		return sendGap - pause
	}
	at, source := start, first.Address
	for k := b.from; k < b.to; k++ {
		t := &l.p.Transfers[l.order[k]]
		if (k == b.from || t.Address != source) && l.controls[b.source].either(at) {
			return 1
		}
		at, source = at+t.Words, t.Address+uint32(t.Words)*4
	}
	for j, r := range b.receivers {
		x := start + int32(mux[r.Tile])
		begins := l.begins[r.Tile]
		end := x + listen(b.source, r.Tile, int32(mux[r.Tile]), b.words)
		if begins.either(x-1) || begins.either(end-1) {
			return 1
		}
		pointer := x + l.routes.lag[r.Tile]
		next := uint32(0)
		touched := uint32(0)
		for k := b.from; k < b.to; k++ {
			t := &l.p.Transfers[l.order[k]]
			a := l.p.Receivers[t.First+int32(j)].Address
			if a != next && begins.either(pointer-1) {
				return 1
			}
			touched |= elements(a, t.Words)
			pointer, next = pointer+t.Words, a+uint32(t.Words)*4
		}
		if h := &l.hazards[r.Tile]; h.elements&touched != 0 {
			if end := h.sends.blocks(pointer-b.words, pointer+receiverTail, h.elements&touched); end > 0 {
				return end - (pointer - b.words)
			}
		}
	}
	return 0
}

// commit appends a batch to the timelines.
func (l *lister) commit(b *batch, start int32) {
	mux := l.routes.from(b.source)
	at, source := start, uint32(0)
	for k := b.from; k < b.to; k++ {
		t := &l.p.Transfers[l.order[k]]
		l.starts[l.order[k]] = at
		if t.Address != source {
			l.begins[b.source].set(at)
		}
		at, source = at+t.Words, t.Address+uint32(t.Words)*4
	}
	free := at
	l.horizon[b.source] = max(l.horizon[b.source], at, senderTail)
	if h := &l.hazards[b.source]; h.elements&b.elements != 0 {
		h.sends.add(start, max(at, senderTail), h.elements&b.elements)
	}
	for j, r := range b.receivers {
		x := start + int32(mux[r.Tile])
		heard := listen(b.source, r.Tile, int32(mux[r.Tile]), b.words)
		controls := &l.controls[r.Tile]
		controls.set(x)
		controls.set(x + heard)
		l.recvFree[r.Tile] = x + heard
		l.recvLeft[r.Tile] -= b.words
		free = max(free, start+heard)
		pointer := x + l.routes.lag[r.Tile]
		next, touched := uint32(0), uint32(0)
		for k := b.from; k < b.to; k++ {
			t := &l.p.Transfers[l.order[k]]
			a := l.p.Receivers[t.First+int32(j)].Address
			if a != next {
				controls.set(pointer)
			}
			touched |= elements(a, t.Words)
			pointer, next = pointer+t.Words, a+uint32(t.Words)*4
		}
		l.horizon[r.Tile] = max(l.horizon[r.Tile], pointer+receiverTail)
		if h := &l.hazards[r.Tile]; h.elements&touched != 0 {
			h.receives.add(pointer-b.words, pointer+receiverTail, h.elements&touched)
		}
	}
	l.sendFree[b.source] = free
	l.sendLeft[b.source] -= b.words
}

func (l *lister) schedule() *Schedule {
	s := &Schedule{Starts: l.starts, TileHorizon: l.horizon}
	for _, h := range l.horizon {
		s.Horizon = max(s.Horizon, h)
	}
	return s
}
