package runcmd

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"

	"ipufarm/compiler"
	"ipufarm/protocol"
	"ipufarm/protocol/machine"
)

// summary is what a run prints with --json and writes to summary.json. All cycles
// and milliseconds are modelled, but those of a run on a card. Keys are added, never changed.
type summary struct {
	Workload        json.RawMessage       `json:"workload"`
	Tiles           int                   `json:"tiles"`
	Device          string                `json:"device"`
	Cycles          uint64                `json:"cycles"`
	CyclesMeasured  bool                  `json:"cycles_measured"` // by a card; Cycles are modelled otherwise
	Milliseconds    float64               `json:"milliseconds"`    // at machine.ClockHz
	CyclesByKind    compiler.CyclesByKind `json:"cycles_by_kind"`
	ReferencePassed bool                  `json:"reference_passed"`
	MaxAbsError     float64               `json:"max_abs_error"`
	Tolerance       protocol.Tolerance    `json:"tolerance"`
	PackageSHA256   string                `json:"package_sha256"`
	Winner          int                   `json:"winner"` // rank, -1 when there is none
	WinnerFamily    string                `json:"winner_family"`
	Why             string                `json:"why"`
	Error           string                `json:"error,omitempty"`
	Policy          protocol.PolicyName   `json:"policy"`
	Finalists       []finalist            `json:"finalists"`
	StageSeconds    map[string]float64    `json:"stage_seconds"`
	Transfers       int                   `json:"transfers"`
	Phases          int                   `json:"phases"`
	TableBytesMax   int32                 `json:"table_bytes_max"`
	SRAMBytesPeak   int32                 `json:"sram_bytes_peak"`
	// RankCorrelation (Spearman) and RegretCycles compare estimates with exact cycles
	// over the decided feasible finalists; null where fewer than two are.
	RankCorrelation *float64 `json:"rank_correlation"`
	RegretCycles    *int64   `json:"regret_cycles"` // exact cycles of the best estimate minus the best exact ones
	PeakRSSBytes    int64    `json:"peak_rss_bytes"`
}

type finalist struct {
	Rank            int               `json:"rank"`
	Family          string            `json:"family"`
	Verdict         string            `json:"verdict"`
	Constraint      string            `json:"constraint"`
	EstimatedCycles uint64            `json:"estimated_cycles"`
	ExactCycles     uint64            `json:"exact_cycles"` // 0 where there is no schedule
	Message         string            `json:"message,omitempty"`
	Refusal         *protocol.Refusal `json:"refusal,omitempty"`
	Seconds         float64           `json:"seconds"`
	Cached          bool              `json:"cached"` // what became of it was known from an earlier job
}

func summarise(r *protocol.JobReport, spec compiler.Spec, tolerance protocol.Tolerance) *summary {
	options, _ := spec.Workload.JSON() // checked when the spec was made
	s := &summary{Workload: options, Tiles: spec.Tiles, Winner: r.Winner, Why: r.Why, Error: r.Error, Policy: r.Policy.Name, Tolerance: tolerance,
		Finalists: []finalist{}, StageSeconds: maps.Clone(r.StageSeconds)}
	if s.StageSeconds == nil {
		s.StageSeconds = map[string]float64{}
	}
	for _, k := range protocol.Kinds {
		if _, ok := s.StageSeconds[string(k)]; !ok {
			s.StageSeconds[string(k)] = 0
		}
	}
	for _, f := range r.Finalists {
		x := finalist{f.Rank, f.Family, f.Verdict, f.Constraint, f.EstimatedCycles, f.ExactCycles, f.Message, f.Refusal, f.Seconds, f.Cached}
		if f.Refusal != nil && x.Message == "" {
			x.Message = f.Refusal.Message
		}
		s.Finalists = append(s.Finalists, x)
		if f.Rank == r.Winner {
			s.WinnerFamily = f.Family
		}
	}
	s.compareEstimates()
	var facts struct {
		compiler.Facts
		PackageSHA256 string `json:"package_sha256"`
	}
	if text := r.Facts[protocol.KindValidate]; text != nil && json.Unmarshal(text, &facts) == nil {
		s.Transfers, s.Phases, s.TableBytesMax, s.SRAMBytesPeak = facts.Transfers, facts.Phases, facts.TableBytesMax, facts.SRAMBytesPeak
		s.PackageSHA256, s.CyclesByKind = facts.PackageSHA256, facts.CyclesByKind
	}
	if run := r.Run; run != nil {
		s.Device, s.Cycles, s.CyclesMeasured, s.ReferencePassed, s.MaxAbsError = run.Model, run.Cycles, run.Measured, run.Passed, run.MaxAbsError
		s.Milliseconds = float64(run.Cycles) * 1000 / machine.ClockHz
		var detail struct {
			CyclesByKind *compiler.CyclesByKind `json:"cycles_by_kind"`
		}
		if run.Measured {
			s.CyclesByKind = compiler.CyclesByKind{} // the modelled ones are not of this run
		}
		if json.Unmarshal(run.Detail, &detail) == nil && detail.CyclesByKind != nil {
			s.CyclesByKind = *detail.CyclesByKind
		}
	}
	return s
}

