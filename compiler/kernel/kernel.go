// Package kernel is the table of the tile kernels: for each one, which geometry
// it accepts, how many cycles a call takes, how many bytes its code has, and what
// it asks of its operands' addresses. The planner prices plans with it and the
// exact score of a candidate adds up its commands with it.
//
// The cycles are modelled. The laws are fits to, or restatements of, cycle counts
// that were measured on a C600 with another compiler's kernels and published in
// August and September 2026; each form in the table says which, and the test
// beside it prints the error against every published figure that it applies to.
// The simulated device prices the same commands with its own copy of the laws, so
// that each implementation checks the other.
//
// All cycles are those of one call on one tile with its six workers, including the
// supervisor's call and the rendezvous. A law takes the physical extents, so that
// what a kernel pads is paid for.
package kernel

import (
	"fmt"

	"ipufarm/protocol/machine"
	"ipufarm/protocol/program"
)

// Precision is the element type of a GEMM's operands.
type Precision uint8

const (
	F16 Precision = iota
	F8            // F143
)

func (p Precision) String() string { return [...]string{"f16", "f8"}[p] }

// Group is the inner length of one AMP panel, in elements.
func (p Precision) Group() int {
	if p == F8 {
		return 32
	}
	return 16
}

// Geometry is what the cost of a call depends on. A kernel looks only at the
// fields that its row of the table names.
type Geometry struct {
	Rows     int // of a matrix operand, on this tile
	Inner    int // contraction length of a GEMM, in elements
	Cols     int // of a matrix operand; the width of a row
	Elements int // of an operand without shape
	Partials int // of a reduction, the local one included
	Keys     int // of a softmax row
	Padded   int // keys with padding; 0 means the next multiple of 16
	Bytes    int // of a copy or fill
	Words    int // 32-bit words in each piece of a strided copy

	Precision       Precision
	StandardWeights bool // GEMM: coefficients in standard memory
	Packed          bool // GEMM: row-major output
	F8Out           bool // the result is converted to FP8
	GELU            bool // reduction: GELU epilogue
	AddA, AddB      bool // reduction: further operands
	Panels          bool // operands in panels instead of rows
}

// A Model is what the compiler has to know of a kernel. The table's laws are
// models; a kernel that was measured, or one of real tile code that is executed,
// can stand in for a law by giving the same answers from another source.
type Model interface {
	// Check refuses a geometry that the kernel does not accept.
	Check(g Geometry) error
	// Cycles is the time of one call. g must pass Check.
	Cycles(g Geometry) int
	// CodeBytes is the size of the code in region 0.
	CodeBytes() int
	// Rules are the demands on the operands' addresses.
	Rules() OperandRules
}

// Of returns the model of a kernel, nil for numbers that are no kernel.
func Of(k program.Kernel) Model {
	if k == program.KernelNone || k >= program.KernelCount {
		return nil
	}
	return &table[k]
}

// Cycles returns the modelled cycles of one call. The geometry must be one that
// Check accepts; 0 for numbers that are no kernel.
func Cycles(k program.Kernel, g Geometry) int {
	if k >= program.KernelCount || table[k].cycles == nil {
		return 0
	}
	return table[k].cycles(g)
}

// Check refuses geometries that a kernel does not accept with a *GeometryError.
func Check(k program.Kernel, g Geometry) error {
	if m := Of(k); m != nil {
		return m.Check(g)
	}
	return fmt.Errorf("kernel: %d is no kernel; 1 to %d are", k, program.KernelCount-1)
}

// CodeBytes returns the size of a kernel's code in region 0 (assumed).
func CodeBytes(k program.Kernel) int {
	if k >= program.KernelCount {
		return 0
	}
	return table[k].Code
}

// Rules returns the demands on a kernel's operands. The slices are shared: read only.
func Rules(k program.Kernel) OperandRules {
	if k >= program.KernelCount {
		return OperandRules{}
	}
	return table[k].Operands
}

// OperandRules are the demands of a kernel on the addresses of its operands.
type OperandRules struct {
	Operands []Operand
	// Separate are pairs of indexes into Operands that must not touch a common
	// effective SRAM element.
	Separate [][2]int
}

// Operand is one address argument.
type Operand struct {
	Name   string
	Arg    int // index of the address among the command's arguments
	Align  int // of the address, in bytes
	Tail   int // bytes past the payload that the kernel reads or writes
	Memory Memory
	Output bool
}

// Memory says where an operand may lie.
type Memory uint8

const (
	Anywhere Memory = iota
	Region1
	Region1OrStandardWeights // region 1, or anywhere if Geometry.StandardWeights
)

