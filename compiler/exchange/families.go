package exchange

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"math/rand/v2"

	"ipufarm/protocol/machine"
)

// Family is one generated phase of the benchmark: a kind of traffic that the
// compiler's layouts cause, with its parameters and seed.
type Family struct {
	Name string `json:"name"`
	Kind string `json:"kind"`
	Seed uint64 `json:"seed"`

	Tiles     int   `json:"tiles"`
	Transfers int   `json:"transfers,omitempty"` // unicast: how many
	Words     int32 `json:"words,omitempty"`     // of a transfer; unicast: the longest
	Shortest  int32 `json:"shortest,omitempty"`  // unicast: the shortest
	Rows      int   `json:"rows,omitempty"`      // grid rows, or matrix rows
	Columns   int   `json:"columns,omitempty"`   // grid columns, or matrix columns in words
	Group     int   `json:"group,omitempty"`     // tiles that work together
	Shuffle   bool  `json:"shuffle,omitempty"`   // tiles are numbered at random
	Loop      bool  `json:"loop,omitempty"`      // gemm: owners hear their own slice too
}

//go:embed testdata/families.json
var familiesJSON []byte

// Families returns the phases of the benchmark.
func Families() ([]Family, error) {
	var f []Family
	if err := json.Unmarshal(familiesJSON, &f); err != nil {
		return nil, fmt.Errorf("bench families: %w", err)
	}
	return f, nil
}

// Problem generates the phase.
func (f *Family) Problem() (*Problem, error) {
	if f.Tiles < 2 || f.Tiles > machine.Tiles {
		return nil, fmt.Errorf("bench family %q has %d tiles, accepted are 2..%d", f.Name, f.Tiles, machine.Tiles)
	}
	b := &builder{p: &Problem{Tiles: f.Tiles}, rng: rand.New(rand.NewPCG(f.Seed, 0))}
	for t := range f.Tiles {
		b.tile = append(b.tile, int32(t))
		b.read, b.write = append(b.read, machine.TableBase), append(b.write, machine.Region1Base)
	}
	if f.Shuffle {
		b.rng.Shuffle(f.Tiles, func(i, j int) { b.tile[i], b.tile[j] = b.tile[j], b.tile[i] })
	}
	generate := map[string]func(*Family, *builder){
		"unicast": (*Family).unicast, "gemm": (*Family).gemm, "reduce-scatter": (*Family).reduceScatter,
		"transpose": (*Family).transpose, "panels": (*Family).panels, "rows": (*Family).rows,
	}[f.Kind]
	if generate == nil {
		return nil, fmt.Errorf("bench family %q is of unknown kind %q", f.Name, f.Kind)
	}
	generate(f, b)
	if err := b.p.Check(); err != nil {
		return nil, fmt.Errorf("bench family %q: %w", f.Name, err)
	}
	return b.p, nil
}

// builder hands out memory while a family lists its transfers.
type builder struct {
	p           *Problem
	rng         *rand.Rand
	tile        []int32  // the family's numbering to logical tiles
	read, write []uint32 // by logical tile: next free source and destination byte
}

// reserve takes words from a tile's source or destination memory.
func reserve(next []uint32, tile int32, words int) uint32 {
	a := next[tile]
	next[tile] += uint32(words) * 4
	return a
}

// copy adds a transfer between addresses, unless it stays on its tile.
func (b *builder) copy(source int32, from uint32, words int32, to ...Receiver) {
	if len(to) == 1 && to[0].Tile == source {
		return
	}
	b.p.Transfers = append(b.p.Transfers, Transfer{source, from, words, int32(len(b.p.Receivers)), int32(len(to))})
	b.p.Receivers = append(b.p.Receivers, to...)
}

// unicast sends messages of random lengths between random tiles.
func (f *Family) unicast(b *builder) {
	for range f.Transfers {
		s := b.rng.Int32N(int32(f.Tiles))
		d := (s + 1 + b.rng.Int32N(int32(f.Tiles)-1)) % int32(f.Tiles)
		words := f.Shortest + b.rng.Int32N(f.Words-f.Shortest+1)
		b.copy(s, reserve(b.read, s, int(words)), words, Receiver{d, reserve(b.write, d, int(words))})
	}
}

