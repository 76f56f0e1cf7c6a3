package program

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ipufarm/protocol/machine"
	"ipufarm/protocol/profile"
)

func TestTheExampleVerifies(t *testing.T) {
	if _, err := Verify(encode(t, example())); err != nil {
		t.Fatal(err)
	}
}

// broken is one way to break the example, and what the error must say.
var broken = []struct {
	change func(p *Package)
	want   string
}{
	{func(p *Package) { p.SchemaVersion = 4 }, "schema version 4"},
	{func(p *Package) { p.Target = "ipu3" }, `target "ipu3"`},
	{func(p *Package) { p.TileMemorySize-- }, "638975 bytes"},
	{func(p *Package) { p.TileMemoryBase++ }, "0x4C001"},

	{func(p *Package) { p.Tiles = nil }, "no tiles"},
	{func(p *Package) { p.Tiles[2].PhysicalTile = 1472 }, "tile 1472 does not exist"},
	{func(p *Package) { p.Tiles[1].PhysicalTile = 0 }, "tile 0 (logical 0) follows tile 0 (logical 0)"},
	{func(p *Package) { p.Tiles[0], p.Tiles[1] = p.Tiles[1], p.Tiles[0] }, "must ascend"},
	{func(p *Package) { p.Tiles[1].EntryPoint = 0x4C012 }, "tile 2 (logical 1): entry point 0x4C012"},
	{func(p *Package) { p.Tiles[1].EntryPoint = 0x80000 }, "entry point 0x80000"},
	{func(p *Package) { p.Tiles[1].DiagnosticAddress = 0x100 }, "diagnostic address 0x100"},
	{func(p *Package) { p.Tiles[1].CommandAddress = 0x70000 }, "command stream at 0x70000 lies in no segment"},
	{func(p *Package) { p.Tiles[1].CommandAddress += 4 }, "8-byte aligned"},
	{func(p *Package) { p.Tiles[1].CommandAddress = exampleRows }, "has 16 bytes left"},

	{func(p *Package) { p.Tiles[2].Segments[1].MemorySize = 0 }, "tile 64 (logical 2): segment 1: empty"},
	{func(p *Package) { p.Tiles[2].Segments[1].Address = 0x4C000 }, "0x4C000..0x4C140, the loader fills"},
	{func(p *Package) { p.Tiles[2].Segments[2].MemorySize = machine.LoadEnd - exampleData + 4 }, "0x80000..0xE7BB4, the loader fills"},
	{func(p *Package) { p.Tiles[2].Segments[2].MemorySize = 0xFFFFFFFC }, "the loader fills"},
	{func(p *Package) { p.Tiles[2].Segments[2].Address++ }, "whole words"},
	{func(p *Package) { p.Tiles[2].Segments[0].Address = 0x4FFFC }, "aperture"},
	{func(p *Package) { p.Tiles[2].Segments[0].MemorySize = 8 }, "12 bytes of data for 8 bytes"},
	{func(p *Package) { p.Tiles[2].Segments[0].Flags = 8 }, "flags 0x8"},
	{func(p *Package) { p.Tiles[2].Segments[2].Flags |= Execute }, "executable"},
	{func(p *Package) { p.Tiles[2].Segments[0].MemorySize = exampleCommands - exampleRows + 4 }, "segments 0 (0x64000..0x68004) and 1 (0x68000..0x68140) overlap"},
	{func(p *Package) { p.Tiles[2].Segments = make([]Segment, 1025) }, "1025 segments"},

	{func(p *Package) { p.Inputs[0].Name = "" }, "inputs: binding 0 without a name"},
	{func(p *Package) { p.Inputs[0].Name = "a\x1b[31m" }, "control character"},
	{func(p *Package) { p.Inputs[0].Name = "a\xff" }, "not UTF-8"},
	{func(p *Package) { p.Weights[0].Name = "image" }, `binding "image" appears twice (before in inputs)`},
	{func(p *Package) { p.Inputs[0].DType = "bf16" }, `inputs: binding "image": dtype "bf16"`},
	{func(p *Package) { p.Inputs[0].Shape[1] = 0 }, "shape [2 0]"},
	{func(p *Package) { p.Inputs[0].Shape = []uint32{1 << 31, 1 << 31, 1 << 31} }, "larger than the device"},
	{func(p *Package) { p.Outputs[0].Shape[1] = 17 }, "32 bytes in slices, shape [1 17] of f16 needs 34"},
	{func(p *Package) { p.Inputs[0].Slices[1].Tile = 6 }, "slice 1: tile 6 (logical 93) has no image"},
	{func(p *Package) { p.Inputs[0].Slices[1].Tile = 9999 }, "slice 1: tile 9999 has no image"},
	{func(p *Package) { p.Inputs[0].Slices[1].TileAddress = machine.MemoryEnd - 16 }, "slice 1 on tile 64 (logical 2): 32 bytes at 0xE7FF0"},
	{func(p *Package) { p.Inputs[0].Slices[1].Size = 1 << 63 }, "9223372036854775808 bytes at 0x80000"},
	{func(p *Package) { p.Inputs[0].Slices[1].TileAddress += 2 }, "whole words"},
	{func(p *Package) { p.Inputs[0].Slices[1].FileOffset = 1<<64 - 32 }, "beyond any file"},
	{func(p *Package) { p.Inputs[0].Slices[1].FileOffset = 36 }, `binding "image": slice on tile 64 (logical 2): the file bytes 32..36`},
	{func(p *Package) {
		p.Outputs[0].Slices = append(p.Outputs[0].Slices, p.Outputs[0].Slices[0])
	}, "belong to another slice"},
	{func(p *Package) { p.Inputs[0].Slices[0].TileAddress = machine.RuntimeState }, "data starts at 0x586E0"},
	{func(p *Package) { p.Inputs[0].Slices[0].TileAddress = exampleData + 0x70 }, `bindings "image" and "bias" both write 0x80080 on tile 0 (logical 0)`},
	{func(p *Package) { p.Inputs[0].Slices[0].TileAddress = exampleCommands - 16 }, "overlaps segment 1 (0x68000..0x68140), which is not writable"},

	{func(p *Package) { p.HostExchange.Pages[1].Index = 0 }, "host page 0 appears twice"},
	{func(p *Package) { p.HostExchange.Pages[1].Size = 0 }, "host page 1 is empty"},
	{func(p *Package) { p.HostExchange.CommandPage = 2 }, "of page 2"},
	{func(p *Package) { p.HostExchange.CommandOffset = 4096 }, "offset 4096 of page 0"},
	{func(p *Package) { p.HostExchange.AttachOrder[1] = 7 }, "host page 7, which does not exist"},
	{func(p *Package) { p.HostExchange.AttachOrder[1] = 0 }, "host page 0 twice"},
	{func(p *Package) { p.HostExchange.Calls[1].Name = "initialize" }, `"initialize" appears twice`},
	{func(p *Package) { p.HostExchange.Calls[1].Name = "go" }, `host call "go": unknown`},
	{func(p *Package) { p.HostExchange.Calls = p.HostExchange.Calls[:1] }, `no host call "run"`},
	{func(p *Package) { p.HostExchange.Calls = p.HostExchange.Calls[1:] }, `1 weights but no host call "initialize"`},
	{func(p *Package) { p.HostExchange.Calls[1].Invocations = 0 }, `host call "run": 0 invocations`},
	{func(p *Package) { p.HostExchange.Calls[1].Command = 32 }, "command offset 32"},
	{func(p *Package) { p.HostExchange.Calls[1].Phases = 4 }, "4 phases, its 1 input and 1 output batches need 3"},
	{func(p *Package) { p.HostExchange.Calls[1].Inputs[1].Page = 5 }, "inputs: slice 1: host page 5 does not exist"},
	{func(p *Package) { p.HostExchange.Calls[1].Outputs[0].PageOffset = 3*4096 - 16 }, "outputs: slice 0: 32 bytes at offset 12272 of host page 1, which has 12288"},
	{func(p *Package) { p.HostExchange.Calls[1].Outputs[0].Size = 1 << 62 }, "host page 1, which has 12288"},
	{func(p *Package) { p.HostExchange.Calls[1].Outputs[0].FileOffset = 4 }, "file offset 4, the file has 32"},
	{func(p *Package) { p.HostExchange.Calls[1].Inputs[0].Size = 16 }, "inputs: slice 1: the file bytes 16..32"},
	{func(p *Package) { p.HostExchange.Calls[1].Inputs[1].Size = 16 }, "slices cover 48 bytes of a file of 64"},
	{func(p *Package) {
		p.HostExchange.Calls[1].InputBatchEnds, p.HostExchange.Calls[1].Phases = []uint32{1, 1}, 0
	}, "batch ends [1 1]"},
	{func(p *Package) { p.HostExchange.Calls[1].InputBatchEnds = []uint32{3} }, "batch ends [3]"},
	{func(p *Package) { p.HostExchange.Calls[1].InputBatchEnds = []uint32{1} }, "the last batch ends after slice 1 of 2"},

	{func(p *Package) { p.EntryPoints[0].Name = "" }, "entry point 0 without a name"},
	{func(p *Package) { p.EntryPoints = append(p.EntryPoints, p.EntryPoints[0]) }, `entry point "main" appears twice`},
	{func(p *Package) { p.EntryPoints[0].Command = 1 }, `entry point "main": command offset 1`},
	{func(p *Package) { p.DeviceConfigWrites[0].Offset = 2 }, "write to 0x2"},
	{func(p *Package) { p.DeviceConfigWrites[0].Offset = 512 << 10 }, "write to 0x80000"},
	{func(p *Package) { p.DeviceConfigWrites = append(p.DeviceConfigWrites, p.DeviceConfigWrites[0]) }, "0x3044 appears twice"},

	{func(p *Package) { p.ProfileTiles[1].PhysicalTile = 4 }, "profile plan for tile 4 (logical 92), which has no image"},
	{func(p *Package) { p.ProfileTiles[1].PhysicalTile = 0 }, "profile plan for tile 0 (logical 0) follows"},
	{func(p *Package) { p.ProfileTiles[1].Steps[2].LocalIndex = 3 }, "profile plan for tile 2 (logical 1): step 2: has local index 3"},
	{func(p *Package) { p.ProfileTiles[1].Steps[2].Kind = 4 }, "step 2: unknown kind 4"},
	{func(p *Package) { p.ProfileTiles[1].Steps[1].ExchangeActivities[0].Kind = 3 }, "exchange activity 0: unknown kind 3"},
	{func(p *Package) { p.ProfileTiles[1].Steps[1].ExchangeActivities[0].StartCycle = 17 }, "ends at cycle 16 before its start at 17"},
	{func(p *Package) {
		for i := range 2 {
			p.ProfileTiles[1].Steps = append(p.ProfileTiles[1].Steps, profile.Step{LocalIndex: uint32(4 + i)})
		}
	}, "profile plan for tile 2 (logical 1) names 6 steps, its stream has 4 commands"},

	{func(p *Package) { p.DebugSymbols[0].Name = "\n" }, "debug symbol 0 name"},
	{func(p *Package) { p.DebugSymbols[0].Address = 1 }, `debug symbol "rows" at 0x1`},
	{func(p *Package) { p.DebugRegions[0].Name = "" }, "debug region 0 without a name"},
	{func(p *Package) { p.DebugRegions[0].PhysicalTile = 1 }, `debug region "values" on tile 1`},
	{func(p *Package) { p.DebugRegions[0].Size = 1 << 31 }, `debug region "values": 0x80000..0x80080000`},

	// What only Verify sees.
	{func(p *Package) { patch(p, 0, 0, 0x63) }, "tile 2 (logical 1): command 0 at 0x68000: command word 0x00000063"},
	{func(p *Package) { patch(p, 0, 0, uint32(Call)|99<<8) }, "unknown kernel 99"},
	{func(p *Package) {
		patch(p, 4, 0, uint32(Call)|uint32(KernelCopy)<<8)
	}, "runs out of its segment after 5 records without an end"},
	{func(p *Package) { patch(p, 1, 1, 7) }, "tile 2 (logical 1): exchange 0 is phase 7, not 0 as on tile 0"},
	{func(p *Package) { patch(p, 3, 0, uint32(End)); patch(p, 3, 1, 0) }, "tile 2 (logical 1): 1 exchanges, not 2"},
	{func(p *Package) { patch(p, 1, 2, exampleRows+4) }, "command 1 (exchange phase 0): exchange row of 12 bytes at 0x64004"},
	{func(p *Package) { patch(p, 1, 2, 0x70000) }, "exchange row 0x70000..0x7000C does not lie"},
	{func(p *Package) { patch(p, 1, 3, 16) }, "exchange row 0x64000..0x64010 does not lie in the data"},
	{func(p *Package) { patch(p, 1, 3, 8) }, "row ends without a return"},
	{func(p *Package) { patch(p, 1, 3, 0) }, "exchange row of 0 bytes"},
	{func(p *Package) { patch(p, 1, 5, 0) }, "row sends from 0x80..0xC0"},
	{func(p *Package) { patch(p, 1, 5, machine.MemoryEnd-0xBC) }, "row sends from 0xE7FC4..0xE8004"},
	{func(p *Package) { p.Tiles[1].Segments[0].Flags = Read }, "not executable"},
	{func(p *Package) { p.HostExchange.Calls[1].Command = 5 * CommandBytes }, `host call "run" starts at command offset 320`},
	{func(p *Package) { p.EntryPoints[0].Command = 5 * CommandBytes }, `entry point "main" starts at command offset 320`},
}

