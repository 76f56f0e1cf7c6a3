// Package reference is the judge: a slow, obvious evaluator of a graph, in plain
// loops, that knows nothing of tiles, layouts or kernels.
//
// Values are F16 everywhere; inside an operation arithmetic is F32:
//
//	gemm       operands rounded to F143 first if it is F8 (to nearest even, overflow
//	           gives NaN); products rounded to F32 and added to an F32 sum in
//	           ascending order of k; the sum rounded to F16
//	add        F32 sum rounded to F16
//	gelu       x / (1 + exp(-2u)), u = sqrt(2/π) (x + 0.044715 x³), which equals the
//	           tanh form, computed in F64, rounded to F16
//	layernorm  mean, then the variance around it, as F32 sums; (x - mean) times
//	           1/sqrt(variance + 1e-6), times gamma, plus beta; rounded to F16
//	attention  scores as F32 sums, times 1/sqrt(d); exponentials of the differences
//	           to the row's maximum, rounded to F32, their F32 sum; exponentials
//	           rounded to F16 times values as F32 sums, divided by the sum of the
//	           unrounded ones; rounded to F16
//
// All sums run in ascending order of the index, so the result is the same for any
// number of processors and on any machine. The device differs on purpose: it
// rounds a GEMM's partial sums to F16 after every panel, and the scores too.
package reference

import (
	"context"
	"fmt"
	"math"
	"slices"

	"ipufarm/compiler/graph"
	"ipufarm/protocol/numeric"
)

// epsilon is what a layernorm adds to the variance.
const epsilon = 1e-6

