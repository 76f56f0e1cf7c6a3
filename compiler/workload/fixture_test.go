package workload_test

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ipufarm/compiler/workload"
	"ipufarm/protocol/numeric"
)

const oracle = "testdata/vit_small_b1"

func smallOptions() workload.Options {
	return with(func(o *workload.Options) { o.Small = true })
}

// npy returns a file with any header.
func npy(descr, shape string, data []byte) []byte {
	header := fmt.Sprintf("{'descr': %s, 'fortran_order': False, 'shape': %s, }\n", descr, shape)
	file := append([]byte("\x93NUMPY\x01\x00"), byte(len(header)), byte(len(header)>>8))
	return append(append(file, header...), data...)
}

func floats(values ...float32) []byte {
	var data []byte
	for _, x := range values {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(x))
	}
	return data
}

func doubles(values ...float64) []byte {
	var data []byte
	for _, x := range values {
		data = binary.LittleEndian.AppendUint64(data, math.Float64bits(x))
	}
	return data
}

// copyOracle copies the fixture to a folder that a test may damage.
func copyOracle(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "fixture")
	if err := os.CopyFS(dir, os.DirFS(oracle)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestLoadFixture(t *testing.T) {
	for _, fuse := range []bool{false, true} {
		o := smallOptions()
		o.FuseQKV = fuse
		g := build(t, o)
		f, err := workload.LoadFixture(oracle, g, o)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range g.Parameters() {
			if x := f.Weights[v.Name]; !slices.Equal(x.Shape, v.Shape) || len(x.Data) != v.Elements() {
				t.Errorf("%s has shape %v and %d elements, want %v", v.Name, x.Shape, len(x.Data), v.Shape)
			}
		}
		if len(f.Weights) != len(g.Parameters()) || len(f.Inputs) != 1 || len(f.Expected["encoded"]) != 4*144 || len(f.Expected["pooled"]) != 144 {
			t.Errorf("%d weights, %d inputs, %d and %d expected", len(f.Weights), len(f.Inputs), len(f.Expected["encoded"]), len(f.Expected["pooled"]))
		}
	}
}

func TestSaveFixtureRoundTrip(t *testing.T) {
	for _, o := range []workload.Options{
		with(func(o *workload.Options) { o.Small, o.FuseQKV, o.Batch, o.Layers = true, true, 2, 2 }),
		with(func(o *workload.Options) { o.Workload = "mlp-smoke" }),
	} {
		g := build(t, o)
		out := g.Outputs[0]
		saved := workload.Fixture{
			Weights: weights(t, o), Inputs: inputs(t, o),
			Expected: map[string][]float32{out.Name: slices.Repeat([]float32{0.1}, out.Elements())},
		}
		dir := filepath.Join(t.TempDir(), "out")
		if err := workload.SaveFixture(dir, g, o, saved); err != nil {
			t.Fatal(err)
		}
		// The folder holds separate projections, so an unfused graph reads it too.
		for _, fuse := range []bool{true, false} {
			o.FuseQKV = fuse
			g := build(t, o)
			f, err := workload.LoadFixture(dir, g, o)
			if err != nil {
				t.Fatal(err)
			}
			want := weights(t, o)
			for name, w := range want {
				if !slices.Equal(f.Weights[name].Data, w.Data) {
					t.Errorf("%s changed", name)
				}
			}
			for name, in := range saved.Inputs {
				if !slices.Equal(f.Inputs[name].Data, in.Data) {
					t.Errorf("%s changed", name)
				}
			}
			if !maps.EqualFunc(f.Expected, saved.Expected, slices.Equal[[]float32]) {
				t.Error("expected tensors changed")
			}
		}
		if left, _ := filepath.Glob(filepath.Join(filepath.Dir(dir), ".*")); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
		// Again, into the folder that now exists.
		err := workload.SaveFixture(dir, g, o, saved)
		if err == nil || !strings.Contains(err.Error(), dir+": it exists and is not empty") {
			t.Errorf("error %v", err)
		}
	}
}

func TestSaveFixtureFails(t *testing.T) {
	o := smallOptions()
	g := build(t, o)
	good := workload.Fixture{Weights: weights(t, o), Inputs: inputs(t, o)}
	base := t.TempDir()
	file := filepath.Join(base, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	broken := good
	broken.Weights = maps.Clone(good.Weights)
	delete(broken.Weights, "embedding.bias")
	short := good
	short.Expected = map[string][]float32{"pooled": {1, 2}}
	for _, c := range []struct {
		dir  string
		f    workload.Fixture
		want string
	}{
		{filepath.Join(base, "no", "folder"), good, "no such file or directory"},
		{filepath.Join(file, "below"), good, "not a directory"},
		{file, good, "cannot write fixture " + file},
		{filepath.Join(base, "new"), broken, "no tensor for parameter embedding.bias"},
		{filepath.Join(base, "new"), short, "expected pooled has 2 elements, want 144"},
	} {
		err := workload.SaveFixture(c.dir, g, o, c.f)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), c.dir) || strings.Contains(err.Error(), ".tmp") {
			t.Errorf("%s: error %v, want one with %q", c.dir, err, c.want)
		}
	}
	// Nothing half-written, under any name.
	entries, err := os.ReadDir(base)
	if err != nil || len(entries) != 1 {
		t.Errorf("left %v, %v", entries, err)
	}
}

