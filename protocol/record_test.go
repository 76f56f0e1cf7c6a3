package protocol_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"ipufarm/protocol"
)

var (
	now    = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	alice  = protocol.Owner{Name: "alice", Boot: "0123456789abcdef"}
	bob    = protocol.Owner{Name: "bob", Boot: "fedcba9876543210"}
	result = &protocol.Result{Manifest: digestOf("m"), Verdict: protocol.Feasible}
)

// TestMovesTable lists, for every state, the steps that its record allows and
// where they lead; every pair that is not listed must be refused.
func TestMovesTable(t *testing.T) {
	type move struct {
		from protocol.State
		step protocol.Step
	}
	allowed := map[move]protocol.State{
		{protocol.Queued, protocol.Claim}:     protocol.Running,
		{protocol.Queued, protocol.Cancel}:    protocol.Cancelled,
		{protocol.Running, protocol.TakeOver}: protocol.Running,
		{protocol.Running, protocol.Commit}:   protocol.Done,
		{protocol.Running, protocol.GiveBack}: protocol.Queued,
		{protocol.Running, protocol.Fault}:    protocol.Queued,
		{protocol.Running, protocol.Crash}:    protocol.Queued,
		{protocol.Running, protocol.Cancel}:   protocol.Cancelled,
		{protocol.Done, protocol.Dispute}:     protocol.Disputed,
		{protocol.Done, protocol.Reopen}:      protocol.Queued,
		{protocol.Cancelled, protocol.Reopen}: protocol.Queued,
		{protocol.Undecided, protocol.Reopen}: protocol.Queued,
		{protocol.Disputed, protocol.Reopen}:  protocol.Queued,
	}
	for _, from := range protocol.States {
		for _, step := range protocol.Steps {
			before := inState(from)
			if err := before.Check(); err != nil {
				t.Fatalf("%s: %v", from, err)
			}
			after, err := before.After(protocol.Move{Step: step, By: alice, TicketSeq: 7, Result: result, Now: now})
			want, ok := allowed[move{from, step}]
			switch {
			case ok && err != nil:
				t.Errorf("%s of %s: %v", step, from, err)
			case ok && after.State != want:
				t.Errorf("%s of %s gives %s, want %s", step, from, after.State, want)
			case ok && after.Check() != nil:
				t.Errorf("%s of %s gives a record that is not legal: %v", step, from, after.Check())
			case !ok && !errors.Is(err, protocol.ErrIllegal):
				t.Errorf("%s of %s gives %s, %v; want it refused", step, from, after.State, err)
			}
		}
	}
}

func TestMovesByOthersAreRefused(t *testing.T) {
	for _, step := range []protocol.Step{protocol.Commit, protocol.GiveBack, protocol.Fault, protocol.Crash} {
		if _, err := inState(protocol.Running).After(protocol.Move{Step: step, By: bob, Result: result, Now: now}); !errors.Is(err, protocol.ErrIllegal) {
			t.Errorf("%s by somebody else: %v, want it refused", step, err)
		}
	}
}

func TestCounters(t *testing.T) {
	r := protocol.NewRecord(0, now)
	step := func(s protocol.Step, by protocol.Owner) {
		t.Helper()
		next, err := r.After(protocol.Move{Step: s, By: by, Now: now})
		if err != nil {
			t.Fatal(err)
		}
		r = next
	}
	step(protocol.Claim, alice)
	step(protocol.GiveBack, alice)
	if r.Attempt != 1 || r.Infra != 0 || r.Crash != 0 {
		t.Errorf("after a give-back: %+v", r)
	}
	for range protocol.MaxInfra + 1 {
		if _, err := r.After(protocol.Move{Step: protocol.Exhaust, Now: now}); err == nil {
			t.Fatal("exhausted with attempts left")
		}
		step(protocol.Claim, alice)
		step(protocol.Fault, alice)
	}
	if _, err := r.After(protocol.Move{Step: protocol.Claim, By: bob, Now: now}); err == nil {
		t.Error("claimed beyond its limits")
	}
	step(protocol.Exhaust, protocol.Owner{})
	step(protocol.Reopen, protocol.Owner{})
	if r.State != protocol.Queued || r.Infra != 0 || r.Attempt != protocol.MaxInfra+2 {
		t.Errorf("after reopening: %+v; attempts are kept, faults are not", r)
	}
}

// TestRandomWalk takes random moves and states what must hold on every walk:
// legal records only, attempts never fall, and one commit for each (re)opening.
func TestRandomWalk(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		r := protocol.NewRecord(0, now)
		commits, openings := 0, 1
		for range 100 {
			step := protocol.Steps[random.IntN(len(protocol.Steps))]
			by := []protocol.Owner{alice, bob}[random.IntN(2)]
			next, err := r.After(protocol.Move{Step: step, By: by, TicketSeq: random.Uint64(), Result: result, Now: now})
			if err != nil {
				continue
			}
			if next.Attempt < r.Attempt || next.Check() != nil {
				t.Fatalf("%s: %+v becomes %+v (%v)", step, r, next, next.Check())
			}
			if step == protocol.Commit {
				commits++
			}
			if step == protocol.Reopen {
				openings++
			}
			if commits > openings {
				t.Fatalf("%d commits after %d openings", commits, openings)
			}
			r = next
		}
	}
}

func inState(s protocol.State) protocol.Record {
	r := protocol.NewRecord(0, now)
	r.State = s
	switch s {
	case protocol.Running:
		owner := alice
		r.Owner, r.Attempt, r.TicketSeq = &owner, 1, 3
	case protocol.Done, protocol.Disputed:
		r.Result, r.Attempt = result, 1
	}
	return r
}

func TestStatesAreFinal(t *testing.T) {
	for _, s := range protocol.States {
		if want := !slices.Contains([]protocol.State{protocol.Queued, protocol.Running}, s); s.Final() != want {
			t.Errorf("%s.Final() = %v", s, s.Final())
		}
	}
}
