package compiler

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"ipufarm/compiler/graph"
	"ipufarm/compiler/lower"
	"ipufarm/compiler/plan"
	"ipufarm/compiler/workload"
	"ipufarm/protocol/machine"
)

// Spec is everything that decides the result of a compilation and nothing that
// does not: the farm keys its cache by it.
type Spec struct {
	Version   int              `json:"version"`
	Workload  workload.Options `json:"workload"`
	Tiles     int              `json:"tiles"`     // logical tiles that may be used
	Finalists int              `json:"finalists"` // length of the shortlist
	Effort    int              `json:"effort"`    // sketches of each family
}

// SpecVersion is the version that this compiler reads and writes.
const SpecVersion = 1

// DefaultFinalists is the length of a shortlist.
const DefaultFinalists = 8

// tileGrain is the number of tiles by which a job may grow: a loader batch.
const tileGrain = 64

// NewSpec returns the spec of a workload on so many tiles, checked.
func NewSpec(o workload.Options, tiles int) (Spec, error) {
	if tiles < tileGrain || tiles > machine.Tiles || tiles%tileGrain != 0 {
		return Spec{}, fmt.Errorf("--tiles %d: multiples of %d from %d to %d are accepted", tiles, tileGrain, tileGrain, machine.Tiles)
	}
	o.Tiles = tiles
	c, err := o.Canonical()
	if err != nil {
		return Spec{}, err
	}
	return Spec{Version: SpecVersion, Workload: c, Tiles: tiles, Finalists: DefaultFinalists, Effort: plan.DefaultEffort}, nil
}

// Limits of what a spec may ask for.
const (
	MaxFinalists = 64
	maxEffort    = 100_000
)

// ParseSpec reads a spec from another process.
func ParseSpec(data []byte) (Spec, error) {
	var s Spec
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return s, fmt.Errorf("spec: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return s, fmt.Errorf("spec: data after the JSON object")
	}
	if s.Version != SpecVersion {
		return s, fmt.Errorf("spec: version %d, this compiler reads %d", s.Version, SpecVersion)
	}
	if s.Finalists < 1 || s.Finalists > MaxFinalists {
		return s, fmt.Errorf("spec: %d finalists, 1 to %d are accepted", s.Finalists, MaxFinalists)
	}
	if s.Effort < 1 || s.Effort > maxEffort {
		return s, fmt.Errorf("spec: effort of %d sketches, 1 to %d are accepted", s.Effort, maxEffort)
	}
	if s.Tiles < tileGrain || s.Tiles > machine.Tiles || s.Tiles%tileGrain != 0 {
		return s, fmt.Errorf("spec: %d tiles, multiples of %d from %d to %d are accepted", s.Tiles, tileGrain, tileGrain, machine.Tiles)
	}
	return s, s.Workload.Check()
}

// Model builds the graph of a spec and its steps.
func (s Spec) Model() (*graph.Graph, *lower.Model, error) {
	g, err := workload.Build(s.Workload)
	if err != nil {
		return nil, nil, err
	}
	m, err := lower.NewModel(g)
	return g, m, err
}
