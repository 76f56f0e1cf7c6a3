package device_test

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"testing"

	"ipufarm/protocol/machine"
	"ipufarm/protocol/numeric"
	"ipufarm/protocol/program"
	"ipufarm/runner/device"
)

// Addresses that tests use.
const (
	rowsAt    = 0x64000 // table of exchange rows
	streamAt  = 0x68000 // command stream
	standard  = 0x6C000 // first element of data in region 0
	standard2 = 0x70000
	inter     = 0x80000 // region 1
	inter2    = 0x88000
	inter3    = 0x90000
)

// job builds a package by hand: for each physical tile commands, rows and data.
type job struct {
	tiles   map[int]*image
	outputs []program.RegionSlice
}

type image struct {
	stream []byte
	rows   []byte
	data   []program.Segment
}

func newJob() *job { return &job{tiles: map[int]*image{}} }

func (j *job) tile(physical int) *image {
	if j.tiles[physical] == nil {
		j.tiles[physical] = &image{}
	}
	return j.tiles[physical]
}

func (m *image) record(c program.Command) {
	m.stream = append(m.stream, make([]byte, program.CommandBytes)...)
	program.EncodeCommand(m.stream[len(m.stream)-program.CommandBytes:], c)
}

// call adds a kernel call.
func (m *image) call(k program.Kernel, args ...uint32) *image {
	c := program.Command{Kind: program.Call, Kernel: k}
	copy(c.Args[:], args)
	m.record(c)
	return m
}

// exchange adds an exchange with a row; no words: the tile only joins the barrier.
func (m *image) exchange(label uint32, words ...uint32) *image {
	return m.exchangeBase(label, 0, 0, words...)
}

func (m *image) exchangeBase(label, incoming, outgoing uint32, words ...uint32) *image {
	c := program.Command{Kind: program.Exchange, Label: label}
	if len(words) > 0 {
		c.Args = [program.CommandArgs]uint32{rowsAt + uint32(len(m.rows)), uint32(4 * len(words)), incoming, outgoing}
	}
	for _, w := range words {
		m.rows = binary.LittleEndian.AppendUint32(m.rows, w)
	}
	for len(m.rows)%8 != 0 {
		m.rows = append(m.rows, 0)
	}
	m.record(c)
	return m
}

// put adds initialised memory.
func (m *image) put(address uint32, data []byte) *image {
	m.data = append(m.data, program.Segment{Address: address, MemorySize: uint32(len(data)), Data: data, Flags: program.Read | program.Write})
	return m
}

// out adds bytes of a tile to the output file.
func (j *job) out(tile int, address, size uint32) {
	offset := uint64(0)
	for _, s := range j.outputs {
		offset += s.Size
	}
	j.outputs = append(j.outputs, program.RegionSlice{Tile: uint32(tile), TileAddress: address, FileOffset: offset, Size: uint64(size)})
}

// build finishes every command stream with an end record.
func (j *job) build() *program.Package {
	p := &program.Package{
		SchemaVersion: program.SchemaVersion, Target: program.Target,
		TileMemoryBase: machine.MemoryBase, TileMemorySize: machine.MemorySize,
	}
	for id := range machine.Tiles {
		m := j.tiles[id]
		if m == nil {
			continue
		}
		m.record(program.Command{})
		t := program.TileImage{PhysicalTile: uint32(id), EntryPoint: machine.EntryPoint, CommandAddress: streamAt}
		t.Segments = append(t.Segments, program.Segment{Address: streamAt, MemorySize: uint32(len(m.stream)), Data: m.stream, Flags: program.Read | program.Execute})
		if len(m.rows) > 0 {
			t.Segments = append(t.Segments, program.Segment{Address: rowsAt, MemorySize: uint32(len(m.rows)), Data: m.rows, Flags: program.Read | program.Execute})
		}
		t.Segments = append(t.Segments, m.data...)
		p.Tiles = append(p.Tiles, t)
	}
	if len(j.outputs) > 0 {
		p.Outputs = []program.Binding{{Name: "out", DType: "f16", Slices: j.outputs}}
	}
	return p
}

// start loads and runs a package without parameters or inputs.
func start(p *program.Package, o device.Options) (*device.Result, error) {
	d := device.New(o)
	if err := d.Load(p); err != nil {
		return nil, err
	}
	return d.Run(context.Background(), nil)
}

func (j *job) mustRun(t testing.TB) *device.Result {
	t.Helper()
	r, err := start(j.build(), device.Options{Workers: 2})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// mustFault runs and expects a fault of a rule; the message must contain parts.
func (j *job) mustFault(t testing.TB, rule device.Rule, parts ...string) *device.Fault {
	t.Helper()
	return wantFault(t, j.build(), rule, parts...)
}

func wantFault(t testing.TB, p *program.Package, rule device.Rule, parts ...string) *device.Fault {
	t.Helper()
	_, err := start(p, device.Options{Workers: 1})
	var f *device.Fault
	if !errors.As(err, &f) {
		t.Fatalf("error %v, want a fault of rule %q", err, rule)
	}
	if f.Rule != rule {
		t.Fatalf("fault %v, want rule %q", f, rule)
	}
	for _, part := range parts {
		if !strings.Contains(f.Error(), part) {
			t.Errorf("fault %q does not say %q", f, part)
		}
	}
	_, err = start(p, device.Options{Workers: 3})
	if err == nil || err.Error() != f.Error() {
		t.Errorf("with 3 workers: %v, with 1: %v", err, f)
	}
	return f
}

// halves encodes F16.
func halves(x ...float32) []byte {
	b := make([]byte, 2*len(x))
	numeric.EncodeF16LE(b, x)
	return b
}

// unhalf decodes F16.
func unhalf(b []byte) []float32 {
	x := make([]float32, len(b)/2)
	numeric.DecodeF16LE(x, b)
	return x
}

func float32s(b []byte) []float32 {
	x := make([]float32, len(b)/4)
	for i := range x {
		x[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return x
}
