package coordinator

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"ipufarm/protocol"
)

// Phase is what a job thinks of one of its tasks. What the farm thinks of it is
// in the task's record.
type Phase string

const (
	Wanted    Phase = "wanted"    // the job waits for its verdict
	Decided   Phase = "decided"   // the verdict is here
	Undecided Phase = "undecided" // there will be no verdict
	Unwanted  Phase = "unwanted"  // the job no longer waits for it
)

// Task is a task in the eyes of a job.
type Task struct {
	Task     protocol.Task      `json:"task"`
	Phase    Phase              `json:"phase"`
	Manifest *protocol.Manifest `json:"manifest,omitempty"` // when decided
	Why      string             `json:"why,omitempty"`      // when undecided
	Seconds  float64            `json:"seconds"`            // in the stage
	Ended    time.Time          `json:"ended"`              // when the verdict arrived here
	Cached   bool               `json:"cached,omitempty"`
	Lost     int                `json:"lost,omitempty"` // results that turned out to be missing or wrong
}

// verdict returns the verdict of a decided task.
func (t *Task) verdict() protocol.Verdict { return t.Manifest.Verdict }

// candidate is a finalist of a job.
type candidate struct {
	protocol.PlannedFinalist
	Standing Standing         `json:"standing"`
	Verdict  protocol.Verdict `json:"verdict"` // of the stage that decided it
	Why      string           `json:"why,omitempty"`
	Schedule string           `json:"schedule,omitempty"` // keys of its tasks, once they are wanted
	Validate string           `json:"validate,omitempty"`
}

// keys are its tasks in the order of the flow; empty ones are not wanted yet.
func (f *candidate) keys() [2]string { return [2]string{f.Schedule, f.Validate} }

// Job is everything that the coordinator knows about a job. It is changed only by
// Step, a function of the job and a Change: it has no clock, no network and no
// randomness, so a replay of the same changes gives the same job.
type Job struct {
	Spec       protocol.Job      `json:"job"`
	State      protocol.JobState `json:"state"`
	Submitted  time.Time         `json:"submitted"`
	Finished   time.Time         `json:"finished"`
	Passed     bool              `json:"passed"`
	Error      string            `json:"error,omitempty"`
	Refusal    *protocol.Refusal `json:"refusal,omitempty"` // of the plan
	Candidates []candidate       `json:"candidates,omitempty"`
	Winner     int               `json:"winner"`
	Why        string            `json:"why,omitempty"`
	Keys       map[string]string `json:"keys"` // by kind: plan, reference, run
	LogLen     int               `json:"log_len"`
	Published  int               `json:"published"` // log entries known to be in the event stream

	Tasks map[string]*Task `json:"-"` // by key; stored one by one
	Log   []protocol.Event `json:"-"` // stored one by one

	effects *Effects
}

// Change is something that a job reacts to. At most one of Done, Undecided and
// Cancel is set; with none it is a look around, after a change of Slots.
type Change struct {
	At        time.Time
	Slots     int // tasks that the fleet can execute at a time
	Done      *Done
	Undecided *Loss
	Cancel    bool
}

// Done is a verdict that arrived.
type Done struct {
	Key      string
	Manifest *protocol.Manifest
	Seconds  float64
	Cached   bool
}

// Loss says that a task will have no verdict.
type Loss struct{ Key, Why string }

// Effects is what must be made true in the world after a step. All of it can be
// repeated without harm.
type Effects struct {
	Want    []string         // tasks that must get a record and a ticket
	Drop    []string         // tasks that nobody need work on any more
	Touched []string         // tasks that changed
	Log     []protocol.Event // new entries of the job's log
}

// NewJob is a job that was just submitted.
func NewJob(spec protocol.Job, at time.Time) *Job {
	return &Job{
		Spec: spec, State: protocol.JobActive, Submitted: at.UTC(), Winner: protocol.NoCandidate,
		Keys: map[string]string{}, Tasks: map[string]*Task{},
	}
}

// Step changes the job and returns what must be done about it.
func (j *Job) Step(c Change) Effects {
	j.effects = &Effects{}
	if j.State == protocol.JobActive {
		if j.LogLen == 0 {
			j.log(c, protocol.Event{Type: protocol.EventSubmitted})
		}
		switch {
		case c.Cancel:
			j.finish(c, protocol.JobCancelled, "cancelled on request")
		case c.Done != nil:
			j.decided(c, c.Done)
		case c.Undecided != nil:
			j.lost(c, c.Undecided)
		}
		j.advance(c)
	}
	e := *j.effects
	j.effects = nil
	return e
}

