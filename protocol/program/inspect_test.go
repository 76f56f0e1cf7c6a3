package program

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestInspectPrintsTheExample(t *testing.T) {
	var out bytes.Buffer
	for _, tile := range []int{-1, 64} {
		if err := Inspect(&out, example(), InspectOptions{Tile: tile}); err != nil {
			t.Fatal(err)
		}
	}
	golden := filepath.Join("testdata", "example.txt")
	if *update {
		if err := os.WriteFile(golden, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), want) {
		t.Errorf("inspect prints\n%s\nwant (rewrite with -update)\n%s", out.Bytes(), want)
	}
}

func TestInspectJSON(t *testing.T) {
	var out bytes.Buffer
	if err := Inspect(&out, example(), InspectOptions{Tile: -1, JSON: true}); err != nil {
		t.Fatal(err)
	}
	var s Summary
	if err := json.Unmarshal(out.Bytes(), &s); err != nil {
		t.Fatal(err)
	}
	if s.Tiles != 3 || s.TableBytesMax.Bytes != 12 || len(s.Phases) != 2 || s.Phases[0].SendBytes != 192 || s.Kernels[0].Calls != 3 {
		t.Errorf("summary %+v", s)
	}
	out.Reset()
	if err := Inspect(&out, example(), InspectOptions{Tile: 2, JSON: true}); err != nil {
		t.Fatal(err)
	}
	var d TileDetail
	if err := json.Unmarshal(out.Bytes(), &d); err != nil {
		t.Fatal(err)
	}
	if d.Logical != 1 || len(d.Commands) != 5 || d.Commands[1].Row == nil || d.Commands[1].Row.Horizon != 26 {
		t.Errorf("detail %+v", d)
	}
	if err := Inspect(&out, example(), InspectOptions{Tile: 5}); err == nil || !strings.Contains(err.Error(), "tile 5 (logical 182)") {
		t.Errorf("a tile without an image: %v", err)
	}
}

func TestEveryKernelHasNamesForItsArguments(t *testing.T) {
	for k := range KernelCount {
		if got := len(strings.Fields(argumentNames[k])); got != k.Args() {
			t.Errorf("%v: %d argument names, its records have %d arguments", k, got, k.Args())
		}
	}
	c := call(KernelCast, 3, 0x80000, 0x80100, 16, 0xFFFFFFFC)
	if got, want := Disassemble(c), "cast #3 in=0x80000 out=0x80100 n=16 scale=-4"; got != want {
		t.Errorf("Disassemble: %q, want %q", got, want)
	}
}

func TestDiff(t *testing.T) {
	if d, err := Diff(example(), example()); err != nil || len(d) != 0 {
		t.Errorf("a package and itself: %v, %v", d, err)
	}
	for _, c := range []struct {
		change func(p *Package)
		want   string
	}{
		{func(p *Package) { p.CompilerVersion = "x" }, "compiler version"},
		{func(p *Package) { p.Weights[0].Name = "w" }, "weight w"},
		{func(p *Package) { p.Inputs[0].DType = "u32" }, "input image"},
		{func(p *Package) { p.Inputs[0].Slices[0].TileAddress += 64 }, "input image"},
		{func(p *Package) { p.HostExchange.StartupMark++ }, "host exchange"},
		{func(p *Package) { p.EntryPoints[0].ExternalSyncs++ }, "entry points"},
		{func(p *Package) { p.DebugSymbols = nil }, "debug symbols"},
		{func(p *Package) { patch(p, 2, 0, uint32(Call)|uint32(KernelCopy)<<8); patch(p, 2, 5, 0) }, "calls of add"},
		{func(p *Package) { patch(p, 1, 5, 0x90000) }, "tiles with different images"},
		{func(p *Package) { p.ProfileTiles[0].Steps[0].Operation = "x" }, "profile plans"},
		{func(p *Package) {
			p.Tiles[1].Segments[0].Data = words(0x78000000|15<<21|0x20<<3|1, 0x40A00000|99, 0x43A00000)
		}, "exchange 0"},
	} {
		p := example()
		c.change(p)
		d, err := Diff(example(), p)
		if err != nil {
			t.Fatalf("%s: %v", c.want, err)
		}
		found := false
		for _, one := range d {
			found = found || one.What == c.want
		}
		if !found {
			t.Errorf("%v does not name %q", d, c.want)
		}
	}
}
