package numeric_test

import (
	"encoding/csv"
	"math"
	"math/big"
	"os"
	"strconv"
	"testing"

	"ipufarm/protocol/numeric"
)

// codes reads the column of a published code table: value by code. NaN has an
// empty or non-numeric value there.
func codes(t *testing.T, file, column string) [256]float64 {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	at := -1
	for i, name := range rows[0] {
		if name == column {
			at = i
		}
	}
	if at < 0 || len(rows) != 257 {
		t.Fatalf("%s: no column %s or %d rows", file, column, len(rows))
	}
	var v [256]float64
	for _, row := range rows[1:] {
		code, err := strconv.Atoi(row[0])
		if err != nil {
			t.Fatal(err)
		}
		if v[code], err = strconv.ParseFloat(row[at], 64); err != nil {
			v[code] = math.NaN()
		}
	}
	return v
}

type f8 struct {
	name     string
	file     string
	decode   func(byte) float32
	encode   func(float32) byte
	saturate func(float32) byte
	half     func(uint16, int) byte
	bulk     func([]byte, []float32, int)
	unbulk   func([]float32, []byte)
}

var formats = []f8{
	{"F143", "testdata/f143.csv", numeric.F143ToF32, numeric.F32ToF143, numeric.F32ToF143Saturate, numeric.F16ToF143, numeric.EncodeF143, numeric.DecodeF143},
	{"F152", "testdata/f152.csv", numeric.F152ToF32, numeric.F32ToF152, numeric.F32ToF152Saturate, numeric.F16ToF152, numeric.EncodeF152, numeric.DecodeF152},
}

func TestCodesMatchPublishedTables(t *testing.T) {
	for _, f := range formats {
		want := codes(t, f.file, "value_decimal")
		for c, w := range want {
			got := f.decode(byte(c))
			if c == 0x80 {
				if !math.IsNaN(w) || got == got {
					t.Errorf("%s 0x80: %v, table %v, want NaN", f.name, got, w)
				}
				continue
			}
			if float64(got) != w || math.IsNaN(w) {
				t.Errorf("%s %#02x: %v, table says %v", f.name, c, got, w)
			}
			if back := f.encode(got); back != byte(c) {
				t.Errorf("%s %#02x encodes back to %#02x", f.name, c, back)
			}
			// Every code is a half.
			if h := numeric.F32ToF16(got); numeric.F16ToF32(h) != got || f.half(h, 0) != byte(c) {
				t.Errorf("%s %#02x: not exact in F16", f.name, c)
			}
		}
	}
}

// nearest is the obvious encoder: search all codes in float64, ties to the even
// code, overflow from half a step above the largest.
func nearest(values [256]float64, x float64) byte {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return 0x80
	}
	a := math.Abs(x)
	top, below := values[0x7F], values[0x7E]
	if a >= top+(top-below)/2 {
		return 0x80
	}
	best := 0
	for c := 1; c < 0x80; c++ {
		d, b := math.Abs(values[c]-a), math.Abs(values[best]-a)
		if d < b || d == b && c&1 == 0 {
			best = c
		}
	}
	if best != 0 && x < 0 {
		best |= 0x80
	}
	return byte(best)
}

func TestEveryHalfToF8(t *testing.T) {
	for _, f := range formats {
		values := codes(t, f.file, "value_decimal")
		for _, scale := range []int{-32, -4, 0, 3, 31} {
			for h := 0; h < 1<<16; h += 1 {
				if scale != 0 && h%7 != 0 {
					continue
				}
				x := float64(numeric.F16ToF32(uint16(h))) * math.Ldexp(1, -scale)
				if got, want := f.half(uint16(h), scale), nearest(values, x); got != want {
					t.Fatalf("%s: half %#04x (%v) at scale %d gives %#02x, want %#02x", f.name, h, x, scale, got, want)
				}
			}
		}
	}
}

