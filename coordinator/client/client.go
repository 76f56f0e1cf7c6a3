// Package client is how a program talks to the farm: submit a job, watch it, read
// its report, fetch its artifacts.
package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ipufarm/protocol"
	"ipufarm/protocol/bus"
	"ipufarm/protocol/store"
)

// Client talks to one farm.
type Client struct {
	Bus   *bus.Bus
	Store *store.Store
}

// askTimeout bounds one request; a coordinator that restarts answers the next one.
const askTimeout = 2 * time.Second

// ask sends a request until somebody answers or ctx ends. Every request may be
// repeated: a job has its id from the client.
func (c *Client) ask(ctx context.Context, verb string, request protocol.Checker) (*protocol.JobReport, error) {
	for {
		askCtx, cancel := context.WithTimeout(ctx, askTimeout)
		var reply protocol.Reply
		err := c.Bus.Ask(askCtx, protocol.APISubject(verb), request, &reply)
		cancel()
		switch {
		case err == nil && reply.Again:
			err = errors.New("the coordinator is being stopped")
		case err == nil && reply.Error != "":
			return nil, fmt.Errorf("%s: %s", verb, reply.Error)
		case err == nil && reply.Report == nil:
			return nil, fmt.Errorf("%s: the coordinator's reply has no report", verb)
		case err == nil:
			return reply.Report, nil
		case errors.Is(err, protocol.ErrMalformed) || !isAway(err):
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(err, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// isAway tells a coordinator that does not answer now from a request that cannot
// be sent at all.
func isAway(err error) bool {
	return errors.Is(err, bus.ErrNobody) || errors.Is(err, context.DeadlineExceeded)
}

// Submit hands a job in. An empty ID is filled, Version is set. When it returns
// without error the job is on the coordinator's disk.
func (c *Client) Submit(ctx context.Context, job protocol.Job) (id string, err error) {
	if job.ID == "" {
		job.ID = protocol.NewJobID()
	}
	job.Version = protocol.Version
	spec, err := protocol.Canonical(job.Spec)
	if err != nil {
		return "", fmt.Errorf("submit: spec: %w", err)
	}
	job.Spec = spec
	if _, err := c.ask(ctx, protocol.VerbSubmit, &job); err != nil {
		return "", err
	}
	return job.ID, nil
}

// Watch calls f for the events of a job, from its beginning, in order and each
// once, until the job is over, ctx ends or f returns an error.
func (c *Client) Watch(ctx context.Context, job string, f func(*protocol.Event) error) error {
	over := errors.New("over")
	last := 0
	err := c.Bus.Events(ctx, []string{protocol.JobEvents(job)}, 1, func(_ uint64, e *protocol.Event) error {
		if e.N > 0 {
			if e.N <= last {
				return nil // published again by a coordinator that was restarted
			}
			last = e.N
		}
		if err := f(e); err != nil {
			return err
		}
		if e.Type == protocol.EventFinished {
			return over
		}
		return nil
	})
	if err == over {
		return nil
	}
	return err
}

// Report reads everything about a job, at any time.
func (c *Client) Report(ctx context.Context, job string) (*protocol.JobReport, error) {
	return c.ask(ctx, protocol.VerbJob, &protocol.JobQuery{Version: protocol.Version, Job: job})
}

// Result waits until a job is over and reads its report.
func (c *Client) Result(ctx context.Context, job string) (*protocol.JobReport, error) {
	// Events are kept for some days, reports for longer.
	if r, err := c.Report(ctx, job); err != nil || r.State.Over() {
		return r, err
	}
	if err := c.Watch(ctx, job, func(*protocol.Event) error { return nil }); err != nil {
		return nil, err
	}
	return c.Report(ctx, job)
}

// Cancel ends a job.
func (c *Client) Cancel(ctx context.Context, job string) error {
	_, err := c.ask(ctx, protocol.VerbCancel, &protocol.JobQuery{Version: protocol.Version, Job: job})
	return err
}

// Fetch writes an artifact to a file, verified, complete or not at all.
func (c *Client) Fetch(ctx context.Context, a protocol.Artifact, path string) error {
	return c.Store.GetFile(ctx, a, path, 0o644)
}

// Upload stores a file, such as a fixture, for a job to name.
func (c *Client) Upload(ctx context.Context, role, path string) (protocol.Artifact, error) {
	return c.Store.PutFile(ctx, role, path)
}
