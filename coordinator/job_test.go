package coordinator_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"ipufarm/coordinator"
	"ipufarm/protocol"
)

// TestJobsInRandomHistories plays whole jobs: tasks end in any order, some
// verdicts arrive twice or after their task was dropped, the number of slots
// changes, and now and then the job is written and read again. However it goes,
// the winner is the sequential one, the log has no gaps, and nothing is left.
func TestJobsInRandomHistories(t *testing.T) {
	for seed := range uint64(800) {
		random := rand.New(rand.NewPCG(seed, 9))
		policy := protocol.Policy{Name: protocol.Policies[random.IntN(len(protocol.Policies))]}
		if policy.Name == protocol.FirstK {
			policy.K = 1 + random.IntN(3)
		}
		truths := make([]truth, 1+random.IntN(8))
		for i := range truths {
			bound := uint64(random.IntN(50))
			truths[i] = truth{standing: []coordinator.Standing{coordinator.IsFeasible, coordinator.Impossible}[random.IntN(2)], bound: bound, score: bound + uint64(random.IntN(20))}
		}
		w := &world{random: random, truths: truths, job: coordinator.NewJob(jobSpec(policy), start), live: map[string]bool{}, now: start}
		if err := w.play(); err != nil {
			t.Fatalf("seed %d, %+v, %+v: %v", seed, policy, truths, err)
		}
		r := w.job.Report()
		want := sequential(policy, truths)
		switch {
		case r.Winner != want:
			t.Fatalf("seed %d: winner %d, want %d", seed, r.Winner, want)
		case want >= 0 && (r.State != protocol.JobDone || !r.Passed || r.Run == nil):
			t.Fatalf("seed %d: state %s, passed %v, error %q", seed, r.State, r.Passed, r.Error)
		case want < 0 && (r.State != protocol.JobFailed || !strings.Contains(r.Error, "no feasible candidate")):
			t.Fatalf("seed %d: state %s, error %q", seed, r.State, r.Error)
		case len(w.live) > 0:
			t.Fatalf("seed %d: tasks are left: %v", seed, w.live)
		}
		for i, e := range r.Log {
			if e.N != i+1 || e.Check() != nil {
				t.Fatalf("seed %d: entry %d of the log is %+v (%v)", seed, i, e, e.Check())
			}
		}
		if _, err := protocol.Encode(r, protocol.MaxReply); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for kind, seconds := range r.StageSeconds {
			if seconds < 0 || seconds > r.StageSeconds["total"]+1e-9 && kind != "total" {
				t.Fatalf("seed %d: %v", seed, r.StageSeconds)
			}
		}
	}
}

var start = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

func jobSpec(policy protocol.Policy) protocol.Job {
	return protocol.Job{Version: protocol.Version, ID: strings.Repeat("0a", 16), Spec: json.RawMessage(`{"tiles":64}`), Policy: policy,
		DeviceClass: "ipu21", Device: protocol.AnyDevice, Priority: 1, Tool: strings.Repeat("ab", 32)}
}

// world is what a job sees of a farm.
type world struct {
	random *rand.Rand
	truths []truth
	job    *coordinator.Job
	live   map[string]bool // tasks that have a ticket
	ended  []string        // tasks that gave a verdict at least once
	now    time.Time
}

func (w *world) step(c coordinator.Change) error {
	w.now = w.now.Add(time.Duration(100+w.random.IntN(1000)) * time.Millisecond)
	c.At, c.Slots = w.now, w.random.IntN(5)
	e := w.job.Step(c)
	for _, key := range e.Drop {
		delete(w.live, key)
	}
	for _, key := range e.Want {
		task := &w.job.Tasks[key].Task
		if err := task.Check(); err != nil {
			return fmt.Errorf("wanted task: %w", err)
		}
		w.live[key] = true
	}
	if pending := w.job.Report().Pending; e.Want != nil && len(pending) < len(e.Want) {
		return fmt.Errorf("the report names %d pending tasks, %d were just wanted", len(pending), len(e.Want))
	}
	for _, p := range w.job.Report().Pending {
		if task := &w.job.Tasks[p.Key].Task; task.Kind != p.Kind || task.Candidate != p.Candidate || w.job.State.Over() {
			return fmt.Errorf("a job that is %s reports pending %+v, the task is %+v", w.job.State, p, task)
		}
	}
	if w.random.IntN(4) == 0 {
		return w.restart()
	}
	return nil
}

// restart replaces the job by what can be read of it after it was written.
func (w *world) restart() error {
	data, err := json.Marshal(w.job)
	if err != nil {
		return err
	}
	again := new(coordinator.Job)
	if err := json.Unmarshal(data, again); err != nil {
		return err
	}
	again.Tasks, again.Log = w.job.Tasks, w.job.Log
	w.job = again
	return nil
}

