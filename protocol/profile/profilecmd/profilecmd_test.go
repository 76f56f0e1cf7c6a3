package profilecmd

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ipufarm/protocol/profile"
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

// files writes the example plain, compressed, slower by 25 cycles, and cut short.
func files(t *testing.T) (plain, packed, slower, truncated string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "testdata", "example.ipuprof"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	p, err := profile.Verify(b)
	if err != nil {
		t.Fatal(err)
	}
	packed = filepath.Join(dir, "packed.ipuprof")
	if err := profile.WriteFile(packed, p); err != nil {
		t.Fatal(err)
	}
	last := p.Tiles[0].Samples
	last[len(last)-1].EndCycle += 25
	slower = filepath.Join(dir, "slower.ipuprof")
	if err := profile.WriteFile(slower, p); err != nil {
		t.Fatal(err)
	}
	return write("plain.ipuprof", b), packed, slower, write("truncated.ipuprof", b[:999])
}

func TestVerbs(t *testing.T) {
	plain, packed, slower, truncated := files(t)
	dir := filepath.Dir(plain)
	for _, c := range []struct {
		args string
		out  string // must be printed
		err  string // must be in the error; empty: no error
	}{
		{"query " + plain, "3 tiles, 390 cycles, 0.0003 ms at 1.5 GHz", ""},
		{"query " + packed, "gather     3      3      260", ""},
		{"query --group-by kernel --kind compute --top 1 " + packed, "copy    3      3      190", ""},
		{"query --group-by tile --kind compute " + packed, "tile 64 (logical 2)", ""},
		{"query --operation sum --phase 1 --tile 2 --json " + packed, `"total_cycles": 50`, ""},
		{"query --kernel nothing --json " + packed, `"rows": []`, ""},
		{"query --group-by colour " + packed, "", `cannot group by "colour", want one of kernel, phase`},
		{"query --kind sleep " + packed, "", `unknown kind "sleep"`},
		{"query --tile 1472 " + packed, "", "--tile 1472"},
		{"query --phase -2 " + packed, "", "--phase -2"},
		{"query --top -1 " + packed, "", "top -1"},
		{"query " + truncated, "", truncated + ": profile: truncated: 999 bytes"},
		{"query " + dir, "", "regular file"},
		{"query " + filepath.Join(dir, "none"), "", "none: no such file"},
		{"query", "", "accepts 1 arg"},
		{"barriers " + packed, "gather     2             90            50      100    80         20    tile 0 (logical 0)", ""},
		{"barriers --json " + packed, `"entry_spread": 150`, ""},
		{"barriers " + truncated, "", "truncated"},
		{"diff " + plain + " " + packed, "B takes +0 cycles", ""},
		{"diff " + plain + " " + slower, "B takes +25 cycles", ""},
		{"diff --top 1 --json " + plain + " " + slower, `"delta": 25`, ""},
		{"diff --top -1 " + plain + " " + slower, "", "--top -1"},
		{"diff " + plain + " " + truncated, "", "truncated"},
		{"render " + truncated, "", "truncated"},
		{"render " + plain + " -o " + plain, "", "is the profile itself"},
		{"render " + plain + " -o " + filepath.Join(dir, "no", "folder.html"), "", "cannot write " + filepath.Join(dir, "no", "folder.html")},
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
	if _, err := os.Stat(strings.TrimSuffix(truncated, ".ipuprof") + ".html"); !os.IsNotExist(err) {
		t.Error("a failed render left a page")
	}
}

func TestRenderWritesThePage(t *testing.T) {
	_, packed, _, _ := files(t)
	if out, err := run("render", packed, "--title", "one run", "--device", "model of a C600"); err != nil || out != "" {
		t.Fatalf("printed %q, %v", out, err)
	}
	page, err := os.ReadFile(strings.TrimSuffix(packed, ".ipuprof") + ".html")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<title>one run</title>", "modelled cycles, simulated device", "model of a C600"} {
		if !bytes.Contains(page, []byte(want)) {
			t.Errorf("the page does not contain %q", want)
		}
	}
}

func TestQueryJSONIsOneObject(t *testing.T) {
	_, packed, _, _ := files(t)
	out, err := run("query", packed, "--json", "--group-by", "kind")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Cycles uint32             `json:"cycles"`
		Rows   []profile.QueryRow `json:"rows"`
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if got.Cycles != 390 || len(got.Rows) != 2 || got.Rows[0].Group != "exchange" || got.Rows[0].ByKind.Synchronization != 400 {
		t.Errorf("got %+v", got)
	}
}
