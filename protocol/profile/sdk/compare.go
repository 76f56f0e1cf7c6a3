package sdk

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"ipufarm/protocol/profile"
	"ipufarm/protocol/program"
)

// Side is a stage in one of two recordings. Cycles are measured or modelled; -1 is
// unknown, or not there.
type Side struct {
	Cycles   int64 `json:"cycles"` // of the kernels that the stage is named after
	Tiles    int64 `json:"tiles"`  // that execute them
	Other    int64 `json:"other_cycles"`
	Exchange int64 `json:"exchange_cycles"`
}

// StageRow is a stage of a transformer block on both sides.
type StageRow struct {
	Stage  string   `json:"stage"`
	SDK    Side     `json:"sdk_measured"`
	Ours   Side     `json:"ours_modelled"`
	Differ []string `json:"boundaries_differ"`
}

// Run is one of the two runs that are compared.
type Run struct {
	File         string  `json:"file"`
	Basis        string  `json:"basis"`
	Clock        Clock   `json:"clock"`
	Cycles       int64   `json:"cycles"` // of the whole model, -1 unknown
	Milliseconds float64 `json:"milliseconds"`
	Blocks       int     `json:"blocks"`       // executions of the block
	BlockCycles  int64   `json:"block_cycles"` // from its first compute to its last, -1 unknown
	CodeMean     float64 `json:"exchange_bytes_mean"`
	CodeMax      int64   `json:"exchange_bytes_max"` // of rows, on the fullest tile; -1 unknown
}

// Comparison puts a recording of the SDK and a profile side by side.
type Comparison struct {
	SDK    Run        `json:"sdk"`
	Ours   Run        `json:"ours"`
	Stages []StageRow `json:"stages"`
	Differ []string   `json:"boundaries_differ"` // of all stages, and of the whole run
}

// mains are the roles whose cycles stand for a stage: those of the kernels that it
// is named after.
func mains(stage Stage) []Role {
	switch stage {
	case SoftmaxPreparation:
		return []Role{Copy}
	case Softmax:
		return []Role{Compute, Reduce}
	}
	return []Role{Product}
}

// compared are the stages of a comparison, in order of execution.
var compared = []Stage{QKV, QK, SoftmaxPreparation, Softmax, PV, OutputProjection, MLPUp, MLPDown}

// Compare compares inference number index (from 1; 0 is the last complete one) of a
// recording with a profile, stage by stage for the first block of each. pack is the
// package that was profiled, for its exchange rows; nil leaves them unknown.
func Compare(s *Summary, index int, ourFile string, p *profile.Profile, pack *program.Summary) (*Comparison, error) {
	if len(s.Inferences) == 0 || s.Body == nil {
		return nil, fmt.Errorf("%s: no inference in it to compare", s.File)
	}
	x := s.Inferences[len(s.Inferences)-1]
	for i := range s.Inferences {
		if s.Inferences[i].Complete {
			x = s.Inferences[i]
		}
	}
	if index != 0 {
		if index < 1 || index > len(s.Inferences) {
			return nil, fmt.Errorf("inference %d, want 1 to %d: %s has no others", index, len(s.Inferences), s.File)
		}
		x = s.Inferences[index-1]
	}
	o := measureProfile(p)
	c := &Comparison{
		SDK: Run{File: s.File, Basis: Basis, Clock: s.Clock, Cycles: x.Cycles, Milliseconds: x.Milliseconds, Blocks: s.Body.Repeats, BlockCycles: s.Body.Cycles, CodeMax: none},
		Ours: Run{File: ourFile, Basis: "modelled by the simulated device", Clock: Clock{float64(p.ClockHz), "of the profile"}, Cycles: int64(p.Cycles()),
			Milliseconds: p.Milliseconds(p.Cycles()), Blocks: o.blocks, BlockCycles: o.span, CodeMax: none},
	}
	if s.ExchangeCode != nil {
		c.SDK.CodeMean, c.SDK.CodeMax = s.ExchangeCode.Mean, s.ExchangeCode.Max
	}
	if pack != nil {
		c.Ours.CodeMean, c.Ours.CodeMax = float64(pack.SegmentBytes.Rows)/float64(max(pack.Tiles, 1)), int64(pack.TableBytesMax.Bytes)
	}
	for _, stage := range compared {
		row := StageRow{Stage: stage.String(), SDK: sdkSide(s.Body.steps, stage), Ours: o.side(stage)}
		row.Differ = differences(stage, s, o, &row)
		c.Stages = append(c.Stages, row)
	}
	c.Stages = append(c.Stages, castRow(s, o))
	c.general(s, &x, o)
	return c, nil
}

