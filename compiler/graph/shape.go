package graph

import (
	"errors"
	"fmt"
	"slices"
)

// opInfo is what is fixed about an operation: its word in the text form and how
// many values it reads.
type opInfo struct {
	word   string
	inputs int
}

var ops = [...]opInfo{
	Input:      {"input", 0},
	Parameter:  {"parameter", 0},
	GEMM:       {"gemm", 2},
	Add:        {"add", 2},
	GELU:       {"gelu", 1},
	LayerNorm:  {"layernorm", 3},
	Slice:      {"slice", 1},
	SplitHeads: {"split-heads", 1},
	MergeHeads: {"merge-heads", 1},
	Attention:  {"attention", 3},
}

// String returns the operation's word in the text form.
func (o Op) String() string {
	if int(o) < len(ops) {
		return ops[o].word
	}
	return fmt.Sprintf("op(%d)", uint8(o))
}

// String returns "f16" or "f8".
func (p Precision) String() string {
	switch p {
	case F16:
		return "f16"
	case F8:
		return "f8"
	}
	return fmt.Sprintf("precision(%d)", uint8(p))
}

// infer returns the shape of an operation's result from its inputs and
// attributes, or says which of them is wrong.
func infer(v *Value) ([]int, error) {
	if int(v.Op) >= len(ops) {
		return nil, fmt.Errorf("unknown operation %d", uint8(v.Op))
	}
	if len(v.Inputs) != ops[v.Op].inputs {
		return nil, fmt.Errorf("%d operands, want %d", len(v.Inputs), ops[v.Op].inputs)
	}
	if err := attributes(v); err != nil {
		return nil, err
	}
	if !v.IsOperation() {
		return v.Shape, checkShape(v.Shape)
	}
	shape, err := inferOperation(v)
	if err != nil {
		return nil, err
	}
	return shape, checkShape(shape)
}

func inferOperation(v *Value) ([]int, error) {
	x := v.Inputs[0].Shape
	switch v.Op {
	case GEMM:
		w := v.Inputs[1]
		if w.Op != Parameter || len(w.Shape) != 2 {
			return nil, fmt.Errorf("right operand %s is a %s of shape %v, want a parameter [inner, columns]", w.Name, w.Op, w.Shape)
		}
		if len(x) < 2 || last(x) != w.Shape[0] {
			return nil, fmt.Errorf("left operand %v does not end in the inner size %d of %v", x, w.Shape[0], w.Shape)
		}
		return append(slices.Clone(x[:len(x)-1]), w.Shape[1]), nil

	case Add:
		b := v.Inputs[1].Shape
		if len(b) > len(x) || !slices.Equal(x[len(x)-len(b):], b) {
			return nil, fmt.Errorf("%v is not a suffix of %v", b, x)
		}
		return x, nil

	case GELU:
		return x, nil

	case LayerNorm:
		for _, p := range v.Inputs[1:] {
			if !slices.Equal(p.Shape, x[len(x)-1:]) {
				return nil, fmt.Errorf("%s has shape %v, want [%d]", p.Name, p.Shape, last(x))
			}
		}
		return x, nil

	case Slice:
		if v.From < 0 || v.To <= v.From || v.To > last(x) {
			return nil, fmt.Errorf("columns [%d, %d) of a last axis of %d", v.From, v.To, last(x))
		}
		return append(slices.Clone(x[:len(x)-1]), v.To-v.From), nil

	case SplitHeads:
		if len(x) != 3 || v.Heads < 1 || x[2]%v.Heads != 0 {
			return nil, fmt.Errorf("cannot split %v into %d heads", x, v.Heads)
		}
		return []int{x[0], v.Heads, x[1], x[2] / v.Heads}, nil

	case MergeHeads:
		if len(x) != 4 {
			return nil, fmt.Errorf("cannot merge the heads of %v, want [batch, heads, tokens, channels]", x)
		}
		return []int{x[0], x[2], x[1] * x[3]}, nil

	case Attention:
		k, val := v.Inputs[1].Shape, v.Inputs[2].Shape
		if len(x) != 4 || len(k) != 4 || x[0] != k[0] || x[1] != k[1] || x[3] != k[3] {
			return nil, fmt.Errorf("queries %v and keys %v differ in batch, heads or channels", x, k)
		}
		if !slices.Equal(k, val) {
			return nil, fmt.Errorf("keys %v and values %v differ", k, val)
		}
		return x, nil
	}
	return nil, fmt.Errorf("no shape rule for %s", v.Op)
}

