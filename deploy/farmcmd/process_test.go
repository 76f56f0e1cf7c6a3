package farmcmd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"ipufarm/compiler"
	"ipufarm/deploy/config"
	"ipufarm/deploy/local/runcmd"
	"ipufarm/protocol"
	natsserver "ipufarm/protocol/bus/server"
	"ipufarm/protocol/program"
	s3server "ipufarm/protocol/store/server"
	"ipufarm/worker"
)

// TestMain lets the test binary be the program: with a verb instead of flags of the
// test it is ipufarm, and so are the child processes that it starts.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-test.") {
		os.Exit(ipufarm(os.Args[1:]))
	}
	os.Exit(m.Run())
}

func ipufarm(args []string) int {
	if args[0] == "stage" {
		return worker.ChildMain(stage)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{Use: "ipufarm", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(Commands()...)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "ipufarm:", err)
	var exit *runcmd.ExitError
	if errors.As(err, &exit) {
		return exit.Status
	}
	return 1
}

// Environment of processes whose stages stall: the file that tells so, and the text
// of the specs that do.
const stallFile, stallSpec = "IPUFARM_TEST_STALL_FILE", "IPUFARM_TEST_STALL_SPEC"

// stage is the compiler, but for schedules that are told to take for ever.
func stage(ctx context.Context, req protocol.StageRequest, progress func(string)) (protocol.StageResult, error) {
	if path := os.Getenv(stallFile); path != "" && req.Kind == string(protocol.KindSchedule) && strings.Contains(string(req.Spec), os.Getenv(stallSpec)) {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			return protocol.StageResult{}, err
		}
		select {} // until the process is killed
	}
	return (&compiler.Stages{}).Run(ctx, req, progress)
}

// patience bounds every wait: it is only ever used up by a failure.
const patience = 2 * time.Minute

// output collects what a process prints while others look at it.
type output struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all.String()
}

// process is one call of ipufarm, in a folder of its own.
type process struct {
	*exec.Cmd
	t              *testing.T
	stdout, stderr output
	ended          chan struct{}
}

func launch(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: exec.Command(executable, args...), t: t, ended: make(chan struct{})}
	p.Dir = t.TempDir()
	p.Env = append(append(os.Environ(), "TMPDIR="+t.TempDir()), env...)
	p.Stdout, p.Stderr = &p.stdout, &p.stderr
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		p.Wait()
	}()
	t.Cleanup(func() {
		p.Process.Kill() // harmless when it has ended
		<-p.ended
	})
	return p
}

// await waits until a condition holds, and fails when the process ends before.
func (p *process) await(what string, holds func() bool) {
	p.t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(20 * time.Millisecond) {
		select {
		case <-p.ended:
			if holds() {
				return
			}
			p.t.Fatalf("%v ended before %s\n%s%s", p.Args[1:], what, &p.stdout, &p.stderr)
		default:
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%v: no %s\n%s%s", p.Args[1:], what, &p.stdout, &p.stderr)
		}
	}
}

func (p *process) ready() *process {
	p.t.Helper()
	p.await("ready", func() bool { return strings.Contains(p.stdout.String(), "ready\n") })
	return p
}

// status waits for the end.
func (p *process) status() int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		p.t.Fatalf("%v does not end\n%s%s", p.Args[1:], &p.stdout, &p.stderr)
	}
	return p.ProcessState.ExitCode()
}

// stop ends a process as a service manager does.
func (p *process) stop() {
	p.t.Helper()
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Error(err)
	}
	if got := p.status(); got != 0 {
		p.t.Errorf("%v: status %d after SIGTERM, want 0\n%s", p.Args[1:], got, &p.stderr)
	}
}

// call runs a verb to its end and returns what it printed.
func call(t *testing.T, want int, args ...string) string {
	t.Helper()
	p := launch(t, nil, append(args, "--timeout", "1m")...)
	if got := p.status(); got != want {
		t.Fatalf("%v: status %d, want %d\n%s%s", args, got, want, &p.stdout, &p.stderr)
	}
	return p.stdout.String()
}

