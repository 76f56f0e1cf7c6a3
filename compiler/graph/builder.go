package graph

import (
	"errors"
	"fmt"
	"slices"
)

// Builder makes a graph. Its methods return the new value, always usable as an
// operand; what is wrong is collected with the name of the value and returned by
// Build, and an operand that already failed is not reported again.
type Builder struct {
	graph *Graph
	names map[string]bool
	errs  []error
}

// maxErrors bounds what Build reports: the first few say what is wrong.
const maxErrors = 10

// NewBuilder returns a builder of an empty graph of that name.
func NewBuilder(name string) *Builder {
	return &Builder{graph: &Graph{Name: name}, names: map[string]bool{}}
}

// Input adds a tensor that is given anew for every run.
func (b *Builder) Input(name string, shape ...int) *Value {
	return b.add(&Value{Op: Input, Name: name, Shape: slices.Clone(shape)})
}

// Parameter adds a tensor that is given once, with the package.
func (b *Builder) Parameter(name string, shape ...int) *Value {
	return b.add(&Value{Op: Parameter, Name: name, Shape: slices.Clone(shape)})
}

// GEMM adds x[..., K] × w[K, N] = [..., N] on F16 operands; w is a parameter.
func (b *Builder) GEMM(name string, x, w *Value) *Value {
	return b.add(&Value{Op: GEMM, Name: name, Inputs: []*Value{x, w}})
}

// GEMM8 is GEMM on operands quantised to F143 with value = code * 2^scale;
// scale is ScaleMin..ScaleMax. The result is F16.
func (b *Builder) GEMM8(name string, x, w *Value, scale int) *Value {
	return b.add(&Value{Op: GEMM, Name: name, Inputs: []*Value{x, w}, Precision: F8, Scale: scale})
}

// Add adds x + y, where y has the shape of x or of a suffix of it.
func (b *Builder) Add(name string, x, y *Value) *Value {
	return b.add(&Value{Op: Add, Name: name, Inputs: []*Value{x, y}})
}

// GELU adds the tanh form of GELU.
func (b *Builder) GELU(name string, x *Value) *Value {
	return b.add(&Value{Op: GELU, Name: name, Inputs: []*Value{x}})
}

// LayerNorm adds a normalisation over the last axis, with gamma and beta of its
// length.
func (b *Builder) LayerNorm(name string, x, gamma, beta *Value) *Value {
	return b.add(&Value{Op: LayerNorm, Name: name, Inputs: []*Value{x, gamma, beta}})
}

// Slice adds the columns [from, to) of the last axis.
func (b *Builder) Slice(name string, x *Value, from, to int) *Value {
	return b.add(&Value{Op: Slice, Name: name, Inputs: []*Value{x}, From: from, To: to})
}

// SplitHeads adds the view [b, t, h*d] -> [b, h, t, d].
func (b *Builder) SplitHeads(name string, x *Value, heads int) *Value {
	return b.add(&Value{Op: SplitHeads, Name: name, Inputs: []*Value{x}, Heads: heads})
}

// MergeHeads adds the view [b, h, t, d] -> [b, t, h*d].
func (b *Builder) MergeHeads(name string, x *Value) *Value {
	return b.add(&Value{Op: MergeHeads, Name: name, Inputs: []*Value{x}})
}

// Attention adds softmax(q k^T / sqrt(d)) v for every batch and head.
func (b *Builder) Attention(name string, q, k, v *Value) *Value {
	return b.add(&Value{Op: Attention, Name: name, Inputs: []*Value{q, k, v}})
}

// Output marks values as the results of the graph, in order.
func (b *Builder) Output(values ...*Value) {
	b.graph.Outputs = append(b.graph.Outputs, values...)
}

// Build returns the graph, or everything that was wrong with it. The builder
// must not be used afterwards.
func (b *Builder) Build() (*Graph, error) {
	if len(b.errs) > 0 {
		return nil, errors.Join(b.errs...)
	}
	if err := b.graph.Check(); err != nil {
		return nil, err
	}
	return b.graph, nil
}

func (b *Builder) add(v *Value) *Value {
	v.ID = len(b.graph.Values)
	if b.broken(v) {
		v.ID = -1
		return v
	}
	shape, err := infer(v)
	switch {
	case err != nil:
		err = fmt.Errorf("%s: %w", v.Op, err)
	case b.names[v.Name]:
		err = errors.New("a second value of that name")
	case len(b.graph.Values) == MaxValues:
		err = fmt.Errorf("more than %d values", MaxValues)
	default:
		err = checkName(v.Name)
	}
	if err != nil {
		b.fail(v, err)
		v.ID = -1
		return v
	}
	v.Shape = shape
	b.names[v.Name] = true
	b.graph.Values = append(b.graph.Values, v)
	return v
}

// broken reports whether an operand is unusable, and records why unless that was
// recorded when the operand was made.
func (b *Builder) broken(v *Value) bool {
	for _, in := range v.Inputs {
		switch {
		case in == nil:
			b.fail(v, fmt.Errorf("%s: an operand is nil", v.Op))
			return true
		case in.ID == -1:
			return true
		case in.ID < 0 || in.ID >= len(b.graph.Values) || b.graph.Values[in.ID] != in:
			b.fail(v, fmt.Errorf("%s: operand %s belongs to another graph", v.Op, in.Name))
			return true
		}
	}
	return false
}

func (b *Builder) fail(v *Value, err error) {
	if len(b.errs) < maxErrors {
		b.errs = append(b.errs, fmt.Errorf("graph %s: %s: %w", b.graph.Name, v.Name, err))
	}
}
