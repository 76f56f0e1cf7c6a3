package exchange

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"ipufarm/protocol/machine"
)

// solveWide schedules with every transfer that can be wide as 64-bit items,
// whether that is better or not, and asks both judges. It returns how many are.
func solveWide(t *testing.T, p *Problem) (*Schedule, *Rows, int) {
	t.Helper()
	q := sortStreams(p)
	units, any, err := widen(q, cutUnits(q, 256), true)
	if err != nil {
		t.Fatal(err)
	}
	if !any {
		return nil, nil, 0
	}
	g := newSoonest(q, units)
	g.run()
	s := g.schedule()
	rows, err := Encode(p, s)
	if err != nil {
		t.Fatal(err)
	}
	if err := Verify(p, rows); err != nil {
		t.Fatal(err)
	}
	if err := judge(p, rows); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, w := range s.Wide {
		if w {
			n++
		}
	}
	return s, rows, n
}

// The published row of a paired transfer 0 -> {2,3} of 64 items.
func TestPairedVector(t *testing.T) {
	p := newPhase(machine.Tiles, low, high)
	p.add(0, 128, 2, 3)
	s, rows, _ := solveWide(t, &p.Problem)
	if s.Starts[0] != 31 || s.Horizon != 125 {
		t.Errorf("starts at %d and ends at %d, want 31 and 125", s.Starts[0], s.Horizon)
	}
	row, err := machine.DecodeRow(rows.Tile[2].Words)
	if err != nil {
		t.Fatal(err)
	}
	want := []machine.Control{{Event: 1, Kind: machine.PairSource, Value: 0}, {Event: 54, Kind: machine.Format, Value: 1},
		{Event: 56, Kind: machine.Pointer, Value: high / 4}, {Event: 65, Kind: machine.PairSource, Value: machine.Neutral}, {Event: 118, Kind: machine.Format}}
	if machine.Direction(0, 64) == 2 {
		want[1].Value = 2
	}
	if !slices.Equal(row.Controls, want) {
		t.Errorf("controls %v, want %v", row.Controls, want)
	}
	row, err = machine.DecodeRow(rows.Tile[3].Words)
	if err != nil {
		t.Fatal(err)
	}
	if len(row.Controls) != 3 || row.Controls[0].Event != 54 || row.Controls[1].Event != 56 || row.Controls[2].Event != 118 {
		t.Errorf("the later member has controls %v, want a format at 54 and 118 and a pointer at 56", row.Controls)
	}
}

// Four messages of 176 items one after the other into a pair of row 1, as SDK
// rows have them: the format stays on.
func TestPairedSequence(t *testing.T) {
	p := newPhase(machine.Tiles, low, high)
	for _, source := range []int32{0, 6, 8, 10} {
		p.add(source, 352, 2, 3)
		p.writes[2] += 8
		p.writes[3] += 16
	}
	_, rows, _ := solveWide(t, &p.Problem)
	row, err := machine.DecodeRow(rows.Tile[2].Words)
	if err != nil {
		t.Fatal(err)
	}
	var sources, pointers, formats []int32
	for _, c := range row.Controls {
		switch c.Kind {
		case machine.PairSource:
			sources = append(sources, c.Event)
		case machine.Pointer:
			pointers = append(pointers, c.Event)
		case machine.Format:
			formats = append(formats, c.Event)
		}
	}
	if !slices.Equal(sources, []int32{1, 177, 353, 529, 705}) || !slices.Equal(pointers, []int32{56, 232, 408, 584}) || !slices.Equal(formats, []int32{54, 758}) {
		t.Errorf("sources %v, pointers %v, formats %v", sources, pointers, formats)
	}
}

