// Package place gives every buffer of a tile an address.
//
// A tile is a two-dimensional packing problem: a request is a rectangle, wide as
// its lifetime in steps and high as its bytes, and rectangles must not overlap.
// On top of that come alignment, the two memory regions, the host aperture,
// which only transients may use, and pairs that must keep out of each other's
// SRAM elements. Tiles are independent of one another.
//
// A problem is decided in stages, cheapest first:
//
//  1. the live-byte bound: at every step the live bytes of each class must fit
//     the memory that the class may use; if not, the refusal is a proof
//  2. greedy: a few orders of the requests, each with first fit and best fit
//  3. cores: a complete search over the largest requests alone (search.go); if
//     they have no placement, nobody has, and that is a proof too
//  4. repair: each order is run again and again, each time with the request that
//     found no place moved ahead of what blocks it
//  5. the complete search over all requests
//
// Effort is a count of steps, never a time, so the answer depends on the problem
// alone.
//
// The orders and the repair follow the experience of a published compiler for
// the same card (its placement notes, August and September 2026): lifetime order
// places nearly every tile, size and "lives to the end" order most of the rest.
package place

import (
	"cmp"
	"fmt"
	"slices"

	"ipufarm/protocol/machine"
)

// DefaultEffort bounds what is done for one tile after the greedy attempts, in
// steps of a few nanoseconds: about a tenth of a second on one core.
const DefaultEffort = 32 << 20

// repairs is how often the repair reorders each order.
const repairs = 250

// A domain is the set of addresses that a request may start from. The three are
// nested: each contains the one before it.
const (
	inRegion1  = iota // interleaved requests
	inResident        // standard requests: both regions without the host aperture
	inAll             // standard transients: the aperture too
	domains
)

// Solve returns an address for each request of p, in the order of p.Requests.
// The error is a *Refusal if there is no placement or none was found, and
// another error that names the request or range if p is malformed.
func Solve(p *Problem) ([]uint32, error) {
	var s Solver
	if err := s.Reset(p); err != nil {
		return nil, err
	}
	return s.Solve()
}

// A Solver solves one problem after another with the same scratch memory. The
// zero value is ready to use. It must not be used concurrently.
type Solver struct {
	// Effort bounds what is done for a problem after the greedy attempts, in steps;
	// 0 means DefaultEffort.
	Effort int

	p *Problem

	// The requests, one entry each: bytes, alignment, lifetime in steps, the same
	// lifetime as sections lo..hi, domain.
	size, mask  []uint32
	first, last []int32
	lo, hi      []int32
	dom         []uint8

	// Separation partners of request i: sepTo[sepAt[i]:sepAt[i+1]].
	sepAt, sepTo []int32

	// steps holds the distinct first steps in ascending order. A section is the
	// live set at one of them; every live set is part of one.
	steps []int32

	free     [domains][]Range
	capacity [domains]uint32 // bytes of free
	largest  [domains]uint32 // longest range of free

	addr  []uint32
	order []int32
	stack []int32 // placed requests by address, greedy only

	live [domains][]int64 // scratch of the live-byte bound, per section

	furthest  int   // number of requests that the best attempt placed
	stuck     int32 // what found no place in it
	stuckHole uint32

	search search
}

// Reset checks p and makes it the problem that Solve solves. p must not change
// until then.
func (s *Solver) Reset(p *Problem) error {
	if err := validate(p); err != nil {
		return err
	}
	n := len(p.Requests)
	s.p = p
	s.size, s.mask = s.size[:0], s.mask[:0]
	s.first, s.last, s.dom = s.first[:0], s.last[:0], s.dom[:0]
	s.steps = s.steps[:0]
	for i := range p.Requests {
		r := &p.Requests[i]
		s.size = append(s.size, uint32(r.Bytes))
		s.mask = append(s.mask, uint32(r.Align)-1)
		s.first, s.last = append(s.first, r.First), append(s.last, r.Last)
		s.dom = append(s.dom, domainOf(r))
		s.steps = append(s.steps, r.First)
	}
	slices.Sort(s.steps)
	s.steps = slices.Compact(s.steps)
	s.lo, s.hi = s.lo[:0], s.hi[:0]
	for i := range p.Requests {
		lo, _ := slices.BinarySearch(s.steps, s.first[i])
		hi, found := slices.BinarySearch(s.steps, s.last[i])
		if !found {
			hi--
		}
		s.lo, s.hi = append(s.lo, int32(lo)), append(s.hi, int32(hi))
	}
	s.addr = resize(s.addr, n)
	s.loadSeparations()
	s.loadFree()
	s.confine()
	return nil
}

