package farmcmd

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"ipufarm/coordinator"
	"ipufarm/deploy/config"
	"ipufarm/deploy/local/runcmd"
	"ipufarm/protocol"
	"ipufarm/protocol/bus"
	natsserver "ipufarm/protocol/bus/server"
	"ipufarm/protocol/store"
	"ipufarm/protocol/ticket"
	"ipufarm/runner"
	"ipufarm/worker"
)

// part is what a process of the farm is started with.
type part struct {
	config.Config
	ctx    context.Context
	timers protocol.Timers
	bus    *bus.Bus
	store  *store.Store
	dir    string // the state folder, locked
	log    *slog.Logger
	ready  func() // says so on standard output
}

// partVerb makes the verb of a part: run does its work until its context ends.
func partVerb(c *cobra.Command, parts []config.Part, check func(*config.Config) error, run func(p *part) error) *cobra.Command {
	var flags config.Flags
	c.Args = runcmd.NoArguments
	c.RunE = func(c *cobra.Command, _ []string) error {
		cfg, err := flags.Load(c.Flags())
		if err != nil {
			return err
		}
		if err := check(&cfg); err != nil {
			return err
		}
		return start(c.Context(), cfg, c.Name(), c.OutOrStdout(), c.ErrOrStderr(), run)
	}
	flags.Bind(c.Flags(), append([]config.Part{config.WithNATS, config.WithS3, config.WithState}, parts...)...)
	return c
}

// start connects, runs a part and puts everything back in order.
func start(ctx context.Context, cfg config.Config, kind string, stdout, stderr io.Writer, run func(p *part) error) (err error) {
	timers, err := cfg.FarmTimers()
	if err != nil {
		return err
	}
	if err := cfg.CheckNATS(); err != nil {
		return err
	}
	if err := cfg.CheckS3(); err != nil {
		return err
	}
	name := cfg.Name
	if name == "" {
		name = kind
	}
	p := &part{Config: cfg, ctx: ctx, timers: timers, log: slog.New(slog.NewTextHandler(stderr, nil)), ready: func() {
		fmt.Fprintf(stdout, "%s is ready\n", name)
	}}
	release, err := p.lock()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, release()) }()
	if p.bus, err = dial(&cfg, bus.Config{Name: name, Log: p.log}); err != nil {
		return err
	}
	defer p.bus.Close()
	if p.store, err = openStore(ctx, &cfg); err != nil {
		return err
	}
	defer p.store.Close()
	return run(p)
}

