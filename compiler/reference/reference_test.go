package reference_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	"ipufarm/compiler/graph"
	"ipufarm/compiler/reference"
	"ipufarm/compiler/workload"
	"ipufarm/protocol/compare"
	"ipufarm/protocol/numeric"
)

const fixture = "../workload/testdata/vit_small_b1"

// small is the options of the small vision model.
func small(change func(o *workload.Options)) workload.Options {
	o := workload.Defaults()
	o.Small = true
	if change != nil {
		change(&o)
	}
	return o
}

func build(t testing.TB, o workload.Options) *graph.Graph {
	t.Helper()
	g, err := workload.Build(o)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// random returns the seeded parameters and inputs of a graph.
func random(t testing.TB, g *graph.Graph, o workload.Options) (params, inputs map[string]graph.Tensor) {
	t.Helper()
	params, err := workload.Weights(g, o)
	if err != nil {
		t.Fatal(err)
	}
	inputs, err = workload.Inputs(g, o)
	if err != nil {
		t.Fatal(err)
	}
	return params, inputs
}

// trace returns every result by name.
func trace(t testing.TB, g *graph.Graph, params, inputs map[string]graph.Tensor) map[string][]float32 {
	t.Helper()
	results := map[string][]float32{}
	err := reference.Trace(context.Background(), g, params, inputs, func(v *graph.Value, data []float32) error {
		if _, again := results[v.Name]; again || len(data) != v.Elements() {
			t.Errorf("%s visited with %d elements, want once with %d", v.Name, len(data), v.Elements())
		}
		results[v.Name] = data
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return results
}

func traceOptions(t testing.TB, o workload.Options) map[string][]float32 {
	g := build(t, o)
	params, inputs := random(t, g, o)
	return trace(t, g, params, inputs)
}

// sameBits compares so that NaN equals itself and zeros keep their sign.
func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

func TestFixture(t *testing.T) {
	for _, fuse := range []bool{false, true} {
		o := small(func(o *workload.Options) { o.FuseQKV = fuse })
		g := build(t, o)
		f, err := workload.LoadFixture(fixture, g, o)
		if err != nil {
			t.Fatal(err)
		}
		if len(f.Expected) != 2 {
			t.Fatalf("%d expected tensors, want encoded and pooled", len(f.Expected))
		}
		got := trace(t, g, f.Weights, f.Inputs)
		for name, want := range f.Expected {
			r := compare.Compare(got[name], want, 0.02, 0)
			t.Logf("fused %v: %s: %s; cosine %.7f", fuse, name, r, slices.Min(compare.CosineRows(got[name], want, 144)))
			if !r.Pass() {
				t.Errorf("%s: %s", name, r)
			}
		}
	}
}

// TestBatchIsIndependent runs the fixture's image twice in a batch.
func TestBatchIsIndependent(t *testing.T) {
	one := small(nil)
	g := build(t, one)
	f, err := workload.LoadFixture(fixture, g, one)
	if err != nil {
		t.Fatal(err)
	}
	want := trace(t, g, f.Weights, f.Inputs)

	two := small(func(o *workload.Options) { o.Batch = 2 })
	g2 := build(t, two)
	double := func(x graph.Tensor, shape []int) graph.Tensor {
		return graph.Tensor{Shape: shape, Data: slices.Repeat(x.Data, 2)}
	}
	probe := "MAPHead_0.probe"
	f.Weights[probe] = double(f.Weights[probe], g2.Lookup(probe).Shape)
	f.Inputs["image"] = double(f.Inputs["image"], g2.Lookup("image").Shape)
	got := trace(t, g2, f.Weights, f.Inputs)
	for name, w := range want {
		if !sameBits(got[name], slices.Repeat(w, 2)) {
			t.Errorf("%s differs in a batch of two equal images", name)
		}
	}
}

func TestFusedEqualsSeparate(t *testing.T) {
	scale := -4
	for _, fp8 := range []*int{nil, &scale} {
		o := small(func(o *workload.Options) { o.Batch, o.Layers, o.FP8 = 2, 2, fp8 })
		separate := traceOptions(t, o)
		o.FuseQKV = true
		fused := traceOptions(t, o)
		shared := 0
		for name, want := range separate {
			got, ok := fused[name]
			if !ok {
				continue
			}
			shared++
			if !sameBits(got, want) {
				t.Errorf("fp8 %v: %s differs with fused projections", fp8 != nil, name)
			}
		}
		if shared < 50 {
			t.Errorf("only %d values are in both graphs", shared)
		}
	}
}

// TestFP8 expects quantisation to change the result about as much as the
// published small model's error against its reference, 0.13: not nothing, not
// everything.
func TestFP8(t *testing.T) {
	for _, batch := range []int{1, 2} {
		o := small(func(o *workload.Options) { o.Batch = batch })
		f16 := traceOptions(t, o)["pooled"]
		scale := -4
		o.FP8 = &scale
		f8 := traceOptions(t, o)["pooled"]
		r := compare.Compare(f8, f16, 0, 0)
		cos := slices.Min(compare.CosineRows(f8, f16, 144))
		t.Logf("batch %d: FP8 against F16: max abs %.4f, cosine %.5f", batch, r.MaxAbs, cos)
		if r.NonFinite > 0 || r.MaxAbs < 0.01 || r.MaxAbs > 0.4 || cos < 0.98 {
			t.Errorf("batch %d: %s, cosine %v", batch, r, cos)
		}
	}
}

func TestAnyNumberOfProcessors(t *testing.T) {
	o := small(func(o *workload.Options) { o.ImageSize, o.FuseQKV = 98, true })
	want := traceOptions(t, o)
	for _, procs := range []int{1, 3} {
		before := runtime.GOMAXPROCS(procs)
		got := traceOptions(t, o)
		runtime.GOMAXPROCS(before)
		for name := range want {
			if !sameBits(got[name], want[name]) {
				t.Errorf("%s differs with %d processors", name, procs)
			}
		}
	}
}

// halves returns a tensor of the values rounded to F16.
func halves(shape []int, values ...float32) graph.Tensor {
	t := graph.NewTensor(shape...)
	numeric.EncodeF16(t.Data, values)
	return t
}

// one evaluates a single operation on an input x and parameters p0, p1.
func one(t *testing.T, op func(b *graph.Builder, x *graph.Value, p []*graph.Value) *graph.Value, x graph.Tensor, params ...graph.Tensor) []float32 {
	t.Helper()
	b := graph.NewBuilder("one")
	in := b.Input("x", x.Shape...)
	var ps []*graph.Value
	tensors := map[string]graph.Tensor{}
	for i, p := range params {
		name := fmt.Sprintf("p%d", i)
		ps = append(ps, b.Parameter(name, p.Shape...))
		tensors[name] = p
	}
	b.Output(op(b, in, ps))
	g, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	out, err := reference.Evaluate(context.Background(), g, tensors, map[string]graph.Tensor{"x": x})
	if err != nil {
		t.Fatal(err)
	}
	return out[g.Outputs[0].Name]
}

func TestRounding(t *testing.T) {
	nan := float32(math.NaN())
	gemm := func(b *graph.Builder, x *graph.Value, p []*graph.Value) *graph.Value { return b.GEMM("y", x, p[0]) }
	gemm8 := func(scale int) func(b *graph.Builder, x *graph.Value, p []*graph.Value) *graph.Value {
		return func(b *graph.Builder, x *graph.Value, p []*graph.Value) *graph.Value {
			return b.GEMM8("y", x, p[0], scale)
		}
	}
	sum := func(b *graph.Builder, x *graph.Value, p []*graph.Value) *graph.Value { return b.Add("y", x, p[0]) }
	cases := []struct {
		name string
		got  []float32
		want []float32
	}{
		// 2048 + 1 is not an F16 (ulp 2), 2048 + 1 + 1 is: the sum is rounded once.
		{"one rounding", one(t, gemm, halves([]int{1, 3}, 1, 1, 1), halves([]int{3, 1}, 2048, 1, 1)), []float32{2050}},
		{"tie to even", one(t, gemm, halves([]int{1, 2}, 1, 1), halves([]int{2, 1}, 2048, 1)), []float32{2048}},
		// 2^24 + 1 is not an F32 either: the sum is F32, in ascending order of k.
		{"F32 sums in order", one(t, gemm, halves([]int{1, 4}, 4096, 1, 1, -4096), halves([]int{4, 1}, 4096, 1, 1, 4096)), []float32{0}},
		{"F32 sums in another order", one(t, gemm, halves([]int{1, 4}, 4096, -4096, 1, 1), halves([]int{4, 1}, 4096, 4096, 1, 1)), []float32{2}},
		{"overflow is NaN", one(t, gemm, halves([]int{1, 1}, 256), halves([]int{1, 2}, 256, -1)), []float32{nan, -256}},
		// F143 at scale 0 has 3 bits: 17 is the tie of 16 and 18, 1.0625 of 1 and 1.125.
		{"F143 operands", one(t, gemm8(0), halves([]int{1, 2}, 17, 19), halves([]int{2, 1}, 1.0625, 1)), []float32{16 + 20}},
		{"F143 overflow", one(t, gemm8(-4), halves([]int{2, 1}, 15, 15.5), halves([]int{1, 1}, 1)), []float32{15, nan}},
		{"F143 underflow", one(t, gemm8(2), halves([]int{1, 1}, 1), halves([]int{1, 1}, 1.0/512)), []float32{0}},
		{"bias over rows", one(t, sum, halves([]int{2, 2}, 1, 2, 3, 2048), halves([]int{2}, 10, 3)), []float32{11, 5, 13, 2052}},
		{"slice", one(t, func(b *graph.Builder, x *graph.Value, p []*graph.Value) *graph.Value { return b.Slice("y", x, 1, 3) },
			halves([]int{2, 4}, 0, 1, 2, 3, 4, 5, 6, 7)), []float32{1, 2, 5, 6}},
		{"split heads", one(t, func(b *graph.Builder, x *graph.Value, p []*graph.Value) *graph.Value {
			return b.SplitHeads("y", x, 2)
		}, halves([]int{1, 3, 4}, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)), []float32{0, 1, 4, 5, 8, 9, 2, 3, 6, 7, 10, 11}},
		{"split and merge heads", one(t, func(b *graph.Builder, x *graph.Value, p []*graph.Value) *graph.Value {
			return b.MergeHeads("y", b.SplitHeads("h", x, 2))
		}, halves([]int{1, 3, 4}, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)), []float32{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}},
		{"gelu", one(t, func(b *graph.Builder, x *graph.Value, p []*graph.Value) *graph.Value { return b.GELU("y", x) },
			halves([]int{1, 5}, 0, 1, -1, 100, -100)), []float32{0, numeric.RoundF16(0.841192), numeric.RoundF16(-0.158808), 100, float32(math.Copysign(0, -1))}},
		// Mean 0 and variance 1, so that the epsilon changes nothing at this precision.
		{"layernorm", one(t, func(b *graph.Builder, x *graph.Value, p []*graph.Value) *graph.Value {
			return b.LayerNorm("y", x, p[0], p[1])
		}, halves([]int{1, 2}, 7, 9), halves([]int{2}, 2, 3), halves([]int{2}, 0.5, -1)), []float32{-1.5, 2}},
		// A constant row has variance zero: the epsilon keeps it finite.
		{"layernorm of a constant", one(t, func(b *graph.Builder, x *graph.Value, p []*graph.Value) *graph.Value {
			return b.LayerNorm("y", x, p[0], p[1])
		}, halves([]int{1, 2}, 8, 8), halves([]int{2}, 2, 3), halves([]int{2}, 0.5, -1)), []float32{0.5, -1}},
		{"attention to one key", one(t, func(b *graph.Builder, x *graph.Value, p []*graph.Value) *graph.Value {
			return b.Attention("y", x, p[0], p[1])
		}, halves([]int{1, 1, 2, 2}, 1, 2, 3, 4), halves([]int{1, 1, 1, 2}, 5, 6), halves([]int{1, 1, 1, 2}, 7, 8)), []float32{7, 8, 7, 8}},
		// Scores 2 and -2 over √4: the weights differ by a factor of e².
		{"attention is scaled", one(t, func(b *graph.Builder, x *graph.Value, p []*graph.Value) *graph.Value {
			return b.Attention("y", x, p[0], p[1])
		}, halves([]int{1, 1, 1, 4}, 4, 0, 0, 0), halves([]int{1, 1, 2, 4}, 0.5, 0, 0, 0, -0.5, 0, 0, 0),
			halves([]int{1, 1, 2, 4}, 1, 1, 0, 0, 0, 1, 0, 0)), []float32{numeric.RoundF16(float32(1 / (1 + math.Exp(-2)))), 1, 0, 0}},
	}
	for _, c := range cases {
		same := slices.EqualFunc(c.got, c.want, func(x, y float32) bool { return x == y || x != x && y != y })
		if !same {
			t.Errorf("%s: %v, want %v", c.name, c.got, c.want)
		}
	}
}

// TestRandomGraphs compares random graphs with a float64 evaluation of them.
func TestRandomGraphs(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 2))
		g := randomGraph(t, r)
		g, err := graph.Parse(g.String())
		if err != nil {
			t.Fatal(err)
		}
		tensors := map[string]graph.Tensor{}
		for _, v := range g.Values {
			if v.IsOperation() {
				continue
			}
			x := graph.NewTensor(v.Shape...)
			for i := range x.Data {
				x.Data[i] = numeric.F32ToF16(float32(r.NormFloat64() / 2))
			}
			tensors[v.Name] = x
		}
		got := trace(t, g, tensors, tensors)
		want := exact(g, tensors)
		for _, v := range g.Operations() {
			for i, w := range want[v.ID] {
				// Every operation begins with the rounded inputs of the reference, so
				// that one rounding and a little F32 noise is all there may be.
				if d := math.Abs(float64(got[v.Name][i]) - w); !(d <= 1.0/1024*math.Abs(w)+2e-4) {
					t.Fatalf("seed %d: %s: element %d is %v, want %v\n%s", seed, v, i, got[v.Name][i], w, g)
				}
			}
			for i := range want[v.ID] {
				want[v.ID][i] = float64(got[v.Name][i])
			}
			exactFrom(g, tensors, want, v.ID+1)
		}
	}
}

