package exchange

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"ipufarm/protocol/machine"
)

// phase builds problems: it hands out memory so that no two transfers collide.
type phase struct {
	Problem
	reads, writes []uint32 // by tile: next free address
}

// newPhase starts sends at one address and receives at another.
func newPhase(tiles int, reads, writes uint32) *phase {
	p := &phase{Problem: Problem{Tiles: tiles}}
	for range tiles {
		p.reads, p.writes = append(p.reads, reads), append(p.writes, writes)
	}
	return p
}

// add sends words from fresh memory to fresh memory.
func (p *phase) add(source int32, words int32, to ...int32) {
	p.addFrom(source, p.reads[source], words, to...)
	p.reads[source] += uint32(words) * 4
}

func (p *phase) addFrom(source int32, address uint32, words int32, to ...int32) {
	p.Transfers = append(p.Transfers, Transfer{source, address, words, int32(len(p.Receivers)), int32(len(to))})
	for _, d := range to {
		p.Receivers = append(p.Receivers, Receiver{d, p.writes[d]})
		p.writes[d] += uint32(words) * 4
	}
}

// solve runs the whole chain and fails the test unless Verify is content.
func solve(t *testing.T, p *Problem) (*Schedule, *Rows) {
	t.Helper()
	s, err := Solve(p)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := Encode(p, s)
	if err != nil {
		t.Fatal(err)
	}
	if err := Verify(p, rows); err != nil {
		t.Fatal(err)
	}
	for tile, r := range rows.Tile {
		horizon := int32(0)
		if r.Words != nil {
			row, _ := machine.DecodeRow(r.Words)
			horizon = row.Horizon
		}
		if horizon != s.TileHorizon[tile] {
			t.Fatalf("tile %d: row ends at event %d, the schedule says %d", tile, horizon, s.TileHorizon[tile])
		}
	}
	if want := slices.Max(s.TileHorizon); s.Horizon != want {
		t.Fatalf("horizon %d, latest row ends at %d", s.Horizon, want)
	}
	return s, rows
}

// solveSmall also asks the word-by-word model.
func solveSmall(t *testing.T, p *Problem) *Schedule {
	t.Helper()
	s, rows := solve(t, p)
	if err := judge(p, rows); err != nil {
		t.Fatal(err)
	}
	return s
}

const (
	low  = machine.TableBase
	high = machine.Region1Base
)

func TestEmptyPhase(t *testing.T) {
	s, rows := solve(t, &Problem{Tiles: 4})
	if s.Horizon != 0 || rows.Tile[0].Words != nil || LowerBound(&Problem{Tiles: 4}) != 0 {
		t.Errorf("horizon %d, row %v", s.Horizon, rows.Tile[0].Words)
	}
}

func TestSingleTransfers(t *testing.T) {
	for _, words := range []int32{1, 2, 3, 52, 63, 64, 65, 1024, 4148} {
		p := newPhase(machine.Tiles, low, high)
		p.add(0, words, 1286)
		s := solveSmall(t, &p.Problem)
		// T(0,1286) is -23 (published point row): the mux may listen from event 1.
		if s.Starts[0] != 23 {
			t.Errorf("%d words start at %d, want 23", words, s.Starts[0])
		}
		if got, want := s.Horizon, 23+words+int32(machine.Latency(0, 53))+5; got != want {
			t.Errorf("%d words: horizon %d, want %d", words, got, want)
		}
	}
}

// A multicast to 0 -> {274, 1286} starts at 23 in the published rows.
func TestMulticastVector(t *testing.T) {
	p := newPhase(machine.Tiles, low, high)
	p.add(0, 100, 274, 1286)
	if s := solveSmall(t, &p.Problem); s.Starts[0] != 23 {
		t.Errorf("starts at %d, want 23", s.Starts[0])
	}
}

func TestBroadcast(t *testing.T) {
	var all []int32
	for d := range int32(machine.Tiles) {
		if d != 700 {
			all = append(all, d)
		}
	}
	p := newPhase(machine.Tiles, low, high)
	p.add(700, 65, all...)
	p.add(3, 2, all...)
	solve(t, &p.Problem)
}

// A tile that hears itself is also in the middle of other work, for every length
// around the ones whose deselect meets the send.
func TestLoopback(t *testing.T) {
	for _, tile := range []int32{0, 1, 46, 700, 1471} {
		for words := int32(1); words < 40; words++ {
			p := newPhase(machine.Tiles, low, high)
			p.add(tile, words, tile, (tile+5)%machine.Tiles)
			p.add(tile, words, (tile+9)%machine.Tiles)
			p.add((tile+5)%machine.Tiles, words, tile)
			p.add(tile, 3, (tile+9)%machine.Tiles, tile)
			solve(t, &p.Problem)
		}
	}
}

