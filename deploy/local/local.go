// Package local is the whole farm in one process: NATS server, S3 server,
// coordinator, workers and a runner, with loopback connections between them. It
// is the same code as on many hosts, given other addresses.
//
// While a farm is started the working directory of the process is the S3
// server's folder, so callers must make their own paths absolute before; Close
// returns to the former one. A process can have one farm at a time.
package local

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"ipufarm/coordinator"
	"ipufarm/coordinator/client"
	"ipufarm/deploy/config"
	"ipufarm/protocol"
	"ipufarm/protocol/bus"
	natsserver "ipufarm/protocol/bus/server"
	"ipufarm/protocol/store"
	s3server "ipufarm/protocol/store/server"
	"ipufarm/protocol/ticket"
	"ipufarm/runner"
	"ipufarm/worker"
)

// Names of what an embedded farm consists of.
const (
	DeviceClass = "ipu21"
	DeviceName  = "sim0"
	bucket      = "farm"
)

// MaxWorkers bounds Options.Workers.
const MaxWorkers = 256

// Options of a farm. The zero value is a farm with a worker for each core in a
// temporary folder that executes stages with "ipufarm stage" and has the
// simulated device.
type Options struct {
	// State is the folder that keeps everything; it may hold the state of an
	// earlier farm, which then goes on. Empty is a temporary one that Close removes.
	State    string
	Workers  int // 0 is one for each core
	NATSPort int // 0 is a free one
	S3Port   int // 0 is a free one

	// Command starts a child process that calls worker.ChildMain; nil is this
	// executable with the argument "stage". Env is added to its environment.
	Command []string
	Env     []string
	// Stage executes stages in this process instead of in children; for tests.
	Stage protocol.StageFunc
	// Device is what the runner runs packages on; nil is the simulated device. Its
	// name, empty for DeviceName, is in the run record.
	Device     runner.Device
	DeviceName string

	Timers protocol.Timers // zero is DefaultTimers with a quicker reaper
	Log    *slog.Logger    // nil discards

	failpoint func(effect string) error
}

// Farm is a running farm.
type Farm struct {
	Client *client.Client
	// Tool is the digest of the executable that runs the stages: jobs name it.
	Tool string
	// NATS and S3 are the addresses of the two servers on the loopback interface.
	NATS, S3 string

	opts      Options
	dir       string
	temporary bool
	nats      *natsserver.Server
	s3        *s3server.Server
	creds     credentials
	lock      *os.File
	cancel    context.CancelFunc
	parts     *errgroup.Group
	buses     []*bus.Bus
	artifacts *store.Store
	stopped   sync.Once
	closeErr  error
	failed    chan error // of the first part that ends by itself

	stopCoordinator context.CancelFunc
	coordinatorDone chan error
}

// credentials are made anew for every start: nothing but this process and what it
// tells them to can use the servers.
type credentials struct{ natsUser, natsPassword, s3Access, s3Secret string }

// Start starts a farm. It is ready to take jobs when Start returns.
func Start(ctx context.Context, o Options) (*Farm, error) {
	f, err := prepare(o)
	if err != nil {
		return nil, fmt.Errorf("farm: %w", err)
	}
	if err := f.start(ctx); err != nil {
		return nil, fmt.Errorf("farm: %w", errors.Join(err, f.Close()))
	}
	return f, nil
}

