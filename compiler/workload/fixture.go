package workload

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"ipufarm/compiler/graph"
	"ipufarm/protocol/numeric"
)

// Fixture is a complete case: what a graph is given and what it should return.
type Fixture struct {
	Weights  map[string]graph.Tensor // by parameter of the graph
	Inputs   map[string]graph.Tensor // by input of the graph
	Expected map[string][]float32    // by value of the graph: its outputs, and any other
}

// A fixture is a folder:
//
//	case.json           the dimensions; optional when reading
//	weights/NAME.npy    every source of every parameter
//	inputs/NAME.npy     every input
//	expected/NAME.npy   every output, and any other value of the graph
const (
	caseFile    = "case.json"
	weightsDir  = "weights"
	inputsDir   = "inputs"
	expectedDir = "expected"
)

// maxCase bounds case.json.
const maxCase = 1 << 16

// fixtureCase is case.json. Zero fields are not compared.
type fixtureCase struct {
	Workload string  `json:"workload"`
	Batch    int     `json:"batch,omitempty"`
	Image    int     `json:"image,omitempty"`
	Patch    int     `json:"patch,omitempty"`
	Width    int     `json:"width,omitempty"`
	Heads    int     `json:"heads,omitempty"`
	MLP      int     `json:"mlp,omitempty"`
	Layers   int     `json:"layers,omitempty"`
	Seed     uint64  `json:"seed,omitempty"` // of whoever made it; not compared
	GELU     string  `json:"gelu,omitempty"`
	Epsilon  float64 `json:"layernorm_epsilon,omitempty"`
}

func caseOf(o Options) (fixtureCase, error) {
	c := fixtureCase{Workload: o.Workload, Seed: o.Seed, GELU: "tanh", Epsilon: 1e-6}
	if o.Workload == "siglip-vit-benchmark" {
		m, err := o.vit()
		if err != nil {
			return c, err
		}
		c.Batch, c.Image, c.Patch, c.Layers = o.Batch, m.image, patch, o.Layers
		c.Width, c.Heads, c.MLP = m.width, m.heads, m.hidden
	}
	return c, nil
}

// differs says how a fixture's case differs from the wanted one, or "". Shapes
// would tell most of it later, but not the heads, and not as clearly.
func (c fixtureCase) differs(want fixtureCase) string {
	for _, f := range []struct {
		name      string
		got, want any
		given     bool
	}{
		{"workload", c.Workload, want.Workload, c.Workload != ""},
		{"batch", c.Batch, want.Batch, c.Batch != 0},
		{"image", c.Image, want.Image, c.Image != 0},
		{"patch", c.Patch, want.Patch, c.Patch != 0},
		{"width", c.Width, want.Width, c.Width != 0},
		{"heads", c.Heads, want.Heads, c.Heads != 0},
		{"mlp", c.MLP, want.MLP, c.MLP != 0},
		{"layers", c.Layers, want.Layers, c.Layers != 0},
		{"gelu", c.GELU, want.GELU, c.GELU != ""},
		{"layernorm_epsilon", c.Epsilon, want.Epsilon, c.Epsilon != 0},
	} {
		if f.given && f.got != f.want {
			return fmt.Sprintf("%s %v, the options say %v", f.name, f.got, f.want)
		}
	}
	return ""
}

