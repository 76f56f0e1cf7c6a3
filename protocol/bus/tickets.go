package bus

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"ipufarm/protocol"
)

// codeTwin is the server's answer to a second message on a subject that may hold
// one: the task's ticket is already there.
const codeTwin jetstream.ErrorCode = 10077

// PublishTicket puts t into its queue and rings the bell. A ticket that is
// already there, waiting or held, is success.
func (b *Bus) PublishTicket(ctx context.Context, t *protocol.Task) error {
	data, err := protocol.Encode(t, protocol.MaxTicket)
	if err != nil {
		return err
	}
	opCtx, cancel := timed(ctx)
	defer cancel()
	if _, err := b.js.Publish(opCtx, t.TaskSubject(), data); err != nil && !isTwin(err) {
		return fmt.Errorf("ticket of %s %s: %w", t.Kind, t.Key, err)
	}
	return b.nc.Publish(t.Queue().Bell, nil)
}

// isTwin tells a twin from a queue that is full as a whole, which has the same
// code: the text is the only difference.
func isTwin(err error) bool {
	return hasCode(err, codeTwin) && strings.Contains(err.Error(), "per subject")
}

// WithdrawTicket removes t's ticket from its queue, waiting or held. A holder
// does not notice; its acknowledgement then touches nothing.
func (b *Bus) WithdrawTicket(ctx context.Context, t *protocol.Task) error {
	ctx, cancel := timed(ctx)
	defer cancel()
	stream, err := b.js.Stream(ctx, t.Stream())
	if err != nil {
		return fmt.Errorf("stream %s: %w", t.Stream(), err)
	}
	if err := stream.Purge(ctx, jetstream.WithPurgeSubject(t.TaskSubject())); err != nil {
		return fmt.Errorf("withdraw ticket of %s %s: %w", t.Kind, t.Key, err)
	}
	return nil
}

// Ticket is a delivered message that says: this task wants a worker.
type Ticket struct {
	Task       protocol.Task
	Seq        uint64 // in the stream
	Deliveries int

	bus   *Bus
	reply string
}

// Take asks a queue for one ticket and returns nil when it has none. It waits
// for one as long as asked. After a bell it has to wait a little: the queue may
// learn of a stored ticket a moment later than the ringer did.
func (b *Bus) Take(ctx context.Context, q protocol.Queue, wait time.Duration) (*Ticket, error) {
	// Not the caller's context: a request that is given up halfway may have a
	// ticket on its way, which would then rest for the whole AckWait.
	opCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wait+opTimeout)
	defer cancel()
	request := []byte(`{"batch":1,"no_wait":true}`)
	if wait > 0 {
		request = fmt.Appendf(nil, `{"batch":1,"expires":%d}`, wait.Nanoseconds())
	}
	m, err := b.pull(opCtx, q, request)
	if err != nil {
		return nil, fmt.Errorf("take from %s: %w", q.Consumer, err)
	}
	switch status := m.Header.Get("Status"); status {
	case "":
	case "404", "408":
		return nil, nil
	default:
		return nil, fmt.Errorf("take from %s: %s %s", q.Consumer, status, m.Header.Get("Description"))
	}
	t := &Ticket{bus: b, reply: m.Reply}
	if t.Seq, t.Deliveries, err = parseReply(m.Reply); err != nil {
		return nil, fmt.Errorf("take from %s: %w", q.Consumer, err)
	}
	err = protocol.Decode(m.Data, protocol.MaxTicket, &t.Task)
	if err == nil && t.Task.TaskSubject() != m.Subject {
		err = fmt.Errorf("%w: content belongs on %s", protocol.ErrMalformed, t.Task.TaskSubject())
	}
	if err != nil {
		b.Refuse("ticket", m.Subject, err)
		// Terminated and not given back: nobody else could read it either.
		_, termErr := b.nc.RequestWithContext(opCtx, m.Reply, []byte("+TERM malformed"))
		return nil, termErr
	}
	return t, nil
}

