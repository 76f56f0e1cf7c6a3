package place

import (
	"cmp"
	"slices"

	"ipufarm/protocol/machine"
)

// The complete search.
//
// Take any placement, and put the requests back one by one in the order of their
// addresses, each at the lowest address that the ones before it allow: none moves
// up, because what lay below it still ends below it. Repeat until nothing moves.
// So if there is a placement at all there is a left-justified one, in which
//
//	(a) every request starts at the lowest address that the requests below it allow
//	(b) taken in order of address, no request could have started lower
//
// and it is enough to search those: choose the next request, put it at its lowest
// possible address, never below the previous one. Alignment, ranges, the region
// boundary and separation (whole elements instead of bytes) do not disturb the
// argument, since each only says how far up a request has to move.
//
// Three things keep the tree small:
//
//   - dominance: putting j at p(j) is useless if some other request could still go
//     at p(i) < p(j) afterwards; by (b) it would have been placed before j
//   - a bound per section: the bytes still to be placed must fit the free memory
//     above the lowest address that any of them can have
//   - components: requests that are connected neither by a common step nor by a
//     separation are searched independently of one another, at every node
//
// A lowest address p(i) is kept per request, so a step costs time proportional to
// the number of requests that are left, not to those placed.

// outcome is the end of a search.
type outcome uint8

const (
	exhausted outcome = iota // no placement
	found
	cut // effort spent
)

// search is the state of one search; it lives in the Solver for its memory.
type search struct {
	effort int64    // steps left
	low    []uint32 // p(i), lowest possible address of an unplaced request
	rank   []int32  // static preference, smaller first
	open   []bool   // not yet placed
	floor  [domains][]uint32
	left   [domains][]int64
	arena  []int32  // request lists of all nodes on the path
	undo   []uint32 // saved p(i)
}

// searchCores searches for a placement of a core, the largest requests alone. That
// is a relaxation: if they have none, nobody has, and it is found out before small
// requests multiply the ways to fail. If they have one, it may leave room for the
// rest as it is. More and more requests join. Largest means area for one row of
// cores, because residents decide what is left at every step, and bytes for the
// other.
func (s *Solver) searchCores(effort *int64) outcome {
	n := len(s.size)
	ranked := make([]int32, n)
	for _, size := range preferences[:2] {
		for i := range ranked {
			ranked[i] = int32(i)
		}
		slices.SortFunc(ranked, func(a, b int32) int { return cmp.Or(size(s, a, b), cmp.Compare(a, b)) })
		for m := firstCore; m < n; m += m / 2 {
			result := cut
			for k := 0; k < len(preferences) && result == cut; k++ {
				var used int64
				result, used = s.searchOnce(ranked[:m], preferences[k], *effort/coreShare)
				*effort -= used
			}
			if result == exhausted {
				return exhausted
			}
			if result == found && s.complete(ranked[:m]) {
				return found
			}
			if result == cut {
				break // more requests make it no easier
			}
		}
	}
	return cut
}

// searchAll searches for a placement of all requests. A bad first choice is
// hopeless at any effort, so the search is tried with several preferences, which
// make different first choices, and first with a share of the effort.
func (s *Solver) searchAll(effort int64) outcome {
	all := make([]int32, len(s.size))
	for i := range all {
		all[i] = int32(i)
	}
	for share := int64(64); share >= 1; share /= 8 {
		for k := range preferences {
			result, used := s.searchOnce(all, preferences[k], effort/share/int64(len(preferences)-k))
			if result != cut {
				return result
			}
			effort -= used
		}
	}
	return cut
}

const (
	firstCore = 8  // number of the largest requests that are searched first
	coreShare = 32 // each search of a core may take this part of the effort
)

// The preferences among requests that could go next.
var preferences = [...]less{
	func(s *Solver, a, b int32) int { return cmp.Compare(s.area(b), s.area(a)) },
	func(s *Solver, a, b int32) int {
		return cmp.Or(cmp.Compare(s.size[b], s.size[a]), cmp.Compare(s.duration(b), s.duration(a)))
	},
	func(s *Solver, a, b int32) int {
		return cmp.Or(cmp.Compare(s.duration(b), s.duration(a)), cmp.Compare(s.size[b], s.size[a]))
	},
}

