// Package runner owns a device: it takes runs from the farm's queue, makes sure
// that nobody else uses the device meanwhile, runs packages, compares what comes
// back with the reference, and commits the run record.
//
// Three locks guard a device, each against something that the others miss: a
// lease in the farm's store (runners on other hosts), an epoch file (a runner
// that comes back after its lease was given to another), and a file lock of the
// kernel (another process on this host, and one that died).
package runner

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"ipufarm/protocol"
	"ipufarm/protocol/bus"
	"ipufarm/protocol/store"
	"ipufarm/protocol/ticket"
)

// Device is one card or its simulation.
type Device interface {
	// Run loads a package, initialises it with the parameters, runs it once with
	// the inputs and returns what came back. An error that wraps ErrFault is the
	// package's doing: it would happen again. Nothing else uses the device
	// meanwhile.
	Run(ctx context.Context, x Load, progress func(string)) (Result, error)
	// Model says in a few words what kind of device it is.
	Model() string
}

// Load is what a device gets: the files of the package and of its bindings.
type Load struct{ Package, Parameters, Inputs []byte }

// Result is what a device gives: the output file as the package's bindings lay
// it out, the cycles and whether a card measured them, an encoded profile, and a
// JSON object with what else it knows about the run.
type Result struct {
	Outputs  []byte
	Cycles   uint64
	Measured bool // false: modelled
	Profile  []byte
	Detail   []byte
}

// ErrFault is wrapped by errors that the package caused.
var ErrFault = errors.New("device fault")

// Config of a runner.
type Config struct {
	Name        string
	DeviceName  string
	DeviceClass string
	Device      Device
	Bus         *bus.Bus // joined
	Store       *store.Store
	Cache       *ticket.Cache
	Dir         string // absolute; epoch, lock and journal of the device
	Scratch     string // absolute
	Timers      protocol.Timers
	Log         *slog.Logger
}

func (c *Config) check() error {
	if err := errors.Join(protocol.CheckName(c.Name), protocol.CheckName(c.DeviceName), protocol.CheckName(c.DeviceClass), c.Timers.Check()); err != nil {
		return fmt.Errorf("runner: %w", err)
	}
	if !filepath.IsAbs(c.Dir) || !filepath.IsAbs(c.Scratch) {
		return fmt.Errorf("runner: folders %q and %q must be absolute", c.Dir, c.Scratch)
	}
	if c.DeviceName == protocol.AnyDevice {
		return fmt.Errorf("runner: %q cannot be the name of a device", protocol.AnyDevice)
	}
	return nil
}

// Run serves the device until ctx ends. ready, if not nil, is called when the
// runner has announced itself.
func Run(ctx context.Context, cfg Config, ready func()) error {
	if err := cfg.check(); err != nil {
		return err
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return fmt.Errorf("runner: %w", err)
	}
	owner := protocol.Owner{Name: cfg.Name, Boot: protocol.NewBoot()}
	r := &runner{Config: cfg, owner: owner, log: cfg.Log.With("runner", cfg.Name)}
	holder := &ticket.Holder{
		Bus: cfg.Bus, Store: cfg.Store, Cache: cfg.Cache, Owner: owner, Scratch: cfg.Scratch, Timers: cfg.Timers, Log: r.log,
	}
	if err := holder.Open(); err != nil {
		return fmt.Errorf("runner: %w", err)
	}
	defer holder.Close()
	queues := []protocol.Queue{protocol.RunQueue(cfg.DeviceClass, cfg.DeviceName), protocol.RunQueue(cfg.DeviceClass, protocol.AnyDevice)}
	puller, err := ticket.NewPuller(cfg.Bus, queues, []int{0, 1}, cfg.Timers.Poll)
	if err != nil {
		return fmt.Errorf("runner: %w", err)
	}
	defer puller.Close()
	presence := &protocol.Presence{Version: protocol.Version, Owner: owner, Classes: []string{}, Device: cfg.DeviceName}
	if err := cfg.Bus.Announce(ctx, presence); err != nil {
		return fmt.Errorf("runner: %w", err)
	}
	if ready != nil {
		ready()
	}
	var group sync.WaitGroup
	group.Go(func() { ticket.KeepAnnouncing(ctx, cfg.Bus, presence, cfg.Timers.Renew, r.log) })
	puller.Each(ctx, r.log, func(t *bus.Ticket) { holder.Hold(ctx, t, r.execute) })
	group.Wait()
	return cfg.Bus.Leave(context.WithoutCancel(ctx), cfg.Name)
}

type runner struct {
	Config
	owner protocol.Owner
	log   *slog.Logger
}

// execute is one run: files into memory, the device under its locks, and then,
// with the device free again, the comparison.
func (r *runner) execute(ctx context.Context, w ticket.Work) (protocol.StageResult, error) {
	var load Load
	var expected []byte
	for role, to := range map[string]*[]byte{
		protocol.RolePackage: &load.Package, protocol.RoleParameters: &load.Parameters, protocol.RoleInputs: &load.Inputs, protocol.RoleExpected: &expected,
	} {
		path, ok := w.Inputs[role]
		if !ok {
			return failed(fmt.Errorf("the run has no input %q", role)), nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return protocol.StageResult{}, err
		}
		*to = data
	}
	release, deviceCtx, err := r.acquire(ctx, w)
	if err != nil {
		return protocol.StageResult{}, err
	}
	start := time.Now()
	result, err := r.Device.Run(deviceCtx, load, w.Progress)
	seconds := time.Since(start).Seconds()
	fenced := context.Cause(deviceCtx)
	release()
	switch {
	case fenced != nil:
		return protocol.StageResult{}, fenced
	case errors.Is(err, ErrFault):
		return failed(err), nil
	case err != nil:
		return protocol.StageResult{}, err
	}
	report, values, err := check(load.Package, result, expected, w.Task)
	if err != nil {
		return failed(err), nil
	}
	report.Device, report.DeviceClass, report.Model = r.DeviceName, r.DeviceClass, r.Device.Model()
	return r.write(w.OutDir, report, values, result.Profile, seconds)
}

func failed(err error) protocol.StageResult {
	return protocol.StageResult{Verdict: protocol.Verdict{Kind: protocol.Failed, Message: protocol.Clip(err.Error())}}
}

// write leaves the artifacts of a run in its folder.
func (r *runner) write(dir string, report *protocol.RunReport, values, profile []byte, seconds float64) (protocol.StageResult, error) {
	facts, err := protocol.CanonicalOf(report)
	if err != nil {
		return failed(fmt.Errorf("run record: %w", err)), nil
	}
	for name, data := range map[string][]byte{protocol.RoleOutputs: values, protocol.RoleProfile: profile, protocol.RoleRun: facts} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return protocol.StageResult{}, err
		}
	}
	return protocol.StageResult{
		Verdict:   protocol.Verdict{Kind: protocol.Feasible, Cycles: report.Cycles},
		Artifacts: map[string]string{protocol.RoleOutputs: protocol.RoleOutputs, protocol.RoleProfile: protocol.RoleProfile, protocol.RoleRun: protocol.RoleRun},
		Facts:     facts, Seconds: seconds,
	}, nil
}
