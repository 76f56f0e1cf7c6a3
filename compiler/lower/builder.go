package lower

import (
	"ipufarm/compiler/graph"
	"ipufarm/compiler/kernel"
	"ipufarm/compiler/layout"
	"ipufarm/compiler/place"
	"ipufarm/protocol/machine"
	"ipufarm/protocol/program"
)

// builder collects a program, or only its costs when sketching.
type builder struct {
	p      *Program
	sketch bool
	work   [][]int32        // compute slot/2 -> cycles of each tile
	load   map[int32]*load  // exchange slot -> endpoint loads
	phases map[int32]*Phase // exchange slot -> phase
	runs   []run            // scratch of local copies
	first  int32            // number of the first own buffer; lower ones belong to the sketch that a window starts from
}

// load is what a sketch knows of a phase: events of each endpoint.
type load struct {
	send, receive, control []int32
	transfers              int64
}

func newBuilder(tiles int, sketch bool) *builder {
	return &builder{
		p: &Program{Tiles: tiles}, sketch: sketch,
		load: map[int32]*load{}, phases: map[int32]*Phase{},
	}
}

func (b *builder) operation(name, kind string) int32 {
	b.p.Operations = append(b.p.Operations, Operation{name, kind})
	return int32(len(b.p.Operations) - 1)
}

// buffer makes a buffer on a tile; its lifetime grows as it is used.
func (b *builder) buffer(tile, bytes, align int32, class place.Class) int32 {
	b.p.Buffers = append(b.p.Buffers, Buffer{
		Tile: tile, Bytes: (bytes + 7) &^ 7, Align: align, Class: class, First: 1 << 30, Last: -1,
		Operation: int32(len(b.p.Operations) - 1),
	})
	return b.first + int32(len(b.p.Buffers)-1)
}

// touch makes a buffer live in a slot.
func (b *builder) touch(r Ref, slot int32) {
	b.p.Slots = max(b.p.Slots, slot+1)
	if r.Buffer < b.first {
		return
	}
	u := &b.p.Buffers[r.Buffer-b.first]
	u.First, u.Last = min(u.First, slot), max(u.Last, slot)
}

// call adds a kernel call to a tile's compute slot. Reads and writes are the same
// to a buffer's lifetime.
func (b *builder) call(slot, tile, operation int32, k program.Kernel, args ...Ref) {
	var cmd program.Command
	cmd.Kind, cmd.Kernel = program.Call, k
	for i, a := range args {
		b.touch(a, slot)
		cmd.Args[i] = a.Offset
		if a.Buffer >= 0 {
			cmd.Args[i] = machine.DataBase // some address: an operand that is there
		}
	}
	cycles := kernel.CommandCycles(&cmd)
	for int(slot/2) >= len(b.work) {
		b.work = append(b.work, make([]int32, b.p.Tiles))
	}
	b.work[slot/2][tile] += cycles
	if b.sketch {
		return
	}
	c := Call{Slot: slot, Tile: tile, Operation: operation, Kernel: k, Cycles: cycles, Count: int8(len(args))}
	copy(c.Args[:], args)
	b.p.Calls = append(b.p.Calls, c)
}

// place gives every block of a tensor a buffer of its own on each of its tiles.
func (b *builder) place(t *Tensor, align, tail int32, class place.Class) {
	t.Places = make([][]Ref, len(t.Blocks))
	for i := range t.Blocks {
		t.Places[i] = make([]Ref, len(t.Tiles[i]))
		for j, tile := range t.Tiles[i] {
			t.Places[i][j] = Ref{Buffer: b.buffer(tile, t.Blocks[i].Bytes(t.Form)+tail, align, class)}
		}
	}
}

// host makes the blocks of a placed tensor a parameter or input that the host fills.
func (b *builder) host(t *Tensor, v *graph.Value, scale int, element func(r, c int32) int) {
	input := v.Op == graph.Input
	for i := range t.Blocks {
		for _, p := range t.Places[i] {
			b.resident(p)
			if input { // delivered for every run, so free once it was read
				b.p.Buffers[p.Buffer-b.first].Last = 0
			}
		}
		b.p.Host = append(b.p.Host, HostBlock{
			Value: v, Input: input, Form: t.Form, Block: t.Blocks[i], Scale: scale,
			Places: t.Places[i], Element: element,
		})
	}
	t.Ready = 0
}

