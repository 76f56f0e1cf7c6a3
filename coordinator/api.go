package coordinator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ipufarm/protocol"
)

// answer serves one request of the API. It waits until the loop has dealt with
// it, so a positive reply to a submission means that the job is on disk.
func (c *coordinator) answer(ctx context.Context, subject string, data []byte) (protocol.Checker, error) {
	var request protocol.Checker
	var act func() (*protocol.JobReport, error)
	switch subject {
	case protocol.APISubject(protocol.VerbSubmit):
		spec := new(protocol.Job)
		request, act = spec, func() (*protocol.JobReport, error) { return c.submit(ctx, *spec) }
	case protocol.APISubject(protocol.VerbJob):
		query := new(protocol.JobQuery)
		request, act = query, func() (*protocol.JobReport, error) { return c.report(query.Job) }
	case protocol.APISubject(protocol.VerbCancel):
		query := new(protocol.JobQuery)
		request, act = query, func() (*protocol.JobReport, error) { return c.cancelJob(ctx, query.Job) }
	default:
		err := fmt.Errorf("%w: %s is no verb of the API; submit, job and cancel are", protocol.ErrMalformed, subject)
		return refusal(err), err
	}
	if err := protocol.Decode(data, protocol.MaxRequest, request); err != nil {
		return refusal(err), err
	}
	reply := make(chan *protocol.Reply, 1)
	c.do(ctx, func() error {
		report, err := act()
		if errors.Is(err, errKilled) {
			return err
		}
		if err != nil {
			reply <- refusal(err)
			return nil
		}
		reply <- &protocol.Reply{Version: protocol.Version, Report: fit(report)}
		return nil
	})
	select {
	case r := <-reply:
		return r, nil
	case <-ctx.Done():
		return nil, nil // the client asks again, and hears from our successor
	}
}

func refusal(err error) *protocol.Reply {
	return &protocol.Reply{Version: protocol.Version, Error: protocol.Clip(err.Error())}
}

// fit leaves out what would make a reply too large for one message: first the
// log, which is in the event stream too, then the refusals' details.
func fit(r *protocol.JobReport) *protocol.JobReport {
	fits := func() bool {
		_, err := protocol.Encode(&protocol.Reply{Version: protocol.Version, Report: r}, protocol.MaxReply)
		return err == nil
	}
	if !fits() {
		r.Log = nil
	}
	if !fits() {
		r.Facts = nil
		for i := range r.Finalists {
			r.Finalists[i].Refusal = nil
			r.Finalists[i].Message = ""
		}
	}
	return r
}

// submit takes a job in. Submitting an id twice is submitting it once.
func (c *coordinator) submit(ctx context.Context, spec protocol.Job) (*protocol.JobReport, error) {
	known, err := c.find(spec.ID)
	if err != nil {
		return nil, err
	}
	if known != nil {
		return known.Report(), nil
	}
	j := NewJob(spec, time.Now())
	c.jobs[spec.ID] = j
	if err := c.apply(ctx, Change{}, []*Job{j}); err != nil {
		return nil, err
	}
	return j.Report(), c.settle(ctx)
}

func (c *coordinator) find(id string) (*Job, error) {
	if j := c.jobs[id]; j != nil {
		return j, nil
	}
	return c.db.job(id)
}

func (c *coordinator) report(id string) (*protocol.JobReport, error) {
	j, err := c.find(id)
	if err != nil {
		return nil, err
	}
	if j == nil {
		return nil, fmt.Errorf("there is no job %s", id)
	}
	return j.Report(), nil
}

func (c *coordinator) cancelJob(ctx context.Context, id string) (*protocol.JobReport, error) {
	j, err := c.find(id)
	if err != nil {
		return nil, err
	}
	if j == nil {
		return nil, fmt.Errorf("there is no job %s", id)
	}
	if err := c.apply(ctx, Change{Cancel: true}, []*Job{j}); err != nil {
		return nil, err
	}
	return j.Report(), c.settle(ctx)
}
