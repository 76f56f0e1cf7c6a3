package numeric

import "math"

// F8NaN is the only NaN of both 8-bit formats; it takes the place of minus zero.
const F8NaN = 0x80

// Largest finite values, at scale 0.
const (
	F143Max = 240
	F152Max = 57344
)

// format is an 8-bit format with a sign, an exponent field of bias `bias` and a
// mantissa of `mantissa` bits, neither infinities nor minus zero.
type format struct {
	mantissa uint32
	bias     uint32
}

var (
	f143 = format{mantissa: 3, bias: 8}
	f152 = format{mantissa: 2, bias: 16}

	f143Values = f143.values()
	f152Values = f152.values()
)

// values decodes all codes of a format.
func (f format) values() *[256]float32 {
	t := new([256]float32)
	for code := range t {
		e := uint32(code) & 0x7F >> f.mantissa
		m := float32(uint32(code) & (1<<f.mantissa - 1))
		ulp := Pow2(int(max(e, 1)) - int(f.bias) - int(f.mantissa))
		if e > 0 {
			m += float32(uint32(1) << f.mantissa)
		}
		t[code] = m * ulp // exact
		if code >= 0x80 {
			t[code] = -t[code]
		}
	}
	t[F8NaN] = float32(math.NaN())
	return t
}

// encode rounds x to the nearest code, ties to even. over is the code of a
// positive finite value that does not fit: 0x7F with saturation, F8NaN without.
func (f format) encode(x float32, over byte) byte {
	b := math.Float32bits(x)
	a := b &^ (1 << 31)
	if a >= 0x7F800000 {
		return F8NaN
	}
	sign := byte(b >> 24 & 0x80)
	var code uint32
	if least := 128 - f.bias; a < least<<23 { // below the smallest normal, 2^(1-bias)
		// Adding the power of two whose ulp is the smallest subnormal lets the
		// addition round.
		magic := math.Float32frombits((127 + 23 + 1 - f.bias - f.mantissa) << 23)
		code = math.Float32bits(math.Float32frombits(a)+magic) - math.Float32bits(magic)
	} else {
		shift := 23 - f.mantissa
		code = (a+(1<<(shift-1)-1)+(a>>shift&1))>>shift - (127-f.bias)<<f.mantissa
	}
	switch {
	case code == 0:
		return 0 // a negative value that rounds to zero has no sign
	case code > 0x7F && over == F8NaN:
		return F8NaN
	case code > 0x7F:
		return sign | over
	}
	return sign | byte(code)
}

// F143ToF32 returns the value of an F143 code at scale 0: exponent bias 8,
// largest value 240, NaN only at 0x80.
func F143ToF32(code byte) float32 { return f143Values[code] }

// F152ToF32 returns the value of an F152 code at scale 0: exponent bias 16,
// largest value 57,344, NaN only at 0x80.
func F152ToF32(code byte) float32 { return f152Values[code] }

// F32ToF143 rounds x once to an F143 code at scale 0. A magnitude of 248 or more,
// an infinity or a NaN gives F8NaN; a value that rounds to zero gives 0x00. To
// store x at another scale, convert x * Pow2(-scale).
func F32ToF143(x float32) byte { return f143.encode(x, F8NaN) }

// F32ToF152 is F32ToF143 for F152; it overflows from 61,440.
func F32ToF152(x float32) byte { return f152.encode(x, F8NaN) }

// F32ToF143Saturate is F32ToF143 with clipping to ±240.
func F32ToF143Saturate(x float32) byte { return f143.encode(x, 0x7F) }

// F32ToF152Saturate is F32ToF152 with clipping to ±57,344.
func F32ToF152Saturate(x float32) byte { return f152.encode(x, 0x7F) }

// F16ToF143 converts a half to the code whose value is code * 2^scale, as the
// device's cast does: it scales exactly, then rounds once. Scale is
// ScaleMin..ScaleMax.
func F16ToF143(h uint16, scale int) byte { return f143.encode(halves[h]*Pow2(-scale), F8NaN) }

// F16ToF152 is F16ToF143 for F152.
func F16ToF152(h uint16, scale int) byte { return f152.encode(halves[h]*Pow2(-scale), F8NaN) }

// F16ToF143Saturate is F16ToF143 with clipping: for parameters that are
// quantised once on the host, where a clipped outlier is better than a NaN.
func F16ToF143Saturate(h uint16, scale int) byte { return f143.encode(halves[h]*Pow2(-scale), 0x7F) }

// F16ToF152Saturate is F16ToF152 with clipping.
func F16ToF152Saturate(h uint16, scale int) byte { return f152.encode(halves[h]*Pow2(-scale), 0x7F) }

// DecodeF143 sets dst[i] to the value at scale 0 of src[i] for every element of
// src; dst must be at least as long.
func DecodeF143(dst []float32, src []byte) {
	dst = dst[:len(src)]
	for i, c := range src {
		dst[i] = f143Values[c]
	}
}

// DecodeF152 is DecodeF143 for F152.
func DecodeF152(dst []float32, src []byte) {
	dst = dst[:len(src)]
	for i, c := range src {
		dst[i] = f152Values[c]
	}
}

// EncodeF143 rounds every element of src times 2^-scale into dst, which must be
// at least as long.
func EncodeF143(dst []byte, src []float32, scale int) {
	dst, factor := dst[:len(src)], Pow2(-scale)
	for i, x := range src {
		dst[i] = f143.encode(x*factor, F8NaN)
	}
}

// EncodeF152 is EncodeF143 for F152.
func EncodeF152(dst []byte, src []float32, scale int) {
	dst, factor := dst[:len(src)], Pow2(-scale)
	for i, x := range src {
		dst[i] = f152.encode(x*factor, F8NaN)
	}
}
