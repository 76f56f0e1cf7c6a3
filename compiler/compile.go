// Package compiler takes a workload to a loadable package. This file is the whole
// pipeline on one page; the farm calls the same stages one by one (stage.go).
//
//	spec ─ graph ─ plan ─ [finalist] ─ lower ─ place ─ schedule ─ assemble ─ package
//
// A stage takes the previous result and returns a new one. A finalist that cannot
// be is not an error: place and schedule answer with a *Refusal, and the loop that
// reacts to it is here, in sight.
package compiler

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"ipufarm/compiler/assemble"
	"ipufarm/compiler/exchange"
	"ipufarm/compiler/graph"
	"ipufarm/compiler/lower"
	"ipufarm/compiler/place"
	"ipufarm/compiler/plan"
	"ipufarm/protocol"
	"ipufarm/protocol/machine"
	"ipufarm/protocol/program"
)

// Version is stamped into packages.
const Version = "ipufarm 0.1"

// Refusal is why a finalist cannot be. It is an error to its callers and a verdict
// to the farm.
type Refusal struct{ protocol.Refusal }

func (r *Refusal) Error() string { return r.Message }

// Compiled is a finalist that fits: addresses, schedules and what they cost.
type Compiled struct {
	Program   *lower.Program
	Addresses []uint32
	Schedules []*exchange.Schedule // by phase
	Rows      []*exchange.Rows     // by phase
	Reserved  uint32               // bytes for rows and commands on each tile
	Exact     Exact
}

// Exact is the modelled cost of a scheduled program: the kernel table's cycles, the
// horizons of the schedules and the barriers between them.
type Exact struct {
	Cycles          int64 `json:"cycles"`
	Compute         int64 `json:"compute"`
	Exchange        int64 `json:"exchange"`
	Synchronization int64 `json:"synchronization"`
	Phases          int   `json:"phases"`
	Transfers       int   `json:"transfers"`
	TableBytesMax   int32 `json:"table_bytes_max"`
	SRAMBytesPeak   int32 `json:"sram_bytes_peak"`
}

// tableRounds is how often a reservation for tables may grow before the finalist
// is refused.
const tableRounds = 3

// Finish lowers, places and schedules a recipe.
//
// Tables are reserved before tensors are placed, from the sketch's estimate; if the
// encoded rows turn out larger, the reservation grows by an element and the tensors
// are placed again, because addresses decide which words need a control of their own.
func Finish(ctx context.Context, m *lower.Model, f *plan.Finalist, progress func(string)) (*Compiled, error) {
	p, err := lower.Lower(m, &f.Recipe)
	if err != nil {
		return nil, err
	}
	commands := commandBytes(p)
	// The sketch counts a control for every piece and so says rather too much: a
	// little more than there is may still do.
	const most = machine.Region0End - machine.TableBase
	reserved := reservation(int64(f.Cost.TableBytes) + int64(commands))
	if reserved <= most/4*5 {
		reserved = min(reserved, most)
	}
	for range tableRounds {
		addresses, err := placeAll(p, reserved)
		if err != nil {
			return nil, refused(p, err)
		}
		progress(fmt.Sprintf("placed %d buffers", len(p.Buffers)))
		c, err := schedule(ctx, p, addresses, progress)
		if err != nil {
			return nil, refused(p, err)
		}
		if reservation(int64(c.Exact.TableBytesMax)+int64(commands)) <= reserved {
			c.Reserved = reserved
			live, _ := p.Live()
			c.Exact.SRAMBytesPeak = live + int32(reserved) + machine.SupportSize
			return c, nil
		}
		reserved = max(reserved+machine.Element0Size, reservation(int64(c.Exact.TableBytesMax)+int64(commands)))
	}
	return nil, &Refusal{protocol.Refusal{Constraint: protocol.Tables, Tile: -1, Step: -1, Needed: int64(reserved),
		Message: fmt.Sprintf("tables: rows and commands outgrew their reservation %d times, at last to %d bytes", tableRounds, reserved)}}
}

// commandBytes is the longest command stream of a tile.
func commandBytes(p *lower.Program) int {
	calls := make([]int, p.Tiles)
	for i := range p.Calls {
		calls[p.Calls[i].Tile]++
	}
	most := 0
	for _, n := range calls {
		most = max(most, n)
	}
	return (most + len(p.Phases) + 1) * program.CommandBytes
}

