package lower

import (
	"ipufarm/compiler/graph"
	"ipufarm/compiler/layout"
	"ipufarm/compiler/place"
	"ipufarm/protocol/program"
)

// linear lowers a GEMM with its epilogue. Results that somebody reads as whole
// rows go straight from the partials to the rows' owners; others are reduced in
// slices where they were made.
func (l *lowering) linear(n *Linear, c *Choice) error {
	g := *c.Grid
	op := l.operation(n.GEMM.Name, "gemm")
	rows := rowsOf(n.GEMM)
	cols := n.To - n.From
	unit := n.ColumnUnit(l.whole[n.Out])
	cuts := gridCuts{
		rows: layout.Cuts(rows, g.M),
		cols: scale(layout.Cuts((cols+unit-1)/unit, g.N), int32(unit)),
	}
	left, columns, err := l.left(n, g, &cuts, op)
	if err != nil {
		return err
	}
	right := l.weights(n, g, &cuts, columns, identity(n.From, cols), weightSlot(left), op)
	parts := l.multiply(op, g, cuts, left, right, n.GEMM)
	out := identity(0, cols)
	if l.whole[n.Out] {
		if c.Owners == nil {
			return missing(n.Out.Name, "row owners")
		}
		return l.finishRows(n, *c.Owners, parts, cols)
	}
	bias := l.columnBias(n, out)
	l.values[n.Out] = &activation{f16: l.finishSlices(n.Out.Name, parts, bias, n.GELU, unit == 32)}
	return nil
}

// ColumnUnit is the number of columns by which a grid divides the result: a panel,
// or two where the result will be quantised in slices. Then a slice becomes whole
// FP8 panels, whose rows follow each other, and travels in long runs.
func (n *Linear) ColumnUnit(wholeRows bool) int {
	if n.GEMM.Precision == graph.F8 && !wholeRows {
		return 32
	}
	return 16
}

// gridCuts are the boundaries of a grid's parts: rows and columns of the result
// (columns in multiples of 16), and elements of the contraction.
type gridCuts struct {
	rows, cols, inner []int32
}

func scale(cuts []int32, by int32) []int32 {
	for i := range cuts {
		cuts[i] *= by
	}
	return cuts
}

// identity maps the columns of a result to [from, from+n), padding to -1.
func identity(from, n int) func(int32) int {
	return func(c int32) int {
		if int(c) >= n {
			return -1
		}
		return from + int(c)
	}
}

// headColumns maps the columns of heads padded to 16 to the projection's columns.
func headColumns(from, heads, width int) func(int32) int {
	padded := (width + 15) / 16 * 16
	return func(c int32) int {
		h, w := int(c)/padded, int(c)%padded
		if h >= heads || w >= width {
			return -1
		}
		return from + h*width + w
	}
}

// columnMap turns a tensor's Columns into a function.
func columnMap(columns []int32, logical int) func(int32) int {
	if columns == nil {
		return identity(0, logical)
	}
	return func(c int32) int {
		if int(c) >= len(columns) {
			return -1
		}
		return int(columns[c])
	}
}

