package sdk

import (
	"cmp"
	"slices"
	"strings"
)

// Inference is one pass of the model through the device.
type Inference struct {
	Index     int   `json:"index"`    // from 1
	Complete  bool  `json:"complete"` // input delivery and output streaming were recorded
	FirstStep int64 `json:"first_step"`
	LastStep  int64 `json:"last_step"`

	// The device span: from the start of the first exchange after input delivery to
	// the end of the last compute step before output streaming. -1 where unknown.
	FirstExchange int64   `json:"first_exchange_step"`
	LastCompute   int64   `json:"last_compute_step"`
	Cycles        int64   `json:"measured_cycles"`
	Milliseconds  float64 `json:"milliseconds"`

	steps []Step
}

// inferences cuts the steps at streams between host and device. A cut that executes
// at least half as many compute steps as the longest is an inference; the others
// set up weights, or unpack an input that arrives in pieces.
func (rec *Recording) inferences() (list []Inference, others int) {
	type cut struct{ from, to, work int }
	var cuts []cut
	most := 0
	for i := 0; i < len(rec.Steps); {
		c := cut{from: i}
		for ; i < len(rec.Steps) && rec.Steps[i].Role != Stream; i++ {
			if rec.Steps[i].Type == typeExecute {
				c.work++
			}
		}
		if c.to = i; c.work > 0 {
			cuts = append(cuts, c)
			most = max(most, c.work)
		}
		for i < len(rec.Steps) && rec.Steps[i].Role == Stream {
			i++
		}
	}
	for _, c := range cuts {
		if 2*c.work < most {
			others++
			continue
		}
		x := Inference{Index: len(list) + 1, steps: rec.Steps[c.from:c.to], FirstExchange: none, LastCompute: none, Cycles: none}
		x.Complete = c.from > 0 && rec.Steps[c.from-1].Type == typeStreamEnd && c.to < len(rec.Steps) && rec.Steps[c.to].Type == typeStreamBegin
		x.FirstStep, x.LastStep = x.steps[0].ID, x.steps[len(x.steps)-1].ID
		x.measure(rec.Clock)
		list = append(list, x)
	}
	return list, others
}

// measure finds the device span.
func (x *Inference) measure(clock Clock) {
	var start, end int64 = none, none
	for i := range x.steps {
		s := &x.steps[i]
		if s.Start < 0 {
			continue
		}
		if s.Role == Exchange && start < 0 {
			start, x.FirstExchange = s.Start, s.ID
		}
		if s.Type == typeExecute && s.End > end {
			end, x.LastCompute = s.End, s.ID
		}
	}
	if start >= 0 && end >= start {
		x.Cycles = end - start
		x.Milliseconds = clock.Milliseconds(x.Cycles)
	}
}

// Body is the code that layers share, the first time that it is executed.
type Body struct {
	FirstStep int64 `json:"first_step"`
	LastStep  int64 `json:"last_step"`
	Steps     int   `json:"steps"`
	Repeats   int   `json:"repeats"`         // in its inference; 1: no code is shared
	Cycles    int64 `json:"measured_cycles"` // from the start of its first compute step to the end of the last, -1 if unknown

	steps []Step
}

// code identifies what a step executes.
type code struct{ program, set int64 }

func (s *Step) code() code { return code{s.Program, s.ComputeSet} }

// body finds the first execution of the shared code of an inference. The compiler
// outlines equal layers, so most of the code is executed once for each layer: the
// body lasts from the first step that is executed that often to its second time.
func (x *Inference) body() *Body {
	count := map[code]int{}
	for i := range x.steps {
		if s := &x.steps[i]; s.Role != Sync && s.code() != (code{none, none}) {
			count[s.code()]++
		}
	}
	votes := map[int]int{}
	b := &Body{Repeats: 1, Cycles: none}
	for _, n := range count {
		votes[n]++
	}
	best := 0
	for n, v := range votes {
		if n > 1 && (v > best || v == best && n > b.Repeats) {
			best, b.Repeats = v, n
		}
	}
	b.steps = x.steps
	if b.Repeats > 1 {
		from := slices.IndexFunc(x.steps, func(s Step) bool { return count[s.code()] == b.Repeats })
		first := x.steps[from].code()
		again := slices.IndexFunc(x.steps[from+1:], func(s Step) bool { return s.code() == first })
		b.steps = x.steps[from : from+1+again]
	}
	b.FirstStep, b.LastStep, b.Steps = b.steps[0].ID, b.steps[len(b.steps)-1].ID, len(b.steps)
	var start, end int64 = none, none
	for i := range b.steps {
		if s := &b.steps[i]; s.Type == typeExecute && s.Start >= 0 {
			if start < 0 || s.Start < start {
				start = s.Start
			}
			end = max(end, s.End)
		}
	}
	if start >= 0 {
		b.Cycles = end - start
	}
	return b
}

