package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"ipufarm/protocol"
	"ipufarm/protocol/ticket"
)

// TestMain lets the test binary be the child: well-behaved, or bad in a way that
// its argument names.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "child" {
		misbehave(os.Args[2])
		os.Exit(ChildMain(stage))
	}
	os.Exit(m.Run())
}

func misbehave(how string) {
	switch how {
	case "garbage":
		fmt.Println("this is not the dialogue")
	case "endless":
		io.Copy(os.Stdout, infinite{})
	case "at once":
		fmt.Fprintln(os.Stderr, "cannot start")
		os.Exit(7)
	}
}

type infinite struct{}

func (infinite) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

func stage(ctx context.Context, req protocol.StageRequest, progress func(string)) (protocol.StageResult, error) {
	ok := protocol.StageResult{Verdict: protocol.Verdict{Kind: protocol.Feasible, Cycles: uint64(os.Getpid())}}
	switch string(req.Spec) {
	case `"print"`:
		fmt.Println("a stage may print")
		progress("half of it")
		progress(strings.Repeat("long", 10_000))
	case `"panic"`:
		panic("oh no")
	case `"error"`:
		return ok, errors.New("no such graph")
	case `"exit"`:
		fmt.Fprintln(os.Stderr, "out of luck")
		os.Exit(5)
	case `"kill"`:
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case `"hang"`:
		os.WriteFile(filepath.Join(req.OutDir, "pid"), []byte(strconv.Itoa(os.Getpid())), 0o600)
		time.Sleep(time.Hour)
	case `"close"`:
		os.Stdout.Close()
		syscall.Close(1)
	case `"huge"`:
		ok.Facts = []byte(`"` + strings.Repeat("f", maxLine) + `"`)
	}
	return ok, nil
}

func request(t *testing.T, spec string) protocol.StageRequest {
	return protocol.StageRequest{Kind: "plan", Spec: []byte(`"` + spec + `"`), Candidate: -1, OutDir: t.TempDir()}
}

func newTestChild(t *testing.T, how string) *child {
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := newChild([]string{executable, "child", how}, nil, slog.New(slog.NewTextHandler(t.Output(), nil)))
	t.Cleanup(c.close)
	return c
}

// TestChildServesOneRequestAfterAnother: whatever a stage does short of dying, the
// next request finds the same process.
func TestChildServesOneRequestAfterAnother(t *testing.T) {
	c := newTestChild(t, "")
	var pid uint64
	var lines []string
	for _, spec := range []string{"plain", "print", "panic", "error", "huge", "plain"} {
		result, err := c.run(context.Background(), request(t, spec), func(line string) { lines = append(lines, line) })
		if err != nil {
			t.Fatalf("%s: %v", spec, err)
		}
		switch spec {
		case "panic", "error", "huge":
			want := map[string]string{"panic": "oh no", "error": "no such graph", "huge": "bytes, at most"}[spec]
			if result.Verdict.Kind != protocol.Failed || !strings.Contains(result.Verdict.Message, want) {
				t.Errorf("%s: %+v, want a failure that says %q", spec, result.Verdict, want)
			}
		default:
			if result.Verdict.Kind != protocol.Feasible || pid != 0 && result.Verdict.Cycles != pid {
				t.Errorf("%s: %+v, want it from process %d", spec, result.Verdict, pid)
			}
			pid = result.Verdict.Cycles
		}
	}
	if len(lines) != 2 || lines[0] != "half of it" || len(lines[1]) > protocol.MaxMessage {
		t.Errorf("%d lines of progress", len(lines))
	}
}

// TestDeathsOfAChild are told with evidence, and the next request gets a new child.
func TestDeathsOfAChild(t *testing.T) {
	for spec, want := range map[string]string{"exit": "out of luck", "kill": "killed", "close": ""} {
		c := newTestChild(t, "")
		_, err := c.run(context.Background(), request(t, spec), func(string) {})
		if !errors.Is(err, ticket.ErrCrash) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want a crash that says %q", spec, err, want)
		}
		if result, err := c.run(context.Background(), request(t, "plain"), func(string) {}); err != nil || result.Verdict.Kind != protocol.Feasible {
			t.Errorf("after %s: %+v, %v", spec, result.Verdict, err)
		}
	}
}