// explained runs explain.
func explained(t *testing.T, file, job string) (e explanation) {
	t.Helper()
	text := call(t, 0, "explain", job, "--config", file, "--json")
	if err := json.Unmarshal([]byte(text), &e); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return e
}

// small is the work of the tests.
var small = []string{"--workload", "siglip-vit-benchmark", "--vit-small", "--tiles", "64"}

func submit(t *testing.T, file string, more ...string) (job string) {
	t.Helper()
	job = strings.TrimSuffix(call(t, 0, append(append([]string{"submit", "--config", file}, small...), more...)...), "\n")
	if err := protocol.CheckJobID(job); err != nil {
		t.Fatal(err)
	}
	return job
}

// result is what must be the same wherever a job is executed.
type result struct {
	Winner        int    `json:"winner"`
	PackageSHA256 string `json:"package_sha256"`
	Passed        bool   `json:"reference_passed"`
}

// fetched fetches a job and checks the package's file.
func fetched(t *testing.T, file, job string) (r result) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "out")
	if err := json.Unmarshal([]byte(call(t, 0, "fetch", job, "-o", dir, "--config", file, "--json")), &r); err != nil {
		t.Fatal(err)
	}
	if _, _, err := program.ReadFile(filepath.Join(dir, "model.ipuexe"), r.PackageSHA256); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"profile.ipuprof", "profile.html", "summary.json"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	return r
}

// TestFarms runs the same job on an embedded farm and on one of separate processes,
// of which one is killed, and wants the same winner and the same package.
func TestFarms(t *testing.T) {
	var want, got result
	if !t.Run("embedded", func(t *testing.T) { want = testUp(t) }) {
		return
	}
	if t.Run("separate", func(t *testing.T) { got = testSeparate(t) }) && got != want {
		t.Errorf("separate processes give %+v, the embedded farm gives %+v", got, want)
	}
	if !want.Passed || want.PackageSHA256 == "" {
		t.Errorf("no result: %+v", want)
	}
}

func testUp(t *testing.T) result {
	file, stalled := filepath.Join(t.TempDir(), "client.json"), filepath.Join(t.TempDir(), "stalled")
	farm := launch(t, []string{stallFile + "=" + stalled, stallSpec + `="seed":99`}, "up", "--workers", "2", "--client-config", file).ready()
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("client configuration: %v, mode %v, want 0600", err, info.Mode())
	}

	job := submit(t, file)
	if text := call(t, 0, "watch", job, "--config", file); !strings.Contains(text, "planned: ") || !strings.Contains(text, "winner: finalist ") {
		t.Errorf("watch shows\n%s", text)
	}
	r := fetched(t, file, job)
	e := explained(t, file, job)
	if e.State != protocol.JobDone || e.Winner == nil || e.Winner.Rank != r.Winner || len(e.Finalists) == 0 || len(e.Winner.Otherwise) == 0 || len(e.Tasks) > 0 {
		t.Errorf("explained as %+v", e)
	}
	// A job that is over shows the same again, now from its report.
	again := strings.TrimSuffix(call(t, 0, "retry", job, "--config", file), "\n")
	call(t, 0, "watch", again, "--config", file)
	if got := fetched(t, file, again); again == job || got != r {
		t.Errorf("again as %s it gives %+v, before %+v", again, got, r)
	}
	last := ""
	for line := range strings.Lines(call(t, 0, "watch", job, "--config", file, "--json")) {
		last = line
	}
	if !strings.Contains(last, `"type":"finished"`) {
		t.Errorf("the last event is %s", last)
	}

	job = submit(t, file, "--seed", "99")
	farm.await("stalled schedule", func() bool { _, err := os.Stat(stalled); return err == nil })
	e = explained(t, file, job)
	if !strings.Contains(fmt.Sprintf("%+v", e.Tasks), "being executed") {
		t.Errorf("a stalled task is explained as %+v", e.Tasks)
	}
	if text := call(t, 0, "cancel", job, "--config", file); text != "cancelled\n" {
		t.Errorf("cancel prints %q", text)
	}
	call(t, 1, "watch", job, "--config", file)

	var o overview
	text := call(t, 0, "top", "--config", file, "--json")
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		t.Error(err)
	}
	// Three priorities of tasks, runs for any device and for the one there is.
	if len(o.Workers) != 2 || o.Workers[0].Slots != 1 || o.Workers[0].Tool == "" || len(o.Runners) != 1 || o.Runners[0].Device != "sim0" || len(o.Queues) != 5 {
		t.Errorf("top prints %s", text)
	}

	unknown := launch(t, nil, "watch", strings.Repeat("0", 32), "--config", file)
	if got := unknown.status(); got != 1 || unknown.stderr.String() != "ipufarm: job: there is no job "+strings.Repeat("0", 32)+"\n" {
		t.Errorf("unknown job: status %d, %s", got, &unknown.stderr)
	}

	farm.stop()
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the client configuration is left: %v", err)
	}
	return r
}

