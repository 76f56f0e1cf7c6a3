package farmcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"ipufarm/deploy/local/runcmd"
	"ipufarm/protocol"
	"ipufarm/protocol/bus"
)

// explanation is what explain prints with --json. Keys are added, never changed.
type explanation struct {
	Job       string            `json:"job"`
	State     protocol.JobState `json:"state"`
	Error     string            `json:"error,omitempty"`
	Refusal   *refused          `json:"refusal,omitempty"` // of the plan itself
	Tasks     []taskWhy         `json:"tasks"`             // without a verdict yet
	Finalists []finalistWhy     `json:"finalists"`
	Winner    *winnerWhy        `json:"winner,omitempty"`
}

// taskWhy says where a task without a verdict is.
type taskWhy struct {
	Kind      protocol.Kind  `json:"kind"`
	Candidate int            `json:"candidate"` // rank of the finalist, -1 otherwise
	Key       string         `json:"key"`
	State     protocol.State `json:"state,omitempty"` // of its record; empty without one
	Owner     string         `json:"owner,omitempty"`
	Attempt   int            `json:"attempt"`
	Faults    int            `json:"faults"` // of the infrastructure
	Crashes   int            `json:"crashes"`
	Why       string         `json:"why"`
}

// refused is a refusal with its sizes in a sentence.
type refused struct {
	*protocol.Refusal
	Why string `json:"why"`
}

type finalistWhy struct {
	Rank            int      `json:"rank"`
	Family          string   `json:"family"`
	Verdict         string   `json:"verdict"`
	EstimatedCycles uint64   `json:"estimated_cycles"`
	ExactCycles     uint64   `json:"exact_cycles"` // modelled; 0 where there is no schedule
	Why             string   `json:"why"`
	Refusal         *refused `json:"refusal,omitempty"`
}

type winnerWhy struct {
	Rank   int    `json:"rank"`
	Family string `json:"family"`
	Cycles uint64 `json:"cycles"` // modelled
	Why    string `json:"why"`
	// Otherwise says what would have made another finalist win.
	Otherwise []string `json:"otherwise"`
}

