package coordinator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ipufarm/protocol"
)

// answer serves one request of the API. A positive reply to a submission or a
// cancellation means that it is on disk.
func (c *coordinator) answer(ctx context.Context, subject string, data []byte) (protocol.Checker, error) {
	var request protocol.Checker
	reply := make(chan *protocol.Reply, 1)
	grant := func(j *Job) { reply <- &protocol.Reply{Version: protocol.Version, Report: fit(j.Report())} }
	var act func() error
	switch subject {
	case protocol.APISubject(protocol.VerbSubmit):
		spec := new(protocol.Job)
		request, act = spec, func() error { return c.submit(ctx, *spec, grant) }
	case protocol.APISubject(protocol.VerbJob):
		query := new(protocol.JobQuery)
		request, act = query, func() error { return c.report(query.Job, grant) }
	case protocol.APISubject(protocol.VerbCancel):
		query := new(protocol.JobQuery)
		request, act = query, func() error { return c.cancelJob(ctx, query.Job, grant) }
	default:
		err := fmt.Errorf("%w: %s is no verb of the API; submit, job and cancel are", protocol.ErrMalformed, subject)
		return refusal(err), err
	}
	if err := protocol.Decode(data, protocol.MaxRequest, request); err != nil {
		return refusal(err), err
	}
	c.do(ctx, func() error {
		err := act()
		var refused *refusedError
		if errors.As(err, &refused) {
			reply <- refusal(err)
			return nil
		}
		return err
	})
	select {
	case r := <-reply:
		return r, nil
	case <-ctx.Done():
		return &protocol.Reply{Version: protocol.Version, Again: true}, nil
	}
}

// refusedError is a request's own fault; any other error is the coordinator's.
type refusedError struct{ error }

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
		r.Facts, r.Pending = nil, nil
		for i := range r.Finalists {
			r.Finalists[i].Refusal = nil
			r.Finalists[i].Message = ""
		}
	}
	return r
}

// submit takes a job in. Submitting an id twice is submitting it once.
func (c *coordinator) submit(ctx context.Context, spec protocol.Job, grant func(*Job)) error {
	j, err := c.find(spec.ID)
	if err != nil {
		return err
	}
	if j != nil {
		grant(j)
		return nil
	}
	j = NewJob(spec, time.Now())
	c.jobs[spec.ID] = j
	if err := c.apply(ctx, Change{}, []*Job{j}, func() { grant(j) }); err != nil {
		return err
	}
	return c.settle(ctx)
}

// find returns a job, nil if there is none.
func (c *coordinator) find(id string) (*Job, error) {
	if j := c.jobs[id]; j != nil {
		return j, nil
	}
	return c.db.job(id)
}

func (c *coordinator) report(id string, grant func(*Job)) error {
	j, err := c.find(id)
	if err != nil {
		return err
	}
	if j == nil {
		return &refusedError{fmt.Errorf("there is no job %s", id)}
	}
	grant(j)
	return nil
}

func (c *coordinator) cancelJob(ctx context.Context, id string, grant func(*Job)) error {
	j, err := c.find(id)
	if err != nil {
		return err
	}
	if j == nil {
		return &refusedError{fmt.Errorf("there is no job %s", id)}
	}
	if j.State.Over() {
		grant(j)
		return nil
	}
	if err := c.apply(ctx, Change{Cancel: true}, []*Job{j}, func() { grant(j) }); err != nil {
		return err
	}
	return c.settle(ctx)
}