// sdkSide sums the steps of a stage of the first shared body.
func sdkSide(steps []Step, stage Stage) Side {
	side := Side{none, none, none, none}
	add := func(sum *int64, cycles int64) { *sum = max(*sum, 0) + max(cycles, 0) }
	for i := range steps {
		s := &steps[i]
		switch {
		case s.Stage != stage || s.Role == Cast || s.Role == Stream || s.Role == Sync:
		case s.Role == Exchange:
			add(&side.Exchange, s.Cycles)
		case slices.Contains(mains(stage), s.Role):
			add(&side.Cycles, s.Cycles)
			side.Tiles = max(side.Tiles, s.ActiveTiles)
		default:
			add(&side.Other, s.Cycles)
		}
	}
	return side
}

// ours is the first block of a profile.
type ours struct {
	block  string // its name up to the number, "" if no operation says a block
	blocks int
	span   int64
	pooled bool

	longest  [stageCount][roleCount]int64 // most cycles on a tile
	tiles    [stageCount][roleCount]int64 // tiles with any
	main     [stageCount]Side
	casts    Side
	exchange [stageCount]int64
	phases   [stageCount]int
	products [stageCount]map[string]bool // operations with products
}

// blockOf returns the block that an operation belongs to, with its number, or "".
func blockOf(operation string) (block string, number int) {
	at := 0
	for _, c := range strings.Split(operation, ".") {
		at += len(c) + 1
		if _, digits, ok := strings.Cut(c, "block_"); ok {
			if n, err := strconv.Atoi(digits); err == nil {
				return operation[:at], n
			}
		}
	}
	return "", 0
}

// poolingPrefix begins the operations of the attention pooling head.
const poolingPrefix = "MAPHead"

// ourStage returns the stage of an operation of a profile: NAME/KIND, where the kind
// is what the compiler emits for the named value of the graph.
func ourStage(operation string) Stage {
	slash := strings.LastIndexByte(operation, '/')
	name, kind := operation[:max(slash, 0)], operation[slash+1:]
	switch kind {
	case "scores":
		return QK
	case "softmax", "normalise":
		return Softmax
	case "values":
		return PV
	case "layernorm":
		return Norm
	case "gelu":
		return GELU
	}
	// A cast makes the operand of what reads the value; partial sums and gathered
	// rows complete the GEMM whose value they are.
	parts := strings.Split(name, ".")
	for i := len(parts) - 1; i >= 0; i-- {
		switch parts[i] {
		case "query", "key", "value", "qkv", "kv":
			return QKV
		case "out", "joined", "residual_0":
			return OutputProjection
		case "Dense_0":
			return MLPUp
		case "Dense_1", "residual_1":
			return MLPDown
		case "LayerNorm_0":
			return QKV
		case "LayerNorm_1":
			return MLPUp
		case "gelu":
			if kind == "cast" {
				return MLPDown
			}
			return MLPUp
		}
	}
	return Other
}

// ourRole returns what a kernel call does.
func ourRole(kind, kernel string) Role {
	switch {
	case kind == "cast", strings.HasPrefix(kernel, "cast"):
		return Cast
	case kernel == program.KernelGEMM.String():
		return Product
	case kernel == program.KernelReduce.String(), kernel == program.KernelAdd.String(), kernel == program.KernelAddRows.String():
		return Reduce
	}
	for _, k := range []program.Kernel{program.KernelSoftmax, program.KernelNormalise, program.KernelGELU, program.KernelBiasGELU, program.KernelLayerNorm, program.KernelAddLayerNorm} {
		if kernel == k.String() {
			return Compute
		}
	}
	return Copy
}

// where is the place of a step in the sums.
type where struct {
	in    bool // the first block
	stage Stage
	kind  string
}

