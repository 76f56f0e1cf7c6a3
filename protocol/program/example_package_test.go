package program

import (
	"encoding/binary"

	"ipufarm/protocol/machine"
	"ipufarm/protocol/profile"
)

// Addresses of the example.
const (
	exampleRows     = machine.TableBase // 0x64000
	exampleCommands = 0x68000
	exampleData     = 0x80000
)

// record builds the data of a command stream.
func records(commands ...Command) []byte {
	data := make([]byte, len(commands)*CommandBytes)
	for i, c := range commands {
		EncodeCommand(data[i*CommandBytes:], c)
	}
	return data
}

func call(k Kernel, label uint32, args ...uint32) Command {
	c := Command{Kind: Call, Kernel: k, Label: label}
	copy(c.Args[:], args)
	return c
}

func exchange(phase uint32, args ...uint32) Command {
	c := Command{Kind: Exchange, Label: phase}
	copy(c.Args[:], args)
	return c
}

func words(values ...uint32) (data []byte) {
	for _, v := range values {
		data = binary.LittleEndian.AppendUint32(data, v)
	}
	return data
}

// example is a small package that passes Verify: three tiles, two exchange
// phases, one weight of which every tile has a copy, one input, one output.
func example() *Package {
	const (
		send16  = 0x78000000 | 15<<21 | 0x20<<3 | 1 // 16 words from base + 0x80
		delay10 = 0x40A00000 | 9
		ret     = 0x43A00000
	)
	p := &Package{
		SchemaVersion:   SchemaVersion,
		CompilerVersion: "ipufarm example",
		Target:          Target,
		TileMemoryBase:  machine.MemoryBase,
		TileMemorySize:  machine.MemorySize,
		HostExchange: HostExchange{
			Pages:       []HostPage{{0, 4096}, {1, 3 * 4096}},
			AttachOrder: []uint32{0, 1},
			Calls: []HostCall{
				{Name: "initialize", Phases: 2, Invocations: 1,
					Inputs: []HostSlice{{1, 0, 0, 64}}, InputBatchEnds: []uint32{1}},
				{Name: "run", Phases: 3, Invocations: 1,
					Inputs: []HostSlice{{1, 0, 0, 32}, {1, 4096, 32, 32}}, InputBatchEnds: []uint32{2},
					Outputs: []HostSlice{{1, 8192, 0, 32}}, OutputBatchEnds: []uint32{1}},
			},
		},
		EntryPoints:        []EntryPoint{{"main", 0, 1}},
		DeviceConfigWrites: []DeviceConfigWrite{{0x3044, 1 << 11}},
		DebugSymbols:       []DebugSymbol{{"rows", exampleRows}},
		DebugRegions:       []DebugRegion{{AllTiles, exampleData, 0x200, "values"}},
	}
	weight := Binding{Name: "bias", DType: "f16", Shape: []uint32{32}}
	for logical := range 3 {
		tile := uint32(machine.Physical(logical))
		stream := records(
			call(KernelFill, 0, exampleData+0x100, 64),
			exchange(0, exampleRows, 12, exampleData, exampleData),
			call(KernelAdd, 1, exampleData, exampleData+0x80, exampleData+0x100, 8),
			exchange(1),
			Command{Kind: End},
		)
		p.Tiles = append(p.Tiles, TileImage{
			PhysicalTile: tile, EntryPoint: machine.EntryPoint, CommandAddress: exampleCommands,
			Segments: []Segment{
				{exampleRows, 16, words(send16, delay10, ret), Read | Execute},
				{exampleCommands, uint32(len(stream)), stream, Read},
				{exampleData, 0x200, nil, Read | Write},
			},
		})
		p.ProfileTiles = append(p.ProfileTiles, TileProfilePlan{tile, []profile.Step{
			{LocalIndex: 0, Operation: "clear", Kind: profile.KindCompute, Kernel: "fill"},
			{LocalIndex: 1, Phase: 0, Operation: "gather", Kind: profile.KindExchange, ExchangeEventCycles: 26,
				ExchangeActivities: []profile.ExchangeActivity{{Kind: profile.ActivitySend, StartCycle: 0, EndCycle: 16}}},
			{LocalIndex: 2, Phase: 1, Operation: "sum", Kind: profile.KindCompute, Kernel: "add",
				Metadata: []profile.Metadata{{Name: "elements", Value: "8"}}},
			{LocalIndex: 3, Phase: 1, Operation: "barrier", Kind: profile.KindExchange},
		}})
		weight.Slices = append(weight.Slices, RegionSlice{tile, exampleData + 0x80, 0, 64})
	}
	first, last := p.Tiles[0].PhysicalTile, p.Tiles[2].PhysicalTile
	p.Weights = []Binding{weight}
	p.Inputs = []Binding{{Name: "image", DType: "f16", Shape: []uint32{2, 16}, Slices: []RegionSlice{
		{first, exampleData, 0, 32}, {last, exampleData, 32, 32}}}}
	p.Outputs = []Binding{{Name: "result", DType: "f16", Shape: []uint32{1, 16}, Slices: []RegionSlice{
		{last, exampleData + 0x100, 0, 32}}}}
	return p
}
