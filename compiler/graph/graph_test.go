package graph_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"ipufarm/compiler/graph"
)

// block is a graph that has every operation and attribute.
const block = `graph block
x [2 4 96] = input
norm.scale [96] = parameter
norm.bias [96] = parameter
norm [2 4 96] = layernorm x norm.scale norm.bias
qkv.kernel [96 288] = parameter
qkv [2 4 288] = gemm norm qkv.kernel f8=-4
query [2 4 96] = slice qkv from=0 to=96
key [2 4 96] = slice qkv from=96 to=192
value [2 4 96] = slice qkv from=192 to=288
query.heads [2 3 4 32] = split-heads query heads=3
key.heads [2 3 4 32] = split-heads key heads=3
value.heads [2 3 4 32] = split-heads value heads=3
attention [2 3 4 32] = attention query.heads key.heads value.heads
joined [2 4 96] = merge-heads attention
out.kernel [96 96] = parameter
out [2 4 96] = gemm joined out.kernel
residual [2 4 96] = add x out
active [2 4 96] = gelu residual
output residual
output active
`

func buildBlock() *graph.Builder {
	b := graph.NewBuilder("block")
	x := b.Input("x", 2, 4, 96)
	norm := b.LayerNorm("norm", x, b.Parameter("norm.scale", 96), b.Parameter("norm.bias", 96))
	qkv := b.GEMM8("qkv", norm, b.Parameter("qkv.kernel", 96, 288), -4)
	q := b.Slice("query", qkv, 0, 96)
	k := b.Slice("key", qkv, 96, 192)
	v := b.Slice("value", qkv, 192, 288)
	q, k, v = b.SplitHeads("query.heads", q, 3), b.SplitHeads("key.heads", k, 3), b.SplitHeads("value.heads", v, 3)
	joined := b.MergeHeads("joined", b.Attention("attention", q, k, v))
	out := b.GEMM("out", joined, b.Parameter("out.kernel", 96, 96))
	residual := b.Add("residual", x, out)
	b.Output(residual, b.GELU("active", residual))
	return b
}

func TestBuildPrintsAndParses(t *testing.T) {
	g, err := buildBlock().Build()
	if err != nil {
		t.Fatal(err)
	}
	if got := g.String(); got != block {
		t.Errorf("built graph prints\n%s\nwant\n%s", got, block)
	}
	back, err := graph.Parse("# a comment\n\n" + block)
	if err != nil {
		t.Fatal(err)
	}
	if got := back.String(); got != block {
		t.Errorf("parsed graph prints\n%s\nwant\n%s", got, block)
	}
	if n := len(g.Operations()); n != 13 {
		t.Errorf("%d operations, want 13", n)
	}
	if i, p := len(g.Inputs()), len(g.Parameters()); i != 1 || p != 4 {
		t.Errorf("%d inputs and %d parameters, want 1 and 4", i, p)
	}
}

func TestUsers(t *testing.T) {
	g, err := graph.Parse(block)
	if err != nil {
		t.Fatal(err)
	}
	users := g.Users()
	for name, want := range map[string]string{
		"x": "norm residual", "qkv": "query key value", "residual": "active", "active": "",
	} {
		var got []string
		for _, u := range users[g.Lookup(name).ID] {
			got = append(got, u.Name)
		}
		if s := strings.Join(got, " "); s != want {
			t.Errorf("users of %s are %q, want %q", name, s, want)
		}
	}
	if g.Lookup("nothing") != nil {
		t.Error("Lookup found a value that is not there")
	}
}

