package place

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"ipufarm/protocol/machine"
)

// Problems that are feasible by construction are solved, and Check agrees.
func TestRandomFeasible(t *testing.T) {
	for _, sh := range []shape{
		{requests: 12, steps: 20, slack: 0, separate: 4},
		{requests: 30, steps: 40, slack: 0.02, separate: 10},
		{requests: 30, steps: 60, slack: 0.06},
		{requests: 100, steps: 60, slack: 0.2, separate: 20},
		{requests: 230, steps: 200, slack: 0.25, separate: 40},
	} {
		t.Run(fmt.Sprintf("%d requests %g slack", sh.requests, sh.slack), func(t *testing.T) {
			var s Solver
			for seed := range uint64(40) {
				p, known := randomProblem(rand.New(rand.NewPCG(seed, 7)), sh)
				if err := Check(&p, known); err != nil {
					t.Fatalf("seed %d: the generator's own placement: %v", seed, err)
				}
				if err := s.Reset(&p); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				got, err := s.Solve()
				if err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				if err := Check(&p, got); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
		})
	}
}

// Whatever the size and the slack, a problem that has a placement is never
// refused with a proof that it has none.
func TestNoFalseProof(t *testing.T) {
	s := Solver{Effort: 1 << 16}
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 8))
		sh := shape{requests: 4 + rng.IntN(60), steps: 1 + rng.Int32N(60), slack: 0.05 * rng.Float64(), separate: rng.IntN(20)}
		p, _ := randomProblem(rng, sh)
		if err := s.Reset(&p); err != nil {
			t.Fatal(err)
		}
		got, err := s.Solve()
		var r *Refusal
		switch {
		case err == nil:
			if err := Check(&p, got); err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
		case !errors.As(err, &r) || r.Kind != Budget:
			t.Errorf("seed %d %+v: %v", seed, sh, err)
		}
	}
}

// brute decides tiny problems by trying all multiples of 4 of a small memory.
func brute(p *Problem, addresses []uint32) bool {
	i := len(addresses)
	if i == len(p.Requests) {
		return true
	}
	for _, r := range p.Free {
		for a := r.Start; a < r.End; a += 4 {
			part := Problem{Requests: p.Requests[:i+1], Free: p.Free}
			for _, pair := range p.Separate {
				if int(max(pair[0], pair[1])) <= i {
					part.Separate = append(part.Separate, pair)
				}
			}
			if next := append(addresses, a); Check(&part, next) == nil && brute(p, next) {
				return true
			}
		}
	}
	return false
}

// On tiny problems, feasible or not, the solver's answer is the right one.
func TestAgainstBruteForce(t *testing.T) {
	feasible, proofs := 0, 0
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 9))
		p := Problem{Free: []Range{{machine.Region1Base - 16, machine.Region1Base + 8 + 4*rng.Uint32N(3)}}}
		if rng.IntN(2) == 0 {
			p.Free = append(p.Free, Range{machine.Region1Base + machine.Element1Size - 8, machine.Region1Base + machine.Element1Size + 8})
		}
		for i := range 3 + rng.IntN(4) {
			first := rng.Int32N(4)
			p.Requests = append(p.Requests, Request{
				Bytes: 4 * (1 + rng.Int32N(4)), Align: 4 << rng.IntN(2), First: first, Last: first + rng.Int32N(3),
				Class: Class(rng.IntN(4) / 3), ID: int32(i),
			})
		}
		if rng.IntN(2) == 0 {
			p.Separate = append(p.Separate, [2]int32{0, 1})
			if rng.IntN(2) == 0 {
				p.Separate = append(p.Separate, [2]int32{1, 2})
			}
		}
		got, err := Solve(&p)
		want := brute(&p, nil)
		var r *Refusal
		switch {
		case err == nil:
			feasible++
			if err := Check(&p, got); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		case !errors.As(err, &r) || r.Kind == Budget:
			t.Fatalf("seed %d: %v", seed, err)
		case want:
			t.Fatalf("seed %d: refused although there is a placement: %v\n%+v", seed, err, p)
		default:
			proofs++
		}
		// The search alone, without the greedy attempts that usually come first.
		var s Solver
		if err := s.Reset(&p); err != nil {
			t.Fatal(err)
		}
		if s.bound() != nil {
			continue
		}
		if result := s.searchAll(DefaultEffort); (result == found) != want || result == cut {
			t.Fatalf("seed %d: the search ends with %d, a placement exists: %v\n%+v", seed, result, want, p)
		} else if result == found {
			if err := Check(&p, s.addr); err != nil {
				t.Fatalf("seed %d: search: %v", seed, err)
			}
		}
	}
	if feasible < 50 || proofs < 50 {
		t.Errorf("%d feasible, %d infeasible: the test should see both", feasible, proofs)
	}
}

