package ticket_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	"ipufarm/protocol/store/storetest"
	"ipufarm/protocol/ticket"
)

func TestMain(m *testing.M) { storetest.Main(m) }

var ctx = context.Background()

// farm is a bus, a store and holders on them, without coordinator.
type farm struct {
	t      testing.TB
	server *bustest.Server
	bus    *bus.Bus
	store  *store.Store
	bucket string // the store's folder
	dir    string
}

func newFarm(t testing.TB) *farm {
	f := &farm{t: t, server: bustest.Start(t), dir: t.TempDir()}
	f.bus = f.server.Setup()
	f.store, f.bucket = storetest.Open(t)
	return f
}

func (f *farm) holder(name string) *ticket.Holder {
	f.t.Helper()
	b := f.server.Connect(name)
	if err := b.Join(ctx); err != nil {
		f.t.Fatal(err)
	}
	cache, err := ticket.NewCache(filepath.Join(f.dir, "cache"))
	if err != nil {
		f.t.Fatal(err)
	}
	h := &ticket.Holder{Bus: b, Store: f.store, Cache: cache, Owner: protocol.Owner{Name: name, Boot: protocol.NewBoot()},
		Tool: strings.Repeat("ab", 32), Scratch: filepath.Join(f.dir, "scratch"), Timers: bustest.Timers(), Log: bustest.Log(f.t)}
	if err := h.Open(); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(h.Close)
	return h
}

// task queues a reference task and returns it.
func (f *farm) task(n int) *protocol.Task {
	f.t.Helper()
	x := &protocol.Task{Version: protocol.Version, Kind: protocol.KindReference, Job: strings.Repeat("0a", 16), Class: protocol.ClassSmall, Priority: 1,
		Tool: strings.Repeat("ab", 32), Spec: json.RawMessage(fmt.Sprintf(`{"n":%d}`, n)), Candidate: protocol.NoCandidate, Inputs: []protocol.Artifact{}}
	var err error
	if x.Key, err = protocol.KeyOf(x); err != nil {
		f.t.Fatal(err)
	}
	if _, err := f.bus.CreateRecord(ctx, x.Key, protocol.NewRecord(0, time.Now())); err != nil {
		f.t.Fatal(err)
	}
	if err := f.bus.PublishTicket(ctx, x); err != nil {
		f.t.Fatal(err)
	}
	return x
}

func (f *farm) take(h *ticket.Holder) *bus.Ticket {
	f.t.Helper()
	for range 200 {
		t, err := h.Bus.Take(ctx, protocol.TaskQueue(protocol.ClassSmall, 1), 50*time.Millisecond)
		if err != nil {
			f.t.Fatal(err)
		}
		if t != nil {
			return t
		}
	}
	f.t.Fatal("no ticket")
	return nil
}

func (f *farm) record(key string) protocol.Record {
	f.t.Helper()
	r, _, err := f.bus.Record(ctx, key)
	if err != nil {
		f.t.Fatal(err)
	}
	return r
}

// write is an honest execution.
func write(_ context.Context, w ticket.Work) (protocol.StageResult, error) {
	return protocol.StageResult{Verdict: protocol.Verdict{Kind: protocol.Feasible}, Artifacts: map[string]string{protocol.RoleExpected: "out"}, Seconds: 0.5},
		os.WriteFile(filepath.Join(w.OutDir, "out"), w.Task.Spec, 0o600)
}

