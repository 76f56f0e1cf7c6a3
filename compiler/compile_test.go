package compiler_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"ipufarm/compiler"
	"ipufarm/compiler/lower"
	"ipufarm/compiler/plan"
	"ipufarm/compiler/workload"
	"ipufarm/protocol"
	"ipufarm/protocol/program"
)

var update = flag.Bool("update", false, "write testdata/quality.txt anew")

func fp8(scale int) *int { return &scale }

func silent(string) {}

func specOf(t testing.TB, tiles int, change func(*workload.Options)) compiler.Spec {
	t.Helper()
	o := workload.Defaults()
	o.Small = true
	change(&o)
	s, err := compiler.NewSpec(o, tiles)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// compile returns the best finalist of a spec by exact cycles, and how many fit.
func compile(t testing.TB, s compiler.Spec) (best *compiler.Compiled, family string, fit, all int) {
	t.Helper()
	_, m, err := s.Model()
	if err != nil {
		t.Fatal(err)
	}
	list, err := plan.Search(m, plan.Options{Tiles: s.Tiles, Finalists: s.Finalists, Effort: s.Effort}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range list {
		c, err := compiler.Finish(context.Background(), m, &list[i], silent)
		var refusal *compiler.Refusal
		if errors.As(err, &refusal) {
			continue
		}
		if err != nil {
			t.Fatalf("finalist %d (%s): %v", i, list[i].Family, err)
		}
		fit++
		if best == nil || c.Exact.Cycles < best.Exact.Cycles {
			best, family = c, list[i].Family
		}
	}
	return best, family, fit, len(list)
}

// qualitySpecs are the rows of testdata/quality.txt. The full-size rows take a
// minute and more and need IPUFARM_LONG.
var qualitySpecs = []struct {
	name   string
	long   bool
	tiles  int
	change func(*workload.Options)
}{
	{"small f16 b1", false, 64, func(o *workload.Options) {}},
	{"small f16 b1 fused", false, 64, func(o *workload.Options) { o.FuseQKV = true }},
	{"small f16 b2", false, 64, func(o *workload.Options) { o.Batch = 2 }},
	{"small fp8 b1", false, 64, func(o *workload.Options) { o.FP8 = fp8(-4) }},
	{"small fp8 b1 fused", false, 64, func(o *workload.Options) { o.FP8, o.FuseQKV = fp8(-4), true }},
	{"small fp8 b2 fused", false, 64, func(o *workload.Options) { o.FP8, o.FuseQKV, o.Batch = fp8(-4), true, 2 }},
	{"small fp8 b1 fused two layers", false, 64, func(o *workload.Options) { o.FP8, o.FuseQKV, o.Layers = fp8(-4), true, 2 }},
	{"small fp8 b1 fused 128 tiles", false, 128, func(o *workload.Options) { o.FP8, o.FuseQKV = fp8(-4), true }},
	{"small fp8 b1 fused 25 tokens", false, 64, func(o *workload.Options) { o.FP8, o.FuseQKV, o.ImageSize = fp8(-4), true, 70 }},
	{"four tokens fp8 fused", false, 1472, func(o *workload.Options) { o.Small, o.ImageSize, o.FP8, o.FuseQKV = false, 28, fp8(-4), true }},
	{"full fp8 b1 fused", true, 1472, func(o *workload.Options) { o.Small, o.FP8, o.FuseQKV = false, fp8(-4), true }},
	{"full fp8 b1", true, 1472, func(o *workload.Options) { o.Small, o.FP8 = false, fp8(-4) }},
	{"full f16 b1 fused", true, 1472, func(o *workload.Options) { o.Small, o.FuseQKV = false, true }},
	{"full fp8 b2 fused", true, 1472, func(o *workload.Options) { o.Small, o.FP8, o.FuseQKV, o.Batch = false, fp8(-4), true, 2 }},
	{"full fp8 b4 fused", true, 1472, func(o *workload.Options) { o.Small, o.FP8, o.FuseQKV, o.Batch = false, fp8(-4), true, 4 }},
	{"full fp8 b8 fused", true, 1472, func(o *workload.Options) { o.Small, o.FP8, o.FuseQKV, o.Batch = false, fp8(-4), true, 8 }},
}

const qualityFile = "testdata/quality.txt"

// The quality table is what the compiler makes of a set of specs. A change in it is
// reviewed like code: run with -update, and IPUFARM_LONG=1 for the full-size rows.
func TestQuality(t *testing.T) {
	const head = "# modelled cycles of the best finalist (policy best-exact); bytes of the fullest tile\n"
	format := "%-32s %-22s %9s %9s %6s %9s %8s %9s %5s\n"
	title := fmt.Sprintf(format, "spec", "family", "cycles", "exchange", "phases", "transfers", "tables", "sram", "fit")
	old := map[string]string{}
	data, err := os.ReadFile(qualityFile)
	if err != nil && !*update {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if len(line) > 32 {
			old[strings.TrimSpace(line[:32])] = line
		}
	}
	out := head + title
	for _, q := range qualitySpecs {
		if q.long && os.Getenv("IPUFARM_LONG") == "" {
			out += old[q.name] // kept as it was measured last
			continue
		}
		c, family, fit, all := compile(t, specOf(t, q.tiles, q.change))
		line := fmt.Sprintf(format, q.name, "-", "-", "-", "-", "-", "-", "-", fmt.Sprintf("0/%d", all))
		if c != nil {
			e := c.Exact
			line = fmt.Sprintf(format, q.name, family, fmt.Sprint(e.Cycles), fmt.Sprint(e.Exchange), fmt.Sprint(e.Phases),
				fmt.Sprint(e.Transfers), fmt.Sprint(e.TableBytesMax), fmt.Sprint(e.SRAMBytesPeak), fmt.Sprintf("%d/%d", fit, all))
		}
		if old[q.name] != line {
			t.Logf("was %snow %s", old[q.name], line)
		}
		out += line
	}
	if *update {
		if err := os.WriteFile(qualityFile, []byte(out), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if out != string(data) {
		t.Errorf("%s is not what the compiler makes now; run go test ./compiler -run Quality -update and review the difference", qualityFile)
	}
}

// Every finalist of the small model fits; the shortlist has at least three families.
func TestShortlist(t *testing.T) {
	s := specOf(t, 64, func(o *workload.Options) { o.FP8, o.FuseQKV = fp8(-4), true })
	_, m, err := s.Model()
	if err != nil {
		t.Fatal(err)
	}
	list, err := plan.Search(m, plan.Options{Tiles: 64, Finalists: 8}, nil)
	if err != nil {
		t.Fatal(err)
	}
	families, recipes := map[string]bool{}, map[string]bool{}
	for i, f := range list {
		families[f.Family] = true
		recipes[fmt.Sprintf("%+v", f.Recipe)] = true
		if f.Rank != i {
			t.Errorf("finalist %d has rank %d", i, f.Rank)
		}
		c, err := compiler.Finish(context.Background(), m, &list[i], silent)
		if err != nil {
			t.Errorf("finalist %d (%s): %v", i, f.Family, err)
			continue
		}
		if c.Exact.Cycles < f.LowerBound {
			t.Errorf("finalist %d (%s): %d exact cycles are below its bound %d", i, f.Family, c.Exact.Cycles, f.LowerBound)
		}
	}
	if len(list) != 8 || len(families) < 3 || len(recipes) != 8 {
		t.Errorf("%d finalists, %d recipes of families %v; want 8 different ones of at least 3", len(list), len(recipes), families)
	}
}

// stages runs plan, schedule and validate of one finalist through files, as the farm
// does, each with a fresh Stages so that nothing but the files is shared.
func stages(t *testing.T, s compiler.Spec, candidate int) (dir string, facts string) {
	t.Helper()
	spec, err := protocol.CanonicalOf(s)
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	inputs := map[string]string{}
	for _, kind := range []protocol.Kind{protocol.KindPlan, protocol.KindSchedule, protocol.KindValidate} {
		out := filepath.Join(dir, string(kind))
		if err := os.Mkdir(out, 0o700); err != nil {
			t.Fatal(err)
		}
		var c compiler.Stages
		res, err := c.Run(context.Background(), protocol.StageRequest{Kind: string(kind), Spec: spec, Candidate: candidate, Inputs: inputs, OutDir: out}, silent)
		if err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		if err := res.Check(); err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		if res.Verdict.Kind != protocol.Feasible {
			t.Fatalf("%s: %+v", kind, res.Verdict)
		}
		for role, name := range res.Artifacts {
			inputs[role] = filepath.Join(out, name)
		}
		facts = string(res.Facts)
	}
	return dir, facts
}

// The same spec gives the same bytes, whatever the number of processors.
func TestSameBytes(t *testing.T) {
	s := specOf(t, 64, func(o *workload.Options) { o.FP8, o.FuseQKV = fp8(-4), true })
	digests := func() string {
		dir, _ := stages(t, s, 2)
		out := ""
		for _, name := range []string{"plan/shortlist", "schedule/scheduled", "validate/package", "validate/parameters", "validate/inputs"} {
			data, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			out += name + " " + program.SHA256(data) + "\n"
		}
		return out
	}
	first := digests()
	before := runtime.GOMAXPROCS(1)
	defer runtime.GOMAXPROCS(before)
	if second := digests(); second != first {
		t.Errorf("with one processor\n%sbefore\n%s", second, first)
	}
	runtime.GOMAXPROCS(4)
	if third := digests(); third != first {
		t.Errorf("with four processors\n%sbefore\n%s", third, first)
	}
}

// A model that is too large ends with a typed refusal of every finalist.
func TestRefusals(t *testing.T) {
	o := workload.Defaults()
	o.FuseQKV = true
	s, err := compiler.NewSpec(o, 64)
	if err != nil {
		t.Fatal(err)
	}
	_, m, err := s.Model()
	if err != nil {
		t.Fatal(err)
	}
	list, err := plan.Search(m, plan.Options{Tiles: 64, Finalists: 3, Effort: 30}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range list {
		_, err := compiler.Finish(context.Background(), m, &list[i], silent)
		var r *compiler.Refusal
		if !errors.As(err, &r) {
			t.Errorf("finalist %d (%s): %v, want a refusal", i, list[i].Family, err)
			continue
		}
		if err := r.Check(); err != nil {
			t.Error(err)
		}
		if r.Constraint == "" || r.Message == "" || r.Needed == 0 {
			t.Errorf("finalist %d: refusal says too little: %+v", i, r.Refusal)
		}
	}
}

// Whatever a scheduled artifact or a shortlist says, a stage answers with an error or
// a verdict and never panics.
func FuzzScheduled(f *testing.F) {
	s := specOf(f, 64, func(o *workload.Options) { o.FuseQKV = true })
	spec, err := protocol.CanonicalOf(s)
	if err != nil {
		f.Fatal(err)
	}
	dir := f.TempDir()
	var c compiler.Stages
	run := func(kind protocol.Kind, inputs map[string]string) (protocol.StageResult, string) {
		out, err := os.MkdirTemp(dir, "")
		if err != nil {
			f.Fatal(err)
		}
		res, err := c.Run(context.Background(), protocol.StageRequest{Kind: string(kind), Spec: spec, Candidate: 0, Inputs: inputs, OutDir: out}, silent)
		if err != nil {
			f.Fatal(err)
		}
		return res, out
	}
	_, planned := run(protocol.KindPlan, nil)
	inputs := map[string]string{protocol.RoleShortlist: filepath.Join(planned, protocol.RoleShortlist)}
	_, scheduled := run(protocol.KindSchedule, inputs)
	good, err := os.ReadFile(filepath.Join(scheduled, protocol.RoleScheduled))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(0, []byte{})
	f.Add(8, []byte{0xFF, 0xFF, 0xFF, 0x7F})
	f.Add(len(good)/2, []byte{1, 2, 3, 4, 5, 6, 7, 8})
	f.Add(len(good)-4, []byte{0xFF, 0xFF, 0xFF, 0xFF})
	f.Fuzz(func(t *testing.T, at int, patch []byte) {
		bad := append([]byte(nil), good...)
		if at < 0 || at > len(bad) {
			return
		}
		copy(bad[at:], patch)
		if len(patch) == 0 {
			bad = bad[:at]
		}
		out := t.TempDir()
		file := filepath.Join(out, "in")
		if err := os.WriteFile(file, bad, 0o600); err != nil {
			t.Fatal(err)
		}
		res, err := c.Run(context.Background(), protocol.StageRequest{Kind: string(protocol.KindValidate), Spec: spec, Candidate: 0, OutDir: out,
			Inputs: map[string]string{protocol.RoleShortlist: inputs[protocol.RoleShortlist], protocol.RoleScheduled: file}}, silent)
		if err == nil && string(bad) != string(good) && res.Verdict.Kind == protocol.Feasible {
			// A moved address or start may still be a right program; verify said so.
			t.Logf("changed bytes at %d still make a package that verifies", at)
		}
	})
}

// Specs and recipes cross a process boundary.
func TestBadSpecs(t *testing.T) {
	good := string(must(protocol.CanonicalOf(specOf(t, 64, func(*workload.Options) {}))))
	for _, c := range []struct{ from, to, want string }{
		{`"tiles":64,"version"`, `"tiles":65,"version"`, "multiples of 64"},
		{`"tiles":64,"version"`, `"tiles":1536,"version"`, "multiples of 64"},
		{`"version":1`, `"version":2`, "version 2"},
		{`"finalists":8`, `"finalists":0`, "0 finalists"},
		{`"effort":400`, `"effort":-1`, "effort"},
		{`"vit_batch":1`, `"vit_batch":0`, "--vit-batch"},
		{`"version":1`, `"version":1,"surprise":1`, "surprise"},
		{`}`, `}}`, "after"},
	} {
		bad := strings.Replace(good, c.from, c.to, 1)
		if c.from == "}" {
			bad = good + "}"
		}
		if bad == good {
			t.Fatalf("%s is not in %s", c.from, good)
		}
		if _, err := compiler.ParseSpec([]byte(bad)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", c.to, err, c.want)
		}
	}
}

func TestBadRecipes(t *testing.T) {
	s := specOf(t, 64, func(*workload.Options) {})
	_, m, err := s.Model()
	if err != nil {
		t.Fatal(err)
	}
	list, err := plan.Search(m, plan.Options{Tiles: 64, Finalists: 1, Effort: 20}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(r *lower.Recipe){
		"steps":        func(r *lower.Recipe) { r.Steps = r.Steps[1:] },
		"tiles":        func(r *lower.Recipe) { r.Tiles = 0 },
		"no grid":      func(r *lower.Recipe) { r.Steps[0].Grid = nil },
		"grid of 0":    func(r *lower.Recipe) { r.Steps[0].Grid = &lower.Grid{M: 0, N: 1, K: 1} },
		"huge grid":    func(r *lower.Recipe) { r.Steps[0].Grid = &lower.Grid{M: 1 << 40, N: 1 << 40, K: 1} },
		"base":         func(r *lower.Recipe) { r.Steps[0].Grid = &lower.Grid{M: 1, N: 1, K: 1, Base: -1} },
		"more rows":    func(r *lower.Recipe) { r.Steps[0].Grid = &lower.Grid{M: 5, N: 1, K: 1} },
		"no owners":    func(r *lower.Recipe) { r.Steps[0].Owners = nil },
		"owners of 0":  func(r *lower.Recipe) { r.Steps[0].Owners = &lower.Owners{PerTile: 0, Stride: 1} },
		"no scores":    func(r *lower.Recipe) { r.Steps[2].Attend = nil },
		"score layout": func(r *lower.Recipe) { a := *r.Steps[2].Attend; a.PK = 9; r.Steps[2].Attend = &a },
	} {
		r := list[0].Recipe
		r.Steps = append([]lower.Choice(nil), r.Steps...)
		change(&r)
		if err := r.Check(m); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}