func randomGraph(t *testing.T, r *rand.Rand) *graph.Graph {
	b := graph.NewBuilder("random")
	x := b.Input("x", 1+r.IntN(3), 1+r.IntN(40), 2*(1+r.IntN(20)))
	for i := range 2 + r.IntN(6) {
		name := fmt.Sprintf("v%d", i)
		n := x.Width()
		switch r.IntN(6) {
		case 0, 1:
			x = b.GEMM(name, x, b.Parameter(name+".kernel", n, 2*(1+r.IntN(20))))
		case 2:
			x = b.Add(name, x, b.Parameter(name+".bias", x.Shape[1+r.IntN(2):]...))
		case 3:
			x = b.LayerNorm(name, x, b.Parameter(name+".scale", n), b.Parameter(name+".bias", n))
		case 4:
			x = b.GELU(name, b.Slice(name+".slice", x, n/2-1, n/2+1))
		case 5:
			h := b.SplitHeads(name+".heads", x, 2)
			x = b.MergeHeads(name, b.Attention(name+".attention", h, h, h))
		}
	}
	b.Output(x)
	g, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// exact evaluates a graph in float64, written from the definition of each
// operation, by value ID.
func exact(g *graph.Graph, tensors map[string]graph.Tensor) [][]float64 {
	values := make([][]float64, len(g.Values))
	exactFrom(g, tensors, values, 0)
	return values
}

// exactFrom evaluates the next operation from a value on, and the inputs and
// parameters before it.
func exactFrom(g *graph.Graph, tensors map[string]graph.Tensor, values [][]float64, from int) {
	for _, v := range g.Values[from:] {
		if !v.IsOperation() {
			for _, h := range tensors[v.Name].Data {
				values[v.ID] = append(values[v.ID], float64(numeric.F16ToF32(h)))
			}
			continue
		}
		in := make([][]float64, 3)
		for i, x := range v.Inputs {
			in[i] = values[x.ID]
		}
		values[v.ID] = exactOperation(v, in)
		return
	}
}

func exactOperation(v *graph.Value, in [][]float64) []float64 {
	out := make([]float64, v.Elements())
	x := v.Inputs[0].Shape
	switch v.Op {
	case graph.GEMM:
		k, n := v.Inputs[1].Shape[0], v.Inputs[1].Shape[1]
		for i := range out {
			for j := range k {
				out[i] += in[0][i/n*k+j] * in[1][j*n+i%n]
			}
		}
	case graph.Add:
		for i := range out {
			out[i] = in[0][i] + in[1][i%len(in[1])]
		}
	case graph.GELU:
		for i, a := range in[0] {
			out[i] = a / 2 * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(a+0.044715*a*a*a)))
		}
	case graph.LayerNorm:
		w := v.Width()
		for r := 0; r < len(out); r += w {
			var mean, variance float64
			for _, a := range in[0][r : r+w] {
				mean += a / float64(w)
			}
			for _, a := range in[0][r : r+w] {
				variance += (a - mean) * (a - mean) / float64(w)
			}
			for i, a := range in[0][r : r+w] {
				out[r+i] = (a-mean)/math.Sqrt(variance+1e-6)*in[1][i] + in[2][i]
			}
		}
	case graph.Slice:
		for i := range out {
			out[i] = in[0][i/v.Width()*x[len(x)-1]+v.From+i%v.Width()]
		}
	case graph.SplitHeads:
		for i := range out {
			b, h, t, d := unflatten(i, v.Shape)
			out[i] = in[0][(b*x[1]+t)*x[2]+h*v.Shape[3]+d]
		}
	case graph.MergeHeads:
		for i := range in[0] {
			b, h, t, d := unflatten(i, x)
			out[(b*x[2]+t)*v.Shape[2]+h*x[3]+d] = in[0][i]
		}
	case graph.Attention:
		keys := v.Inputs[1].Shape[2]
		for i := range out {
			b, h, t, d := unflatten(i, v.Shape)
			var weights, sum float64
			for key := range keys {
				var score float64
				for c := range x[3] {
					score += in[0][((b*x[1]+h)*x[2]+t)*x[3]+c] * in[1][((b*x[1]+h)*keys+key)*x[3]+c]
				}
				w := math.Exp(score / math.Sqrt(float64(x[3])))
				weights += w
				sum += w * in[2][((b*x[1]+h)*keys+key)*x[3]+d]
			}
			out[i] = sum / weights
		}
	}
	return out
}

