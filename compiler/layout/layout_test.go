package layout_test

import (
	"math/rand/v2"
	"testing"

	"ipufarm/compiler/layout"
)

var forms = []layout.Form{layout.Rows16, layout.Left16, layout.Right16, {Order: layout.Panels, Grain: 32, Elem: 2}}

// Runs must move every element of the common region exactly once, to where the
// scalar address formula says, whatever the two orders are.
func TestRunsAgainstScalarEnumeration(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	rect := func() layout.Rect {
		r0, c0 := rng.Int32N(40), rng.Int32N(20)*4
		return layout.Rect{R0: r0, R1: r0 + 1 + rng.Int32N(40), C0: c0, C1: c0 + 4 + 4*rng.Int32N(30)}
	}
	for range 400 {
		sf, df := forms[rng.IntN(len(forms))], forms[rng.IntN(len(forms))]
		src, dst := layout.NewBlock(sf, rect()), layout.NewBlock(df, rect())
		want := map[int32]int32{} // destination byte -> source byte
		common := src.Intersect(dst.Rect)
		for r := common.R0; r < common.R1; r++ {
			for c := common.C0; c < common.C1; c++ {
				want[dst.Offset(df, r, c)] = src.Offset(sf, r, c)
			}
		}
		got := map[int32]int32{}
		last := int32(-1)
		layout.Runs(sf, &src, df, &dst, func(from, to, bytes int32) {
			if from < last {
				t.Fatalf("runs leave the order of the source: %d after %d", from, last)
			}
			last = from + bytes
			for i := int32(0); i < bytes; i += 2 {
				if _, twice := got[to+i]; twice {
					t.Fatalf("byte %d written twice", to+i)
				}
				got[to+i] = from + i
			}
		})
		if len(got) != len(want) {
			t.Fatalf("%v -> %v: %d elements moved, want %d", sf, df, len(got), len(want))
		}
		for to, from := range want {
			if got[to] != from {
				t.Fatalf("%v -> %v: destination byte %d comes from %d, want %d", sf, df, to, got[to], from)
			}
		}
	}
}

func TestOffsetsAreDisjoint(t *testing.T) {
	for _, f := range forms {
		b := layout.NewBlock(f, layout.Rect{R0: 3, R1: 40, C0: 16, C1: 100})
		seen := map[int32]bool{}
		for r := b.R0; r < b.R1; r++ {
			for c := b.C0; c < b.C1; c++ {
				o := b.Offset(f, r, c)
				if seen[o] || o < 0 || o >= b.Bytes(f) {
					t.Fatalf("%v: element (%d,%d) at %d of %d", f, r, c, o, b.Bytes(f))
				}
				seen[o] = true
			}
		}
	}
}

func TestIndexAgainstScan(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 100 {
		var blocks []layout.Block
		for range 1 + rng.IntN(50) {
			r0, c0 := rng.Int32N(100), rng.Int32N(100)
			blocks = append(blocks, layout.NewBlock(layout.Rows16, layout.Rect{R0: r0, R1: r0 + 1 + rng.Int32N(30), C0: c0, C1: c0 + 1 + rng.Int32N(30)}))
		}
		x := layout.NewIndex(blocks)
		for range 20 {
			r0, c0 := rng.Int32N(120), rng.Int32N(120)
			q := layout.Rect{R0: r0, R1: r0 + 1 + rng.Int32N(40), C0: c0, C1: c0 + 1 + rng.Int32N(40)}
			hits := map[int]int{}
			x.Overlapping(q, func(b int) { hits[b]++ })
			for i := range blocks {
				want := 0
				if !blocks[i].Intersect(q).Empty() {
					want = 1
				}
				if hits[i] != want {
					t.Fatalf("block %v for %v visited %d times, want %d", blocks[i].Rect, q, hits[i], want)
				}
			}
		}
	}
}

func TestCuts(t *testing.T) {
	for n := 1; n < 50; n++ {
		for parts := 1; parts <= n; parts++ {
			c := layout.Cuts(n, parts)
			small, large := n, 0
			for i := range parts {
				d := int(c[i+1] - c[i])
				small, large = min(small, d), max(large, d)
			}
			if c[0] != 0 || int(c[parts]) != n || large-small > 1 {
				t.Fatalf("Cuts(%d, %d) = %v", n, parts, c)
			}
		}
	}
}

// A 16-row panel of a left operand is a coefficient panel: one run.
func TestTransposedOperandNeedsNoPacking(t *testing.T) {
	src := layout.NewBlock(layout.Left16, layout.Rect{R1: 16, C1: 16})
	dst := layout.NewBlock(layout.Right16, layout.Rect{R1: 16, C1: 16})
	runs := 0
	layout.Runs(layout.Left16, &src, layout.Right16, &dst, func(_, _, bytes int32) {
		runs++
		if bytes != 512 {
			t.Errorf("run of %d bytes, want 512", bytes)
		}
	})
	if runs != 1 {
		t.Errorf("%d runs, want 1", runs)
	}
}

// The parts of a block, laid out one after the other, are its bytes.
func TestPartsAreTheBlock(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 200 {
		f := forms[1+rng.IntN(len(forms)-1)]
		r0, c0 := rng.Int32N(40), rng.Int32N(10)*f.Grain
		b := layout.NewBlock(f, layout.Rect{R0: r0, R1: r0 + 1 + rng.Int32N(50), C0: c0, C1: c0 + f.Grain*(1+rng.Int32N(6))})
		units := int(layout.Units(f, &b))
		cuts := layout.Cuts(units, 1+rng.IntN(units))
		at := int32(0)
		for i := 0; i+1 < len(cuts); i++ {
			for _, p := range layout.Part(f, &b, cuts[i], cuts[i+1]) {
				for r := p.R0; r < p.R1; r++ {
					for c := p.C0; c < p.C1; c++ {
						if got, want := at+p.Offset(f, r, c), b.Offset(f, r, c); got != want {
							t.Fatalf("%v %v: element (%d,%d) at %d, in the block at %d", f, b, r, c, got, want)
						}
					}
				}
				at += p.Bytes(f)
			}
		}
		if at != b.Bytes(f) {
			t.Fatalf("%v: parts have %d bytes, the block %d", f, at, b.Bytes(f))
		}
	}
}
