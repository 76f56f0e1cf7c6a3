package kernel

import (
	"errors"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"

	"ipufarm/protocol/machine"
	"ipufarm/protocol/program"
)

// allowed is the largest error against a published figure, in percent.
func allowed(kernel string) float64 {
	switch kernel {
	case "gemm":
		return 1
	case "softmax":
		return 17
	}
	return 2
}

// Every law is compared with every published figure of the kernel that it models.
func TestFigures(t *testing.T) {
	data, err := os.ReadFile("testdata/figures.txt")
	if err != nil {
		t.Fatal(err)
	}
	judged, skipped := map[string]int{}, 0
	for n, line := range strings.Split(string(data), "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		fields := strings.Split(line, " | ")
		if fields[0] == "skip" {
			if len(fields) != 7 || fields[6] == "" {
				t.Errorf("line %d: a skipped figure needs a reason", n+1)
			}
			skipped++
			continue
		}
		if len(fields) != 5 {
			t.Fatalf("line %d: %d fields, want 5", n+1, len(fields))
		}
		row, ok := Named(fields[0])
		if !ok {
			t.Fatalf("line %d: no kernel %q", n+1, fields[0])
		}
		g, whole := parseGeometry(t, fields[1])
		if err := row.Check(g); err != nil {
			t.Fatalf("line %d: %v", n+1, err)
		}
		measured, err := strconv.Atoi(fields[2])
		if err != nil {
			t.Fatalf("line %d: %v", n+1, err)
		}
		cycles := row.Cycles(g)
		if whole {
			cycles = softmaxWhole(g)
		}
		e := 100 * float64(cycles-measured) / float64(measured)
		t.Logf("%-13s %-46s measured %6d  modelled %6d  %+7.2f %%  %s, %s", fields[0], fields[1], measured, cycles, e, fields[4], fields[3])
		if math.Abs(e) > allowed(fields[0]) {
			t.Errorf("line %d: error %+.2f %%, allowed %g %%", n+1, e, allowed(fields[0]))
		}
		judged[fields[0]]++
	}
	t.Logf("%d figures skipped, reasons in testdata/figures.txt", skipped)
	for _, k := range []string{"gemm", "reduce", "add", "layernorm", "add-layernorm", "gelu", "bias-gelu", "softmax", "normalise", "cast", "cast-panels", "cast-left", "fill"} {
		if judged[k] == 0 {
			t.Errorf("no figure judges %s", k)
		}
	}
}

func parseGeometry(t *testing.T, text string) (g Geometry, whole bool) {
	for _, word := range strings.Fields(text) {
		name, value, _ := strings.Cut(word, "=")
		switch name {
		case "precision":
			if value == "f8" {
				g.Precision = F8
			}
		case "packed":
			g.Packed = true
		case "standard":
			g.StandardWeights = true
		case "f8-out":
			g.F8Out = true
		case "whole":
			whole = true
		default:
			v, err := strconv.Atoi(value)
			if err != nil {
				t.Fatalf("%q: %v", word, err)
			}
			known := false
			for d := range Dims {
				if d.String() == name {
					*g.At(d), known = v, true
				}
			}
			if !known {
				t.Fatalf("%q: no such length", word)
			}
		}
	}
	return g, whole
}

// smallest is the least geometry that a kernel accepts.
func smallest(r *Row) Geometry {
	var g Geometry
	for _, l := range r.Limits {
		*g.At(l.Dim) = l.Multiple
	}
	return g
}

