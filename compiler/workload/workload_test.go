package workload_test

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"flag"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"ipufarm/compiler/graph"
	"ipufarm/compiler/workload"
	"ipufarm/protocol/numeric"
)

var update = flag.Bool("update", false, "rewrite the golden graphs")

func with(change func(o *workload.Options)) workload.Options {
	o := workload.Defaults()
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

func ptr(n int) *int { return &n }

// TestGraphs compares the text of a few graphs with files beside the test.
func TestGraphs(t *testing.T) {
	for name, o := range map[string]workload.Options{
		"vit_small":           with(func(o *workload.Options) { o.Small = true }),
		"vit_small_fused_fp8": with(func(o *workload.Options) { o.Small, o.FuseQKV, o.FP8, o.Batch, o.Layers = true, true, ptr(-4), 2, 2 }),
		"pe_core_l14":         with(func(o *workload.Options) { o.Model, o.FuseQKV = "pe-core-l14", true }),
		"siglip_attention":    with(func(o *workload.Options) { o.Workload, o.FuseQKV = "siglip-attention-benchmark", true }),
		"siglip_mlp":          with(func(o *workload.Options) { o.Workload, o.FP8 = "siglip-mlp-benchmark", ptr(-4) }),
	} {
		path := filepath.Join("testdata", name+".graph")
		got := build(t, o).String()
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s differs from %s; run with -update and review the difference:\n%s", name, path, got)
		}
	}
}

// TestPublishedCounts compares operations, GEMMs and parameters with the
// published descriptions of the models.
func TestPublishedCounts(t *testing.T) {
	cases := []struct {
		name                          string
		o                             workload.Options
		operations, gemms, parameters int
	}{
		{"fused", with(func(o *workload.Options) { o.FuseQKV = true }), 45, 10, 31998496},
		{"separate", with(nil), 46, 13, 31998496},
		{"27 layers", with(func(o *workload.Options) { o.FuseQKV, o.Layers = true, 27 }), 45 + 26*21, 10 + 26*4, 428225600},
		{"PE-Core L/14", with(func(o *workload.Options) { o.Model, o.Layers = "pe-core-l14-capacity", 24 }), 46 + 23*22 + 1, 14 + 23*6, 317150208},
		{"siglip-mlp", with(func(o *workload.Options) { o.Workload = "siglip-mlp-benchmark" }), 3, 2, 2 * 1152 * 4304},
	}
	for _, c := range cases {
		g := build(t, c.o)
		var gemms, parameters int
		for _, v := range g.Values {
			if v.Op == graph.GEMM {
				gemms++
			}
			if v.Op == graph.Parameter {
				parameters += v.Elements()
			}
		}
		if n := len(g.Operations()); n != c.operations || gemms != c.gemms || parameters != c.parameters {
			t.Errorf("%s: %d operations, %d GEMMs, %d parameters, want %d, %d, %d", c.name, n, gemms, parameters, c.operations, c.gemms, c.parameters)
		}
	}
}

func TestShapes(t *testing.T) {
	for _, c := range []struct {
		o             workload.Options
		image, pooled []int
	}{
		{with(nil), []int{1, 729, 588}, []int{1, 1, 1152}},
		{with(func(o *workload.Options) { o.Small, o.Batch = true, 2 }), []int{2, 4, 588}, []int{2, 1, 144}},
		{with(func(o *workload.Options) { o.Small, o.ImageSize = true, 42 }), []int{1, 9, 588}, []int{1, 1, 144}},
		{with(func(o *workload.Options) { o.ImageSize = 28 }), []int{1, 4, 588}, []int{1, 1, 1152}},
		{with(func(o *workload.Options) { o.Model = "pe-core-l14" }), []int{1, 577, 588}, []int{1, 1, 1024}},
	} {
		g := build(t, c.o)
		if in, out := g.Lookup("image").Shape, g.Outputs[0].Shape; !slices.Equal(in, c.image) || !slices.Equal(out, c.pooled) {
			t.Errorf("image %v and output %v, want %v and %v", in, out, c.image, c.pooled)
		}
	}
}