func (w *world) play() error {
	if err := w.step(coordinator.Change{}); err != nil {
		return err
	}
	for range 2000 {
		if w.job.State.Over() {
			before, _ := json.Marshal(w.job.Report())
			if err := w.step(w.verdict(w.ended[w.random.IntN(len(w.ended))])); err != nil {
				return err
			}
			if after, _ := json.Marshal(w.job.Report()); string(after) != string(before) {
				return fmt.Errorf("a late verdict changed a finished job:\n%s\n%s", before, after)
			}
			return nil
		}
		keys := slices.Sorted(maps.Keys(w.live))
		if len(keys) == 0 {
			return fmt.Errorf("the job waits for nothing: %+v", w.job.Report())
		}
		var c coordinator.Change
		switch n := w.random.IntN(10); {
		case n == 0 && len(w.ended) > 0:
			c = w.verdict(w.ended[w.random.IntN(len(w.ended))]) // a copy
		case n == 1:
			// a look around
		case n == 2:
			all := slices.Sorted(maps.Keys(w.job.Tasks)) // maybe one that was dropped, whose worker was faster
			c = w.end(all[w.random.IntN(len(all))])
		default:
			c = w.end(keys[w.random.IntN(len(keys))])
		}
		if err := w.step(c); err != nil {
			return err
		}
	}
	return fmt.Errorf("no end")
}

func (w *world) end(key string) coordinator.Change {
	delete(w.live, key)
	w.ended = append(w.ended, key)
	return w.verdict(key)
}

// verdict is what the task with a key always gives.
func (w *world) verdict(key string) coordinator.Change {
	task := &w.job.Tasks[key].Task
	m := &protocol.Manifest{Version: protocol.Version, Key: key, Kind: task.Kind, Tool: task.Tool, Verdict: protocol.Verdict{Kind: protocol.Feasible}}
	for i, role := range protocol.RequiredRoles(task.Kind) {
		m.Artifacts = append(m.Artifacts, protocol.Artifact{Role: role, SHA256: fmt.Sprintf("%s%02x", key[:62], i)})
	}
	protocol.SortArtifacts(m.Artifacts)
	switch task.Kind {
	case protocol.KindPlan:
		var facts protocol.PlanFacts
		for rank, v := range w.truths {
			facts.Finalists = append(facts.Finalists, protocol.PlannedFinalist{Rank: rank, Family: "f", EstimatedCycles: v.score, LowerBoundCycles: v.bound})
		}
		m.Facts, _ = json.Marshal(facts)
	case protocol.KindSchedule, protocol.KindValidate:
		v := w.truths[task.Candidate]
		m.Verdict.Cycles = v.score
		// One rank in two is refused late, by its validation.
		if v.standing == coordinator.Impossible && (task.Candidate%2 == 0) == (task.Kind == protocol.KindSchedule) {
			m.Verdict = protocol.Verdict{Kind: protocol.Infeasible, Refusal: &protocol.Refusal{Constraint: protocol.Tables, Tile: -1, Step: -1, Message: "full"}}
		}
	case protocol.KindRun:
		m.Facts = json.RawMessage(`{"version":1,"cycles":7,"reference_passed":true}`)
	}
	return coordinator.Change{Done: &coordinator.Done{Key: key, Manifest: m, Seconds: 0.05}}
}

// TestStageSecondsAreAUnion: tasks of a kind that overlap count once.
func TestStageSecondsAreAUnion(t *testing.T) {
	j := coordinator.NewJob(jobSpec(protocol.Policy{Name: protocol.VerifyAll}), start)
	w := &world{random: rand.New(rand.NewPCG(1, 1)), truths: []truth{{standing: coordinator.IsFeasible, score: 1}, {standing: coordinator.IsFeasible, score: 2}}, job: j, live: map[string]bool{}}
	at := start
	step := func(kind protocol.Kind, rank int, after time.Duration, seconds float64) {
		t.Helper()
		for _, key := range slices.Sorted(maps.Keys(j.Tasks)) {
			if task := &j.Tasks[key].Task; task.Kind == kind && (task.Candidate == rank || rank < 0) {
				at = at.Add(after)
				c := w.verdict(key)
				c.At, c.Slots, c.Done.Seconds = at, 4, seconds
				j.Step(c)
				return
			}
		}
		t.Fatalf("no task %s of %d", kind, rank)
	}
	j.Step(coordinator.Change{At: at, Slots: 4})
	step(protocol.KindReference, -1, time.Second, 1)
	step(protocol.KindPlan, -1, time.Second, 2)
	step(protocol.KindSchedule, 0, 3*time.Second, 3)
	step(protocol.KindSchedule, 1, time.Second, 4) // overlaps the other for 3 s
	step(protocol.KindValidate, 0, time.Second, 0.5)
	step(protocol.KindValidate, 1, 2*time.Second, 0.5) // apart from the other
	step(protocol.KindRun, -1, time.Second, 1)
	got := j.Report().StageSeconds
	want := map[string]float64{"plan": 2, "reference": 1, "schedule": 4, "validate": 1, "run": 1, "total": 10}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
