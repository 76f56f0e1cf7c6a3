package farmcmd

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"ipufarm/deploy/config"
	"ipufarm/deploy/local/runcmd"
	"ipufarm/protocol"
	"ipufarm/protocol/bus"
)

// overview is what top prints with --json. Keys are added, never changed.
type overview struct {
	Workers []workerLine `json:"workers"`
	Runners []runnerLine `json:"runners"`
	Queues  []queueLine  `json:"queues"`
}

type workerLine struct {
	Name  string `json:"name"`
	Slots int    `json:"slots"`
	Tool  string `json:"tool"`
}

type runnerLine struct {
	Name   string `json:"name"`
	Device string `json:"device"`
}

type queueLine struct {
	Queue  string `json:"queue"`
	Queued int    `json:"queued"` // tickets that nobody holds
	Active int    `json:"active"` // tickets that somebody holds
}

// Top returns the verb.
func Top() *cobra.Command {
	var to reach
	c := &cobra.Command{
		Use:   "top",
		Short: "list a farm's workers, runners and queues",
		Long: `List who is there, and how many tasks are queued and being executed: workers with
their slots and the digest of their executable, runners with their devices, and the
queues of tasks by priority and of runs by device. The devices are those of the
runners that are there.`,
		Args: runcmd.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			s, shut, err := to.open(c, false)
			if err != nil {
				return err
			}
			defer shut()
			var o *overview
			err = s.within(c.Context(), func(ctx context.Context) error {
				o, err = look(ctx, s)
				return err
			})
			if err != nil {
				return err
			}
			if to.json {
				return printJSON(c, o)
			}
			w := tabwriter.NewWriter(c.OutOrStdout(), 0, 0, 2, ' ', 0)
			for _, x := range o.Workers {
				fmt.Fprintf(w, "worker\t%s\t%d slots\ttool %.12s\n", x.Name, x.Slots, x.Tool)
			}
			for _, x := range o.Runners {
				fmt.Fprintf(w, "runner\t%s\tdevice %s\t\n", x.Name, runcmd.Clean(x.Device))
			}
			for _, x := range o.Queues {
				fmt.Fprintf(w, "queue\t%s\t%d queued\t%d being executed\n", x.Queue, x.Queued, x.Active)
			}
			return w.Flush()
		},
	}
	to.bind(c, config.WithClass)
	return c
}

// look reads who is there and what waits.
func look(ctx context.Context, s *session) (*overview, error) {
	fleet, err := s.client.Bus.Fleet(ctx)
	if err != nil {
		return nil, err
	}
	o := &overview{Workers: []workerLine{}, Runners: []runnerLine{}, Queues: []queueLine{}}
	var queues []protocol.Queue
	for _, class := range protocol.Classes {
		for priority := range protocol.Priorities {
			queues = append(queues, protocol.TaskQueue(class, priority))
		}
	}
	devices := []string{protocol.AnyDevice}
	for _, p := range fleet {
		if p.Slots > 0 {
			o.Workers = append(o.Workers, workerLine{p.Owner.Name, p.Slots, p.Tool})
		}
		if p.Device != "" {
			o.Runners = append(o.Runners, runnerLine{p.Owner.Name, p.Device})
			devices = append(devices, p.Device)
		}
	}
	for _, d := range devices {
		queues = append(queues, protocol.RunQueue(s.cfg.Device.Class, d))
	}
	for _, q := range queues {
		queued, active, err := s.client.Bus.Tickets(ctx, q)
		if errors.Is(err, bus.ErrNotFound) {
			continue // of a device that the coordinator does not know, or of another class
		}
		if err != nil {
			return nil, err
		}
		o.Queues = append(o.Queues, queueLine{q.Consumer, queued, active})
	}
	return o, nil
}
