package protocol

import (
	"errors"
	"fmt"
	"time"
)

// State is where a task stands.
//
//	          claim                commit
//	queued ----------> running -------------> done ---> disputed
//	  ^  ^               |  |                   |           |
//	  |  +-- give-back,--+  +--> cancelled      |           |
//	  |      fault, crash,  +--> undecided      |           |
//	  |      takeover (stays running)           |           |
//	  +-------------- reopen -------------------+-----------+
//
// Only the coordinator moves a task out of done, cancelled, undecided or
// disputed; to everybody else these states are final.
type State string

const (
	Queued    State = "queued"
	Running   State = "running"
	Done      State = "done"
	Cancelled State = "cancelled"
	Undecided State = "undecided" // gave no verdict within the limits
	Disputed  State = "disputed"  // two executions disagreed
)

// States lists every state.
var States = []State{Queued, Running, Done, Cancelled, Undecided, Disputed}

// Final reports whether no owner can change a record in this state.
func (s State) Final() bool { return s != Queued && s != Running }

// Step is a move between states, named by what happened.
type Step string

const (
	Claim    Step = "claim"     // owner: takes a queued task
	TakeOver Step = "take-over" // owner: takes a running task whose owner is silent
	Commit   Step = "commit"    // owner: the manifest exists, this is the result
	GiveBack Step = "give-back" // owner: leaves in order, counts nowhere
	Fault    Step = "fault"     // owner: infrastructure failed (storage, disk, missing input)
	Crash    Step = "crash"     // owner: the child died, or coordinator: the owner did
	Cancel   Step = "cancel"    // coordinator: nobody wants it any more
	Exhaust  Step = "exhaust"   // coordinator: the limits are used up
	Dispute  Step = "dispute"   // coordinator: another execution gave another result
	Reopen   Step = "reopen"    // coordinator: a job wants it (again), or the result was lost
)

// Steps lists every step.
var Steps = []Step{Claim, TakeOver, Commit, GiveBack, Fault, Crash, Cancel, Exhaust, Dispute, Reopen}

// Limits of a task, after which it is undecided.
const (
	MaxInfra = 5 // infrastructure faults
	MaxCrash = 3 // deaths of child or owner
)

// Owner is a process of the fleet: its name and the epoch of its start.
type Owner struct {
	Name string `json:"name"`
	Boot string `json:"boot"`
}

// Check implements Checker.
func (o *Owner) Check() error {
	return errors.Join(CheckName(o.Name), checkHex(o.Boot, 16))
}

// Result points at the manifest that decides a done task.
type Result struct {
	Manifest string      `json:"manifest"` // digest of the manifest's bytes
	Verdict  VerdictKind `json:"verdict"`
	Seconds  float64     `json:"seconds"` // time in the stage; for reports only
	Cached   bool        `json:"cached,omitempty"`
}

// Check implements Checker.
func (r *Result) Check() error {
	if r.Seconds < 0 {
		return fmt.Errorf("result: %v seconds", r.Seconds)
	}
	if r.Verdict != Feasible && r.Verdict != Infeasible && r.Verdict != Failed {
		return fmt.Errorf("result: verdict %q", clip(string(r.Verdict)))
	}
	return CheckDigest(r.Manifest)
}

// Record is the truth about one task: one value in BucketTask, changed only by
// compare-and-set. Its revision in the bucket after a claim, together with Gen,
// is the owner's fencing token.
type Record struct {
	Version   int       `json:"version"`
	Gen       int       `json:"gen"` // generation of the farm's message store
	State     State     `json:"state"`
	Attempt   int       `json:"attempt"` // claims so far
	Infra     int       `json:"infra"`   // faults of the infrastructure so far
	Crash     int       `json:"crash"`   // deaths so far
	Owner     *Owner    `json:"owner,omitempty"`
	TicketSeq uint64    `json:"ticket_seq,omitempty"` // the ticket that the owner holds
	Since     time.Time `json:"since"`                // for people; nothing decides on it
	Result    *Result   `json:"result,omitempty"`
	Why       string    `json:"why,omitempty"`
}

