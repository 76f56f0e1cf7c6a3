package reference

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
)

// A right operand of K × N is held in panels of eight columns, k by k, so that
// the innermost loop reads it in order: element (k, n) is
// data[(n/8*K + k)*8 + n%8]. The last panel is filled up with zeros.
const panelColumns = 8

type right struct {
	inner, columns int
	data           []float32
}

func newRight(inner, columns int) right {
	panels := (columns + panelColumns - 1) / panelColumns
	return right{inner, columns, make([]float32, panels*inner*panelColumns)}
}

// pack takes a row-major [inner, columns] matrix.
func pack(w []float32, inner, columns int) right {
	b := newRight(inner, columns)
	for n := 0; n < columns; n += panelColumns {
		wide := min(panelColumns, columns-n)
		for k := range inner {
			copy(b.data[n*inner+k*panelColumns:], w[k*columns+n:k*columns+n+wide])
		}
	}
	return b
}

// packTransposed takes a row-major [columns, inner] matrix.
func packTransposed(w []float32, inner, columns int) right {
	b := newRight(inner, columns)
	for n := range columns {
		panel := b.data[n/panelColumns*inner*panelColumns:]
		for k := range inner {
			panel[k*panelColumns+n%panelColumns] = w[n*inner+k]
		}
	}
	return b
}

// innerBlock is how much of K one pass takes: a block of a panel, 8 KiB, stays in
// the first-level cache while all rows go over it. Sums between passes are F32 in
// memory, so that the block changes no bit.
const innerBlock = 256

// multiply sets out[r][n] to the sum of float32(a[r][k]*b[k][n]) over ascending k,
// beginning with zero, for the rows of a that out has room for.
func (b right) multiply(out, a []float32) {
	rows := len(out) / b.columns
	sums := make([]float32, rows*panelColumns)
	for n := 0; n < b.columns; n += panelColumns {
		clear(sums)
		panel := b.data[n*b.inner : (n+panelColumns)*b.inner]
		for k := 0; k < b.inner; k += innerBlock {
			end := min(k+innerBlock, b.inner)
			accumulate(sums, a[k:], b.inner, panel[k*panelColumns:end*panelColumns])
		}
		wide := min(panelColumns, b.columns-n)
		for r := range rows {
			copy(out[r*b.columns+n:][:wide], sums[r*panelColumns:])
		}
	}
}

// accumulate adds to each row of eight sums the products of the row of a, which
// begins at a multiple of stride, with the rows of eight of a panel, in order.
func accumulate(sums, a []float32, stride int, panel []float32) {
	if done := fast(sums, a, stride, panel); done*panelColumns < len(sums) {
		plain(sums[done*panelColumns:], a[done*stride:], stride, panel)
	}
}

// plain is accumulate in Go: any faster version must round every product and
// every sum to F32, as this one does on every machine.
func plain(sums, a []float32, stride int, panel []float32) {
	inner := len(panel) / panelColumns
	for r := range len(sums) / panelColumns {
		s := (*[panelColumns]float32)(sums[r*panelColumns:])
		c0, c1, c2, c3, c4, c5, c6, c7 := s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7]
		p := panel
		for _, x := range a[r*stride : r*stride+inner] {
			w := (*[panelColumns]float32)(p)
			c0 += float32(x * w[0])
			c1 += float32(x * w[1])
			c2 += float32(x * w[2])
			c3 += float32(x * w[3])
			c4 += float32(x * w[4])
			c5 += float32(x * w[5])
			c6 += float32(x * w[6])
			c7 += float32(x * w[7])
			p = p[panelColumns:]
		}
		*s = [panelColumns]float32{c0, c1, c2, c3, c4, c5, c6, c7}
	}
}

// parallel calls f on pieces of [0, n) of the given size, several at a time, until
// all are done or ctx is. Pieces do not depend on the number of processors.
func parallel(ctx context.Context, n, piece int, f func(lo, hi int)) error {
	pieces := (n + piece - 1) / piece
	var next atomic.Int64
	var wait sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), pieces) {
		wait.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= pieces {
					return
				}
				f(i*piece, min((i+1)*piece, n))
			}
		})
	}
	wait.Wait()
	return ctx.Err()
}
