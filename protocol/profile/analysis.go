package profile

import (
	"cmp"
	"slices"
)

// Cropped returns the cycles between which a run is timed: from the first sample
// of the tile that entered last to the end of the last sample of any tile. Before
// that, tiles leave the start-up barrier one after the other; the published
// SigLIP benchmark notes (2026-09-07, measured on a C600) time runs the same way.
// Both are 0 for a profile without samples.
func (p *Profile) Cropped() (start, end uint32) {
	for i := range p.Tiles {
		if s := p.Tiles[i].Samples; len(s) > 0 {
			start = max(start, s[0].StartCycle)
			end = max(end, s[len(s)-1].EndCycle)
		}
	}
	return start, max(start, end)
}

// Cycles is the length of the cropped run.
func (p *Profile) Cycles() uint32 {
	start, end := p.Cropped()
	return end - start
}

// Milliseconds converts cycles to time by the clock of the profile.
func (p *Profile) Milliseconds(cycles uint32) float64 {
	return float64(cycles) * 1000 / float64(p.ClockHz)
}

// Kinds are cycles by what they were spent on. Synchronization is waiting for the
// last tile at a barrier, and entering and leaving a row; Exchange is the events
// of rows.
type Kinds struct {
	Compute         uint64 `json:"compute"`
	Exchange        uint64 `json:"exchange"`
	Synchronization uint64 `json:"synchronization"`
	Idle            uint64 `json:"idle"`
}

// Total is the sum of all kinds.
func (k Kinds) Total() uint64 { return k.Compute + k.Exchange + k.Synchronization + k.Idle }

func (k *Kinds) add(kind StepKind, cycles uint32) {
	switch kind {
	case KindCompute:
		k.Compute += uint64(cycles)
	case KindExchange:
		k.Exchange += uint64(cycles)
	case KindSynchronization:
		k.Synchronization += uint64(cycles)
	default:
		k.Idle += uint64(cycles)
	}
}

func (k *Kinds) plus(o Kinds) {
	k.Compute += o.Compute
	k.Exchange += o.Exchange
	k.Synchronization += o.Synchronization
	k.Idle += o.Idle
}

// Barrier is one exchange of all tiles. Cycles are those of the profile, not
// relative to the crop.
type Barrier struct {
	Epoch     uint32 `json:"epoch"`
	Phase     uint32 `json:"phase"`
	Operation string `json:"operation"`
	Tiles     int    `json:"tiles"`        // that joined
	Active    int    `json:"active_tiles"` // that had a row to execute

	FirstArrival uint32 `json:"first_arrival"`
	LastArrival  uint32 `json:"last_arrival"`
	LastLeave    uint32 `json:"last_leave"`
	LastTile     uint32 `json:"last_tile"` // that arrived last; the first one of several

	EntrySpread  uint32 `json:"entry_spread"`      // first to last arrival
	AfterArrival uint32 `json:"after_arrival"`     // last arrival to last leave
	Horizon      uint32 `json:"scheduled_horizon"` // longest row
	Overhead     int64  `json:"overhead"`          // AfterArrival beyond Horizon

	tile, sample int // of LastTile: index in Tiles, and of the sample that arrived
}

// barrierKey identifies a barrier: the same on every tile.
type barrierKey struct{ epoch, phase uint32 }

// joins reports whether a step is spent at a barrier: executing its row, or
// waiting for it where waiting is a step of its own.
func (s *Step) joins() bool { return s.Kind == KindExchange || s.Kind == KindSynchronization }

// Barriers returns the exchanges in order of last arrival.
func (p *Profile) Barriers() []Barrier {
	barriers, _ := p.barriers()
	return barriers
}

// barriers also returns the index of each barrier.
func (p *Profile) barriers() ([]Barrier, map[barrierKey]int) {
	var all []Barrier
	index := map[barrierKey]int{}
	for i := range p.Tiles {
		previous := -1 // barrier of the step before: its arrival has been seen
		for j := range p.Tiles[i].Samples {
			s := &p.Tiles[i].Samples[j]
			if !s.Step.joins() {
				previous = -1
				continue
			}
			key := barrierKey{s.Step.Epoch, s.Step.Phase}
			k, ok := index[key]
			if !ok {
				k = len(all)
				index[key] = k
				all = append(all, Barrier{Epoch: key.epoch, Phase: key.phase, Operation: s.Step.Operation,
					FirstArrival: s.StartCycle, LastArrival: s.StartCycle, LastTile: p.Tiles[i].PhysicalTile, tile: i, sample: j})
			}
			b := &all[k]
			if k != previous {
				b.Tiles++
				if s.StartCycle > b.LastArrival {
					b.LastArrival, b.LastTile, b.tile, b.sample = s.StartCycle, p.Tiles[i].PhysicalTile, i, j
				}
				b.FirstArrival = min(b.FirstArrival, s.StartCycle)
			}
			previous = k
			b.LastLeave = max(b.LastLeave, s.EndCycle)
			b.Horizon = max(b.Horizon, s.Step.ExchangeEventCycles)
			if s.Step.Kind == KindExchange {
				b.Operation = cmp.Or(b.Operation, s.Step.Operation)
				if s.Step.ExchangeEventCycles > 0 {
					b.Active++
				}
			}
		}
	}
	for i := range all {
		b := &all[i]
		b.EntrySpread = b.LastArrival - b.FirstArrival
		b.AfterArrival = b.LastLeave - min(b.LastLeave, b.LastArrival)
		b.Overhead = int64(b.AfterArrival) - int64(b.Horizon)
	}
	slices.SortStableFunc(all, func(a, b Barrier) int {
		return cmp.Or(cmp.Compare(a.LastArrival, b.LastArrival), cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Phase, b.Phase))
	})
	for i := range all {
		index[barrierKey{all[i].Epoch, all[i].Phase}] = i
	}
	return all, index
}

