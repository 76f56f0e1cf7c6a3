package exchange

import (
	"fmt"
	"slices"

	"ipufarm/protocol/machine"
)

// Schedule says when each transfer of a problem leaves.
type Schedule struct {
	Starts      []int32 // by transfer: event of its first word on the source's timeline
	Wide        []bool  // by transfer: sent as 64-bit items; nil when none is
	Horizon     int32   // events until the last row ends
	TileHorizon []int32 // by logical tile: events until its row ends, 0 = takes no part
}

// LowerBound is the largest number of words that one tile sends or receives:
// no schedule of 32-bit transfers ends sooner. It ignores latency, controls and
// SRAM hazards.
func LowerBound(p *Problem) int32 {
	out, in := p.work()
	most := int32(0)
	for t := range out {
		most = max(most, out[t], in[t])
	}
	return most
}

// LowerBound is the bound for the widths that the schedule has chosen: the most
// events that one tile sends or receives, with borrowed lanes as sends.
func (s *Schedule) LowerBound(p *Problem) int32 {
	if s.Wide == nil {
		return LowerBound(p)
	}
	out, in := make([]int32, p.Tiles), make([]int32, p.Tiles)
	for t := range p.Transfers {
		x := &p.Transfers[t]
		events := x.Words
		if s.Wide[t] {
			events /= 2
			out[partner(x.Source)] += events
		}
		out[x.Source] += events
		for _, r := range p.receivers(int32(t)) {
			in[r.Tile] += events
		}
	}
	return max(slices.Max(out), slices.Max(in))
}

// work returns the words that each tile sends and receives.
func (p *Problem) work() (out, in []int32) {
	out, in = make([]int32, p.Tiles), make([]int32, p.Tiles)
	for t := range p.Transfers {
		x := &p.Transfers[t]
		out[x.Source] += x.Words
		for _, r := range p.receivers(int32(t)) {
			in[r.Tile] += x.Words
		}
	}
	return out, in
}

// Solve schedules a problem. The result depends on the problem alone. It fails
// only on problems that Check refuses or whose phase would exceed the longest
// row that machine.DecodeRow accepts.
func Solve(p *Problem) (*Schedule, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	s, err := bestOf(p)
	if err != nil {
		return nil, err
	}
	if s.Horizon > machine.MaxHorizon {
		return nil, fmt.Errorf("exchange phase ends at event %d, rows may last at most %d", s.Horizon, machine.MaxHorizon)
	}
	return s, nil
}

// Sizes that the choice of a policy depends on, found by experiment on the bench
// families.
const (
	shortestUnit    = 24  // words
	unitsPerTile    = 24  // into which the busiest tile's work is cut
	longestUnit     = 512 // words
	wordsPerRound   = 24  // below this, rounds lose more to uneven latencies than they gain
	unavoidableTail = 150 // events from the last send to the end of a row
)

// bestOf tries the policies that suit a problem and keeps the best schedule.
func bestOf(p *Problem) (*Schedule, error) {
	bound := LowerBound(p)
	q := sortStreams(p)
	units := cutUnits(q, min(max(bound/unitsPerTile, shortestUnit), longestUnit))
	if len(p.Receivers) > len(p.Transfers) || slices.Contains(p.Widths, 64) {
		return multicasts(p, q, units)
	}
	var best *Schedule
	if c, ok := colourUnits(q, units, bound/wordsPerRound); ok {
		l := newLister(q, units)
		l.rounds(units, c.colour)
		best = l.schedule()
		if best.Horizon <= bound+bound/32+unavoidableTail {
			return best, nil
		}
	}
	g := newGreedy(q, units)
	g.run()
	if s := g.schedule(); best == nil || s.Horizon < best.Horizon {
		best = s
	}
	return best, nil
}

// multicasts schedules a problem with all free transfers ordinary and with all of
// them that can be as 64-bit items, and returns the better schedule. What an
// ordinary control may share an instruction with, one of a 64-bit receive may
// not, so a schedule with the latter must be seen to be encodable.
func multicasts(p *Problem, q *sorted, units []unit) (*Schedule, error) {
	var best *Schedule
	var failed error
	for _, free := range []bool{false, true} {
		widened, any, err := widen(q, units, free)
		if err != nil {
			return nil, err
		}
		if free && !any {
			break // the same as before
		}
		g := newSoonest(q, widened)
		g.run()
		s := g.schedule()
		if best != nil && s.Horizon >= best.Horizon {
			break
		}
		if any {
			if _, err := Encode(p, s); err != nil {
				failed = err
				continue
			}
		}
		best = s
	}
	if best == nil {
		return nil, failed
	}
	return best, nil
}
