package runner

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"ipufarm/protocol"
	"ipufarm/protocol/bus"
	"ipufarm/protocol/bus/bustest"
	"ipufarm/protocol/program"
	"ipufarm/protocol/store"
	"ipufarm/protocol/store/storetest"
	"ipufarm/protocol/ticket"
)

func TestMain(m *testing.M) { storetest.Main(m) }

var ctx = context.Background()

// scripted is a device that does what a test says.
type scripted struct {
	run func(ctx context.Context, x Load) (Result, error)
}

func (scripted) Model() string { return "scripted" }
func (s scripted) Run(ctx context.Context, x Load, _ func(string)) (Result, error) {
	return s.run(ctx, x)
}

// bench is a runner on a real bus and a real store.
type bench struct {
	t     *testing.T
	bus   *bus.Bus
	store *store.Store
	dir   string
	cfg   Config
}

func newBench(t *testing.T, device Device) *bench {
	t.Helper()
	server := bustest.Start(t)
	b := &bench{t: t, bus: server.Setup("sim0"), dir: t.TempDir()}
	b.store, _ = storetest.Open(t)
	cache, err := ticket.NewCache(filepath.Join(b.dir, "cache"))
	if err != nil {
		t.Fatal(err)
	}
	b.cfg = Config{Name: "runner-0", DeviceName: "sim0", DeviceClass: "ipu21", Device: device, Bus: server.Connect("runner"), Store: b.store, Cache: cache,
		Dir: filepath.Join(b.dir, "device"), Scratch: filepath.Join(b.dir, "scratch"), Timers: bustest.Timers(), Log: bustest.Log(t)}
	if err := b.cfg.Bus.Join(ctx); err != nil {
		t.Fatal(err)
	}
	return b
}

// start runs the runner until the test ends.
func (b *bench) start() {
	runCtx, cancel := context.WithCancel(ctx)
	ready := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		if err := Run(runCtx, b.cfg, func() { close(ready) }); err != nil {
			b.t.Error(err)
		}
	})
	b.t.Cleanup(func() { cancel(); group.Wait() })
	<-ready
}

// submit queues a run of a package with one output of n elements.
func (b *bench) submit(salt string, file, expected []byte) string {
	b.t.Helper()
	var inputs []protocol.Artifact
	for role, data := range map[string][]byte{protocol.RolePackage: file, protocol.RoleParameters: []byte("p"), protocol.RoleInputs: []byte("i"), protocol.RoleExpected: expected} {
		a, err := b.store.PutBytes(ctx, role, data)
		if err != nil {
			b.t.Fatal(err)
		}
		inputs = append(inputs, a)
	}
	protocol.SortArtifacts(inputs)
	task := &protocol.Task{Version: protocol.Version, Kind: protocol.KindRun, Job: strings.Repeat("0a", 16), Class: protocol.ClassSmall, Priority: 1,
		Tool: strings.Repeat("ab", 32), Spec: json.RawMessage(`{}`), Candidate: protocol.NoCandidate, Inputs: inputs, Salt: salt,
		Run: &protocol.RunWant{DeviceClass: "ipu21", Device: protocol.AnyDevice, Tolerance: protocol.Tolerance{Atol: 0.01}}}
	var err error
	if task.Key, err = protocol.KeyOf(task); err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.bus.CreateRecord(ctx, task.Key, protocol.NewRecord(0, time.Now())); err != nil {
		b.t.Fatal(err)
	}
	if err := b.bus.PublishTicket(ctx, task); err != nil {
		b.t.Fatal(err)
	}
	return task.Key
}

// await waits until a task's record is as asked.
func (b *bench) await(key string, ok func(protocol.Record) bool) protocol.Record {
	b.t.Helper()
	var r protocol.Record
	for range 1000 {
		var err error
		if r, _, err = b.bus.Record(ctx, key); err == nil && ok(r) {
			return r
		}
		time.Sleep(10 * time.Millisecond)
	}
	b.t.Fatalf("the record of %s stays %+v", key, r)
	return r
}

