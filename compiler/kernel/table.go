package kernel

import (
	"fmt"

	"ipufarm/protocol/program"
)

// Status says what stands behind a law.
type Status uint8

const (
	// Fitted: two or three constants fitted to more figures than that.
	Fitted Status = iota
	// Restated: the published cost structure of the measured kernel with its
	// constants; agreement with its own figures is no independent proof.
	Restated
	// Assumed: no figure of this form exists.
	Assumed
)

func (s Status) String() string { return [...]string{"fitted", "restated", "assumed"}[s] }

// A Row is one kernel of the table.
type Row struct {
	Name     string
	Code     int // bytes, assumed until the kernels are tile code
	Forms    []Form
	Limits   []Limit
	Options  []Option
	Operands OperandRules

	cycles func(Geometry) int
	check  func(Geometry) error
}

// A Form is one law of a kernel.
type Form struct {
	Operands string // forms and order of the operands
	Formula  string // cycles; q(x) rounds up
	Status   Status
	Source   string
}

// Where the laws come from. "Notes" are the published SigLIP benchmark notes of
// the same project, all measured on a C600.
const (
	gemmNotes      = "GEMM utilisation notes, 2026-09-13: 7 figures, 3 more held out (worst 0.6 %)"
	packedNotes    = "GEMM utilisation notes, 2026-09-13, and cost-model fixtures: 4 figures"
	pipelineNotes  = "kernel pipeline notes, 2026-09-13"
	normNotes      = "kernel pipeline notes, 2026-09-13, and cost-model fixtures: 4 figures"
	normF8Notes    = "encoder fusion notes, 2026-09-09: a line through 2 figures of an older loop"
	fixtureNotes   = "cost-model fixtures, 2026-09-09 and 2026-09-13"
	geluNotes      = "normalisation and GELU notes, 2026-09-11, and cost-model fixtures, 2026-09-13"
	mixNotes       = "bias and GELU notes, 2026-09-13"
	producerNotes  = "producer output notes, 2026-09-13: a line through 2 figures"
	geluF8Notes    = "normalisation and GELU notes, 2026-09-11: a line through 2 figures"
	softmaxNotes   = "kernel pipeline notes, 2026-09-13; 10 to 17 % low on random data at 7 or 8 rows, no data factor applied"
	epilogueNotes  = "reduction epilogue notes, 2026-09-13: 2 constants on 1 figure"
	castNotes      = "FP8 cast overlap notes, 2026-09-12: 3 figures"
	packingNotes   = "pointwise and packing notes, 2026-09-08: 2 figures"
	constantNotes  = "cost constants of the published source, 2026-08-17: 1 figure"
	paddingNotes   = "encoder padding notes, 2026-09-09: 2 figures"
	stridedNotes   = "published price of the strided copy; no figure"
	sameAsPackLeft = "taken to cost what pack-left costs"
	fusedNotes     = "a fused form costs its parts with only the largest fixed cost"
)

// in and out are operands with 8-byte alignment anywhere in SRAM.
func in(name string, arg int) Operand  { return Operand{Name: name, Arg: arg, Align: 8} }
func out(name string, arg int) Operand { return Operand{Name: name, Arg: arg, Align: 8, Output: true} }

func operands(list ...Operand) OperandRules { return OperandRules{Operands: list} }

func limit(d Dim, multiple int) Limit { return Limit{Dim: d, Multiple: multiple} }

