package workload

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"ipufarm/protocol/numeric"
)

// An .npy file is, as numpy's format description says:
//
//	6 bytes   "\x93NUMPY"
//	2 bytes   version: 1.0, 2.0 or 3.0
//	2 bytes   length of the header, little-endian (4 bytes from version 2.0 on)
//	header    a Python dict: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
//	data      the elements
//
// Little-endian floats of 16, 32 and 64 bits in C order are read, float32 is
// written.

const npyMagic = "\x93NUMPY"

// maxNPYHeader and maxNPYRank are far above what numpy writes for a tensor.
const (
	maxNPYHeader = 1 << 16
	maxNPYRank   = 16
)

// array is a decoded .npy file.
type array struct {
	shape []int
	size  int // bytes of an element: 2, 4 or 8
	data  []byte
}

// elements returns the number of elements.
func (a array) elements() int { return len(a.data) / a.size }

// at returns element i.
func (a array) at(i int) float64 {
	switch a.size {
	case 2:
		return float64(numeric.F16ToF32(binary.LittleEndian.Uint16(a.data[2*i:])))
	case 4:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(a.data[4*i:])))
	}
	return math.Float64frombits(binary.LittleEndian.Uint64(a.data[8*i:]))
}

// decodeNPY reads a whole file; the result refers to its bytes.
func decodeNPY(file []byte) (array, error) {
	rest, ok := bytes.CutPrefix(file, []byte(npyMagic))
	if !ok || len(rest) < 2 {
		return array{}, errors.New("not an .npy file")
	}
	major, minor := rest[0], rest[1]
	rest = rest[2:]
	var length int
	switch {
	case minor != 0 || major < 1 || major > 3:
		return array{}, fmt.Errorf(".npy version %d.%d, 1.0, 2.0 and 3.0 are accepted", major, minor)
	case major == 1 && len(rest) >= 2:
		length, rest = int(binary.LittleEndian.Uint16(rest)), rest[2:]
	case major > 1 && len(rest) >= 4:
		length, rest = int(binary.LittleEndian.Uint32(rest)), rest[4:]
	default:
		return array{}, errors.New("truncated before the header")
	}
	if length > maxNPYHeader {
		return array{}, fmt.Errorf("a header of %d bytes, at most %d", length, maxNPYHeader)
	}
	if length > len(rest) {
		return array{}, fmt.Errorf("truncated: %d of %d header bytes", len(rest), length)
	}
	a, err := parseNPYHeader(string(rest[:length]))
	if err != nil {
		return array{}, fmt.Errorf("header: %w", err)
	}
	a.data = rest[length:]
	want := a.size
	for _, d := range a.shape {
		if d > 0 && want > math.MaxInt/d {
			return array{}, fmt.Errorf("shape %v overflows", a.shape)
		}
		want *= d
	}
	if len(a.data) != want {
		return array{}, fmt.Errorf("%d bytes of data, shape %v of float%d needs %d", len(a.data), a.shape, 8*a.size, want)
	}
	return a, nil
}

// parseNPYHeader reads the dict.
func parseNPYHeader(text string) (array, error) {
	s := scanner{text}
	var a array
	seen := map[string]bool{}
	if !s.accept("{") {
		return a, errors.New("want { first")
	}
	for !s.accept("}") {
		key, err := s.quoted()
		if err != nil {
			return a, err
		}
		if seen[key] {
			return a, fmt.Errorf("%q twice", key)
		}
		seen[key] = true
		if !s.accept(":") {
			return a, fmt.Errorf("want : after %q", key)
		}
		switch key {
		case "descr":
			a.size, err = s.descr()
		case "fortran_order":
			err = s.cOrder()
		case "shape":
			a.shape, err = s.tuple()
		default:
			err = fmt.Errorf("unknown key %q", key)
		}
		if err != nil {
			return a, err
		}
		if !s.accept(",") && !strings.HasPrefix(s.text, "}") {
			return a, fmt.Errorf("want , or } after the value of %q", key)
		}
	}
	if s.space(); s.text != "" {
		return a, fmt.Errorf("%.20q after the dict", s.text)
	}
	for _, key := range []string{"descr", "fortran_order", "shape"} {
		if !seen[key] {
			return a, fmt.Errorf("no %q", key)
		}
	}
	return a, nil
}

