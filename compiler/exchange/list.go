package exchange

// lister builds a schedule unit by unit. Every tile has two timelines that only
// grow at the end: what it sends, and what its mux listens to. Payload windows
// follow the mux at a fixed distance, so they need no timeline of their own.
// Policies decide which unit comes next; the lister puts it at the earliest
// legal event after the timelines of its tiles.
type lister struct {
	p      *Problem
	routes *routes
	order  []int32 // transfers, as units refer to them
	starts []int32

	sendFree, recvFree []int32 // by tile: where the timelines end
	sendLeft, recvLeft []int32 // by tile: words not placed yet
	horizon            []int32

	controls []eventSet // by tile: events at which a receive control takes effect
	begins   []eventSet // by tile: first events of sends
	hazards  []hazard
}

func newLister(p *Problem, order []int32) *lister {
	l := &lister{
		p: p, routes: loadRoutes(), order: order,
		starts:   make([]int32, len(p.Transfers)),
		sendFree: make([]int32, p.Tiles), recvFree: make([]int32, p.Tiles),
		horizon:  make([]int32, p.Tiles),
		controls: make([]eventSet, p.Tiles), begins: make([]eventSet, p.Tiles),
		hazards: newHazards(p),
	}
	l.sendLeft, l.recvLeft = p.work()
	for t := range p.Tiles {
		l.recvFree[t] = 1 // no control can act at event 0
		l.sendFree[t] = firstSend
	}
	return l
}

func (l *lister) receivers(u *unit) []Receiver { return l.p.Receivers[u.first : u.first+u.count] }

// retries is how many start events a unit is tried at before it is broken up.
const retries = 24

// place appends a unit to the timelines as soon as legal, transfer by transfer
// where the controls of all do not fit.
func (l *lister) place(u *unit, start int32) {
	for tries := 0; ; tries++ {
		move := l.clash(u, start)
		if move == 0 {
			l.commit(u, start)
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
	for _, r := range l.receivers(u) {
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
	for j, r := range l.receivers(u) {
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
	for j, r := range l.receivers(u) {
		x := start + int32(mux[r.Tile])
		heard := listen(s, r.Tile, int32(mux[r.Tile]), u.words)
		controls := &l.controls[r.Tile]
		controls.set(x)
		controls.set(x + heard)
		l.recvFree[r.Tile] = x + heard
		l.recvLeft[r.Tile] -= u.words
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
}

func (l *lister) schedule() *Schedule {
	s := &Schedule{Starts: l.starts, TileHorizon: l.horizon}
	for _, h := range l.horizon {
		s.Horizon = max(s.Horizon, h)
	}
	return s
}
