package capturecmd_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"ipufarm/compiler/capturecmd"
	"ipufarm/compiler/exchange"
	"ipufarm/compiler/place"
)

func run(c *cobra.Command, args ...string) (string, error) {
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(args)
	err := c.Execute()
	return out.String(), err
}

// What is captured can be read again and solved.
func TestCapturesReplay(t *testing.T) {
	dir := t.TempDir()
	if out, err := run(capturecmd.Exchange(), "--vit-small", "--tiles", "64", "--fp8-scale=-4", "--finalist", "1", "-o", dir); err != nil {
		t.Fatal(err, out)
	}
	phases, err := filepath.Glob(filepath.Join(dir, "phase-*.json"))
	if err != nil || len(phases) < 10 {
		t.Fatalf("%d phases, %v", len(phases), err)
	}
	for _, path := range phases {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		p, err := exchange.ReadProblem(f)
		f.Close()
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		s, err := exchange.Solve(p)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		rows, err := exchange.Encode(p, s)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if err := exchange.Verify(p, rows); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if out, err := run(capturecmd.Place(), "--vit-small", "--tiles", "64", "-o", dir); err != nil {
		t.Fatal(err, out)
	}
	data, err := os.ReadFile(filepath.Join(dir, "placement.json"))
	if err != nil {
		t.Fatal(err)
	}
	tiles, err := place.DecodeCapture(data)
	if err != nil {
		t.Fatal(err)
	}
	if len(tiles) != 64 {
		t.Errorf("%d tiles, want 64", len(tiles))
	}
	for i := range tiles {
		a, err := place.Solve(&tiles[i].Problem)
		if err != nil {
			t.Fatal(err)
		}
		if err := place.Check(&tiles[i].Problem, a); err != nil {
			t.Error(err)
		}
	}
}

func TestBadFlags(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		want string
	}{
		{"--tiles 65", "--tiles 65"},
		{"--vit-small --tiles 64 --finalist 99", "--finalist 99"},
		{"--vit-small --tiles 64 --vit-batch 0", "--vit-batch"},
		{"--vit-small --tiles 64 -o " + file + "/x", "--output"},
	} {
		args := strings.Fields(c.args)
		if !strings.Contains(c.args, "-o ") {
			args = append(args, "-o", t.TempDir())
		}
		if _, err := run(capturecmd.Exchange(), args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", c.args, err, c.want)
		}
	}
}
