// Package ticket is the life of one ticket in the hands of a worker or a runner:
// claim the task, keep the claim, fetch the inputs, let somebody execute, upload
// the artifacts, commit, tell, acknowledge. The order of these effects is the
// protocol: a crash between any two of them loses nothing and decides nothing
// twice, because each can be repeated and the commit is one compare-and-set.
package ticket

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"ipufarm/protocol"
	"ipufarm/protocol/bus"
	"ipufarm/protocol/store"
)

// Holder holds tickets for one owner.
type Holder struct {
	Bus     *bus.Bus
	Store   *store.Store
	Cache   *Cache
	Owner   protocol.Owner
	Tool    string // digest of the executable that stages run in; empty for a runner, whose tool is itself
	Scratch string // absolute folder; each attempt gets a folder in it
	Timers  protocol.Timers
	Log     *slog.Logger

	mu    sync.Mutex
	holds map[string]*hold
	stops []func()
}

// Work is what an execution gets.
type Work struct {
	Task     *protocol.Task
	Inputs   map[string]string // role → file, read only
	OutDir   string            // empty folder
	Gen      int               // with Token: the fencing token of this attempt
	Token    uint64
	Progress func(string)
}

// Execute does a task's work. Its errors say what kind of end it was: one that
// wraps ErrCrash is a death of the child, ErrBusy means that the task can be done
// later or elsewhere; all others are faults of the infrastructure. After ctx ends
// the result is ignored.
type Execute func(ctx context.Context, w Work) (protocol.StageResult, error)

// Kinds of errors from an Execute.
var (
	ErrCrash = errors.New("the child died")
	ErrBusy  = errors.New("busy")
)

// Reasons for which an execution is stopped.
var (
	errCancelled = errors.New("cancelled")
	errFenced    = errors.New("somebody else owns the task now")
)

// Outcome is how a ticket ended here.
type Outcome string

const (
	Committed Outcome = "committed"
	Skipped   Outcome = "skipped"   // nothing to do, or not ours to do
	Dropped   Outcome = "cancelled" // nobody wants the result any more
	Fenced    Outcome = "fenced"    // taken over by somebody else
	GivenBack Outcome = "given back"
	Faulted   Outcome = "faulted"
	Crashed   Outcome = "crashed"
)

// Open starts to listen for cancellations and for questions whether this owner
// still works on a task, until Close.
func (h *Holder) Open() error {
	h.holds = map[string]*hold{}
	stop, err := h.Bus.OnCancel(h.look)
	if err != nil {
		return err
	}
	h.stops = append(h.stops, stop)
	stop, err = h.Bus.AnswerOwner(h.Owner, func(key string) bool { return h.find(key) != nil })
	if err != nil {
		h.Close()
		return err
	}
	h.stops = append(h.stops, stop)
	// After a reconnection the tickets may be about to be delivered again: confirm
	// them before anything else.
	h.stops = append(h.stops, h.Bus.OnReconnect(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, key := range slices.Sorted(maps.Keys(h.holds)) {
			h.holds[key].lookNow()
		}
	}))
	return nil
}

// Close stops listening. Tickets must be out of hand.
func (h *Holder) Close() {
	for _, stop := range h.stops {
		stop()
	}
	h.stops = nil
}

func (h *Holder) find(key string) *hold {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.holds[key]
}

func (h *Holder) look(key string) {
	if x := h.find(key); x != nil {
		x.lookNow()
	}
}

// hold is one claimed task.
type hold struct {
	*Holder
	ticket *bus.Ticket
	task   *protocol.Task
	record protocol.Record // as claimed
	token  uint64
	log    *slog.Logger
	now    chan struct{} // asks the keeper to look at once
}

func (x *hold) lookNow() {
	select {
	case x.now <- struct{}{}:
	default:
	}
}

// Hold takes one ticket through its life. It returns when the ticket is out of
// hand; when ctx ends, the task is given back in order.
func (h *Holder) Hold(ctx context.Context, t *bus.Ticket, execute Execute) Outcome {
	log := h.Log.With("kind", t.Task.Kind, "candidate", t.Task.Candidate, "key", t.Task.Key[:12])
	if h.Tool != "" && t.Task.Tool != h.Tool {
		h.Bus.Refuse("tool", t.Task.Tool, fmt.Errorf("the task wants tool %s, this worker is %s", t.Task.Tool, h.Tool))
		t.Later(h.Timers.AckWait)
		return Skipped
	}
	x, outcome := h.claim(ctx, t, log)
	if x == nil {
		return outcome
	}
	h.mu.Lock()
	h.holds[t.Task.Key] = x
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		delete(h.holds, t.Task.Key)
		h.mu.Unlock()
	}()
	outcome = x.work(ctx, execute)
	log.Info("task out of hand", "outcome", outcome, "attempt", x.record.Attempt)
	return outcome
}

