package main_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The shape of the repository is a promise: who may import whom. Each rule below is
// data with its reason, and a broken one fails with the file, the import and the
// reason. Test files obey them too, unless a rule says otherwise: a test that needs
// both sides of an arrow belongs to deploy/local, which is there to see both.

const module = "ipufarm"

// An arrow says what packages in a folder may import of ours, and why no more.
// The most specific folder decides.
type arrow struct {
	from  string
	to    []string
	tests bool // hold test files to it
	why   string
}

var arrows = []arrow{
	{"protocol", []string{"protocol"}, true,
		"protocol/ is what the parties agree on; it must not know any of them"},
	{"compiler", []string{"compiler", "protocol"}, true,
		"the compiler meets the other parties only in protocol/, so that its estimate and the device's truth stay independent"},
	{"compiler/reference", []string{"compiler/graph", "protocol/numeric"}, false,
		"the reference is the judge; it must know nothing of tiles, plans and schedules"},
	{"runner", []string{"runner", "protocol"}, true,
		"the runner meets the other parties only in protocol/, so that the device's truth and the compiler's estimate stay independent"},
	{"worker", []string{"worker", "protocol"}, true,
		"coordinator, worker and runner are separate processes that meet only in protocol/; a worker gets its stages as a function"},
	{"coordinator", []string{"coordinator", "protocol"}, true,
		"coordinator, worker and runner are separate processes that meet only in protocol/; to the coordinator a spec is opaque"},
	{"deploy", []string{"compiler", "coordinator", "deploy", "protocol", "runner", "worker"}, true,
		"deploy/ puts the parties together and nothing else"},
	{"", []string{"compiler", "coordinator", "deploy", "protocol", "runner", "worker"}, true,
		"main.go puts the parties together and nothing else"},
}

// An owner keeps a dependency in a few folders. Tests of others may use it too where
// they play a stranger, who sends what no party of ours would.
type owner struct {
	module    string
	folders   []string
	strangers []string
	why       string
}

var owners = []owner{
	{"github.com/nats-io/nats.go", []string{"protocol/bus"}, []string{"deploy/local"},
		"only protocol/bus talks NATS, so that what JetStream does and does not promise is handled in one place"},
	{"github.com/nats-io/nats-server", []string{"protocol/bus"}, nil,
		"only protocol/bus starts a NATS server, with the settings that the farm relies on"},
	{"github.com/minio/minio-go", []string{"protocol/store"}, nil,
		"only protocol/store talks S3, so that digests are checked on every path"},
	{"github.com/versity/versitygw", []string{"protocol/store"}, nil,
		"only protocol/store starts an S3 server, with the cures for its faults"},
	{"capnproto.org/go/capnp", []string{"protocol"}, nil,
		"files are encoded and decoded in protocol/ alone; everybody else sees plain types"},
}

// inside reports whether a folder or module path is root or below it.
func inside(p, root string) bool { return p == root || strings.HasPrefix(p, root+"/") }

// broken says which rule a file of a folder breaks by an import, in a sentence, or
// returns "". Folders are relative to the root of the repository, which is "".
func broken(folder string, test bool, imported string) string {
	in := func(folders []string) bool {
		return slices.ContainsFunc(folders, func(f string) bool { return inside(folder, f) })
	}
	for _, o := range owners {
		if inside(imported, o.module) && !in(o.folders) && !(test && in(o.strangers)) {
			return o.why
		}
	}
	target, ours := strings.CutPrefix(imported, module+"/")
	if !ours && imported != module {
		return ""
	}
	if !ours {
		return "package main is where everything comes together; nobody imports it"
	}
	var found *arrow
	for i := range arrows {
		a := &arrows[i]
		if !inside(folder, a.from) || test && !a.tests {
			continue
		}
		if found == nil || len(a.from) > len(found.from) {
			found = a
		}
	}
	if found == nil {
		return "this folder has no rule; add it to arrows, with the reason for what it may see"
	}
	if !slices.ContainsFunc(found.to, func(f string) bool { return inside(target, f) }) {
		return found.why
	}
	return ""
}

