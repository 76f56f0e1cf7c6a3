package plan

import (
	"fmt"
	"sort"

	"ipufarm/compiler/graph"
	"ipufarm/compiler/kernel"
	"ipufarm/compiler/lower"
	"ipufarm/protocol/program"
)

// family is a way to plan that differs from the others in layouts, not in a number.
type family struct {
	name string
	// allows keeps the GEMM grids of the family.
	allows func(shape, lower.Grid) bool
	// whole keeps scores in whole rows where they are made; otherwise they are made
	// on two-dimensional grids and move to owners of rows.
	whole bool
	// lean is what a live byte on the fullest tile is worth in cycles, to start with.
	lean float64
}

func anyGrid(shape, lower.Grid) bool { return true }

// familiesOf lists the families that can hold a model on so many tiles.
func familiesOf(m *lower.Model, tiles int) []family {
	unsplit := func(s shape, g lower.Grid) bool { return g.K == 1 || s.rowResult || s.panels*s.rows < 16 }
	tall := func(s shape, g lower.Grid) bool { return g.M == 1 || s.rows > tiles }
	long := false
	for _, s := range m.Steps {
		if a := s.Attend; a != nil && (a.Keys > 16 || a.Queries > 16) {
			long = true
		}
	}
	if !long {
		return []family{
			{"whole-scores", anyGrid, true, 0.05},
			{"whole-scores-unsplit", unsplit, true, 0.05},
			{"whole-scores-tall", tall, true, 0.05},
		}
	}
	return []family{
		{"score-grid", anyGrid, false, 0.05},
		{"score-grid-unsplit", unsplit, false, 0.05},
		{"score-grid-lean", anyGrid, false, 0.25},
		{"whole-scores", anyGrid, true, 0.1},
	}
}

// shape is a GEMM as the planner sees it.
type shape struct {
	rows, panels, inner int // rows, column units, panels of the contraction
	unit                int // 16-column panels of a unit
	grain               int
	f8                  bool
	rowResult           bool // the result is gathered as whole rows
	stationary          bool // the left operand is there already
	gelu                bool
	transposed          bool // the weights are the left operand
	castInput           bool // the left operand arrives in F16 and is quantised on the tile
}

// cost estimates one GEMM by itself on a grid: bringing the operands, the kernel,
// and bringing the partials together, in modelled cycles; and the bytes that it
// keeps on a tile, for ever (exchange rows included) and while it runs.
func (s shape) cost(g lower.Grid, owners int) (cycles int64, resident, transient int) {
	// An exchange row takes about this much for each piece that a tile receives.
	const rowBytes = 5
	r, n, k := ceil(s.rows, g.M), ceil(s.panels, g.N)*s.unit, ceil(s.inner, g.K)
	bytes := 2
	if s.f8 {
		bytes = 1
	}
	left, right := r*k*s.grain*bytes, n*16*k*s.grain*bytes
	weights, activations, copies := right, left, g.M
	if s.transposed {
		weights, activations, copies = left, right, g.N
	}
	total := s.gemm(r, k, n)
	const phase = 330
	if s.castInput {
		c := program.Command{Kind: program.Call, Kernel: program.KernelCastPanels}
		c.Args = [program.CommandArgs]uint32{2: uint32(r), 3: uint32(k * s.grain)}
		total += int64(kernel.CommandCycles(&c))
	}
	moved := g.Moved && copies > 1
	if !s.stationary || moved {
		total += phase
	}
	if !s.stationary {
		perEvent := 4
		if !s.transposed && g.N%2 == 0 {
			perEvent = 8 // pairs of tiles take the same activations
		}
		total += int64(activations / perEvent)
	}
	resident, transient = weights, activations+r*n*32
	rows := 0
	if !s.stationary {
		rows += activations / (s.grain * bytes) * rowBytes
	}
	if moved {
		total += int64(weights / 4)
		resident, transient = weights/copies, transient+weights
	}
	resident += rows
	reduce := func(elements, partials int) int64 {
		c := program.Command{Kind: program.Call, Kernel: program.KernelReduce}
		c.Args = [program.CommandArgs]uint32{1: 8, 3: uint32(partials), 5: uint32((elements + 7) &^ 7)}
		return int64(kernel.CommandCycles(&c))
	}
	switch {
	case s.rowResult:
		per := ceil(s.rows, owners)
		elements := per * s.panels * s.unit * 16
		total += phase + max(int64(g.K*elements/2), int64(r*n*8)) + reduce(elements, g.K)
		transient += 2 * g.K * elements
		resident += g.K * elements / 16 * rowBytes
	case g.K > 1:
		elements := ceil(r*n, g.K) * 16
		total += phase + int64((g.K-1)*elements/2) + reduce(elements, g.K-1)
		transient += 2 * g.K * elements
	}
	if !s.rowResult {
		elements := r * n * 16
		if g.K > 1 {
			elements = ceil(r*n, g.K) * 16
		}
		resident += 2 * elements // its bias
		if s.gelu {
			total += int64(elements) * 90 / 24
		} else {
			total += int64(elements) * 18 / 24
		}
	}
	return total, resident, transient
}