func TestF32ToF8Edges(t *testing.T) {
	inf := float32(math.Inf(1))
	for _, c := range []struct {
		f        int
		x        float32
		code     byte
		saturate byte
	}{
		{0, 0x1p-11, 0x00, 0x00}, // tie to even
		{0, math.Nextafter32(0x1p-11, 1), 0x01, 0x01},
		{0, -0x1p-11, 0x00, 0x00}, // no negative zero
		{0, float32(math.Copysign(0, -1)), 0x00, 0x00},
		{0, 0x1p-10, 0x01, 0x01},
		{0, 0x1p-7, 0x08, 0x08},
		{0, 240, 0x7F, 0x7F},
		{0, 247.9, 0x7F, 0x7F},
		{0, 248, 0x80, 0x7F},
		{0, -248, 0x80, 0xFF},
		{0, 1e30, 0x80, 0x7F},
		{0, inf, 0x80, 0x80},
		{0, -inf, 0x80, 0x80},
		{0, float32(math.NaN()), 0x80, 0x80},
		{0, 8.50390625, 0x59, 0x59}, // via F16 this would round twice, to 0x58
		{0, 8.5, 0x58, 0x58},
		{1, 57344, 0x7F, 0x7F},
		{1, 61439, 0x7F, 0x7F},
		{1, 61440, 0x80, 0x7F},
		{1, -61440, 0x80, 0xFF},
		{1, 0x1p-18, 0x00, 0x00},
		{1, -0x1p-18, 0x00, 0x00},
		{1, 0x1p-15, 0x04, 0x04},
		{1, -inf, 0x80, 0x80},
	} {
		f := formats[c.f]
		if got := f.encode(c.x); got != c.code {
			t.Errorf("%s(%v) = %#02x, want %#02x", f.name, c.x, got, c.code)
		}
		if got := f.saturate(c.x); got != c.saturate {
			t.Errorf("%s saturating (%v) = %#02x, want %#02x", f.name, c.x, got, c.saturate)
		}
	}
	if h := numeric.F32ToF16(8.50390625); numeric.F16ToF143(h, 0) != 0x58 {
		t.Errorf("8.50390625 rounded to F16 first gives %#02x, want the double rounding 0x58", numeric.F16ToF143(h, 0))
	}
	// The first half that becomes a nonzero code.
	if a, b := numeric.F16ToF143(0x1000, 0), numeric.F16ToF143(0x1001, 0); a != 0 || b != 1 {
		t.Errorf("halves 0x1000 and 0x1001 give %#02x and %#02x, want 0x00 and 0x01", a, b)
	}
	if numeric.F16ToF143Saturate(numeric.F32ToF16(100), -4) != 0x7F || numeric.F16ToF152Saturate(numeric.F32ToF16(-60000), -1) != 0xFF {
		t.Error("saturating conversion from F16 does not clip")
	}
}

func TestHalfRoundTrip(t *testing.T) {
	for h := 0; h < 1<<16; h++ {
		x := numeric.F16ToF32(uint16(h))
		got := numeric.F32ToF16(x)
		if e := h >> 10 & 31; e == 31 {
			if got != numeric.F16NaN {
				t.Fatalf("half %#04x (%v) encodes to %#04x, want the NaN", h, x, got)
			}
			continue
		}
		if got != uint16(h) {
			t.Fatalf("half %#04x (%v) encodes to %#04x", h, x, got)
		}
		// Independent value: mantissa times a power of two.
		m, e := h&0x3FF, h>>10&31
		want := math.Ldexp(float64(m), -24)
		if e > 0 {
			want = math.Ldexp(float64(m+1024), e-25)
		}
		if h>>15 == 1 {
			want = -want
		}
		if float64(x) != want {
			t.Fatalf("half %#04x is %v, want %v", h, x, want)
		}
	}
}

// TestHalfTies walks all neighbours: the midpoint goes to the even one, a step
// to either side goes to the nearer one.
func TestHalfTies(t *testing.T) {
	for h := 0; h < 0x7BFF; h++ {
		lo, hi := numeric.F16ToF32(uint16(h)), numeric.F16ToF32(uint16(h+1))
		mid := lo + (hi-lo)/2 // exact: one more bit than a half
		even := uint16(h + h&1)
		if got := numeric.F32ToF16(mid); got != even {
			t.Fatalf("midpoint %v of %#04x gives %#04x, want %#04x", mid, h, got, even)
		}
		below, above := math.Nextafter32(mid, 0), math.Nextafter32(mid, 1e9)
		if a, b := numeric.F32ToF16(below), numeric.F32ToF16(-above); a != uint16(h) || b != uint16(h+1)|0x8000 {
			t.Fatalf("around midpoint of %#04x: %#04x and %#04x", h, a, b)
		}
	}
	for x, want := range map[float32]uint16{65519.996: 0x7BFF, 65520: 0x7E00, -65520: 0x7E00, 1e10: 0x7E00, 0x1p-25: 0, -0x1p-25: 0x8000} {
		if got := numeric.F32ToF16(x); got != want {
			t.Errorf("F32ToF16(%v) = %#04x, want %#04x", x, got, want)
		}
	}
	for _, x := range []float64{math.Inf(1), math.Inf(-1), math.NaN()} {
		if got := numeric.F32ToF16(float32(x)); got != numeric.F16NaN {
			t.Errorf("F32ToF16(%v) = %#04x", x, got)
		}
	}
}

