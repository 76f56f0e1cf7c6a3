package loader

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"ipufarm/protocol/ipucfg"
	"ipufarm/protocol/profile"
	"ipufarm/protocol/program"
	"ipufarm/runner"
)

// TestMain lets the test binary be the loader that a test wants.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "stub" {
		os.Exit(stub(os.Args[2], os.Args[3:]))
	}
	os.Exit(m.Run())
}

const goodResult = `{"version":1,"model":"stub card","cycles":4711,"cycles_are":"measured"}`

// stub is a loader that behaves in a certain way. Its card returns its inputs.
func stub(mode string, args []string) int {
	out := os.Getenv("IPUFARM_OUTPUT_DIR")
	write := func(name, data string) {
		if err := os.WriteFile(filepath.Join(out, name), []byte(data), 0o600); err != nil {
			panic(err)
		}
	}
	inputs, err := os.ReadFile(os.Getenv("IPUFARM_INPUTS"))
	if err != nil {
		panic(err)
	}
	answer := func(result string) {
		write("outputs", string(inputs))
		write("result.json", result)
	}
	child := func(attr *syscall.SysProcAttr, args ...string) {
		c := exec.Command(os.Args[0], append([]string{"stub"}, args...)...)
		c.SysProcAttr = attr
		if err := c.Start(); err != nil {
			panic(err)
		}
	}
	hang := func() { time.Sleep(10 * time.Minute) } // longer than any test
	switch mode {                                   // before the first line
	case "hang at once":
		hang()
	case "say nothing":
		answer(goodResult)
		return 0
	case "garbage":
		fmt.Println("\x00\x1b[31mhello\xff")
		hang()
	case "endless garbage":
		for {
			os.Stdout.Write(bytes.Repeat([]byte{0xAA}, 4096))
		}
	case "other version":
		fmt.Println("ipufarm-loader 2")
		hang()
	case "no card":
		fmt.Fprintln(os.Stderr, "no card in slot 3")
		return ExitDevice
	case "sleep":
		hang()
	case "answer later":
		hang()
		answer(goodResult)
		return 0
	case "hang":
		fmt.Fprintln(os.Stderr, "waiting for the card")
	}
	fmt.Println(hello)
	switch mode {
	case "good":
		facts := map[string]any{"cwd": must(os.Getwd()), "args": args}
		var names []string
		for _, e := range os.Environ() {
			name, _, _ := strings.Cut(e, "=")
			names = append(names, name)
		}
		slices.Sort(names)
		facts["environment"] = names
		for _, name := range []string{"IPUFARM_PACKAGE", "IPUFARM_PARAMETERS", "IPUFARM_INPUTS", "IPUFARM_CONFIG"} {
			data, _ := os.ReadFile(os.Getenv(name)) // no path, no bytes
			facts[name] = string(data)
		}
		fmt.Println("loading\x1b[2J")
		fmt.Print("\nrunning\nthis line has no end")
		fmt.Fprintln(os.Stderr, "all is well")
		write("samples", string(must(profile.Encode(&profile.Profile{SchemaVersion: profile.SchemaVersion, ClockHz: 1, Tiles: []profile.TileProfile{{PhysicalTile: 5}}}))))
		answer(`{"version":1,"model":"stub card","cycles":4711,"cycles_are":"measured","profile":"samples","detail":` + string(must(json.Marshal(facts))) + `}`)
	case "simulation":
		answer(strings.Replace(goodResult, "measured", "modelled", 1))
	case "noise":
		for range 3000 {
			fmt.Println("another line")
			fmt.Fprintln(os.Stderr, strings.Repeat("noise ", 40))
		}
		answer(goodResult)
	case "hang":
		child(nil, "sleep")
		child(&syscall.SysProcAttr{Setsid: true}, "sleep")
		hang()
	case "fault":
		fmt.Fprintln(os.Stderr, "tile 17: exception 6\nstopped")
		answer(goodResult)
		return ExitPackage
	case "unusable":
		answer(goodResult)
		return ExitDevice
	case "failure":
		fmt.Fprintln(os.Stderr, strings.Repeat("long ago ", 1000)+"segment\x1bation")
		return 3
	case "signal":
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
		hang()
	case "children":
		child(nil, "sleep")
		child(&syscall.SysProcAttr{Setsid: true}, "sleep")
		answer(goodResult)
	case "late":
		child(&syscall.SysProcAttr{Setsid: true}, "answer later")
	case "no result":
		write("outputs", string(inputs))
	case "no outputs":
		write("result.json", goodResult)
	case "folder for outputs":
		answer(goodResult)
		os.Remove(filepath.Join(out, "outputs"))
		os.Mkdir(filepath.Join(out, "outputs"), 0o700)
	case "link for outputs":
		write("result.json", goodResult)
		os.Symlink(os.Getenv("IPUFARM_INPUTS"), filepath.Join(out, "outputs"))
	case "short outputs", "long outputs":
		answer(goodResult)
		write("outputs", string(inputs)[:len(inputs)-1])
		if mode == "long outputs" {
			write("outputs", string(inputs)+"x")
		}
	case "large result":
		answer(goodResult + strings.Repeat(" ", maxResult))
	case "garbage for a profile":
		write("samples", "garbage")
		answer(`{"version":1,"model":"stub card","cycles":4711,"cycles_are":"measured","profile":"samples"}`)
	case "input ends":
		os.WriteFile(args[0], []byte(strconv.Itoa(os.Getpid())), 0o600)
		io.Copy(io.Discard, os.Stdin)
		os.WriteFile(args[1], nil, 0o600)
	}
	return 0
}

