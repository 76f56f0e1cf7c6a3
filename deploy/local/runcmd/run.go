// Package runcmd is the verb "run": an embedded farm, one job, and what a person
// wants to know of it afterwards.
package runcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"ipufarm/compiler"
	"ipufarm/compiler/workload"
	"ipufarm/deploy/local"
	"ipufarm/protocol"
	"ipufarm/protocol/atomicfile"
	"ipufarm/protocol/profile"
	"ipufarm/protocol/program"
)

// Exit statuses of the verb, beside 1 for everything that went wrong before there
// was a result. Help lists them.
const (
	ExitNoWinner  = 3
	ExitReference = 4
)

// ExitError is an error with an exit status of its own.
type ExitError struct {
	Status int
	Err    error
}

func (e *ExitError) Error() string { return e.Err.Error() }
func (e *ExitError) Unwrap() error { return e.Err }

// Default tolerances fit F16: the small model is within 0.004 of the reference.
const (
	defaultAtol = 0.01
	defaultRtol = 0.01
)

// options are the flags of the verb.
type options struct {
	workload  workload.Options
	tiles     int
	finalists int
	policy    string
	k         int
	tolerance protocol.Tolerance
	fixture   string
	save      string
	artifacts string
	pkg       string
	profile   string
	workers   int
	state     string
	natsPort  int
	s3Port    int
	json      bool
}

// Command returns the verb.
func Command() *cobra.Command {
	o := options{workload: workload.Defaults(), tolerance: protocol.Tolerance{Atol: defaultAtol, Rtol: defaultRtol}}
	c := &cobra.Command{
		Use:   "run",
		Short: "compile a workload on an embedded farm, run it and check it",
		Long: `Start a farm in this process (NATS, S3, coordinator, workers, a runner with the
simulated device), submit one job to it, and show what became of it: the winner,
the refused finalists, modelled cycles, and the error against the reference.

Exit status: 0 the output agrees with the reference, 3 no finalist was feasible,
4 the output does not agree, 1 anything else, 130 interrupted.`,
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE:         func(c *cobra.Command, _ []string) error { return run(c.Context(), o, c.OutOrStdout(), c.ErrOrStderr()) },
	}
	f := c.Flags()
	workload.BindFlags(f, &o.workload)
	f.IntVar(&o.tiles, "tiles", o.workload.Tiles, "tiles to use, a multiple of 64 up to 1472")
	f.IntVar(&o.finalists, "finalists", compiler.DefaultFinalists, "length of the shortlist")
	f.StringVar(&o.policy, "policy", string(protocol.FirstFeasible), "how the winner is chosen: first-feasible, best-exact, first-k, verify-all")
	f.IntVar(&o.k, "k", 0, "of --policy first-k")
	f.Float64Var(&o.tolerance.Atol, "diagnostic-atol", o.tolerance.Atol, "absolute tolerance of the reference check")
	f.Float64Var(&o.tolerance.Rtol, "diagnostic-rtol", o.tolerance.Rtol, "relative tolerance of the reference check")
	f.StringVar(&o.fixture, "reference-fixture", "", "folder of .npy files with weights, inputs and expected outputs")
	f.StringVar(&o.save, "save-reference-inputs", "", "write weights, inputs and expected outputs to this new folder")
	f.StringVar(&o.artifacts, "artifacts", "artifacts", "folder for what the run leaves behind")
	f.StringVar(&o.pkg, "package", "", "where to write the package (default in --artifacts)")
	f.StringVar(&o.profile, "profile-output", "", "where to write the profile (default in --artifacts); profile.html, summary.json and run.log go beside it")
	f.IntVar(&o.workers, "workers", 0, "workers; 0 is one for each core")
	f.StringVar(&o.state, "state", "", "folder that keeps the farm's state and cache (default: a temporary one)")
	f.IntVar(&o.natsPort, "nats-port", 0, "port of the embedded NATS server on the loopback interface; 0 is a free one")
	f.IntVar(&o.s3Port, "s3-port", 0, "port of the embedded S3 server on the loopback interface; 0 is a free one")
	f.BoolVar(&o.json, "json", false, "print the summary as one JSON object and nothing else on standard output")
	return c
}

// files are where the results go, absolute: the S3 server changes the process's
// working directory.
type files struct{ pkg, profile, html, summary, log string }