// complete places the requests outside the placed core greedily around it.
func (s *Solver) complete(core []int32) bool {
	inCore := s.search.open // of the core: all false after a search that found a placement
	for i := range inCore {
		inCore[i] = false
	}
	for _, i := range core {
		inCore[i] = true
	}
	for _, order := range orders {
		s.order = append(s.order[:0], core...)
		for i := range s.size {
			if !inCore[i] {
				s.order = append(s.order, int32(i))
			}
		}
		slices.SortFunc(s.order[len(core):], func(a, b int32) int { return cmp.Or(order(s, a, b), cmp.Compare(a, b)) })
		for _, best := range [...]bool{false, true} {
			if k, _ := s.attempt(s.order, len(core), best); k == len(s.order) {
				return true
			}
		}
	}
	return false
}

// searchOnce searches for a placement of some requests. It returns the effort used.
func (s *Solver) searchOnce(requests []int32, prefer less, effort int64) (outcome, int64) {
	n := len(s.size)
	q := &s.search
	q.effort = effort
	q.low, q.rank, q.open = resize(q.low, n), resize(q.rank, n), resize(q.open, n)
	clear(q.open)
	q.undo = q.undo[:0]
	for d := range domains {
		q.floor[d], q.left[d] = resize(q.floor[d], len(s.steps)), resize(q.left[d], len(s.steps))
	}
	q.arena = append(q.arena[:0], requests...)
	slices.SortFunc(q.arena, func(a, b int32) int { return cmp.Or(prefer(s, a, b), cmp.Compare(a, b)) })
	for k, i := range q.arena {
		q.rank[i] = int32(k)
		q.open[i] = true
		low, ok := s.raise(i, 0)
		if !ok {
			return exhausted, 0
		}
		q.low[i] = low
	}
	slices.SortFunc(q.arena, func(a, b int32) int { return cmp.Or(cmp.Compare(s.first[a], s.first[b]), cmp.Compare(a, b)) })
	result := s.components(0, len(requests))
	return result, effort - q.effort
}

// raise returns the lowest address from a on that alignment and free ranges
// allow for request i.
func (s *Solver) raise(i int32, a uint32) (uint32, bool) {
	for _, r := range s.free[s.dom[i]] {
		if a >= r.End {
			continue
		}
		if at := (max(a, r.Start) + s.mask[i]) &^ s.mask[i]; at+s.size[i] <= r.End {
			return at, true
		}
	}
	return 0, false
}

// components splits the open requests arena[from:to], which are ordered by first
// step, and places one component after the other. Nothing is undone on success.
func (s *Solver) components(from, to int) outcome {
	q := &s.search
	for start := from; start < to; {
		reach := s.last[q.arena[start]]
		end := start
		for ; end < to && s.first[q.arena[end]] <= reach; end++ {
			i := q.arena[end]
			reach = max(reach, s.last[i])
			for _, j := range s.sepTo[s.sepAt[i]:s.sepAt[i+1]] {
				if q.open[j] {
					reach = max(reach, s.first[j]) // a later partner keeps the component together
				}
			}
		}
		q.effort -= 4 * int64(end-start)
		if result := s.component(start, end); result != found {
			return result
		}
		start = end
	}
	return found
}

