package bus

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"ipufarm/protocol"
)

// Layout is what the coordinator makes the server hold. Every option that has a
// default on the server is set, because several of those defaults do not suit a
// compile farm (an AckWait of 30 s, 1000 pending acks, 512 waiting pulls).
type Layout struct {
	Timers      protocol.Timers
	Replicas    int   // of streams and buckets: 1 or 3
	EventBytes  int64 // bound of the event stream
	MaxTickets  int64 // waiting tickets; above, a submission is refused
	DeviceClass string
	Devices     []string // devices that get a queue of their own beside the one for any
}

// DefaultLayout suits one server with one class of devices.
func DefaultLayout(timers protocol.Timers, deviceClass string, devices ...string) Layout {
	return Layout{Timers: timers, Replicas: 1, EventBytes: 256 << 20, MaxTickets: 200_000, DeviceClass: deviceClass, Devices: devices}
}

// Setup makes the streams, consumers and buckets, or brings existing ones to the
// layout. Only the coordinator calls it. created is when the event stream was
// made: it tells a new message store from the one that a cursor belongs to.
func (b *Bus) Setup(ctx context.Context, l Layout) (created time.Time, last uint64, err error) {
	if err := l.Timers.Check(); err != nil {
		return time.Time{}, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, 4*opTimeout)
	defer cancel()
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return b.setupQueue(groupCtx, l, protocol.StreamTasks, protocol.SubjectTasks, taskConsumers(l))
	})
	group.Go(func() error {
		return b.setupQueue(groupCtx, l, protocol.StreamRuns, protocol.SubjectRuns, runConsumers(l))
	})
	group.Go(func() error {
		stream, err := b.js.CreateOrUpdateStream(groupCtx, jetstream.StreamConfig{
			Name: protocol.StreamEvents, Subjects: []string{protocol.SubjectEvents}, Retention: jetstream.LimitsPolicy, Storage: jetstream.FileStorage,
			Replicas: l.Replicas, MaxAge: 14 * 24 * time.Hour, MaxBytes: l.EventBytes, Discard: jetstream.DiscardOld,
			MaxMsgSize: protocol.MaxEvent, Duplicates: 10 * time.Minute,
		})
		if err != nil {
			return fmt.Errorf("stream %s: %w", protocol.StreamEvents, err)
		}
		info := stream.CachedInfo()
		created, last = info.Created, info.State.LastSeq
		return nil
	})
	for _, kv := range b.buckets(l) {
		group.Go(func() error {
			bucket, err := b.js.CreateOrUpdateKeyValue(groupCtx, kv.config)
			if err != nil {
				return fmt.Errorf("bucket %s: %w", kv.config.Bucket, err)
			}
			*kv.to = bucket
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return time.Time{}, 0, fmt.Errorf("bus: %w", err)
	}
	if _, err := b.controlKV.Put(ctx, protocol.ControlProto, []byte(strconv.Itoa(protocol.Version))); err != nil {
		return time.Time{}, 0, fmt.Errorf("bus: %w", err)
	}
	return created, last, nil
}

// Join opens the buckets that the coordinator made, waiting for them until ctx
// ends, and checks that it speaks the same version.
func (b *Bus) Join(ctx context.Context) error {
	for {
		err := b.join(ctx)
		if err == nil || errors.Is(err, errProto) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("bus: no coordinator has made the streams and buckets yet: %w", err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

var errProto = errors.New("the farm speaks another version")

func (b *Bus) join(ctx context.Context) error {
	ctx, cancel := timed(ctx)
	defer cancel()
	for _, kv := range b.buckets(Layout{}) {
		bucket, err := b.js.KeyValue(ctx, kv.config.Bucket)
		if err != nil {
			return fmt.Errorf("bucket %s: %w", kv.config.Bucket, err)
		}
		*kv.to = bucket
	}
	entry, err := b.controlKV.Get(ctx, protocol.ControlProto)
	if err != nil {
		return err
	}
	if v := string(entry.Value()); v != strconv.Itoa(protocol.Version) {
		return fmt.Errorf("bus: %w: %s, this program speaks %d", errProto, v, protocol.Version)
	}
	return nil
}

type bucket struct {
	config jetstream.KeyValueConfig
	to     *jetstream.KeyValue
}

// buckets: leases expire with the bucket's TTL, never with one per key, because
// an update of a key drops the key's own TTL.
func (b *Bus) buckets(l Layout) []bucket {
	file := jetstream.FileStorage
	return []bucket{
		{jetstream.KeyValueConfig{Bucket: protocol.BucketTask, History: 1, Storage: file, Replicas: l.Replicas, MaxValueSize: protocol.MaxRecord}, &b.taskKV},
		{jetstream.KeyValueConfig{Bucket: protocol.BucketWorkers, History: 1, Storage: file, Replicas: l.Replicas, MaxValueSize: protocol.MaxRecord,
			TTL: l.Timers.LeaseTTL, LimitMarkerTTL: 2 * l.Timers.LeaseTTL}, &b.workerKV},
		{jetstream.KeyValueConfig{Bucket: protocol.BucketDevice, History: 1, Storage: file, Replicas: l.Replicas, MaxValueSize: protocol.MaxRecord,
			TTL: l.Timers.LeaseTTL, LimitMarkerTTL: 2 * l.Timers.LeaseTTL}, &b.deviceKV},
		{jetstream.KeyValueConfig{Bucket: protocol.BucketControl, History: 1, Storage: file, Replicas: l.Replicas, MaxValueSize: protocol.MaxRecord}, &b.controlKV},
	}
}

// setupQueue makes a work queue: one message per subject, so that a task has one
// ticket, and a full queue refuses instead of forgetting.
func (b *Bus) setupQueue(ctx context.Context, l Layout, name, subjects string, consumers []jetstream.ConsumerConfig) error {
	stream, err := b.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: name, Subjects: []string{subjects}, Retention: jetstream.WorkQueuePolicy, Storage: jetstream.FileStorage, Replicas: l.Replicas,
		MaxMsgsPerSubject: 1, Discard: jetstream.DiscardNew, DiscardNewPerSubject: true,
		MaxMsgs: l.MaxTickets, MaxBytes: -1, MaxMsgSize: protocol.MaxTicket, Duplicates: 10 * time.Second,
	})
	if err != nil {
		return fmt.Errorf("stream %s: %w", name, err)
	}
	for _, c := range consumers {
		if _, err := stream.CreateOrUpdateConsumer(ctx, c); err != nil {
			return fmt.Errorf("consumer %s: %w", c.Durable, err)
		}
	}
	return nil
}

func taskConsumers(l Layout) []jetstream.ConsumerConfig {
	var list []jetstream.ConsumerConfig
	for _, class := range protocol.Classes {
		for priority := range protocol.Priorities {
			list = append(list, consumer(protocol.TaskQueue(class, priority), l.Timers.AckWait, l.Replicas))
		}
	}
	return list
}

func runConsumers(l Layout) []jetstream.ConsumerConfig {
	if l.DeviceClass == "" {
		return nil
	}
	list := []jetstream.ConsumerConfig{consumer(protocol.RunQueue(l.DeviceClass, protocol.AnyDevice), l.Timers.RunAckWait, l.Replicas)}
	for _, device := range l.Devices {
		list = append(list, consumer(protocol.RunQueue(l.DeviceClass, device), l.Timers.RunAckWait, l.Replicas))
	}
	return list
}

// consumer: deliveries are not limited, the record counts attempts; one ticket
// per request, so nobody holds tickets in advance; no BackOff, which would
// replace AckWait for running work; never deleted for being idle.
func consumer(q protocol.Queue, ackWait time.Duration, replicas int) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable: q.Consumer, FilterSubject: q.Filter, AckPolicy: jetstream.AckExplicitPolicy, DeliverPolicy: jetstream.DeliverAllPolicy,
		AckWait: ackWait, MaxDeliver: -1, MaxAckPending: -1, MaxRequestBatch: 1, MaxWaiting: 8192, Replicas: replicas,
	}
}
