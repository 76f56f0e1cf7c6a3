package lower

import (
	"math"

	"ipufarm/compiler/layout"
	"ipufarm/compiler/place"
	"ipufarm/protocol/program"
)

// attend lowers attention with its projections.
//
// Heads are padded to 16 columns, so that a head's channels are whole panels of
// the projection's native output, and those are coefficient panels of K. V is
// made transposed, channels by keys, by swapping the roles of weights and
// activations: its native output panels are the coefficient panels of the second
// product, and nothing has to be packed.
func (l *lowering) attend(a *Attend, c *Choice) error {
	q, k, v, err := l.operands(a, c)
	if err != nil {
		return err
	}
	s := l.scores(a, c.Attend, q, k)
	p, sums := l.softmax(a, c.Attend, s)
	l.values[a.Out] = &activation{f16: l.weighted(a, c.Attend, p, sums, v)}
	return nil
}

// operands makes Q and K, rows by padded heads, and V transposed.
func (l *lowering) operands(a *Attend, c *Choice) (q, k, v *Tensor, err error) {
	if a.Given != nil {
		return l.given(a, 0, a.Queries), l.given(a, 1, a.Keys), l.givenTransposed(a), nil
	}
	k, slot, err := l.projection(a.K, a, *c.K, 0)
	if err != nil {
		return nil, nil, nil, err
	}
	// Queries of a parameter (a learned probe) depend on nothing: they are made
	// beside the keys, not at the start, where their tiles may be busy.
	q, _, err = l.projection(a.Q, a, *c.Q, slot)
	if err != nil {
		return nil, nil, nil, err
	}
	v, err = l.transposed(a.V, a, *c.V)
	return q, k, v, err
}

// given delivers Q or K as the host has them, a head of an image and up to 64 rows
// on a tile.
func (l *lowering) given(a *Attend, operand, tokens int) *Tensor {
	width := int32(pad16(a.Width))
	t := &Tensor{Rows: int32(a.Batch * tokens), Cols: int32(a.Heads) * width, Form: layout.Left16}
	a.streams(func(_, image, head int) {
		for r := 0; r < tokens; r += 64 {
			t.add(layout.NewBlock(t.Form, layout.Rect{R0: int32(image*tokens + r), R1: int32(image*tokens + min(r+64, tokens)),
				C0: int32(head) * width, C1: int32(head+1) * width}), int32(len(t.Blocks)%l.p.Tiles))
		}
	})
	l.place(t, 8, 0, place.Standard)
	l.host(t, a.Given[operand], 0, func(r, c int32) int {
		head, w := int(c/width), int(c%width)
		if w >= a.Width {
			return -1
		}
		return ((int(r)/tokens*a.Heads+head)*tokens+int(r)%tokens)*a.Width + w
	})
	return t
}

// givenTransposed delivers V as channels by keys, a head of an image on a tile.
func (l *lowering) givenTransposed(a *Attend) *Tensor {
	width, keys := int32(pad16(a.Width)), int32(pad16(a.Keys))
	t := &Tensor{Rows: int32(a.Heads) * width, Cols: int32(a.Batch) * keys, Form: layout.Left16}
	a.streams(func(s, image, head int) {
		t.add(layout.NewBlock(t.Form, layout.Rect{R0: int32(head) * width, R1: int32(head+1) * width,
			C0: int32(image) * keys, C1: int32(image+1) * keys}), int32(s%l.p.Tiles))
	})
	l.place(t, 8, 0, place.Standard)
	l.host(t, a.Given[2], 0, func(r, c int32) int {
		head, w, image, token := int(r/width), int(r%width), int(c/keys), int(c%keys)
		if w >= a.Width || token >= a.Keys {
			return -1
		}
		return ((image*a.Heads+head)*a.Keys+token)*a.Width + w
	})
	return t
}

func pad16(n int) int { return (n + 15) &^ 15 }

