package protocol

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// PolicyName says how the winner is chosen among the finalists.
type PolicyName string

const (
	FirstFeasible PolicyName = "first-feasible" // the lowest rank that is feasible
	BestExact     PolicyName = "best-exact"     // the fewest exact cycles, then the lowest rank
	FirstK        PolicyName = "first-k"        // the best of the first K feasible ranks
	VerifyAll     PolicyName = "verify-all"     // like best-exact, but nothing is pruned
)

// Policies lists the names, the default first.
var Policies = []PolicyName{FirstFeasible, BestExact, FirstK, VerifyAll}

// Policy is a name with its parameters.
type Policy struct {
	Name    PolicyName `json:"name"`
	K       int        `json:"k,omitempty"`       // first-k only
	Lenient bool       `json:"lenient,omitempty"` // skip undecided finalists instead of stopping
}

// Check implements Checker.
func (p *Policy) Check() error {
	switch p.Name {
	case FirstFeasible, BestExact, VerifyAll:
		if p.K != 0 {
			return fmt.Errorf("policy %s takes no k", p.Name)
		}
	case FirstK:
		if p.K < 1 || p.K > MaxFinalists {
			return fmt.Errorf("policy first-k: k is %d, accepted are 1 to %d", p.K, MaxFinalists)
		}
	default:
		return fmt.Errorf("policy %q, accepted are %v", clip(string(p.Name)), Policies)
	}
	return nil
}

// Job is what a person submits. ID is made by the client, so that submitting
// twice is submitting once.
type Job struct {
	Version     int             `json:"version"`
	ID          string          `json:"id"`
	Spec        json.RawMessage `json:"spec"` // for the compiler: canonical, opaque to the farm
	Policy      Policy          `json:"policy"`
	Tolerance   Tolerance       `json:"tolerance"`
	DeviceClass string          `json:"device_class"`
	Device      string          `json:"device"` // a device's name or AnyDevice
	Priority    int             `json:"priority"`
	Tool        string          `json:"tool"`              // digest of the executable for all stages
	Fixture     *Artifact       `json:"fixture,omitempty"` // role RoleFixture
}

// NewJobID returns a fresh random id.
func NewJobID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// Check implements Checker.
func (j *Job) Check() error {
	if err := errors.Join(checkVersion(j.Version), CheckJobID(j.ID), j.Policy.Check(), j.Tolerance.Check(), CheckName(j.DeviceClass), CheckName(j.Device), CheckDigest(j.Tool)); err != nil {
		return err
	}
	if j.Priority < 0 || j.Priority >= Priorities {
		return fmt.Errorf("job: priority %d, accepted are 0 to %d", j.Priority, Priorities-1)
	}
	if len(j.Spec) > MaxSpec {
		return fmt.Errorf("job: spec has %d bytes, at most %d are accepted", len(j.Spec), MaxSpec)
	}
	if canonical, err := Canonical(j.Spec); err != nil || !bytes.Equal(canonical, j.Spec) || j.Spec[0] != '{' {
		return errors.New("job: spec is not a canonical JSON object")
	}
	if j.Fixture != nil {
		if j.Fixture.Role != RoleFixture {
			return fmt.Errorf("job: fixture has role %q", clip(j.Fixture.Role))
		}
		return j.Fixture.Check()
	}
	return nil
}

// JobState is where a job stands.
type JobState string

const (
	JobActive    JobState = "active"
	JobDone      JobState = "done"      // it ran; Passed says whether it agreed with the reference
	JobFailed    JobState = "failed"    // no winner, or a stage gave up
	JobCancelled JobState = "cancelled" // somebody asked
)

