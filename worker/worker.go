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

	slots := make([]*slot, cfg.Slots)
	for i := range slots {
		slots[i] = &slot{Config: &cfg, holder: holder, bell: make(chan protocol.Queue, 1), log: log.With("slot", i)}
		for _, q := range queues {
			stop, err := cfg.Bus.Bell(q, func() { slots[i].ring(q) })
			if err != nil {
				return fmt.Errorf("worker: %w", err)
			}
			defer stop()
		}
	}
	presence := &protocol.Presence{Version: protocol.Version, Owner: owner, Tool: cfg.Tool, Classes: protocol.Classes, Slots: cfg.Slots}
	if err := cfg.Bus.Announce(ctx, presence); err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	if ready != nil {
		ready()
	}
	var group sync.WaitGroup
	group.Go(func() { announce(ctx, cfg.Bus, presence, cfg.Timers.Renew, log) })
	for _, s := range slots {
		group.Go(func() { s.work(ctx) })
	}
	group.Wait()
	return cfg.Bus.Leave(context.WithoutCancel(ctx), cfg.Name)
}

func announce(ctx context.Context, b *bus.Bus, p *protocol.Presence, every time.Duration, log *slog.Logger) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if err := b.Announce(ctx, p); err != nil && ctx.Err() == nil {
				log.Warn("presence", "error", err)
			}
		}
	}
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

// turns is the order in which a slot gives the priorities their first look: of
// twelve looks eight go to the first priority, three to the second and one to the
// last, so that a flood of urgent work does not starve the rest.
var turns = [12]int{0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 2}

// slot executes one task at a time.
type slot struct {
	*Config
	holder *ticket.Holder
	bell   chan protocol.Queue
	turn   int
	stager stager
	log    *slog.Logger
}

func (s *slot) ring(q protocol.Queue) {
	select {
	case s.bell <- q:
	default:
	}
}

func (s *slot) work(ctx context.Context) {
	if s.Stage != nil {
		s.stager = inProcess{s.Stage}
	} else {
		s.stager = newChild(s.Command, s.Env, s.log)
	}
	defer s.stager.close()
	for ctx.Err() == nil {
		t, err := s.next(ctx)
		if err != nil {
			s.log.Warn("queue", "error", err)
			wait(ctx, s.Timers.Poll)
			continue
		}
		if t != nil {
			s.holder.Hold(ctx, t, s.execute)
		}
	}
}

// bellWait is how long a slot waits for the ticket that a bell was about.
const bellWait = 20 * time.Millisecond

// next looks for a ticket, and if there is none waits for a bell.
func (s *slot) next(ctx context.Context) (*bus.Ticket, error) {
	first := turns[s.turn%len(turns)]
	s.turn++
	for i := range queues {
		// The queue whose turn it is, then the others by priority.
		q := queues[first]
		if i > 0 {
			at := i
			if i <= first {
				at = i - 1
			}
			q = queues[at]
		}
		if t, err := s.Bus.Take(ctx, q, 0); t != nil || err != nil {
			return t, err
		}
	}
	select {
	case <-ctx.Done():
		return nil, nil
	case q := <-s.bell:
		return s.Bus.Take(ctx, q, bellWait)
	case <-time.After(s.Timers.Poll):
		return nil, nil
	}
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (s *slot) execute(ctx context.Context, w ticket.Work) (protocol.StageResult, error) {
	start := time.Now()
	result, err := s.stager.run(ctx, protocol.StageRequest{
		Kind: string(w.Task.Kind), Spec: w.Task.Spec, Candidate: w.Task.Candidate, Inputs: w.Inputs, OutDir: w.OutDir,
	}, w.Progress)
	result.Seconds = time.Since(start).Seconds()
	return result, err
}