// projection makes Q or K: rows by padded heads, not before a slot. It returns the
// slot of the GEMM too.
func (l *lowering) projection(n *Linear, a *Attend, g Grid, notBefore int32) (*Tensor, int32, error) {
	op := l.operation(n.GEMM.Name, "gemm")
	cols := a.Heads * pad16(a.Width)
	outer := headColumns(n.From, a.Heads, a.Width)
	cuts := gridCuts{rows: layout.Cuts(rowsOf(n.GEMM), g.M), cols: scale(layout.Cuts(cols/16, g.N), 16)}
	left, inner, err := l.left(n, g, &cuts, op)
	if err != nil {
		return nil, 0, err
	}
	left.Ready = max(left.Ready, notBefore)
	right := l.weights(n, g, &cuts, inner, outer, weightSlot(left), op)
	parts := l.multiply(op, g, cuts, left, right, n.GEMM)
	return l.finishSlices(n.Out.Name, parts, l.columnBias(n, outer), false, false), parts[0].Ready, nil
}

// transposed makes V with padded heads as rows and the keys of each image, padded
// to 16, as columns. g.M parts the channels, g.N the keys: as many parts for each
// image, so g.N is a multiple of the batch.
func (l *lowering) transposed(n *Linear, a *Attend, g Grid) (*Tensor, error) {
	op := l.operation(n.GEMM.Name, "gemm")
	leftForm, rightForm := forms(n.GEMM)
	x, err := l.operand(n.In, n.GEMM)
	if err != nil {
		return nil, err
	}
	keys, perImage := pad16(a.Keys), g.N/a.Batch
	outer := headColumns(n.From, a.Heads, a.Width)
	inner := columnMap(x.Columns, n.Weight.Shape[0])
	panels := layout.Cuts(keys/16, perImage)
	cuts := gridCuts{
		rows:  layout.Cuts(a.Heads*pad16(a.Width), g.M),
		inner: scale(layout.Cuts(int((x.Cols+leftForm.Grain-1)/leftForm.Grain), g.K), leftForm.Grain),
		cols:  []int32{0},
	}
	right := &Tensor{Rows: x.Rows, Cols: x.Cols, Form: rightForm}
	for i := range a.Batch {
		for j := range perImage {
			from, to := int(panels[j])*16, int(panels[j+1])*16
			cuts.cols = append(cuts.cols, int32(i*keys+to))
			for k := range g.K {
				tiles := make([]int32, g.M)
				for m := range tiles {
					tiles[m] = g.tile(m, i*perImage+j, k, l.p.Tiles)
				}
				b := layout.NewBlock(rightForm, layout.Rect{
					R0: int32(i*a.Keys + from), R1: int32(i*a.Keys + min(to, a.Keys)),
					C0: cuts.inner[k], C1: min(cuts.inner[k+1], x.Cols)})
				b.Rows, b.Cols = int32(to-from), cuts.inner[k+1]-cuts.inner[k]
				right.add(b, tiles...)
			}
		}
	}
	l.place(right, 32, 0, place.Interleaved)
	l.move(x, right, exchangeSlot(x), op, true)

	left := &Tensor{Rows: cuts.rows[g.M], Cols: cuts.inner[g.K], Form: leftForm}
	for m := range g.M {
		for k := range g.K {
			tiles := make([]int32, g.N)
			for j := range tiles {
				tiles[j] = g.tile(m, j, k, l.p.Tiles)
			}
			left.add(layout.NewBlock(leftForm, layout.Rect{R0: cuts.rows[m], R1: cuts.rows[m+1],
				C0: cuts.inner[k], C1: cuts.inner[k+1]}), tiles...)
		}
	}
	l.place(left, 32, 16, place.Standard)
	l.weigh(left, n, g.Moved && g.N > 1, inner, outer, weightSlot(right), op)
	parts := l.multiply(op, g, cuts, left, right, n.GEMM)
	var add *bias
	if n.Bias != nil {
		add = &bias{n.Bias, func(r, _ int32) int { return outer(r) }}
	}
	return l.finishSlices(n.Out.Name+".transposed", parts, add, false, false), nil
}