func unflatten(i int, shape []int) (a, b, c, d int) {
	d, i = i%shape[3], i/shape[3]
	c, i = i%shape[2], i/shape[2]
	return i / shape[1], i % shape[1], c, d
}

func TestEvaluateReturnsOutputs(t *testing.T) {
	o := small(nil)
	g := build(t, o)
	params, inputs := random(t, g, o)
	out, err := reference.Evaluate(context.Background(), g, params, inputs)
	if err != nil {
		t.Fatal(err)
	}
	if len(out) != 1 || !sameBits(out["pooled"], trace(t, g, params, inputs)["pooled"]) {
		t.Errorf("outputs %d, or they differ from the trace", len(out))
	}
}

func TestBadInput(t *testing.T) {
	o := small(nil)
	cases := []struct {
		want   string
		change func(g *graph.Graph, params, inputs map[string]graph.Tensor)
	}{
		{"no tensor for parameter embedding.bias", func(g *graph.Graph, params, inputs map[string]graph.Tensor) {
			delete(params, "embedding.bias")
		}},
		{"no tensor for input image", func(g *graph.Graph, params, inputs map[string]graph.Tensor) { delete(inputs, "image") }},
		{"input image has shape [1 4 587] and 2348 elements, want [1 4 588]", func(g *graph.Graph, params, inputs map[string]graph.Tensor) {
			inputs["image"] = graph.NewTensor(1, 4, 587)
		}},
		{"and 7 elements", func(g *graph.Graph, params, inputs map[string]graph.Tensor) {
			inputs["image"] = graph.Tensor{Shape: []int{1, 4, 588}, Data: make([]uint16, 7)}
		}},
		{"graph siglip-vit-benchmark: no output", func(g *graph.Graph, params, inputs map[string]graph.Tensor) { g.Outputs = nil }},
	}
	for _, c := range cases {
		g := build(t, o)
		params, inputs := random(t, g, o)
		c.change(g, params, inputs)
		_, err := reference.Evaluate(context.Background(), g, params, inputs)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want one with %q", err, c.want)
		}
	}
}

