package runner

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"ipufarm/protocol/profile"
	"ipufarm/protocol/program"
	"ipufarm/runner/device"
)

// Simulator is the simulated IPU21 as a Device. All its cycles are modelled.
type Simulator struct {
	Workers int // goroutines that simulate tiles; 0 means one per core
}

// Model implements Device.
func (Simulator) Model() string { return "simulated IPU21, cycles are modelled" }

// simulated is the detail of a simulated run.
type simulated struct {
	CriticalTile int               `json:"critical_tile"`
	CyclesByKind map[string]uint64 `json:"cycles_by_kind"`
	Phases       int               `json:"phases"`
	Receives     int               `json:"receives"`
	Words        uint64            `json:"words"`
}

// Run implements Device.
func (s Simulator) Run(ctx context.Context, x Load, progress func(string)) (Result, error) {
	p, err := program.Decode(x.Package)
	if err != nil {
		return Result{}, fmt.Errorf("%w: package: %w", ErrFault, err)
	}
	d := device.New(device.Options{Workers: s.Workers, CollectSamples: true, Progress: func(p device.Progress) {
		progress(fmt.Sprintf("phase %d of %d, %d modelled cycles", p.Done, p.Total, p.Cycles))
	}})
	if err := d.Load(p); err != nil {
		return Result{}, deviceError(ctx, err)
	}
	if err := d.Initialize(ctx, x.Parameters); err != nil {
		return Result{}, deviceError(ctx, err)
	}
	r, err := d.Run(ctx, x.Inputs)
	if err != nil {
		return Result{}, deviceError(ctx, err)
	}
	samples, err := profile.EncodeCompressed(r.Profile)
	if err != nil {
		return Result{}, fmt.Errorf("profile: %w", err)
	}
	detail := simulated{
		CriticalTile: r.CriticalTile, Phases: len(r.Phases),
		CyclesByKind: map[string]uint64{"compute": r.ByKind.Compute, "exchange": r.ByKind.Exchange, "synchronization": r.ByKind.Synchronization},
	}
	for _, phase := range r.Phases {
		detail.Receives += phase.Receives
		detail.Words += phase.Words
	}
	text, err := json.Marshal(detail)
	if err != nil {
		return Result{}, err
	}
	return Result{Outputs: r.Outputs, Cycles: r.Cycles, Profile: samples, Detail: text}, nil
}

// deviceError tells what the package did wrong from what was asked of us.
func deviceError(ctx context.Context, err error) error {
	var fault *device.Fault
	if ctx.Err() == nil && errors.As(err, &fault) {
		return fmt.Errorf("%w: %w", ErrFault, err)
	}
	return err
}
