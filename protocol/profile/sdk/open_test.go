package sdk_test

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ipufarm/protocol/profile/sdk"
	"ipufarm/protocol/profile/sdk/sdktest"
)

// small returns the bytes of a small recording.
func small(t testing.TB, after ...string) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "profile.pop")
	sdktest.Write(t, path, sdktest.Small(), after...)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestRefusals(t *testing.T) {
	good := small(t)
	with := func(at int, v ...byte) []byte {
		b := bytes.Clone(good)
		copy(b[at:], v)
		return b
	}
	page := int(binary.BigEndian.Uint16(good[16:]))
	for _, c := range []struct {
		name string
		data []byte
		says string
	}{
		{"empty", nil, "not an SQLite database"},
		{"text", []byte("{\"profile\": 1}\n\x1b[2J and so on"), `starts with "{\"profile\": 1}\n\x1b"`},
		{"header only", good[:60], "truncated: 60 bytes"},
		{"half", good[:len(good)/2], "truncated: its header claims"},
		{"one byte short", good[:len(good)-1], "truncated"},
		{"newer format", with(18, 3, 3), "a newer SQLite file format"},
		{"newer schema format", with(44, 0, 0, 0, 9), "a newer SQLite file format"},
		{"odd pages", with(16, 0x0F, 0xFF), "damaged: pages of 4095 bytes"},
		{"no pages", with(16, 0, 0), "damaged: pages of 0 bytes"},
		{"schema overwritten", with(100, bytes.Repeat([]byte{0xFF}, 200)...), "damaged"},
		{"tree overwritten", with(page, bytes.Repeat([]byte{0x5A}, page)...), "damaged"},
		{"a stranger", func() []byte {
			path := filepath.Join(t.TempDir(), "x.db")
			db, err := sql.Open("sqlite", path)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			if _, err := db.Exec("CREATE TABLE songs (name)"); err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}(), "its tables: songs"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "a b?c#d%41.pop")
			if err := os.WriteFile(path, c.data, 0o644); err != nil {
				t.Fatal(err)
			}
			_, err := sdk.Read(context.Background(), path, 0)
			if err == nil || !strings.HasPrefix(err.Error(), path+": ") || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q, want one line that names the file and says %q", err, c.says)
			}
		})
	}
	for _, path := range []string{t.TempDir(), filepath.Join(t.TempDir(), "none.pop"), "/dev/null"} {
		if _, err := sdk.Read(context.Background(), path, 0); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: error %v", path, err)
		}
	}
}

// Reading leaves nothing behind, whatever the name of the file means in a URI.
func TestReadsOnly(t *testing.T) {
	for _, after := range [][]string{nil, {"PRAGMA journal_mode=WAL"}} {
		dir := t.TempDir()
		path := filepath.Join(dir, "a b?mode=rwc&c#d%41.pop")
		b := small(t, after...)
		if err := os.WriteFile(path, b, 0o444); err != nil {
			t.Fatal(err)
		}
		if _, err := sdk.Read(context.Background(), path, 0); err != nil {
			t.Fatal(err)
		}
		again, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(again, b) {
			t.Errorf("the recording changed, %v", err)
		}
		if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
			t.Errorf("%d files beside the recording, %v", len(files)-1, err)
		}
	}
}

func TestLocked(t *testing.T) {
	for _, c := range []struct {
		name  string
		setup []string
		hold  []string
		says  string
	}{
		{"exclusive", nil, []string{"BEGIN EXCLUSIVE"}, "locked by another process"},
		{"write-ahead log", []string{"PRAGMA journal_mode=WAL"}, []string{"PRAGMA wal_autocheckpoint=0", "DELETE FROM memory_by_tile"}, "holds changes that are not in it yet"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "profile.pop")
			sdktest.Write(t, path, sdktest.Small(), c.setup...)
			db, err := sql.Open("sqlite", path)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			db.SetMaxOpenConns(1)
			for _, s := range c.hold {
				if _, err := db.Exec(s); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := sdk.Read(context.Background(), path, 0); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error %v, want %q", err, c.says)
			}
			db.Close()
			if _, err := sdk.Read(context.Background(), path, 0); err != nil {
				t.Errorf("after it is closed: %v", err)
			}
		})
	}
}

