package numericcmd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"ipufarm/protocol/numeric"
)

// run runs the verb as main does, and returns what it printed and its error.
func run(args ...string) (string, error) {
	c := Command()
	c.SilenceErrors = true
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(args)
	err := c.Execute()
	return out.String(), err
}

func TestVerbs(t *testing.T) {
	for _, c := range []struct {
		args string
		out  string // must be printed, with single spaces
		err  string // must be in the error; empty: no error
	}{
		{"f143 --encode 1/729 --scale -1", "1/729 0x03 0.00146484375 0.06787109375", ""},
		{"f143 --encode 0.0001 --scale -1", "0.0001 0x00 0 -1", ""},
		{"f143 --encode 1.0,-1.0", "-1.0 0xc0 -1 0", ""},
		{"f143 --encode -3.3", "-3.3 0xcd -3.25", ""},
		{"f143 --encode 1000", "1000 0x80 NaN", ""},
		{"f143 --encode -1000 --saturate", "-1000 0xff -240", ""},
		{"f143 --encode inf,nan --saturate", "inf 0x80 NaN", ""},
		{"f143 --encode 0", "0 0x00 0", ""},
		{"f143 --encode 1/0", "1/0 0x80 NaN", ""},
		// 8.50390625 is above the tie of 8.5 that it becomes as a half.
		{"f143 --encode 8.50390625", "8.50390625 0x59 9", ""},
		{"f143 --encode 8.50390625 --from-f16", "8.50390625 0x58 8", ""},
		{"f143 --decode 0x7f,128,0x01", "0x7f 0x7f 240", ""},
		{"f143 --decode 0x7f,128,0x01", "128 0x80 NaN", ""},
		{"f143 --decode 1 --scale -1", "1 0x01 0.00048828125", ""},
		{"f152 --decode 0x7f", "0x7f 0x7f 57344", ""},
		{"f152 --encode 57344 --json", `"code": "0x7f"`, ""},
		{"f143", "", "nothing to convert: give --encode NUMBERS or --decode CODES"},
		{"f143 --decode 256", "", `--decode "256", want a code from 0x00 to 0xff`},
		{"f143 --decode -1", "", `--decode "-1"`},
		{"f143 --encode x", "", `--encode "x", want a number or a fraction`},
		{"f143 --encode 1/x", "", `--encode "1/x"`},
		{"f143 --encode 1 --scale 32", "", "--scale 32, want -32 to 31"},
		{"f143 1.0", "", "unknown command"},
	} {
		out, err := run(strings.Fields(c.args)...)
		if !strings.Contains(strings.Join(strings.Fields(out), " "), c.out) {
			t.Errorf("%s: printed\n%s\nwant %q in it", c.args, out, c.out)
		}
		switch {
		case c.err == "" && err != nil:
			t.Errorf("%s: %v", c.args, err)
		case c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)):
			t.Errorf("%s: error %v, want one that contains %q", c.args, err, c.err)
		}
	}
}

// What decodes encodes to the code that it came from, at every scale.
func TestRoundTrip(t *testing.T) {
	for _, name := range []string{"f143", "f152"} {
		for scale := numeric.ScaleMin; scale <= numeric.ScaleMax; scale += 9 {
			var codes []string
			for i := range 256 {
				codes = append(codes, fmt.Sprint(i))
			}
			flags := []string{name, "--json", "--scale", fmt.Sprint(scale)}
			decoded := conversions(t, append(flags, "--decode", strings.Join(codes, ",")))
			var values []string
			for _, r := range decoded {
				values = append(values, r.Value)
			}
			for i, r := range conversions(t, append(flags, "--encode", strings.Join(values, ","))) {
				if r.Code != decoded[i].Code || r.Value != decoded[i].Value {
					t.Errorf("%s at scale %d: %s is %s, encodes to %s", name, scale, decoded[i].Code, decoded[i].Value, r.Code)
				}
			}
		}
	}
}

func conversions(t *testing.T, args []string) []conversion {
	t.Helper()
	out, err := run(args...)
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ Conversions []conversion }
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Conversions) != 256 {
		t.Fatalf("%d conversions, want 256", len(got.Conversions))
	}
	return got.Conversions
}
