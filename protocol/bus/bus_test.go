package bus_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"ipufarm/protocol"
	"ipufarm/protocol/bus"
	"ipufarm/protocol/bus/bustest"
)

var ctx = context.Background()

func task(t testing.TB, candidate int) *protocol.Task {
	t.Helper()
	x := &protocol.Task{
		Version: protocol.Version, Kind: protocol.KindSchedule, Job: strings.Repeat("0a", 16), Class: protocol.ClassSmall, Priority: 1,
		Tool: strings.Repeat("ab", 32), Spec: json.RawMessage(`{"tiles":64}`), Candidate: candidate, Inputs: []protocol.Artifact{},
	}
	var err error
	if x.Key, err = protocol.KeyOf(x); err != nil {
		t.Fatal(err)
	}
	return x
}

func take(t testing.TB, b *bus.Bus) *bus.Ticket {
	t.Helper()
	ticket, err := b.Take(ctx, protocol.TaskQueue(protocol.ClassSmall, 1), 200*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	return ticket
}

// eventually waits for something that a server does on its own clock.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for range 1000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("never happened: %s", what)
}

func TestTickets(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t).Setup()
	if take(t, b) != nil {
		t.Fatal("a ticket from an empty queue")
	}
	x := task(t, 0)
	for range 2 { // the second is the twin of the first
		if err := b.PublishTicket(ctx, x); err != nil {
			t.Fatal(err)
		}
	}
	ticket := take(t, b)
	if ticket == nil || ticket.Task.Key != x.Key || ticket.Deliveries != 1 || ticket.Seq == 0 {
		t.Fatalf("took %+v", ticket)
	}
	if take(t, b) != nil {
		t.Error("two tickets of one task")
	}
	if err := b.PublishTicket(ctx, x); err != nil || take(t, b) != nil {
		t.Errorf("a held ticket has a twin (%v)", err)
	}

	// A ticket that is kept is not delivered again, one that is not kept is.
	for range 7 { // with the attempt to take it between, about twice AckWait
		time.Sleep(100 * time.Millisecond)
		if err := ticket.Keep(ctx); err != nil {
			t.Fatal(err)
		}
		if take(t, b) != nil {
			t.Error("a kept ticket was delivered again")
		}
	}
	var again *bus.Ticket
	eventually(t, "redelivery of a ticket that is not kept", func() bool { again = take(t, b); return again != nil })
	if again.Deliveries != 2 || again.Seq != ticket.Seq {
		t.Errorf("redelivered as %+v", again)
	}
	if err := again.Later(time.Millisecond); err != nil {
		t.Fatal(err)
	}
	eventually(t, "redelivery of a ticket that was given back", func() bool { again = take(t, b); return again != nil })
	if err := again.Ack(ctx); err != nil {
		t.Fatal(err)
	}
	if has, err := b.HasTicket(ctx, x); err != nil || has {
		t.Errorf("an acknowledged ticket is still there (%v)", err)
	}
}

// TestWithdrawnTicketIsNew: a withdrawn ticket can be published anew at once, and
// what its old holder says touches nothing.
func TestWithdrawnTicketIsNew(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t).Setup()
	x := task(t, 0)
	if err := b.PublishTicket(ctx, x); err != nil {
		t.Fatal(err)
	}
	old := take(t, b)
	if err := b.WithdrawTicket(ctx, x); err != nil {
		t.Fatal(err)
	}
	if err := b.PublishTicket(ctx, x); err != nil {
		t.Fatal(err)
	}
	if err := old.Ack(ctx); err != nil {
		t.Fatal(err)
	}
	if ticket := take(t, b); ticket == nil || ticket.Seq == old.Seq {
		t.Errorf("took %+v after the old holder of %d acknowledged", ticket, old.Seq)
	}
}

