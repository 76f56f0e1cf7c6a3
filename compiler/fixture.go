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

// PackFixture packs a fixture folder for the farm: its files in the order of their
// names, without times and owners, so that equal folders give equal bytes.
func PackFixture(dir string) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		if !d.Type().IsRegular() {
			return fmt.Errorf("%s is not a regular file", p)
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Name: filepath.ToSlash(rel), Mode: 0o600, Size: int64(len(data)), Format: tar.FormatPAX}); err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("--reference-fixture: %w", err)
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