// compareEstimates fills rank correlation and regret.
func (s *summary) compareEstimates() {
	var decided []finalist
	for _, f := range s.Finalists {
		if f.ExactCycles > 0 {
			decided = append(decided, f)
		}
	}
	n := len(decided)
	if n < 2 {
		return
	}
	ranks := func(value func(finalist) uint64) []float64 {
		order := make([]int, n)
		for i := range order {
			order[i] = i
		}
		sort.SliceStable(order, func(i, j int) bool { return value(decided[order[i]]) < value(decided[order[j]]) })
		out := make([]float64, n)
		for i := 0; i < n; { // equal values share the mean rank
			j := i
			for j < n && value(decided[order[j]]) == value(decided[order[i]]) {
				j++
			}
			for k := i; k < j; k++ {
				out[order[k]] = float64(i+j-1) / 2
			}
			i = j
		}
		return out
	}
	estimated := ranks(func(f finalist) uint64 { return f.EstimatedCycles })
	exact := ranks(func(f finalist) uint64 { return f.ExactCycles })
	mean := float64(n-1) / 2
	var xy, xx, yy float64
	bestEstimate, bestExact := decided[0], decided[0]
	for i, f := range decided {
		dx, dy := estimated[i]-mean, exact[i]-mean
		xy, xx, yy = xy+dx*dy, xx+dx*dx, yy+dy*dy
		if f.EstimatedCycles < bestEstimate.EstimatedCycles {
			bestEstimate = f
		}
		if f.ExactCycles < bestExact.ExactCycles {
			bestExact = f
		}
	}
	regret := int64(bestEstimate.ExactCycles) - int64(bestExact.ExactCycles)
	s.RegretCycles = &regret
	if xx > 0 && yy > 0 {
		rho := xy / math.Sqrt(xx*yy)
		s.RankCorrelation = &rho
	}
}

// Group writes a number with thousands apart.
func Group(n uint64) string {
	s := strconv.FormatUint(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// print writes the summary as a person reads it.
func (s *summary) print(out io.Writer, f files) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nrank\tfamily\tverdict\testimated\texact (modelled)\t")
	for _, x := range s.Finalists {
		verdict, exact, mark := x.Verdict, "", ""
		if x.Constraint != "" {
			verdict += ": " + x.Constraint
		}
		if x.ExactCycles > 0 {
			exact = Group(x.ExactCycles)
		}
		if x.Cached {
			mark = "from the cache"
		}
		if x.Rank == s.Winner {
			mark = strings.TrimSuffix("winner, "+mark, ", ")
		}
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\n", x.Rank, x.Family, Clean(verdict), Group(x.EstimatedCycles), exact, mark)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, x := range s.Finalists {
		if x.Message != "" {
			fmt.Fprintf(out, "finalist %d: %s\n", x.Rank, Clean(x.Message))
		}
	}
	if s.Why != "" {
		fmt.Fprintf(out, "\nwinner %d (%s): %s\n", s.Winner, s.WinnerFamily, Clean(s.Why))
	}
	if s.Error != "" {
		fmt.Fprintf(out, "\n%s\n", Clean(s.Error))
	}
	if s.Device == "" {
		_, err := fmt.Fprintf(out, "\nsummary  %s\nlog      %s\n", f.summary, f.log)
		return err
	}
	verdict := "passed"
	if !s.ReferencePassed {
		verdict = "FAILED"
	}
	fmt.Fprintf(w, "\ndevice\t%s\n", Clean(s.Device))
	fmt.Fprintf(w, "%s cycles\t%s\t%.6f ms at %.1f GHz\n", origin(s.CyclesMeasured), Group(s.Cycles), s.Milliseconds, machine.ClockHz/1e9)
	if k := s.CyclesByKind; k != (compiler.CyclesByKind{}) {
		fmt.Fprintf(w, "  compute\t%s\n  exchange\t%s\n  synchronisation\t%s\n", Group(uint64(k.Compute)), Group(uint64(k.Exchange)), Group(uint64(k.Synchronization)))
	}
	fmt.Fprintf(w, "phases, transfers\t%d, %s\n", s.Phases, Group(uint64(s.Transfers)))
	fmt.Fprintf(w, "table bytes\t%s\ton the fullest tile\n", Group(uint64(s.TableBytesMax)))
	fmt.Fprintf(w, "SRAM bytes\t%s\tpeak of the fullest tile\n", Group(uint64(s.SRAMBytesPeak)))
	fmt.Fprintf(w, "reference\t%s\tmax abs error %s (atol %g, rtol %g)\n", verdict, errorText(s.MaxAbsError, 6), s.Tolerance.Atol, s.Tolerance.Rtol)
	var stages []string
	for _, name := range []string{"plan", "schedule", "validate", "reference", "run", "total"} {
		stages = append(stages, fmt.Sprintf("%s %.2f", name, s.StageSeconds[name]))
	}
	fmt.Fprintf(w, "seconds\t%s\n", strings.Join(stages, ", "))
	for _, p := range []struct{ name, path string }{{"package", f.pkg}, {"profile", f.profile}, {"page", f.html}, {"summary", f.summary}, {"log", f.log}} {
		fmt.Fprintf(w, "%s\t%s\n", p.name, p.path)
	}
	return w.Flush()
}

// Clean keeps text that came through the farm from driving the terminal.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return '·'
		}
		return r
	}, s)
}

// peakRSS is the largest resident memory that this process or one of its ended
// children had.
func peakRSS() int64 {
	most := int64(0)
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var u syscall.Rusage
		if syscall.Getrusage(who, &u) == nil {
			most = max(most, u.Maxrss*1024) // kilobytes on Linux
		}
	}
	return most
}