// TestFP8SelectsWeightGEMMs expects every GEMM, and nothing else, in F8.
func TestFP8SelectsWeightGEMMs(t *testing.T) {
	g := build(t, with(func(o *workload.Options) { o.Small, o.FP8 = true, ptr(-16) }))
	for _, v := range g.Values {
		if f8 := v.Precision == graph.F8 && v.Scale == -16; f8 != (v.Op == graph.GEMM) {
			t.Errorf("%s has precision %s, scale %d", v, v.Precision, v.Scale)
		}
	}
}

func TestBadOptions(t *testing.T) {
	vit := func(change func(o *workload.Options)) workload.Options { return with(change) }
	named := func(name string, change func(o *workload.Options)) workload.Options {
		return with(func(o *workload.Options) {
			o.Workload = name
			change(o)
		})
	}
	cases := []struct {
		o    workload.Options
		want string
	}{
		{workload.Options{}, `--workload "": siglip-vit-benchmark, `},
		{vit(func(o *workload.Options) { o.Workload = "vit" }), `--workload "vit": siglip-vit-benchmark, `},
		{vit(func(o *workload.Options) { o.Batch = 0 }), "--vit-batch 0: 1..64 are accepted"},
		{vit(func(o *workload.Options) { o.Batch = 65 }), "--vit-batch 65: 1..64 are accepted"},
		{vit(func(o *workload.Options) { o.Layers = 0 }), "--vit-layers 0: 1..64 are accepted"},
		{vit(func(o *workload.Options) { o.Layers = 1 << 40 }), "--vit-layers 1099511627776: 1..64"},
		{vit(func(o *workload.Options) { o.ImageSize = 29 }), "--vit-image-size 29: multiples of 14 up to 896 are accepted"},
		{vit(func(o *workload.Options) { o.ImageSize = -14 }), "--vit-image-size -14: multiples of 14"},
		{vit(func(o *workload.Options) { o.ImageSize = 910 }), "--vit-image-size 910: multiples of 14"},
		{vit(func(o *workload.Options) { o.FP8 = ptr(16) }), "--fp8-scale 16: -16..15 are accepted"},
		{vit(func(o *workload.Options) { o.FP8 = ptr(-17) }), "--fp8-scale -17: -16..15 are accepted"},
		{vit(func(o *workload.Options) { o.Model = "clip" }), `--vit-model "clip": siglip-so400m and pe-core-l14 are accepted`},
		{vit(func(o *workload.Options) { o.Model, o.Small = "pe-core-l14", true }), "--vit-small: pe-core-l14 has no small form"},
		{vit(func(o *workload.Options) { o.Batch, o.ImageSize = 64, 896 }), "has more than 1073741824 elements"},
		{named("gemm-benchmark", func(o *workload.Options) { o.GEMM.Rows = 0 }), "--benchmark-rows 0: 1..262144"},
		{named("gemm-benchmark", func(o *workload.Options) { o.GEMM.Inner = -1 }), "--benchmark-inner -1: 1..262144"},
		{named("gemm-benchmark", func(o *workload.Options) { o.GEMM.Columns = 1 << 19 }), "--benchmark-columns 524288: 1..262144"},
		{named("gemm-smoke", func(o *workload.Options) { o.Tiles = 100 }), "--tiles 100: multiples of 64 up to 1472"},
		{named("batched-gemm-smoke", func(o *workload.Options) { o.Tiles = 1536 }), "--tiles 1536: 64..1472"},
		{named("siglip-mlp-benchmark", func(o *workload.Options) { o.MLP.Hidden = 0 }), "--mlp-hidden-dim 0: 1..262144"},
		{named("siglip-mlp-benchmark", func(o *workload.Options) { o.MLP.Blocks = 65 }), "--mlp-blocks 65: 1..64"},
		{named("siglip-attention-benchmark", func(o *workload.Options) { o.Attention.Heads = 0 }), "--attention-heads 0: 1..64"},
		{named("siglip-attention-benchmark", func(o *workload.Options) { o.Attention.Blocks = 2 }), "--attention-blocks 2: more than 1 needs --attention-project or --fuse-qkv"},
		{named("siglip-attention-benchmark", func(o *workload.Options) { o.FP8 = ptr(0) }), "--fp8-scale 0: siglip-attention-benchmark without projections has no GEMM"},
		{named("attention-smoke", func(o *workload.Options) { o.FP8 = ptr(0) }), "--fp8-scale 0: attention-smoke without"},
	}
	for _, c := range cases {
		if _, err := workload.Build(c.o); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want one with %q", err, c.want)
		}
	}
}

