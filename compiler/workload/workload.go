// Package workload turns the name and the flags of a benchmark into everything
// that defines it: the graph, its parameters and its inputs.
//
// A workload is a pure function of its Options. Parameters and inputs are either
// drawn from a seed (Weights, Inputs) or read from a folder of .npy files
// (LoadFixture); both know only the separate projections of a model, from which a
// graph with fused ones takes its wider parameters, so that --fuse-qkv changes no
// value. The models are those of the published So400m/14 SigLIP and PE-Core L/14
// descriptions; see vit.go.
package workload

import (
	"fmt"
	"strings"

	"ipufarm/compiler/graph"
)

// Workload is an entry of the registry.
type Workload struct {
	Name    string
	Summary string // one line for --help
	build   func(b net, o Options)
	check   func(o Options) error
	// keep copies the options that the workload reads from the second argument
	// into the first, with defaults spelled out.
	keep func(to *Options, from Options)
}

var workloads = []Workload{
	{
		Name:    "siglip-vit-benchmark",
		Summary: "image encoder with attention pooling (So400m/14 dimensions, or --vit-model)",
		build:   buildVIT, check: checkVIT, keep: keepVIT,
	},
	{
		Name:    "siglip-mlp-benchmark",
		Summary: "dense, GELU, dense without biases, 729 × 1,152 × 4,304 by default",
		build:   buildMLP, check: checkMLP, keep: keepMLP,
	},
	{
		Name:    "siglip-attention-benchmark",
		Summary: "attention of 16 heads of 72 over 729 tokens, with or without its projections",
		build:   buildAttention, check: checkAttention, keep: keepAttention,
	},
	{
		Name:    "gemm-benchmark",
		Summary: "one GEMM of --benchmark-rows × --benchmark-inner × --benchmark-columns",
		build:   buildGEMM, check: checkGEMM, keep: keepGEMM,
	},
	{
		Name:    "gemm-smoke",
		Summary: "one GEMM of (tiles × 64) × (64 × 64 tiles)",
		build:   func(b net, o Options) { buildGEMMSmoke(b, o, 1) }, check: checkTiles, keep: keepTiles,
	},
	{
		Name:    "batched-gemm-smoke",
		Summary: "gemm-smoke with three matrices of activations",
		build:   func(b net, o Options) { buildGEMMSmoke(b, o, 3) }, check: checkTiles, keep: keepTiles,
	},
	{
		Name:    "mlp-smoke",
		Summary: "GEMM, GELU, GEMM, GELU on 64 × 64",
		build:   buildMLPSmoke,
	},
	{
		Name:    "attention-smoke",
		Summary: "attention of 4 heads of 72, 17 queries by 19 keys",
		build:   buildAttentionSmoke, check: noWeights,
	},
}

// Names returns the names of all workloads, in the order of the registry.
func Names() []string {
	names := make([]string, len(workloads))
	for i, w := range workloads {
		names[i] = w.Name
	}
	return names
}

// Lookup returns the workload of that name.
func Lookup(name string) (Workload, bool) {
	for _, w := range workloads {
		if w.Name == name {
			return w, true
		}
	}
	return Workload{}, false
}

// Build returns the graph that the options describe. An error names the flag
// that was wrong, what it was and what is accepted.
func Build(o Options) (*graph.Graph, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	w, _ := Lookup(o.Workload)
	b := net{Builder: graph.NewBuilder(w.Name), fp8: o.FP8}
	w.build(b, o)
	return b.Build()
}

func lookup(name string) (Workload, error) {
	w, ok := Lookup(name)
	if !ok {
		return w, fmt.Errorf("--workload %q: %s are accepted", name, strings.Join(Names(), ", "))
	}
	return w, nil
}

// net is a builder with the layers that the workloads share.
//
// A layer's result carries the layer's path, as in "MAPHead_0.MlpBlock_0.Dense_0";
// its parameters are the path and ".kernel", ".bias" or ".scale", and what lies
// between its operations has a suffix of its own.
type net struct {
	*graph.Builder
	fp8 *int // scale of the GEMMs with weights; nil is F16
}

// weigh is x × kernel in the precision of the weight GEMMs.
func (b net) weigh(name string, x *graph.Value, kernel string, columns int) *graph.Value {
	w := b.Parameter(kernel, width(x), columns)
	if b.fp8 != nil {
		return b.GEMM8(name, x, w, *b.fp8)
	}
	return b.GEMM(name, x, w)
}

// dense is x × kernel + bias.
func (b net) dense(path string, x *graph.Value, columns int) *graph.Value {
	product := b.weigh(path+".product", x, path+".kernel", columns)
	return b.Add(path, product, b.Parameter(path+".bias", columns))
}

func (b net) norm(path, result string, x *graph.Value) *graph.Value {
	return b.LayerNorm(result, x, b.Parameter(path+".scale", width(x)), b.Parameter(path+".bias", width(x)))
}

// mlp is dense, GELU, dense, back to the width of x.
func (b net) mlp(path string, x *graph.Value, hidden int) *graph.Value {
	up := b.dense(path+".Dense_0", x, hidden)
	return b.dense(path+".Dense_1", b.GELU(path+".gelu", up), width(x))
}

// selfAttention projects x to queries, keys and values, attends and projects back.
func (b net) selfAttention(path string, x *graph.Value, heads int, fuse bool) *graph.Value {
	w := width(x)
	var q, k, v *graph.Value
	if fuse {
		qkv := b.dense(path+".qkv", x, 3*w)
		q = b.Slice(path+".query", qkv, 0, w)
		k = b.Slice(path+".key", qkv, w, 2*w)
		v = b.Slice(path+".value", qkv, 2*w, 3*w)
	} else {
		q = b.dense(path+".query", x, w)
		k = b.dense(path+".key", x, w)
		v = b.dense(path+".value", x, w)
	}
	return b.attend(path, q, k, v, heads)
}

// crossAttention is selfAttention with the queries of another tensor, whose
// projection stays separate: it reads a different activation.
func (b net) crossAttention(path string, queries, x *graph.Value, heads int, fuse bool) *graph.Value {
	w := width(x)
	var q, k, v *graph.Value
	if fuse {
		kv := b.dense(path+".kv", x, 2*w)
		q = b.dense(path+".query", queries, w)
		k = b.Slice(path+".key", kv, 0, w)
		v = b.Slice(path+".value", kv, w, 2*w)
	} else {
		q = b.dense(path+".query", queries, w)
		k = b.dense(path+".key", x, w)
		v = b.dense(path+".value", x, w)
	}
	return b.attend(path, q, k, v, heads)
}

func (b net) attend(path string, q, k, v *graph.Value, heads int) *graph.Value {
	columns := width(q)
	q = b.SplitHeads(path+".query.heads", q, heads)
	k = b.SplitHeads(path+".key.heads", k, heads)
	v = b.SplitHeads(path+".value.heads", v, heads)
	joined := b.MergeHeads(path+".joined", b.Attention(path+".attention", q, k, v))
	return b.dense(path+".out", joined, columns)
}

// width is the last size of x, or 1 if x failed: the failure is in the builder
// already.
func width(x *graph.Value) int {
	if len(x.Shape) == 0 {
		return 1
	}
	return x.Width()
}