func TestBroken(t *testing.T) {
	for _, c := range []struct {
		folder   string
		test     bool
		imported string
		fine     bool
	}{
		{"compiler/plan", false, "ipufarm/runner/device", false},
		{"compiler/plan", true, "ipufarm/runner/device", false},
		{"runner/device", false, "ipufarm/compiler/kernel", false},
		{"runner/device", true, "ipufarm/compiler", false},
		{"runner", false, "ipufarm/compilerx", false}, // a prefix of the name is not the folder
		{"runner/device", false, "ipufarm/protocol/machine", true},
		{"coordinator", false, "ipufarm/worker", false},
		{"coordinator", false, "ipufarm/runner", false},
		{"coordinator/web", false, "ipufarm/compiler", false},
		{"coordinator/web", false, "ipufarm/coordinator", true},
		{"worker", false, "ipufarm/runner", false},
		{"worker", false, "ipufarm/coordinator", false},
		{"worker", true, "ipufarm/coordinator", false},
		{"worker", false, "ipufarm/deploy/local", false},
		{"runner", false, "ipufarm/worker", false},
		{"runner", false, "ipufarm/coordinator", false},
		{"deploy/local", false, "ipufarm/coordinator", true},
		{"deploy/local", false, "ipufarm/worker", true},
		{"", false, "ipufarm/deploy/local", true},
		{"", false, "ipufarm/runner", true},
		{"deploy/local", true, "ipufarm", false},
		{"protocol/store", false, "ipufarm/protocol", true},
		{"protocol/store", false, "ipufarm/worker", false},
		{"protocol", true, "ipufarm/compiler", false},
		{"compiler/reference", false, "ipufarm/compiler/graph", true},
		{"compiler/reference", false, "ipufarm/protocol/numeric", true},
		{"compiler/reference", false, "ipufarm/protocol/machine", false},
		{"compiler/reference", false, "ipufarm/compiler/layout", false},
		{"compiler/reference", true, "ipufarm/compiler/workload", true},
		{"compiler/reference", true, "ipufarm/runner", false},
		{"util", false, "ipufarm/protocol", false}, // a new folder needs a rule first
		{"worker", false, "github.com/nats-io/nats.go", false},
		{"worker", false, "github.com/nats-io/nats.go/jetstream", false},
		{"worker", true, "github.com/nats-io/nats-server/v2/server", false},
		{"deploy/local", false, "github.com/nats-io/nats-server/v2/server", false},
		{"protocol/bus", false, "github.com/nats-io/nats.go/jetstream", true},
		{"deploy/local", true, "github.com/nats-io/nats.go", true},
		{"deploy/local", false, "github.com/nats-io/nats.go", false},
		{"protocol/bus/server", false, "github.com/nats-io/nats-server/v2/server", true},
		{"protocol/busy", false, "github.com/nats-io/nats.go", false},
		{"protocol/bus", false, "github.com/minio/minio-go/v7", false},
		{"protocol/store", false, "github.com/minio/minio-go/v7/pkg/credentials", true},
		{"deploy/local", false, "github.com/minio/minio-go/v7", false},
		{"protocol/store/server", false, "github.com/versity/versitygw/embedgw", true},
		{"deploy/local", false, "github.com/versity/versitygw/embedgw", false},
		{"coordinator", false, "github.com/versity/versitygw/embedgw", false},
		{"compiler/assemble", false, "capnproto.org/go/capnp/v3", false},
		{"protocol/program/wire", false, "capnproto.org/go/capnp/v3", true},
		{"worker", false, "net/http", true},
		{"worker", false, "golang.org/x/sync/errgroup", true},
	} {
		why := broken(c.folder, c.test, c.imported)
		if (why == "") != c.fine {
			t.Errorf("%s importing %s (test file: %v): %q, want it to be fine: %v", c.folder, c.imported, c.test, why, c.fine)
		}
	}
}

