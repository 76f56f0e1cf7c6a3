// Package runcmd is the verb "run": an embedded farm, one job, and what a person
// wants to know of it afterwards. The verbs that talk to a farm elsewhere take the
// flags of a job, its progress and its results from here.
package runcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"ipufarm/compiler"
	"ipufarm/compiler/workload"
	"ipufarm/coordinator/client"
	"ipufarm/deploy/local"
	"ipufarm/protocol"
	"ipufarm/protocol/atomicfile"
	"ipufarm/protocol/profile"
	"ipufarm/protocol/program"
	"ipufarm/runner"
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

// Command returns the verb.
func Command() *cobra.Command {
	o := defaults()
	c := &cobra.Command{
		Use:   "run [DEVICE-CONFIGURATION]",
		Short: "compile a workload on an embedded farm, run it and check it",
		Long: `Start a farm in this process (NATS, S3, coordinator, workers, a runner with the
simulated device), submit one job to it, and show what became of it: the winner,
the refused finalists, modelled cycles, and the error against the reference.

With --device exec:COMMAND the package runs on a real card instead, through an
external loader, which is handed the device configuration file if there is one; the
cycles of the run are then measured.

Exit status: 0 the output agrees with the reference, 3 no finalist was feasible,
4 the output does not agree, 1 anything else, 130 interrupted.`,
		Args:         oneFile,
		SilenceUsage: true,
		RunE: func(c *cobra.Command, args []string) error {
			if err := o.check(c.Flags()); err != nil {
				return err
			}
			device, err := chooseDevice(o.device, args)
			if err != nil {
				return err
			}
			err = run(c.Context(), o, device, c.OutOrStdout(), c.ErrOrStderr())
			if err != nil && c.Context().Err() != nil {
				return errors.New("interrupted")
			}
			return err
		},
	}
	c.SetFlagErrorFunc(FlagError)
	o.bind(c.Flags())
	return c
}

// files are where the results go.
type files struct{ pkg, profile, html, summary, log string }

