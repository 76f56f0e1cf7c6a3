package device_test

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/x448/float16"

	"ipufarm/protocol/numeric"
	"ipufarm/protocol/program"
)

// This file computes every kernel a second time, element by element and with the
// index formulas of protocol/program/kernels.go, and compares bits.

// memory is an operand of a test.
type memory struct {
	address uint32
	data    []byte
}

// exec runs one call on a tile and returns size bytes at an address.
func exec(t testing.TB, k program.Kernel, args []uint32, out, size uint32, in ...memory) []byte {
	t.Helper()
	j := newJob()
	m := j.tile(100).call(k, args...)
	for _, x := range in {
		m.put(x.address, x.data)
	}
	j.out(100, out, (size+3)&^3)
	return j.mustRun(t).Outputs[:size]
}

func rng(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 99)) }

// randomHalves are n values of about one, with a few large and small ones.
func randomHalves(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = numeric.RoundF16(float32(r.NormFloat64()))
		if r.IntN(20) == 0 {
			x[i] = numeric.RoundF16(x[i] * 50)
		}
		if r.IntN(20) == 0 {
			x[i] = numeric.RoundF16(x[i] / 4000)
		}
	}
	return x
}

// h rounds to F16 by the conversion library, with NaN for overflow.
func h(x float32) float32 {
	y := float16.Fromfloat32(x)
	if y.IsInf(0) {
		return float32(math.NaN())
	}
	return y.Float32()
}

// f8 is the nearest F143 code of h(x) at a scale, by search.
func f8(x float32, scale int) byte {
	v := float64(h(x)) * math.Ldexp(1, -scale)
	if math.IsNaN(v) || math.Abs(v) >= 248 {
		return 0x80
	}
	best := 0
	for c := 1; c < 0x80; c++ {
		d, b := math.Abs(float64(numeric.F143ToF32(byte(c)))-math.Abs(v)), math.Abs(float64(numeric.F143ToF32(byte(best)))-math.Abs(v))
		if d < b || d == b && c%2 == 0 {
			best = c
		}
	}
	if best > 0 && v < 0 {
		best |= 0x80
	}
	return byte(best)
}

func f8s(x []float32, scale int) []byte {
	b := make([]byte, len(x))
	for i, v := range x {
		b[i] = f8(v, scale)
	}
	return b
}

// sameHalves compares F16 bits; all NaN are one.
func sameHalves(t *testing.T, got []byte, want []float32) {
	t.Helper()
	for i, w := range want {
		if g := numeric.F16ToF32(binary.LittleEndian.Uint16(got[2*i:])); g != w && !(g != g && w != w) {
			t.Fatalf("element %d is %v, want %v", i, g, w)
		}
	}
}

// near compares F16 values with a tolerance of so many units of the last place.
func near(t *testing.T, got []byte, want []float64, ulps float64) {
	t.Helper()
	for i, w := range want {
		g := float64(numeric.F16ToF32(binary.LittleEndian.Uint16(got[2*i:])))
		_, e := math.Frexp(w)
		ulp := math.Ldexp(1, max(e-11, -24))
		if math.Abs(g-w) > ulps*ulp || math.IsNaN(g) {
			t.Fatalf("element %d is %v, want %v", i, g, w)
		}
	}
}

func panelIndex(rows, r, c, k int) int { return (c/k*rows+r)*k + c%k }

func coefficientIndex(kPanels, r, c, k int) int {
	return (c/16*kPanels+r/k)*16*k + c%16*k + r%k
}

// naiveGEMM is the definition: left rows x inner, right inner x cols.
func naiveGEMM(left, right []float32, rows, inner, cols, k int, scale float32) []float32 {
	out := make([]float32, rows*cols)
	for r := range rows {
		for c := range cols {
			partial := float32(0)
			for p := 0; p < inner; p += k {
				var lane [16]float32
				for i := range k {
					lane[i%16] += float32(left[r*inner+p+i] * right[(p+i)*cols+c])
				}
				a := [8]float32{}
				for i := range a {
					a[i] = lane[i] + lane[i+8]
				}
				b := [4]float32{a[0] + a[4], a[1] + a[5], a[2] + a[6], a[3] + a[7]}
				sum := (b[0] + b[2]) + (b[1] + b[3])
				partial = h(partial + float32(sum*scale))
			}
			out[r*cols+c] = partial
		}
	}
	return out
}