// log adds an entry to the job's log, which is also an event for whoever watches.
func (j *Job) log(c Change, e protocol.Event) {
	j.LogLen++
	e.Version, e.Job, e.N, e.At = protocol.Version, j.Spec.ID, j.LogLen, c.At.UTC()
	if e.Type != protocol.EventStarting && e.Type != protocol.EventVerdict && e.Type != protocol.EventPruned && e.Type != protocol.EventDecided && e.Type != protocol.EventRunning {
		e.Candidate = protocol.NoCandidate
	}
	if n := len(j.Candidates); n > 0 {
		e.Total = n
		for i := range j.Candidates {
			if s := j.Candidates[i].Standing; s == IsFeasible || s == Impossible || s == Unknown {
				e.Decided++
			}
		}
	}
	j.Log = append(j.Log, e)
	j.effects.Log = append(j.effects.Log, e)
}

func (j *Job) task(key string) *Task {
	if key == "" {
		return nil
	}
	return j.Tasks[key]
}

func (j *Job) touch(key string) {
	if !slices.Contains(j.effects.Touched, key) {
		j.effects.Touched = append(j.effects.Touched, key)
	}
}

// decided takes a verdict in. A verdict of a task that is not waited for any more
// is as good as any; a second verdict changes nothing.
func (j *Job) decided(c Change, d *Done) {
	t := j.task(d.Key)
	if t == nil || t.Phase == Decided {
		return
	}
	t.Phase, t.Manifest, t.Seconds, t.Cached, t.Ended = Decided, d.Manifest, d.Seconds, d.Cached, c.At.UTC()
	j.touch(d.Key)
	if d.Key == j.Keys[string(protocol.KindReference)] && t.verdict().Kind == protocol.Feasible {
		j.log(c, protocol.Event{Type: protocol.EventReference, Seconds: t.Seconds})
	}
}

func (j *Job) lost(c Change, l *Loss) {
	t := j.task(l.Key)
	if t == nil || t.Phase != Wanted {
		return
	}
	t.Phase, t.Why, t.Ended = Undecided, protocol.Clip(l.Why), c.At.UTC()
	j.touch(l.Key)
}

// advance brings the job as far as its verdicts allow. It looks at the whole
// picture every time; nothing depends on which change came last.
//
//	plan ──► finalists: schedule(i) ──► validate(i) ──► decide ──► run ──► over
//	reference ───────────────────────────────────────────────────┘
func (j *Job) advance(c Change) {
	if j.State != protocol.JobActive {
		return
	}
	plan := j.want(protocol.KindPlan, protocol.NoCandidate, nil)
	reference := j.want(protocol.KindReference, protocol.NoCandidate, nil)
	if !j.settled(c, plan) {
		return
	}
	if reference.Phase != Wanted && !j.settled(c, reference) {
		return
	}
	if j.Candidates == nil && !j.planned(c, plan) {
		return
	}
	if j.Winner == protocol.NoCandidate && !j.choose(c, reference) {
		return
	}
	if !j.settled(c, reference) {
		return
	}
	run := j.wantRun(c, reference)
	if !j.settled(c, run) {
		return
	}
	j.checked(c, run)
}

// settled reports whether a task that the job cannot do without is feasible; when
// it never will be, the job is over.
func (j *Job) settled(c Change, t *Task) bool {
	switch t.Phase {
	case Wanted:
		return false
	case Undecided:
		j.finish(c, protocol.JobFailed, fmt.Sprintf("%s: undecided: %s", t.Task.Kind, t.Why))
		return false
	}
	switch v := t.verdict(); v.Kind {
	case protocol.Feasible:
		return true
	case protocol.Infeasible:
		j.Refusal = v.Refusal
		j.finish(c, protocol.JobFailed, fmt.Sprintf("%s: refused, %s: %s", t.Task.Kind, v.Refusal.Constraint, v.Refusal.Message))
	default:
		j.finish(c, protocol.JobFailed, fmt.Sprintf("%s: %s", t.Task.Kind, v.Message))
	}
	return false
}

// planned reads the finalists from the facts of the plan.
func (j *Job) planned(c Change, plan *Task) bool {
	facts, err := protocol.DecodePlanFacts(plan.Manifest.Facts)
	if err != nil {
		j.finish(c, protocol.JobFailed, err.Error())
		return false
	}
	for _, f := range facts.Finalists {
		j.Candidates = append(j.Candidates, candidate{PlannedFinalist: f})
	}
	j.log(c, protocol.Event{Type: protocol.EventPlanned, Seconds: plan.Seconds})
	return true
}

