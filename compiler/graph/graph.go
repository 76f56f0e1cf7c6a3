// Package graph is the program that a workload writes and every later stage
// reads: a shaped, acyclic list of operations in single-assignment form.
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
