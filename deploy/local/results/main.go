// Command results measures the rows of the README's table of results: it runs
// each job by itself, cold, with a built ipufarm, and prints the table.
//
//	go run ./deploy/local/results            the small rows
//	go run ./deploy/local/results -full      all rows (about ten minutes on two cores)
//	go run ./deploy/local/results -only "b1 FP8"
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// row is one job of the table.
type row struct {
	name string
	full bool
	args string
}

const fp8 = " --fp8-scale=-4 --diagnostic-atol 0.2 --diagnostic-rtol 0.05"

var rows = []row{
	{"small, F16, b1", false, "--vit-small --tiles 64"},
	{"small, F16, b2", false, "--vit-small --tiles 64 --vit-batch 2"},
	{"small, FP8, b1", false, "--vit-small --tiles 64 --fuse-qkv" + fp8},
	{"small, FP8, b2", false, "--vit-small --tiles 64 --fuse-qkv --vit-batch 2" + fp8},
	{"four tokens, full width, FP8", false, "--vit-image-size 28 --fuse-qkv --policy best-exact" + fp8},
	{"full, b1, FP8, fused", true, "--fuse-qkv --policy best-exact" + fp8},
	{"full, b1, FP8, separate", true, "--policy best-exact" + fp8},
	{"full, b1, F16, fused", true, "--fuse-qkv --policy best-exact"},
	{"full, b2, FP8, fused", true, "--fuse-qkv --vit-batch 2 --policy best-exact" + fp8},
	{"full, b4, FP8, fused", true, "--fuse-qkv --vit-batch 4 --policy best-exact" + fp8},
	{"full, b8, FP8, fused", true, "--fuse-qkv --vit-batch 8 --policy best-exact" + fp8},
}

// summary is the part of a run's summary that the table shows.
type summary struct {
	Cycles          uint64             `json:"cycles"`
	Milliseconds    float64            `json:"milliseconds"`
	ReferencePassed bool               `json:"reference_passed"`
	MaxAbsError     float64            `json:"max_abs_error"`
	WinnerFamily    string             `json:"winner_family"`
	StageSeconds    map[string]float64 `json:"stage_seconds"`
	RankCorrelation *float64           `json:"rank_correlation"`
	RegretCycles    *int64             `json:"regret_cycles"`
	PeakRSSBytes    int64              `json:"peak_rss_bytes"`
	Error           string             `json:"error"`
	Finalists       []struct {
		Verdict string `json:"verdict"`
	} `json:"finalists"`
}

func main() {
	full := flag.Bool("full", false, "measure the full-size rows too")
	only := flag.String("only", "", "measure only the rows whose name contains this")
	flag.Parse()
	if err := measure(*full, *only); err != nil {
		fmt.Fprintln(os.Stderr, "results:", err)
		os.Exit(1)
	}
}

func measure(full bool, only string) error {
	dir, err := os.MkdirTemp("", "ipufarm-results-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "ipufarm")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w: %s", err, out)
	}
	fmt.Println("| job | modelled cycles | ms | max abs error | fit | plan s | schedule s | validate s | run s | total s | peak MiB | rank correlation | regret |")
	fmt.Println("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
	for _, r := range rows {
		if r.full && !full && only == "" || !strings.Contains(r.name, only) {
			continue
		}
		line, err := r.run(binary, dir)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		fmt.Println(line)
	}
	return nil
}

func (r row) run(binary, dir string) (string, error) {
	args := append([]string{"run", "--workload", "siglip-vit-benchmark", "--json", "--artifacts", filepath.Join(dir, "artifacts")}, strings.Fields(r.args)...)
	cmd := exec.Command(binary, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	start := time.Now()
	runErr := cmd.Run()
	seconds := time.Since(start).Seconds()
	var s summary
	if err := json.Unmarshal(out.Bytes(), &s); err != nil {
		return "", fmt.Errorf("%w: %s", runErr, errs.String())
	}
	if runErr != nil || !s.ReferencePassed {
		return fmt.Sprintf("| %s | no result: %s |", r.name, s.Error), nil
	}
	fit := 0
	for _, f := range s.Finalists {
		if f.Verdict == "feasible" {
			fit++
		}
	}
	correlation, regret := "–", "–"
	if s.RankCorrelation != nil {
		correlation = fmt.Sprintf("%.2f", *s.RankCorrelation)
	}
	if s.RegretCycles != nil {
		regret = fmt.Sprint(*s.RegretCycles)
	}
	t := s.StageSeconds
	return fmt.Sprintf("| %s | %d | %.4f | %.4f | %d/%d | %.1f | %.1f | %.1f | %.1f | %.1f | %d | %s | %s |", r.name, s.Cycles, s.Milliseconds, s.MaxAbsError,
		fit, len(s.Finalists), t["plan"], t["schedule"], t["validate"], t["run"], seconds, s.PeakRSSBytes>>20, correlation, regret), nil
}
