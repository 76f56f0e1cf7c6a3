package compiler

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// maxFixture bounds the unpacked size of a fixture.
const maxFixture = 4 << 30

// PackFixture packs what a fixture folder has for the farm: case.json and the
// tensors, in the order of their names, without times and owners, so that equal
// fixtures give equal bytes. What else lies in the folder stays there.
func PackFixture(dir string) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, pattern := range []string{"case.json", "expected/*.npy", "inputs/*.npy", "weights/*.npy"} {
		names, err := fs.Glob(os.DirFS(dir), pattern)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			data, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(name)))
			if err != nil {
				return nil, err
			}
			if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(data)), Format: tar.FormatPAX}); err != nil {
				return nil, err
			}
			if _, err := w.Write(data); err != nil {
				return nil, err
			}
		}
	}
	return out.Bytes(), w.Close()
}

// unpackFixture unpacks what PackFixture made. Names that would leave the folder,
// links and sizes beyond any fixture are refused.
func unpackFixture(file, dir string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	r := tar.NewReader(f)
	left := int64(maxFixture)
	for {
		h, err := r.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("fixture: %w", err)
		}
		if h.Typeflag != tar.TypeReg || !fs.ValidPath(h.Name) || strings.Contains(h.Name, "\\") {
			return fmt.Errorf("fixture: entry %q is not a plain file below the fixture", h.Name)
		}
		if left -= h.Size; h.Size < 0 || left < 0 {
			return fmt.Errorf("fixture: more than %d bytes", int64(maxFixture))
		}
		target := filepath.Join(dir, filepath.FromSlash(path.Clean(h.Name)))
		if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
			return err
		}
		o, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return fmt.Errorf("fixture: %w", err)
		}
		_, err = io.Copy(o, r)
		if err := errors.Join(err, o.Close()); err != nil {
			return fmt.Errorf("fixture: %s: %w", h.Name, err)
		}
	}
}
