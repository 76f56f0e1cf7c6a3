package device

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"ipufarm/protocol/program"
)

var update = flag.Bool("update", false, "write the laws into DEVIATIONS.md")

// TestDeviationsListEveryLaw keeps the table in DEVIATIONS.md equal to the one in
// the code.
func TestDeviationsListEveryLaw(t *testing.T) {
	var table strings.Builder
	table.WriteString("| kernel | forms | cycles of one call | source | status |\n|---|---|---|---|---|\n")
	for k := program.KernelNone + 1; k < program.KernelCount; k++ {
		l := &laws[k]
		if l.cycles == nil || values[k] == nil || operandRules[k] == nil {
			t.Fatalf("kernel %v lacks a law, a meaning or operand rules", k)
		}
		for _, text := range []string{l.form, l.formula, l.source, l.status} {
			if text == "" || strings.ContainsAny(text, "|\n") {
				t.Errorf("kernel %v: %q is no table cell", k, text)
			}
		}
		fmt.Fprintf(&table, "| %v | %s | %s | %s | %s |\n", k, l.form, l.formula, l.source, l.status)
	}
	const file, from, to = "DEVIATIONS.md", "<!-- laws -->\n", "<!-- end of laws -->\n"
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(data), from)
	old, after, ok2 := strings.Cut(rest, to)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the laws", file)
	}
	if old == table.String() {
		return
	}
	if !*update {
		t.Fatalf("%s lists other laws than the code; run with -update. It should say\n%s", file, table.String())
	}
	if err := os.WriteFile(file, []byte(before+from+table.String()+to+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestProfileCounter: cycles that a profile cannot count are a fault, not a wrap.
func TestProfileCounter(t *testing.T) {
	d := New(Options{})
	d.tiles = []*tile{{clock: 1 << 32}}
	if _, err := d.profile(); err == nil || !strings.Contains(err.Error(), "4294967296 cycles") {
		t.Errorf("error %v", err)
	}
}