func (b *bench) manifest(key string) (*protocol.Manifest, *protocol.RunReport) {
	b.t.Helper()
	b.await(key, func(r protocol.Record) bool { return r.State == protocol.Done })
	m, _, err := b.store.Manifest(ctx, key)
	if err != nil {
		b.t.Fatal(err)
	}
	report := new(protocol.RunReport)
	if len(m.Facts) > 0 {
		if err := json.Unmarshal(m.Facts, report); err != nil {
			b.t.Fatal(err)
		}
	}
	return m, report
}

func packageOf(t *testing.T, outputs ...program.Binding) []byte {
	t.Helper()
	file, err := program.Encode(&program.Package{SchemaVersion: program.SchemaVersion, Target: program.Target, Outputs: outputs})
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func floats(values ...float32) (out []byte) {
	for _, v := range values {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(v))
	}
	return out
}

func halves(codes ...uint16) (out []byte) {
	for _, c := range codes {
		out = binary.LittleEndian.AppendUint16(out, c)
	}
	return out
}

// TestRunIsCheckedAndRecorded: an output in F16 is compared element by element,
// and everything about the run is in the store.
func TestRunIsCheckedAndRecorded(t *testing.T) {
	b := newBench(t, scripted{func(_ context.Context, x Load) (Result, error) {
		if string(x.Parameters) != "p" || string(x.Inputs) != "i" {
			return Result{}, fmt.Errorf("parameters %q, inputs %q", x.Parameters, x.Inputs)
		}
		return Result{Outputs: halves(0x3C00, 0x4000, 0xC200), Cycles: 1234, Profile: []byte("samples"), Detail: []byte(`{"a":1}`)}, nil // 1, 2, -3
	}})
	b.start()
	file := packageOf(t, program.Binding{Name: "y", DType: "f16", Shape: []uint32{1, 3}})
	m, report := b.manifest(b.submit("good", file, floats(1, 2.005, -3)))
	if m.Verdict.Kind != protocol.Feasible || !report.Passed || report.Cycles != 1234 || math.Abs(report.MaxAbsError-0.005) > 1e-6 || report.Model != "scripted" || report.Device != "sim0" {
		t.Errorf("verdict %+v, report %+v", m.Verdict, report)
	}
	for role, want := range map[string]string{protocol.RoleProfile: "samples", protocol.RoleOutputs: string(floats(1, 2, -3)), protocol.RoleRun: string(m.Facts)} {
		a, ok := protocol.FindArtifact(m.Artifacts, role)
		if !ok {
			t.Fatalf("no artifact %s", role)
		}
		if data, err := b.store.GetBytes(ctx, a); err != nil || string(data) != want {
			t.Errorf("artifact %s is %q, %v", role, data, err)
		}
	}
	if _, report := b.manifest(b.submit("off", file, floats(1, 2.5, -3))); report.Passed || report.Outputs[0].Mismatches != 1 {
		t.Errorf("an output that is off passed: %+v", report)
	}
	if _, err := b.bus.Holder(ctx, "sim0"); !errors.Is(err, bus.ErrNotFound) {
		t.Errorf("the device is still leased: %v", err)
	}
}

