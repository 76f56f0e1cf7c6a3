package exchange

import (
	"bytes"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

func TestJSONRoundTrip(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 7))
		p := randomPairs(rng)
		if seed&1 == 1 {
			p.Widths = make([]uint8, len(p.Transfers))
			p.Widths[0] = 32
			p.Moves = make([][]uint32, 2)
			for i := range p.Moves {
				p.Moves[i] = make([]uint32, len(p.Transfers))
				for k := range p.Moves[i] {
					p.Moves[i][k] = rng.Uint32()
				}
			}
		}
		var b bytes.Buffer
		if err := WriteProblem(&b, p); err != nil {
			t.Fatal(err)
		}
		q, err := ReadProblem(&b)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(p, q) {
			t.Fatalf("seed %d: read back as something else", seed)
		}
	}
}

func TestReadProblemRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":       ``,
		"not JSON":      `{"version":1`,
		"version":       `{"version":2,"tiles":4,"transfers":[]}`,
		"unknown field": `{"version":1,"tiles":4,"transfers":[],"cookies":1}`,
		"rest":          `{"version":1,"tiles":4,"transfers":[]} {}`,
		"no address":    `{"version":1,"tiles":4,"transfers":[{"source":0,"addresses":[],"words":1,"receivers":[]}]}`,
		"uneven":        `{"version":1,"tiles":4,"transfers":[{"source":0,"addresses":[1,2]},{"source":0,"addresses":[1]}]}`,
		"negative":      `{"version":1,"tiles":4,"transfers":[{"source":0,"addresses":[-4]}]}`,
		"too wide":      `{"version":1,"tiles":4,"transfers":[{"source":0,"addresses":[4],"width":300}]}`,
	} {
		if p, err := ReadProblem(strings.NewReader(text)); err == nil {
			t.Errorf("%s: read as %+v", name, p)
		}
	}
}

// FuzzReadProblem takes text all the way: what is read and passes Check is
// solved, encoded and verified.
func FuzzReadProblem(f *testing.F) {
	f.Add(`{"version":1,"tiles":1472,"transfers":[{"source":0,"addresses":[413696],"words":64,"receivers":[{"tile":5,"address":524288}]}]}`)
	f.Add(`{"version":1,"tiles":8,"transfers":[{"source":0,"addresses":[413696,413760],"words":64,"receivers":[{"tile":4,"address":524288},{"tile":5,"address":524288}],"width":64}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ReadProblem(strings.NewReader(text))
		if err != nil || len(p.Transfers) > 100 {
			return
		}
		s, err := Solve(p)
		if err != nil {
			return
		}
		for i := range len(p.Moves) + 1 {
			q := p.Iteration(i)
			rows, err := Encode(q, s)
			if err != nil {
				t.Fatal(err)
			}
			if err := Verify(q, rows); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// One schedule serves all iterations of a loop, and widths are obeyed.
func TestIterationsAndWidths(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 8))
		p := randomPairs(rng)
		p.Widths = make([]uint8, len(p.Transfers))
		p.Moves = [][]uint32{make([]uint32, len(p.Transfers)), make([]uint32, len(p.Transfers))}
		q := sortStreams(p)
		free, _, err := widen(q, cutUnits(q, 1), true)
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range free {
			i := q.order[u.from]
			if u.wide && rng.IntN(2) == 0 {
				p.Widths[i] = 64
			} else if rng.IntN(2) == 0 {
				p.Widths[i] = 32
			}
		}
		for i := range p.Transfers {
			p.Moves[0][i] = low + 0x8000 + 8*rng.Uint32N(64)
			p.Moves[1][i] = low + 0xC000 + 8*rng.Uint32N(64)
		}
		s, err := Solve(p)
		if err != nil {
			t.Fatal(err)
		}
		for i, w := range p.Widths {
			if w != 0 && (s.Wide != nil && s.Wide[i]) != (w == 64) {
				t.Fatalf("seed %d: transfer %d of width %d is sent wide: %v", seed, i, w, s.Wide[i])
			}
		}
		for i := range 3 {
			q := p.Iteration(i)
			rows, err := Encode(q, s)
			if err != nil {
				t.Fatal(err)
			}
			if err := Verify(q, rows); err != nil {
				t.Fatalf("seed %d, iteration %d: %v", seed, i, err)
			}
		}
	}
}
