package sdk_test

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ipufarm/protocol/profile/sdk"
	"ipufarm/protocol/profile/sdk/sdktest"
)

// read makes a recording in a folder of the test and reads it.
func read(t *testing.T, m *sdktest.Model, after ...string) *sdk.Recording {
	t.Helper()
	path := filepath.Join(t.TempDir(), "profile.pop")
	sdktest.Write(t, path, m, after...)
	rec, err := sdk.Read(context.Background(), path, 0)
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// The tables of the published analysis, from rows.
func TestPublishedTables(t *testing.T) {
	for _, c := range []struct {
		name       string
		model      *sdktest.Model
		kernels    map[sdk.Stage]int64
		qk, set    int64
		spans      []int64
		ms         float64 // of the second inference
		code, size [2]float64
	}{
		{"full FP8", sdktest.FullFP8(), map[sdk.Stage]int64{sdk.QKV: 22_415, sdk.QK: 5_502, sdk.PV: 7_377, sdk.OutputProjection: 8_178, sdk.MLPUp: 26_425, sdk.MLPDown: 28_265},
			140, 38, []int64{17_886_945, 17_804_824}, 9.624, [2]float64{15_529, 36_696}, [2]float64{487_748, 540_950}},
		{"FP8 weights", sdktest.Weights(), map[sdk.Stage]int64{sdk.QKV: 37_277, sdk.QK: 8_488, sdk.PV: 12_900, sdk.OutputProjection: 14_153, sdk.MLPUp: 48_248, sdk.MLPDown: 52_187},
			121, 28, []int64{15_987_664, 15_987_659}, 8.642, [2]float64{15_603, 37_092}, [2]float64{550_544, 596_494}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := read(t, c.model).Summarize()
			if s.Clock.Hz != 1.85e9 {
				t.Errorf("clock %v, want 1.85 GHz", s.Clock)
			}
			if len(s.Kernels) != len(c.kernels) {
				t.Errorf("%d products in the first body, want %d", len(s.Kernels), len(c.kernels))
			}
			for _, k := range s.Kernels {
				if k.Cycles != c.kernels[k.Stage] || k.ActiveTiles != 1472 || k.Kernel != "Convolve" {
					t.Errorf("%s: %d cycles on %d tiles in %s, want %d on 1472 in Convolve", k.Stage, k.Cycles, k.ActiveTiles, k.Kernel, c.kernels[k.Stage])
				}
				if k.Stage == sdk.QK && (k.Step != c.qk || k.ComputeSet != c.set) {
					t.Errorf("QK is step %d, set %d, want %d, %d", k.Step, k.ComputeSet, c.qk, c.set)
				}
			}
			if len(s.Inferences) != 2 || s.OtherCuts != 1 {
				t.Fatalf("%d inferences and %d other spans, want 2 and the setup", len(s.Inferences), s.OtherCuts)
			}
			for i, x := range s.Inferences {
				if x.Cycles != c.spans[i] || !x.Complete || x.Index != i+1 {
					t.Errorf("inference %+v, want %d cycles, complete", x, c.spans[i])
				}
			}
			if ms := s.Inferences[1].Milliseconds; math.Abs(ms-c.ms) > 0.0005 {
				t.Errorf("%.4f ms, want %.3f", ms, c.ms)
			}
			if s.Body.Repeats != 27 {
				t.Errorf("the body is executed %d times, want 27", s.Body.Repeats)
			}
			for _, k := range s.Kernels {
				i := slices.IndexFunc(s.SharedSets, func(x sdk.SharedSet) bool { return x.ComputeSet == k.ComputeSet })
				if i < 0 || s.SharedSets[i].Executions != 54 || !slices.Equal(s.SharedSets[i].ByInference, []int{27, 27}) {
					t.Errorf("%s is not executed 27 times in each inference", k.Stage)
				}
			}
			if e := s.ExchangeCode; e == nil || e.Mean != c.code[0] || float64(e.Max) != c.code[1] || e.Tiles != 1472 {
				t.Errorf("exchange code %+v, want %v on 1472 tiles", e, c.code)
			}
			if m := s.Memory; m == nil || m.Mean != c.size[0] || float64(m.Max) != c.size[1] {
				t.Errorf("memory %+v, want %v", m, c.size)
			}
			if len(s.Missing) > 1 || len(s.Anomalies) > 0 { // the clock of the second is not recorded, which is no fault
				t.Errorf("missing %q, anomalies %q", s.Missing, s.Anomalies)
			}
		})
	}
}