func TestDamagedFixtures(t *testing.T) {
	bias := filepath.Join("weights", "embedding.bias.npy")
	write := func(name string, data []byte) func(dir string) error {
		return func(dir string) error { return os.WriteFile(filepath.Join(dir, name), data, 0o644) }
	}
	remove := func(name string) func(dir string) error {
		return func(dir string) error { return os.RemoveAll(filepath.Join(dir, name)) }
	}
	row := func(value float32) []byte {
		v := make([]float32, 144)
		v[7] = value
		return floats(v...)
	}
	replace := func(name, old, new string) func(dir string) error {
		return func(dir string) error {
			data, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				return err
			}
			if !strings.Contains(string(data), old) {
				return fmt.Errorf("no %q in %s", old, name)
			}
			return os.WriteFile(filepath.Join(dir, name), []byte(strings.Replace(string(data), old, new, 1)), 0o644)
		}
	}
	cases := []struct {
		name   string
		damage func(dir string) error
		want   string // beside the path of the file
		file   string
	}{
		{"no folder", remove("."), "no such file", ""},
		{"no weights", remove("weights"), "no such file", filepath.Join("weights", "embedding.kernel.npy")},
		{"missing weight", remove(bias), "no such file", bias},
		{"missing input", remove("inputs/image.npy"), "no such file", "inputs/image.npy"},
		{"missing output", remove("expected/pooled.npy"), "no such file", "expected/pooled.npy"},
		{"no expectations", remove("expected"), "no such file", "expected/pooled.npy"},
		{"weight of a second layer", write("weights/Transformer.encoderblock_1.LayerNorm_0.bias.npy", npy("'<f4'", "(144,)", row(0))),
			"no value of the graph has that name", "weights/Transformer.encoderblock_1.LayerNorm_0.bias.npy"},
		{"second input", write("inputs/mask.npy", npy("'<f4'", "(144,)", row(0))), "no value of the graph has that name", "inputs/mask.npy"},
		{"expected parameter", write("expected/embedding.bias.npy", npy("'<f4'", "(144,)", row(0))), "no value of the graph", "expected/embedding.bias.npy"},
		{"wrong shape", write(bias, npy("'<f4'", "(12, 12)", row(0))), "shape [12 12], want [144]", bias},
		{"wrong size", write(bias, npy("'<f4'", "(143,)", row(0)[4:])), "shape [143], want [144]", bias},
		{"too large", write(bias, make([]byte, 1<<20)), "1048576 bytes, at most", bias},
		{"folder instead of a file", func(dir string) error {
			if err := os.Remove(filepath.Join(dir, bias)); err != nil {
				return err
			}
			return os.Mkdir(filepath.Join(dir, bias), 0o755)
		}, "not a regular file", bias},
		{"empty", write(bias, nil), "not an .npy file", bias},
		{"truncated", write(bias, npy("'<f4'", "(144,)", row(0)[:575])), "575 bytes of data, shape [144] of float32 needs 576", bias},
		{"trailing", write(bias, npy("'<f4'", "(144,)", append(row(0), 0))), "577 bytes of data", bias},
		{"NaN", write(bias, npy("'<f4'", "(144,)", row(float32(math.NaN())))), "element 7 is NaN, want a finite half", bias},
		{"infinite", write(bias, npy("'<f4'", "(144,)", row(float32(math.Inf(-1))))), "element 7 is -Inf, want a finite half", bias},
		{"too large for F16", write(bias, npy("'<f4'", "(144,)", row(65520))), "element 7 is 65520, want a finite half, up to ±65504", bias},
		{"too large for F32", write(bias, npy("'<f8'", "(144,)", doubles(slices.Repeat([]float64{1e300}, 144)...))), "element 0 is 1e+300", bias},
		{"expected NaN", write("expected/pooled.npy", npy("'<f4'", "(1, 1, 144)", row(float32(math.NaN())))), "element 7 is NaN, want a finite float32", "expected/pooled.npy"},
		{"Fortran order", replace(bias, "False", "True "), "elements in Fortran order; C order is accepted", bias},
		{"big-endian", replace(bias, "<f4", ">f4"), `element type ">f4"`, bias},
		{"integers", replace(bias, "<f4", "<i4"), `element type "<i4"`, bias},
		{"version 9", replace(bias, "NUMPY\x01", "NUMPY\x09"), ".npy version 9.0", bias},
		{"case of another size", replace("case.json", `"width": 144`, `"width": 1152`), "width 1152, the options say 144", "case.json"},
		{"case of other heads", replace("case.json", `"heads": 2`, `"heads": 4`), "heads 4, the options say 2", "case.json"},
		{"case of another GELU", replace("case.json", `"tanh"`, `"erf"`), "gelu erf, the options say tanh", "case.json"},
		{"case of another batch", replace("case.json", `"batch": 1`, `"batch": 2`), "batch 2, the options say 1", "case.json"},
		{"case that is no JSON", write("case.json", []byte("{")), "unexpected end", "case.json"},
		{"case too large", write("case.json", make([]byte, 1<<20)), "1048576 bytes", "case.json"},
	}
	o := smallOptions()
	g := build(t, o)
	for _, c := range cases {
		dir := copyOracle(t)
		if err := c.damage(dir); err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		_, err := workload.LoadFixture(dir, g, o)
		path := filepath.Join(dir, c.file)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: error %v, want one with %q and %q", c.name, err, path, c.want)
		}
	}

	dir := copyOracle(t)
	if err := os.Remove(filepath.Join(dir, "case.json")); err != nil {
		t.Fatal(err)
	}
	if _, err := workload.LoadFixture(dir, g, o); err != nil {
		t.Errorf("without case.json: %v", err)
	}
}