// claim makes the task ours, or returns why not.
func (h *Holder) claim(ctx context.Context, t *bus.Ticket, log *slog.Logger) (*hold, Outcome) {
	record, rev, err := h.Bus.Record(ctx, t.Task.Key)
	if err != nil {
		// Without a readable record nobody may work. The coordinator writes it
		// before the ticket, and its reaper mends what is left of an accident.
		log.Warn("no record for a ticket", "error", err)
		t.Later(h.retry())
		return nil, Skipped
	}
	step := protocol.Claim
	switch {
	case record.State.Final():
		if record.State == protocol.Done {
			// The former owner may have died between its commit and its event.
			h.publishDone(ctx, &t.Task, record, log)
		}
		h.ack(ctx, t, log)
		return nil, Skipped
	case record.State == protocol.Running && *record.Owner == h.Owner && h.find(t.Task.Key) != nil:
		t.Keep(ctx) // we are late with our heartbeat, no more
		return nil, Skipped
	case record.State == protocol.Running:
		if *record.Owner != h.Owner && h.Bus.AskOwner(ctx, *record.Owner, t.Task.Key, 3, h.Timers.AskOwner) {
			t.Later(h.Timers.AckWait)
			return nil, Skipped
		}
		if ctx.Err() != nil { // the question may have been cut short
			t.Later(h.retry())
			return nil, Skipped
		}
		log.Warn("taking over from a silent owner", "owner", record.Owner.Name)
		step = protocol.TakeOver
	}
	next, token, err := h.Bus.MoveRecord(ctx, t.Task.Key, record, rev, protocol.Move{Step: step, By: h.Owner, TicketSeq: t.Seq, Now: time.Now()})
	switch {
	case errors.Is(err, bus.ErrConflict):
		return nil, Skipped // somebody else was faster; the ticket is theirs
	case errors.Is(err, protocol.ErrIllegal):
		h.publishFault(ctx, &t.Task, record, "the limits of this task are used up: "+record.Why, log)
		t.Later(h.retry())
		return nil, Skipped
	case err != nil:
		log.Warn("claim", "error", err)
		t.Later(h.retry())
		return nil, Skipped
	}
	x := &hold{Holder: h, ticket: t, task: &t.Task, record: next, token: token, log: log, now: make(chan struct{}, 1)}
	if err := h.Bus.Tell(x.event(protocol.EventStarted)); err != nil {
		log.Warn("event", "error", err)
	}
	return x, ""
}

func (h *Holder) retry() time.Duration {
	return h.Timers.Retry/2 + time.Duration(rand.Int64N(int64(h.Timers.Retry)))
}

// work executes a claimed task and brings the ticket to its end.
func (x *hold) work(parent context.Context, execute Execute) Outcome {
	ctx, cancel := context.WithCancelCause(parent)
	var keeper sync.WaitGroup
	keeper.Go(func() { x.keep(ctx, cancel) })
	result, err := x.produce(ctx, execute)
	stopped := ctx.Err()
	cancel(nil)
	keeper.Wait()

	// From here on the claim must come to an orderly end, also when the process
	// is being stopped.
	end := context.WithoutCancel(parent)
	switch cause := context.Cause(ctx); {
	case stopped == nil && err == nil:
		return x.commit(parent, end, result)
	case stopped == nil && errors.Is(err, ErrBusy):
		return x.release(end, protocol.GiveBack, GivenBack, err.Error(), x.retry())
	case stopped == nil && errors.Is(err, ErrCrash):
		return x.release(end, protocol.Crash, Crashed, err.Error(), x.retry())
	case stopped == nil:
		return x.release(end, protocol.Fault, Faulted, err.Error(), x.retry())
	case errors.Is(cause, errCancelled):
		x.ack(end, x.ticket, x.log)
		return Dropped
	case errors.Is(cause, errFenced):
		return Fenced
	default: // the process stops
		return x.release(end, protocol.GiveBack, GivenBack, "owner stops", time.Millisecond)
	}
}

// keep confirms ticket and record until ctx ends, and ends it when the record is
// no longer ours. Not being able to reach the server ends nothing: a task without
// a device can be finished and committed later.
func (x *hold) keep(ctx context.Context, cancel context.CancelCauseFunc) {
	every := x.Timers.Heartbeat
	if x.task.Kind == protocol.KindRun {
		every = x.Timers.RunHeartbeat
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-x.now:
		}
		if err := x.ticket.Keep(ctx); err != nil && ctx.Err() == nil {
			x.log.Warn("heartbeat", "error", err)
		}
		record, rev, err := x.Bus.Record(ctx, x.task.Key)
		switch {
		case errors.Is(err, bus.ErrNotFound):
			cancel(errFenced)
		case err != nil && rev == 0: // not reachable
		case rev == x.token:
		case record.State == protocol.Cancelled:
			cancel(errCancelled)
		default:
			cancel(errFenced)
		}
	}
}

