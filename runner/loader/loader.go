// Package loader is a device behind an external command: the way to a real card,
// whose driver is not ours to write. The command is started anew for each run, gets
// files and leaves files, and owns the card for as long as it lives.
//
// # Contract, version 1
//
// The command is started without arguments, beyond those that were configured for
// it, in a process group of its own. Where it may have one (the runner is root) it
// is in a network namespace without interfaces; it must need no network. Its working
// directory is a private folder that vanishes after the run. Its environment is PATH
// as the runner has it, HOME and TMPDIR inside the private folder, and these:
//
//	IPUFARM_LOADER_VERSION  1
//	IPUFARM_LOADER_RUN      a random name of this run
//	IPUFARM_PACKAGE         path of the package (.ipuexe)
//	IPUFARM_CONFIG          path of the device configuration file ("IPUCFG1"),
//	                        checked; empty when there is none
//	IPUFARM_PARAMETERS      path of the parameters, as the package binds them
//	IPUFARM_INPUTS          path of the inputs, as the package binds them
//	IPUFARM_OUTPUT_DIR      path of an empty folder for the answer
//	IPUFARM_START_SECONDS   time limits, see below; whole seconds, rounded up
//	IPUFARM_RUN_SECONDS
//
// Standard input says nothing; it ends when the runner dies, and the command must
// leave the card alone then. It takes the card for itself, against programs that are
// not ours. The first line on standard output is
//
//	ipufarm-loader 1
//
// and says that the card is open and ready to be loaded; it must come within the
// start limit. Further lines are progress, for people. Standard error is a log, of
// which the end becomes part of an error. The command then loads the package,
// initialises it with the parameters, runs it once with the inputs, and ends within
// the run limit, which counts from that line. It leaves in the output folder
//
//	outputs      the outputs as the package binds them, of exactly that size
//	result.json  at most 64 KiB, one object with the keys
//	  version      1
//	  model        what the device is, 1 to 128 printable characters
//	  cycles       of the run, a whole number from 1 to 2^53
//	  cycles_are   "measured" by a card, or "modelled" by a simulation
//	  profile      optional: name of an .ipuprof in the output folder
//	  detail       optional: an object with what else is worth keeping
//
// Exit status 0 is an answer. 10 means that the package is at fault: the card
// refused it or stopped in it, and would again. 20 means that the card cannot be
// used. Everything else, and a signal, is a failure of the command itself.
//
// Whatever happens, the whole process group is killed when the run ends, and so is
// every process that carries IPUFARM_LOADER_RUN in its environment. A process that
// outlives the command is an error even if the answer was right, because it may
// have had its hands on the card. A run is never repeated here.
//
// The package needs Linux: /proc, and waiting for a process without reaping it.
package loader

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"ipufarm/protocol/ipucfg"
	"ipufarm/protocol/program"
	"ipufarm/runner"
)

// Exit statuses of the command, beside 0.
const (
	ExitPackage = 10 // the package is at fault
	ExitDevice  = 20 // the card cannot be used
)

// What can be wrong with a loader; its errors wrap one of these, or
// runner.ErrFault where the package is at fault.
var (
	ErrStart      = errors.New("the loader cannot be started")
	ErrTimeout    = errors.New("the loader was too slow")
	ErrExit       = errors.New("the loader failed")
	ErrUnusable   = errors.New("the device cannot be used")
	ErrAnswer     = errors.New("the loader's answer is not accepted")
	ErrLeftBehind = errors.New("the loader left processes behind")
)

// Default limits: opening a card resets it, which takes seconds; a run that
// initialises 400 MB of weights took well below one (published bring-up notes,
// 2026-08), so minutes mean that it hangs.
const (
	DefaultStart = 60 * time.Second
	DefaultRun   = 5 * time.Minute
)

// Options of a loader.
type Options struct {
	Command []string      // absolute path and arguments
	Config  []byte        // device configuration file; empty is none
	Dir     string        // folder for the private folders; empty is the one for temporary files
	Start   time.Duration // limit from start to the first line; 0 is DefaultStart
	Run     time.Duration // limit from there to the end; 0 is DefaultRun
}

// Loader implements runner.Device.
type Loader struct {
	o     Options
	mu    sync.Mutex
	model string
}

