package programcmd

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ipufarm/protocol/program"
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

func TestVerbs(t *testing.T) {
	dir := t.TempDir()
	example, err := os.ReadFile(filepath.Join("..", "testdata", "example.ipuexe"))
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := write("good.ipuexe", example)
	truncated := write("truncated.ipuexe", example[:1000])
	text := write("text.ipuexe", []byte("this is not a package at all, but has some length"))
	signed := filepath.Join(dir, "signed.ipuexe")
	if err := program.WriteEncoded(signed, example); err != nil {
		t.Fatal(err)
	}
	flipped := bytes.Clone(example)
	at := bytes.Index(flipped, []byte("ipufarm example"))
	flipped[at] ^= 1
	damaged := write("damaged.ipuexe", flipped)
	write("damaged.ipuexe.sha256", []byte(program.SHA256(example)+"  damaged.ipuexe\n"))
	other := write("other.ipuexe", flipped)

	for _, c := range []struct {
		args string
		out  string // must be printed
		err  string // must be in the error; empty: no error
	}{
		{"verify " + good, "good: 3 tiles", ""},
		{"verify " + good, "no digest to compare with", ""},
		{"verify " + signed, "digest matches", ""},
		{"verify " + signed + " --json", `"digest_compared":true`, ""},
		{"verify " + good + " --sha256 " + strings.ToUpper(program.SHA256(example)), "digest matches", ""},
		{"verify " + good + " --sha256 " + strings.Repeat("0", 64), "", good + ": damaged"},
		{"verify " + good + " --sha256 12", "", `"12" is not a SHA-256`},
		{"verify " + damaged, "", damaged + ": damaged"},
		{"verify " + truncated, "", truncated + ": package: truncated: 1000 bytes"},
		{"verify " + text, "", text + ": package: not a Cap'n Proto message"},
		{"verify " + filepath.Join(dir, "none"), "", "none: no such file"},
		{"verify", "", "accepts 1 arg"},
		{"inspect " + good, "kernel  calls", ""},
		{"inspect " + good + " --tile 64", "tile 64 (logical 2)", ""},
		{"inspect " + good + " --tile 64 --json", `"logical_tile": 2`, ""},
		{"inspect " + good + " --tile 1472", "", "--tile 1472"},
		{"inspect " + good + " --tile 1", "", "no image for tile 1"},
		{"inspect " + truncated, "", "truncated"},
		{"diff " + good + " " + signed, "", ""},
		{"diff " + good + " " + other, "compiler version", "differ in 1 ways"},
		{"diff --json " + good + " " + other, `"what":"compiler version"`, "differ in 1 ways"},
		{"diff --json " + good + " " + good, "[]", ""},
		{"diff " + good + " " + truncated, "", "truncated"},
	} {
		out, err := run(strings.Fields(c.args)...)
		if !strings.Contains(out, c.out) {
			t.Errorf("%s: printed %q, want %q in it", c.args, out, c.out)
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
}