func (m Memory) String() string {
	return [...]string{"anywhere", "region 1", "region 1 (anywhere with standard weights)"}[m]
}

// Interleaved reports whether an operand must lie in region 1 for a geometry.
func (o *Operand) Interleaved(g Geometry) bool {
	return o.Memory == Region1 || o.Memory == Region1OrStandardWeights && !g.StandardWeights
}

// A Dim is one length of a Geometry; its name is the command line's flag.
type Dim uint8

const (
	Rows Dim = iota
	Inner
	Cols
	Elements
	Partials
	Keys
	Padded
	Bytes
	Words
	Dims
)

func (d Dim) String() string {
	return [...]string{"rows", "inner", "cols", "elements", "partials", "keys", "padded", "bytes", "words"}[d]
}

// Get returns one length.
func (g *Geometry) Get(d Dim) int { return *g.At(d) }

// At returns the place of one length.
func (g *Geometry) At(d Dim) *int {
	return [...]*int{&g.Rows, &g.Inner, &g.Cols, &g.Elements, &g.Partials, &g.Keys, &g.Padded, &g.Bytes, &g.Words}[d]
}

// An Option is one of the switches of a Geometry; its name is the command line's flag.
type Option uint8

const (
	OptPrecision Option = iota
	OptWeights
	OptOutput
	OptF8Out
	OptGELU
	OptAddA
	OptAddB
	OptPanels
	Options
)

func (o Option) String() string {
	return [...]string{"precision", "weights", "output", "f8-out", "gelu", "add-a", "add-b", "panels"}[o]
}

// set reports whether an option differs from its default.
func (g *Geometry) set(o Option) bool {
	return [...]bool{g.Precision != F16, g.StandardWeights, g.Packed, g.F8Out, g.GELU, g.AddA, g.AddB, g.Panels}[o]
}

// NotUsed is what a GeometryError accepts of a field that the kernel does not have.
const NotUsed = "not used by this kernel"

// GeometryError says which length or option a kernel does not accept.
type GeometryError struct {
	Kernel string
	Field  string // name of a Dim or Option
	Got    string
	Accept string
}

func (e *GeometryError) Error() string {
	return fmt.Sprintf("kernel %s: %s %s; accepted: %s", e.Kernel, e.Field, e.Got, e.Accept)
}

// maxDim bounds every length: no operand has more F16 elements than a tile's
// SRAM. It also keeps the laws far from overflow.
const maxDim = machine.MemorySize / 2

// Limit is one length that a kernel takes.
type Limit struct {
	Dim      Dim
	Multiple int
	Optional bool // 0 is accepted
	Most     int  // 0: maxDim
}

// Check implements Model.
func (r *Row) Check(g Geometry) error {
	var used [Dims]bool
	for _, l := range r.Limits {
		used[l.Dim] = true
		v, most := g.Get(l.Dim), l.Most
		if most == 0 {
			most = maxDim
		}
		if v == 0 && l.Optional {
			continue
		}
		if v < 1 || v > most || v%l.Multiple != 0 {
			accept := fmt.Sprintf("%d to %d", l.Multiple, most/l.Multiple*l.Multiple)
			if l.Multiple > 1 {
				accept = fmt.Sprintf("multiples of %d, ", l.Multiple) + accept
			}
			return &GeometryError{r.Name, l.Dim.String(), fmt.Sprint(v), accept}
		}
	}
	for d := range Dims {
		if !used[d] && g.Get(d) != 0 {
			return &GeometryError{r.Name, d.String(), fmt.Sprint(g.Get(d)), NotUsed}
		}
	}
	for o := range Options {
		if g.set(o) && !r.Takes(o) {
			return &GeometryError{r.Name, o.String(), "set", NotUsed}
		}
	}
	if r.check != nil {
		return r.check(g)
	}
	return nil
}

// Takes reports whether the kernel has an option.
func (r *Row) Takes(o Option) bool {
	for _, have := range r.Options {
		if have == o {
			return true
		}
	}
	return false
}

// Cycles implements Model.
func (r *Row) Cycles(g Geometry) int { return r.cycles(g) }

// CodeBytes implements Model.
func (r *Row) CodeBytes() int { return r.Code }

// Rules implements Model.
func (r *Row) Rules() OperandRules { return r.Operands }

// Named returns the table's row of a name such as "gemm" or "pack-left".
func Named(name string) (*Row, bool) {
	for k := range table {
		if table[k].Name == name && name != "" {
			return &table[k], true
		}
	}
	return nil, false
}

// All returns the rows of the table in the order of their codes, from 1. Read only.
func All() []Row { return table[program.KernelNone+1:] }
