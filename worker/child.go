package worker

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime/debug"
	"sync"
	"syscall"

	"ipufarm/protocol"
	"ipufarm/protocol/ticket"
)

// The dialogue of a worker with its child: one JSON object on each line, requests
// on the child's standard input, messages on its standard output. The child
// serves one request after another, so that a process start is paid once per slot
// and not once per task.

// childMessage is a line from the child: exactly one of its fields is set.
type childMessage struct {
	Progress string                `json:"progress,omitempty"`
	Result   *protocol.StageResult `json:"result,omitempty"`
	Error    string                `json:"error,omitempty"` // the stage returned an error or panicked
}

// maxLine bounds a line of the dialogue; facts are the largest part of one.
const maxLine = 2 * protocol.MaxFacts

// ChildMain is the whole life of a child process: it serves stage requests until
// its standard input ends, which it does when the worker dies. It returns the
// process's exit status.
func ChildMain(stage protocol.StageFunc) int {
	out := os.Stdout
	os.Stdout = os.Stderr // what a stage prints must not get into the dialogue
	if err := serve(os.Stdin, out, stage); err != nil {
		fmt.Fprintln(os.Stderr, "ipufarm stage:", err)
		return 1
	}
	return 0
}

func serve(in io.Reader, out io.Writer, stage protocol.StageFunc) error {
	requests := make(chan []byte)
	failed := make(chan error, 1)
	go func() {
		defer close(requests)
		lines := lineScanner(in)
		for lines.Scan() {
			requests <- bytes.Clone(lines.Bytes())
		}
		failed <- lines.Err()
		// The worker is gone: nobody wants what a stage may be working on.
		if in == os.Stdin {
			os.Exit(3)
		}
	}()
	var mu sync.Mutex
	send := func(m childMessage) error {
		data, err := json.Marshal(m)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		_, err = out.Write(append(data, '\n'))
		return err
	}
	for line := range requests {
		if err := send(answer(line, stage, func(text string) { send(childMessage{Progress: protocol.Clip(text)}) })); err != nil {
			return err
		}
	}
	return <-failed
}

func answer(line []byte, stage protocol.StageFunc, progress func(string)) childMessage {
	var req protocol.StageRequest
	if err := json.Unmarshal(line, &req); err != nil {
		return childMessage{Error: fmt.Sprintf("request: %v", err)}
	}
	if err := req.Check(); err != nil {
		return childMessage{Error: err.Error()}
	}
	result, err := protect(context.Background(), stage, req, progress)
	if err != nil {
		return childMessage{Error: protocol.Clip(err.Error())}
	}
	if data, err := json.Marshal(result); err != nil || len(data) > maxLine-1024 {
		return childMessage{Error: fmt.Sprintf("result of %s: %d bytes, at most %d are accepted (%v)", req.Kind, len(data), maxLine-1024, err)}
	}
	return childMessage{Result: &result}
}

// protect turns a panic of a stage into an error that names the stage. It is the
// one place that recovers.
func protect(ctx context.Context, stage protocol.StageFunc, req protocol.StageRequest, progress func(string)) (result protocol.StageResult, err error) {
	defer func() {
		if p := recover(); p != nil {
			stack := debug.Stack()
			fmt.Fprintf(os.Stderr, "panic in stage %s of candidate %d: %v\n%s", req.Kind, req.Candidate, p, stack)
			err = fmt.Errorf("panic in stage %s: %v", req.Kind, p)
		}
	}()
	return stage(ctx, req, progress)
}

func lineScanner(r io.Reader) *bufio.Scanner {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 64<<10), maxLine)
	return s
}

// stager executes stages one at a time.
type stager interface {
	run(ctx context.Context, req protocol.StageRequest, progress func(string)) (protocol.StageResult, error)
	close()
}

// inProcess calls a function: for tests that are not about processes.
type inProcess struct{ stage protocol.StageFunc }

func (s inProcess) run(ctx context.Context, req protocol.StageRequest, progress func(string)) (protocol.StageResult, error) {
	result, err := protect(ctx, s.stage, req, progress)
	return verdictOf(result, err), nil
}

func (inProcess) close() {}

// verdictOf turns an error of a stage into a verdict: the request reached it
// whole, so repeating would repeat it.
func verdictOf(result protocol.StageResult, err error) protocol.StageResult {
	if err != nil {
		return protocol.StageResult{Verdict: protocol.Verdict{Kind: protocol.Failed, Message: protocol.Clip(err.Error())}}
	}
	return result
}