func TestBulkEqualsSingle(t *testing.T) {
	halves := make([]uint16, 1<<16)
	raw := make([]byte, 2<<16)
	for h := range halves {
		halves[h] = uint16(h)
		raw[2*h], raw[2*h+1] = byte(h), byte(h>>8)
	}
	a, b := make([]float32, 1<<16), make([]float32, 1<<16)
	numeric.DecodeF16(a, halves)
	numeric.DecodeF16LE(b, raw)
	for h := range halves {
		w := math.Float32bits(numeric.F16ToF32(uint16(h)))
		if math.Float32bits(a[h]) != w || math.Float32bits(b[h]) != w {
			t.Fatalf("bulk decode of %#04x differs", h)
		}
	}
	out, bytes := make([]uint16, 1<<16), make([]byte, 2<<16)
	numeric.EncodeF16(out, a)
	numeric.EncodeF16LE(bytes, a)
	for h := range halves {
		w := numeric.F32ToF16(a[h])
		if out[h] != w || bytes[2*h] != byte(w) || bytes[2*h+1] != byte(w>>8) {
			t.Fatalf("bulk encode of %v differs", a[h])
		}
		if r := numeric.RoundF16(a[h]); r == r && r != a[h] {
			t.Fatalf("RoundF16 moved the half %v to %v", a[h], r)
		}
	}
	for _, f := range formats {
		codes := make([]byte, 1<<16)
		f.bulk(codes, a, -4)
		for h := range halves {
			if w := f.half(uint16(h), -4); codes[h] != w {
				t.Fatalf("%s bulk of half %#04x: %#02x, want %#02x", f.name, h, codes[h], w)
			}
		}
		f.unbulk(b, codes)
		for i, c := range codes {
			if math.Float32bits(b[i]) != math.Float32bits(f.decode(c)) {
				t.Fatalf("%s bulk decode of %#02x differs", f.name, c)
			}
		}
	}
}

func TestPow2(t *testing.T) {
	for e := -140; e <= 140; e++ {
		got := numeric.Pow2(e)
		switch {
		case e < -126 && got != 0, e > 127 && !math.IsInf(float64(got), 1):
			t.Errorf("Pow2(%d) = %v", e, got)
		case e >= -126 && e <= 127:
			if want := new(big.Float).SetMantExp(big.NewFloat(1), e); want.Cmp(big.NewFloat(float64(got))) != 0 {
				t.Errorf("Pow2(%d) = %v", e, got)
			}
		}
	}
}

func BenchmarkDecodeF16(b *testing.B) {
	src, dst := make([]byte, 8192), make([]float32, 4096)
	for i := range src {
		src[i] = byte(i * 7)
	}
	b.SetBytes(int64(len(src)))
	for b.Loop() {
		numeric.DecodeF16LE(dst, src)
	}
}

func BenchmarkEncodeF16(b *testing.B) {
	src, dst := make([]float32, 4096), make([]byte, 8192)
	for i := range src {
		src[i] = float32(i-2000) / 77
	}
	b.SetBytes(int64(len(dst)))
	for b.Loop() {
		numeric.EncodeF16LE(dst, src)
	}
}

func BenchmarkEncodeF143(b *testing.B) {
	src, dst := make([]float32, 4096), make([]byte, 4096)
	for i := range src {
		src[i] = float32(i-2000) / 77
	}
	b.SetBytes(int64(len(dst)))
	for b.Loop() {
		numeric.EncodeF143(dst, src, -4)
	}
}