// Check implements Checker.
func (r *Record) Check() error {
	if err := checkVersion(r.Version); err != nil {
		return err
	}
	switch r.State {
	case Queued, Running, Done, Cancelled, Undecided, Disputed:
	default:
		return fmt.Errorf("record: state %q", clip(string(r.State)))
	}
	if r.Gen < 0 || r.Attempt < 0 || r.Infra < 0 || r.Crash < 0 {
		return fmt.Errorf("record: negative generation or counter")
	}
	if (r.State == Running) != (r.Owner != nil) {
		return fmt.Errorf("record: %s with owner %v", r.State, r.Owner)
	}
	if r.Owner != nil {
		if err := r.Owner.Check(); err != nil {
			return fmt.Errorf("record: owner: %w", err)
		}
	}
	if hasResult := r.State == Done || r.State == Disputed; hasResult != (r.Result != nil) {
		return fmt.Errorf("record: %s with result %v", r.State, r.Result)
	}
	if r.Result != nil {
		if err := r.Result.Check(); err != nil {
			return err
		}
	}
	return checkText("record: why", r.Why, MaxMessage)
}

// NewRecord is the record of a task that was just created.
func NewRecord(gen int, now time.Time) Record {
	return Record{Version: Version, Gen: gen, State: Queued, Since: now.UTC()}
}

// Move is a step with what it brings along.
type Move struct {
	Step      Step
	By        Owner   // claim and take-over: the new owner; owner's steps: who says so
	TicketSeq uint64  // claim, take-over
	Result    *Result // commit
	Why       string
	Now       time.Time
}

// ErrIllegal is wrapped when a move does not fit the record.
var ErrIllegal = errors.New("illegal move")

// After returns the record after a move, or an error that wraps ErrIllegal. It
// changes nothing itself; the caller writes the result by compare-and-set.
func (r Record) After(m Move) (Record, error) {
	illegal := func(why string) (Record, error) {
		return Record{}, fmt.Errorf("%w: %s of a %s task: %s", ErrIllegal, m.Step, r.State, why)
	}
	next := r
	next.Since, next.Why = m.Now.UTC(), Clip(m.Why)
	release := func(to State) Record {
		next.State, next.Owner, next.TicketSeq = to, nil, 0
		return next
	}
	owned := func() bool { return r.State == Running && *r.Owner == m.By }

	switch m.Step {
	case Claim, TakeOver:
		if want := map[Step]State{Claim: Queued, TakeOver: Running}[m.Step]; r.State != want {
			return illegal("needs a " + string(want) + " one")
		}
		if r.Crash > MaxCrash || r.Infra > MaxInfra {
			return illegal("its limits are used up")
		}
		if m.Step == TakeOver {
			next.Crash++
		}
		by := m.By
		next.State, next.Owner, next.TicketSeq = Running, &by, m.TicketSeq
		next.Attempt++
		return next, nil
	case Commit:
		if !owned() {
			return illegal("not by its owner")
		}
		if m.Result == nil {
			return illegal("without a result")
		}
		result := *m.Result
		next = release(Done)
		next.Result = &result
		return next, nil
	case GiveBack:
		if !owned() {
			return illegal("not by its owner")
		}
		return release(Queued), nil
	case Fault:
		if !owned() {
			return illegal("not by its owner")
		}
		next.Infra++
		return release(Queued), nil
	case Crash:
		if !owned() {
			return illegal("not of its owner")
		}
		next.Crash++
		return release(Queued), nil
	case Cancel:
		if r.State.Final() {
			return illegal("is final")
		}
		return release(Cancelled), nil
	case Exhaust:
		if r.State.Final() {
			return illegal("is final")
		}
		if r.Crash <= MaxCrash && r.Infra <= MaxInfra {
			return illegal("has attempts left")
		}
		return release(Undecided), nil
	case Dispute:
		if r.State != Done {
			return illegal("has no result")
		}
		next.State = Disputed
		return next, nil
	case Reopen:
		if !r.State.Final() {
			return illegal("is not final")
		}
		next = release(Queued)
		next.Infra, next.Crash, next.Result = 0, 0, nil
		return next, nil
	}
	return illegal("unknown step")
}