// component places the open requests arena[from:to] or leaves them as they were.
func (s *Solver) component(from, to int) outcome {
	q := &s.search
	if from == to {
		return found
	}
	if q.effort <= 0 {
		return cut
	}
	if !s.fits(from, to) {
		return exhausted
	}
	base, saved := len(q.arena), len(q.undo)
	q.arena = append(q.arena, q.arena[from:to]...)
	slices.SortFunc(q.arena[base:], func(a, b int32) int {
		return cmp.Or(cmp.Compare(q.low[a], q.low[b]), cmp.Compare(q.rank[a], q.rank[b]))
	})
	choices := len(q.arena)
	for _, i := range q.arena[from:to] {
		q.undo = append(q.undo, q.low[i])
	}
	result := exhausted
	lowestEnd := ^uint32(0)
	for _, i := range q.arena[from:to] {
		lowestEnd = min(lowestEnd, q.low[i]+s.size[i])
	}
	for c := base; c < choices; c++ {
		j := q.arena[c]
		if q.low[j] >= lowestEnd && s.sepAt[j] == s.sepAt[j+1] {
			continue // dominated: the request with the lowest end fits below j
		}
		q.effort -= 4*int64(to-from) + 16
		rest := len(q.arena)
		for _, i := range q.arena[from:to] {
			if i != j {
				q.arena = append(q.arena, i)
			}
		}
		q.open[j] = false
		s.addr[j] = q.low[j]
		result = exhausted
		if s.push(j, q.arena[rest:]) {
			result = s.components(rest, len(q.arena))
		}
		if result == found {
			break
		}
		q.open[j] = true
		for k, i := range q.arena[from:to] {
			q.low[i] = q.undo[saved+k]
			q.open[i] = true
		}
		q.arena = q.arena[:rest]
		if result == cut || q.effort <= 0 {
			result = cut
			break
		}
	}
	q.arena, q.undo = q.arena[:base], q.undo[:saved]
	return result
}

// push raises the lowest addresses of the rest to what the just placed request j
// leaves. It fails if one has no place any more, or if j was dominated: a request
// that could have started lower is not in j's way.
func (s *Solver) push(j int32, rest []int32) bool {
	q := &s.search
	at, end := s.addr[j], s.addr[j]+s.size[j]
	last := end - 1
	for _, i := range rest {
		low := q.low[i]
		if s.overlap(i, j) && low < end && low+s.size[i] > at {
			low = end
		}
		if s.separate(i, j) && low < elementEnd(last) && low+s.size[i] > elementStart(at) {
			low = elementEnd(last)
		}
		if low == q.low[i] {
			if low < at {
				return false
			}
			continue
		}
		var ok bool
		if q.low[i], ok = s.raise(i, low); !ok {
			return false
		}
	}
	return true
}

// separate reports whether i and j are a separation pair.
func (s *Solver) separate(i, j int32) bool {
	return slices.Contains(s.sepTo[s.sepAt[j]:s.sepAt[j+1]], i)
}

// fits is the bound: in every section and domain, the bytes of the open requests
// arena[from:to] fit the free memory above the lowest address of any of them.
func (s *Solver) fits(from, to int) bool {
	q := &s.search
	lo, hi := int32(len(s.steps)), int32(0)
	for _, i := range q.arena[from:to] {
		lo, hi = min(lo, s.lo[i]), max(hi, s.hi[i])
	}
	for d := range domains {
		for k := lo; k <= hi; k++ {
			q.floor[d][k], q.left[d][k] = ^uint32(0), 0
		}
	}
	for _, i := range q.arena[from:to] {
		size, low := int64(s.size[i]), q.low[i]
		d := s.dom[i]
		if low >= machine.Region1Base {
			d = inRegion1 // no place left in region 0
		}
		floor, left := q.floor[d], q.left[d]
		for k := s.lo[i]; k <= s.hi[i]; k++ {
			left[k] += size
			floor[k] = min(floor[k], low)
		}
		q.effort -= int64(s.hi[i]-s.lo[i])/2 + 2
	}
	q.effort -= 6 * int64(hi-lo+1)
	for k := lo; k <= hi; k++ {
		sum, floor := int64(0), ^uint32(0)
		for d := range domains {
			sum += q.left[d][k]
			floor = min(floor, q.floor[d][k])
			if q.left[d][k] > 0 && sum > s.above(d, floor) {
				return false
			}
		}
	}
	return true
}

// above returns the free bytes of domain d from address a on.
func (s *Solver) above(d int, a uint32) int64 {
	sum := int64(0)
	for _, r := range s.free[d] {
		if a < r.End {
			sum += int64(r.End - max(a, r.Start))
		}
	}
	return sum
}
