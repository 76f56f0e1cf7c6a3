package lower

import (
	"ipufarm/compiler/graph"
	"ipufarm/protocol/machine"
)

// Cost is what a sketch says of a recipe: modelled estimates, before placement
// and scheduling.
type Cost struct {
	Cycles      int64 // critical path
	Compute     int64 // on the tile that ends last
	Bound       int64 // no schedule of the recipe ends sooner, see cost
	Exchange    int64
	Phases      int
	Transfers   int64
	TableBytes  int32 // largest set of rows on a tile
	Interleaved int32 // largest live bytes of a tile that must lie in region 1
	Live        int32 // largest live bytes of a tile
}

// Constants of the estimate. The barrier is the measured 240 cycles around a phase
// (published exchange notes, 237..295 beyond the horizon on a C600); the route is
// the mean word latency of 65 events and what the first pointer costs.
const (
	barrierCycles = 240
	routeEvents   = 90
)

// Sketch is a priced recipe, from which windows of changed recipes can be priced.
type Sketch struct {
	Cost    Cost
	values  map[*graph.Value]*activation
	buffers int32
}

// NewSketch prices a recipe.
func NewSketch(m *Model, r *Recipe) (*Sketch, error) {
	l, err := build(m, r, true)
	if err != nil {
		return nil, err
	}
	return &Sketch{Cost: *l.cost(), values: l.values, buffers: int32(len(l.p.Buffers))}, nil
}

// Window prices steps [from, to) of a recipe that is like the sketched one before
// from: what the steps before made is there at the start, and where the sketch says.
// Costs of windows compare candidates of a step; they do not add up.
func (s *Sketch) Window(m *Model, r *Recipe, from, to int) (*Cost, error) {
	l, err := newLowering(m, r, true)
	if err != nil {
		return nil, err
	}
	l.first = s.buffers
	made := map[*graph.Value]bool{}
	for i := from; i < to; i++ {
		made[m.Steps[i].out()] = true
	}
	for v, a := range s.values {
		if !made[v] {
			t := *a.f16
			t.Ready = 0
			l.values[v] = &activation{f16: &t}
		}
	}
	for i := from; i < to; i++ {
		if err := l.step(&m.Steps[i], &r.Steps[i]); err != nil {
			return nil, err
		}
	}
	return l.cost(), nil
}

// out is the value that a step makes.
func (s *Step) out() *graph.Value {
	switch {
	case s.Linear != nil:
		return s.Linear.Out
	case s.Norm != nil:
		return s.Norm.Out
	}
	return s.Attend.Out
}

func (b *builder) cost() *Cost {
	c := &Cost{}
	tiles := b.p.Tiles
	clock := make([]int64, tiles)
	compute := make([]int64, tiles)
	table := make([]int32, tiles)
	barriers := make([]int64, tiles) // of the phases in which a tile has a row
	for slot := int32(0); slot < b.p.Slots; slot += 2 {
		if int(slot/2) < len(b.work) {
			for t, w := range b.work[slot/2] {
				clock[t] += int64(w)
				compute[t] += int64(w)
			}
		}
		l := b.load[slot+1]
		if l == nil {
			continue
		}
		c.Phases++
		c.Transfers += l.transfers
		arrival, events := int64(0), int32(0)
		for t := range tiles {
			arrival = max(arrival, clock[t])
			events = max(events, l.send[t], l.receive[t], l.control[t])
		}
		end := arrival + barrierCycles + routeEvents + int64(events)
		for t := range tiles {
			clock[t] = arrival
			if l.send[t]+l.receive[t] > 0 {
				clock[t] = end
				barriers[t] += barrierCycles
				table[t] += 8 + l.control[t]*11/2
			}
		}
	}
	last := 0
	for t := range tiles {
		if clock[t] > clock[last] {
			last = t
		}
		c.TableBytes = max(c.TableBytes, table[t])
		// A tile's own kernels and the barriers around its own rows follow each other,
		// whatever the schedules are. Tiles without a row compute meanwhile, so the
		// phases of others must not be added.
		c.Bound = max(c.Bound, compute[t]+barriers[t])
	}
	c.Cycles, c.Compute = clock[last], compute[last]
	c.Exchange = c.Cycles - c.Compute
	c.Live, c.Interleaved = b.p.Live()
	return c
}

// Fits reports whether the estimate leaves room for placement, tables and commands
// set aside and a twentieth lost to holes: a screen, not a verdict.
func (c *Cost) Fits() bool {
	const commands = 8 << 10
	free := int32(machine.LoadEnd-machine.DataBase) - machine.SupportSize
	tables := c.TableBytes + commands
	return tables <= machine.Region0End-machine.TableBase && c.Live <= (free-tables)/20*19 &&
		c.Interleaved <= (machine.LoadEnd-machine.Region1Base)/20*19
}
