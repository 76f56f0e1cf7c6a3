package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain lets the test binary be the program: with a verb instead of flags of
// the test it is ipufarm, and so are the child processes that it starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-test.") {
		os.Exit(run(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// process is one call of ipufarm in a new folder, with a folder of its own for
// temporary files.
type process struct {
	*exec.Cmd
	stdout, stderr bytes.Buffer
	scratch        string
}

func newProcess(t *testing.T, args ...string) *process {
	t.Helper()
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: exec.Command(executable, args...), scratch: t.TempDir()}
	p.Dir = t.TempDir()
	p.Env = append(os.Environ(), "TMPDIR="+p.scratch)
	p.Stdout, p.Stderr = &p.stdout, &p.stderr
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that its children can be found
	return p
}

// status waits for the end, checks that nothing but results is left, and returns
// the exit status.
func (p *process) status(t *testing.T) int {
	t.Helper()
	if err := p.Wait(); err != nil && p.ProcessState == nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(p.scratch); err != nil || len(left) > 0 {
		t.Errorf("left in the folder for temporary files: %v %v", left, err)
	}
	if err := syscall.Kill(-p.Process.Pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("processes are left: %v", err)
	}
	return p.ProcessState.ExitCode()
}

func (p *process) run(t *testing.T) int {
	t.Helper()
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	return p.status(t)
}

// list names the files below a folder.
func list(t *testing.T, dir string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, filepath.Base(path))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// small is the README's first command with an object instead of a table.
var small = []string{"run", "--workload", "siglip-vit-benchmark", "--vit-small", "--tiles", "64", "--json"}

// Standard output is one object and nothing else, and the package is the same
// whoever makes it: again, with one worker or four, with one core.
func TestRunTwice(t *testing.T) {
	digest := ""
	for _, c := range []struct {
		name, env string
		args      []string
	}{
		{"first", "", nil},
		{"one worker", "", []string{"--workers", "1"}},
		{"four workers", "", []string{"--workers", "4"}},
		{"one core", "GOMAXPROCS=1", nil},
	} {
		p := newProcess(t, append(append(slices.Clone(small), "--vit-batch", "3", "--fuse-qkv", "--package", "p.ipuexe"), c.args...)...)
		if c.env != "" {
			p.Env = append(p.Env, c.env)
		}
		if got := p.run(t); got != 0 {
			t.Fatalf("%s: status %d\n%s", c.name, got, &p.stderr)
		}
		var summary struct {
			PackageSHA256   string `json:"package_sha256"`
			ReferencePassed bool   `json:"reference_passed"`
		}
		d := json.NewDecoder(&p.stdout)
		if err := d.Decode(&summary); err != nil {
			t.Fatalf("%s: standard output: %v", c.name, err)
		}
		if rest, _ := io.ReadAll(io.MultiReader(d.Buffered(), &p.stdout)); string(rest) != "\n" {
			t.Errorf("%s: standard output has %q behind the object", c.name, rest)
		}
		if !summary.ReferencePassed {
			t.Errorf("%s: the reference check did not pass", c.name)
		}
		if strings.Contains(p.stderr.String(), "shutdown") {
			t.Errorf("%s: the S3 server had to be stopped by force:\n%s", c.name, &p.stderr)
		}
		verify := newProcess(t, "package", "verify", filepath.Join(p.Dir, "p.ipuexe"))
		if got := verify.run(t); got != 0 {
			t.Errorf("%s: package verify: status %d\n%s", c.name, got, &verify.stderr)
		}
		if digest == "" {
			digest = summary.PackageSHA256
		}
		if summary.PackageSHA256 != digest {
			t.Errorf("%s: package %s, first %s", c.name, summary.PackageSHA256, digest)
		}
	}
}

// The statuses that the README promises.
func TestExitStatus(t *testing.T) {
	for _, c := range []struct {
		name   string
		args   []string
		want   int
		stderr string // how its last line begins
	}{
		{"help", []string{"--help"}, 0, ""},
		{"version", []string{"--version"}, 0, ""},
		{"unknown verb", []string{"walk"}, 1, `ipufarm: unknown command "walk"`},
		{"bad flag", append(slices.Clone(small), "--tiles", "65"), 1, "ipufarm: --tiles 65: "},
		{"refused", []string{"run", "--json", "--workload", "gemm-benchmark", "--tiles", "64", "--benchmark-rows", "64", "--benchmark-inner", "8192", "--benchmark-columns", "8192"},
			3, "ipufarm: no result: "},
		{"other outputs", append(slices.Clone(small), "--diagnostic-atol", "1e-9", "--diagnostic-rtol", "0"), 4, "ipufarm: the output does not agree with the reference: "},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newProcess(t, c.args...)
			if got := p.run(t); got != c.want {
				t.Errorf("status %d, want %d\n%s", got, c.want, &p.stderr)
			}
			lines := strings.Split(strings.TrimSuffix(p.stderr.String(), "\n"), "\n")
			if last := lines[len(lines)-1]; !strings.HasPrefix(last, c.stderr) || c.stderr == "" && last != "" {
				t.Errorf("last line of standard error %q, want %q", last, c.stderr)
			}
			switch {
			case c.want == 1 && p.stdout.Len() > 0:
				t.Errorf("standard output %q", &p.stdout)
			case c.want > 1 && !json.Valid(p.stdout.Bytes()):
				t.Errorf("standard output is not an object: %q", &p.stdout)
			}
		})
	}
}

// An interrupted run cancels its job and takes everything with it but its log.
func TestInterrupt(t *testing.T) {
	for _, c := range []struct {
		name   string
		signal syscall.Signal
		group  bool   // as a terminal does: children get it, too
		at     string // the line of progress at which it comes
	}{
		{"terminal", syscall.SIGINT, true, "planned: "},
		{"kill", syscall.SIGTERM, false, "decided 1 of "},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newProcess(t, append(slices.Clone(small), "--vit-image-size", "70", "--policy", "verify-all")...)
			p.Stderr = nil
			stderr, err := p.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Start(); err != nil {
				t.Fatal(err)
			}
			stop := time.AfterFunc(time.Minute, func() { p.Process.Kill() }) // whatever happens, the test ends
			defer stop.Stop()
			pid, sent := p.Process.Pid, false
			if c.group {
				pid = -pid
			}
			last := ""
			for lines := bufio.NewScanner(stderr); lines.Scan(); {
				if last = lines.Text(); !sent && strings.HasPrefix(last, c.at) {
					sent = true
					if err := syscall.Kill(pid, c.signal); err != nil {
						t.Error(err)
					}
				}
			}
			if got := p.status(t); got != 130 || last != "ipufarm: interrupted" {
				t.Errorf("status %d, last line %q", got, last)
			}
			if p.stdout.Len() > 0 {
				t.Errorf("standard output %q", &p.stdout)
			}
			if files := list(t, p.Dir); !slices.Equal(files, []string{"run.log"}) {
				t.Errorf("files %v", files)
			}
		})
	}
}