func TestStops(t *testing.T) {
	o := small(nil)
	g := build(t, o)
	params, inputs := random(t, g, o)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := reference.Evaluate(ctx, g, params, inputs); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v after cancelling", err)
	}
	enough := errors.New("enough")
	visits := 0
	err := reference.Trace(context.Background(), g, params, inputs, func(*graph.Value, []float32) error {
		if visits++; visits == 3 {
			return enough
		}
		return nil
	})
	if err != enough || visits != 3 {
		t.Errorf("error %v after %d visits", err, visits)
	}
}

// TestEveryWorkload evaluates the workloads at their smallest.
func TestEveryWorkload(t *testing.T) {
	scale := -4
	for _, o := range []workload.Options{
		{Workload: "siglip-vit-benchmark", Model: "pe-core-l14", ImageSize: 14, Batch: 2, Layers: 1, FuseQKV: true, FP8: &scale},
		{Workload: "siglip-mlp-benchmark", MLP: workload.MLPOptions{Batch: 2, Tokens: 9, Dim: 32, Hidden: 48, Blocks: 2}},
		{Workload: "siglip-attention-benchmark", Attention: workload.AttentionOptions{Batch: 1, Heads: 1, Blocks: 1}},
		{Workload: "siglip-attention-benchmark", Attention: workload.AttentionOptions{Batch: 1, Heads: 1, Blocks: 2}, FuseQKV: true},
		{Workload: "gemm-benchmark", GEMM: workload.GEMMOptions{Rows: 100, Inner: 30, Columns: 20}},
		{Workload: "gemm-smoke", Tiles: 64},
		{Workload: "batched-gemm-smoke", Tiles: 64},
		{Workload: "mlp-smoke"},
		{Workload: "attention-smoke"},
	} {
		g := build(t, o)
		for name, out := range traceOptions(t, o) {
			if r := compare.Compare(out, out, 0, 0); !r.Pass() {
				t.Errorf("%s: %s: %s", o.Workload, name, r)
			}
			if name == g.Outputs[0].Name && slices.Max(out) == slices.Min(out) {
				t.Errorf("%s: %s is constant", o.Workload, name)
			}
		}
	}
}

func benchmark(b *testing.B, o workload.Options) {
	g := build(b, o)
	params, inputs := random(b, g, o)
	for b.Loop() {
		if _, err := reference.Evaluate(context.Background(), g, params, inputs); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSmall(b *testing.B) { benchmark(b, small(nil)) }

func BenchmarkFullSize(b *testing.B) {
	o := workload.Defaults()
	o.FuseQKV = true
	benchmark(b, o)
}

func BenchmarkFullSizeFP8(b *testing.B) {
	o := workload.Defaults()
	scale := -4
	o.FuseQKV, o.FP8 = true, &scale
	benchmark(b, o)
}
