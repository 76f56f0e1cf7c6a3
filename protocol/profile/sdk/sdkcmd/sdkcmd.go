// Package sdkcmd holds the command-line verbs for recordings of the Graphcore SDK
// (profile.pop): sdk-profile summary, compare and fp8-check.
package sdkcmd

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"ipufarm/protocol/profile"
	"ipufarm/protocol/profile/sdk"
	"ipufarm/protocol/program"
)

// Command returns the verb "sdk-profile" with its verbs. Every failure is one line
// that names the file or the flag.
func Command() *cobra.Command {
	c := &cobra.Command{
		Use:   "sdk-profile",
		Short: "Analyse recordings of the Graphcore SDK (profile.pop) without the SDK",
		Long: "Analyse recordings of the Graphcore SDK (profile.pop) without the SDK. They are opened\n" +
			"read-only. Cycles of a recording are measured, at the clock of the recording; cycles of a\n" +
			"profile (.ipuprof) of the simulated device are modelled.",
	}
	c.AddCommand(summaryCommand(), compareCommand(), fp8Command())
	for _, verb := range c.Commands() {
		verb.SilenceUsage = true
	}
	return c
}

func writeJSON(w io.Writer, value any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(value)
}

func columns(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 0, 2, ' ', 0) }

// clockFlag adds the flag that overrides the clock of a recording.
func clockFlag(c *cobra.Command, ghz *float64) {
	c.Flags().Float64Var(ghz, "clock-ghz", 0, fmt.Sprintf("`clock` of the recording (default: the recorded one, or %g)", sdk.DefaultClockHz/1e9))
}

func hertz(ghz float64) (float64, error) {
	if ghz != 0 && !(ghz >= 0.1 && ghz <= 10) {
		return 0, fmt.Errorf("--clock-ghz %g, want 0.1 to 10", ghz)
	}
	return ghz * 1e9, nil
}

func summaryCommand() *cobra.Command {
	var folder string
	var ghz float64
	var asJSON bool
	c := &cobra.Command{
		Use:   "summary FILE.pop...",
		Short: "Measure stages, inferences, memory and exchange code of recordings",
		Long: "Measure stages, inferences, memory and exchange code of recordings. With -o, write\n" +
			"summary.json, steps.csv (every step with its stage), first-body.csv (the first shared body)\n" +
			"and tiles.csv (memory) into a folder, or into one folder for each recording if there are\n" +
			"several. Nothing is written unless all recordings can be read.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			hz, err := hertz(ghz)
			if err != nil {
				return err
			}
			labels, err := label(args)
			if err != nil {
				return err
			}
			summaries := make([]*sdk.Summary, len(args))
			for i, path := range args {
				rec, err := sdk.Read(c.Context(), path, hz)
				if err != nil {
					return err
				}
				summaries[i] = rec.Summarize()
			}
			if folder != "" {
				for i, s := range summaries {
					to := folder
					if len(args) > 1 {
						to = filepath.Join(folder, labels[i])
					}
					if err := s.Write(to); err != nil {
						return err
					}
				}
			}
			if asJSON {
				return writeJSON(c.OutOrStdout(), summaries)
			}
			return printSummaries(c.OutOrStdout(), labels, summaries)
		},
	}
	c.Flags().StringVarP(&folder, "output", "o", "", "`folder` to write to")
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON array, an object for each recording")
	clockFlag(c, &ghz)
	return c
}

// label names recordings by what their paths do not share: they tend to be called
// profile.pop, in folders that say what they are.
func label(paths []string) ([]string, error) {
	parts := make([][]string, len(paths))
	seen := map[string]bool{}
	for i, p := range paths {
		absolute, err := filepath.Abs(p)
		if err != nil {
			return nil, err
		}
		if seen[absolute] {
			return nil, fmt.Errorf("%s is given twice", p)
		}
		seen[absolute] = true
		parts[i] = strings.Split(filepath.ToSlash(absolute), "/")
	}
	for len(paths) > 1 && shared(parts, func(p []string) string { return p[0] }) {
		for i := range parts {
			parts[i] = parts[i][1:]
		}
	}
	for len(paths) > 1 && shared(parts, func(p []string) string { return p[len(p)-1] }) {
		for i := range parts {
			parts[i] = parts[i][:len(parts[i])-1]
		}
	}
	labels := make([]string, len(paths))
	for i, p := range parts {
		labels[i] = strings.Join(p, "-")
		if len(paths) == 1 {
			labels[i] = p[len(p)-1]
		}
		for slices.Contains(labels[:i], labels[i]) { // a-b/c and a/b-c
			labels[i] += "." + strconv.Itoa(i+1)
		}
	}
	return labels, nil
}

