package exchange

// soonest is the policy for phases with multicasts: it places the unit whose
// receivers would, on average, hear it first. Units that suit the receivers that
// have just finished together come next, so crossing families of multicasts do
// not cut each other to pieces. Units of urgent tiles count as a little sooner.
type soonest struct {
	*lister
	*urgency
	units []unit
	heard []int32 // average mux offset of a unit's receivers
	now   int32   // latest key so far
	heap  senderHeap
}

const (
	soonestBonus = 50  // events that the most urgent unit counts as sooner
	rekeyEvery   = 128 // events after which all keys are computed again
)

func newSoonest(p *sorted, units []unit) *soonest {
	l := newLister(p, units)
	g := &soonest{lister: l, urgency: newUrgency(l), units: units, heard: make([]int32, len(units))}
	for i := range units {
		u := &units[i]
		mux := g.routes.from(u.source)
		sum := int32(0)
		for _, r := range g.receivers(u) {
			sum += int32(mux[r.Tile])
		}
		g.heard[i] = sum / u.count
	}
	return g
}

// key orders a unit by when it would be heard.
func (g *soonest) key(i int32) (k senderKey, start int32) {
	u := &g.units[i]
	start = g.earliest(u)
	finish := g.sendFree[u.source] + g.sendLeft[u.source]
	for _, r := range g.receivers(u) {
		finish = max(finish, max(g.recvFree[r.Tile], g.now)+g.recvLeft[r.Tile])
	}
	return senderKey{start + g.heard[i] - soonestBonus*g.of(finish)/urgencyTop, -u.words, i}, start
}

func (g *soonest) run() {
	for i := range g.units {
		k, _ := g.key(int32(i))
		g.heap.push(k)
	}
	for rekey := int32(rekeyEvery); len(g.heap) > 0; {
		k := g.heap.pop()
		if g.now = max(g.now, k.time); g.now > rekey {
			rekey = g.now + rekeyEvery
			g.rekey(k)
			continue
		}
		fresh, start := g.key(k.tile)
		if fresh.time > k.time { // somebody was faster
			g.heap.push(fresh)
			continue
		}
		g.place(&g.units[k.tile], start)
	}
}

// rekey computes all keys again, since units may have become more urgent.
func (g *soonest) rekey(k senderKey) {
	g.update(g.lister)
	old := append(g.heap, k)
	g.heap = make(senderHeap, 0, len(old))
	for _, k := range old {
		fresh, _ := g.key(k.tile)
		g.heap.push(fresh)
	}
}
