package graph

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// String prints the graph in its text form:
//
//	graph NAME
//	NAME [SIZE SIZE ...] = OP OPERAND OPERAND ... KEY=NUMBER ...
//	output NAME
//
// with one line for each value, in order, and one for each output. The shape of
// an operation follows from its operands; it is there for the reader and Parse
// compares it. Keys: heads (split-heads), from and to (slice), f8 (a gemm of F143
// operands, with their scale).
func (g *Graph) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "graph %s\n", g.Name)
	for _, v := range g.Values {
		s.WriteString(v.String())
		s.WriteByte('\n')
	}
	for _, v := range g.Outputs {
		fmt.Fprintf(&s, "output %s\n", v.Name)
	}
	return s.String()
}

// String prints the value as its line of the text form.
func (v *Value) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s %v = %s", v.Name, v.Shape, v.Op)
	for _, in := range v.Inputs {
		s.WriteByte(' ')
		s.WriteString(in.Name)
	}
	switch {
	case v.Op == SplitHeads:
		fmt.Fprintf(&s, " heads=%d", v.Heads)
	case v.Op == Slice:
		fmt.Fprintf(&s, " from=%d to=%d", v.From, v.To)
	case v.Precision == F8:
		fmt.Fprintf(&s, " f8=%d", v.Scale)
	}
	return s.String()
}

// maxLine bounds a line of the text form: a name, a shape and three operands.
const maxLine = 8 * MaxName

// Parse reads the text form. Blank lines and lines that begin with # are skipped.
// The result passes Check; an error names the line.
func Parse(text string) (*Graph, error) {
	p := parser{values: map[string]*Value{}}
	line := 0
	for raw := range strings.Lines(text) {
		line++
		if len(raw) > maxLine {
			return nil, fmt.Errorf("graph line %d: %d bytes, at most %d", line, len(raw), maxLine)
		}
		words := strings.Fields(raw)
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if err := p.line(words); err != nil {
			return nil, fmt.Errorf("graph line %d: %w", line, err)
		}
	}
	if p.graph == nil {
		return nil, errors.New(`graph: empty text, want "graph NAME" first`)
	}
	if err := p.graph.Check(); err != nil {
		return nil, err
	}
	return p.graph, nil
}

type parser struct {
	graph  *Graph
	values map[string]*Value
}

func (p *parser) line(words []string) error {
	switch {
	case p.graph == nil:
		if len(words) != 2 || words[0] != "graph" {
			return fmt.Errorf(`%q, want "graph NAME" first`, strings.Join(words, " "))
		}
		p.graph = &Graph{Name: words[1]}
		return checkName(words[1])
	case words[0] == "output" && len(words) == 2:
		v, err := p.value(words[1])
		p.graph.Outputs = append(p.graph.Outputs, v)
		return err
	case len(p.graph.Outputs) > 0:
		return errors.New("a value after the outputs")
	case len(p.graph.Values) == MaxValues:
		return fmt.Errorf("more than %d values", MaxValues)
	}
	v, err := p.parseValue(words)
	if err != nil {
		return fmt.Errorf("%s: %w", words[0], err)
	}
	if p.values[v.Name] != nil {
		return fmt.Errorf("%s: a second value of that name", v.Name)
	}
	v.ID = len(p.graph.Values)
	p.graph.Values = append(p.graph.Values, v)
	p.values[v.Name] = v
	return nil
}

// parseValue reads NAME [SIZE ...] = OP OPERAND ... KEY=NUMBER ...
func (p *parser) parseValue(words []string) (*Value, error) {
	v := &Value{Name: words[0]}
	if err := checkName(v.Name); err != nil {
		return nil, err
	}
	given, rest, err := parseShape(words[1:])
	if err != nil {
		return nil, err
	}
	if len(rest) < 2 || rest[0] != "=" {
		return nil, errors.New("want = and an operation after the shape")
	}
	if v.Op, err = parseOp(rest[1]); err != nil {
		return nil, err
	}
	for _, w := range rest[2:] {
		if key, number, ok := strings.Cut(w, "="); ok {
			err = v.setAttribute(key, number)
		} else {
			var in *Value
			in, err = p.value(w)
			v.Inputs = append(v.Inputs, in)
		}
		if err != nil {
			return nil, err
		}
	}
	v.Shape = given
	shape, err := infer(v)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", v.Op, err)
	}
	if !slices.Equal(shape, given) {
		return nil, fmt.Errorf("shape %v, the operands give %v", given, shape)
	}
	return v, nil
}

func (p *parser) value(name string) (*Value, error) {
	if v := p.values[name]; v != nil {
		return v, nil
	}
	return nil, fmt.Errorf("no value %q above", name)
}

// parseShape reads "[A", "B", "C]" and returns the words after it.
func parseShape(words []string) (shape []int, rest []string, err error) {
	for i, w := range words {
		if i == 0 {
			if !strings.HasPrefix(w, "[") {
				break
			}
			w = w[1:]
		}
		w, end := strings.CutSuffix(w, "]")
		d, err := strconv.Atoi(w)
		if err != nil || d < 1 || d > MaxDim {
			return nil, nil, fmt.Errorf("size %q, want 1..%d", w, MaxDim)
		}
		shape = append(shape, d)
		if end {
			return shape, words[i+1:], nil
		}
	}
	return nil, nil, errors.New("want a shape such as [1 4 144] after the name")
}

func parseOp(word string) (Op, error) {
	for o, info := range ops {
		if info.word == word {
			return Op(o), nil
		}
	}
	return 0, fmt.Errorf("unknown operation %q", word)
}

func (v *Value) setAttribute(key, number string) error {
	n, err := strconv.Atoi(number)
	if err != nil {
		return fmt.Errorf("%s: %q is not a number", key, number)
	}
	switch key {
	case "heads":
		v.Heads = n
	case "from":
		v.From = n
	case "to":
		v.To = n
	case "f8":
		v.Precision, v.Scale = F8, n
	default:
		return fmt.Errorf("unknown key %q; heads, from, to and f8 are accepted", key)
	}
	return nil
}