// forever is the last slot of what outlives the program.
const forever = 1 << 29

// resident marks a buffer that the host fills or reads and that lives throughout.
func (b *builder) resident(r Ref) {
	if r.Buffer < b.first {
		return
	}
	u := &b.p.Buffers[r.Buffer-b.first]
	u.Resident, u.First, u.Last = true, -1, forever
}

// separate keeps two buffers of a tile out of one element.
func (b *builder) separate(x, y Ref) {
	if !b.sketch {
		b.p.Separate = append(b.p.Separate, [2]int32{x.Buffer, y.Buffer})
	}
}

func (b *builder) loadOf(slot int32) *load {
	l := b.load[slot]
	if l == nil {
		n := b.p.Tiles
		all := make([]int32, 3*n)
		l = &load{send: all[:n:n], receive: all[n : 2*n : 2*n], control: all[2*n:]}
		b.load[slot] = l
	}
	return l
}

func (b *builder) phaseOf(slot int32) *Phase {
	p := b.phases[slot]
	if p == nil {
		p = &Phase{Slot: slot}
		b.phases[slot] = p
	}
	return p
}

// exchangeSlot is the first exchange slot that can move a tensor on.
func exchangeSlot(tensors ...*Tensor) int32 {
	slot := int32(1)
	for _, t := range tensors {
		slot = max(slot, (t.Ready+1)|1)
	}
	return slot
}

// computeSlot is the first compute slot that can use tensors where they are.
func computeSlot(tensors ...*Tensor) int32 {
	slot := int32(0)
	for _, t := range tensors {
		slot = max(slot, (t.Ready+1)&^1)
	}
	return slot
}

// pieceWords is the longest transfer. Shorter ones than the hardware takes give the
// schedule a choice of order; it joins those that follow each other again.
const pieceWords = 128

// run is one contiguous piece of a copy.
type run struct{ from, to, bytes int32 }

// move copies what the blocks of dst need from src in an exchange slot. dst must
// be placed. Pieces whose only receiver already holds them are copied on the tile
// in the compute slot after. zero asks that allocated memory which src does not
// cover reads as zero. Returns when dst is ready.
func (b *builder) move(src, dst *Tensor, slot int32, operation int32, zero bool) {
	index := src.Index()
	dst.Ready = max(dst.Ready, slot)
	served := false
	for i := range dst.Blocks {
		block := &dst.Blocks[i]
		covered := int64(0)
		index.Overlapping(block.Rect, func(s int) {
			covered += src.Blocks[s].Intersect(block.Rect).Area()
			if b.piece(src, s, dst, i, slot, operation) {
				served = true
			}
		})
		if zero && covered*int64(dst.Form.Elem) < int64(block.Bytes(dst.Form)) {
			b.clear(dst, i, slot-1, operation)
		}
	}
	if served && !b.sketch {
		p := b.phaseOf(slot)
		if n := len(p.Operations); n == 0 || p.Operations[n-1] != operation {
			p.Operations = append(p.Operations, operation)
		}
	}
}