// gemm delivers the operands of a grid of GEMM blocks: every tile of a grid row
// multicasts its slice of the left operand to the row, and every tile of a grid
// column its slice of the right operand to the column.
func (f *Family) gemm(b *builder) {
	multicast := func(owner int, group []int) {
		s := b.tile[owner]
		from := reserve(b.read, s, int(f.Words))
		var to []Receiver
		for _, d := range group {
			if d != owner || f.Loop {
				to = append(to, Receiver{b.tile[d], reserve(b.write, b.tile[d], int(f.Words))})
			}
		}
		b.copy(s, from, f.Words, to...)
	}
	for r := range f.Rows {
		var row []int
		for c := range f.Columns {
			row = append(row, r*f.Columns+c)
		}
		for _, owner := range row {
			multicast(owner, row)
		}
	}
	for c := range f.Columns {
		var column []int
		for r := range f.Rows {
			column = append(column, r*f.Columns+c)
		}
		for _, owner := range column {
			multicast(owner, column)
		}
	}
}

// reduceScatter exchanges partial sums: every tile of a group sends each other
// one the part of its block that the other reduces.
func (f *Family) reduceScatter(b *builder) {
	for first := 0; first+f.Group <= f.Tiles; first += f.Group {
		for i := range f.Group {
			for j := range f.Group {
				s, d := b.tile[first+i], b.tile[first+j]
				from := reserve(b.read, s, int(f.Words))
				if i != j {
					b.copy(s, from, f.Words, Receiver{d, reserve(b.write, d, int(f.Words))})
				}
			}
		}
	}
}

// split returns where part i of n items in parts begins.
func split(n, parts, i int) int { return n * i / parts }

// transpose turns row strips into column strips within groups of tiles: each
// tile owns some rows of a row-major matrix and gets some columns of it.
func (f *Family) transpose(b *builder) {
	n := f.Group
	for first := 0; first+n <= f.Tiles; first += n {
		for i := range n {
			s := b.tile[first+i]
			r0, r1 := split(f.Rows, n, i), split(f.Rows, n, i+1)
			from := reserve(b.read, s, (r1-r0)*f.Columns)
			for j := range n {
				d := b.tile[first+j]
				c0, c1 := split(f.Columns, n, j), split(f.Columns, n, j+1)
				for r := r0; r < r1; r++ {
					to := reserve(b.write, d, c1-c0)
					b.copy(s, from+uint32((r-r0)*f.Columns+c0)*4, int32(c1-c0), Receiver{d, to})
				}
			}
		}
	}
}

// panels scatters row-major rows, a few on each tile, into the column panels of
// a grid of blocks: fragments of Words words that continue each other at the
// source and lie a panel apart at the receiver.
func (f *Family) panels(b *builder) { f.relayout(b, true) }

// rows is the way back: panels of a grid of blocks into row-major rows.
func (f *Family) rows(b *builder) { f.relayout(b, false) }

// relayout moves a matrix of Rows x Columns words between row owners and a grid
// of Tiles/Group row blocks by Group column blocks.
func (f *Family) relayout(b *builder, toPanels bool) {
	blocks := f.Tiles / f.Group
	panel := int(f.Words)
	rowSide, blockSide := b.read, b.write
	if !toPanels {
		rowSide, blockSide = b.write, b.read
	}
	base := make([]uint32, f.Tiles) // of each block
	for i := range base[:blocks*f.Group] {
		height := split(f.Rows, blocks, i/f.Group+1) - split(f.Rows, blocks, i/f.Group)
		width := split(f.Columns/panel, f.Group, i%f.Group+1) - split(f.Columns/panel, f.Group, i%f.Group)
		base[i] = reserve(blockSide, b.tile[i], height*width*panel)
	}
	for owner := range f.Tiles {
		o := b.tile[(owner*5)%f.Tiles] // row owners are not where the blocks are
		for r := split(f.Rows, f.Tiles, owner); r < split(f.Rows, f.Tiles, owner+1); r++ {
			row := reserve(rowSide, o, f.Columns)
			rb := 0
			for split(f.Rows, blocks, rb+1) <= r {
				rb++
			}
			r0 := split(f.Rows, blocks, rb)
			height := split(f.Rows, blocks, rb+1) - r0
			for g := range f.Group {
				p0 := split(f.Columns/panel, f.Group, g)
				for p := p0; p < split(f.Columns/panel, f.Group, g+1); p++ {
					t := b.tile[rb*f.Group+g]
					inBlock := base[rb*f.Group+g] + uint32(((p-p0)*height+r-r0)*panel)*4
					inRow := row + uint32(p*panel)*4
					if toPanels {
						b.copy(o, inRow, f.Words, Receiver{t, inBlock})
					} else {
						b.copy(t, inBlock, f.Words, Receiver{o, inRow})
					}
				}
			}
		}
	}
}
