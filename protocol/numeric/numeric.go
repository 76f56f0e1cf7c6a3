// Package numeric defines the number formats of the device once, for the
// reference evaluator, for the compiler that prepares parameters and for the
// simulated device: F16, F143 and F152 codes and their rounding.
//
// One policy holds in the whole package, that of an IPU21 with stochastic
// rounding off and NANOO on:
//
//   - every conversion to a narrower format rounds once, to nearest, ties to even
//   - subnormals are produced, never flushed
//   - a finite value whose rounding does not fit becomes NaN
//   - NaN and both infinities become NaN, without a sign
//
// Functions named Saturate are the other mode (NANOO off): a finite value that
// does not fit becomes the largest one; NaN and infinities still become NaN.
//
// Sources: poplibs QuarterTypeArithmeticTests.cpp and Cast.cpp (formats, NaN
// code, scale), Graphcore TensorFlow guide (NANOO), published IPU21 numerics
// notes. Whether the card tests for overflow before or after rounding is not
// public; here it is after, which differs only for values between the largest
// finite value and the half step above it.
package numeric

import "math"

// Scale limits of an FP8 tensor: value = code * 2^scale, a 6-bit signed field.
const (
	ScaleMin = -32
	ScaleMax = 31
)

// Pow2 returns 2^e, exactly, for the exponents -126..127; beyond them it returns
// 0 or +Inf. Multiplying by it is how a scale is applied.
func Pow2(e int) float32 {
	switch {
	case e < -126:
		return 0
	case e > 127:
		return float32(math.Inf(1))
	}
	return math.Float32frombits(uint32(e+127) << 23)
}