// New checks the options. It starts nothing.
func New(o Options) (*Loader, error) {
	if len(o.Command) == 0 || !filepath.IsAbs(o.Command[0]) {
		return nil, fmt.Errorf("loader: command %q: an absolute path with arguments is accepted", o.Command)
	}
	if len(o.Config) > 0 {
		if _, err := ipucfg.Decode(o.Config); err != nil {
			return nil, fmt.Errorf("loader: %w", err)
		}
	}
	if o.Dir == "" {
		o.Dir = os.TempDir()
	}
	var err error
	if o.Dir, err = filepath.Abs(o.Dir); err != nil { // the working directory may change
		return nil, fmt.Errorf("loader: %w", err)
	}
	if o.Start == 0 {
		o.Start = DefaultStart
	}
	if o.Run == 0 {
		o.Run = DefaultRun
	}
	if o.Start < 0 || o.Run < 0 {
		return nil, fmt.Errorf("loader: limits of %v and %v, positive ones are accepted", o.Start, o.Run)
	}
	return &Loader{o: o, model: "external loader " + filepath.Base(o.Command[0])}, nil
}

// Model implements runner.Device: after a run it is what the command said, and
// whether the cycles are measured.
func (l *Loader) Model() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.model
}

// Run implements runner.Device.
func (l *Loader) Run(ctx context.Context, x runner.Load, progress func(string)) (result runner.Result, err error) {
	p, err := program.Decode(x.Package)
	if err != nil {
		return result, fmt.Errorf("%w: package: %w", runner.ErrFault, err)
	}
	size := program.FileSize(p.Outputs)
	if size == 0 || size > maxOutputs {
		return result, fmt.Errorf("%w: package: its outputs have %d bytes, 1 to %d are accepted", runner.ErrFault, size, maxOutputs)
	}
	for _, f := range []struct {
		name string
		size int
		want uint64
	}{
		{"parameters", len(x.Parameters), program.FileSize(p.Weights)}, {"inputs", len(x.Inputs), program.FileSize(p.Inputs)},
	} {
		if uint64(f.size) != f.want {
			return result, fmt.Errorf("%w: %d bytes of %s, the package binds %d", runner.ErrFault, f.size, f.name, f.want)
		}
	}
	dir, err := os.MkdirTemp(l.o.Dir, "ipufarm-loader-*")
	if err != nil {
		return result, fmt.Errorf("loader: %w", err)
	}
	defer func() {
		if e := os.RemoveAll(dir); e != nil && err == nil {
			err = fmt.Errorf("loader: its folder stays: %w", e)
		}
	}()
	env, err := l.lay(dir, x)
	if err != nil {
		return result, fmt.Errorf("loader: %w", err)
	}
	if err := l.execute(ctx, dir, env, progress); err != nil {
		return result, fmt.Errorf("loader %s: %w", l.o.Command[0], err)
	}
	result, model, err := collect(filepath.Join(dir, outputDir), size)
	if err != nil {
		return runner.Result{}, fmt.Errorf("loader %s: %w: %w", l.o.Command[0], ErrAnswer, err)
	}
	l.mu.Lock()
	l.model = model
	l.mu.Unlock()
	return result, nil
}

const (
	outputDir   = "output"
	runVariable = "IPUFARM_LOADER_RUN"
)

// lay writes the files of a run and returns the environment that names them.
func (l *Loader) lay(dir string, x runner.Load) ([]string, error) {
	env := []string{
		"PATH=" + os.Getenv("PATH"),
		"IPUFARM_LOADER_VERSION=" + strconv.Itoa(version),
		runVariable + "=" + rand.Text(),
		"IPUFARM_START_SECONDS=" + seconds(l.o.Start),
		"IPUFARM_RUN_SECONDS=" + seconds(l.o.Run),
	}
	for _, f := range []struct {
		variable, name string
		data           []byte
	}{
		{"IPUFARM_PACKAGE", "package.ipuexe", x.Package}, {"IPUFARM_PARAMETERS", "parameters", x.Parameters},
		{"IPUFARM_INPUTS", "inputs", x.Inputs}, {"IPUFARM_CONFIG", "device.ipucfg", l.o.Config},
	} {
		if f.name == "device.ipucfg" && len(f.data) == 0 {
			env = append(env, f.variable+"=")
			continue
		}
		path := filepath.Join(dir, f.name)
		if err := os.WriteFile(path, f.data, 0o400); err != nil {
			return nil, err
		}
		env = append(env, f.variable+"="+path)
	}
	for _, f := range []struct{ variable, name string }{{"IPUFARM_OUTPUT_DIR", outputDir}, {"HOME", "home"}, {"TMPDIR", "tmp"}} {
		path := filepath.Join(dir, f.name)
		if err := os.Mkdir(path, 0o700); err != nil {
			return nil, err
		}
		env = append(env, f.variable+"="+path)
	}
	return env, nil
}

func seconds(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)
}
