package device

import (
	"encoding/binary"
	"math"

	"ipufarm/protocol/numeric"
	"ipufarm/protocol/program"
)

// Kernels that treat elements one by one, in any order that operands share.

func reduce(r run) {
	n, flags := r.n(5), r.args[6]
	at, left := r.args[1], r.n(3)
	var sum []float32
	if r.args[0] != 0 {
		sum = r.decode(0, 0, 0, n)
	} else {
		sum = r.decode(0, 1, 0, n)
		at += r.args[2]
		left--
	}
	next := r.scratch.f32(1, uint64(n))
	for ; left > 0; left-- {
		numeric.DecodeF16LE(next, r.tile.bytes(at, 2*n))
		addTo(sum, next)
		at += r.args[2]
	}
	if flags&program.ReduceAddA != 0 {
		addTo(sum, r.decode(1, 7, 0, n))
	}
	if flags&program.ReduceAddB != 0 {
		addTo(sum, r.decode(1, 8, 0, n))
	}
	if flags&program.ReduceGELU != 0 {
		for i, x := range sum {
			sum[i] = gelu(x)
		}
	}
	store(r, 4, 0, sum, flags&program.ReduceF8 != 0, 9)
}

// addTo adds y to x and rounds to F16.
func addTo(x, y []float32) {
	y = y[:len(x)]
	for i := range x {
		x[i] = numeric.RoundF16(x[i] + y[i])
	}
}

// store writes elements offset, offset+1, ... of a result: F16, or FP8 with the
// scale in argument scaleArg.
func store(r run, arg, offset int, x []float32, f8 bool, scaleArg int) {
	if !f8 {
		numeric.EncodeF16LE(r.tile.bytes(r.args[arg]+uint32(2*offset), 2*len(x)), x)
		return
	}
	out, scale := r.tile.bytes(r.args[arg]+uint32(offset), len(x)), r.scale(scaleArg)
	for i, v := range x {
		out[i] = storeF8(v, scale)
	}
}

func add(r run) {
	n := r.n(3)
	a, b, out := r.bytes(0, 2*n), r.bytes(1, 2*n), r.bytes(2, 2*n)
	for i := range n {
		setHalf(out, i, half(a, i)+half(b, i))
	}
}

func addRows(r run) {
	rows, width := r.n(3), r.n(4)
	row := r.decode(0, 1, 0, width)
	in, out := r.bytes(0, 2*rows*width), r.bytes(2, 2*rows*width)
	for i := 0; i < len(in); i += 2 * width {
		for c, b := range row {
			setHalf(out[i:], c, half(in[i:], c)+b)
		}
	}
}

func geluKernel(r run) {
	x := r.decode(0, 0, 0, r.n(2))
	for i, v := range x {
		x[i] = gelu(v)
	}
	store(r, 1, 0, x, r.args[3]&program.PointwiseF8 != 0, 4)
}

func biasGELU(r run) {
	rows, width := r.n(3), r.n(4)
	bias := r.decode(1, 1, 0, width)
	for row := range rows {
		x := r.decode(0, 0, 2*row*width, width)
		for i, v := range x {
			x[i] = gelu(numeric.RoundF16(v + bias[i]))
		}
		store(r, 2, row*width, x, r.args[5]&program.PointwiseF8 != 0, 6)
	}
}

func cast(r run) {
	n := r.n(2)
	convert(r.bytes(1, n), r.bytes(0, 2*n), r.scale(3))
}

func copyBytes(r run) {
	n := r.n(2)
	copy(r.bytes(1, n), r.bytes(0, n))
}

func copyStrided(r run) {
	from, to, n := r.args[0], r.args[1], 4*r.n(3)
	for range r.n(2) {
		copy(r.tile.bytes(to, n), r.tile.bytes(from, n))
		from += r.args[4]
		to += r.args[5]
	}
}

func fill(r run) { clear(r.bytes(0, r.n(1))) }

func normalise(r run) {
	rows, cols, flags := r.n(3), r.n(4), r.args[5]
	sums := r.bytes(1, 4*rows)
	width := cols // elements that follow each other in one row
	if flags&program.NormalisePanels != 0 {
		width = 16
	}
	for i := range rows * cols / width {
		x := r.decode(0, 0, 2*i*width, width)
		sum := f32At(sums, i%rows)
		for c := range x {
			x[c] /= sum
		}
		store(r, 2, i*width, x, flags&program.PointwiseF8 != 0, 6)
	}
}

func f32At(b []byte, i int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
}