// Every kernel of the command set has a complete row, and the code of all fits
// the memory that is reserved for it.
func TestTableIsComplete(t *testing.T) {
	names, code := map[string]bool{}, 0
	for k := program.KernelNone + 1; k < program.KernelCount; k++ {
		r := &table[k]
		if r.Name == "" || r.cycles == nil || len(r.Forms) == 0 || len(r.Limits) == 0 || len(r.Operands.Operands) == 0 || names[r.Name] {
			t.Errorf("kernel %d (%q) has no complete row of its own", k, r.Name)
			continue
		}
		names[r.Name] = true
		for _, f := range r.Forms {
			if f.Operands == "" || f.Formula == "" || f.Source == "" {
				t.Errorf("%s: form %+v has an empty field", r.Name, f)
			}
		}
		if CodeBytes(k) <= 0 || CodeBytes(k)%8 != 0 {
			t.Errorf("%s: %d code bytes", r.Name, CodeBytes(k))
		}
		code += CodeBytes(k)
		g := smallest(r)
		if err := Check(k, g); err != nil {
			t.Errorf("%s: smallest geometry: %v", r.Name, err)
		}
		if c := Of(k).Cycles(g); c <= 0 || c != Cycles(k, g) {
			t.Errorf("%s: %d cycles", r.Name, c)
		}
	}
	if code >= machine.SupportSize {
		t.Errorf("the kernels take %d bytes of code, %d are reserved", code, machine.SupportSize)
	}
	for _, k := range []program.Kernel{program.KernelNone, program.KernelCount, 999} {
		if Of(k) != nil || Cycles(k, Geometry{}) != 0 || CodeBytes(k) != 0 || Rules(k).Operands != nil || Check(k, Geometry{}) == nil {
			t.Errorf("%d is taken for a kernel", k)
		}
	}
}

// More work never takes less time.
func TestCyclesGrow(t *testing.T) {
	for i := range All() {
		r := &All()[i]
		for _, l := range r.Limits {
			g := smallest(r)
			for _, other := range r.Limits {
				*g.At(other.Dim) = 16 * other.Multiple
			}
			if l.Dim == Padded {
				*g.At(Keys) = 1
			}
			last := 0
			for v := l.Multiple; v <= 300*l.Multiple; v += l.Multiple {
				*g.At(l.Dim) = v
				if l.Dim == Keys {
					g.Padded = 0
				}
				c := r.Cycles(g)
				// A rest of pairs takes GELU longer than a full block, and masked keys
				// take softmax longer than keys.
				if c < last && r.Name != "gelu" && r.Name != "softmax" {
					t.Errorf("%s: %s %d takes %d cycles, one step less %d", r.Name, l.Dim, v, c, last)
					break
				}
				last = c
			}
		}
	}
}

// A fused form costs its parts less all but the largest fixed cost.
func TestFusedReduction(t *testing.T) {
	g := Geometry{Elements: 960, Partials: 3}
	plain := Cycles(program.KernelReduce, g)
	if plain != 282+6*20*15 {
		t.Fatalf("plain reduction: %d cycles", plain)
	}
	for _, c := range []struct {
		change func(*Geometry)
		want   int
	}{
		{func(g *Geometry) { g.AddA = true }, 504 - 282 + 18*40},
		{func(g *Geometry) { g.AddA, g.AddB = true, true }, 504 - 282 + 2*18*40},
		{func(g *Geometry) { g.GELU = true }, 330 - 282 + 462*10},
		{func(g *Geometry) { g.F8Out = true }, 12 * 20},
		{func(g *Geometry) { g.AddA, g.GELU, g.F8Out = true, true, true }, 504 - 282 + 18*40 + 462*10 + 12*20},
	} {
		fused := g
		c.change(&fused)
		if got := Cycles(program.KernelReduce, fused) - plain; got != c.want {
			t.Errorf("%+v: %d cycles more, want %d", fused, got, c.want)
		}
	}
}

// The two packed figures whose rows do not divide by the workers pin how rows are dealt.
func TestPackedRows(t *testing.T) {
	for rows, want := range map[int]int{48: 24*8 + 184, 96: 24*16 + 184, 128: 24*21 + 3*184, 1: 24 + 184, 7: 2*24 + 184} {
		if got := packedRows(rows); got != want {
			t.Errorf("%d rows: %d cycles, want %d", rows, got, want)
		}
	}
}