// shared reports whether all lists have more than one part and the same one at an end.
func shared(parts [][]string, end func([]string) string) bool {
	for _, p := range parts {
		if len(p) < 2 || end(p) != end(parts[0]) {
			return false
		}
	}
	return true
}

func orDash(n int64) string {
	if n < 0 {
		return "-"
	}
	return thousands(n)
}

// thousands spells a number with commas.
func thousands(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func printSummaries(w io.Writer, labels []string, list []*sdk.Summary) error {
	for i, s := range list {
		fmt.Fprintf(w, "%s: %s\n  %d steps, %s, clock %s\n", labels[i], s.File, s.Steps, s.Basis, s.Clock)
		for _, m := range s.Missing {
			fmt.Fprintf(w, "  missing: %s\n", m)
		}
		for _, a := range s.Anomalies {
			fmt.Fprintf(w, "  note: %s\n", a)
		}
	}
	t := columns(w)
	head := func(text string) { fmt.Fprintf(t, "\n%s", text) }
	cells := func(cell func(s *sdk.Summary) string) {
		for _, s := range list {
			fmt.Fprintf(t, "\t%s", cell(s))
		}
		fmt.Fprintln(t)
	}
	head("first shared body: products, measured cycles")
	for _, l := range labels {
		fmt.Fprintf(t, "\t%s", l)
	}
	fmt.Fprintln(t)
	for _, stage := range stagesOf(list) {
		fmt.Fprint(t, stage)
		cells(func(s *sdk.Summary) string { return productCell(s, stage) })
	}
	head("inferences, measured")
	fmt.Fprintln(t)
	for n := range most(list, func(s *sdk.Summary) int { return len(s.Inferences) }) {
		fmt.Fprintf(t, "inference %d", n+1)
		cells(func(s *sdk.Summary) string { return inferenceCell(s, n) })
	}
	head("bytes per tile, mean / most")
	fmt.Fprintln(t)
	fmt.Fprint(t, "exchange code")
	cells(func(s *sdk.Summary) string { return spreadCell(s.ExchangeCode) })
	fmt.Fprint(t, "allocated")
	cells(func(s *sdk.Summary) string { return spreadCell(s.Memory) })
	if err := t.Flush(); err != nil {
		return err
	}
	for i, s := range list {
		if err := printBody(w, labels[i], s); err != nil {
			return err
		}
	}
	return nil
}

func most(list []*sdk.Summary, count func(*sdk.Summary) int) int {
	n := 0
	for _, s := range list {
		n = max(n, count(s))
	}
	return n
}

// stagesOf lists the stages that have a product, in order of execution.
func stagesOf(list []*sdk.Summary) []sdk.Stage {
	var stages []sdk.Stage
	for _, s := range list {
		for _, k := range s.Kernels {
			if !slices.Contains(stages, k.Stage) {
				stages = append(stages, k.Stage)
			}
		}
	}
	slices.Sort(stages)
	return stages
}

func productCell(s *sdk.Summary, stage sdk.Stage) string {
	var cells []string
	for _, k := range s.Kernels {
		if k.Stage == stage {
			cells = append(cells, fmt.Sprintf("%s (step %d, set %d, %s tiles)", orDash(k.Cycles), k.Step, k.ComputeSet, orDash(k.ActiveTiles)))
		}
	}
	if cells == nil {
		return "-"
	}
	return strings.Join(cells, " + ")
}

func inferenceCell(s *sdk.Summary, n int) string {
	if n >= len(s.Inferences) {
		return "-"
	}
	x := &s.Inferences[n]
	if x.Cycles < 0 {
		return "unknown"
	}
	note := ""
	if !x.Complete {
		note = ", not complete"
	}
	return fmt.Sprintf("%s cycles, %.3f ms%s", thousands(x.Cycles), x.Milliseconds, note)
}

func spreadCell(s *sdk.Spread) string {
	if s == nil {
		return "-"
	}
	return fmt.Sprintf("%s / %s", thousands(int64(s.Mean+0.5)), thousands(s.Max))
}

func printBody(w io.Writer, label string, s *sdk.Summary) error {
	if s.Body == nil {
		return nil
	}
	fmt.Fprintf(w, "\n%s: first shared body, steps %d to %d, executed %d times in an inference; longest tiles added up, measured cycles\n", label, s.Body.FirstStep, s.Body.LastStep, s.Body.Repeats)
	t := columns(w)
	fmt.Fprint(t, "stage\tsteps\tproduct\tcompute\tcast\tcopy\texchange\texchange code bytes\n")
	for _, x := range s.Stages {
		name := x.Stage.String()
		if name == "" {
			name = "(other)"
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", name, x.Steps, thousands(x.Product), thousands(x.Compute), thousands(x.Cast), thousands(x.Copy), thousands(x.Exchange), orDash(x.Code))
	}
	if len(s.Casts) > 0 {
		fmt.Fprint(t, "\ncast\tstep\ttiles\toutput bytes per tile\tof all tiles\tcycles\n")
		for _, k := range s.Casts {
			fmt.Fprintf(t, "%s\t%d\t%s\t%s\t%s\t%s\n", k.Stage, k.Step, orDash(k.ActiveTiles), orDash(k.OutputMax), orDash(k.OutputTotal), orDash(k.Cycles))
		}
	}
	return t.Flush()
}

func compareCommand() *cobra.Command {
	var ghz float64
	var asJSON bool
	var pack string
	var inference int
	c := &cobra.Command{
		Use:   "compare FILE.pop FILE.ipuprof",
		Short: "Put a recording and a profile side by side, stage by stage",
		Long: "Put a recording of the SDK (measured) and a profile of this project (modelled) side by\n" +
			"side by stage of the first transformer block, and say where the two are not cut at the\n" +
			"same boundaries.",
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			hz, err := hertz(ghz)
			if err != nil {
				return err
			}
			if inference < 0 {
				return fmt.Errorf("--inference %d, want 1 or more (0: the last complete one)", inference)
			}
			rec, err := sdk.Read(c.Context(), args[0], hz)
			if err != nil {
				return err
			}
			p, err := profile.ReadFile(args[1])
			if err != nil {
				return err
			}
			var rows *program.Summary
			if pack != "" {
				if rows, err = readPackage(pack); err != nil {
					return err
				}
			}
			s := rec.Summarize()
			result, err := sdk.Compare(s, inference, args[1], p, rows)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(c.OutOrStdout(), result)
			}
			for _, m := range s.Missing {
				fmt.Fprintf(c.OutOrStdout(), "missing in %s: %s\n", args[0], m)
			}
			return printComparison(c.OutOrStdout(), result)
		},
	}
	f := c.Flags()
	f.StringVar(&pack, "package", "", "the `package` (.ipuexe) that was profiled, for the bytes of its exchange rows")
	f.IntVar(&inference, "inference", 0, "`number` of the recorded inference (default: the last complete one)")
	f.BoolVar(&asJSON, "json", false, "print one JSON object")
	clockFlag(c, &ghz)
	return c
}

