package workload

import "fmt"

// Limits of the isolated workloads: a matrix of the largest published benchmark
// (131,072 rows) fits twice over.
const (
	maxSize   = 1 << 18
	maxBlocks = 64
	maxHeads  = 64
)

// headWidth is the channels of a head in every attention workload.
const headWidth = 72

func checkGEMM(o Options) error {
	if err := within("--benchmark-rows", o.GEMM.Rows, 1, maxSize); err != nil {
		return err
	}
	if err := within("--benchmark-inner", o.GEMM.Inner, 1, maxSize); err != nil {
		return err
	}
	return within("--benchmark-columns", o.GEMM.Columns, 1, maxSize)
}

func keepGEMM(to *Options, o Options) { to.GEMM = o.GEMM }

func buildGEMM(b net, o Options) {
	x := b.Input("left", o.GEMM.Rows, o.GEMM.Inner)
	b.Output(b.weigh("product", x, "right.kernel", o.GEMM.Columns))
}

// checkTiles accepts the tile counts of a device: smoke GEMMs grow with it.
func checkTiles(o Options) error {
	if o.Tiles%64 != 0 {
		return fmt.Errorf("--tiles %d: multiples of 64 up to 1472 are accepted", o.Tiles)
	}
	return within("--tiles", o.Tiles, 64, 1472)
}

func keepTiles(to *Options, o Options) { to.Tiles = o.Tiles }

func buildGEMMSmoke(b net, o Options, batch int) {
	x := b.Input("left", batch, o.Tiles, 64)
	b.Output(b.weigh("product", x, "right.kernel", 64*o.Tiles))
}

func checkMLP(o Options) error {
	m := o.MLP
	for _, f := range []struct {
		flag       string
		value, max int
	}{
		{"--mlp-batch", m.Batch, maxBatch},
		{"--mlp-tokens", m.Tokens, maxSize},
		{"--mlp-dim", m.Dim, maxSize},
		{"--mlp-hidden-dim", m.Hidden, maxSize},
		{"--mlp-blocks", m.Blocks, maxBlocks},
	} {
		if err := within(f.flag, f.value, 1, f.max); err != nil {
			return err
		}
	}
	return nil
}

func keepMLP(to *Options, o Options) { to.MLP = o.MLP }

func buildMLP(b net, o Options) {
	x := b.Input("x", o.MLP.Batch, o.MLP.Tokens, o.MLP.Dim)
	for i := range o.MLP.Blocks {
		path := fmt.Sprintf("block_%d.", i)
		up := b.weigh(path+"Dense_0", x, path+"Dense_0.kernel", o.MLP.Hidden)
		x = b.weigh(path+"Dense_1", b.GELU(path+"gelu", up), path+"Dense_1.kernel", o.MLP.Dim)
	}
	b.Output(x)
}

func buildMLPSmoke(b net, _ Options) {
	x := b.Input("x", 1, 64, 64)
	for i := range 2 {
		path := fmt.Sprintf("Dense_%d", i)
		x = b.GELU(path+".gelu", b.weigh(path, x, path+".kernel", 64))
	}
	b.Output(x)
}

func checkAttention(o Options) error {
	a := o.Attention
	if err := within("--attention-batch", a.Batch, 1, maxBatch); err != nil {
		return err
	}
	if err := within("--attention-heads", a.Heads, 1, maxHeads); err != nil {
		return err
	}
	if a.Blocks > 1 && !a.Project && !o.FuseQKV {
		return fmt.Errorf("--attention-blocks %d: more than 1 needs --attention-project or --fuse-qkv", a.Blocks)
	}
	if !a.Project && !o.FuseQKV {
		if err := noWeights(o); err != nil {
			return err
		}
	}
	return within("--attention-blocks", a.Blocks, 1, maxBlocks)
}

// noWeights refuses a precision that would select nothing.
func noWeights(o Options) error {
	if o.FP8 != nil {
		return fmt.Errorf("--fp8-scale %d: %s without projections has no GEMM with weights", *o.FP8, o.Workload)
	}
	return nil
}

func keepAttention(to *Options, o Options) {
	to.Attention, to.FuseQKV = o.Attention, o.FuseQKV
	to.Attention.Project = o.Attention.Project || o.FuseQKV
}

// attentionTokens is the sequence of the 378-pixel image.
const attentionTokens = 729

// buildAttention attends over given heads, or projects one tensor to them.
func buildAttention(b net, o Options) {
	a := o.Attention
	if !a.Project && !o.FuseQKV {
		q := b.Input("query", a.Batch, a.Heads, attentionTokens, headWidth)
		k := b.Input("key", a.Batch, a.Heads, attentionTokens, headWidth)
		v := b.Input("value", a.Batch, a.Heads, attentionTokens, headWidth)
		b.Output(b.Attention("attention", q, k, v))
		return
	}
	x := b.Input("x", a.Batch, attentionTokens, a.Heads*headWidth)
	for i := range a.Blocks {
		x = b.selfAttention(fmt.Sprintf("block_%d", i), x, a.Heads, o.FuseQKV)
	}
	b.Output(x)
}

func buildAttentionSmoke(b net, _ Options) {
	q := b.Input("query", 1, 4, 17, headWidth)
	k := b.Input("key", 1, 4, 19, headWidth)
	v := b.Input("value", 1, 4, 19, headWidth)
	b.Output(b.Attention("attention", q, k, v))
}