func TestCheckNamesTheField(t *testing.T) {
	for _, c := range []struct {
		kernel program.Kernel
		g      Geometry
		want   string
	}{
		{program.KernelGEMM, Geometry{Inner: 16, Cols: 16}, "kernel gemm: rows 0; accepted: 1 to 319488"},
		{program.KernelGEMM, Geometry{Rows: 1, Inner: -4, Cols: 16}, "inner -4"},
		{program.KernelGEMM, Geometry{Rows: 1, Inner: 16, Cols: 1 << 40}, "cols 1099511627776"},
		{program.KernelGEMM, Geometry{Rows: 1, Inner: 16, Cols: 16, Keys: 3}, "keys 3; accepted: not used"},
		{program.KernelReduce, Geometry{Elements: 12, Partials: 2}, "elements 12; accepted: multiples of 8, 8 to 319488"},
		{program.KernelAdd, Geometry{Elements: 8, F8Out: true}, "f8-out set; accepted: not used"},
		{program.KernelSoftmax, Geometry{Rows: 1, Keys: 65, Padded: 64}, "padded 64; accepted: at least keys (65)"},
		{program.KernelSoftmax, Geometry{Rows: 1, Keys: 65, Padded: 88}, "padded 88; accepted: multiples of 16"},
		{program.KernelNormalise, Geometry{Rows: 1, Cols: 72, Panels: true}, "cols 72; accepted: multiples of 16 in panels"},
		{program.KernelLayerNorm, Geometry{Rows: 1, Cols: 100}, "cols 100; accepted: multiples of 8"},
		{program.KernelFill, Geometry{Bytes: 12}, "bytes 12; accepted: multiples of 8, 8 to 638976"},
	} {
		err := Check(c.kernel, c.g)
		var g *GeometryError
		if !errors.As(err, &g) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: got %v, want %q", c.g, err, c.want)
		}
	}
}

// The arguments of every kernel are read where protocol/program says they are.
func TestFromCommand(t *testing.T) {
	const address = 0x80000
	for _, c := range []struct {
		kernel program.Kernel
		args   []uint32
		want   Geometry
	}{
		{program.KernelGEMM, []uint32{address, address, address, 244, 4, 4, program.GEMMF8, 8}, Geometry{Rows: 244, Inner: 128, Cols: 64, Precision: F8}},
		{program.KernelGEMM, []uint32{address, address, address, 48, 15, 4, program.GEMMPacked | program.GEMMStandardWeights, 0}, Geometry{Rows: 48, Inner: 240, Cols: 64, Packed: true, StandardWeights: true}},
		{program.KernelReduce, []uint32{address, address, 64, 5, address, 96, program.ReduceAddA | program.ReduceGELU}, Geometry{Elements: 96, Partials: 6, AddA: true, GELU: true}},
		{program.KernelReduce, []uint32{0, address, 64, 5, address, 96, program.ReduceAddB | program.ReduceF8}, Geometry{Elements: 96, Partials: 5, AddB: true, F8Out: true}},
		{program.KernelAdd, []uint32{address, address, address, 24}, Geometry{Elements: 24}},
		{program.KernelAddRows, []uint32{address, address, address, 3, 16}, Geometry{Rows: 3, Cols: 16}},
		{program.KernelLayerNorm, []uint32{1, 1, 1, 1, 3, 144, program.NormF8, 0, 160}, Geometry{Rows: 3, Cols: 144, F8Out: true}},
		{program.KernelAddLayerNorm, []uint32{1, 1, 1, 1, 1, 1, 3, 144, 0, 0, 144}, Geometry{Rows: 3, Cols: 144}},
		{program.KernelGELU, []uint32{1, 1, 96, program.PointwiseF8}, Geometry{Elements: 96, F8Out: true}},
		{program.KernelBiasGELU, []uint32{1, 1, 1, 2, 32, program.PointwiseF8}, Geometry{Rows: 2, Cols: 32, F8Out: true}},
		{program.KernelSoftmax, []uint32{1, 1, 1, 2, 65, 80, 0}, Geometry{Rows: 2, Keys: 65, Padded: 80}},
		{program.KernelNormalise, []uint32{1, 1, 1, 2, 80, program.NormalisePanels | program.PointwiseF8}, Geometry{Rows: 2, Cols: 80, Panels: true, F8Out: true}},
		{program.KernelCast, []uint32{1, 1, 96}, Geometry{Elements: 96}},
		{program.KernelCastPanels, []uint32{1, 1, 5, 48}, Geometry{Rows: 5, Cols: 48}},
		{program.KernelCastLeft, []uint32{1, 1, 5, 48, 48}, Geometry{Rows: 5, Cols: 48}},
		{program.KernelPackLeft, []uint32{1, 1, 5, 48, 48}, Geometry{Rows: 5, Cols: 48}},
		{program.KernelPackRight, []uint32{1, 1, 48, 80, program.PackFromPanels, 0}, Geometry{Rows: 48, Cols: 80, Panels: true}},
		{program.KernelUnpack, []uint32{1, 1, 5, 48, 48}, Geometry{Rows: 5, Cols: 48}},
		{program.KernelCopy, []uint32{1, 1, 64}, Geometry{Bytes: 64}},
		{program.KernelCopyStrided, []uint32{1, 1, 7, 3, 12, 24}, Geometry{Rows: 7, Words: 3}},
		{program.KernelFill, []uint32{1, 64}, Geometry{Bytes: 64}},
	} {
		cmd := program.Command{Kind: program.Call, Kernel: c.kernel}
		copy(cmd.Args[:], c.args)
		got, err := FromCommand(&cmd)
		if err != nil || got != c.want {
			t.Errorf("%s: got %+v, %v\nwant %+v", table[c.kernel].Name, got, err, c.want)
		}
		if int(CommandCycles(&cmd)) != Cycles(c.kernel, c.want) {
			t.Errorf("%s: %d cycles, want %d", table[c.kernel].Name, CommandCycles(&cmd), Cycles(c.kernel, c.want))
		}
	}
	for _, cmd := range []program.Command{{Kind: program.Exchange}, {Kind: program.Call}, {Kind: program.Call, Kernel: 999}, {Kind: program.Call, Kernel: program.KernelGEMM}} {
		if _, err := FromCommand(&cmd); err == nil {
			t.Errorf("%+v is accepted", cmd)
		}
	}
	if c := CommandCycles(&program.Command{Kind: program.Exchange}); c != 0 {
		t.Errorf("an exchange costs %d kernel cycles", c)
	}
}

