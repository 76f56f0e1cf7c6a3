// Package lower turns a recipe, the choices of one finalist, into what the tiles
// do: kernel calls, copies between tiles, and buffers with lifetimes. It knows no
// address and no schedule; placement and exchange scheduling come after it.
//
// Time is counted in slots. An even slot is a compute segment, in which every
// tile runs its calls in order; the odd slot after it is the exchange phase that
// moves results on. Work is put in the earliest slot that its inputs allow, so
// branches that do not depend on each other share slots.
//
// Lowering the same recipe always gives the same program. A sketch does the same
// without writing calls and transfers down: it keeps only what the planner prices.
package lower

import (
	"ipufarm/compiler/graph"
	"ipufarm/compiler/layout"
	"ipufarm/compiler/place"
	"ipufarm/protocol/program"
)

// Program is a lowered recipe.
type Program struct {
	Tiles      int
	Operations []Operation // what Call.Operation and Phase labels refer to
	Buffers    []Buffer
	Separate   [][2]int32 // buffers of one tile that must not share an element
	Apart      [][2]int32 // buffers of one tile that send and receive in one phase: better not in one element
	Calls      []Call     // in execution order on each tile
	Phases     []Phase    // by exchange slot, ascending
	Host       []HostBlock
	Output     *Tensor
	Slots      int32 // number of slots; the program ends in a compute slot
}

// Live returns the largest sums of live buffer bytes over tiles and slots: of all
// buffers, and of those that must lie in region 1.
func (p *Program) Live() (all, interleaved int32) {
	slots := int(p.Slots) + 2
	change := make([]int32, p.Tiles*slots*2) // by tile, class and slot
	for i := range p.Buffers {
		b := &p.Buffers[i]
		if b.Last < b.First {
			continue
		}
		first, last := max(int(b.First), 0), min(int(b.Last), slots-2)
		at := (int(b.Tile)*2 + int(b.Class)) * slots
		change[at+first] += b.Bytes
		change[at+last+1] -= b.Bytes
	}
	for t := range p.Tiles {
		var s, x int32
		for i := range slots {
			s += change[t*2*slots+i]
			x += change[(t*2+1)*slots+i]
			all, interleaved = max(all, s+x), max(interleaved, x)
		}
	}
	return all, interleaved
}

// Operation names what a call or transfer is for.
type Operation struct {
	Name string
	Kind string // the stage of the operation, as in "gemm", "partials", "softmax"
}

// Buffer is a piece of one tile's memory.
type Buffer struct {
	Tile        int32
	Bytes       int32 // payload and access tail
	Align       int32
	Class       place.Class
	First, Last int32 // slots, inclusive
	Operation   int32 // that asked for it
	Resident    bool  // holds parameters, inputs or outputs: never in the aperture
}

// Ref is a byte in a buffer; Buffer < 0 stands for a plain number.
type Ref struct {
	Buffer int32
	Offset uint32
}

// Imm is a plain number as an argument.
func Imm(v int32) Ref { return Ref{Buffer: -1, Offset: uint32(v)} }

// Call is one kernel call. Cycles is the kernel table's cost.
type Call struct {
	Slot      int32
	Tile      int32
	Operation int32
	Kernel    program.Kernel
	Cycles    int32
	Args      [program.CommandArgs]Ref
	Count     int8 // arguments in use
}

// Phase is one exchange: transfers whose ends are bytes of buffers.
type Phase struct {
	Slot       int32
	Operations []int32 // that the phase serves
	Transfers  []Transfer
	Receivers  []Ref
}

// Transfer moves Words words from Source to Receivers[First:First+Count] of its phase.
type Transfer struct {
	Source       Ref
	Words        int32
	First, Count int32
}

// HostBlock is a block of a parameter or input that the host delivers, the same
// bytes to each of its buffers.
type HostBlock struct {
	Value  *graph.Value
	Input  bool
	Form   layout.Form
	Block  layout.Block
	Scale  int // exponent of FP8 codes
	Places []Ref
	// Element gives the index of an element of the value's data for row r and
	// column c of the matrix, or -1 for zero.
	Element func(r, c int32) int
}

// Tensor is a matrix on the tiles.
type Tensor struct {
	Rows, Cols int32 // of the matrix; columns include padding that holds zeros
	// Columns maps a column to the logical one, -1 for padding; nil: the identity.
	Columns []int32
	Form    layout.Form
	Blocks  []layout.Block
	Tiles   [][]int32 // of each block, the tiles that hold it
	Places  [][]Ref   // of each block and tile, where
	Ready   int32     // the slot that produced it
	index   *layout.Index
}

// Index returns the tensor's block index.
func (t *Tensor) Index() *layout.Index {
	if t.index == nil {
		t.index = layout.NewIndex(t.Blocks)
	}
	return t.index
}

// add appends a block held by the tiles.
func (t *Tensor) add(b layout.Block, tiles ...int32) {
	t.Blocks = append(t.Blocks, b)
	t.Tiles = append(t.Tiles, tiles)
}
