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
	s, _, err := best(p)
	return s, err
}

// SolveRows schedules and encodes a problem: Solve and Encode, without encoding
// twice what Solve had to encode to judge it.
func SolveRows(p *Problem) (*Schedule, *Rows, error) {
	s, rows, err := best(p)
	if err == nil && rows == nil {
		rows, err = Encode(p, s)
	}
	return s, rows, err
}

func best(p *Problem) (*Schedule, *Rows, error) {
	if err := p.Check(); err != nil {
		return nil, nil, err
	}
	s, rows, err := bestOf(p)
	if err != nil {
		return nil, nil, err
	}
	if s.Horizon > machine.MaxHorizon {
		return nil, nil, fmt.Errorf("exchange phase ends at event %d, rows may last at most %d", s.Horizon, machine.MaxHorizon)
	}
	return s, rows, nil
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
func bestOf(p *Problem) (*Schedule, *Rows, error) {
	bound := LowerBound(p)
	q := sortStreams(p)
	units := cutUnits(q, min(max(bound/unitsPerTile, shortestUnit), longestUnit))
	if len(p.Receivers) > len(p.Transfers) || slices.Contains(p.Widths, 64) {
		return multicasts(p, q, units, bound)
	}
	var best *Schedule
	if c, ok := colourUnits(q, units, bound/wordsPerRound); ok {
		l := newLister(q, units)
		l.rounds(units, c.colour)
		best = l.schedule()
		if best.Horizon <= bound+bound/32+unavoidableTail {
			return best, nil, nil
		}
	}
	g := newGreedy(q, units)
	g.run()
	if s := g.schedule(); best == nil || s.Horizon < best.Horizon {
		best = s
	}
	return best, nil, nil
}

// multicasts schedules a problem with all free transfers that can be as 64-bit
// items, and with all of them ordinary unless no ordinary schedule could end sooner,
// and returns the better schedule. What an ordinary control may share an instruction
// with, one of a 64-bit receive may not, so a schedule with the latter must be seen
// to be encodable; its rows are returned, too.
func multicasts(p *Problem, q *sorted, units []unit, bound int32) (*Schedule, *Rows, error) {
	var best *Schedule
	var rows *Rows
	var failed error
	for _, free := range []bool{true, false} {
		widened, any, err := widen(q, units, free)
		if err != nil {
			return nil, nil, err
		}
		if free && !any {
			continue // the same as without
		}
		g := newSoonest(q, widened)
		g.run()
		s := g.schedule()
		if best != nil && s.Horizon > best.Horizon {
			break
		}
		var encoded *Rows
		if any {
			if encoded, err = Encode(p, s); err != nil {
				failed = err
				continue
			}
		}
		best, rows = s, encoded
		if s.Horizon <= bound {
			break
		}
	}
	if best == nil {
		return nil, nil, failed
	}
	return best, rows, nil
}
