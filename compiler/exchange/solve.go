package exchange

import (
	"fmt"

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
	streams := groupStreams(p)
	var best *Schedule
	for _, policy := range policies(p) {
		l := newLister(p, streams, policy)
		l.run()
		s := l.schedule()
		if s.Horizon > machine.MaxHorizon {
			return nil, fmt.Errorf("exchange phase ends at event %d, rows may last at most %d", s.Horizon, machine.MaxHorizon)
		}
		if best == nil || s.Horizon < best.Horizon {
			best = s
		}
	}
	return best, nil
}

// policy is one setting of the list scheduler.
type policy struct {
	batch    int32 // words placed per decision, unless one transfer is longer
	patience int32 // how often a sender may wait for a better moment before it commits
	slack    int32 // events that a start may be late and still count as immediate
}

func policies(p *Problem) []policy {
	return []policy{{batch: 256, patience: 4, slack: 0}}
}