// source is a Go file of the repository, up to its imports.
type source struct {
	path   string // slash-separated, from the root
	folder string
	test   bool
	file   *ast.File
}

// sources parses every Go file of the repository, whatever its build constraints.
func sources(t *testing.T) []source {
	t.Helper()
	var list []source
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() {
			if p != "." && (strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") || name == "testdata" || name == "artifacts") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), p, nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		s := source{path: filepath.ToSlash(p), test: strings.HasSuffix(name, "_test.go"), file: f}
		if s.folder = path.Dir(s.path); s.folder == "." {
			s.folder = ""
		}
		list = append(list, s)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(list) == 0 {
		t.Fatal("no Go file found: the test must run in the root of the repository")
	}
	return list
}

func TestArrows(t *testing.T) {
	for _, s := range sources(t) {
		for _, i := range s.file.Imports {
			imported, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				t.Fatalf("%s: import %s: %v", s.path, i.Path.Value, err)
			}
			if why := broken(s.folder, s.test, imported); why != "" {
				t.Errorf("%s imports %s, but %s", s.path, imported, why)
			}
		}
	}
}

// comments counts the package comments of each folder's files and reports folders
// that do not have exactly one, or one that does not start as godoc expects.
func comments(list []source) []string {
	type found struct {
		name string
		in   []string
		text string
	}
	packages := map[string]*found{}
	for _, s := range list {
		if s.test {
			continue
		}
		p := packages[s.folder]
		if p == nil {
			p = &found{name: s.file.Name.Name}
			packages[s.folder] = p
		}
		if s.file.Doc != nil {
			p.in = append(p.in, s.path)
			p.text = s.file.Doc.Text()
		}
	}
	var wrong []string
	for folder, p := range packages {
		want := "Package " + p.name + " "
		if p.name == "main" {
			want = "Command "
		}
		switch {
		case len(p.in) == 0:
			wrong = append(wrong, fmt.Sprintf("package %s in %q has no package comment", p.name, folder))
		case len(p.in) > 1:
			wrong = append(wrong, fmt.Sprintf("package %s has more than one package comment: %s", p.name, strings.Join(p.in, ", ")))
		case !strings.HasPrefix(p.text, want):
			wrong = append(wrong, fmt.Sprintf("%s: the package comment starts with %q, want %q", p.in[0], firstWords(p.text), want))
		}
	}
	slices.Sort(wrong)
	return wrong
}

func firstWords(s string) string { return s[:min(len(s), 30)] }

func TestPackageComments(t *testing.T) {
	for _, w := range comments(sources(t)) {
		t.Error(w)
	}
}

func TestComments(t *testing.T) {
	parse := func(folder, name, text string) source {
		f, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		return source{path: folder + "/" + name, folder: folder, test: strings.HasSuffix(name, "_test.go"), file: f}
	}
	const documented, bare = "// Package a does.\npackage a\n", "//go:build linux\n\npackage a\n"
	for _, c := range []struct {
		name string
		list []source
		want int
	}{
		{"one", []source{parse("a", "a.go", documented), parse("a", "b.go", bare)}, 0},
		{"none", []source{parse("a", "a.go", bare), parse("a", "a_test.go", documented)}, 1},
		{"two", []source{parse("a", "a.go", documented), parse("a", "b.go", documented)}, 1},
		{"another's", []source{parse("b", "b.go", "// Package a does.\npackage b\n")}, 1},
		{"command", []source{parse("", "main.go", "// Command a does.\npackage main\n")}, 0},
		{"two packages", []source{parse("a", "a.go", documented), parse("b", "b.go", bare)}, 1},
	} {
		if got := comments(c.list); len(got) != c.want {
			t.Errorf("%s: %q, want %d complaints", c.name, got, c.want)
		}
	}
}
