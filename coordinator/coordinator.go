// Package coordinator owns the farm's jobs: it turns a submission into tasks,
// applies policies to their verdicts, sends the winner to a runner and keeps the
// results.
//
// What it knows about a job is a value, Job, that only Job.Step changes; how a
// winner is chosen is a function, Decide. Both are pure. Around them is a thin
// shell: one goroutine that takes changes from the event stream, the API and the
// presence of workers, writes the changed jobs and the position in the event
// stream in one transaction, and then makes the effects true: records, tickets,
// cancellations, events. Every effect can be repeated, and a restart repeats
// those that a crash may have left out.
package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"ipufarm/protocol"
	"ipufarm/protocol/bus"
	"ipufarm/protocol/store"
)

// Config of a coordinator.
type Config struct {
	Bus    *bus.Bus
	Store  *store.Store
	Path   string // of the database file, absolute
	Layout bus.Layout
	Log    *slog.Logger

	// Failpoint, if not nil, is called before each effect on the world with its
	// name; an error ends the coordinator on the spot, as a kill would. Tests use it.
	Failpoint func(effect string) error
}

// Run coordinates until ctx ends. ready, if not nil, is called when submissions
// are answered.
func Run(ctx context.Context, cfg Config, ready func()) error {
	db, err := openDatabase(cfg.Path)
	if err != nil {
		return fmt.Errorf("coordinator: %w", err)
	}
	defer db.close()
	c := &coordinator{Config: cfg, db: db, jobs: map[string]*Job{}, workers: map[string]*protocol.Presence{}, calls: make(chan func() error)}
	if err := c.run(ctx, ready); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("coordinator: %w", err)
	}
	return nil
}

// coordinator is the shell. Everything but calls belongs to the goroutine of loop.
type coordinator struct {
	Config
	db      *database
	meta    metaRecord
	saved   metaRecord      // as in the database
	jobs    map[string]*Job // active
	workers map[string]*protocol.Presence

	calls   chan func() error // work for the loop
	pending []Change          // changes that effects have brought up, to be applied next
}

// errKilled is what a Failpoint makes of its error.
var errKilled = errors.New("killed")

func (c *coordinator) run(ctx context.Context, ready func()) error {
	created, last, err := c.Bus.Setup(ctx, c.Layout)
	if err != nil {
		return err
	}
	if err := c.load(created, last); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.loop(ctx) })
	group.Go(func() error { return c.events(ctx) })
	group.Go(func() error {
		c.Bus.WatchPresence(ctx, func(name string, p *protocol.Presence) {
			c.do(ctx, func() error { return c.presence(ctx, name, p) })
		})
		return ctx.Err()
	})
	stop, err := c.Bus.Answer(protocol.SubjectAPI, "coordinator", func(subject string, data []byte) (protocol.Checker, error) {
		return c.answer(ctx, subject, data)
	})
	if err != nil {
		return err
	}
	defer stop()
	if ready != nil {
		ready()
	}
	return group.Wait()
}

// load reads the unfinished jobs and finds out whether the database's position
// belongs to this event stream.
func (c *coordinator) load(created time.Time, last uint64) error {
	meta, known, err := c.db.meta()
	if err != nil {
		return err
	}
	switch {
	case !known:
		meta = metaRecord{Stream: created}
	case !meta.Stream.Equal(created) || meta.Cursor > last:
		c.Log.Warn("the event stream is another one: messages were lost, starting a new generation", "generation", meta.Generation+1)
		meta.Generation, meta.Stream, meta.Cursor = meta.Generation+1, created, 0
	}
	c.meta = meta
	jobs, err := c.db.unfinished()
	if err != nil {
		return err
	}
	for _, j := range jobs {
		c.jobs[j.Spec.ID] = j
	}
	return c.save(nil)
}

func (c *coordinator) save(changes []changed) error {
	if err := c.db.save(c.meta, changes); err != nil {
		return err
	}
	c.saved = c.meta
	return nil
}

// do runs f on the loop, or drops it when the coordinator ends.
func (c *coordinator) do(ctx context.Context, f func() error) {
	select {
	case c.calls <- f:
	case <-ctx.Done():
	}
}