// produce gets the result of the task: from the store if it is there, else by
// executing, and leaves manifest and artifacts in the store.
func (x *hold) produce(ctx context.Context, execute Execute) (protocol.Result, error) {
	old, digest, err := x.Store.Manifest(ctx, x.task.Key)
	usable := err == nil && old.CheckFor(x.task) == nil && x.Store.Complete(ctx, old) == nil
	if usable && old.Verdict.Kind != protocol.Failed {
		return protocol.Result{Manifest: digest, Verdict: old.Verdict.Kind, Cached: true}, nil
	}
	if err != nil && !errors.Is(err, store.ErrNotFound) && !errors.Is(err, protocol.ErrMalformed) && !errors.Is(err, store.ErrDigest) {
		return protocol.Result{}, err
	}
	exists := !errors.Is(err, store.ErrNotFound)

	inputs := map[string]string{}
	for _, a := range x.task.Inputs {
		if inputs[a.Role], err = x.Cache.Path(ctx, x.Store, a); err != nil {
			return protocol.Result{}, err
		}
	}
	dir := filepath.Join(x.Scratch, fmt.Sprintf("%s-%d", x.task.Key[:16], x.token))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return protocol.Result{}, err
	}
	defer os.RemoveAll(dir)

	result, err := execute(ctx, Work{Task: x.task, Inputs: inputs, OutDir: dir, Gen: x.record.Gen, Token: x.token, Progress: x.progress()})
	if err != nil {
		return protocol.Result{}, err
	}
	if err := ctx.Err(); err != nil {
		return protocol.Result{}, err
	}
	m, err := x.upload(ctx, dir, result)
	if err != nil {
		return protocol.Result{}, err
	}
	return x.putManifest(ctx, m, exists, result.Seconds)
}

// progress passes lines on, not more than ten a second: they are stored.
func (x *hold) progress() func(string) {
	var last time.Time
	var mu sync.Mutex
	return func(line string) {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(last) < 100*time.Millisecond {
			return
		}
		last = time.Now()
		e := x.event(protocol.EventProgress)
		e.Message = protocol.Clip(line)
		if err := x.Bus.Tell(e); err != nil {
			x.log.Warn("event", "error", err)
		}
	}
}

// uploadTries bounds how often the store is asked before it counts as a fault.
const uploadTries = 5

// upload stores the artifacts of a result and makes its manifest. A result that
// breaks the rules becomes a verdict of Failed: repeating would repeat it.
func (x *hold) upload(ctx context.Context, dir string, result protocol.StageResult) (*protocol.Manifest, error) {
	m := &protocol.Manifest{
		Version: protocol.Version, Key: x.task.Key, Kind: x.task.Kind, Tool: x.task.Tool, Verdict: result.Verdict, Artifacts: []protocol.Artifact{},
	}
	fail := func(err error) (*protocol.Manifest, error) {
		m.Verdict = protocol.Verdict{Kind: protocol.Failed, Message: protocol.Clip(err.Error())}
		m.Artifacts, m.Facts = []protocol.Artifact{}, nil
		return m, nil
	}
	if err := result.Check(); err != nil {
		return fail(err)
	}
	if len(result.Facts) > 0 {
		facts, err := protocol.Canonical(result.Facts)
		if err != nil {
			return fail(fmt.Errorf("facts: %w", err))
		}
		m.Facts = facts
	}
	for _, role := range slices.Sorted(maps.Keys(result.Artifacts)) {
		path := filepath.Join(dir, result.Artifacts[role])
		if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() {
			return fail(fmt.Errorf("artifact %s: the stage left no regular file %q", role, result.Artifacts[role]))
		}
		a, err := retried(ctx, func() (protocol.Artifact, error) { return x.Store.PutFile(ctx, role, path) })
		if err != nil {
			return nil, err
		}
		x.Cache.adopt(path, a)
		m.Artifacts = append(m.Artifacts, a)
	}
	if err := m.CheckFor(x.task); err != nil {
		return fail(err)
	}
	return m, nil
}

func (x *hold) putManifest(ctx context.Context, m *protocol.Manifest, replace bool, seconds float64) (protocol.Result, error) {
	result := protocol.Result{Verdict: m.Verdict.Kind, Seconds: seconds}
	var err error
	if replace {
		result.Manifest, err = retried(ctx, func() (string, error) { return x.Store.ReplaceManifest(ctx, m) })
		return result, err
	}
	type put struct {
		digest string
		same   bool
	}
	p, err := retried(ctx, func() (p put, err error) { p.digest, p.same, err = x.Store.PutManifest(ctx, m); return })
	result.Manifest = p.digest
	if err != nil || p.same {
		return result, err
	}
	// Two executions of one key disagree. The first stays; the disagreement is an
	// alarm, because every other promise rests on verdicts being functions of keys.
	x.log.Error("two executions of one task gave different manifests", "task", x.task.Key, "first", p.digest)
	first, digest, err := x.Store.Manifest(ctx, m.Key)
	if err != nil {
		return result, err
	}
	return protocol.Result{Manifest: digest, Verdict: first.Verdict.Kind, Seconds: seconds}, nil
}

