// Package assemble turns a lowered, placed and scheduled program into what is
// loaded: the package with every tile's command stream and exchange rows, and the
// files of parameters and inputs in the order of its bindings.
//
// A tile's memory from machine.TableBase on holds its exchange rows, each 8-byte
// aligned, then its command stream; the whole reservation is the same on all tiles
// and ends at an element boundary, because code and data must not share one.
package assemble

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"ipufarm/compiler/exchange"
	"ipufarm/compiler/graph"
	"ipufarm/compiler/lower"
	"ipufarm/protocol/machine"
	"ipufarm/protocol/numeric"
	"ipufarm/protocol/profile"
	"ipufarm/protocol/program"
)

// Placed is a program with an address for every buffer.
type Placed struct {
	Program   *lower.Program
	Addresses []uint32
}

// Address is the address of a reference, or the plain number.
func (p *Placed) Address(r lower.Ref) uint32 {
	if r.Buffer < 0 {
		return r.Offset
	}
	return p.Addresses[r.Buffer] + r.Offset
}

// Problem is the exchange problem of a phase at its final addresses.
func (p *Placed) Problem(ph *lower.Phase) *exchange.Problem {
	x := &exchange.Problem{
		Tiles:     p.Program.Tiles,
		Transfers: make([]exchange.Transfer, len(ph.Transfers)),
		Receivers: make([]exchange.Receiver, len(ph.Receivers)),
	}
	for i, t := range ph.Transfers {
		x.Transfers[i] = exchange.Transfer{
			Source:  p.Program.Buffers[t.Source.Buffer].Tile,
			Address: p.Address(t.Source), Words: t.Words, First: t.First, Count: t.Count,
		}
	}
	for i, r := range ph.Receivers {
		x.Receivers[i] = exchange.Receiver{Tile: p.Program.Buffers[r.Buffer].Tile, Address: p.Address(r)}
	}
	return x
}

// TableBytes is the size of the rows of a tile over all phases.
func TableBytes(rows []*exchange.Rows, tile int) int32 {
	n := int32(0)
	for _, r := range rows {
		n += (int32(len(r.Tile[tile].Words))*4 + 7) &^ 7
	}
	return n
}

// Package builds the package. horizons gives the row length of each phase and
// tile, for the profile plan.
func Package(p *Placed, rows []*exchange.Rows, horizons [][]int32, name, version string, reserved uint32) (*program.Package, error) {
	pkg := &program.Package{
		SchemaVersion: program.SchemaVersion, CompilerVersion: version, Target: program.Target,
		TileMemoryBase: machine.MemoryBase, TileMemorySize: machine.MemorySize,
		EntryPoints: []program.EntryPoint{{Name: "run"}},
		HostExchange: program.HostExchange{Calls: []program.HostCall{
			{Name: "initialize", Invocations: 1}, {Name: "run", Invocations: 1},
		}},
		DebugRegions: []program.DebugRegion{
			{PhysicalTile: program.AllTiles, Address: machine.RuntimeState, Size: machine.RuntimeStateEnd - machine.RuntimeState, Name: "runtime state"},
			{PhysicalTile: program.AllTiles, Address: machine.SupportBase, Size: machine.SupportSize, Name: "runtime and kernels (assumed)"},
			{PhysicalTile: program.AllTiles, Address: machine.TableBase, Size: reserved, Name: "exchange rows and commands"},
		},
	}
	next := 0 // calls are sorted by tile and slot
	images := make([]program.TileImage, machine.Tiles)
	plans := make([]program.TileProfilePlan, machine.Tiles)
	for tile := range p.Program.Tiles {
		first := next
		for next < len(p.Program.Calls) && p.Program.Calls[next].Tile == int32(tile) {
			next++
		}
		physical := machine.Physical(tile)
		image, steps, err := p.tile(tile, p.Program.Calls[first:next], rows, horizons, reserved)
		if err != nil {
			return nil, err
		}
		image.PhysicalTile = uint32(physical)
		images[physical] = image
		plans[physical] = program.TileProfilePlan{PhysicalTile: uint32(physical), Steps: steps}
	}
	for i := range images {
		if images[i].CommandAddress != 0 {
			pkg.Tiles = append(pkg.Tiles, images[i])
			pkg.ProfileTiles = append(pkg.ProfileTiles, plans[i])
		}
	}
	pkg.DebugSymbols = []program.DebugSymbol{{Name: name, Address: machine.TableBase}}
	return pkg, nil
}

