package lower

import (
	"fmt"
	"sort"

	"ipufarm/compiler/graph"
	"ipufarm/compiler/layout"
	"ipufarm/compiler/place"
	"ipufarm/protocol/program"
)

// Lower writes down what every tile does under a recipe.
func Lower(m *Model, r *Recipe) (*Program, error) {
	b, err := build(m, r, false)
	if err != nil {
		return nil, err
	}
	p := b.p
	slots := make([]int32, 0, len(b.phases))
	for s := range b.phases {
		slots = append(slots, s)
	}
	sort.Slice(slots, func(i, j int) bool { return slots[i] < slots[j] })
	for _, s := range slots {
		if len(b.phases[s].Transfers) > 0 {
			p.Phases = append(p.Phases, *b.phases[s])
		}
	}
	p.Slots |= 1
	p.Apart = apart(p)
	// Calls were written operator by operator; a tile runs them slot by slot.
	sort.SliceStable(p.Calls, func(i, j int) bool {
		x, y := &p.Calls[i], &p.Calls[j]
		if x.Tile != y.Tile {
			return x.Tile < y.Tile
		}
		return x.Slot < y.Slot
	})
	return p, nil
}

// apart lists the pairs of buffers of a tile of which one sends and the other
// receives in the same phase. Where they share an element, the schedule must keep
// the two from happening at the same time.
func apart(p *Program) [][2]int32 {
	var pairs [][2]int32
	sends, receives := make([]int32, len(p.Buffers)), make([]int32, len(p.Buffers)) // phase+1 of the last mark
	bySender, byReceiver := make([][]int32, p.Tiles), make([][]int32, p.Tiles)
	for i := range p.Phases {
		ph := &p.Phases[i]
		mark := func(seen []int32, list [][]int32, buffer int32) {
			if seen[buffer] != int32(i+1) {
				seen[buffer] = int32(i + 1)
				tile := p.Buffers[buffer].Tile
				list[tile] = append(list[tile], buffer)
			}
		}
		for j := range ph.Transfers {
			mark(sends, bySender, ph.Transfers[j].Source.Buffer)
		}
		for _, r := range ph.Receivers {
			mark(receives, byReceiver, r.Buffer)
		}
		for t := range bySender {
			for _, x := range bySender[t] {
				for _, y := range byReceiver[t] {
					if x != y {
						pairs = append(pairs, [2]int32{x, y})
					}
				}
			}
			bySender[t], byReceiver[t] = bySender[t][:0], byReceiver[t][:0]
		}
	}
	return pairs
}

// lowering is the state while the steps are walked.
type lowering struct {
	*builder
	model  *Model
	values map[*graph.Value]*activation
	whole  map[*graph.Value]bool // values that are read as whole rows
}

// activation is a value on the tiles: in F16, and quantised when somebody asked.
type activation struct {
	f16    *Tensor
	f8     *Tensor
	scale  int
	packed bool // rows are laid out in panels before they move
}

func newLowering(m *Model, r *Recipe, sketch bool) (*lowering, error) {
	if len(r.Steps) != len(m.Steps) {
		return nil, fmt.Errorf("lower: the recipe has %d steps, the model %d", len(r.Steps), len(m.Steps))
	}
	l := &lowering{builder: newBuilder(r.Tiles, sketch), model: m, values: map[*graph.Value]*activation{}, whole: m.WholeRows()}
	return l, nil
}

func build(m *Model, r *Recipe, sketch bool) (*lowering, error) {
	l, err := newLowering(m, r, sketch)
	if err != nil {
		return nil, err
	}
	out := m.Graph.Outputs[0]
	for i := range m.Steps {
		if err := l.step(&m.Steps[i], &r.Steps[i]); err != nil {
			return nil, err
		}
	}
	a := l.values[out]
	if a == nil {
		return nil, fmt.Errorf("lower: no step makes the output %s", out.Name)
	}
	l.p.Output = a.f16
	for i := range a.f16.Places {
		for _, p := range a.f16.Places[i] {
			u := &l.p.Buffers[p.Buffer]
			u.Resident, u.Last = true, forever
		}
	}
	return l, nil
}

// missing is what a step says of a recipe that does not decide it.
func missing(name, what string) error {
	return fmt.Errorf("lower: the recipe has no %s for %s", what, name)
}

func (l *lowering) step(s *Step, c *Choice) error {
	switch {
	case s.Norm != nil:
		return l.norm(s.Norm, c.Packed)
	case s.Linear != nil:
		if c.Grid == nil {
			return missing(s.Linear.Out.Name, "grid")
		}
		return l.linear(s.Linear, c)
	case s.Attend != nil:
		if c.Attend == nil || s.Attend.Given == nil && (c.Q == nil || c.K == nil || c.V == nil) {
			return missing(s.Attend.Out.Name, "projection grids and score layout")
		}
		return l.attend(s.Attend, c)
	}
	return nil
}

