package bus

import (
	"context"
	"errors"
	"fmt"

	"ipufarm/protocol"
)

// Record reads a task's record and its revision. A record that cannot be read
// gives an error that wraps protocol.ErrMalformed, and its revision.
func (b *Bus) Record(ctx context.Context, key string) (protocol.Record, uint64, error) {
	var r protocol.Record
	rev, err := b.get(ctx, b.taskKV, key, protocol.MaxRecord, &r)
	return r, rev, err
}

// CreateRecord writes the record of a new task; ErrConflict if it has one.
func (b *Bus) CreateRecord(ctx context.Context, key string, r protocol.Record) (uint64, error) {
	return b.create(ctx, b.taskKV, key, protocol.MaxRecord, &r)
}

// ReplaceRecord writes a record over revision rev; ErrConflict if it has changed.
func (b *Bus) ReplaceRecord(ctx context.Context, key string, r protocol.Record, rev uint64) (uint64, error) {
	return b.swap(ctx, b.taskKV, key, protocol.MaxRecord, &r, rev)
}

// MoveRecord makes one legal move from revision rev and returns the new record
// and revision.
func (b *Bus) MoveRecord(ctx context.Context, key string, r protocol.Record, rev uint64, m protocol.Move) (protocol.Record, uint64, error) {
	next, err := r.After(m)
	if err != nil {
		return r, rev, err
	}
	newRev, err := b.ReplaceRecord(ctx, key, next, rev)
	if err != nil {
		return r, rev, err
	}
	return next, newRev, nil
}

// maxRaces bounds how often ChangeRecord starts over: somebody else's change can
// only be followed by few more before the record is final.
const maxRaces = 16

// ChangeRecord reads a record and moves it as decide says, again when somebody
// else was faster. decide returns false to leave the record alone. The returned
// record is the one that now holds.
func (b *Bus) ChangeRecord(ctx context.Context, key string, decide func(protocol.Record) (protocol.Move, bool)) (protocol.Record, error) {
	for range maxRaces {
		r, rev, err := b.Record(ctx, key)
		if err != nil {
			return r, err
		}
		m, ok := decide(r)
		if !ok {
			return r, nil
		}
		next, _, err := b.MoveRecord(ctx, key, r, rev, m)
		if !errors.Is(err, ErrConflict) {
			return next, err
		}
	}
	return protocol.Record{}, fmt.Errorf("record %s: %w %d times in a row", key, ErrConflict, maxRaces)
}