// TestOutputsThatCannotBeCompared end as failures that name what is wrong.
func TestOutputsThatCannotBeCompared(t *testing.T) {
	y := program.Binding{Name: "y", DType: "f32", Shape: []uint32{2}}
	good := floats(1, 2)
	for name, c := range map[string]struct {
		file              []byte
		outputs, expected []byte
		want              string
	}{
		"rubbish package":  {[]byte("rubbish"), good, good, "package"},
		"short output":     {packageOf(t, y), good[:4], good, "output y"},
		"long output":      {packageOf(t, y), append(good, 0), good, "bytes more"},
		"long reference":   {packageOf(t, y), good, floats(1, 2, 3), "elements more"},
		"no outputs":       {packageOf(t), nil, nil, "no outputs"},
		"odd reference":    {packageOf(t, y), good, good[:7], "float32"},
		"unknown elements": {packageOf(t, program.Binding{Name: "y", DType: "f143", Shape: []uint32{2}}), good, good, "f143"},
	} {
		task := &protocol.Task{Run: &protocol.RunWant{}}
		_, _, err := check(c.file, Result{Outputs: c.outputs}, c.expected, task)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", name, err, c.want)
		}
	}
	// A reference that is too short is a comparison that does not pass.
	report, _, err := check(packageOf(t, y), Result{Outputs: good}, floats(1), &protocol.Task{Run: &protocol.RunWant{}})
	if err != nil || report.Passed {
		t.Errorf("a short reference: %+v, %v", report, err)
	}
	nan, _, err := check(packageOf(t, y), Result{Outputs: floats(1, float32(math.NaN()))}, good, &protocol.Task{Run: &protocol.RunWant{}})
	if err != nil || nan.Passed || nan.MaxAbsError != math.MaxFloat64 {
		t.Errorf("a NaN: %+v, %v", nan, err)
	}
	if _, err := json.Marshal(nan); err != nil {
		t.Error(err)
	}
}

// FuzzOutputs: shapes and sizes from a package are not trusted.
func FuzzOutputs(f *testing.F) {
	f.Add(uint32(2), uint32(3), true, []byte("123456789012"))
	f.Add(uint32(1<<31), uint32(1<<31), false, []byte{})
	f.Fuzz(func(t *testing.T, a, b uint32, half bool, file []byte) {
		dtype := "f32"
		if half {
			dtype = "f16"
		}
		out, err := decodeOutputs([]program.Binding{{Name: "y", DType: dtype, Shape: []uint32{a, b}}}, file)
		if err == nil && uint64(len(out[0])) != uint64(a)*uint64(b) {
			t.Fatalf("%d elements of shape %d x %d", len(out[0]), a, b)
		}
	})
}

// TestFaultsAndTroubles: what the package did wrong is a verdict, what the runner
// met is not.
func TestFaultsAndTroubles(t *testing.T) {
	calls := 0
	b := newBench(t, scripted{func(_ context.Context, x Load) (Result, error) {
		calls++
		if strings.Contains(string(x.Package), "bad") {
			return Result{}, fmt.Errorf("%w: tile 7, phase 3: unaligned address", ErrFault)
		}
		if calls < 4 {
			return Result{}, errors.New("the bus of the card is busy")
		}
		return Result{Outputs: floats(1), Profile: []byte("x")}, nil
	}})
	b.start()
	m, _ := b.manifest(b.submit("bad", []byte("bad"), floats(1)))
	if m.Verdict.Kind != protocol.Failed || !strings.Contains(m.Verdict.Message, "tile 7, phase 3") {
		t.Errorf("a fault of the package: %+v", m.Verdict)
	}
	key := b.submit("busy", packageOf(t, program.Binding{Name: "y", DType: "f32", Shape: []uint32{1}}), floats(1))
	m, report := b.manifest(key)
	if r, _, err := b.bus.Record(ctx, key); m.Verdict.Kind != protocol.Feasible || !report.Passed || err != nil || r.Infra != 2 {
		t.Errorf("after two troubles: %+v, %+v, %v", m.Verdict, r, err)
	}
}