// choose lets the policy look at the finalists and does what it says. It reports
// whether there is a winner.
func (j *Job) choose(c Change, reference *Task) bool {
	for i := range j.Candidates {
		j.assess(c, i)
	}
	window := c.Slots
	if reference.Phase == Wanted {
		window-- // it has a slot; started ahead, finalists would stand before the validation of the first
	}
	if j.Spec.Policy.Name == protocol.BestExact || j.Spec.Policy.Name == protocol.VerifyAll {
		window = 2 * c.Slots // nothing is started in vain, so the queue need not run dry
	}
	d := Decide(j.Spec.Policy, j.view(), window)
	for _, rank := range d.Cancel {
		j.prune(c, rank)
	}
	if d.Over && d.Winner == protocol.NoCandidate {
		j.finish(c, protocol.JobFailed, d.Why)
		return false
	}
	if d.Over {
		winner := &j.Candidates[d.Winner]
		j.Winner, j.Why = d.Winner, d.Why
		j.log(c, protocol.Event{Type: protocol.EventDecided, Candidate: d.Winner, Family: winner.Family, Cycles: winner.Verdict.Cycles, Message: d.Why})
		return true
	}
	for _, rank := range d.Start {
		j.Candidates[rank].Standing = Started
		j.log(c, protocol.Event{Type: protocol.EventStarting, Candidate: rank, Family: j.Candidates[rank].Family})
	}
	for rank := range j.Candidates {
		if j.Candidates[rank].Standing == Started {
			j.pursue(rank)
		}
	}
	return false
}

func (j *Job) view() []Finalist {
	view := make([]Finalist, len(j.Candidates))
	for i := range j.Candidates {
		view[i] = Finalist{j.Candidates[i].Standing, j.Candidates[i].LowerBoundCycles, j.Candidates[i].Verdict.Cycles}
	}
	return view
}

// assess sets the standing of a finalist when one of its tasks has decided it.
func (j *Job) assess(c Change, rank int) {
	f := &j.Candidates[rank]
	if f.Standing == IsFeasible || f.Standing == Impossible || f.Standing == Unknown {
		return
	}
	for _, key := range f.keys() {
		t := j.task(key)
		if t == nil || t.Phase == Wanted || t.Phase == Unwanted {
			return
		}
		if t.Phase == Undecided {
			f.Standing, f.Why = Unknown, t.Why
		} else if v := t.verdict(); v.Kind != protocol.Feasible {
			f.Standing, f.Verdict, f.Why = Impossible, v, v.Message
		} else if key == f.Validate {
			f.Standing, f.Verdict = IsFeasible, v
		} else {
			continue
		}
		e := protocol.Event{Type: protocol.EventVerdict, Candidate: rank, Family: f.Family, Verdict: f.Verdict.Kind, Cycles: f.Verdict.Cycles, Message: f.Why, Seconds: j.seconds(f)}
		if r := f.Verdict.Refusal; r != nil {
			e.Constraint, e.Message = r.Constraint, r.Message
		}
		j.log(c, e)
		return
	}
}

// seconds is the time that the stages of a finalist took.
func (j *Job) seconds(f *candidate) (sum float64) {
	for _, key := range f.keys() {
		if t := j.task(key); t != nil {
			sum += t.Seconds
		}
	}
	return sum
}

// pursue wants the next task of a started finalist.
func (j *Job) pursue(rank int) {
	f := &j.Candidates[rank]
	shortlist := j.output(protocol.KindPlan, protocol.RoleShortlist)
	schedule := j.want(protocol.KindSchedule, rank, shortlist)
	f.Schedule = schedule.Task.Key
	if schedule.Phase != Decided || schedule.verdict().Kind != protocol.Feasible {
		return
	}
	scheduled, _ := protocol.FindArtifact(schedule.Manifest.Artifacts, protocol.RoleScheduled)
	f.Validate = j.want(protocol.KindValidate, rank, append(shortlist, scheduled)).Task.Key
}

// output returns an artifact of one of the job's own tasks.
func (j *Job) output(kind protocol.Kind, role string) []protocol.Artifact {
	a, _ := protocol.FindArtifact(j.task(j.Keys[string(kind)]).Manifest.Artifacts, role)
	return []protocol.Artifact{a}
}

// prune gives up a finalist that cannot win.
func (j *Job) prune(c Change, rank int) {
	f := &j.Candidates[rank]
	f.Standing = Pruned
	for _, key := range f.keys() {
		j.drop(key)
	}
	j.log(c, protocol.Event{Type: protocol.EventPruned, Candidate: rank, Family: f.Family})
}