// LoadFixture reads the fixture in dir for the graph g of o. Weights and inputs
// are rounded to F16. A tensor that is missing, belongs to no value, has another
// shape, or holds something that is not a finite half is an error with its path.
func LoadFixture(dir string, g *graph.Graph, o Options) (Fixture, error) {
	f := Fixture{Weights: map[string]graph.Tensor{}, Inputs: map[string]graph.Tensor{}, Expected: map[string][]float32{}}
	if err := checkCase(dir, o); err != nil {
		return f, err
	}
	known := map[string]bool{}
	for _, p := range g.Parameters() {
		var parts [][]uint16
		for _, s := range sources(p) {
			data, err := loadF16(filepath.Join(dir, weightsDir, s.name+".npy"), s.shape)
			if err != nil {
				return f, err
			}
			known[s.name] = true
			parts = append(parts, data)
		}
		f.Weights[p.Name] = compose(p, parts)
	}
	for _, v := range g.Inputs() {
		data, err := loadF16(filepath.Join(dir, inputsDir, v.Name+".npy"), v.Shape)
		if err != nil {
			return f, err
		}
		f.Inputs[v.Name] = graph.Tensor{Shape: v.Shape, Data: data}
	}
	if err := noOthers(filepath.Join(dir, weightsDir), func(name string) bool { return known[name] }); err != nil {
		return f, err
	}
	isInput := func(name string) bool { _, ok := f.Inputs[name]; return ok }
	if err := noOthers(filepath.Join(dir, inputsDir), isInput); err != nil {
		return f, err
	}
	return f, f.loadExpected(filepath.Join(dir, expectedDir), g)
}

// loadExpected reads the outputs, which must be there, and what else there is.
func (f Fixture) loadExpected(dir string, g *graph.Graph) error {
	isOperation := func(name string) bool { v := g.Lookup(name); return v != nil && v.IsOperation() }
	if err := noOthers(dir, isOperation); err != nil {
		return err
	}
	for _, v := range g.Operations() {
		path := filepath.Join(dir, v.Name+".npy")
		_, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) && !slices.Contains(g.Outputs, v) {
			continue
		}
		a, err := loadNPY(path, v.Shape)
		if err != nil {
			return err
		}
		data := make([]float32, a.elements())
		for i := range data {
			data[i] = float32(a.at(i))
			if math.IsNaN(float64(data[i])) || math.IsInf(float64(data[i]), 0) {
				return fmt.Errorf("%s: element %d is %v, want a finite float32", path, i, a.at(i))
			}
		}
		f.Expected[v.Name] = data
	}
	return nil
}

func checkCase(dir string, o Options) error {
	path := filepath.Join(dir, caseFile)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		// Say that the folder is missing rather than the first tensor in it.
		_, err = os.Stat(dir)
		return err
	}
	data, err := readFile(path, maxCase)
	if err != nil {
		return err
	}
	var c fixtureCase
	if err := json.Unmarshal(data, &c); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	want, err := caseOf(o)
	if err != nil {
		return err
	}
	if d := c.differs(want); d != "" {
		return fmt.Errorf("%s: %s", path, d)
	}
	return nil
}

// readFile reads a regular file of at most limit bytes; it looks at the size
// first, so that no memory is spent on a larger one.
func readFile(path string, limit int64) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: not a regular file", path)
	case info.Size() > limit:
		return nil, fmt.Errorf("%s: %d bytes, at most %d are expected", path, info.Size(), limit)
	}
	return os.ReadFile(path)
}

// noOthers refuses an .npy file in dir that nothing would read: a fixture of two
// layers is not one for a graph of one.
func noOthers(dir string, known func(name string) bool) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // whatever had to be in it is named by its reader
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".npy"); ok && !known(name) {
			return fmt.Errorf("%s: no value of the graph has that name", filepath.Join(dir, e.Name()))
		}
	}
	return nil
}

// loadNPY reads a file of the wanted shape.
func loadNPY(path string, shape []int) (array, error) {
	n := 1
	for _, d := range shape {
		n *= d
	}
	const header = len(npyMagic) + 6 + maxNPYHeader
	data, err := readFile(path, int64(8*n+header)) // nothing is wider than float64
	if err != nil {
		return array{}, err
	}
	a, err := decodeNPY(data)
	if err != nil {
		return array{}, fmt.Errorf("%s: %w", path, err)
	}
	if !slices.Equal(a.shape, shape) {
		return array{}, fmt.Errorf("%s: shape %v, want %v", path, a.shape, shape)
	}
	return a, nil
}

func loadF16(path string, shape []int) ([]uint16, error) {
	a, err := loadNPY(path, shape)
	if err != nil {
		return nil, err
	}
	data := make([]uint16, a.elements())
	for i := range data {
		x := a.at(i)
		data[i] = numeric.F32ToF16(oddF32(x))
		if data[i] == numeric.F16NaN {
			return nil, fmt.Errorf("%s: element %d is %v, want a finite half, up to ±%d", path, i, x, numeric.F16Max)
		}
	}
	return data, nil
}

