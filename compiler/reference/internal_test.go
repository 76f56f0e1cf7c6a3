package reference

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"
)

// TestMultiply compares panels and blocks with the definition, bit for bit.
func TestMultiply(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, s := range [][3]int{{1, 1, 1}, {3, 5, 7}, {2, innerBlock, 8}, {5, innerBlock + 1, 9}, {17, 2*innerBlock + 3, 33}} {
		rows, inner, columns := s[0], s[1], s[2]
		a, w := make([]float32, rows*inner), make([]float32, inner*columns)
		for i := range a {
			a[i] = float32(r.NormFloat64())
		}
		for i := range w {
			w[i] = float32(r.NormFloat64())
		}
		transposed := make([]float32, len(w))
		for k := range inner {
			for n := range columns {
				transposed[n*inner+k] = w[k*columns+n]
			}
		}
		for name, b := range map[string]right{"pack": pack(w, inner, columns), "packTransposed": packTransposed(transposed, inner, columns)} {
			out := make([]float32, rows*columns)
			b.multiply(out, a)
			for i, got := range out {
				var want float32
				for k := range inner {
					want += float32(a[i/columns*inner+k] * w[k*columns+i%columns])
				}
				if got != want {
					t.Fatalf("%s %v: element %d is %v, want %v", name, s, i, got, want)
				}
			}
		}
	}
}

// TestFastIsPlain compares the two versions of the inner loop, bit for bit, on
// values of all sizes, subnormal sums and infinities among them.
func TestFastIsPlain(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	value := func() float32 { return float32(math.Ldexp(r.NormFloat64(), r.IntN(140)-100)) }
	for range 300 {
		rows, inner := 1+r.IntN(35), 1+r.IntN(70)
		stride := inner + r.IntN(5)
		a, panel := make([]float32, rows*stride), make([]float32, inner*panelColumns)
		for i := range a {
			a[i] = value()
		}
		for i := range panel {
			panel[i] = value()
		}
		got := make([]float32, rows*panelColumns)
		for i := range got {
			got[i] = value()
		}
		want := append([]float32(nil), got...)
		from := stride - inner // as after an earlier block of k
		accumulate(got, a[from:], stride, panel)
		plain(want, a[from:], stride, panel)
		for i := range want {
			if math.Float32bits(got[i]) != math.Float32bits(want[i]) && (got[i] == got[i] || want[i] == want[i]) {
				t.Fatalf("%d rows, inner %d: sum %d is %v, want %v", rows, inner, i, got[i], want[i])
			}
		}
	}
}

func BenchmarkAccumulate(b *testing.B) {
	const rows = 32
	sums, a, panel := make([]float32, rows*panelColumns), make([]float32, rows*innerBlock), make([]float32, innerBlock*panelColumns)
	for name, f := range map[string]func(sums, a []float32, stride int, panel []float32){"fast": accumulate, "plain": plain} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				f(sums, a, innerBlock, panel)
			}
			b.ReportMetric(float64(b.N)*2*rows*innerBlock*panelColumns/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
	}
}

func TestExp(t *testing.T) {
	worst := 0.0
	check := func(x float64) {
		want := math.Exp(x)
		if d := math.Abs(exp(x)-want) / want; want > 1e-300 && d > worst {
			worst = d
		}
	}
	r := rand.New(rand.NewPCG(1, 1))
	for range 200000 {
		check(r.NormFloat64() * 10)
		check(-r.Float64() * 690)
	}
	if t.Logf("largest relative error %.2g", worst); worst > 4e-16 {
		t.Errorf("relative error %g", worst)
	}
	for x, want := range map[float64]float64{0: 1, math.Inf(-1): 0, math.Inf(1): math.Inf(1), -800: 0, 800: math.Inf(1)} {
		if got := exp(x); got != want {
			t.Errorf("exp(%v) = %v, want %v", x, got, want)
		}
	}
	if got := exp(math.NaN()); got == got {
		t.Errorf("exp(NaN) = %v", got)
	}
}

func TestParallelCoversEveryPiece(t *testing.T) {
	for _, n := range []int{0, 1, 7, 8, 9, 1000} {
		seen := make([]int32, n)
		err := parallel(context.Background(), n, 8, func(lo, hi int) {
			if lo%8 != 0 || hi-lo > 8 {
				t.Errorf("piece [%d, %d)", lo, hi)
			}
			for i := lo; i < hi; i++ {
				seen[i]++
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		for i, s := range seen {
			if s != 1 {
				t.Fatalf("n %d: %d was visited %d times", n, i, s)
			}
		}
	}
}