// measureProfile sums the first block of a profile by stage.
func measureProfile(p *profile.Profile) *ours {
	o := &ours{span: none}
	places := map[string]where{}
	o.findBlock(p, places)
	start, end := int64(none), int64(none)
	for i := range p.Tiles {
		var sum [stageCount][roleCount]int64
		for j := range p.Tiles[i].Samples {
			s := &p.Tiles[i].Samples[j]
			at := places[s.Step.Operation]
			if !at.in || s.Step.Kind != profile.KindCompute {
				continue
			}
			role := ourRole(at.kind, s.Step.Kernel)
			stage := at.stage
			if stage == Softmax && role == Copy {
				stage = SoftmaxPreparation
			}
			sum[stage][role] += int64(s.EndCycle - s.StartCycle)
			if role == Product {
				if o.products[stage] == nil {
					o.products[stage] = map[string]bool{}
				}
				o.products[stage][s.Step.Operation] = true
			}
			if start < 0 || int64(s.StartCycle) < start {
				start = int64(s.StartCycle)
			}
			end = max(end, int64(s.EndCycle))
		}
		o.addTile(&sum)
	}
	if start >= 0 {
		o.span = end - start
	}
	for _, b := range p.Barriers() {
		if at := places[b.Operation]; at.in {
			stage := at.stage
			if stage == Softmax {
				stage = SoftmaxPreparation
			}
			o.exchange[stage] += int64(b.Horizon)
			o.phases[stage]++
		}
	}
	return o
}

// findBlock counts the blocks, picks the first, and places every operation.
func (o *ours) findBlock(p *profile.Profile, places map[string]where) {
	numbers := map[string]int{}
	for i := range p.Tiles {
		for j := range p.Tiles[i].Samples {
			op := p.Tiles[i].Samples[j].Step.Operation
			if _, seen := places[op]; seen {
				continue
			}
			places[op] = where{stage: ourStage(op), kind: op[strings.LastIndexByte(op, '/')+1:]}
			if block, n := blockOf(op); block != "" {
				numbers[block] = n
			}
			o.pooled = o.pooled || strings.HasPrefix(op, poolingPrefix)
		}
	}
	for block, n := range numbers {
		if o.block == "" || n < numbers[o.block] || n == numbers[o.block] && block < o.block {
			o.block = block
		}
	}
	o.blocks = max(len(numbers), 1)
	for op, at := range places {
		block, _ := blockOf(op)
		at.in = block == o.block && !strings.HasPrefix(op, poolingPrefix)
		places[op] = at
	}
}

// addTile takes in the sums of one tile.
func (o *ours) addTile(sum *[stageCount][roleCount]int64) {
	var casts int64
	for stage := range sum {
		var main, other int64
		for r, cycles := range sum[stage] {
			if cycles == 0 {
				continue
			}
			o.longest[stage][r] = max(o.longest[stage][r], cycles)
			o.tiles[stage][r]++
			switch {
			case Role(r) == Cast:
				casts += cycles
			case slices.Contains(mains(Stage(stage)), Role(r)):
				main += cycles
			default:
				other += cycles
			}
		}
		m := &o.main[stage]
		if main > 0 {
			m.Tiles++
		}
		m.Cycles, m.Other = max(m.Cycles, main), max(m.Other, other)
	}
	if casts > 0 {
		o.casts.Tiles++
		o.casts.Cycles = max(o.casts.Cycles, casts)
	}
}

func orNone(n int64) int64 {
	if n == 0 {
		return none
	}
	return n
}

func (o *ours) side(stage Stage) Side {
	m := o.main[stage]
	return Side{orNone(m.Cycles), orNone(m.Tiles), orNone(m.Other), orNone(o.exchange[stage])}
}

func castRow(s *Summary, o *ours) StageRow {
	row := StageRow{Stage: "casts", SDK: Side{none, none, none, none}, Ours: Side{orNone(o.casts.Cycles), orNone(o.casts.Tiles), none, none}}
	for _, k := range s.Casts {
		row.SDK.Cycles = max(row.SDK.Cycles, 0) + max(k.Cycles, 0)
		row.SDK.Tiles = max(row.SDK.Tiles, k.ActiveTiles)
	}
	if len(s.Casts) > 1 {
		row.Differ = append(row.Differ, fmt.Sprintf("SDK: the longest tiles of %d casts, added up although some run side by side; ours: the tile that casts most", len(s.Casts)))
	}
	row.Differ = append(row.Differ, "ours: a cast that is the last step of a reduction, norm, GELU or normalisation is part of that kernel and not counted here")
	return row
}