func must[T any](x T, err error) T {
	if err != nil {
		panic(err)
	}
	return x
}

// load is a package with 4 bytes of parameters and 8 of inputs and outputs.
func load(t *testing.T) runner.Load {
	t.Helper()
	binding := func(name string, n uint32) []program.Binding {
		return []program.Binding{{Name: name, DType: "f32", Shape: []uint32{n}, Slices: []program.RegionSlice{{Size: 4 * uint64(n)}}}}
	}
	file, err := program.Encode(&program.Package{SchemaVersion: program.SchemaVersion, Target: program.Target,
		Weights: binding("w", 1), Inputs: binding("x", 2), Outputs: binding("y", 2)})
	if err != nil {
		t.Fatal(err)
	}
	return runner.Load{Package: file, Parameters: []byte("wwww"), Inputs: []byte("abcdefgh")}
}

// device is a loader with a stub of a mode for a command.
func device(t *testing.T, o Options, mode string, args ...string) *Loader {
	t.Helper()
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o.Command = append([]string{executable, "stub", mode}, args...)
	o.Dir = t.TempDir()
	l, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if left, err := os.ReadDir(o.Dir); err != nil || len(left) > 0 {
			t.Errorf("left in its folder: %v %v", left, err)
		}
	})
	return l
}

func quiet(string) {}