func (j *Job) drop(key string) {
	if t := j.task(key); t != nil && t.Phase == Wanted {
		t.Phase = Unwanted
		j.touch(key)
		j.effects.Drop = append(j.effects.Drop, key)
	}
}

// want returns the task for a stage of the job, new or as it stands.
func (j *Job) want(kind protocol.Kind, rank int, inputs []protocol.Artifact) *Task {
	t := protocol.Task{Kind: kind, Spec: j.Spec.Spec, Candidate: rank, Inputs: slices.Clone(inputs)}
	if j.Spec.Fixture != nil {
		t.Inputs = append(t.Inputs, *j.Spec.Fixture)
	}
	return j.wantTask(t)
}

func (j *Job) wantTask(t protocol.Task) *Task {
	t.Version, t.Job, t.Class, t.Priority, t.Tool = protocol.Version, j.Spec.ID, protocol.ClassSmall, j.Spec.Priority, j.Spec.Tool
	if t.Inputs == nil {
		t.Inputs = []protocol.Artifact{}
	}
	protocol.SortArtifacts(t.Inputs)
	key, err := protocol.KeyOf(&t)
	if err != nil {
		panic(fmt.Sprintf("BUG: the spec of an accepted job has no key: %v", err)) // Job.Check made sure that it has
	}
	t.Key = key
	if t.Candidate == protocol.NoCandidate {
		j.Keys[string(t.Kind)] = key
	}
	known := j.Tasks[key]
	if known != nil && known.Phase != Unwanted {
		return known
	}
	if known == nil {
		known = &Task{Task: t}
		j.Tasks[key] = known
	}
	known.Phase = Wanted
	j.touch(key)
	j.effects.Want = append(j.effects.Want, key)
	return known
}

// wantRun sends the winner's package to the runners. A run is a measurement, so
// the job's id is in its key: it is not shared with other jobs.
func (j *Job) wantRun(c Change, reference *Task) *Task {
	if t := j.task(j.Keys[string(protocol.KindRun)]); t != nil {
		return t
	}
	winner := &j.Candidates[j.Winner]
	inputs := j.output(protocol.KindReference, protocol.RoleExpected)
	for _, a := range j.task(winner.Validate).Manifest.Artifacts {
		if a.Role == protocol.RolePackage || a.Role == protocol.RoleParameters || a.Role == protocol.RoleInputs {
			inputs = append(inputs, a)
		}
	}
	t := j.wantTask(protocol.Task{
		Kind: protocol.KindRun, Spec: j.Spec.Spec, Candidate: protocol.NoCandidate, Inputs: inputs, Salt: j.Spec.ID,
		Run: &protocol.RunWant{DeviceClass: j.Spec.DeviceClass, Device: j.Spec.Device, Tolerance: j.Spec.Tolerance},
	})
	j.log(c, protocol.Event{Type: protocol.EventRunning, Candidate: j.Winner})
	return t
}

// checked ends the job with the run record.
func (j *Job) checked(c Change, run *Task) {
	var r protocol.RunReport
	if err := json.Unmarshal(run.Manifest.Facts, &r); err != nil {
		j.finish(c, protocol.JobFailed, fmt.Sprintf("run record: %v", err))
		return
	}
	j.log(c, protocol.Event{Type: protocol.EventChecked, Cycles: r.Cycles, Measured: r.Measured, Passed: r.Passed, MaxAbsError: r.MaxAbsError, Seconds: run.Seconds})
	j.Passed = r.Passed
	j.finish(c, protocol.JobDone, "")
}

// finish ends the job; whatever it still waited for is dropped.
func (j *Job) finish(c Change, state protocol.JobState, why string) {
	j.State, j.Finished, j.Error = state, c.At.UTC(), protocol.Clip(why)
	for rank := range j.Candidates {
		if f := &j.Candidates[rank]; f.Standing == Started {
			f.Standing = Pruned
		}
	}
	for _, key := range slices.Sorted(maps.Keys(j.Tasks)) {
		j.drop(key)
	}
	j.log(c, protocol.Event{Type: protocol.EventFinished, State: state, Passed: j.Passed, Message: j.Error, Seconds: j.Finished.Sub(j.Submitted).Seconds()})
}

