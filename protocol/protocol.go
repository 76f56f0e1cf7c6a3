// Package protocol is what the parties of the farm agree on: jobs, tasks,
// records, verdicts, manifests and events, their JSON forms, the names of
// subjects, streams, buckets and objects, the key of a task, and the legal moves
// of a task's record. It decides nothing and talks to nobody.
//
// Words, each with one meaning:
//
//	job       what a person submits: a spec, a policy, a tolerance
//	task      one stage of a job, named by its key; equal keys are one task
//	ticket    a message that says "this task wants a worker"; never the truth
//	record    who owns a task and what became of it; changed by compare-and-set
//	attempt   one claim of a task by an owner
//	verdict   what a task found out: a pure function of its key
//	manifest  a verdict with the digests of the artifacts behind it
//	run       the one task that uses a device
//
// A message is a single JSON object with a version. Decoding is strict: another
// version, an unknown field, bytes after the object, an object over its size
// limit or a value out of range is an error, and nobody acts on such a message.
package protocol

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Version is the number that every message carries and every party checks.
//
//	1  2026-11-29  first version
const Version = 1

// Limits of encoded messages, in bytes. Whatever is larger is an artifact.
const (
	MaxTicket   = 64 << 10  // a task in its ticket
	MaxRecord   = 16 << 10  // a task's record
	MaxEvent    = 64 << 10  // an event
	MaxManifest = 512 << 10 // a manifest; farm object, single put
	MaxSpec     = 32 << 10  // the compiler's part of a spec
	MaxFacts    = 256 << 10 // facts of a verdict
	MaxRequest  = 256 << 10 // a request to the coordinator
	MaxReply    = 1 << 20   // a reply: the default payload limit of NATS
	MaxMessage  = 4 << 10   // text for people
)

// ErrMalformed is wrapped by every decoding error.
var ErrMalformed = errors.New("malformed message")

// Checker is a message that knows its own rules.
type Checker interface{ Check() error }

// Decode reads one JSON object of at most limit bytes into v and checks it.
func Decode(data []byte, limit int, v Checker) error {
	if len(data) > limit {
		return fmt.Errorf("%w: %T has %d bytes, at most %d are accepted", ErrMalformed, v, len(data), limit)
	}
	// The version is read first, leniently, so that a message of another
	// version is reported as that and not as an unknown field.
	var head struct {
		Version int `json:"version"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return fmt.Errorf("%w: %T: %v", ErrMalformed, v, err)
	}
	if head.Version != Version {
		return fmt.Errorf("%w: %T has version %d, this program speaks %d", ErrMalformed, v, head.Version, Version)
	}
	if err := decodeStrict(data, v); err != nil {
		return fmt.Errorf("%w: %T: %v", ErrMalformed, v, err)
	}
	if err := v.Check(); err != nil {
		return fmt.Errorf("%w: %T: %v", ErrMalformed, v, err)
	}
	return nil
}

// Encode checks v and writes it as JSON of at most limit bytes.
func Encode(v Checker, limit int) ([]byte, error) {
	if err := v.Check(); err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	data, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	if len(data) > limit {
		return nil, fmt.Errorf("encode %T: %d bytes, at most %d are accepted", v, len(data), limit)
	}
	return data, nil
}

func decodeStrict(data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("bytes after the object")
	}
	return nil
}

// CheckDigest accepts 64 lower-case hexadecimal digits, the form of a SHA-256.
func CheckDigest(s string) error { return checkHex(s, 64) }

// CheckJobID accepts 32 lower-case hexadecimal digits.
func CheckJobID(s string) error { return checkHex(s, 32) }

func checkHex(s string, n int) error {
	if len(s) != n {
		return fmt.Errorf("%q is not %d hexadecimal digits", clip(s), n)
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return fmt.Errorf("%q is not %d lower-case hexadecimal digits", clip(s), n)
		}
	}
	return nil
}

// CheckName accepts the names of classes, devices, workers and roles: 1 to 32
// letters, digits and dashes, lower case, so that a name is one subject token
// and one path element.
func CheckName(s string) error {
	if len(s) == 0 || len(s) > 32 {
		return fmt.Errorf("name %q has not 1 to 32 characters", clip(s))
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'z') && c != '-' {
			return fmt.Errorf("name %q has other characters than a-z, 0-9 and -", clip(s))
		}
	}
	return nil
}

func checkText(what, s string, limit int) error {
	if len(s) > limit {
		return fmt.Errorf("%s has %d bytes, at most %d are accepted", what, len(s), limit)
	}
	return nil
}

// Clip cuts text for people to what a message may carry.
func Clip(s string) string {
	if len(s) > MaxMessage {
		return s[:MaxMessage-3] + "..."
	}
	return s
}

func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "..."
	}
	return s
}

func checkVersion(v int) error {
	if v != Version {
		return fmt.Errorf("version %d, this program speaks %d", v, Version)
	}
	return nil
}

// hexString is what digests are written as.
func hexString(sum [32]byte) string { return hex.EncodeToString(sum[:]) }