// A writer that died in a transaction leaves a journal: the file is not what was
// last committed, and putting it right would be writing.
func TestHotJournal(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "profile.pop")
	sdktest.Write(t, path, sdktest.Small())
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1)
	for _, s := range []string{"PRAGMA cache_size=1", "PRAGMA cache_spill=1", "BEGIN", "UPDATE steps_by_ipu SET cycles = cycles + 1", "UPDATE steps SET type = 'x' || type"} {
		if _, err := db.Exec(s); err != nil {
			t.Fatal(err)
		}
	}
	// The files as they are now, elsewhere: nobody holds a lock on them.
	crashed := filepath.Join(dir, "crashed.pop")
	for _, suffix := range []string{"", "-journal"} {
		b, err := os.ReadFile(path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if suffix != "" && binary.BigEndian.Uint64(b) == 0 {
			t.Fatal("the journal is not in use")
		}
		if err := os.WriteFile(crashed+suffix, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := sdk.Read(context.Background(), crashed, 0); err == nil || !strings.Contains(err.Error(), "not closed by its writer") {
		t.Errorf("error %v", err)
	}
}

// A tree that reaches one leaf on many ways has as many rows as it likes.
func TestBillionRows(t *testing.T) {
	// A view that would never end is no table.
	for _, c := range []struct {
		name  string
		after []string
	}{
		{"view", []string{"ALTER TABLE vars_info RENAME TO v", "CREATE VIEW vars_info AS WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT n AS tile, 2 AS category, n AS size_bytes, 0 AS name FROM r"}},
		{"check", []string{"CREATE TABLE late (x CHECK (length(hex(randomblob(100000000))) > 0))", "PRAGMA ignore_check_constraints=1", "INSERT INTO late VALUES (1)"}},
	} {
		t.Run(c.name, func(t *testing.T) { read(t, sdktest.Small(), c.after...).Summarize() })
	}
	t.Run("tree", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "profile.pop")
		sdktest.Write(t, path, sdktest.Small())
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		multiply(t, path, b)
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := sdk.Read(context.Background(), path, 0); err == nil || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("error %v, want damaged", err)
		}
	})
	t.Run("numbers", func(t *testing.T) { // ids that would not fit in an array
		rec := read(t, sdktest.Small(), "INSERT INTO steps VALUES (999999999, 'Sync', 1000000000, NULL)", "UPDATE memory_by_tile SET tile = 1000000000 WHERE tile = 3")
		if last := rec.Steps[len(rec.Steps)-1]; last.ID != 999999999 || len(rec.Memory) != 3 {
			t.Errorf("last step %+v, %d tiles", last, len(rec.Memory))
		}
	})
}

// multiply makes all children of the root page of steps_by_ipu the same page.
func multiply(t *testing.T, path string, b []byte) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var root int
	if err := db.QueryRow("SELECT rootpage FROM sqlite_schema WHERE name = 'steps_by_ipu'").Scan(&root); err != nil {
		t.Fatal(err)
	}
	size := int(binary.BigEndian.Uint16(b[16:]))
	p := b[(root-1)*size : root*size]
	if p[0] != 5 {
		t.Fatalf("page of type %d, want an interior page of a table", p[0])
	}
	cells := int(binary.BigEndian.Uint16(p[3:]))
	if cells < 2 {
		t.Fatalf("%d children are too few", cells)
	}
	for i := range cells {
		at := int(binary.BigEndian.Uint16(p[12+2*i:]))
		copy(p[at:at+4], p[8:12]) // the child on the right
	}
}

func TestCancelled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "profile.pop")
	sdktest.Write(t, path, sdktest.Small())
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := sdk.Read(ctx, path, 0); err == nil || !strings.HasPrefix(err.Error(), path) {
		t.Errorf("error %v", err)
	}
}

// Whatever is in the file, reading it ends with an error of one line or with a
// recording that can be summarized and compared with itself.
func FuzzRead(f *testing.F) {
	good := small(f)
	page := int(binary.BigEndian.Uint16(good[16:]))
	for i := 0; i*page < len(good); i += 3 {
		f.Add(uint32(i*page), []byte{0x0D, 0, 0, 0xFF, 0xFF, 0x10})
		f.Add(uint32(i*page+page/2), []byte{0xFF, 0x81, 0x7F, 0, 6, 0x80})
	}
	f.Add(uint32(28), []byte{0xFF, 0xFF, 0xFF, 0xFF})
	f.Fuzz(func(t *testing.T, at uint32, patch []byte) {
		b := bytes.Clone(good)
		copy(b[int(at)%len(b):], patch)
		path := filepath.Join(t.TempDir(), "profile.pop")
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		rec, err := sdk.Read(context.Background(), path, 0)
		if err != nil {
			if strings.Contains(err.Error(), "\n") || !strings.HasPrefix(err.Error(), path) {
				t.Errorf("error %q", err)
			}
			return
		}
		if err := rec.Summarize().Write(t.TempDir()); err != nil {
			t.Error(err)
		}
	})
}