// left brings the left operand to a grid: blocks (m, k), each on the tiles of its
// column parts. It sets the cuts of the contraction and returns the map from its
// columns to the rows of the weights.
func (l *lowering) left(n *Linear, g Grid, cuts *gridCuts, op int32) (*Tensor, func(int32) int, error) {
	form, _ := forms(n.GEMM)
	grain := form.Grain
	inner := n.Weight.Shape[0]
	blocks := func(f layout.Form, cols int32) *Tensor {
		t := &Tensor{Rows: cuts.rows[g.M], Cols: cols, Form: f}
		for m := range g.M {
			for k := range g.K {
				tiles := make([]int32, g.N)
				for i := range tiles {
					tiles[i] = g.tile(m, i, k, l.p.Tiles)
				}
				t.add(layout.NewBlock(f, layout.Rect{R0: cuts.rows[m], R1: cuts.rows[m+1],
					C0: cuts.inner[k], C1: min(cuts.inner[k+1], cols)}), tiles...)
			}
		}
		return t
	}
	setInner := func(cols int32) {
		cuts.inner = scale(layout.Cuts(int((cols+grain-1)/grain), g.K), grain)
	}
	if n.In.Op == graph.Parameter || n.In.Op == graph.Input {
		setInner(int32(inner))
		source := rowsOf(n.In)
		element := func(r, c int32) int {
			if int(c) >= inner {
				return -1
			}
			return int(r)%source*inner + int(c)
		}
		if n.In.Op == graph.Parameter || n.GEMM.Precision != graph.F8 {
			t := blocks(form, int32(inner))
			l.place(t, 32, 16, place.Standard)
			l.host(t, n.In, n.GEMM.Scale, element)
			return t, identity(0, inner), nil
		}
		// The input arrives in F16; quantising it is the device's work.
		raw := blocks(layout.Left16, int32(inner))
		l.place(raw, 8, 0, place.Standard)
		l.host(raw, n.In, 0, element)
		t := blocks(form, int32(inner))
		l.place(t, 32, 16, place.Standard)
		cast := l.operation(n.In.Name, "cast")
		for i := range raw.Blocks {
			for j, tile := range raw.Tiles[i] {
				l.call(0, tile, cast, program.KernelCastPanels, raw.Places[i][j], t.Places[i][j],
					Imm(raw.Blocks[i].Rows), Imm(raw.Blocks[i].Cols), Imm(int32(n.GEMM.Scale)))
			}
		}
		return t, identity(0, inner), nil
	}
	x, err := l.operand(n.In, n.GEMM)
	if err != nil {
		return nil, nil, err
	}
	setInner(x.Cols)
	t := blocks(form, x.Cols)
	l.place(t, 32, 16, place.Standard)
	l.move(x, t, exchangeSlot(x), op, true)
	return t, columnMap(x.Columns, inner), nil
}

// weights puts the right operand of a linear step where it is used: blocks (n, k),
// each on the tiles of its row parts. inner maps the contraction to the rows of the
// parameter, outer the result's columns to its columns. Moved weights travel in an
// exchange slot, that of the left operand.
func (l *lowering) weights(n *Linear, g Grid, cuts *gridCuts, inner, outer func(int32) int, slot, op int32) *Tensor {
	_, form := forms(n.GEMM)
	t := &Tensor{Rows: cuts.cols[g.N], Cols: cuts.inner[g.K], Form: form}
	for i := range g.N {
		for k := range g.K {
			tiles := make([]int32, g.M)
			for m := range tiles {
				tiles[m] = g.tile(m, i, k, l.p.Tiles)
			}
			t.add(layout.NewBlock(form, layout.Rect{R0: cuts.cols[i], R1: cuts.cols[i+1],
				C0: cuts.inner[k], C1: cuts.inner[k+1]}), tiles...)
		}
	}
	l.place(t, 32, 0, place.Interleaved)
	l.weigh(t, n, g.Moved && g.M > 1, inner, outer, slot, op)
	return t
}

// weightSlot is the exchange slot in which moved weights travel: the one after the
// activations. The two are multicast in groups that cross each other; in one phase
// each would wait for receivers that the other holds.
func weightSlot(activations *Tensor) int32 {
	if activations.Ready == 0 {
		return 1
	}
	return exchangeSlot(activations)
}

// weigh fills a placed weight operand: by the host, or in an exchange slot from
// parts that the host put on the tiles of each block. The matrix of the operand has
// the parameter's columns as rows (outer) and the contraction as columns (inner).
func (l *lowering) weigh(t *Tensor, n *Linear, moved bool, inner, outer func(int32) int, slot, op int32) {
	width := n.Weight.Shape[1]
	element := func(r, c int32) int {
		i, o := inner(c), outer(r)
		if i < 0 || o < 0 {
			return -1
		}
		return i*width + o
	}
	if !moved {
		l.host(t, n.Weight, n.GEMM.Scale, element)
		return
	}
	home := &Tensor{Rows: t.Rows, Cols: t.Cols, Form: t.Form}
	for i := range t.Blocks {
		cuts := layout.Cuts(int(layout.Units(t.Form, &t.Blocks[i])), len(t.Tiles[i]))
		for j, tile := range t.Tiles[i] {
			if cuts[j] == cuts[j+1] {
				continue
			}
			blocks := layout.Part(t.Form, &t.Blocks[i], cuts[j], cuts[j+1])
			bytes := int32(0)
			for k := range blocks {
				bytes += blocks[k].Bytes(t.Form)
			}
			buffer, offset := l.buffer(tile, bytes, 8, place.Standard), uint32(0)
			for k := range blocks {
				home.add(blocks[k], tile)
				home.Places = append(home.Places, []Ref{{buffer, offset}})
				offset += uint32(blocks[k].Bytes(t.Form))
			}
		}
	}
	l.host(home, n.Weight, n.GEMM.Scale, element)
	l.move(home, t, slot, op, false)
}

