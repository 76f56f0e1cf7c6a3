package runcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ipufarm/compiler"
	"ipufarm/compiler/workload"
	"ipufarm/coordinator/client"
	"ipufarm/protocol"
)

// Default tolerances fit F16: the small model is within 0.004 of the reference.
const (
	defaultAtol = 0.01
	defaultRtol = 0.01
)

// Work is a job as flags: what is compiled, how the winner is chosen and what its
// outputs are compared with.
type Work struct {
	workload  workload.Options
	tiles     int
	finalists int
	policy    string
	k         int
	tolerance protocol.Tolerance
	fixture   string
}

// NewWork has the defaults.
func NewWork() Work {
	return Work{workload: workload.Defaults(), tolerance: protocol.Tolerance{Atol: defaultAtol, Rtol: defaultRtol}}
}

// Bind adds the flags to a set.
func (o *Work) Bind(f *pflag.FlagSet) {
	workload.BindFlags(f, &o.workload)
	f.IntVar(&o.tiles, "tiles", o.workload.Tiles, "tiles to use, a multiple of 64 up to 1472")
	f.IntVar(&o.finalists, "finalists", compiler.DefaultFinalists, "length of the shortlist")
	f.StringVar(&o.policy, "policy", string(protocol.FirstFeasible), "how the winner is chosen: first-feasible, best-exact, first-k, verify-all")
	f.IntVar(&o.k, "k", 0, "of --policy first-k")
	f.Float64Var(&o.tolerance.Atol, "diagnostic-atol", o.tolerance.Atol, "absolute tolerance of the reference check")
	f.Float64Var(&o.tolerance.Rtol, "diagnostic-rtol", o.tolerance.Rtol, "relative tolerance of the reference check")
	f.StringVar(&o.fixture, "reference-fixture", "", "folder of .npy files with weights, inputs and expected outputs")
}

// Check refuses flags out of range and makes their paths absolute.
func (o *Work) Check(f *pflag.FlagSet) error {
	if o.finalists < 1 || o.finalists > compiler.MaxFinalists {
		return fmt.Errorf("--finalists %d: 1 to %d are accepted", o.finalists, compiler.MaxFinalists)
	}
	if err := o.checkPolicy(f); err != nil {
		return err
	}
	for _, t := range []struct {
		flag  string
		value float64
	}{{"diagnostic-atol", o.tolerance.Atol}, {"diagnostic-rtol", o.tolerance.Rtol}} {
		if !(t.value >= 0) || math.IsInf(t.value, 0) {
			return fmt.Errorf("--%s %g: finite numbers of at least 0 are accepted", t.flag, t.value)
		}
	}
	return absolute(f, "reference-fixture", &o.fixture)
}

func (o *Work) checkPolicy(f *pflag.FlagSet) error {
	name := protocol.PolicyName(o.policy)
	switch {
	case !slices.Contains(protocol.Policies, name):
		return fmt.Errorf("--policy %q: accepted are %v", o.policy, protocol.Policies)
	case name == protocol.FirstK && (o.k < 1 || o.k > protocol.MaxFinalists):
		return fmt.Errorf("--k %d: --policy %s accepts 1 to %d", o.k, name, protocol.MaxFinalists)
	case name != protocol.FirstK && f.Changed("k"):
		return fmt.Errorf("--k %d: only --policy %s accepts it", o.k, protocol.FirstK)
	}
	return nil
}

// absolute makes a flag's path absolute. An empty path is one that a script failed
// to fill in, so it is not taken for a flag that was not given.
func absolute(f *pflag.FlagSet, flag string, path *string) error {
	if *path == "" {
		if f.Changed(flag) {
			return fmt.Errorf("--%s: the path is empty; leave the flag out for its default", flag)
		}
		return nil
	}
	abs, err := filepath.Abs(*path)
	if err != nil {
		return fmt.Errorf("--%s %s: %w", flag, *path, err)
	}
	*path = abs
	return nil
}

// Order is work whose spec is good and whose files are read.
type Order struct {
	work   *Work
	spec   compiler.Spec
	given  *workload.Fixture
	packed []byte // the fixture, nil when there is none
}

// Order reads the fixture, if there is one, and makes the spec.
func (o *Work) Order() (*Order, error) {
	spec, err := compiler.NewSpec(o.workload, o.tiles)
	if err != nil {
		return nil, err
	}
	spec.Finalists = o.finalists
	given, packed, err := loadFixture(spec, o.fixture)
	if err != nil {
		return nil, err
	}
	return &Order{o, spec, given, packed}, nil
}

// HasFixture reports whether Job has a file to upload.
func (o *Order) HasFixture() bool { return o.packed != nil }

// Job uploads the fixture and makes the job for a tool and a device.
func (o *Order) Job(ctx context.Context, c *client.Client, tool, deviceClass, device string) (protocol.Job, error) {
	text, err := json.Marshal(o.spec)
	if err != nil {
		return protocol.Job{}, err
	}
	job := protocol.Job{Spec: text, Policy: protocol.Policy{Name: protocol.PolicyName(o.work.policy), K: o.work.k}, Tolerance: o.work.tolerance,
		DeviceClass: deviceClass, Device: device, Tool: tool}
	if o.packed != nil {
		job.Fixture, err = upload(ctx, c, o.packed)
	}
	return job, err
}

// FlagError says what a flag accepts where the library says how its text could not
// be converted.
func FlagError(c *cobra.Command, err error) error {
	var value *pflag.InvalidValueError
	if !errors.As(err, &value) {
		return fmt.Errorf("%w; %s --help lists the flags", err, c.CommandPath())
	}
	accepted := map[string]string{
		"int": "a whole number is accepted", "uint64": "a whole number of at least 0 is accepted",
		"float64": "a number is accepted", "bool": "true or false is accepted",
	}
	f := value.GetFlag()
	if what := accepted[f.Value.Type()]; what != "" {
		return fmt.Errorf("--%s %q: %s (%s)", f.Name, value.GetValue(), what, f.Usage)
	}
	return fmt.Errorf("--%s %q: %w", f.Name, value.GetValue(), value.Unwrap()) // a type of our own
}

// NoArguments refuses what is neither a flag nor the value of one.
func NoArguments(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("argument %q: only flags are accepted; %s --help lists them", args[0], c.CommandPath())
	}
	return nil
}
