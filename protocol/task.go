package protocol

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math"
)

// Kind is a stage that runs as a task. Deciding and reporting are the
// coordinator's own and need no task.
type Kind string

const (
	KindPlan      Kind = "plan"
	KindSchedule  Kind = "schedule"
	KindValidate  Kind = "validate"
	KindReference Kind = "reference"
	KindRun       Kind = "run"
)

// Kinds lists every kind in the order of the flow.
var Kinds = []Kind{KindPlan, KindSchedule, KindValidate, KindReference, KindRun}

// Check implements Checker.
func (k Kind) Check() error {
	switch k {
	case KindPlan, KindSchedule, KindValidate, KindReference, KindRun:
		return nil
	}
	return fmt.Errorf("task kind %q, accepted are plan, schedule, validate, reference and run", clip(string(k)))
}

// NoCandidate is the Candidate of a task that is not about one finalist.
const NoCandidate = -1

// MaxFinalists bounds a shortlist.
const MaxFinalists = 1024

// Tolerance says how far an output element may be from the reference:
// |got - want| <= Atol + Rtol*|want|.
type Tolerance struct {
	Atol float64 `json:"atol"`
	Rtol float64 `json:"rtol"`
}

// Check implements Checker.
func (t *Tolerance) Check() error {
	for _, v := range []float64{t.Atol, t.Rtol} {
		if math.IsNaN(v) || math.IsInf(v, 0) || v < 0 {
			return fmt.Errorf("tolerance %v is not a finite number of at least 0", v)
		}
	}
	return nil
}

// RunWant is what a run needs beside its artifacts.
type RunWant struct {
	DeviceClass string    `json:"device_class"`
	Device      string    `json:"device"` // a device's name or AnyDevice
	Tolerance   Tolerance `json:"tolerance"`
}

// Task is one stage to execute, as its ticket carries it. Everything that can
// change the result is part of the key; job, class and priority are not.
type Task struct {
	Version   int             `json:"version"`
	Key       string          `json:"key"`
	Kind      Kind            `json:"kind"`
	Job       string          `json:"job"` // whose events the task's events join
	Class     string          `json:"class"`
	Priority  int             `json:"priority"`
	Tool      string          `json:"tool"` // digest of the executable that runs the stage
	Spec      json.RawMessage `json:"spec"` // canonical, opaque to the farm
	Candidate int             `json:"candidate"`
	Inputs    []Artifact      `json:"inputs"` // by role
	Run       *RunWant        `json:"run,omitempty"`
	Salt      string          `json:"salt,omitempty"` // keeps a measurement from being shared
}

// KeyOf computes the key of t: the SHA-256 of a version line and the canonical
// JSON of everything that decides the result. The device description, flags,
// seeds and effort budgets are inside the spec and enter through its digest.
func KeyOf(t *Task) (string, error) {
	type input struct {
		Role   string `json:"role"`
		SHA256 string `json:"sha256"`
	}
	inputs := make([]input, len(t.Inputs))
	for i, a := range t.Inputs {
		inputs[i] = input{a.Role, a.SHA256}
	}
	spec, err := Canonical(t.Spec)
	if err != nil {
		return "", fmt.Errorf("spec: %w", err)
	}
	body, err := CanonicalOf(struct {
		Kind      Kind     `json:"kind"`
		Tool      string   `json:"tool"`
		Spec      string   `json:"spec"`
		Candidate int      `json:"candidate"`
		Inputs    []input  `json:"inputs"`
		Run       *RunWant `json:"run"`
		Salt      string   `json:"salt"`
	}{t.Kind, t.Tool, hexString(sha256.Sum256(spec)), t.Candidate, inputs, t.Run, t.Salt})
	if err != nil {
		return "", err
	}
	return hexString(sha256.Sum256(append([]byte("farm/akey/v1\n"), body...))), nil
}

// Check implements Checker. It recomputes the key, so a ticket whose content was
// changed on the way is malformed.
func (t *Task) Check() error {
	if err := errors.Join(checkVersion(t.Version), CheckDigest(t.Key), t.Kind.Check(), CheckJobID(t.Job), CheckName(t.Class), CheckDigest(t.Tool), checkArtifacts(t.Inputs)); err != nil {
		return err
	}
	if t.Priority < 0 || t.Priority >= Priorities {
		return fmt.Errorf("priority %d, accepted are 0 to %d", t.Priority, Priorities-1)
	}
	perFinalist := t.Kind == KindSchedule || t.Kind == KindValidate
	if perFinalist && (t.Candidate < 0 || t.Candidate >= MaxFinalists) || !perFinalist && t.Candidate != NoCandidate {
		return fmt.Errorf("candidate %d does not fit a %s", t.Candidate, t.Kind)
	}
	if (t.Kind == KindRun) != (t.Run != nil) {
		return fmt.Errorf("a %s task and run wishes do not go together", t.Kind)
	}
	if t.Run != nil {
		if err := errors.Join(CheckName(t.Run.DeviceClass), CheckName(t.Run.Device), t.Run.Tolerance.Check()); err != nil {
			return err
		}
	}
	if len(t.Salt) > 64 {
		return fmt.Errorf("salt has %d bytes, at most 64 are accepted", len(t.Salt))
	}
	if len(t.Spec) > MaxSpec {
		return fmt.Errorf("spec has %d bytes, at most %d are accepted", len(t.Spec), MaxSpec)
	}
	if canonical, err := Canonical(t.Spec); err != nil || !bytes.Equal(canonical, t.Spec) {
		return errors.New("spec is not canonical JSON")
	}
	key, err := KeyOf(t)
	if err != nil {
		return err
	}
	if key != t.Key {
		return fmt.Errorf("key %s does not belong to the content, whose key is %s", t.Key, key)
	}
	return nil
}