// patch replaces a word of a command record of the example's second tile.
func patch(p *Package, record, word int, value uint32) {
	binary.LittleEndian.PutUint32(p.Tiles[1].Segments[1].Data[record*CommandBytes+4*word:], value)
}

func TestEveryBrokenPromiseIsNamed(t *testing.T) {
	for i, b := range broken {
		p := example()
		b.change(p)
		_, err := Verify(encode(t, p))
		if err == nil || !strings.Contains(err.Error(), b.want) {
			t.Errorf("case %d: error %q, want one that contains %q", i, err, b.want)
		}
		if err != nil && strings.ContainsAny(err.Error(), "\n\x1b") {
			t.Errorf("case %d: the error is not one plain line: %q", i, err)
		}
	}
}

func TestRowsThatOverlapAreBounded(t *testing.T) {
	p := example()
	tile := &p.Tiles[0]
	row := make([]uint32, 40_000)
	for i := range row {
		row[i] = 0x40A00000 // delay 1
	}
	row[len(row)-1] = 0x43A00000
	tile.Segments[0] = Segment{0x58000, 160_000, words(row...), Read | Execute}
	tile.Segments[1].Address, tile.CommandAddress = exampleData+0x10000, exampleData+0x10000
	var commands []Command
	for i := range uint32(100) {
		commands = append(commands, exchange(i, 0x58000+8*i, 160_000-8*i))
	}
	tile.Segments[1].Data = records(append(commands, Command{})...)
	tile.Segments[1].MemorySize = uint32(len(tile.Segments[1].Data))
	_, err := Verify(encode(t, p))
	if err == nil || !strings.Contains(err.Error(), "of different rows") {
		t.Errorf("100 overlapping rows of 160,000 bytes: %v", err)
	}
}