// FinalistReport is one row of the table of finalists.
type FinalistReport struct {
	Rank             int      `json:"rank"`
	Family           string   `json:"family"`
	Verdict          string   `json:"verdict"`              // feasible, infeasible, failed, undecided, cancelled, or waiting and running before the end
	Constraint       string   `json:"constraint,omitempty"` // of the refusal
	EstimatedCycles  uint64   `json:"estimated_cycles"`
	LowerBoundCycles uint64   `json:"lower_bound_cycles"`
	ExactCycles      uint64   `json:"exact_cycles,omitempty"`
	Refusal          *Refusal `json:"refusal,omitempty"`
	Message          string   `json:"message,omitempty"` // failed or undecided: why
	Seconds          float64  `json:"seconds"`           // in its stages
	Cached           bool     `json:"cached,omitempty"`  // every stage came from the cache
}

// OutputCheck compares one output tensor with the reference.
type OutputCheck struct {
	Name        string  `json:"name"`
	Elements    int64   `json:"elements"`
	Mismatches  int64   `json:"mismatches"`
	MaxAbsError float64 `json:"max_abs_error"`
	Message     string  `json:"message,omitempty"` // the worst element, when there is a mismatch
}

// RunReport is the run record: what the device did and how far it was from the
// reference. It is the facts of a run's manifest and the artifact RoleRun.
type RunReport struct {
	Version     int             `json:"version"`
	Device      string          `json:"device"`
	DeviceClass string          `json:"device_class"`
	Model       string          `json:"model"` // what kind of device; says "modelled" when its cycles are
	Cycles      uint64          `json:"cycles"`
	Measured    bool            `json:"measured,omitempty"` // by a card; the cycles are modelled otherwise
	Passed      bool            `json:"reference_passed"`
	MaxAbsError float64         `json:"max_abs_error"` // over all outputs; largest float64 when one is not finite
	Tolerance   Tolerance       `json:"tolerance"`
	Outputs     []OutputCheck   `json:"outputs"`
	Inputs      []Artifact      `json:"inputs"`           // what the run used
	Detail      json.RawMessage `json:"detail,omitempty"` // what else the device tells
}

// JobReport is everything about a job, at any time.
type JobReport struct {
	Version      int                      `json:"version"`
	Job          string                   `json:"job"`
	State        JobState                 `json:"state"`
	Passed       bool                     `json:"reference_passed"`
	Error        string                   `json:"error,omitempty"`   // why there is no result
	Refusal      *Refusal                 `json:"refusal,omitempty"` // of the plan itself
	Policy       Policy                   `json:"policy"`
	Finalists    []FinalistReport         `json:"finalists"`
	Winner       int                      `json:"winner"` // rank, NoCandidate when there is none
	Why          string                   `json:"why,omitempty"`
	Run          *RunReport               `json:"run,omitempty"`
	Facts        map[Kind]json.RawMessage `json:"facts,omitempty"` // plan, reference; schedule and validate of the winner
	StageSeconds map[string]float64       `json:"stage_seconds"`   // per kind: time in which at least one task of it ran; and total
	Artifacts    map[string]Artifact      `json:"artifacts"`       // by role, of the job and its winner
	Log          []Event                  `json:"log"`
	Submitted    time.Time                `json:"submitted"`
	Finished     *time.Time               `json:"finished,omitempty"`
	Submission   *Job                     `json:"submission,omitempty"` // what was submitted
	Pending      []PendingTask            `json:"pending,omitempty"`    // tasks that the job waits for now
}

// PendingTask is a task without a verdict; how far it is says its record.
type PendingTask struct {
	Kind      Kind   `json:"kind"`
	Candidate int    `json:"candidate"` // rank of the finalist, NoCandidate otherwise
	Key       string `json:"key"`
}

// Check implements Checker.
func (r *JobReport) Check() error {
	if err := errors.Join(checkVersion(r.Version), CheckJobID(r.Job)); err != nil {
		return err
	}
	switch r.State {
	case JobActive, JobDone, JobFailed, JobCancelled:
	default:
		return fmt.Errorf("job report: state %q", clip(string(r.State)))
	}
	for _, t := range r.Pending {
		if err := errors.Join(t.Kind.Check(), CheckDigest(t.Key)); err != nil {
			return fmt.Errorf("job report: pending: %w", err)
		}
	}
	if r.Submission != nil {
		return r.Submission.Check()
	}
	return nil
}