func TestFlags(t *testing.T) {
	parse := func(args ...string) (workload.Options, error) {
		o := workload.Defaults()
		fs := pflag.NewFlagSet("run", pflag.ContinueOnError)
		fs.Usage = func() {}
		workload.BindFlags(fs, &o)
		return o, fs.Parse(args)
	}
	cases := []struct {
		args string
		json string
	}{
		{"", `{"workload":"siglip-vit-benchmark","seed":1,"vit_model":"siglip-so400m","vit_image_size":378,"vit_batch":1,"vit_layers":1}`},
		{"--vit-small --tiles-are-not-mine", ""},
		{"--vit-small --fp8-scale -4 --fuse-qkv --vit-batch 2 --vit-layers=3 --seed 7",
			`{"workload":"siglip-vit-benchmark","seed":7,"fp8_scale":-4,"fuse_qkv":true,"vit_model":"siglip-so400m","vit_small":true,"vit_image_size":28,"vit_batch":2,"vit_layers":3}`},
		{"--fp8-scale=0 --vit-image-size 28", `{"workload":"siglip-vit-benchmark","seed":1,"fp8_scale":0,"vit_model":"siglip-so400m","vit_image_size":28,"vit_batch":1,"vit_layers":1}`},
		{"--vit-model pe-core-l14-capacity", `{"workload":"siglip-vit-benchmark","seed":1,"vit_model":"pe-core-l14","vit_image_size":336,"vit_batch":1,"vit_layers":1}`},
		{"--workload gemm-benchmark --benchmark-rows 5 --vit-batch 9", `{"workload":"gemm-benchmark","seed":1,"gemm":{"rows":5,"inner":64,"columns":64}}`},
		{"--workload gemm-smoke", `{"workload":"gemm-smoke","seed":1,"tiles":1472}`},
		{"--workload mlp-smoke --fuse-qkv", `{"workload":"mlp-smoke","seed":1}`},
		{"--workload siglip-attention-benchmark --fuse-qkv", `{"workload":"siglip-attention-benchmark","seed":1,"fuse_qkv":true,"attention":{"batch":1,"heads":16,"blocks":1,"project":true}}`},
		{"--workload siglip-mlp-benchmark --mlp-tokens 3", `{"workload":"siglip-mlp-benchmark","seed":1,"mlp":{"batch":1,"tokens":3,"dim":1152,"hidden_dim":4304,"blocks":1}}`},
		{"--fp8-scale 16", ""},
		{"--fp8-scale x", ""},
		{"--vit-batch 1.5", ""},
		{"--seed -1", ""},
	}
	for _, c := range cases {
		o, err := parse(strings.Fields(c.args)...)
		if (err != nil) != (c.json == "") {
			t.Errorf("%q: error %v", c.args, err)
		}
		if err != nil {
			continue
		}
		got, err := o.JSON()
		if err != nil || string(got) != c.json {
			t.Errorf("%q gives %s, %v\nwant %s", c.args, got, err, c.json)
			continue
		}
		back, err := workload.ParseJSON(got)
		if err != nil {
			t.Errorf("%s: %v", got, err)
			continue
		}
		if again, err := back.JSON(); err != nil || string(again) != c.json {
			t.Errorf("%s becomes %s, %v", c.json, again, err)
		}
	}
}

