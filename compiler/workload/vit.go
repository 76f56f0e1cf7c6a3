package workload

import (
	"fmt"

	"ipufarm/compiler/graph"
)

// patch is the side of a square patch; an RGB patch has patchValues values, in
// (y, x, channel) order.
const (
	patch       = 14
	patchValues = patch * patch * 3
)

// model is the shape of an image encoder.
type model struct {
	name      string
	image     int // side of the image, pixels
	width     int
	heads     int
	hidden    int // of both MLPs
	poolHeads int
	// classSlot adds a token before the patches whose input is zero: its learned
	// vector is part of the position that is added to it.
	classSlot bool
	// outerLayers has a norm before the encoder and a projection after the pooling,
	// and no bias on the patches.
	outerLayers bool
}

// Sources: big_vision models/vit.py with the So400m/14 dimensions (378 is what a
// VALID convolution of 14 × 14 uses of 384 pixels), and the published PE-Core L/14
// capacity study: no rotary positions, norms with epsilon 1e-6 instead of 1e-5.
var (
	so400m      = model{name: "siglip-so400m", image: 378, width: 1152, heads: 16, hidden: 4304, poolHeads: 16}
	so400mSmall = model{name: "siglip-so400m", image: 28, width: 144, heads: 2, hidden: 288, poolHeads: 2}
	peCoreL     = model{name: "pe-core-l14", image: 336, width: 1024, heads: 16, hidden: 4096, poolHeads: 8, classSlot: true, outerLayers: true}
)

// Limits of the flags: four times the tokens and twice the layers of any model
// that was published for this device, and more images than it could hold.
const (
	maxBatch  = 64
	maxLayers = 64
	maxImage  = 896
)

// vit returns the model and image side that the options select.
func (o Options) vit() (model, error) {
	var m model
	switch o.Model {
	case "", so400m.name:
		m = so400m
		if o.Small {
			m = so400mSmall
		}
	case peCoreL.name, peCoreL.name + "-capacity":
		m = peCoreL
		if o.Small {
			return m, fmt.Errorf("--vit-small: %s has no small form, only %s", m.name, so400m.name)
		}
	default:
		return m, fmt.Errorf("--vit-model %q: %s and %s are accepted", o.Model, so400m.name, peCoreL.name)
	}
	if o.ImageSize != 0 {
		m.image = o.ImageSize
	}
	if m.image < patch || m.image > maxImage || m.image%patch != 0 {
		return m, fmt.Errorf("--vit-image-size %d: multiples of %d up to %d are accepted, 0 for the model's own", o.ImageSize, patch, maxImage)
	}
	return m, nil
}

// tokens is the length of the encoder's sequence.
func (m model) tokens() int {
	n := (m.image / patch) * (m.image / patch)
	if m.classSlot {
		n++
	}
	return n
}

func checkVIT(o Options) error {
	if _, err := o.vit(); err != nil {
		return err
	}
	if err := within("--vit-batch", o.Batch, 1, maxBatch); err != nil {
		return err
	}
	return within("--vit-layers", o.Layers, 1, maxLayers)
}

func keepVIT(to *Options, o Options) {
	m, _ := o.vit()
	to.Model, to.Small, to.ImageSize = m.name, o.Small, m.image
	to.Batch, to.Layers, to.FuseQKV = o.Batch, o.Layers, o.FuseQKV
}

// buildVIT is the image encoder: patches × embedding + positions, pre-norm layers
// of self-attention and MLP with residuals, a final norm ("encoded"), and a head
// that pools with a learned probe ("pooled", [batch, 1, width]).
//
// The probe is a parameter of [batch, 1, width]: one learned vector, repeated for
// every image of the batch. The positions are [tokens, width], added to every image.
func buildVIT(b net, o Options) {
	m, _ := o.vit()
	image := b.Input("image", o.Batch, m.tokens(), patchValues)
	var x *graph.Value
	if m.outerLayers {
		x = b.weigh("embedding", image, "embedding.kernel", m.width)
	} else {
		x = b.dense("embedding", image, m.width)
	}
	x = b.Add("embedded", x, b.Parameter("pos_embedding", m.tokens(), m.width))
	if m.outerLayers {
		x = b.norm("pre_norm", "pre_norm", x)
	}
	for l := range o.Layers {
		block := fmt.Sprintf("Transformer.encoderblock_%d.", l)
		y := b.norm(block+"LayerNorm_0", block+"LayerNorm_0", x)
		y = b.selfAttention(block+"MultiHeadDotProductAttention_0", y, m.heads, o.FuseQKV)
		x = b.Add(block+"residual_0", x, y)
		y = b.norm(block+"LayerNorm_1", block+"LayerNorm_1", x)
		y = b.mlp(block+"MlpBlock_0", y, m.hidden)
		x = b.Add(block+"residual_1", x, y)
	}
	encoded := b.norm("Transformer.encoder_norm", "encoded", x)

	probe := b.Parameter("MAPHead_0.probe", o.Batch, 1, m.width)
	z := b.crossAttention("MAPHead_0.MultiHeadDotProductAttention_0", probe, encoded, m.poolHeads, o.FuseQKV)
	y := b.norm("MAPHead_0.LayerNorm_0", "MAPHead_0.LayerNorm_0", z)
	pooled := b.Add("pooled", z, b.mlp("MAPHead_0.MlpBlock_0", y, m.hidden))
	if m.outerLayers {
		pooled = b.weigh("projected", pooled, "projection.kernel", m.width)
	}
	b.Output(pooled)
}