func TestGoodLoader(t *testing.T) {
	t.Setenv("IPUFARM_SECRET", "not for the loader")
	config, err := ipucfg.Encode([]ipucfg.Write{{Offset: 8, Value: 1}})
	if err != nil {
		t.Fatal(err)
	}
	l := device(t, Options{Config: config, Run: 1500 * time.Second}, "good", "a b", "c")
	if m := l.Model(); !strings.HasPrefix(m, "external loader ") || strings.Contains(m, "cycles") {
		t.Errorf("model before the first run: %q", m)
	}
	x := load(t)
	var progress []string
	r, err := l.Run(context.Background(), x, func(s string) { progress = append(progress, s) })
	if err != nil {
		t.Fatal(err)
	}
	if string(r.Outputs) != "abcdefgh" || r.Cycles != 4711 || !r.Measured {
		t.Errorf("result %q, %d cycles, measured %v", r.Outputs, r.Cycles, r.Measured)
	}
	if m := l.Model(); m != "stub card, cycles are measured" {
		t.Errorf("model %q", m)
	}
	if p, err := profile.Verify(r.Profile); err != nil || len(p.Tiles) != 1 || p.Tiles[0].PhysicalTile != 5 {
		t.Errorf("profile %+v, %v", p, err)
	}
	if want := []string{"loading·[2J", "running"}; !slices.Equal(progress, want) {
		t.Errorf("progress %q, want %q", progress, want)
	}
	var facts struct {
		Cwd         string
		Args        []string
		Environment []string
		Package     string `json:"IPUFARM_PACKAGE"`
		Parameters  string `json:"IPUFARM_PARAMETERS"`
		Inputs      string `json:"IPUFARM_INPUTS"`
		Config      string `json:"IPUFARM_CONFIG"`
	}
	if err := json.Unmarshal(r.Detail, &facts); err != nil {
		t.Fatal(err)
	}
	want := []string{"HOME", "IPUFARM_CONFIG", "IPUFARM_INPUTS", "IPUFARM_LOADER_RUN", "IPUFARM_LOADER_VERSION", "IPUFARM_OUTPUT_DIR",
		"IPUFARM_PACKAGE", "IPUFARM_PARAMETERS", "IPUFARM_RUN_SECONDS", "IPUFARM_START_SECONDS", "PATH", "TMPDIR"}
	got := slices.DeleteFunc(facts.Environment, func(s string) bool { return s == "PWD" || s == "GOCOVERDIR" })
	if !slices.Equal(got, want) {
		t.Errorf("environment %q, want %q", got, want)
	}
	if facts.Parameters != "wwww" || facts.Inputs != "abcdefgh" || !slices.Equal(facts.Args, []string{"a b", "c"}) {
		t.Errorf("the loader got %+v", facts)
	}
	if filepath.Dir(facts.Cwd) != l.o.Dir {
		t.Errorf("working directory %s, want one in %s", facts.Cwd, l.o.Dir)
	}
	if facts.Config != string(config) || facts.Package == "" { // JSON keeps the one, being ASCII, and not the other
		t.Errorf("the loader got the configuration %q and a package of %d bytes", facts.Config, len(facts.Package))
	}
}

// TestModelledLoader: a loader may drive a simulation, and has to say so. Without a
// profile there is one without samples.
func TestModelledLoader(t *testing.T) {
	l := device(t, Options{}, "simulation")
	r, err := l.Run(context.Background(), load(t), quiet)
	if err != nil || r.Measured || l.Model() != "stub card, cycles are modelled" {
		t.Errorf("measured %v, model %q, %v", r.Measured, l.Model(), err)
	}
	if p, err := profile.Verify(r.Profile); err != nil || len(p.Tiles) != 0 {
		t.Errorf("profile %+v, %v", p, err)
	}
	if err := profile.Render(io.Discard, must(profile.Decode(r.Profile)), profile.RenderMeta{Measured: true}); err != nil {
		t.Errorf("page of an empty profile: %v", err)
	}
}

func TestNoisyLoader(t *testing.T) {
	n := 0
	if _, err := device(t, Options{}, "noise").Run(context.Background(), load(t), func(string) { n++ }); err != nil || n != maxLines-1 {
		t.Errorf("%d lines of progress, %v; want %d", n, err, maxLines-1)
	}
}

