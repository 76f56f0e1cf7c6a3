package placecmd

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func run(args ...string) (string, error) {
	c := Command()
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(args)
	err := c.Execute()
	return out.String(), err
}

func TestSolve(t *testing.T) {
	out, err := run("solve", "../testdata/placed_by_cores.json")
	if err != nil || !strings.Contains(out, "tile 0: placed 24 buffers") || !strings.Contains(out, "1 of 1 tiles placed and checked") {
		t.Errorf("got %q, %v", out, err)
	}
	out, err = run("solve", "../testdata/fragmentation_resident_fills_region0.json")
	if err == nil || err.Error() != "place: 1 of 1 tiles were refused" || !strings.Contains(out, "place: tile 1: fragmentation: no arrangement") {
		t.Errorf("got %q, %v", out, err)
	}
}

func TestSolveJSON(t *testing.T) {
	out, err := run("solve", "--json", "../testdata/capacity_long_transients_need_region1.json")
	if err == nil {
		t.Error("a refused tile exits with 0")
	}
	var got struct{ Tiles []result }
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if r := got.Tiles[0]; r.Tile != 361 || r.Verdict != "capacity" || r.Step == nil || len(r.Live) == 0 || r.Addresses != nil {
		t.Errorf("got %+v", r)
	}
	out, err = run("solve", "--json", "../testdata/placed_by_repair.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || len(got.Tiles[0].Addresses) != got.Tiles[0].Requests || got.Tiles[0].Requests == 0 {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestSolveRefusesBadInput(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.json")
	if err := os.WriteFile(bad, []byte(`{"tiles": [{"tile": 2, "free": [[0, 4]]}]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	good := "../testdata/placed_by_cores.json"
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"solve"}, "accepts 1 arg"},
		{[]string{"solve", filepath.Join(t.TempDir(), "none.json")}, "no such file"},
		{[]string{"solve", bad}, "tile 2: place: free range 0: 0x0 to 0x4"},
		{[]string{"solve", "--tile", "7", good}, "--tile 7; accepted: a tile of"},
		{[]string{"solve", "--effort", "-1", good}, "--effort -1; accepted: 0"},
		{[]string{"solve", "--effort", "much", good}, "--effort"},
	} {
		if _, err := run(c.args...); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: got %v, want %q", c.args, err, c.want)
		}
	}
}
