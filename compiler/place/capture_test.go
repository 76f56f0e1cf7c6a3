package place

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// The problems of testdata stay decided as their names say: "placed", "capacity"
// and "fragmentation" are answers; "open" ones are beyond today's effort and may
// one day be placed, but must not be refused with a proof unless it is right.
func TestNamedCases(t *testing.T) {
	files, err := filepath.Glob("testdata/*.json")
	if err != nil || len(files) < 8 {
		t.Fatalf("%d cases, %v", len(files), err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		tiles, err := DecodeCapture(data)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if !bytes.Equal(EncodeCapture(tiles), data) {
			t.Errorf("%s: encodes differently", file)
		}
		want, _, _ := strings.Cut(filepath.Base(file), "_")
		for i := range tiles {
			p := &tiles[i].Problem
			addresses, err := Solve(p)
			got := "placed"
			var r *Refusal
			switch {
			case err == nil:
				if err := Check(p, addresses); err != nil {
					t.Errorf("%s: %v", file, err)
				}
			case errors.As(err, &r):
				got = r.Kind.String()
			default:
				t.Fatalf("%s: %v", file, err)
			}
			if got != want && !(want == "open" && (got == "placed" || got == "budget")) {
				t.Errorf("%s: %s, %v", file, got, err)
			}
		}
	}
}

func TestCaptureRoundTrip(t *testing.T) {
	var tiles []Tile
	for seed := range uint64(5) {
		p, _ := randomProblem(rand.New(rand.NewPCG(seed, 12)), shape{requests: 12, steps: 9, separate: int(seed)})
		tiles = append(tiles, Tile{int(seed) * 100, p})
	}
	again, err := DecodeCapture(EncodeCapture(tiles))
	if err != nil || !reflect.DeepEqual(again, tiles) {
		t.Errorf("got %+v, %v\nwant %+v", again, err, tiles)
	}
	if empty, err := DecodeCapture(EncodeCapture(nil)); err != nil || len(empty) != 0 {
		t.Errorf("an empty capture: %v, %v", empty, err)
	}
}

func TestCaptureRefuses(t *testing.T) {
	for text, want := range map[string]string{
		``:               "EOF",
		`{"tiles": 3}`:   "cannot unmarshal",
		`{"rows": []}`:   "unknown field",
		`{"tiles": []}x`: "more follows",
		`{"tiles": [{"tile": 4, "requests": [{"bytes": 8, "align": 8, "class": "fast"}]}]}`: `tile 4: request 0: class "fast"; standard and interleaved are accepted`,
		`{"tiles": [{"tile": 4, "requests": [{"bytes": 0, "align": 8}]}]}`:                  "tile 4: place: request 0 (buffer 0): 0 bytes",
		`{"tiles": [{"tile": 4, "free": [[8, 16]]}]}`:                                       "free range 0",
		`{"tiles": [{"tile": 4, "separate": [[0, 1]]}]}`:                                    "separation 0",
		`{"tiles": [{"tile": 4, "requests": [{"bytes": 4294967296, "align": 8}]}]}`:         "cannot unmarshal",
	} {
		if _, err := DecodeCapture([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

// Whatever decodes is solved or refused, and encodes to what decodes to the same.
func FuzzCapture(f *testing.F) {
	for _, name := range []string{"capacity_long_transients_need_region1", "placed_by_cores"} {
		data, err := os.ReadFile("testdata/" + name + ".json")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"tiles": [{"tile": 1, "free": [[524280, 524300]], "requests": [{"id": 1, "bytes": 8, "align": 8, "first": -2147483648, "last": 2147483647}, {"id": 2, "bytes": 2147483647, "align": 4, "first": 0, "last": 0}], "separate": [[0, 1]]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		tiles, err := DecodeCapture(data)
		if err != nil {
			return
		}
		again, err := DecodeCapture(EncodeCapture(tiles))
		if err != nil || len(again) != len(tiles) {
			t.Fatalf("does not decode again: %v", err)
		}
		s := Solver{Effort: 1000}
		for i := range tiles {
			p := &tiles[i].Problem
			if len(p.Requests) > 100 {
				continue
			}
			if err := s.Reset(p); err != nil {
				t.Fatal(err)
			}
			addresses, err := s.Solve()
			if err == nil {
				err = Check(p, addresses)
			}
			var r *Refusal
			if err != nil && (!errors.As(err, &r) || r.Error() == "") {
				t.Fatal(err)
			}
		}
	})
}
