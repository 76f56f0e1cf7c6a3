package exchangecmd

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func run(t *testing.T, stdin string, args ...string) (string, error) {
	t.Helper()
	c := Command()
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetIn(strings.NewReader(stdin))
	c.SetArgs(args)
	err := c.Execute()
	return out.String(), err
}

const one = `{"version":1,"tiles":1472,"transfers":[
  {"source":0,"addresses":[413696],"words":64,"receivers":[{"tile":1286,"address":524288}]},
  {"source":0,"addresses":[417792],"words":128,"receivers":[{"tile":2,"address":524288},{"tile":3,"address":524288}],"width":64}]}`

func TestScheduleJSON(t *testing.T) {
	file := filepath.Join(t.TempDir(), "phase.json")
	if err := os.WriteFile(file, []byte(one), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := run(t, "", "schedule", file, "--json", "--starts", "--rows")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Horizon, Bound, Max, Paired int
		Total                       int
		Starts                      []int
		Rows                        []struct {
			Tile, Physical int
			Sends          []struct{ Start, Items, Width int }
			Controls       []struct{ Kind string }
		}
	}
	keys := map[string]any{"horizon_events": &got.Horizon, "lower_bound_events": &got.Bound, "row_bytes_max": &got.Max,
		"row_bytes_total": &got.Total, "paired_transfers": &got.Paired, "starts": &got.Starts, "rows": &got.Rows}
	var object map[string]json.RawMessage
	if err := json.Unmarshal([]byte(out), &object); err != nil {
		t.Fatal(err)
	}
	for key, into := range keys {
		if err := json.Unmarshal(object[key], into); err != nil {
			t.Fatalf("%s: %v in %s", key, err, out)
		}
	}
	if _, ok := object["seconds"]; !ok {
		t.Error("no seconds")
	}
	if got.Bound != 128 || got.Paired != 1 || got.Horizon < 128 || len(got.Starts) != 2 || len(got.Rows) != 4 || got.Total < got.Max || got.Max == 0 {
		t.Errorf("got %+v", got)
	}
	if r := got.Rows[0]; r.Tile != 0 || len(r.Sends) != 2 || r.Sends[0].Width+r.Sends[1].Width != 96 || len(r.Controls) != 0 {
		t.Errorf("row of the sender: %+v", r)
	}
}

func TestScheduleText(t *testing.T) {
	out, err := run(t, one, "schedule", "-", "--rows", "--starts")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"2 transfers, 1 of them", "lower bound 128", "transfer 1 starts at event", "tile 1286 (physical 53)", "pair-source"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

func TestScheduleRefuses(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"JSON":  {`{`, "exchange phase"},
		"check": {strings.Replace(one, "1286", "9999", 1), "receiver tile 9999"},
		"width": {strings.Replace(one, `"tile":3`, `"tile":5`, 1), "64-bit items"},
	} {
		if _, err := run(t, c.text, "schedule", "-"); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, c.want)
		}
	}
	if _, err := run(t, "", "schedule", filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a missing file is accepted")
	}
}

func TestBench(t *testing.T) {
	out, err := run(t, "", "bench", "--json", "--family", "reduce-scatter-8,unicast-64-tiles")
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Families []struct {
			Name           string
			Horizon, Bound int
		}
		Median float64 `json:"ratio_median"`
	}
	if err := json.Unmarshal([]byte(strings.NewReplacer("horizon_events", "horizon", "lower_bound_events", "bound").Replace(out)), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Families) != 2 || got.Families[0].Bound < 2000 || got.Families[0].Horizon < got.Families[0].Bound || got.Median < 1 {
		t.Errorf("got %+v", got)
	}
	if _, err := run(t, "", "bench", "--family", "unknown"); err == nil {
		t.Error("an unknown family is accepted")
	}
	if out, err := run(t, "", "bench", "--family", "unicast-64-tiles"); err != nil || !strings.Contains(out, "median ratio") {
		t.Errorf("text: %v, %s", err, out)
	}
}
