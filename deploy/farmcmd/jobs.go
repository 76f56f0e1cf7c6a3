package farmcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"ipufarm/deploy/config"
	"ipufarm/deploy/local/runcmd"
	"ipufarm/protocol"
)

// standing is what submit and cancel print with --json.
type standing struct {
	Job   string            `json:"job"`
	State protocol.JobState `json:"state"`
}

// Submit returns the verb.
func Submit() *cobra.Command {
	var to reach
	work := runcmd.NewWork()
	device := protocol.AnyDevice
	priority := 1
	c := &cobra.Command{
		Use:   "submit",
		Short: "hand a job to a farm and print its id",
		Long: `Hand a job to the farm that --config or the other flags name, and print the job's
id as soon as it is on the coordinator's disk. The job goes on without this process;
watch, explain, cancel and fetch take the id. The S3 server is needed only for
--reference-fixture.`,
		Args: runcmd.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := work.Check(c.Flags()); err != nil {
				return err
			}
			if err := protocol.CheckName(device); err != nil {
				return fmt.Errorf("--device: %w; a device's name, or %s, is accepted", err, protocol.AnyDevice)
			}
			if priority < 0 || priority >= protocol.Priorities {
				return fmt.Errorf("--priority %d: 0 (first) to %d (last) are accepted", priority, protocol.Priorities-1)
			}
			order, err := work.Order()
			if err != nil {
				return err
			}
			s, shut, err := to.open(c, order.HasFixture())
			if err != nil {
				return err
			}
			defer shut()
			digest, err := tool(&s.cfg)
			if err != nil {
				return err
			}
			job, err := order.Job(c.Context(), s.client, digest, s.cfg.Device.Class, device)
			if err != nil {
				return err
			}
			job.Priority, job.ID = priority, protocol.NewJobID()
			return s.submit(c, job, to.json)
		},
	}
	to.bind(c, config.WithS3, config.WithTool)
	work.Bind(c.Flags())
	c.Flags().StringVar(&device, "device", device, "device to run on, by name")
	c.Flags().IntVar(&priority, "priority", priority, "0 goes first, 2 last")
	return c
}

// Watch returns the verb.
func Watch() *cobra.Command {
	var to reach
	c := &cobra.Command{
		Use:   "watch JOB",
		Short: "show how far a job is until it is over",
		Long: `Show a job's progress from its beginning until it is over. With --json, one event
on each line. The exit status is that of run: 0 the output agrees with the
reference, 3 no finalist was feasible, 4 the output does not agree, 1 anything else.`,
		Args: oneJob,
		RunE: func(c *cobra.Command, args []string) error {
			s, shut, err := to.open(c, false)
			if err != nil {
				return err
			}
			defer shut()
			r, err := s.report(c.Context(), args[0])
			if err != nil {
				return err
			}
			if err := show(c, s, r, to.json); err != nil {
				if c.Context().Err() != nil {
					return errors.New("interrupted; the job goes on")
				}
				return err
			}
			if r, err = s.report(c.Context(), args[0]); err != nil {
				return err
			}
			return runcmd.Verdict(r)
		},
	}
	to.bind(c)
	return c
}

// show prints the events of a job. Those of a job that is over come from its report:
// the event stream forgets them after some days.
func show(c *cobra.Command, s *session, r *protocol.JobReport, asJSON bool) error {
	line := func(e *protocol.Event) error {
		data, err := json.Marshal(e)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(c.OutOrStdout(), "%s\n", data)
		return err
	}
	switch {
	case r.State.Over() && asJSON:
		for i := range r.Log {
			if err := line(&r.Log[i]); err != nil {
				return err
			}
		}
		return nil
	case r.State.Over():
		runcmd.Show(r.Log, c.OutOrStdout())
		return nil
	case asJSON:
		return s.client.Watch(c.Context(), r.Job, line)
	}
	return runcmd.Watch(c.Context(), s.client, r.Job, c.OutOrStdout())
}