// tile writes one tile's rows and commands.
func (p *Placed) tile(tile int, calls []lower.Call, rows []*exchange.Rows, horizons [][]int32, reserved uint32) (program.TileImage, []profile.Step, error) {
	var data []byte
	at := make([]uint32, len(rows))
	for i, r := range rows {
		words := r.Tile[tile].Words
		if words == nil {
			continue
		}
		at[i] = machine.TableBase + uint32(len(data))
		for _, w := range words {
			data = binary.LittleEndian.AppendUint32(data, w)
		}
		if len(data)%8 != 0 {
			data = binary.LittleEndian.AppendUint32(data, 0)
		}
	}
	image := program.TileImage{EntryPoint: machine.EntryPoint, CommandAddress: machine.TableBase + uint32(len(data))}
	var steps []profile.Step
	emit := func(c program.Command) {
		data = append(data, make([]byte, program.CommandBytes)...)
		program.EncodeCommand(data[len(data)-program.CommandBytes:], c)
	}
	step := func(s profile.Step) {
		s.LocalIndex = uint32(len(steps))
		steps = append(steps, s)
	}
	call := 0
	segment := func(before int32, phase int) {
		for ; call < len(calls) && calls[call].Slot < before; call++ {
			c := &calls[call]
			cmd := program.Command{Kind: program.Call, Kernel: c.Kernel, Label: uint32(c.Operation)}
			for i := range int(c.Count) {
				cmd.Args[i] = p.Address(c.Args[i])
			}
			emit(cmd)
			op := &p.Program.Operations[c.Operation]
			step(profile.Step{Phase: uint32(phase), Operation: op.Name + "/" + op.Kind, Kind: profile.KindCompute, Kernel: c.Kernel.String()})
		}
	}
	for i := range p.Program.Phases {
		ph := &p.Program.Phases[i]
		segment(ph.Slot, i)
		cmd := program.Command{Kind: program.Exchange, Label: uint32(i)}
		row := &rows[i].Tile[tile]
		if row.Words != nil {
			cmd.Args[program.ArgRow] = at[i]
			cmd.Args[program.ArgRowBytes] = uint32(4 * len(row.Words))
			cmd.Args[program.ArgIncomingBase] = row.IncomingBase
			cmd.Args[program.ArgOutgoingBase] = row.OutgoingBase
		}
		emit(cmd)
		op := &p.Program.Operations[ph.Operations[0]]
		step(profile.Step{Phase: uint32(i), Operation: op.Name + "/" + op.Kind, Kind: profile.KindExchange, ExchangeEventCycles: uint32(horizons[i][tile])})
	}
	segment(1<<30, len(p.Program.Phases))
	emit(program.Command{Kind: program.End})
	if uint32(len(data))+machine.FetchGuard > reserved {
		return image, nil, fmt.Errorf("assemble: tile %d (physical %d): %d bytes of rows and commands, %d reserved", tile, machine.Physical(tile), len(data), reserved)
	}
	image.Segments = []program.Segment{{Address: machine.TableBase, MemorySize: uint32(len(data)), Data: data, Flags: program.Read | program.Execute}}
	return image, steps, nil
}

// Files are the artifacts that belong to a package.
type Files struct {
	Parameters []byte
	Inputs     []byte
}

// Bind adds the bindings of parameters, inputs and output to a package and builds
// the files that the first two read. Equal blocks are stored once.
func Bind(pkg *program.Package, p *Placed, g *graph.Graph, weights, inputs map[string]graph.Tensor) (*Files, error) {
	var f Files
	var err error
	if pkg.Weights, f.Parameters, err = bind(p, g.Parameters(), weights, false); err != nil {
		return nil, err
	}
	if pkg.Inputs, f.Inputs, err = bind(p, g.Inputs(), inputs, true); err != nil {
		return nil, err
	}
	pkg.Outputs = []program.Binding{output(p, g.Outputs[0])}
	return &f, nil
}