// oddF32 narrows x so that rounding the result again, to fewer bits, is one
// correct rounding of x: an inexact result is truncated and its last bit set.
func oddF32(x float64) float32 {
	f := float32(x)
	if float64(f) == x || math.IsNaN(x) || math.IsInf(float64(f), 0) {
		return f
	}
	if math.Abs(float64(f)) > math.Abs(x) {
		f = math.Nextafter32(f, 0)
	}
	return math.Float32frombits(math.Float32bits(f) | 1)
}

// SaveFixture writes f to the folder dir, which must be absent or empty: complete,
// or not at all.
func SaveFixture(dir string, g *graph.Graph, o Options, f Fixture) (err error) {
	target, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	if entries, err := os.ReadDir(target); err == nil && len(entries) > 0 {
		return fmt.Errorf("cannot write fixture %s: it exists and is not empty", dir)
	}
	temp, err := os.MkdirTemp(filepath.Dir(target), "."+filepath.Base(target)+".*.tmp")
	if err != nil {
		return fmt.Errorf("cannot write fixture %s: %w", dir, cause(err))
	}
	defer func() {
		if err != nil {
			os.RemoveAll(temp)
			err = fmt.Errorf("cannot write fixture %s: %w", dir, cause(err))
		}
	}()
	if err := f.write(temp, g, o); err != nil {
		return err
	}
	if err := os.Chmod(temp, 0o755); err != nil { // MkdirTemp made it private
		return err
	}
	return os.Rename(temp, target)
}

// cause drops the name of a temporary path, which means nothing to the reader.
func cause(err error) error {
	var path *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &path):
		return path.Err
	case errors.As(err, &link):
		return link.Err
	}
	return err
}

func (f Fixture) write(dir string, g *graph.Graph, o Options) error {
	for _, sub := range []string{weightsDir, inputsDir, expectedDir} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			return err
		}
	}
	c, err := caseOf(o)
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(c, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, caseFile), append(text, '\n'), 0o644); err != nil {
		return err
	}
	save := func(sub, name string, shape []int, data []float32) error {
		return os.WriteFile(filepath.Join(dir, sub, name+".npy"), encodeNPY(shape, data), 0o644)
	}
	for _, p := range g.Parameters() {
		t, err := tensorOf(f.Weights, p)
		if err != nil {
			return err
		}
		parts := decompose(p, t)
		for i, s := range sources(p) {
			if err := save(weightsDir, s.name, s.shape, decodeF16(parts[i])); err != nil {
				return err
			}
		}
	}
	for _, v := range g.Inputs() {
		t, err := tensorOf(f.Inputs, v)
		if err != nil {
			return err
		}
		if err := save(inputsDir, v.Name, v.Shape, decodeF16(t.Data)); err != nil {
			return err
		}
	}
	for _, v := range g.Operations() {
		data, ok := f.Expected[v.Name]
		if !ok {
			continue
		}
		if len(data) != v.Elements() {
			return fmt.Errorf("expected %s has %d elements, want %d", v.Name, len(data), v.Elements())
		}
		if err := save(expectedDir, v.Name, v.Shape, data); err != nil {
			return err
		}
	}
	return nil
}

// tensorOf returns the tensor of a value, or says that it is missing or has
// another shape.
func tensorOf(tensors map[string]graph.Tensor, v *graph.Value) (graph.Tensor, error) {
	t, ok := tensors[v.Name]
	if !ok {
		return t, fmt.Errorf("no tensor for %s %s", v.Op, v.Name)
	}
	if !slices.Equal(t.Shape, v.Shape) || len(t.Data) != v.Elements() {
		return t, fmt.Errorf("%s %s has shape %v and %d elements, want %v", v.Op, v.Name, t.Shape, len(t.Data), v.Shape)
	}
	return t, nil
}

func decodeF16(halves []uint16) []float32 {
	data := make([]float32, len(halves))
	numeric.DecodeF16(data, halves)
	return data
}
