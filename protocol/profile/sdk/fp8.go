package sdk

import (
	"fmt"
	"math"

	"ipufarm/protocol/numeric"
)

// RowSum is what a row of probabilities becomes in FP8 at one scale.
type RowSum struct {
	Scale    int     `json:"scale"`
	Sum      float64 `json:"row_sum"`       // of the quantised values that fit, exactly
	Exact    float64 `json:"exact_row_sum"` // of the values as given
	Lost     int     `json:"lost"`          // values above 0 that become 0
	NaN      int     `json:"nan"`           // values that do not fit
	WorstRel float64 `json:"max_relative_error"`
	Step     float64 `json:"step"`    // smallest value above 0
	Largest  float64 `json:"largest"` // largest value
}

// Format is an 8-bit format of the device.
type Format struct {
	Name   string
	encode func(h uint16, scale int) byte
	decode func(code byte) float32
	max    float64
}

// Formats are the 8-bit formats by name.
var Formats = []Format{
	{"f143", numeric.F16ToF143, numeric.F143ToF32, numeric.F143Max},
	{"f152", numeric.F16ToF152, numeric.F152ToF32, numeric.F152Max},
}

// Quantise converts a value as the device does, to F16 and then to FP8, and returns
// the code and its value.
func (f *Format) Quantise(x float64, scale int) (code byte, value float64) {
	code = f.encode(numeric.F32ToF16(float32(x)), scale)
	return code, float64(f.decode(code)) * float64(numeric.Pow2(scale))
}

// RowSums quantises a row of probabilities at each scale. Softmax makes rows that
// sum to 1; FP8 rounds every element to a grid that is coarse for small ones, all
// of a nearly uniform row to the same side, and then the row sums to something
// else: P·V is off by that factor (published SDK ONNX profile analysis, 2026-09-07:
// 729 keys at scale -1 sum to 1.06787109375).
func RowSums(f *Format, row []float64, scales []int) ([]RowSum, error) {
	exact := 0.0
	for i, p := range row {
		if !(p >= 0 && p <= 1) {
			return nil, fmt.Errorf("probability %d is %g, want 0 to 1", i, p)
		}
		exact += p
	}
	var list []RowSum
	for _, scale := range scales {
		if scale < numeric.ScaleMin || scale > numeric.ScaleMax {
			return nil, fmt.Errorf("scale %d, want %d to %d", scale, numeric.ScaleMin, numeric.ScaleMax)
		}
		unit := float64(numeric.Pow2(scale))
		r := RowSum{Scale: scale, Exact: exact, Step: float64(f.decode(1)) * unit, Largest: f.max * unit}
		for _, p := range row {
			_, q := f.Quantise(p, scale)
			if math.IsNaN(q) {
				r.NaN++
				continue
			}
			r.Sum += q // exact: multiples of Step, far fewer than 2^53 of them
			switch {
			case q == 0 && p > 0:
				r.Lost++
				r.WorstRel = max(r.WorstRel, 1)
			case p > 0:
				r.WorstRel = max(r.WorstRel, math.Abs(q-p)/p)
			}
		}
		list = append(list, r)
	}
	return list, nil
}