func (c *coordinator) loop(ctx context.Context) error {
	if err := c.resume(ctx); err != nil {
		return err
	}
	reap := time.NewTicker(c.Layout.Timers.Reap)
	defer reap.Stop()
	for {
		var err error
		select {
		case <-ctx.Done():
			return ctx.Err()
		case f := <-c.calls:
			err = f()
		case <-reap.C:
			err = c.reap(ctx)
		}
		if err != nil {
			return err
		}
	}
}

// resume repeats the effects that a crash may have left out.
func (c *coordinator) resume(ctx context.Context) error {
	for _, id := range slices.Sorted(maps.Keys(c.jobs)) {
		j := c.jobs[id]
		var e Effects
		for _, key := range slices.Sorted(maps.Keys(j.Tasks)) {
			switch j.Tasks[key].Phase {
			case Wanted:
				e.Want = append(e.Want, key)
			case Unwanted:
				e.Drop = append(e.Drop, key)
			}
		}
		if err := c.perform(ctx, j, e, false); err != nil {
			return err
		}
	}
	return c.settle(ctx)
}

// events feeds the loop from the event stream, from behind the cursor on.
func (c *coordinator) events(ctx context.Context) error {
	var subjects []string
	for _, t := range protocol.TaskEvents {
		subjects = append(subjects, protocol.EventsOfType(t))
	}
	first := make(chan uint64, 1)
	c.do(ctx, func() error { first <- c.meta.Cursor + 1; return nil })
	select {
	case <-ctx.Done():
		return ctx.Err()
	case seq := <-first:
		return c.Bus.Events(ctx, subjects, seq, func(seq uint64, e *protocol.Event) error {
			c.do(ctx, func() error { return c.event(ctx, seq, e) })
			return ctx.Err()
		})
	}
}

// event takes one event of a task in. The event only says where to look: what
// holds is the record.
func (c *coordinator) event(ctx context.Context, seq uint64, e *protocol.Event) error {
	if seq <= c.meta.Cursor {
		return nil
	}
	c.meta.Cursor = seq
	if len(c.waiters(e.Key)) == 0 {
		return nil // the cursor is written with the next change
	}
	if err := c.look(ctx, e.Key, false); err != nil {
		return err
	}
	return c.settle(ctx)
}

// waiters are the jobs that wait for a task.
func (c *coordinator) waiters(key string) (list []*Job) {
	for _, id := range slices.Sorted(maps.Keys(c.jobs)) {
		if t := c.jobs[id].Tasks[key]; t != nil && t.Phase == Wanted {
			list = append(list, c.jobs[id])
		}
	}
	return list
}

// settle applies the changes that have come up, one after another.
func (c *coordinator) settle(ctx context.Context) error {
	for len(c.pending) > 0 {
		change := c.pending[0]
		c.pending = c.pending[1:]
		var jobs []*Job
		switch {
		case change.Done != nil:
			jobs = c.waiters(change.Done.Key)
		case change.Undecided != nil:
			jobs = c.waiters(change.Undecided.Key)
		}
		if err := c.apply(ctx, change, jobs, nil); err != nil {
			return err
		}
	}
	return nil
}

// apply steps jobs, writes them, calls saved if it is not nil, and then makes the
// effects true.
func (c *coordinator) apply(ctx context.Context, change Change, jobs []*Job, saved func()) error {
	change.At, change.Slots = time.Now(), c.slots()
	var changes []changed
	for _, j := range jobs {
		e := j.Step(change)
		if len(e.Touched)+len(e.Log) > 0 {
			changes = append(changes, changed{j, e})
		}
	}
	if len(changes) == 0 {
		return nil
	}
	if err := c.fail("save"); err != nil {
		return err
	}
	if err := c.save(changes); err != nil {
		return err
	}
	if saved != nil {
		saved()
	}
	for _, x := range changes {
		for i := range x.effects.Log {
			c.logEntry(&x.effects.Log[i])
		}
		if err := c.perform(ctx, x.job, x.effects, true); err != nil {
			return err
		}
	}
	return nil
}

