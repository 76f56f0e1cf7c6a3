package protocol

import (
	"fmt"
	"strings"
)

// Streams, buckets and the prefix of every subject. Subjects hold no user text,
// only hexadecimal keys and names that CheckName accepts, so wildcards stay
// disjoint.
const (
	StreamTasks  = "FARM_TASKS"  // work queue: tickets for workers
	StreamRuns   = "FARM_RUNS"   // work queue: tickets for runners
	StreamEvents = "FARM_EVENTS" // what happened, in order

	BucketTask    = "FARM_TASK"    // <key>: the task's record
	BucketWorkers = "FARM_WORKERS" // <worker>: presence, expires
	BucketDevice  = "FARM_DEVICE"  // <device>: lease, expires
	BucketControl = "FARM_CTL"     // durable copy of commands

	SubjectTasks  = "farm.v1.t.>"
	SubjectRuns   = "farm.v1.r.>"
	SubjectEvents = "farm.v1.e.>"
	SubjectAPI    = "farm.v1.api.*"
	SubjectCancel = "farm.v1.ctl.cancel"

	// ControlProto is the key of BucketControl that holds the version which the
	// coordinator speaks.
	ControlProto = "proto"
	// AnyDevice in a run's subject lets every runner of the class take it.
	AnyDevice = "any"
)

// Classes are the sizes of worker tasks, by memory and cores; ClassSmall is
// 4 GiB and one core.
var Classes = []string{ClassSmall}

// ClassSmall is the class of every task until sizes are predicted.
const ClassSmall = "s"

// Priorities is the number of priorities of a job: 0 first, 1 normal, 2 last.
const Priorities = 3

// Roles of artifacts. A task's stage reads and writes these by name.
const (
	RoleFixture    = "fixture"    // tar of a reference fixture folder
	RoleShortlist  = "shortlist"  // plan: the ranked recipes
	RoleScheduled  = "scheduled"  // schedule: one recipe lowered, placed and scheduled
	RolePackage    = "package"    // validate: .ipuexe
	RoleParameters = "parameters" // validate: all weights in binding order
	RoleInputs     = "inputs"     // validate: all inputs in binding order
	RoleExpected   = "expected"   // reference: all outputs in binding order, little-endian float32, row-major
	RoleOutputs    = "outputs"    // run: what the device gave, in the form of RoleExpected
	RoleProfile    = "profile"    // run: .ipuprof
	RoleRun        = "run"        // run: the run record
)

// TaskSubject is where the ticket of t goes.
func (t *Task) TaskSubject() string {
	if t.Kind == KindRun {
		return fmt.Sprintf("farm.v1.r.%s.%s.%s", t.Run.DeviceClass, t.Run.Device, t.Key)
	}
	return fmt.Sprintf("farm.v1.t.%s.%d.%s", t.Class, t.Priority, t.Key)
}

// Stream is the work queue of t's tickets.
func (t *Task) Stream() string {
	if t.Kind == KindRun {
		return StreamRuns
	}
	return StreamTasks
}

// Queue names a durable consumer and the tickets it filters.
type Queue struct {
	Stream, Consumer, Filter string
	// Bell is the core subject that rings when a ticket was stored, so that idle
	// slots need not poll.
	Bell string
}

// TaskQueue is the queue of worker tasks of a class and priority.
func TaskQueue(class string, priority int) Queue {
	return Queue{
		Stream:   StreamTasks,
		Consumer: fmt.Sprintf("tasks-%s-%d", class, priority),
		Filter:   fmt.Sprintf("farm.v1.t.%s.%d.*", class, priority),
		Bell:     fmt.Sprintf("farm.v1.bell.t.%s.%d", class, priority),
	}
}

// RunQueue is the queue of runs for one device of a class, or for AnyDevice.
func RunQueue(class, device string) Queue {
	return Queue{
		Stream:   StreamRuns,
		Consumer: fmt.Sprintf("runs-%s-%s", class, device),
		Filter:   fmt.Sprintf("farm.v1.r.%s.%s.*", class, device),
		Bell:     fmt.Sprintf("farm.v1.bell.r.%s.%s", class, device),
	}
}

// Queue is the queue that t's ticket waits in.
func (t *Task) Queue() Queue {
	if t.Kind == KindRun {
		return RunQueue(t.Run.DeviceClass, t.Run.Device)
	}
	return TaskQueue(t.Class, t.Priority)
}

// EventSubject is where e goes: by job, task ("job" for events of the whole
// job) and type.
func (e *Event) EventSubject() string {
	key := e.Key
	if key == "" {
		key = "job"
	}
	return fmt.Sprintf("farm.v1.e.%s.%s.%s", e.Job, key, e.Type)
}

// JobEvents filters the events of one job.
func JobEvents(job string) string { return "farm.v1.e." + job + ".>" }

// EventsOfType filters the events of one type.
func EventsOfType(t EventType) string { return "farm.v1.e.*.*." + string(t) }

// APISubject is where requests of a verb to the coordinator go.
func APISubject(verb string) string { return "farm.v1.api." + verb }

// OwnSubject is where a worker or runner answers whether it still works on a task.
func OwnSubject(owner string) string { return "farm.v1.own." + owner }

// BlobKey is the object that holds the bytes with this digest.
func BlobKey(digest string) string {
	return strings.Join([]string{"cas/sha256", digest[:2], digest[2:4], digest}, "/")
}

// ManifestKey is the object that holds a task's manifest.
func ManifestKey(key string) string { return "ac/v1/" + key }