func TestOutcomes(t *testing.T) {
	f := newFarm(t)
	h := f.holder("w0")
	fail := func(err error) ticket.Execute {
		return func(context.Context, ticket.Work) (protocol.StageResult, error) { return protocol.StageResult{}, err }
	}
	result := func(r protocol.StageResult) ticket.Execute {
		return func(_ context.Context, w ticket.Work) (protocol.StageResult, error) { return r, nil }
	}
	link := func(_ context.Context, w ticket.Work) (protocol.StageResult, error) {
		return protocol.StageResult{Verdict: protocol.Verdict{Kind: protocol.Feasible}, Artifacts: map[string]string{protocol.RoleExpected: "out"}},
			os.Symlink("/etc/passwd", filepath.Join(w.OutDir, "out"))
	}
	feasible := protocol.Verdict{Kind: protocol.Feasible}
	for n, c := range []struct {
		name    string
		execute ticket.Execute
		outcome ticket.Outcome
		state   protocol.State
		verdict protocol.VerdictKind
		infra   int
		crash   int
	}{
		{"honest", write, ticket.Committed, protocol.Done, protocol.Feasible, 0, 0},
		{"refused", result(protocol.StageResult{Verdict: protocol.Verdict{Kind: protocol.Infeasible, Refusal: &protocol.Refusal{Constraint: "budget", Tile: -1, Step: -1, Message: "m"}}}),
			ticket.Committed, protocol.Done, protocol.Infeasible, 0, 0},
		{"no artifact", result(protocol.StageResult{Verdict: feasible}), ticket.Committed, protocol.Done, protocol.Failed, 0, 0},
		{"no such file", result(protocol.StageResult{Verdict: feasible, Artifacts: map[string]string{"expected": "nope"}}), ticket.Committed, protocol.Done, protocol.Failed, 0, 0},
		{"outside of the folder", result(protocol.StageResult{Verdict: feasible, Artifacts: map[string]string{"expected": "../x"}}), ticket.Committed, protocol.Done, protocol.Failed, 0, 0},
		{"symbolic link", link, ticket.Committed, protocol.Done, protocol.Failed, 0, 0},
		{"verdict of no kind", result(protocol.StageResult{}), ticket.Committed, protocol.Done, protocol.Failed, 0, 0},
		{"facts are no object", result(protocol.StageResult{Verdict: feasible, Facts: []byte(`[1]`)}), ticket.Committed, protocol.Done, protocol.Failed, 0, 0},
		{"crash", fail(fmt.Errorf("%w: signal", ticket.ErrCrash)), ticket.Crashed, protocol.Queued, "", 0, 1},
		{"fault", fail(errors.New("disk full")), ticket.Faulted, protocol.Queued, "", 1, 0},
		{"busy", fail(ticket.ErrBusy), ticket.GivenBack, protocol.Queued, "", 0, 0},
	} {
		x := f.task(n)
		tk := f.take(h)
		if outcome := h.Hold(ctx, tk, c.execute); outcome != c.outcome {
			t.Errorf("%s: outcome %s, want %s", c.name, outcome, c.outcome)
		}
		r := f.record(x.Key)
		if r.State != c.state || r.Infra != c.infra || r.Crash != c.crash || r.Attempt != 1 {
			t.Errorf("%s: record %+v", c.name, r)
		}
		if c.verdict != "" && r.Result.Verdict != c.verdict {
			t.Errorf("%s: verdict %s, want %s", c.name, r.Result.Verdict, c.verdict)
		}
		if err := f.bus.WithdrawTicket(ctx, x); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(filepath.Join(f.dir, "scratch")); err != nil || len(left) != 0 {
		t.Errorf("%d folders are left in the scratch folder (%v)", len(left), err)
	}
}

// TestStopReasons: a cancelled task is killed and acknowledged, one that was
// taken over is killed and left alone, and a worker that ends gives back.
func TestStopReasons(t *testing.T) {
	for name, c := range map[string]struct {
		interfere func(f *farm, key string, stop context.CancelFunc)
		outcome   ticket.Outcome
		state     protocol.State
		tickets   bool
	}{
		"cancelled": {func(f *farm, key string, _ context.CancelFunc) {
			f.move(key, protocol.Cancel)
			f.bus.BroadcastCancel(key)
		}, ticket.Dropped, protocol.Cancelled, false},
		"cancelled, notice lost": {func(f *farm, key string, _ context.CancelFunc) { f.move(key, protocol.Cancel) }, ticket.Dropped, protocol.Cancelled, false},
		"taken over":             {func(f *farm, key string, _ context.CancelFunc) { f.move(key, protocol.TakeOver) }, ticket.Fenced, protocol.Running, true},
		"process ends":           {func(f *farm, key string, stop context.CancelFunc) { stop() }, ticket.GivenBack, protocol.Queued, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFarm(t)
			h := f.holder("w0")
			x := f.task(0)
			holdCtx, stop := context.WithCancel(ctx)
			defer stop()
			outcome := h.Hold(holdCtx, f.take(h), func(ctx context.Context, w ticket.Work) (protocol.StageResult, error) {
				c.interfere(f, x.Key, stop)
				<-ctx.Done()
				return write(ctx, w)
			})
			if outcome != c.outcome {
				t.Errorf("outcome %s, want %s", outcome, c.outcome)
			}
			if r := f.record(x.Key); r.State != c.state {
				t.Errorf("record %+v, want %s", r, c.state)
			}
			if has, err := f.bus.HasTicket(ctx, x); err != nil || has != c.tickets {
				t.Errorf("ticket there: %v, %v", has, err)
			}
		})
	}
}

