package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"ipufarm/protocol"
)

// PublishEvent stores an event; a copy of a recent one is dropped by its ID.
func (b *Bus) PublishEvent(ctx context.Context, e *protocol.Event) error {
	data, err := protocol.Encode(e, protocol.MaxEvent)
	if err != nil {
		return err
	}
	ctx, cancel := timed(ctx)
	defer cancel()
	if _, err := b.js.Publish(ctx, e.EventSubject(), data, jetstream.WithMsgID(e.ID())); err != nil {
		return fmt.Errorf("event %s: %w", e.Type, err)
	}
	return nil
}

// Tell publishes an event that may be lost, without waiting.
func (b *Bus) Tell(e *protocol.Event) error {
	data, err := protocol.Encode(e, protocol.MaxEvent)
	if err != nil {
		return err
	}
	return b.nc.Publish(e.EventSubject(), data)
}

// Events calls f for every event on the subjects from sequence first on (1 is
// the beginning), in order, until ctx ends or f returns an error. Malformed
// events are counted and skipped. There is no state about it on the server: who
// wants to go on where it stopped keeps the sequence.
func (b *Bus) Events(ctx context.Context, subjects []string, first uint64, f func(seq uint64, e *protocol.Event) error) error {
	next := max(first, 1)
	for {
		err := b.events(ctx, subjects, &next, f)
		var stop *stopError
		if errors.As(err, &stop) {
			return stop.error
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		b.log.Warn("bus: event stream interrupted", "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// stopError marks an error of the callback.
type stopError struct{ error }

func (b *Bus) events(ctx context.Context, subjects []string, next *uint64, f func(uint64, *protocol.Event) error) error {
	opCtx, cancel := timed(ctx)
	defer cancel()
	c, err := b.js.OrderedConsumer(opCtx, protocol.StreamEvents, jetstream.OrderedConsumerConfig{
		FilterSubjects: subjects, DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: *next,
	})
	if err != nil {
		return err
	}
	// The short heartbeat notices a restarted server within a second.
	messages, err := c.Messages(jetstream.PullHeartbeat(500*time.Millisecond), jetstream.PullExpiry(5*time.Second))
	if err != nil {
		return err
	}
	defer messages.Stop()
	for {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return err
		}
		meta, err := m.Metadata()
		if err != nil {
			return err
		}
		*next = meta.Sequence.Stream + 1
		var e protocol.Event
		err = protocol.Decode(m.Data(), protocol.MaxEvent, &e)
		if err == nil && e.EventSubject() != m.Subject() {
			err = fmt.Errorf("%w: content belongs on %s", protocol.ErrMalformed, e.EventSubject())
		}
		if err != nil {
			b.Refuse("event", m.Subject(), err)
			continue
		}
		if err := f(meta.Sequence.Stream, &e); err != nil {
			return &stopError{err}
		}
	}
}