func TestBuilderNamesWhatIsWrong(t *testing.T) {
	foreign := graph.NewBuilder("other").Input("foreign", 2, 8)
	cases := []struct {
		want  string
		build func(b *graph.Builder, x *graph.Value) *graph.Value
	}{
		{"y: gemm: left operand [2 8] does not end in the inner size 9", func(b *graph.Builder, x *graph.Value) *graph.Value {
			return b.GEMM("y", x, b.Parameter("w", 9, 4))
		}},
		{"y: gemm: right operand x is a input", func(b *graph.Builder, x *graph.Value) *graph.Value { return b.GEMM("y", x, x) }},
		{"y: gemm: scale 16 outside -16..15", func(b *graph.Builder, x *graph.Value) *graph.Value {
			return b.GEMM8("y", x, b.Parameter("w", 8, 4), 16)
		}},
		{"y: add: [2] is not a suffix of [2 8]", func(b *graph.Builder, x *graph.Value) *graph.Value {
			return b.Add("y", x, b.Parameter("p", 2))
		}},
		{"y: layernorm: p has shape [2], want [8]", func(b *graph.Builder, x *graph.Value) *graph.Value {
			p := b.Parameter("p", 2)
			return b.LayerNorm("y", x, p, p)
		}},
		{"y: slice: columns [4, 9) of a last axis of 8", func(b *graph.Builder, x *graph.Value) *graph.Value { return b.Slice("y", x, 4, 9) }},
		{"y: slice: columns [4, 4)", func(b *graph.Builder, x *graph.Value) *graph.Value { return b.Slice("y", x, 4, 4) }},
		{"y: split-heads: cannot split [2 8] into 2", func(b *graph.Builder, x *graph.Value) *graph.Value { return b.SplitHeads("y", x, 2) }},
		{"y: split-heads: cannot split [1 2 8] into 3", func(b *graph.Builder, x *graph.Value) *graph.Value {
			return b.SplitHeads("y", b.Input("z", 1, 2, 8), 3)
		}},
		{"y: merge-heads: cannot merge", func(b *graph.Builder, x *graph.Value) *graph.Value { return b.MergeHeads("y", x) }},
		{"y: attention: queries [2 8] and keys [2 8]", func(b *graph.Builder, x *graph.Value) *graph.Value { return b.Attention("y", x, x, x) }},
		{"y: attention: keys [1 2 4 8] and values [1 2 4 16] differ", func(b *graph.Builder, x *graph.Value) *graph.Value {
			q := b.Input("q", 1, 2, 4, 8)
			return b.Attention("y", q, q, b.Input("v", 1, 2, 4, 16))
		}},
		{"x: a second value of that name", func(b *graph.Builder, x *graph.Value) *graph.Value { return b.GELU("x", x) }},
		{`name "a b"`, func(b *graph.Builder, x *graph.Value) *graph.Value { return b.GELU("a b", x) }},
		{`name "../y"`, func(b *graph.Builder, x *graph.Value) *graph.Value { return b.GELU("../y", x) }},
		{"y: gelu: an operand is nil", func(b *graph.Builder, x *graph.Value) *graph.Value { return b.GELU("y", nil) }},
		{"y: gelu: operand foreign belongs to another graph", func(b *graph.Builder, x *graph.Value) *graph.Value {
			return b.GELU("y", foreign)
		}},
		{"y: input: rank 0 outside 1..6", func(b *graph.Builder, x *graph.Value) *graph.Value { return b.Input("y") }},
		{"y: input: a size of [2 0]", func(b *graph.Builder, x *graph.Value) *graph.Value { return b.Input("y", 2, 0) }},
		{"more than 1073741824 elements", func(b *graph.Builder, x *graph.Value) *graph.Value { return b.Input("y", 1<<24, 1<<24, 1<<24) }},
	}
	for _, c := range cases {
		b := graph.NewBuilder("g")
		bad := c.build(b, b.Input("x", 2, 8))
		// A user of the bad value must not add a second message.
		b.Output(b.GELU("after", bad))
		_, err := b.Build()
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want one with %q", err, c.want)
		} else if strings.Contains(err.Error(), "after") || strings.Count(err.Error(), "\n") > 0 {
			t.Errorf("error %q reports more than the one mistake", err)
		}
	}
}