func (s shape) gemm(rows, inner, cols int) int64 {
	c := program.Command{Kind: program.Call, Kernel: program.KernelGEMM}
	c.Args = [program.CommandArgs]uint32{3: uint32(rows), 4: uint32(inner), 5: uint32(cols)}
	if s.f8 {
		c.Args[6] = program.GEMMF8
	}
	return int64(kernel.CommandCycles(&c))
}

func ceil(a, b int) int { return (a + b - 1) / b }

// price is what a grid costs the family, bytes included. A byte that is there only
// while the GEMM runs counts a fifth. The conversions keep the compiler from fusing
// product and sum, which it does on some machines and not on others.
func (f family) price(cycles int64, resident, transient int) float64 {
	bytes := float64(resident) + float64(0.2*float64(transient))
	return float64(cycles) + float64(f.lean*bytes)
}

// grids lists the cheapest grids of a GEMM on at most so many tiles that the family
// allows, cheapest first. multiple asks that N be a multiple of it.
func (f family) grids(s shape, tiles, multiple, limit int) []lower.Grid {
	type priced struct {
		g     lower.Grid
		price float64
	}
	var list []priced
	consider := func(keep func(shape, lower.Grid) bool) {
		for k := 1; k <= min(s.inner, tiles); k++ {
			if k > 1 && ceil(s.inner, k) == ceil(s.inner, k-1) {
				continue // no part gets smaller
			}
			for m := 1; m <= min(s.rows, tiles/k); m++ {
				if m > 1 && ceil(s.rows, m) == ceil(s.rows, m-1) {
					continue
				}
				for n := multiple; n <= min(s.panels, tiles/(k*m)); n += multiple {
					if n > multiple && ceil(s.panels, n) == ceil(s.panels, n-multiple) {
						continue
					}
					for _, moved := range []bool{false, true} {
						g := lower.Grid{M: m, N: n, K: k, Moved: moved}
						if moved && (s.transposed && n == 1 || !s.transposed && m == 1) || !keep(s, g) {
							continue
						}
						cycles, resident, transient := s.cost(g, max(1, min(tiles, s.rows)))
						list = append(list, priced{g, f.price(cycles, resident, transient)})
					}
				}
			}
		}
	}
	if consider(f.allows); len(list) == 0 {
		consider(anyGrid)
	}
	sort.Slice(list, func(i, j int) bool {
		a, b := list[i], list[j]
		switch {
		case a.price != b.price:
			return a.price < b.price
		case a.g.K != b.g.K:
			return a.g.K < b.g.K
		case a.g.M != b.g.M:
			return a.g.M < b.g.M
		}
		return !a.g.Moved && b.g.Moved
	})
	if len(list) > limit {
		list = list[:limit]
	}
	out := make([]lower.Grid, len(list))
	for i, p := range list {
		out[i] = p.g
	}
	return out
}

// candidatesPerGrid is how many grids of a GEMM the descent tries.
const candidatesPerGrid = 10