func TestGEMM(t *testing.T) {
	for _, c := range []struct {
		name                   string
		rows, kPanels, cPanels int
		flags                  uint32
		scale                  int
	}{
		{"one", 1, 1, 1, 0, 0},
		{"f16", 7, 3, 2, 0, 0},
		{"f16 packed", 5, 2, 3, program.GEMMPacked, 0},
		{"f16 standard weights", 13, 4, 1, program.GEMMStandardWeights, 0},
		{"f8", 6, 3, 2, program.GEMMF8, -8},
		{"f8 packed standard", 9, 1, 2, program.GEMMF8 | program.GEMMPacked | program.GEMMStandardWeights, -5},
		{"f16 long", 3, 40, 1, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := rng(uint64(c.rows))
			k := 16
			if c.flags&program.GEMMF8 != 0 {
				k = 32
			}
			inner, cols := c.kPanels*k, c.cPanels*16
			left, right := randomHalves(r, c.rows*inner), randomHalves(r, inner*cols)
			var leftBytes, rightBytes []byte
			if k == 16 {
				l, w := make([]float32, len(left)), make([]float32, len(right))
				for i := range left {
					l[panelIndex(c.rows, i/inner, i%inner, k)] = left[i]
				}
				for i := range right {
					w[coefficientIndex(c.kPanels, i/cols, i%cols, k)] = right[i]
				}
				leftBytes, rightBytes = halves(l...), halves(w...)
			} else {
				leftBytes, rightBytes = make([]byte, len(left)), make([]byte, len(right))
				for i := range left {
					code := numeric.F32ToF143Saturate(left[i])
					left[i] = numeric.F143ToF32(code)
					leftBytes[panelIndex(c.rows, i/inner, i%inner, k)] = code
				}
				for i := range right {
					code := numeric.F32ToF143Saturate(right[i])
					right[i] = numeric.F143ToF32(code)
					rightBytes[coefficientIndex(c.kPanels, i/cols, i%cols, k)] = code
				}
			}
			weights := uint32(inter2)
			if c.flags&program.GEMMStandardWeights != 0 {
				weights = standard2
			}
			got := exec(t, program.KernelGEMM,
				[]uint32{standard, weights, inter, uint32(c.rows), uint32(c.kPanels), uint32(c.cPanels), c.flags, uint32(c.scale)},
				inter, uint32(2*c.rows*cols), memory{standard, leftBytes}, memory{weights, rightBytes})
			want := naiveGEMM(left, right, c.rows, inner, cols, k, float32(math.Ldexp(1, c.scale)))
			stored := make([]float32, len(want))
			exact, size := make([]float64, len(want)), make([]float64, len(want))
			for i, v := range want {
				row, col := i/cols, i%cols
				at := i
				if c.flags&program.GEMMPacked == 0 {
					at = panelIndex(c.rows, row, col, 16)
				}
				stored[at] = v
				for p := range inner {
					product := float64(left[row*inner+p]) * float64(right[p*cols+col]) * math.Ldexp(1, c.scale)
					exact[at] += product
					size[at] += math.Abs(product)
				}
			}
			sameHalves(t, got, stored)
			// One rounding to 11 bits for each panel: a guard against a definition that
			// is wrong twice.
			for i := range exact {
				if e := math.Abs(exact[i] - float64(stored[i])); e > float64(c.kPanels)*size[i]/2048+1e-6 {
					t.Fatalf("element %d is %v, exact arithmetic gives %v", i, stored[i], exact[i])
				}
			}
		})
	}
}

// TestGEMMOverflow: a partial that leaves the F16 range in the middle of a K loop
// is NaN from there on, even if the sum would come back.
func TestGEMMOverflow(t *testing.T) {
	const kPanels = 3
	left := make([]float32, kPanels*16)
	left[0], left[16], left[32] = 256, 256, -256
	right := make([]float32, kPanels*256)
	for p := range kPanels {
		right[p*256] = 255    // column 0, k 0: 65,280 after one panel, too much after two
		right[p*256+16] = 100 // column 1: 25,600, 51,200, 25,600
	}
	got := unhalf(exec(t, program.KernelGEMM, []uint32{standard, inter2, inter, 1, kPanels, 1, 0, 0}, inter, 32,
		memory{standard, halves(left...)}, memory{inter2, halves(right...)}))
	if got[0] == got[0] || got[1] != 25600 || got[2] != 0 {
		t.Errorf("columns 0 to 2 are %v, want NaN, 25600, 0", got[:3])
	}
}