// logEntry writes an entry of a job's log, without the fields that say nothing.
func (c *coordinator) logEntry(e *protocol.Event) {
	attributes := []any{"job", e.Job[:8], "event", e.Type}
	add := func(name string, value any, set bool) {
		if set {
			attributes = append(attributes, name, value)
		}
	}
	add("candidate", e.Candidate, e.Candidate != protocol.NoCandidate)
	add("family", e.Family, e.Family != "")
	add("verdict", e.Verdict, e.Verdict != "")
	add("constraint", e.Constraint, e.Constraint != "")
	add("cycles", e.Cycles, e.Cycles != 0)
	add("state", e.State, e.State != "")
	add("passed", e.Passed, e.Type == protocol.EventChecked)
	add("message", e.Message, e.Message != "")
	c.Log.Info("job", attributes...)
}

func (c *coordinator) fail(effect string) error {
	if c.Failpoint == nil {
		return nil
	}
	if err := c.Failpoint(effect); err != nil {
		return fmt.Errorf("%w before %s: %w", errKilled, effect, err)
	}
	return nil
}

// slots is how many tasks the fleet executes at a time.
func (c *coordinator) slots() (n int) {
	for _, p := range c.workers {
		n += p.Slots
	}
	return n
}

// perform makes the effects of a step true. What fails because the farm's servers
// are away is logged and tried again by the reaper. fresh is false when the
// effects may have been performed before.
func (c *coordinator) perform(ctx context.Context, j *Job, e Effects, fresh bool) error {
	for _, key := range e.Drop {
		if err := c.cancel(ctx, j, key); err != nil {
			return err
		}
	}
	for _, key := range e.Want {
		if err := c.look(ctx, key, fresh); err != nil {
			return err
		}
	}
	return c.publish(ctx, j)
}

// publish brings the rest of a job's log into the event stream, and forgets the
// job when it is over and everybody can know it.
func (c *coordinator) publish(ctx context.Context, j *Job) error {
	for j.Published < len(j.Log) {
		if err := c.fail("event"); err != nil {
			return err
		}
		if err := c.Bus.PublishEvent(ctx, &j.Log[j.Published]); err != nil {
			c.Log.Warn("event", "job", j.Spec.ID, "error", err)
			return nil
		}
		j.Published++
	}
	if j.State.Over() {
		if err := c.save([]changed{{job: j}}); err != nil {
			return err
		}
		delete(c.jobs, j.Spec.ID)
	}
	return nil
}

// cancel ends the work on a task that no job waits for any more: first the
// record, which decides, then what makes it quick.
func (c *coordinator) cancel(ctx context.Context, j *Job, key string) error {
	if len(c.waiters(key)) > 0 {
		return nil
	}
	if err := c.fail("cancel"); err != nil {
		return err
	}
	task := &j.Tasks[key].Task
	_, err := c.Bus.ChangeRecord(ctx, key, func(r protocol.Record) (protocol.Move, bool) {
		return protocol.Move{Step: protocol.Cancel, Why: "no job waits for it", Now: time.Now()}, !r.State.Final()
	})
	if err == nil {
		err = c.Bus.BroadcastCancel(key)
	}
	if err == nil {
		err = c.Bus.WithdrawTicket(ctx, task)
	}
	if err != nil && !errors.Is(err, bus.ErrNotFound) {
		c.Log.Warn("cancel", "kind", task.Kind, "key", key, "error", err)
	}
	return nil
}

// look compares what the jobs want of a task with its record and does what is
// missing: creates the record, publishes the ticket, takes the verdict in. fresh
// says that a job has just begun to want it, so an old failure does not count.
func (c *coordinator) look(ctx context.Context, key string, fresh bool) error {
	jobs := c.waiters(key)
	if len(jobs) == 0 {
		return nil
	}
	t := jobs[0].Tasks[key]
	err := c.lookAt(ctx, t, fresh)
	if errors.Is(err, errKilled) {
		return err
	}
	if err != nil {
		c.Log.Warn("task", "kind", t.Task.Kind, "candidate", t.Task.Candidate, "key", key, "error", err)
	}
	return nil
}

