// Package kernelcmd holds the verbs of the kernel table: list and cost.
package kernelcmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"ipufarm/compiler/kernel"
	"ipufarm/protocol/machine"
)

// Command returns the verb "kernel".
func Command() *cobra.Command {
	c := &cobra.Command{
		Use:   "kernel",
		Short: "What the compiler knows of the tile kernels: modelled cycles, code bytes, operands",
		Args:  cobra.NoArgs,
	}
	c.AddCommand(list(), cost())
	return c
}

func list() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:           "list",
		Short:         "Print the kernel table",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(c *cobra.Command, _ []string) error {
			if asJSON {
				return writeJSON(c.OutOrStdout(), listing())
			}
			return writeTable(c.OutOrStdout())
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return c
}

type form struct {
	Operands string `json:"operands"`
	Formula  string `json:"cycles"`
	Status   string `json:"status"`
	Source   string `json:"source"`
}

type operand struct {
	Name      string `json:"name"`
	Alignment int    `json:"alignment"`
	Tail      int    `json:"tail_bytes"`
	Memory    string `json:"memory"`
	Output    bool   `json:"output"`
}

type row struct {
	Name      string      `json:"kernel"`
	CodeBytes int         `json:"code_bytes"`
	Flags     []string    `json:"flags"`
	Forms     []form      `json:"forms"`
	Operands  []operand   `json:"operands"`
	Separate  [][2]string `json:"separate,omitempty"`
}

type table struct {
	Basis   string `json:"basis"`
	Kernels []row  `json:"kernels"`
}

// basis is what every number of these verbs is.
const basis = "cycles modelled, code bytes assumed"

func listing() table {
	t := table{Basis: basis}
	for i := range kernel.All() {
		r := &kernel.All()[i]
		out := row{Name: r.Name, CodeBytes: r.CodeBytes(), Flags: flagsOf(r)}
		for _, f := range r.Forms {
			out.Forms = append(out.Forms, form{f.Operands, f.Formula, f.Status.String(), f.Source})
		}
		rules := r.Rules()
		for _, o := range rules.Operands {
			out.Operands = append(out.Operands, operand{o.Name, o.Align, o.Tail, o.Memory.String(), o.Output})
		}
		for _, pair := range rules.Separate {
			out.Separate = append(out.Separate, [2]string{rules.Operands[pair[0]].Name, rules.Operands[pair[1]].Name})
		}
		t.Kernels = append(t.Kernels, out)
	}
	return t
}

func writeTable(w io.Writer) error {
	tab := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintf(tab, "KERNEL\tCODE\tCYCLES (MODELLED; q ROUNDS UP)\tOPERANDS\tSTATUS\tSOURCE\n")
	for i := range kernel.All() {
		r := &kernel.All()[i]
		name, code := r.Name, strconv.Itoa(r.CodeBytes())
		for _, f := range r.Forms {
			fmt.Fprintf(tab, "%s\t%s\t%s\t%s\t%s\t%s\n", name, code, f.Formula, f.Operands, f.Status, f.Source)
			name, code = "", ""
		}
	}
	return tab.Flush()
}

// flagsOf lists the flags that a kernel takes, as they are written.
func flagsOf(r *kernel.Row) []string {
	var flags []string
	for _, l := range r.Limits {
		flags = append(flags, "--"+l.Dim.String())
	}
	for _, o := range r.Options {
		flags = append(flags, "--"+o.String())
	}
	return flags
}

// choice is a flag with a fixed set of words; the first is the default.
type choice struct {
	words []string
	at    *int
}

func (c choice) String() string {
	if c.at == nil {
		return ""
	}
	return c.words[*c.at]
}
func (c choice) Type() string { return strings.Join(c.words, "|") }
func (c choice) Set(text string) error {
	for i, w := range c.words {
		if w == text {
			*c.at = i
			return nil
		}
	}
	return fmt.Errorf("accepted: %s", strings.Join(c.words, ", "))
}

// count is a flag that takes a whole number.
type count struct{ at *int }

