package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ipufarm/protocol"
	"ipufarm/protocol/bus"
	"ipufarm/protocol/bus/bustest"
	"ipufarm/protocol/store"
	"ipufarm/protocol/ticket"
	"ipufarm/worker"
)

var first = protocol.Policy{Name: protocol.FirstFeasible}

// three finalists, of which the second wins; salt makes the tasks new.
func three(salt int) fake {
	return fake{Finalists: []fakeFinalist{{}, {Cycles: 10}, {Cycles: 5, Millis: 5}}, Salt: salt}
}

func expectWinner(t *testing.T, r *protocol.JobReport, winner int) {
	t.Helper()
	if r.State != protocol.JobDone || !r.Passed || r.Winner != winner {
		t.Errorf("state %s, passed %v, winner %d (want %d), error %q", r.State, r.Passed, r.Winner, winner, r.Error)
	}
	// The log of decisions has no gap and says each thing once.
	count := map[string]int{}
	for i, e := range r.Log {
		if e.N != i+1 {
			t.Errorf("entry %d of the log has number %d", i, e.N)
		}
		count[fmt.Sprint(e.Type, e.Candidate)]++
	}
	for what, n := range count {
		if n > 1 && !strings.HasPrefix(what, string(protocol.EventStarting)) && !strings.HasPrefix(what, string(protocol.EventPruned)) {
			t.Errorf("%d entries %q in the log", n, what)
		}
	}
}

// TestCoordinatorDiesBeforeEachEffect kills the coordinator before its first
// effect of a job, before the second of the next job, and so on, and starts it
// again on what it left. No job may notice.
func TestCoordinatorDiesBeforeEachEffect(t *testing.T) {
	var left atomic.Int64 // effects until the kill
	var effect atomic.Value
	left.Store(-1)
	died := errors.New("died")
	f := start(t, Options{Workers: 2, failpoint: func(name string) error {
		if left.Add(-1) == 0 {
			effect.Store(name)
			return died
		}
		return nil
	}})
	for n := int64(1); n < 200; n++ {
		left.Store(n)
		restarted := make(chan bool)
		stop := make(chan struct{})
		go func() {
			select {
			case <-f.coordinatorDone:
				f.restartCoordinator(t)
				restarted <- true
			case <-stop:
				restarted <- false
			}
		}()
		id := submit(t, f, three(int(n)), first)
		r := result(t, f, id)
		left.Store(-1)
		close(stop)
		if !<-restarted {
			if n < 20 {
				t.Errorf("a job has only %d effects", n)
			}
			expectWinner(t, r, 1)
			return
		}
		expectWinner(t, r, 1)
		if t.Failed() {
			t.Fatalf("after a kill before effect %d, %s", n, effect.Load())
		}
	}
	t.Error("the last effect was never reached")
}

// restartCoordinator starts a coordinator on the state of one that has ended.
func (f *Farm) restartCoordinator(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	old := f.cancel
	f.cancel = func() { cancel(); old() }
	if err := f.startCoordinator(ctx); err != nil {
		t.Errorf("restart of the coordinator: %v", err)
	}
}

// TestRandomDeaths kills coordinator and workers at random while jobs run.
func TestRandomDeaths(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	var mu sync.Mutex
	kill := atomic.Bool{}
	f := start(t, Options{Workers: 1, failpoint: func(string) error {
		mu.Lock()
		defer mu.Unlock()
		if kill.Load() && random.IntN(15) == 0 {
			return errors.New("died")
		}
		return nil
	}})
	kill.Store(true)
	stop := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		for {
			select {
			case <-f.coordinatorDone:
				kill.Store(false)
				f.restartCoordinator(t)
				kill.Store(true)
			case <-stop:
				kill.Store(false)
				return
			}
		}
	})
	group.Go(func() { // workers that come and go, half of them without a word
		for i := 0; ; i++ {
			w := startWorker(t, f, fmt.Sprintf("guest-%d", i), fakeStage)
			select {
			case <-time.After(100 * time.Millisecond):
				w.kill()
			case <-stop:
				w.stop()
				return
			}
		}
	})
	for i := range 3 {
		spec := fake{Finalists: eight.Finalists, Salt: i}
		want := 2
		policy := first
		if i%2 == 1 {
			policy, want = protocol.Policy{Name: protocol.BestExact}, 5
		}
		expectWinner(t, result(t, f, submit(t, f, spec, policy)), want)
	}
	close(stop)
	group.Wait()
}

