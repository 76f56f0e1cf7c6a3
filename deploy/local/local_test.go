package local

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"ipufarm/protocol"
	"ipufarm/protocol/bus/bustest"
	"ipufarm/protocol/program"
	"ipufarm/runner"
	"ipufarm/worker"
)

// TestMain lets the test binary be the child process of a worker.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "fake-stage" {
		os.Exit(worker.ChildMain(fakeStage))
	}
	os.Exit(m.Run())
}

// fake is the spec of a made-up compiler: what becomes of each finalist.
type fake struct {
	Finalists []fakeFinalist `json:"finalists"`
	PlanFails string         `json:"plan_fails,omitempty"`
	Off       float64        `json:"off,omitempty"`       // error of the device's outputs
	Reference float64        `json:"reference,omitempty"` // milliseconds
	Dir       string         `json:"dir,omitempty"`       // where attempts are counted
	Salt      int            `json:"salt,omitempty"`      // makes another spec of it
}

type fakeFinalist struct {
	Cycles  uint64  `json:"cycles,omitempty"` // exact; 0 is infeasible
	Bound   uint64  `json:"bound,omitempty"`
	Millis  float64 `json:"millis,omitempty"`  // of the schedule
	Crashes int     `json:"crashes,omitempty"` // attempts of the schedule that kill the child
	Panics  bool    `json:"panics,omitempty"`
	Lies    bool    `json:"lies,omitempty"` // says feasible and leaves no artifact
}

func fakeStage(ctx context.Context, req protocol.StageRequest, progress func(string)) (protocol.StageResult, error) {
	var spec fake
	if err := json.Unmarshal(req.Spec, &spec); err != nil {
		return protocol.StageResult{}, err
	}
	feasible := protocol.StageResult{Verdict: protocol.Verdict{Kind: protocol.Feasible}, Artifacts: map[string]string{}}
	put := func(role string, data []byte) error {
		feasible.Artifacts[role] = role + ".bin"
		return os.WriteFile(filepath.Join(req.OutDir, role+".bin"), data, 0o600)
	}
	progress("working on " + req.Kind)
	switch protocol.Kind(req.Kind) {
	case protocol.KindPlan:
		if spec.PlanFails != "" {
			return protocol.StageResult{}, fmt.Errorf("%s", spec.PlanFails)
		}
		var facts protocol.PlanFacts
		for i, f := range spec.Finalists {
			facts.Finalists = append(facts.Finalists, protocol.PlannedFinalist{Rank: i, Family: fmt.Sprintf("family-%d", i%3), EstimatedCycles: 100 + f.Cycles, LowerBoundCycles: f.Bound})
		}
		feasible.Facts, _ = json.Marshal(facts)
		return feasible, put(protocol.RoleShortlist, req.Spec)
	case protocol.KindSchedule:
		return fakeSchedule(ctx, req, spec, feasible, put)
	case protocol.KindValidate:
		scheduled, err := os.ReadFile(req.Inputs[protocol.RoleScheduled])
		if err != nil {
			return protocol.StageResult{}, err
		}
		f := spec.Finalists[req.Candidate]
		feasible.Verdict.Cycles = f.Cycles
		feasible.Facts = json.RawMessage(fmt.Sprintf(`{"exact_cycles":%d}`, f.Cycles))
		file, err := program.Encode(&program.Package{SchemaVersion: program.SchemaVersion, Target: program.Target, CompilerVersion: string(scheduled),
			Outputs: []program.Binding{{Name: "y", DType: "f32", Shape: []uint32{4}}}})
		if err != nil {
			return protocol.StageResult{}, err
		}
		for role, data := range map[string][]byte{protocol.RolePackage: file, protocol.RoleParameters: floats(1+spec.Off, 2, 3, 4), protocol.RoleInputs: {}} {
			if err := put(role, data); err != nil {
				return protocol.StageResult{}, err
			}
		}
		return feasible, nil
	case protocol.KindReference:
		sleep(ctx, spec.Reference)
		return feasible, put(protocol.RoleExpected, floats(1, 2, 3, 4))
	}
	return protocol.StageResult{}, fmt.Errorf("no stage %q", req.Kind)
}