func linearShape(n *lower.Linear, rows, cols int, whole bool) shape {
	unit := n.ColumnUnit(whole)
	s := shape{rows: rows, panels: ceil(cols, unit), unit: unit / 16, grain: 16, rowResult: whole, gelu: n.GELU,
		stationary: n.In.Op == graph.Input || n.In.Op == graph.Parameter}
	if n.GEMM.Precision == graph.F8 {
		s.grain, s.f8 = 32, true
		s.castInput = n.In.Op == graph.Input
	}
	s.inner = ceil(n.Weight.Shape[0], s.grain)
	return s
}

// start returns a family's first recipe and the candidates of each step.
func (f family) start(m *lower.Model, tiles int) (lower.Recipe, [][]lower.Choice) {
	r := lower.Recipe{Family: f.name, Tiles: tiles, Steps: make([]lower.Choice, len(m.Steps))}
	candidates := make([][]lower.Choice, len(m.Steps))
	whole := m.WholeRows()
	for i, s := range m.Steps {
		switch {
		case s.Linear != nil:
			candidates[i] = f.linear(s.Linear, tiles, whole[s.Linear.Out])
		case s.Attend != nil:
			candidates[i] = f.attend(s.Attend, tiles)
		default:
			candidates[i] = []lower.Choice{{}}
			if in := s.Norm.In; in.Elements()/in.Width() > tiles { // owners have several rows
				candidates[i] = append(candidates[i], lower.Choice{Packed: true})
			}
		}
		r.Steps[i] = candidates[i][0]
	}
	return r, candidates
}

func (f family) linear(n *lower.Linear, tiles int, whole bool) []lower.Choice {
	rows := n.GEMM.Elements() / n.GEMM.Width()
	s := linearShape(n, rows, n.To-n.From, whole)
	list := f.grids(s, tiles, 1, candidatesPerGrid)
	var out []lower.Choice
	for _, g := range list {
		c := lower.Choice{Grid: &g}
		if whole {
			c.Owners = owners(rows, tiles)
		}
		out = append(out, c)
	}
	return out
}

// owners spreads rows over the tiles, at least one row on each.
func owners(rows, tiles int) *lower.Owners {
	per := ceil(rows, tiles)
	return &lower.Owners{PerTile: per, Stride: max(1, tiles/ceil(rows, per))}
}

// attend lists choices for attention: grids for the three projections on disjoint
// tiles, and layouts of the products.
func (f family) attend(a *lower.Attend, tiles int) []lower.Choice {
	if a.Given != nil {
		var out []lower.Choice
		for _, p := range f.products(a, tiles) {
			out = append(out, lower.Choice{Attend: &p})
		}
		return out
	}
	width := ceil(a.Width, 16) * a.Heads // panels
	shapes := [3]shape{
		linearShape(a.Q, a.Batch*a.Queries, width*16, false),
		linearShape(a.K, a.Batch*a.Keys, width*16, false),
		linearShape(a.V, a.Batch*a.Keys, width*16, false),
	}
	for i := range shapes { // read in F16, head by head
		shapes[i].panels, shapes[i].unit = width, 1
	}
	// V is made transposed: channels are its rows, keys its columns.
	v := &shapes[2]
	v.rows, v.panels, v.transposed = width*16, a.Batch*ceil(a.Keys, 16), true
	lists := f.share(shapes, [3]int{1, 1, a.Batch}, tiles)
	products := f.products(a, tiles)
	first := lower.Choice{Q: &lists[0][0], K: &lists[1][0], V: &lists[2][0], Attend: &products[0]}
	out := []lower.Choice{first}
	for i := range products[1:] {
		c := first
		c.Attend = &products[1+i]
		out = append(out, c)
	}
	for j := range lists {
		for i := 1; i < len(lists[j]); i++ {
			c := first
			*[]**lower.Grid{&c.Q, &c.K, &c.V}[j] = &lists[j][i]
			out = append(out, c)
		}
	}
	return out
}