// multiply runs the GEMM of each tile of a grid and returns its K partial results,
// each of blocks (m, n) on one tile. left has blocks (m, k), right (n, k).
func (l *lowering) multiply(op int32, g Grid, cuts gridCuts, left, right *Tensor, gemm *graph.Value) []*Tensor {
	slot := computeSlot(left, right)
	flags, exponent := int32(0), int32(0)
	if gemm != nil && gemm.Precision == graph.F8 {
		flags, exponent = program.GEMMF8, int32(2*gemm.Scale)
	}
	parts := make([]*Tensor, g.K)
	for k := range parts {
		t := &Tensor{Rows: cuts.rows[len(cuts.rows)-1], Cols: cuts.cols[len(cuts.cols)-1], Form: layout.Left16, Ready: slot}
		for m := range g.M {
			for n := range g.N {
				t.add(layout.NewBlock(t.Form, layout.Rect{R0: cuts.rows[m], R1: cuts.rows[m+1],
					C0: cuts.cols[n], C1: cuts.cols[n+1]}), g.tile(m, n, k, l.p.Tiles))
			}
		}
		l.place(t, 32, 0, place.Interleaved)
		for m := range g.M {
			for n := range g.N {
				a, w, c := left.Places[m*g.K+k][n], right.Places[n*g.K+k][m], t.Places[m*g.N+n][0]
				l.gemm(slot, t.Tiles[m*g.N+n][0], op, a, w, c, &left.Blocks[m*g.K+k], &right.Blocks[n*g.K+k], left.Form.Grain, flags, exponent)
			}
		}
		parts[k] = t
	}
	return parts
}

// gemm calls the kernel on one tile. The left stream and the result must not
// share an element.
func (l *lowering) gemm(slot, tile, op int32, a, w, c Ref, left, right *layout.Block, grain, flags, exponent int32) {
	l.separate(a, c)
	l.call(slot, tile, op, program.KernelGEMM, a, w, c,
		Imm(left.Rows), Imm(right.Cols/grain), Imm(right.Rows/16), Imm(flags), Imm(exponent))
}

// bias is a vector that is added along the columns or the rows of a result.
type bias struct {
	value   *graph.Value
	element func(r, c int32) int
}

func (l *lowering) columnBias(n *Linear, outer func(int32) int) *bias {
	if n.Bias == nil {
		return nil
	}
	return &bias{n.Bias, func(_, c int32) int { return outer(c) }}
}

// hostLike gives a tensor of a parameter laid out like t, span by span.
func (l *lowering) hostLike(t *Tensor, v *graph.Value, element func(r, c int32) int) *Tensor {
	h, _ := l.like(t, 2, 8, 0)
	l.host(h, v, 0, element)
	return h
}

// finishSlices reduces partial results where they lie and adds bias and GELU. Each
// of the K tiles that share a block reduces one K-th of it: a contiguous range of
// its panels, so the tile's own partial is used in place.
func (l *lowering) finishSlices(name string, parts []*Tensor, add *bias, gelu, pairs bool) *Tensor {
	out := parts[0]
	slot := computeSlot(parts...)
	if len(parts) > 1 {
		out = l.scatter(name, parts, add, gelu, pairs)
		slot = out.Ready
	} else if add != nil && !gelu {
		op := l.operation(name, "bias")
		b := l.hostLike(out, add.value, add.element)
		for _, s := range out.spans() {
			l.call(slot, s.tile, op, program.KernelAdd, s.ref, b.placeOf(s), s.ref, Imm(s.elements))
		}
	}
	if !gelu {
		return out
	}
	op := l.operation(name, "gelu")
	if add == nil {
		for _, s := range out.spans() {
			l.call(slot, s.tile, op, program.KernelGELU, s.ref, s.ref, Imm(s.elements), Imm(0), Imm(0))
		}
		return out
	}
	b := l.hostLike(out, add.value, add.element)
	for _, s := range out.spans() {
		l.call(slot, s.tile, op, program.KernelBiasGELU, s.ref, b.placeOf(s), s.ref, Imm(1), Imm(s.elements), Imm(0), Imm(0))
	}
	return out
}

