package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// maxDepth bounds the nesting of JSON that people hand in.
const maxDepth = 64

// Canonical returns the one spelling of a JSON value: no white space, object
// keys sorted by bytes, integers as digits, other numbers in the shortest form
// that reads back to the same float64. Two texts that mean the same value give
// the same bytes, so digests of it can be compared. Duplicate keys, numbers
// beyond float64 and nesting over 64 levels are refused.
func Canonical(data []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var out bytes.Buffer
	if err := canonicalValue(d, &out, 0); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("canonical JSON: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("canonical JSON: bytes after the value")
	}
	return out.Bytes(), nil
}

// CanonicalOf is Canonical of v's JSON form.
func CanonicalOf(v any) ([]byte, error) {
	data, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return Canonical(data)
}

func canonicalValue(d *json.Decoder, out *bytes.Buffer, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("more than %d levels of nesting", maxDepth)
	}
	token, err := d.Token()
	if err != nil {
		return err
	}
	switch t := token.(type) {
	case json.Delim:
		if t == '{' {
			return canonicalObject(d, out, depth)
		}
		return canonicalArray(d, out, depth)
	case string:
		writeString(out, t)
	case json.Number:
		s, err := canonicalNumber(string(t))
		if err != nil {
			return err
		}
		out.WriteString(s)
	case bool:
		out.WriteString(strconv.FormatBool(t))
	case nil:
		out.WriteString("null")
	}
	return nil
}

func canonicalObject(d *json.Decoder, out *bytes.Buffer, depth int) error {
	type member struct {
		key   string
		value []byte
	}
	var members []member
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return err
		}
		key, ok := token.(string)
		if !ok {
			return fmt.Errorf("object key is %v", token)
		}
		var value bytes.Buffer
		if err := canonicalValue(d, &value, depth+1); err != nil {
			return err
		}
		members = append(members, member{key, value.Bytes()})
	}
	if _, err := d.Token(); err != nil {
		return err
	}
	slices.SortFunc(members, func(a, b member) int { return strings.Compare(a.key, b.key) })
	out.WriteByte('{')
	for i, m := range members {
		if i > 0 {
			if members[i-1].key == m.key {
				return fmt.Errorf("key %q occurs twice", clip(m.key))
			}
			out.WriteByte(',')
		}
		writeString(out, m.key)
		out.WriteByte(':')
		out.Write(m.value)
	}
	out.WriteByte('}')
	return nil
}

func canonicalArray(d *json.Decoder, out *bytes.Buffer, depth int) error {
	out.WriteByte('[')
	for i := 0; d.More(); i++ {
		if i > 0 {
			out.WriteByte(',')
		}
		if err := canonicalValue(d, out, depth+1); err != nil {
			return err
		}
	}
	if _, err := d.Token(); err != nil {
		return err
	}
	out.WriteByte(']')
	return nil
}

// canonicalNumber keeps integers of any size (seeds use all 64 bits) and brings
// everything else through float64.
func canonicalNumber(s string) (string, error) {
	if !strings.ContainsAny(s, ".eE") {
		if s == "-0" {
			return "0", nil
		}
		return s, nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return "", fmt.Errorf("number %s is not a float64", clip(s))
	}
	// Beyond 2^53 an integral float64 no longer names one integer.
	if f == math.Trunc(f) && math.Abs(f) < 1<<53 {
		return strconv.FormatInt(int64(f), 10), nil
	}
	return strconv.FormatFloat(f, 'g', -1, 64), nil
}

// writeString escapes <, > and & as encoding/json does when it embeds a raw
// message, so that a canonical text stays itself inside of another message.
func writeString(out *bytes.Buffer, s string) {
	data, _ := json.Marshal(s) // a string always encodes
	out.Write(data)
}
