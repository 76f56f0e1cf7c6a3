package exchange

// eventSet is a set of events of one tile.
type eventSet []uint64

// either reports whether the set has event e or e+1. Negative events are never
// in a set.
func (s eventSet) either(e int32) bool {
	i, shift := int(e>>6), uint(e&63)
	if uint(i) >= uint(len(s)) || shift == 63 {
		return s.has(e) || s.has(e+1)
	}
	return s[i]>>shift&3 != 0
}

func (s eventSet) has(e int32) bool {
	i := int(e >> 6)
	return uint(i) < uint(len(s)) && s[i]>>(e&63)&1 != 0
}

// clear returns a bit for each of the 64 events from e on: set where the set has
// neither that event nor the next.
func (s eventSet) clear(e int32) uint64 {
	a, b := s.word(e), s.word(e+1)
	return ^(a | b)
}

// word returns the bits of the 64 events from e on.
func (s eventSet) word(e int32) uint64 {
	i, shift := int(e>>6), uint(e&63)
	if i+1 < len(s) {
		return s[i]>>shift | s[i+1]<<(64-shift)
	}
	if i < len(s) {
		return s[i] >> shift
	}
	return 0
}

func (s *eventSet) set(e int32) {
	for int(e>>6) >= len(*s) {
		*s = append(*s, make([]uint64, max(8, len(*s)))...)
	}
	(*s)[e>>6] |= 1 << (e & 63)
}

// hazard keeps a tile's sends apart from its receives in SRAM elements that
// both use: a send reads and a receive writes, and an element serves one of
// them at a time (observed on a C600 as conflict exceptions).
type hazard struct {
	elements        uint32 // elements that some transfer reads and another writes
	sends, receives accesses
}

func newHazards(p *Problem) []hazard {
	h := make([]hazard, p.Tiles)
	written := make([]uint32, p.Tiles)
	for t := range p.Transfers {
		x := &p.Transfers[t]
		h[x.Source].elements |= p.reads(int32(t))
		for _, r := range p.receivers(int32(t)) {
			written[r.Tile] |= elements(r.Address, x.Words)
		}
	}
	for t := range h {
		h[t].elements &= written[t]
	}
	return h
}

// access is a span of events during which elements are in use.
type access struct {
	start, end int32
	elements   uint32
}

// accesses are in time order.
type accesses []access

func (w *accesses) add(start, end int32, elements uint32) {
	*w = append(*w, access{start, end, elements})
}

// blocks returns the end of the first span that uses one of the elements
// during [start, end), or 0. It looks at spans from the latest back to start,
// so it is quick near the end of the timelines, where the scheduler works.
func (w accesses) blocks(start, end int32, elements uint32) int32 {
	blocked := int32(0)
	for i := len(w) - 1; i >= 0 && w[i].end > start; i-- {
		if w[i].start < end && w[i].elements&elements != 0 {
			blocked = w[i].end
		}
	}
	return blocked
}

// senderKey orders senders, or units, in a heap: by time, then by most words
// (negated), then by number.
type senderKey struct {
	time, words, tile int32
}

func (a senderKey) before(b senderKey) bool {
	if a.time != b.time {
		return a.time < b.time
	}
	if a.words != b.words {
		return a.words < b.words
	}
	return a.tile < b.tile
}

// senderHeap is a binary min-heap.
type senderHeap []senderKey

func (h *senderHeap) push(k senderKey) {
	*h = append(*h, k)
	a := *h
	i := len(a) - 1
	for i > 0 && k.before(a[(i-1)/2]) {
		a[i] = a[(i-1)/2]
		i = (i - 1) / 2
	}
	a[i] = k
}

func (h *senderHeap) pop() senderKey {
	a := *h
	top, k := a[0], a[len(a)-1]
	a = a[:len(a)-1]
	*h = a
	for i := 0; len(a) > 0; {
		child := 2*i + 1
		if child >= len(a) {
			a[i] = k
			break
		}
		if child+1 < len(a) && a[child+1].before(a[child]) {
			child++
		}
		if !a[child].before(k) {
			a[i] = k
			break
		}
		a[i] = a[child]
		i = child
	}
	return top
}