// piece moves what block s of src and block d of dst have in common. It reports
// whether the exchange takes part.
func (b *builder) piece(src *Tensor, s int, dst *Tensor, d int, slot, operation int32) bool {
	tiles := dst.Tiles[d]
	// Owners take turns at serving; an owner that is the only receiver serves itself.
	from := d % len(src.Tiles[s])
	if len(tiles) == 1 {
		for j, t := range src.Tiles[s] {
			if t == tiles[0] {
				from = j
			}
		}
	}
	source, place := src.Tiles[s][from], src.Places[s][from]
	b.touch(place, slot)
	if len(tiles) == 1 && tiles[0] == source {
		b.copyLocal(src, s, place, dst, d, slot+1, operation)
		return false
	}
	for j, t := range tiles {
		b.touch(dst.Places[d][j], slot)
		if t == source {
			b.separate(place, dst.Places[d][j])
		}
	}
	sb, db := &src.Blocks[s], &dst.Blocks[d]
	if b.sketch {
		l := b.loadOf(slot)
		words := int32(sb.Intersect(db.Rect).Area() * int64(src.Form.Elem) / 4)
		runs := int32(layout.RunCount(src.Form, sb, dst.Form, db))
		if paired(tiles) && words%2 == 0 {
			words /= 2 // items of 64 bits, which borrow the partner's way out
			l.send[source^1] += words
		}
		l.send[source] += words
		l.control[source]++
		l.transfers += int64(runs)
		for _, t := range tiles {
			l.receive[t] += words
			l.control[t] += runs
		}
		return true
	}
	p := b.phaseOf(slot)
	layout.Runs(src.Form, sb, dst.Form, db, func(f, t, bytes int32) {
		for words := bytes / 4; words > 0; {
			n := min(words, pieceWords)
			first := int32(len(p.Receivers))
			for _, r := range dst.Places[d] {
				p.Receivers = append(p.Receivers, Ref{r.Buffer, r.Offset + uint32(t)})
			}
			p.Transfers = append(p.Transfers, Transfer{
				Source: Ref{place.Buffer, place.Offset + uint32(f)}, Words: n,
				First: first, Count: int32(len(tiles)),
			})
			f, t, words = f+4*n, t+4*n, words-n
		}
	})
	return true
}

// paired reports whether tiles are whole pairs in their order.
func paired(tiles []int32) bool {
	if len(tiles)%2 != 0 {
		return false
	}
	for i := 0; i < len(tiles); i += 2 {
		if tiles[i]^1 != tiles[i+1] {
			return false
		}
	}
	return true
}

// copyLocal copies a piece on one tile, runs at equal distances by one call.
func (b *builder) copyLocal(src *Tensor, s int, from Ref, dst *Tensor, d int, slot, operation int32) {
	to := dst.Places[d][0]
	tile := dst.Tiles[d][0]
	dst.Ready = max(dst.Ready, slot-1)
	runs := b.runs[:0]
	layout.Runs(src.Form, &src.Blocks[s], dst.Form, &dst.Blocks[d], func(f, t, n int32) {
		runs = append(runs, run{f, t, n})
	})
	for i := 0; i < len(runs); {
		j := i + 1
		var ds, dt int32
		if j < len(runs) {
			ds, dt = runs[j].from-runs[i].from, runs[j].to-runs[i].to
		}
		// The kernel steps forward on both sides; a piece that goes back starts anew.
		for dt > 0 && j < len(runs) && runs[j].bytes == runs[i].bytes &&
			runs[j].from-runs[j-1].from == ds && runs[j].to-runs[j-1].to == dt {
			j++
		}
		source := Ref{from.Buffer, from.Offset + uint32(runs[i].from)}
		target := Ref{to.Buffer, to.Offset + uint32(runs[i].to)}
		if j == i+1 {
			ds, dt = runs[i].bytes, runs[i].bytes
		}
		b.call(slot, tile, operation, program.KernelCopyStrided, source, target,
			Imm(int32(j-i)), Imm(runs[i].bytes/4), Imm(ds), Imm(dt))
		i = j
	}
	b.runs = runs[:0]
}

// clear zeroes what the region of a block leaves open in its allocation: from the
// first panel that is not full to the end.
func (b *builder) clear(t *Tensor, i int, slot, operation int32) {
	block := &t.Blocks[i]
	rows, cols := block.R1-block.R0, block.C1-block.C0
	start := int32(0)
	switch {
	case t.Form.Order == layout.Panels && rows == block.Rows:
		start = cols / t.Form.Grain * t.Form.Grain * block.Rows * t.Form.Elem
	case t.Form.Order == layout.Coefficient && cols == block.Cols:
		start = rows / 16 * 16 * block.Cols * t.Form.Elem
	}
	if start >= block.Bytes(t.Form) {
		start = 0 // the region is full: the source has holes
	}
	start &^= 7
	for j, p := range t.Places[i] {
		b.call(slot, t.Tiles[i][j], operation, program.KernelFill,
			Ref{p.Buffer, p.Offset + uint32(start)}, Imm(block.Bytes(t.Form)-start))
	}
}
