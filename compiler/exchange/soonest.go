package exchange

// soonest is the policy for phases with multicasts: it places the unit whose
// receivers would, on average, hear it first. Units that suit the receivers that
// have just finished together come next, so crossing families of multicasts do
// not cut each other to pieces.
func (l *lister) soonest(units []unit) {
	heard := make([]int32, len(units)) // average mux offset of the receivers
	var h senderHeap
	for i := range units {
		u := &units[i]
		sum := int32(0)
		for _, r := range l.receivers(u) {
			sum += int32(l.routes.from(u.source)[r.Tile])
		}
		heard[i] = sum / u.count
		h.push(senderKey{l.earliest(u) + heard[i], -u.words, int32(i)})
	}
	for len(h) > 0 {
		k := h.pop()
		u := &units[k.tile]
		start := l.earliest(u)
		if start+heard[k.tile] > k.time { // somebody was faster
			k.time = start + heard[k.tile]
			h.push(k)
			continue
		}
		l.place(u, start)
	}
}
