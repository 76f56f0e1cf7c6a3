package device_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"ipufarm/protocol/machine"
	"ipufarm/protocol/program"
	"ipufarm/runner/device"
)

// TestKernelFaults calls kernels with one thing wrong. Each case starts from a
// call that is accepted.
func TestKernelFaults(t *testing.T) {
	gemm := []uint32{standard, inter2, inter, 4, 2, 1, 0, 0}
	reduce := []uint32{standard, standard2, 64, 2, inter, 16, program.ReduceAddA, inter2, 0, 0}
	add := []uint32{standard, standard2, inter, 16}
	addRows := []uint32{standard, standard2, inter, 2, 16}
	norm := []uint32{standard, standard2, standard2 + 64, inter, 2, 16, 0, 0, 16}
	addNorm := []uint32{standard, standard + 64, inter2, standard2, standard2 + 64, inter, 2, 16, 0, 0, 16}
	gelu := []uint32{standard, inter, 16, 0, 0}
	biasGELU := []uint32{standard, standard2, inter, 2, 16, 0, 0}
	softmax := []uint32{standard, inter, inter2, 2, 10, 16, 0}
	normalise := []uint32{standard, standard2, inter, 2, 16, 0, 0}
	cast := []uint32{standard, inter, 16, 0}
	castPanels := []uint32{standard, inter, 2, 16, 0}
	castLeft := []uint32{standard, inter, 2, 20, 20, 0}
	packLeft := []uint32{standard, inter, 2, 20, 20}
	packRight := []uint32{standard, inter, 2, 20, 0, 20}
	unpack := []uint32{standard, inter, 2, 20, 20}
	copied := []uint32{standard, inter, 64}
	strided := []uint32{standard, inter, 2, 4, 16, 16}
	fill := []uint32{inter, 64}
	const end = machine.MemoryEnd

	for _, c := range []struct {
		name string
		k    program.Kernel
		args []uint32
		arg  int
		v    uint32
		rule device.Rule
		says string
	}{
		{"gemm left alignment", program.KernelGEMM, gemm, 0, standard + 16, device.RuleAlignment, "left 0x6C010 is not a multiple of 32"},
		{"gemm right alignment", program.KernelGEMM, gemm, 1, inter2 + 8, device.RuleAlignment, "right"},
		{"gemm out alignment", program.KernelGEMM, gemm, 2, inter + 16, device.RuleAlignment, "out"},
		{"gemm out class", program.KernelGEMM, gemm, 2, standard2, device.RuleClass, "interleaved"},
		{"gemm right class", program.KernelGEMM, gemm, 1, standard2, device.RuleClass, "right 0x70000"},
		{"gemm shared element", program.KernelGEMM, gemm, 0, inter + 0x400, device.RuleElement, "left"},
		{"gemm left tail", program.KernelGEMM, gemm, 0, end - 256, device.RuleRange, "left"},
		{"gemm no rows", program.KernelGEMM, gemm, 3, 0, device.RuleArgument, "rows is 0"},
		{"gemm too many rows", program.KernelGEMM, gemm, 3, 1 << 31, device.RuleArgument, "rows"},
		{"gemm flags", program.KernelGEMM, gemm, 6, 8, device.RuleArgument, "flags 0x8"},
		{"gemm scale of F16", program.KernelGEMM, gemm, 7, 1, device.RuleArgument, "scale 1"},
		{"gemm right over out", program.KernelGEMM, gemm, 1, inter + 32, device.RuleOverlap, "out"},
		{"gemm outside", program.KernelGEMM, gemm, 2, 0xFFFFFFE0, device.RuleRange, "out"},
		{"gemm below memory", program.KernelGEMM, gemm, 0, 0x40000, device.RuleRange, "left"},
		{"reduce n", program.KernelReduce, reduce, 5, 12, device.RuleArgument, "multiple of 8"},
		{"reduce nothing", program.KernelReduce, []uint32{0, 0, 0, 0, inter, 16, 0, 0, 0, 0}, 0, 0, device.RuleArgument, "neither"},
		{"reduce stride alignment", program.KernelReduce, reduce, 2, 36, device.RuleAlignment, "36 bytes"},
		{"reduce stride size", program.KernelReduce, reduce, 2, 16, device.RuleArgument, "each has 32"},
		{"reduce out over remote", program.KernelReduce, reduce, 4, standard2 + 64, device.RuleOverlap, "remote"},
		{"reduce out shifted", program.KernelReduce, reduce, 4, standard + 8, device.RuleOverlap, "local"},
		{"reduce flags", program.KernelReduce, reduce, 6, 16, device.RuleArgument, "flags"},
		{"reduce scale", program.KernelReduce, []uint32{standard, 0, 0, 0, inter, 16, program.ReduceF8, 0, 0, 32}, 9, 32, device.RuleArgument, "scale 32"},
		{"reduce a", program.KernelReduce, reduce, 7, 4, device.RuleAlignment, "a 0x4"},
		{"add alignment", program.KernelAdd, add, 1, standard2 + 4, device.RuleAlignment, "b 0x70004"},
		{"add overlap", program.KernelAdd, add, 2, standard2 - 8, device.RuleOverlap, "b"},
		{"add count", program.KernelAdd, add, 3, 0, device.RuleArgument, "n is 0"},
		{"add-rows row alignment", program.KernelAddRows, addRows, 4, 18, device.RuleAlignment, "width of 18"},
		{"add-rows over row", program.KernelAddRows, addRows, 2, standard2, device.RuleOverlap, "row"},
		{"layernorm stride", program.KernelLayerNorm, norm, 8, 15, device.RuleArgument, "outStride is 15"},
		{"layernorm in place padded", program.KernelLayerNorm, []uint32{standard, standard2, standard2 + 64, standard, 2, 16, 0, 0, 32}, 8, 32, device.RuleOverlap, "in"},
		{"layernorm F8 stride", program.KernelLayerNorm, []uint32{standard, standard2, standard2 + 64, inter, 2, 16, program.NormF8, 0, 20}, 8, 20, device.RuleAlignment, "outStride of 20"},
		{"layernorm gamma", program.KernelLayerNorm, norm, 1, standard2 + 2, device.RuleAlignment, "gamma"},
		{"layernorm scale", program.KernelLayerNorm, []uint32{standard, standard2, standard2 + 64, inter, 2, 16, program.NormF8, 0xFFFFFFE0, 16}, 7, 0xFFFFFFE0, device.RuleArgument, "scale -32"},
		{"add-layernorm sum over out", program.KernelAddLayerNorm, addNorm, 2, inter + 32, device.RuleOverlap, "out"},
		{"add-layernorm out over gamma", program.KernelAddLayerNorm, addNorm, 5, standard2, device.RuleOverlap, "gamma"},
		{"gelu F8 in place", program.KernelGELU, []uint32{standard, standard, 16, program.PointwiseF8, 0}, 3, program.PointwiseF8, device.RuleOverlap, "in"},
		{"gelu flags", program.KernelGELU, gelu, 3, 2, device.RuleArgument, "flags"},
		{"bias-gelu bias", program.KernelBiasGELU, biasGELU, 1, end - 16, device.RuleRange, "bias"},
		{"bias-gelu F8 rows", program.KernelBiasGELU, []uint32{standard, standard2, inter, 2, 20, program.PointwiseF8, 0}, 4, 20, device.RuleAlignment, "width of 20"},
		{"softmax padding", program.KernelSoftmax, softmax, 5, 24, device.RuleArgument, "multiple of 16"},
		{"softmax keys", program.KernelSoftmax, softmax, 4, 17, device.RuleArgument, "17 keys in rows of 16"},
		{"softmax sums", program.KernelSoftmax, softmax, 2, inter + 4, device.RuleAlignment, "sums"},
		{"softmax sums over out", program.KernelSoftmax, softmax, 2, inter, device.RuleOverlap, "out"},
		{"normalise panels", program.KernelNormalise, []uint32{standard, standard2, inter, 2, 20, program.NormalisePanels, 0}, 4, 20, device.RuleArgument, "cols is 20"},
		{"normalise rows", program.KernelNormalise, normalise, 4, 18, device.RuleAlignment, "cols of 18"},
		{"cast in place", program.KernelCast, cast, 1, standard, device.RuleOverlap, "in"},
		{"cast n", program.KernelCast, cast, 2, 4, device.RuleArgument, "multiple of 8"},
		{"cast-panels cols", program.KernelCastPanels, castPanels, 3, 8, device.RuleArgument, "multiple of 16"},
		{"cast-left stride", program.KernelCastLeft, castLeft, 4, 16, device.RuleArgument, "inStride is 16"},
		{"pack-left rows", program.KernelPackLeft, packLeft, 4, 21, device.RuleAlignment, "inStride of 21"},
		{"pack-left overlap", program.KernelPackLeft, packLeft, 1, standard, device.RuleOverlap, "in"},
		{"pack-right flags", program.KernelPackRight, packRight, 4, 4, device.RuleArgument, "flags"},
		{"pack-right stride", program.KernelPackRight, packRight, 5, 0, device.RuleArgument, "inStride is 0"},
		{"unpack stride", program.KernelUnpack, unpack, 4, 22, device.RuleAlignment, "outStride of 22"},
		{"copy bytes", program.KernelCopy, copied, 2, 60, device.RuleArgument, "multiple of 8"},
		{"copy overlap", program.KernelCopy, copied, 1, standard + 32, device.RuleOverlap, "source"},
		{"copy onto itself", program.KernelCopy, copied, 1, standard, device.RuleOverlap, "source"},
		{"copy-strided alignment", program.KernelCopyStrided, strided, 0, standard + 2, device.RuleAlignment, "multiple of 4"},
		{"copy-strided source stride", program.KernelCopyStrided, strided, 4, 18, device.RuleAlignment, "strides 18 and 16"},
		{"copy-strided rows over each other", program.KernelCopyStrided, strided, 5, 12, device.RuleArgument, "rows of 4 words"},
		{"copy-strided overlap", program.KernelCopyStrided, []uint32{standard, standard + 8, 4, 2, 16, 8}, 1, standard + 8, device.RuleOverlap, "source"},
		{"fill bytes", program.KernelFill, fill, 1, 4, device.RuleArgument, "multiple of 8"},
		{"fill outside", program.KernelFill, fill, 0, end - 32, device.RuleRange, "destination"},

		// Code: the runtime, and the command stream with its element.
		{"fill runtime", program.KernelFill, fill, 0, machine.SupportBase, device.RuleCode, "code"},
		{"fill entry stub", program.KernelFill, fill, 0, machine.MemoryBase, device.RuleCode, "code"},
		{"fill commands", program.KernelFill, fill, 0, streamAt, device.RuleCode, "code"},
		{"fill beside commands", program.KernelFill, fill, 0, streamAt + 0x3000, device.RuleFetch, "element 7"},
		{"add from runtime", program.KernelAdd, add, 0, machine.TableBase - 32, device.RuleFetch, "element 5"},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := append([]uint32(nil), c.args...)
			args[c.arg] = c.v
			j := newJob()
			j.tile(64).call(program.KernelFill, inter3, 8).call(c.k, args...)
			f := j.mustFault(t, c.rule, c.says, "tile 64 (logical 2)", "record 1 ("+c.k.String())
			if f.Tile != 64 || f.Logical != 2 || f.Record != 1 || f.Phase != -1 || f.Event != -1 {
				t.Errorf("fault %+v", f)
			}
		})
	}
	// The starting points are accepted (all memory is poison, which is no fault).
	for k, args := range map[program.Kernel][]uint32{
		program.KernelGEMM: gemm, program.KernelReduce: reduce, program.KernelAdd: add, program.KernelAddRows: addRows,
		program.KernelLayerNorm: norm, program.KernelAddLayerNorm: addNorm, program.KernelGELU: gelu, program.KernelBiasGELU: biasGELU,
		program.KernelSoftmax: softmax, program.KernelNormalise: normalise, program.KernelCast: cast, program.KernelCastPanels: castPanels,
		program.KernelCastLeft: castLeft, program.KernelPackLeft: packLeft, program.KernelPackRight: packRight, program.KernelUnpack: unpack,
		program.KernelCopy: copied, program.KernelCopyStrided: strided, program.KernelFill: fill,
	} {
		j := newJob()
		j.tile(64).call(k, args...)
		j.mustRun(t)
	}
}