// scores makes Q·Kᵀ of each stream: rows are (image, head, query), columns keys
// padded to 16.
func (l *lowering) scores(a *Attend, c *Scores, q, k *Tensor) *Tensor {
	op := l.operation(a.Attention.Name, "scores")
	width, keys := int32(pad16(a.Width)), int32(pad16(a.Keys))
	rowCuts, colCuts := layout.Cuts(a.Queries, c.QM), scale(layout.Cuts(int(keys/16), c.QN), 16)
	left := &Tensor{Rows: q.Rows, Cols: q.Cols, Form: layout.Left16}
	right := &Tensor{Rows: k.Rows, Cols: k.Cols, Form: layout.Right16}
	out := &Tensor{Rows: int32(a.Batch * a.Heads * a.Queries), Cols: keys, Form: layout.Left16}
	a.streams(func(s, image, head int) {
		g := Grid{M: c.QM, N: c.QN, K: 1, Base: c.ScoreBase + s*c.QM*c.QN}
		h := int32(head) * width
		for m := range c.QM {
			r0, r1 := rowCuts[m], rowCuts[m+1]
			base := int32(image * a.Queries)
			tiles := make([]int32, c.QN)
			for n := range tiles {
				tiles[n] = g.tile(m, n, 0, l.p.Tiles)
				out.add(layout.NewBlock(out.Form, layout.Rect{R0: int32(s*a.Queries) + r0, R1: int32(s*a.Queries) + r1,
					C0: colCuts[n], C1: colCuts[n+1]}), tiles[n])
			}
			left.add(layout.NewBlock(left.Form, layout.Rect{R0: base + r0, R1: base + r1, C0: h, C1: h + width}), tiles...)
		}
		for n := range c.QN {
			base := int32(image * a.Keys)
			tiles := make([]int32, c.QM)
			for m := range tiles {
				tiles[m] = g.tile(m, n, 0, l.p.Tiles)
			}
			b := layout.NewBlock(right.Form, layout.Rect{R0: base + colCuts[n], R1: base + min(colCuts[n+1], int32(a.Keys)), C0: h, C1: h + width})
			b.Rows = colCuts[n+1] - colCuts[n]
			right.add(b, tiles...)
		}
	})
	l.place(left, 32, 16, place.Standard)
	l.place(right, 32, 0, place.Interleaved)
	l.place(out, 32, 0, place.Interleaved)
	slot := exchangeSlot(q, k)
	l.move(q, left, slot, op, false)
	l.move(k, right, slot, op, true)
	out.Ready = computeSlot(left, right)
	streams := a.Batch * a.Heads
	for s := range streams {
		for m := range c.QM {
			for n := range c.QN {
				i := (s*c.QM+m)*c.QN + n
				l.gemm(out.Ready, out.Tiles[i][0], op, left.Places[s*c.QM+m][n], right.Places[s*c.QN+n][m], out.Places[i][0],
					&left.Blocks[s*c.QM+m], &right.Blocks[s*c.QN+n], 16, 0, 0)
			}
		}
	}
	return out
}

// streams visits the heads of the images.
func (a *Attend) streams(visit func(stream, image, head int)) {
	for i := range a.Batch {
		for h := range a.Heads {
			visit(i*a.Heads+h, i, h)
		}
	}
}

