package coordinator

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"ipufarm/protocol"
)

func TestDatabaseKeepsJobs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "farm.db")
	db, err := openDatabase(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openDatabase(path); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("opened twice: %v", err)
	}
	if _, known, err := db.meta(); known || err != nil {
		t.Errorf("a new database knows a position (%v)", err)
	}
	at := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	j := NewJob(protocol.Job{Version: protocol.Version, ID: strings.Repeat("0a", 16), Spec: []byte(`{}`), Policy: protocol.Policy{Name: protocol.FirstFeasible}}, at)
	other := NewJob(protocol.Job{Version: protocol.Version, ID: strings.Repeat("0b", 16), Spec: []byte(`{}`), Policy: protocol.Policy{Name: protocol.FirstFeasible}}, at)
	m := metaRecord{Generation: 2, Stream: at, Cursor: 77}
	changes := []changed{{j, j.Step(Change{At: at, Slots: 1})}, {other, other.Step(Change{At: at, Cancel: true})}}
	other.Published = other.LogLen
	if err := db.save(m, changes); err != nil {
		t.Fatal(err)
	}
	if err := db.close(); err != nil {
		t.Fatal(err)
	}
	if db, err = openDatabase(path); err != nil {
		t.Fatal(err)
	}
	defer db.close()
	m.Format = databaseFormat
	if got, known, err := db.meta(); err != nil || !known || got != m {
		t.Errorf("meta %+v, %v, want %+v", got, err, m)
	}
	jobs, err := db.unfinished()
	if err != nil || len(jobs) != 1 {
		t.Fatalf("%d unfinished jobs, %v", len(jobs), err)
	}
	if !reflect.DeepEqual(jobs[0], j) {
		t.Errorf("read %+v\nwrote %+v", jobs[0], j)
	}
	if got, err := db.job(other.Spec.ID); err != nil || !reflect.DeepEqual(got.Report(), other.Report()) {
		t.Errorf("the finished job: %+v, %v", got, err)
	}
	if got, err := db.job(strings.Repeat("0c", 16)); err != nil || got != nil {
		t.Errorf("no job: %+v, %v", got, err)
	}
}

func TestDatabaseOfAnotherKindIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "farm.db")
	if err := os.WriteFile(path, []byte(strings.Repeat("not a database ", 1000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := openDatabase(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("rubbish was opened: %v", err)
	}
	db, err := openDatabase(filepath.Join(t.TempDir(), "farm.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.close()
	if err := db.save(metaRecord{}, nil); err != nil {
		t.Fatal(err)
	}
	tx, err := db.bolt.Begin(true)
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.Bucket(bucketMeta).Put(metaState, []byte(`{"format":9}`)); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if _, _, err := db.meta(); err == nil || !strings.Contains(err.Error(), "format 9") {
		t.Errorf("format 9: %v", err)
	}
}