// share divides the tiles between GEMMs that run at the same time, so that the
// slowest is as fast as can be, and returns the grids of each.
func (f family) share(shapes [3]shape, multiple [3]int, tiles int) [3][]lower.Grid {
	const parts = 16
	var lists [3][parts][]lower.Grid
	var cost [3][parts]int64
	for i := range lists {
		for u := 1; u <= parts-2; u++ {
			lists[i][u] = f.grids(shapes[i], u*tiles/parts, multiple[i], candidatesPerGrid/2)
			cost[i][u] = 1 << 60
			if len(lists[i][u]) > 0 {
				cycles, resident, transient := shapes[i].cost(lists[i][u][0], tiles)
				cost[i][u] = int64(f.price(cycles, resident, transient))
			}
		}
	}
	choice, least := [3]int{1, 1, parts - 2}, int64(1<<62)
	for x := 1; x <= parts-2; x++ {
		for y := 1; x+y <= parts-1; y++ {
			if c := max(cost[0][x], cost[1][y], cost[2][parts-x-y]); c < least {
				choice, least = [3]int{x, y, parts - x - y}, c
			}
		}
	}
	var out [3][]lower.Grid
	for i, u := range choice {
		out[i] = lists[i][u]
		if len(out[i]) == 0 { // fewer tiles than images: the images take turns
			out[i] = f.grids(shapes[i], max(tiles, multiple[i]), multiple[i], 1)
		}
	}
	return out
}

// products lists layouts of scores and values for one attention, best guess first.
func (f family) products(a *lower.Attend, tiles int) []lower.Scores {
	streams := a.Batch * a.Heads
	per := max(1, tiles/streams)
	keys, width := ceil(a.Keys, 16), ceil(a.Width, 16)
	type priced struct {
		s    lower.Scores
		cost int64
	}
	var list []priced
	gemm := func(rows, inner, cols int) int64 {
		c := program.Command{Kind: program.Call, Kernel: program.KernelGEMM}
		c.Args = [program.CommandArgs]uint32{3: uint32(rows), 4: uint32(inner), 5: uint32(cols)}
		return int64(kernel.CommandCycles(&c))
	}
	for qm := 1; qm <= min(a.Queries, per); qm++ {
		if qm > 1 && ceil(a.Queries, qm) == ceil(a.Queries, qm-1) {
			continue
		}
		for qn := 1; qn <= min(keys, per/qm); qn++ {
			if (qn == 1) != f.whole || qn > 1 && ceil(keys, qn) == ceil(keys, qn-1) {
				continue
			}
			rows := ceil(a.Queries, qm)
			s := lower.Scores{QM: qm, QN: qn}
			cost := gemm(rows, width, ceil(keys, qn)) + int64(rows*width*8) + int64(ceil(keys, qn)*width*128)
			if qn == 1 {
				cost += softmaxCycles(rows, a.Keys)
			} else {
				s.Softmax = min(a.Queries, per)
				cost += softmaxCycles(ceil(a.Queries, s.Softmax), a.Keys)
			}
			list = append(list, priced{s, cost})
		}
	}
	if len(list) == 0 { // too few tiles for a grid: whole rows on one tile
		list = append(list, priced{lower.Scores{QM: 1, QN: 1}, 0})
	}
	sort.SliceStable(list, func(i, j int) bool { return list[i].cost < list[j].cost })
	if len(list) > 4 {
		list = list[:4]
	}
	var values []priced
	for pm := 1; pm <= min(a.Queries, per); pm++ {
		if pm > 1 && ceil(a.Queries, pm) == ceil(a.Queries, pm-1) {
			continue
		}
		for pn := 1; pn <= min(width, per/pm); pn++ {
			if pn > 1 && ceil(width, pn) == ceil(width, pn-1) {
				continue
			}
			for pk := 1; pk <= min(keys, per/(pm*pn)); pk++ {
				if pk > 1 && ceil(keys, pk) == ceil(keys, pk-1) {
					continue
				}
				rows, n, k := ceil(a.Queries, pm), ceil(width, pn), ceil(keys, pk)
				cost := gemm(rows, k, n) + int64(rows*k*8) + int64(k*n*128)
				part := ceil(rows*n, pk)
				if pk > 1 {
					cost += 330 + 282 + int64((pk-1)*part*8) + int64(6*ceil(part*16, 48)*(11+2*(pk-1)))
				}
				cost += normaliseCycles(ceil(rows*n, pk*n), n*16)
				values = append(values, priced{lower.Scores{PM: pm, PN: pn, PK: pk}, cost})
			}
		}
	}
	sort.SliceStable(values, func(i, j int) bool { return values[i].cost < values[j].cost })
	if len(values) > 6 {
		values = values[:6]
	}
	var out []lower.Scores
	for i, s := range list {
		for j, v := range values {
			if i > 0 && j > 2 {
				continue
			}
			c := s.s
			c.PM, c.PN, c.PK = v.s.PM, v.s.PN, v.s.PK
			out = append(out, c)
		}
	}
	return out
}