func (c count) String() string {
	if c.at == nil {
		return "0"
	}
	return strconv.Itoa(*c.at)
}
func (c count) Type() string { return "n" }
func (c count) Set(text string) error {
	v, err := strconv.Atoi(text)
	if err != nil {
		return errors.New("accepted: whole numbers")
	}
	*c.at = v
	return nil
}

var dimHelp = [kernel.Dims]string{
	kernel.Rows:     "rows on this tile",
	kernel.Inner:    "contraction length of a GEMM, in elements",
	kernel.Cols:     "columns on this tile, or the width of a row",
	kernel.Elements: "elements of an operand without shape",
	kernel.Partials: "partials of a reduction, the local one included",
	kernel.Keys:     "keys of a softmax row",
	kernel.Padded:   "keys with padding (default: the next multiple of 16)",
	kernel.Bytes:    "bytes to copy or fill",
	kernel.Words:    "32-bit words in each piece of a strided copy",
}

func cost() *cobra.Command {
	var (
		g                          kernel.Geometry
		name                       string
		precision, weights, output int
		asJSON                     bool
	)
	c := &cobra.Command{
		Use:           "cost --kernel NAME [geometry]",
		Short:         "Price one call of a kernel on one tile, in modelled cycles",
		Example:       "  ipufarm kernel cost --kernel gemm --precision f8 --rows 244 --inner 128 --cols 64",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(c *cobra.Command, _ []string) error {
			r, ok := kernel.Named(name)
			if !ok {
				return fmt.Errorf("--kernel %q: accepted: %s", name, strings.Join(names(), ", "))
			}
			g.Precision = kernel.Precision(precision)
			g.StandardWeights, g.Packed = weights == 1, output == 1
			if err := check(c, r, g); err != nil {
				return err
			}
			return writeCost(c.OutOrStdout(), r, g, asJSON)
		},
	}
	f := c.Flags()
	f.StringVar(&name, "kernel", "", "name of the kernel, see kernel list")
	f.Var(choice{[]string{"f16", "f8"}, &precision}, kernel.OptPrecision.String(), "element type of a GEMM's operands")
	f.Var(choice{[]string{"interleaved", "standard"}, &weights}, kernel.OptWeights.String(), "memory of a GEMM's right operand")
	f.Var(choice{[]string{"native", "packed"}, &output}, kernel.OptOutput.String(), "output of a GEMM: panels or row-major")
	for d := range kernel.Dims {
		f.Var(count{g.At(d)}, d.String(), dimHelp[d])
	}
	f.BoolVar(&g.F8Out, kernel.OptF8Out.String(), false, "convert the result to FP8")
	f.BoolVar(&g.GELU, kernel.OptGELU.String(), false, "reduction: GELU epilogue")
	f.BoolVar(&g.AddA, kernel.OptAddA.String(), false, "reduction: add a further operand")
	f.BoolVar(&g.AddB, kernel.OptAddB.String(), false, "reduction: add a second further operand")
	f.BoolVar(&g.Panels, kernel.OptPanels.String(), false, "operands in panels instead of rows")
	f.BoolVar(&asJSON, "json", false, "print one JSON object")
	return c
}

func names() []string {
	var all []string
	for i := range kernel.All() {
		all = append(all, kernel.All()[i].Name)
	}
	return all
}

// check puts the refusal of a geometry in terms of the flags.
func check(c *cobra.Command, r *kernel.Row, g kernel.Geometry) error {
	// A flag of another kernel is a mistake even at its default.
	for o := range kernel.Options {
		if c.Flags().Changed(o.String()) && !r.Takes(o) {
			return fmt.Errorf("--%s does not apply to %s; it takes %s", o, r.Name, strings.Join(flagsOf(r), " "))
		}
	}
	err := r.Check(g)
	var bad *kernel.GeometryError
	switch {
	case !errors.As(err, &bad):
		return err
	case bad.Accept == kernel.NotUsed:
		return fmt.Errorf("--%s does not apply to %s; it takes %s", bad.Field, r.Name, strings.Join(flagsOf(r), " "))
	case !c.Flags().Changed(bad.Field):
		return fmt.Errorf("--%s is missing; accepted for %s: %s", bad.Field, r.Name, bad.Accept)
	}
	return fmt.Errorf("--%s %s; accepted for %s: %s", bad.Field, bad.Got, r.Name, bad.Accept)
}