// A chain leaves as one send and is heard without a break.
func TestChain(t *testing.T) {
	p := newPhase(64, low, high)
	for i := range 20 {
		p.add(5, 8, 40)
		p.writes[40] += 64 * uint32(i%3) // jumps after some
	}
	s, rows := solve(t, &p.Problem)
	row, err := machine.DecodeRow(rows.Tile[5].Words)
	if err != nil {
		t.Fatal(err)
	}
	if len(row.Sends) != 1 || row.Sends[0].Items != 160 || len(rows.Tile[5].Words) > 5 {
		t.Errorf("sends %v in %d words, want one run", row.Sends, len(rows.Tile[5].Words))
	}
	row, err = machine.DecodeRow(rows.Tile[40].Words)
	if err != nil {
		t.Fatal(err)
	}
	if want := 2 + 13; len(row.Controls) != want {
		t.Errorf("%d receive controls, want a source, a neutral and 13 pointers", len(row.Controls))
	}
	if s.Starts[19]-s.Starts[0] != 19*8 {
		t.Errorf("starts %v, want 8 apart", s.Starts)
	}
}

// Every tile sends single words to its neighbours: controls and sends at every
// turn, which is what the alignment of sendpicp and the control rules fear most.
func TestDenseWords(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		p := newPhase(12, low, high)
		for range 300 {
			s, d := rng.Int32N(12), rng.Int32N(12)
			if s == d {
				continue
			}
			p.add(s, 1+rng.Int32N(1+rng.Int32N(3)), d)
			p.writes[d] += 4 * uint32(rng.IntN(2))
			p.reads[s] += 4 * uint32(rng.IntN(2))
		}
		solveSmall(t, &p.Problem)
	}
}

// Sends and receives that share SRAM elements take turns.
func TestHazards(t *testing.T) {
	p := newPhase(8, high, high+0x4000) // one element of 32 KiB
	for s := range int32(8) {
		for d := range int32(8) {
			if s != d {
				p.add(s, 40, d)
			}
		}
	}
	s := solveSmall(t, &p.Problem)
	if s.Horizon < 2*7*40 {
		t.Errorf("horizon %d, but each tile must send and receive 280 words one after another", s.Horizon)
	}
}

// randomPhase mixes everything that a phase may contain.
func randomPhase(rng *rand.Rand) *Problem {
	tiles := 4 + rng.IntN(40)
	p := newPhase(tiles, low, high)
	for t := range tiles {
		if rng.IntN(3) == 0 { // same element for both
			p.reads[t], p.writes[t] = high, high+0x6000
		}
	}
	longest := []int32{2, 9, 40, 150}[rng.IntN(4)]
	for range 1 + rng.IntN(80) {
		s := rng.Int32N(int32(tiles))
		fan := 1
		if rng.IntN(3) == 0 {
			fan = 1 + rng.IntN(6)
		}
		var to []int32
		for range fan {
			d := rng.Int32N(int32(tiles))
			if d == s && (len(to) == 0 || p.reads[s] >= high) || slices.Contains(to, d) {
				continue
			}
			to = append(to, d)
		}
		if len(to) == 0 {
			continue
		}
		for range 1 + rng.IntN(5) { // a chain, with jumps
			words := 1 + rng.Int32N(longest)
			p.add(s, words, to...)
			if rng.IntN(2) == 0 {
				p.writes[to[0]] += 4 * uint32(rng.IntN(4))
			}
			if rng.IntN(4) == 0 {
				p.reads[s] += 4 * uint32(rng.IntN(4))
			}
		}
	}
	return &p.Problem
}

func TestRandomPhases(t *testing.T) {
	for seed := range uint64(200) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			solveSmall(t, randomPhase(rand.New(rand.NewPCG(seed, 2))))
		})
	}
}

// What the word model finds wrong, Verify must find wrong: rows with one field
// changed by one bit.
func TestVerifyAgreesWithFabric(t *testing.T) {
	wrong, refused := 0, 0
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 3))
		p := randomPhase(rng)
		_, rows := solve(t, p)
		for range 40 {
			tile := rng.IntN(p.Tiles)
			words := rows.Tile[tile].Words
			if words == nil {
				continue
			}
			i, bit := rng.IntN(len(words)), uint32(1)<<rng.IntN(32)
			words[i] ^= bit
			verdict, truth := Verify(p, rows), judge(p, rows)
			words[i] ^= bit
			if verdict == nil && truth != nil {
				t.Fatalf("seed %d: word %d of tile %d with 0x%X flipped passes, but %v", seed, i, tile, bit, truth)
			}
			if truth != nil {
				wrong++
			}
			if verdict != nil {
				refused++
			}
		}
	}
	if wrong < 150 || refused < wrong {
		t.Errorf("%d changed rows are wrong and %d refused: the test changes too little", wrong, refused)
	}
}