// TestElementTypes reads halves and doubles, and rounds once.
func TestElementTypes(t *testing.T) {
	o := smallOptions()
	g := build(t, o)
	// Just above the tie of 1 and 1 + 2^-10: rounding to F32 first would make it the
	// tie, and then 1.
	odd := 1 + 1.0/2048 + 1.0/(1<<40)
	halves := make([]byte, 288)
	binary.LittleEndian.PutUint16(halves[4:], 0x3555)
	for _, c := range []struct {
		name  string
		file  []byte
		index int
		want  uint16
	}{
		{"f2", npy("'<f2'", "(144,)", halves), 2, 0x3555},
		{"f8", npy(`"<f8"`, "(144,)", doubles(slices.Repeat([]float64{odd}, 144)...)), 143, 0x3C01},
		{"f8, negative", npy("'<f8'", "(144,)", doubles(slices.Repeat([]float64{-odd}, 144)...)), 0, 0xBC01},
		{"f8, subnormal", npy("'<f8'", "( 144 ,  )", doubles(slices.Repeat([]float64{1.6 / (1 << 24)}, 144)...)), 0, 2},
		{"f8, underflow", npy("'<f8'", "(144,)", doubles(slices.Repeat([]float64{1e-300}, 144)...)), 0, 0},
	} {
		dir := copyOracle(t)
		if err := os.WriteFile(filepath.Join(dir, "weights", "embedding.bias.npy"), c.file, 0o644); err != nil {
			t.Fatal(err)
		}
		f, err := workload.LoadFixture(dir, g, o)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got := f.Weights["embedding.bias"].Data[c.index]; got != c.want {
			t.Errorf("%s: %v, want %v", c.name, numeric.F16ToF32(got), numeric.F16ToF32(c.want))
		}
	}
}

// TestFixtureIsExact expects every tensor of the oracle to be in F16 already, as
// its README says.
func TestFixtureIsExact(t *testing.T) {
	o := smallOptions()
	g := build(t, o)
	f, err := workload.LoadFixture(oracle, g, o)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "copy")
	if err := workload.SaveFixture(dir, g, o, f); err != nil {
		t.Fatal(err)
	}
	files := 0
	for _, sub := range []string{"weights", "inputs"} {
		err := fs.WalkDir(os.DirFS(oracle), sub, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			files++
			want, err := os.ReadFile(filepath.Join(oracle, path))
			if err != nil {
				return err
			}
			got, err := os.ReadFile(filepath.Join(dir, path))
			if err != nil {
				return err
			}
			// Headers may differ in their spaces, the data may not.
			if n := len(want) - 128; len(got) < n || string(got[len(got)-n:]) != string(want[128:]) {
				t.Errorf("%s changed", path)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if files < 37 {
		t.Errorf("only %d files", files)
	}
}
