package main

import (
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// help returns what the program prints on standard output.
func help(t *testing.T, args ...string) string {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout := os.Stdout
	os.Stdout = w
	defer func() { os.Stdout = stdout }()
	text := make(chan string)
	go func() {
		all, _ := io.ReadAll(r)
		text <- string(all)
	}()
	status := run(append(args, "--help"))
	w.Close()
	if out := <-text; status == 0 {
		return out
	}
	t.Fatalf("ipufarm %v --help: status %d", args, status)
	return ""
}

// verbs lists the commands in a help text, in its order.
func verbs(text string) (list []string) {
	_, text, _ = strings.Cut(text, "Available Commands:\n")
	text, _, _ = strings.Cut(text, "\n\n")
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 0 && f[0] != "completion" && f[0] != "help" {
			list = append(list, f[0])
		}
	}
	return list
}

var codeSpan = regexp.MustCompile("`([^`]+)`")

// documented lists the verbs in the first column of the README's table of commands:
// the first of a row may have two words, the others are what may follow its first.
func documented(readme string) (list []string) {
	_, table, _ := strings.Cut(readme, "\n## Commands\n")
	table, _, _ = strings.Cut(table, "\n## ")
	_, table, _ = strings.Cut(table, "| verb |")
	table, _, _ = strings.Cut(table, "\n\n")
	for line := range strings.Lines(table) {
		cell, _, _ := strings.Cut(strings.TrimPrefix(line, "|"), "|")
		parent := ""
		for _, m := range codeSpan.FindAllStringSubmatch(cell, -1) {
			verb := m[1]
			if parent == "" {
				parent, _, _ = strings.Cut(verb, " ")
			} else {
				verb = parent + " " + verb
			}
			list = append(list, verb)
		}
	}
	return list
}

var flagName = regexp.MustCompile("--[a-z][a-z0-9-]+")

func TestReadmeListsVerbsAndFlags(t *testing.T) {
	var want []string
	all := "--help"
	for _, verb := range verbs(help(t)) {
		text := help(t, verb)
		all += text
		below := verbs(text)
		if len(below) == 0 {
			want = append(want, verb)
		}
		for _, sub := range below {
			want = append(want, verb+" "+sub)
			all += help(t, verb, sub)
		}
	}
	flags := flagName.FindAllString(all, -1)
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	got := documented(string(text))
	for _, v := range want {
		if !slices.Contains(got, v) {
			t.Errorf("README.md does not list the verb %q", v)
		}
	}
	for _, v := range got {
		if !slices.Contains(want, v) {
			t.Errorf("README.md lists the verb %q, which ipufarm does not have", v)
		}
	}
	for _, f := range flagName.FindAllString(string(text), -1) {
		if !slices.Contains(flags, f) {
			t.Errorf("README.md names the flag %s, which no verb has", f)
		}
	}
	if len(want) < 2 {
		t.Errorf("help lists %q: the test reads it wrongly", want)
	}
}