func fakeSchedule(ctx context.Context, req protocol.StageRequest, spec fake, feasible protocol.StageResult, put func(string, []byte) error) (protocol.StageResult, error) {
	f := spec.Finalists[req.Candidate]
	if f.Crashes > 0 {
		path := filepath.Join(spec.Dir, fmt.Sprintf("attempts-%d", req.Candidate))
		old, _ := os.ReadFile(path)
		if err := os.WriteFile(path, append(old, 'x'), 0o600); err != nil {
			return protocol.StageResult{}, err
		}
		if len(old) < f.Crashes {
			fmt.Fprintln(os.Stderr, "about to die")
			os.Exit(9)
		}
	}
	if f.Panics {
		panic("a bug in the stage")
	}
	sleep(ctx, f.Millis)
	if f.Lies {
		return feasible, nil
	}
	if f.Cycles == 0 {
		return protocol.StageResult{Verdict: protocol.Verdict{Kind: protocol.Infeasible, Refusal: &protocol.Refusal{
			Constraint: protocol.Capacity, Tile: 7, Step: -1, Needed: 700_000, Free: 600_000, LargestHole: 500_000, Message: "tile 7 is full"}}}, nil
	}
	return feasible, put(protocol.RoleScheduled, fmt.Appendf(nil, "candidate %d", req.Candidate))
}

func rawConnect(t testing.TB, f *Farm) *nats.Conn {
	t.Helper()
	raw, err := nats.Connect(f.NATS, nats.UserInfo(f.creds.natsUser, f.creds.natsPassword))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(raw.Close)
	return raw
}

func listen(t testing.TB, port int) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func sleep(ctx context.Context, millis float64) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(millis * float64(time.Millisecond))):
	}
}

func floats(values ...float64) []byte {
	var out []byte
	for _, v := range values {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(float32(v)))
	}
	return out
}

// echo is a device that returns its parameters.
type echo struct{ runs atomic.Int32 }

func (*echo) Model() string { return "echo, no device" }

func (e *echo) Run(_ context.Context, x runner.Load, progress func(string)) (runner.Result, error) {
	e.runs.Add(1)
	progress("echoing")
	if bytes.Contains(x.Package, []byte("candidate 666")) {
		return runner.Result{}, fmt.Errorf("%w: rule broken", runner.ErrFault)
	}
	return runner.Result{Outputs: x.Parameters, Cycles: 4711, Profile: []byte("profile"), Detail: []byte(`{}`)}, nil
}