func bind(p *Placed, values []*graph.Value, data map[string]graph.Tensor, input bool) ([]program.Binding, []byte, error) {
	var file []byte
	var list []program.Binding
	stored := map[[sha256.Size]byte]uint64{}
	of := map[*graph.Value][]*lower.HostBlock{}
	for i := range p.Program.Host {
		h := &p.Program.Host[i]
		if h.Input == input {
			of[h.Value] = append(of[h.Value], h)
		}
	}
	for _, v := range values {
		t, ok := data[v.Name]
		if !ok {
			return nil, nil, fmt.Errorf("assemble: no data for %s %s", v.Op, v.Name)
		}
		b := program.Binding{Name: v.Name, DType: "f16"}
		elements := uint32(0)
		for _, h := range of[v] {
			content := blockBytes(h, t.Data)
			if h.Form.Elem == 1 {
				b.DType = "f143"
			}
			sum := sha256.Sum256(content)
			offset, known := stored[sum]
			if !known {
				offset = uint64(len(file))
				stored[sum] = offset
				file = append(file, content...)
			}
			for _, at := range h.Places {
				b.Slices = append(b.Slices, program.RegionSlice{
					Tile:        uint32(machine.Physical(int(p.Program.Buffers[at.Buffer].Tile))),
					TileAddress: p.Address(at), FileOffset: offset, Size: uint64(len(content)),
				})
			}
			elements += uint32(len(content)) / uint32(h.Form.Elem)
		}
		if len(b.Slices) == 0 {
			return nil, nil, fmt.Errorf("assemble: nothing on the device reads %s %s", v.Op, v.Name)
		}
		b.Shape = []uint32{elements}
		list = append(list, b)
	}
	return list, file, nil
}

// blockBytes is a block's memory as the host delivers it: zeros wherever no
// element belongs, quantised to FP8 codes where the form is one byte wide.
func blockBytes(h *lower.HostBlock, data []uint16) []byte {
	out := make([]byte, h.Block.Bytes(h.Form))
	for r := h.Block.R0; r < h.Block.R1; r++ {
		for c := h.Block.C0; c < h.Block.C1; c++ {
			i := h.Element(r, c)
			if i < 0 {
				continue
			}
			at := h.Block.Offset(h.Form, r, c)
			if h.Form.Elem == 1 {
				out[at] = numeric.F16ToF143(data[i], h.Scale)
			} else {
				binary.LittleEndian.PutUint16(out[at:], data[i])
			}
		}
	}
	return out
}

// output binds the result: the runs of its blocks that are contiguous in the
// logical tensor, too.
func output(p *Placed, v *graph.Value) program.Binding {
	t := p.Program.Output
	b := program.Binding{Name: v.Name, DType: "f16"}
	for _, d := range v.Shape {
		b.Shape = append(b.Shape, uint32(d))
	}
	index := outputIndex(t, v)
	for i := range t.Blocks {
		blk := &t.Blocks[i]
		tile, at := uint32(machine.Physical(int(t.Tiles[i][0]))), p.Address(t.Places[i][0])
		var run program.RegionSlice
		flush := func() {
			if run.Size > 0 {
				b.Slices = append(b.Slices, run)
			}
			run.Size = 0
		}
		for r := blk.R0; r < blk.R1; r++ {
			for c := blk.C0; c < blk.C1; c++ {
				to := index(r, c)
				if to < 0 {
					continue
				}
				address, offset := at+uint32(blk.Offset(t.Form, r, c)), uint64(to)*2
				if run.Size > 0 && (run.TileAddress+uint32(run.Size) != address || run.FileOffset+run.Size != offset) {
					flush()
				}
				if run.Size == 0 {
					run = program.RegionSlice{Tile: tile, TileAddress: address, FileOffset: offset}
				}
				run.Size += 2
			}
		}
		flush()
	}
	return b
}

// outputIndex maps a row and column of the result's matrix to the element of the
// logical tensor, -1 for padding: rows of tokens, or heads side by side that the
// graph keeps apart.
func outputIndex(t *lower.Tensor, v *graph.Value) func(r, c int32) int {
	width := v.Width()
	if len(v.Shape) == 4 {
		heads, tokens := v.Shape[1], v.Shape[2]
		return func(r, c int32) int {
			if c = t.Columns[c]; c < 0 {
				return -1
			}
			head, w := int(c)/width, int(c)%width
			return ((int(r)/tokens*heads+head)*tokens+int(r)%tokens)*width + w
		}
	}
	return func(r, c int32) int {
		if t.Columns != nil {
			c = t.Columns[c]
		}
		if c < 0 || int(c) >= width {
			return -1
		}
		return int(r)*width + int(c)
	}
}
