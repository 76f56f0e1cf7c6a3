package device

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"ipufarm/protocol/numeric"
)

// panelCase makes operands: halves or FP8 values, a share of them extreme.
func panelCase(r *rand.Rand, rows, k int, wild bool) (acc, left, right []float32) {
	value := func() float32 {
		x := float32(r.NormFloat64())
		if wild {
			switch r.IntN(12) {
			case 0:
				x = 0
			case 1:
				x *= 60000
			case 2:
				x *= 0x1p-20
			case 3:
				x = float32(math.Copysign(0, -1))
			case 4:
				if r.IntN(20) == 0 {
					x = float32(math.NaN())
				}
			case 5:
				if r.IntN(20) == 0 {
					x = float32(math.Inf(1 - 2*r.IntN(2)))
				}
			}
		}
		if k == 32 {
			return numeric.F143ToF32(numeric.F32ToF143(x))
		}
		if math.IsInf(float64(x), 0) {
			return x // a half may hold one
		}
		return numeric.RoundF16(x)
	}
	fill := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = value()
		}
		return x
	}
	acc = make([]float32, 16*rows)
	for i := range acc {
		acc[i] = numeric.RoundF16(float32(r.NormFloat64() * 10))
	}
	return acc, fill(rows * k), fill(k * 16)
}

// TestPanelPaths: every path gives the bits of the plain one, panel after panel.
func TestPanelPaths(t *testing.T) {
	paths := panelPaths()
	for _, p := range paths[1:] {
		for _, k := range []int{16, 32} {
			for rows := 1; rows <= 9; rows++ {
				for _, wild := range []bool{false, true} {
					t.Run(fmt.Sprint(p.name, " K", k, " R", rows, " wild ", wild), func(t *testing.T) {
						r := rand.New(rand.NewPCG(uint64(rows), uint64(k)))
						acc, _, _ := panelCase(r, rows, k, wild)
						want := append([]float32(nil), acc...)
						scale := float32(1)
						if k == 32 {
							scale = 0x1p-3
						}
						got := append(append([]float32(nil), acc...), 123)
						for range 40 {
							_, left, right := panelCase(r, rows, k, wild)
							p.run(got[:len(acc)], left, right, scale)
							panelGo(want, left, right, scale)
						}
						for i, w := range want {
							a, b := numeric.F32ToF16(got[i]), numeric.F32ToF16(w)
							if a != b {
								t.Fatalf("element %d is %v (%#04x), want %v (%#04x)", i, got[i], a, w, b)
							}
						}
						if got[len(acc)] != 123 {
							t.Error("wrote past the end")
						}
					})
				}
			}
		}
	}
}

func BenchmarkPanel(b *testing.B) {
	for _, p := range panelPaths() {
		for _, k := range []int{16, 32} {
			b.Run(fmt.Sprint(p.name, "-K", k), func(b *testing.B) {
				const rows = 82
				acc, left, right := panelCase(rand.New(rand.NewPCG(1, 2)), rows, k, false)
				for b.Loop() {
					clear(acc)
					p.run(acc, left, right, 1)
				}
				b.ReportMetric(2*rows*16*float64(k)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
			})
		}
	}
}
