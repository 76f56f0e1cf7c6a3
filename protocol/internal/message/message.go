// Package message frames the Cap'n Proto files of this protocol: it writes one
// message into a buffer of its exact final size, and opens files that nobody
// vouches for.
//
// A file is an unpacked stream message: a little-endian u32 with the number of
// segments less one, one u32 per segment with its length in 8-byte words, padding
// to 8 bytes, then the segments. Writers here produce one segment; readers accept
// several, because other implementations write them.
//
// Errors are sticky in both directions: the first one is kept, everything after
// it is a harmless no-op, and the caller asks once. That keeps codecs readable as
// lists of fields.
package message

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"capnproto.org/go/capnp/v3"
)

const (
	wordBytes = 8

	// maxSegments is what the C++ implementation accepts, too.
	maxSegments = 512

	// maxBytes is the largest segment that the encoding can address.
	maxBytes = 1<<32 - wordBytes

	// maxGrowth is how many bytes the decoded lists may take for each byte of a
	// file. Structs need up to 8 times their encoded size when nothing is left out.
	maxGrowth = 32
)

// ListWords is the size of a list of n structs of the given size, tag included,
// in words. An empty list is a null pointer and takes nothing.
func ListWords(n, structWords int) int {
	if n == 0 {
		return 0
	}
	return 1 + n*structWords
}

// DataWords is the size of n bytes, in words.
func DataWords(n int) int { return (n + wordBytes - 1) / wordBytes }

// TextWords is the size of a text, in words: its bytes and a zero byte, or
// nothing if it is empty.
func TextWords(s string) int {
	if s == "" {
		return 0
	}
	return DataWords(len(s) + 1)
}

// Writer builds one message.
type Writer struct {
	Segment *capnp.Segment
	buffer  []byte // header and message
	err     error
}

// NewWriter starts a message of exactly words words, the root pointer included.
// Knowing the size beforehand saves the copies of a growing buffer, which would
// double the memory of a 100 MB package.
func NewWriter(words int) (*Writer, error) {
	if words < 1 || words > maxBytes/wordBytes {
		return nil, fmt.Errorf("a message of %d bytes cannot be written, one segment holds at most %d", words*wordBytes, int64(maxBytes))
	}
	w := &Writer{buffer: make([]byte, wordBytes*(1+words))}
	_, segment, err := capnp.NewMessage(capnp.SingleSegment(w.buffer[wordBytes:wordBytes]))
	if err != nil {
		return nil, err
	}
	w.Segment = segment
	return w, nil
}

// Do keeps the error of a setter.
func (w *Writer) Do(err error) {
	if w.err == nil {
		w.err = err
	}
}

// Text sets a text field; an empty text stays null.
func (w *Writer) Text(set func(string) error, s string) {
	if w.err == nil && s != "" {
		w.err = set(s)
	}
}

// Words sets a list of 32-bit numbers; an empty list stays null.
func (w *Writer) Words(create func(int32) (capnp.UInt32List, error), values []uint32) {
	list := Make(w, len(values), create)
	for i := range min(len(values), list.Len()) {
		list.Set(i, values[i])
	}
}

// Make creates a list field of n elements, or an empty list that takes no space.
func Make[L any](w *Writer, n int, create func(int32) (L, error)) (list L) {
	if w.err != nil || n == 0 {
		return list
	}
	if n >= 1<<29 {
		w.err = fmt.Errorf("a list of %d elements cannot be written, the encoding holds fewer than %d", n, 1<<29)
		return list
	}
	list, w.err = create(int32(n))
	return list
}

// OK reports whether nothing has failed so far.
func (w *Writer) OK() bool { return w.err == nil }

// Bytes returns the finished file.
func (w *Writer) Bytes() ([]byte, error) {
	if w.err != nil {
		return nil, w.err
	}
	if got, want := len(w.Segment.Data()), len(w.buffer)-wordBytes; got != want {
		return nil, fmt.Errorf("message has %d bytes after being sized at %d: the size functions disagree with the schema", got, want)
	}
	binary.LittleEndian.PutUint32(w.buffer[4:], uint32(len(w.buffer)/wordBytes-1))
	return w.buffer, nil
}

// Reader reads one message.
type Reader struct {
	message *capnp.Message
	strings map[string]string
	memory  int // bytes that decoded lists may still take
	err     error
}

// Open checks the framing of a file. The reader refers to b, which must not
// change. Whatever b holds, reading visits at most about twice as many bytes as
// b has, however often its pointers refer to the same place, and the lists made
// by New take at most maxGrowth times as many.
func Open(b []byte) (*Reader, error) {
	segments, err := split(b)
	if err != nil {
		return nil, err
	}
	m, _, err := capnp.NewMessage(capnp.MultiSegment(segments))
	if err != nil {
		return nil, err
	}
	// Once through a tree costs at most its size. The slack is for writers that
	// leave out trailing zero words: their elements count as a word each.
	m.ResetReadLimit(2*uint64(len(b)) + 4096)
	return &Reader{message: m, strings: map[string]string{}, memory: maxGrowth*len(b) + 4096}, nil
}