// scanner eats a text from the left.
type scanner struct{ text string }

func (s *scanner) space() { s.text = strings.TrimLeft(s.text, " \t\r\n") }

// accept eats space, the token if it is next, and the space after it.
func (s *scanner) accept(token string) bool {
	s.space()
	rest, ok := strings.CutPrefix(s.text, token)
	if ok {
		s.text = rest
		s.space()
	}
	return ok
}

func (s *scanner) quoted() (string, error) {
	for _, quote := range []string{"'", `"`} {
		if s.accept(quote) {
			if word, rest, ok := strings.Cut(s.text, quote); ok {
				s.text = rest
				return word, nil
			}
		}
	}
	return "", fmt.Errorf("want a quoted word at %.20q", s.text)
}

func (s *scanner) descr() (size int, err error) {
	word, err := s.quoted()
	if err != nil {
		return 0, err
	}
	switch word {
	case "<f2":
		return 2, nil
	case "<f4":
		return 4, nil
	case "<f8":
		return 8, nil
	}
	return 0, fmt.Errorf("element type %q; <f2, <f4 and <f8 are accepted", word)
}

func (s *scanner) cOrder() error {
	switch {
	case s.accept("False"):
		return nil
	case s.accept("True"):
		return errors.New("elements in Fortran order; C order is accepted")
	}
	return fmt.Errorf("fortran_order %.20q, want True or False", s.text)
}

func (s *scanner) tuple() ([]int, error) {
	if !s.accept("(") {
		return nil, fmt.Errorf("shape %.20q, want a tuple", s.text)
	}
	shape := []int{}
	for !s.accept(")") {
		end := strings.IndexFunc(s.text, func(r rune) bool { return r < '0' || r > '9' })
		if end < 1 {
			return nil, fmt.Errorf("shape: want a size at %.20q", s.text)
		}
		d, err := strconv.Atoi(s.text[:end])
		if err != nil || len(shape) == maxNPYRank {
			return nil, fmt.Errorf("shape: size %.20q, or more than %d of them", s.text[:end], maxNPYRank)
		}
		shape = append(shape, d)
		s.text = s.text[end:]
		if !s.accept(",") && !strings.HasPrefix(s.text, ")") {
			return nil, fmt.Errorf("shape: want , or ) at %.20q", s.text)
		}
	}
	return shape, nil
}

// encodeNPY returns a version 1.0 file of float32 elements.
func encodeNPY(shape []int, data []float32) []byte {
	var dims strings.Builder
	for _, d := range shape {
		fmt.Fprintf(&dims, "%d, ", d)
	}
	tuple := dims.String()
	if len(shape) > 1 {
		tuple = strings.TrimSuffix(tuple, ", ")
	} else {
		tuple = strings.TrimSuffix(tuple, " ") // (3,) is a tuple, (3) is not
	}
	header := fmt.Sprintf("{'descr': '<f4', 'fortran_order': False, 'shape': (%s), }", tuple)
	// The data begins at a multiple of 64 bytes, after spaces and a newline.
	const before = len(npyMagic) + 4
	header += strings.Repeat(" ", 63-(before+len(header))%64) + "\n"

	file := make([]byte, 0, before+len(header)+4*len(data))
	file = append(file, npyMagic+"\x01\x00"...)
	file = binary.LittleEndian.AppendUint16(file, uint16(len(header)))
	file = append(file, header...)
	for _, x := range data {
		file = binary.LittleEndian.AppendUint32(file, math.Float32bits(x))
	}
	return file
}