func stage(t *testing.T, s *sdk.Summary, want sdk.Stage) sdk.StageTime {
	t.Helper()
	i := slices.IndexFunc(s.Stages, func(x sdk.StageTime) bool { return x.Stage == want })
	if i < 0 {
		t.Fatalf("no stage %s in %+v", want, s.Stages)
	}
	return s.Stages[i]
}

func TestStagesAroundSoftmax(t *testing.T) {
	s := read(t, sdktest.FullFP8()).Summarize()
	if x := stage(t, s, sdk.SoftmaxPreparation); x.Exchange != 4_477 || x.Copy != 126_283+2_936 || x.Compute != 0 || x.Code != 7_372 || x.Tiles != 1472 {
		t.Errorf("preparation of softmax %+v", x)
	}
	if x := stage(t, s, sdk.Softmax); x.Compute != 18_300 || x.Steps != 7 || x.Copy != 0 {
		t.Errorf("softmax %+v, want 18,300 cycles in seven sets", x)
	}
	if x := stage(t, s, sdk.PV); x.Copy != 1_772+52_333+547+27_832+24_722+13_165+56_986 || x.Cast != 824+3_343 || x.Exchange != 1_900 || x.Code != 2_212 {
		t.Errorf("PV %+v", x)
	}
	if x := stage(t, s, sdk.QK); x.Exchange != 612 || x.Code != 248 || x.Cast != 2*824 {
		t.Errorf("QK %+v: an exchange without a name leads to the product after it", x)
	}
	if x := stage(t, s, sdk.MLPDown); x.Cast != 932 || x.Copy != 3_123 || x.Exchange != 887+2_000 {
		t.Errorf("MLP down %+v", x)
	}
}

func TestPublishedCasts(t *testing.T) {
	s := read(t, sdktest.FullFP8()).Summarize()
	want := []struct{ step, tiles, most, cycles int64 }{
		{95, 1440, 592, 548}, {116, 492, 1_712, 824}, {121, 491, 1_712, 824}, {127, 491, 1_712, 824},
		{155, 1458, 5_832, 3_343}, {240, 1440, 592, 548}, {273, 1464, 2_144, 932},
	}
	if len(s.Casts) != len(want) {
		t.Fatalf("%d casts, want %d", len(s.Casts), len(want))
	}
	for i, k := range s.Casts {
		if w := want[i]; k.Step != w.step || k.ActiveTiles != w.tiles || k.OutputMax != w.most || k.Cycles != w.cycles {
			t.Errorf("cast %+v, want %+v", k, w)
		}
	}
	if total := s.Casts[0].OutputTotal; total != 839_808 {
		t.Errorf("the cast of the QKV input writes %d bytes, want 839,808: one copy, without those of messages", total)
	}
}

func TestWrite(t *testing.T) {
	rec := read(t, sdktest.Small())
	s := rec.Summarize()
	dir := filepath.Join(t.TempDir(), "a", "b")
	for range 2 { // over its own files too
		if err := s.Write(dir); err != nil {
			t.Fatal(err)
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 4 {
		t.Fatalf("%d files, %v; want four and nothing temporary", len(files), err)
	}
	rows := func(name string) [][]string {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		all, err := csv.NewReader(bytes.NewReader(b)).ReadAll()
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	if all := rows(sdk.StepsFile); len(all) != len(rec.Steps)+1 {
		t.Errorf("%d rows of steps, want %d", len(all)-1, len(rec.Steps))
	}
	body := rows(sdk.BodyFile)
	if len(body) != s.Body.Steps+1 {
		t.Fatalf("%d rows of the body, want %d", len(body)-1, s.Body.Steps)
	}
	i := slices.IndexFunc(body, func(r []string) bool { return r[0] == "140" })
	if got := strings.Join(body[i][:10], ","); got != "140,OnTileExecute,1,QK,product,Convolve,"+body[i][6]+",38,5502,1472" {
		t.Errorf("QK is %s", got)
	}
	if tiles := rows(sdk.TilesFile); len(tiles) != 5 || strings.Join(tiles[1], ",") != "0,1300,130" {
		t.Errorf("tiles %q", tiles)
	}
	b, err := os.ReadFile(filepath.Join(dir, sdk.SummaryFile))
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Basis      string
		Inferences []struct {
			Cycles int64 `json:"measured_cycles"`
		}
	}
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Inferences) != 1 || got.Inferences[0].Cycles != 1_500_000 || !strings.HasPrefix(got.Basis, "measured") {
		t.Errorf("summary %+v", got)
	}
}

func TestWriteRefusesAFileInItsPlace(t *testing.T) {
	s := read(t, sdktest.Small()).Summarize()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, sdk.StepsFile), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := s.Write(dir); err == nil || !strings.Contains(err.Error(), sdk.StepsFile) {
		t.Errorf("error %v, want one about %s", err, sdk.StepsFile)
	}
	if _, err := os.Stat(filepath.Join(dir, sdk.SummaryFile)); !os.IsNotExist(err) {
		t.Error("a summary is there without its steps")
	}
}