func (c *coordinator) lookAt(ctx context.Context, t *Task, fresh bool) error {
	key := t.Task.Key
	if fresh {
		// Nearly always the task is new: try to create it before reading it.
		if err := c.fail("record"); err != nil {
			return err
		}
		_, err := c.Bus.CreateRecord(ctx, key, protocol.NewRecord(c.meta.Generation, time.Now()))
		if err == nil {
			return c.ticket(ctx, t)
		}
		if !errors.Is(err, bus.ErrConflict) {
			return err
		}
	}
	r, rev, err := c.Bus.Record(ctx, key)
	switch {
	case errors.Is(err, bus.ErrNotFound):
		if err := c.fail("record"); err != nil {
			return err
		}
		if _, err := c.Bus.CreateRecord(ctx, key, protocol.NewRecord(c.meta.Generation, time.Now())); err != nil {
			return err
		}
		return c.ticket(ctx, t)
	case errors.Is(err, protocol.ErrMalformed) && rev > 0:
		// Nobody can work with it, whoever wrote it.
		if _, err := c.Bus.ReplaceRecord(ctx, key, protocol.NewRecord(c.meta.Generation, time.Now()), rev); err != nil {
			return err
		}
		return c.ticket(ctx, t)
	case err != nil:
		return err
	}
	switch r.State {
	case protocol.Queued:
		if r.Infra > protocol.MaxInfra || r.Crash > protocol.MaxCrash {
			return c.exhaust(ctx, t, r, rev)
		}
		return c.ticket(ctx, t)
	case protocol.Running:
		if c.alive(ctx, *r.Owner, key) {
			return nil
		}
		return c.recover(ctx, t, r, rev)
	case protocol.Done:
		if fresh && r.Result.Verdict == protocol.Failed {
			return c.reopen(ctx, t, r, rev, "wanted again after a failure")
		}
		r.Result.Cached = r.Result.Cached || fresh // done for an earlier job
		return c.take(ctx, t, r, rev)
	case protocol.Undecided:
		if !fresh {
			c.pending = append(c.pending, Change{Undecided: &Loss{key, r.Why}})
			return nil
		}
	}
	return c.reopen(ctx, t, r, rev, "wanted again")
}

// ticket publishes the task's ticket; the record is there.
func (c *coordinator) ticket(ctx context.Context, t *Task) error {
	if err := c.fail("ticket"); err != nil {
		return err
	}
	return c.Bus.PublishTicket(ctx, &t.Task)
}

// storeTimeout bounds the reading of one manifest.
const storeTimeout = 15 * time.Second

// take takes a verdict in. The record names the manifest by digest; a manifest
// that is missing or another one, does not fit the task or has blobs that are
// missing is refused, and the task is done again.
func (c *coordinator) take(ctx context.Context, t *Task, r protocol.Record, rev uint64) error {
	// A store that hangs must not hang the loop.
	readCtx, done := context.WithTimeout(ctx, storeTimeout)
	defer done()
	m, digest, err := c.Store.Manifest(readCtx, t.Task.Key)
	if err == nil && digest != r.Result.Manifest {
		err = fmt.Errorf("manifest has digest %s, the record says %s: %w", digest, r.Result.Manifest, store.ErrDigest)
	}
	if err == nil {
		if fit := m.CheckFor(&t.Task); fit != nil {
			err = fmt.Errorf("%w: %w", protocol.ErrMalformed, fit)
		}
	}
	if err == nil {
		err = c.Store.Complete(readCtx, m)
	}
	if err == nil {
		c.pending = append(c.pending, Change{Done: &Done{t.Task.Key, m, r.Result.Seconds, r.Result.Cached}})
		return nil
	}
	if !errors.Is(err, store.ErrNotFound) && !errors.Is(err, store.ErrDigest) && !errors.Is(err, protocol.ErrMalformed) {
		return err // the store is away; the reaper looks again
	}
	c.Bus.Refuse("manifest", t.Task.Key, err)
	for _, j := range c.waiters(t.Task.Key) {
		if j.Tasks[t.Task.Key].Lost++; j.Tasks[t.Task.Key].Lost > protocol.MaxInfra {
			c.pending = append(c.pending, Change{Undecided: &Loss{t.Task.Key, "its results are refused: " + err.Error()}})
			return nil
		}
	}
	return c.reopen(ctx, t, r, rev, err.Error())
}

// reopen queues a task again that was final.
func (c *coordinator) reopen(ctx context.Context, t *Task, r protocol.Record, rev uint64, why string) error {
	if err := c.fail("reopen"); err != nil {
		return err
	}
	if _, _, err := c.Bus.MoveRecord(ctx, t.Task.Key, r, rev, protocol.Move{Step: protocol.Reopen, Why: why, Now: time.Now()}); err != nil {
		return err
	}
	return c.renew(ctx, t)
}