// confine moves standard requests that no free range of region 0 can hold to the
// domain of region 1, where they have to go: the live-byte bound of that region
// then counts them.
func (s *Solver) confine() {
	var longest [domains]uint32
	for d := range s.free {
		for _, r := range s.free[d] {
			if r.Start < machine.Region0End {
				longest[d] = max(longest[d], r.End-r.Start)
			}
		}
	}
	for i, d := range s.dom {
		if s.size[i] > longest[d] {
			s.dom[i] = inRegion1
		}
	}
}

func domainOf(r *Request) uint8 {
	switch {
	case r.Class == Interleaved:
		return inRegion1
	case r.Transient:
		return inAll
	}
	return inResident
}

// loadSeparations turns the pairs into lists of partners.
func (s *Solver) loadSeparations() {
	n := len(s.size)
	s.sepAt = resize(s.sepAt, n+1)
	clear(s.sepAt)
	for _, pair := range s.p.Separate {
		s.sepAt[pair[0]]++
		s.sepAt[pair[1]]++
	}
	at := int32(0)
	for i, count := range s.sepAt {
		s.sepAt[i] = at
		at += count
	}
	s.sepTo = resize(s.sepTo, int(at))
	s.order = append(s.order[:0], s.sepAt...) // next free entry of each list
	for _, pair := range s.p.Separate {
		for k, i := range pair {
			s.sepTo[s.order[i]] = pair[1-k]
			s.order[i]++
		}
	}
}

// loadFree joins adjacent free ranges, cuts them at the region boundary, which
// no request may cross, and takes the aperture from what residents may use.
func (s *Solver) loadFree() {
	for d := range s.free {
		s.free[d] = s.free[d][:0]
	}
	for _, r := range s.p.Free {
		for _, part := range [...]Range{clip(r, 0, machine.Region0End), clip(r, machine.Region1Base, machine.MemoryEnd)} {
			if part.Start >= part.End {
				continue
			}
			if part.Start >= machine.Region1Base {
				s.join(inRegion1, part)
			}
			s.join(inResident, clip(part, 0, machine.ApertureBase))
			s.join(inResident, clip(part, machine.ApertureEnd, machine.MemoryEnd))
			s.join(inAll, part)
		}
	}
	for d := range s.free {
		s.capacity[d], s.largest[d] = 0, 0
		for _, r := range s.free[d] {
			s.capacity[d] += r.End - r.Start
			s.largest[d] = max(s.largest[d], r.End-r.Start)
		}
	}
}

func clip(r Range, lo, hi uint32) Range { return Range{max(r.Start, lo), min(r.End, hi)} }

func (s *Solver) join(d int, r Range) {
	if r.Start >= r.End {
		return
	}
	if k := len(s.free[d]) - 1; k >= 0 && s.free[d][k].End == r.Start && r.Start != machine.Region1Base {
		s.free[d][k].End = r.End
		return
	}
	s.free[d] = append(s.free[d], r)
}

// Solve solves the problem of the last Reset. The returned slice is the caller's.
func (s *Solver) Solve() ([]uint32, error) {
	if err := s.bound(); err != nil {
		return nil, err
	}
	if s.greedy() {
		return slices.Clone(s.addr), nil
	}
	effort := int64(s.Effort)
	if effort == 0 {
		effort = DefaultEffort
	}
	result := s.searchCores(&effort)
	if result == cut && s.repair(&effort) {
		result = found
	}
	if result == cut {
		result = s.searchAll(effort)
	}
	switch result {
	case found:
		return slices.Clone(s.addr), nil
	case exhausted:
		return nil, s.refuse(Fragmentation, s.stuck)
	}
	return nil, s.refuse(Budget, s.stuck)
}

// bound refuses what cannot fit whatever the addresses: too many live bytes in a
// domain and those inside it, or a request longer than any free range.
func (s *Solver) bound() error {
	for d := range s.live {
		s.live[d] = resize(s.live[d], len(s.steps)+1)
		clear(s.live[d])
	}
	for i, size := range s.size {
		for d := int(s.dom[i]); d < domains; d++ {
			s.live[d][s.lo[i]] += int64(size)
			s.live[d][s.hi[i]+1] -= int64(size)
		}
	}
	for d := range s.live {
		worst, sum, at := int64(0), int64(0), 0
		for k := range s.steps {
			sum += s.live[d][k]
			s.live[d][k] = sum
			if sum > worst {
				worst, at = sum, k
			}
		}
		if worst > int64(s.capacity[d]) {
			return s.refuseCapacity(d, at, worst)
		}
	}
	for i, size := range s.size {
		if size > s.longest(i) {
			s.stuckHole = s.longest(i)
			return s.refuse(Fragmentation, int32(i))
		}
	}
	return nil
}

