package compare_test

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"

	"ipufarm/protocol/compare"
)

var (
	nan = float32(math.NaN())
	inf = float32(math.Inf(1))
)

func TestCompare(t *testing.T) {
	cases := []struct {
		name       string
		got, want  []float32
		atol, rtol float64
		pass       bool
		says       string
		maxAbs     float64
		maxIndex   int
	}{
		{"equal", []float32{1, -2}, []float32{1, -2}, 0, 0, true, "2 elements within", 0, 0},
		{"absolute", []float32{1, 2.25}, []float32{1, 2}, 0.25, 0, true, "max abs error 0.25 at 1", 0.25, 1},
		{"absolute, too far", []float32{1, 2.25}, []float32{1, 2}, 0.24, 0, false, "1 of 2 elements out of tolerance (atol 0.24, rtol 0), the first at 1", 0.25, 1},
		{"relative to want", []float32{-10, 110}, []float32{-10, 100}, 0, 0.1, true, "within", 10, 1},
		{"relative, too far", []float32{-10, 110}, []float32{-10, 100}, 0, 0.09, false, "out of tolerance", 10, 1},
		{"both tolerances add", []float32{100.5}, []float32{100}, 0.25, 0.0025, true, "within", 0.5, 0},
		{"first of equal errors", []float32{1, 1}, []float32{0, 0}, 2, 0, true, "at 0", 1, 0},
		{"NaN", []float32{1, nan, 3}, []float32{0, 2, 3}, 9, 9, false, "1 of 3 elements are not finite, the first at 1", 1, 0},
		{"infinite on both sides", []float32{inf}, []float32{inf}, 9, 9, false, "not finite", 0, -1},
		{"NaN wanted", []float32{1}, []float32{nan}, 9, 9, false, "not finite", 0, -1},
		{"NaN tolerance", []float32{1}, []float32{1}, math.NaN(), 0, false, "out of tolerance", 0, 0},
		{"short", []float32{1}, []float32{1, 2}, 9, 9, false, "1 elements, want 2", 0, 0},
		{"long", []float32{1, 2}, []float32{1}, 9, 9, false, "2 elements, want 1", 0, 0},
		{"empty", nil, nil, 9, 9, false, "0 elements", 0, -1},
	}
	for _, c := range cases {
		r := compare.Compare(c.got, c.want, c.atol, c.rtol)
		if r.Pass() != c.pass || r.MaxAbs != c.maxAbs || r.MaxIndex != c.maxIndex || !strings.Contains(r.String(), c.says) {
			t.Errorf("%s: %+v, pass %v, says %q", c.name, r, r.Pass(), r)
		}
		if math.IsNaN(c.atol) {
			continue
		}
		if _, err := json.Marshal(r); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestListsAreBounded(t *testing.T) {
	got, want := make([]float32, 100), make([]float32, 100)
	for i := range got {
		got[i] = 1
		if i%2 == 1 {
			got[i] = nan
		}
	}
	r := compare.Compare(got, want, 0, 0)
	if r.OutOfTolerance != 50 || r.NonFinite != 50 {
		t.Errorf("counts %d and %d, want 50 and 50", r.OutOfTolerance, r.NonFinite)
	}
	if n := len(r.OutIndexes); n != 16 || !slices.Equal(r.OutIndexes[:3], []int{0, 2, 4}) || !slices.Equal(r.NonFiniteAt[:3], []int{1, 3, 5}) {
		t.Errorf("lists %v and %v", r.OutIndexes, r.NonFiniteAt)
	}
}

func TestCosineRows(t *testing.T) {
	got := []float32{1, 0, 3, 4, 0, 0, 0, 0, nan, 1, 7}
	want := []float32{0, 2, 6, 8, 0, 0, 1, 0, 1, 1, 7}
	c := compare.CosineRows(got, want, 2)
	if !slices.Equal(c, []float64{0, 1, 1, 0, 0, 0}) {
		t.Errorf("cosines %v", c)
	}
	if c := compare.CosineRows([]float32{1, -1}, []float32{-1, 1}, 2); math.Abs(c[0]+1) > 1e-15 {
		t.Errorf("cosine of opposite rows %v", c)
	}
	if compare.CosineRows(got, want, 0) != nil {
		t.Error("a width of 0 gives rows")
	}
}