// Whatever a record holds, reading it does not panic.
func FuzzFromCommand(f *testing.F) {
	f.Add(uint16(1), uint32(244), uint32(4), uint32(1))
	f.Add(uint16(2), uint32(0), uint32(math.MaxUint32), uint32(15))
	f.Add(uint16(999), uint32(8), uint32(8), uint32(8))
	f.Fuzz(func(t *testing.T, k uint16, a, b, c uint32) {
		cmd := program.Command{Kind: program.Call, Kernel: program.Kernel(k)}
		for i := range cmd.Args {
			cmd.Args[i] = [...]uint32{a, b, c}[i%3]
		}
		if _, err := FromCommand(&cmd); err == nil && CommandCycles(&cmd) <= 0 {
			t.Errorf("%+v costs %d cycles", cmd, CommandCycles(&cmd))
		}
	})
}

// The demands on operands are those of protocol/program.
func TestRules(t *testing.T) {
	gemm := Rules(program.KernelGEMM)
	right := &gemm.Operands[1]
	if gemm.Operands[0].Tail != 16 || gemm.Operands[0].Align != 32 || !right.Interleaved(Geometry{}) || right.Interleaved(Geometry{StandardWeights: true}) || !gemm.Operands[2].Interleaved(Geometry{StandardWeights: true}) {
		t.Errorf("gemm: %+v", gemm)
	}
	for k := program.KernelNone + 1; k < program.KernelCount; k++ {
		outputs := 0
		for i, o := range Rules(k).Operands {
			if o.Output {
				outputs++
			}
			if o.Align != 8 && k != program.KernelGEMM && k != program.KernelCopyStrided || o.Arg >= program.CommandArgs {
				t.Errorf("%s operand %d: %+v", table[k].Name, i, o)
			}
		}
		if outputs == 0 {
			t.Errorf("%s writes nothing", table[k].Name)
		}
	}
}

func BenchmarkCycles(b *testing.B) {
	cmd := program.Command{Kind: program.Call, Kernel: program.KernelGEMM}
	copy(cmd.Args[:], []uint32{1, 1, 1, 244, 4, 4, program.GEMMF8, 8})
	b.ReportAllocs()
	for b.Loop() {
		CommandCycles(&cmd)
	}
}