func (f *farm) move(key string, step protocol.Step) {
	_, err := f.bus.ChangeRecord(ctx, key, func(protocol.Record) (protocol.Move, bool) {
		return protocol.Move{Step: step, By: protocol.Owner{Name: "thief", Boot: protocol.NewBoot()}, Now: time.Now()}, true
	})
	if err != nil {
		f.t.Error(err)
	}
}

// TestZombieCannotCommit: an owner that slept through everything and wakes up
// with a result finds that the task is somebody else's.
func TestZombieCannotCommit(t *testing.T) {
	f := newFarm(t)
	zombie, heir := f.holder("zombie"), f.holder("heir")
	zombie.Timers.Heartbeat = time.Hour // asleep
	x := f.task(0)
	tk := f.take(zombie)
	asleep, awake := make(chan struct{}), make(chan struct{})
	outcome := make(chan ticket.Outcome)
	go func() {
		outcome <- zombie.Hold(ctx, tk, func(ctx context.Context, w ticket.Work) (protocol.StageResult, error) {
			close(asleep)
			<-awake
			return write(ctx, w)
		})
	}()
	<-asleep
	zombie.Close()      // it answers no questions either
	tk2 := f.take(heir) // delivered again after AckWait
	if got := heir.Hold(ctx, tk2, write); got != ticket.Committed {
		t.Fatalf("heir: %s", got)
	}
	want := f.record(x.Key)
	close(awake)
	if got := <-outcome; got != ticket.Fenced {
		t.Errorf("zombie: %s", got)
	}
	if got := f.record(x.Key); got.Attempt != 2 || *got.Result != *want.Result || got.Crash != 1 {
		t.Errorf("record %+v, was %+v", got, want)
	}
}

// TestLivingOwnerIsAsked: a ticket that is delivered again while its owner works
// (say, after the server was away for longer than AckWait) stays with the owner.
func TestLivingOwnerIsAsked(t *testing.T) {
	f := newFarm(t)
	owner, other := f.holder("owner"), f.holder("other")
	owner.Timers.Heartbeat = time.Hour // late with every heartbeat
	x := f.task(0)
	tk := f.take(owner)
	result := make(chan ticket.Outcome)
	finish := make(chan struct{})
	go func() {
		result <- owner.Hold(ctx, tk, func(ctx context.Context, w ticket.Work) (protocol.StageResult, error) {
			<-finish
			return write(ctx, w)
		})
	}()
	if got := other.Hold(ctx, f.take(other), write); got != ticket.Skipped {
		t.Errorf("the other one: %s", got)
	}
	close(finish)
	if got := <-result; got != ticket.Committed {
		t.Errorf("the owner: %s", got)
	}
	if r := f.record(x.Key); r.Attempt != 1 || r.Crash != 0 {
		t.Errorf("record %+v", r)
	}
}