// rowsOf is the number of rows of a value as a matrix.
func rowsOf(v *graph.Value) int { return v.Elements() / v.Width() }

// grainOf is the K extent of one panel of a GEMM in elements.
func grainOf(g *graph.Value) int32 {
	if g.Precision == graph.F8 {
		return 32
	}
	return 16
}

// forms are the operand forms of a GEMM.
func forms(g *graph.Value) (left, right layout.Form) {
	if g.Precision == graph.F8 {
		return layout.Left8, layout.Right8
	}
	return layout.Left16, layout.Right16
}

// operand is a value in the precision of a GEMM, wherever it lies.
func (l *lowering) operand(v, gemm *graph.Value) (*Tensor, error) {
	a := l.values[v]
	if a == nil && v.Op == graph.Input {
		a = &activation{f16: l.inputRows(v)}
		l.values[v] = a
	}
	if a == nil {
		return nil, fmt.Errorf("lower: %s reads %s before a step makes it", gemm.Name, v.Name)
	}
	if gemm.Precision != graph.F8 {
		if a.packed {
			a.f16, a.packed = l.pack(a.f16, layout.Left16, 0, l.operation(v.Name, "pack")), false
		}
		return a.f16, nil
	}
	if a.f8 == nil || a.scale != gemm.Scale {
		// Cast on the owners, once, before fan-out.
		op := l.operation(v.Name, "cast")
		if a.scale = gemm.Scale; a.packed {
			a.f8 = l.pack(a.f16, layout.Left8, gemm.Scale, op)
		} else {
			a.f8 = l.cast(a.f16, gemm.Scale, op)
		}
	}
	return a.f8, nil
}

// inputRows delivers an input in whole rows, as many on each tile as it takes, for
// readers that are not a single GEMM.
func (l *lowering) inputRows(v *graph.Value) *Tensor {
	width := int32(v.Width())
	stride := (width + 31) &^ 31
	rows := rowsOf(v)
	per := (rows + l.p.Tiles - 1) / l.p.Tiles
	t := &Tensor{Rows: int32(rows), Cols: stride, Form: layout.Rows16}
	for i, r := 0, 0; r < rows; i, r = i+1, r+per {
		t.add(layout.NewBlock(t.Form, layout.Rect{R0: int32(r), R1: int32(min(r+per, rows)), C1: stride}), int32(i))
	}
	l.place(t, 8, 0, place.Standard)
	l.host(t, v, 0, func(r, c int32) int {
		if c >= width {
			return -1
		}
		return int(r)*int(width) + int(c)
	})
	return t
}

// span is memory of one tile that holds consecutive blocks of a tensor.
type span struct {
	tile        int32
	ref         Ref
	elements    int32
	first, last int // blocks
}

// spans groups single-owner blocks that follow each other in one buffer and lists
// the others one by one for each tile.
func (t *Tensor) spans() []span {
	var out []span
	for i := range t.Blocks {
		n := t.Blocks[i].Rows * t.Blocks[i].Cols
		for j, tile := range t.Tiles[i] {
			ref := t.Places[i][j]
			if k := len(out) - 1; k >= 0 && len(t.Tiles[i]) == 1 && out[k].tile == tile && out[k].ref.Buffer == ref.Buffer &&
				out[k].last == i && out[k].ref.Offset+uint32(out[k].elements*t.Form.Elem) == ref.Offset {
				out[k].elements += n
				out[k].last++
				continue
			}
			out = append(out, span{tile, ref, n, i, i + 1})
		}
	}
	return out
}

// like gives a tensor with the blocks of t in another element size, spans kept
// together, each span in a new buffer.
func (l *lowering) like(t *Tensor, elem, align, tail int32) (*Tensor, []span) {
	n := &Tensor{Rows: t.Rows, Cols: t.Cols, Columns: t.Columns, Form: t.Form, Blocks: t.Blocks, Tiles: t.Tiles, index: t.Index()}
	n.Form.Elem = elem
	n.Places = make([][]Ref, len(t.Blocks))
	spans := t.spans()
	for _, s := range spans {
		buffer := l.buffer(s.tile, s.elements*elem+tail, align, place.Standard)
		offset := uint32(0)
		for i := s.first; i < s.last; i++ {
			n.Places[i] = append(n.Places[i], Ref{buffer, offset})
			offset += uint32(t.Blocks[i].Rows * t.Blocks[i].Cols * elem)
		}
	}
	return n, spans
}