func retried[T any](ctx context.Context, f func() (T, error)) (T, error) {
	pause := 100 * time.Millisecond
	for try := 1; ; try++ {
		v, err := f()
		if err == nil || try == uploadTries || ctx.Err() != nil {
			return v, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
			pause *= 2
		}
	}
}

// commitTries bounds how often a commit is tried while the server is away: about
// five minutes, or five seconds when the process is being stopped.
const (
	commitTries         = 300
	commitTriesStopping = 14
)

// commit writes the result into the record, tells and acknowledges. It goes on
// when parent has ended, for a while.
func (x *hold) commit(parent, ctx context.Context, result protocol.Result) Outcome {
	for try := 0; try < commitTries && (parent.Err() == nil || try < commitTriesStopping) && !x.Bus.Closed(); try++ {
		done, _, err := x.Bus.MoveRecord(ctx, x.task.Key, x.record, x.token, protocol.Move{Step: protocol.Commit, By: x.Owner, Result: &result, Now: time.Now()})
		if errors.Is(err, bus.ErrConflict) {
			// An earlier try of ours may have gone through without our hearing of it.
			now, _, readErr := x.Bus.Record(ctx, x.task.Key)
			if readErr != nil || now.State != protocol.Done || now.Attempt != x.record.Attempt || *now.Result != result {
				x.log.Warn("the commit was refused", "state", now.State)
				if now.State == protocol.Cancelled {
					x.ack(ctx, x.ticket, x.log)
					return Dropped
				}
				return Fenced
			}
			done, err = now, nil
		}
		if err == nil {
			x.publishDone(ctx, x.task, done, x.log)
			x.ack(ctx, x.ticket, x.log)
			return Committed
		}
		x.log.Warn("commit", "try", try, "error", err)
		time.Sleep(min(time.Duration(try+1)*50*time.Millisecond, time.Second))
	}
	return Fenced
}

// release ends the claim without a result. When the record does not let us, it is
// somebody else's already.
func (x *hold) release(ctx context.Context, step protocol.Step, outcome Outcome, why string, delay time.Duration) Outcome {
	next, _, err := x.Bus.MoveRecord(ctx, x.task.Key, x.record, x.token, protocol.Move{Step: step, By: x.Owner, Why: why, Now: time.Now()})
	if err != nil {
		x.log.Warn("release", "step", step, "error", err)
		return Fenced
	}
	if step != protocol.GiveBack {
		x.log.Warn("attempt failed", "step", step, "why", why)
		x.publishFault(ctx, x.task, next, why, x.log)
	}
	if err := x.ticket.Later(delay); err != nil {
		x.log.Warn("give back", "error", err)
	}
	x.Bus.Ring(x.task.Queue())
	return outcome
}

func (h *Holder) ack(ctx context.Context, t *bus.Ticket, log *slog.Logger) {
	if err := t.Ack(ctx); err != nil {
		// Harmless: the next one to get the ticket sees that the task is final.
		log.Warn("acknowledge", "error", err)
	}
}

func (x *hold) event(t protocol.EventType) *protocol.Event {
	return x.Holder.event(t, x.task, x.record)
}

func (h *Holder) event(t protocol.EventType, task *protocol.Task, record protocol.Record) *protocol.Event {
	return &protocol.Event{
		Version: protocol.Version, Type: t, Job: task.Job, Key: task.Key, At: time.Now().UTC(),
		Kind: task.Kind, Candidate: task.Candidate, Attempt: record.Attempt, Worker: h.Owner.Name,
	}
}

func (h *Holder) publishDone(ctx context.Context, task *protocol.Task, record protocol.Record, log *slog.Logger) {
	e := h.event(protocol.EventDone, task, record)
	e.Result, e.Seconds = record.Result, record.Result.Seconds
	if err := h.Bus.PublishEvent(ctx, e); err != nil {
		log.Warn("event", "error", err) // the coordinator's reaper finds the record
	}
}

func (h *Holder) publishFault(ctx context.Context, task *protocol.Task, record protocol.Record, why string, log *slog.Logger) {
	e := h.event(protocol.EventFault, task, record)
	e.Message = protocol.Clip(why)
	if err := h.Bus.PublishEvent(ctx, e); err != nil {
		log.Warn("event", "error", err)
	}
}