func TestGEMMPaddingPoison(t *testing.T) {
	// A weight panel that nobody wrote is NaN; zeros on the left do not heal it.
	got := unhalf(exec(t, program.KernelGEMM, []uint32{standard, inter2, inter, 1, 1, 1, 0, 0}, inter, 32,
		memory{standard, make([]byte, 32)}))
	for i, x := range got {
		if x == x {
			t.Errorf("column %d is %v, want NaN", i, x)
		}
	}
}

func naiveGELU(x float32) float64 {
	v := float64(x)
	return v / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(v+0.044715*v*v*v)))
}

func TestReduce(t *testing.T) {
	const n = 40
	for _, c := range []struct {
		name    string
		local   bool
		remotes int
		flags   uint32
	}{
		{"local and two", true, 2, 0},
		{"three remotes", false, 3, 0},
		{"one remote", false, 1, program.ReduceAddA},
		{"local only", true, 0, program.ReduceAddA | program.ReduceAddB},
		{"gelu", true, 3, program.ReduceAddB | program.ReduceGELU},
		{"f8", true, 4, program.ReduceF8},
		{"all", true, 5, program.ReduceAddA | program.ReduceAddB | program.ReduceGELU | program.ReduceF8},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := rng(5)
			const scale = -3
			args := []uint32{0, standard2, 2*n + 16, uint32(c.remotes), inter, n, c.flags, inter2, inter2 + 2*n, uint32(scale & 0xFFFFFFFF)}
			var in []memory
			var sum []float32
			add := func(x []float32) {
				if sum == nil {
					sum = append(sum, x...)
					return
				}
				for i := range sum {
					sum[i] = h(sum[i] + x[i])
				}
			}
			if c.local {
				x := randomHalves(r, n)
				args[0] = standard
				in = append(in, memory{standard, halves(x...)})
				add(x)
			}
			for i := range c.remotes {
				x := randomHalves(r, n)
				in = append(in, memory{standard2 + uint32(i)*(2*n+16), halves(x...)})
				add(x)
			}
			a, b := randomHalves(r, n), randomHalves(r, n)
			in = append(in, memory{inter2, halves(append(a, b...)...)})
			if c.flags&program.ReduceAddA != 0 {
				add(a)
			}
			if c.flags&program.ReduceAddB != 0 {
				add(b)
			}
			if c.flags&program.ReduceGELU != 0 {
				for i := range sum {
					sum[i] = h(float32(naiveGELU(sum[i])))
				}
			}
			if c.flags&program.ReduceF8 != 0 {
				if got := exec(t, program.KernelReduce, args, inter, n, in...); !bytes.Equal(got, f8s(sum, scale)) {
					t.Errorf("got % x, want % x", got, f8s(sum, scale))
				}
				return
			}
			sameHalves(t, exec(t, program.KernelReduce, args, inter, 2*n, in...), sum)
			if c.local { // the same in place
				args[4] = standard
				sameHalves(t, exec(t, program.KernelReduce, args, standard, 2*n, in...), sum)
			}
		})
	}
}

func TestAddAndAddRows(t *testing.T) {
	r := rng(6)
	const rows, width = 5, 12
	a, b := randomHalves(r, rows*width), randomHalves(r, rows*width)
	want, byRow := make([]float32, rows*width), make([]float32, rows*width)
	for i := range a {
		want[i], byRow[i] = h(a[i]+b[i]), h(a[i]+b[i%width])
	}
	in := []memory{{standard, halves(a...)}, {standard2, halves(b...)}}
	size := uint32(2 * rows * width)
	for _, out := range []uint32{inter, standard, standard2} {
		sameHalves(t, exec(t, program.KernelAdd, []uint32{standard, standard2, out, rows * width}, out, size, in...), want)
	}
	for _, out := range []uint32{inter, standard} {
		sameHalves(t, exec(t, program.KernelAddRows, []uint32{standard, standard2, out, rows, width}, out, size, in...), byRow)
	}
	// Any length is accepted, and not one element more is written.
	got := exec(t, program.KernelAdd, []uint32{standard, standard2, inter, 3}, inter, 8, in...)
	sameHalves(t, got, want[:3])
	if x := unhalf(got)[3]; x == x {
		t.Errorf("element after the last is %v, want the poison", x)
	}
}

