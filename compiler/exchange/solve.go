package exchange

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
	order, same := streamOrder(p)
	units := cutUnits(p, order, same, int32(wBatch))
	if wRounds > 0 && len(p.Transfers) == len(p.Receivers) {
		assignRounds(p, units)
	} else {
		assignWaves(p, units, int32(wWaves))
	}
	if wRounds == 2 {
		l := newLister(p, order, units)
		keys := make([]sortKey, len(units))
		for i := range units {
			keys[i] = sortKey{uint64(units[i].wave), int32(i)}
		}
		for _, k := range sortByKey(keys) {
			u := units[k.item]
			l.place(u, l.earliest(&u))
		}
		return l.schedule(), nil
	}
	l := newLister(p, order, sortUnits(units))
	if wRounds == 3 {
		l.runGlobal()
	} else {
		l.run()
	}
	return l.schedule(), nil
}

var wRounds = env("ROUNDS", 0)