func region1(bytes uint32) []Range {
	return []Range{{machine.Region1Base, machine.Region1Base + bytes}}
}

func request(id, bytes, first, last int32) Request {
	return Request{Bytes: bytes, Align: 8, First: first, Last: last, ID: id}
}

func TestCapacityIsExact(t *testing.T) {
	p := Problem{Free: region1(1000), Requests: []Request{
		request(7, 400, 0, 3), request(8, 400, 2, 5), request(9, 208, 3, 9), request(10, 992, 10, 10),
	}}
	_, err := Solve(&p)
	var r *Refusal
	if !errors.As(err, &r) {
		t.Fatalf("got %v, want a refusal", err)
	}
	want := Refusal{Kind: Capacity, Tile: -1, Request: 7, Step: 3, Live: []int32{7, 8, 9}, BytesNeeded: 1008, BytesFree: 1000, LargestHole: 1000}
	want.confined = r.confined
	if fmt.Sprint(*r) != fmt.Sprint(want) {
		t.Errorf("got %+v\nwant %+v", *r, want)
	}
	p.Requests[2].Bytes = 200
	if _, err := Solve(&p); err != nil {
		t.Errorf("exactly full: %v", err)
	}
}

// Each class is bounded by the memory it may use, not by all of it.
func TestCapacityPerClass(t *testing.T) {
	resident := request(1, 4096, 0, 9)
	transient := request(2, 4096, 3, 4)
	transient.Transient = true
	interleaved := request(3, 512, 0, 9)
	interleaved.Class = Interleaved
	aperture := Range{machine.ApertureBase, machine.ApertureBase + 4096}
	for _, c := range []struct {
		name string
		free []Range
		want string
	}{
		{"all fit", []Range{aperture, {0x60000, 0x61000}, {0x80000, 0x80200}}, ""},
		{"resident not in the aperture", []Range{aperture, {0x60000, 0x61000}, {0x80000, 0x80200}}, "capacity: 5120 bytes in 3 buffers that must stay out of the host aperture are live at step 0 and 4608 are free"},
		{"interleaved not in region 0", []Range{aperture, {0x60000, 0x61200}}, "capacity: 512 bytes in 1 buffers that must lie in region 1 are live at step 0 and 0 are free"},
		{"too long for region 0", []Range{{0x60000, 0x60800}, {0x62000, 0x62800}, {0x80000, 0x80800}}, "capacity: 8704 bytes in 3 buffers that must lie in region 1 are live at step 3 and 2048 are free"},
		{"transient uses the aperture", []Range{{0x60000, 0x61000}, {0x80000, 0x80200}}, "capacity: 8704 bytes in 3 buffers are live at step 3 and 4608 are free"},
	} {
		p := Problem{Requests: []Request{resident, transient, interleaved}, Free: c.free}
		if c.name == "resident not in the aperture" {
			p.Requests = append(p.Requests, request(4, 512, 0, 9))
		}
		got, err := Solve(&p)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want == "":
			if err := Check(&p, got); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
		case err == nil || !strings.Contains(err.Error(), c.want):
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

func TestFragmentation(t *testing.T) {
	for _, c := range []struct {
		name string
		p    Problem
	}{
		{"region boundary", Problem{Free: []Range{{machine.Region0End - 64, machine.Region0End + 64}, {machine.Region1Base + 128, machine.Region1Base + 192}}, Requests: []Request{request(1, 96, 0, 0)}}},
		{"separate pair in one element", Problem{Free: region1(4096), Requests: []Request{request(1, 8, 0, 0), request(2, 8, 5, 5)}, Separate: [][2]int32{{0, 1}}}},
		{"separate pair across a boundary", Problem{Free: []Range{{machine.Region1Base + 0x7FF0, machine.Region1Base + 0x8010}},
			Requests: []Request{request(1, 16, 0, 0), request(2, 24, 5, 5)}, Separate: [][2]int32{{0, 1}}}},
	} {
		_, err := Solve(&c.p)
		var r *Refusal
		if !errors.As(err, &r) || r.Kind != Fragmentation || len(r.Live) == 0 {
			t.Errorf("%s: got %v, want a refusal for fragmentation", c.name, err)
		}
	}
}

// Check finds every kind of broken rule.
func TestCheckRefuses(t *testing.T) {
	p := Problem{
		Requests: []Request{
			{Bytes: 64, Align: 32, First: 0, Last: 9, Class: Interleaved, ID: 1},
			{Bytes: 64, Align: 8, First: 3, Last: 9, ID: 2},
			{Bytes: 64, Align: 8, First: 9, Last: 12, Transient: true, ID: 3},
		},
		Separate: [][2]int32{{0, 2}},
		Free:     typicalFree,
	}
	good := []uint32{0x80000, 0x80040, 0x50000}
	if err := Check(&p, good); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		request int
		address uint32
		want    string
	}{
		{0, 0x80010, "not aligned to 32"},
		{0, 0x70000, "outside region 1"},
		{1, 0x80038, "overlap"},
		{1, 0x50000, "aperture"},
		{1, 0x7FFE0, "crosses the region boundary"},
		{1, 0x60000, "not in free memory"},
		{1, machine.LoadEnd - 32, "not in free memory"},
		{2, 0x80080, "must be separate"},
	} {
		bad := slices.Clone(good)
		bad[c.request] = c.address
		if err := Check(&p, bad); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("request %d at %#x: got %v, want %q", c.request, c.address, err, c.want)
		}
	}
	if Check(&p, good[:2]) == nil {
		t.Error("a missing address is accepted")
	}
}