func TestBadChildren(t *testing.T) {
	for how, want := range map[string]string{"garbage": "not part of the dialogue", "endless": "too long", "at once": "cannot start"} {
		c := newTestChild(t, how)
		if _, err := c.run(context.Background(), request(t, "plain"), func(string) {}); !errors.Is(err, ticket.ErrCrash) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want a crash that says %q", how, err, want)
		}
	}
	c := newChild([]string{"/nonexistent"}, nil, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if _, err := c.run(context.Background(), request(t, "plain"), func(string) {}); err == nil || errors.Is(err, ticket.ErrCrash) {
		t.Errorf("no such program: %v, want a fault that is not the candidate's", err)
	}
}

// TestStoppedChildIsGone: when a task is stopped its process is gone before run
// returns.
func TestStoppedChildIsGone(t *testing.T) {
	c := newTestChild(t, "")
	req := request(t, "hang")
	ctx, cancel := context.WithCancel(context.Background())
	path := filepath.Join(req.OutDir, "pid")
	go func() {
		for {
			if data, err := os.ReadFile(path); err == nil && len(data) > 0 {
				cancel()
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	if _, err := c.run(ctx, req, func(string) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("stopped: %v", err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(data))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d is still there (%v)", pid, err)
	}
}

// TestChildEndsWithItsWorker: a child whose input ends does not stay.
func TestChildEndsWithItsWorker(t *testing.T) {
	c := newTestChild(t, "")
	if _, err := c.run(context.Background(), request(t, "plain"), func(string) {}); err != nil {
		t.Fatal(err)
	}
	c.warm.in.Close()
	if err := c.warm.cmd.Wait(); c.warm.cmd.ProcessState.ExitCode() != 3 {
		t.Errorf("the child ended with %v, %v", c.warm.cmd.ProcessState, err)
	}
}

// TestDialogue feeds a child's side of the dialogue from memory.
func TestDialogue(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"", ""},
		{"rubbish\n", `{"error":"request: invalid character 'r' looking for beginning of value"}` + "\n"},
		{"{}\n", `{"error":"task kind \"\", accepted are plan, schedule, validate, reference and run"}` + "\n"},
		{`{"kind":"plan","out_dir":"x"}` + "\n", `{"error":"stage request: output folder \"x\" is not absolute"}` + "\n"},
		{`{"kind":"plan","out_dir":"/x","inputs":{"a":"b"}}` + "\n", `{"error":"stage request: input a: path \"b\" is not absolute"}` + "\n"},
	} {
		var out bytes.Buffer
		if err := serve(strings.NewReader(c.in), &out, stage); err != nil || out.String() != c.want {
			t.Errorf("%q gives %q, %v; want %q", c.in, out.String(), err, c.want)
		}
	}
	if err := serve(strings.NewReader(strings.Repeat("x", 2*maxLine)), io.Discard, stage); err == nil {
		t.Error("an endless line was accepted")
	}
}

// FuzzDialogue: no line may make a child do anything but answer.
func FuzzDialogue(f *testing.F) {
	f.Add([]byte(`{"kind":"plan","spec":"plain","out_dir":"/tmp","inputs":{}}`))
	f.Add([]byte(`{"kind":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var out bytes.Buffer
		quiet := func(context.Context, protocol.StageRequest, func(string)) (protocol.StageResult, error) {
			return protocol.StageResult{Verdict: protocol.Verdict{Kind: protocol.Feasible}}, nil
		}
		if err := serve(bytes.NewReader(data), &out, quiet); err != nil && len(data) < maxLine/2 {
			t.Fatalf("%q: %v", data, err)
		}
	})
}

func TestConfigIsChecked(t *testing.T) {
	good := Config{Name: "w", Slots: 1, Scratch: "/tmp", Tool: strings.Repeat("0", 64), Timers: protocol.DefaultTimers(), Stage: stage}
	if err := good.check(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Config){
		"name":    func(c *Config) { c.Name = "W 1" },
		"slots":   func(c *Config) { c.Slots = 0 },
		"scratch": func(c *Config) { c.Scratch = "tmp" },
		"tool":    func(c *Config) { c.Tool = "" },
		"both":    func(c *Config) { c.Command = []string{"x"} },
		"neither": func(c *Config) { c.Stage = nil },
		"timers":  func(c *Config) { c.Timers.AckWait = c.Timers.Heartbeat },
	} {
		c := good
		change(&c)
		if c.check() == nil {
			t.Errorf("a bad %s was accepted", name)
		}
	}
}
