package sdk

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"ipufarm/protocol/profile/sdk/sdktest"
)

func TestScanStopsAtItsLimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "profile.pop")
	sdktest.Write(t, path, sdktest.Small())
	var r report
	d, err := open(context.Background(), path, &r)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	for _, c := range []struct {
		limit int
		fits  bool
	}{{3, false}, {4, true}} {
		rows := 0
		err := d.scan(context.Background(), "memory_by_tile", []string{"total"}, "", c.limit, func([]any) { rows++ })
		if rows != c.limit || (err == nil) != c.fits {
			t.Errorf("limit %d: %d rows, %v", c.limit, rows, err)
		}
		if err != nil && !strings.Contains(err.Error(), "more than 3 rows") {
			t.Error(err)
		}
	}
}

func TestStages(t *testing.T) {
	const b = "/visual/trunk/blocks/blocks.3/"
	for _, c := range []struct {
		kind, name string
		stage      Stage
		role       Role
		kernel     string
	}{
		{typeExecute, b + "attn/MatMul/1811/matmulGrouped/Conv_1/Convolve", QK, Product, "Convolve"},
		{typeExecute, b + "attn/MatMul_1/1/matmulGrouped/Conv_1/Convolve", PV, Product, "Convolve"},
		{typeExecute, b + "attn/qkv/MatMul/Reduce0", QKV, Reduce, "Reduce0"},
		{typeExecute, b + "attn/qkv/b_cast/Cast2D", QKV, Cast, "Cast2D"},
		{typeExecute, b + "attn/MatMul_1/p/Cast/PreArrange", PV, Copy, "PreArrange"},
		{typeExecute, b + "attn/proj/MatMul/Conv_1/Convolve/77", OutputProjection, Product, "Convolve"},
		{typeExecute, "/vision_model/encoder/layers.0/self_attn/q_proj/MatMul/Convolve", QKV, Product, "Convolve"},
		{typeExecute, "/vision_model/encoder/layers.0/self_attn/out_proj/MatMul/Convolve", OutputProjection, Product, "Convolve"},
		{typeExecute, b + "mlp/fc1/MatMul/Convolve", MLPUp, Product, "Convolve"},
		{typeExecute, b + "mlp/fc2/MatMul/Convolve", MLPDown, Product, "Convolve"},
		{typeExecute, b + "mlp/act/Gelu", GELU, Compute, "Gelu"},
		{typeExecute, b + "norm1/LayerNormalization", Norm, Compute, "LayerNormalization"},
		{typeExecute, b + "Add_1/Add", Residual, Compute, "Add"},
		{typeExecute, "/visual/trunk/attn_pool/attn/MatMul/Convolve", Pooling, Product, "Convolve"},
		{typeExecute, "/visual/trunk/patch_embed/proj/Conv/Convolve", Embedding, Product, "Convolve"},
		{typeExchange, b + "attn/Softmax/ExchangePre", Softmax, Exchange, "ExchangePre"},
		{typeStreamBegin, b + "attn/qkv", Other, Stream, "qkv"},
		{"StreamCopyMid", "", Other, Stream, ""},
		{typeSync, "", Other, Sync, ""},
		{typeExecute, "", Other, Compute, ""},
		{"", "12/34", Other, Compute, ""},
	} {
		s := []Step{{Type: c.kind, Name: c.name}}
		label(s)
		if s[0].Stage != c.stage || s[0].Role != c.role || s[0].Kernel() != c.kernel {
			t.Errorf("%s %s: %q, %s, %q, want %q, %s, %q", c.kind, c.name, s[0].Stage, s[0].Role, s[0].Kernel(), c.stage, c.role, c.kernel)
		}
	}
}

// The rearrangement before softmax is found by its position, whatever it is named
// after; what is prepared for PV meanwhile is not part of it.
func TestPreparationByPosition(t *testing.T) {
	steps := []Step{
		{Type: typeExecute, Name: "a/attn/Softmax/OnTileCopy"}, // of something before
		{Type: typeExchange},
		{Type: typeExecute, Name: "a/attn/MatMul/Convolve"},
		{Type: typeExecute, Name: "a/attn/MatMul/Reduce0"},
		{Type: typeSync},
		{Type: typeExecute, Name: "a/attn/MatMul/PostArrange"},
		{Type: typeExecute, Name: "a/attn/MatMul_1/PreArrange"},
		{Type: typeExchange},
		{Type: typeExecute, Name: "a/attn/Softmax/OnTileCopy"},
		{Type: typeExecute, Name: "a/attn/Softmax/Exp"},
		{Type: typeExecute, Name: "a/attn/Softmax/OnTileCopy"},
		{Type: typeStreamBegin},
		{Type: typeExchange},
	}
	label(steps)
	want := []Stage{Softmax, QK, QK, QK, Other, SoftmaxPreparation, PV, SoftmaxPreparation, SoftmaxPreparation, Softmax, Softmax, Other, Other}
	for i, w := range want {
		if steps[i].Stage != w {
			t.Errorf("step %d, %s %s: %q, want %q", i, steps[i].Type, steps[i].Name, steps[i].Stage, w)
		}
	}
}

func TestOurStages(t *testing.T) {
	for _, c := range []struct {
		operation string
		stage     Stage
		block     string
	}{
		{"Transformer.encoderblock_12.MultiHeadDotProductAttention_0.qkv.product/gemm", QKV, "Transformer.encoderblock_12."},
		{"Transformer.encoderblock_12.MultiHeadDotProductAttention_0.value.transposed/partials", QKV, "Transformer.encoderblock_12."},
		{"block_0.attention/values", PV, "block_0."},
		{"block_0.joined/cast", OutputProjection, "block_0."},
		{"block_0.gelu/cast", MLPDown, "block_0."},
		{"block_0.gelu/partials", MLPUp, "block_0."},
		{"block_0.Dense_1/rows", MLPDown, "block_0."},
		{"x.LayerNorm_1/cast", MLPUp, ""},
		{"embedding.product/gemm", Other, ""},
		{"encoderblock_x.attention/scores", QK, ""},
		{"", Other, ""},
		{"gemm", Other, ""},
	} {
		block, _ := blockOf(c.operation)
		if stage := ourStage(c.operation); stage != c.stage || block != c.block {
			t.Errorf("%s: %q of %q, want %q of %q", c.operation, stage, block, c.stage, c.block)
		}
	}
}