// reservation rounds up to whole elements with the guard of the fetch look-ahead.
func reservation(bytes int64) uint32 {
	const e = machine.Element0Size
	return uint32((bytes+machine.FetchGuard+e-1)/e) * e
}

// Problems are the placement problems of the tiles of a program, with so many bytes
// reserved for rows and commands. local is the index of each buffer in its tile's
// problem, -1 for one that nobody uses.
func Problems(p *lower.Program, reserved uint32) (problems []place.Problem, local []int32, err error) {
	problems = make([]place.Problem, p.Tiles)
	local = make([]int32, len(p.Buffers))
	table := uint32(machine.TableBase) + reserved
	if table > machine.Region0End {
		return nil, nil, &Refusal{protocol.Refusal{Constraint: protocol.Tables, Tile: -1, Step: -1,
			Needed: int64(reserved), Free: machine.Region0End - machine.TableBase, LargestHole: machine.Region0End - machine.TableBase,
			Message: fmt.Sprintf("tables: %d bytes of rows and commands, region 0 has %d behind the runtime", reserved, machine.Region0End-machine.TableBase)}}
	}
	free := []place.Range{
		{Start: machine.ApertureBase, End: machine.ApertureEnd},
		{Start: machine.DataBase, End: machine.SupportBase},
		{Start: table, End: machine.Region0End},
		{Start: machine.Region1Base, End: machine.LoadEnd},
	}
	if table == machine.Region0End {
		free = append(free[:2], free[3])
	}
	for t := range problems {
		problems[t].Free = free
	}
	for i := range p.Buffers {
		b := &p.Buffers[i]
		if b.Last < b.First {
			local[i] = -1 // nobody uses it
			continue
		}
		q := &problems[b.Tile]
		local[i] = int32(len(q.Requests))
		q.Requests = append(q.Requests, place.Request{
			Bytes: b.Bytes, Align: b.Align, First: b.First, Last: b.Last, Class: b.Class,
			Transient: !b.Resident, ID: int32(i),
		})
	}
	for _, s := range p.Separate {
		q := &problems[p.Buffers[s[0]].Tile]
		q.Separate = append(q.Separate, [2]int32{local[s[0]], local[s[1]]})
	}
	return problems, local, nil
}

// placeAll gives every buffer an address.
func placeAll(p *lower.Program, reserved uint32) ([]uint32, error) {
	problems, local, err := Problems(p, reserved)
	if err != nil {
		return nil, err
	}
	solved, err := solveApart(p, problems, local)
	if err != nil {
		return nil, err
	}
	addresses := make([]uint32, len(p.Buffers))
	for i := range p.Buffers {
		if local[i] >= 0 {
			addresses[i] = solved[p.Buffers[i].Tile][local[i]]
		}
	}
	return addresses, nil
}

// solveApart places every tile, if it can with what sends and what receives in one
// phase in different elements, so that the schedule is free to overlap them; a tile
// that has no room for that is placed without.
func solveApart(p *lower.Program, problems []place.Problem, local []int32) ([][]uint32, error) {
	strict := make([]int, len(problems))
	for t := range problems {
		strict[t] = len(problems[t].Separate)
	}
	for _, s := range p.Apart {
		q := &problems[p.Buffers[s[0]].Tile]
		q.Separate = append(q.Separate, [2]int32{local[s[0]], local[s[1]]})
	}
	solved := make([][]uint32, len(problems))
	errs := make([]error, len(problems))
	var next, failed atomic.Int64
	failed.Store(int64(len(problems)))
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			quick := place.Solver{Effort: apartEffort}
			var full place.Solver
			for {
				// Tiles are taken in order, so all below a failed one are decided.
				t := int(next.Add(1)) - 1
				if int64(t) >= failed.Load() {
					return
				}
				if errs[t] = quick.Reset(&problems[t]); errs[t] == nil {
					solved[t], errs[t] = quick.Solve()
				}
				if errs[t] == nil {
					continue
				}
				problems[t].Separate = problems[t].Separate[:strict[t]]
				if errs[t] = full.Reset(&problems[t]); errs[t] == nil {
					solved[t], errs[t] = full.Solve()
				}
				for low := failed.Load(); errs[t] != nil && int64(t) < low && !failed.CompareAndSwap(low, int64(t)); low = failed.Load() {
				}
			}
		}()
	}
	wg.Wait()
	for t, err := range errs { // the lowest tile speaks for all
		var r *place.Refusal
		if errors.As(err, &r) {
			r.Tile = int32(t)
		}
		if err != nil {
			return nil, err
		}
	}
	return solved, nil
}

