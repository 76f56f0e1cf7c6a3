package workload

import (
	"math"
	"slices"
	"strings"
	"testing"
)

func TestNPYRoundTrip(t *testing.T) {
	for _, shape := range [][]int{{}, {3}, {2, 3}, {1, 1, 144}, {0, 5}} {
		n := 1
		for _, d := range shape {
			n *= d
		}
		data := make([]float32, n)
		for i := range data {
			data[i] = float32(i) - 0.25
		}
		file := encodeNPY(shape, data)
		if (len(file)-4*n)%64 != 0 {
			t.Errorf("%v: data begins at %d", shape, len(file)-4*n)
		}
		a, err := decodeNPY(file)
		if err != nil {
			t.Errorf("%v: %v", shape, err)
			continue
		}
		if !slices.Equal(a.shape, shape) || a.elements() != n {
			t.Errorf("%v with %d elements became %v with %d", shape, n, a.shape, a.elements())
		}
		for i, x := range data {
			if a.at(i) != float64(x) {
				t.Fatalf("%v: element %d is %v, want %v", shape, i, a.at(i), x)
			}
		}
	}
	// What numpy itself writes for (3,) of float32.
	if head := string(encodeNPY([]int{3}, make([]float32, 3))[:70]); !strings.HasPrefix(head, "\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }") {
		t.Errorf("header %q", head)
	}
}

func TestNPYVersions(t *testing.T) {
	const header = "{'descr':'<f2','fortran_order':False,'shape':(1,)}"
	for _, file := range []string{
		npyMagic + "\x01\x00" + string(rune(len(header))) + "\x00" + header + "\x00\x3c",
		npyMagic + "\x02\x00" + string(rune(len(header))) + "\x00\x00\x00" + header + "\x00\x3c",
		npyMagic + "\x03\x00" + string(rune(len(header))) + "\x00\x00\x00" + header + "\x00\x3c",
	} {
		if a, err := decodeNPY([]byte(file)); err != nil || a.at(0) != 1 {
			t.Errorf("%q: %v, %v", file, a, err)
		}
	}
}

func TestNPYRefuses(t *testing.T) {
	file := func(header string) string {
		return npyMagic + "\x02\x00" + string([]byte{byte(len(header)), byte(len(header) >> 8), 0, 0}) + header
	}
	for _, c := range []struct{ file, want string }{
		{"", "not an .npy file"},
		{"\x93NUMPX\x01\x00", "not an .npy file"},
		{npyMagic, "not an .npy file"},
		{npyMagic + "\x01\x00", "truncated before the header"},
		{npyMagic + "\x01\x01\x00\x00", "version 1.1"},
		{npyMagic + "\x04\x00\x00\x00", "version 4.0"},
		{npyMagic + "\x01\x00\x20\x00{}", "truncated: 2 of 32 header bytes"},
		{npyMagic + "\x02\x00\xff\xff\xff\xff{}", "a header of 4294967295 bytes"},
		{file("[]"), "want {"},
		{file("{}"), `no "descr"`},
		{file("{'descr': '<f4', 'fortran_order': False}"), `no "shape"`},
		{file("{'descr': '<f4', 'descr': '<f4'}"), `"descr" twice`},
		{file("{'descr': '<f4' 'fortran_order': False}"), "want , or }"},
		{file("{'descr' '<f4'}"), `want : after "descr"`},
		{file("{'descr': [('a', '<f4')]}"), "want a quoted word"},
		{file("{'descr': '<c8'}"), `element type "<c8"; <f2, <f4 and <f8 are accepted`},
		{file("{descr: '<f4'}"), "want a quoted word"},
		{file("{'descr"), "want a quoted word"},
		{file("{'fortran_order': 0}"), "want True or False"},
		{file("{'size': 0}"), `unknown key "size"`},
		{file("{'shape': 3}"), "want a tuple"},
		{file("{'shape': (-3,)}"), "want a size"},
		{file("{'shape': (3 4)}"), "want , or )"},
		{file("{'shape': (3"), "want a size"},
		{file("{'shape': (99999999999999999999,)}"), "size"},
		{file("{'shape': (" + strings.Repeat("1,", 17) + ")}"), "more than 16"},
		{file("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} x"), "after the dict"},
		{file("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296, 4294967296)}"), "overflows"},
		{file("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}") + "1234567", "7 bytes of data, shape [2] of float32 needs 8"},
	} {
		if a, err := decodeNPY([]byte(c.file)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, error %v, want one with %q", c.file, a, err, c.want)
		}
	}
}

func FuzzNPY(f *testing.F) {
	f.Add(encodeNPY([]int{2, 3}, make([]float32, 6)))
	f.Add(encodeNPY(nil, []float32{1}))
	f.Add([]byte(npyMagic + "\x01\x00\x34\x00{'descr': '<f8', 'fortran_order': False, 'shape': ()}12345678"))
	f.Add([]byte(npyMagic + "\x02\x00\x40\x00\x00\x00{'descr': '<f2', 'fortran_order': False, 'shape': (0, 9999999)} "))
	f.Fuzz(func(t *testing.T, file []byte) {
		a, err := decodeNPY(file)
		if err != nil {
			return
		}
		n := 1
		for _, d := range a.shape {
			n *= d
		}
		if n != a.elements() || len(a.data) > len(file) {
			t.Fatalf("shape %v, %d elements, %d of %d bytes", a.shape, a.elements(), len(a.data), len(file))
		}
		if n > 0 {
			data := []float32{float32(a.at(n - 1))}
			back, err := decodeNPY(encodeNPY([]int{1}, data))
			if err != nil || math.Float32bits(float32(back.at(0))) != math.Float32bits(data[0]) && data[0] == data[0] {
				t.Fatalf("%v became %v, %v", data, back, err)
			}
		}
	})
}

func TestOddF32(t *testing.T) {
	for _, x := range []float64{0, 1, -1.5, 65504, 1.0 / (1 << 24)} {
		if oddF32(x) != float32(x) {
			t.Errorf("%v is exact, became %v", x, oddF32(x))
		}
	}
	for _, x := range []float64{1 + 1e-9, 1 - 1e-9, -1 - 1e-9, 1e-300, -1e-300, math.Pi} {
		f := oddF32(x)
		if math.Float32bits(f)&1 == 0 || math.Abs(float64(f)-x) > math.Abs(x)*(1.0/(1<<23))+1e-44 || math.Signbit(float64(f)) != math.Signbit(x) {
			t.Errorf("%v became %v", x, f)
		}
	}
}
