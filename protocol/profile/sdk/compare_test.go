package sdk_test

import (
	"slices"
	"strings"
	"testing"

	"ipufarm/protocol/profile"
	"ipufarm/protocol/profile/sdk"
	"ipufarm/protocol/profile/sdk/sdktest"
	"ipufarm/protocol/program"
)

// tileOf makes a tile that executes calls one after the other; a call without a
// kernel is an exchange of a scheduled length.
type call struct {
	operation, kernel string
	cycles            uint32
}

func tileOf(tile uint32, calls ...call) profile.TileProfile {
	t := profile.TileProfile{PhysicalTile: tile}
	now, phase := uint32(100), uint32(0)
	for i, c := range calls {
		s := profile.Step{LocalIndex: uint32(i), Phase: phase, Operation: c.operation, Kind: profile.KindCompute, Kernel: c.kernel}
		if c.kernel == "" {
			s.Kind, s.ExchangeEventCycles = profile.KindExchange, c.cycles
			phase++
		}
		t.Samples = append(t.Samples, profile.CycleSample{Step: s, StartCycle: now, EndCycle: now + c.cycles})
		now += c.cycles
	}
	return t
}

// twoTiles is a profile of a block whose stages are spread over two tiles, before a
// second block and a pooling head that must not count.
func twoTiles() *profile.Profile {
	const b = "Transformer.encoderblock_0."
	const a = b + "MultiHeadDotProductAttention_0."
	block := func(n uint32) []call {
		return []call{
			{"embedding.product/gemm", "gemm", 9999},
			{b + "LayerNorm_0/cast", "cast-left", 11 * n},
			{a + "query.product/gemm", "", 40},
			{a + "query.product/gemm", "gemm", 100 * n}, {a + "query.product/gemm", "gemm", 1},
			{a + "key.product/gemm", "gemm", 200 / n},
			{a + "query/bias", "add", 7},
			{a + "attention/scores", "gemm", 50}, {a + "attention/scores", "fill", 5},
			{a + "attention/softmax", "", 60},
			{a + "attention/softmax", "copy-strided", 13},
			{a + "attention/softmax", "softmax", 70 * n},
			{a + "attention/values", "", 30},
			{a + "attention/values", "gemm", 80},
			{a + "attention/normalise", "normalise", 20 / n},
			{a + "out.product/gemm", "gemm", 90},
			{b + "residual_0/rows", "reduce", 9},
			{b + "MlpBlock_0.Dense_0.product/gemm", "gemm", 300},
			{b + "MlpBlock_0.gelu/partials", "reduce", 8},
			{b + "MlpBlock_0.gelu/gelu", "bias-gelu", 1000},
			{b + "MlpBlock_0.gelu/cast", "cast", 12},
			{b + "MlpBlock_0.Dense_1.product/gemm", "gemm", 400},
			{b + "residual_1/rows", "reduce", 6},
			{"Transformer.encoderblock_10.MlpBlock_0.Dense_1.product/gemm", "gemm", 7777},
			{"MAPHead_0.MultiHeadDotProductAttention_0.attention/scores", "gemm", 7777},
		}
	}
	return &profile.Profile{SchemaVersion: profile.SchemaVersion, ClockHz: 1_500_000_000,
		Tiles: []profile.TileProfile{tileOf(0, block(1)...), tileOf(5, block(2)...), tileOf(9)}}
}