func softmaxCycles(rows, keys int) int64 {
	c := program.Command{Kind: program.Call, Kernel: program.KernelSoftmax}
	c.Args = [program.CommandArgs]uint32{3: uint32(rows), 4: uint32(keys), 5: uint32(ceil(keys, 16) * 16)}
	return int64(kernel.CommandCycles(&c))
}

func normaliseCycles(rows, cols int) int64 {
	c := program.Command{Kind: program.Call, Kernel: program.KernelNormalise}
	c.Args = [program.CommandArgs]uint32{3: uint32(rows), 4: uint32(cols), 5: program.NormalisePanels}
	return int64(kernel.CommandCycles(&c))
}

// classesOf groups the steps that must choose alike: those of equal shape.
func classesOf(m *lower.Model) [][]int {
	index, whole := map[string]int{}, m.WholeRows()
	var out [][]int
	for i, s := range m.Steps {
		var key string
		switch {
		case s.Linear != nil:
			n := s.Linear
			key = fmt.Sprint("linear", n.GEMM.Shape, n.Weight.Shape, n.GELU, n.Residual != nil, n.Position != nil, n.In.Op, whole[n.Out])
		case s.Attend != nil:
			a := s.Attend
			key = fmt.Sprint("attend", a.Batch, a.Heads, a.Queries, a.Keys, a.Width, a.Given != nil || a.Q.In.Op == graph.Parameter)
		default:
			key = fmt.Sprint("norm", i)
		}
		if at, ok := index[key]; ok {
			out[at] = append(out[at], i)
			continue
		}
		index[key] = len(out)
		out = append(out, []int{i})
	}
	return out
}

// layTiles gives every group of tiles of a recipe its first tile: one after the
// other, round the device, so that what is resident spreads evenly and neighbours
// in time rarely share tiles.
func layTiles(m *lower.Model, r *lower.Recipe) {
	next := 0
	take := func(size int) int {
		at := next
		next = (next + size + size%2) % r.Tiles // groups start with whole pairs
		return at
	}
	grid := func(g *lower.Grid) *lower.Grid {
		if g == nil {
			return nil
		}
		c := *g
		c.Base = take(c.Size())
		return &c
	}
	home := map[string]int{}
	for i := range r.Steps {
		c := &r.Steps[i]
		c.Grid, c.Q, c.K, c.V = grid(c.Grid), grid(c.Q), grid(c.K), grid(c.V)
		if c.Attend != nil {
			s, streams := *c.Attend, m.Steps[i].Attend.Batch*m.Steps[i].Attend.Heads
			s.ScoreBase = take(streams * s.QM * s.QN)
			if s.Softmax > 0 {
				s.SoftmaxBase = take(streams * s.Softmax)
				// Where both groups fill the device, a stream's values are weighted on
				// the tiles of another stream's rows: no piece stays on its tile, where
				// it would have to be copied by a kernel.
				take(s.Softmax)
			}
			s.ValueBase = take(streams * s.PM * s.PN * s.PK)
			c.Attend = &s
		}
		if c.Owners != nil {
			// Rows of equal shape stay where they were: a residual is added in place.
			o := *c.Owners
			key := fmt.Sprint(m.Steps[i].Linear.GEMM.Shape)
			base, ok := home[key]
			if !ok {
				base = take(1)
				home[key] = base
			}
			o.Base = base
			c.Owners = &o
		}
	}
}
