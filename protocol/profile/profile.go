// Package profile is the record of one run (.ipuprof): when each tile entered
// and left each step, and what the step was. Cycles of the simulated device are
// modelled, not measured; the profile says which device it came from.
package profile

// SchemaVersion is what this version writes; 1..SchemaVersion can be read.
const SchemaVersion = 5

// StepKind classifies the time of a step.
type StepKind uint16

const (
	KindExchange StepKind = iota
	KindCompute
	KindSynchronization
	KindIdle
)

// ActivityKind is what a tile does inside an exchange step.
type ActivityKind uint16

const (
	ActivitySend ActivityKind = iota
	ActivityReceive
	ActivityPartnerBusy // the partner's transmit lane is borrowed
)

// ExchangeActivity is an interval of a scheduled row, in events.
type ExchangeActivity struct {
	Kind                 ActivityKind
	StartCycle, EndCycle uint32
}

// Metadata is one named property of a step, for people and queries.
type Metadata struct{ Name, Value string }

// Step is one command of a tile, as planned.
type Step struct {
	LocalIndex          uint32 // sequential on the tile, from 0
	Phase               uint32 // number of the exchange phase, or of the compute segment before it
	Epoch               uint32
	Operation           string
	Kind                StepKind
	Kernel              string
	Metadata            []Metadata
	ExchangeActivities  []ExchangeActivity
	ExchangeEventCycles uint32 // scheduled length of the row
}

// CycleSample is when a step ran.
type CycleSample struct {
	Step                 Step
	StartCycle, EndCycle uint32
}

// TileProfile is every sample of one tile, ascending.
type TileProfile struct {
	PhysicalTile uint32
	Samples      []CycleSample
}

// Profile is every tile's samples.
type Profile struct {
	SchemaVersion uint32
	ClockHz       uint64
	Tiles         []TileProfile
}
