// Package program is the loadable package (.ipuexe): tile images with a command
// stream and exchange rows, bindings that say where tensors live, host calls,
// and the plan by which a run's samples are named. It builds, encodes, decodes,
// checks and prints packages; it decides nothing.
package program

import "ipufarm/protocol/profile"

// SchemaVersion and Target are the values that this version writes.
const (
	SchemaVersion = 5
	Target        = "ipu21"
)

// AllTiles is the tile of a DebugRegion that holds for every tile.
const AllTiles = 0xFFFFFFFF

// Package is a decoded .ipuexe. Field names follow the published schema.
type Package struct {
	SchemaVersion      uint32
	CompilerVersion    string
	Target             string
	TileMemoryBase     uint32
	TileMemorySize     uint32
	Tiles              []TileImage // ascending physical tile
	Inputs             []Binding
	Outputs            []Binding
	Weights            []Binding
	HostExchange       HostExchange
	EntryPoints        []EntryPoint
	DeviceConfigWrites []DeviceConfigWrite
	ProfileTiles       []TileProfilePlan // ascending physical tile
	DebugSymbols       []DebugSymbol
	DebugRegions       []DebugRegion
}

// Flags of a Segment.
const (
	Read    = 1
	Write   = 2
	Execute = 4
)

// Segment is an initialised piece of tile memory; Data may be shorter than
// MemorySize, the rest is zero.
type Segment struct {
	Address    uint32
	MemorySize uint32
	Data       []byte
	Flags      uint32
}

// TileImage is what one tile is loaded with.
type TileImage struct {
	PhysicalTile      uint32
	EntryPoint        uint32
	Segments          []Segment
	CommandAddress    uint32
	DiagnosticAddress uint32
}

// RegionSlice places bytes of a file in a tile: Size bytes at FileOffset of the
// artifact that belongs to the binding list (all weights share one file, all
// inputs one, all outputs one) at TileAddress of physical Tile.
type RegionSlice struct {
	Tile        uint32
	TileAddress uint32
	FileOffset  uint64
	Size        uint64
}

// Binding is a named tensor outside the device. DType is f16, f32, f143 or u32;
// Shape is the logical shape of an output and the stored shape otherwise.
type Binding struct {
	Name   string
	DType  string
	Shape  []uint32
	Slices []RegionSlice
}

type HostPage struct {
	Index uint32
	Size  uint64
}

type HostSlice struct {
	Page       uint32
	PageOffset uint64
	FileOffset uint64
	Size       uint64
}

// HostCall is one exchange with the host: "initialize" takes the weights, "run"
// the inputs and gives the outputs. Command is a byte offset in the command stream.
type HostCall struct {
	Name            string
	Command         uint32
	Phases          uint32
	Inputs          []HostSlice
	Outputs         []HostSlice
	Invocations     uint32
	InputBatchEnds  []uint32
	OutputBatchEnds []uint32
}

type HostExchange struct {
	StartupMark   uint32
	CommandPage   uint32
	CommandOffset uint64
	Pages         []HostPage
	AttachOrder   []uint32
	Calls         []HostCall
}

type EntryPoint struct {
	Name          string
	Command       uint32
	ExternalSyncs uint32
}

type DeviceConfigWrite struct{ Offset, Value uint32 }

// TileProfilePlan names the samples of a tile: one step for each command record
// that takes time, in execution order. It has no effect on a run.
type TileProfilePlan struct {
	PhysicalTile uint32
	Steps        []profile.Step
}

type DebugSymbol struct {
	Name    string
	Address uint32
}

type DebugRegion struct {
	PhysicalTile uint32
	Address      uint32
	Size         uint32
	Name         string
}