func TestCheckRefusesTampering(t *testing.T) {
	cases := []struct {
		want   string
		tamper func(g *graph.Graph)
	}{
		{"x: ID 5 at position 0", func(g *graph.Graph) { g.Values[0].ID = 5 }},
		{"norm: an operand is not an earlier value", func(g *graph.Graph) { g.Values[3].Inputs[0] = g.Values[9] }},
		{"norm: an operand is not an earlier value", func(g *graph.Graph) { g.Values[3].Inputs[0] = nil }},
		{"has shape [2 4 95]", func(g *graph.Graph) { g.Lookup("residual").Shape = []int{2, 4, 95} }},
		{"residual: op(77): unknown operation 77", func(g *graph.Graph) { g.Lookup("residual").Op = 77 }},
		{"residual: add: 1 operands, want 2", func(g *graph.Graph) {
			v := g.Lookup("residual")
			v.Inputs = v.Inputs[:1]
		}},
		{"residual: add: add has no heads", func(g *graph.Graph) { g.Lookup("residual").Heads = 2 }},
		{"residual: add: add has no columns", func(g *graph.Graph) { g.Lookup("residual").To = 2 }},
		{"residual: add: add has no precision", func(g *graph.Graph) { g.Lookup("residual").Precision = graph.F8 }},
		{"out: gemm: scale 3 without f8", func(g *graph.Graph) { g.Lookup("out").Scale = 3 }},
		{"out: gemm: unknown precision 9", func(g *graph.Graph) { g.Lookup("out").Precision = 9 }},
		{"no output", func(g *graph.Graph) { g.Outputs = nil }},
		{"output 0 is not a value", func(g *graph.Graph) { g.Outputs[0] = nil }},
		{"x: an output must be an operation", func(g *graph.Graph) { g.Outputs[0] = g.Values[0] }},
		{"an output twice", func(g *graph.Graph) { g.Outputs[0] = g.Outputs[1] }},
		{"active: gelu is neither read nor an output", func(g *graph.Graph) { g.Outputs = g.Outputs[:1] }},
		{"value 2 is nil", func(g *graph.Graph) { g.Values[2] = nil }},
		{"a second value of that name", func(g *graph.Graph) { g.Values[1].Name = "x" }},
		{"a name of 0 bytes", func(g *graph.Graph) { g.Values[1].Name = "" }},
	}
	for _, c := range cases {
		g, err := graph.Parse(block)
		if err != nil {
			t.Fatal(err)
		}
		c.tamper(g)
		if err := g.Check(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want one with %q", err, c.want)
		}
	}
	var none *graph.Graph
	if none.Check() == nil {
		t.Error("a nil graph passes")
	}
}

func TestParseNamesTheLine(t *testing.T) {
	const head = "graph g\nx [2 8] = input\n"
	cases := []struct{ text, want string }{
		{"", "empty text"},
		{"# only a comment\n", "empty text"},
		{"x [2] = input\n", `line 1: "x [2] = input", want "graph NAME" first`},
		{"graph 9\n", `line 1: name "9"`},
		{head, "no output"},
		{head + "y [2 8] = gelu z\n", `line 3: y: no value "z" above`},
		{head + "y [2 9] = gelu x\n", "line 3: y: shape [2 9], the operands give [2 8]"},
		{head + "y [2 8] = gelu\n", "line 3: y: gelu: 0 operands, want 1"},
		{head + "y [2 8] = tanh x\n", `line 3: y: unknown operation "tanh"`},
		{head + "y 2 8 = gelu x\n", "line 3: y: want a shape"},
		{head + "y [2 8 = gelu x\n", "line 3: y: size"},
		{head + "y [-2 8] = gelu x\n", `size "-2"`},
		{head + "y [99999999999999999999] = gelu x\n", "line 3: y: size"},
		{head + "y [16777216 16777216] = input\n", "line 3: y: input: [16777216 16777216] has more than"},
		{head + "y [2 8] gelu x\n", "want = and an operation"},
		{head + "y [2 8] = gelu x heads=2\n", "gelu has no heads"},
		{head + "y [2 8] = gelu x a=2\n", `unknown key "a"`},
		{head + "y [2 8] = slice x from=q to=2\n", `from: "q" is not a number`},
		{head + "x [2 8] = gelu x\n", "line 3: x: a second value"},
		{head + "output y\n", `line 3: no value "y"`},
		{head + "output x\n", "x: an output must be an operation"},
		{head + "y [2 8] = gelu x\noutput y\nz [2 8] = gelu x\n", "line 5: a value after the outputs"},
		{head + strings.Repeat("y", 5000), "line 3: 5000 bytes, at most 1600"},
	}
	for _, c := range cases {
		g, err := graph.Parse(c.text)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("Parse(%.60q) = %v, %v; want an error with %q", c.text, g, err, c.want)
		}
	}
}

