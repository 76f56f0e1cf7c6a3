package protocol_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"ipufarm/protocol"
)

var update = flag.Bool("update", false, "rewrite the golden messages")

func digestOf(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func sampleTask(t testing.TB) *protocol.Task {
	task := &protocol.Task{
		Version: protocol.Version, Kind: protocol.KindValidate, Job: strings.Repeat("0a", 16), Class: protocol.ClassSmall, Priority: 1,
		Tool: digestOf("tool"), Spec: json.RawMessage(`{"tiles":64,"workload":"siglip-vit-benchmark"}`), Candidate: 3,
		Inputs: []protocol.Artifact{{Role: "scheduled", SHA256: digestOf("s"), Size: 12}, {Role: "shortlist", SHA256: digestOf("l"), Size: 34}},
	}
	return withKey(t, task)
}

func sampleRun(t testing.TB) *protocol.Task {
	task := sampleTask(t)
	task.Kind, task.Candidate, task.Salt = protocol.KindRun, protocol.NoCandidate, task.Job
	task.Run = &protocol.RunWant{DeviceClass: "ipu21", Device: protocol.AnyDevice, Tolerance: protocol.Tolerance{Atol: 0.006, Rtol: 0.01}}
	return withKey(t, task)
}

func withKey(t testing.TB, task *protocol.Task) *protocol.Task {
	t.Helper()
	key, err := protocol.KeyOf(task)
	if err != nil {
		t.Fatal(err)
	}
	task.Key = key
	return task
}

// golden lists one message of every type, as this version writes it.
func golden(t testing.TB) map[string]protocol.Checker {
	task := sampleTask(t)
	refusal := &protocol.Refusal{Constraint: protocol.Fragmentation, Tile: 17, Needed: 4096, Free: 9000, LargestHole: 2048,
		Allocation: "mlp.up.weight", Message: "tile 17: no hole of 4096 bytes", Live: []protocol.Live{{Name: "x", Bytes: 512}}, Step: 4}
	job := &protocol.Job{Version: 1, ID: task.Job, Spec: task.Spec, Policy: protocol.Policy{Name: protocol.FirstK, K: 2},
		Tolerance: protocol.Tolerance{Atol: 0.006, Rtol: 0}, DeviceClass: "ipu21", Device: protocol.AnyDevice, Priority: 1, Tool: task.Tool,
		Fixture: &protocol.Artifact{Role: protocol.RoleFixture, SHA256: digestOf("f"), Size: 99}}
	record := inState(protocol.Running)
	done := inState(protocol.Done)
	return map[string]protocol.Checker{
		"ticket_validate": task,
		"ticket_run":      sampleRun(t),
		"record_running":  &record,
		"record_done":     &done,
		"manifest": &protocol.Manifest{Version: 1, Key: task.Key, Kind: task.Kind, Tool: task.Tool,
			Verdict: protocol.Verdict{Kind: protocol.Infeasible, Refusal: refusal}, Artifacts: []protocol.Artifact{{Role: "package", SHA256: digestOf("p"), Size: 5}},
			Facts: json.RawMessage(`{"phases":12}`)},
		"event_done": &protocol.Event{Version: 1, Type: protocol.EventDone, Job: task.Job, Key: task.Key, At: now, Kind: task.Kind, Candidate: 3,
			Attempt: 1, Worker: "alice", Result: result, Seconds: 0.25},
		"event_verdict": &protocol.Event{Version: 1, Type: protocol.EventVerdict, Job: task.Job, N: 4, At: now, Candidate: 3,
			Verdict: protocol.Infeasible, Family: "grid-2d", Constraint: protocol.Capacity, Decided: 2, Total: 8},
		"job":      job,
		"query":    &protocol.JobQuery{Version: 1, Job: task.Job},
		"reply":    &protocol.Reply{Version: 1, Error: "no such job"},
		"presence": &protocol.Presence{Version: 1, Owner: alice, Tool: task.Tool, Classes: []string{"s"}, Slots: 1},
		"lease":    &protocol.Lease{Version: 1, Owner: alice, Run: task.Key, Gen: 0},
		"cancel":   &protocol.CancelNotice{Version: 1, Keys: []string{task.Key}},
		"own":      &protocol.OwnQuery{Version: 1, Key: task.Key, Boot: alice.Boot},
	}
}

// TestGoldenMessages keeps the wire form of this version: a later version is
// tested against these files, so a change here is a change of the protocol.
func TestGoldenMessages(t *testing.T) {
	for name, message := range golden(t) {
		path := filepath.Join("testdata", name+".json")
		data, err := protocol.Encode(message, protocol.MaxReply)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if *update {
			if err := os.WriteFile(path, append(data, '\n'), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(data)+"\n" != string(want) {
			t.Errorf("%s is written as\n%s, want\n%s", name, data, want)
		}
		again := newLike(message)
		if err := protocol.Decode(bytes.TrimSpace(want), protocol.MaxReply, again); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if data2, err := protocol.Encode(again, protocol.MaxReply); err != nil || !bytes.Equal(data, data2) {
			t.Errorf("%s changes when read and written: %s, %v", name, data2, err)
		}
	}
}

func newLike(v protocol.Checker) protocol.Checker {
	switch v.(type) {
	case *protocol.Task:
		return new(protocol.Task)
	case *protocol.Record:
		return new(protocol.Record)
	case *protocol.Manifest:
		return new(protocol.Manifest)
	case *protocol.Event:
		return new(protocol.Event)
	case *protocol.Job:
		return new(protocol.Job)
	case *protocol.JobQuery:
		return new(protocol.JobQuery)
	case *protocol.Reply:
		return new(protocol.Reply)
	case *protocol.Presence:
		return new(protocol.Presence)
	case *protocol.Lease:
		return new(protocol.Lease)
	case *protocol.CancelNotice:
		return new(protocol.CancelNotice)
	case *protocol.OwnQuery:
		return new(protocol.OwnQuery)
	}
	panic("message without a reader")
}

func TestDecodeIsStrict(t *testing.T) {
	good, err := protocol.Encode(sampleTask(t), protocol.MaxTicket)
	if err != nil {
		t.Fatal(err)
	}
	edit := func(from, to string) []byte {
		out := bytes.Replace(good, []byte(from), []byte(to), 1)
		if bytes.Equal(out, good) {
			t.Fatalf("%q is not in %s", from, good)
		}
		return out
	}
	for name, data := range map[string][]byte{
		"empty":           nil,
		"not JSON":        []byte("hello"),
		"array":           []byte("[]"),
		"other version":   edit(`"version":1`, `"version":2`),
		"no version":      edit(`"version":1,`, ``),
		"unknown field":   edit(`"version":1`, `"version":1,"colour":"red"`),
		"bytes after":     append(bytes.Clone(good), "{}"...),
		"truncated":       good[:len(good)-1],
		"changed content": edit(`"tiles":64`, `"tiles":65`),
		"other candidate": edit(`"candidate":3`, `"candidate":4`),
		"negative":        edit(`"candidate":3`, `"candidate":-3`),
		"bad kind":        edit(`"kind":"validate"`, `"kind":"destroy"`),
		"bad class":       edit(`"class":"s"`, `"class":"s.*"`),
		"bad priority":    edit(`"priority":1`, `"priority":9`),
		"roles in order":  edit(`"role":"scheduled"`, `"role":"zcheduled"`),
		"spec has spaces": edit(`"tiles":64`, `"tiles": 64`),
		"upper-case key":  bytes.Replace(good, []byte(sampleTask(t).Key), []byte(strings.ToUpper(sampleTask(t).Key)), 1),
		"oversize":        append(bytes.Clone(good), bytes.Repeat([]byte(" "), protocol.MaxTicket)...),
	} {
		if err := protocol.Decode(data, protocol.MaxTicket, new(protocol.Task)); !errors.Is(err, protocol.ErrMalformed) {
			t.Errorf("%s: %v, want it refused as malformed", name, err)
		}
	}
	if err := protocol.Decode(good, protocol.MaxTicket, new(protocol.Task)); err != nil {
		t.Error(err)
	}
}

// TestKeyCoversWhatDecides changes one thing after another: the key must follow
// what can change the result, and nothing else.
func TestKeyCoversWhatDecides(t *testing.T) {
	base := sampleTask(t)
	changes := []struct {
		name   string
		change func(*protocol.Task)
		same   bool
	}{
		{"kind", func(x *protocol.Task) { x.Kind = protocol.KindSchedule }, false},
		{"tool", func(x *protocol.Task) { x.Tool = digestOf("other") }, false},
		{"spec", func(x *protocol.Task) { x.Spec = json.RawMessage(`{"tiles":128}`) }, false},
		{"candidate", func(x *protocol.Task) { x.Candidate++ }, false},
		{"input", func(x *protocol.Task) { x.Inputs[0].SHA256 = digestOf("z") }, false},
		{"salt", func(x *protocol.Task) { x.Salt = "1" }, false},
		{"spelling of the spec", func(x *protocol.Task) {
			x.Spec = json.RawMessage(`{ "workload":"siglip-vit-benchmark", "tiles":6.4e1 }`)
		}, true},
		{"job", func(x *protocol.Task) { x.Job = strings.Repeat("ff", 16) }, true},
		{"priority", func(x *protocol.Task) { x.Priority = 0 }, true},
		{"class", func(x *protocol.Task) { x.Class = "m" }, true},
	}
	for _, c := range changes {
		task := sampleTask(t)
		c.change(task)
		if key := withKey(t, task).Key; (key == base.Key) != c.same {
			t.Errorf("another %s: same key %v, want %v", c.name, key == base.Key, c.same)
		}
	}
}

func TestCanonical(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{`{ "b" : 1.0, "a" : [ true , null, "x<y" ] }`, `{"a":[true,null,"x\u003cy"],"b":1}`},
		{`1e3`, `1000`},
		{`-0`, `0`},
		{`-0.0`, `0`},
		{`18446744073709551615`, `18446744073709551615`},
		{`0.1`, `0.1`},
		{`0.10`, `0.1`},
		{`"\u00e9"`, `"é"`},
		{`{}`, `{}`},
	} {
		got, err := protocol.Canonical([]byte(c.in))
		if err != nil || string(got) != c.want {
			t.Errorf("Canonical(%s) = %s, %v; want %s", c.in, got, err, c.want)
		}
	}
	for _, bad := range []string{``, `{`, `{"a":1,"a":2}`, `1 2`, `1e999`, `[1,]`, `{"a"}`, strings.Repeat("[", 100) + strings.Repeat("]", 100)} {
		if got, err := protocol.Canonical([]byte(bad)); err == nil {
			t.Errorf("Canonical(%s) = %s, want an error", bad, got)
		}
	}
}

func FuzzCanonical(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.5e-3,"x"],"b":null}`, `-0.0`, `[[[]]]`, `"\ud800"`, `123456789012345678901234567890`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		once, err := protocol.Canonical(data)
		if err != nil {
			return
		}
		twice, err := protocol.Canonical(once)
		if err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("%q becomes %q and then %q, %v", data, once, twice, err)
		}
		if raw, err := json.Marshal(json.RawMessage(once)); err != nil || !bytes.Equal(raw, once) {
			t.Fatalf("%q becomes %q inside of a message, %v", once, raw, err)
		}
	})
}

// FuzzDecode feeds bytes to every reader: they may refuse, not panic, and what
// they accept they must be able to write.
func FuzzDecode(f *testing.F) {
	files, _ := filepath.Glob("testdata/*.json")
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, message := range golden(t) {
			v := newLike(message)
			if protocol.Decode(data, protocol.MaxReply, v) != nil {
				continue
			}
			if _, err := protocol.Encode(v, 2*protocol.MaxReply); err != nil {
				t.Fatalf("%T read from %q cannot be written: %v", v, data, err)
			}
		}
	})
}

func TestPlanFacts(t *testing.T) {
	good := `{"finalists":[{"rank":0,"family":"a","estimated_cycles":9,"lower_bound_cycles":7},{"rank":1,"family":"b"}],"more":1}`
	p, err := protocol.DecodePlanFacts(json.RawMessage(good))
	if err != nil || len(p.Finalists) != 2 || p.Finalists[0].LowerBoundCycles != 7 {
		t.Errorf("%+v, %v", p, err)
	}
	for _, bad := range []string{``, `{}`, `{"finalists":[]}`, `{"finalists":[{"rank":1,"family":"a"}]}`, `{"finalists":[{"rank":0}]}`} {
		if _, err := protocol.DecodePlanFacts(json.RawMessage(bad)); err == nil {
			t.Errorf("%s was accepted", bad)
		}
	}
}

func TestStageMessages(t *testing.T) {
	bad := protocol.StageResult{Verdict: protocol.Verdict{Kind: protocol.Feasible}, Artifacts: map[string]string{"package": "../../etc/passwd"}}
	if bad.Check() == nil {
		t.Error("an artifact outside of the output folder was accepted")
	}
	request := protocol.StageRequest{Kind: "plan", OutDir: "relative"}
	if request.Check() == nil {
		t.Error("a relative output folder was accepted")
	}
}