// testSeparate: servers here, every part of the farm in a process of its own. The
// first worker is killed in the middle of a task, and the coordinator with it.
func testSeparate(t *testing.T) result {
	nats, err := natsserver.Start(natsserver.Options{Dir: t.TempDir(), User: "farm", Password: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nats.Stop)
	s3, err := s3server.Start(s3server.Options{Dir: t.TempDir(), AccessKey: "access", SecretKey: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s3.Stop() })
	file := filepath.Join(t.TempDir(), "farm.json")
	err = config.Write(file, config.Config{
		NATS: config.NATS{URLs: []string{nats.ClientURL()}, User: "farm", Password: "secret", Replicas: 1},
		S3:   config.S3{Endpoint: s3.Endpoint, Bucket: "farm", AccessKey: "access", SecretKey: "secret"}, Device: config.Device{Class: "ipu21"},
		// Short enough to notice a death soon, long enough for a busy host.
		Timers: map[string]string{"heartbeat": "1s", "ack_wait": "10s", "run_heartbeat": "1s", "run_ack_wait": "10s", "renew": "500ms",
			"lease_ttl": "5s", "self_fence": "3s", "ask_owner": "1s", "reap": "1s", "poll": "100ms", "retry": "100ms"},
	})
	if err != nil {
		t.Fatal(err)
	}
	coordinate := []string{"coordinator", "--config", file, "--state", t.TempDir(), "--devices", "card0"}
	coordinator := launch(t, nil, coordinate...).ready()
	runner := launch(t, nil, "runner", "--config", file, "--state", t.TempDir(), "--name", "runner-a", "--device", "card0").ready()

	job := submit(t, file, "--device", "card0")
	e := explained(t, file, job)
	if len(e.Tasks) == 0 || !strings.Contains(e.Tasks[0].Why, "no worker is there") {
		t.Errorf("without a worker, the tasks are explained as %+v", e.Tasks)
	}
	stalled := filepath.Join(t.TempDir(), "stalled")
	victim := launch(t, []string{stallFile + "=" + stalled}, "worker", "--config", file, "--name", "victim", "--slots", "1").ready()
	victim.await("stalled schedule", func() bool { _, err := os.Stat(stalled); return err == nil })
	heir := launch(t, nil, "worker", "--config", file, "--name", "heir", "--slots", "1").ready()
	for _, p := range []*process{victim, coordinator} {
		if err := p.Process.Kill(); err != nil {
			t.Error(err)
		}
		p.status()
	}
	coordinator = launch(t, nil, coordinate...).ready()
	call(t, 0, "watch", job, "--config", file)
	r := fetched(t, file, job)
	heir.stop()
	runner.stop()
	coordinator.stop()
	return r
}
