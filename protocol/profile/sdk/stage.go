package sdk

import (
	"fmt"
	"strings"
)

// Stage is the operation of a transformer block that a step belongs to.
type Stage uint8

const (
	Other Stage = iota
	QKV
	QK
	SoftmaxPreparation // from scores as the product leaves them to rows that softmax reads
	Softmax
	PV
	OutputProjection
	MLPUp
	MLPDown
	Norm
	GELU
	Residual
	Embedding
	Pooling
	stageCount
)

var stageNames = [stageCount]string{"", "QKV", "QK", "softmax preparation", "softmax", "PV", "output projection",
	"MLP up", "MLP down", "norm", "GELU", "residual", "embedding", "pooling"}

func (s Stage) String() string {
	if s < stageCount {
		return stageNames[s]
	}
	return fmt.Sprintf("stage %d", uint8(s))
}

// MarshalText writes the name.
func (s Stage) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Role is what a step does for its stage.
type Role uint8

const (
	Compute Role = iota
	Product      // the vertices of a GEMM
	Reduce
	Cast
	Copy // moves data inside tiles
	Exchange
	Stream // between host and device
	Sync
	roleCount
)

var roleNames = [roleCount]string{"compute", "product", "reduce", "cast", "copy", "exchange", "stream", "sync"}

func (r Role) String() string {
	if r < roleCount {
		return roleNames[r]
	}
	return fmt.Sprintf("role %d", uint8(r))
}

// MarshalText writes the name.
func (r Role) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// Types of steps that mean something here (published analysis).
const (
	typeExchange    = "DoExchange"
	typeExecute     = "OnTileExecute"
	typeStreamBegin = "StreamCopyBegin"
	typeStreamEnd   = "StreamCopyEnd"
	typeStreamAny   = "StreamCopy" // and what goes between them
	typeSync        = "Sync"
)

// rules say which operation a name belongs to: the first whose patterns each match
// a component of the name, in lower case. A star at an end of a pattern stands for
// anything. The names are those of ONNX exports of timm ("blocks.0/attn/qkv") and
// of Hugging Face ("layers.0/self_attn/q_proj") vision transformers.
var rules = []struct {
	stage    Stage
	patterns []string
}{
	{Pooling, []string{"attn_pool"}},
	{Embedding, []string{"patch_embed*"}},
	{Embedding, []string{"embeddings"}},
	{QKV, []string{"qkv"}},
	{QKV, []string{"q_proj"}},
	{QKV, []string{"k_proj"}},
	{QKV, []string{"v_proj"}},
	{MLPUp, []string{"fc1"}},
	{MLPDown, []string{"fc2"}},
	{OutputProjection, []string{"out_proj"}},
	{OutputProjection, []string{"*attn", "proj"}},
	{Softmax, []string{"softmax*"}},
	{PV, []string{"*attn", "matmul_1"}},
	{QK, []string{"*attn", "matmul"}},
	{GELU, []string{"mlp", "act*"}},
	{GELU, []string{"gelu*"}},
	{Norm, []string{"norm*"}},
	{Norm, []string{"layer_norm*"}},
	{Residual, []string{"add*"}},
}

func matches(component, pattern string) bool {
	if rest, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(component, rest)
	}
	if rest, ok := strings.CutPrefix(pattern, "*"); ok {
		return strings.HasSuffix(component, rest)
	}
	return component == pattern
}

// named returns the operation of a name by the rules, or Other.
func named(components []string) Stage {
	for _, rule := range rules {
		found := 0
		for _, p := range rule.patterns {
			for _, c := range components {
				if matches(c, p) {
					found++
					break
				}
			}
		}
		if found == len(rule.patterns) {
			return rule.stage
		}
	}
	return Other
}

// role returns what a step does, by its type, its kernel and the components of its
// name, all but the type in lower case.
func role(kind, kernel string, components []string) Role {
	switch {
	case kind == typeExchange:
		return Exchange
	case strings.HasPrefix(kind, typeStreamAny):
		return Stream
	case kind == typeSync:
		return Sync
	}
	for _, word := range []string{"copy", "arrange", "transpose"} {
		if strings.Contains(kernel, word) {
			return Copy // also of an operation that casts: what moves is not the cast
		}
	}
	switch {
	case strings.Contains(kernel, "convolve"):
		return Product
	case isCast(components):
		return Cast
	case strings.Contains(kernel, "reduce"):
		return Reduce
	}
	return Compute
}

func isCast(components []string) bool {
	for _, c := range components {
		if strings.HasPrefix(c, "cast") || strings.HasSuffix(c, "_cast") {
			return true
		}
	}
	return false
}

// Kernel is the last component of the step's name that is not a number: the vertex
// or the helper that the step runs.
func (s *Step) Kernel() string {
	parts := strings.Split(s.Name, "/")
	for i := len(parts) - 1; i >= 0; i-- {
		if strings.Trim(parts[i], "0123456789") != "" {
			return parts[i]
		}
	}
	return ""
}

// label sets the stage and role of every step.
func label(steps []Step) {
	for i := range steps {
		s := &steps[i]
		components := strings.Split(strings.ToLower(s.Name), "/")
		s.Role = role(s.Type, strings.ToLower(s.Kernel()), components)
		if s.Role != Stream && s.Role != Sync {
			s.Stage = named(components)
		}
	}
	fill(steps)
	prepare(steps)
}

// fill gives steps whose names say nothing, like most exchanges, the stage of what
// they lead to.
func fill(steps []Step) {
	next := Other
	for i := len(steps) - 1; i >= 0; i-- {
		switch s := &steps[i]; {
		case s.Role == Stream:
			next = Other
		case s.Role == Sync:
		case s.Stage == Other:
			s.Stage = next
		default:
			next = s.Stage
		}
	}
}

// prepare finds the rearrangement between scores and softmax. The compiler names it
// after either of the two, so it is known by its position only.
func prepare(steps []Step) {
	between := false
	for i := range steps {
		s := &steps[i]
		switch {
		case s.Role == Product:
			between = s.Stage == QK
		case s.Role == Stream, s.Stage == Softmax && (s.Role == Compute || s.Role == Reduce):
			between = false
		case between && (s.Role == Exchange || s.Role == Copy) && (s.Stage == QK || s.Stage == Softmax):
			s.Stage = SoftmaxPreparation
		}
	}
}
