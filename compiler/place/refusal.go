package place

import (
	"fmt"
	"slices"
)

// Kind says why a placement was refused.
type Kind uint8

const (
	// Capacity: more bytes are live at one step than the memory has. A proof.
	Capacity Kind = iota
	// Fragmentation: the bytes would fit, but no arrangement of the requests does.
	// A proof too: the search was complete.
	Fragmentation
	// Budget: the search ended at its effort bound without an answer.
	Budget
)

func (k Kind) String() string {
	return [...]string{"capacity", "fragmentation", "budget"}[k]
}

// A Refusal is the reason why a tile has no placement.
type Refusal struct {
	Kind Kind
	Tile int32 // index into the problems of SolveAll; -1 from Solve

	// Request is the caller's number (Request.ID) of the largest live request if
	// Kind is Capacity, otherwise of the request that found no place in the
	// attempt that came furthest. It is not always the culprit: look at Live.
	Request int32

	Step int32   // the step with most live bytes, of those that Request lives through
	Live []int32 // the caller's numbers of the requests live at Step, ascending

	// Capacity: the live bytes at Step that are confined to a memory, and that
	// memory's free bytes. Otherwise: the bytes of Request, and what the other
	// requests live at Step leave of the memory that it may use.
	BytesNeeded, BytesFree int64

	// LargestHole is the longest free stretch, in bytes: of an empty tile if Kind
	// is Capacity, otherwise of what Request saw in the furthest attempt.
	LargestHole int64

	confined string // Capacity: what the live buffers have in common
}

func (r *Refusal) Error() string {
	tile := ""
	if r.Tile >= 0 {
		tile = fmt.Sprintf("tile %d: ", r.Tile)
	}
	switch r.Kind {
	case Capacity:
		return fmt.Sprintf("place: %s%s: %d bytes in %d buffers%s are live at step %d and %d are free (largest: buffer %d)",
			tile, r.Kind, r.BytesNeeded, len(r.Live), r.confined, r.Step, r.BytesFree, r.Request)
	case Fragmentation:
		return fmt.Sprintf("place: %s%s: no arrangement leaves a hole for the %d bytes of buffer %d (step %d: %d live buffers, %d bytes free, largest hole %d)",
			tile, r.Kind, r.BytesNeeded, r.Request, r.Step, len(r.Live), r.BytesFree, r.LargestHole)
	}
	return fmt.Sprintf("place: %s%s: no place found for the %d bytes of buffer %d within the effort bound (step %d: %d live buffers, %d bytes free, largest hole %d)",
		tile, r.Kind, r.BytesNeeded, r.Request, r.Step, len(r.Live), r.BytesFree, r.LargestHole)
}

// refuseCapacity reports that domain d and those inside it need live bytes in
// section k that the domain does not have.
func (s *Solver) refuseCapacity(d, k int, live int64) *Refusal {
	r := &Refusal{Kind: Capacity, Tile: -1, Step: s.steps[k], BytesNeeded: live, BytesFree: int64(s.capacity[d]), LargestHole: int64(s.largest[d])}
	r.confined = [domains]string{inRegion1: " that must lie in region 1", inResident: " that must stay out of the host aperture"}[d]
	largest := uint32(0)
	for i := range s.size {
		if int(s.dom[i]) > d || s.first[i] > r.Step || s.last[i] < r.Step {
			continue
		}
		r.Live = append(r.Live, s.p.Requests[i].ID)
		if s.size[i] > largest {
			largest, r.Request = s.size[i], s.p.Requests[i].ID
		}
	}
	slices.Sort(r.Live)
	return r
}

// refuse reports that request i found no place. s.live holds the live bytes of
// each section, s.stuckHole the largest hole that i saw.
func (s *Solver) refuse(kind Kind, i int32) *Refusal {
	d := s.dom[i]
	at := s.lo[i]
	for k := s.lo[i]; k <= s.hi[i]; k++ {
		if s.live[d][k] > s.live[d][at] {
			at = k
		}
	}
	r := &Refusal{
		Kind: kind, Tile: -1, Request: s.p.Requests[i].ID, Step: s.steps[at],
		BytesNeeded: int64(s.size[i]),
		BytesFree:   int64(s.capacity[d]) - s.live[d][at] + int64(s.size[i]),
		LargestHole: int64(s.stuckHole),
	}
	for j := range s.size {
		if s.first[j] <= r.Step && s.last[j] >= r.Step {
			r.Live = append(r.Live, s.p.Requests[j].ID)
		}
	}
	slices.Sort(r.Live)
	return r
}