// Evaluate returns the outputs of g by name. Params and inputs hold a tensor for
// every parameter and input of g.
func Evaluate(ctx context.Context, g *graph.Graph, params, inputs map[string]graph.Tensor) (map[string][]float32, error) {
	outputs := make(map[string][]float32, len(g.Outputs))
	err := Trace(ctx, g, params, inputs, func(v *graph.Value, data []float32) error {
		if slices.Contains(g.Outputs, v) {
			outputs[v.Name] = data
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return outputs, nil
}

// Trace evaluates g and calls visit with the result of every operation, in order.
// Results are in row-major order and exactly representable in F16; visit may keep
// them but must not change them. An error of visit ends the evaluation.
func Trace(ctx context.Context, g *graph.Graph, params, inputs map[string]graph.Tensor, visit func(v *graph.Value, data []float32) error) error {
	if err := g.Check(); err != nil {
		return err
	}
	e := evaluation{ctx: ctx, values: make([][]float32, len(g.Values))}
	// A value is dropped after its last user, and a parameter decoded by its first.
	lastUse := make([]int, len(g.Values))
	for _, v := range g.Values {
		for _, in := range v.Inputs {
			lastUse[in.ID] = v.ID
		}
	}
	tensors := make([]graph.Tensor, len(g.Values))
	for _, v := range g.Values {
		if v.IsOperation() {
			continue
		}
		from := params
		if v.Op == graph.Input {
			from = inputs
		}
		t, ok := from[v.Name]
		if !ok {
			return fmt.Errorf("reference: no tensor for %s %s", v.Op, v.Name)
		}
		if !slices.Equal(t.Shape, v.Shape) || len(t.Data) != v.Elements() {
			return fmt.Errorf("reference: %s %s has shape %v and %d elements, want %v", v.Op, v.Name, t.Shape, len(t.Data), v.Shape)
		}
		tensors[v.ID] = t
	}
	for _, v := range g.Operations() {
		for _, in := range v.Inputs {
			if e.values[in.ID] == nil && !in.IsOperation() {
				e.values[in.ID] = make([]float32, in.Elements())
				numeric.DecodeF16(e.values[in.ID], tensors[in.ID].Data)
			}
		}
		out := make([]float32, v.Elements())
		if err := e.operation(v, out); err != nil {
			return fmt.Errorf("reference: %s: %w", v.Name, err)
		}
		e.values[v.ID] = out
		if err := visit(v, out); err != nil {
			return err
		}
		for _, in := range v.Inputs {
			if lastUse[in.ID] == v.ID {
				e.values[in.ID] = nil
			}
		}
	}
	return nil
}

// evaluation holds the live results by value ID.
type evaluation struct {
	ctx    context.Context
	values [][]float32
}

func (e *evaluation) operation(v *graph.Value, out []float32) error {
	in := make([][]float32, len(v.Inputs))
	for i, x := range v.Inputs {
		in[i] = e.values[x.ID]
	}
	switch v.Op {
	case graph.GEMM:
		return e.gemm(v, out, in[0], in[1])
	case graph.Add:
		return parallel(e.ctx, len(out), 1<<14, func(lo, hi int) { add(out[lo:hi], in[0][lo:hi], in[1], lo) })
	case graph.GELU:
		return parallel(e.ctx, len(out), 1<<12, func(lo, hi int) {
			for i := lo; i < hi; i++ {
				out[i] = numeric.RoundF16(float32(gelu(float64(in[0][i]))))
			}
		})
	case graph.LayerNorm:
		w := v.Width()
		return parallel(e.ctx, len(out)/w, 8, func(lo, hi int) {
			for r := lo; r < hi; r++ {
				layerNorm(out[r*w:(r+1)*w], in[0][r*w:(r+1)*w], in[1], in[2])
			}
		})
	case graph.Slice:
		w, n := v.Inputs[0].Width(), v.Width()
		for r := range len(out) / n {
			copy(out[r*n:(r+1)*n], in[0][r*w+v.From:])
		}
	case graph.SplitHeads:
		// [b, t, h, d] -> [b, h, t, d]
		swap(out, in[0], v.Shape[0], v.Shape[2], v.Shape[1], v.Shape[3])
	case graph.MergeHeads:
		x := v.Inputs[0].Shape
		swap(out, in[0], x[0], x[1], x[2], x[3])
	case graph.Attention:
		return e.attention(v, out, in[0], in[1], in[2])
	default:
		return fmt.Errorf("no evaluation of %s", v.Op)
	}
	return e.ctx.Err()
}

func (e *evaluation) gemm(v *graph.Value, out, x, w []float32) error {
	shape := v.Inputs[1].Shape
	if v.Precision == graph.F8 {
		x, w = quantise(x, v.Scale), quantise(w, v.Scale)
	}
	b := pack(w, shape[0], shape[1])
	inner, columns := shape[0], shape[1]
	return parallel(e.ctx, len(out)/columns, 32, func(lo, hi int) {
		o := out[lo*columns : hi*columns]
		b.multiply(o, x[lo*inner:hi*inner])
		for i := range o {
			o[i] = numeric.RoundF16(o[i])
		}
	})
}

// quantise returns x rounded to F143 codes at a scale, as values.
func quantise(x []float32, scale int) []float32 {
	q := make([]float32, len(x))
	down, up := numeric.Pow2(-scale), numeric.Pow2(scale)
	for i, a := range x {
		q[i] = numeric.F143ToF32(numeric.F32ToF143(a*down)) * up
	}
	return q
}

// add adds y, repeated along x, whose first element is number from of the tensor.
func add(out, x, y []float32, from int) {
	j := from % len(y)
	for i := range out {
		out[i] = numeric.RoundF16(x[i] + y[j])
		if j++; j == len(y) {
			j = 0
		}
	}
}

func layerNorm(out, x, gamma, beta []float32) {
	n := float32(len(x))
	var sum float32
	for _, a := range x {
		sum += a
	}
	mean := sum / n
	var squares float32
	for _, a := range x {
		d := a - mean
		squares += float32(d * d)
	}
	scale := float32(1 / math.Sqrt(float64(squares/n+epsilon)))
	for i, a := range x {
		out[i] = numeric.RoundF16(float32(float32((a-mean)*scale)*gamma[i]) + beta[i])
	}
}

// swap copies x[a][b][c][d] to out[a][c][b][d]; the arguments are the sizes.
func swap(out, x []float32, a, b, c, d int) {
	for i := range a {
		for j := range b {
			for k := range c {
				to, from := ((i*c+k)*b+j)*d, ((i*b+j)*c+k)*d
				copy(out[to:to+d], x[from:from+d])
			}
		}
	}
}

// attentionRows is how many queries share one pass over the keys.
const attentionRows = 32

func (e *evaluation) attention(v *graph.Value, out, q, k, val []float32) error {
	queries, keys, d := v.Shape[2], v.Inputs[1].Shape[2], v.Shape[3]
	factor := float32(1 / math.Sqrt(float64(d)))
	for head := range v.Shape[0] * v.Shape[1] {
		qh := q[head*queries*d : (head+1)*queries*d]
		oh := out[head*queries*d : (head+1)*queries*d]
		kh := packTransposed(k[head*keys*d:(head+1)*keys*d], d, keys)
		vh := pack(val[head*keys*d:(head+1)*keys*d], keys, d)
		err := parallel(e.ctx, queries, attentionRows, func(lo, hi int) {
			scores := make([]float32, (hi-lo)*keys)
			kh.multiply(scores, qh[lo*d:hi*d])
			sums := make([]float32, hi-lo)
			for r := range sums {
				sums[r] = exponentials(scores[r*keys:(r+1)*keys], factor)
			}
			o := oh[lo*d : hi*d]
			vh.multiply(o, scores)
			for i := range o {
				o[i] = numeric.RoundF16(o[i] / sums[i/d])
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// exponentials replaces a row of scores by exp(factor*score - maximum), rounded
// to F16, and returns the sum before that rounding.
func exponentials(row []float32, factor float32) (sum float32) {
	largest := float32(math.Inf(-1))
	for i, s := range row {
		row[i] = s * factor
		largest = max(largest, row[i])
	}
	for i, s := range row {
		e := float32(exp(float64(s - largest)))
		sum += e
		row[i] = numeric.RoundF16(e)
	}
	return sum
}
