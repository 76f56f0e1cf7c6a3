// Package layout says who owns which elements of a matrix, and in which order
// they lie in a tile's memory. It answers the two questions that everything
// after planning is built on: which blocks hold a region, and which byte runs
// carry it from one block to another.
//
// Every tensor of a plan is a two-dimensional matrix: rows are tokens (all
// images of a batch below each other) or channels, columns the rest. A layout is
// a list of blocks, each a rectangle of the matrix held by one or more tiles.
// Columns may be padded: a matrix is as wide as its operands need, and who
// produces it guarantees what the padding holds.
package layout

import "sort"

// Order is the order of a block's elements in memory.
type Order uint8

const (
	// RowMajor: r*cols + c.
	RowMajor Order = iota
	// Panels of Grain columns, rows contiguous within one: ((c/g)*rows + r)*g + c%g.
	// F16 AMP-left and native GEMM output are Panels with Grain 16, FP8 AMP-left 32.
	Panels
	// Coefficient: the right operand of a GEMM as the N × K matrix of its columns:
	// 16 rows by Grain columns a panel, ((r/16)*(cols/g) + c/g)*16*g + (r%16)*g + c%g.
	// A panel of it is 16 rows of a Panels block, so transposed operands need no packing.
	Coefficient
)

// Form is how a block's elements are stored.
type Form struct {
	Order Order
	Grain int32 // columns of a panel; 0 for RowMajor
	Elem  int32 // bytes of an element
}

// Forms that occur in more than one place.
var (
	Rows16  = Form{Order: RowMajor, Elem: 2}
	Rows8   = Form{Order: RowMajor, Elem: 1}
	Rows32  = Form{Order: RowMajor, Elem: 4}
	Left16  = Form{Order: Panels, Grain: 16, Elem: 2}
	Left8   = Form{Order: Panels, Grain: 32, Elem: 1}
	Right16 = Form{Order: Coefficient, Grain: 16, Elem: 2}
	Right8  = Form{Order: Coefficient, Grain: 32, Elem: 1}
	// Half8 is what a conversion of Left16 to FP8 in place of each element gives.
	Half8 = Form{Order: Panels, Grain: 16, Elem: 1}
)

// Rect is the half-open region [R0, R1) × [C0, C1) of a matrix.
type Rect struct{ R0, R1, C0, C1 int32 }

// Empty reports whether no element lies in the region.
func (r Rect) Empty() bool { return r.R0 >= r.R1 || r.C0 >= r.C1 }

// Area is the number of elements of the region.
func (r Rect) Area() int64 {
	if r.Empty() {
		return 0
	}
	return int64(r.R1-r.R0) * int64(r.C1-r.C0)
}

// Intersect returns the region common to both.
func (r Rect) Intersect(o Rect) Rect {
	return Rect{max(r.R0, o.R0), min(r.R1, o.R1), max(r.C0, o.C0), min(r.C1, o.C1)}
}

// Block is a region of a matrix and how much memory is laid out for it: Rows and
// Cols are the allocated extents, at least those of the region, in multiples that
// the order asks for.
type Block struct {
	Rect
	Rows, Cols int32
}

// NewBlock returns a block of the region with the smallest extents that the form
// allows.
func NewBlock(f Form, r Rect) Block {
	b := Block{Rect: r, Rows: r.R1 - r.R0, Cols: r.C1 - r.C0}
	if f.Grain > 0 {
		b.Cols = roundUp(b.Cols, f.Grain)
	}
	if f.Order == Coefficient {
		b.Rows = roundUp(b.Rows, 16)
	}
	return b
}

// Bytes is the size of the block in the form.
func (b *Block) Bytes(f Form) int32 { return b.Rows * b.Cols * f.Elem }

// Offset is the byte offset of element (r, c) of the matrix in the block.
func (b *Block) Offset(f Form, r, c int32) int32 {
	r, c = r-b.R0, c-b.C0
	switch f.Order {
	case Panels:
		return ((c/f.Grain*b.Rows+r)*f.Grain + c%f.Grain) * f.Elem
	case Coefficient:
		return (((r/16)*(b.Cols/f.Grain)+c/f.Grain)*16*f.Grain + r%16*f.Grain + c%f.Grain) * f.Elem
	}
	return (r*b.Cols + c) * f.Elem
}

// Runs calls emit with the byte runs that carry the region common to both blocks
// from source to dest, in the order of the source's memory and as long as both
// sides are contiguous. Both forms must have the same element size.
func Runs(sf Form, src *Block, df Form, dst *Block, emit func(from, to, bytes int32)) {
	region := src.Intersect(dst.Rect)
	if region.Empty() {
		return
	}
	var from, to, size int32
	flush := func(f, t, n int32) {
		if size > 0 && from+size == f && to+size == t {
			size += n
			return
		}
		if size > 0 {
			emit(from, to, size)
		}
		from, to, size = f, t, n
	}
	// One row of one source panel, cut where the destination starts a new panel.
	row := func(r, c0, c1 int32) {
		for c := c0; c < c1; {
			end := c1
			if df.Grain > 0 {
				end = min(end, dst.C0+(c-dst.C0)/df.Grain*df.Grain+df.Grain)
			}
			flush(src.Offset(sf, r, c), dst.Offset(df, r, c), (end-c)*sf.Elem)
			c = end
		}
	}
	panels := func(r0, r1 int32) {
		for c := region.C0; c < region.C1; {
			end := min(region.C1, src.C0+(c-src.C0)/sf.Grain*sf.Grain+sf.Grain)
			for r := r0; r < r1; r++ {
				row(r, c, end)
			}
			c = end
		}
	}
	switch sf.Order {
	case RowMajor:
		for r := region.R0; r < region.R1; r++ {
			row(r, region.C0, region.C1)
		}
	case Panels:
		panels(region.R0, region.R1)
	case Coefficient:
		for r := region.R0; r < region.R1; {
			end := min(region.R1, src.R0+(r-src.R0)/16*16+16)
			panels(r, end)
			r = end
		}
	}
	if size > 0 {
		emit(from, to, size)
	}
}