func TestFileWithDigest(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "model.ipuexe")
	if err := WriteFile(path, example()); err != nil {
		t.Fatal(err)
	}
	file, compared, err := ReadFile(path, "")
	if err != nil || !compared {
		t.Fatalf("read back: compared %v, %v", compared, err)
	}
	if SHA256(file) != SHA256(encode(t, example())) {
		t.Error("the file does not hold the package")
	}
	line, _ := os.ReadFile(path + DigestSuffix)
	if want := SHA256(file) + "  model.ipuexe\n"; string(line) != want {
		t.Errorf("digest file holds %q, want %q", line, want)
	}

	// A flip in the data of a segment leaves a valid package: only the digest tells.
	flipped := example()
	flipped.Inputs[0].Name = "imagf"
	if err := os.WriteFile(path, encode(t, flipped), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := ReadFile(path, ""); err == nil || !strings.Contains(err.Error(), "damaged") || !strings.Contains(err.Error(), path) {
		t.Errorf("damaged file: %v", err)
	}
	if _, compared, err := ReadFile(path, SHA256(encode(t, flipped))); err != nil || !compared {
		t.Errorf("the digest asked for must win over the one beside the file: %v", err)
	}
	if _, _, err := ReadFile(path, "abc"); err == nil || !strings.Contains(err.Error(), `"abc"`) {
		t.Errorf("digest abc: %v", err)
	}
	if err := os.Remove(path + DigestSuffix); err != nil {
		t.Fatal(err)
	}
	if _, compared, err := ReadFile(path, ""); err != nil || compared {
		t.Errorf("without a digest: compared %v, %v", compared, err)
	}
	if err := os.WriteFile(path+DigestSuffix, []byte("nonsense"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := ReadFile(path, ""); err == nil || !strings.Contains(err.Error(), DigestSuffix) {
		t.Errorf("digest file without a digest: %v", err)
	}
}
