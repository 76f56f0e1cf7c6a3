package runcmd

import (
	"bytes"
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"github.com/vbauerster/mpb/v8"

	"ipufarm/compiler"
	"ipufarm/compiler/workload"
	"ipufarm/protocol"
)

// events are those of a job with three finalists.
func events() []*protocol.Event {
	e := func(kind protocol.EventType, candidate int) *protocol.Event {
		return &protocol.Event{Type: kind, Candidate: candidate, Family: "rows", Total: 3}
	}
	refused, feasible, won, checked := e(protocol.EventVerdict, 0), e(protocol.EventVerdict, 1), e(protocol.EventDecided, 1), e(protocol.EventChecked, -1)
	refused.Verdict, refused.Constraint, refused.Decided = protocol.Infeasible, "capacity", 1
	feasible.Verdict, feasible.Cycles, feasible.Decided = protocol.Feasible, 47903, 2
	won.Cycles = 47903
	checked.Cycles, checked.Passed, checked.MaxAbsError = 47903, true, 0.00293
	progress := e(protocol.EventProgress, -1)
	progress.Kind, progress.Message = protocol.KindPlan, "12 recipes priced"
	return []*protocol.Event{
		e(protocol.EventSubmitted, -1), progress, e(protocol.EventPlanned, -1), e(protocol.EventReference, -1), e(protocol.EventStarting, 0),
		refused, feasible, e(protocol.EventPruned, 2), won, e(protocol.EventRunning, 1), checked, e(protocol.EventFinished, -1),
	}
}