func run(ctx context.Context, o options, stdout, stderr io.Writer) (err error) {
	began := time.Now()
	spec, err := compiler.NewSpec(o.workload, o.tiles)
	if err != nil {
		return err
	}
	spec.Finalists = o.finalists
	text, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	if _, err := compiler.ParseSpec(text); err != nil {
		return err
	}
	policy := protocol.Policy{Name: protocol.PolicyName(o.policy), K: o.k}
	if err := errors.Join(prefix("--policy: ", policy.Check()), prefix("--diagnostic-atol, --diagnostic-rtol: ", o.tolerance.Check())); err != nil {
		return err
	}
	var fixture []byte
	if o.fixture != "" {
		if fixture, err = loadFixture(spec, o.fixture); err != nil {
			return err
		}
	}
	if o.save != "" {
		if o.save, err = filepath.Abs(o.save); err != nil {
			return err
		}
		if _, err := os.Lstat(o.save); err == nil {
			return fmt.Errorf("--save-reference-inputs %s: exists; a new folder is accepted", o.save)
		}
	}
	out, err := outputs(o, spec)
	if err != nil {
		return err
	}
	logFile, err := os.Create(out.log)
	if err != nil {
		return fmt.Errorf("run log: %w", err)
	}
	defer logFile.Close()
	log := slog.New(slog.NewTextHandler(logFile, nil))

	farm, err := local.Start(ctx, local.Options{State: o.state, Workers: o.workers, NATSPort: o.natsPort, S3Port: o.s3Port, Log: log})
	if err != nil {
		return err
	}
	closed := false
	shut := func() error {
		if closed {
			return nil
		}
		closed = true
		return farm.Close()
	}
	defer func() { err = errors.Join(err, shut()) }()

	job := protocol.Job{Spec: text, Policy: policy, Tolerance: o.tolerance, DeviceClass: local.DeviceClass, Device: protocol.AnyDevice, Tool: farm.Tool}
	if fixture != nil {
		if job.Fixture, err = upload(ctx, farm, fixture); err != nil {
			return err
		}
	}
	report, err := follow(ctx, farm, job, newProgress(stderr))
	if err != nil {
		return err
	}
	s := summarise(report, spec)
	if report.Run != nil {
		if err := fetch(ctx, farm, report, out, s); err != nil {
			return err
		}
		if o.save != "" {
			if err := saveFixture(ctx, farm, report, spec, o); err != nil {
				return err
			}
		}
	}
	if err := shut(); err != nil {
		return err
	}
	s.PeakRSSBytes = peakRSS()
	s.StageSeconds["total"] = time.Since(began).Seconds()
	body, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if err := atomicfile.Write(out.summary, append(body, '\n')); err != nil {
		return err
	}
	if o.json {
		if _, err := fmt.Fprintf(stdout, "%s\n", body); err != nil {
			return err
		}
	} else if err := s.print(stdout, out); err != nil {
		return err
	}
	switch {
	case report.Run == nil && report.Winner == protocol.NoCandidate:
		return &ExitError{ExitNoWinner, fmt.Errorf("no result: %s", orElse(report.Error, "no finalist is feasible"))}
	case report.Run == nil:
		return fmt.Errorf("no result: %s", report.Error)
	case !report.Run.Passed:
		hint := ""
		if spec.Workload.FP8 != nil && o.tolerance == (protocol.Tolerance{Atol: defaultAtol, Rtol: defaultRtol}) {
			hint = " (FP8 GEMMs usually need --diagnostic-atol 0.2 --diagnostic-rtol 0.05)"
		}
		return &ExitError{ExitReference, fmt.Errorf("the output does not agree with the reference: %s%s", worst(report.Run), hint)}
	}
	return nil
}

