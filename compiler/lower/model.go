package lower

import (
	"fmt"

	"ipufarm/compiler/graph"
)

// Model is a graph as steps that a tile grid can execute: each operation of the
// graph belongs to exactly one step.
type Model struct {
	Graph *graph.Graph
	Steps []Step
}

// Step is one of its fields.
type Step struct {
	Linear *Linear
	Norm   *Norm
	Attend *Attend
}

// Linear is a GEMM with what is added to its result: columns [From, To) of
// x·Weight + Bias, then positions, GELU, residual, in the order of the graph.
type Linear struct {
	In, Weight, Bias   *graph.Value
	From, To           int
	Position, Residual *graph.Value
	GELU               bool
	GEMM               *graph.Value // for precision and scale
	Out                *graph.Value
}

// Norm is a layer norm over rows.
type Norm struct {
	In, Gamma, Beta, Out *graph.Value
}

// Attend is attention with the projections of its three operands, or of operands
// that the host gives as heads (Given). The result is the heads side by side, as
// after the graph's merge.
type Attend struct {
	Q, K, V       *Linear
	Given         *[3]*graph.Value // q, k, v; the projections are nil then
	Batch         int
	Heads         int
	Queries, Keys int
	Width         int // of a head
	Out           *graph.Value
	Attention     *graph.Value
}

// NewModel finds the steps of a graph. A graph with an operation that fits no step
// is refused by that operation's name.
func NewModel(g *graph.Graph) (*Model, error) {
	users := g.Users()
	if len(g.Outputs) != 1 {
		return nil, fmt.Errorf("lower: graph %s has %d outputs, want 1", g.Name, len(g.Outputs))
	}
	x := &extraction{users: users, output: g.Outputs[0], linear: map[*graph.Value]*Linear{}, taken: map[*graph.Value]bool{}}
	m := &Model{Graph: g}
	for _, v := range g.Values {
		if x.taken[v] {
			continue
		}
		switch v.Op {
		case graph.GEMM:
			l := x.gemm(v)
			x.linear[l.Out] = l
			if !x.isProjection(l) {
				m.Steps = append(m.Steps, Step{Linear: l})
			}
		case graph.LayerNorm:
			m.Steps = append(m.Steps, Step{Norm: &Norm{In: v.Inputs[0], Gamma: v.Inputs[1], Beta: v.Inputs[2], Out: v}})
		case graph.Attention:
			a, err := x.attention(v)
			if err != nil {
				return nil, err
			}
			m.Steps = append(m.Steps, Step{Attend: a})
		case graph.Slice, graph.SplitHeads:
			// part of the attention that reads it
		case graph.Input, graph.Parameter:
		default:
			return nil, fmt.Errorf("lower: %s %s follows no operation that could take it in (a GEMM takes bias, positions, GELU and a residual; attention takes head views)", v.Op, v.Name)
		}
	}
	return m, nil
}

// WholeRows are the values that are made or read as whole rows: what norms read,
// and sums with positions or a residual. They are gathered on owners of rows; the
// others stay in slices, from which the host reads an output as well.
func (m *Model) WholeRows() map[*graph.Value]bool {
	w := map[*graph.Value]bool{}
	for _, s := range m.Steps {
		if s.Norm != nil {
			w[s.Norm.In] = true
		}
		if n := s.Linear; n != nil && n.Residual != nil {
			w[n.Residual], w[n.Out] = true, true
		} else if n != nil && n.Position != nil {
			w[n.Out] = true
		}
	}
	return w
}

type extraction struct {
	users  [][]*graph.Value
	output *graph.Value
	linear map[*graph.Value]*Linear
	taken  map[*graph.Value]bool
}

// only returns the single user of a value, or nil.
func (x *extraction) only(v *graph.Value) *graph.Value {
	if u := x.users[v.ID]; len(u) == 1 && v != x.output {
		return u[0]
	}
	return nil
}

// gemm takes in the pointwise operations that follow a GEMM.
func (x *extraction) gemm(v *graph.Value) *Linear {
	l := &Linear{In: v.Inputs[0], Weight: v.Inputs[1], To: v.Inputs[1].Shape[1], GEMM: v, Out: v}
	for {
		u := x.only(l.Out)
		if u == nil {
			return l
		}
		switch {
		case u.Op == graph.Add && u.Inputs[0] == l.Out && u.Inputs[1].Op == graph.Parameter && len(u.Inputs[1].Shape) == 1 &&
			l.Bias == nil && l.Position == nil && l.Residual == nil && !l.GELU:
			l.Bias = u.Inputs[1]
		case u.Op == graph.Add && u.Inputs[0] == l.Out && u.Inputs[1].Op == graph.Parameter && l.Position == nil && l.Residual == nil && !l.GELU:
			l.Position = u.Inputs[1]
		case u.Op == graph.GELU && l.Position == nil && l.Residual == nil && !l.GELU:
			l.GELU = true
		case u.Op == graph.Add && l.Position == nil && l.Residual == nil && !l.GELU && other(u, l.Out) != nil:
			l.Residual = other(u, l.Out)
		default:
			return l
		}
		x.taken[u] = true
		l.Out = u
	}
}

// other is the addend of a residual beside v: a value of the same shape that is
// not a parameter.
func other(u, v *graph.Value) *graph.Value {
	o := u.Inputs[0]
	if o == v {
		o = u.Inputs[1]
	}
	if o == v || o.Op == graph.Parameter || o.Elements() != v.Elements() {
		return nil
	}
	return o
}

// isProjection reports whether a linear result is only read as heads.
func (x *extraction) isProjection(l *Linear) bool {
	u := x.users[l.Out.ID]
	for _, v := range u {
		if v.Op != graph.Slice && v.Op != graph.SplitHeads {
			return false
		}
	}
	return len(u) > 0 && l.Out != x.output
}

func (x *extraction) attention(v *graph.Value) (*Attend, error) {
	q, k := v.Inputs[0].Shape, v.Inputs[1].Shape
	a := &Attend{Batch: q[0], Heads: q[1], Queries: q[2], Keys: k[2], Width: q[3], Attention: v, Out: v}
	if given := [3]*graph.Value(v.Inputs); given[0].Op == graph.Input && given[1].Op == graph.Input && given[2].Op == graph.Input {
		a.Given = &given
	}
	for i, p := range []**Linear{&a.Q, &a.K, &a.V} {
		h := v.Inputs[i]
		if a.Given != nil {
			break
		}
		if h.Op != graph.SplitHeads {
			return nil, fmt.Errorf("lower: operand %s of attention %s is a %s, want a head view of a projection", h.Name, v.Name, h.Op)
		}
		from, to := 0, h.Inputs[0].Width()
		s := h.Inputs[0]
		if s.Op == graph.Slice {
			from, to = s.From, s.To
			s = s.Inputs[0]
		}
		l := x.linear[s]
		if l == nil || l.Position != nil || l.Residual != nil || l.GELU {
			return nil, fmt.Errorf("lower: operand %s of attention %s does not come from a projection with at most a bias", h.Name, v.Name)
		}
		part := *l
		part.From, part.To = from, to
		*p = &part
	}
	if u := x.only(v); u != nil && u.Op == graph.MergeHeads {
		x.taken[u] = true
		a.Out = u
	} else if v != x.output {
		return nil, fmt.Errorf("lower: the heads of attention %s are not merged", v.Name)
	}
	return a, nil
}