func TestCompare(t *testing.T) {
	s := read(t, sdktest.FullFP8()).Summarize()
	p := twoTiles()
	if err := p.Check(); err != nil {
		t.Fatal(err)
	}
	c, err := sdk.Compare(s, 0, "ours.ipuprof", p, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string][2]sdk.Side{
		"QKV":                 {{22_415, 1472, -1, 1_710}, {201 + 200, 2, 7, 40}},
		"QK":                  {{5_502, 1472, -1, 612}, {50, 2, 5, -1}},
		"softmax preparation": {{129_219, 1458, -1, 4_477}, {13, 2, -1, 60}},
		"softmax":             {{18_300, 1458, -1, -1}, {140 + 20, 2, -1, -1}},
		"PV":                  {{7_377, 1472, 177_357, 1_900}, {80, 2, -1, 30}},
		"output projection":   {{8_178, 1472, -1, -1}, {90, 2, 9, -1}},
		"MLP up":              {{26_425, 1472, -1, -1}, {300, 2, 8, -1}},
		"MLP down":            {{28_265, 1472, 3_123, 2_887}, {400, 2, 6, -1}},
		"casts":               {{7_843, 1464, -1, -1}, {22 + 12, 2, -1, -1}},
	}
	if len(c.Stages) != len(want) {
		t.Errorf("%d stages, want %d", len(c.Stages), len(want))
	}
	for _, r := range c.Stages {
		if w := want[r.Stage]; r.SDK != w[0] || r.Ours != w[1] {
			t.Errorf("%s: SDK %+v, ours %+v\nwant %+v", r.Stage, r.SDK, r.Ours, w)
		}
	}
	if c.SDK.Cycles != 17_804_824 || c.SDK.Blocks != 27 || c.Ours.Blocks != 2 || c.Ours.Cycles != int64(p.Cycles()) || c.Ours.CodeMax != -1 || c.SDK.CodeMax != 36_696 {
		t.Errorf("SDK %+v\nours %+v", c.SDK, c.Ours)
	}
	if !strings.HasPrefix(c.SDK.Basis, "measured") || !strings.HasPrefix(c.Ours.Basis, "modelled") {
		t.Errorf("bases %q and %q", c.SDK.Basis, c.Ours.Basis)
	}
	said := strings.Join(c.Differ, "\n")
	for _, w := range []string{"clocks differ: 1.85 GHz", "SDK executes its block 27 times, ours has 2", "give the package", "Transformer.encoderblock_0 in ours"} {
		if !strings.Contains(said, w) {
			t.Errorf("nothing says %q", w)
		}
	}
	qkv := c.Stages[slices.IndexFunc(c.Stages, func(r sdk.StageRow) bool { return r.Stage == "QKV" })]
	if !strings.Contains(strings.Join(qkv.Differ, "\n"), "products: SDK 1, ours 2") {
		t.Errorf("QKV differs in %q", qkv.Differ)
	}
}

func TestComparePicksTheInference(t *testing.T) {
	s := read(t, sdktest.FullFP8(), "DELETE FROM steps WHERE id > (SELECT max(id) - 2 FROM steps)").Summarize()
	for _, c := range []struct {
		index int
		want  int64 // cycles; 0: an error
	}{{0, 17_886_945}, {1, 17_886_945}, {2, 17_804_824}, {3, 0}} {
		got, err := sdk.Compare(s, c.index, "ours", twoTiles(), nil)
		switch {
		case c.want == 0:
			if err == nil {
				t.Errorf("inference %d is accepted", c.index)
			}
		case err != nil:
			t.Error(err)
		case got.SDK.Cycles != c.want:
			t.Errorf("inference %d: %d cycles, want %d", c.index, got.SDK.Cycles, c.want)
		case c.index == 2 && !strings.Contains(strings.Join(got.Differ, "\n"), "no output streaming"):
			t.Errorf("the second inference is cut, and nothing says so: %q", got.Differ)
		}
	}
}

func TestCompareWithLittle(t *testing.T) {
	s := read(t, sdktest.Small(), "DROP TABLE compute_sets", "DROP TABLE vars_info").Summarize()
	pack := &program.Summary{Tiles: 4, SegmentBytes: program.SegmentBytes{Rows: 800}, TableBytesMax: program.TileBytes{Bytes: 300}}
	c, err := sdk.Compare(s, 0, "ours", &profile.Profile{SchemaVersion: 5, ClockHz: 1_850_000_000}, pack)
	if err != nil {
		t.Fatal(err)
	}
	if c.Ours.CodeMean != 200 || c.Ours.CodeMax != 300 || c.SDK.CodeMax != -1 || c.Stages[0].SDK.Cycles != -1 || c.Stages[0].Ours.Cycles != -1 || c.Ours.BlockCycles != -1 {
		t.Errorf("SDK %+v, ours %+v, first stage %+v", c.SDK, c.Ours, c.Stages[0])
	}
	if strings.Contains(strings.Join(c.Differ, "\n"), "clocks differ") {
		t.Error("equal clocks are said to differ")
	}
	empty := read(t, sdktest.Small(), "DELETE FROM steps").Summarize()
	if _, err := sdk.Compare(empty, 0, "ours", twoTiles(), nil); err == nil || !strings.Contains(err.Error(), "no inference") {
		t.Errorf("error %v", err)
	}
}
