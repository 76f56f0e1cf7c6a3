package place

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// A capture is a file of placement problems as JSON, one for each tile:
//
//	{"tiles": [
//	  {"tile": 361,
//	   "free": [[327680, 360448], [524288, 949168]],
//	   "requests": [
//	     {"id": 7, "bytes": 46672, "align": 32, "first": 0, "last": 3, "transient": true},
//	     {"id": 9, "bytes": 1024, "align": 32, "first": -1, "last": 90, "class": "interleaved"}],
//	   "separate": [[0, 1]]}]}
//
// Addresses and bytes are numbers, separate holds indexes of requests, and the
// class is "standard" if it is missing.

// Tile is the problem of one tile of a capture.
type Tile struct {
	Tile    int
	Problem Problem
}

type tileJSON struct {
	Tile     int           `json:"tile"`
	Free     [][2]uint32   `json:"free"`
	Requests []requestJSON `json:"requests"`
	Separate [][2]int32    `json:"separate,omitempty"`
}

type requestJSON struct {
	ID        int32  `json:"id"`
	Bytes     int32  `json:"bytes"`
	Align     int32  `json:"align"`
	First     int32  `json:"first"`
	Last      int32  `json:"last"`
	Class     string `json:"class,omitempty"`
	Transient bool   `json:"transient,omitempty"`
}

type captureJSON struct {
	Tiles []tileJSON `json:"tiles"`
}

// DecodeCapture reads a capture. Every problem in it is well-formed.
func DecodeCapture(data []byte) ([]Tile, error) {
	var c captureJSON
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return nil, fmt.Errorf("place: capture: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("place: capture: more follows the object; one JSON object is accepted")
	}
	tiles := make([]Tile, 0, len(c.Tiles))
	for _, in := range c.Tiles {
		t := Tile{Tile: in.Tile, Problem: Problem{Separate: in.Separate}}
		for _, r := range in.Free {
			t.Problem.Free = append(t.Problem.Free, Range{r[0], r[1]})
		}
		for i, r := range in.Requests {
			class := slices.Index([]string{"", "interleaved", "standard"}, r.Class)
			if class < 0 {
				return nil, fmt.Errorf("place: capture: tile %d: request %d: class %q; standard and interleaved are accepted", in.Tile, i, r.Class)
			}
			t.Problem.Requests = append(t.Problem.Requests, Request{
				Bytes: r.Bytes, Align: r.Align, First: r.First, Last: r.Last, Class: Class(class % 2), Transient: r.Transient, ID: r.ID,
			})
		}
		if err := validate(&t.Problem); err != nil {
			return nil, fmt.Errorf("place: capture: tile %d: %w", in.Tile, err)
		}
		tiles = append(tiles, t)
	}
	return tiles, nil
}

// EncodeCapture writes a capture, one request a line.
func EncodeCapture(tiles []Tile) []byte {
	var b bytes.Buffer
	line := func(v any) {
		data, err := json.Marshal(v)
		if err != nil {
			panic(err) // plain structs of numbers
		}
		b.Write(data)
	}
	b.WriteString(`{"tiles": [`)
	for k, t := range tiles {
		if k > 0 {
			b.WriteString(",")
		}
		fmt.Fprintf(&b, "\n{\"tile\": %d,\n \"free\": ", t.Tile)
		free := make([][2]uint32, 0, len(t.Problem.Free))
		for _, r := range t.Problem.Free {
			free = append(free, [2]uint32{r.Start, r.End})
		}
		line(free)
		b.WriteString(",\n \"requests\": [")
		for i, r := range t.Problem.Requests {
			if i > 0 {
				b.WriteString(",")
			}
			out := requestJSON{ID: r.ID, Bytes: r.Bytes, Align: r.Align, First: r.First, Last: r.Last, Transient: r.Transient}
			if r.Class == Interleaved {
				out.Class = "interleaved"
			}
			b.WriteString("\n  ")
			line(out)
		}
		b.WriteString("]")
		if len(t.Problem.Separate) > 0 {
			b.WriteString(",\n \"separate\": ")
			line(t.Problem.Separate)
		}
		b.WriteString("}")
	}
	b.WriteString("]}\n")
	return b.Bytes()
}