// longest is the longest aligned stretch that request i could have on an empty tile.
func (s *Solver) longest(i int) uint32 {
	best := uint32(0)
	for _, r := range s.free[s.dom[i]] {
		if start := (r.Start + s.mask[i]) &^ s.mask[i]; start < r.End {
			best = max(best, r.End-start)
		}
	}
	return best
}

// less orders requests for one greedy attempt.
type less func(s *Solver, a, b int32) int

// The greedy orders. Ties go to the lower index, so that each is total.
var orders = [...]less{
	// As the program runs; interleaved first, because nothing else can move away
	// for them; then the larger.
	func(s *Solver, a, b int32) int {
		return cmp.Or(cmp.Compare(s.first[a], s.first[b]), cmp.Compare(s.dom[a], s.dom[b]), cmp.Compare(s.size[b], s.size[a]))
	},
	// What lives to the end of the program first, then by size: residents pack
	// tightly and leave one hole.
	func(s *Solver, a, b int32) int {
		return cmp.Or(cmp.Compare(s.hi[b], s.hi[a]), cmp.Compare(s.size[b], s.size[a]))
	},
	// The hardest to put anywhere first.
	func(s *Solver, a, b int32) int {
		return cmp.Or(cmp.Compare(s.mask[b], s.mask[a]), cmp.Compare(s.size[b], s.size[a]), cmp.Compare(s.duration(b), s.duration(a)))
	},
	// The most constrained domain first, then by area in bytes × sections.
	func(s *Solver, a, b int32) int {
		return cmp.Or(cmp.Compare(s.dom[a], s.dom[b]), cmp.Compare(s.area(b), s.area(a)))
	},
}

func (s *Solver) duration(i int32) int32 { return s.hi[i] - s.lo[i] + 1 }
func (s *Solver) area(i int32) int64     { return int64(s.duration(i)) * int64(s.size[i]) }

// greedy tries the orders, each with first fit and best fit. It leaves the
// addresses in s.addr, or the best attempt's stuck request in s.stuck.
func (s *Solver) greedy() bool {
	s.furthest = -1
	for k := range orders {
		s.sort(orders[k])
		for _, best := range [...]bool{false, true} {
			if _, ok := s.try(best); ok {
				return true
			}
		}
	}
	return false
}

// repair runs each order again and again, each time with the request that found
// no place moved ahead of what blocks it.
func (s *Solver) repair(effort *int64) bool {
	n := int64(len(s.size))
	for k := range orders {
		s.sort(orders[k])
		for try := 0; try < repairs && *effort > 0; try++ {
			*effort -= n * n / 4
			k, ok := s.try(try&1 == 1)
			if ok {
				return true
			}
			s.promote(k)
		}
	}
	return false
}

// sort puts all requests into s.order.
func (s *Solver) sort(order less) {
	s.order = s.order[:0]
	for i := range s.size {
		s.order = append(s.order, int32(i))
	}
	slices.SortFunc(s.order, func(a, b int32) int { return cmp.Or(order(s, a, b), cmp.Compare(a, b)) })
}

// try attempts s.order and remembers what stopped the attempt that came furthest.
func (s *Solver) try(best bool) (placed int, ok bool) {
	k, hole := s.attempt(s.order, 0, best)
	if k == len(s.order) {
		return k, true
	}
	if k > s.furthest {
		s.furthest, s.stuck, s.stuckHole = k, s.order[k], hole
	}
	return k, false
}

// promote moves the request at position k of the order ahead of the last
// half of the placed requests that conflict with it, so that a request that
// fails again soon comes first of all that it competes with.
func (s *Solver) promote(k int) {
	i := s.order[k]
	blockers := 0
	for _, j := range s.order[:k] {
		if s.overlap(i, j) {
			blockers++
		}
	}
	to := k
	for skip := (blockers + 1) / 2; to > 0 && skip > 0; {
		to--
		if s.overlap(i, s.order[to]) {
			skip--
		}
	}
	copy(s.order[to+1:k+1], s.order[to:k])
	s.order[to] = i
}

// overlap reports whether two requests are live at a common step.
func (s *Solver) overlap(i, j int32) bool {
	return s.first[i] <= s.last[j] && s.first[j] <= s.last[i]
}

// nowhere is the address of a request that is not placed.
const nowhere = ^uint32(0)

// attempt places the requests in order, the first keep of them where they are, and
// returns how many found a place and the largest hole that the next one saw.
func (s *Solver) attempt(order []int32, keep int, best bool) (placed int, hole uint32) {
	for _, i := range order[keep:] {
		s.addr[i] = nowhere
	}
	s.stack = s.stack[:0]
	for k, i := range order {
		if k >= keep {
			a, hole, ok := s.fit(i, best)
			if !ok {
				return k, hole
			}
			s.addr[i] = a
		}
		at, _ := slices.BinarySearchFunc(s.stack, s.addr[i], func(j int32, a uint32) int { return cmp.Compare(s.addr[j], a) })
		s.stack = slices.Insert(s.stack, at, i)
	}
	return len(order), 0
}