// KernelTime is a compute set of the first shared body.
type KernelTime struct {
	Stage       Stage  `json:"stage"`
	Role        Role   `json:"role"`
	Step        int64  `json:"step"`
	ComputeSet  int64  `json:"compute_set"`
	Name        string `json:"name"`
	Kernel      string `json:"kernel"`
	Cycles      int64  `json:"measured_cycles"` // longest tile, without exchange, preparation and sync
	ActiveTiles int64  `json:"active_tiles"`
	// Of a cast: its result, by the allocations that are named after it; -1 unknown.
	OutputMax   int64 `json:"output_bytes_max,omitempty"`
	OutputTotal int64 `json:"output_bytes_total,omitempty"`
}

func (rec *Recording) kernelTime(s *Step) KernelTime {
	k := KernelTime{Stage: s.Stage, Role: s.Role, Step: s.ID, ComputeSet: s.ComputeSet, Name: s.Name, Kernel: s.Kernel(), Cycles: s.Cycles, ActiveTiles: s.ActiveTiles}
	if s.Role == Cast {
		k.OutputMax, k.OutputTotal = rec.castOutput(s.Name)
	}
	return k
}

// castOutput finds what a cast writes: the allocations whose name is that of the
// step up to the component that says "cast".
func (rec *Recording) castOutput(name string) (most, total int64) {
	components := strings.Split(name, "/")
	at := slices.IndexFunc(components, func(c string) bool { return isCast([]string{strings.ToLower(c)}) })
	if at < 0 {
		return none, none
	}
	prefix := strings.Join(append(components[:at:at], castMark), "/")
	i, _ := slices.BinarySearchFunc(rec.casts, prefix, func(v variable, p string) int { return cmp.Compare(v.name, p) })
	most, total = none, none
	for ; i < len(rec.casts) && strings.HasPrefix(rec.casts[i].name, prefix); i++ {
		most, total = max(most, rec.casts[i].max), max(total, 0)+rec.casts[i].total
	}
	return most, total
}

// SharedSet is a compute set that is executed more than once in an inference.
type SharedSet struct {
	ComputeSet   int64  `json:"compute_set"`
	Name         string `json:"name"`
	Stage        Stage  `json:"stage"`
	Role         Role   `json:"role"`
	Executions   int    `json:"executions"` // in all inferences
	ByInference  []int  `json:"executions_by_inference"`
	LongestCycle int64  `json:"measured_cycles_max"` // longest tile of the longest execution
}

func sharedSets(list []Inference) []SharedSet {
	index := map[int64]int{}
	all := []SharedSet{}
	for n := range list {
		for i := range list[n].steps {
			s := &list[n].steps[i]
			if s.ComputeSet < 0 {
				continue
			}
			k, ok := index[s.ComputeSet]
			if !ok {
				k = len(all)
				index[s.ComputeSet] = k
				all = append(all, SharedSet{ComputeSet: s.ComputeSet, Name: s.Name, Stage: s.Stage, Role: s.Role, ByInference: make([]int, len(list)), LongestCycle: none})
			}
			all[k].Executions++
			all[k].ByInference[n]++
			all[k].LongestCycle = max(all[k].LongestCycle, s.Cycles)
		}
	}
	all = slices.DeleteFunc(all, func(s SharedSet) bool { return slices.Max(s.ByInference) < 2 })
	slices.SortFunc(all, func(a, b SharedSet) int { return cmp.Compare(a.ComputeSet, b.ComputeSet) })
	return all
}

