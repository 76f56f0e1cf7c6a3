// Package graph is the program that a workload writes and every later stage
// reads: a shaped, acyclic list of operations in single-assignment form.
//
// A Builder makes a graph and infers every shape; Check states all promises of a
// graph; String prints it, one value a line, and Parse reads it back. A graph
// does not change once it is built.
package graph

// Op is the kind of an operation.
type Op uint8

const (
	Input Op = iota
	Parameter
	// GEMM: x[..., K] × w[K, N] = [..., N]; w is a Parameter.
	GEMM
	// Add: a + b, where b has the shape of a or of a suffix of it (a bias, positions).
	Add
	GELU      // tanh form
	LayerNorm // x, gamma, beta; over the last axis, epsilon 1e-6, statistics in F32
	// Slice: columns [From, To) of the last axis.
	Slice
	// SplitHeads: [b, t, h*d] -> [b, h, t, d]. MergeHeads is its inverse. Views.
	SplitHeads
	MergeHeads
	// Attention: q[b, h, m, d], k[b, h, n, d], v[b, h, n, d] -> [b, h, m, d]:
	// softmax(q k^T / sqrt(d)) v, not causal.
	Attention
)

// Precision selects the operand precision of a GEMM; everything else is F16.
type Precision uint8

const (
	F16 Precision = iota
	F8            // both operands quantised to F143 with value = code * 2^Scale
)

// Value is an operation and its result.
type Value struct {
	ID     int
	Op     Op
	Name   string // unique; for a Parameter its path, as in "Transformer.encoderblock_0.LayerNorm_0.bias"
	Shape  []int
	Inputs []*Value

	Heads     int       // SplitHeads
	From, To  int       // Slice
	Precision Precision // GEMM
	Scale     int       // GEMM in F8: exponent of both operands
}

// Graph is the whole program, Values in an order in which every input precedes
// its users.
type Graph struct {
	Name    string
	Values  []*Value
	Outputs []*Value
}

// Limits of a graph, far above any model of this project: they keep what a
// hostile text can ask for small, and every product of sizes inside an int.
const (
	MaxValues   = 1 << 16
	MaxRank     = 6
	MaxDim      = 1 << 24
	MaxElements = 1 << 30 // of one value
	MaxName     = 200     // bytes
	ScaleMin    = -16     // FP8 scale of a GEMM: the sum of two must fit 6 signed bits
	ScaleMax    = 15
)

// Elements returns the number of elements of a value.
func (v *Value) Elements() int {
	n := 1
	for _, d := range v.Shape {
		n *= d
	}
	return n
}

// Width returns the length of the last axis.
func (v *Value) Width() int { return v.Shape[len(v.Shape)-1] }

// IsOperation reports whether the device computes the value: all but inputs and
// parameters, views and slices among them.
func (v *Value) IsOperation() bool { return v.Op != Input && v.Op != Parameter }

// Operations returns the operations in order.
func (g *Graph) Operations() []*Value {
	return g.filter((*Value).IsOperation)
}

// Inputs returns the graph's inputs in order.
func (g *Graph) Inputs() []*Value {
	return g.filter(func(v *Value) bool { return v.Op == Input })
}

// Parameters returns the graph's parameters in order.
func (g *Graph) Parameters() []*Value {
	return g.filter(func(v *Value) bool { return v.Op == Parameter })
}

func (g *Graph) filter(keep func(*Value) bool) []*Value {
	var kept []*Value
	for _, v := range g.Values {
		if keep(v) {
			kept = append(kept, v)
		}
	}
	return kept
}

// Lookup returns the value of that name, or nil.
func (g *Graph) Lookup(name string) *Value {
	for _, v := range g.Values {
		if v.Name == name {
			return v
		}
	}
	return nil
}

// Users returns, by value ID, the operations that read each value, in order. An
// operation that reads a value twice is there twice.
func (g *Graph) Users() [][]*Value {
	users := make([][]*Value, len(g.Values))
	for _, v := range g.Values {
		for _, in := range v.Inputs {
			users[in.ID] = append(users[in.ID], v)
		}
	}
	return users
}

// Tensor is the content of a value: F16 bits in row-major order.
type Tensor struct {
	Shape []int
	Data  []uint16
}

// NewTensor returns a tensor of zeros.
func NewTensor(shape ...int) Tensor {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return Tensor{Shape: shape, Data: make([]uint16, n)}
}
