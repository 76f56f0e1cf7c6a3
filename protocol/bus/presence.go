package bus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"ipufarm/protocol"
)

// Announce writes the presence of a worker or runner; it expires unless it is
// announced again.
func (b *Bus) Announce(ctx context.Context, p *protocol.Presence) error {
	data, err := protocol.Encode(p, protocol.MaxRecord)
	if err != nil {
		return err
	}
	ctx, cancel := timed(ctx)
	defer cancel()
	if _, err := b.workerKV.Put(ctx, p.Owner.Name, data); err != nil {
		return fmt.Errorf("presence of %s: %w", p.Owner.Name, err)
	}
	return nil
}

// Leave removes a presence: an orderly end.
func (b *Bus) Leave(ctx context.Context, name string) error {
	ctx, cancel := timed(ctx)
	defer cancel()
	if err := b.workerKV.Delete(ctx, name); err != nil {
		return fmt.Errorf("presence of %s: %w", name, err)
	}
	return nil
}

// Presence reads one presence; ErrNotFound if it is gone.
func (b *Bus) Presence(ctx context.Context, name string) (protocol.Presence, error) {
	var p protocol.Presence
	_, err := b.get(ctx, b.workerKV, name, protocol.MaxRecord, &p)
	return p, err
}

// Fleet reads every presence that there is, ordered by name.
func (b *Bus) Fleet(ctx context.Context) ([]protocol.Presence, error) {
	ctx, cancel := timed(ctx)
	defer cancel()
	w, err := b.workerKV.WatchAll(ctx)
	if err != nil {
		return nil, fmt.Errorf("presence of all: %w", err)
	}
	defer w.Stop()
	var fleet []protocol.Presence
	for {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("presence of all: %w", ctx.Err())
		case entry, open := <-w.Updates():
			if !open {
				return nil, errors.New("presence of all: watch closed")
			}
			if entry == nil { // the end of what is there
				slices.SortFunc(fleet, func(a, b protocol.Presence) int { return strings.Compare(a.Owner.Name, b.Owner.Name) })
				return fleet, nil
			}
			if entry.Operation() != jetstream.KeyValuePut {
				continue
			}
			var p protocol.Presence
			if err := protocol.Decode(entry.Value(), protocol.MaxRecord, &p); err != nil {
				b.Refuse("presence", entry.Key(), err)
				continue
			}
			fleet = append(fleet, p)
		}
	}
}

// WatchPresence calls f for every presence there is, for every change, and with
// nil when one is gone, until ctx ends. After a reconnection it starts over: the
// stock watch needs about twenty seconds to notice a restarted server.
func (b *Bus) WatchPresence(ctx context.Context, f func(name string, p *protocol.Presence)) {
	again := make(chan struct{}, 1)
	defer b.OnReconnect(func() {
		select {
		case again <- struct{}{}:
		default:
		}
	})()
	for ctx.Err() == nil {
		if err := b.watchPresence(ctx, again, f); err != nil && ctx.Err() == nil {
			b.log.Warn("bus: presence watch", "error", err)
			time.Sleep(50 * time.Millisecond)
		}
	}
}

func (b *Bus) watchPresence(ctx context.Context, again <-chan struct{}, f func(string, *protocol.Presence)) error {
	w, err := b.workerKV.WatchAll(ctx)
	if err != nil {
		return err
	}
	defer w.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-again:
			return nil
		case entry, open := <-w.Updates():
			if !open {
				return errors.New("watch closed")
			}
			if entry == nil {
				continue // the end of what was there already
			}
			if entry.Operation() != jetstream.KeyValuePut {
				f(entry.Key(), nil)
				continue
			}
			var p protocol.Presence
			if err := protocol.Decode(entry.Value(), protocol.MaxRecord, &p); err != nil {
				b.Refuse("presence", entry.Key(), err)
				continue
			}
			f(entry.Key(), &p)
		}
	}
}

// TakeLease takes a device that nobody holds; ErrConflict if somebody does. The
// revision, with the lease's generation, is the token of the holder.
func (b *Bus) TakeLease(ctx context.Context, device string, l *protocol.Lease) (uint64, error) {
	return b.create(ctx, b.deviceKV, device, protocol.MaxRecord, l)
}

// RenewLease keeps a lease; ErrConflict if it is no longer ours.
func (b *Bus) RenewLease(ctx context.Context, device string, l *protocol.Lease, rev uint64) (uint64, error) {
	return b.swap(ctx, b.deviceKV, device, protocol.MaxRecord, l, rev)
}

// DropLease gives a device back.
func (b *Bus) DropLease(ctx context.Context, device string, rev uint64) error {
	ctx, cancel := timed(ctx)
	defer cancel()
	if err := b.deviceKV.Delete(ctx, device, jetstream.LastRevision(rev)); err != nil {
		return fmt.Errorf("lease of %s: %w", device, err)
	}
	return nil
}

// Holder reads who holds a device; ErrNotFound if nobody does.
func (b *Bus) Holder(ctx context.Context, device string) (protocol.Lease, error) {
	var l protocol.Lease
	_, err := b.get(ctx, b.deviceKV, device, protocol.MaxRecord, &l)
	return l, err
}

// ForceLease takes a device away from whoever holds it: the holder notices with
// its next renewal and stops.
func (b *Bus) ForceLease(ctx context.Context, device string) error {
	ctx, cancel := timed(ctx)
	defer cancel()
	if err := b.deviceKV.Delete(ctx, device); err != nil {
		return fmt.Errorf("lease of %s: %w", device, err)
	}
	return nil
}