// cast converts to FP8 on the owners: to whole FP8 panels if every block is made of
// pairs of F16 panels, else element by element in the same order.
func (l *lowering) cast(t *Tensor, scale int, operation int32) *Tensor {
	slot := computeSlot(t)
	pairs := t.Form == layout.Left16
	for i := range t.Blocks {
		pairs = pairs && t.Blocks[i].C0%32 == 0 && t.Blocks[i].Cols%32 == 0
	}
	if pairs {
		out, _ := l.like(t, 1, 8, 0)
		out.Form, out.Ready = layout.Left8, slot
		for i := range t.Blocks {
			for j, tile := range t.Tiles[i] {
				l.call(slot, tile, operation, program.KernelCastPanels, t.Places[i][j], out.Places[i][j],
					Imm(t.Blocks[i].Rows), Imm(t.Blocks[i].Cols), Imm(int32(scale)))
			}
		}
		return out
	}
	out, spans := l.like(t, 1, 8, 0)
	out.Ready = slot
	for _, s := range spans {
		to := out.placeOf(s)
		l.call(slot, s.tile, operation, program.KernelCast, s.ref, to, Imm(s.elements), Imm(int32(scale)))
	}
	return out
}

// pack lays whole rows out in panels on their owners, quantising if the form asks.
func (l *lowering) pack(t *Tensor, form layout.Form, scale int, operation int32) *Tensor {
	slot := computeSlot(t)
	out, _ := l.like(t, form.Elem, 8, 0)
	out.Form, out.Ready = form, slot
	for i := range t.Blocks {
		b := &t.Blocks[i]
		for j, tile := range t.Tiles[i] {
			args := []Ref{t.Places[i][j], out.Places[i][j], Imm(b.Rows), Imm(b.Cols), Imm(b.Cols)}
			if form.Elem == 1 {
				l.call(slot, tile, operation, program.KernelCastLeft, append(args, Imm(int32(scale)))...)
			} else {
				l.call(slot, tile, operation, program.KernelPackLeft, args...)
			}
		}
	}
	return out
}

// placeOf is where a tensor made by like holds a span of the original.
func (t *Tensor) placeOf(s span) Ref {
	for j, tile := range t.Tiles[s.first] {
		if tile == s.tile {
			return t.Places[s.first][j]
		}
	}
	return t.Places[s.first][0]
}

// norm normalises whole rows where they are.
func (l *lowering) norm(n *Norm, packed bool) error {
	a := l.values[n.In]
	if a == nil {
		return fmt.Errorf("lower: norm %s reads %s before a step makes it", n.Out.Name, n.In.Name)
	}
	x := a.f16
	width := int32(n.In.Width())
	if x.Form != layout.Rows16 || x.Cols != width {
		return fmt.Errorf("lower: norm %s needs whole rows of %s", n.Out.Name, n.In.Name)
	}
	op := l.operation(n.Out.Name, "layernorm")
	gamma := l.rowParameter(x, n.Gamma)
	beta := l.rowParameter(x, n.Beta)
	stride := (width + 31) &^ 31 // so that FP8 panels find zeros behind the row
	out := &Tensor{Rows: x.Rows, Cols: stride, Form: layout.Rows16}
	for i, blk := range x.Blocks {
		blk.C1, blk.Cols = stride, stride
		out.add(blk, x.Tiles[i]...)
	}
	l.place(out, 8, 0, place.Standard)
	slot := computeSlot(x)
	out.Ready = slot
	for i := range x.Blocks {
		rows := x.Blocks[i].Rows
		for j, tile := range x.Tiles[i] {
			l.call(slot, tile, op, program.KernelLayerNorm, x.Places[i][j], gamma[tile], beta[tile], out.Places[i][j],
				Imm(rows), Imm(width), Imm(0), Imm(0), Imm(stride))
		}
	}
	l.values[n.Out] = &activation{f16: out, packed: packed}
	return nil
}

// rowParameter puts one row of a parameter on every tile of a tensor.
func (l *lowering) rowParameter(x *Tensor, v *graph.Value) map[int32]Ref {
	width := int32(v.Width())
	t := &Tensor{Rows: 1, Cols: width, Form: layout.Rows16}
	seen := map[int32]bool{}
	var tiles []int32
	for i := range x.Tiles {
		for _, tile := range x.Tiles[i] {
			if !seen[tile] {
				seen[tile] = true
				tiles = append(tiles, tile)
			}
		}
	}
	t.add(layout.NewBlock(t.Form, layout.Rect{R1: 1, C1: width}), tiles...)
	l.place(t, 8, 0, place.Standard)
	l.host(t, v, 0, func(_, c int32) int { return int(c) })
	at := make(map[int32]Ref, len(tiles))
	for j, tile := range tiles {
		at[tile] = t.Places[0][j]
	}
	return at
}