func TestBadLoaders(t *testing.T) {
	const soon = 200 * time.Millisecond
	for _, c := range []struct {
		mode string
		o    Options
		is   error
		want string
	}{
		{"hang at once", Options{Start: soon}, ErrTimeout, `no line "ipufarm-loader 1" within 200ms of its start`},
		{"hang", Options{Run: soon}, ErrTimeout, "it had not ended 200ms after it had started; its log ends with: waiting for the card"},
		{"say nothing", Options{}, ErrAnswer, `it ended without the line "ipufarm-loader 1"`},
		{"garbage", Options{}, ErrAnswer, `its first line is "\x00\x1b[31mhello\xff", "ipufarm-loader 1" is accepted`},
		{"endless garbage", Options{}, ErrAnswer, `its first line is "\xaa`},
		{"other version", Options{}, ErrAnswer, `its first line is "ipufarm-loader 2"`},
		{"no card", Options{}, ErrUnusable, "exit status 20; its log ends with: no card in slot 3"},
		{"unusable", Options{}, ErrUnusable, "exit status 20; it logged nothing"},
		{"fault", Options{}, runner.ErrFault, "exit status 10: the package is at fault; its log ends with: tile 17: exception 6 | stopped"},
		{"failure", Options{}, ErrExit, "exit status 3; its log ends with: "},
		{"signal", Options{}, ErrExit, "signal: killed"},
		{"children", Options{}, ErrLeftBehind, "(process "},
		{"late", Options{}, ErrLeftBehind, "(process "},
		{"no result", Options{}, ErrAnswer, "result.json is missing"},
		{"no outputs", Options{}, ErrAnswer, "outputs is missing"},
		{"folder for outputs", Options{}, ErrAnswer, "outputs is not a regular file"},
		{"link for outputs", Options{}, ErrAnswer, "outputs is not a regular file"},
		{"short outputs", Options{}, ErrAnswer, "outputs has 7 bytes, the package binds 8"},
		{"long outputs", Options{}, ErrAnswer, "outputs has 9 bytes, at most 8 are accepted"},
		{"large result", Options{}, ErrAnswer, "result.json has 65607 bytes, at most 65536 are accepted"},
		{"garbage for a profile", Options{}, ErrAnswer, "samples: profile: "},
	} {
		t.Run(c.mode, func(t *testing.T) {
			l := device(t, c.o, c.mode)
			r, err := l.Run(context.Background(), load(t), quiet)
			if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), l.o.Command[0]) {
				t.Fatalf("%v, want %q with %q and the command", err, c.is, c.want)
			}
			if errors.Is(err, runner.ErrFault) != (c.is == runner.ErrFault) {
				t.Errorf("%v is, or is not, the package's fault", err)
			}
			if len(err.Error()) > 4<<10 || strings.ContainsAny(err.Error(), "\x00\x1b\n") {
				t.Errorf("%d bytes that do not suit a message: %q", len(err.Error()), err)
			}
			if r.Outputs != nil || strings.Contains(l.Model(), "cycles") {
				t.Errorf("a failed run left outputs %q and the model %q", r.Outputs, l.Model())
			}
			if found := living(t, l.o.Command[0], c.mode); len(found) > 0 {
				t.Errorf("processes live on: %q", found)
			}
		})
	}
}

// living lists the processes that are stubs of a mode or their children.
func living(t *testing.T, executable, mode string) (found []string) {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil || len(paths) == 0 {
		t.Fatalf("%v: no processes in /proc", err)
	}
	for _, path := range paths {
		line, _ := os.ReadFile(path) // of a zombie it is empty
		for _, m := range []string{mode, "sleep", "answer later"} {
			if strings.HasPrefix(string(line), executable+"\x00stub\x00"+m+"\x00") {
				found = append(found, path+": "+strings.ReplaceAll(string(line), "\x00", " "))
			}
		}
	}
	return found
}

// TestLeftBehindAreNamed: both the child in the loader's group and the one that
// left it are in the error.
func TestLeftBehindAreNamed(t *testing.T) {
	_, err := device(t, Options{}, "children").Run(context.Background(), load(t), quiet)
	if n := len(regexp.MustCompile(`\(process \d+\)`).FindAllString(fmt.Sprint(err), -1)); n != 2 {
		t.Errorf("%v names %d processes, want 2", err, n)
	}
}