// Over reports whether the job will not change any more.
func (s JobState) Over() bool { return s != JobActive }

// Verbs of the coordinator's API, on APISubject(verb).
const (
	VerbSubmit = "submit" // Job → Reply
	VerbJob    = "job"    // JobQuery → Reply with a JobReport
	VerbCancel = "cancel" // JobQuery → Reply
)

// JobQuery names a job.
type JobQuery struct {
	Version int    `json:"version"`
	Job     string `json:"job"`
}

// Check implements Checker.
func (q *JobQuery) Check() error { return errors.Join(checkVersion(q.Version), CheckJobID(q.Job)) }

// Reply answers a request: Error is empty when it was granted. Again asks to
// send it again: the coordinator is just being stopped.
type Reply struct {
	Version int        `json:"version"`
	Error   string     `json:"error,omitempty"`
	Again   bool       `json:"again,omitempty"`
	Report  *JobReport `json:"report,omitempty"`
}

// Check implements Checker.
func (r *Reply) Check() error {
	if err := checkVersion(r.Version); err != nil {
		return err
	}
	if r.Report != nil {
		return r.Report.Check()
	}
	return nil
}

// Presence is what a worker or runner tells about itself in BucketWorkers.
type Presence struct {
	Version int      `json:"version"`
	Owner   Owner    `json:"owner"`
	Tool    string   `json:"tool,omitempty"`
	Classes []string `json:"classes"`
	Slots   int      `json:"slots"`            // tasks at a time; 0 for a runner
	Device  string   `json:"device,omitempty"` // runner
}

// Check implements Checker.
func (p *Presence) Check() error {
	if err := errors.Join(checkVersion(p.Version), p.Owner.Check()); err != nil {
		return err
	}
	if p.Slots < 0 || p.Slots > 1024 || len(p.Classes) > 16 {
		return fmt.Errorf("presence: %d slots, %d classes", p.Slots, len(p.Classes))
	}
	if p.Tool != "" {
		return CheckDigest(p.Tool)
	}
	return nil
}

// Lease is the value of BucketDevice: who holds a device and for what. The
// token of the holder is (Gen, revision of its creation).
type Lease struct {
	Version int    `json:"version"`
	Owner   Owner  `json:"owner"`
	Run     string `json:"run"` // key of the run
	Gen     int    `json:"gen"`
}

// Check implements Checker.
func (l *Lease) Check() error {
	return errors.Join(checkVersion(l.Version), l.Owner.Check(), CheckDigest(l.Run))
}

// CancelNotice is broadcast on SubjectCancel: whoever works on one of the tasks stops.
type CancelNotice struct {
	Version int      `json:"version"`
	Keys    []string `json:"keys"`
}

// Check implements Checker.
func (c *CancelNotice) Check() error {
	if len(c.Keys) > 1024 {
		return fmt.Errorf("cancel notice: %d keys, at most 1024 are accepted", len(c.Keys))
	}
	for _, key := range c.Keys {
		if err := CheckDigest(key); err != nil {
			return err
		}
	}
	return checkVersion(c.Version)
}

// OwnQuery asks an owner whether it still works on a task; OwnReply answers.
type OwnQuery struct {
	Version int    `json:"version"`
	Key     string `json:"key"`
	Boot    string `json:"boot"` // of the owner in the record
}

// Check implements Checker.
func (q *OwnQuery) Check() error {
	return errors.Join(checkVersion(q.Version), CheckDigest(q.Key), checkHex(q.Boot, 16))
}

// OwnReply says yes when the task is in work there.
type OwnReply struct {
	Version int  `json:"version"`
	Yes     bool `json:"yes"`
}

// Check implements Checker.
func (r *OwnReply) Check() error { return checkVersion(r.Version) }

// NewBoot returns the epoch of a process's start.
func NewBoot() string {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
