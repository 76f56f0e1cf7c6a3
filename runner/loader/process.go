package loader

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"ipufarm/runner"
)

// Bounds of the end of a process.
const (
	grace     = 500 * time.Millisecond // for processes that are just ending when the command ends
	killLimit = 10 * time.Second       // for the kernel to end what was killed
	pollEvery = 10 * time.Millisecond
)

// execute is the life of the command, until nothing of it is left. Without an
// error it ended with status 0 and in time.
func (l *Loader) execute(ctx context.Context, dir string, env []string, progress func(string)) error {
	out, log := newLines(progress), &tail{}
	cmd, alive, err := l.start(dir, env, out, log)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrStart, err)
	}
	defer alive.Close()
	g := group{leader: cmd.Process.Pid, marker: marker(env)}
	ended := make(chan error, 1)
	go func() { ended <- awaitEnd(g.leader) }()
	stopped := l.await(ctx, out, ended)
	left, err := g.end(stopped == nil)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	// What it wrote is complete only now. Pipes that something keeps open all the
	// same are closed after a while, and that is no error of the command's.
	if err := cmd.Wait(); err != nil && cmd.ProcessState == nil {
		return fmt.Errorf("%w: %w", ErrUnusable, err)
	}
	switch status := cmd.ProcessState.ExitCode(); {
	case stopped != nil && ctx.Err() != nil:
		return stopped
	case stopped != nil:
		return fmt.Errorf("%w; %s", stopped, log)
	case out.refusal() != nil:
		return fmt.Errorf("%w; %s", out.refusal(), log)
	case len(left) > 0:
		return fmt.Errorf("%w, which were killed: %s; %s", ErrLeftBehind, strings.Join(left, ", "), log)
	case status == ExitPackage:
		return fmt.Errorf("%w: exit status %d: the package is at fault; %s", runner.ErrFault, status, log)
	case status == ExitDevice:
		return fmt.Errorf("%w: exit status %d; %s", ErrUnusable, status, log)
	case status != 0:
		return fmt.Errorf("%w: %s; %s", ErrExit, cmd.ProcessState, log)
	case !out.begun():
		return fmt.Errorf("%w: it ended without the line %q; %s", ErrAnswer, hello, log)
	}
	return nil
}

// start starts the command, without a network where that is possible. The returned
// file is the other end of its standard input.
func (l *Loader) start(dir string, env []string, out, log io.Writer) (cmd *exec.Cmd, alive *os.File, err error) {
	// A new network namespace needs root, and even root may not be allowed one in a
	// container. One in a user namespace would take the rights on the card away.
	flags := []uintptr{0}
	if os.Geteuid() == 0 {
		flags = []uintptr{syscall.CLONE_NEWNET, 0}
	}
	for _, f := range flags {
		var in *os.File
		if in, alive, err = os.Pipe(); err != nil {
			return nil, nil, err
		}
		cmd = exec.Command(l.o.Command[0], l.o.Command[1:]...)
		cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = dir, env, in, out, log, killLimit
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Cloneflags: f}
		err = cmd.Start()
		in.Close()
		if err == nil {
			return cmd, alive, nil
		}
		alive.Close()
	}
	return nil, nil, err
}

// await waits until the command ended by itself, which is nil, or must be stopped,
// which is why.
func (l *Loader) await(ctx context.Context, out *lines, ended <-chan error) error {
	limit := time.NewTimer(l.o.Start)
	defer limit.Stop()
	started := out.started
	for {
		select {
		case err := <-ended:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-out.refused:
			return out.refusal()
		case <-started:
			started = nil
			limit.Reset(l.o.Run)
		case <-limit.C:
			if started != nil {
				return fmt.Errorf("%w: no line %q within %v of its start", ErrTimeout, hello, l.o.Start)
			}
			return fmt.Errorf("%w: it had not ended %v after it had started", ErrTimeout, l.o.Run)
		}
	}
}