// softmax makes the exponentials of whole rows and their sums: on the tiles of the
// scores if those hold whole rows, else on owners of rows.
func (l *lowering) softmax(a *Attend, c *Scores, s *Tensor) (p, sums *Tensor) {
	op := l.operation(a.Attention.Name, "softmax")
	keys := s.Cols
	in := &Tensor{Rows: s.Rows, Cols: keys, Form: layout.Rows16}
	switch {
	case c.QN == 1:
		in.Ready = s.Ready
		for i, b := range s.Blocks {
			in.add(layout.NewBlock(in.Form, b.Rect), s.Tiles[i]...)
		}
		if keys == 16 { // one panel is row-major as it is
			in.Places = s.Places
			break
		}
		l.place(in, 8, 0, place.Standard)
		for i := range s.Blocks {
			l.call(in.Ready, s.Tiles[i][0], op, program.KernelUnpack, s.Places[i][0], in.Places[i][0],
				Imm(s.Blocks[i].Rows), Imm(keys), Imm(keys))
		}
	default:
		cuts := layout.Cuts(a.Queries, c.Softmax)
		a.streams(func(stream, _, _ int) {
			for m := range c.Softmax {
				base := int32(stream * a.Queries)
				in.add(layout.NewBlock(in.Form, layout.Rect{R0: base + cuts[m], R1: base + cuts[m+1], C1: keys}),
					int32((c.SoftmaxBase+stream*c.Softmax+m)%l.p.Tiles))
			}
		})
		l.place(in, 8, 0, place.Standard)
		l.move(s, in, exchangeSlot(s), op, false)
	}
	p = &Tensor{Rows: in.Rows, Cols: keys, Form: layout.Rows16, Blocks: in.Blocks, Tiles: in.Tiles}
	l.place(p, 32, 16, place.Standard)
	sums = &Tensor{Rows: in.Rows, Cols: 1, Form: layout.Rows32}
	for i, b := range in.Blocks {
		sums.add(layout.NewBlock(sums.Form, layout.Rect{R0: b.R0, R1: b.R1, C1: 1}), in.Tiles[i]...)
	}
	l.place(sums, 8, 0, place.Standard)
	slot := computeSlot(in)
	p.Ready, sums.Ready = slot, slot
	factor := Imm(int32(math.Float32bits(float32(1 / math.Sqrt(float64(a.Width))))))
	for i := range in.Blocks {
		l.call(slot, in.Tiles[i][0], op, program.KernelSoftmax, in.Places[i][0], p.Places[i][0], sums.Places[i][0],
			Imm(in.Blocks[i].Rows), Imm(int32(a.Keys)), Imm(keys), factor)
	}
	return p, sums
}

// weighted makes P·V of each stream, divides by the sums and puts the heads side by
// side: rows of tokens by padded heads.
func (l *lowering) weighted(a *Attend, c *Scores, p, sums, v *Tensor) *Tensor {
	op := l.operation(a.Attention.Name, "values")
	width, keys := int32(pad16(a.Width)), p.Cols
	rowCuts := layout.Cuts(a.Queries, c.PM)
	colCuts := scale(layout.Cuts(int(width/16), c.PN), 16)
	keyCuts := scale(layout.Cuts(int(keys/16), c.PK), 16)
	left := &Tensor{Rows: p.Rows, Cols: keys, Form: layout.Left16}
	right := &Tensor{Rows: v.Rows, Cols: v.Cols, Form: layout.Right16}
	parts := make([]*Tensor, c.PK)
	for k := range parts {
		parts[k] = &Tensor{Rows: int32(a.Batch * a.Queries), Cols: int32(a.Heads) * width, Form: layout.Left16}
	}
	a.streams(func(s, image, head int) {
		g := Grid{M: c.PM, N: c.PN, K: c.PK, Base: c.ValueBase + s*c.PM*c.PN*c.PK}
		h, row := int32(head)*width, int32(s*a.Queries)
		for m := range c.PM {
			for k := range c.PK {
				tiles := make([]int32, c.PN)
				for n := range tiles {
					tiles[n] = g.tile(m, n, k, l.p.Tiles)
				}
				left.add(layout.NewBlock(left.Form, layout.Rect{R0: row + rowCuts[m], R1: row + rowCuts[m+1],
					C0: keyCuts[k], C1: keyCuts[k+1]}), tiles...)
			}
			for n := range c.PN {
				base := int32(image * a.Queries)
				for k := range c.PK {
					parts[k].add(layout.NewBlock(layout.Left16, layout.Rect{R0: base + rowCuts[m], R1: base + rowCuts[m+1],
						C0: h + colCuts[n], C1: h + colCuts[n+1]}), g.tile(m, n, k, l.p.Tiles))
				}
			}
		}
		for n := range c.PN {
			for k := range c.PK {
				tiles := make([]int32, c.PM)
				for m := range tiles {
					tiles[m] = g.tile(m, n, k, l.p.Tiles)
				}
				base := int32(image) * keys
				right.add(layout.NewBlock(right.Form, layout.Rect{R0: h + colCuts[n], R1: h + colCuts[n+1],
					C0: base + keyCuts[k], C1: base + keyCuts[k+1]}), tiles...)
			}
		}
	})
	slot := exchangeSlot(p, v)
	l.place(right, 32, 0, place.Interleaved)
	l.move(v, right, slot, op, true)
	if !l.inPlace(p, left) {
		l.place(left, 32, 16, place.Standard)
		l.move(p, left, slot, op, false)
	}
	ready := computeSlot(left, right)
	streams := a.Batch * a.Heads
	for k, t := range parts {
		t.Ready = ready
		l.place(t, 32, 0, place.Interleaved)
		for s := range streams {
			for m := range c.PM {
				for n := range c.PN {
					i := (s*c.PM+m)*c.PN + n
					x, w := (s*c.PM+m)*c.PK+k, (s*c.PN+n)*c.PK+k
					l.gemm(ready, t.Tiles[i][0], op, left.Places[x][n], right.Places[w][m], t.Places[i][0],
						&left.Blocks[x], &right.Blocks[w], 16, 0, 0)
				}
			}
		}
	}
	out := l.finishSlices(a.Out.Name, parts, nil, false, false)
	l.normalise(a, out, sums)
	out.Columns = make([]int32, out.Cols)
	outer := headColumns(0, a.Heads, a.Width)
	for i := range out.Columns {
		out.Columns[i] = int32(outer(int32(i)))
	}
	return out
}