// Cancel returns the verb.
func Cancel() *cobra.Command {
	var to reach
	c := &cobra.Command{
		Use:   "cancel JOB",
		Short: "end a job",
		Long: `End a job: its tasks are taken from the queues, and whoever works on one stops,
unless another job wants it. A job that is over stays as it is.`,
		Args: oneJob,
		RunE: func(c *cobra.Command, args []string) error {
			s, shut, err := to.open(c, false)
			if err != nil {
				return err
			}
			defer shut()
			if err := s.within(c.Context(), func(ctx context.Context) error { return s.client.Cancel(ctx, args[0]) }); err != nil {
				return err
			}
			r, err := s.report(c.Context(), args[0])
			if err != nil {
				return err
			}
			if to.json {
				return printJSON(c, standing{r.Job, r.State})
			}
			_, err = fmt.Fprintln(c.OutOrStdout(), r.State)
			return err
		},
	}
	to.bind(c)
	return c
}

// Retry returns the verb.
func Retry() *cobra.Command {
	var to reach
	c := &cobra.Command{
		Use:   "retry JOB",
		Short: "hand a job that is over in again and print its new id",
		Long: `Hand what was submitted as a job in again, under a new id. Tasks that found
something out are taken from the cache; those that failed or were given up are done
again, and so is the run.`,
		Args: oneJob,
		RunE: func(c *cobra.Command, args []string) error {
			s, shut, err := to.open(c, false)
			if err != nil {
				return err
			}
			defer shut()
			r, err := s.report(c.Context(), args[0])
			if err != nil {
				return err
			}
			if !r.State.Over() {
				return fmt.Errorf("job %s is still %s: one that is over is accepted; cancel ends it", r.Job, r.State)
			}
			if r.Submission == nil {
				return errors.New("the coordinator's report does not say what was submitted")
			}
			job := *r.Submission
			job.ID = protocol.NewJobID()
			return s.submit(c, job, to.json)
		},
	}
	to.bind(c)
	return c
}

// submit hands a job in and prints its id.
func (s *session) submit(c *cobra.Command, job protocol.Job, asJSON bool) error {
	err := s.within(c.Context(), func(ctx context.Context) error {
		_, err := s.client.Submit(ctx, job)
		return err
	})
	if err != nil {
		return err
	}
	if asJSON {
		return printJSON(c, standing{job.ID, protocol.JobActive})
	}
	_, err = fmt.Fprintln(c.OutOrStdout(), job.ID)
	return err
}

// Fetch returns the verb.
func Fetch() *cobra.Command {
	var to reach
	dir := ""
	c := &cobra.Command{
		Use:   "fetch JOB -o DIR",
		Short: "write what a job left behind to a folder",
		Long: `Write package, profile, the profile's page and the summary of a job that is over to
a folder, each verified by its digest and complete or not at all. A job without a
result has only a summary. With --json, print the summary.`,
		Args: oneJob,
		RunE: func(c *cobra.Command, args []string) error {
			if dir == "" {
				return errors.New("-o, --output: missing; a folder is accepted, which is made if absent")
			}
			abs, err := filepath.Abs(dir)
			if err != nil {
				return fmt.Errorf("--output %s: %w", dir, err)
			}
			s, shut, err := to.open(c, true)
			if err != nil {
				return err
			}
			defer shut()
			r, err := s.report(c.Context(), args[0])
			if err != nil {
				return err
			}
			body, paths, err := runcmd.Save(c.Context(), s.client, r, abs)
			if err != nil {
				return fmt.Errorf("fetch to %s: %w", abs, err)
			}
			if to.json {
				_, err = c.OutOrStdout().Write(body)
				return err
			}
			for _, p := range paths {
				if _, err := fmt.Fprintln(c.OutOrStdout(), p); err != nil {
					return err
				}
			}
			return nil
		},
	}
	to.bind(c, config.WithS3)
	c.Flags().StringVarP(&dir, "output", "o", "", "folder to write to")
	return c
}