func TestLines(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(&out) // not a terminal
	plan, schedule := &protocol.Event{Type: protocol.EventFault, Kind: protocol.KindPlan, Candidate: protocol.NoCandidate, Message: "the child died"},
		&protocol.Event{Type: protocol.EventFault, Kind: protocol.KindSchedule, Candidate: 0, Message: "no memory"}
	infinite := &protocol.Event{Type: protocol.EventChecked, Cycles: 5, MaxAbsError: math.MaxFloat64}
	for _, e := range append(events(), plan, schedule, infinite) {
		p.event(e)
	}
	p.end()
	want := `planned: 3 finalists
reference evaluated
decided 1 of 3: finalist 0 (rows) infeasible: capacity
decided 2 of 3: finalist 1 (rows) feasible, 47,903 modelled cycles
winner: finalist 1 (rows), 47,903 modelled cycles
running
checked: 47,903 modelled cycles, agrees with the reference (max abs error 0.00293)
plan is tried again: the child died
schedule of finalist 0 is tried again: no memory
checked: 5 modelled cycles, does not agree with the reference (max abs error not finite)
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

// The bar ends full, and not before: it counts planning, three finalists, the run
// and its check. One that was cut short stays short.
func TestBar(t *testing.T) {
	all := events()
	// A policy may decide before all finalists were started, and prune late.
	early := slices.DeleteFunc(events(), func(e *protocol.Event) bool { return e.Type == protocol.EventPruned })
	late := slices.Insert(slices.Clone(early), len(early)-3, all[7])
	for _, c := range []struct {
		name   string
		events []*protocol.Event
		want   string
	}{
		{"all", all, "6/6 checked: "},
		{"decided early", early, "6/6 checked: "},
		{"pruned late", late, "6/6 checked: "},
		{"cut short", all[:6], "2/6 decided 1 of 3: "},
		{"planning", all[:2], "0/3 plan: 12 recipes priced"},
	} {
		var out bytes.Buffer
		b := newBar(&out, mpb.WithAutoRefresh())
		for _, e := range c.events {
			b.event(e)
			if b.bar.Completed() {
				t.Errorf("%s: the bar is full at %s", c.name, e.Type)
			}
		}
		b.end()
		if full := strings.HasPrefix(c.want, "6/6"); full != b.bar.Completed() {
			t.Errorf("%s: completed %v", c.name, b.bar.Completed())
		}
		if !strings.Contains(out.String(), c.want) {
			t.Errorf("%s: drawn %q, want %q", c.name, out.String(), c.want)
		}
	}
}

// A job that cannot go on ends with its reason.
func TestGuard(t *testing.T) {
	roomy := func(string) uint64 { return 1 << 40 }
	for _, c := range []struct {
		name   string
		failed error
		free   func(string) uint64
		want   string
	}{
		{"part", errors.New("worker-1: no memory"), roomy, "worker-1: no memory"},
		{"disk", nil, func(string) uint64 { return 17 }, "/state is full: 17 bytes are free, at least 4194304 are needed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			failed := make(chan error, 1)
			if c.failed != nil {
				failed <- c.failed
			}
			ctx, stop := guard(context.Background(), failed, "/state", c.free)
			defer stop()
			<-ctx.Done()
			if got := context.Cause(ctx).Error(); !strings.Contains(got, c.want) {
				t.Errorf("cause %q, want %q", got, c.want)
			}
		})
	}
	t.Run("interrupted", func(t *testing.T) {
		parent, cancel := context.WithCancel(context.Background())
		ctx, stop := guard(parent, nil, "/state", roomy)
		defer stop()
		select {
		case <-ctx.Done():
			t.Error("ended without a reason")
		case <-time.After(time.Millisecond):
		}
		cancel()
		<-ctx.Done()
		if context.Cause(ctx) != context.Canceled {
			t.Errorf("cause %v", context.Cause(ctx))
		}
	})
	if n := free(t.TempDir()); n == 0 || n == math.MaxUint64 {
		t.Errorf("%d bytes are free in a folder for temporary files", n)
	}
}

func finalists(verdicts ...protocol.VerdictKind) (out []protocol.FinalistReport) {
	for i, v := range verdicts {
		out = append(out, protocol.FinalistReport{Rank: i, Verdict: string(v)})
	}
	return out
}

func TestVerdict(t *testing.T) {
	spec, err := compiler.NewSpec(workload.Defaults(), 1472)
	if err != nil {
		t.Fatal(err)
	}
	none := protocol.NoCandidate
	for _, c := range []struct {
		name   string
		report protocol.JobReport
		want   int
	}{
		{"passed", protocol.JobReport{Run: &protocol.RunReport{Passed: true}}, 0},
		{"differs", protocol.JobReport{Run: &protocol.RunReport{}}, ExitReference},
		{"all refused", protocol.JobReport{Winner: none, Finalists: finalists("infeasible", "infeasible")}, ExitNoWinner},
		{"plan refused", protocol.JobReport{Winner: none, Refusal: &protocol.Refusal{}}, ExitNoWinner},
		// Not having found out is not a refusal, and neither is a mistake of the compiler.
		{"one undecided", protocol.JobReport{Winner: none, Finalists: finalists("infeasible", "undecided")}, 1},
		{"one failed", protocol.JobReport{Winner: none, Finalists: finalists("failed", "infeasible")}, 1},
		{"no plan", protocol.JobReport{Winner: none}, 1},
		{"no run", protocol.JobReport{Winner: 0, Finalists: finalists("feasible")}, 1},
	} {
		if err := verdict(&c.report, spec, protocol.Tolerance{}); status(err) != c.want {
			t.Errorf("%s: status %d (%v), want %d", c.name, status(err), err, c.want)
		}
	}
	// Somebody who asks for FP8 and nothing else is told what is missing.
	scale := -4
	spec.Workload.FP8 = &scale
	differs := &protocol.JobReport{Run: &protocol.RunReport{Outputs: []protocol.OutputCheck{{Name: "pooled", Message: "137 of 144 elements"}}}}
	for _, tolerance := range []protocol.Tolerance{defaults().tolerance, {Atol: 0.2}} {
		message := verdict(differs, spec, tolerance).Error()
		if hint := strings.Contains(message, "--diagnostic-atol 0.2"); hint != (tolerance == defaults().tolerance) || !strings.Contains(message, "pooled: 137 of 144") {
			t.Errorf("tolerance %+v: %s", tolerance, message)
		}
	}
}

func TestCompareEstimates(t *testing.T) {
	for _, c := range []struct {
		estimated, exact []uint64
		rho, regret      float64 // NaN: not known
	}{
		{[]uint64{10, 20, 30}, []uint64{11, 22, 33}, 1, 0},
		{[]uint64{10, 20, 30}, []uint64{33, 22, 11}, -1, 22},
		{[]uint64{10, 20, 30}, []uint64{15, 12, 30}, 0.5, 3},
		{[]uint64{10, 10, 30}, []uint64{12, 11, 30}, math.Sqrt(3) / 2, 1}, // equal estimates share rank 0.5; the first of them wins
		{[]uint64{10, 20, 30}, []uint64{11, 0, 0}, math.NaN(), math.NaN()},
		{[]uint64{10, 10}, []uint64{11, 12}, math.NaN(), 0},
		{nil, nil, math.NaN(), math.NaN()},
	} {
		var s summary
		for i := range c.estimated {
			s.Finalists = append(s.Finalists, finalist{Rank: i, EstimatedCycles: c.estimated[i], ExactCycles: c.exact[i]})
		}
		s.compareEstimates()
		rho, regret := math.NaN(), math.NaN()
		if s.RankCorrelation != nil {
			rho = *s.RankCorrelation
		}
		if s.RegretCycles != nil {
			regret = float64(*s.RegretCycles)
		}
		if !near(rho, c.rho) || !near(regret, c.regret) {
			t.Errorf("estimated %v, exact %v: correlation %g and regret %g, want %g and %g", c.estimated, c.exact, rho, regret, c.rho, c.regret)
		}
	}
}

func near(a, b float64) bool {
	return math.IsNaN(a) && math.IsNaN(b) || math.Abs(a-b) < 1e-12
}

// Text that came through the farm does not drive the terminal.
func TestPrintIsPlain(t *testing.T) {
	s := summary{Winner: 0, WinnerFamily: "rows", Why: "\x1b[2Jbest\x07", Device: "sim\u009b0", Error: "a\nb", Finalists: []finalist{
		{Rank: 0, Family: "rows", Verdict: "feasible", ExactCycles: 1234567, Cached: true},
		{Rank: 1, Family: "rows", Verdict: "infeasible", Constraint: "capacity", Message: "\x1b]0;title\x07"},
	}}
	var out bytes.Buffer
	if err := s.print(&out, files{}); err != nil {
		t.Fatal(err)
	}
	for _, r := range out.String() {
		if r != '\n' && (r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0) {
			t.Errorf("control character %q in\n%q", r, out.String())
		}
	}
	for _, part := range []string{"1,234,567", "winner, from the cache", "infeasible: capacity", "best", "FAILED"} {
		if !strings.Contains(out.String(), part) {
			t.Errorf("the table lacks %q:\n%s", part, out.String())
		}
	}
}

func TestGroup(t *testing.T) {
	for n, want := range map[uint64]string{0: "0", 999: "999", 1000: "1,000", 47903: "47,903", math.MaxUint64: "18,446,744,073,709,551,615"} {
		if got := Group(n); got != want {
			t.Errorf("group(%d) = %s, want %s", n, got, want)
		}
	}
}

// Different work has different folders.
func TestSlug(t *testing.T) {
	seen := map[string]string{}
	for _, args := range []string{
		"", "--vit-small", "--vit-small --vit-image-size 42", "--vit-model pe-core-l14", "--vit-model pe-core-l14 --vit-image-size 378", "--vit-batch 2", "--vit-layers 2", "--fuse-qkv",
		"--fp8-scale -4", "--fp8-scale 4", "--tiles 64", "--workload gemm-benchmark", "--workload gemm-benchmark --benchmark-rows 64",
		"--workload siglip-mlp-benchmark", "--workload siglip-mlp-benchmark --mlp-batch 2", "--workload siglip-mlp-benchmark --mlp-blocks 2",
		"--workload siglip-attention-benchmark", "--workload siglip-attention-benchmark --fuse-qkv --attention-blocks 2", "--workload siglip-attention-benchmark --attention-project",
	} {
		o := defaults()
		f := pflag.NewFlagSet("run", pflag.ContinueOnError)
		o.bind(f)
		if err := f.Parse(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		spec, err := compiler.NewSpec(o.workload, o.tiles)
		if err != nil {
			t.Fatal(err)
		}
		name := slug(spec)
		if other, ok := seen[name]; ok {
			t.Errorf("%q and %q share the folder %s", args, other, name)
		}
		seen[name] = args
		if strings.ContainsAny(name, "/ ") || len(name) > 100 {
			t.Errorf("%q: folder %s", args, name)
		}
	}
}