// guest is a worker beside those of the farm.
type guest struct {
	kill, stop func()
}

func startWorker(t *testing.T, f *Farm, name string, stage protocol.StageFunc) guest {
	t.Helper()
	b, err := bus.Connect(bus.Config{Server: f.nats, User: f.creds.natsUser, Password: f.creds.natsPassword, Name: name, Log: bustest.Log(t)})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Join(context.Background()); err != nil {
		t.Fatal(err)
	}
	cache, err := ticket.NewCache(filepath.Join(f.dir, "cache-"+name))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	ready := make(chan struct{})
	go func() {
		defer close(done)
		worker.Run(ctx, worker.Config{Name: name, Slots: 1, Bus: b, Store: f.Client.Store, Cache: cache, Scratch: filepath.Join(f.dir, "scratch-"+name),
			Tool: f.Tool, Timers: bustest.Timers(), Log: bustest.Log(t), Stage: stage}, func() { close(ready) })
	}()
	<-ready
	var once sync.Once
	end := func(orderly bool) {
		once.Do(func() {
			if !orderly {
				b.Close() // as when the process dies: nothing it wants to say is heard
			}
			cancel()
			<-done
			b.Close()
		})
	}
	t.Cleanup(func() { end(true) })
	return guest{kill: func() { end(false) }, stop: func() { end(true) }}
}

// TestWorkerDiesInATask: the task of a dead worker is done by another, and counts
// as one crash.
func TestWorkerDiesInATask(t *testing.T) {
	f := start(t, Options{Workers: 1, Stage: fakeStage})
	caught := make(chan struct{})
	var once sync.Once
	victim := startWorker(t, f, "victim", func(ctx context.Context, req protocol.StageRequest, progress func(string)) (protocol.StageResult, error) {
		once.Do(func() { close(caught) })
		<-ctx.Done()
		return protocol.StageResult{}, ctx.Err()
	})
	id := submit(t, f, three(0), first)
	<-caught
	victim.kill()
	expectWinner(t, result(t, f, id), 1)
}

// TestWorkerLeavesInOrder: what a worker gives back counts nowhere.
func TestWorkerLeavesInOrder(t *testing.T) {
	f := start(t, Options{Workers: 1})
	caught := make(chan protocol.StageRequest, 10)
	leaver := startWorker(t, f, "leaver", func(ctx context.Context, req protocol.StageRequest, progress func(string)) (protocol.StageResult, error) {
		caught <- req
		<-ctx.Done()
		return protocol.StageResult{}, ctx.Err()
	})
	id := submit(t, f, three(0), first)
	<-caught
	leaver.stop()
	r := result(t, f, id)
	expectWinner(t, r, 1)
	for key := range recordsOf(t, f, id) {
		record, _, err := f.Client.Bus.Record(context.Background(), key)
		if err != nil || record.Crash != 0 || record.Infra != 0 {
			t.Errorf("record %+v, %v", record, err)
		}
	}
}

