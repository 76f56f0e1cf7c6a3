package sdkcmd

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ipufarm/protocol/profile"
	"ipufarm/protocol/profile/sdk"
	"ipufarm/protocol/profile/sdk/sdktest"
)

// run runs the verb as main does, and returns what it printed and its error.
func run(args ...string) (string, error) {
	c := Command()
	c.SilenceErrors = true
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(args)
	err := c.Execute()
	return out.String(), err
}

// files makes a folder with two recordings that share their name, a text that calls
// itself a recording, a profile and a row of probabilities.
func files(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, sub := range []string{"fp8/inference", "f16/inference"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	sdktest.Write(t, filepath.Join(dir, "fp8/inference/profile.pop"), sdktest.Small())
	sdktest.Write(t, filepath.Join(dir, "f16/inference/profile.pop"), sdktest.Small(), "DROP TABLE memory_by_tile", "DROP TABLE target", "UPDATE steps_by_ipu SET cycles = -1 WHERE step_id = 140")
	for name, text := range map[string]string{"text.pop": "no recording", "row.txt": "0.5\n0.25 0.25", "bad.txt": "0.5 x"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p := &profile.Profile{SchemaVersion: profile.SchemaVersion, ClockHz: 1_500_000_000, Tiles: []profile.TileProfile{{Samples: []profile.CycleSample{
		{Step: profile.Step{Operation: "block_0.qkv.product/gemm", Kind: profile.KindCompute, Kernel: "gemm"}, StartCycle: 5, EndCycle: 1239},
		{Step: profile.Step{LocalIndex: 1, Operation: "block_0.attention/scores", Kind: profile.KindCompute, Kernel: "gemm"}, StartCycle: 1239, EndCycle: 2000},
	}}}}
	if err := profile.WriteFile(filepath.Join(dir, "ours.ipuprof"), p); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestVerbs(t *testing.T) {
	t.Chdir(files(t))
	const a, b = "fp8/inference/profile.pop", "f16/inference/profile.pop"
	for _, c := range []struct {
		args string
		out  string // must be printed
		err  string // must be in the error; empty: no error
	}{
		{"summary " + a, "inference 1  1,500,000 cycles, 0.811 ms", ""},
		{"summary " + a, "clock 1.85 GHz, recorded", ""},
		{"summary " + a, "measured on hardware", ""},
		{"summary " + a, "softmax preparation  3      0        0        0      129,219  4,477     7,372", ""},
		{"summary " + a + " " + b, "QK                                            5,502 (step 140, set 38, 1,472 tiles)   - (step 140, set 38, 1,472 tiles)", ""},
		{"summary " + a + " " + b, "missing: table memory_by_tile", ""},
		{"summary " + b, "steps_by_ipu.cycles: values left out: 1, negative", ""},
		{"summary " + b, "clock 1.85 GHz, assumed", ""},
		{"summary --clock-ghz 1.5 " + a, "1,500,000 cycles, 1.000 ms", ""},
		{"summary --json " + a, `"measured_cycles": 1500000`, ""},
		{"summary", "", "requires at least 1 arg"},
		{"summary text.pop -o out1", "", "text.pop: not an SQLite database"},
		{"summary " + a + " text.pop -o out1", "", "text.pop: not an SQLite database"},
		{"summary " + a + " ./" + a + " -o out1", "", "is given twice"},
		{"summary --clock-ghz 1850 " + a, "", "--clock-ghz 1850, want 0.1 to 10"},
		{"summary " + a + " -o text.pop", "", "text.pop"},
		{"compare " + a + " ours.ipuprof", "clock 1.5 GHz, of the profile", ""},
		{"compare " + a + " ours.ipuprof", "SDK measured  tiles  other    exchange  ours modelled", ""},
		{"compare " + a + " ours.ipuprof", "QKV                             22,415        1,472  -        1,710     1,234          1      -      -         0.055", ""},
		{"compare " + b + " ours.ipuprof", "missing in " + b + ": table memory_by_tile", ""},
		{"compare --json " + a + " ours.ipuprof", `"cycles": 1995`, ""},
		{"compare --inference 2 " + a + " ours.ipuprof", "", "inference 2, want 1 to 1"},
		{"compare --inference -1 " + a + " ours.ipuprof", "", "--inference -1"},
		{"compare " + a + " text.pop", "", "text.pop: profile:"},
		{"compare ours.ipuprof " + a, "", "ours.ipuprof: not an SQLite database"},
		{"compare " + a + " ours.ipuprof --package none", "", "none"},
		{"compare " + a + " ours.ipuprof --package text.pop", "", "text.pop: "},
		{"fp8-check", "-1     1.06787109375    1   0", ""},
		{"fp8-check", "0.001371742112  -1     0x03  0.00146484375", ""},
		{"fp8-check", "0.0001          -1     0x00  0", ""},
		{"fp8-check --keys 1 --scale -8 --probability 1", "-8     NaN      1   0                1", ""},
		{"fp8-check --format f152 --scale -1 --json", `"format": "f152"`, ""},
		{"fp8-check --row row.txt --scale -4", "-4     1        1   0                0                 0.00 %", ""},
		{"fp8-check --row bad.txt", "", `bad.txt: probability 1 is "x"`},
		{"fp8-check --row /dev/zero", "", "want a regular file"},
		{"fp8-check --keys 0", "", "--keys 0, want 1 to"},
		{"fp8-check --scale 99", "", "scale 99, want -32 to 31"},
		{"fp8-check --scale x", "", `--scale "x"`},
		{"fp8-check --format f8", "", `--format "f8", want f143 or f152`},
		{"fp8-check --probability 2", "", `--probability "2"`},
	} {
		out, err := run(strings.Fields(c.args)...)
		if !strings.Contains(out, c.out) {
			t.Errorf("%s: printed\n%s\nwant %q in it", c.args, out, c.out)
		}
		switch {
		case c.err == "" && err != nil:
			t.Errorf("%s: %v", c.args, err)
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%s: error %v, want one that contains %q", c.args, err, c.err)
		case err != nil && strings.Contains(err.Error(), "\n"):
			t.Errorf("%s: the error has more than one line: %q", c.args, err)
		}
	}
	if _, err := os.Stat("out1"); !os.IsNotExist(err) {
		t.Error("a recording that cannot be read left files of another one")
	}
}

func TestSummaryWritesAFolderForEach(t *testing.T) {
	t.Chdir(files(t))
	if _, err := run("summary", "fp8/inference/profile.pop", "f16/inference/profile.pop", "-o", "out"); err != nil {
		t.Fatal(err)
	}
	if _, err := run("summary", "fp8/inference/profile.pop", "-o", "one"); err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{"out/fp8", "out/f16", "one"} {
		for _, name := range []string{sdk.SummaryFile, sdk.StepsFile, sdk.BodyFile, sdk.TilesFile} {
			if info, err := os.Stat(filepath.Join(folder, name)); err != nil || info.Size() == 0 {
				t.Errorf("%s/%s: %v", folder, name, err)
			}
		}
	}
	var s struct {
		Missing []string `json:"missing"`
	}
	b, err := os.ReadFile("out/f16/summary.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &s); err != nil || !slices.Contains(s.Missing, "table memory_by_tile") {
		t.Errorf("missing %q, %v", s.Missing, err)
	}
}

func TestLabel(t *testing.T) {
	for _, c := range []struct{ paths, want string }{
		{"/x/profile.pop", "profile.pop"},
		{"/x/a/inference/profile.pop /x/b/inference/profile.pop", "a b"},
		{"/x/a/p.pop /x/b/q.pop", "a-p.pop b-q.pop"},
		{"/p.pop /x/p.pop", "p.pop x-p.pop"},
		{"/x/p.pop /x/y/p.pop", "p.pop y-p.pop"},
		{"/r/a-b/c/p /r/a/b-c/p", "a-b-c a-b-c.2"},
	} {
		got, err := label(strings.Fields(c.paths))
		if err != nil || strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, %v, want %q", c.paths, got, err, c.want)
		}
	}
}
