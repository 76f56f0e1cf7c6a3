package exchange

import "slices"

// stream is all transfers from one source to one receiver list, in source
// address order: transfers that continue each other's source bytes then leave
// as one long send, and receivers need no new source between them.
type stream struct {
	next, end    int32 // transfers still to place: streams.order[next:end]
	first, count int32 // receivers of one of them, for their tiles
	words        int32 // of all transfers
}

type streams struct {
	order    []int32  // transfers, grouped by stream
	all      []stream // grouped by source
	bySource []int32  // streams of tile t are all[bySource[t]:bySource[t+1]]
}

// groupStreams sorts the transfers by source, receiver list and address. The
// list of receivers is compared as written: lists that name the same tiles in
// another order make another stream, which costs quality but not correctness.
func groupStreams(p *Problem) *streams {
	n := len(p.Transfers)
	keys := make([]sortKey, n)
	sets := newTileSets(p)
	for t := range p.Transfers {
		x := &p.Transfers[t]
		keys[t] = sortKey{uint64(x.Source)<<52 | uint64(sets.id(int32(t)))<<20 | uint64(x.Address), int32(t)}
	}
	keys = sortByKey(keys)
	g := &streams{order: make([]int32, n), bySource: make([]int32, p.Tiles+1)}
	for i, k := range keys {
		g.order[i] = k.item
		x := &p.Transfers[k.item]
		if i == 0 || k.key>>20 != keys[i-1].key>>20 {
			g.all = append(g.all, stream{next: int32(i), first: x.First, count: x.Count})
			g.bySource[x.Source+1]++
		}
		s := &g.all[len(g.all)-1]
		s.end = int32(i + 1)
		s.words += x.Words
	}
	for t := range p.Tiles {
		g.bySource[t+1] += g.bySource[t]
	}
	return g
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