// apartEffort bounds the search for a placement that is only better, not needed.
const apartEffort = 20_000

// schedule schedules and encodes every phase, each by itself.
func schedule(ctx context.Context, p *lower.Program, addresses []uint32, progress func(string)) (*Compiled, error) {
	c := &Compiled{Program: p, Addresses: addresses,
		Schedules: make([]*exchange.Schedule, len(p.Phases)), Rows: make([]*exchange.Rows, len(p.Phases))}
	placed := &assemble.Placed{Program: p, Addresses: addresses}
	errs := make([]error, len(p.Phases))
	var next, done atomic.Int64
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(p.Phases)) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				i := int(next.Add(1)) - 1
				if i >= len(p.Phases) || ctx.Err() != nil {
					return
				}
				x := placed.Problem(&p.Phases[i])
				if c.Schedules[i], c.Rows[i], errs[i] = exchange.SolveRows(x); errs[i] != nil {
					continue
				}
				progress(fmt.Sprintf("scheduled %d of %d phases", done.Add(1), len(p.Phases)))
			}
		}()
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for i, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("phase %d: %w", i, err)
		}
	}
	c.score()
	return c, nil
}

// score computes what the schedules and rows cost.
func (c *Compiled) score() {
	c.Exact = exact(c.Program, c.Schedules)
	for t := range c.Program.Tiles {
		c.Exact.TableBytesMax = max(c.Exact.TableBytesMax, assemble.TableBytes(c.Rows, t))
	}
}

// rows encodes schedules that were made elsewhere and reads the horizons back from
// the encoded rows, so that nothing that a file says of them is believed.
func (c *Compiled) rows(sram int32) error {
	placed := &assemble.Placed{Program: c.Program, Addresses: c.Addresses}
	c.Rows = make([]*exchange.Rows, len(c.Schedules))
	for i, s := range c.Schedules {
		var err error
		if c.Rows[i], err = exchange.Encode(placed.Problem(&c.Program.Phases[i]), s); err != nil {
			return fmt.Errorf("phase %d: %w", i, err)
		}
		s.TileHorizon = make([]int32, c.Program.Tiles)
		for t := range s.TileHorizon {
			if w := c.Rows[i].Tile[t].Words; w != nil {
				row, err := machine.DecodeRow(w)
				if err != nil {
					return fmt.Errorf("phase %d, tile %d: %w", i, t, err)
				}
				s.TileHorizon[t] = row.Horizon
				s.Horizon = max(s.Horizon, row.Horizon)
			}
		}
	}
	c.score()
	c.Exact.SRAMBytesPeak = sram
	return nil
}

// Events around a row: from the last arrival at the barrier to event 0, and from the
// end of a row to the next command (together the 240 cycles beyond the horizon that
// published phases took on a C600).
const (
	releaseCycles = 120
	leaveCycles   = 120
)

// exact adds up a scheduled program on every tile.
func exact(p *lower.Program, schedules []*exchange.Schedule) Exact {
	type clock struct{ now, compute, exchange int64 }
	clocks := make([]clock, p.Tiles)
	e := Exact{Phases: len(p.Phases)}
	byTile := make([][]lower.Call, p.Tiles)
	for i := 0; i < len(p.Calls); {
		j := i
		for j < len(p.Calls) && p.Calls[j].Tile == p.Calls[i].Tile {
			j++
		}
		byTile[p.Calls[i].Tile] = p.Calls[i:j]
		i = j
	}
	compute := func(before int32) {
		for t := range clocks {
			for len(byTile[t]) > 0 && byTile[t][0].Slot < before {
				clocks[t].now += int64(byTile[t][0].Cycles)
				clocks[t].compute += int64(byTile[t][0].Cycles)
				byTile[t] = byTile[t][1:]
			}
		}
	}
	for i := range p.Phases {
		e.Transfers += len(p.Phases[i].Transfers)
		compute(p.Phases[i].Slot)
		release := int64(0)
		for t := range clocks {
			release = max(release, clocks[t].now)
		}
		for t, h := range schedules[i].TileHorizon {
			clocks[t].now = release
			if h > 0 {
				clocks[t].now += releaseCycles + int64(h) + leaveCycles
				clocks[t].exchange += int64(h)
			}
		}
	}
	compute(1 << 30)
	last := 0
	for t := range clocks {
		if clocks[t].now > clocks[last].now {
			last = t
		}
	}
	e.Cycles, e.Compute, e.Exchange = clocks[last].now, clocks[last].compute, clocks[last].exchange
	e.Synchronization = e.Cycles - e.Compute - e.Exchange
	return e
}