// recordsOf lists the keys of a job's tasks from its events.
func recordsOf(t *testing.T, f *Farm, id string) map[string]protocol.Kind {
	t.Helper()
	keys := map[string]protocol.Kind{}
	err := f.Client.Watch(context.Background(), id, func(e *protocol.Event) error {
		if e.Key != "" {
			keys[e.Key] = e.Kind
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// TestSameWinnerWithAnyWorkers runs the same jobs with one worker and with four.
func TestSameWinnerWithAnyWorkers(t *testing.T) {
	var packages [2][]string
	for i, workers := range []int{1, 4} {
		f := start(t, Options{Workers: workers})
		for _, policy := range []protocol.Policy{first, {Name: protocol.BestExact}, {Name: protocol.FirstK, K: 3}} {
			r := result(t, f, submit(t, f, eight, policy))
			packages[i] = append(packages[i], fmt.Sprint(r.Winner, " ", r.Artifacts[protocol.RolePackage].SHA256))
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if fmt.Sprint(packages[0]) != fmt.Sprint(packages[1]) {
		t.Errorf("one worker: %v\nfour workers: %v", packages[0], packages[1])
	}
}

// TestChildProcesses runs stages in children: one that dies and comes back, one
// that always dies, one that is killed because nobody wants its result.
func TestChildProcesses(t *testing.T) {
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f := start(t, Options{Workers: 2, Command: []string{executable, "fake-stage"}})
	t.Run("dies twice", func(t *testing.T) {
		spec := three(1)
		spec.Dir, spec.Finalists[0].Crashes, spec.Finalists[0].Cycles = t.TempDir(), 2, 7
		expectWinner(t, result(t, f, submit(t, f, spec, first)), 0)
	})
	t.Run("always dies", func(t *testing.T) {
		spec := three(2)
		spec.Dir, spec.Finalists[0].Crashes = t.TempDir(), 99
		r := result(t, f, submit(t, f, spec, first))
		if r.State != protocol.JobFailed || !strings.Contains(r.Error, "undecided at rank 0") || r.Finalists[0].Verdict != "undecided" || !strings.Contains(r.Finalists[0].Message, "about to die") {
			t.Errorf("state %s, error %q, finalist %+v", r.State, r.Error, r.Finalists[0])
		}
		lenient := three(3)
		lenient.Dir, lenient.Finalists[0].Crashes = spec.Dir, 99
		expectWinner(t, result(t, f, submit(t, f, lenient, protocol.Policy{Name: protocol.FirstFeasible, Lenient: true})), 1)
	})
	t.Run("panics", func(t *testing.T) {
		spec := three(4)
		spec.Finalists[0].Panics = true
		r := result(t, f, submit(t, f, spec, first))
		expectWinner(t, r, 1)
		if x := r.Finalists[0]; x.Verdict != "failed" || !strings.Contains(x.Message, "a bug in the stage") {
			t.Errorf("finalist 0 is %+v", x)
		}
	})
	t.Run("loser is killed", func(t *testing.T) {
		spec := three(5)
		spec.Finalists[0].Cycles, spec.Finalists[1].Millis, spec.Finalists[0].Millis = 3, 3_600_000, 300
		start := time.Now()
		expectWinner(t, result(t, f, submit(t, f, spec, first)), 0)
		// The slot is free again: the next job needs both.
		spec.Salt, spec.Finalists[1].Millis = 6, 0
		expectWinner(t, result(t, f, submit(t, f, spec, protocol.Policy{Name: protocol.VerifyAll})), 0)
		t.Logf("%v", time.Since(start))
	})
}

// TestCancelledJob stops what works for it.
func TestCancelledJob(t *testing.T) {
	f := start(t, Options{Workers: 2})
	spec := three(0)
	spec.Finalists[0].Millis, spec.Finalists[1].Millis = 3_600_000, 3_600_000
	id := submit(t, f, spec, first)
	err := f.Client.Watch(context.Background(), id, func(e *protocol.Event) error {
		if e.Type == protocol.EventStarted && e.Kind == protocol.KindSchedule {
			return f.Client.Cancel(context.Background(), id)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	r := result(t, f, id)
	if r.State != protocol.JobCancelled || r.Error == "" {
		t.Errorf("state %s, error %q", r.State, r.Error)
	}
	expectWinner(t, result(t, f, submit(t, f, three(1), first)), 1) // with free slots
	// A task that was cancelled can be wanted again.
	spec.Finalists[0].Millis, spec.Finalists[1].Millis = 0, 0
	expectWinner(t, result(t, f, submit(t, f, three(0), first)), 1)
}

// TestEqualJobsShareTasks: three jobs that want the same are worked for once, and
// the end of one takes nothing from the others.
func TestEqualJobsShareTasks(t *testing.T) {
	var executed atomic.Int32
	proceed := make(chan struct{})
	f := start(t, Options{Workers: 2, Stage: func(ctx context.Context, req protocol.StageRequest, progress func(string)) (protocol.StageResult, error) {
		executed.Add(1)
		select {
		case <-proceed:
		case <-ctx.Done():
			return protocol.StageResult{}, ctx.Err()
		}
		return fakeStage(ctx, req, progress)
	}})
	spec := fake{Finalists: []fakeFinalist{{}, {Cycles: 10}}}
	a, b, c := submit(t, f, spec, first), submit(t, f, spec, first), submit(t, f, spec, first)
	if err := f.Client.Cancel(context.Background(), a); err != nil {
		t.Fatal(err)
	}
	close(proceed)
	expectWinner(t, result(t, f, b), 1)
	expectWinner(t, result(t, f, c), 1)
	if r := result(t, f, a); r.State != protocol.JobCancelled {
		t.Errorf("the cancelled job is %s", r.State)
	}
	if n := executed.Load(); n != 5 { // plan, reference, two schedules, one validation
		t.Errorf("%d executions for three equal jobs, want 5", n)
	}
}

// TestDuplicateTickets publishes every ticket of a running job again and again.
func TestDuplicateTickets(t *testing.T) {
	var count sync.Map
	f := start(t, Options{Workers: 2, Stage: func(ctx context.Context, req protocol.StageRequest, progress func(string)) (protocol.StageResult, error) {
		n, _ := count.LoadOrStore(fmt.Sprint(req.Kind, req.Candidate), new(atomic.Int32))
		n.(*atomic.Int32).Add(1)
		return fakeStage(ctx, req, progress)
	}})
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() {
		base := taskOf(t, f, job(t, f, eight, first))
		for ctx.Err() == nil {
			f.Client.Bus.PublishTicket(ctx, base)
			time.Sleep(time.Millisecond)
		}
	})
	expectWinner(t, result(t, f, submit(t, f, eight, first)), 2)
	cancel()
	group.Wait()
	if n, ok := count.Load(fmt.Sprint(protocol.KindPlan, protocol.NoCandidate)); !ok || n.(*atomic.Int32).Load() != 1 {
		t.Errorf("the plan was executed %v times", n)
	}
}

// taskOf is the plan task of a job.
func taskOf(t *testing.T, f *Farm, j protocol.Job) *protocol.Task {
	t.Helper()
	spec, err := protocol.Canonical(j.Spec)
	if err != nil {
		t.Fatal(err)
	}
	x := &protocol.Task{Version: protocol.Version, Kind: protocol.KindPlan, Job: strings.Repeat("0b", 16), Class: protocol.ClassSmall, Priority: j.Priority,
		Tool: j.Tool, Spec: spec, Candidate: protocol.NoCandidate, Inputs: []protocol.Artifact{}}
	if x.Key, err = protocol.KeyOf(x); err != nil {
		t.Fatal(err)
	}
	return x
}

// TestRubbishStopsNothing sends malformed messages to every subject of a farm
// that works, and a ticket for another tool.
func TestRubbishStopsNothing(t *testing.T) {
	f := start(t, Options{Workers: 2})
	raw := rawConnect(t, f)
	key, id := strings.Repeat("0c", 32), strings.Repeat("0d", 16)
	for _, subject := range []string{
		"farm.v1.t.s.1." + key, "farm.v1.t.s.0.x", "farm.v1.r.ipu21.any." + key, "farm.v1.r.ipu21.sim0." + key, "farm.v1.e." + id + "." + key + ".done",
		"farm.v1.e." + id + "." + key + ".fault", "farm.v1.ctl.cancel", "farm.v1.own.worker-0", "farm.v1.own.runner-0", "farm.v1.api.submit", "farm.v1.api.job", "farm.v1.api.cancel",
		"farm.v1.api.destroy", "$KV.FARM_WORKERS.worker-9", "$KV.FARM_TASK." + key,
	} {
		for _, data := range []string{"", "rubbish", `{"version":2}`, `{"version":1,"extra":true}`, strings.Repeat("x", 60_000)} {
			if err := raw.Publish(subject, []byte(data)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := raw.Flush(); err != nil {
		t.Fatal(err)
	}
	foreign := job(t, f, three(7), first)
	foreign.Tool = strings.Repeat("ee", 32)
	if err := f.Client.Bus.PublishTicket(context.Background(), taskOf(t, f, foreign)); err != nil {
		t.Fatal(err)
	}
	expectWinner(t, result(t, f, submit(t, f, eight, first)), 2)
	refused := map[string]int64{}
	for _, b := range f.buses {
		for kind, n := range b.Refused() {
			refused[kind] += n
		}
	}
	for kind, least := range map[string]int64{"ticket": 4, "event": 2, "cancel": 5, "request": 20, "presence": 1, "tool": 1} {
		if refused[kind] < least {
			t.Errorf("%d messages of kind %s refused, want at least %d: %v", refused[kind], kind, least, refused)
		}
	}
}

// TestBadSubmissions are answered with what is wrong.
func TestBadSubmissions(t *testing.T) {
	f := start(t, Options{Workers: 1})
	for name, change := range map[string]func(*protocol.Job){
		"policy":       func(j *protocol.Job) { j.Policy.Name = "luckiest" },
		"priority":     func(j *protocol.Job) { j.Priority = 3 },
		"tool":         func(j *protocol.Job) { j.Tool = "go" },
		"spec":         func(j *protocol.Job) { j.Spec = []byte(`[1]`) },
		"tolerance":    func(j *protocol.Job) { j.Tolerance.Atol = -1 },
		"fixture":      func(j *protocol.Job) { j.Fixture = &protocol.Artifact{Role: "other", SHA256: strings.Repeat("0", 64)} },
		"device class": func(j *protocol.Job) { j.DeviceClass = "IPU 21" },
	} {
		j := job(t, f, eight, first)
		change(&j)
		if _, err := f.Client.Submit(context.Background(), j); err == nil {
			t.Errorf("a job with a bad %s was accepted", name)
		}
	}
	if _, err := f.Client.Report(context.Background(), strings.Repeat("0", 32)); err == nil || !strings.Contains(err.Error(), "no job") {
		t.Errorf("report of no job: %v", err)
	}
}

// TestLostAndWrongBlobs: a task whose artifacts are missing or corrupt is done
// again, and its old verdict does not count.
func TestLostAndWrongBlobs(t *testing.T) {
	dir := t.TempDir()
	f := start(t, Options{Workers: 2, State: dir})
	want := result(t, f, submit(t, f, eight, first))
	objects := filepath.Join(f.dir, "s3", "objects", bucket)
	remove := func(role string) {
		t.Helper()
		os.Remove(filepath.Join(f.dir, "cache", want.Artifacts[role].SHA256))
		if err := os.Remove(filepath.Join(objects, protocol.BlobKey(want.Artifacts[role].SHA256))); err != nil {
			t.Fatal(err)
		}
	}
	spec := func(name string, damage func()) {
		t.Run(name, func(t *testing.T) {
			damage()
			r := result(t, f, submit(t, f, eight, first))
			expectWinner(t, r, 2)
			for _, role := range []string{protocol.RolePackage, protocol.RoleScheduled, protocol.RoleShortlist} {
				if r.Artifacts[role] != want.Artifacts[role] {
					t.Errorf("%s is %+v, was %+v", role, r.Artifacts[role], want.Artifacts[role])
				}
			}
		})
	}
	spec("nothing", func() {})
	spec("package missing", func() { remove(protocol.RolePackage) })
	spec("scheduled missing", func() { remove(protocol.RoleScheduled) })
	spec("shortlist missing", func() { remove(protocol.RoleShortlist) })
	spec("manifests are rubbish", func() {
		files, err := filepath.Glob(filepath.Join(objects, "ac/v1/*"))
		if err != nil || len(files) == 0 {
			t.Fatal(files, err)
		}
		for _, file := range files {
			if err := os.WriteFile(file, []byte("rubbish"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	})
	n := int64(0)
	for _, b := range f.buses {
		n += b.Refused()["manifest"]
	}
	if n < 4 {
		t.Errorf("%d manifests refused", n)
	}
}

// TestCacheSurvivesARestart runs the same job in two farms on one folder.
func TestCacheSurvivesARestart(t *testing.T) {
	dir := t.TempDir()
	var executed atomic.Int32
	stage := func(ctx context.Context, req protocol.StageRequest, progress func(string)) (protocol.StageResult, error) {
		executed.Add(1)
		return fakeStage(ctx, req, progress)
	}
	var reports []*protocol.JobReport
	device := &echo{}
	for range 2 {
		f := start(t, Options{Workers: 2, State: dir, Stage: stage, Device: device})
		id := submit(t, f, eight, first)
		reports = append(reports, result(t, f, id))
		if len(reports) == 2 {
			if old, err := f.Client.Report(context.Background(), reports[0].Job); err != nil || old.Winner != reports[0].Winner {
				t.Errorf("the job of the first farm: %+v, %v", old, err)
			}
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if len(reports) == 1 {
			executed.Store(0)
		}
	}
	for _, r := range reports {
		expectWinner(t, r, 2)
	}
	if executed.Load() > 2 { // finalists that the first farm had no need to finish
		t.Errorf("%d stages were executed again", executed.Load())
	}
	if device.runs.Load() != 2 {
		t.Errorf("%d runs of two jobs: a run is a measurement", device.runs.Load())
	}
}

// TestRestartInTheMiddle stops a farm while a job is planned; the next farm on
// the folder finishes it.
func TestRestartInTheMiddle(t *testing.T) {
	dir := t.TempDir()
	planning := make(chan struct{}, 10)
	f := start(t, Options{Workers: 1, State: dir, Stage: func(ctx context.Context, req protocol.StageRequest, progress func(string)) (protocol.StageResult, error) {
		planning <- struct{}{}
		<-ctx.Done()
		return protocol.StageResult{}, ctx.Err()
	}})
	id := submit(t, f, three(0), first)
	<-planning
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	f = start(t, Options{Workers: 1, State: dir})
	expectWinner(t, result(t, f, id), 1)
}

// TestMessagesAreLost deletes the message store of a farm that was stopped in the
// middle of a job: a new generation finishes it.
func TestMessagesAreLost(t *testing.T) {
	dir := t.TempDir()
	scheduling := make(chan struct{}, 10)
	f := start(t, Options{Workers: 1, State: dir, Stage: func(ctx context.Context, req protocol.StageRequest, progress func(string)) (protocol.StageResult, error) {
		if req.Kind == string(protocol.KindSchedule) {
			scheduling <- struct{}{}
			<-ctx.Done()
			return protocol.StageResult{}, ctx.Err()
		}
		return fakeStage(ctx, req, progress)
	}})
	id := submit(t, f, three(0), first)
	<-scheduling
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "nats")); err != nil {
		t.Fatal(err)
	}
	f = start(t, Options{Workers: 1, State: dir})
	expectWinner(t, result(t, f, id), 1)
	for key, kind := range recordsOf(t, f, id) {
		if r, _, err := f.Client.Bus.Record(context.Background(), key); err != nil || r.Gen != 1 {
			t.Errorf("record of the %s: %+v, %v; want generation 1", kind, r, err)
		}
	}
}

// TestNothingIsPrinted: standard output belongs to whoever asked for JSON.
func TestNothingIsPrinted(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	printed := make(chan string, 1)
	go func() {
		data, _ := io.ReadAll(r)
		printed <- string(data)
	}()
	stdout := os.Stdout
	os.Stdout = w
	f := start(t, Options{Workers: 1})
	expectWinner(t, result(t, f, submit(t, f, three(0), first)), 1)
	err = f.Close()
	os.Stdout = stdout
	w.Close()
	if text := <-printed; err != nil || text != "" {
		t.Errorf("printed %q, %v", text, err)
	}
}

func TestStateFolderIsExclusive(t *testing.T) {
	dir := t.TempDir()
	start(t, Options{Workers: 1, State: dir})
	if _, err := Start(context.Background(), Options{Workers: 1, State: dir, Stage: fakeStage}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second farm on one folder: %v", err)
	}
}

// TestBadOptions ends in one line and leaves nothing running.
func TestBadOptions(t *testing.T) {
	f := start(t, Options{Workers: 1})
	port := f.nats.PortOf()
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	listener := listen(t, port)
	defer listener.Close()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	before, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for name, o := range map[string]Options{
		"NATS port in use": {NATSPort: port},
		"S3 port in use":   {S3Port: port},
		"workers":          {Workers: 1000},
		"port":             {NATSPort: 70_000},
		"state is a file":  {State: file},
		"no such command":  {Command: []string{"/nonexistent"}},
	} {
		if o.Command == nil {
			o.Stage = fakeStage
		}
		_, err := Start(context.Background(), o)
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want one line", name, err)
		}
		if after, err := os.Getwd(); err != nil || after != before {
			t.Errorf("%s: the working directory is %q, was %q (%v)", name, after, before, err)
		}
	}
}

// TestMissingFixtureIsUndecided: an input that is not in the store is no verdict
// about the job.
func TestMissingFixtureIsUndecided(t *testing.T) {
	f := start(t, Options{Workers: 2})
	j := job(t, f, three(0), first)
	j.Fixture = &protocol.Artifact{Role: protocol.RoleFixture, SHA256: strings.Repeat("0", 64), Size: 10}
	id, err := f.Client.Submit(context.Background(), j)
	if err != nil {
		t.Fatal(err)
	}
	r := result(t, f, id)
	if r.State != protocol.JobFailed || !strings.Contains(r.Error, store.ErrNotFound.Error()) {
		t.Errorf("state %s, error %q", r.State, r.Error)
	}
}
