package protocol

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// EventType says what happened.
type EventType string

// Events of a task, published by its owner.
const (
	EventStarted  EventType = "started"  // claimed
	EventProgress EventType = "progress" // a line from the stage; may be lost
	EventDone     EventType = "done"     // committed: the record says done
	EventFault    EventType = "fault"    // an attempt ended without a verdict
)

// Events of a job, published by the coordinator. They are the job's decision
// log: N counts them from 1 without gaps.
const (
	EventSubmitted EventType = "submitted"
	EventPlanned   EventType = "planned"   // Total finalists
	EventReference EventType = "reference" // the expected outputs are there
	EventStarting  EventType = "starting"  // finalist Candidate was put in the queue
	EventVerdict   EventType = "verdict"   // finalist Candidate was decided
	EventPruned    EventType = "pruned"    // finalist Candidate cannot win and was cancelled
	EventDecided   EventType = "decided"   // finalist Candidate won
	EventRunning   EventType = "running"   // its package went to the runners
	EventChecked   EventType = "checked"   // the run was compared with the reference
	EventFinished  EventType = "finished"  // the job is over: State, Passed, Message
)

// TaskEvents are the types that the coordinator acts on.
var TaskEvents = []EventType{EventDone, EventFault}

// Event is one thing that happened, to a task (Key set) or to a job (N set).
type Event struct {
	Version     int         `json:"version"`
	Type        EventType   `json:"type"`
	Job         string      `json:"job"`
	Key         string      `json:"key,omitempty"`
	N           int         `json:"n,omitempty"`
	At          time.Time   `json:"at"`
	Kind        Kind        `json:"kind,omitempty"`
	Candidate   int         `json:"candidate"` // rank of the finalist, NoCandidate otherwise
	Attempt     int         `json:"attempt,omitempty"`
	Worker      string      `json:"worker,omitempty"`
	Result      *Result     `json:"result,omitempty"`        // done
	Verdict     VerdictKind `json:"verdict,omitempty"`       // verdict
	Family      string      `json:"family,omitempty"`        // starting, verdict, decided
	Constraint  string      `json:"constraint,omitempty"`    // verdict: of a refusal
	Cycles      uint64      `json:"cycles,omitempty"`        // verdict, decided, checked; modelled, unless Measured
	Measured    bool        `json:"measured,omitempty"`      // checked: a card measured the cycles
	Decided     int         `json:"decided,omitempty"`       // finalists with a verdict so far
	Total       int         `json:"total,omitempty"`         // finalists
	State       JobState    `json:"state,omitempty"`         // finished
	Passed      bool        `json:"passed,omitempty"`        // checked, finished
	MaxAbsError float64     `json:"max_abs_error,omitempty"` // checked
	Seconds     float64     `json:"seconds,omitempty"`
	Message     string      `json:"message,omitempty"`
}

// Check implements Checker.
func (e *Event) Check() error {
	if err := errors.Join(checkVersion(e.Version), CheckJobID(e.Job), checkText("event: message", e.Message, MaxMessage), checkText("event: family", e.Family, 64)); err != nil {
		return err
	}
	if e.Candidate < NoCandidate || e.Candidate >= MaxFinalists || e.N < 0 || e.Attempt < 0 || e.Decided < 0 || e.Total < 0 {
		return fmt.Errorf("event: candidate %d, n %d, attempt %d or counts %d/%d out of range", e.Candidate, e.N, e.Attempt, e.Decided, e.Total)
	}
	if math.IsNaN(e.MaxAbsError) || math.IsInf(e.MaxAbsError, 0) || !(e.Seconds >= 0) {
		return errors.New("event: error or seconds not finite")
	}
	switch e.Type {
	case EventStarted, EventProgress, EventDone, EventFault:
		if err := errors.Join(CheckDigest(e.Key), e.Kind.Check(), CheckName(e.Worker)); err != nil {
			return err
		}
		if e.N != 0 {
			return fmt.Errorf("event: %s of a task with a number in the job's log", e.Type)
		}
		if (e.Type == EventDone) != (e.Result != nil) {
			return fmt.Errorf("event: %s with result %v", e.Type, e.Result)
		}
		if e.Result != nil {
			return e.Result.Check()
		}
	case EventSubmitted, EventPlanned, EventReference, EventStarting, EventVerdict, EventPruned, EventDecided, EventRunning, EventChecked, EventFinished:
		if e.Key != "" || e.Result != nil || e.N == 0 {
			return fmt.Errorf("event: %s needs a number in the job's log and no task", e.Type)
		}
	default:
		return fmt.Errorf("event: type %q", clip(string(e.Type)))
	}
	return nil
}

// ID is the same for every copy of an event, so that a copy within the
// deduplication window is dropped by the server.
func (e *Event) ID() string {
	if e.N > 0 {
		return fmt.Sprintf("%s/%d", e.Job, e.N)
	}
	return fmt.Sprintf("%s/%d/%s", e.Key, e.Attempt, e.Type)
}