func run(ctx context.Context, o options, device runner.Device, stdout, stderr io.Writer) (err error) {
	began := time.Now()
	order, err := o.Order()
	if err != nil {
		return err
	}
	spec := order.spec
	out, err := o.outputs(spec)
	if err != nil {
		return err
	}
	if o.save != "" {
		if err := newFolder(o.save); err != nil {
			return fmt.Errorf("--save-reference-inputs %s: %w; a new folder in one that can be written is accepted", o.save, err)
		}
	}
	state := os.TempDir()
	if o.state != "" {
		state = o.state
		if err := stateFolder(state); err != nil {
			return fmt.Errorf("--state %s: %w; a folder that can be written is accepted", state, err)
		}
	}
	logFile, err := os.Create(out.log)
	if err != nil {
		return fmt.Errorf("run log: %w", err)
	}
	defer logFile.Close()
	log := slog.New(slog.NewTextHandler(logFile, nil))

	farmOptions := local.Options{State: o.state, Workers: o.workers, NATSPort: o.natsPort, S3Port: o.s3Port, Log: log}
	if device != nil {
		farmOptions.Device, farmOptions.DeviceName = device, cardName
	}
	farm, err := local.Start(ctx, farmOptions)
	if err != nil {
		return fmt.Errorf("%w (state in %s, log in %s)", err, state, out.log)
	}
	closed := false
	shut := func() error {
		if closed {
			return nil
		}
		closed = true
		return farm.Close()
	}
	ctx, stop := guard(ctx, farm.Failed(), state, free)
	defer func() {
		if cause := context.Cause(ctx); err != nil && cause != nil {
			err = cause // of all that failed because of it
		}
		stop()
		if e := shut(); e != nil {
			log.Error("close", "error", e)
			if err == nil {
				err = e
			}
		}
	}()

	job, err := order.Job(ctx, farm.Client, farm.Tool, local.DeviceClass, protocol.AnyDevice)
	if err != nil {
		return err
	}
	report, err := follow(ctx, farm.Client, job, stderr)
	if err != nil {
		return err
	}
	s := summarise(report, spec, o.tolerance)
	if report.Run != nil {
		if err := fetch(ctx, farm.Client, report, out, s); err != nil {
			return err
		}
		if o.save != "" {
			if err := saveFixture(ctx, farm.Client, report, spec, order.given, o.save); err != nil {
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
	return verdict(report, spec, o.tolerance)
}

// verdict is the error of a job that did not end well.
func verdict(r *protocol.JobReport, spec compiler.Spec, tolerance protocol.Tolerance) error {
	switch {
	case r.Run == nil && r.Refusal != nil, r.Run == nil && refused(r.Finalists):
		return &ExitError{ExitNoWinner, fmt.Errorf("no result: %s", orElse(r.Error, "no finalist is feasible"))}
	case r.Run == nil:
		return fmt.Errorf("no result: %s", r.Error)
	case r.Run.Passed:
		return nil
	}
	hint := ""
	if spec.Workload.FP8 != nil && tolerance == (protocol.Tolerance{Atol: defaultAtol, Rtol: defaultRtol}) {
		hint = " (FP8 GEMMs usually need --diagnostic-atol 0.2 --diagnostic-rtol 0.05)"
	}
	return &ExitError{ExitReference, fmt.Errorf("the output does not agree with the reference: %s%s", worst(r.Run), hint)}
}

// refused reports whether every finalist of a shortlist was found infeasible, and
// none just failed or stayed undecided.
func refused(finalists []protocol.FinalistReport) bool {
	for _, f := range finalists {
		if f.Verdict != string(protocol.Infeasible) {
			return false
		}
	}
	return len(finalists) > 0
}

// freeBytes is the room below which a farm's disk counts as full: its records are
// small, but nothing can be committed without them.
const freeBytes = 4 << 20

// guard ends a context with a cause when a job cannot go on: a part of the farm
// ended by itself, or the disk of its state is full. A farm of many hosts would wait
// for somebody to make room; here nobody is told but by this process.
func guard(ctx context.Context, failed <-chan error, disk string, free func(path string) uint64) (guarded context.Context, stop func()) {
	guarded, cancel := context.WithCancelCause(ctx)
	go func() {
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-guarded.Done():
				return
			case err := <-failed:
				cancel(fmt.Errorf("farm: a part of it ended: %w", err))
			case <-tick.C:
				if n := free(disk); n < freeBytes {
					cancel(fmt.Errorf("the disk of the farm's state in %s is full: %d bytes are free, at least %d are needed", disk, n, freeBytes))
				}
			}
		}
	}()
	return guarded, func() { cancel(nil) }
}

// free is the room on the disk of a folder.
func free(path string) uint64 {
	var s syscall.Statfs_t
	if syscall.Statfs(path, &s) != nil {
		return math.MaxUint64 // not known to be full
	}
	return s.Bavail * uint64(s.Bsize)
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
	return "max abs error " + errorText(r.MaxAbsError, 6)
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
	add(w.Model != "" && w.Model != workload.Defaults().Model, "%s", w.Model)
	add(w.Small, "small")
	add(w.ImageSize > 0, "%dpx", w.ImageSize)
	add(w.GEMM.Rows > 0, "%dx%dx%d", w.GEMM.Rows, w.GEMM.Inner, w.GEMM.Columns)
	add(w.MLP.Tokens > 0, "%dx%dx%d-b%d-%dblocks", w.MLP.Tokens, w.MLP.Dim, w.MLP.Hidden, w.MLP.Batch, w.MLP.Blocks)
	add(w.Attention.Heads > 0, "%dheads-b%d-%dblocks", w.Attention.Heads, w.Attention.Batch, w.Attention.Blocks)
	add(w.Attention.Project, "projected")
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

// cancelTimeout bounds telling the farm that nobody waits any more.
const cancelTimeout = 5 * time.Second

// follow submits the job, shows its progress and returns its report when it is over.
// An interrupted job is cancelled.
func follow(ctx context.Context, c *client.Client, job protocol.Job, w io.Writer) (*protocol.JobReport, error) {
	id, err := c.Submit(ctx, job)
	if err != nil {
		return nil, err
	}
	err = Watch(ctx, c, id, w)
	if ctx.Err() != nil {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), cancelTimeout)
		defer cancel()
		return nil, errors.Join(err, c.Cancel(late, id))
	}
	if err != nil {
		return nil, err
	}
	return c.Report(ctx, id)
}

