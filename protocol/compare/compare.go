// Package compare judges an output tensor against an expected one, element by
// element. The runner and the coordinator use it on what a device returned; it
// knows nothing of graphs or tiles.
package compare

import (
	"fmt"
	"math"
)

// maxListed is how many offending indexes a Report names.
const maxListed = 16

// Report is the result of a comparison. Whatever was compared, its own
// numbers are finite (given finite tolerances), so that it can be written as JSON.
type Report struct {
	Elements int     `json:"elements"`      // of want
	Got      int     `json:"got_elements"`  // differs from Elements if the shapes do
	Atol     float64 `json:"atol"`          // an element is in tolerance if
	Rtol     float64 `json:"rtol"`          // |got-want| <= atol + rtol*|want|
	MaxAbs   float64 `json:"max_abs_error"` // over the elements that are finite in both
	MaxIndex int     `json:"max_abs_index"` // the first element with that error; -1 if there is none

	OutOfTolerance int   `json:"out_of_tolerance"` // finite in both, yet too far apart
	OutIndexes     []int `json:"out_indexes,omitempty"`
	NonFinite      int   `json:"non_finite"` // NaN or infinite on either side
	NonFiniteAt    []int `json:"non_finite_indexes,omitempty"`
}

// Compare compares got with want, whose elements correspond. Index lists hold the
// first few offenders in ascending order.
func Compare(got, want []float32, atol, rtol float64) Report {
	r := Report{Elements: len(want), Got: len(got), Atol: atol, Rtol: rtol, MaxIndex: -1}
	for i := range min(len(got), len(want)) {
		g, w := float64(got[i]), float64(want[i])
		if !finite(g) || !finite(w) {
			r.NonFinite++
			r.NonFiniteAt = list(r.NonFiniteAt, i)
			continue
		}
		d := math.Abs(g - w)
		if d > r.MaxAbs || r.MaxIndex < 0 {
			r.MaxAbs, r.MaxIndex = d, i
		}
		// Written so that a NaN tolerance accepts nothing.
		if !(d <= atol+rtol*math.Abs(w)) {
			r.OutOfTolerance++
			r.OutIndexes = list(r.OutIndexes, i)
		}
	}
	return r
}

// Pass reports whether every element is there, finite and in tolerance.
func (r Report) Pass() bool {
	return r.Elements > 0 && r.Got == r.Elements && r.NonFinite == 0 && r.OutOfTolerance == 0
}

// String says in one line what was compared and what was wrong.
func (r Report) String() string {
	switch {
	case r.Got != r.Elements:
		return fmt.Sprintf("%d elements, want %d", r.Got, r.Elements)
	case r.NonFinite > 0:
		return fmt.Sprintf("%d of %d elements are not finite, the first at %d", r.NonFinite, r.Elements, r.NonFiniteAt[0])
	case r.OutOfTolerance > 0:
		return fmt.Sprintf("%d of %d elements out of tolerance (atol %g, rtol %g), the first at %d; max abs error %.6g at %d",
			r.OutOfTolerance, r.Elements, r.Atol, r.Rtol, r.OutIndexes[0], r.MaxAbs, r.MaxIndex)
	}
	return fmt.Sprintf("%d elements within atol %g, rtol %g; max abs error %.6g at %d", r.Elements, r.Atol, r.Rtol, r.MaxAbs, r.MaxIndex)
}

// CosineRows returns the cosine similarity of corresponding rows of width
// elements. Two rows of zeros have similarity 1; a row of zeros beside another, a
// row with a value that is not finite and a row that is incomplete on either side
// have 0. A width below 1 gives nil.
func CosineRows(got, want []float32, width int) []float64 {
	if width < 1 {
		return nil
	}
	cos := make([]float64, (max(len(got), len(want))+width-1)/width)
	for r := range cos {
		lo, hi := r*width, (r+1)*width
		if hi <= min(len(got), len(want)) {
			cos[r] = cosine(got[lo:hi], want[lo:hi])
		}
	}
	return cos
}

func cosine(a, b []float32) float64 {
	var ab, aa, bb float64
	for i := range a {
		x, y := float64(a[i]), float64(b[i])
		ab += float64(x * y)
		aa += float64(x * x)
		bb += float64(y * y)
	}
	if aa == 0 && bb == 0 {
		return 1
	}
	c := ab / math.Sqrt(aa) / math.Sqrt(bb)
	if !finite(c) {
		return 0
	}
	return c
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

func list(indexes []int, i int) []int {
	if len(indexes) < maxListed {
		return append(indexes, i)
	}
	return indexes
}
