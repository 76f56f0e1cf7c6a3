package numeric

import (
	"encoding/binary"
	"math"

	"github.com/x448/float16"
)

// F16NaN is the NaN that conversions to F16 give. F16Max is the largest finite half.
const (
	F16NaN = 0x7E00
	F16Max = 65504
)

// halves is the value of every half, so that decoding is one load.
var halves = func() *[1 << 16]float32 {
	t := new([1 << 16]float32)
	for h := range t {
		t[h] = float16.Frombits(uint16(h)).Float32()
	}
	return t
}()

// F16ToF32 returns the value of a half, exactly. Infinities and NaN stay what
// they are.
func F16ToF32(h uint16) float32 { return halves[h] }

// F32ToF16 rounds to nearest even. A magnitude of 65,520 or more (where rounding
// would leave the finite range), an infinity or a NaN gives F16NaN.
func F32ToF16(x float32) uint16 {
	b := math.Float32bits(x)
	sign := uint16(b >> 16 & 0x8000)
	a := b &^ (1 << 31)
	if a < 0x38800000 { // below 2^-14: a multiple of 2^-24, which is the ulp of 0.5
		return sign | uint16(math.Float32bits(math.Float32frombits(a)+0.5)-0x3F000000)
	}
	// Round the mantissa at bit 13; a carry moves into the exponent as it should.
	// The two exponent fields differ by 127-15.
	h := (a+0xFFF+(a>>13&1))>>13 - 112<<10
	if h >= 0x7C00 {
		return F16NaN
	}
	return sign | uint16(h)
}

// RoundF16 returns the value of x after F32ToF16.
func RoundF16(x float32) float32 { return halves[F32ToF16(x)] }

// DecodeF16 sets dst[i] to the value of src[i] for every element of src; dst must
// be at least as long.
func DecodeF16(dst []float32, src []uint16) {
	dst = dst[:len(src)]
	for i, h := range src {
		dst[i] = halves[h]
	}
}

// EncodeF16 rounds every element of src into dst, which must be at least as long.
func EncodeF16(dst []uint16, src []float32) {
	dst = dst[:len(src)]
	for i, x := range src {
		dst[i] = F32ToF16(x)
	}
}

// DecodeF16LE is DecodeF16 on little-endian bytes, two for each element of dst.
func DecodeF16LE(dst []float32, src []byte) {
	src = src[:2*len(dst)]
	for i := range dst {
		dst[i] = halves[binary.LittleEndian.Uint16(src[2*i:])]
	}
}

// EncodeF16LE is EncodeF16 to little-endian bytes, two for each element of src.
func EncodeF16LE(dst []byte, src []float32) {
	dst = dst[:2*len(src)]
	for i, x := range src {
		binary.LittleEndian.PutUint16(dst[2*i:], F32ToF16(x))
	}
}