// StageTime sums the first shared body by stage. Each number is a sum of longest
// tiles over steps that may run on different tiles: neither a span nor additive.
type StageTime struct {
	Stage    Stage `json:"stage"`
	Product  int64 `json:"product_cycles"`
	Compute  int64 `json:"compute_cycles"` // reductions too
	Cast     int64 `json:"cast_cycles"`
	Copy     int64 `json:"copy_cycles"`
	Exchange int64 `json:"exchange_cycles"`
	Steps    int   `json:"steps"`
	Tiles    int64 `json:"active_tiles"` // of the step with most of them
	Products int   `json:"products"`     // steps that are products
	Code     int64 `json:"exchange_code_bytes_max"`
}

func stageTimes(steps []Step) []StageTime {
	var all [stageCount]StageTime
	for i := range steps {
		s := &steps[i]
		t := &all[s.Stage]
		if s.Role == Stream || s.Role == Sync {
			continue
		}
		if t.Steps++; t.Steps == 1 {
			t.Code = none
		}
		t.Tiles, t.Code = max(t.Tiles, s.ActiveTiles), max(t.Code, s.CodeBytes)
		cycles := max(s.Cycles, 0)
		switch s.Role {
		case Product:
			t.Products++
			t.Product += cycles
		case Cast:
			t.Cast += cycles
		case Copy:
			t.Copy += cycles
		case Exchange:
			t.Exchange += cycles
		default:
			t.Compute += cycles
		}
	}
	list := []StageTime{}
	for stage := range all {
		if all[stage].Steps > 0 {
			all[stage].Stage = Stage(stage)
			list = append(list, all[stage])
		}
	}
	return list
}

// Spread is memory over tiles.
type Spread struct {
	Tiles   int     `json:"tiles"`
	Mean    float64 `json:"mean_bytes"`
	Max     int64   `json:"max_bytes"`
	Fullest int64   `json:"fullest_tile"`
}

func spread(list []TileBytes) *Spread {
	if len(list) == 0 {
		return nil
	}
	s := &Spread{Tiles: len(list), Max: none}
	sum := int64(0)
	for _, t := range list {
		if sum += t.Bytes; t.Bytes > s.Max {
			s.Max, s.Fullest = t.Bytes, t.Tile
		}
	}
	s.Mean = float64(sum) / float64(len(list))
	return s
}

// Summary is what a recording says about its model.
type Summary struct {
	File         string       `json:"file"`
	Basis        string       `json:"basis"`
	Clock        Clock        `json:"clock"`
	Steps        int          `json:"steps"`
	Inferences   []Inference  `json:"inferences"`
	OtherCuts    int          `json:"other_device_spans"` // setup, unpacking of inputs
	Body         *Body        `json:"first_body"`         // nil without steps
	Kernels      []KernelTime `json:"first_body_products"`
	Casts        []KernelTime `json:"first_body_casts"`
	Stages       []StageTime  `json:"first_body_stages"`
	SharedSets   []SharedSet  `json:"shared_compute_sets"`
	ExchangeCode *Spread      `json:"exchange_code"`    // nil: not recorded
	Memory       *Spread      `json:"allocated_memory"` // nil: not recorded
	Missing      []string     `json:"missing"`
	Anomalies    []string     `json:"anomalies"`
	recording    *Recording
}

// Basis is how the cycles of every summary came about.
const Basis = "measured on hardware by the SDK; the longest tile of each step"

// Summarize analyses a recording.
func (rec *Recording) Summarize() *Summary {
	s := &Summary{File: rec.File, Basis: Basis, Clock: rec.Clock, Steps: len(rec.Steps), Kernels: []KernelTime{}, Casts: []KernelTime{}, Stages: []StageTime{},
		ExchangeCode: spread(rec.ExchangeCode), Memory: spread(rec.Memory),
		Missing: append([]string{}, rec.Missing...), Anomalies: append([]string{}, rec.Anomalies...), recording: rec}
	list, others := rec.inferences()
	s.Inferences, s.OtherCuts = append([]Inference{}, list...), others
	s.SharedSets = sharedSets(list)
	if len(list) == 0 {
		if len(rec.Steps) > 0 {
			s.Anomalies = append(s.Anomalies, "no step executes anything, so there is no inference: want steps of the type "+typeExecute)
		}
		return s
	}
	s.Body = list[0].body()
	for i := range s.Body.steps {
		switch step := &s.Body.steps[i]; step.Role {
		case Product:
			s.Kernels = append(s.Kernels, rec.kernelTime(step))
		case Cast:
			s.Casts = append(s.Casts, rec.kernelTime(step))
		}
	}
	s.Stages = stageTimes(s.Body.steps)
	return s
}
