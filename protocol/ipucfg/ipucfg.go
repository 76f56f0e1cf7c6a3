// Package ipucfg reads and writes device configuration files: what the registers
// of a card are set to before anything is loaded on it. The file is captured from a
// card that works and handed to whoever drives one like it.
//
// The bytes, all numbers little-endian (published bring-up notes, 2026-08):
//
//	offset  size       what
//	0       8          "IPUCFG1" and a zero byte
//	8       4          count of writes
//	12      8 · count  writes in order: register offset u32, value u32
//
// The file ends with the last write. Offsets are of whole words inside the 512 KiB
// configuration window, and none appears twice: a second write would mean that two
// captures were joined, and which of them holds is nobody's to guess.
package ipucfg

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

const (
	magic      = "IPUCFG1\x00"
	headerSize = len(magic) + 4
	writeSize  = 8

	// Window is the size of the configuration window in bytes (published driver
	// notes, 2026-08: a 512 KiB base address register).
	Window = 512 << 10
	// MaxWrites is one write for each word of the window.
	MaxWrites = Window / 4
	// MaxBytes is the size of the largest file.
	MaxBytes = headerSize + MaxWrites*writeSize
)

// Write is the value of one register, named by its byte offset in the window.
type Write struct{ Offset, Value uint32 }

// Decode reads a file and checks all that its description above promises.
func Decode(data []byte) ([]Write, error) {
	if len(data) > MaxBytes {
		return nil, fmt.Errorf("device configuration: %d bytes, at most %d are accepted", len(data), MaxBytes)
	}
	if n := min(len(data), len(magic)); string(data[:n]) != magic[:n] {
		return nil, fmt.Errorf("device configuration: starts with %q, %q is accepted", data[:n], magic)
	}
	if len(data) < headerSize {
		return nil, fmt.Errorf("device configuration: truncated: %d bytes, the header has %d", len(data), headerSize)
	}
	count := binary.LittleEndian.Uint32(data[len(magic):])
	if count > MaxWrites {
		return nil, fmt.Errorf("device configuration: %d writes, at most %d are accepted", count, MaxWrites)
	}
	want := headerSize + int(count)*writeSize
	switch {
	case len(data) < want:
		return nil, fmt.Errorf("device configuration: truncated: %d bytes, %d writes have %d", len(data), count, want)
	case len(data) > want:
		return nil, fmt.Errorf("device configuration: %d bytes behind the %d writes, none are accepted", len(data)-want, count)
	}
	writes := make([]Write, count)
	for i := range writes {
		at := data[headerSize+i*writeSize:]
		writes[i] = Write{binary.LittleEndian.Uint32(at), binary.LittleEndian.Uint32(at[4:])}
	}
	if err := check(writes); err != nil {
		return nil, err
	}
	return writes, nil
}

func check(writes []Write) error {
	if len(writes) > MaxWrites {
		return fmt.Errorf("device configuration: %d writes, at most %d are accepted", len(writes), MaxWrites)
	}
	seen := make([]int32, MaxWrites) // 1 + index of the write of a word
	for i, w := range writes {
		switch {
		case w.Offset%4 != 0:
			return fmt.Errorf("device configuration: write %d: offset 0x%X is not a multiple of 4", i, w.Offset)
		case w.Offset >= Window:
			return fmt.Errorf("device configuration: write %d: offset 0x%X, below 0x%X are accepted", i, w.Offset, Window)
		case seen[w.Offset/4] != 0:
			return fmt.Errorf("device configuration: write %d: offset 0x%X repeats that of write %d", i, w.Offset, seen[w.Offset/4]-1)
		}
		seen[w.Offset/4] = int32(i) + 1
	}
	return nil
}

// Encode is the file of some writes. It refuses what Decode refuses.
func Encode(writes []Write) ([]byte, error) {
	if err := check(writes); err != nil {
		return nil, err
	}
	data := make([]byte, 0, headerSize+len(writes)*writeSize)
	data = append(data, magic...)
	data = binary.LittleEndian.AppendUint32(data, uint32(len(writes)))
	for _, w := range writes {
		data = binary.LittleEndian.AppendUint32(data, w.Offset)
		data = binary.LittleEndian.AppendUint32(data, w.Value)
	}
	return data, nil
}

// ReadFile returns the bytes of a file that Decode accepts. Its errors name the
// path.
func ReadFile(path string) ([]byte, error) {
	// A pipe or a device could have no end, or block before its beginning.
	info, err := os.Stat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("a regular file is accepted")
	}
	var data []byte
	if err == nil {
		data, err = read(path)
	}
	if err == nil {
		_, err = Decode(data)
	}
	if err != nil {
		var inside *fs.PathError
		if errors.As(err, &inside) {
			err = inside.Err // the path is named once
		}
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return data, nil
}

// read reads no more of a file than shows that it is too large.
func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var b bytes.Buffer
	_, err = b.ReadFrom(io.LimitReader(f, int64(MaxBytes)+1))
	return b.Bytes(), err
}
