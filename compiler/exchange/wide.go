package exchange

// shortestWide is how many words a unit needs before it is worth the controls
// and the gap of a 64-bit receive.
const shortestWide = 32

// widen returns the units with those marked wide that must, or may, be sent as
// 64-bit items: those whose width is given, and if free the others that fit. A
// pair of tiles then receives two words per event through the mux of one of them,
// while the sender borrows its partner's transmit lane. It fails if a unit that
// must be wide does not fit.
func widen(p *sorted, units []unit, free bool) (widened []unit, any bool, err error) {
	w := &widener{p: p, routes: loadRoutes(), heard: make([]int32, p.Tiles)}
	widened = append(widened, units...)
	for i := range widened {
		u := &widened[i]
		switch u.width {
		case 0:
			u.wide = free && u.words >= shortestWide && w.fits(u, int32(i)+1)
		case 64:
			if u.wide = w.fits(u, int32(i)+1); !u.wide {
				return nil, false, &ProblemError{p.order[u.from], -1, "cannot be sent as 64-bit items: that takes whole pairs of receivers, an even number of words, addresses that are multiples of 8, and a sender with a partner"}
			}
		}
		any = any || u.wide
	}
	return widened, any, nil
}

type widener struct {
	p      *sorted
	routes *routes
	heard  []int32 // by tile: the last unit (counted from 1) that it receives
}

func (w *widener) fits(u *unit, number int32) bool {
	if u.count&1 != 0 || u.half > 0 || int(partner(u.source)) >= w.p.Tiles {
		return false
	}
	for t := u.from; t < u.to; t++ {
		x := &w.p.Transfers[t]
		if x.Words&1 != 0 {
			return false
		}
		for i := range len(w.p.Moves) + 1 {
			if w.p.sourceAddress(i, t)&7 != 0 {
				return false
			}
		}
		for _, r := range w.p.receivers(t) {
			if r.Address&7 != 0 {
				return false
			}
		}
	}
	receivers := w.p.Receivers[u.first : u.first+u.count]
	for _, r := range receivers {
		w.heard[r.Tile] = number
	}
	for j, r := range receivers {
		if int(partner(r.Tile)) >= w.p.Tiles || w.heard[partner(r.Tile)] != number || !w.apart(u, j) {
			return false
		}
	}
	return true
}

// apart reports whether no two controls of receiver j of a 64-bit unit would act
// at one event, and none as the unit begins, wherever it is placed.
func (w *widener) apart(u *unit, j int) bool {
	d := w.p.Receivers[u.first+int32(j)].Tile
	n := u.words / 2
	on := w.routes.lag[d] + pairFormat // all events count from the mux
	neutral := int32(-1)
	if w.routes.issues(u.source, d) {
		neutral = n
	}
	if neutral == on || d == u.source && neutral >= 0 && within(neutral+w.routes.hear(u.source, d, true), 0, beginEvents) {
		return false
	}
	at, next := w.routes.lag[d]+pairPointer, uint32(0)
	for t := u.from; t < u.to; t++ {
		x := &w.p.Transfers[t]
		address := w.p.Receivers[x.First+int32(j)].Address
		if address != next && (at == neutral || at == on+n) {
			return false
		}
		at, next = at+x.Words/2, address+uint32(x.Words)*4
	}
	return true
}

func within(x, from, to int32) bool { return from <= x && x < to }