func TestKernelsMayNotWriteRows(t *testing.T) {
	j := transfer(0, 53, 4)
	j.tile(0).call(program.KernelFill, rowsAt, 8)
	j.mustFault(t, device.RuleCode, "0x64000")
}

func TestCommandFaults(t *testing.T) {
	stream := func(records ...program.Command) *program.Package {
		j := newJob()
		m := j.tile(0)
		for _, r := range records {
			m.record(r)
		}
		return j.build()
	}
	t.Run("no end", func(t *testing.T) {
		p := stream()
		s := &p.Tiles[0].Segments[0]
		s.Address, p.Tiles[0].CommandAddress = machine.Region0End-program.CommandBytes, machine.Region0End-program.CommandBytes
		program.EncodeCommand(s.Data, program.Command{Kind: program.Call, Kernel: program.KernelFill})
		wantFault(t, p, device.RuleCommand, "record 1", "no end record")
	})
	t.Run("unknown kind", func(t *testing.T) {
		wantFault(t, stream(program.Command{Kind: 7}), device.RuleCommand, "record 0", "unknown kind 7")
	})
	t.Run("unknown kernel", func(t *testing.T) {
		wantFault(t, stream(program.Command{Kind: program.Call, Kernel: program.KernelCount}), device.RuleCommand)
	})
	t.Run("poison", func(t *testing.T) {
		p := stream()
		p.Tiles[0].Segments = nil
		wantFault(t, p, device.RuleCommand, "record 0")
	})
	t.Run("stream in region 1", func(t *testing.T) {
		p := stream()
		p.Tiles[0].CommandAddress = inter
		wantFault(t, p, device.RuleCommand, "starts outside")
	})
	t.Run("stream unaligned", func(t *testing.T) {
		p := stream()
		p.Tiles[0].CommandAddress = streamAt + 4
		wantFault(t, p, device.RuleAlignment)
	})
	for name, args := range map[string][2]uint32{"row unaligned": {rowsAt + 4, 8}, "row without bytes": {rowsAt, 0}, "row of half words": {rowsAt, 6}} {
		t.Run(name, func(t *testing.T) {
			c := program.Command{Kind: program.Exchange, Label: 4}
			c.Args[0], c.Args[1] = args[0], args[1]
			wantFault(t, stream(c), device.RuleAlignment, "phase 4", "record 0")
		})
	}
	t.Run("row in region 1", func(t *testing.T) {
		c := program.Command{Kind: program.Exchange}
		c.Args[0], c.Args[1] = inter, 8
		wantFault(t, stream(c), device.RuleRange)
	})
	// Records after End are never read.
	if _, err := start(stream(program.Command{}, program.Command{Kind: 9}), device.Options{}); err != nil {
		t.Error(err)
	}
}

