package exchange

import (
	"fmt"
	"math"
	"os"
)

var wA, wB, wC = env("WA", 16), env("WB", 1), env("WC", 10)
var wBatch, wWaves, wWin, wWave = env("BATCH", 128), env("WAVES", 8), env("WIN", 64), env("WAVE", 0)
var wL, wF = env("WL", 8), env("WF", 32)
var wCap = env("CAP", 64)

func env(name string, def int64) int64 {
	if s := os.Getenv(name); s != "" {
		fmt.Sscan(s, &def)
	}
	return def
}

// lister is one run of the list scheduler. Every tile has two timelines that
// only grow at the end: what it sends, and what its mux listens to. The lister
// repeatedly takes the tile whose send timeline ends first, picks one of its
// next units, and appends it to the timelines of the tile and of all receivers.
type lister struct {
	p      *Problem
	routes *routes
	order  []int32
	starts []int32

	units []unit
	dest  []int32
	first []int32 // the units of tile t that are left are units[first[t]:last[t]]
	last  []int32

	sendFree, recvFree []int32 // by tile: where the timelines end
	sendLeft, recvLeft []int32 // by tile: words not placed yet
	horizon            []int32

	latest, shift int32
	weights       [256]int32

	controls []eventSet // by tile: events at which a receive control takes effect
	begins   []eventSet // by tile: first events of sends
	hazards  []hazard

	heap senderHeap
}

func newLister(p *Problem, order []int32, units []unit) *lister {
	l := &lister{
		p: p, routes: loadRoutes(), order: order, units: units,
		starts:   make([]int32, len(p.Transfers)),
		first:    make([]int32, p.Tiles+1),
		sendFree: make([]int32, p.Tiles), recvFree: make([]int32, p.Tiles),
		horizon:  make([]int32, p.Tiles),
		controls: make([]eventSet, p.Tiles), begins: make([]eventSet, p.Tiles),
		hazards: newHazards(p),
		dest:    make([]int32, len(units)),
	}
	l.sendLeft, l.recvLeft = p.work()
	for i := range units {
		l.first[units[i].source+1]++
		l.dest[i] = p.Receivers[units[i].first].Tile
	}
	for t := range p.Tiles {
		l.first[t+1] += l.first[t]
		l.recvFree[t] = 1 // no control can act at event 0
		l.sendFree[t] = firstSend
	}
	l.last = append([]int32(nil), l.first[1:]...)
	for t := range p.Tiles {
		if l.first[t] < l.last[t] {
			l.heap.push(l.key(int32(t)))
		}
	}
	l.initWeights()
	return l
}

// key orders senders by time, then by most words left, then by tile.
func (l *lister) key(tile int32) senderKey {
	return senderKey{l.sendFree[tile] + l.routes.mean[tile], -l.sendLeft[tile], tile, 0}
}

func (l *lister) run() {
	for len(l.heap) > 0 {
		s := l.heap.pop().tile
		at, start := l.choose(s, l.sendFree[s])
		u := l.units[at]
		copy(l.units[l.first[s]+1:at+1], l.units[l.first[s]:at])
		copy(l.dest[l.first[s]+1:at+1], l.dest[l.first[s]:at])
		l.first[s]++
		l.place(u, start)
		if l.first[s] < l.last[s] {
			l.heap.push(l.key(s))
		}
	}
}

