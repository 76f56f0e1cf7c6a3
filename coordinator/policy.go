package coordinator

import (
	"cmp"
	"fmt"
	"slices"

	"ipufarm/protocol"
)

// Standing is how far a finalist is, as a policy sees it.
type Standing uint8

const (
	Waiting    Standing = iota // not started, or pruned and wanted again
	Started                    // its tasks are queued or running
	IsFeasible                 // with an exact score
	Impossible                 // infeasible, or its stage failed: it cannot win
	Unknown                    // its task is undecided: no verdict within the limits
	Pruned                     // cancelled because it could not win
)

// Finalist is a candidate as a policy sees it. Its rank is its index.
type Finalist struct {
	Standing Standing
	Bound    uint64 // no schedule of it is faster; 0 is always true
	Score    uint64 // exact cycles of a feasible one
}

// Decision is what a policy wants done now. It is computed anew from the whole
// picture after every change, so a lost or repeated call does no harm.
type Decision struct {
	Start  []int // ranks to start, in this order
	Cancel []int // started ranks that cannot win any more
	Over   bool
	Winner int    // rank, or NoCandidate when nobody wins
	Why    string // when Over: the reason, for people
}

// Decide applies a policy to the finalists. window is how many of them may be
// started at a time. The winner depends on the verdicts alone, never on their
// order of arrival or on the window: each policy cancels only what cannot win.
func Decide(p protocol.Policy, finalists []Finalist, window int) Decision {
	window = max(window, 1)
	switch p.Name {
	case protocol.FirstFeasible:
		return firstK(finalists, 1, window, p.Lenient)
	case protocol.FirstK:
		return firstK(finalists, p.K, window, p.Lenient)
	case protocol.BestExact:
		return best(finalists, window, true, p.Lenient)
	default: // VerifyAll
		return best(finalists, window, false, p.Lenient)
	}
}

// firstK takes the best of the first k feasible ranks. A rank counts only when
// all before it are known, so the frontier is the first rank without a verdict.
func firstK(finalists []Finalist, k, window int, lenient bool) Decision {
	d := Decision{Winner: protocol.NoCandidate}
	// limit is the rank of the k-th feasible one known: none above it can be among
	// the first k, whatever the ranks between turn out to be.
	limit, feasible := len(finalists)-1, 0
	for rank, f := range finalists {
		if f.Standing == IsFeasible {
			if feasible++; feasible == k {
				limit = rank
				break
			}
		}
	}
	started, open := 0, false
	for rank, f := range finalists {
		switch {
		case f.Standing == Started && rank > limit:
			d.Cancel = append(d.Cancel, rank)
		case f.Standing == Started:
			started++
			open = true
		case f.Standing == Unknown && rank <= limit && !lenient && !open:
			// Everything before is decided: this one might have counted, so no answer
			// would be the answer of every run.
			return stopAt(rank, finalists, d)
		case (f.Standing == Waiting || f.Standing == Pruned) && rank <= limit:
			open = true
			if started < window {
				d.Start = append(d.Start, rank)
				started++
			}
		}
	}
	if open {
		return d
	}
	d.Over = true
	for rank, f := range finalists[:limit+1] {
		if f.Standing == IsFeasible && (d.Winner < 0 || f.Score < finalists[d.Winner].Score) {
			d.Winner = rank
		}
	}
	switch {
	case d.Winner < 0:
		d.Why = noneFeasible(finalists)
	case k == 1:
		d.Why = fmt.Sprintf("the first feasible in rank order: %s before it", countBefore(finalists[:d.Winner]))
	default:
		d.Why = fmt.Sprintf("%d cycles, the fewest of the first %d feasible ranks", finalists[d.Winner].Score, feasible)
	}
	return d
}

// best takes the smallest (score, rank). With pruning, a finalist whose bound
// cannot beat the incumbent is cancelled; since no score is below its bound, the
// smallest can never be pruned. A score below its bound proves the planner's
// bounds wrong: then nothing is pruned, and what was pruned is started again.
func best(finalists []Finalist, window int, prune, lenient bool) Decision {
	d := Decision{Winner: protocol.NoCandidate}
	for rank, f := range finalists {
		if f.Standing == IsFeasible {
			if f.Score < f.Bound {
				prune = false
			}
			if d.Winner < 0 || f.Score < finalists[d.Winner].Score {
				d.Winner = rank
			}
		}
	}
	incumbent := d.Winner
	canWin := func(rank int) bool {
		if !prune || incumbent < 0 {
			return true
		}
		return cmp.Or(cmp.Compare(finalists[rank].Bound, finalists[incumbent].Score), cmp.Compare(rank, incumbent)) < 0
	}
	var waiting []int
	started, open, unknown := 0, false, protocol.NoCandidate
	for rank, f := range finalists {
		switch {
		case f.Standing == Started && !canWin(rank):
			d.Cancel = append(d.Cancel, rank)
		case f.Standing == Started:
			started++
			open = true
		case f.Standing == Unknown && unknown < 0 && canWin(rank):
			unknown = rank
		case (f.Standing == Waiting || f.Standing == Pruned) && canWin(rank):
			waiting = append(waiting, rank)
			open = true
		}
	}
	// The smallest bound first: it is the most likely to become the incumbent that
	// prunes the others.
	slices.SortStableFunc(waiting, func(a, b int) int { return cmp.Compare(finalists[a].Bound, finalists[b].Bound) })
	d.Start = waiting[:min(len(waiting), max(window-started, 0))]
	if open {
		d.Winner = protocol.NoCandidate
		return d
	}
	if unknown >= 0 && !lenient {
		return stopAt(unknown, finalists, d)
	}
	d.Over = true
	if d.Winner < 0 {
		d.Why = noneFeasible(finalists)
		return d
	}
	d.Why = fmt.Sprintf("%d cycles, the fewest of %s", finalists[d.Winner].Score, countBefore(finalists))
	return d
}

// stopAt ends without a winner because a finalist that might have won has no verdict.
func stopAt(rank int, finalists []Finalist, d Decision) Decision {
	d = Decision{Over: true, Winner: protocol.NoCandidate, Why: fmt.Sprintf("undecided at rank %d", rank)}
	for i, f := range finalists {
		if f.Standing == Started {
			d.Cancel = append(d.Cancel, i)
		}
	}
	return d
}

func noneFeasible(finalists []Finalist) string {
	return "no feasible candidate: " + countBefore(finalists)
}

// countBefore says what became of some finalists.
func countBefore(finalists []Finalist) string {
	names := []struct {
		standing Standing
		text     string
	}{{IsFeasible, "feasible"}, {Impossible, "refused"}, {Unknown, "undecided"}, {Pruned, "pruned"}, {Waiting, "not tried"}}
	text := ""
	for _, n := range names {
		count := 0
		for _, f := range finalists {
			if f.Standing == n.standing {
				count++
			}
		}
		if count > 0 {
			text += fmt.Sprintf(", %d %s", count, n.text)
		}
	}
	if text == "" {
		return "none"
	}
	return text[2:]
}