func TestParseJSONRefuses(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{``, "workload options"},
		{`{"workload":"mlp-smoke","seed":1} {}`, "something follows"},
		{`{"workload":"mlp-smoke","colour":1}`, `unknown field "colour"`},
		{`{"workload":"siglip-vit-benchmark","vit_batch":0,"vit_layers":1}`, "--vit-batch 0"},
		{`{"workload":"siglip-vit-benchmark","vit_batch":1e9}`, "vit_batch"},
		{`{"workload":"siglip-vit-benchmark","vit_batch":1,"vit_layers":1,"fp8_scale":99}`, "--fp8-scale 99"},
		{`[]`, "workload options"},
	} {
		if _, err := workload.ParseJSON([]byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", c.text, err, c.want)
		}
	}
}

func FuzzParseJSON(f *testing.F) {
	f.Add([]byte(`{"workload":"siglip-vit-benchmark","seed":1,"fp8_scale":-4,"vit_small":true,"vit_batch":1,"vit_layers":1}`))
	f.Add([]byte(`{"workload":"gemm-smoke","seed":1,"tiles":64}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		o, err := workload.ParseJSON(data)
		if err != nil {
			return
		}
		if _, err := o.JSON(); err != nil {
			t.Fatalf("accepted, but %v", err)
		}
		if g, err := workload.Build(o); err == nil && g.Check() != nil {
			t.Fatal(g.Check())
		}
	})
}

func TestRegistry(t *testing.T) {
	for _, name := range workload.Names() {
		w, ok := workload.Lookup(name)
		if !ok || w.Name != name || w.Summary == "" {
			t.Errorf("%s: found %v, as %q, %q", name, ok, w.Name, w.Summary)
		}
		build(t, with(func(o *workload.Options) { o.Workload, o.Small = name, true }))
	}
	if _, ok := workload.Lookup("nothing"); ok {
		t.Error("found a workload that is not there")
	}
}

func weights(t testing.TB, o workload.Options) map[string]graph.Tensor {
	t.Helper()
	w, err := workload.Weights(build(t, o), o)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func inputs(t testing.TB, o workload.Options) map[string]graph.Tensor {
	t.Helper()
	in, err := workload.Inputs(build(t, o), o)
	if err != nil {
		t.Fatal(err)
	}
	return in
}

// columns returns the columns [from, to) of a row-major tensor.
func columns(t graph.Tensor, from, to int) []uint16 {
	var part []uint16
	for w, r := t.Shape[len(t.Shape)-1], 0; r < len(t.Data); r += w {
		part = append(part, t.Data[r+from:r+to]...)
	}
	return part
}

func TestFusedWeightsAreTheSeparateOnes(t *testing.T) {
	o := with(func(o *workload.Options) { o.Small, o.Layers = true, 2 })
	separate := weights(t, o)
	o.FuseQKV = true
	fused := weights(t, o)
	parts := 0
	for name, tensor := range fused {
		infix, projections := "", []string(nil)
		switch {
		case strings.Contains(name, ".qkv."):
			infix, projections = ".qkv.", []string{".query.", ".key.", ".value."}
		case strings.Contains(name, ".kv."):
			infix, projections = ".kv.", []string{".key.", ".value."}
		default:
			if !slices.Equal(tensor.Data, separate[name].Data) {
				t.Errorf("%s changed", name)
			}
			continue
		}
		for i, p := range projections {
			want := separate[strings.Replace(name, infix, p, 1)]
			if len(want.Data) == 0 || !slices.Equal(columns(tensor, i*144, (i+1)*144), want.Data) {
				t.Errorf("%s: columns of %s are not that projection's", name, p)
			}
			parts++
		}
	}
	if parts != 2*2*3+2*2 {
		t.Errorf("%d fused parts, want 16", parts)
	}
}

func TestSeedNamesAndBatch(t *testing.T) {
	o := with(func(o *workload.Options) { o.Small = true })
	one := weights(t, o)
	o.Batch = 3
	three := weights(t, o)
	for name, w := range one {
		want := w.Data
		if name == "MAPHead_0.probe" {
			want = slices.Repeat(want, 3)
		}
		if !slices.Equal(three[name].Data, want) {
			t.Errorf("%s depends on the batch", name)
		}
	}
	o.Seed = 2
	if slices.Equal(weights(t, o)["embedding.kernel"].Data, one["embedding.kernel"].Data) {
		t.Error("the seed changes nothing")
	}
	q, k := "Transformer.encoderblock_0.MultiHeadDotProductAttention_0.query.kernel", "Transformer.encoderblock_0.MultiHeadDotProductAttention_0.key.kernel"
	if slices.Equal(one[q].Data, one[k].Data) {
		t.Error("two parameters of one shape are equal")
	}
}

// TestDistributions compares deviations with what each kind should have.
func TestDistributions(t *testing.T) {
	o := with(func(o *workload.Options) { o.Small, o.FuseQKV = true, true })
	w := weights(t, o)
	w["image"] = inputs(t, o)["image"]
	for name, sigma := range map[string]float64{
		"image":            1,
		"embedding.kernel": math.Sqrt(2.0 / (588 + 144)),
		"MAPHead_0.MultiHeadDotProductAttention_0.kv.kernel":                   math.Sqrt(2.0 / (144 + 144)),
		"Transformer.encoderblock_0.MultiHeadDotProductAttention_0.qkv.kernel": math.Sqrt(2.0 / (144 + 144)),
		"Transformer.encoderblock_0.MlpBlock_0.Dense_1.kernel":                 math.Sqrt(2.0 / (144 + 288)),
		"pos_embedding":   math.Sqrt(1.0 / 144),
		"MAPHead_0.probe": math.Sqrt(1.0 / 144),
		"Transformer.encoderblock_0.LayerNorm_0.bias":                        1e-6,
		"Transformer.encoderblock_0.MultiHeadDotProductAttention_0.qkv.bias": 1e-6,
		"Transformer.encoderblock_0.MlpBlock_0.Dense_0.bias":                 1e-6,
	} {
		var sum, squares float64
		n := float64(len(w[name].Data))
		for _, h := range w[name].Data {
			x := float64(numeric.F16ToF32(h))
			sum += x
			squares += x * x
		}
		// Five standard errors of the mean and of the deviation.
		if got := math.Sqrt(squares / n); math.Abs(got/sigma-1) > 5/math.Sqrt(2*n) || math.Abs(sum/n) > 5*sigma/math.Sqrt(n) {
			t.Errorf("%s: mean %.3g, deviation %.3g, want 0 and %.3g", name, sum/n, got, sigma)
		}
	}
	for _, h := range w["MAPHead_0.LayerNorm_0.scale"].Data {
		if h != numeric.F32ToF16(1) {
			t.Fatalf("a norm scale is %v", numeric.F16ToF32(h))
		}
	}
}

// TestValuesStay pins the values: published runs must stay comparable.
func TestValuesStay(t *testing.T) {
	o := with(func(o *workload.Options) { o.Small = true })
	h := sha256.New()
	g := build(t, o)
	w, in := weights(t, o), inputs(t, o)
	for _, v := range g.Values {
		for _, x := range append(w[v.Name].Data, in[v.Name].Data...) {
			var b [2]byte
			binary.LittleEndian.PutUint16(b[:], x)
			h.Write(b[:])
		}
	}
	const want = "f623b40a08d1ac1e8e5153c4d6dfce57f2f4120daa266325d50cb36f1a4b6131"
	if got := hex.EncodeToString(h.Sum(nil)); got != want {
		t.Errorf("digest of seed 1 is %s, want %s", got, want)
	}
}

func TestClassSlotIsZero(t *testing.T) {
	o := with(func(o *workload.Options) { o.Model, o.ImageSize, o.Batch = "pe-core-l14", 28, 2 })
	image := inputs(t, o)["image"]
	for b := range 2 {
		for i, h := range image.Data[b*5*588 : (b+1)*5*588] {
			if zero := h == 0; zero != (i < 588) {
				t.Fatalf("image %d: element %d is %v", b, i, numeric.F16ToF32(h))
			}
		}
	}
}

func TestUnknownParameter(t *testing.T) {
	b := graph.NewBuilder("g")
	b.Output(b.Add("y", b.Input("x", 2), b.Parameter("p", 2)))
	g, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := workload.Weights(g, workload.Defaults()); err == nil || !strings.Contains(err.Error(), "parameter p of shape [2]: no initialisation") {
		t.Errorf("error %v", err)
	}
}
