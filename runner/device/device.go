// Package device is the simulated IPU21: it loads a package as a card would,
// takes parameters and inputs where the package's bindings put them, executes
// the bytes in tile memory (command records, exchange rows, kernels) and gives
// back outputs, cycles and samples. It knows nothing of the plan that made the
// package and shares no code with the compiler beyond protocol/.
//
// What an operation computes and how long it takes are kept apart:
//
//	kernels, values   gemm.go pointwise.go rows.go forms.go, on operands checked in operands.go
//	kernels, time     cycles.go, one table of laws with their sources
//	exchange, meaning receive.go (rows to moves), move.go (words), check.go (hazards)
//	exchange, time    barrier.go
//
// All cycles are modelled. DEVIATIONS.md says where the model is known to differ
// from silicon, or is not known to agree.
//
// Whatever the package breaks ends in a *Fault that names tile, phase, event or
// record, and rule. A fault is the same with any number of workers.
package device

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"

	"ipufarm/protocol/machine"
	"ipufarm/protocol/profile"
	"ipufarm/protocol/program"
)

// Options configure a device. The zero value is a device with one goroutine per
// core and poisoned memory that collects no samples.
type Options struct {
	// Workers is the number of goroutines that simulate tiles; 0 means GOMAXPROCS.
	// It changes nothing but speed.
	Workers int
	// ZeroMemory makes memory that nobody wrote read as zeros. By default it reads
	// as NaN in every format, because on a card it is undefined.
	ZeroMemory bool
	// CollectSamples makes Run return a profile.
	CollectSamples bool
	// Progress is called after each exchange phase, from the goroutine of Run.
	Progress func(Progress)
}

// Progress says how far a run is.
type Progress struct {
	Done, Total int    // exchange phases
	Cycles      uint64 // modelled so far, on the tile that is furthest
}

// Result is what a run gives.
type Result struct {
	Outputs []byte // the output artifact, as the output bindings lay it out
	// Cycles are modelled: from the latest tile's first entry to the last end.
	Cycles uint64
	// CriticalTile is the physical id of the tile that ends last.
	CriticalTile int
	ByKind       Kinds // of the critical tile
	Phases       []Phase
	Profile      *profile.Profile // when samples were asked for
}

// Kinds are the modelled cycles of one tile by what it did.
type Kinds struct {
	Compute         uint64 // kernels
	Exchange        uint64 // events of exchange rows
	Synchronization uint64 // waiting at barriers, entering and leaving rows
}

// Phase is what happened in one exchange.
type Phase struct {
	Label        uint32
	FirstArrival uint64 // cycle at which the first and the last tile came to the barrier
	LastArrival  uint64
	Horizon      int32  // events of the longest row
	ActiveTiles  int    // tiles with a row
	Receives     int    // contiguous pieces that were written
	Words        uint64 // 32-bit words that were written, all receivers
}

// Device is one simulated card. Its methods must not be called at the same time.
type Device struct {
	options     Options
	tiles       []*tile          // ascending physical id
	index       []int32          // physical id -> index in tiles, or -1
	plan        [][]profile.Step // by index in tiles; names for samples only
	inputs      placement
	outputs     placement
	weights     placement
	initialized bool
	scratch     []*scratch // one for each worker
	exchange    exchange   // reused from phase to phase
}

// New returns a device without a package.
func New(options Options) *Device {
	if options.Workers <= 0 {
		options.Workers = runtime.GOMAXPROCS(0)
	}
	d := &Device{options: options, scratch: make([]*scratch, options.Workers)}
	for i := range d.scratch {
		d.scratch[i] = new(scratch)
	}
	return d
}

// tile is one tile: memory, decoded command stream and clock.
type tile struct {
	physical, logical int
	memory            []byte // MemoryBase..MemoryEnd
	commands          []program.Command
	protected         []span // bytes that nothing may write: code, tables, commands
	codeElements      uint32 // elements that code runs from while a kernel runs

	next    int // record to execute
	clock   uint64
	spent   Kinds
	samples []sample
}

// sample is when one record ran.
type sample struct{ start, end uint64 }

// span is a range of addresses, [start, end).
type span struct{ start, end uint32 }

// bytes returns the memory at an address. The range must have been checked.
func (t *tile) bytes(address uint32, n int) []byte {
	at := int(address - machine.MemoryBase)
	return t.memory[at : at+n : at+n]
}

// poison fills memory with 0xFF80, which reads as NaN in F16, F32 and F143.
func poison(memory []byte) {
	binary.LittleEndian.PutUint64(memory, 0xFF80FF80FF80FF80)
	for n := 8; n < len(memory); n *= 2 {
		copy(memory[n:], memory[:n])
	}
}

// Initialize puts the parameter artifact where the weight bindings say. It must
// come before Run if the package has weights.
func (d *Device) Initialize(ctx context.Context, parameters []byte) error {
	if d.tiles == nil {
		return errors.New("device: initialize without a package")
	}
	if err := d.put(ctx, "parameter", &d.weights, parameters); err != nil {
		return err
	}
	d.initialized = true
	return nil
}

