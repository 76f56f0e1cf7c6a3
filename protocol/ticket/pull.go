package ticket

import (
	"context"
	"log/slog"
	"time"

	"ipufarm/protocol"
	"ipufarm/protocol/bus"
)

// Puller takes tickets for one slot, which executes one task at a time: it asks
// for one ticket when the slot is free and never holds one in advance.
type Puller struct {
	bus    *bus.Bus
	queues []protocol.Queue
	turns  []int
	turn   int
	poll   time.Duration
	bell   chan protocol.Queue
	stops  []func()
}

// NewPuller listens for the bells of queues until Close. turns lists the queue
// that gets the first look, time after time; the others follow in order.
func NewPuller(b *bus.Bus, queues []protocol.Queue, turns []int, poll time.Duration) (*Puller, error) {
	p := &Puller{bus: b, queues: queues, turns: turns, poll: poll, bell: make(chan protocol.Queue, 1)}
	for _, q := range queues {
		stop, err := b.Bell(q, func() {
			select {
			case p.bell <- q:
			default:
			}
		})
		if err != nil {
			p.Close()
			return nil, err
		}
		p.stops = append(p.stops, stop)
	}
	return p, nil
}

// Close stops listening.
func (p *Puller) Close() {
	for _, stop := range p.stops {
		stop()
	}
}

// bellWait is how long a slot waits for the ticket that a bell was about.
const bellWait = 50 * time.Millisecond

// Next returns a ticket, or nil after waiting a while for one.
func (p *Puller) Next(ctx context.Context) (*bus.Ticket, error) {
	first := p.turns[p.turn%len(p.turns)]
	p.turn++
	if t, err := p.bus.Take(ctx, p.queues[first], 0); t != nil || err != nil {
		return t, err
	}
	for i, q := range p.queues {
		if i == first {
			continue
		}
		if t, err := p.bus.Take(ctx, q, 0); t != nil || err != nil {
			return t, err
		}
	}
	select {
	case <-ctx.Done():
		return nil, nil
	case q := <-p.bell:
		return p.bus.Take(ctx, q, bellWait)
	case <-time.After(p.poll):
		return nil, nil
	}
}

// Each calls f for one ticket after another until ctx ends.
func (p *Puller) Each(ctx context.Context, log *slog.Logger, f func(*bus.Ticket)) {
	for ctx.Err() == nil {
		t, err := p.Next(ctx)
		if err != nil {
			log.Warn("queue", "error", err)
			select {
			case <-ctx.Done():
			case <-time.After(p.poll):
			}
			continue
		}
		if t != nil {
			f(t)
		}
	}
}

// KeepAnnouncing renews a presence until ctx ends.
func KeepAnnouncing(ctx context.Context, b *bus.Bus, p *protocol.Presence, every time.Duration, log *slog.Logger) {
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