// differences says where a stage is not cut at the same boundaries on both sides.
func differences(stage Stage, s *Summary, o *ours, row *StageRow) []string {
	var list []string
	say := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	if row.SDK.Cycles < 0 && stage != SoftmaxPreparation {
		say("SDK: no step of the first shared body has this name")
	}
	if row.Ours.Cycles < 0 && stage != SoftmaxPreparation {
		say("ours: no operation of the first block does this")
	}
	products := 0
	for _, k := range s.Kernels {
		if k.Stage == stage {
			products++
		}
	}
	if n := len(o.products[stage]); products > 1 || n > 1 {
		say("SDK: %d products, longest tiles added up; ours: %d, the tile with the largest sum of them", products, n)
	}
	reduces := o.longest[stage][Reduce]
	switch stage {
	case SoftmaxPreparation:
		if row.Ours.Cycles < 0 && row.Ours.Exchange < 0 {
			say("ours: nothing to prepare, scores are made in the rows that softmax reads")
		}
	case Softmax:
		if row.SDK.Cycles >= 0 {
			say("SDK: the longest tiles of all its compute sets added up, which is not a span")
		}
		if row.Ours.Cycles >= 0 {
			say("ours: rows are divided by their sum after PV (kernel normalise); that is counted here, as the SDK divides before PV")
		}
	case PV:
		if row.SDK.Other >= 0 {
			say("SDK: 'other' has the rearrangement of probabilities and V, some of it side by side on different tiles")
		}
	case QKV:
		if reduces > 0 {
			say("ours: adding up partial sums and bias is in 'other' (%d cycles)", reduces)
		}
	case OutputProjection, MLPDown:
		if reduces > 0 {
			say("ours: adding up partial sums, bias and residual is in 'other' (%d cycles); the SDK adds the residual in a step of its own", reduces)
		}
	case MLPUp:
		if reduces > 0 {
			say("ours: adding up partial sums is in 'other' (%d cycles); GELU is in no row on either side", reduces)
		}
	}
	return list
}

// general says what holds for all rows, and what differs in the whole.
func (c *Comparison) general(s *Summary, x *Inference, o *ours) {
	say := func(format string, args ...any) { c.Differ = append(c.Differ, fmt.Sprintf(format, args...)) }
	say("a stage is that of the first block: the first shared body of the SDK's first inference, and %s in ours", blockName(o.block))
	say("cycles are those of the longest tile in the kernels that name the stage, without exchange, preparation and waiting")
	say("exchange: SDK: longest tile of each exchange step, added up; ours: scheduled length of each phase, added up; a phase that serves several operations counts for the first of them")
	if c.SDK.Clock.Hz != c.Ours.Clock.Hz {
		say("clocks differ: %g GHz for what was measured, %g GHz for what is modelled; compare cycles", c.SDK.Clock.Hz/1e9, c.Ours.Clock.Hz/1e9)
	}
	if c.SDK.Blocks != c.Ours.Blocks {
		say("the whole run: SDK executes its block %d times, ours has %d", c.SDK.Blocks, c.Ours.Blocks)
	}
	if x.Cycles < 0 {
		say("the whole run: the recording does not say when its steps ran")
	} else if !x.Complete {
		say("the whole run: inference %d of the recording has no input delivery or no output streaming at its ends", x.Index)
	}
	say("the whole run: SDK from the first exchange after input delivery to the last compute before output streaming; ours from the first step of the tile that entered last to the last step of any tile")
	switch {
	case c.Ours.CodeMax < 0:
		say("exchange bytes: a profile does not have them; give the package for ours")
	case c.SDK.CodeMax >= 0:
		say("exchange bytes: SDK: code in the category %s; ours: distinct exchange rows, without the commands that start them", exchangeCategory)
	}
	say("shapes and precision are in neither file: that both ran the same model is up to you")
}

func blockName(block string) string {
	if block == "" {
		return "every operation outside of the pooling head (none names a block)"
	}
	return strings.TrimSuffix(block, ".")
}
