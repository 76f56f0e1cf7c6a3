// Package exchangecmd holds the verbs of the exchange scheduler as a tool of its
// own: schedule a phase from a file, and bench the generated families. Every
// schedule is encoded, decoded again and verified before anything is printed.
package exchangecmd

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"ipufarm/compiler/exchange"
	"ipufarm/protocol/machine"
)

// Command returns the verb "exchange".
func Command() *cobra.Command {
	c := &cobra.Command{
		Use:   "exchange",
		Short: "Schedule exchange phases by themselves",
		Args:  cobra.NoArgs,
	}
	c.AddCommand(schedule(), bench())
	return c
}

// result is what is known of one scheduled phase. Events are modelled cycles.
type result struct {
	Horizon       int32   `json:"horizon_events"`
	Bound         int32   `json:"lower_bound_events"`
	ControlBound  int32   `json:"bound_with_controls_events"`
	RowBytes      int64   `json:"row_bytes_total"`
	RowBytesMax   int     `json:"row_bytes_max"`
	Paired        int     `json:"paired_transfers"`
	Transfers     int     `json:"transfers"`
	Seconds       float64 `json:"seconds"`        // to schedule and encode
	VerifySeconds float64 `json:"verify_seconds"` // to decode and verify

	rows   *exchange.Rows
	starts []int32
}

// solve takes a problem through scheduler, encoder and verifier. In a loop all
// iterations are verified; the rows are those of the first.
func solve(p *exchange.Problem) (*result, error) {
	began := time.Now()
	s, err := exchange.Solve(p)
	if err != nil {
		return nil, err
	}
	rows := make([]*exchange.Rows, len(p.Moves)+1)
	for i := range rows {
		if rows[i], err = exchange.Encode(p.Iteration(i), s); err != nil {
			return nil, err
		}
	}
	encoded := time.Now()
	for i := range rows {
		if err := exchange.Verify(p.Iteration(i), rows[i]); err != nil {
			return nil, fmt.Errorf("the schedule is wrong, which is a mistake of this program: %w", err)
		}
	}
	r := &result{
		Horizon: s.Horizon, Bound: s.LowerBound(p), Transfers: len(p.Transfers),
		Seconds: encoded.Sub(began).Seconds(), VerifySeconds: time.Since(encoded).Seconds(),
		rows: rows[0], starts: s.Starts,
	}
	for _, wide := range s.Wide {
		if wide {
			r.Paired++
		}
	}
	return r, r.measure()
}

// measure sums the rows up. The bound with controls adds the events at which a
// tile's receive controls act to what it sends or receives, whichever is more.
func (r *result) measure() error {
	var row machine.ExchangeRow
	for _, t := range r.rows.Tile {
		if t.Words == nil {
			continue
		}
		r.RowBytes += int64(4 * len(t.Words))
		r.RowBytesMax = max(r.RowBytesMax, 4*len(t.Words))
		if err := row.Decode(t.Words); err != nil {
			return err
		}
		work := int32(0)
		for _, s := range row.Sends {
			work += s.Items
		}
		for i, c := range row.Controls {
			if i == 0 || row.Controls[i-1].Event != c.Event {
				work++
			}
		}
		r.ControlBound = max(r.ControlBound, work)
	}
	r.ControlBound = max(r.ControlBound, r.Bound)
	return nil
}

