package program

import (
	"bytes"
	"fmt"
	"reflect"
)

// Difference is one way in which two packages differ. A or B is empty for what
// only the other has.
type Difference struct {
	What string `json:"what"`
	A    string `json:"a"`
	B    string `json:"b"`
}

// Diff lists how two packages that passed Verify differ, from the whole to the
// tiles; none if they are the same package.
func Diff(a, b *Package) ([]Difference, error) {
	sa, err := Summarize(a)
	if err != nil {
		return nil, err
	}
	sb, err := Summarize(b)
	if err != nil {
		return nil, err
	}
	var d differences
	d.values("compiler version", a.CompilerVersion, b.CompilerVersion)
	d.values("tiles", sa.Tiles, sb.Tiles)
	d.values("bytes of exchange rows", sa.SegmentBytes.Rows, sb.SegmentBytes.Rows)
	d.values("bytes of commands", sa.SegmentBytes.Commands, sb.SegmentBytes.Commands)
	d.values("bytes of other data", sa.SegmentBytes.Other, sb.SegmentBytes.Other)
	d.values("largest table", sa.TableBytesMax.Bytes, sb.TableBytesMax.Bytes)
	d.values("profile steps", sa.ProfileSteps, sb.ProfileSteps)
	d.bindings("input", a.Inputs, b.Inputs)
	d.bindings("output", a.Outputs, b.Outputs)
	d.bindings("weight", a.Weights, b.Weights)
	d.deep("host exchange", a.HostExchange, b.HostExchange)
	d.deep("entry points", a.EntryPoints, b.EntryPoints)
	d.deep("device configuration writes", a.DeviceConfigWrites, b.DeviceConfigWrites)
	d.deep("debug symbols", a.DebugSymbols, b.DebugSymbols)
	d.deep("debug regions", a.DebugRegions, b.DebugRegions)
	d.kernels(sa.Kernels, sb.Kernels)
	d.phases(sa.Phases, sb.Phases)
	d.tiles(a, b)
	d.plans(a, b)
	return d, nil
}

type differences []Difference

func (d *differences) add(what, a, b string) { *d = append(*d, Difference{what, a, b}) }

func (d *differences) values(what string, a, b any) {
	if a != b {
		d.add(what, fmt.Sprint(a), fmt.Sprint(b))
	}
}

// deep compares lists that are too long to print side by side.
func (d *differences) deep(what string, a, b any) {
	if !reflect.DeepEqual(a, b) {
		d.add(what, "differ", "differ")
	}
}

func (d *differences) bindings(kind string, a, b []Binding) {
	inB := map[string]*Binding{}
	for i := range b {
		inB[b[i].Name] = &b[i]
	}
	describe := func(x *Binding) string { return fmt.Sprintf("%s %v in %d slices", x.DType, x.Shape, len(x.Slices)) }
	for i := range a {
		x, y := &a[i], inB[a[i].Name]
		delete(inB, x.Name)
		switch {
		case y == nil:
			d.add(kind+" "+x.Name, describe(x), "")
		case describe(x) != describe(y):
			d.add(kind+" "+x.Name, describe(x), describe(y))
		case !reflect.DeepEqual(x.Slices, y.Slices):
			d.add(kind+" "+x.Name, "slices lie elsewhere", "slices lie elsewhere")
		}
	}
	for i := range b {
		if inB[b[i].Name] != nil {
			d.add(kind+" "+b[i].Name, "", describe(&b[i]))
		}
	}
}

func (d *differences) kernels(a, b []KernelSummary) {
	count := map[string][2]int{}
	for _, k := range a {
		count[k.Kernel] = [2]int{k.Calls, 0}
	}
	for _, k := range b {
		count[k.Kernel] = [2]int{count[k.Kernel][0], k.Calls}
	}
	for k := range KernelCount {
		if c := count[k.String()]; c[0] != c[1] {
			d.values("calls of "+k.String(), c[0], c[1])
		}
	}
}

func (d *differences) phases(a, b []PhaseSummary) {
	d.values("exchange phases", len(a), len(b))
	describe := func(p PhaseSummary) string {
		return fmt.Sprintf("%d events, %d bytes by %d tiles, %d controls", p.Horizon, p.SendBytes, p.Active, p.Controls)
	}
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			d.add(fmt.Sprintf("exchange %d", i), describe(a[i]), describe(b[i]))
		}
	}
}

// tiles compares images, but lists only how many differ and the first that does.
func (d *differences) tiles(a, b *Package) {
	onlyA, onlyB, changed := 0, 0, 0
	first := ""
	for i := range a.Tiles {
		x := &a.Tiles[i]
		y := b.image(x.PhysicalTile)
		switch {
		case y == nil:
			onlyA++
		case !sameImage(x, y):
			if changed++; changed == 1 {
				first = TileName(x.PhysicalTile)
			}
		}
	}
	for i := range b.Tiles {
		if a.image(b.Tiles[i].PhysicalTile) == nil {
			onlyB++
		}
	}
	if onlyA+onlyB > 0 {
		d.add("tiles that the other has not", fmt.Sprint(onlyA), fmt.Sprint(onlyB))
	}
	if changed > 0 {
		text := fmt.Sprintf("%d, the first is %s", changed, first)
		d.add("tiles with different images", text, text)
	}
}

func sameImage(a, b *TileImage) bool {
	if a.EntryPoint != b.EntryPoint || a.CommandAddress != b.CommandAddress || a.DiagnosticAddress != b.DiagnosticAddress || len(a.Segments) != len(b.Segments) {
		return false
	}
	for i := range a.Segments {
		x, y := &a.Segments[i], &b.Segments[i]
		if x.Address != y.Address || x.MemorySize != y.MemorySize || x.Flags != y.Flags || !bytes.Equal(x.Data, y.Data) {
			return false
		}
	}
	return true
}

func (d *differences) plans(a, b *Package) {
	if !reflect.DeepEqual(a.ProfileTiles, b.ProfileTiles) {
		d.add("profile plans", "differ", "differ")
	}
}