func prefix(what string, err error) error {
	if err != nil {
		return fmt.Errorf("%s%w", what, err)
	}
	return nil
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

func worst(r *protocol.RunReport) string {
	for _, o := range r.Outputs {
		if o.Message != "" {
			return o.Name + ": " + o.Message
		}
	}
	return fmt.Sprintf("max abs error %g", r.MaxAbsError)
}

// outputs decides where results go and makes sure that they can be written there,
// before any work is done.
func outputs(o options, spec compiler.Spec) (files, error) {
	dir := filepath.Join(o.artifacts, slug(spec))
	out := files{pkg: orElse(o.pkg, filepath.Join(dir, "model.ipuexe")), profile: orElse(o.profile, filepath.Join(dir, "profile.ipuprof"))}
	beside := filepath.Dir(out.profile)
	out.html, out.summary, out.log = filepath.Join(beside, "profile.html"), filepath.Join(beside, "summary.json"), filepath.Join(beside, "run.log")
	for _, p := range []struct {
		flag string
		path *string
	}{{"--package", &out.pkg}, {"--profile-output", &out.profile}, {"--profile-output", &out.html}, {"--profile-output", &out.summary}, {"--profile-output", &out.log}} {
		flag := p.flag
		if o.pkg == "" && p.path == &out.pkg || o.profile == "" && p.path != &out.pkg {
			flag = "--artifacts"
		}
		abs, err := filepath.Abs(*p.path)
		if err != nil {
			return out, err
		}
		*p.path = abs
		if err := writable(abs); err != nil {
			return out, fmt.Errorf("%s: %w", flag, err)
		}
	}
	return out, nil
}

// writable makes the folder of a file and tries to create one there.
func writable(path string) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s exists and is not a regular file", path)
	}
	f, err := os.CreateTemp(dir, ".writable-*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// slug names the folder of a spec's results.
func slug(s compiler.Spec) string {
	w := s.Workload
	parts := []string{w.Workload}
	add := func(when bool, format string, a ...any) {
		if when {
			parts = append(parts, fmt.Sprintf(format, a...))
		}
	}
	add(w.Small, "small")
	add(!w.Small && w.ImageSize > 0, "%dpx", w.ImageSize)
	add(w.Batch > 0, "b%d", w.Batch)
	add(w.Layers > 1, "%dlayers", w.Layers)
	add(w.FuseQKV, "fused")
	if w.FP8 != nil {
		add(true, "fp8%+d", *w.FP8)
	} else {
		add(true, "f16")
	}
	add(true, "%dtiles", s.Tiles)
	return strings.Join(parts, "-")
}

// follow submits the job, shows its progress and returns its report when it is over.
// An interrupted job is cancelled.
func follow(ctx context.Context, farm *local.Farm, job protocol.Job, p progress) (*protocol.JobReport, error) {
	id, err := farm.Client.Submit(ctx, job)
	if err != nil {
		return nil, err
	}
	err = farm.Client.Watch(ctx, id, func(e *protocol.Event) error {
		p.event(e)
		return nil
	})
	p.end()
	if ctx.Err() != nil {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		return nil, errors.Join(errors.New("interrupted"), farm.Client.Cancel(late, id))
	}
	if err != nil {
		return nil, err
	}
	return farm.Client.Report(ctx, id)
}

// fetch brings the results of a run to their files.
func fetch(ctx context.Context, farm *local.Farm, r *protocol.JobReport, out files, s *summary) error {
	scratch, err := os.MkdirTemp("", "ipufarm-fetch-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	get := func(role string) ([]byte, error) {
		a, ok := r.Artifacts[role]
		if !ok {
			return nil, fmt.Errorf("the job has no artifact %q", role)
		}
		path := filepath.Join(scratch, role)
		if err := farm.Client.Fetch(ctx, a, path); err != nil {
			return nil, err
		}
		return os.ReadFile(path)
	}
	pkg, err := get(protocol.RolePackage)
	if err != nil {
		return err
	}
	if err := program.WriteEncoded(out.pkg, pkg); err != nil {
		return err
	}
	samples, err := get(protocol.RoleProfile)
	if err != nil {
		return err
	}
	p, err := profile.Decode(samples)
	if err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	if err := atomicfile.Write(out.profile, samples); err != nil {
		return err
	}
	return atomicfile.WriteFunc(out.html, func(w io.Writer) error {
		return profile.Render(w, p, profile.RenderMeta{Title: slugTitle(out), Device: r.Run.Model, Facts: []profile.Metadata{
			{Name: "modelled cycles", Value: group(s.Cycles)},
			{Name: "family", Value: s.WinnerFamily},
			{Name: "package", Value: s.PackageSHA256},
			{Name: "reference", Value: fmt.Sprintf("max abs error %.4g", s.MaxAbsError)},
		}})
	})
}

func slugTitle(out files) string { return filepath.Base(filepath.Dir(out.profile)) }
