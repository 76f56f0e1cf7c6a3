package runcmd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ipufarm/protocol/ipucfg"
	"ipufarm/runner"
	"ipufarm/runner/loader"
)

// card is a loader whose card is the simulated device with a clock of its own. It
// wants the device configuration of the test.
func card(args []string) int {
	if args[0] == "faulty" {
		fmt.Println("ipufarm-loader 1")
		fmt.Fprintln(os.Stderr, "tile 3: exception 6")
		return loader.ExitPackage
	}
	read := func(variable string) []byte {
		data, err := os.ReadFile(os.Getenv(variable))
		if err != nil {
			panic(err)
		}
		return data
	}
	if writes, err := ipucfg.Decode(read("IPUFARM_CONFIG")); err != nil || !slices.Equal(writes, registers) {
		fmt.Fprintf(os.Stderr, "configuration %v, %v\n", writes, err)
		return loader.ExitDevice
	}
	fmt.Printf("ipufarm-loader 1\nloading\n")
	r, err := runner.Simulator{}.Run(context.Background(),
		runner.Load{Package: read("IPUFARM_PACKAGE"), Parameters: read("IPUFARM_PARAMETERS"), Inputs: read("IPUFARM_INPUTS")}, func(string) {})
	if err != nil {
		panic(err)
	}
	for name, data := range map[string]string{
		"outputs": string(r.Outputs), "samples": string(r.Profile),
		"result.json": `{"version":1,"model":"card of a test","cycles":51234,"cycles_are":"measured","profile":"samples"}`,
	} {
		if err := os.WriteFile(filepath.Join(os.Getenv("IPUFARM_OUTPUT_DIR"), name), []byte(data), 0o600); err != nil {
			panic(err)
		}
	}
	return 0
}

var registers = []ipucfg.Write{{Offset: 0x3000, Value: 7}, {Offset: 0x40, Value: 0}}

func external(t *testing.T, mode string) []string {
	t.Helper()
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return append(slices.Clone(small), "--device", "exec:"+executable+" card "+mode)
}

// TestExternalCard: a run on a card behind a loader, with its configuration file.
// Its cycles are called measured wherever they are shown, and those of the
// compiler are still called modelled.
func TestExternalCard(t *testing.T) {
	config, err := ipucfg.Encode(registers)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "c600.cfg"), config, 0o600); err != nil {
		t.Fatal(err)
	}
	r := callIn(t, dir, append(external(t, "good"), "c600.cfg", "--artifacts", "results", "--profile-output", "results/profile.ipuprof")...)
	if r.err != nil {
		t.Fatal(r.err, r.stderr)
	}
	for _, want := range []string{"card of a test, cycles are measured", "measured cycles", "51,234", "exact (modelled)", "passed"} {
		if !strings.Contains(r.stdout, want) {
			t.Errorf("the table lacks %q:\n%s", want, r.stdout)
		}
	}
	if strings.Contains(r.stdout, "modelled cycles") || strings.Contains(r.stdout, "synchronisation") {
		t.Errorf("the table has modelled cycles of the run:\n%s", r.stdout)
	}
	if !strings.Contains(r.stderr, "checked: 51,234 measured cycles, agrees with the reference") {
		t.Errorf("progress:\n%s", r.stderr)
	}
	body, err := os.ReadFile(filepath.Join(dir, "results", "summary.json"))
	if err != nil {
		t.Fatal(err)
	}
	var s summary
	if err := json.Unmarshal(body, &s); err != nil || s.Cycles != 51234 || !s.CyclesMeasured || !s.ReferencePassed || s.CyclesByKind.Compute != 0 {
		t.Errorf("summary %s, %v", body, err)
	}
	page, err := os.ReadFile(filepath.Join(dir, "results", "profile.html"))
	if err != nil || !bytes.Contains(page, []byte("measured cycles")) || bytes.Contains(page, []byte(`"modelled cycles`)) {
		t.Errorf("page of %d bytes, %v: it does not call the cycles measured", len(page), err)
	}
}

// TestExternalCardFault: a package that its card refuses is a failed run, at once
// and with what the loader said.
func TestExternalCardFault(t *testing.T) {
	r := call(t, external(t, "faulty")...)
	if r.err == nil || status(r.err) != 1 || !strings.Contains(r.err.Error(), "exit status 10: the package is at fault; its log ends with: tile 3: exception 6") {
		t.Errorf("status %d: %v", status(r.err), r.err)
	}
	if strings.Contains(r.stderr, "tried again") {
		t.Errorf("progress:\n%s", r.stderr)
	}
}
