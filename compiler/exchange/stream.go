package exchange

import "slices"

// A unit is a run of transfers of one source that go to the same receivers and
// are placed without a pause. Transfers that continue each other's source bytes
// leave as one long send, and receivers keep their mux where it is.
type unit struct {
	source   int32
	from, to int32  // transfers of the sorted problem
	words    int32  // of all of them
	half     int32  // words before a pause; see Problem.halved
	first    int32  // receivers of one of them, for their tiles:
	count    int32  // Problem.Receivers[first : first+count]
	elements uint32 // SRAM elements of all source bytes
	width    uint8  // that Problem.Widths asks for
	wide     bool   // sent as 64-bit items
	last     bool   // of its source and receivers: the next unit goes elsewhere
}

// events is how long a unit takes.
func (u *unit) events() int32 {
	switch {
	case u.wide:
		return u.words / 2
	case u.half > 0:
		return u.words + sendGap
	}
	return u.words
}

// length is how long one of its transfers takes, without a pause.
func (u *unit) length(t *Transfer) int32 {
	if u.wide {
		return t.Words / 2
	}
	return t.Words
}

// sorted is a problem whose transfers are sorted by source, receiver list and
// address, so that those that may share a unit are neighbours, in memory too. The
// list of receivers is compared as written: lists that name the same tiles in
// another order never share units, which costs quality but not correctness.
type sorted struct {
	*Problem
	order []int32 // the transfers' numbers in the original problem
	same  []bool  // source and receivers are those of the transfer before
}

func sortStreams(p *Problem) *sorted {
	n := len(p.Transfers)
	keys := make([]sortKey, n)
	sets := newTileSets(p)
	for t := range p.Transfers {
		x := &p.Transfers[t]
		keys[t] = sortKey{uint64(x.Source)<<52 | uint64(sets.id(int32(t)))<<20 | uint64(x.Address), int32(t)}
	}
	keys = sortByKey(keys)
	q := &sorted{
		Problem: &Problem{Tiles: p.Tiles, Transfers: make([]Transfer, n), Receivers: make([]Receiver, 0, len(p.Receivers))},
		order:   make([]int32, n),
		same:    make([]bool, n),
	}
	for i, k := range keys {
		q.order[i] = k.item
		q.same[i] = i > 0 && k.key>>20 == keys[i-1].key>>20
		x := p.Transfers[k.item]
		x.First = int32(len(q.Receivers))
		q.Transfers[i] = x
		q.Receivers = append(q.Receivers, p.receivers(k.item)...)
	}
	q.Widths = permute(p.Widths, q.order)
	for _, addresses := range p.Moves {
		q.Moves = append(q.Moves, permute(addresses, q.order))
	}
	return q
}

func permute[T any](list []T, order []int32) []T {
	if list == nil {
		return nil
	}
	out := make([]T, len(order))
	for i, k := range order {
		out[i] = list[k]
	}
	return out
}

// cutUnits cuts the streams into units of about so many words, all of a stream
// alike, unless one transfer has more. A tile that hears itself gets single transfers, whose
// elements Check has separated, and so does one that is told to send 64-bit items.
func cutUnits(q *sorted, words int32) []unit {
	var units []unit
	for from := 0; from < len(q.order); {
		to, total := from, int32(0)
		for ; to < len(q.order) && (to == from || q.same[to]); to++ {
			total += q.Transfers[to].Words
		}
		parts := max(1, (total+words/2)/words)
		units = cutStream(q, units, int32(from), int32(to), (total+parts-1)/parts)
		units[len(units)-1].last = true
		from = to
	}
	return units
}

// cutStream appends the units of one stream.
func cutStream(q *sorted, units []unit, from, to int32, words int32) []unit {
	loop := hearsItself(q.Transfers[from].Source, q.receivers(from))
	for t := from; t < to; t++ {
		x := &q.Transfers[t]
		width := q.width(t)
		last := len(units) - 1
		if t == from || loop || width == 64 || units[last].width != width || units[last].words >= words || units[last].words+x.Words > words+words/4 {
			units = append(units, unit{source: x.Source, from: t, first: x.First, count: x.Count, width: width})
			last++
		}
		u := &units[last]
		u.to = t + 1
		u.words += x.Words
		u.elements |= q.reads(t)
		if loop {
			u.half = q.halved(t)
		}
	}
	return units
}

// tileSets numbers the distinct receiver lists of a problem: a single tile is
// its own number, longer lists follow in order of appearance.
type tileSets struct {
	p     *Problem
	table []int32 // open addressing: 1 + index into lists
	lists []int32 // a transfer that has the list
}

func newTileSets(p *Problem) *tileSets {
	multi := 0
	for t := range p.Transfers {
		if p.Transfers[t].Count > 1 {
			multi++
		}
	}
	size := 16
	for size < 2*multi {
		size *= 2
	}
	return &tileSets{p: p, table: make([]int32, size)}
}

func (s *tileSets) id(t int32) uint32 {
	rs := s.p.receivers(t)
	if len(rs) == 1 {
		return uint32(rs[0].Tile)
	}
	h := uint64(len(rs))
	for _, r := range rs {
		h = (h ^ uint64(r.Tile)) * 0x9E3779B97F4A7C15
		h ^= h >> 29
	}
	mask := uint64(len(s.table) - 1)
	for i := h & mask; ; i = (i + 1) & mask {
		at := s.table[i]
		if at == 0 {
			s.lists = append(s.lists, t)
			s.table[i] = int32(len(s.lists))
			return uint32(s.p.Tiles + len(s.lists) - 1)
		}
		if slices.EqualFunc(rs, s.p.receivers(s.lists[at-1]), func(a, b Receiver) bool { return a.Tile == b.Tile }) {
			return uint32(s.p.Tiles) + uint32(at-1)
		}
	}
}

type sortKey struct {
	key  uint64
	item int32
}

// sortByKey sorts by key, keeping the order of equal keys: a least significant
// digit radix sort that skips digits in which no two keys differ.
func sortByKey(a []sortKey) []sortKey {
	const bits = 11
	b := make([]sortKey, len(a))
	var differ uint64
	for i := range a {
		differ |= a[i].key ^ a[0].key
	}
	var count [1 << bits]int32
	for shift := 0; shift < 64; shift += bits {
		if differ>>shift&(1<<bits-1) == 0 {
			continue
		}
		clear(count[:])
		for i := range a {
			count[a[i].key>>shift&(1<<bits-1)]++
		}
		sum := int32(0)
		for d, c := range count {
			count[d] = sum
			sum += c
		}
		for i := range a {
			d := a[i].key >> shift & (1<<bits - 1)
			b[count[d]] = a[i]
			count[d]++
		}
		a, b = b, a
	}
	return a
}
