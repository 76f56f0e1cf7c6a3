package compiler

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync"
	"time"

	"ipufarm/compiler/exchange"
	"ipufarm/compiler/graph"
	"ipufarm/compiler/lower"
	"ipufarm/compiler/plan"
	"ipufarm/compiler/reference"
	"ipufarm/compiler/workload"
	"ipufarm/protocol"
	"ipufarm/protocol/program"
)

// Stages runs the compiler's part of a job, stage by stage, for the farm. A
// process that serves several stages of one job keeps its model and data; nothing
// else survives a call, and every result is a function of the request.
type Stages struct {
	mu   sync.Mutex
	spec string
	job  *job
}

// job is what the stages of one spec share.
type job struct {
	spec    Spec
	graph   *graph.Graph
	model   *lower.Model
	dataFor string // the fixture that data came from, "" for random values
	data    *workload.Fixture
}

// ShortlistFile is the artifact of a plan.
type ShortlistFile struct {
	Version   int             `json:"version"`
	Finalists []plan.Finalist `json:"finalists"`
}

// Run executes one stage. It implements protocol.StageFunc.
func (s *Stages) Run(ctx context.Context, req protocol.StageRequest, progress func(string)) (protocol.StageResult, error) {
	start := time.Now()
	var res protocol.StageResult
	j, err := s.open(req.Spec)
	if err == nil {
		switch protocol.Kind(req.Kind) {
		case protocol.KindPlan:
			res, err = j.plan(req, progress)
		case protocol.KindSchedule:
			res, err = j.schedule(ctx, req, progress)
		case protocol.KindValidate:
			res, err = j.validate(req)
		case protocol.KindReference:
			res, err = j.reference(ctx, req)
		default:
			err = fmt.Errorf("compiler: no stage %q", req.Kind)
		}
	}
	var refusal *Refusal
	if errors.As(err, &refusal) {
		r := refusal.Refusal
		res, err = protocol.StageResult{Verdict: protocol.Verdict{Kind: protocol.Infeasible, Refusal: &r}}, nil
	}
	res.Seconds = time.Since(start).Seconds()
	return res, err
}

// open returns the job of a spec, building it if the last stage was of another.
func (s *Stages) open(spec json.RawMessage) (*job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.job != nil && s.spec == string(spec) {
		return s.job, nil
	}
	parsed, err := ParseSpec(spec)
	if err != nil {
		return nil, err
	}
	g, m, err := parsed.Model()
	if err != nil {
		return nil, err
	}
	s.spec, s.job = string(spec), &job{spec: parsed, graph: g, model: m}
	return s.job, nil
}

var dataLock sync.Mutex

// values are the parameters and inputs: random, or those of the fixture that the
// request brings.
func (j *job) values(req protocol.StageRequest) (*workload.Fixture, error) {
	dataLock.Lock()
	defer dataLock.Unlock()
	fixture := req.Inputs[protocol.RoleFixture]
	if j.data != nil && j.dataFor == fixture {
		return j.data, nil
	}
	var f workload.Fixture
	var err error
	if fixture != "" {
		dir := filepath.Join(req.OutDir, "fixture")
		if err = unpackFixture(fixture, dir); err == nil {
			f, err = workload.LoadFixture(dir, j.graph, j.spec.Workload)
		}
		err = errors.Join(err, os.RemoveAll(dir))
	} else if f.Weights, err = workload.Weights(j.graph, j.spec.Workload); err == nil {
		f.Inputs, err = workload.Inputs(j.graph, j.spec.Workload)
	}
	if err != nil {
		return nil, err
	}
	j.data, j.dataFor = &f, fixture
	return j.data, nil
}

func feasible(cycles int64) protocol.Verdict {
	return protocol.Verdict{Kind: protocol.Feasible, Cycles: uint64(cycles)}
}

// write stores an artifact and names it in the result.
func write(req protocol.StageRequest, res *protocol.StageResult, role string, data []byte) error {
	if res.Artifacts == nil {
		res.Artifacts = map[string]string{}
	}
	res.Artifacts[role] = role
	return os.WriteFile(filepath.Join(req.OutDir, role), data, 0o600)
}