func TestPhaseMismatch(t *testing.T) {
	j := newJob()
	j.tile(0).exchange(3)
	j.tile(1).exchange(4)
	j.mustFault(t, device.RulePhase, "tile 1 (logical 90)", "exchange 4", "tile 0 (logical 0) is at exchange 3")
	j = newJob()
	j.tile(0).exchange(3).exchange(4)
	j.tile(1).exchange(3)
	j.mustFault(t, device.RulePhase, "its end", "exchange 4")
}

func TestLoadFaults(t *testing.T) {
	valid := func() *program.Package {
		j := newJob()
		j.tile(3).put(inter, pattern(1, 16))
		j.tile(4)
		return j.build()
	}
	for name, c := range map[string]struct {
		change func(p *program.Package)
		rule   device.Rule
		says   string
	}{
		"target":           {func(p *program.Package) { p.Target = "ipu2" }, device.RulePackage, `"ipu2"`},
		"memory":           {func(p *program.Package) { p.TileMemorySize = 1 << 20 }, device.RulePackage, "1048576"},
		"no tiles":         {func(p *program.Package) { p.Tiles = nil }, device.RulePackage, "no tile images"},
		"tile id":          {func(p *program.Package) { p.Tiles[1].PhysicalTile = 1472 }, device.RulePackage, "tile 1472"},
		"tile twice":       {func(p *program.Package) { p.Tiles[1].PhysicalTile = 3 }, device.RulePackage, "two images"},
		"segment below":    {func(p *program.Package) { p.Tiles[0].Segments[1].Address = 0x4BFF0 }, device.RulePackage, "loader"},
		"segment above":    {func(p *program.Package) { p.Tiles[0].Segments[1].Address = machine.LoadEnd - 60 }, device.RulePackage, "loader"},
		"segment wraps":    {func(p *program.Package) { p.Tiles[0].Segments[1].Address = 0xFFFFFFF0 }, device.RulePackage, "loader"},
		"segment data":     {func(p *program.Package) { p.Tiles[0].Segments[1].MemorySize = 8 }, device.RulePackage, "64 bytes of data for 8"},
		"segments overlap": {func(p *program.Package) { p.Tiles[0].Segments[1].Address = streamAt - 32 }, device.RulePackage, "overlap"},
		"slice tile": {func(p *program.Package) {
			p.Inputs = []program.Binding{{Name: "x", Slices: []program.RegionSlice{{Tile: 5, TileAddress: inter, Size: 8}}}}
		}, device.RuleHost, `input "x"`},
		"slice range": {func(p *program.Package) {
			p.Inputs = []program.Binding{{Name: "x", Slices: []program.RegionSlice{{Tile: 3, TileAddress: inter, Size: 1 << 40}}}}
		}, device.RuleHost, "outside"},
		"slice alignment": {func(p *program.Package) {
			p.Outputs = []program.Binding{{Name: "y", Slices: []program.RegionSlice{{Tile: 3, TileAddress: inter + 2, Size: 8}}}}
		}, device.RuleHost, "32-bit words"},
		"slice offset": {func(p *program.Package) {
			p.Outputs = []program.Binding{{Name: "y", Slices: []program.RegionSlice{{Tile: 3, TileAddress: inter, Size: 8, FileOffset: 1<<64 - 8}}}}
		}, device.RuleHost, "at most"},
		"slice on code": {func(p *program.Package) {
			p.Weights = []program.Binding{{Name: "w", Slices: []program.RegionSlice{{Tile: 3, TileAddress: streamAt, Size: 8}}}}
		}, device.RuleHost, "touches code"},
	} {
		t.Run(name, func(t *testing.T) {
			p := valid()
			c.change(p)
			wantFault(t, p, c.rule, c.says)
		})
	}
	if _, err := start(valid(), device.Options{}); err != nil {
		t.Error(err)
	}
}