// renew replaces the ticket, so that what a former holder says about the old one
// touches nothing.
func (c *coordinator) renew(ctx context.Context, t *Task) error {
	if err := c.Bus.WithdrawTicket(ctx, &t.Task); err != nil {
		return err
	}
	return c.ticket(ctx, t)
}

// alive reports whether an owner may still be at work. The presence alone cannot
// tell: after an outage of the servers every presence has expired at once.
func (c *coordinator) alive(ctx context.Context, owner protocol.Owner, key string) bool {
	p, err := c.Bus.Presence(ctx, owner.Name)
	if err == nil && p.Owner == owner || err != nil && !errors.Is(err, bus.ErrNotFound) {
		return true
	}
	return c.Bus.AskOwner(ctx, owner, key, 1, min(c.Layout.Timers.AskOwner, time.Second))
}

// recover takes a task from an owner that is gone. It is quicker than waiting for
// the ticket to be delivered again.
func (c *coordinator) recover(ctx context.Context, t *Task, r protocol.Record, rev uint64) error {
	c.Log.Warn("recovering a task from a lost owner", "kind", t.Task.Kind, "candidate", t.Task.Candidate, "owner", r.Owner.Name)
	if err := c.fail("recover"); err != nil {
		return err
	}
	why := "owner " + r.Owner.Name + " is gone"
	next, newRev, err := c.Bus.MoveRecord(ctx, t.Task.Key, r, rev, protocol.Move{Step: protocol.Crash, By: *r.Owner, Why: why, Now: time.Now()})
	if err != nil {
		return err
	}
	if next.Crash > protocol.MaxCrash {
		return c.exhaust(ctx, t, next, newRev)
	}
	return c.renew(ctx, t)
}

// exhaust ends a task that has used up its attempts without a verdict.
func (c *coordinator) exhaust(ctx context.Context, t *Task, r protocol.Record, rev uint64) error {
	why := fmt.Sprintf("after %d faults of the infrastructure and %d crashes, the last: %s", r.Infra, r.Crash, r.Why)
	if _, _, err := c.Bus.MoveRecord(ctx, t.Task.Key, r, rev, protocol.Move{Step: protocol.Exhaust, Why: why, Now: time.Now()}); err != nil {
		return err
	}
	c.pending = append(c.pending, Change{Undecided: &Loss{t.Task.Key, why}})
	return c.Bus.WithdrawTicket(ctx, &t.Task)
}

// presence takes in that a worker or runner came, changed or is gone.
func (c *coordinator) presence(ctx context.Context, name string, p *protocol.Presence) error {
	old := c.workers[name]
	if p == nil {
		delete(c.workers, name)
	} else {
		c.workers[name] = p
	}
	if (old == nil) == (p == nil) && (p == nil || old.Owner == p.Owner && old.Slots == p.Slots) {
		return nil
	}
	c.Log.Info("presence", "name", name, "here", p != nil, "slots", c.slots())
	if old != nil && (p == nil || old.Owner != p.Owner) {
		if err := c.lookAll(ctx); err != nil {
			return err
		}
	}
	// More slots let more finalists start.
	for _, id := range slices.Sorted(maps.Keys(c.jobs)) {
		if err := c.apply(ctx, Change{}, []*Job{c.jobs[id]}, nil); err != nil {
			return err
		}
	}
	return c.settle(ctx)
}

// reap repairs what accidents left: tasks without record, ticket or live owner,
// verdicts whose event was lost, log entries that were not published.
func (c *coordinator) reap(ctx context.Context) error {
	if err := c.lookAll(ctx); err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(c.jobs)) {
		if err := c.publish(ctx, c.jobs[id]); err != nil {
			return err
		}
	}
	if err := c.settle(ctx); err != nil {
		return err
	}
	if c.meta == c.saved {
		return nil
	}
	return c.save(nil) // events that concerned no job need not be read again
}

func (c *coordinator) lookAll(ctx context.Context) error {
	seen := map[string]bool{}
	for _, id := range slices.Sorted(maps.Keys(c.jobs)) {
		j := c.jobs[id]
		for _, key := range slices.Sorted(maps.Keys(j.Tasks)) {
			if j.Tasks[key].Phase != Wanted || seen[key] {
				continue
			}
			seen[key] = true
			if err := c.look(ctx, key, false); err != nil {
				return err
			}
		}
	}
	return nil
}