// Explain returns the verb.
func Explain() *cobra.Command {
	var to reach
	c := &cobra.Command{
		Use:   "explain JOB",
		Short: "say why a job's tasks wait, finalists were refused, and the winner won",
		Long: `Say, for a job that is going on or over, where each task without a verdict is and
why it waits; why each finalist was refused, with the constraint, the tile and the
bytes; and why the winner won and what would have changed it.`,
		Args: oneJob,
		RunE: func(c *cobra.Command, args []string) error {
			s, shut, err := to.open(c, false)
			if err != nil {
				return err
			}
			defer shut()
			r, err := s.report(c.Context(), args[0])
			if err != nil {
				return err
			}
			var fleet []protocol.Presence
			records := map[string]protocol.Record{}
			err = s.within(c.Context(), func(ctx context.Context) error {
				if len(r.Pending) == 0 {
					return nil
				}
				if fleet, err = s.client.Bus.Fleet(ctx); err != nil {
					return err
				}
				for _, t := range r.Pending {
					record, _, err := s.client.Bus.Record(ctx, t.Key)
					if err == nil {
						records[t.Key] = record
					} else if !errors.Is(err, bus.ErrNotFound) && !errors.Is(err, protocol.ErrMalformed) {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
			e := explain(r, records, fleet, time.Now())
			if to.json {
				return printJSON(c, e)
			}
			return e.print(c.OutOrStdout())
		},
	}
	to.bind(c)
	return c
}

// explain finds the reasons in what the farm has written down: the report, the
// records of the tasks that the job waits for, and who is there.
func explain(r *protocol.JobReport, records map[string]protocol.Record, fleet []protocol.Presence, now time.Time) *explanation {
	e := &explanation{Job: r.Job, State: r.State, Error: r.Error, Refusal: whyRefused(r.Refusal), Tasks: []taskWhy{}, Finalists: []finalistWhy{}}
	for _, t := range r.Pending {
		x := taskWhy{Kind: t.Kind, Candidate: t.Candidate, Key: t.Key}
		if record, ok := records[t.Key]; ok {
			x.State, x.Attempt, x.Faults, x.Crashes = record.State, record.Attempt, record.Infra, record.Crash
			if record.Owner != nil {
				x.Owner = record.Owner.Name
			}
			x.Why = whyTask(r, t.Kind, record, fleet, now)
		} else {
			x.Why = "the coordinator has not written its record yet"
		}
		e.Tasks = append(e.Tasks, x)
	}
	for i := range r.Finalists {
		f := &r.Finalists[i]
		e.Finalists = append(e.Finalists, finalistWhy{f.Rank, f.Family, f.Verdict, f.EstimatedCycles, f.ExactCycles, whyFinalist(r, f), whyRefused(f.Refusal)})
	}
	if r.Winner >= 0 && r.Winner < len(r.Finalists) {
		f := &r.Finalists[r.Winner]
		e.Winner = &winnerWhy{f.Rank, f.Family, f.ExactCycles, r.Why, otherwise(r, f)}
	}
	return e
}

// whyTask says where a task is by its record, and what it waits for.
func whyTask(r *protocol.JobReport, kind protocol.Kind, record protocol.Record, fleet []protocol.Presence, now time.Time) string {
	switch record.State {
	case protocol.Running:
		if !slices.ContainsFunc(fleet, func(p protocol.Presence) bool { return record.Owner != nil && p.Owner == *record.Owner }) {
			return "its owner has not been heard of; unless it answers, the task is taken from it"
		}
		return fmt.Sprintf("being executed, for %v", max(0, now.Sub(record.Since)).Round(time.Second))
	case protocol.Queued:
	default:
		return "the coordinator has not taken its verdict in yet"
	}
	text := whyQueued(r, kind, fleet)
	if record.Infra+record.Crash > 0 {
		text += fmt.Sprintf("; given back after %d faults of the infrastructure and %d crashes, the last: %s", record.Infra, record.Crash, record.Why)
	}
	return text
}

// whyQueued says what a task in a queue waits for.
func whyQueued(r *protocol.JobReport, kind protocol.Kind, fleet []protocol.Presence) string {
	job := r.Submission
	if job == nil {
		return "queued"
	}
	if kind == protocol.KindRun {
		var devices []string
		for _, p := range fleet {
			if p.Device != "" {
				devices = append(devices, p.Device)
			}
		}
		slices.Sort(devices)
		switch {
		case len(devices) == 0:
			return "queued: no runner is there"
		case job.Device != protocol.AnyDevice && !slices.Contains(devices, job.Device):
			return fmt.Sprintf("queued: no runner has the device %s; there are %s", job.Device, strings.Join(devices, ", "))
		}
		return fmt.Sprintf("queued: the runners of class %s are busy or about to take it; devices there: %s", job.DeviceClass, strings.Join(devices, ", "))
	}
	workers, able, slots := 0, 0, 0
	for _, p := range fleet {
		if p.Slots == 0 {
			continue
		}
		workers++
		if p.Tool == job.Tool {
			able++
			slots += p.Slots
		}
	}
	switch {
	case workers == 0:
		return "queued: no worker is there"
	case able == 0:
		return fmt.Sprintf("queued: none of the %d workers has the tool %s that the job was submitted for", workers, job.Tool)
	}
	return fmt.Sprintf("queued: %d workers with %d slots have the job's tool; all are busy or about to take it", able, slots)
}

// whyFinalist says in a sentence what became of a finalist.
func whyFinalist(r *protocol.JobReport, f *protocol.FinalistReport) string {
	switch {
	case f.Refusal != nil:
		return refusalText(f.Refusal)
	case f.Rank == r.Winner:
		return "won"
	case f.Message != "":
		return f.Message
	}
	switch f.Verdict {
	case "waiting":
		return fmt.Sprintf("not started: policy %s starts finalists in rank order as slots become free", r.Policy.Name)
	case "running":
		return "its tasks are queued or being executed"
	case "cancelled":
		if r.Winner == protocol.NoCandidate {
			return "given up: the job ended without a winner"
		}
		return "given up: it could not win any more"
	}
	if f.ExactCycles > 0 && r.Winner >= 0 && r.Winner < len(r.Finalists) {
		return fmt.Sprintf("feasible, but policy %s chose finalist %d", r.Policy.Name, r.Winner)
	}
	return f.Verdict
}

func whyRefused(r *protocol.Refusal) *refused {
	if r == nil {
		return nil
	}
	return &refused{r, refusalText(r)}
}

// size is a size for people.
func size(n int64) string { return runcmd.Group(uint64(max(n, 0))) + " bytes" }

// refusalText is a refusal as a sentence: what the compiler says of it, by how much
// it failed, and what was in the way.
func refusalText(r *protocol.Refusal) string {
	text := r.Message
	if text == "" {
		text = fmt.Sprintf("%s on tile %d", r.Constraint, r.Tile)
	}
	// For capacity, needed is what is live at once; otherwise it is one buffer.
	switch {
	case r.Constraint == protocol.Budget:
		text += "; the search ended at its effort bound, so there may be an arrangement"
	case r.Free > 0 && r.Needed > r.Free:
		text += fmt.Sprintf("; %s too much, however they are arranged", size(r.Needed-r.Free))
	case r.Needed > r.LargestHole && r.LargestHole > 0:
		text += fmt.Sprintf("; %s short of a hole in one piece, though %s are free", size(r.Needed-r.LargestHole), size(r.Free))
	}
	if len(r.Live) > 0 {
		live := slices.SortedStableFunc(slices.Values(r.Live), func(a, b protocol.Live) int { return cmp.Compare(b.Bytes, a.Bytes) })
		var names []string
		for _, l := range live[:min(3, len(live))] {
			names = append(names, fmt.Sprintf("%s with %s", l.Name, size(l.Bytes)))
		}
		text += "; live then: " + strings.Join(names, ", ")
	}
	return text
}

// otherwise says what would have made another finalist win.
func otherwise(r *protocol.JobReport, winner *protocol.FinalistReport) (list []string) {
	list = []string{}
	if r.Policy.Name == protocol.FirstFeasible {
		for i := range r.Finalists[:winner.Rank] {
			f := &r.Finalists[i]
			list = append(list, fmt.Sprintf("finalist %d (%s) would have won if it were feasible: %s", f.Rank, f.Family, whyFinalist(r, f)))
		}
		if len(list) == 0 {
			list = append(list, "the winner has the lowest rank: only another shortlist or another policy would change it")
		}
		return list
	}
	var rivals []*protocol.FinalistReport
	for i := range r.Finalists {
		if f := &r.Finalists[i]; f.Rank != winner.Rank && f.Verdict == string(protocol.Feasible) && f.ExactCycles > 0 {
			rivals = append(rivals, f)
		}
	}
	if len(rivals) == 0 {
		return append(list, "no other finalist was found feasible before the winner was decided")
	}
	next := slices.MinFunc(rivals, func(a, b *protocol.FinalistReport) int {
		return cmp.Or(cmp.Compare(a.ExactCycles, b.ExactCycles), cmp.Compare(a.Rank, b.Rank))
	})
	if next.ExactCycles < winner.ExactCycles { // beyond the first k
		return append(list, fmt.Sprintf("finalist %d (%s) has fewer modelled cycles, %s, but was not among those that the policy compares", next.Rank, next.Family, runcmd.Group(next.ExactCycles)))
	}
	fewer := next.ExactCycles - winner.ExactCycles
	if next.Rank > winner.Rank { // of equals the lower rank wins
		fewer++
	}
	return append(list, fmt.Sprintf("finalist %d (%s) is next with %s modelled cycles: it would have won with %s fewer", next.Rank, next.Family,
		runcmd.Group(next.ExactCycles), runcmd.Group(fewer)))
}

// print writes the explanation as a person reads it.
func (e *explanation) print(w io.Writer) error {
	var s strings.Builder
	line := func(format string, a ...any) { s.WriteString(runcmd.Clean(fmt.Sprintf(format, a...)) + "\n") }
	line("job %s is %s", e.Job, e.State)
	if e.Error != "" {
		line("no result: %s", e.Error)
	}
	if e.Refusal != nil {
		line("plan refused: %s", e.Refusal.Why)
	}
	for _, t := range e.Tasks {
		name := string(t.Kind)
		if t.Candidate != protocol.NoCandidate {
			name = fmt.Sprintf("%s of finalist %d", t.Kind, t.Candidate)
		}
		if t.Owner != "" {
			name += ", attempt " + fmt.Sprint(t.Attempt) + " by " + t.Owner
		}
		line("task %s: %s", name, t.Why)
	}
	for _, f := range e.Finalists {
		cycles := fmt.Sprintf("estimated %s", runcmd.Group(f.EstimatedCycles))
		if f.ExactCycles > 0 {
			cycles = fmt.Sprintf("exact %s", runcmd.Group(f.ExactCycles))
		}
		line("finalist %d (%s), %s, %s modelled cycles: %s", f.Rank, f.Family, f.Verdict, cycles, f.Why)
	}
	if e.Winner != nil {
		line("winner %d (%s): %s", e.Winner.Rank, e.Winner.Family, e.Winner.Why)
		for _, o := range e.Winner.Otherwise {
			line("  %s", o)
		}
	}
	_, err := io.WriteString(w, s.String())
	return err
}
