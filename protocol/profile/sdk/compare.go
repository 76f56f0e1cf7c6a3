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

// unit is what one operation does in one role: what a compute set is to the SDK.
type unit struct {
	stage   Stage
	role    Role
	longest int64 // cycles of the tile with most
	tiles   int64 // with any
}

// ours is the first block of a profile.
type ours struct {
	block  string // its name up to the number, "" if no operation says a block
	blocks int
	span   int64

	units    []unit // of operation i in role r: i*roleCount + r
	exchange [stageCount]int64
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

// where is the place of an operation in the sums.
type where struct {
	index int // of its units, -1 outside of the first block
	stage Stage
	kind  string
}

// measureProfile sums the first block of a profile by operation and role.
func measureProfile(p *profile.Profile) *ours {
	o := &ours{span: none}
	places := o.findBlock(p)
	start, end := int64(none), int64(none)
	sum := make([]int64, len(o.units)) // of one tile
	for i := range p.Tiles {
		clear(sum)
		for j := range p.Tiles[i].Samples {
			s := &p.Tiles[i].Samples[j]
			at := places[s.Step.Operation]
			if at.index < 0 || s.Step.Kind != profile.KindCompute {
				continue
			}
			k := at.index*int(roleCount) + int(ourRole(at.kind, s.Step.Kernel))
			sum[k] += int64(s.EndCycle - s.StartCycle)
			if start < 0 || int64(s.StartCycle) < start {
				start = int64(s.StartCycle)
			}
			end = max(end, int64(s.EndCycle))
		}
		for k, cycles := range sum {
			if cycles > 0 {
				o.units[k].longest = max(o.units[k].longest, cycles)
				o.units[k].tiles++
			}
		}
	}
	if start >= 0 {
		o.span = end - start
	}
	for _, b := range p.Barriers() {
		if at := places[b.Operation]; at.index >= 0 {
			o.exchange[beforeRows(at.stage, Exchange)] += int64(b.Horizon)
		}
	}
	return o
}

// beforeRows is the stage of an operation, but that softmax is prepared by what
// brings its rows.
func beforeRows(stage Stage, role Role) Stage {
	if stage == Softmax && (role == Copy || role == Exchange) {
		return SoftmaxPreparation
	}
	return stage
}

// findBlock counts the blocks, picks the first, and places every operation.
func (o *ours) findBlock(p *profile.Profile) map[string]where {
	places := map[string]where{}
	var operations []string // in order of appearance
	numbers := map[string]int{}
	for i := range p.Tiles {
		for j := range p.Tiles[i].Samples {
			op := p.Tiles[i].Samples[j].Step.Operation
			if _, seen := places[op]; seen {
				continue
			}
			places[op] = where{index: -1, stage: ourStage(op), kind: op[strings.LastIndexByte(op, '/')+1:]}
			operations = append(operations, op)
			block, n := blockOf(op)
			if block == "" {
				continue
			}
			numbers[block] = n
			if first, ok := numbers[o.block]; !ok || n < first || n == first && block < o.block {
				o.block = block
			}
		}
	}
	o.blocks = max(len(numbers), 1)
	for _, op := range operations {
		if block, _ := blockOf(op); block != o.block || strings.HasPrefix(op, poolingPrefix) {
			continue
		}
		at := places[op]
		at.index = len(o.units) / int(roleCount)
		places[op] = at
		for r := range roleCount {
			o.units = append(o.units, unit{stage: beforeRows(at.stage, r), role: r})
		}
	}
	return places
}

func orNone(n int64) int64 {
	if n == 0 {
		return none
	}
	return n
}

// side sums a stage, as sdkSide does.
func (o *ours) side(stage Stage) Side {
	var side Side
	for i := range o.units {
		switch u := &o.units[i]; {
		case u.stage != stage || u.role == Cast:
		case slices.Contains(mains(stage), u.role):
			side.Cycles += u.longest
			side.Tiles = max(side.Tiles, u.tiles)
		default:
			side.Other += u.longest
		}
	}
	return Side{orNone(side.Cycles), orNone(side.Tiles), orNone(side.Other), orNone(o.exchange[stage])}
}

// count returns how many units of a stage have a role, and their cycles.
func (o *ours) count(role Role, stage Stage) (n int, cycles, tiles int64) {
	for i := range o.units {
		if u := &o.units[i]; u.role == role && u.tiles > 0 && (stage == stageCount || u.stage == stage) {
			n++
			cycles += u.longest
			tiles = max(tiles, u.tiles)
		}
	}
	return n, cycles, tiles
}

func castRow(s *Summary, o *ours) StageRow {
	row := StageRow{Stage: "casts", SDK: Side{none, none, none, none}, Ours: Side{none, none, none, none}}
	for _, k := range s.Casts {
		row.SDK.Cycles = max(row.SDK.Cycles, 0) + max(k.Cycles, 0)
		row.SDK.Tiles = max(row.SDK.Tiles, k.ActiveTiles)
	}
	n, cycles, tiles := o.count(Cast, stageCount)
	row.Ours.Cycles, row.Ours.Tiles = orNone(cycles), orNone(tiles)
	if len(s.Casts) != n {
		row.Differ = append(row.Differ, fmt.Sprintf("casts in the block: SDK %d, ours %d", len(s.Casts), n))
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
	if n, _, _ := o.count(Product, stage); n != products && n > 0 && products > 0 {
		say("products: SDK %d, ours %d, some of them side by side on different tiles", products, n)
	}
	_, reduces, _ := o.count(Reduce, stage)
	switch stage {
	case SoftmaxPreparation:
		if row.Ours.Cycles < 0 && row.Ours.Exchange < 0 {
			say("ours: nothing to prepare, scores are made in the rows that softmax reads")
		}
	case Softmax:
		if row.SDK.Cycles >= 0 {
			say("both: the longest tiles of several kernels added up, which is not a span")
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
	say("cycles are those of the kernels that name the stage, without exchange, preparation and waiting: the longest tile of each compute set (SDK) or of each kernel of an operation (ours), added up")
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
