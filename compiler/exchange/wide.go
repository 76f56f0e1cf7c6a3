package exchange

// shortestWide is how many words a unit needs before it is worth the controls
// and the gap of a 64-bit receive.
const shortestWide = 32

// widen returns the units with those marked wide that can be sent as 64-bit
// items, and whether there are any. A tile and its partner then receive two
// words per event through one mux, while the sender borrows its partner's
// transmit lane.
func widen(p *Problem, order []int32, units []unit) (widened []unit, any bool) {
	w := &widener{p: p, routes: loadRoutes(), order: order, heard: make([]int32, p.Tiles)}
	widened = append(widened, units...)
	for i := range widened {
		if w.fits(&widened[i], int32(i)+1) {
			widened[i].wide = true
			any = true
		}
	}
	return widened, any
}

type widener struct {
	p      *Problem
	routes *routes
	order  []int32
	heard  []int32 // by tile: the last unit (counted from 1) that it receives
}

func (w *widener) fits(u *unit, number int32) bool {
	if u.words < shortestWide || u.count&1 != 0 || u.half > 0 || int(partner(u.source)) >= w.p.Tiles {
		return false
	}
	for _, t := range w.order[u.from:u.to] {
		x := &w.p.Transfers[t]
		if x.Address&7 != 0 || x.Words&1 != 0 {
			return false
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
	for _, t := range w.order[u.from:u.to] {
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
