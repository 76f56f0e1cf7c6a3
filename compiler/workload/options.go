package workload

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/pflag"

	"ipufarm/compiler/graph"
)

// Options is everything that decides the graph and its values. A workload reads
// its own part and ignores the rest; Canonical drops what it ignores.
type Options struct {
	Workload string `json:"workload"`
	Seed     uint64 `json:"seed"`                // of Weights and Inputs
	FP8      *int   `json:"fp8_scale,omitempty"` // F143 GEMMs with weights, value = code * 2^scale; nil: F16
	FuseQKV  bool   `json:"fuse_qkv,omitempty"`

	// siglip-vit-benchmark
	Model     string `json:"vit_model,omitempty"` // "" is siglip-so400m
	Small     bool   `json:"vit_small,omitempty"`
	ImageSize int    `json:"vit_image_size,omitempty"` // 0: the model's own
	Batch     int    `json:"vit_batch,omitempty"`
	Layers    int    `json:"vit_layers,omitempty"`

	GEMM      GEMMOptions      `json:"gemm,omitzero"`      // gemm-benchmark
	MLP       MLPOptions       `json:"mlp,omitzero"`       // siglip-mlp-benchmark
	Attention AttentionOptions `json:"attention,omitzero"` // siglip-attention-benchmark

	// Tiles of the device, for the smoke GEMMs that grow with it. It has no flag
	// here: the device's own sets it.
	Tiles int `json:"tiles,omitempty"`
}

// GEMMOptions is the shape of gemm-benchmark.
type GEMMOptions struct {
	Rows    int `json:"rows"`
	Inner   int `json:"inner"`
	Columns int `json:"columns"`
}

// MLPOptions is the shape of siglip-mlp-benchmark.
type MLPOptions struct {
	Batch  int `json:"batch"`
	Tokens int `json:"tokens"`
	Dim    int `json:"dim"`
	Hidden int `json:"hidden_dim"`
	Blocks int `json:"blocks"`
}

// AttentionOptions is the shape of siglip-attention-benchmark.
type AttentionOptions struct {
	Batch   int  `json:"batch"`
	Heads   int  `json:"heads"`
	Blocks  int  `json:"blocks"`
	Project bool `json:"project,omitempty"` // --fuse-qkv implies it
}

// Defaults returns the options of a command without flags: siglip-vit-benchmark
// at full size with one layer and one image, in F16.
func Defaults() Options {
	return Options{
		Workload:  "siglip-vit-benchmark",
		Seed:      1,
		Model:     so400m.name,
		Batch:     1,
		Layers:    1,
		GEMM:      GEMMOptions{Rows: 131072, Inner: 64, Columns: 64},
		MLP:       MLPOptions{Batch: 1, Tokens: 729, Dim: 1152, Hidden: 4304, Blocks: 1},
		Attention: AttentionOptions{Batch: 1, Heads: 16, Blocks: 1},
		Tiles:     1472,
	}
}