func TestMalformed(t *testing.T) {
	good := request(1, 8, 0, 0)
	with := func(change func(*Request)) Problem {
		r := good
		change(&r)
		return Problem{Requests: []Request{r}, Free: region1(64)}
	}
	for want, p := range map[string]Problem{
		"0 bytes":       with(func(r *Request) { r.Bytes = 0 }),
		"-8 bytes":      with(func(r *Request) { r.Bytes = -8 }),
		"alignment 2":   with(func(r *Request) { r.Align = 2 }),
		"alignment 12":  with(func(r *Request) { r.Align = 12 }),
		"from step 4":   with(func(r *Request) { r.First, r.Last = 4, 3 }),
		"class 2":       with(func(r *Request) { r.Class = 2 }),
		"0 and 0":       {Requests: []Request{good, good}, Separate: [][2]int32{{0, 0}}, Free: region1(64)},
		"0 and 2":       {Requests: []Request{good, good}, Separate: [][2]int32{{0, 2}}, Free: region1(64)},
		"free range 1":  {Free: []Range{{0x80000, 0x80010}, {0x80008, 0x80020}}},
		"free range 0":  {Free: []Range{{0x80000, 0xE8004}}},
		"-1 and 0":      {Requests: []Request{good}, Separate: [][2]int32{{-1, 0}}, Free: region1(64)},
		"0x80010 to 0x": {Free: []Range{{0x80010, 0x80010}}},
	} {
		_, err := Solve(&p)
		var r *Refusal
		if err == nil || errors.As(err, &r) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestEmpty(t *testing.T) {
	if got, err := Solve(&Problem{}); err != nil || len(got) != 0 {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := Solve(&Problem{Requests: []Request{request(1, 8, 0, 0)}}); err == nil {
		t.Error("a request without memory is placed")
	}
}

// The answer is a function of the problem: not of what a Solver did before, and
// not of the number of workers.
func TestSolveAll(t *testing.T) {
	var ps []Problem
	for seed := range uint64(24) {
		rng := rand.New(rand.NewPCG(seed, 10))
		p, _ := randomProblem(rng, shape{requests: 20 + rng.IntN(60), steps: 30, slack: 0.3, separate: 8})
		ps = append(ps, p)
	}
	first, err := SolveAll(ps, 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, workers := range []int{0, 2, 7, 100} {
		again, err := SolveAll(ps, workers)
		if err != nil {
			t.Fatal(err)
		}
		for i := range ps {
			alone, err := Solve(&ps[i])
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(first[i], again[i]) || !slices.Equal(first[i], alone) {
				t.Fatalf("tile %d differs with %d workers", i, workers)
			}
		}
	}

	ps[19].Free, ps[11].Free, ps[21].Free = nil, nil, []Range{{5, 4}}
	for _, workers := range []int{1, 2, 5} {
		_, err := SolveAll(ps, workers)
		var r *Refusal
		if !errors.As(err, &r) || r.Tile != 11 || !strings.Contains(err.Error(), "tile 11: capacity") {
			t.Errorf("%d workers: got %v, want the refusal of tile 11", workers, err)
		}
	}
	ps[3].Free = []Range{{5, 4}}
	if _, err := SolveAll(ps, 3); err == nil || !strings.Contains(err.Error(), "tile 3: ") || !strings.Contains(err.Error(), "free range 0") {
		t.Errorf("got %v, want the malformed tile 3", err)
	}
}
