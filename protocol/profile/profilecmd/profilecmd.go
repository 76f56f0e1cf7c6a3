// Package profilecmd holds the command-line verbs for profile files (.ipuprof):
// profile query, render, barriers and diff.
package profilecmd

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"ipufarm/protocol/atomicfile"
	"ipufarm/protocol/machine"
	"ipufarm/protocol/profile"
)

// Command returns the verb "profile" with its verbs. Every failure is one line
// that names the file or the flag.
func Command() *cobra.Command {
	c := &cobra.Command{
		Use:   "profile",
		Short: "Query, render and compare profiles (.ipuprof)",
		Long: "Query, render and compare profiles (.ipuprof). Cycles of a run on the simulated device are\n" +
			"modelled. A run is timed from the first step of the tile that entered last to the last step\n" +
			"of any tile. Waiting for the last tile at an exchange, and what an exchange takes beyond the\n" +
			"scheduled events of its row, count as synchronization.",
	}
	c.AddCommand(queryCommand(), renderCommand(), barriersCommand(), diffCommand())
	for _, verb := range c.Commands() {
		verb.SilenceUsage = true
	}
	return c
}

// writeJSON prints one JSON value.
func writeJSON(w io.Writer, value any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(value)
}

func columns(w io.Writer) *tabwriter.Writer {
	return tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
}

// summary is what every verb says about a run.
type summary struct {
	File         string  `json:"file"`
	Tiles        int     `json:"tiles"`
	Cycles       uint32  `json:"cycles"`
	Milliseconds float64 `json:"milliseconds"`
	ClockHz      uint64  `json:"clock_hz"`
}

func summarize(file string, p *profile.Profile) summary {
	return summary{file, len(p.Tiles), p.Cycles(), p.Milliseconds(p.Cycles()), p.ClockHz}
}

func (s summary) String() string {
	return fmt.Sprintf("%s: %d tiles, %d cycles, %.4f ms at %g GHz", s.File, s.Tiles, s.Cycles, s.Milliseconds, float64(s.ClockHz)/1e9)
}

func queryCommand() *cobra.Command {
	var q profile.Query
	var asJSON bool
	c := &cobra.Command{
		Use:   "query FILE",
		Short: "Sum cycles by kernel, phase, operation, tile or kind",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			if q.Phase < -1 {
				return fmt.Errorf("--phase %d, want 0 or more", q.Phase)
			}
			if q.Tile < -1 || q.Tile >= machine.Tiles {
				return fmt.Errorf("--tile %d, want a physical tile from 0 to %d", q.Tile, machine.Tiles-1)
			}
			p, err := profile.ReadFile(args[0])
			if err != nil {
				return err
			}
			rows, err := p.Query(q)
			if err != nil {
				return err
			}
			if asJSON {
				if rows == nil {
					rows = []profile.QueryRow{}
				}
				return writeJSON(c.OutOrStdout(), struct {
					summary
					GroupBy string             `json:"group_by"`
					Rows    []profile.QueryRow `json:"rows"`
				}{summarize(args[0], p), q.GroupBy, rows})
			}
			fmt.Fprintln(c.OutOrStdout(), summarize(args[0], p))
			return printQuery(c.OutOrStdout(), q.GroupBy, rows)
		},
	}
	f := c.Flags()
	f.StringVar(&q.GroupBy, "group-by", "operation", "one of "+strings.Join(profile.GroupKeys, ", "))
	f.StringVar(&q.Kernel, "kernel", "", "only steps of this `kernel`")
	f.StringVar(&q.Operation, "operation", "", "only steps whose operation contains this `text`")
	f.StringVar(&q.Kind, "kind", "", "only this `kind`: compute, exchange, synchronization or idle")
	f.IntVar(&q.Phase, "phase", -1, "only this `phase`")
	f.IntVar(&q.Tile, "tile", -1, "only this physical `tile`")
	f.IntVar(&q.Top, "top", 0, "print at most `N` groups (0: all)")
	f.BoolVar(&asJSON, "json", false, "print one JSON object")
	return c
}

func printQuery(w io.Writer, by string, rows []profile.QueryRow) error {
	t := columns(w)
	fmt.Fprintf(t, "%s\tsteps\ttiles\tcycles of all tiles\tshare\tlongest step\tmost on a tile\tslowest\tcompute\texchange\tsynchronization\n", by)
	for _, r := range rows {
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%.2f %%\t%d\t%d\t%s\t%d\t%d\t%d\n", r.Group, r.Count, r.Tiles, r.TotalCycles, 100*r.Share,
			r.MaxCycles, r.MaxOnTile, profile.TileName(r.SlowestTile), r.ByKind.Compute, r.ByKind.Exchange, r.ByKind.Synchronization)
	}
	return t.Flush()
}

func barriersCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "barriers FILE",
		Short: "Print every exchange phase: spread of arrivals, time after the last one, scheduled length",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			p, err := profile.ReadFile(args[0])
			if err != nil {
				return err
			}
			barriers := p.Barriers()
			start, _ := p.Cropped()
			if asJSON {
				if barriers == nil {
					barriers = []profile.Barrier{}
				}
				return writeJSON(c.OutOrStdout(), struct {
					summary
					Start    uint32            `json:"start_cycle"` // arrivals and leaves count from 0, the crop from here
					Barriers []profile.Barrier `json:"barriers"`
				}{summarize(args[0], p), start, barriers})
			}
			fmt.Fprintln(c.OutOrStdout(), summarize(args[0], p))
			t := columns(c.OutOrStdout())
			fmt.Fprint(t, "phase\toperation\tactive tiles\tlast arrival\tspread\tafter\tscheduled\tover\tlast tile\n")
			for _, b := range barriers {
				fmt.Fprintf(t, "%d\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n", b.Phase, b.Operation, b.Active,
					int64(b.LastArrival)-int64(start), b.EntrySpread, b.AfterArrival, b.Horizon, b.Overhead, profile.TileName(b.LastTile))
			}
			return t.Flush()
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return c
}

func diffCommand() *cobra.Command {
	var asJSON bool
	var top int
	c := &cobra.Command{
		Use:   "diff A B",
		Short: "Say where the cycles went between two runs, by operation",
		Long:  "Say where the cycles went between two runs: the critical path of each, by operation. The\ndifferences add up to that of the two runs.",
		Args:  cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			if top < 0 {
				return fmt.Errorf("--top %d, want 0 (all) or more", top)
			}
			a, err := profile.ReadFile(args[0])
			if err != nil {
				return err
			}
			b, err := profile.ReadFile(args[1])
			if err != nil {
				return err
			}
			rows := profile.Diff(a, b)
			if top > 0 && len(rows) > top {
				rows = rows[:top]
			}
			delta := int64(b.Cycles()) - int64(a.Cycles())
			if asJSON {
				if rows == nil {
					rows = []profile.OperationDiff{}
				}
				return writeJSON(c.OutOrStdout(), struct {
					A          summary                 `json:"a"`
					B          summary                 `json:"b"`
					Delta      int64                   `json:"delta"`
					Operations []profile.OperationDiff `json:"operations"`
				}{summarize(args[0], a), summarize(args[1], b), delta, rows})
			}
			return printDiff(c.OutOrStdout(), summarize(args[0], a), summarize(args[1], b), delta, rows)
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	c.Flags().IntVar(&top, "top", 0, "print at most `N` operations (0: all)")
	return c
}

func printDiff(w io.Writer, a, b summary, delta int64, rows []profile.OperationDiff) error {
	fmt.Fprintf(w, "A %s\nB %s\nB takes %+d cycles\n", a, b, delta)
	t := columns(w)
	fmt.Fprint(t, "operation (cycles on the critical path)\tA\tB\tdifference\tcompute\texchange\tsynchronization\tidle\n")
	for _, r := range rows {
		kind := func(b, a uint64) int64 { return int64(b) - int64(a) }
		fmt.Fprintf(t, "%s\t%d\t%d\t%+d\t%+d\t%+d\t%+d\t%+d\n", r.Operation, r.A.Total(), r.B.Total(), r.Delta,
			kind(r.B.Compute, r.A.Compute), kind(r.B.Exchange, r.A.Exchange),
			kind(r.B.Synchronization, r.A.Synchronization), kind(r.B.Idle, r.A.Idle))
	}
	return t.Flush()
}

func renderCommand() *cobra.Command {
	var out string
	var meta profile.RenderMeta
	c := &cobra.Command{
		Use:   "render FILE",
		Short: "Write a page that shows a profile: one file, needs no network",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			p, err := profile.ReadFile(args[0])
			if err != nil {
				return err
			}
			if out == "" {
				out = strings.TrimSuffix(args[0], filepath.Ext(args[0])) + ".html"
			}
			if out == args[0] {
				return fmt.Errorf("-o %s is the profile itself", out)
			}
			if meta.Title == "" {
				meta.Title = filepath.Base(args[0])
			}
			return atomicfile.WriteFunc(out, func(w io.Writer) error { return profile.Render(w, p, meta) })
		},
	}
	f := c.Flags()
	f.StringVarP(&out, "output", "o", "", "`file` to write (default: FILE with the ending .html)")
	f.StringVar(&meta.Title, "title", "", "`title` of the page (default: the name of the file)")
	f.StringVar(&meta.Device, "device", "", "`text` about what the run was on")
	f.BoolVar(&meta.Measured, "measured", false, "the cycles were counted by hardware, not modelled")
	return c
}