// BindFlags adds the flags of all workloads to fs. What o holds, usually
// Defaults, becomes their defaults.
func BindFlags(fs *pflag.FlagSet, o *Options) {
	fs.StringVar(&o.Workload, "workload", o.Workload, "what to compile and run")
	fs.Uint64Var(&o.Seed, "seed", o.Seed, "seed of random parameters and inputs")
	fs.Var(&scaleFlag{&o.FP8}, "fp8-scale", "FP8 (F143) GEMMs with value = code * 2^SCALE, -16..15; F16 without it")
	fs.BoolVar(&o.FuseQKV, "fuse-qkv", o.FuseQKV, "one GEMM for the projections that share an input")

	fs.StringVar(&o.Model, "vit-model", o.Model, "siglip-so400m or pe-core-l14")
	fs.BoolVar(&o.Small, "vit-small", o.Small, "28×28 image, width 144, 2 heads, MLP 288")
	fs.IntVar(&o.ImageSize, "vit-image-size", o.ImageSize, "side of the image, a multiple of 14; 0 for the model's own")
	fs.IntVar(&o.Batch, "vit-batch", o.Batch, "images in a batch")
	fs.IntVar(&o.Layers, "vit-layers", o.Layers, "encoder layers")

	fs.IntVar(&o.GEMM.Rows, "benchmark-rows", o.GEMM.Rows, "rows of gemm-benchmark")
	fs.IntVar(&o.GEMM.Inner, "benchmark-inner", o.GEMM.Inner, "inner size of gemm-benchmark")
	fs.IntVar(&o.GEMM.Columns, "benchmark-columns", o.GEMM.Columns, "columns of gemm-benchmark")

	fs.IntVar(&o.MLP.Batch, "mlp-batch", o.MLP.Batch, "batch of siglip-mlp-benchmark")
	fs.IntVar(&o.MLP.Tokens, "mlp-tokens", o.MLP.Tokens, "tokens of siglip-mlp-benchmark")
	fs.IntVar(&o.MLP.Dim, "mlp-dim", o.MLP.Dim, "width of siglip-mlp-benchmark")
	fs.IntVar(&o.MLP.Hidden, "mlp-hidden-dim", o.MLP.Hidden, "hidden width of siglip-mlp-benchmark")
	fs.IntVar(&o.MLP.Blocks, "mlp-blocks", o.MLP.Blocks, "blocks of siglip-mlp-benchmark, one after another")

	fs.IntVar(&o.Attention.Batch, "attention-batch", o.Attention.Batch, "batch of siglip-attention-benchmark")
	fs.IntVar(&o.Attention.Heads, "attention-heads", o.Attention.Heads, "heads of siglip-attention-benchmark")
	fs.IntVar(&o.Attention.Blocks, "attention-blocks", o.Attention.Blocks, "blocks of siglip-attention-benchmark, one after another")
	fs.BoolVar(&o.Attention.Project, "attention-project", o.Attention.Project, "siglip-attention-benchmark with its projections; --fuse-qkv implies it")
}

// scaleFlag is an int flag that is nil until it is given.
type scaleFlag struct{ to **int }

func (f *scaleFlag) String() string {
	if f.to == nil || *f.to == nil {
		return ""
	}
	return strconv.Itoa(**f.to)
}

func (f *scaleFlag) Set(s string) error {
	n, err := strconv.Atoi(s)
	if err != nil || n < graph.ScaleMin || n > graph.ScaleMax {
		return fmt.Errorf("%d..%d are accepted", graph.ScaleMin, graph.ScaleMax)
	}
	*f.to = &n
	return nil
}

func (f *scaleFlag) Type() string { return "scale" }

// Check verifies the options that the workload reads. An error names the flag,
// what it was and what is accepted.
func (o Options) Check() error {
	w, err := lookup(o.Workload)
	if err != nil {
		return err
	}
	if o.FP8 != nil {
		if err := within("--fp8-scale", *o.FP8, graph.ScaleMin, graph.ScaleMax); err != nil {
			return err
		}
	}
	if w.check == nil {
		return nil
	}
	return w.check(o)
}

// Canonical returns the options with everything that the workload ignores
// dropped and its defaults spelled out, so that equal work has equal options.
func (o Options) Canonical() (Options, error) {
	if err := o.Check(); err != nil {
		return Options{}, err
	}
	w, _ := Lookup(o.Workload)
	c := Options{Workload: o.Workload, Seed: o.Seed}
	if o.FP8 != nil {
		scale := *o.FP8
		c.FP8 = &scale
	}
	if w.keep != nil {
		w.keep(&c, o)
	}
	return c, nil
}

// JSON returns the canonical options in one fixed order of fields.
func (o Options) JSON() ([]byte, error) {
	c, err := o.Canonical()
	if err != nil {
		return nil, err
	}
	return json.Marshal(c)
}

// ParseJSON reads options as JSON writes them: from another process, so unknown
// fields, trailing data and values out of range are errors.
func ParseJSON(data []byte) (Options, error) {
	var o Options
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&o); err != nil {
		return Options{}, fmt.Errorf("workload options: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return Options{}, fmt.Errorf("workload options: something follows the object")
	}
	return o.Canonical()
}

func within(flag string, value, low, high int) error {
	if value < low || value > high {
		return fmt.Errorf("%s %d: %d..%d are accepted", flag, value, low, high)
	}
	return nil
}
