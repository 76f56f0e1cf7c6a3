package atomicfile

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func names(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return strings.Join(all, " ")
}

func TestWriteCreatesAndReplaces(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	for _, want := range []string{"first", "", strings.Repeat("long ", 1<<16)} {
		if err := Write(path, []byte(want)); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("read back %d bytes, wrote %d", len(got), len(want))
		}
	}
	if got := names(t, dir); got != "out" {
		t.Errorf("folder holds %q", got)
	}
}

func TestReplacedFileKeepsPermissions(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []byte("x")); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v after replacing a 0600 file", info.Mode().Perm())
	}
}

func TestFailedProducerLeavesThePreviousFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	if err := Write(path, []byte("before")); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	err := WriteFunc(path, func(w io.Writer) error {
		io.WriteString(w, strings.Repeat("half", 1<<16))
		if got := names(t, dir); !strings.Contains(got, ".tmp") {
			t.Errorf("no temporary file beside the target during the write: %q", got)
		}
		return broken
	})
	if err != broken {
		t.Errorf("error %v, want the producer's own", err)
	}
	if got, _ := os.ReadFile(path); string(got) != "before" {
		t.Errorf("file holds %q after a failed write", got)
	}
	if got := names(t, dir); got != "out" {
		t.Errorf("folder holds %q after a failed write", got)
	}
}

func TestWhatIsNotARegularFileIsRefused(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{dir, os.DevNull} {
		err := Write(path, []byte("x"))
		if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "regular file") {
			t.Errorf("Write(%s): %v", path, err)
		}
	}
	missing := filepath.Join(dir, "no", "such", "folder")
	err := Write(missing, nil)
	if err == nil || !strings.Contains(err.Error(), missing) || strings.Contains(err.Error(), ".tmp") {
		t.Errorf("Write into a missing folder: %v", err)
	}
}