// lock makes the state folder and takes it; without one it is a temporary folder.
func (p *part) lock() (release func() error, err error) {
	temporary := p.State == ""
	if p.dir = p.State; temporary {
		p.dir, err = os.MkdirTemp("", "ipufarm-*")
	} else {
		err = os.MkdirAll(p.dir, 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("--state %s (config key state): %w; a folder that can be written is accepted", p.dir, err)
	}
	file, err := natsserver.Lock(filepath.Join(p.dir, "lock"))
	if err != nil {
		return nil, fmt.Errorf("--state (config key state): %w; a folder for each process is accepted", err)
	}
	// What attempts of an earlier process left behind is of no use to anybody.
	if err := os.RemoveAll(p.scratch()); err != nil {
		file.Close()
		return nil, fmt.Errorf("--state %s (config key state): %w", p.dir, err)
	}
	return func() error {
		file.Close()
		if temporary {
			return os.RemoveAll(p.dir)
		}
		return nil
	}, nil
}

func (p *part) scratch() string { return filepath.Join(p.dir, "scratch") }

// join waits for the coordinator, which makes the streams and buckets.
func (p *part) join() error {
	p.log.Info("joining the farm", "name", p.Name, "nats", strings.Join(p.NATS.URLs, ","))
	err := p.bus.Join(p.ctx)
	if p.ctx.Err() != nil {
		return p.ctx.Err()
	}
	return err
}

// ended takes the end of the context for what it is: an orderly end.
func (p *part) ended(err error) error {
	if p.ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// needsState refuses a configuration without a folder for a part that must remember.
func needsState(what string) func(*config.Config) error {
	return func(c *config.Config) error {
		if c.State == "" {
			return fmt.Errorf("--state (config key state): missing; a folder for %s is accepted, the same one at every start", what)
		}
		return nil
	}
}

// Coordinator returns the verb.
func Coordinator() *cobra.Command {
	return partVerb(&cobra.Command{
		Use:   "coordinator",
		Short: "coordinate a farm on a NATS and an S3 server until told to end",
		Long: `Make the streams and buckets of the farm on the NATS server, take jobs in, apply
policies to verdicts and decide. One coordinator serves a farm; what it knows is in
its state folder and on the servers, so it may be stopped and started at any time.
SIGTERM and interrupt end it in order, with status 0.`,
	}, []config.Part{config.WithQueues}, needsState("the coordinator's database"), func(p *part) error {
		if err := p.store.CheckConditions(p.ctx); err != nil {
			return fmt.Errorf("--s3 %s (config key s3.endpoint): %w", p.S3.Endpoint, err)
		}
		layout := bus.DefaultLayout(p.timers, p.Device.Class, p.Devices...)
		layout.Replicas = p.NATS.Replicas
		return p.ended(coordinator.Run(p.ctx, coordinator.Config{
			Bus: p.bus, Store: p.store, Path: filepath.Join(p.dir, "coordinator.db"), Log: p.log, Layout: layout,
		}, p.ready))
	})
}

// Worker returns the verb.
func Worker() *cobra.Command {
	return partVerb(&cobra.Command{
		Use:   "worker",
		Short: "execute a farm's tasks in child processes until told to end",
		Long: `Take tasks from the farm's queues and execute each in a child process of this
executable. It waits for a coordinator to make the queues. Without --state, what it
keeps is in a temporary folder. SIGTERM and interrupt end it in order, with status
0: it gives back what it has not finished.`,
	}, []config.Part{config.WithName, config.WithSlots}, named, func(p *part) error {
		executable, digest, err := self()
		if err != nil {
			return err
		}
		cache, err := ticket.NewCache(filepath.Join(p.dir, "cache"))
		if err != nil {
			return err
		}
		if err := p.join(); err != nil {
			return p.ended(err)
		}
		slots := p.Slots
		if slots == 0 {
			slots = runtime.NumCPU()
		}
		return p.ended(worker.Run(p.ctx, worker.Config{
			Name: p.Name, Slots: slots, Bus: p.bus, Store: p.store, Cache: cache, Scratch: p.scratch(), Tool: digest, Timers: p.timers, Log: p.log,
			Command: []string{executable, "stage"},
		}, p.ready))
	})
}

// Runner returns the verb.
func Runner() *cobra.Command {
	return partVerb(&cobra.Command{
		Use:   "runner",
		Short: "run a farm's packages on a device until told to end",
		Long: `Guard one device and run packages on it: the simulated IPU21, whose cycles are
modelled. The coordinator must know the device's name (--devices) for jobs that ask
for it by name. SIGTERM and interrupt end it in order, with status 0.`,
	}, []config.Part{config.WithName, config.WithDevice}, func(c *config.Config) error {
		if c.Device.Name == "" {
			return errors.New("--device (config key device.name): missing; the name of a device that the coordinator's --devices lists is accepted, such as sim0")
		}
		if c.Device.Name == protocol.AnyDevice {
			return fmt.Errorf("--device %s (config key device.name): any other name is accepted, this one is for jobs that do not care", protocol.AnyDevice)
		}
		if err := needsState("the lock and the journal of the device")(c); err != nil {
			return err
		}
		return named(c)
	}, func(p *part) error {
		cache, err := ticket.NewCache(filepath.Join(p.dir, "cache"))
		if err != nil {
			return err
		}
		if err := p.join(); err != nil {
			return p.ended(err)
		}
		return p.ended(runner.Run(p.ctx, runner.Config{
			Name: p.Name, DeviceName: p.Device.Name, DeviceClass: p.Device.Class, Device: runner.Simulator{}, Bus: p.bus, Store: p.store, Cache: cache,
			Dir: filepath.Join(p.dir, "device"), Scratch: p.scratch(), Timers: p.timers, Log: p.log,
		}, p.ready))
	})
}

// self is the path of this executable and its digest.
func self() (path, digest string, err error) {
	if path, err = os.Executable(); err != nil {
		return "", "", err
	}
	digest, _, err = store.DigestFile(path)
	return path, digest, err
}

// named gives a process without a name one after its host, with some random digits:
// two owners with one name would be taken for each other.
func named(c *config.Config) error {
	if c.Name != "" {
		return nil
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("--name (config key name): missing, and the host has no name: %w", err)
	}
	host = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(host))
	var b [4]byte
	rand.Read(b[:]) // never fails
	c.Name = strings.Trim(host[:min(len(host), 20)], "-") + "-" + hex.EncodeToString(b[:])
	return nil
}