// Watch shows a person how far a job is until it is over.
func Watch(ctx context.Context, c *client.Client, job string, w io.Writer) error {
	p := newProgress(w)
	defer p.end()
	return c.Watch(ctx, job, func(e *protocol.Event) error {
		p.event(e)
		return nil
	})
}

// Show shows the progress of a job that is over.
func Show(log []protocol.Event, w io.Writer) {
	for i := range log {
		lines{w}.event(&log[i])
	}
}

// fetch brings the results of a run to their files.
func fetch(ctx context.Context, c *client.Client, r *protocol.JobReport, out files, s *summary) error {
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
		if err := c.Fetch(ctx, a, path); err != nil {
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
		return profile.Render(w, p, profile.RenderMeta{Title: slugTitle(out), Device: r.Run.Model, Measured: r.Run.Measured, Facts: []profile.Metadata{
			{Name: origin(r.Run.Measured) + " cycles", Value: Group(s.Cycles)},
			{Name: "family", Value: s.WinnerFamily},
			{Name: "package", Value: s.PackageSHA256},
			{Name: "reference", Value: "max abs error " + errorText(s.MaxAbsError, 4)},
		}})
	})
}

func slugTitle(out files) string { return filepath.Base(filepath.Dir(out.profile)) }

// Save writes what a job that is over left behind to a folder, which is made if
// absent: package, profile and its page, if it ran, and the summary. It returns the
// summary as JSON, and the paths in the order of writing.
func Save(ctx context.Context, c *client.Client, r *protocol.JobReport, dir string) (body []byte, paths []string, err error) {
	if !r.State.Over() {
		return nil, nil, fmt.Errorf("the job is still %s", r.State)
	}
	spec, tolerance, err := submission(r)
	if err != nil {
		return nil, nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, nil, err
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	out := files{pkg: in("model.ipuexe"), profile: in("profile.ipuprof"), html: in("profile.html"), summary: in("summary.json")}
	s := summarise(r, spec, tolerance)
	if r.Run != nil {
		if err := fetch(ctx, c, r, out, s); err != nil {
			return nil, nil, err
		}
		paths = append(paths, out.pkg, out.pkg+program.DigestSuffix, out.profile, out.html)
	}
	if body, err = json.MarshalIndent(s, "", "  "); err != nil {
		return nil, nil, err
	}
	body = append(body, '\n')
	return body, append(paths, out.summary), atomicfile.Write(out.summary, body)
}

// Verdict is the error of a job that did not end well, with the exit status of run.
func Verdict(r *protocol.JobReport) error {
	spec, tolerance, err := submission(r)
	if err != nil {
		return err
	}
	return verdict(r, spec, tolerance)
}

// submission reads what was submitted back.
func submission(r *protocol.JobReport) (compiler.Spec, protocol.Tolerance, error) {
	if r.Submission == nil {
		return compiler.Spec{}, protocol.Tolerance{}, errors.New("the coordinator's report does not say what was submitted")
	}
	spec, err := compiler.ParseSpec(r.Submission.Spec)
	if err != nil {
		return spec, protocol.Tolerance{}, fmt.Errorf("the job's spec: %w", err)
	}
	return spec, r.Submission.Tolerance, nil
}