func TestCancelKillsTheGroup(t *testing.T) {
	cause := errors.New("the lease was lost")
	ctx, cancel := context.WithCancelCause(context.Background())
	l := device(t, Options{}, "hang")
	// The loader and its children are all there when a child is.
	go func() {
		for range 1000 {
			if len(living(t, l.o.Command[0], "hang")) == 3 {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		cancel(cause)
	}()
	if _, err := l.Run(ctx, load(t), quiet); !errors.Is(err, cause) {
		t.Errorf("%v, want %v", err, cause)
	}
	if found := living(t, l.o.Command[0], "hang"); len(found) > 0 {
		t.Errorf("processes live on: %q", found)
	}
}

func TestBadPackagesNeverReachTheLoader(t *testing.T) {
	l := device(t, Options{}, "good")
	good := load(t)
	empty := must(program.Encode(&program.Package{SchemaVersion: program.SchemaVersion, Target: program.Target}))
	huge := must(program.Encode(&program.Package{SchemaVersion: program.SchemaVersion, Target: program.Target,
		Outputs: []program.Binding{{Name: "y", DType: "f32", Shape: []uint32{1}, Slices: []program.RegionSlice{{Size: 1 << 40}}}}}))
	for name, c := range map[string]struct {
		x    runner.Load
		want string
	}{
		"rubbish":    {runner.Load{Package: []byte("rubbish")}, "package: "},
		"no outputs": {runner.Load{Package: empty}, "outputs have 0 bytes"},
		"huge":       {runner.Load{Package: huge}, "outputs have 1099511627776 bytes"},
		"parameters": {runner.Load{Package: good.Package, Inputs: good.Inputs}, "0 bytes of parameters, the package binds 4"},
		"inputs":     {runner.Load{Package: good.Package, Parameters: good.Parameters, Inputs: []byte("x")}, "1 bytes of inputs, the package binds 8"},
	} {
		_, err := l.Run(context.Background(), c.x, quiet)
		if !errors.Is(err, runner.ErrFault) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want a fault with %q", name, err, c.want)
		}
	}
}

func TestCommandThatCannotBeStarted(t *testing.T) {
	for _, path := range []string{filepath.Join(t.TempDir(), "none"), t.TempDir()} {
		l, err := New(Options{Command: []string{path}, Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.Run(context.Background(), load(t), quiet); !errors.Is(err, ErrStart) || !strings.Contains(err.Error(), path) {
			t.Errorf("%v, want %q with %s", err, ErrStart, path)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for name, o := range map[string]Options{
		"no command":       {},
		"a relative path":  {Command: []string{"loader"}},
		"a bad file":       {Command: []string{"/loader"}, Config: []byte("rubbish")},
		"a negative limit": {Command: []string{"/loader"}, Run: -1},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		``:                                   "EOF",
		`garbage`:                            "invalid character",
		`[]`:                                 "cannot unmarshal array",
		goodResult + `x`:                     "1 bytes behind the object",
		goodResult + goodResult:              "behind the object",
		"{\"version\":1,\"model\":\"\xff\"}": "not UTF-8",
		`{"version":2}`:                      "version 2, 1 is accepted",
		`{"version":1,"model":""}`:           "0 characters",
		`{"version":1,"model":"a\nb"}`:       "cannot be printed",
		`{"version":1,"model":"` + strings.Repeat("x", 129) + `"}`:                           "129 characters, 1 to 128",
		`{"version":1,"model":"x"}`:                                                          "cycles 0, 1 to 9007199254740992",
		`{"version":1,"model":"x","cycles":-1}`:                                              "cycles",
		`{"version":1,"model":"x","cycles":1.5}`:                                             "cycles",
		`{"version":1,"model":"x","cycles":1e3}`:                                             "cycles",
		`{"version":1,"model":"x","cycles":"12"}`:                                            "cycles",
		`{"version":1,"model":"x","cycles":9007199254740993}`:                                "cycles 9007199254740993",
		`{"version":1,"model":"x","cycles":99999999999999999999}`:                            "cycles",
		`{"version":1,"model":"x","cycles":1}`:                                               `cycles_are ""`,
		`{"version":1,"model":"x","cycles":1,"cycles_are":"guessed"}`:                        `cycles_are "guessed"`,
		`{"version":1,"model":"x","cycles":1,"cycles_are":"measured","power":3}`:             "unknown field",
		`{"version":1,"model":"x","cycles":1,"cycles_are":"measured","profile":"../x"}`:      `profile "../x"`,
		`{"version":1,"model":"x","cycles":1,"cycles_are":"measured","profile":".."}`:        `profile ".."`,
		`{"version":1,"model":"x","cycles":1,"cycles_are":"measured","profile":"/x"}`:        `profile "/x"`,
		`{"version":1,"model":"x","cycles":1,"cycles_are":"measured","detail":[1]}`:          "an object of at most",
		`{"version":1,"model":"x","cycles":1,"cycles_are":"measured","detail":"not object"}`: "an object of at most",
	} {
		if _, err := parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestInputEndsWithTheRunner: a loader whose runner dies without a word is told by
// the end of its standard input.
func TestInputEndsWithTheRunner(t *testing.T) {
	if path := os.Getenv("LOADER_TEST_RUNNER"); path != "" { // the runner that dies
		device(t, Options{}, "input ends", path+".started", path+".ended").Run(context.Background(), load(t), quiet)
		return
	}
	path := filepath.Join(t.TempDir(), "loader")
	c := exec.Command(os.Args[0], "-test.run=^TestInputEndsWithTheRunner$")
	c.Env = append(os.Environ(), "LOADER_TEST_RUNNER="+path, "TMPDIR="+t.TempDir())
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	await := func(name string) {
		for range 3000 {
			if _, err := os.Stat(name); err == nil {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Errorf("%s was not written", name)
	}
	await(path + ".started")
	c.Process.Kill()
	c.Wait()
	await(path + ".ended")
	if pid, err := os.ReadFile(path + ".started"); t.Failed() && err == nil {
		if n, err := strconv.Atoi(string(pid)); err == nil {
			syscall.Kill(n, syscall.SIGKILL)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(goodResult))
	f.Add([]byte(`{"version":1,"model":"x","cycles":1,"cycles_are":"modelled","profile":"p","detail":{"a":[1]}}`))
	f.Add([]byte(`{"version":1,"cycles":1e9}`))
	f.Add([]byte(`{"detail":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := parse(data)
		if err != nil {
			return
		}
		if a.Profile != "" && filepath.Dir(filepath.Join("/out", a.Profile)) != "/out" {
			t.Errorf("profile %q leads elsewhere", a.Profile)
		}
		if len(a.Detail) > 0 && !json.Valid(a.Detail) {
			t.Errorf("detail %q", a.Detail)
		}
	})
}

func FuzzLines(f *testing.F) {
	f.Add([]byte("ipufarm-loader 1\nloading\n"), 3)
	f.Add([]byte("ipufarm-loader 1"), 1)
	f.Add([]byte("\n\n\x00"), 1)
	f.Add(bytes.Repeat([]byte("x"), 1000), 100)
	f.Fuzz(func(t *testing.T, data []byte, n int) {
		seen := 0
		l := newLines(func(s string) {
			seen++
			if s != clean(s) || len(s) > 4*maxLine {
				t.Errorf("progress %q", s)
			}
		})
		n = max(1, min(n, 1000))
		for chunk := range slices.Chunk(data, n) {
			l.Write(chunk)
		}
		first, _, ended := strings.Cut(string(data), "\n")
		if ended && l.begun() != (first == hello) || !ended && l.begun() {
			t.Errorf("%q: begun %v", data, l.begun())
		}
		if seen > 0 && !l.begun() {
			t.Errorf("progress of %q, which is no loader's", data)
		}
	})
}