// naiveNorm is a layernorm in float64.
func naiveNorm(x, gamma, beta []float32) []float64 {
	mean, variance := 0.0, 0.0
	for _, v := range x {
		mean += float64(v)
	}
	mean /= float64(len(x))
	for _, v := range x {
		variance += (float64(v) - mean) * (float64(v) - mean)
	}
	variance /= float64(len(x))
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = (float64(v)-mean)/math.Sqrt(variance+1e-6)*float64(gamma[i]) + float64(beta[i])
	}
	return out
}

func TestLayerNorm(t *testing.T) {
	r := rng(7)
	const rows, width, stride, scale = 3, 24, 32, -4
	a, b, gamma, beta := randomHalves(r, rows*width), randomHalves(r, rows*width), randomHalves(r, width), randomHalves(r, width)
	in := []memory{{standard, halves(a...)}, {standard + 0x1000, halves(b...)}, {standard2, halves(append(gamma, beta...)...)}}
	sum := make([]float32, len(a))
	for i := range a {
		sum[i] = h(a[i] + b[i])
	}
	const negative = uint32(0xFFFFFFFC)
	for _, c := range []struct {
		name string
		k    program.Kernel
		args func(flags uint32) []uint32
		of   []float32
	}{
		{"layernorm", program.KernelLayerNorm, func(flags uint32) []uint32 {
			return []uint32{standard, standard2, standard2 + 2*width, inter, rows, width, flags, negative, stride}
		}, a},
		{"add-layernorm", program.KernelAddLayerNorm, func(flags uint32) []uint32 {
			return []uint32{standard, standard + 0x1000, inter2, standard2, standard2 + 2*width, inter, rows, width, flags, negative, stride}
		}, sum},
	} {
		t.Run(c.name, func(t *testing.T) {
			var want []float64
			for row := range rows {
				want = append(want, naiveNorm(c.of[row*width:][:width], gamma, beta)...)
				want = append(want, make([]float64, stride-width)...)
			}
			got := exec(t, c.k, c.args(0), inter, 2*rows*stride, in...)
			near(t, got, want, 1)
			// FP8 is the conversion of the F16 result.
			codes := exec(t, c.k, c.args(program.NormF8), inter, rows*stride, in...)
			if want := f8s(unhalf(got), scale); !bytes.Equal(codes, want) {
				t.Errorf("codes % x, want % x", codes, want)
			}
			if c.k == program.KernelAddLayerNorm {
				sameHalves(t, exec(t, c.k, c.args(0), inter2, 2*rows*width, in...), sum)
			}
		})
	}
}

func TestGELU(t *testing.T) {
	r := rng(8)
	const rows, width, scale = 3, 16, -5
	x, bias := randomHalves(r, rows*width), randomHalves(r, width)
	x[0], x[1], x[2], x[3] = 0, -65504, 65504, -8
	in := []memory{{standard, halves(x...)}, {standard2, halves(bias...)}}
	plain, biased := make([]float32, len(x)), make([]float32, len(x))
	for i, v := range x {
		plain[i] = h(float32(naiveGELU(v)))
		biased[i] = h(float32(naiveGELU(h(v + bias[i%width]))))
	}
	const n, exponent = rows * width, uint32(0xFFFFFFFB)
	sameHalves(t, exec(t, program.KernelGELU, []uint32{standard, inter, n, 0, 0}, inter, 2*n, in...), plain)
	sameHalves(t, exec(t, program.KernelGELU, []uint32{standard, standard, n, 0, 0}, standard, 2*n, in...), plain)
	if got := exec(t, program.KernelGELU, []uint32{standard, inter, n, program.PointwiseF8, exponent}, inter, n, in...); !bytes.Equal(got, f8s(plain, scale)) {
		t.Errorf("codes % x, want % x", got, f8s(plain, scale))
	}
	sameHalves(t, exec(t, program.KernelBiasGELU, []uint32{standard, standard2, inter, rows, width, 0, 0}, inter, 2*n, in...), biased)
	if got := exec(t, program.KernelBiasGELU, []uint32{standard, standard2, inter, rows, width, program.PointwiseF8, exponent}, inter, n, in...); !bytes.Equal(got, f8s(biased, scale)) {
		t.Errorf("biased codes % x, want % x", got, f8s(biased, scale))
	}
}