// awaitEnd waits until a child has ended and leaves it as it is: its process id,
// and so its group's, can belong to nobody else before it is reaped.
func awaitEnd(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// group is a command, the processes of its group, and those that left the group
// but carry the run's name in their environment.
type group struct {
	leader int
	marker []byte
}

func marker(env []string) []byte {
	for _, e := range env {
		if strings.HasPrefix(e, runVariable+"=") {
			return []byte(e)
		}
	}
	return nil
}

// end makes sure that nothing is left. When the command ended by itself it names
// the others that were still there, apart from those that were just ending.
func (g group) end(byItself bool) (left []string, err error) {
	if byItself {
		for waited := time.Duration(0); ; waited += pollEvery {
			pids, names, err := g.find()
			if err != nil {
				return nil, err
			}
			if len(pids) == 0 {
				break
			}
			if waited >= grace {
				left = names
				break
			}
			time.Sleep(pollEvery)
		}
	}
	for waited := time.Duration(0); ; waited += pollEvery {
		syscall.Kill(-g.leader, syscall.SIGKILL)
		pids, names, err := g.find()
		if err != nil || len(pids) == 0 {
			return left, err
		}
		if waited >= killLimit {
			return left, fmt.Errorf("processes stay although they were killed: %s", strings.Join(names, ", "))
		}
		for _, pid := range pids {
			g.kill(pid)
		}
		time.Sleep(pollEvery)
	}
}

// kill kills a process if it is still the one that was found.
func (g group) kill(pid int) {
	p, err := os.FindProcess(pid) // holds the process, not its number
	if err != nil {
		return
	}
	defer p.Release()
	if ours, _ := g.has(pid); ours {
		p.Kill()
	}
}

// find lists the processes of the group that live.
func (g group) find() (pids []int, names []string, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, nil, fmt.Errorf("looking for its processes: %w", err)
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		if ours, name := g.has(pid); ours {
			pids, names = append(pids, pid), append(names, fmt.Sprintf("%s (process %d)", clean(name), pid))
		}
	}
	return pids, names, nil
}

// has reports whether a process lives and is of the group. What cannot be read
// has ended meanwhile or is somebody else's.
func (g group) has(pid int) (bool, string) {
	// "pid (name) state parent group ...", where the name may have anything in it.
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	open, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
	if err != nil || open < 0 || end < open {
		return false, ""
	}
	fields := strings.Fields(string(stat[end+1:]))
	if len(fields) < 3 || fields[0] == "Z" || fields[0] == "X" {
		return false, ""
	}
	name := string(stat[open+1 : end])
	if fields[2] == strconv.Itoa(g.leader) {
		return true, name
	}
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	return err == nil && len(g.marker) > 0 && bytes.Contains(env, g.marker), name
}

// hello is the first line of a loader.
var hello = "ipufarm-loader " + strconv.Itoa(version)

// Bounds of what people see of a command.
const (
	maxLine  = 256  // bytes of a line of progress
	maxLines = 1000 // lines of progress
	maxTail  = 1024 // bytes of standard error
)

// lines is the standard output of a command, cut into lines.
type lines struct {
	progress func(string)
	started  chan struct{} // closed by the first line, if it is the right one
	refused  chan struct{} // closed by the first line, if it is not

	mu    sync.Mutex
	line  []byte
	count int
	wrong error
}

func newLines(progress func(string)) *lines {
	return &lines{progress: progress, started: make(chan struct{}), refused: make(chan struct{})}
}

// Write implements io.Writer.
func (l *lines) Write(p []byte) (int, error) {
	for _, b := range p {
		switch {
		case b == '\n':
			l.end()
		case len(l.line) < maxLine:
			l.line = append(l.line, b)
		case l.count == 0:
			l.end() // a first line of this length is none, and may never end
		}
	}
	return len(p), nil
}

func (l *lines) end() {
	line := string(l.line)
	l.line = l.line[:0]
	l.mu.Lock()
	l.count++
	first, wrong := l.count == 1, l.wrong != nil
	if first && line != hello {
		l.wrong = fmt.Errorf("%w: its first line is %.80q, %q is accepted", ErrAnswer, line, hello)
	}
	refuse := first && l.wrong != nil
	l.mu.Unlock()
	switch {
	case refuse:
		close(l.refused)
	case first:
		close(l.started)
	case !wrong && l.count <= maxLines && line != "":
		l.progress(clean(line))
	}
}

func (l *lines) refusal() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.wrong
}

func (l *lines) begun() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count > 0 && l.wrong == nil
}

// clean makes text of a command fit for a terminal and a message.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '·'
		}
		return r
	}, s)
}

// tail is the end of what a command wrote to standard error.
type tail struct {
	mu   sync.Mutex
	text []byte
}

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p[max(0, len(p)-maxTail):]...)
	t.text = t.text[max(0, len(t.text)-maxTail):]
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if text := strings.TrimSpace(string(t.text)); text != "" {
		return "its log ends with: " + clean(strings.ReplaceAll(text, "\n", " | "))
	}
	return "it logged nothing"
}
