// Package numericcmd holds the command-line verbs for number formats: numeric f143
// and f152.
package numericcmd

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"ipufarm/protocol/numeric"
)

// Command returns the verb "numeric" with its verbs. Every failure is one line that
// names the flag.
func Command() *cobra.Command {
	c := &cobra.Command{
		Use:   "numeric",
		Short: "Convert numbers to the 8-bit formats of the device and back",
	}
	c.AddCommand(
		formatCommand(&format{"f143", numeric.F32ToF143, numeric.F32ToF143Saturate, numeric.F143ToF32}),
		formatCommand(&format{"f152", numeric.F32ToF152, numeric.F32ToF152Saturate, numeric.F152ToF32}),
	)
	return c
}

// format is an 8-bit format at scale 0.
type format struct {
	name             string
	encode, saturate func(float32) byte
	decode           func(byte) float32
}

// conversion is one number in both forms. Numbers are texts, so that NaN and every
// digit survive JSON.
type conversion struct {
	Input string `json:"input"`
	Code  string `json:"code"`
	Value string `json:"value"` // code * 2^scale
	Error string `json:"relative_error,omitempty"`
}

func formatCommand(f *format) *cobra.Command {
	var encode, decode []string
	var scale int
	var saturate, half, asJSON bool
	c := &cobra.Command{
		Use:   f.name,
		Short: "Convert numbers to " + strings.ToUpper(f.name) + " codes and back",
		Long: "Convert numbers to " + strings.ToUpper(f.name) + " codes and back: value = code * 2^scale. Numbers round once, to nearest,\n" +
			"ties to even; what does not fit becomes NaN (0x80), or the largest value with --saturate.\n" +
			"Fractions like 1/729 are numbers too.",
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(c *cobra.Command, args []string) error {
			if scale < numeric.ScaleMin || scale > numeric.ScaleMax {
				return fmt.Errorf("--scale %d, want %d to %d", scale, numeric.ScaleMin, numeric.ScaleMax)
			}
			if len(encode)+len(decode) == 0 {
				return fmt.Errorf("nothing to convert: give --encode NUMBERS or --decode CODES")
			}
			list, err := f.convert(encode, decode, scale, saturate, half)
			if err != nil {
				return err
			}
			if asJSON {
				e := json.NewEncoder(c.OutOrStdout())
				e.SetIndent("", "  ")
				return e.Encode(struct {
					Format      string       `json:"format"`
					Scale       int          `json:"scale"`
					Conversions []conversion `json:"conversions"`
				}{f.name, scale, list})
			}
			return printTable(c.OutOrStdout(), list)
		},
	}
	g := c.Flags()
	g.StringSliceVar(&encode, "encode", nil, "`numbers` to convert to codes")
	g.StringSliceVar(&decode, "decode", nil, "`codes` to convert to numbers: 0x00 to 0xff, or 0 to 255")
	g.IntVar(&scale, "scale", 0, "exponent of the scale")
	g.BoolVar(&saturate, "saturate", false, "clip what does not fit")
	g.BoolVar(&half, "from-f16", false, "round numbers to F16 first: the device's cast reads halves")
	g.BoolVar(&asJSON, "json", false, "print one JSON object")
	return c
}

func (f *format) convert(encode, decode []string, scale int, saturate, half bool) ([]conversion, error) {
	var list []conversion
	unit := float64(numeric.Pow2(scale))
	for _, text := range encode {
		x, err := parse(text)
		if err != nil {
			return nil, err
		}
		value := float32(x)
		if half {
			value = numeric.RoundF16(value)
		}
		convert := f.encode
		if saturate {
			convert = f.saturate
		}
		code := convert(value * numeric.Pow2(-scale))
		v := float64(f.decode(code)) * unit
		r := conversion{Input: text, Code: fmt.Sprintf("0x%02x", code), Value: spell(v)}
		if x != 0 && v == v {
			r.Error = spell((v-x)/x + 0) // never -0
		}
		list = append(list, r)
	}
	for _, text := range decode {
		code, err := strconv.ParseUint(strings.TrimSpace(text), 0, 8)
		if err != nil {
			return nil, fmt.Errorf("--decode %.40q, want a code from 0x00 to 0xff, or 0 to 255", text)
		}
		list = append(list, conversion{Input: text, Code: fmt.Sprintf("0x%02x", code), Value: spell(float64(f.decode(byte(code))) * unit)})
	}
	return list, nil
}

func spell(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }

// parse reads a number or a fraction.
func parse(text string) (float64, error) {
	over, under, fraction := strings.Cut(strings.TrimSpace(text), "/")
	x, err := strconv.ParseFloat(over, 64)
	if err == nil && fraction {
		var d float64
		if d, err = strconv.ParseFloat(under, 64); err == nil {
			x /= d
		}
	}
	if err != nil {
		return 0, fmt.Errorf("--encode %.40q, want a number or a fraction", text)
	}
	return x, nil
}

func printTable(w io.Writer, list []conversion) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "input\tcode\tvalue\trelative error\n")
	for _, r := range list {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", r.Input, r.Code, r.Value, r.Error)
	}
	return t.Flush()
}
