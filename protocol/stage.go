package protocol

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
)

// StageRequest asks for one stage of the compiler. It crosses a process
// boundary: worker to child.
type StageRequest struct {
	Kind      string            `json:"kind"`
	Spec      json.RawMessage   `json:"spec"`
	Candidate int               `json:"candidate"` // rank of the finalist, NoCandidate otherwise
	Inputs    map[string]string `json:"inputs"`    // role → absolute path, read only
	OutDir    string            `json:"out_dir"`   // absolute path of an empty folder
}

// StageResult is what a stage found. Facts is a JSON object and, like the
// verdict and the artifacts, must not differ between two executions of the same
// request: time goes into Seconds, which is for reports only.
type StageResult struct {
	Verdict   Verdict           `json:"verdict"`
	Artifacts map[string]string `json:"artifacts,omitempty"` // role → file name in OutDir
	Facts     json.RawMessage   `json:"facts,omitempty"`
	Seconds   float64           `json:"seconds"`
}

// StageFunc executes a stage. A candidate that cannot be is a verdict, not an
// error. An error means that the stage could not do its work although the
// request reached it whole; the farm turns it into a verdict of Failed.
type StageFunc func(ctx context.Context, req StageRequest, progress func(string)) (StageResult, error)

// Check implements the rules for what comes out of a child process.
func (r *StageResult) Check() error {
	if err := r.Verdict.Check(); err != nil {
		return err
	}
	if r.Seconds < 0 {
		return fmt.Errorf("stage result: %v seconds", r.Seconds)
	}
	for role, name := range r.Artifacts {
		if err := errors.Join(CheckName(role), checkFileName(name)); err != nil {
			return fmt.Errorf("stage result: artifact %q: %w", clip(role), err)
		}
	}
	return checkFacts(r.Facts)
}

// Check implements the rules for what a child process is asked.
func (r *StageRequest) Check() error {
	if err := Kind(r.Kind).Check(); err != nil {
		return err
	}
	if !filepath.IsAbs(r.OutDir) {
		return fmt.Errorf("stage request: output folder %q is not absolute", r.OutDir)
	}
	for role, path := range r.Inputs {
		if err := CheckName(role); err != nil {
			return fmt.Errorf("stage request: input: %w", err)
		}
		if !filepath.IsAbs(path) {
			return fmt.Errorf("stage request: input %s: path %q is not absolute", role, path)
		}
	}
	return nil
}

// PlannedFinalist is one entry of the facts of a plan.
type PlannedFinalist struct {
	Rank             int    `json:"rank"`
	Family           string `json:"family"`
	EstimatedCycles  uint64 `json:"estimated_cycles"`
	LowerBoundCycles uint64 `json:"lower_bound_cycles"` // no schedule of this recipe can be faster
}

// PlanFacts is the part of a plan's facts that the farm reads; the compiler may
// add others.
type PlanFacts struct {
	Finalists []PlannedFinalist `json:"finalists"`
}

// DecodePlanFacts reads the finalists of a feasible plan: ranks 0 to n-1 in order.
func DecodePlanFacts(facts json.RawMessage) (PlanFacts, error) {
	var p PlanFacts
	if err := json.Unmarshal(facts, &p); err != nil {
		return p, fmt.Errorf("facts of the plan: %w", err)
	}
	if n := len(p.Finalists); n == 0 || n > MaxFinalists {
		return p, fmt.Errorf("facts of the plan: %d finalists, 1 to %d are accepted", n, MaxFinalists)
	}
	for i, f := range p.Finalists {
		if f.Rank != i {
			return p, fmt.Errorf("facts of the plan: finalist %d has rank %d", i, f.Rank)
		}
		if f.Family == "" || len(f.Family) > 64 {
			return p, fmt.Errorf("facts of the plan: finalist %d: family %q has not 1 to 64 bytes", i, clip(f.Family))
		}
	}
	return p, nil
}