func TestBellRings(t *testing.T) {
	s := bustest.Start(t)
	b := s.Setup()
	rings := make(chan struct{}, 10)
	stop, err := b.Bell(protocol.TaskQueue(protocol.ClassSmall, 1), func() { rings <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	if err := b.PublishTicket(ctx, task(t, 0)); err != nil {
		t.Fatal(err)
	}
	<-rings
	if take(t, b) == nil {
		t.Error("the bell rang before the ticket was there")
	}
}

// TestMalformedMessages sends rubbish to every subject that somebody reads: each
// is refused and counted, and the reader goes on.
func TestMalformedMessages(t *testing.T) {
	t.Parallel()
	s := bustest.Start(t)
	b := s.Setup("sim0")
	raw, err := nats.Connect(s.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	x := task(t, 1)
	good, err := protocol.Encode(x, protocol.MaxTicket)
	if err != nil {
		t.Fatal(err)
	}
	send := func(subject, data string) {
		t.Helper()
		if err := raw.Publish(subject, []byte(data)); err != nil {
			t.Fatal(err)
		}
		if err := raw.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	var cancels atomic.Int32
	stopCancel, err := b.OnCancel(func(string) { cancels.Add(1) })
	if err != nil {
		t.Fatal(err)
	}
	defer stopCancel()
	stopOwner, err := b.AnswerOwner(protocol.Owner{Name: "w0", Boot: "0123456789abcdef"}, func(string) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	defer stopOwner()

	send("farm.v1.t.s.1."+x.Key, "rubbish")
	send("farm.v1.t.s.1."+strings.Repeat("0", 64), string(good)) // a good ticket on another task's subject
	send("farm.v1.r.ipu21.any."+x.Key, `{"version":1}`)
	send("farm.v1.e."+x.Job+"."+x.Key+".done", `{"version":7}`)
	send(protocol.SubjectCancel, `{"version":1,"keys":["x"]}`)
	send(protocol.OwnSubject("w0"), `{"version":1,"key":"?"}`)
	send("$KV.FARM_TASK."+x.Key, `{"state":"mine"}`)
	send("$KV.FARM_WORKERS.w9", `[]`)

	presence := make(chan string, 1)
	watchCtx, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { b.WatchPresence(watchCtx, func(name string, _ *protocol.Presence) { presence <- name }) })
	good2 := &protocol.Presence{Version: 1, Owner: protocol.Owner{Name: "w1", Boot: "0123456789abcdef"}, Classes: []string{"s"}, Slots: 1}
	if err := b.Announce(ctx, good2); err != nil {
		t.Fatal(err)
	}
	if name := <-presence; name != "w1" {
		t.Errorf("presence of %s, want w1", name)
	}
	cancel()
	watch.Wait()

	for range 2 {
		if ticket := take(t, b); ticket != nil {
			t.Errorf("took a malformed ticket %+v", ticket)
		}
	}
	if ticket, err := b.Take(ctx, protocol.RunQueue("ipu21", protocol.AnyDevice), 200*time.Millisecond); ticket != nil || err != nil {
		t.Errorf("took a malformed run %+v, %v", ticket, err)
	}
	if _, rev, err := b.Record(ctx, x.Key); !errors.Is(err, protocol.ErrMalformed) || rev == 0 {
		t.Errorf("malformed record: revision %d, %v", rev, err)
	}
	event := &protocol.Event{Version: 1, Type: protocol.EventStarted, Job: x.Job, Key: x.Key, At: time.Now(), Kind: x.Kind, Candidate: 1, Attempt: 1, Worker: "w0"}
	if err := b.PublishEvent(ctx, event); err != nil {
		t.Fatal(err)
	}
	stop := errors.New("stop")
	err = b.Events(ctx, []string{protocol.JobEvents(x.Job)}, 1, func(seq uint64, e *protocol.Event) error {
		if e.Type != protocol.EventStarted || seq != 2 {
			t.Errorf("event %d is %+v", seq, e)
		}
		return stop
	})
	if err != stop {
		t.Error(err)
	}
	eventually(t, "every malformed message counted", func() bool {
		r := b.Refused()
		return r["ticket"] == 3 && r["event"] == 1 && r["cancel"] == 1 && r["request"] == 1 && r["value of FARM_TASK"] == 1 && r["presence"] == 1
	})
	if cancels.Load() != 0 {
		t.Error("a malformed cancel was obeyed")
	}
}

// TestOneClaimWins lets many claim one record from the same revision.
func TestOneClaimWins(t *testing.T) {
	s := bustest.Start(t)
	b := s.Setup()
	key := task(t, 0).Key
	rev, err := b.CreateRecord(ctx, key, protocol.NewRecord(0, time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.CreateRecord(ctx, key, protocol.NewRecord(0, time.Now())); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("a second creation: %v", err)
	}
	var wins atomic.Int32
	var group sync.WaitGroup
	for i := range 16 {
		group.Go(func() {
			owner := protocol.Owner{Name: fmt.Sprintf("w%d", i), Boot: "0123456789abcdef"}
			r, _, err := b.Record(ctx, key)
			if err != nil || r.State != protocol.Queued {
				return
			}
			if _, _, err := b.MoveRecord(ctx, key, r, rev, protocol.Move{Step: protocol.Claim, By: owner, Now: time.Now()}); err == nil {
				wins.Add(1)
			} else if !errors.Is(err, bus.ErrConflict) {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if wins.Load() != 1 {
		t.Errorf("%d claims of one revision succeeded", wins.Load())
	}
}

// TestEventsAreReplayed reads half of the events, restarts the server and goes on.
func TestEventsAreReplayed(t *testing.T) {
	t.Parallel()
	s := bustest.Start(t)
	b := s.Setup()
	x := task(t, 0)
	publish := func(attempt int) {
		t.Helper()
		e := &protocol.Event{Version: 1, Type: protocol.EventStarted, Job: x.Job, Key: x.Key, At: time.Now(), Kind: x.Kind, Candidate: 0, Attempt: attempt, Worker: "w0"}
		for range 2 { // the copy is dropped
			if err := b.PublishEvent(ctx, e); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range 6 {
		publish(i)
	}
	var got []int
	next := uint64(1)
	read := func(n int) {
		t.Helper()
		stop := errors.New("stop")
		err := b.Events(ctx, []string{protocol.EventsOfType(protocol.EventStarted)}, next, func(seq uint64, e *protocol.Event) error {
			got, next = append(got, e.Attempt), seq+1
			if len(got) == n {
				return stop
			}
			return nil
		})
		if err != stop {
			t.Fatal(err)
		}
	}
	read(3)
	s.Stop()
	s.Restart()
	eventually(t, "the server is back", func() bool { _, err := b.HasTicket(ctx, x); return err == nil })
	publish(6)
	read(7)
	if !slices.Equal(got, []int{0, 1, 2, 3, 4, 5, 6}) {
		t.Errorf("read %v", got)
	}
}

func TestPresenceEnds(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t).Setup()
	seen := make(chan string, 10)
	watchCtx, cancel := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		b.WatchPresence(watchCtx, func(name string, p *protocol.Presence) { seen <- fmt.Sprint(name, p != nil) })
	})
	defer watch.Wait()
	defer cancel()
	p := &protocol.Presence{Version: 1, Owner: protocol.Owner{Name: "w0", Boot: "0123456789abcdef"}, Classes: []string{"s"}, Slots: 1}
	if err := b.Announce(ctx, p); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"w0true", "w0false"} { // the second comes from the TTL
		if got := <-seen; got != want {
			t.Errorf("saw %s, want %s", got, want)
		}
	}
}

func TestLease(t *testing.T) {
	t.Parallel()
	b := bustest.Start(t).Setup()
	l := &protocol.Lease{Version: 1, Owner: protocol.Owner{Name: "r0", Boot: "0123456789abcdef"}, Run: task(t, 0).Key}
	rev, err := b.TakeLease(ctx, "sim0", l)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.TakeLease(ctx, "sim0", l); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("a second lease: %v", err)
	}
	rev2, err := b.RenewLease(ctx, "sim0", l, rev)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.RenewLease(ctx, "sim0", l, rev); !errors.Is(err, bus.ErrConflict) {
		t.Errorf("renewal with an old revision: %v", err)
	}
	if err := b.DropLease(ctx, "sim0", rev2); err != nil {
		t.Fatal(err)
	}
	rev3, err := b.TakeLease(ctx, "sim0", l)
	if err != nil || rev3 <= rev2 {
		t.Errorf("taken again with revision %d after %d, %v", rev3, rev2, err)
	}
}

func TestVersionsMustAgree(t *testing.T) {
	s := bustest.Start(t)
	early := s.Connect("early")
	short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if err := early.Join(short); err == nil {
		t.Error("joined a farm that nobody has set up")
	}
	s.Setup()
	if err := early.Join(ctx); err != nil {
		t.Error(err)
	}
	raw, err := nats.Connect(s.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	raw.Publish("$KV.FARM_CTL.proto", []byte("99"))
	raw.Flush()
	if err := early.Join(ctx); err == nil {
		t.Error("joined a farm of version 99")
	}
}

func TestFolderAndPortAreExclusive(t *testing.T) {
	t.Parallel()
	s := bustest.Start(t)
	if err := s.TryAgain(0); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second server on one folder: %v", err)
	}
	other := bustest.Start(t)
	other.Stop()
	if err := other.TryAgain(s.PortOf()); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second server on one port: %v", err)
	}
	other.Restart()
}