// Ordinary and paired receives alternate, a pair hears itself, and lanes are
// shared.
func TestPairedMixture(t *testing.T) {
	p := newPhase(64, low, high)
	for round := range int32(6) {
		p.add(10+round, 40, 4, 5)
		p.add(11+round, 3, 4)
		p.writes[4] += 4
		p.add(20, 64, 20, 21, 4, 5)
		p.add(21, 64, 8, 9, 4, 5, 20, 21)
		p.add(20, 7, 5)
		p.writes[5] += 4
		p.add(30, 60, 31, 5)
	}
	for tile := range p.reads {
		p.reads[tile] += p.reads[tile] & 4
	}
	// Odd counts spoil the alignment of what follows: align all again.
	next := [2][]uint32{make([]uint32, 64), make([]uint32, 64)}
	for i := range p.Transfers {
		x := &p.Transfers[i]
		take := func(list []uint32, tile int32) uint32 {
			a := list[tile]
			list[tile] += uint32(x.Words+1) &^ 1 * 4
			return a
		}
		x.Address = low + take(next[0], x.Source)
		for j := range p.receivers(int32(i)) {
			r := &p.Receivers[x.First+int32(j)]
			r.Address = high + take(next[1], r.Tile)
		}
	}
	if _, _, n := solveWide(t, &p.Problem); n != 18 {
		t.Errorf("%d wide transfers, want 18", n)
	}
}

// randomPairs mixes multicasts to pairs with ordinary transfers.
func randomPairs(rng *rand.Rand) *Problem {
	tiles := 8 + 2*rng.IntN(30)
	p := newPhase(tiles, low, high)
	for t := range tiles {
		if rng.IntN(4) == 0 {
			p.reads[t], p.writes[t] = high, high+0x6000
		}
	}
	for range 1 + rng.IntN(40) {
		s := rng.Int32N(int32(tiles))
		var to []int32
		for range 1 + rng.IntN(4) {
			d := rng.Int32N(int32(tiles)) &^ 1
			if slices.Contains(to, d) || d|1 == s|1 && (p.reads[s] >= high || len(to) == 0 && rng.IntN(2) == 0) {
				continue
			}
			to = append(to, d, d+1)
		}
		if rng.IntN(4) == 0 && len(to) > 0 && to[0]|1 != s|1 {
			to = to[:1] // not a pair
		}
		if len(to) == 0 {
			continue
		}
		rng.Shuffle(len(to), func(i, j int) { to[i], to[j] = to[j], to[i] })
		if len(to) == 2 && slices.Contains(to, s) && rng.IntN(2) == 0 {
			continue
		}
		for range 1 + rng.IntN(5) {
			p.add(s, 2*(1+rng.Int32N(60)), to...)
			if rng.IntN(2) == 0 {
				p.writes[to[0]] += 8 * uint32(rng.IntN(3))
			}
			if rng.IntN(4) == 0 {
				p.reads[s] += 8 * uint32(rng.IntN(3))
			}
		}
	}
	return &p.Problem
}

func TestRandomPairs(t *testing.T) {
	wide := 0
	for seed := range uint64(150) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			p := randomPairs(rand.New(rand.NewPCG(seed, 5)))
			_, _, n := solveWide(t, p)
			wide += n
			solveSmall(t, p)
		})
	}
	if wide < 1000 {
		t.Errorf("only %d wide transfers in all: the test tests too little", wide)
	}
}

// What the word model finds wrong in rows with 64-bit items, Verify must find
// wrong.
func TestVerifyAgreesOnPairs(t *testing.T) {
	wrong, refused := 0, 0
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(seed, 6))
		p := randomPairs(rng)
		_, rows, n := solveWide(t, p)
		if n == 0 {
			continue
		}
		for range 60 {
			words := rows.Tile[rng.IntN(p.Tiles)].Words
			if words == nil {
				continue
			}
			i, bit := rng.IntN(len(words)), uint32(1)<<rng.IntN(32)
			words[i] ^= bit
			verdict, truth := Verify(p, rows), judge(p, rows)
			words[i] ^= bit
			if verdict == nil && truth != nil {
				t.Fatalf("seed %d: word %d with 0x%X flipped passes, but %v", seed, i, bit, truth)
			}
			if truth != nil {
				wrong++
			}
			if verdict != nil {
				refused++
			}
		}
	}
	if wrong < 80 || refused < wrong {
		t.Errorf("%d changed rows are wrong and %d refused: the test changes too little", wrong, refused)
	}
}
