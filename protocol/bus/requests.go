package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"ipufarm/protocol"
)

// ErrNobody says that nobody listens on the subject of a request.
var ErrNobody = errors.New("nobody answers")

// Ask sends a request and reads the reply.
func (b *Bus) Ask(ctx context.Context, subject string, request, reply protocol.Checker) error {
	data, err := protocol.Encode(request, protocol.MaxRequest)
	if err != nil {
		return err
	}
	m, err := b.nc.RequestWithContext(ctx, subject, data)
	if errors.Is(err, nats.ErrNoResponders) {
		return fmt.Errorf("%s: %w", subject, ErrNobody)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", subject, err)
	}
	if err := protocol.Decode(m.Data, protocol.MaxReply, reply); err != nil {
		return fmt.Errorf("%s: reply: %w", subject, err)
	}
	return nil
}

// Answer serves requests on a subject, one at a time, until stop is called. Of
// several that answer with one group name, each request reaches one. f decodes
// the data itself; it returns the reply, and an error for a malformed request.
func (b *Bus) Answer(subject, group string, f func(subject string, data []byte) (protocol.Checker, error)) (stop func(), err error) {
	s, err := b.nc.QueueSubscribe(subject, group, func(m *nats.Msg) {
		reply, err := f(m.Subject, m.Data)
		if err != nil {
			b.Refuse("request", m.Subject, err)
		}
		if reply == nil || m.Reply == "" {
			return
		}
		data, err := protocol.Encode(reply, protocol.MaxReply)
		if err != nil {
			b.log.Error("bus: reply", "subject", m.Subject, "error", err)
			return
		}
		m.Respond(data)
	})
	if err != nil {
		return nil, fmt.Errorf("answer on %s: %w", subject, err)
	}
	return func() { s.Unsubscribe() }, nil
}

// BroadcastCancel tells every worker and runner to stop working on tasks. The
// truth is in the records; this only makes it quick.
func (b *Bus) BroadcastCancel(keys ...string) error {
	data, err := protocol.Encode(&protocol.CancelNotice{Version: protocol.Version, Keys: keys}, protocol.MaxRequest)
	if err != nil {
		return err
	}
	return b.nc.Publish(protocol.SubjectCancel, data)
}

// OnCancel calls f for every task that is broadcast as cancelled.
func (b *Bus) OnCancel(f func(key string)) (stop func(), err error) {
	s, err := b.nc.Subscribe(protocol.SubjectCancel, func(m *nats.Msg) {
		var notice protocol.CancelNotice
		if err := protocol.Decode(m.Data, protocol.MaxRequest, &notice); err != nil {
			b.Refuse("cancel", m.Subject, err)
			return
		}
		for _, key := range notice.Keys {
			f(key)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", protocol.SubjectCancel, err)
	}
	return func() { s.Unsubscribe() }, nil
}

// AskOwner asks the owner of a running task whether it still works on it, some
// times within the given time. Silence and no both mean no.
func (b *Bus) AskOwner(ctx context.Context, owner protocol.Owner, key string, tries int, within time.Duration) bool {
	each := within / time.Duration(tries)
	for try := range tries {
		start := time.Now()
		askCtx, cancel := context.WithTimeout(ctx, each)
		var reply protocol.OwnReply
		err := b.Ask(askCtx, protocol.OwnSubject(owner.Name), &protocol.OwnQuery{Version: protocol.Version, Key: key, Boot: owner.Boot}, &reply)
		cancel()
		if err == nil {
			return reply.Yes
		}
		if try == tries-1 {
			break
		}
		// "Nobody answers" comes at once; the owner may be reconnecting.
		select {
		case <-ctx.Done():
			return false
		case <-time.After(each - time.Since(start)):
		}
	}
	return false
}

// AnswerOwner serves the questions of AskOwner for one owner.
func (b *Bus) AnswerOwner(owner protocol.Owner, works func(key string) bool) (stop func(), err error) {
	return b.Answer(protocol.OwnSubject(owner.Name), "owner", func(_ string, data []byte) (protocol.Checker, error) {
		var q protocol.OwnQuery
		if err := protocol.Decode(data, protocol.MaxRequest, &q); err != nil {
			return nil, err
		}
		return &protocol.OwnReply{Version: protocol.Version, Yes: q.Boot == owner.Boot && works(q.Key)}, nil
	})
}