// split cuts a file into its segments.
func split(b []byte) ([][]byte, error) {
	if len(b) < wordBytes {
		return nil, fmt.Errorf("truncated: %d bytes, even an empty message has %d", len(b), 2*wordBytes)
	}
	n := uint64(binary.LittleEndian.Uint32(b)) + 1
	if n > maxSegments {
		return nil, fmt.Errorf("not a Cap'n Proto message: its first word says %d segments, at most %d are accepted", n, maxSegments)
	}
	header := int((n + 2) / 2 * wordBytes)
	if len(b) < header {
		return nil, fmt.Errorf("truncated: %d bytes, the header alone has %d", len(b), header)
	}
	segments := make([][]byte, n)
	total := uint64(header)
	for i := range segments {
		words := uint64(binary.LittleEndian.Uint32(b[4+4*i:]))
		end := total + words*wordBytes
		if end > uint64(len(b)) {
			// The promise of the later segments does not matter for the message.
			return nil, fmt.Errorf("truncated: %d bytes, its header promises at least %d", len(b), end)
		}
		segments[i] = b[total:end:end]
		total = end
	}
	if total != uint64(len(b)) {
		return nil, fmt.Errorf("%d bytes follow the end of the message at byte %d", uint64(len(b))-total, total)
	}
	return segments, nil
}

// Root returns the root struct.
func (r *Reader) Root() capnp.Struct {
	p, err := r.message.Root()
	if err == nil && !p.Struct().IsValid() {
		err = errors.New("the root is not a struct")
	}
	r.Fail(err)
	return p.Struct()
}

// Fail keeps the first error.
func (r *Reader) Fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// Within adds to the error where it happened, if there is one.
func (r *Reader) Within(place string, args ...any) {
	if r.err != nil {
		r.err = fmt.Errorf("%s: %w", fmt.Sprintf(place, args...), r.err)
	}
}

// Err returns the first error.
func (r *Reader) Err() error { return r.err }

// Text returns a text field. Equal texts of one message share their memory: the
// plan of 1,472 tiles repeats a few hundred names some 100,000 times.
func (r *Reader) Text(field string, has bool, get func() ([]byte, error)) string {
	if r.err != nil || !has {
		return ""
	}
	b, err := get()
	switch {
	case err != nil:
		r.err = fmt.Errorf("%s: %w", field, err)
	case b == nil:
		r.err = fmt.Errorf("%s: not a text that ends with a zero byte", field)
	}
	if s, ok := r.strings[string(b)]; ok {
		return s
	}
	s := string(b)
	r.strings[s] = s
	return s
}

// Data returns a data field, which refers to the file.
func (r *Reader) Data(field string, has bool, get func() ([]byte, error)) []byte {
	if r.err != nil || !has {
		return nil
	}
	b, err := get()
	switch {
	case err != nil:
		r.err = fmt.Errorf("%s: %w", field, err)
	case b == nil:
		r.err = fmt.Errorf("%s: not a list of bytes", field)
	case len(b) == 0:
		return nil
	}
	return b
}

// Words returns a list of 32-bit numbers, nil if empty.
func (r *Reader) Words(field string, has bool, get func() (capnp.UInt32List, error)) []uint32 {
	list := List(r, field, has, get)
	if r.err != nil || list.Len() == 0 {
		return nil
	}
	values := New[uint32](r, list.Len())
	for i := range values {
		values[i] = list.At(i)
	}
	return values
}

// Spend takes memory for n elements of size bytes each from what the file may
// cost. A list of bytes can pose as a list of structs, so a small file could
// otherwise ask for much.
func (r *Reader) Spend(n, size int) bool {
	if r.err != nil {
		return false
	}
	if n > r.memory/size {
		r.err = fmt.Errorf("%d elements of %d bytes take more memory than a file of this size may need", n, size)
		return false
	}
	r.memory -= n * size
	return true
}

// New makes the Go side of a list: nil for an empty one and after an error, so
// that the loop over the result ends at once.
func New[T any](r *Reader, n int) []T {
	var element T
	if n == 0 || !r.Spend(n, int(unsafe.Sizeof(element))) {
		return nil
	}
	return make([]T, n)
}

// List returns a list field, empty if it is null or anything before it failed.
func List[L interface{ IsValid() bool }](r *Reader, field string, has bool, get func() (L, error)) (list L) {
	if r.err != nil || !has {
		return list
	}
	found, err := get()
	if err != nil {
		r.err = fmt.Errorf("%s: %w", field, err)
		return list
	}
	// The generated getters turn a struct in the place of a list into an empty list.
	if !found.IsValid() {
		r.err = fmt.Errorf("%s: not a list", field)
		return list
	}
	return found
}