type priced struct {
	Kernel    string `json:"kernel"`
	Precision string `json:"precision,omitempty"`
	Weights   string `json:"weights,omitempty"`
	Output    string `json:"output,omitempty"`
	Rows      int    `json:"rows,omitempty"`
	Inner     int    `json:"inner,omitempty"`
	Cols      int    `json:"cols,omitempty"`
	Elements  int    `json:"elements,omitempty"`
	Partials  int    `json:"partials,omitempty"`
	Keys      int    `json:"keys,omitempty"`
	Padded    int    `json:"padded,omitempty"`
	Bytes     int    `json:"bytes,omitempty"`
	Words     int    `json:"words,omitempty"`
	F8Out     *bool  `json:"f8_out,omitempty"`
	GELU      *bool  `json:"gelu,omitempty"`
	AddA      *bool  `json:"add_a,omitempty"`
	AddB      *bool  `json:"add_b,omitempty"`
	Panels    *bool  `json:"panels,omitempty"`

	Cycles       int     `json:"cycles"`
	Microseconds float64 `json:"microseconds"`
	CodeBytes    int     `json:"code_bytes"`
	Basis        string  `json:"basis"`
}

func price(r *kernel.Row, g kernel.Geometry) priced {
	p := priced{
		Kernel: r.Name, Rows: g.Rows, Inner: g.Inner, Cols: g.Cols, Elements: g.Elements, Partials: g.Partials,
		Keys: g.Keys, Padded: g.Padded, Bytes: g.Bytes, Words: g.Words,
		Cycles: r.Cycles(g), CodeBytes: r.CodeBytes(), Basis: basis,
	}
	p.Microseconds = float64(p.Cycles) * 1e6 / machine.ClockHz
	for _, o := range r.Options {
		switch o {
		case kernel.OptPrecision:
			p.Precision = g.Precision.String()
		case kernel.OptWeights:
			p.Weights = pick(g.StandardWeights, "standard", "interleaved")
		case kernel.OptOutput:
			p.Output = pick(g.Packed, "packed", "native")
		case kernel.OptF8Out:
			p.F8Out = &g.F8Out
		case kernel.OptGELU:
			p.GELU = &g.GELU
		case kernel.OptAddA:
			p.AddA = &g.AddA
		case kernel.OptAddB:
			p.AddB = &g.AddB
		case kernel.OptPanels:
			p.Panels = &g.Panels
		}
	}
	return p
}

func pick(which bool, yes, no string) string {
	if which {
		return yes
	}
	return no
}

func writeCost(w io.Writer, r *kernel.Row, g kernel.Geometry, asJSON bool) error {
	p := price(r, g)
	if asJSON {
		return writeJSON(w, p)
	}
	_, err := fmt.Fprintf(w, "%s: %d cycles (modelled), %.3f µs at %g GHz; %d bytes of code (assumed)\n",
		describe(p), p.Cycles, p.Microseconds, float64(machine.ClockHz)/1e9, p.CodeBytes)
	return err
}

// describe is the geometry in words.
func describe(p priced) string {
	var b strings.Builder
	b.WriteString(p.Kernel)
	for _, word := range []string{p.Precision, pick(p.Weights == "", "", p.Weights+" weights"), pick(p.Output == "", "", p.Output+" output")} {
		if word != "" {
			b.WriteString(" " + word)
		}
	}
	for _, n := range []struct {
		name  string
		value int
	}{{"rows", p.Rows}, {"inner", p.Inner}, {"cols", p.Cols}, {"elements", p.Elements}, {"partials", p.Partials}, {"keys", p.Keys}, {"padded", p.Padded}, {"bytes", p.Bytes}, {"words", p.Words}} {
		if n.value != 0 {
			fmt.Fprintf(&b, " %s %d", n.name, n.value)
		}
	}
	for _, o := range []struct {
		name string
		set  *bool
	}{{"f8-out", p.F8Out}, {"gelu", p.GELU}, {"add-a", p.AddA}, {"add-b", p.AddB}, {"panels", p.Panels}} {
		if o.set != nil && *o.set {
			b.WriteString(" " + o.name)
		}
	}
	return b.String()
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