// child is a process that executes the stages of one slot. It is started ahead of
// its first request and again after each death.
type child struct {
	command []string
	env     []string
	log     *slog.Logger
	warm    *process
}

// process is one life of a child, in a process group of its own.
type process struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Scanner
	tail  *tail
	ended chan struct{} // closed when everything that it wrote to standard error was read
}

func newChild(command, env []string, log *slog.Logger) *child {
	c := &child{command: command, env: env, log: log}
	if err := c.start(); err != nil {
		log.Warn("start of a child", "error", err) // tried again with the first request
	}
	return c
}

func (c *child) start() error {
	cmd := exec.Command(c.command[0], c.command[1:]...)
	cmd.Env = append(os.Environ(), c.env...)
	cmd.Dir = "/" // the working directory of this process may change or vanish
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	errors, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	p := &process{cmd: cmd, in: in, out: lineScanner(out), tail: &tail{}, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		lines := lineScanner(errors)
		for lines.Scan() {
			p.tail.add(lines.Text())
			c.log.Info("stage", "pid", cmd.Process.Pid, "line", protocol.Clip(lines.Text()))
		}
		io.Copy(io.Discard, errors) // a line beyond the limit must not block the child
	}()
	c.warm = p
	return nil
}

// run sends one request and reads until its result. When ctx ends, the whole
// process group is killed.
func (c *child) run(ctx context.Context, req protocol.StageRequest, progress func(string)) (protocol.StageResult, error) {
	if c.warm == nil {
		if err := c.start(); err != nil {
			return protocol.StageResult{}, fmt.Errorf("start of a child: %w", err)
		}
	}
	p := c.warm
	data, err := json.Marshal(req)
	if err != nil {
		return protocol.StageResult{}, err
	}
	if len(data) >= maxLine {
		return protocol.StageResult{}, fmt.Errorf("stage request has %d bytes, at most %d are accepted", len(data), maxLine)
	}
	stop := context.AfterFunc(ctx, p.kill)
	defer stop()
	result, err := p.exchange(append(data, '\n'), progress)
	if err == nil && ctx.Err() == nil {
		return result, nil
	}
	c.end()
	if err := ctx.Err(); err != nil {
		return protocol.StageResult{}, err
	}
	return protocol.StageResult{}, err
}

func (p *process) exchange(request []byte, progress func(string)) (protocol.StageResult, error) {
	if _, err := p.in.Write(request); err != nil {
		return protocol.StageResult{}, p.died(err)
	}
	for p.out.Scan() {
		var m childMessage
		if err := json.Unmarshal(p.out.Bytes(), &m); err != nil {
			return protocol.StageResult{}, p.died(fmt.Errorf("line that is not part of the dialogue: %w", err))
		}
		switch {
		case m.Error != "":
			return verdictOf(protocol.StageResult{}, errors.New(m.Error)), nil
		case m.Result != nil:
			return *m.Result, nil
		default:
			progress(m.Progress)
		}
	}
	return protocol.StageResult{}, p.died(p.out.Err())
}

// died kills what is left of the process and returns what is known of its end.
func (p *process) died(cause error) error {
	p.kill()
	<-p.ended
	waitErr := p.cmd.Wait()
	state := "no exit status"
	if p.cmd.ProcessState != nil {
		state = p.cmd.ProcessState.String()
	}
	var exit *exec.ExitError
	if waitErr != nil && !errors.As(waitErr, &exit) {
		cause = errors.Join(cause, waitErr)
	}
	text := fmt.Sprintf("%s; last lines: %s", state, p.tail.text())
	if cause != nil {
		text = fmt.Sprintf("%v; %s", cause, text)
	}
	return fmt.Errorf("%w: %s", ticket.ErrCrash, text)
}

func (p *process) kill() { syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }

// end makes sure that the process is gone.
func (c *child) end() {
	p := c.warm
	if p == nil {
		return
	}
	c.warm = nil
	p.kill()
	p.in.Close()
	<-p.ended
	p.cmd.Wait()
}

func (c *child) close() { c.end() }

// tail keeps the last lines that a child wrote to standard error: evidence.
type tail struct {
	mu    sync.Mutex
	lines []string
}

const tailLines = 12

func (t *tail) add(line string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(line) > 256 {
		line = line[:256]
	}
	t.lines = append(t.lines, line)
	if len(t.lines) > tailLines {
		t.lines = t.lines[1:]
	}
}

func (t *tail) text() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.lines) == 0 {
		return "none"
	}
	return fmt.Sprintf("%q", t.lines)
}