func TestSameRecordingSameBytes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "profile.pop")
	sdktest.Write(t, path, sdktest.FullFP8())
	var first []byte
	for i := range 3 {
		rec, err := sdk.Read(context.Background(), path, 0)
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(rec.Summarize())
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = b
		} else if !bytes.Equal(b, first) {
			t.Fatal("two summaries of one file differ")
		}
	}
}

// Recordings with gaps: the rest is used, and the gap is reported.
func TestGaps(t *testing.T) {
	whole := read(t, sdktest.Small()).Summarize()
	for _, c := range []struct {
		name  string
		after []string
		says  string // in missing or anomalies
		holds func(s *sdk.Summary) bool
	}{
		{"no compute sets", []string{"DROP TABLE compute_sets"}, "table compute_sets",
			func(s *sdk.Summary) bool { return s.Inferences[0].Cycles == 1_500_000 && len(s.Kernels) == 0 }},
		{"no programs", []string{"DROP TABLE programs"}, "table programs", func(s *sdk.Summary) bool { return len(s.Kernels) == 6 }},
		{"no cycles", []string{"DROP TABLE steps_by_ipu"}, "table steps_by_ipu",
			func(s *sdk.Summary) bool {
				return s.Inferences[0].Cycles == -1 && len(s.Kernels) == 6 && s.Kernels[0].Cycles == -1 && s.Body.Repeats == 2
			}},
		{"no bases", []string{"ALTER TABLE steps_by_ipu DROP COLUMN cycles_base"}, "column steps_by_ipu.cycles_base",
			func(s *sdk.Summary) bool { return s.Inferences[0].Cycles == -1 && s.Kernels[1].Cycles == 5_502 }},
		{"no types", []string{"ALTER TABLE steps DROP COLUMN type"}, "column steps.type",
			func(s *sdk.Summary) bool { return len(s.Inferences) == 0 && s.Steps == whole.Steps }},
		{"no ids", []string{"ALTER TABLE steps RENAME COLUMN id TO number"}, "column steps.id",
			func(s *sdk.Summary) bool { return s.Steps == whole.Steps && s.Inferences[0].Cycles == -1 }},
		{"no steps", []string{"DROP TABLE steps"}, "table steps", func(s *sdk.Summary) bool { return s.Body == nil && s.Memory.Max == 1300 }},
		{"no memory", []string{"DROP TABLE memory_by_tile"}, "table memory_by_tile", func(s *sdk.Summary) bool { return s.Memory == nil && s.ExchangeCode.Max == 130 }},
		{"tiles in order", []string{"ALTER TABLE memory_by_tile DROP COLUMN tile"}, "", func(s *sdk.Summary) bool { return s.Memory.Max == 1300 && s.Memory.Tiles == 4 }},
		{"no variables", []string{"DROP TABLE vars_info"}, "table vars_info", func(s *sdk.Summary) bool { return s.ExchangeCode == nil }},
		{"no categories", []string{"DROP TABLE var_categories"}, "table var_categories", func(s *sdk.Summary) bool { return s.ExchangeCode == nil }},
		{"no category", []string{"ALTER TABLE vars_info DROP COLUMN category"}, "column vars_info.category", func(s *sdk.Summary) bool { return s.ExchangeCode == nil }},
		{"no names of variables", []string{"DROP TABLE vars_string_table"}, "table vars_string_table", func(s *sdk.Summary) bool { return s.Casts[0].OutputMax == -1 }},
		{"other names of columns", []string{"ALTER TABLE vars_string_table RENAME COLUMN string TO spelling"}, "column vars_string_table.string or name", func(s *sdk.Summary) bool { return s.ExchangeCode.Max == 130 }},
		{"no code of programs", []string{"DROP TABLE program_code"}, "exchange code of a program", func(s *sdk.Summary) bool { return s.Stages[1].Code == -1 }},
		{"more tables and columns", []string{"ALTER TABLE steps ADD COLUMN mood TEXT", "CREATE TABLE future (x)"}, "", func(s *sdk.Summary) bool { return len(s.Missing) == 0 }},
		{"a view in place of a table", []string{"ALTER TABLE memory_by_tile RENAME TO m", "CREATE VIEW memory_by_tile AS SELECT * FROM m"}, "table memory_by_tile",
			func(s *sdk.Summary) bool { return s.Memory == nil }},
		{"NULL cycles", []string{"UPDATE steps_by_ipu SET cycles = NULL WHERE step_id = 140"}, "steps_by_ipu.cycles: values left out: 1, NULL",
			func(s *sdk.Summary) bool { return s.Kernels[1].Cycles == -1 && s.Kernels[0].Cycles == 22_415 }},
		{"negative cycles", []string{"UPDATE steps_by_ipu SET cycles = -5502, active_cycles_to_max = -9 WHERE step_id = 140"}, "steps_by_ipu.cycles: values left out: 1, negative",
			func(s *sdk.Summary) bool {
				return s.Kernels[1].Cycles == -1 && s.Kernels[1].ActiveTiles == 1472 && s.Inferences[0].Cycles == 1_500_000
			}},
		{"absurd cycles", []string{"UPDATE steps_by_ipu SET cycles = 9223372036854775807, cycles_base = 9223372036854775807 WHERE step_id = 140"}, "steps_by_ipu.cycles_base: values left out: 1, more than",
			func(s *sdk.Summary) bool { return s.Kernels[1].Cycles == -1 && s.Inferences[0].Cycles == 1_500_000 }},
		{"cycles in words", []string{"UPDATE steps_by_ipu SET cycles = 'many' WHERE step_id = 140", "UPDATE steps_by_ipu SET cycles = 1.5 WHERE step_id = 99"},
			"steps_by_ipu.cycles: values left out: 2, not a whole number", func(s *sdk.Summary) bool { return s.Kernels[1].Cycles == -1 }},
		{"ends before it starts", []string{"UPDATE steps_by_ipu SET active_cycles_to_max = 1 WHERE step_id = 140"}, "before active_cycles_from_min",
			func(s *sdk.Summary) bool { return s.Inferences[0].Cycles == 1_500_000 }},
		{"NULL names and types", []string{"UPDATE compute_sets SET name = NULL WHERE compute_set = 38", "UPDATE steps SET type = NULL WHERE id = 100"}, "compute_sets.name: values left out: 1, NULL",
			func(s *sdk.Summary) bool { return len(s.Kernels) == 5 }},
		{"cycles of a step that is not there", []string{"UPDATE steps_by_ipu SET step_id = 1000000 WHERE step_id = 140"}, "steps_by_ipu.step_id: values left out: 1, no such step",
			func(s *sdk.Summary) bool { return s.Kernels[1].Cycles == -1 }},
		{"negative bytes", []string{"UPDATE vars_info SET size_bytes = -1 WHERE tile = 3", "UPDATE memory_by_tile SET total = NULL WHERE tile = 3"}, "vars_info.size_bytes: values left out: 2, negative",
			func(s *sdk.Summary) bool { return s.ExchangeCode.Tiles == 3 && s.Memory.Tiles == 3 }},
		{"two IPUs", []string{"INSERT INTO steps_by_ipu SELECT step_id, 1, cycles + 1, active_tiles, cycles_base, active_cycles_from_min, active_cycles_to_max + 1 FROM steps_by_ipu"}, "",
			func(s *sdk.Summary) bool {
				return s.Kernels[1].Cycles == 5_503 && s.Kernels[1].ActiveTiles == 2944 && s.Inferences[0].Cycles == 1_500_001
			}},
		{"absolute times", []string{"UPDATE steps_by_ipu SET active_cycles_from_min = cycles_base + active_cycles_from_min, active_cycles_to_max = cycles_base + active_cycles_to_max"}, "taken as absolute",
			func(s *sdk.Summary) bool { return s.Inferences[0].Cycles == 1_500_000 }},
		{"cut before the output", []string{"DELETE FROM steps WHERE id > (SELECT max(id) - 3 FROM steps)"}, "no such step",
			func(s *sdk.Summary) bool { return !s.Inferences[0].Complete && s.Inferences[0].Cycles == 1_500_000 }},
		{"control characters", []string{"UPDATE compute_sets SET name = char(27) || '[2J' || char(10) || name WHERE compute_set = 38"}, "",
			func(s *sdk.Summary) bool { return strings.HasPrefix(s.Kernels[1].Name, "?[2J?/visual") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := read(t, sdktest.Small(), c.after...).Summarize()
			if !c.holds(s) {
				t.Errorf("summary %+v\nbody %+v\nkernels %+v", s, s.Body, s.Kernels)
			}
			said := strings.Join(append(append([]string{}, s.Missing...), s.Anomalies...), "\n")
			if !strings.Contains(said, c.says) || c.says == "" && said != "" {
				t.Errorf("it says %q, want %q in it", said, c.says)
			}
			if err := s.Write(t.TempDir()); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestClock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "profile.pop")
	sdktest.Write(t, path, sdktest.Small(), "UPDATE target SET clock_frequency = 1330000000")
	for _, c := range []struct {
		ask  float64
		want float64
		says string
	}{{0, 1.33e9, "recorded"}, {1.5e9, 1.5e9, "as asked for"}} {
		rec, err := sdk.Read(context.Background(), path, c.ask)
		if err != nil {
			t.Fatal(err)
		}
		if rec.Clock.Hz != c.want || rec.Clock.Source != c.says {
			t.Errorf("asked for %g: %v", c.ask, rec.Clock)
		}
	}
	if rec := read(t, sdktest.Small(), "DROP TABLE target"); rec.Clock.Hz != sdk.DefaultClockHz || !strings.HasPrefix(rec.Clock.Source, "assumed") {
		t.Errorf("without a clock: %v", rec.Clock)
	}
}

func TestRowSums(t *testing.T) {
	f143 := &sdk.Formats[0]
	row := make([]float64, 729)
	for i := range row {
		row[i] = 1.0 / 729
	}
	sums, err := sdk.RowSums(f143, row, []int{-4, -1})
	if err != nil {
		t.Fatal(err)
	}
	if _, v := f143.Quantise(1.0/729, -1); v != 0.00146484375 || sums[1].Sum != 1.06787109375 {
		t.Errorf("1/729 at scale -1 is %v, the row sums to %v, want 0.00146484375 and 1.06787109375", v, sums[1].Sum)
	}
	if _, v := f143.Quantise(0.0001, -1); v != 0 {
		t.Errorf("0.0001 at scale -1 is %v, want 0", v)
	}
	if e := math.Abs(sums[0].Sum - 1); e > 0.03 {
		t.Errorf("scale -4 sums to %v, within 3 %% of 1 expected", sums[0].Sum)
	}
	sums, err = sdk.RowSums(f143, []float64{1, 0.0001, 0}, []int{-9, -1})
	if err != nil {
		t.Fatal(err)
	}
	if sums[0].NaN != 1 || sums[0].Lost != 0 || sums[1].NaN != 0 || sums[1].Lost != 1 || sums[1].Sum != 1 {
		t.Errorf("a row with 1 and a small value: %+v", sums)
	}
	for _, bad := range []struct {
		row   []float64
		scale int
	}{{[]float64{1.5}, 0}, {[]float64{-0.1}, 0}, {[]float64{math.NaN()}, 0}, {[]float64{0.5}, 32}, {[]float64{0.5}, -33}} {
		if _, err := sdk.RowSums(f143, bad.row, []int{bad.scale}); err == nil {
			t.Errorf("%v at scale %d is accepted", bad.row, bad.scale)
		}
	}
}