func (l *lister) choose(s, now int32) (at, start int32) {
	mux := l.routes.from(s)
	best := int64(math.MaxInt64)
	ws := int64(l.weight(l.sendFree[s]+l.sendLeft[s])) * wA
	first := l.first[s]
	last := min(l.last[s], first+int32(wWin))
	wave := l.units[first].wave
	for i := first; i < last; i++ {
		x := &l.units[i]
		if x.count == 1 {
			d := l.dest[i]
			avail := l.recvFree[d] - int32(mux[d])
			wd := int64(l.weight(max(avail,now) + int32(mux[d]) + l.recvLeft[d]))
			e := max(now, avail)
			score := int64(x.wave-wave)*wWave - wd*wC + int64(e-now)*ws + tri(e-avail)*wd*wB
			if score >= best {
				continue
			}
			e = l.legal(s, d, int32(mux[d]), x.words, e)
			score = int64(x.wave-wave)*wWave - wd*wC + int64(e-now)*ws + tri(e-avail)*wd*wB
			if score < best {
				best, at, start = score, i, e
			}
			continue
		}
		e := now
		for _, r := range l.p.Receivers[x.first : x.first+x.count] {
			a := l.recvFree[r.Tile] - int32(mux[r.Tile])
			e = max(e, a)
		}
		sum, most := int64(0), int64(0)
		for _, r := range l.p.Receivers[x.first : x.first+x.count] {
			a := max(l.recvFree[r.Tile]-int32(mux[r.Tile]), now-int32(wCap))
			wd := int64(l.weight(a + int32(mux[r.Tile]) + l.recvLeft[r.Tile]))
			sum += int64(e-a) * wd
			most = max(most, wd)
		}
		score := int64(x.wave-wave)*wWave + int64(e-now)*ws + sum*wB/int64(x.count) - most*wC
		if score < best {
			best, at, start = score, i, e
		}
	}
	return at, start
}

func (l *lister) legal(s, d, mux, words, e int32) int32 {
	ctl, beg := l.controls[s], l.begins[d]
	for range 16 {
		if ctl.either(e) || beg.either(e+mux-1) || beg.either(e+mux+words-1) || beg.either(e+mux+l.routes.lag[d]-1) {
			e++
			continue
		}
		break
	}
	return e
}

func (l *lister) weight(finish int32) int32 {
	slack := (l.latest - finish) >> l.shift
	if slack < 0 {
		return 1024 + int32(wF)
	}
	return l.weights[min(slack, 255)]
}
func (l *lister) initWeights() {
	m := int32(0)
	for t := range l.sendFree {
		m = max(m, l.sendFree[t]+l.sendLeft[t], l.recvFree[t]+l.recvLeft[t])
	}
	l.latest = m
	// shift so that 255 units cover m/wL
	for (m/int32(wL))>>l.shift > 64 {
		l.shift++
	}
	for i := range l.weights {
		l.weights[i] = int32(1024*math.Exp2(-float64(i)/8)) + int32(wF)
	}
}

// retries is how many start events a unit is tried at before it is broken up.
const retries = 24

// place appends a unit to the timelines as soon as legal, transfer by transfer
// where the controls of all do not fit.
func (l *lister) place(u unit, start int32) {
	for tries := 0; ; tries++ {
		move := l.clash(&u, start)
		if move == 0 {
			l.commit(&u, start)
			return
		}
		start += move
		if tries == retries && u.to > u.from+1 {
			break
		}
	}
	for k := u.from; k < u.to; k++ {
		t := &l.p.Transfers[l.order[k]]
		one := unit{source: u.source, from: k, to: k + 1, words: t.Words, first: t.First, count: t.Count, elements: elements(t.Address, t.Words)}
		start = l.earliest(&one)
		for move := l.clash(&one, start); move > 0; move = l.clash(&one, start) {
			start += move
		}
		l.commit(&one, start)
	}
}

// earliest returns the first event at which a unit extends the timelines of its
// tiles.
func (l *lister) earliest(u *unit) int32 {
	e := l.sendFree[u.source]
	mux := l.routes.from(u.source)
	for _, r := range l.p.Receivers[u.first : u.first+u.count] {
		e = max(e, l.recvFree[r.Tile]-int32(mux[r.Tile]))
	}
	return e
}