func TestTooManyValues(t *testing.T) {
	b := graph.NewBuilder("g")
	v := b.Input("x", 1)
	for i := range graph.MaxValues {
		v = b.GELU(fmt.Sprintf("v%d", i), v)
	}
	b.Output(v)
	if _, err := b.Build(); err == nil || !strings.Contains(err.Error(), "more than 65536 values") {
		t.Errorf("error %v", err)
	}
}

// TestRandomGraphs builds graphs at random and expects them to survive printing
// and parsing.
func TestRandomGraphs(t *testing.T) {
	for seed := range uint64(300) {
		g := random(t, rand.New(rand.NewPCG(seed, 1)))
		text := g.String()
		back, err := graph.Parse(text)
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, text)
		}
		if back.String() != text {
			t.Fatalf("seed %d: prints\n%s\nafter\n%s", seed, back, text)
		}
	}
}

// random returns a graph of up to twenty operations on tensors of rank 3.
func random(t *testing.T, r *rand.Rand) *graph.Graph {
	t.Helper()
	b := graph.NewBuilder("random")
	width := 2 * (1 + r.IntN(8))
	live := []*graph.Value{b.Input("x", 1+r.IntN(3), 1+r.IntN(5), width)}
	for i := range 1 + r.IntN(20) {
		name := fmt.Sprintf("v%d", i)
		x := live[r.IntN(len(live))]
		switch n := x.Width(); r.IntN(6) {
		case 0:
			x = b.GEMM(name, x, b.Parameter(name+".kernel", n, 2*(1+r.IntN(8))))
		case 1:
			x = b.GEMM8(name, x, b.Parameter(name+".kernel", n, n), r.IntN(32)-16)
		case 2:
			x = b.Add(name, x, b.Parameter(name+".bias", x.Shape[1+r.IntN(2):]...))
		case 3:
			x = b.LayerNorm(name, x, b.Parameter(name+".scale", n), b.Parameter(name+".bias", n))
		case 4:
			x = b.Slice(name, x, 0, 2*(1+r.IntN(n/2)))
		case 5:
			h := b.SplitHeads(name+".heads", x, 2)
			x = b.MergeHeads(name, b.Attention(name+".attention", h, h, h))
		}
		live = append(live, x)
	}
	// What nobody reads is an output.
	read := map[*graph.Value]bool{}
	for _, v := range live {
		for _, in := range v.Inputs {
			read[in] = true
			for _, p := range in.Inputs { // through the attention of case 5
				for _, pp := range p.Inputs {
					read[pp] = true
				}
			}
		}
	}
	for i, v := range live {
		if !read[v] && i > 0 {
			b.Output(v)
		}
	}
	g, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func FuzzParse(f *testing.F) {
	f.Add(block)
	f.Add("graph g\nx [2 8] = input\ny [2 8] = gelu x\noutput y\n")
	f.Add("graph g\nx [16777216 16777216 9] = input\noutput x\n")
	f.Add("graph g\nx [1 2 4] = input\nh [1 9 2 4] = split-heads x heads=9223372036854775807\noutput h\n")
	f.Add("graph g\noutput output\n")
	f.Fuzz(func(t *testing.T, text string) {
		g, err := graph.Parse(text)
		if err != nil {
			return
		}
		if err := g.Check(); err != nil {
			t.Fatalf("parsed, but %v", err)
		}
		back, err := graph.Parse(g.String())
		if err != nil {
			t.Fatalf("does not parse its own text: %v\n%s", err, g)
		}
		if back.String() != g.String() || !slices.EqualFunc(back.Values, g.Values, sameValue) {
			t.Fatalf("%s\nbecame\n%s", g, back)
		}
	})
}

func sameValue(a, b *graph.Value) bool {
	return a.Op == b.Op && a.Name == b.Name && slices.Equal(a.Shape, b.Shape) &&
		a.Heads == b.Heads && a.From == b.From && a.To == b.To && a.Precision == b.Precision && a.Scale == b.Scale
}
