package reference

import "math"

// gelu is the tanh form: x/2 (1 + tanh u) = x / (1 + exp(-2u)).
func gelu(x float64) float64 {
	const c = 0.7978845608028654 // sqrt(2/π)
	cube := float64(float64(x*x) * x)
	u := float64(c * (x + float64(0.044715*cube)))
	return x / (1 + exp(float64(-2*u)))
}

// exp is e^x to about one unit in the last place of an F64. The standard library
// has assembly versions that differ between machines in that place; this one is
// additions and multiplications that no compiler may fuse.
func exp(x float64) float64 {
	switch {
	case x != x:
		return x
	case x > 709:
		return math.Inf(1)
	case x < -745:
		return 0
	}
	// x = k ln 2 + r with |r| <= ln 2 / 2. The high part of ln 2 has 20 zero bits at
	// its end, so that k times it is exact.
	const (
		ln2High = 6.93147180369123816490e-01
		ln2Low  = 1.90821492927058770002e-10
	)
	k := math.Round(float64(x * (1 / math.Ln2)))
	r := (x - float64(k*ln2High)) - float64(k*ln2Low)
	// The Taylor series; the first term left out is below 2^-57.
	p := 1.0 / 6227020800 // 1/13!
	for _, c := range taylor {
		p = float64(p*r) + c
	}
	return math.Ldexp(p, int(k))
}

// taylor is 1/n! for n from 12 down to 0.
var taylor = [...]float64{
	1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
	1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 1.0 / 2, 1, 1,
}
