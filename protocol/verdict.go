package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
)

// VerdictKind is what a task found out. A lost worker, a time-out or a lack of
// memory is not a verdict; such a task is undecided, which is a state of its
// record.
type VerdictKind string

const (
	Feasible   VerdictKind = "feasible"
	Infeasible VerdictKind = "infeasible" // with a Refusal: a fact about the candidate
	Failed     VerdictKind = "failed"     // the stage itself gave up: an error that repeating would repeat
)

// Constraints that a refusal may name. Capacity is a proof that nothing fits,
// fragmentation the failure of a search, budget the end of its allowance.
const (
	Capacity      = "capacity"
	Fragmentation = "fragmentation"
	Budget        = "budget"
	Tables        = "tables"
	Exchange      = "exchange"
)

// Refusal says why a candidate cannot be.
type Refusal struct {
	Constraint  string `json:"constraint"`            // one of the constraints above, or another name
	Tile        int    `json:"tile"`                  // logical tile, -1 when it is not one tile
	Needed      int64  `json:"needed_bytes"`          // what was asked for
	Free        int64  `json:"free_bytes"`            // what was there in total
	LargestHole int64  `json:"largest_hole_bytes"`    // what was there in one piece
	Allocation  string `json:"allocation,omitempty"`  // what was to be placed
	Message     string `json:"message"`               // one line for people
	Live        []Live `json:"live,omitempty"`        // the largest buffers alive at that point
	Step        int    `json:"step"`                  // position in the lowered program, -1 when none
	Certificate string `json:"certificate,omitempty"` // the proof, where there is one
}

// Live is a buffer that took space when a refusal was found.
type Live struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
}

// Check implements Checker.
func (r *Refusal) Check() error {
	if err := CheckName(r.Constraint); err != nil {
		return fmt.Errorf("refusal: constraint: %w", err)
	}
	if r.Tile < -1 || r.Step < -1 || r.Needed < 0 || r.Free < 0 || r.LargestHole < 0 {
		return fmt.Errorf("refusal: negative tile %d, step %d or bytes %d, %d, %d", r.Tile, r.Step, r.Needed, r.Free, r.LargestHole)
	}
	if len(r.Live) > 64 {
		return fmt.Errorf("refusal: %d live buffers, at most 64 are accepted", len(r.Live))
	}
	return errors.Join(checkText("refusal: message", r.Message, MaxMessage), checkText("refusal: allocation", r.Allocation, MaxMessage),
		checkText("refusal: certificate", r.Certificate, MaxMessage))
}

// Verdict is the outcome of a task, a pure function of its key. Cycles is the
// exact score of a feasible finalist (modelled), 0 for stages without one.
type Verdict struct {
	Kind    VerdictKind `json:"kind"`
	Cycles  uint64      `json:"cycles,omitempty"`
	Refusal *Refusal    `json:"refusal,omitempty"` // infeasible only
	Message string      `json:"message,omitempty"` // failed only: what went wrong
}

// Check implements Checker.
func (v *Verdict) Check() error {
	if err := checkText("verdict: message", v.Message, MaxMessage); err != nil {
		return err
	}
	switch v.Kind {
	case Feasible:
		if v.Refusal != nil || v.Message != "" {
			return errors.New("verdict: feasible with a refusal or a message")
		}
	case Infeasible:
		if v.Refusal == nil {
			return errors.New("verdict: infeasible without a refusal")
		}
		return v.Refusal.Check()
	case Failed:
		if v.Refusal != nil || v.Message == "" {
			return errors.New("verdict: failed needs a message and no refusal")
		}
	default:
		return fmt.Errorf("verdict: kind %q, accepted are feasible, infeasible and failed", clip(string(v.Kind)))
	}
	return nil
}

// Artifact is bytes by digest, and the part they play.
type Artifact struct {
	Role   string `json:"role"`
	SHA256 string `json:"sha256"`
	Size   int64  `json:"size"`
}