// exchange adds cycles after the last arrival at a barrier: the scheduled events of
// the row are exchange, what is left is the cost of the barrier itself. A profile
// that does not know the schedule has it all as exchange.
func (k *Kinds) exchange(s *Step, cycles uint32) {
	events := cycles
	if s.ExchangeEventCycles > 0 {
		events = min(cycles, s.ExchangeEventCycles)
	}
	k.Exchange += uint64(events)
	k.Synchronization += uint64(cycles - events)
}

// splitter divides samples into what their cycles were really spent on: the part
// of an exchange before the last tile arrived is waiting, not exchanging.
type splitter struct {
	start, end uint32 // of the crop
	barriers   []Barrier
	index      map[barrierKey]int
}

func (p *Profile) splitter() splitter {
	barriers, index := p.barriers()
	start, end := p.Cropped()
	return splitter{start, end, barriers, index}
}

// split returns the cycles of a sample inside the crop by kind.
func (x *splitter) split(s *CycleSample) (k Kinds) {
	from, to := max(s.StartCycle, x.start), min(s.EndCycle, x.end)
	if from >= to {
		return k
	}
	if s.Step.Kind == KindExchange {
		arrival := x.barriers[x.index[barrierKey{s.Step.Epoch, s.Step.Phase}]].LastArrival
		wait := min(max(arrival, from), to) - from
		k.Synchronization += uint64(wait)
		k.exchange(&s.Step, to-from-wait)
		return k
	}
	k.add(s.Step.Kind, to-from)
	return k
}

// tile returns the cycles of the crop on one tile by kind; whatever no sample
// covers is idle, so that the sum is the length of the crop.
func (x *splitter) tile(t *TileProfile) (k Kinds) {
	for j := range t.Samples {
		k.plus(x.split(&t.Samples[j]))
	}
	if total := uint64(x.end - x.start); total > k.Total() {
		k.Idle += total - k.Total()
	}
	return k
}

// TileKinds returns the cycles of the crop by kind, for each of Tiles.
func (p *Profile) TileKinds() []Kinds {
	x := p.splitter()
	all := make([]Kinds, len(p.Tiles))
	for i := range p.Tiles {
		all[i] = x.tile(&p.Tiles[i])
	}
	return all
}

// ByKind returns the cycles by kind on the critical tile, and that tile: among
// those that end last, the one that computes most, and the first of several. The
// sum is Cycles.
func (p *Profile) ByKind() (k Kinds, tile uint32) {
	x := p.splitter()
	best := -1
	for i := range p.Tiles {
		s := p.Tiles[i].Samples
		if len(s) == 0 || s[len(s)-1].EndCycle != x.end {
			continue
		}
		if kinds := x.tile(&p.Tiles[i]); best < 0 || kinds.Compute > k.Compute {
			best, k, tile = i, kinds, p.Tiles[i].PhysicalTile
		}
	}
	return k, tile
}

// PathStep is a piece of the critical path: what the run was waiting for.
type PathStep struct {
	Tile       uint32   `json:"tile"`
	Start, End uint32   `json:"-"`
	Kind       StepKind `json:"-"`
	Step       *Step    `json:"-"` // nil where no sample covers the time
}

// Kinds returns the cycles of a piece by kind.
func (s *PathStep) Kinds() (k Kinds) {
	if s.Kind == KindExchange && s.Step != nil {
		k.exchange(s.Step, s.End-s.Start)
	} else {
		k.add(s.Kind, s.End-s.Start)
	}
	return k
}

// CriticalPath explains every cycle of the crop once: backwards from the end of
// the last sample it follows a tile until a barrier, and goes on with the tile
// that arrived there last. Pieces ascend and touch. Shortening anything that is
// not on it does not shorten the run.
func (p *Profile) CriticalPath() []PathStep {
	x := p.splitter()
	tile := -1
	for i := range p.Tiles {
		if s := p.Tiles[i].Samples; tile < 0 && len(s) > 0 && s[len(s)-1].EndCycle == x.end {
			tile = i
		}
	}
	if tile < 0 {
		return nil
	}
	var path []PathStep
	now := x.end
	piece := func(from uint32, kind StepKind, step *Step) {
		if from = max(from, x.start); from < now {
			path = append(path, PathStep{p.Tiles[tile].PhysicalTile, from, now, kind, step})
			now = from
		}
	}
	for j := len(p.Tiles[tile].Samples) - 1; j >= 0 && now > x.start; j-- {
		s := &p.Tiles[tile].Samples[j]
		piece(min(s.EndCycle, now), KindIdle, nil)
		if s.Step.joins() {
			// Times only fall and a barrier is left by its arrival, so the walk ends.
			b := &x.barriers[x.index[barrierKey{s.Step.Epoch, s.Step.Phase}]]
			if s.StartCycle <= b.LastArrival && b.LastArrival < now {
				piece(b.LastArrival, s.Step.Kind, &s.Step)
				tile, j = b.tile, b.sample
				continue
			}
		}
		piece(s.StartCycle, s.Step.Kind, &s.Step)
	}
	piece(x.start, KindIdle, nil)
	slices.Reverse(path)
	return path
}