func readPackage(path string) (*program.Summary, error) {
	file, _, err := program.ReadFile(path, "")
	if err != nil {
		return nil, err
	}
	p, err := program.Verify(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	s, err := program.Summarize(p)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

func printRun(w io.Writer, name string, r *sdk.Run) {
	cycles := "unknown cycles"
	if r.Cycles >= 0 {
		cycles = fmt.Sprintf("%s cycles, %.4f ms", thousands(r.Cycles), r.Milliseconds)
	}
	fmt.Fprintf(w, "%s  %s\n      %s; clock %s\n      %s; blocks executed: %d, the first takes %s cycles from its first compute to its last\n", name, r.File, r.Basis, r.Clock, cycles, r.Blocks, orDash(r.BlockCycles))
}

func printComparison(w io.Writer, c *sdk.Comparison) error {
	printRun(w, "SDK ", &c.SDK)
	printRun(w, "ours", &c.Ours)
	fmt.Fprintln(w)
	t := columns(w)
	fmt.Fprint(t, "first block, cycles\tSDK measured\ttiles\tother\texchange\tours modelled\ttiles\tother\texchange\tours/SDK\n")
	for _, r := range c.Stages {
		ratio := "-"
		if r.SDK.Cycles > 0 && r.Ours.Cycles >= 0 {
			ratio = fmt.Sprintf("%.3f", float64(r.Ours.Cycles)/float64(r.SDK.Cycles))
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.Stage, orDash(r.SDK.Cycles), orDash(r.SDK.Tiles), orDash(r.SDK.Other), orDash(r.SDK.Exchange),
			orDash(r.Ours.Cycles), orDash(r.Ours.Tiles), orDash(r.Ours.Other), orDash(r.Ours.Exchange), ratio)
	}
	fmt.Fprintf(t, "exchange bytes, most on a tile\t%s\t\t\t\t%s\n", orDash(c.SDK.CodeMax), orDash(c.Ours.CodeMax))
	if c.SDK.CodeMax >= 0 || c.Ours.CodeMax >= 0 {
		fmt.Fprintf(t, "exchange bytes, mean of tiles\t%s\t\t\t\t%s\n", mean(c.SDK), mean(c.Ours))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, "\nboundaries:")
	for _, d := range c.Differ {
		fmt.Fprintf(w, "  %s\n", d)
	}
	for _, r := range c.Stages {
		for _, d := range r.Differ {
			fmt.Fprintf(w, "  %s: %s\n", r.Stage, d)
		}
	}
	return nil
}

func mean(r sdk.Run) string {
	if r.CodeMax < 0 {
		return "-"
	}
	return thousands(int64(r.CodeMean + 0.5))
}

func fp8Command() *cobra.Command {
	var keys int
	var format, file string
	var scales, probabilities []string
	var asJSON bool
	c := &cobra.Command{
		Use:   "fp8-check",
		Short: "Show what rows of probabilities sum to once they are FP8",
		Long: "Show what rows of probabilities sum to once they are FP8, by scale (value = code * 2^scale).\n" +
			"Softmax makes rows that sum to 1. Quantising a nearly uniform row moves all of its elements\n" +
			"the same way, and P*V is off by what the row then sums to. Without --row the row is uniform.",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, args []string) error {
			i := slices.IndexFunc(sdk.Formats, func(f sdk.Format) bool { return f.Name == format })
			if i < 0 {
				return fmt.Errorf("--format %q, want f143 or f152", format)
			}
			f := &sdk.Formats[i]
			row, err := rowOf(keys, file)
			if err != nil {
				return err
			}
			at := make([]int, len(scales))
			for i, s := range scales {
				if at[i], err = strconv.Atoi(s); err != nil {
					return fmt.Errorf("--scale %q, want a whole number", s)
				}
			}
			sums, err := sdk.RowSums(f, row, at)
			if err != nil {
				return err
			}
			values, err := quantised(f, probabilities, row, at)
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(c.OutOrStdout(), struct {
					Format string       `json:"format"`
					Keys   int          `json:"keys"`
					Rows   []sdk.RowSum `json:"scales"`
					Values []quantum    `json:"values"`
				}{format, len(row), sums, values})
			}
			return printSums(c.OutOrStdout(), format, file, len(row), sums, values)
		},
	}
	f := c.Flags()
	f.IntVar(&keys, "keys", 729, "`length` of the uniform row")
	f.StringVar(&file, "row", "", "`file` with a row of probabilities, separated by white space, instead of a uniform one")
	f.StringVar(&format, "format", "f143", "f143 or f152")
	f.StringSliceVar(&scales, "scale", []string{"-8", "-7", "-6", "-5", "-4", "-3", "-2", "-1", "0"}, "`scales` to try")
	f.StringSliceVar(&probabilities, "probability", []string{"0.0001"}, "`probabilities` to show beside those of the row, at every scale")
	f.BoolVar(&asJSON, "json", false, "print one JSON object")
	return c
}

