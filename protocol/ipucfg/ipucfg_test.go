package ipucfg

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// file writes a file down by hand: magic, count, numbers.
func file(magic string, count uint32, numbers ...uint32) []byte {
	b := binary.LittleEndian.AppendUint32([]byte(magic), count)
	for _, n := range numbers {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	return b
}

func TestDecode(t *testing.T) {
	writes := []Write{{0x3000, 7}, {0, 0xFFFFFFFF}, {Window - 4, 1}}
	data := file("IPUCFG1\x00", 3, 0x3000, 7, 0, 0xFFFFFFFF, Window-4, 1)
	got, err := Decode(data)
	if err != nil || !slices.Equal(got, writes) {
		t.Fatalf("%v, %v; want %v", got, err, writes)
	}
	if again, err := Encode(got); err != nil || !bytes.Equal(again, data) {
		t.Fatalf("encoded as %x, %v; want %x", again, err, data)
	}
	if got, err := Decode(file("IPUCFG1\x00", 0)); err != nil || len(got) != 0 {
		t.Errorf("no writes: %v, %v", got, err)
	}
}

func TestDecodeRefuses(t *testing.T) {
	const good = "IPUCFG1\x00"
	for _, c := range []struct {
		name string
		data []byte
		want string
	}{
		{"empty", nil, "truncated: 0 bytes, the header has 12"},
		{"magic only", []byte(good), "truncated: 8 bytes, the header has 12"},
		{"wrong magic", file("IPUCFG2\x00", 0), `starts with "IPUCFG2\x00", "IPUCFG1\x00" is accepted`},
		{"short and wrong", []byte("ELF"), `starts with "ELF"`},
		{"no writes", file(good, 1), "truncated: 12 bytes, 1 writes have 20"},
		{"half a write", file(good, 2, 0, 1, 4), "truncated: 24 bytes, 2 writes have 28"},
		{"trailing", append(file(good, 1, 0, 1), 0), "1 bytes behind the 1 writes"},
		{"more than counted", file(good, 1, 0, 1, 4, 2), "8 bytes behind the 1 writes"},
		{"repeated", file(good, 3, 8, 1, 4, 2, 8, 1), "write 2: offset 0x8 repeats that of write 0"},
		{"unaligned", file(good, 1, 6, 1), "write 0: offset 0x6 is not a multiple of 4"},
		{"outside", file(good, 1, Window, 1), "write 0: offset 0x80000, below 0x80000 are accepted"},
		{"far outside", file(good, 1, 0xFFFFFFFC, 1), "offset 0xFFFFFFFC"},
		{"too many", file(good, MaxWrites+1), "131073 writes, at most 131072"},
		{"count that wraps", file(good, 0x20000001, 0, 1), "536870913 writes"},
		{"oversize", make([]byte, MaxBytes+1), "1048589 bytes, at most 1048588"},
	} {
		_, err := Decode(c.data)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want one line with %q", c.name, err, c.want)
		}
	}
}

// TestLargest: a write to every word of the window is a file of the largest size.
func TestLargest(t *testing.T) {
	writes := make([]Write, MaxWrites)
	for i := range writes {
		writes[i] = Write{uint32(4 * i), uint32(i)}
	}
	data, err := Encode(writes)
	if err != nil || len(data) != MaxBytes {
		t.Fatalf("%d bytes, %v; want %d", len(data), err, MaxBytes)
	}
	if got, err := Decode(data); err != nil || !slices.Equal(got, writes) {
		t.Errorf("%d writes, %v", len(got), err)
	}
	if _, err := Encode(append(writes, Write{0, 0})); err == nil {
		t.Error("more writes than words were encoded")
	}
}

func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	good, bad, large := filepath.Join(dir, "good"), filepath.Join(dir, "bad"), filepath.Join(dir, "large")
	data := file("IPUCFG1\x00", 1, 4, 9)
	for path, data := range map[string][]byte{good: data, bad: []byte("rubbish"), large: make([]byte, MaxBytes+100)} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := ReadFile(good); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%x, %v", got, err)
	}
	for path, want := range map[string]string{
		bad: "starts with", large: "at most 1048588 are accepted", dir: "a regular file is accepted", filepath.Join(dir, "none"): "no such file",
	} {
		_, err := ReadFile(path)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Count(err.Error(), path) != 1 {
			t.Errorf("%s: %v, want the path and %q", path, err, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(file("IPUCFG1\x00", 0))
	f.Add(file("IPUCFG1\x00", 2, 0x302C, 1, 0x3030, 0))
	f.Add(file("IPUCFG1\x00", 2, 4, 1, 4, 0))
	f.Add(file("IPUCFG1\x00", 0xFFFFFFFF, 4, 1))
	f.Fuzz(func(t *testing.T, data []byte) {
		writes, err := Decode(data)
		if err != nil {
			return
		}
		if again, err := Encode(writes); err != nil || !bytes.Equal(again, data) {
			t.Errorf("%x was read as %v and written as %x, %v", data, writes, again, err)
		}
	})
}