// sliceCuts splits a block between the tiles of its partials, at panels (or pairs
// of panels) where there are enough of them.
func sliceCuts(block *layout.Block, parts int, pairs bool) []int32 {
	panels := int(block.Cols / 16)
	if pairs && panels/2 >= parts {
		return scale(layout.Cuts(panels/2, parts), 2*block.Rows)
	}
	if panels >= parts {
		return scale(layout.Cuts(panels, parts), block.Rows)
	}
	return layout.Cuts(panels*int(block.Rows), parts)
}

// scatter is the reduce-scatter of finishSlices: every tile gathers the other
// partials of its slice and adds them to its own. The bias is fused unless GELU
// takes it.
func (l *lowering) scatter(name string, parts []*Tensor, add *bias, gelu, pairs bool) *Tensor {
	count := len(parts)
	slot := exchangeSlot(parts...)
	op := l.operation(name, "partials")
	out := &Tensor{Rows: parts[0].Rows, Cols: parts[0].Cols, Form: layout.Left16, Ready: slot + 1}
	type job struct {
		tile          int32
		local, gather Ref
		n             int32
		first         int // block of out
	}
	var jobs []job
	incoming := make([]*Tensor, count)
	for j := range incoming {
		incoming[j] = &Tensor{Rows: out.Rows, Cols: out.Cols, Form: layout.Left16}
	}
	for i := range parts[0].Blocks {
		block := &parts[0].Blocks[i]
		cuts := sliceCuts(block, count, pairs)
		for k := range count {
			u0, u1 := cuts[k], cuts[k+1]
			if u0 == u1 {
				continue
			}
			tile := parts[k].Tiles[i][0]
			n := (u1 - u0) * 16
			local := parts[k].Places[i][0]
			local.Offset += uint32(u0 * 32)
			gather := Ref{Buffer: l.buffer(tile, n*2*int32(count-1), 8, place.Standard)}
			jobs = append(jobs, job{tile, local, gather, n, len(out.Blocks)})
			result := Ref{Buffer: l.buffer(tile, n*2, 8, place.Standard)}
			offset := uint32(0)
			for _, s := range layout.Part(layout.Left16, block, u0, u1) {
				out.add(s, tile)
				out.Places = append(out.Places, []Ref{{result.Buffer, offset}})
				at := uint32(0)
				for j := range count {
					if j == k {
						continue
					}
					incoming[j].add(s, tile)
					incoming[j].Places = append(incoming[j].Places, []Ref{{gather.Buffer, at + offset}})
					at += uint32(n * 2)
				}
				offset += uint32(s.Bytes(layout.Left16))
			}
		}
	}
	for j := range parts {
		l.move(parts[j], incoming[j], slot, op, false)
	}
	var b *Tensor
	flags := int32(0)
	if add != nil && !gelu {
		b = l.hostLike(out, add.value, add.element)
		flags = program.ReduceAddA
	}
	for _, j := range jobs {
		a := Imm(0)
		if b != nil {
			a = b.Places[j.first][0]
		}
		l.call(slot+1, j.tile, op, program.KernelReduce, j.local, j.gather, Imm(j.n*2), Imm(int32(count-1)),
			out.Places[j.first][0], Imm(j.n), Imm(flags), a, Imm(0), Imm(0))
	}
	return out
}