func start(t testing.TB, o Options) *Farm {
	t.Helper()
	if o.Command == nil && o.Stage == nil {
		o.Stage = fakeStage
	}
	if o.Device == nil {
		o.Device = &echo{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
	}
	o.Timers = bustest.Timers()
	f, err := Start(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func submit(t testing.TB, f *Farm, spec fake, policy protocol.Policy) string {
	t.Helper()
	id, err := f.Client.Submit(context.Background(), job(t, f, spec, policy))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func job(t testing.TB, f *Farm, spec fake, policy protocol.Policy) protocol.Job {
	t.Helper()
	data, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	return protocol.Job{Spec: data, Policy: policy, DeviceClass: DeviceClass, Device: protocol.AnyDevice, Priority: 1, Tool: f.Tool,
		Tolerance: protocol.Tolerance{Atol: 0.01}}
}

func result(t testing.TB, f *Farm, id string) *protocol.JobReport {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := f.Client.Result(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// eight finalists: the first that is feasible has rank 2, the best rank 5.
var eight = fake{Finalists: []fakeFinalist{
	{}, {Millis: 30}, {Cycles: 900, Bound: 500, Millis: 60}, {Cycles: 950, Bound: 940}, {}, {Cycles: 700, Bound: 600, Millis: 10}, {Cycles: 800, Bound: 100}, {},
}}

func TestJobFromSubmissionToReport(t *testing.T) {
	f := start(t, Options{Workers: 2})
	id := submit(t, f, eight, protocol.Policy{Name: protocol.FirstFeasible})
	var types []string
	seen := map[protocol.EventType]int{}
	err := f.Client.Watch(context.Background(), id, func(e *protocol.Event) error {
		if e.N > 0 {
			types = append(types, string(e.Type))
		}
		seen[e.Type]++
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []protocol.EventType{protocol.EventSubmitted, protocol.EventPlanned, protocol.EventReference, protocol.EventDecided, protocol.EventRunning, protocol.EventChecked, protocol.EventFinished} {
		if seen[want] != 1 {
			t.Errorf("%d events %q in %v", seen[want], want, types)
		}
	}
	r, err := f.Client.Report(context.Background(), id)
	if err != nil {
		t.Fatal(err)
	}
	if r.State != protocol.JobDone || !r.Passed || r.Winner != 2 || r.Run == nil || r.Run.Cycles != 4711 || r.Run.MaxAbsError != 0 {
		t.Errorf("report %+v", r)
	}
	if len(r.Finalists) != 8 {
		t.Fatalf("%d finalists", len(r.Finalists))
	}
	if x := r.Finalists[0]; x.Verdict != "infeasible" || x.Constraint != protocol.Capacity || x.Refusal.Tile != 7 {
		t.Errorf("finalist 0 is %+v", x)
	}
	if x := r.Finalists[2]; x.Verdict != "feasible" || x.ExactCycles != 900 || x.EstimatedCycles != 1000 || x.Family != "family-2" {
		t.Errorf("finalist 2 is %+v", x)
	}
	if x := r.Finalists[7]; x.Verdict != "cancelled" {
		t.Errorf("finalist 7 is %+v", x)
	}
	for _, role := range []string{protocol.RoleShortlist, protocol.RoleScheduled, protocol.RolePackage, protocol.RoleParameters, protocol.RoleInputs, protocol.RoleExpected, protocol.RoleOutputs, protocol.RoleProfile, protocol.RoleRun} {
		a, ok := r.Artifacts[role]
		if !ok {
			t.Errorf("no artifact %s in %v", role, r.Artifacts)
			continue
		}
		if err := f.Client.Fetch(context.Background(), a, filepath.Join(t.TempDir(), role)); err != nil {
			t.Error(err)
		}
	}
	for _, stage := range []string{"plan", "schedule", "validate", "reference", "run", "total"} {
		if s, ok := r.StageSeconds[stage]; !ok || s < 0 || s > r.StageSeconds["total"] {
			t.Errorf("%v seconds of %s in %v", s, stage, r.StageSeconds)
		}
	}
}

func TestOutcomes(t *testing.T) {
	f := start(t, Options{Workers: 2})
	first := protocol.Policy{Name: protocol.FirstFeasible}
	for _, c := range []struct {
		name   string
		spec   fake
		policy protocol.Policy
		state  protocol.JobState
		passed bool
		winner int
		text   string // in the error
	}{
		{"wrong outputs", fake{Finalists: eight.Finalists, Off: 0.5}, first, protocol.JobDone, false, 2, ""},
		{"nobody fits", fake{Finalists: []fakeFinalist{{}, {}, {}}}, first, protocol.JobFailed, false, -1, "no feasible candidate: 3 refused"},
		{"plan fails", fake{PlanFails: "the graph has no nodes"}, first, protocol.JobFailed, false, -1, "plan: the graph has no nodes"},
		{"no finalists", fake{}, first, protocol.JobFailed, false, -1, "0 finalists"},
		{"best", eight, protocol.Policy{Name: protocol.BestExact}, protocol.JobDone, true, 5, ""},
		{"first two", eight, protocol.Policy{Name: protocol.FirstK, K: 2}, protocol.JobDone, true, 2, ""},
		{"first four", eight, protocol.Policy{Name: protocol.FirstK, K: 4}, protocol.JobDone, true, 5, ""},
		{"verify all", eight, protocol.Policy{Name: protocol.VerifyAll}, protocol.JobDone, true, 5, ""},
		{"a panic is a failed finalist", fake{Finalists: []fakeFinalist{{Panics: true, Cycles: 1}, {Cycles: 5}}}, first, protocol.JobDone, true, 1, ""},
		{"a lie is a failed finalist", fake{Finalists: []fakeFinalist{{Lies: true, Cycles: 1}, {Cycles: 5}}}, first, protocol.JobDone, true, 1, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := result(t, f, submit(t, f, c.spec, c.policy))
			if r.State != c.state || r.Passed != c.passed || r.Winner != c.winner || !strings.Contains(r.Error, c.text) {
				t.Errorf("state %s, passed %v, winner %d, error %q", r.State, r.Passed, r.Winner, r.Error)
			}
			if c.name == "verify all" {
				for _, x := range r.Finalists {
					if x.Verdict != "feasible" && x.Verdict != "infeasible" {
						t.Errorf("finalist %d is %s", x.Rank, x.Verdict)
					}
				}
			}
		})
	}
}