// fit finds an address for request i among the placed ones: the lowest that
// works, or the one in the smallest sufficient hole. On failure it returns the
// size of the largest hole seen.
func (s *Solver) fit(i int32, best bool) (address, hole uint32, ok bool) {
	size, mask, first, last := s.size[i], s.mask[i], s.first[i], s.last[i]
	left := ^uint32(0)
	for _, r := range s.free[s.dom[i]] {
		low := r.Start // end of everything seen so far that conflicts
		for k := 0; ; k++ {
			end, next := r.End, r.End // the hole before the next conflict, and where that ends
			for ; k < len(s.stack); k++ {
				j := s.stack[k]
				if s.first[j] > last || s.last[j] < first {
					continue
				}
				if jEnd := s.addr[j] + s.size[j]; jEnd > low {
					end, next = min(s.addr[j], r.End), jEnd
					break
				}
			}
			if end > low {
				hole = max(hole, end-low)
				if a, fits := s.clear(i, (low+mask)&^mask, end); fits {
					if !best {
						return a, hole, true
					}
					if end-low-size < left {
						address, left, ok = a, end-low-size, true
					}
				}
			}
			if next >= r.End {
				break
			}
			low = next
		}
	}
	return address, hole, ok
}

// clear returns the lowest aligned address from a on at which request i ends by
// end and shares no element with a placed partner.
func (s *Solver) clear(i int32, a, end uint32) (uint32, bool) {
	size, mask := s.size[i], s.mask[i]
	partners := s.sepTo[s.sepAt[i]:s.sepAt[i+1]]
	for k := 0; k < len(partners); k++ {
		if a+size > end {
			return 0, false
		}
		j := partners[k]
		if s.addr[j] == nowhere {
			continue
		}
		start, stop := elementStart(s.addr[j]), elementEnd(s.addr[j]+s.size[j]-1)
		if a < stop && a+size > start {
			a = (stop + mask) &^ mask
			k = -1 // an earlier partner may be in the way of the new address
		}
	}
	return a, a+size <= end
}

// elementStart is the first address of the effective element of an address, and
// elementEnd the first one after it.
func elementStart(a uint32) uint32 {
	if a < machine.Region1Base {
		return a &^ (machine.Element0Size - 1)
	}
	return a &^ (machine.Element1Size - 1)
}

func elementEnd(a uint32) uint32 {
	if a < machine.Region1Base {
		return elementStart(a) + machine.Element0Size
	}
	return elementStart(a) + machine.Element1Size
}

// validate refuses malformed problems.
func validate(p *Problem) error {
	for i := range p.Requests {
		r := &p.Requests[i]
		switch {
		case r.Bytes <= 0:
			return fmt.Errorf("place: request %d (buffer %d): %d bytes; at least 1 is accepted", i, r.ID, r.Bytes)
		case r.Align < 4 || r.Align > machine.Element1Size || r.Align&(r.Align-1) != 0:
			return fmt.Errorf("place: request %d (buffer %d): alignment %d; powers of two from 4 to %d are accepted", i, r.ID, r.Align, machine.Element1Size)
		case r.First > r.Last:
			return fmt.Errorf("place: request %d (buffer %d): live from step %d to %d; the first must not be after the last", i, r.ID, r.First, r.Last)
		case r.Class > Interleaved:
			return fmt.Errorf("place: request %d (buffer %d): class %d; 0 (standard) and 1 (interleaved) are accepted", i, r.ID, r.Class)
		}
	}
	for k, pair := range p.Separate {
		if n := int32(len(p.Requests)); pair[0] < 0 || pair[1] < 0 || pair[0] >= n || pair[1] >= n || pair[0] == pair[1] {
			return fmt.Errorf("place: separation %d: requests %d and %d; two different indexes below %d are accepted", k, pair[0], pair[1], n)
		}
	}
	end := uint32(machine.MemoryBase)
	for k, r := range p.Free {
		if r.Start < end || r.Start >= r.End || r.End > machine.MemoryEnd {
			return fmt.Errorf("place: free range %d: %#x to %#x; ascending, disjoint ranges within %#x to %#x are accepted", k, r.Start, r.End, machine.MemoryBase, machine.MemoryEnd)
		}
		end = r.End
	}
	return nil
}

// resize returns a slice of n elements that reuses the memory of v.
func resize[T any](v []T, n int) []T { return slices.Grow(v[:0], n)[:n] }
