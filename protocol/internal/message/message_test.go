package message

import (
	"strings"
	"testing"

	"capnproto.org/go/capnp/v3"
)

// texts writes a message whose root has a list of texts, sized for size words.
func texts(t *testing.T, size int, values ...string) ([]byte, error) {
	t.Helper()
	w, err := NewWriter(size)
	if err != nil {
		t.Fatal(err)
	}
	root, err := capnp.NewRootStruct(w.Segment, capnp.ObjectSize{PointerCount: uint16(len(values))})
	w.Do(err)
	for i, v := range values {
		w.Text(func(s string) error { return root.SetText(uint16(i), s) }, v)
	}
	return w.Bytes()
}

func TestSizesMustBeExact(t *testing.T) {
	values := []string{"", "1234567", "12345678"}
	size := 1 + len(values)
	for _, v := range values {
		size += TextWords(v)
	}
	if b, err := texts(t, size, values...); err != nil || len(b) != 8*(size+1) {
		t.Errorf("exact size: %d bytes, %v", len(b), err)
	}
	if _, err := texts(t, size+1, values...); err == nil || !strings.Contains(err.Error(), "after being sized at") {
		t.Errorf("one word too many: %v", err)
	}
	if _, err := texts(t, size-1, values...); err == nil {
		t.Error("one word too few: no error")
	}
	for _, words := range []int{0, 1 << 29} {
		if _, err := NewWriter(words); err == nil {
			t.Errorf("%d words: no error", words)
		}
	}
}

func TestSeveralSegmentsAreRead(t *testing.T) {
	m, first, err := capnp.NewMessage(capnp.MultiSegment(nil))
	if err != nil {
		t.Fatal(err)
	}
	root, err := capnp.NewRootStruct(first, capnp.ObjectSize{PointerCount: 1})
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 1<<20) // more than fits beside the root
	if err := root.SetText(0, long); err != nil {
		t.Fatal(err)
	}
	b, err := m.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if m.NumSegments() < 2 {
		t.Fatal("the message has one segment only")
	}
	r, err := Open(b)
	if err != nil {
		t.Fatal(err)
	}
	got := r.Text("text", true, func() ([]byte, error) {
		p, err := r.Root().Ptr(0)
		return p.TextBytes(), err
	})
	if got != long || r.Err() != nil {
		t.Errorf("read %d bytes, %v", len(got), r.Err())
	}
	for n := 0; n < len(b); n += 1000 {
		if _, err := Open(b[:n]); err == nil || !strings.Contains(err.Error(), "truncated") {
			t.Errorf("first %d bytes: %v", n, err)
		}
	}
}

func TestErrorsAreKept(t *testing.T) {
	b, err := texts(t, 5, "a", "b")
	if err != nil {
		t.Fatal(err)
	}
	r, err := Open(b)
	if err != nil {
		t.Fatal(err)
	}
	r.Data("payload", true, func() ([]byte, error) { return nil, nil })
	r.Words("numbers", true, func() (capnp.UInt32List, error) { t.Error("read after an error"); return capnp.UInt32List{}, nil })
	r.Within("part %d", 3)
	if err := r.Err(); err == nil || err.Error() != "part 3: payload: not a list of bytes" {
		t.Errorf("error %v", err)
	}
	r, _ = Open(b)
	if New[[1 << 20]byte](r, 1) != nil || r.Err() == nil {
		t.Error("a list of 1 MiB from a file of 48 bytes is not refused")
	}
}