// inPlace uses the rows of p as left operands where they are, if every block is on
// the one tile that needs it and a single panel wide, which is the same order.
func (l *lowering) inPlace(p, left *Tensor) bool {
	if len(p.Blocks) != len(left.Blocks) || p.Cols != 16 {
		return false
	}
	for i := range p.Blocks {
		if p.Blocks[i].Rect != left.Blocks[i].Rect || len(left.Tiles[i]) != 1 || left.Tiles[i][0] != p.Tiles[i][0] {
			return false
		}
	}
	left.Places, left.Ready = p.Places, p.Ready
	return true
}

// normalise divides the rows of each block by their sums, in place. The sums travel
// with the probabilities, a phase before they are needed.
func (l *lowering) normalise(a *Attend, out, sums *Tensor) {
	op := l.operation(a.Attention.Name, "normalise")
	width := int32(pad16(a.Width))
	need := &Tensor{Rows: sums.Rows, Cols: 1, Form: layout.Rows32}
	for i := range out.Blocks {
		b := &out.Blocks[i]
		// A block lies in one head: slices are cut from blocks of one stream.
		image, head := int(b.R0)/a.Queries, int(b.C0/width)
		shift := int32((image*a.Heads+head)*a.Queries - image*a.Queries)
		need.add(layout.NewBlock(need.Form, layout.Rect{R0: b.R0 + shift, R1: b.R1 + shift, C1: 1}), out.Tiles[i]...)
	}
	if !l.sameRows(sums, need) {
		l.place(need, 8, 0, place.Standard)
		l.move(sums, need, exchangeSlot(sums), op, false)
	}
	slot := max(out.Ready, computeSlot(need))
	out.Ready = slot
	for i := range out.Blocks {
		b := &out.Blocks[i]
		for j, tile := range out.Tiles[i] {
			l.call(slot, tile, op, program.KernelNormalise, out.Places[i][j], need.Places[i][j], out.Places[i][j],
				Imm(b.Rows), Imm(b.Cols), Imm(program.NormalisePanels), Imm(0))
		}
	}
}

// sameRows uses the sums where they are if every block is already there.
func (l *lowering) sameRows(sums, need *Tensor) bool {
	if len(sums.Blocks) != len(need.Blocks) {
		return false
	}
	for i := range sums.Blocks {
		if sums.Blocks[i] != need.Blocks[i] || sums.Tiles[i][0] != need.Tiles[i][0] {
			return false
		}
	}
	need.Places, need.Ready = sums.Places, sums.Ready
	return true
}
