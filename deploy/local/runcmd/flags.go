package runcmd

import (
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/pflag"

	"ipufarm/compiler"
	"ipufarm/deploy/local"
	"ipufarm/protocol/program"
)

// options are the flags of the verb.
type options struct {
	Work
	device    string
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

func defaults() options { return options{Work: NewWork()} }

func (o *options) bind(f *pflag.FlagSet) {
	o.Work.Bind(f)
	f.StringVar(&o.device, "device", simulator, "what runs the package: simulator, or exec:COMMAND for an external loader of a real card")
	f.StringVar(&o.save, "save-reference-inputs", "", "write weights, inputs and expected outputs to this new folder")
	f.StringVar(&o.artifacts, "artifacts", "artifacts", "folder for what the run leaves behind")
	f.StringVar(&o.pkg, "package", "", "where to write the package (default in --artifacts)")
	f.StringVar(&o.profile, "profile-output", "", "where to write the profile (default in --artifacts); profile.html, summary.json and run.log go beside it")
	f.IntVar(&o.workers, "workers", 0, "workers; 0 is one for each core")
	f.StringVar(&o.state, "state", "", "folder that keeps the farm's state and cache (default: a temporary one)")
	f.IntVar(&o.natsPort, "nats-port", 0, "port of the embedded NATS server on the loopback interface; 0 is a free one")
	f.IntVar(&o.s3Port, "s3-port", 0, "port of the embedded S3 server on the loopback interface; 0 is a free one")
	f.BoolVar(&o.json, "json", false, "print the summary as one JSON object and nothing else on standard output")
}

// check refuses flags out of range and makes their paths absolute, because the S3
// server changes the process's working directory. An empty path is one that a
// script failed to fill in, so it is not taken for a flag that was not given.
func (o *options) check(f *pflag.FlagSet) error {
	if err := o.Work.Check(f); err != nil {
		return err
	}
	if o.workers < 0 || o.workers > local.MaxWorkers {
		return fmt.Errorf("--workers %d: 1 to %d are accepted, 0 for one for each core", o.workers, local.MaxWorkers)
	}
	if o.natsPort != 0 && o.natsPort == o.s3Port {
		return fmt.Errorf("--nats-port and --s3-port %d: two different ports are accepted, 0 for free ones", o.s3Port)
	}
	if err := checkPort("nats-port", o.natsPort); err != nil {
		return err
	}
	if err := checkPort("s3-port", o.s3Port); err != nil {
		return err
	}
	for _, p := range []struct {
		flag string
		path *string
	}{
		{"artifacts", &o.artifacts}, {"package", &o.pkg}, {"profile-output", &o.profile}, {"state", &o.state}, {"save-reference-inputs", &o.save},
	} {
		if err := absolute(f, p.flag, p.path); err != nil {
			return err
		}
	}
	return nil
}

// checkPort finds out early, and by the flag's name, what a server would find out.
func checkPort(flag string, port int) error {
	if port < 0 || port > math.MaxUint16 {
		return fmt.Errorf("--%s %d: 1 to %d are accepted, 0 for a free one", flag, port, math.MaxUint16)
	}
	if port == 0 {
		return nil
	}
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return fmt.Errorf("--%s %d: %w; a port that nobody uses is accepted, 0 for a free one", flag, port, errors.Unwrap(err))
	}
	return l.Close()
}

// outputs decides where results go and makes sure that they can be written there,
// before any work is done.
func (o *options) outputs(spec compiler.Spec) (files, error) {
	dir := filepath.Join(o.artifacts, slug(spec))
	out := files{pkg: o.pkg, profile: o.profile}
	pkgFlag, profileFlag := "--package", "--profile-output"
	if out.pkg == "" {
		out.pkg, pkgFlag = filepath.Join(dir, "model.ipuexe"), "--artifacts"
	}
	if out.profile == "" {
		out.profile, profileFlag = filepath.Join(dir, "profile.ipuprof"), "--artifacts"
	}
	beside := filepath.Dir(out.profile)
	out.html, out.summary, out.log = filepath.Join(beside, "profile.html"), filepath.Join(beside, "summary.json"), filepath.Join(beside, "run.log")
	taken := map[string]bool{}
	for _, p := range []struct{ flag, path string }{
		{pkgFlag, out.pkg}, {pkgFlag, out.pkg + program.DigestSuffix}, {profileFlag, out.profile},
		{profileFlag, out.html}, {profileFlag, out.summary}, {profileFlag, out.log},
	} {
		if taken[p.path] {
			return out, fmt.Errorf("%s: two results would go to %s; a path for each is accepted", p.flag, p.path)
		}
		taken[p.path] = true
		if err := writable(p.path); err != nil {
			return out, fmt.Errorf("%s: cannot write %s: %w; a file in a folder that can be written is accepted", p.flag, p.path, err)
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
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return errors.New("it exists and is not a regular file")
	}
	f, err := os.CreateTemp(dir, ".writable-*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// stateFolder makes the folder of a farm's state, for nobody else to read.
func stateFolder(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	return writable(filepath.Join(path, "lock"))
}
