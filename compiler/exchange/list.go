package exchange

import "slices"

// lister builds a schedule unit by unit. Every tile has two timelines that only
// grow at the end: what it sends, and what its mux listens to. Payload windows
// follow the mux at a fixed distance, so they need no timeline of their own.
// Policies decide which unit comes next; the lister puts it at the earliest
// legal event after the timelines of its tiles.
type lister struct {
	p      *sorted
	routes *routes
	starts []int32
	wide   []bool // by transfer; nil when no unit is wide

	sendFree, recvFree []int32 // by tile: where the timelines end
	sendLeft, recvLeft []int32 // by tile: events not placed yet
	format             []int8  // by tile: of the last receive; see the constants
	horizon            []int32

	controls []eventSet // by tile: events at which a receive control acts
	lone     []eventSet // those of 64-bit receives, which must be alone
	begins   []eventSet // by tile: first events of sends
	hazards  []hazard

	acts []int32 // scratch: controls of one receiver
}

// What a tile received last. A 64-bit receive is 1 or 2, its route direction,
// plus pairIssuer when the tile set the mux.
const (
	noneYet    = -1
	ordinary   = 0
	pairIssuer = 4
)

func newLister(p *sorted, units []unit) *lister {
	l := &lister{
		p: p, routes: loadRoutes(),
		starts:   make([]int32, len(p.Transfers)),
		sendFree: make([]int32, p.Tiles), recvFree: make([]int32, p.Tiles),
		sendLeft: make([]int32, p.Tiles), recvLeft: make([]int32, p.Tiles),
		format: make([]int8, p.Tiles), horizon: make([]int32, p.Tiles),
		controls: make([]eventSet, p.Tiles), lone: make([]eventSet, p.Tiles), begins: make([]eventSet, p.Tiles),
		hazards: newHazards(p.Problem),
	}
	for i := range units {
		u := &units[i]
		l.sendLeft[u.source] += u.events()
		if u.wide {
			l.sendLeft[partner(u.source)] += u.events()
			l.wide = make([]bool, len(p.Transfers))
		}
		for _, r := range l.receivers(u) {
			l.recvLeft[r.Tile] += u.events()
		}
	}
	for t := range p.Tiles {
		l.recvFree[t] = 1 // no control can act at event 0
		l.sendFree[t] = firstSend
		l.format[t] = noneYet
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
		if tries == retries && u.to > u.from+1 && !u.wide {
			break
		}
	}
	for k := u.from; k < u.to; k++ {
		t := &l.p.Transfers[k]
		one := unit{source: u.source, from: k, to: k + 1, words: t.Words, first: t.First, count: t.Count, elements: l.p.reads(k)}
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
	if u.wide {
		return l.earliestWide(u, max(e, l.sendFree[partner(u.source)]))
	}
	for _, r := range l.receivers(u) {
		free := l.recvFree[r.Tile]
		if l.format[r.Tile] > ordinary {
			free++ // the last 64-bit item is written an event later
		}
		e = max(e, free-int32(mux[r.Tile]))
	}
	return e
}

// earliestWide is earliest for 64-bit items. Their format must not come on
// before the last ordinary word is written, which is two events before their
// own first; a format that changes from one route direction to the other needs
// an event of its own.
func (l *lister) earliestWide(u *unit, e int32) int32 {
	for _, r := range l.receivers(u) {
		free := l.recvFree[r.Tile]
		if f := l.format[r.Tile]; f != noneYet && f&3 != int8(direction(u.source, r.Tile)) {
			free++
		}
		e = max(e, free-l.routes.hear(u.source, r.Tile, true))
	}
	return e
}

// clash says how many events a unit must move before it is worth another try,
// or 0 if it may start at this event. The unit begins after the timelines of its
// tiles, so what is left to check are the events of controls and begins, and the
// SRAM elements.
func (l *lister) clash(u *unit, start int32) int32 {
	s := u.source
	if pause := start - l.sendFree[s]; pause > 0 && pause < sendGap && l.sendFree[s] > firstSend {
		return sendGap - pause
	}
	events := u.events()
	if h := &l.hazards[s]; h.elements&u.elements != 0 {
		if end := h.receives.blocks(start, max(start+events, senderTail), h.elements&u.elements); end > 0 {
			return end - start
		}
	}
	at, source := start, uint32(0)
	for k := u.from; k < u.to; k++ {
		t := &l.p.Transfers[k]
		if l.jumps(t, source) && l.controls[s].either(at) {
			return 1
		}
		at, source = at+u.length(t), t.Address+uint32(t.Words)*4
	}
	if u.half > 0 && l.controls[s].either(start+u.half+sendGap) {
		return 1
	}
	for j, r := range l.receivers(u) {
		x := start + l.routes.hear(s, r.Tile, u.wide)
		if !l.allowed(u, j, x) {
			return 1
		}
		if h := &l.hazards[r.Tile]; h.elements != 0 {
			if touched := h.elements & l.touched(u, j); touched != 0 {
				p := l.writes(u, r.Tile, x)
				if end := h.sends.blocks(p, p+events+receiverTail, touched); end > 0 {
					return end - p
				}
			}
		}
	}
	return 0
}

// jumps reports whether a transfer may begin a send after one that ends at an
// address. In a loop, what follows in one iteration need not in the next.
func (l *lister) jumps(t *Transfer, end uint32) bool { return t.Address != end || l.p.Moves != nil }

// writes returns the event at which a receiver writes the first word of a unit
// that its mux hears from event x on.
func (l *lister) writes(u *unit, dest, x int32) int32 {
	if u.wide {
		return x + l.routes.lag[dest] + pairPointer
	}
	return x + l.routes.lag[dest]
}

// touched returns the SRAM elements that receiver j of a unit writes.
func (l *lister) touched(u *unit, j int) uint32 {
	e := uint32(0)
	for t := u.from; t < u.to; t++ {
		x := &l.p.Transfers[t]
		e |= elements(l.p.Receivers[x.First+int32(j)].Address, x.Words)
	}
	return e
}

// allowed reports whether the controls of receiver j of a unit may act when its
// mux hears it from event x on: never while a local send begins, and never
// together with another control, except an ordinary source with an ordinary
// pointer.
func (l *lister) allowed(u *unit, j int, x int32) bool {
	d := l.p.Receivers[u.first+int32(j)].Tile
	begins, others := l.begins[d], l.lone[d]
	if u.wide {
		others = l.controls[d]
	}
	for _, a := range l.controlsOf(u, j, x, false) {
		if begins.either(a-1) || others.has(a) {
			return false
		}
	}
	return true
}

// controlsOf lists the events at which controls of receiver j of a unit act. Of
// 64-bit receives that continue one another, it leaves out those that replace a
// control of the earlier one, unless all are asked for.
func (l *lister) controlsOf(u *unit, j int, x int32, all bool) []int32 {
	d := l.p.Receivers[u.first+int32(j)].Tile
	events := u.events()
	a := l.acts[:0]
	switch {
	case !u.wide:
		a = append(a, x, x+events)
		if u.half > 0 {
			a = append(a, x+u.half, x+u.half+sendGap)
		}
	default:
		f := l.format[d]
		continues := !all && x == l.recvFree[d] && f > ordinary && f&3 == int8(direction(u.source, d))
		if l.routes.issues(u.source, d) {
			if !continues || f&pairIssuer == 0 {
				a = append(a, x)
			}
			a = append(a, x+events)
		}
		on := x + l.routes.lag[d] + pairFormat
		if !continues {
			a = append(a, on)
		}
		a = append(a, on+events)
	}
	at, next := l.writes(u, d, x), uint32(0)
	for k := u.from; k < u.to; k++ {
		t := &l.p.Transfers[k]
		address := l.p.Receivers[t.First+int32(j)].Address
		if address != next {
			a = append(a, at)
		}
		at, next = at+u.length(t), address+uint32(t.Words)*4
	}
	l.acts = a
	return a
}

// commit appends a unit to the timelines.
func (l *lister) commit(u *unit, start int32) {
	s := u.source
	at, source := start, uint32(0)
	for i := u.from; i < u.to; i++ {
		t := &l.p.Transfers[i]
		l.starts[i] = at
		if u.wide {
			l.wide[i] = true
		}
		if l.jumps(t, source) {
			l.begins[s].set(at)
		}
		at, source = at+u.length(t), t.Address+uint32(t.Words)*4
	}
	if u.half > 0 {
		l.begins[s].set(start + u.half + sendGap)
	}
	events := u.events()
	end := start + events
	l.sendFree[s], l.sendLeft[s] = end, l.sendLeft[s]-events
	l.horizon[s] = max(l.horizon[s], end, senderTail)
	if u.wide {
		lane := partner(s)
		l.sendFree[lane], l.sendLeft[lane] = max(end, senderTail), l.sendLeft[lane]-events
	}
	if h := &l.hazards[s]; h.elements&u.elements != 0 {
		h.sends.add(start, max(end, senderTail), h.elements&u.elements)
	}
	for j, r := range l.receivers(u) {
		d := r.Tile
		x := start + l.routes.hear(s, d, u.wide)
		acts := l.controlsOf(u, j, x, true)
		for _, a := range acts {
			l.controls[d].set(a)
		}
		l.format[d] = ordinary
		if u.wide {
			for _, a := range acts {
				l.lone[d].set(a)
			}
			l.format[d] = int8(direction(s, d))
			if l.routes.issues(s, d) {
				l.format[d] |= pairIssuer
			}
		}
		l.recvFree[d], l.recvLeft[d] = x+events, l.recvLeft[d]-events
		p := l.writes(u, d, x)
		l.horizon[d] = max(l.horizon[d], p+events+receiverTail)
		if h := &l.hazards[d]; h.elements != 0 {
			if touched := h.elements & l.touched(u, j); touched != 0 {
				h.receives.add(p, p+events+receiverTail, touched)
			}
		}
	}
}

func (l *lister) schedule() *Schedule {
	s := &Schedule{Starts: make([]int32, len(l.starts)), TileHorizon: l.horizon, Horizon: slices.Max(l.horizon)}
	for i, t := range l.p.order {
		s.Starts[t] = l.starts[i]
	}
	if l.wide != nil {
		s.Wide = make([]bool, len(l.wide))
		for i, t := range l.p.order {
			s.Wide[t] = l.wide[i]
		}
	}
	return s
}
