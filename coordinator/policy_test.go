package coordinator_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"ipufarm/coordinator"
	"ipufarm/protocol"
)

// truth is what a finalist will turn out to be.
type truth struct {
	standing coordinator.Standing // IsFeasible, Impossible or Unknown
	bound    uint64
	score    uint64
}

// sequential is the winner that the loop on one machine would find: the judge.
func sequential(p protocol.Policy, truths []truth) int {
	winner, feasible := protocol.NoCandidate, 0
	k := len(truths)
	switch p.Name {
	case protocol.FirstFeasible:
		k = 1
	case protocol.FirstK:
		k = p.K
	}
	for rank, v := range truths {
		if v.standing != coordinator.IsFeasible {
			continue
		}
		if winner < 0 || v.score < truths[winner].score {
			winner = rank
		}
		if feasible++; feasible == k {
			break
		}
	}
	return winner
}

// TestPoliciesAgreeWithTheSequentialLoop plays random histories: verdicts arrive
// in any order, some twice, some after their task was cancelled, tasks are lost
// and come back, and windows change. Whatever the history, the winner is the
// sequential one, and nothing was cancelled that could have won.
func TestPoliciesAgreeWithTheSequentialLoop(t *testing.T) {
	const histories = 10_000
	for seed := range uint64(histories) {
		random := rand.New(rand.NewPCG(seed, 7))
		policy := protocol.Policy{Name: protocol.Policies[random.IntN(len(protocol.Policies))]}
		if policy.Name == protocol.FirstK {
			policy.K = 1 + random.IntN(4)
		}
		truths := make([]truth, 1+random.IntN(12))
		for i := range truths {
			v := truth{bound: uint64(random.IntN(50))}
			switch n := random.IntN(10); {
			case n < 4:
				v.standing, v.score = coordinator.IsFeasible, v.bound+uint64(random.IntN(20))
			default:
				v.standing = coordinator.Impossible
			}
			truths[i] = v
		}
		got, err := play(random, policy, truths)
		if err != nil {
			t.Fatalf("seed %d, %+v, %+v: %v", seed, policy, truths, err)
		}
		if want := sequential(policy, truths); got != want {
			t.Fatalf("seed %d, %+v, %+v: winner %d, sequential winner %d", seed, policy, truths, got, want)
		}
	}
}

// TestUndecidedNeverChangesTheWinner: with some finalists without a verdict, a
// strict policy names the sequential winner among the others only if none of
// those without a verdict could have won, and else nobody.
func TestUndecidedNeverChangesTheWinner(t *testing.T) {
	for seed := range uint64(5_000) {
		random := rand.New(rand.NewPCG(seed, 8))
		policy := protocol.Policy{Name: []protocol.PolicyName{protocol.FirstFeasible, protocol.BestExact}[random.IntN(2)]}
		truths := make([]truth, 1+random.IntN(8))
		for i := range truths {
			bound := uint64(random.IntN(50))
			truths[i] = truth{standing: []coordinator.Standing{coordinator.IsFeasible, coordinator.Impossible, coordinator.Unknown}[random.IntN(3)],
				bound: bound, score: bound + uint64(random.IntN(20))}
		}
		got, err := play(random, policy, truths)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if got < 0 {
			continue
		}
		// Whatever the unknown ones had turned out to be, the winner must be the same.
		for range 8 {
			world := slices.Clone(truths)
			for i := range world {
				if world[i].standing == coordinator.Unknown {
					world[i].standing = []coordinator.Standing{coordinator.IsFeasible, coordinator.Impossible}[random.IntN(2)]
				}
			}
			if want := sequential(policy, world); got != want {
				t.Fatalf("seed %d, %+v, %+v: winner %d, but %d in the world %+v", seed, policy, truths, got, want, world)
			}
		}
	}
}

// play runs one history to its end and returns the winner.
func play(random *rand.Rand, policy protocol.Policy, truths []truth) (int, error) {
	finalists := make([]coordinator.Finalist, len(truths))
	for i, v := range truths {
		finalists[i].Bound = v.bound
	}
	for range 50 * len(truths) {
		d := coordinator.Decide(policy, finalists, 1+random.IntN(4))
		if again := coordinator.Decide(policy, finalists, 1+random.IntN(4)); again.Over != d.Over || again.Winner != d.Winner {
			return 0, fmt.Errorf("deciding twice gives %+v and %+v", d, again)
		}
		for _, rank := range d.Start {
			if s := finalists[rank].Standing; s != coordinator.Waiting && s != coordinator.Pruned {
				return 0, fmt.Errorf("rank %d is started from standing %d", rank, s)
			}
			finalists[rank].Standing = coordinator.Started
		}
		for _, rank := range d.Cancel {
			if finalists[rank].Standing != coordinator.Started {
				return 0, fmt.Errorf("rank %d is cancelled without running", rank)
			}
			finalists[rank].Standing = coordinator.Pruned
		}
		if d.Over {
			return d.Winner, nil
		}
		var running []int
		for rank, f := range finalists {
			if f.Standing == coordinator.Started {
				running = append(running, rank)
			}
		}
		if len(running) == 0 {
			return 0, fmt.Errorf("nothing runs and nothing is decided: %+v", finalists)
		}
		rank := running[random.IntN(len(running))]
		switch random.IntN(8) {
		case 0: // the verdict is late: the task was lost and is done again
		default:
			finalists[rank].Standing, finalists[rank].Score = truths[rank].standing, truths[rank].score
		}
		// A verdict that arrives although its task was pruned is as good as any.
		if late := random.IntN(len(truths)); finalists[late].Standing == coordinator.Pruned && random.IntN(2) == 0 {
			finalists[late].Standing, finalists[late].Score = truths[late].standing, truths[late].score
		}
	}
	return 0, fmt.Errorf("no end: %+v", finalists)
}

// TestWrongBoundsAreNotTrusted: a score below its bound ends pruning, and what
// was pruned comes back.
func TestWrongBoundsAreNotTrusted(t *testing.T) {
	policy := protocol.Policy{Name: protocol.BestExact}
	d := coordinator.Decide(policy, []coordinator.Finalist{
		{Standing: coordinator.IsFeasible, Bound: 10, Score: 5},
		{Standing: coordinator.Pruned, Bound: 20},
		{Standing: coordinator.Waiting, Bound: 30},
	}, 4)
	if d.Over || !slices.Equal(d.Start, []int{1, 2}) {
		t.Errorf("%+v, want ranks 1 and 2 started", d)
	}
}

func TestFirstFeasibleStartsInRankOrderWithinTheWindow(t *testing.T) {
	finalists := make([]coordinator.Finalist, 8)
	policy := protocol.Policy{Name: protocol.FirstFeasible}
	if d := coordinator.Decide(policy, finalists, 3); !slices.Equal(d.Start, []int{0, 1, 2}) {
		t.Errorf("started %v", d.Start)
	}
	for i := range 4 {
		finalists[i].Standing = coordinator.Started
	}
	finalists[1].Standing, finalists[1].Score = coordinator.IsFeasible, 9
	d := coordinator.Decide(policy, finalists, 3)
	if d.Over || len(d.Start) != 0 || !slices.Equal(d.Cancel, []int{2, 3}) {
		t.Errorf("with rank 1 feasible and rank 0 running: %+v", d)
	}
}
