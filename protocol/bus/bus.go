// Package bus is typed NATS JetStream: tickets, records, events, presence and
// requests of the farm as Go values. It is the only importer of nats.go.
//
// Rules of JetStream that shape it, each learnt from a small experiment with
// nats-server 2.15: an acknowledgement is not fenced, so ownership is in the
// records; a late acknowledgement counts for the next delivery; AckWait is the
// only thing that notices a dead worker; a publish that reported an error may
// still arrive; a key-value watch is deaf for seconds after a server restart
// unless it is made anew.
package bus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"ipufarm/protocol"
)

// opTimeout bounds every single exchange with the server.
const opTimeout = 5 * time.Second

// InProcess is a server inside of this process.
type InProcess interface{ InProcessConn() (net.Conn, error) }

// Config of a connection.
type Config struct {
	URL            string    // nats://host:port, or
	Server         InProcess // a server in this process
	User, Password string
	Name           string       // for the server's lists
	Log            *slog.Logger // nil discards
}

// Bus is a connection to the farm's messages. Its methods may be used by many
// goroutines.
type Bus struct {
	nc  *nats.Conn
	js  jetstream.JetStream
	log *slog.Logger

	taskKV, workerKV, deviceKV, controlKV jetstream.KeyValue

	mu        sync.Mutex
	refused   map[string]int64
	told      map[string]bool
	reconnect map[int]func()
	hooks     int
}

// Connect opens a connection; it reconnects by itself until Close.
func Connect(cfg Config) (*Bus, error) {
	b := &Bus{log: cfg.Log, refused: map[string]int64{}, told: map[string]bool{}, reconnect: map[int]func(){}}
	if b.log == nil {
		b.log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	options := []nats.Option{
		nats.Name(cfg.Name), nats.Timeout(opTimeout), nats.MaxReconnects(-1), nats.ReconnectWait(50 * time.Millisecond), nats.ReconnectJitter(50*time.Millisecond, 50*time.Millisecond),
		nats.ReconnectHandler(func(*nats.Conn) { b.onReconnect() }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				b.log.Warn("bus: disconnected", "name", cfg.Name, "error", err)
			}
		}),
		nats.ErrorHandler(func(_ *nats.Conn, s *nats.Subscription, err error) {
			subject := ""
			if s != nil {
				subject = s.Subject
			}
			b.log.Warn("bus: asynchronous error", "name", cfg.Name, "subject", subject, "error", err)
		}),
	}
	if cfg.User != "" {
		options = append(options, nats.UserInfo(cfg.User, cfg.Password))
	}
	if cfg.Server != nil {
		options = append(options, nats.InProcessServer(cfg.Server))
	}
	var err error
	if b.nc, err = nats.Connect(cfg.URL, options...); err != nil {
		return nil, fmt.Errorf("bus: connect to %s: %w", cfg.URL, err)
	}
	if b.js, err = jetstream.New(b.nc); err != nil {
		b.nc.Close()
		return nil, fmt.Errorf("bus: %w", err)
	}
	return b, nil
}

// Close ends the connection.
func (b *Bus) Close() { b.nc.Close() }

// Closed reports whether Close was called: nothing will ever go through again.
func (b *Bus) Closed() bool { return b.nc.IsClosed() }

// OnReconnect calls f, on a goroutine of its own, after every reconnection until
// the returned function is called.
func (b *Bus) OnReconnect(f func()) (remove func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	id := b.hooks
	b.hooks++
	b.reconnect[id] = f
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.reconnect, id)
	}
}

func (b *Bus) onReconnect() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, f := range b.reconnect {
		go f()
	}
}

// Refuse counts a malformed message of a kind ("ticket", "event", "request",
// ...) and logs the first one of each sender.
func (b *Bus) Refuse(kind, sender string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refused[kind]++
	if id := kind + "\x00" + sender; !b.told[id] && len(b.told) < 1024 {
		b.told[id] = true
		b.log.Warn("refused a malformed message", "kind", kind, "sender", sender, "error", err)
	}
}

// Refused returns how many messages of each kind were refused.
func (b *Bus) Refused() map[string]int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.refused)
}

// ErrConflict says that a record, lease or key has changed since it was read.
var ErrConflict = errors.New("changed by somebody else")

// ErrNotFound says that a key has no value.
var ErrNotFound = errors.New("not found")

// timed bounds one exchange, whatever the caller's context allows.
func timed(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, opTimeout)
}

// hasCode reports whether the server answered with one of its error codes.
func hasCode(err error, codes ...jetstream.ErrorCode) bool {
	var api *jetstream.APIError
	if !errors.As(err, &api) {
		return false
	}
	for _, code := range codes {
		if api.ErrorCode == code {
			return true
		}
	}
	return false
}

// get reads a message from a bucket: its value and revision.
func (b *Bus) get(ctx context.Context, kv jetstream.KeyValue, key string, limit int, v protocol.Checker) (uint64, error) {
	ctx, cancel := timed(ctx)
	defer cancel()
	entry, err := kv.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return 0, fmt.Errorf("%s/%s: %w", kv.Bucket(), key, ErrNotFound)
	}
	if err != nil {
		return 0, fmt.Errorf("%s/%s: %w", kv.Bucket(), key, err)
	}
	if err := protocol.Decode(entry.Value(), limit, v); err != nil {
		b.Refuse("value of "+kv.Bucket(), key, err)
		return entry.Revision(), fmt.Errorf("%s/%s: %w", kv.Bucket(), key, err)
	}
	return entry.Revision(), nil
}

// create writes a key that must be absent; ErrConflict if it is not.
func (b *Bus) create(ctx context.Context, kv jetstream.KeyValue, key string, limit int, v protocol.Checker) (uint64, error) {
	return b.write(kv, key, limit, v, func(data []byte) (uint64, error) {
		ctx, cancel := timed(ctx)
		defer cancel()
		return kv.Create(ctx, key, data)
	})
}

// swap writes a key whose revision must still be rev; ErrConflict if it is not.
func (b *Bus) swap(ctx context.Context, kv jetstream.KeyValue, key string, limit int, v protocol.Checker, rev uint64) (uint64, error) {
	return b.write(kv, key, limit, v, func(data []byte) (uint64, error) {
		ctx, cancel := timed(ctx)
		defer cancel()
		return kv.Update(ctx, key, data, rev)
	})
}

func (b *Bus) write(kv jetstream.KeyValue, key string, limit int, v protocol.Checker, put func([]byte) (uint64, error)) (uint64, error) {
	data, err := protocol.Encode(v, limit)
	if err != nil {
		return 0, err
	}
	rev, err := put(data)
	if errors.Is(err, jetstream.ErrKeyExists) || hasCode(err, jetstream.JSErrCodeStreamWrongLastSequence, jetstream.JSErrCodeStreamWrongLastSequenceConstant) {
		return 0, fmt.Errorf("%s/%s: %w", kv.Bucket(), key, ErrConflict)
	}
	if err != nil {
		return 0, fmt.Errorf("%s/%s: %w", kv.Bucket(), key, err)
	}
	return rev, nil
}
