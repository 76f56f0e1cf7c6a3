// Package worker takes tasks of the compiler from the farm's queues and executes
// them, one per slot, each slot in a child process of its own. The worker itself
// runs no compiler code: a candidate that crashes, spins or allocates without
// bound cannot take the heartbeat down.
//
// What a stage does is somebody else's: the worker hands a request to a
// protocol.StageFunc on the other side of a pipe and knows nothing of compilers.
package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"ipufarm/protocol"
	"ipufarm/protocol/bus"
	"ipufarm/protocol/store"
	"ipufarm/protocol/ticket"
)

// Config of a worker. Exactly one of Command and Stage is set.
type Config struct {
	Name    string
	Slots   int
	Bus     *bus.Bus // joined
	Store   *store.Store
	Cache   *ticket.Cache
	Scratch string // absolute folder for the attempts' files
	Tool    string // digest of the executable that Command starts
	Timers  protocol.Timers
	Log     *slog.Logger

	Command []string           // of a child process that calls ChildMain
	Env     []string           // added to its environment
	Stage   protocol.StageFunc // called in this process instead; for tests
}

func (c *Config) check() error {
	if err := errors.Join(protocol.CheckName(c.Name), protocol.CheckDigest(c.Tool), c.Timers.Check()); err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	if c.Slots < 1 || c.Slots > 1024 {
		return fmt.Errorf("worker: %d slots, accepted are 1 to 1024", c.Slots)
	}
	if !filepath.IsAbs(c.Scratch) {
		return fmt.Errorf("worker: scratch folder %q is not absolute", c.Scratch)
	}
	if (len(c.Command) == 0) == (c.Stage == nil) {
		return errors.New("worker: exactly one of a command and a function must execute stages")
	}
	return nil
}

// Run works until ctx ends, and gives back what it holds then. ready, if not nil,
// is called when the worker has announced itself.
func Run(ctx context.Context, cfg Config, ready func()) error {
	if err := cfg.check(); err != nil {
		return err
	}
	owner := protocol.Owner{Name: cfg.Name, Boot: protocol.NewBoot()}
	log := cfg.Log.With("worker", cfg.Name)
	holder := &ticket.Holder{
		Bus: cfg.Bus, Store: cfg.Store, Cache: cfg.Cache, Owner: owner, Tool: cfg.Tool, Scratch: cfg.Scratch, Timers: cfg.Timers, Log: log,
	}
	if err := holder.Open(); err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	defer holder.Close()

	presence := &protocol.Presence{Version: protocol.Version, Owner: owner, Tool: cfg.Tool, Classes: protocol.Classes, Slots: cfg.Slots}
	if err := cfg.Bus.Announce(ctx, presence); err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	var group sync.WaitGroup
	group.Go(func() { ticket.KeepAnnouncing(ctx, cfg.Bus, presence, cfg.Timers.Renew, log) })
	for i := range cfg.Slots {
		puller, err := ticket.NewPuller(cfg.Bus, queues, turns, cfg.Timers.Poll)
		if err != nil {
			return fmt.Errorf("worker: %w", err)
		}
		defer puller.Close()
		group.Go(func() { work(ctx, &cfg, puller, holder, log.With("slot", i)) })
	}
	if ready != nil {
		ready()
	}
	group.Wait()
	return cfg.Bus.Leave(context.WithoutCancel(ctx), cfg.Name)
}

// queues are what a worker takes from, first priority first.
var queues = func() (list []protocol.Queue) {
	for _, class := range protocol.Classes {
		for priority := range protocol.Priorities {
			list = append(list, protocol.TaskQueue(class, priority))
		}
	}
	return list
}()

// turns: of twelve first looks eight go to the first priority, three to the
// second and one to the last, so that a flood of urgent work does not starve the
// rest.
var turns = []int{0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 2}

// work is the life of one slot.
func work(ctx context.Context, cfg *Config, puller *ticket.Puller, holder *ticket.Holder, log *slog.Logger) {
	var s stager
	if cfg.Stage != nil {
		s = inProcess{cfg.Stage}
	} else {
		s = newChild(cfg.Command, cfg.Env, log)
	}
	defer s.close()
	puller.Each(ctx, log, func(t *bus.Ticket) {
		holder.Hold(ctx, t, func(ctx context.Context, w ticket.Work) (protocol.StageResult, error) {
			start := time.Now()
			result, err := s.run(ctx, protocol.StageRequest{
				Kind: string(w.Task.Kind), Spec: w.Task.Spec, Candidate: w.Task.Candidate, Inputs: w.Inputs, OutDir: w.OutDir,
			}, w.Progress)
			result.Seconds = time.Since(start).Seconds()
			return result, err
		})
	})
}