// finishRows gathers all partials of whole rows on their owners, reduces them
// there and adds bias, GELU, positions and residual, in this order.
func (l *lowering) finishRows(n *Linear, o Owners, parts []*Tensor, cols int) error {
	slot := exchangeSlot(parts...)
	op := l.operation(n.Out.Name, "rows")
	width := int32(cols)
	rows := int(parts[0].Rows)
	out := &Tensor{Rows: int32(rows), Cols: width, Form: layout.Rows16, Ready: slot + 1}
	for i, r := 0, 0; r < rows; i, r = i+1, r+o.PerTile {
		out.add(layout.NewBlock(out.Form, layout.Rect{R0: int32(r), R1: int32(min(r+o.PerTile, rows)), C1: width}),
			int32((o.Base+i*o.Stride)%l.p.Tiles))
	}
	l.place(out, 8, 0, place.Standard)
	gathers := make([]Ref, len(out.Blocks))
	for i := range out.Blocks {
		gathers[i] = Ref{Buffer: l.buffer(out.Tiles[i][0], out.Blocks[i].Bytes(out.Form)*int32(len(parts)), 8, place.Standard)}
	}
	for k, p := range parts {
		in := &Tensor{Rows: out.Rows, Cols: width, Form: out.Form, Blocks: out.Blocks, Tiles: out.Tiles}
		for i := range out.Blocks {
			in.Places = append(in.Places, []Ref{{gathers[i].Buffer, uint32(int32(k) * out.Blocks[i].Bytes(out.Form))}})
		}
		l.move(p, in, slot, op, false)
	}
	var a map[int32]Ref
	var b *Tensor
	flags := int32(0)
	if n.Bias != nil {
		a = l.rowParameter(out, n.Bias)
		flags |= program.ReduceAddA
	}
	switch {
	case n.Position != nil:
		period := int32(n.Position.Elements() / cols)
		b = l.hostLike(out, n.Position, func(r, c int32) int { return int(r%period)*cols + int(c) })
		flags |= program.ReduceAddB
	case n.Residual != nil:
		x := l.values[n.Residual]
		if x == nil {
			return missing(n.Out.Name, "residual "+n.Residual.Name+" made before it")
		}
		b = l.rowsLike(x.f16, out, slot, op)
		flags |= program.ReduceAddB
	}
	// GELU comes before positions and residual, which then need a kernel of their own.
	if n.GELU {
		flags = flags&^program.ReduceAddB | program.ReduceGELU
	}
	// Row by row, so that one row of the bias serves all rows of an owner.
	for i := range out.Blocks {
		tile, bytes := out.Tiles[i][0], out.Blocks[i].Bytes(out.Form)
		for r := range out.Blocks[i].Rows {
			row := func(p Ref) Ref { return Ref{p.Buffer, p.Offset + uint32(r*width*2)} }
			args := []Ref{Imm(0), row(gathers[i]), Imm(bytes), Imm(int32(len(parts))), row(out.Places[i][0]),
				Imm(width), Imm(flags), Imm(0), Imm(0), Imm(0)}
			if a != nil {
				args[7] = a[tile]
			}
			if b != nil && !n.GELU {
				args[8] = row(b.Places[i][0])
			}
			l.call(slot+1, tile, op, program.KernelReduce, args...)
		}
		if b != nil && n.GELU {
			l.call(slot+1, tile, op, program.KernelAdd, out.Places[i][0], b.Places[i][0], out.Places[i][0], Imm(out.Blocks[i].Rows*width))
		}
	}
	l.values[n.Out] = &activation{f16: out}
	return nil
}

// rowsLike returns x where the rows of out lie, moving it only if it is elsewhere.
func (l *lowering) rowsLike(x, out *Tensor, slot, op int32) *Tensor {
	same := x.Form == out.Form && len(x.Blocks) == len(out.Blocks)
	for i := 0; same && i < len(x.Blocks); i++ {
		same = x.Blocks[i] == out.Blocks[i] && x.Tiles[i][0] == out.Tiles[i][0]
	}
	if same {
		return x
	}
	t := &Tensor{Rows: out.Rows, Cols: out.Cols, Form: out.Form, Blocks: out.Blocks, Tiles: out.Tiles}
	l.place(t, 8, 0, place.Standard)
	l.move(x, t, slot, op, false)
	return t
}