// clash says how many events a unit must move before it is worth another try,
// or 0 if it may start at this event. The unit begins after the timelines of its
// tiles, so what is left to check are the events of controls and begins, and the
// SRAM elements.
func (l *lister) clash(u *unit, start int32) int32 {
	s := u.source
	mux := l.routes.from(s)
	if pause := start - l.sendFree[s]; pause > 0 && pause < sendGap && l.sendFree[s] > firstSend {
		return sendGap - pause
	}
	if h := &l.hazards[s]; h.elements&u.elements != 0 {
		if end := h.receives.blocks(start, max(start+u.words, senderTail), h.elements&u.elements); end > 0 {
			return end - start
		}
	}
	at, source := start, uint32(0)
	for k := u.from; k < u.to; k++ {
		t := &l.p.Transfers[l.order[k]]
		if t.Address != source && l.controls[s].either(at) {
			return 1
		}
		at, source = at+t.Words, t.Address+uint32(t.Words)*4
	}
	for j, r := range l.p.Receivers[u.first : u.first+u.count] {
		x := start + int32(mux[r.Tile])
		begins := l.begins[r.Tile]
		end := x + listen(s, r.Tile, int32(mux[r.Tile]), u.words)
		if begins.either(x-1) || begins.either(end-1) {
			return 1
		}
		pointer := x + l.routes.lag[r.Tile]
		next, touched := uint32(0), uint32(0)
		for k := u.from; k < u.to; k++ {
			t := &l.p.Transfers[l.order[k]]
			a := l.p.Receivers[t.First+int32(j)].Address
			if a != next && begins.either(pointer-1) {
				return 1
			}
			touched |= elements(a, t.Words)
			pointer, next = pointer+t.Words, a+uint32(t.Words)*4
		}
		if h := &l.hazards[r.Tile]; h.elements&touched != 0 {
			if end := h.sends.blocks(pointer-u.words, pointer+receiverTail, h.elements&touched); end > 0 {
				return end - (pointer - u.words)
			}
		}
	}
	return 0
}

// commit appends a unit to the timelines.
func (l *lister) commit(u *unit, start int32) {
	s := u.source
	mux := l.routes.from(s)
	at, source := start, uint32(0)
	for k := u.from; k < u.to; k++ {
		t := &l.p.Transfers[l.order[k]]
		l.starts[l.order[k]] = at
		if t.Address != source {
			l.begins[s].set(at)
		}
		at, source = at+t.Words, t.Address+uint32(t.Words)*4
	}
	free := at
	l.horizon[s] = max(l.horizon[s], at, senderTail)
	if h := &l.hazards[s]; h.elements&u.elements != 0 {
		h.sends.add(start, max(at, senderTail), h.elements&u.elements)
	}
	for j, r := range l.p.Receivers[u.first : u.first+u.count] {
		x := start + int32(mux[r.Tile])
		heard := listen(s, r.Tile, int32(mux[r.Tile]), u.words)
		controls := &l.controls[r.Tile]
		controls.set(x)
		controls.set(x + heard)
		l.recvFree[r.Tile] = x + heard
		l.recvLeft[r.Tile] -= u.words
		l.latest = max(l.latest, l.recvFree[r.Tile]+l.recvLeft[r.Tile])
		free = max(free, start+heard)
		pointer := x + l.routes.lag[r.Tile]
		next, touched := uint32(0), uint32(0)
		for k := u.from; k < u.to; k++ {
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
			h.receives.add(pointer-u.words, pointer+receiverTail, h.elements&touched)
		}
	}
	l.sendFree[s] = free
	l.sendLeft[s] -= u.words
	l.latest = max(l.latest, free+l.sendLeft[s])
}

func (l *lister) schedule() *Schedule {
	s := &Schedule{Starts: l.starts, TileHorizon: l.horizon}
	for _, h := range l.horizon {
		s.Horizon = max(s.Horizon, h)
	}
	return s
}

// runGlobal places the unit next whose receivers hear it first.
func (l *lister) runGlobal() {
	var h senderHeap
	eval := func(i int32) (int32, int32) {
		u := &l.units[i]
		e := l.earliest(u)
		mux := l.routes.from(u.source)
		sum := int32(0)
		hot := int32(0)
		for _, r := range l.p.Receivers[u.first : u.first+u.count] {
			sum += int32(mux[r.Tile])
			hot = max(hot, l.weight(l.recvFree[r.Tile]+l.recvLeft[r.Tile]))
		}
		return e + sum/u.count - int32(wHot)*hot/1024, -hot
	}
	for i := range l.units {
		k, hot := eval(int32(i))
		h.push(senderKey{k, hot, int32(i), 0})
	}
	evals := 0
	for len(h) > 0 {
		k := h.pop()
		now, hot := eval(k.tile)
		evals++
		if now > k.time {
			k.time = now
			k.left = hot
			h.push(k)
			continue
		}
		u := l.units[k.tile]
		l.place(u, l.earliest(&u))
	}
	fmt.Println("evals", evals, len(l.units))
}

var wHot = env("HOT", 0)

func tri(g int32) int64 {
	c := int32(wCap)
	if g <= c { return int64(g) }
	return int64(max(0, 2*c-g))
}