func prepare(o Options) (*Farm, error) {
	if o.Workers == 0 {
		o.Workers = runtime.NumCPU()
	}
	if o.Workers < 1 || o.Workers > MaxWorkers {
		return nil, fmt.Errorf("%d workers, accepted are 1 to %d", o.Workers, MaxWorkers)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if o.Timers == (protocol.Timers{}) {
		o.Timers = protocol.DefaultTimers()
		o.Timers.Reap = 10 * time.Second // a few tasks on this host: looking costs nothing
	}
	if o.Device == nil {
		o.Device = runner.Simulator{}
	}
	if o.DeviceName == "" {
		o.DeviceName = DeviceName
	}
	if o.Command == nil && o.Stage == nil {
		executable, err := os.Executable()
		if err != nil {
			return nil, err
		}
		o.Command = []string{executable, "stage"}
	}
	f := &Farm{opts: o, failed: make(chan error, 1), creds: credentials{rand.Text(), rand.Text(), rand.Text(), rand.Text()}, dir: o.State}
	var err error
	if o.State == "" {
		f.temporary = true
		f.dir, err = os.MkdirTemp("", "ipufarm-*")
	} else if f.dir, err = filepath.Abs(o.State); err == nil {
		err = os.MkdirAll(f.dir, 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("state folder: %w", err)
	}
	if f.lock, err = natsserver.Lock(filepath.Join(f.dir, "lock")); err != nil {
		return nil, err
	}
	// What attempts of an earlier farm left behind is of no use to anybody.
	if err := os.RemoveAll(filepath.Join(f.dir, "scratch")); err != nil {
		f.lock.Close()
		return nil, fmt.Errorf("state folder: %w", err)
	}
	return f, nil
}

func (f *Farm) start(ctx context.Context) error {
	// Both servers and the digest of the executable are independent of each other.
	var group errgroup.Group
	group.Go(func() (err error) {
		f.nats, err = natsserver.Start(natsserver.Options{
			Dir: filepath.Join(f.dir, "nats"), Port: f.opts.NATSPort, User: f.creds.natsUser, Password: f.creds.natsPassword, Log: f.opts.Log,
		})
		return err
	})
	group.Go(func() (err error) {
		f.s3, err = s3server.Start(s3server.Options{
			Dir: filepath.Join(f.dir, "s3"), Port: f.opts.S3Port, AccessKey: f.creds.s3Access, SecretKey: f.creds.s3Secret,
		})
		return err
	})
	group.Go(func() (err error) {
		path := ""
		if f.opts.Stage == nil {
			path = f.opts.Command[0]
		} else if path, err = os.Executable(); err != nil {
			return err
		}
		f.Tool, _, err = store.DigestFile(path)
		return err
	})
	if err := group.Wait(); err != nil {
		return err
	}
	f.NATS, f.S3 = f.nats.ClientURL(), f.s3.Endpoint
	return f.startParts(ctx)
}

func (f *Farm) startParts(ctx context.Context) error {
	var err error
	f.artifacts, err = store.Open(ctx, store.Config{Endpoint: f.s3.Endpoint, Bucket: bucket, AccessKey: f.creds.s3Access, SecretKey: f.creds.s3Secret})
	if err != nil {
		return err
	}
	if err := f.artifacts.CheckConditions(ctx); err != nil {
		return err
	}
	cache, err := ticket.NewCache(filepath.Join(f.dir, "cache"))
	if err != nil {
		return err
	}
	// The parts outlive the context of Start: Close ends them.
	var partsCtx context.Context
	partsCtx, f.cancel = context.WithCancel(context.WithoutCancel(ctx))
	f.parts = new(errgroup.Group)
	if err := f.startCoordinator(partsCtx); err != nil {
		return err
	}
	ready := make(chan struct{}, f.opts.Workers+1)
	launch := func(name string, run func(b *bus.Bus, ready func()) error) error {
		b, err := f.connect(ctx, name)
		if err != nil {
			return err
		}
		f.parts.Go(func() error {
			err := run(b, func() { ready <- struct{}{} })
			f.fail(name, err)
			return err
		})
		return nil
	}
	for i := range f.opts.Workers {
		cfg := worker.Config{
			Name: fmt.Sprintf("worker-%d", i), Slots: 1, Store: f.artifacts, Cache: cache, Scratch: filepath.Join(f.dir, "scratch"), Tool: f.Tool,
			Timers: f.opts.Timers, Log: f.opts.Log, Stage: f.opts.Stage, Env: f.opts.Env,
		}
		if f.opts.Stage == nil {
			cfg.Command = f.opts.Command
		}
		if err := launch(cfg.Name, func(b *bus.Bus, ready func()) error { cfg.Bus = b; return worker.Run(partsCtx, cfg, ready) }); err != nil {
			return err
		}
	}
	err = launch("runner-0", func(b *bus.Bus, ready func()) error {
		return runner.Run(partsCtx, runner.Config{
			Name: "runner-0", DeviceName: f.opts.DeviceName, DeviceClass: DeviceClass, Device: f.opts.Device, Bus: b, Store: f.artifacts, Cache: cache,
			Dir: filepath.Join(f.dir, "device"), Scratch: filepath.Join(f.dir, "scratch"), Timers: f.opts.Timers, Log: f.opts.Log,
		}, ready)
	})
	if err != nil {
		return err
	}
	b, err := f.connect(ctx, "client")
	if err != nil {
		return err
	}
	f.Client = &client.Client{Bus: b, Store: f.artifacts}
	for range f.opts.Workers + 1 {
		select {
		case <-ready:
		case err := <-f.failed:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// connect opens a connection that does not leave the process.
func (f *Farm) connect(ctx context.Context, name string) (*bus.Bus, error) {
	b, err := f.dial(name)
	if err != nil {
		return nil, err
	}
	return b, b.Join(ctx)
}

func (f *Farm) dial(name string) (*bus.Bus, error) {
	b, err := bus.Connect(bus.Config{Server: f.nats, User: f.creds.natsUser, Password: f.creds.natsPassword, Name: name, Log: f.opts.Log})
	if err == nil {
		f.buses = append(f.buses, b)
	}
	return b, err
}

func (f *Farm) startCoordinator(ctx context.Context) error {
	b, err := f.dial("coordinator")
	if err != nil {
		return err
	}
	ctx, f.stopCoordinator = context.WithCancel(ctx)
	ready, done := make(chan struct{}), make(chan error, 1)
	f.coordinatorDone = done
	go func() {
		err := coordinator.Run(ctx, coordinator.Config{
			Bus: b, Store: f.artifacts, Path: filepath.Join(f.dir, "coordinator.db"), Log: f.opts.Log.With("part", "coordinator"),
			Layout: bus.DefaultLayout(f.opts.Timers, DeviceClass, f.opts.DeviceName), Failpoint: f.opts.failpoint,
		}, func() { close(ready) })
		f.fail("coordinator", err)
		done <- err
	}()
	select {
	case <-ready:
		return nil
	case err := <-done:
		f.coordinatorDone = nil
		return err
	}
}

// Config is what another process on this host needs to talk to the farm. It holds
// the credentials.
func (f *Farm) Config() config.Config {
	return config.Config{
		NATS:   config.NATS{URLs: []string{f.NATS}, User: f.creds.natsUser, Password: f.creds.natsPassword, Replicas: 1},
		S3:     config.S3{Endpoint: f.S3, Bucket: bucket, AccessKey: f.creds.s3Access, SecretKey: f.creds.s3Secret},
		Device: config.Device{Class: DeviceClass}, Devices: []string{f.opts.DeviceName}, Tool: f.Tool, Embedded: true,
	}
}

// fail notes that a part ended by itself, which it never should.
func (f *Farm) fail(name string, err error) {
	if err == nil {
		return
	}
	f.opts.Log.Error("a part of the farm ended", "name", name, "error", err)
	select {
	case f.failed <- fmt.Errorf("%s: %w", name, err):
	default:
	}
}

// Failed gives the error of a part that ended by itself. Nothing that was
// submitted is lost then, but it may not go on until the next start.
func (f *Farm) Failed() <-chan error { return f.failed }

// Close ends the farm in order: workers and runner give back what they hold, the
// coordinator and the servers stop, and a temporary state folder is removed.
func (f *Farm) Close() error {
	f.stopped.Do(func() { f.closeErr = f.close() })
	return f.closeErr
}

func (f *Farm) close() error {
	var errs []error
	if f.cancel != nil {
		f.cancel()
		errs = append(errs, f.parts.Wait())
	}
	if f.coordinatorDone != nil {
		f.stopCoordinator()
		errs = append(errs, <-f.coordinatorDone)
	}
	for _, b := range f.buses {
		b.Close()
	}
	// The two servers take a tenth of a second each.
	var servers sync.WaitGroup
	if f.nats != nil {
		servers.Go(f.nats.Stop)
	}
	if f.artifacts != nil {
		f.artifacts.Close()
	}
	if f.s3 != nil {
		errs = append(errs, f.s3.Stop())
	}
	servers.Wait()
	f.lock.Close()
	if f.temporary {
		errs = append(errs, os.RemoveAll(f.dir))
	}
	return errors.Join(errs...)
}