func TestSoftmax(t *testing.T) {
	r := rng(9)
	const rows, keys, padded = 4, 21, 32
	factor := float32(1 / math.Sqrt(72))
	x := randomHalves(r, rows*padded)
	for i := range x {
		if i%padded >= keys {
			x[i] = float32(math.NaN()) // must not be looked at
		}
	}
	args := []uint32{standard, inter, inter2, rows, keys, padded, math.Float32bits(factor)}
	in := memory{standard, halves(x...)}
	want := make([]float32, rows*padded)
	sums := make([]float64, rows)
	for row := range rows {
		line := x[row*padded:][:keys]
		high := line[0]
		for _, v := range line {
			high = max(high, v)
		}
		for c, v := range line {
			e := float32(math.Exp(float64(factor * (v - high))))
			want[row*padded+c] = h(e)
			sums[row] += float64(e)
		}
	}
	sameHalves(t, exec(t, program.KernelSoftmax, args, inter, 2*rows*padded, in), want)
	got := float32s(exec(t, program.KernelSoftmax, args, inter2, 4*rows, in))
	for row := range rows {
		if math.Abs(float64(got[row])/sums[row]-1) > 1e-6 {
			t.Errorf("sum of row %d is %v, want %v", row, got[row], sums[row])
		}
	}
	args[1] = standard
	sameHalves(t, exec(t, program.KernelSoftmax, args, standard, 2*rows*padded, in), want)
}

func TestNormalise(t *testing.T) {
	r := rng(10)
	const rows, cols, scale = 6, 32, -7
	x := randomHalves(r, rows*cols)
	sums := make([]byte, 4*rows)
	divisor := make([]float32, rows)
	for row := range rows {
		divisor[row] = 1 + 100*r.Float32()
		binary.LittleEndian.PutUint32(sums[4*row:], math.Float32bits(divisor[row]))
	}
	in := []memory{{standard, halves(x...)}, {standard2, sums}}
	for _, panels := range []bool{false, true} {
		flags := uint32(0)
		want := make([]float32, len(x))
		for i, v := range x {
			row := i / cols
			if panels {
				flags = program.NormalisePanels
				row = i / 16 % rows
			}
			want[i] = h(v / divisor[row])
		}
		args := []uint32{standard, standard2, inter, rows, cols, flags, uint32(0xFFFFFFF9)}
		sameHalves(t, exec(t, program.KernelNormalise, args, inter, 2*rows*cols, in...), want)
		args[5] |= program.PointwiseF8
		if got := exec(t, program.KernelNormalise, args, inter, rows*cols, in...); !bytes.Equal(got, f8s(want, scale)) {
			t.Errorf("panels %v: codes differ", panels)
		}
	}
}

func TestCasts(t *testing.T) {
	r := rng(11)
	const rows, cols, stride, scale, exponent = 5, 48, 52, -2, uint32(0xFFFFFFFE)
	x := randomHalves(r, rows*stride)
	in := memory{standard, halves(x...)}
	if got := exec(t, program.KernelCast, []uint32{standard, inter, 96, exponent}, inter, 96, in); !bytes.Equal(got, f8s(x[:96], scale)) {
		t.Error("cast: codes differ")
	}
	// Row-major of 44 columns, the second panel padded.
	want := make([]byte, 2*32*rows)
	for row := range rows {
		for c := range 44 {
			want[panelIndex(rows, row, c, 32)] = f8(x[row*stride+c], scale)
		}
	}
	if got := exec(t, program.KernelCastLeft, []uint32{standard, inter, rows, 44, stride, exponent}, inter, uint32(len(want)), in); !bytes.Equal(got, want) {
		t.Errorf("cast-left: % x, want % x", got, want)
	}
	clear(want)
	for row := range rows {
		for c := range cols {
			want[panelIndex(rows, row, c, 32)] = f8(x[panelIndex(rows, row, c, 16)], scale)
		}
	}
	if got := exec(t, program.KernelCastPanels, []uint32{standard, inter, rows, cols, exponent}, inter, uint32(len(want)), in); !bytes.Equal(got, want) {
		t.Errorf("cast-panels: % x, want % x", got, want)
	}
}