// pull sends one pull request with an inbox of its own. The inbox that the
// connection shares among its requests would not do: a delivered ticket carries
// the subject it was published on, so the client cannot tell whose reply it is
// and drops it when two requests are on their way.
func (b *Bus) pull(ctx context.Context, q protocol.Queue, request []byte) (*nats.Msg, error) {
	inbox := b.nc.NewInbox()
	s, err := b.nc.SubscribeSync(inbox)
	if err != nil {
		return nil, err
	}
	defer s.Unsubscribe()
	if err := b.nc.PublishRequest("$JS.API.CONSUMER.MSG.NEXT."+q.Stream+"."+q.Consumer, inbox, request); err != nil {
		return nil, err
	}
	return s.NextMsgWithContext(ctx)
}

// parseReply reads stream sequence and delivery count from the subject of a
// message's acknowledgement: $JS.ACK.[domain.account.]stream.consumer.
// deliveries.streamseq.consumerseq.time.pending[.token]
func parseReply(reply string) (seq uint64, deliveries int, err error) {
	tokens := strings.Split(reply, ".")
	at := 4
	if len(tokens) > 9 {
		at = 6
	}
	if len(tokens) < 9 || tokens[0] != "$JS" || tokens[1] != "ACK" {
		return 0, 0, fmt.Errorf("message without acknowledgement subject: %q", reply)
	}
	if deliveries, err = strconv.Atoi(tokens[at]); err == nil {
		seq, err = strconv.ParseUint(tokens[at+1], 10, 64)
	}
	if err != nil {
		return 0, 0, fmt.Errorf("acknowledgement subject %q: %w", reply, err)
	}
	return seq, deliveries, nil
}

// Ack ends the ticket and waits until the server knows.
func (t *Ticket) Ack(ctx context.Context) error { return t.answer(ctx, "+ACK") }

// Keep tells the server that the ticket is in work, and waits for its answer. An
// answer shows that the queue exists, not that the ticket is still ours.
func (t *Ticket) Keep(ctx context.Context) error { return t.answer(ctx, "+WPI") }

// Later gives the ticket back to be delivered again after a delay.
func (t *Ticket) Later(delay time.Duration) error {
	return t.bus.nc.Publish(t.reply, fmt.Appendf(nil, `-NAK {"delay":%d}`, max(delay, time.Millisecond).Nanoseconds()))
}

// Refuse ends the ticket because its task can never be executed.
func (t *Ticket) Refuse(ctx context.Context, why error) error {
	t.bus.Refuse("ticket", t.Task.TaskSubject(), why)
	return t.answer(ctx, "+TERM refused")
}

func (t *Ticket) answer(ctx context.Context, what string) error {
	ctx, cancel := timed(ctx)
	defer cancel()
	_, err := t.bus.nc.RequestWithContext(ctx, t.reply, []byte(what))
	if err != nil {
		return fmt.Errorf("%s of the ticket of %s %s: %w", what, t.Task.Kind, t.Task.Key, err)
	}
	return nil
}

// Bell calls f whenever a ticket was put into the queue. A ring may be lost or be
// for a ticket that somebody else takes.
func (b *Bus) Bell(q protocol.Queue, f func()) (stop func(), err error) {
	s, err := b.nc.Subscribe(q.Bell, func(*nats.Msg) { f() })
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", q.Bell, err)
	}
	return func() { s.Unsubscribe() }, nil
}

// Tickets counts the tickets that wait in a queue and that are held; ErrNotFound if
// the coordinator has made no such queue.
func (b *Bus) Tickets(ctx context.Context, q protocol.Queue) (waiting, held int, err error) {
	ctx, cancel := timed(ctx)
	defer cancel()
	c, err := b.js.Consumer(ctx, q.Stream, q.Consumer)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		err = ErrNotFound
	}
	if err != nil {
		return 0, 0, fmt.Errorf("consumer %s: %w", q.Consumer, err)
	}
	info := c.CachedInfo()
	return int(info.NumPending), info.NumAckPending, nil
}

// HasTicket reports whether t has a ticket, waiting or held.
func (b *Bus) HasTicket(ctx context.Context, t *protocol.Task) (bool, error) {
	ctx, cancel := timed(ctx)
	defer cancel()
	stream, err := b.js.Stream(ctx, t.Stream())
	if err != nil {
		return false, fmt.Errorf("stream %s: %w", t.Stream(), err)
	}
	_, err = stream.GetLastMsgForSubject(ctx, t.TaskSubject())
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return false, nil
	}
	return err == nil, err
}

// Ring tells idle slots that a ticket may be there.
func (b *Bus) Ring(q protocol.Queue) error { return b.nc.Publish(q.Bell, nil) }