var table = [program.KernelCount]Row{
	program.KernelGEMM: {
		Name: "gemm", Code: 2048, cycles: gemm,
		Limits:  []Limit{limit(Rows, 1), limit(Inner, 1), limit(Cols, 1)},
		Options: []Option{OptPrecision, OptWeights, OptOutput},
		Forms: []Form{
			{"left AMP-left panels K16 (F16) or K32 (FP8), right coefficient panels, out F16 panels",
				"464 + n (4 rows + 155.5 + 32 if standard weights), n = q(inner/16 or 32) q(cols/16)", Fitted, gemmNotes},
			{"the same, out F16 row-major (packed)",
				"342 + n (max over workers (24 rows_w + 184 pieces_w) + 170 + 32 if standard weights)", Restated, packedNotes},
		},
		Operands: OperandRules{
			Operands: []Operand{
				{Name: "left", Arg: 0, Align: 32, Tail: 16},
				{Name: "right", Arg: 1, Align: 32, Memory: Region1OrStandardWeights},
				{Name: "out", Arg: 2, Align: 32, Memory: Region1, Output: true},
			},
			Separate: [][2]int{{0, 2}},
		},
	},
	program.KernelReduce: {
		Name: "reduce", Code: 1024, cycles: reduce,
		Limits:  []Limit{limit(Elements, 8), limit(Partials, 1)},
		Options: []Option{OptAddA, OptAddB, OptGELU, OptF8Out},
		Forms: []Form{
			{"F16 partials of one order, out the same", "282 + 6 q(elements/48) (11 + 2 (partials − 1))", Restated, fixtureNotes},
			{"with epilogues", "the parts of add, gelu and convert (246 + 12 q(elements/48)) fused in", Assumed, fusedNotes},
		},
		Operands: operands(in("local", 0), in("remote", 1), out("out", 4), in("a", 7), in("b", 8)),
	},
	program.KernelAdd: {
		Name: "add", Code: 256, cycles: func(g Geometry) int { return add(g.Elements).total() },
		Limits:   []Limit{limit(Elements, 1)},
		Forms:    []Form{{"F16, one order shared by all", "504 + 18 q(elements/24)", Restated, pipelineNotes}},
		Operands: operands(in("a", 0), in("b", 1), out("out", 2)),
	},
	program.KernelAddRows: {
		Name: "add-rows", Code: 384, cycles: addRows,
		Limits:   []Limit{limit(Rows, 1), limit(Cols, 1)},
		Forms:    []Form{{"F16 row-major, one row added to all", "504 + 18 rows q(cols/24) + 234 (rows − 1)", Assumed, "the add's cost repeated; published cost model only"}},
		Operands: operands(in("in", 0), in("row", 1), out("out", 2)),
	},
	program.KernelLayerNorm: {
		Name: "layernorm", Code: 1024, cycles: layerNorm,
		Limits:  []Limit{limit(Rows, 1), limit(Cols, 8)},
		Options: []Option{OptF8Out},
		Forms: []Form{
			{"F16 row-major rows, out the same", "132 + rows (1419 + 12 q(cols/48) + 102 q(cols/24))", Restated, normNotes},
			{"out FP8 row-major", "rows (1728 + 7.125 cols)", Assumed, normF8Notes},
		},
		Operands: operands(in("in", 0), in("gamma", 1), in("beta", 2), out("out", 3)),
	},
	program.KernelAddLayerNorm: {
		Name: "add-layernorm", Code: 1280, cycles: addLayerNorm,
		Limits:  []Limit{limit(Rows, 1), limit(Cols, 8)},
		Options: []Option{OptF8Out},
		Forms: []Form{
			{"F16 row-major rows, sum and out the same", "132 + rows (1476 + 30 q(cols/48) + 126 q(cols/24))", Restated, normNotes},
			{"out FP8 row-major", "504 + 18 q(rows cols/24) + rows (1728 + 7.125 cols) − 132", Assumed, fusedNotes},
		},
		Operands: operands(in("a", 0), in("b", 1), out("sum", 2), in("gamma", 3), in("beta", 4), out("out", 5)),
	},
	program.KernelGELU: {
		Name: "gelu", Code: 768, cycles: geluKernel,
		Limits:  []Limit{limit(Elements, 1)},
		Options: []Option{OptF8Out},
		Forms: []Form{
			{"F16, one order shared by both", "330 + 462 q(elements/96); a rest of n mod 16 adds pairs of 120 to one worker", Restated, geluNotes},
			{"out FP8", "486 + 1002 q(elements/192)", Restated, geluF8Notes},
		},
		Operands: operands(in("in", 0), out("out", 1)),
	},
	program.KernelBiasGELU: {
		Name: "bias-gelu", Code: 1024, cycles: biasGELU,
		Limits:  []Limit{limit(Rows, 1), limit(Cols, 4)},
		Options: []Option{OptF8Out},
		Forms: []Form{
			{"F16 row-major, bias of one row", "222 + rows (228 + 90 q(cols/24))", Restated, mixNotes},
			{"out FP8", "330 + rows (198 + 1104 q(cols/192))", Restated, producerNotes},
		},
		Operands: operands(in("in", 0), in("bias", 1), out("out", 2)),
	},
	program.KernelSoftmax: {
		Name: "softmax", Code: 1536, cycles: softmax, check: checkSoftmax,
		Limits: []Limit{limit(Rows, 1), limit(Keys, 1), {Dim: Padded, Multiple: 16, Optional: true}},
		Forms: []Form{
			{"F16 row-major rows, out F16, sums F32; p = q(padded/16) panels", "222 + 6 q(rows/6) (37 + 41 p + 17 if padded)", Restated, softmaxNotes},
			{"the same with rows in three segments, keys ≥ 128, if faster", "408 + 6 q(rows/2) (41 q(p/3) + 123) + 126 q(rows/6)", Restated, softmaxNotes},
		},
		Operands: operands(in("in", 0), out("out", 1), out("sums", 2)),
	},
	program.KernelNormalise: {
		Name: "normalise", Code: 512, cycles: normalise, check: checkNormalise,
		Limits:  []Limit{limit(Rows, 1), limit(Cols, 1)},
		Options: []Option{OptF8Out, OptPanels},
		Forms: []Form{
			{"F16 row-major or panels, sums F32", "222 + 6 q(rows/6) (40 + 3 floor(cols/16) + 6 q(cols/2))", Restated, "last merge of the attention merge, " + fixtureNotes + ": 1 figure"},
			{"out FP8", "convert (246 + 12 q(rows cols/48)) fused in", Assumed, fusedNotes},
		},
		Operands: operands(in("in", 0), in("sums", 1), out("out", 2)),
	},
	program.KernelCast: {
		Name: "cast", Code: 384, cycles: castLinear,
		Limits:   []Limit{limit(Elements, 8)},
		Forms:    []Form{{"F16 to FP8 in the same order, disjoint", "718 + 12 q(elements/48)", Fitted, castNotes}},
		Operands: operands(in("in", 0), out("out", 1)),
	},
	program.KernelCastPanels: {
		Name: "cast-panels", Code: 512, cycles: castPanels,
		Limits:   []Limit{limit(Rows, 1), limit(Cols, 16)},
		Forms:    []Form{{"F16 K16 panels to FP8 K32 panels", "246 + 6 q(cols/32) (8 q(rows/6) + 7)", Restated, epilogueNotes}},
		Operands: operands(in("in", 0), out("out", 1)),
	},
	program.KernelCastLeft: {
		Name: "cast-left", Code: 768, cycles: castLeft,
		Limits:   []Limit{limit(Rows, 1), limit(Cols, 1)},
		Forms:    []Form{{"F16 row-major to FP8 K32 panels, disjoint", "1350 + q(cols/32) (558 + 48 q(rows/6))", Fitted, castNotes}},
		Operands: operands(in("in", 0), out("out", 1)),
	},
	program.KernelPackLeft: {
		Name: "pack-left", Code: 384, cycles: packLeft,
		Limits:   []Limit{limit(Rows, 1), limit(Cols, 1)},
		Forms:    []Form{{"F16 row-major to K16 panels, 32-bit moves", "132 + 6 q(rows/6) (19 + 35 q(cols/16))", Restated, constantNotes}},
		Operands: operands(in("in", 0), out("out", 1)),
	},
	program.KernelPackRight: {
		Name: "pack-right", Code: 512, cycles: packRight,
		Limits:  []Limit{limit(Rows, 1), limit(Cols, 1)},
		Options: []Option{OptPanels},
		Forms: []Form{
			{"F16 row-major to coefficient panels, rows padded to 16", "300 + 360 q(rows/12) q(cols/16)", Restated, packingNotes},
			{"from K16 panels", "the same", Assumed, "taken to cost what the row-major form costs"},
		},
		Operands: operands(in("in", 0), out("out", 1)),
	},
	program.KernelUnpack: {
		Name: "unpack", Code: 384, cycles: packLeft,
		Limits:   []Limit{limit(Rows, 1), limit(Cols, 1)},
		Forms:    []Form{{"F16 K16 panels to row-major", "132 + 6 q(rows/6) (19 + 35 q(cols/16))", Assumed, sameAsPackLeft}},
		Operands: operands(in("in", 0), out("out", 1)),
	},
	program.KernelCopy: {
		Name: "copy", Code: 256, cycles: copyBytes,
		Limits:   []Limit{{Dim: Bytes, Multiple: 8, Most: 2 * maxDim}},
		Forms:    []Form{{"contiguous bytes, no overlap", "284 + bytes/8", Restated, constantNotes}},
		Operands: operands(in("source", 0), out("destination", 1)),
	},
	program.KernelCopyStrided: {
		Name: "copy-strided", Code: 256, cycles: copyStrided,
		Limits: []Limit{limit(Rows, 1), limit(Words, 1)},
		Forms:  []Form{{"rows of 32-bit words at two strides", "294 + 6 q(rows/6) (2 words + 6)", Assumed, stridedNotes}},
		Operands: OperandRules{Operands: []Operand{
			{Name: "source", Arg: 0, Align: 4}, {Name: "destination", Arg: 1, Align: 4, Output: true},
		}},
	},
	program.KernelFill: {
		Name: "fill", Code: 128, cycles: fill,
		Limits:   []Limit{{Dim: Bytes, Multiple: 8, Most: 2 * maxDim}},
		Forms:    []Form{{"zeros", "240 + 6 q(bytes/48)", Restated, paddingNotes}},
		Operands: operands(out("destination", 0)),
	},
}

func checkSoftmax(g Geometry) error {
	if g.Padded != 0 && g.Padded < g.Keys {
		return &GeometryError{"softmax", Padded.String(), fmt.Sprint(g.Padded), fmt.Sprintf("at least keys (%d), or 0 for the next multiple of 16", g.Keys)}
	}
	return nil
}

func checkNormalise(g Geometry) error {
	if g.Panels && g.Cols%16 != 0 {
		return &GeometryError{"normalise", Cols.String(), fmt.Sprint(g.Cols), "multiples of 16 in panels"}
	}
	return nil
}