// Run takes the input artifact, executes the command stream from the start of the
// "run" call to End on every tile, and returns the output artifact. Memory keeps
// its contents, so a second Run needs no second Initialize. Errors are *Fault, or
// that of the context; after one, memory holds what was done so far.
func (d *Device) Run(ctx context.Context, inputs []byte) (*Result, error) {
	switch {
	case d.tiles == nil:
		return nil, errors.New("device: run without a package")
	case !d.initialized && d.weights.size > 0:
		return nil, errors.New("device: run before the parameters were loaded")
	}
	if err := d.put(ctx, "input", &d.inputs, inputs); err != nil {
		return nil, err
	}
	r := &Result{}
	if err := d.execute(ctx, r); err != nil {
		return nil, err
	}
	r.Outputs = d.get(&d.outputs)
	return r, nil
}

// put copies an artifact to the tiles.
func (d *Device) put(ctx context.Context, what string, p *placement, file []byte) error {
	if uint64(len(file)) != p.size {
		return deviceFault(RuleHost, "%s file has %d bytes, the package's bindings need %d", what, len(file), p.size)
	}
	return parallel(ctx, d.options.Workers, len(d.tiles), func(_, i int) {
		for _, s := range p.slices[i] {
			copy(d.tiles[i].bytes(s.address, int(s.size)), file[s.offset:])
		}
	})
}

// get collects an artifact from the tiles.
func (d *Device) get(p *placement) []byte {
	file := make([]byte, p.size)
	for i, slices := range p.slices {
		for _, s := range slices {
			copy(file[s.offset:], d.tiles[i].bytes(s.address, int(s.size)))
		}
	}
	return file
}

// execute runs compute segments and exchange phases in turn until every tile is
// at its End.
func (d *Device) execute(ctx context.Context, r *Result) error {
	total := 0
	for i, t := range d.tiles {
		t.next, t.clock, t.spent, t.samples = 0, 0, Kinds{}, t.samples[:0]
		if i == 0 {
			for _, c := range t.commands {
				if c.Kind == program.Exchange {
					total++
				}
			}
		}
	}
	faults := make([]*Fault, len(d.tiles))
	for {
		if err := parallel(ctx, d.options.Workers, len(d.tiles), func(w, i int) {
			faults[i] = d.tiles[i].compute(ctx, d.scratch[w], d.options.CollectSamples)
		}); err != nil {
			return err
		}
		if f := first(faults); f != nil {
			return f
		}
		done, err := d.meet()
		if err != nil {
			return err
		}
		if done {
			break
		}
		phase, err := d.runExchange(ctx)
		if err != nil {
			return err
		}
		r.Phases = append(r.Phases, phase)
		if d.options.Progress != nil {
			d.options.Progress(Progress{len(r.Phases), total, d.latest().clock})
		}
	}
	last := d.latest()
	r.Cycles, r.CriticalTile, r.ByKind = last.clock, last.physical, last.spent
	if d.options.CollectSamples {
		var err error
		if r.Profile, err = d.profile(); err != nil {
			return err
		}
	}
	return nil
}

// latest returns the tile whose clock is furthest, of several the lowest logical id.
func (d *Device) latest() *tile {
	last := d.tiles[0]
	for _, t := range d.tiles {
		if t.clock > last.clock || t.clock == last.clock && t.logical < last.logical {
			last = t
		}
	}
	return last
}

// compute executes kernel calls up to the next barrier or the end.
func (t *tile) compute(ctx context.Context, s *scratch, sampling bool) *Fault {
	for ; t.commands[t.next].Kind == program.Call; t.next++ {
		if ctx.Err() != nil {
			return nil // the caller sees the context, too
		}
		c := &t.commands[t.next]
		cycles, broken := t.call(c, s)
		if broken != nil {
			return &Fault{
				t.physical, t.logical, t.next, none, none,
				fmt.Sprintf("%v, operation %d", c.Kernel, c.Label), broken.rule, broken.detail,
			}
		}
		if sampling {
			t.samples = append(t.samples, sample{t.clock, t.clock + cycles})
		}
		t.clock += cycles
		t.spent.Compute += cycles
	}
	return nil
}

// meet checks that all tiles are at the same place: the end, or exchanges with
// one label.
func (d *Device) meet() (done bool, err error) {
	lead := d.tiles[0]
	want := &lead.commands[lead.next]
	for _, t := range d.tiles[1:] {
		c := &t.commands[t.next]
		if c.Kind != want.Kind || c.Kind == program.Exchange && c.Label != want.Label {
			f := t.fault(RulePhase, "is at %s while tile %d (logical %d) is at %s",
				describe(c), lead.physical, lead.logical, describe(want))
			f.Record = t.next
			return false, f
		}
	}
	return want.Kind == program.End, nil
}

func describe(c *program.Command) string {
	if c.Kind == program.Exchange {
		return fmt.Sprintf("exchange %d", c.Label)
	}
	return "its end"
}