// TestOneOwnerAtATime: while somebody else has the lease, or the lock of the
// kernel, the runner leaves the device alone and the run waits without counting.
func TestOneOwnerAtATime(t *testing.T) {
	ran := make(chan struct{}, 10)
	b := newBench(t, scripted{func(context.Context, Load) (Result, error) {
		ran <- struct{}{}
		return Result{Outputs: floats(1), Profile: []byte("x")}, nil
	}})
	b.start()
	file := packageOf(t, program.Binding{Name: "y", DType: "f32", Shape: []uint32{1}})
	other := &protocol.Lease{Version: 1, Owner: protocol.Owner{Name: "other", Boot: "0123456789abcdef"}, Run: strings.Repeat("0", 64)}
	rev, err := b.bus.TakeLease(ctx, "sim0", other)
	if err != nil {
		t.Fatal(err)
	}
	key := b.submit("leased", file, floats(1))
	b.await(key, func(r protocol.Record) bool { return r.Attempt >= 2 })
	lock, err := os.OpenFile(filepath.Join(b.cfg.Dir, "sim0.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if err := b.bus.DropLease(ctx, "sim0", rev); err != nil {
		t.Fatal(err)
	}
	attempts := b.await(key, func(protocol.Record) bool { return true }).Attempt
	b.await(key, func(r protocol.Record) bool { return r.Attempt >= attempts+3 })
	if len(ran) != 0 {
		t.Error("the device ran while somebody else had it")
	}
	lock.Close()
	_, report := b.manifest(key)
	if r, _, err := b.bus.Record(ctx, key); err != nil || r.Infra != 0 || r.Crash != 0 || len(ran) != 1 || !report.Passed {
		t.Errorf("record %+v, %v; %d runs", r, err, len(ran))
	}
}

// TestLostLeaseFencesTheRun: a lease that was forced away stops the run, and the
// run is done again under a later epoch.
func TestLostLeaseFencesTheRun(t *testing.T) {
	started := make(chan struct{}, 10)
	stopped := make(chan error, 10)
	first := true
	b := newBench(t, scripted{func(ctx context.Context, _ Load) (Result, error) {
		if !first {
			return Result{Outputs: floats(1), Profile: []byte("x")}, nil
		}
		first = false
		started <- struct{}{}
		<-ctx.Done()
		stopped <- context.Cause(ctx)
		return Result{}, ctx.Err()
	}})
	b.start()
	key := b.submit("fenced", packageOf(t, program.Binding{Name: "y", DType: "f32", Shape: []uint32{1}}), floats(1))
	<-started
	if err := b.bus.ForceLease(ctx, "sim0"); err != nil {
		t.Fatal(err)
	}
	if err := <-stopped; !errors.Is(err, errFenced) {
		t.Errorf("stopped with %v", err)
	}
	if _, report := b.manifest(key); !report.Passed {
		t.Errorf("report %+v", report)
	}
	journal, err := os.ReadFile(filepath.Join(b.cfg.Dir, "sim0.journal"))
	if err != nil || strings.Count(string(journal), "start run "+key) != 2 || strings.Count(string(journal), "end run "+key) != 2 {
		t.Errorf("journal %s, %v", journal, err)
	}
}

// TestStaleRunnerIsRefused: an epoch that is not later than the one in the file
// is of a runner from the past.
func TestStaleRunnerIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "epoch")
	for _, c := range []struct {
		e  epoch
		ok bool
	}{{epoch{0, 5}, true}, {epoch{0, 5}, false}, {epoch{0, 4}, false}, {epoch{0, 9}, true}, {epoch{1, 2}, true}, {epoch{0, 99}, false}, {epoch{1, 3}, true}} {
		if err := raiseEpoch(path, c.e); (err == nil) != c.ok {
			t.Errorf("epoch %+v: %v", c.e, err)
		}
	}
	if err := os.WriteFile(path, []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := raiseEpoch(path, epoch{9, 9}); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a damaged epoch file: %v", err)
	}
}

// TestSimulatorNamesBadPackages: the simulated device answers rubbish with a
// fault, which is a verdict.
func TestSimulatorNamesBadPackages(t *testing.T) {
	for name, x := range map[string]Load{
		"rubbish": {Package: []byte("rubbish")},
		"empty":   {Package: packageOf(t)},
	} {
		if _, err := (Simulator{}).Run(ctx, x, func(string) {}); !errors.Is(err, ErrFault) {
			t.Errorf("%s: %v, want a fault", name, err)
		}
	}
	if !strings.Contains(Simulator{}.Model(), "modelled") {
		t.Error("the simulator does not say that its cycles are modelled")
	}
}