// maxKeys bounds a row; maxRowBytes the file that holds one.
const (
	maxKeys     = 1 << 24
	maxRowBytes = 1 << 28
)

func rowOf(keys int, file string) ([]float64, error) {
	if file == "" {
		if keys < 1 || keys > maxKeys {
			return nil, fmt.Errorf("--keys %d, want 1 to %d", keys, maxKeys)
		}
		row := make([]float64, keys)
		for i := range row {
			row[i] = 1 / float64(keys)
		}
		return row, nil
	}
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxRowBytes {
		return nil, fmt.Errorf("%s: want a regular file of at most %d bytes", file, maxRowBytes)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var row []float64
	for field := range strings.FieldsSeq(string(b)) {
		p, err := strconv.ParseFloat(field, 64)
		if err != nil || len(row) == maxKeys {
			return nil, fmt.Errorf("%s: probability %d is %.40q, want at most %d numbers", file, len(row), field, maxKeys)
		}
		row = append(row, p)
	}
	if len(row) == 0 {
		return nil, fmt.Errorf("%s: no probability in it", file)
	}
	return row, nil
}

// quantum is one value at one scale.
type quantum struct {
	Probability float64  `json:"probability"`
	Scale       int      `json:"scale"`
	Code        string   `json:"code"`
	Value       *float64 `json:"value"` // null: does not fit
}

// quantised shows single probabilities; that of a uniform row comes first.
func quantised(f *sdk.Format, texts []string, row []float64, scales []int) ([]quantum, error) {
	var list []float64
	if slices.Min(row) == slices.Max(row) {
		list = append(list, row[0])
	}
	for _, t := range texts {
		p, err := strconv.ParseFloat(t, 64)
		if err != nil || !(p >= 0 && p <= 1) {
			return nil, fmt.Errorf("--probability %q, want a number from 0 to 1", t)
		}
		list = append(list, p)
	}
	values := []quantum{}
	for _, p := range list {
		for _, scale := range scales {
			q := quantum{Probability: p, Scale: scale}
			code, v := f.Quantise(p, scale)
			q.Code = fmt.Sprintf("0x%02x", code)
			if v == v {
				q.Value = &v
			}
			values = append(values, q)
		}
	}
	return values, nil
}

func printSums(w io.Writer, format, file string, keys int, sums []sdk.RowSum, values []quantum) error {
	kind := "uniform"
	if file != "" {
		kind = file
	}
	fmt.Fprintf(w, "row of %d probabilities (%s), quantised to F16 and then to %s\n", keys, kind, strings.ToUpper(format))
	t := columns(w)
	fmt.Fprint(t, "scale\trow sum\tof\tlost (become 0)\tdo not fit (NaN)\tlargest relative error\tsmallest value\tlargest value\n")
	for _, r := range sums {
		sum := fmt.Sprint(r.Sum)
		if r.NaN > 0 {
			sum = "NaN"
		}
		fmt.Fprintf(t, "%d\t%s\t%.6g\t%d\t%d\t%.2f %%\t%g\t%g\n", r.Scale, sum, r.Exact, r.Lost, r.NaN, 100*r.WorstRel, r.Step, r.Largest)
	}
	fmt.Fprint(t, "\nprobability\tscale\tcode\tvalue\n")
	for _, q := range values {
		value := "NaN"
		if q.Value != nil {
			value = fmt.Sprint(*q.Value)
		}
		fmt.Fprintf(t, "%.10g\t%d\t%s\t%s\n", q.Probability, q.Scale, q.Code, value)
	}
	return t.Flush()
}