// Report tells everything about the job.
func (j *Job) Report() *protocol.JobReport {
	r := &protocol.JobReport{
		Version: protocol.Version, Job: j.Spec.ID, State: j.State, Passed: j.Passed, Error: j.Error, Refusal: j.Refusal, Policy: j.Spec.Policy,
		Finalists: []protocol.FinalistReport{}, Winner: j.Winner, Why: j.Why, Facts: map[protocol.Kind]json.RawMessage{},
		StageSeconds: j.stageSeconds(), Artifacts: map[string]protocol.Artifact{}, Log: j.Log, Submitted: j.Submitted,
		Pending: j.pending(),
	}
	submission := j.Spec
	r.Submission = &submission
	if j.State.Over() {
		finished := j.Finished
		r.Finished = &finished
	}
	keys := maps.Clone(j.Keys)
	for rank := range j.Candidates {
		r.Finalists = append(r.Finalists, j.finalistReport(rank))
		if rank == j.Winner {
			keys[string(protocol.KindSchedule)], keys[string(protocol.KindValidate)] = j.Candidates[rank].Schedule, j.Candidates[rank].Validate
		}
	}
	for _, kind := range protocol.Kinds {
		t := j.task(keys[string(kind)])
		if t == nil || t.Phase != Decided {
			continue
		}
		if kind == protocol.KindRun {
			r.Run = new(protocol.RunReport)
			if json.Unmarshal(t.Manifest.Facts, r.Run) != nil {
				r.Run = nil // the job's error says so
			}
		} else if len(t.Manifest.Facts) > 0 {
			r.Facts[kind] = t.Manifest.Facts
		}
		for _, a := range t.Manifest.Artifacts {
			r.Artifacts[a.Role] = a
		}
	}
	return r
}

// pending are the tasks that the job waits for, in the order of the flow.
func (j *Job) pending() (list []protocol.PendingTask) {
	for key, t := range j.Tasks {
		if t.Phase == Wanted {
			list = append(list, protocol.PendingTask{Kind: t.Task.Kind, Candidate: t.Task.Candidate, Key: key})
		}
	}
	slices.SortFunc(list, func(a, b protocol.PendingTask) int {
		return cmp.Or(cmp.Compare(slices.Index(protocol.Kinds, a.Kind), slices.Index(protocol.Kinds, b.Kind)), cmp.Compare(a.Candidate, b.Candidate), cmp.Compare(a.Key, b.Key))
	})
	return list
}

func (j *Job) finalistReport(rank int) protocol.FinalistReport {
	f := &j.Candidates[rank]
	r := protocol.FinalistReport{
		Rank: rank, Family: f.Family, EstimatedCycles: f.EstimatedCycles, LowerBoundCycles: f.LowerBoundCycles, ExactCycles: f.Verdict.Cycles,
		Refusal: f.Verdict.Refusal, Message: f.Why, Seconds: j.seconds(f), Cached: f.Schedule != "",
	}
	for _, key := range f.keys() {
		if t := j.task(key); t != nil {
			r.Cached = r.Cached && t.Cached
		}
	}
	switch f.Standing {
	case IsFeasible, Impossible:
		r.Verdict = string(f.Verdict.Kind)
	case Unknown:
		r.Verdict = "undecided"
	case Started:
		r.Verdict = "running"
	default:
		r.Verdict = "waiting"
		if j.State.Over() || j.Winner != protocol.NoCandidate || f.Standing == Pruned {
			r.Verdict = "cancelled"
		}
	}
	if f.Verdict.Refusal != nil {
		r.Constraint = f.Verdict.Refusal.Constraint
	}
	return r
}

// stageSeconds is, for each kind, the time in which at least one of its tasks was
// being executed; finalists overlap, so the sum of their times would say little.
// Each interval ends when the verdict arrived at the coordinator and has the
// length that the worker measured: no two clocks are compared.
func (j *Job) stageSeconds() map[string]float64 {
	spans := map[protocol.Kind][]span{}
	for _, t := range j.Tasks {
		if t.Phase == Decided && !t.Cached {
			start := t.Ended.Add(-time.Duration(t.Seconds * float64(time.Second)))
			spans[t.Task.Kind] = append(spans[t.Task.Kind], span{start, t.Ended})
		}
	}
	seconds := map[string]float64{}
	for _, kind := range protocol.Kinds {
		seconds[string(kind)] = union(spans[kind]).Seconds()
	}
	if j.State.Over() {
		seconds["total"] = j.Finished.Sub(j.Submitted).Seconds()
	}
	return seconds
}

type span struct{ start, end time.Time }

// union is the total length of the points that lie in at least one span.
func union(spans []span) (sum time.Duration) {
	slices.SortFunc(spans, func(a, b span) int { return cmp.Or(a.start.Compare(b.start), a.end.Compare(b.end)) })
	var covered time.Time
	for _, s := range spans {
		if s.start.Before(covered) {
			s.start = covered
		}
		if s.end.After(s.start) {
			sum += s.end.Sub(s.start)
			covered = s.end
		}
	}
	return sum
}