func TestHostFiles(t *testing.T) {
	j := newJob()
	j.tile(3).call(program.KernelAdd, standard, standard2, inter, 8)
	p := j.build()
	slice := func(address uint32, offset, size uint64) program.RegionSlice {
		return program.RegionSlice{Tile: 3, TileAddress: address, FileOffset: offset, Size: size}
	}
	p.Weights = []program.Binding{{Name: "w", Slices: []program.RegionSlice{slice(standard, 4, 16)}}}
	p.Inputs = []program.Binding{{Name: "x", Slices: []program.RegionSlice{slice(standard2, 0, 8), slice(standard2+8, 0, 8)}}}
	p.Outputs = []program.Binding{{Name: "y", Slices: []program.RegionSlice{slice(inter+8, 0, 8), slice(inter, 8, 8)}}}
	ctx := context.Background()
	d := device.New(device.Options{})
	if _, err := d.Run(ctx, nil); err == nil {
		t.Error("ran without a package")
	}
	if err := d.Initialize(ctx, nil); err == nil {
		t.Error("initialised without a package")
	}
	if err := d.Load(p); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Run(ctx, make([]byte, 8)); err == nil || !strings.Contains(err.Error(), "parameters") {
		t.Errorf("run before parameters: %v", err)
	}
	weights := append([]byte{9, 9, 9, 9}, halves(1, 2, 3, 4, 5, 6, 7, 8)...)
	var f *device.Fault
	if err := d.Initialize(ctx, weights[:19]); !errors.As(err, &f) || f.Rule != device.RuleHost {
		t.Errorf("short parameters: %v", err)
	}
	if err := d.Initialize(ctx, weights); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Run(ctx, make([]byte, 9)); !errors.As(err, &f) || !strings.Contains(f.Error(), "input file has 9 bytes") {
		t.Errorf("long inputs: %v", err)
	}
	for range 2 { // memory stays: a second run needs no second initialize
		r, err := d.Run(ctx, halves(10, 20, 30, 40))
		if err != nil {
			t.Fatal(err)
		}
		if want := halves(15, 26, 37, 48, 11, 22, 33, 44); !bytes.Equal(r.Outputs, want) {
			t.Errorf("output % x, want % x", r.Outputs, want)
		}
	}
	// A failed load leaves nothing behind.
	p.Target = ""
	if err := d.Load(p); err == nil {
		t.Fatal("loaded")
	}
	if _, err := d.Run(ctx, make([]byte, 8)); err == nil {
		t.Error("ran after a failed load")
	}
}

// TestRunStartsAtItsCall: the run call's command is an offset in the stream.
func TestRunStartsAtItsCall(t *testing.T) {
	j := newJob()
	j.tile(0).call(program.KernelFill, inter, 8).call(program.KernelFill, inter+8, 8)
	j.out(0, inter, 16)
	p := j.build()
	p.HostExchange.Calls = []program.HostCall{{Name: "initialize"}, {Name: "run", Command: program.CommandBytes}}
	r, err := start(p, device.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if x := unhalf(r.Outputs); x[0] == x[0] || x[4] != 0 {
		t.Errorf("memory is %v, only the second fill should have run", x)
	}
	p.HostExchange.Calls[1].Command = 8
	wantFault(t, p, device.RuleAlignment)
	p.HostExchange.Calls[1].Command = 0xFFFFFFC0
	wantFault(t, p, device.RuleCommand)
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	d := device.New(device.Options{Workers: 2})
	if err := d.Load(transfer(0, 53, 4).build()); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Run(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if _, err := d.Run(context.Background(), nil); err != nil {
		t.Errorf("after a cancelled run: %v", err)
	}
}