func (j *job) plan(req protocol.StageRequest, progress func(string)) (protocol.StageResult, error) {
	res := protocol.StageResult{Verdict: feasible(0)}
	list, err := plan.Search(j.model, plan.Options{Tiles: j.spec.Tiles, Finalists: j.spec.Finalists, Effort: j.spec.Effort}, progress)
	if err != nil {
		return res, err
	}
	file, err := json.Marshal(ShortlistFile{Version: 1, Finalists: list})
	if err != nil {
		return res, err
	}
	if err := write(req, &res, protocol.RoleShortlist, file); err != nil {
		return res, err
	}
	var facts protocol.PlanFacts
	for _, f := range list {
		facts.Finalists = append(facts.Finalists, protocol.PlannedFinalist{
			Rank: f.Rank, Family: f.Family, EstimatedCycles: uint64(f.Cost.Cycles), LowerBoundCycles: uint64(f.LowerBound)})
	}
	res.Facts, err = json.Marshal(facts)
	return res, err
}

// finalist reads the candidate of a request from its shortlist.
func (j *job) finalist(req protocol.StageRequest) (*plan.Finalist, error) {
	data, err := os.ReadFile(req.Inputs[protocol.RoleShortlist])
	if err != nil {
		return nil, fmt.Errorf("shortlist: %w", err)
	}
	var file ShortlistFile
	if err := json.Unmarshal(data, &file); err != nil {
		return nil, fmt.Errorf("shortlist: %w", err)
	}
	if file.Version != 1 {
		return nil, fmt.Errorf("shortlist: version %d, this compiler reads 1", file.Version)
	}
	if req.Candidate < 0 || req.Candidate >= len(file.Finalists) {
		return nil, fmt.Errorf("shortlist: candidate %d of %d", req.Candidate, len(file.Finalists))
	}
	f := &file.Finalists[req.Candidate]
	if f.Recipe.Tiles != j.spec.Tiles {
		return nil, fmt.Errorf("shortlist: candidate %d is for %d tiles, the spec for %d", req.Candidate, f.Recipe.Tiles, j.spec.Tiles)
	}
	return f, f.Recipe.Check(j.model)
}

func (j *job) schedule(ctx context.Context, req protocol.StageRequest, progress func(string)) (protocol.StageResult, error) {
	var res protocol.StageResult
	f, err := j.finalist(req)
	if err != nil {
		return res, err
	}
	c, err := Finish(ctx, j.model, f, progress)
	if err != nil {
		return res, err
	}
	res.Verdict = feasible(c.Exact.Cycles)
	if res.Facts, err = json.Marshal(factsOf(c)); err != nil {
		return res, err
	}
	return res, write(req, &res, protocol.RoleScheduled, c.encode())
}

// Facts are what a person wants to know of a finalist; JSON keys are those of the
// run summary. Cycles are modelled.
type Facts struct {
	ExactCycles   int64        `json:"exact_cycles"`
	CyclesByKind  CyclesByKind `json:"cycles_by_kind"`
	Phases        int          `json:"phases"`
	Transfers     int          `json:"transfers"`
	TableBytesMax int32        `json:"table_bytes_max"`
	SRAMBytesPeak int32        `json:"sram_bytes_peak"`
}

// CyclesByKind splits the critical tile's cycles.
type CyclesByKind struct {
	Compute         int64 `json:"compute"`
	Exchange        int64 `json:"exchange"`
	Synchronization int64 `json:"synchronization"`
}

func factsOf(c *Compiled) Facts {
	e := c.Exact
	return Facts{e.Cycles, CyclesByKind{e.Compute, e.Exchange, e.Synchronization}, e.Phases, e.Transfers, e.TableBytesMax, e.SRAMBytesPeak}
}

func (j *job) validate(req protocol.StageRequest) (protocol.StageResult, error) {
	var res protocol.StageResult
	f, err := j.finalist(req)
	if err != nil {
		return res, err
	}
	p, err := lower.Lower(j.model, &f.Recipe)
	if err != nil {
		return res, err
	}
	data, err := os.ReadFile(req.Inputs[protocol.RoleScheduled])
	if err != nil {
		return res, fmt.Errorf("scheduled: %w", err)
	}
	c, err := decodeScheduled(data, p)
	if err != nil {
		return res, refused(p, err)
	}
	values, err := j.values(req)
	if err != nil {
		return res, err
	}
	pkg, files, err := c.Assemble(j.graph, values.Weights, values.Inputs)
	if err != nil {
		return res, err
	}
	res.Verdict = feasible(c.Exact.Cycles)
	facts := struct {
		Facts
		PackageSHA256 string `json:"package_sha256"`
	}{factsOf(c), program.SHA256(pkg)}
	if res.Facts, err = json.Marshal(facts); err != nil {
		return res, err
	}
	return res, errors.Join(
		write(req, &res, protocol.RolePackage, pkg),
		write(req, &res, protocol.RoleParameters, files.Parameters),
		write(req, &res, protocol.RoleInputs, files.Inputs),
	)
}