func TestCheck(t *testing.T) {
	good := func() *phase {
		p := newPhase(8, low, high)
		p.add(0, 10, 1)
		p.add(2, 10, 3, 4)
		return p
	}
	if err := good().Check(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(p *phase){
		"no tiles":              func(p *phase) { p.Tiles = 0 },
		"too many tiles":        func(p *phase) { p.Tiles = machine.Tiles + 1 },
		"source":                func(p *phase) { p.Transfers[0].Source = 8 },
		"negative source":       func(p *phase) { p.Transfers[0].Source = -1 },
		"receiver":              func(p *phase) { p.Receivers[0].Tile = 8 },
		"no words":              func(p *phase) { p.Transfers[0].Words = 0 },
		"too many words":        func(p *phase) { p.Transfers[0].Words = 4149 },
		"unaligned source":      func(p *phase) { p.Transfers[0].Address += 2 },
		"unaligned destination": func(p *phase) { p.Receivers[0].Address += 1 },
		"below memory":          func(p *phase) { p.Receivers[0].Address = machine.MemoryBase - 4 },
		"past memory":           func(p *phase) { p.Transfers[0].Address = machine.MemoryEnd - 36 },
		"no receivers":          func(p *phase) { p.Transfers[0].Count = 0 },
		"receivers of nobody":   func(p *phase) { p.Transfers[1].Count = 3 },
		"negative first":        func(p *phase) { p.Transfers[0].First = -1 },
		"shared receivers":      func(p *phase) { p.Transfers[0].First, p.Transfers[0].Count = 1, 2 },
		"receiver twice":        func(p *phase) { p.Receivers[2].Tile = 3 },
		"only itself":           func(p *phase) { p.Receivers[0].Tile = 0 },
		"itself in one element": func(p *phase) { p.Receivers[1] = Receiver{2, p.Transfers[1].Address + 400} },
		"two writers":           func(p *phase) { p.Receivers[1] = Receiver{1, high + 36} },
		"writes what is read":   func(p *phase) { p.Receivers[0] = Receiver{2, low + 36} },
	} {
		p := good()
		spoil(p)
		if err := p.Check(); err == nil {
			t.Errorf("%s: accepted", name)
		}
		if s, err := Solve(&p.Problem); err == nil {
			t.Errorf("%s: solved as %v", name, s)
		}
	}
	p := good()
	p.Receivers[1] = Receiver{1, high + 36}
	var e *ProblemError
	if err := p.Check(); !errors.As(err, &e) || e.Transfer != 0 || e.Other != 1 {
		t.Errorf("two writers: %v, want transfers 0 and 1 named", err)
	}
}

func TestVerifyRefuses(t *testing.T) {
	p := newPhase(8, low, high)
	p.add(0, 10, 1)
	p.add(2, 10, 3, 4)
	p.add(2, 10, 3)
	_, rows := solve(t, &p.Problem)
	for name, spoil := range map[string]func(r *Rows){
		"missing row":   func(r *Rows) { r.Tile[1].Words = nil },
		"idle tile":     func(r *Rows) { r.Tile[7].Words = []uint32{0x43A00000} },
		"empty row":     func(r *Rows) { r.Tile[1].Words = []uint32{0x43A00000} },
		"no return":     func(r *Rows) { r.Tile[1].Words = r.Tile[1].Words[:len(r.Tile[1].Words)-1] },
		"base":          func(r *Rows) { r.Tile[1].IncomingBase += 4 },
		"absolute base": func(r *Rows) { r.Tile[3].IncomingBase = 4 },
		"send base":     func(r *Rows) { r.Tile[0].OutgoingBase = 4 },
		"tiles":         func(r *Rows) { r.Tile = r.Tile[:7] },
	} {
		bad := &Rows{Tile: slices.Clone(rows.Tile)}
		spoil(bad)
		if err := Verify(&p.Problem, bad); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestSolveIsDeterministic(t *testing.T) {
	for seed := range uint64(10) {
		a := randomPhase(rand.New(rand.NewPCG(seed, 4)))
		b := randomPhase(rand.New(rand.NewPCG(seed, 4)))
		x, _ := solve(t, a)
		y, _ := solve(t, b)
		if !slices.Equal(x.Starts, y.Starts) {
			t.Fatalf("seed %d: schedules differ", seed)
		}
		if a.Digest() != b.Digest() {
			t.Fatalf("seed %d: digests differ", seed)
		}
		b.Receivers[0].Address ^= 4
		if a.Digest() == b.Digest() {
			t.Fatalf("seed %d: digest ignores a receiver", seed)
		}
	}
}