// RunCount estimates how many runs Runs would emit for the region without
// walking it: exact when neither side continues across rows or panels.
func RunCount(sf Form, src *Block, df Form, dst *Block) int64 {
	region := src.Intersect(dst.Rect)
	if region.Empty() {
		return 0
	}
	rows, cols := int64(region.R1-region.R0), int64(region.C1-region.C0)
	grain := func(f Form) int64 {
		if f.Grain == 0 {
			return cols
		}
		return int64(f.Grain)
	}
	g := min(grain(sf), grain(df))
	pieces := (cols + g - 1) / g
	if sf.Order != RowMajor && sf.Grain == df.Grain {
		if sf.Order == df.Order && sf.Order == Panels {
			return pieces
		}
		return pieces * ((rows + 15) / 16)
	}
	if sf.Order == RowMajor && df.Order == RowMajor && src.Cols == dst.Cols && int64(src.Cols) == cols {
		return 1
	}
	return pieces * rows
}

// Units is the number of pieces in which Part can cut a block: rows of a panel of a
// Panels block, panels of a Coefficient block.
func Units(f Form, b *Block) int32 {
	if f.Order == Coefficient {
		return b.Rows / 16 * (b.Cols / f.Grain)
	}
	return b.Rows * (b.Cols / f.Grain)
}

// Part lists the blocks that hold units [u0, u1) of a Panels or Coefficient block,
// in the order of its memory: laid out one after the other they are the same bytes.
func Part(f Form, b *Block, u0, u1 int32) []Block {
	var out []Block
	if f.Order == Coefficient {
		panels := b.Cols / f.Grain
		for u := u0; u < u1; {
			group, panel := u/panels, u%panels
			n := min(panels-panel, u1-u)
			part := NewBlock(f, Rect{R0: b.R0 + 16*group, R1: min(b.R0+16*group+16, b.R1),
				C0: b.C0 + panel*f.Grain, C1: min(b.C0+(panel+n)*f.Grain, b.C1)})
			part.Rows = 16
			out = append(out, part)
			u += n
		}
		return out
	}
	for u := u0; u < u1; {
		panel, row := u/b.Rows, u%b.Rows
		rows, panels := min(b.Rows-row, u1-u), int32(1)
		if row == 0 && rows == b.Rows { // whole panels together
			panels = (u1 - u) / b.Rows
		}
		out = append(out, NewBlock(f, Rect{R0: b.R0 + row, R1: b.R0 + row + rows,
			C0: b.C0 + panel*f.Grain, C1: min(b.C0+(panel+panels)*f.Grain, b.C1)}))
		u += rows * panels
	}
	return out
}

// Index finds the blocks that overlap a region.
type Index struct {
	blocks []Block
	bounds []int32   // ascending row boundaries
	bands  [][]int32 // blocks that cover rows [bounds[i], bounds[i+1])
}

// NewIndex builds an index of the blocks, which must not change afterwards.
func NewIndex(blocks []Block) *Index {
	x := &Index{blocks: blocks}
	seen := map[int32]bool{}
	for i := range blocks {
		seen[blocks[i].R0], seen[blocks[i].R1] = true, true
	}
	for r := range seen {
		x.bounds = append(x.bounds, r)
	}
	sort.Slice(x.bounds, func(i, j int) bool { return x.bounds[i] < x.bounds[j] })
	if len(x.bounds) == 0 {
		return x
	}
	x.bands = make([][]int32, len(x.bounds)-1)
	for i := range blocks {
		for k := x.band(blocks[i].R0); k < len(x.bands) && x.bounds[k] < blocks[i].R1; k++ {
			x.bands[k] = append(x.bands[k], int32(i))
		}
	}
	return x
}

// band is the index of the band that holds row r, or of the first after it.
func (x *Index) band(r int32) int {
	k := sort.Search(len(x.bounds), func(i int) bool { return x.bounds[i] > r }) - 1
	return max(k, 0)
}

// Overlapping calls visit with each block that shares an element with the region,
// once, in an order that depends only on the index and the region.
func (x *Index) Overlapping(r Rect, visit func(block int)) {
	if r.Empty() || len(x.bands) == 0 {
		return
	}
	first := x.band(r.R0)
	for k := first; k < len(x.bands) && x.bounds[k] < r.R1; k++ {
		for _, i := range x.bands[k] {
			b := &x.blocks[i]
			if k > first && b.R0 < x.bounds[k] || b.Intersect(r).Empty() {
				continue // seen in an earlier band, or beside it
			}
			visit(int(i))
		}
	}
}

// Cuts splits n units into parts as even as possible and returns the parts+1
// boundaries.
func Cuts(n, parts int) []int32 {
	c := make([]int32, parts+1)
	for i := range c {
		c[i] = int32(i * n / parts)
	}
	return c
}

func roundUp(n, g int32) int32 { return (n + g - 1) / g * g }