func schedule() *cobra.Command {
	var asJSON, starts, rows bool
	c := &cobra.Command{
		Use:   "schedule FILE",
		Short: "Schedule the phase in a JSON file (- is standard input)",
		Long: `Schedule reads a phase as JSON:

  {"version":1,"tiles":1472,"transfers":[{"source":0,"addresses":[413696],"words":64,
    "receivers":[{"tile":5,"address":524288}]}]}

Tiles are logical, addresses in bytes, words 32-bit. A transfer has one source address,
or one for each iteration of a loop, and may have "width":32 or 64. The result is verified
from the encoded rows before it is printed; events are modelled cycles.`,
		Args:          cobra.ExactArgs(1),
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(c *cobra.Command, args []string) error {
			p, err := read(c.InOrStdin(), args[0])
			if err != nil {
				return err
			}
			r, err := solve(p)
			if err != nil {
				return err
			}
			out := bufio.NewWriter(c.OutOrStdout())
			if asJSON {
				err = writeJSON(out, r, starts, rows)
			} else {
				err = writeText(out, r, starts, rows)
			}
			if err != nil {
				return err
			}
			return out.Flush()
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	c.Flags().BoolVar(&starts, "starts", false, "also print the start event of each transfer")
	c.Flags().BoolVar(&rows, "rows", false, "also print the decoded rows")
	return c
}

func read(stdin io.Reader, name string) (*exchange.Problem, error) {
	if name == "-" {
		return exchange.ReadProblem(stdin)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	p, err := exchange.ReadProblem(bufio.NewReaderSize(f, 1<<16))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

// row is a decoded row as it is printed. Kinds of controls are named.
type row struct {
	Tile         int       `json:"tile"`
	Physical     int       `json:"physical"`
	IncomingBase uint32    `json:"incoming_base"`
	Bytes        int       `json:"bytes"`
	Horizon      int32     `json:"horizon_events"`
	Sends        []send    `json:"sends"`
	Controls     []control `json:"controls"`
}

type send struct {
	Start     int32  `json:"start"`
	Items     int32  `json:"items"`
	Address   uint32 `json:"address"`
	Direction uint8  `json:"direction"`
	Width     int    `json:"width"`
}

type control struct {
	Event int32  `json:"event"`
	Kind  string `json:"kind"`
	Value uint32 `json:"value"`
}

func (r *result) decoded() ([]row, error) {
	var list []row
	for tile, t := range r.rows.Tile {
		if t.Words == nil {
			continue
		}
		d, err := machine.DecodeRow(t.Words)
		if err != nil {
			return nil, err
		}
		x := row{
			Tile: tile, Physical: machine.Physical(tile), IncomingBase: t.IncomingBase, Bytes: 4 * len(t.Words), Horizon: d.Horizon,
			Sends: []send{}, Controls: []control{},
		}
		for _, s := range d.Sends {
			width := 32
			if s.Wide {
				width = 64
			}
			x.Sends = append(x.Sends, send{s.Start, s.Items, s.Address, s.Direction, width})
		}
		for _, c := range d.Controls {
			x.Controls = append(x.Controls, control{c.Event, c.Kind.String(), c.Value})
		}
		list = append(list, x)
	}
	return list, nil
}

func writeJSON(w io.Writer, r *result, starts, rows bool) error {
	out := struct {
		*result
		Starts []int32 `json:"starts,omitempty"`
		Rows   []row   `json:"rows,omitempty"`
	}{result: r}
	if starts {
		out.Starts = r.starts
	}
	if rows {
		var err error
		if out.Rows, err = r.decoded(); err != nil {
			return err
		}
	}
	return json.NewEncoder(w).Encode(out)
}

func writeText(w io.Writer, r *result, starts, rows bool) error {
	fmt.Fprintf(w, "%d transfers, %d of them as 64-bit items\n", r.Transfers, r.Paired)
	fmt.Fprintf(w, "horizon %d events modelled, lower bound %d, with controls %d\n", r.Horizon, r.Bound, r.ControlBound)
	fmt.Fprintf(w, "rows %d bytes, largest %d\n", r.RowBytes, r.RowBytesMax)
	fmt.Fprintf(w, "scheduled and encoded in %.3f s, verified in %.3f s\n", r.Seconds, r.VerifySeconds)
	if starts {
		for t, s := range r.starts {
			fmt.Fprintf(w, "transfer %d starts at event %d\n", t, s)
		}
	}
	if !rows {
		return nil
	}
	list, err := r.decoded()
	if err != nil {
		return err
	}
	for _, x := range list {
		fmt.Fprintf(w, "tile %d (physical %d): %d bytes, incoming base 0x%X, ends at event %d\n", x.Tile, x.Physical, x.Bytes, x.IncomingBase, x.Horizon)
		for _, s := range x.Sends {
			fmt.Fprintf(w, "  %8d  send %d items of %d bits from 0x%X, direction %d\n", s.Start, s.Items, s.Width, s.Address, s.Direction)
		}
		for _, c := range x.Controls {
			fmt.Fprintf(w, "  %8d  %s 0x%X\n", c.Event, c.Kind, c.Value)
		}
	}
	return nil
}

// countedBound is the smallest lower bound of a family whose ratio counts:
// below it, latency decides.
const countedBound = 2000

// family is the outcome of one bench family.
type family struct {
	Name string `json:"name"`
	*result
	Ratio float64 `json:"ratio"`
}

type benchmark struct {
	Families    []family `json:"families"`
	RatioMedian float64  `json:"ratio_median"`
	// Growth10x is how many times longer a kind's 1.2m family takes to schedule than
	// its 117k family, for the kinds that have both.
	Growth10x map[string]float64 `json:"growth_10x,omitempty"`
}

func bench() *cobra.Command {
	var asJSON bool
	var only []string
	c := &cobra.Command{
		Use:   "bench",
		Short: "Schedule generated families of phases and compare with their lower bounds",
		Long: `Bench generates phases of the kinds that layouts cause, schedules each on one core,
verifies it, and prints horizon and lower bound in modelled events. The median counts
families with a bound of at least 2,000 events.`,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(c *cobra.Command, _ []string) error {
			b, err := runBench(only)
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(c.OutOrStdout()).Encode(b)
			}
			return b.write(c.OutOrStdout())
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	c.Flags().StringSliceVar(&only, "family", nil, "only these families")
	return c
}

func runBench(only []string) (*benchmark, error) {
	families, err := exchange.Families()
	if err != nil {
		return nil, err
	}
	for _, name := range only {
		if !slices.ContainsFunc(families, func(f exchange.Family) bool { return f.Name == name }) {
			return nil, fmt.Errorf("no bench family %q", name)
		}
	}
	b := &benchmark{Families: []family{}}
	var ratios []float64
	for _, f := range families {
		if only != nil && !slices.Contains(only, f.Name) {
			continue
		}
		p, err := f.Problem()
		if err != nil {
			return nil, err
		}
		r, err := solve(p)
		if err != nil {
			return nil, fmt.Errorf("bench family %q: %w", f.Name, err)
		}
		r.rows, r.starts = nil, nil
		x := family{f.Name, r, float64(r.Horizon) / float64(r.Bound)}
		b.Families = append(b.Families, x)
		if r.Bound >= countedBound {
			ratios = append(ratios, x.Ratio)
		}
	}
	b.grow()
	if n := len(ratios); n > 0 {
		slices.Sort(ratios)
		b.RatioMedian = (ratios[(n-1)/2] + ratios[n/2]) / 2
	}
	return b, nil
}

// grow compares the families whose names end in -117k and -1.2m.
func (b *benchmark) grow() {
	seconds := map[string]float64{}
	for _, f := range b.Families {
		seconds[f.Name] = f.Seconds
	}
	for name, large := range seconds {
		kind, found := strings.CutSuffix(name, "-1.2m")
		if small := seconds[kind+"-117k"]; found && small > 0 {
			if b.Growth10x == nil {
				b.Growth10x = map[string]float64{}
			}
			b.Growth10x[kind] = large / small
		}
	}
}

func (b *benchmark) write(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "family\ttransfers\thorizon\tbound\tratio\tlargest row\tpaired\tseconds\tverify\t")
	for _, f := range b.Families {
		fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%.3f\t%d\t%d\t%.2f\t%.2f\t\n", f.Name, f.Transfers, f.Horizon, f.Bound, f.Ratio, f.RowBytesMax, f.Paired, f.Seconds, f.VerifySeconds)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, kind := range slices.Sorted(maps.Keys(b.Growth10x)) {
		if _, err := fmt.Fprintf(w, "ten times the transfers of %s take %.1f times as long\n", kind, b.Growth10x[kind]); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "median ratio %.3f (families with a bound of at least %d modelled events)\n", b.RatioMedian, countedBound)
	return err
}
