package plan_test

import (
	"encoding/json"
	"runtime"
	"testing"

	"ipufarm/compiler/lower"
	"ipufarm/compiler/plan"
	"ipufarm/compiler/workload"
)

func modelOf(t testing.TB, change func(*workload.Options)) *lower.Model {
	t.Helper()
	o := workload.Defaults()
	change(&o)
	g, err := workload.Build(o)
	if err != nil {
		t.Fatal(err)
	}
	m, err := lower.NewModel(g)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func search(t testing.TB, m *lower.Model, o plan.Options) []plan.Finalist {
	t.Helper()
	list, err := plan.Search(m, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// The shortlist holds recipes that can be lowered, whose costs are those of their
// sketches, in the order of what fits and how fast it is.
func TestShortlistIsWhatItSays(t *testing.T) {
	for name, change := range map[string]func(*workload.Options){
		"four tokens":   func(o *workload.Options) { o.Small = true },
		"25 tokens, b3": func(o *workload.Options) { o.Small, o.ImageSize, o.Batch = true, 70, 3 },
		"fp8, 3 layers": func(o *workload.Options) { s := -4; o.Small, o.FP8, o.Layers = true, &s, 3 },
	} {
		m := modelOf(t, change)
		list := search(t, m, plan.Options{Tiles: 64, Finalists: 8})
		if len(list) != 8 {
			t.Errorf("%s: %d finalists, want 8", name, len(list))
		}
		for i := range list {
			f := &list[i]
			if err := f.Recipe.Check(m); err != nil {
				t.Errorf("%s: finalist %d: %v", name, i, err)
			}
			s, err := lower.NewSketch(m, &f.Recipe)
			if err != nil {
				t.Fatalf("%s: finalist %d: %v", name, i, err)
			}
			if s.Cost != f.Cost {
				t.Errorf("%s: finalist %d: cost %+v, its sketch says %+v", name, i, f.Cost, s.Cost)
			}
			if i > 0 && f.Cost.Fits() && list[i-1].Cost.Fits() && f.Cost.Cycles < list[i-1].Cost.Cycles {
				t.Errorf("%s: finalist %d is faster than %d", name, i, i-1)
			}
		}
	}
}

// Layers of equal shape are planned alike, so that a model of many layers is no
// harder to plan than one of a few.
func TestLayersAreAlike(t *testing.T) {
	m := modelOf(t, func(o *workload.Options) { o.Small, o.Layers = true, 3 })
	steps := search(t, m, plan.Options{Tiles: 64, Finalists: 1})[0].Recipe.Steps
	const perLayer = 6
	for i := 1; i < 1+perLayer; i++ {
		a, b := steps[i], steps[i+perLayer]
		for _, c := range []*lower.Choice{&a, &b} { // first tiles differ
			for _, g := range []**lower.Grid{&c.Grid, &c.Q, &c.K, &c.V} {
				if *g != nil {
					x := **g
					x.Base = 0
					*g = &x
				}
			}
			c.Owners = nil
			if c.Attend != nil {
				x := *c.Attend
				x.ScoreBase, x.SoftmaxBase, x.ValueBase = 0, 0, 0
				c.Attend = &x
			}
		}
		x, _ := json.Marshal(a)
		y, _ := json.Marshal(b)
		if string(x) != string(y) {
			t.Errorf("step %d of the first layer is %s, of the second %s", i, x, y)
		}
	}
}

// Neither the number of processors nor luck decides.
func TestSameShortlist(t *testing.T) {
	m := modelOf(t, func(o *workload.Options) { o.Small, o.ImageSize = true, 56 })
	text := func() string {
		b, err := json.Marshal(search(t, m, plan.Options{Tiles: 128, Finalists: 8}))
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	first := text()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	if text() != first {
		t.Error("one processor plans otherwise")
	}
}

// The full-size batch 1 in FP8, as in the table of results.
func BenchmarkFullSize(b *testing.B) {
	m := modelOf(b, func(o *workload.Options) { s := -4; o.FP8, o.FuseQKV = &s, true })
	for b.Loop() {
		search(b, m, plan.Options{Tiles: 1472})
	}
}