// refused turns the typed failures of placement and scheduling into a refusal that
// names buffers; other errors pass.
func refused(p *lower.Program, err error) error {
	var r *place.Refusal
	if errors.As(err, &r) {
		name := func(id int32) string {
			b := &p.Buffers[id]
			class := "standard"
			if b.Class == place.Interleaved {
				class = "interleaved"
			}
			op := &p.Operations[b.Operation]
			if b.Resident {
				return fmt.Sprintf("%s/%s (%s, resident)", op.Name, op.Kind, class)
			}
			return fmt.Sprintf("%s/%s (%s, slots %d to %d)", op.Name, op.Kind, class, b.First, b.Last)
		}
		message := fmt.Sprintf("%s on tile %d (physical %d): ", r.Kind, r.Tile, machine.Physical(int(r.Tile)))
		if r.Kind == place.Capacity {
			message += fmt.Sprintf("%d bytes of %d buffers are live in slot %d, %d are free; the largest is %s",
				r.BytesNeeded, len(r.Live), r.Step, r.BytesFree, name(r.Request))
		} else {
			message += fmt.Sprintf("no place for the %d bytes of %s; in slot %d %d buffers leave %d bytes, the largest hole has %d",
				r.BytesNeeded, name(r.Request), r.Step, len(r.Live), r.BytesFree, r.LargestHole)
		}
		out := &Refusal{protocol.Refusal{Constraint: r.Kind.String(), Tile: int(r.Tile), Step: int(max(r.Step, -1)),
			Needed: r.BytesNeeded, Free: r.BytesFree, LargestHole: r.LargestHole, Allocation: name(r.Request), Message: message}}
		for _, id := range r.Live {
			if len(out.Live) == 16 {
				break
			}
			out.Live = append(out.Live, protocol.Live{Name: name(id), Bytes: int64(p.Buffers[id].Bytes)})
		}
		return out
	}
	var x *exchange.EncodeError
	if errors.As(err, &x) {
		return &Refusal{protocol.Refusal{Constraint: protocol.Exchange, Tile: int(x.Tile), Step: -1, Message: err.Error()}}
	}
	return err
}

// Assemble builds a finalist's package and files and checks the final bytes: the
// package decodes and verifies, and every phase's rows, decoded, move exactly the
// words of its problem.
func (c *Compiled) Assemble(g *graph.Graph, weights, inputs map[string]graph.Tensor) (pkg []byte, files *assemble.Files, err error) {
	placed := &assemble.Placed{Program: c.Program, Addresses: c.Addresses}
	horizons := make([][]int32, len(c.Schedules))
	for i, s := range c.Schedules {
		horizons[i] = s.TileHorizon
		if err := exchange.Verify(placed.Problem(&c.Program.Phases[i]), c.Rows[i]); err != nil {
			return nil, nil, fmt.Errorf("phase %d: %w", i, err)
		}
	}
	p, err := assemble.Package(placed, c.Rows, horizons, g.Name, Version, c.Reserved)
	if err != nil {
		return nil, nil, err
	}
	if files, err = assemble.Bind(p, placed, g, weights, inputs); err != nil {
		return nil, nil, err
	}
	if pkg, err = program.Encode(p); err != nil {
		return nil, nil, err
	}
	if _, err := program.Verify(pkg); err != nil {
		return nil, nil, fmt.Errorf("verify: %w", err)
	}
	return pkg, files, nil
}

// Problem is the exchange problem of a phase.
func (c *Compiled) Problem(phase int) *exchange.Problem {
	placed := &assemble.Placed{Program: c.Program, Addresses: c.Addresses}
	return placed.Problem(&c.Program.Phases[phase])
}