// Check implements Checker.
func (a *Artifact) Check() error {
	if err := CheckName(a.Role); err != nil {
		return fmt.Errorf("artifact: %w", err)
	}
	if err := CheckDigest(a.SHA256); err != nil {
		return fmt.Errorf("artifact %s: %w", a.Role, err)
	}
	if a.Size < 0 {
		return fmt.Errorf("artifact %s: size %d", a.Role, a.Size)
	}
	return nil
}

// checkArtifacts accepts artifacts sorted by role, each role once.
func checkArtifacts(list []Artifact) error {
	if len(list) > 32 {
		return fmt.Errorf("%d artifacts, at most 32 are accepted", len(list))
	}
	for i := range list {
		if err := list[i].Check(); err != nil {
			return err
		}
		if i > 0 && list[i-1].Role >= list[i].Role {
			return fmt.Errorf("artifacts %s and %s are not in order of role", list[i-1].Role, list[i].Role)
		}
	}
	return nil
}

// SortArtifacts puts a list into the order that messages want.
func SortArtifacts(list []Artifact) {
	slices.SortFunc(list, func(a, b Artifact) int { return strings.Compare(a.Role, b.Role) })
}

// FindArtifact returns the artifact with a role.
func FindArtifact(list []Artifact, role string) (Artifact, bool) {
	for _, a := range list {
		if a.Role == role {
			return a, true
		}
	}
	return Artifact{}, false
}

// Manifest is a verdict with the artifacts behind it, stored under the task's
// key. It holds nothing that differs between two honest executions: no time, no
// host, no worker. So two manifests of one key can be compared byte by byte.
type Manifest struct {
	Version   int             `json:"version"`
	Key       string          `json:"key"`
	Kind      Kind            `json:"kind"`
	Tool      string          `json:"tool"`
	Verdict   Verdict         `json:"verdict"`
	Artifacts []Artifact      `json:"artifacts"`
	Facts     json.RawMessage `json:"facts,omitempty"` // canonical JSON object
}

// Check implements Checker.
func (m *Manifest) Check() error {
	if err := errors.Join(checkVersion(m.Version), CheckDigest(m.Key), m.Kind.Check(), CheckDigest(m.Tool), m.Verdict.Check(), checkArtifacts(m.Artifacts)); err != nil {
		return err
	}
	return checkFacts(m.Facts)
}

func checkFacts(facts json.RawMessage) error {
	if len(facts) == 0 {
		return nil
	}
	if len(facts) > MaxFacts {
		return fmt.Errorf("facts have %d bytes, at most %d are accepted", len(facts), MaxFacts)
	}
	if facts[0] != '{' {
		return errors.New("facts are not a JSON object")
	}
	return nil
}

// RequiredRoles lists what a feasible task of a kind must have produced.
func RequiredRoles(k Kind) []string {
	switch k {
	case KindPlan:
		return []string{RoleShortlist}
	case KindSchedule:
		return []string{RoleScheduled}
	case KindValidate:
		return []string{RoleInputs, RolePackage, RoleParameters}
	case KindReference:
		return []string{RoleExpected}
	case KindRun:
		return []string{RoleOutputs, RoleProfile, RoleRun}
	}
	return nil
}

// CheckFor reports whether m can be the outcome of task t.
func (m *Manifest) CheckFor(t *Task) error {
	if m.Key != t.Key || m.Kind != t.Kind || m.Tool != t.Tool {
		return fmt.Errorf("manifest is of task %s (%s, tool %s), not of %s (%s, tool %s)",
			clip(m.Key), m.Kind, clip(m.Tool), clip(t.Key), t.Kind, clip(t.Tool))
	}
	if m.Verdict.Kind != Feasible {
		return nil
	}
	for _, role := range RequiredRoles(t.Kind) {
		if _, ok := FindArtifact(m.Artifacts, role); !ok {
			return fmt.Errorf("manifest of a feasible %s has no artifact %q", t.Kind, role)
		}
	}
	return nil
}

// checkFileName accepts a plain file name: what a stage may call its outputs.
func checkFileName(s string) error {
	if s == "" || len(s) > 128 || s == "." || s == ".." || path.Base(s) != s || strings.ContainsAny(s, "\\\x00") {
		return fmt.Errorf("file name %q is not a plain name", clip(s))
	}
	return nil
}
