package lower

import (
	"math/rand/v2"
	"strings"
	"testing"

	"ipufarm/compiler/graph"
	"ipufarm/compiler/workload"
)

func modelOf(t testing.TB, change func(*workload.Options)) *Model {
	t.Helper()
	o := workload.Defaults()
	o.Small = true
	change(&o)
	g, err := workload.Build(o)
	if err != nil {
		t.Fatal(err)
	}
	m, err := NewModel(g)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// A sketch counts, piece by piece, what lowering writes down transfer by transfer:
// the same words on every tile in every phase, the same cycles in every segment.
func TestSketchCountsWhatLoweringDoes(t *testing.T) {
	models := []*Model{
		modelOf(t, func(o *workload.Options) { o.FuseQKV = true }),
		modelOf(t, func(o *workload.Options) { s := -4; o.FP8, o.Batch = &s, 2 }),
		modelOf(t, func(o *workload.Options) { o.ImageSize = 70 }),
	}
	const tiles = 64
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 7))
		m := models[int(seed)%len(models)]
		r := RandomRecipe(rng, m, tiles)
		if err := r.Check(m); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		sketch, err := build(m, &r, true)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		p, err := Lower(m, &r)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if len(p.Buffers) != len(sketch.p.Buffers) {
			t.Errorf("seed %d: %d buffers, the sketch has %d", seed, len(p.Buffers), len(sketch.p.Buffers))
		}
		work := map[[2]int32]int32{}
		for i := range p.Calls {
			c := &p.Calls[i]
			work[[2]int32{c.Slot, c.Tile}] += c.Cycles
		}
		for half, cycles := range sketch.work {
			for tile, want := range cycles {
				if got := work[[2]int32{int32(2 * half), int32(tile)}]; got != want {
					t.Fatalf("seed %d: slot %d, tile %d: %d cycles, the sketch says %d", seed, 2*half, tile, got, want)
				}
			}
		}
		for i := range p.Phases {
			ph := &p.Phases[i]
			receive := make([]int32, tiles)
			for _, x := range ph.Transfers {
				to := make([]int32, 0, x.Count)
				for _, ref := range ph.Receivers[x.First : x.First+x.Count] {
					to = append(to, p.Buffers[ref.Buffer].Tile)
				}
				words := x.Words
				if paired(to) && words%2 == 0 {
					words /= 2
				}
				for _, tile := range to {
					receive[tile] += words
				}
			}
			for tile, got := range receive {
				if want := sketch.load[ph.Slot].receive[tile]; got != want {
					t.Fatalf("seed %d: phase %d: tile %d receives %d words, the sketch says %d", seed, i, tile, got, want)
				}
			}
		}
	}
}

// Every byte that a phase writes lies in a buffer that is live in the phase, and no
// two transfers of a phase write the same byte.
func TestTransfersStayInLiveBuffers(t *testing.T) {
	m := modelOf(t, func(o *workload.Options) { s := -4; o.FP8, o.ImageSize, o.FuseQKV = &s, 42, true })
	for seed := range uint64(10) {
		r := RandomRecipe(rand.New(rand.NewPCG(seed, 8)), m, 64)
		p, err := Lower(m, &r)
		if err != nil {
			t.Fatal(err)
		}
		for i := range p.Phases {
			ph := &p.Phases[i]
			written := map[Ref]bool{}
			inside := func(ref Ref, words int32) {
				b := &p.Buffers[ref.Buffer]
				if int32(ref.Offset)+4*words > b.Bytes || ph.Slot < b.First || ph.Slot > b.Last {
					t.Fatalf("seed %d: phase %d: %d words at %d of buffer %d (%d bytes, slots %d to %d)", seed, i, words, ref.Offset, ref.Buffer, b.Bytes, b.First, b.Last)
				}
			}
			for _, x := range ph.Transfers {
				inside(x.Source, x.Words)
				for _, ref := range ph.Receivers[x.First : x.First+x.Count] {
					inside(ref, x.Words)
					for w := range uint32(x.Words) {
						at := Ref{ref.Buffer, ref.Offset + 4*w}
						if written[at] {
							t.Fatalf("seed %d: phase %d writes word %d of buffer %d twice", seed, i, at.Offset/4, at.Buffer)
						}
						written[at] = true
					}
				}
			}
		}
	}
}

// A graph that no tile grid of ours executes is refused by the name of what does
// not fit.
func TestModelRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		build func(b *graph.Builder)
		want  string
	}{
		"gelu first": {func(b *graph.Builder) {
			x := b.Input("x", 1, 4, 16)
			y := b.GELU("early", x)
			b.Output(b.GEMM("g", y, b.Parameter("w", 16, 16)))
		}, "early"},
		"two outputs": {func(b *graph.Builder) {
			x := b.Input("x", 1, 4, 16)
			b.Output(b.GEMM("g", x, b.Parameter("w", 16, 16)), b.GEMM("h", x, b.Parameter("v", 16, 16)))
		}, "2 outputs"},
		"attention of an input": {func(b *graph.Builder) {
			x := b.SplitHeads("heads", b.Input("x", 1, 4, 16), 2)
			b.Output(b.MergeHeads("joined", b.Attention("attention", x, x, x)))
		}, "attention"},
	} {
		b := graph.NewBuilder("broken")
		c.build(b)
		g, err := b.Build()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := NewModel(g); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", name, err, c.want)
		}
	}
}

// The steps of the vision model, fused and separate, cover all its operations.
func TestStepsOfTheVisionModel(t *testing.T) {
	for _, fuse := range []bool{false, true} {
		m := modelOf(t, func(o *workload.Options) { o.FuseQKV, o.Layers = fuse, 2 })
		kinds := ""
		for _, s := range m.Steps {
			switch {
			case s.Linear != nil:
				kinds += "L"
			case s.Norm != nil:
				kinds += "N"
			default:
				kinds += "A"
			}
		}
		if want := "L" + "NALNLL" + "NALNLL" + "N" + "ALNLL"; kinds != want {
			t.Errorf("fused %v: steps %s, want %s", fuse, kinds, want)
		}
	}
}

func BenchmarkSketch(b *testing.B) {
	m := modelOf(b, func(o *workload.Options) { o.ImageSize = 70 })
	r := RandomRecipe(rand.New(rand.NewPCG(1, 1)), m, 64)
	for b.Loop() {
		if _, err := NewSketch(m, &r); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLower(b *testing.B) {
	m := modelOf(b, func(o *workload.Options) { o.ImageSize = 70 })
	r := RandomRecipe(rand.New(rand.NewPCG(1, 1)), m, 64)
	for b.Loop() {
		if _, err := Lower(m, &r); err != nil {
			b.Fatal(err)
		}
	}
}