// attributes refuses an attribute that the operation does not have: it would be
// lost in the text form.
func attributes(v *Value) error {
	if v.Op != SplitHeads && v.Heads != 0 {
		return fmt.Errorf("%s has no heads", v.Op)
	}
	if v.Op != Slice && (v.From != 0 || v.To != 0) {
		return fmt.Errorf("%s has no columns", v.Op)
	}
	switch {
	case v.Precision == F16 && v.Scale == 0:
	case v.Op != GEMM:
		return fmt.Errorf("%s has no precision or scale", v.Op)
	case v.Precision == F16:
		return fmt.Errorf("scale %d without f8", v.Scale)
	case v.Precision != F8:
		return fmt.Errorf("unknown precision %d", uint8(v.Precision))
	case v.Scale < ScaleMin || v.Scale > ScaleMax:
		return fmt.Errorf("scale %d outside %d..%d", v.Scale, ScaleMin, ScaleMax)
	}
	return nil
}

func checkShape(shape []int) error {
	if len(shape) < 1 || len(shape) > MaxRank {
		return fmt.Errorf("rank %d outside 1..%d", len(shape), MaxRank)
	}
	n := 1
	for _, d := range shape {
		if d < 1 || d > MaxDim {
			return fmt.Errorf("a size of %v is outside 1..%d", shape, MaxDim)
		}
		if n *= d; n > MaxElements {
			return fmt.Errorf("%v has more than %d elements", shape, MaxElements)
		}
	}
	return nil
}

// checkName keeps names printable, parseable and usable as file names: letters,
// digits, '.', '_' and '-', beginning with a letter.
func checkName(name string) error {
	if len(name) == 0 || len(name) > MaxName {
		return fmt.Errorf("a name of %d bytes, want 1..%d", len(name), MaxName)
	}
	for i := range len(name) {
		c := name[i]
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || !('0' <= c && c <= '9') && c != '.' && c != '_' && c != '-') {
			return fmt.Errorf("name %q: %q at byte %d; letters, digits, '.', '_', '-' are accepted, a letter first", name, c, i)
		}
	}
	return nil
}

func last(shape []int) int { return shape[len(shape)-1] }

// Check verifies every promise of a graph: IDs are positions and inputs precede
// their users; names are valid and unique; attributes belong to the operation and
// shapes follow from the inputs, within the limits; every value reaches an output;
// outputs are distinct operations.
func (g *Graph) Check() error {
	if g == nil {
		return errors.New("graph: nil")
	}
	fail := func(v *Value, format string, args ...any) error {
		return fmt.Errorf("graph %s: %s: %w", g.Name, v.Name, fmt.Errorf(format, args...))
	}
	if err := checkName(g.Name); err != nil {
		return fmt.Errorf("graph: %w", err)
	}
	if len(g.Values) > MaxValues {
		return fmt.Errorf("graph %s: %d values, at most %d", g.Name, len(g.Values), MaxValues)
	}
	names := make(map[string]bool, len(g.Values))
	used := make([]bool, len(g.Values))
	for i, v := range g.Values {
		if v == nil {
			return fmt.Errorf("graph %s: value %d is nil", g.Name, i)
		}
		if err := checkName(v.Name); err != nil {
			return fmt.Errorf("graph %s: value %d: %w", g.Name, i, err)
		}
		if names[v.Name] {
			return fail(v, "a second value of that name")
		}
		names[v.Name] = true
		if v.ID != i {
			return fail(v, "ID %d at position %d", v.ID, i)
		}
		for _, in := range v.Inputs {
			if in == nil || in.ID < 0 || in.ID >= i || g.Values[in.ID] != in {
				return fail(v, "an operand is not an earlier value of the graph")
			}
			used[in.ID] = true
		}
		shape, err := infer(v)
		if err != nil {
			return fail(v, "%s: %w", v.Op, err)
		}
		if !slices.Equal(shape, v.Shape) {
			return fail(v, "%s has shape %v, its operands give %v", v.Op, v.Shape, shape)
		}
	}
	if len(g.Outputs) == 0 {
		return fmt.Errorf("graph %s: no output", g.Name)
	}
	seen := make(map[*Value]bool, len(g.Outputs))
	for i, v := range g.Outputs {
		if v == nil || v.ID < 0 || v.ID >= len(g.Values) || g.Values[v.ID] != v {
			return fmt.Errorf("graph %s: output %d is not a value of the graph", g.Name, i)
		}
		if !v.IsOperation() {
			return fail(v, "an output must be an operation, this is a %s", v.Op)
		}
		if seen[v] {
			return fail(v, "an output twice")
		}
		seen[v] = true
		used[v.ID] = true
	}
	// An unread value was refused, and inputs precede users: so all reach an output.
	for _, v := range g.Values {
		if !used[v.ID] {
			return fail(v, "%s is neither read nor an output", v.Op)
		}
	}
	return nil
}