func TestPacking(t *testing.T) {
	r := rng(12)
	const rows, cols, stride = 21, 27, 28
	x := randomHalves(r, rows*stride)
	in := memory{standard, halves(x...)}
	left := make([]float32, 2*16*rows)
	right := make([]float32, 2*2*256)
	fromPanels := make([]float32, 2*2*256)
	for row := range rows {
		for c := range cols {
			left[panelIndex(rows, row, c, 16)] = x[row*stride+c]
			right[coefficientIndex(2, row, c, 16)] = x[row*stride+c]
		}
	}
	got := exec(t, program.KernelPackLeft, []uint32{standard, inter, rows, cols, stride}, inter, uint32(2*len(left)), in)
	sameHalves(t, got, left)
	sameHalves(t, exec(t, program.KernelPackRight, []uint32{standard, inter, rows, cols, 0, stride}, inter, uint32(2*len(right)), in), right)

	panels := memory{standard2, got}
	for row := range rows {
		for c := range cols {
			fromPanels[coefficientIndex(2, row, c, 16)] = left[panelIndex(rows, row, c, 16)]
		}
	}
	sameHalves(t, exec(t, program.KernelPackRight, []uint32{standard2, inter, rows, cols, program.PackFromPanels, 0}, inter, uint32(2*len(right)), panels), fromPanels)

	back := unhalf(exec(t, program.KernelUnpack, []uint32{standard2, inter, rows, cols, 40}, inter, 2*(rows*40), panels))
	for row := range rows {
		for c := range 40 {
			got := back[row*40+c]
			if c < cols && got != x[row*stride+c] || c >= cols && row < rows-1 && got == got {
				t.Fatalf("row %d column %d is %v", row, c, got)
			}
		}
	}
}

func TestCopies(t *testing.T) {
	data := pattern(4, 60)
	in := memory{standard, data}
	if got := exec(t, program.KernelCopy, []uint32{standard, inter, 240}, inter, 240, in); !bytes.Equal(got, data) {
		t.Error("copy: bytes differ")
	}
	got := exec(t, program.KernelCopyStrided, []uint32{standard + 4, inter, 5, 3, 20, 16}, inter, 4*16+12, in)
	for row := range 5 {
		if !bytes.Equal(got[16*row:][:12], data[4+20*row:][:12]) {
			t.Errorf("strided copy: row %d differs", row)
		}
		if row < 4 && unhalf(got[16*row+12:][:2])[0] == unhalf(got[16*row+12:][:2])[0] {
			t.Errorf("strided copy writes between rows")
		}
	}
	// Every row from the same source, and pieces that interleave with their source.
	got = exec(t, program.KernelCopyStrided, []uint32{standard, inter, 4, 2, 0, 8}, inter, 32, in)
	if !bytes.Equal(got, bytes.Repeat(data[:8], 4)) {
		t.Error("strided copy: one source row for all differs")
	}
	got = exec(t, program.KernelCopyStrided, []uint32{standard, standard + 8, 4, 2, 16, 16}, standard, 64, in)
	for row := range 4 {
		if !bytes.Equal(got[16*row:][:8], got[16*row+8:][:8]) {
			t.Error("strided copy: interleaved piece differs")
		}
	}
	if got := exec(t, program.KernelFill, []uint32{inter, 64}, inter, 64); !bytes.Equal(got, make([]byte, 64)) {
		t.Error("fill: not zero")
	}
}

// TestPoison: memory that nobody wrote is NaN in every format.
func TestPoison(t *testing.T) {
	j := newJob()
	j.tile(3)
	j.out(3, inter, 16)
	b := j.mustRun(t).Outputs
	for i := range 8 {
		if x := unhalf(b)[i]; x == x {
			t.Errorf("F16 %d is %v", i, x)
		}
	}
	for i, x := range float32s(b) {
		if x == x {
			t.Errorf("F32 %d is %v", i, x)
		}
	}
	if x := numeric.F143ToF32(b[0]); x == x {
		t.Errorf("F143 is %v", x)
	}
}