// TestResultIsFoundAgain: an owner that died between its upload and its commit
// has not worked in vain.
func TestResultIsFoundAgain(t *testing.T) {
	f := newFarm(t)
	h := f.holder("w0")
	x := f.task(0)
	if got := h.Hold(ctx, f.take(h), write); got != ticket.Committed {
		t.Fatal(got)
	}
	reopen := func() {
		t.Helper()
		f.move(x.Key, protocol.Reopen)
		if err := f.bus.PublishTicket(ctx, x); err != nil {
			t.Fatal(err)
		}
	}
	executed := 0
	count := func(ctx context.Context, w ticket.Work) (protocol.StageResult, error) {
		executed++
		return write(ctx, w)
	}
	reopen()
	if got := h.Hold(ctx, f.take(h), count); got != ticket.Committed || executed != 0 || !f.record(x.Key).Result.Cached {
		t.Errorf("%s, executed %d times, %+v", got, executed, f.record(x.Key))
	}
	// With a blob missing the manifest is no hit.
	m, digest, err := f.store.Manifest(ctx, x.Key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(f.bucket, protocol.BlobKey(m.Artifacts[0].SHA256))); err != nil {
		t.Fatal(err)
	}
	reopen()
	if got := h.Hold(ctx, f.take(h), count); got != ticket.Committed || executed != 1 || f.record(x.Key).Result.Manifest != digest {
		t.Errorf("%s, executed %d times, %+v", got, executed, f.record(x.Key))
	}
	if err := f.store.Complete(ctx, m); err != nil {
		t.Error(err)
	}
	// The ticket of a task that is done is acknowledged, and its event told again.
	if err := f.bus.PublishTicket(ctx, x); err != nil {
		t.Fatal(err)
	}
	if got := h.Hold(ctx, f.take(h), count); got != ticket.Skipped || executed != 1 {
		t.Errorf("%s, executed %d times", got, executed)
	}
}

// TestCacheIsVerified: a file that another process left is read through before
// it is used.
func TestCacheIsVerified(t *testing.T) {
	s, _ := storetest.Open(t)
	a, err := s.PutBytes(ctx, "x", []byte("content"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, left := range map[string]string{"nothing": "", "rotten": "cOntent", "short": "con"} {
		path := filepath.Join(dir, a.SHA256)
		os.Remove(path)
		if left != "" {
			if err := os.WriteFile(path, []byte(left), 0o400); err != nil {
				t.Fatal(err)
			}
		}
		cache, err := ticket.NewCache(dir)
		if err != nil {
			t.Fatal(err)
		}
		got, err := cache.Path(ctx, s, a)
		if err != nil {
			t.Fatal(err)
		}
		if data, err := os.ReadFile(got); err != nil || string(data) != "content" {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
	if _, err := ticket.NewCache("relative"); err == nil {
		t.Error("a relative folder was accepted")
	}
}

// TestChaos lets workers crash after the claim, crash after the commit, and sleep
// through their AckWait, while the server is restarted: every task is committed
// once, by one owner.
func TestChaos(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	f := newFarm(t)
	const tasks, workers = 30, 4
	var keys []string
	for n := range tasks {
		keys = append(keys, f.task(n).Key)
	}
	var commits, crashes, zombies atomic.Int32
	stop := make(chan struct{})
	var group sync.WaitGroup
	for i := range workers {
		group.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			for life := 0; ; life++ {
				h := f.holder(fmt.Sprintf("w%d-%d", i, life))
				for died := false; !died; {
					select {
					case <-stop:
						return
					default:
					}
					tk, err := h.Bus.Take(ctx, protocol.TaskQueue(protocol.ClassSmall, 1), 50*time.Millisecond)
					if err != nil || tk == nil {
						continue
					}
					fate := random.IntN(12)
					outcome := h.Hold(ctx, tk, func(ctx context.Context, w ticket.Work) (protocol.StageResult, error) {
						switch fate {
						case 0: // dies: nothing it does from now on is heard
							crashes.Add(1)
							died = true
							h.Bus.Close()
						case 1: // sleeps
							zombies.Add(1)
							h.Close()
							died = true
							time.Sleep(1500 * time.Millisecond)
						default:
							time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
						}
						return write(ctx, w)
					})
					if outcome == ticket.Committed {
						commits.Add(1)
					}
				}
			}
		})
	}
	for n := 0; ; n++ {
		time.Sleep(700 * time.Millisecond)
		if n < 2 {
			f.server.Stop()
			time.Sleep(200 * time.Millisecond)
			f.server.Restart()
			continue
		}
		done := 0
		for _, key := range keys {
			if r, _, err := f.bus.Record(ctx, key); err == nil && r.State == protocol.Done {
				done++
			}
		}
		if done == tasks {
			break
		}
		if n > 60 {
			t.Fatalf("%d of %d tasks are done after a minute", done, tasks)
		}
	}
	close(stop)
	group.Wait()
	t.Logf("%d commits, %d crashes, %d zombies", commits.Load(), crashes.Load(), zombies.Load())
	if n := commits.Load(); n != tasks {
		t.Errorf("%d commits of %d tasks", n, tasks)
	}
}