// reference evaluates the graph, or takes the expected outputs of the fixture.
func (j *job) reference(ctx context.Context, req protocol.StageRequest) (protocol.StageResult, error) {
	res := protocol.StageResult{Verdict: feasible(0)}
	values, err := j.values(req)
	if err != nil {
		return res, err
	}
	outputs, source := values.Expected, "fixture"
	if outputs == nil {
		source = "reference evaluator"
		if outputs, err = reference.Evaluate(ctx, j.graph, values.Weights, values.Inputs); err != nil {
			return res, err
		}
	}
	var file []byte
	for _, v := range j.graph.Outputs {
		out, ok := outputs[v.Name]
		if !ok || len(out) != v.Elements() {
			return res, fmt.Errorf("reference: output %s has %d elements, want %d", v.Name, len(out), v.Elements())
		}
		for _, x := range out {
			file = binary.LittleEndian.AppendUint32(file, math.Float32bits(x))
		}
	}
	if res.Facts, err = json.Marshal(map[string]string{"source": source}); err != nil {
		return res, err
	}
	return res, write(req, &res, protocol.RoleExpected, file)
}

// The scheduled artifact, all little-endian 32-bit words:
//
//	magic, version
//	bytes reserved for rows and commands, SRAM peak
//	number of buffers, address of each
//	number of phases; for each: transfers, then their starts, then 1 if some
//	transfer is wide, then a bit for each transfer
const (
	scheduledMagic   = 0x53465049 // "IPFS"
	scheduledVersion = 1
)

func (c *Compiled) encode() []byte {
	var out []byte
	put := func(words ...uint32) {
		for _, w := range words {
			out = binary.LittleEndian.AppendUint32(out, w)
		}
	}
	put(scheduledMagic, scheduledVersion, c.Reserved, uint32(c.Exact.SRAMBytesPeak), uint32(len(c.Addresses)))
	put(c.Addresses...)
	put(uint32(len(c.Schedules)))
	for _, s := range c.Schedules {
		put(uint32(len(s.Starts)))
		for _, x := range s.Starts {
			put(uint32(x))
		}
		if s.Wide == nil {
			put(0)
			continue
		}
		put(1)
		bits := make([]uint32, (len(s.Wide)+31)/32)
		for i, w := range s.Wide {
			if w {
				bits[i/32] |= 1 << (i % 32)
			}
		}
		put(bits...)
	}
	return out
}

// decodeScheduled reads a scheduled artifact for a program, which it must fit, and
// encodes its rows.
func decodeScheduled(data []byte, p *lower.Program) (*Compiled, error) {
	bad := func(what string) error { return fmt.Errorf("scheduled: %s", what) }
	if len(data)%4 != 0 {
		return nil, bad("not whole words")
	}
	next := func() uint32 {
		if len(data) == 0 {
			return 0
		}
		w := binary.LittleEndian.Uint32(data)
		data = data[4:]
		return w
	}
	if next() != scheduledMagic || next() != scheduledVersion {
		return nil, bad("unknown format or version")
	}
	c := &Compiled{Program: p, Reserved: next()}
	sram := next()
	if n := next(); int(n) != len(p.Buffers) || len(data) < 4*int(n) {
		return nil, bad(fmt.Sprintf("%d buffers, the recipe has %d", n, len(p.Buffers)))
	}
	c.Addresses = make([]uint32, len(p.Buffers))
	for i := range c.Addresses {
		c.Addresses[i] = next()
	}
	if n := next(); int(n) != len(p.Phases) {
		return nil, bad(fmt.Sprintf("%d phases, the recipe has %d", n, len(p.Phases)))
	}
	for i := range p.Phases {
		n := len(p.Phases[i].Transfers)
		if int(next()) != n || len(data) < 4*(n+1) {
			return nil, bad(fmt.Sprintf("phase %d does not have the recipe's %d transfers", i, n))
		}
		s := &exchange.Schedule{Starts: make([]int32, n)}
		for t := range s.Starts {
			s.Starts[t] = int32(next())
		}
		if next() == 1 {
			if len(data) < (n+31)/32*4 {
				return nil, bad(fmt.Sprintf("phase %d ends early", i))
			}
			s.Wide = make([]bool, n)
			for w := 0; w < n; w += 32 {
				bits := next()
				for t := w; t < min(w+32, n); t++ {
					s.Wide[t] = bits>>(t-w)&1 == 1
				}
			}
		}
		c.Schedules = append(c.Schedules, s)
	}
	if len(data) != 0 {
		return nil, bad("data after the last phase")
	}
	return c, c.rows(int32(sram))
}
