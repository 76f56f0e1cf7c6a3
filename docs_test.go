package main_test

import (
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// folders are the parts of the repository, each with a tour at its door.
var folders = []string{"compiler", "coordinator", "deploy", "protocol", "runner", "worker"}

func TestEveryFolderHasATour(t *testing.T) {
	for _, f := range append([]string{"."}, folders...) {
		text, err := os.ReadFile(filepath.Join(f, "README.md"))
		if err != nil {
			t.Error(err)
		} else if !strings.HasPrefix(string(text), "# ") {
			t.Errorf("%s/README.md does not start with a title", f)
		}
	}
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// deadLinks returns the relative links of a text that lead nowhere from a folder.
func deadLinks(folder, text string) (dead []string) {
	for _, m := range link.FindAllStringSubmatch(text, -1) {
		u, err := url.Parse(m[1])
		if err == nil && (u.Scheme != "" || u.Path == "") {
			continue // elsewhere, or a heading of the same page
		}
		if err == nil {
			_, err = os.Stat(filepath.Join(folder, filepath.FromSlash(u.Path)))
		}
		if err != nil {
			dead = append(dead, m[1])
		}
	}
	return dead
}

var goFile = regexp.MustCompile("`([a-z0-9_/]+\\.go)`")

// missingFiles returns the Go files that a page of a folder names in code spans and
// that lie neither there, nor below, nor where the name says from the root.
func missingFiles(folder, text string) (missing []string) {
	for _, m := range goFile.FindAllStringSubmatch(text, -1) {
		_, err := os.Stat(filepath.FromSlash(m[1]))
		found := err == nil
		filepath.WalkDir(folder, func(p string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && (p == m[1] || strings.HasSuffix(filepath.ToSlash(p), "/"+m[1])) {
				found = true
				return fs.SkipAll
			}
			return err
		})
		if !found {
			missing = append(missing, m[1])
		}
	}
	return missing
}

func TestMissingFiles(t *testing.T) {
	text := "`main.go` `compiler/compile.go` `coordinator/compile.go` `nowhere.go` `main.rs`"
	if got := strings.Join(missingFiles(".", text), " "); got != "coordinator/compile.go nowhere.go" {
		t.Errorf("missing files: %q, want coordinator/compile.go nowhere.go", got)
	}
}

func TestLinksLeadSomewhere(t *testing.T) {
	pages := 0
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && p != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "artifacts") {
			return filepath.SkipDir
		}
		if d.IsDir() || filepath.Ext(p) != ".md" {
			return nil
		}
		text, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		pages++
		for _, l := range deadLinks(filepath.Dir(p), string(text)) {
			t.Errorf("%s links to %s, which is not there", p, l)
		}
		for _, f := range missingFiles(filepath.Dir(p), string(text)) {
			t.Errorf("%s names %s, which is not there or below", p, f)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if pages == 0 {
		t.Error("no page found: the test must run in the root of the repository")
	}
}

func TestDeadLinks(t *testing.T) {
	text := "[a](README.md) [b](README.md#flow) [c](#flow) [d](https://example.org/x) [e](compiler/) [f](nowhere.md) [g](../x/y.go)"
	if got := strings.Join(deadLinks(".", text), " "); got != "nowhere.md ../x/y.go" {
		t.Errorf("dead links: %q, want nowhere.md ../x/y.go", got)
	}
}
