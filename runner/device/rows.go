package device

import (
	"encoding/binary"
	"math"

	"ipufarm/protocol/numeric"
	"ipufarm/protocol/program"
)

// Kernels that need whole rows, row-major: statistics in F32.

// sumF32 adds in eight lanes by index mod 8, then lane i with i+4, +2, +1.
func sumF32(x []float32) float32 {
	var lane [8]float32
	for ; len(x) >= 8; x = x[8:] {
		for i := range lane {
			lane[i] += x[i]
		}
	}
	for i, v := range x {
		lane[i] += v
	}
	for step := 4; step > 0; step /= 2 {
		for i := range step {
			lane[i] += lane[i+step]
		}
	}
	return lane[0]
}

// epsilon of every layernorm.
const epsilon = 1e-6

// normalRow is the layernorm of x in place: mean, then the mean of squared
// deviations, then (x-mean)/sqrt(variance+epsilon)*gamma + beta. Squares is
// scratch of the same length.
func normalRow(x, gamma, beta, squares []float32) {
	width := float32(len(x))
	mean := sumF32(x) / width
	for i, v := range x {
		d := v - mean
		x[i] = d
		squares[i] = d * d
	}
	scale := 1 / float32(math.Sqrt(float64(sumF32(squares)/width+epsilon)))
	for i, d := range x {
		x[i] = float32(float32(d*scale)*gamma[i]) + beta[i]
	}
}

func layerNorm(r run) {
	rows, width, stride := r.n(4), r.n(5), r.n(8)
	f8 := r.args[6]&program.NormF8 != 0
	gamma, beta, squares := r.vectors(1, 2, width)
	for row := range rows {
		x := r.decode(0, 0, 2*row*width, width)
		normalRow(x, gamma, beta, squares)
		store(r, 3, row*stride, x, f8, 7)
		pad(r, 3, row*stride+width, stride-width, f8)
	}
}

func addLayerNorm(r run) {
	rows, width, stride := r.n(6), r.n(7), r.n(10)
	f8 := r.args[8]&program.NormF8 != 0
	gamma, beta, squares := r.vectors(3, 4, width)
	for row := range rows {
		x := r.decode(0, 0, 2*row*width, width)
		numeric.DecodeF16LE(squares, r.tile.bytes(r.args[1]+uint32(2*row*width), 2*width))
		addTo(x, squares)
		store(r, 2, row*width, x, false, 0)
		normalRow(x, gamma, beta, squares)
		store(r, 5, row*stride, x, f8, 9)
		pad(r, 5, row*stride+width, stride-width, f8)
	}
}

// vectors decodes gamma and beta and gives scratch of the same length.
func (r run) vectors(gamma, beta, width int) (g, b, free []float32) {
	all := r.scratch.f32(1, 3*uint64(width))
	g, b, free = all[:width], all[width:2*width], all[2*width:]
	numeric.DecodeF16LE(g, r.bytes(gamma, 2*width))
	numeric.DecodeF16LE(b, r.bytes(beta, 2*width))
	return g, b, free
}

// pad writes n zeros from an element on.
func pad(r run, arg, element, n int, f8 bool) {
	size := 2
	if f8 {
		size = 1
	}
	clear(r.tile.bytes(r.args[arg]+uint32(element*size), n*size))
}

func softmax(r run) {
	rows, keys, padded := r.n(3), r.n(4), r.n(5)
	factor := math.Float32frombits(r.args[6])
	sums := r.bytes(2, 4*rows)
	for row := range rows {
		x := r.decode(0, 0, 2*row*padded, padded)
		valid := x[:keys]
		high := valid[0]
		for _, v := range valid {
			high = max(high, v) // NaN if one is
		}
		for i, v := range valid {
			valid[i] = float32(exp(float64(factor * (v - high))))
		}
		binary.LittleEndian.PutUint32(sums[4*row:], math.Float32bits(sumF32(valid)))
		clear(x[keys:])
		store(r, 1, row*padded, x, false, 0)
	}
}
