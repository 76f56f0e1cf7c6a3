// Package atomicfile writes files that are either complete or absent: the bytes
// go to a temporary file in the same folder, reach the disk, and only then take
// the final name. Whoever opens the final name never sees half a file, neither
// during the write nor after a crash or a power cut.
package atomicfile

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// tempTries bounds the search for a free temporary name. Names carry 64 random
// bits, so a second try already means that something else is wrong.
const tempTries = 8

// Write replaces the file at path with data. The folder must exist. A new file
// is readable by everyone that the umask admits; a replaced one keeps its
// permission bits. On error the previous file, if any, is untouched and nothing
// temporary is left.
func Write(path string, data []byte) error {
	return WriteFunc(path, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// WriteFunc is Write for contents that are produced piece by piece. An error of
// produce is returned as it is, and the file at path stays what it was.
func WriteFunc(path string, produce func(w io.Writer) error) (err error) {
	mode := fs.FileMode(0o666)
	// Renaming over a device, a pipe or a folder would replace it (or fail with a
	// message about the temporary name), which nobody who asked for a file meant.
	if info, statErr := os.Stat(path); statErr == nil {
		if !info.Mode().IsRegular() {
			return fmt.Errorf("cannot write %s: it exists and is not a regular file", path)
		}
		mode = info.Mode().Perm()
	}
	temp, err := create(path, mode)
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			temp.Close() // a second Close after a failed one is harmless
			os.Remove(temp.Name())
		}
	}()
	buffered := bufio.NewWriterSize(temp, 1<<16)
	if err := produce(buffered); err != nil {
		return err
	}
	if err := finish(buffered, temp, path); err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	return nil
}

// create opens a temporary file beside path that did not exist before.
func create(path string, mode fs.FileMode) (*os.File, error) {
	var err error
	for range tempTries {
		name := filepath.Join(filepath.Dir(path), fmt.Sprintf(".%s.%016x.tmp", filepath.Base(path), rand.Uint64()))
		var f *os.File
		if f, err = os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode); err == nil {
			return f, nil
		}
		if !os.IsExist(err) {
			break
		}
	}
	// The temporary name means nothing to the reader of the message.
	if pathErr, ok := err.(*fs.PathError); ok {
		err = pathErr.Err
	}
	return nil, err
}

// finish makes the temporary file durable and gives it its name.
func finish(buffered *bufio.Writer, temp *os.File, path string) error {
	if err := buffered.Flush(); err != nil {
		return err
	}
	if err := temp.Sync(); err != nil {
		return err
	}
	if err := temp.Close(); err != nil {
		return err
	}
	if err := os.Rename(temp.Name(), path); err != nil {
		return err
	}
	// The rename itself is durable once the folder is. A file system that cannot
	// sync a folder has still renamed, so that is no failure.
	if folder, err := os.Open(filepath.Dir(path)); err == nil {
		folder.Sync()
		folder.Close()
	}
	return nil
}
