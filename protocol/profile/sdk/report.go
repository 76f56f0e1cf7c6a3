package sdk

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// report collects what a recording lacks and what its rows got wrong, so that the
// rest can be used and nobody takes a gap for a zero.
type report struct {
	lacks  []string
	notes  []string
	faults map[string]int // by place and fault
}

func (r *report) missing(what string) {
	if !slices.Contains(r.lacks, what) {
		r.lacks = append(r.lacks, what)
	}
}

func (r *report) note(format string, args ...any) {
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

func (r *report) fault(place, fault string) {
	if r.faults == nil {
		r.faults = map[string]int{}
	}
	r.faults[place+": "+fault]++
}

// anomalies lists the faults with their number, then the notes.
func (r *report) anomalies() []string {
	list := []string{}
	for what, n := range r.faults {
		place, fault, _ := strings.Cut(what, ": ")
		list = append(list, fmt.Sprintf("%s: values left out: %d, %s", place, n, fault))
	}
	slices.Sort(list)
	return append(list, r.notes...)
}

// none is the value of a number that a recording does not have.
const none = -1

// Largest values that make sense, so that no sum of them overflows: cycles of a
// step (ten minutes), a free-running cycle counter (decades), bytes of a variable
// or a tile, ids.
const (
	maxCycles  = 1 << 40
	maxCounter = 1 << 61
	maxBytes   = 1 << 30
	maxTile    = 1 << 20
	maxID      = 1 << 53
)

// number returns a value as an integer of 0..limit, or none with a fault.
func (r *report) number(v any, place string, limit int64) int64 {
	switch x := v.(type) {
	case missing:
		return none
	case nil:
		r.fault(place, "NULL")
		return none
	case int64:
		return r.within(x, place, limit)
	case float64:
		if x == math.Trunc(x) && math.Abs(x) < 1<<53 {
			return r.within(int64(x), place, limit)
		}
	}
	r.fault(place, "not a whole number")
	return none
}

func (r *report) within(x int64, place string, limit int64) int64 {
	switch {
	case x < 0:
		r.fault(place, "negative")
		return none
	case x > limit:
		r.fault(place, fmt.Sprintf("more than %d", limit))
		return none
	}
	return x
}

// reference is number for a column that may point at nothing.
func (r *report) reference(v any, place string) int64 {
	if v == nil {
		return none
	}
	return r.number(v, place, maxID)
}

// text returns a value as a name. Numbers are spelled out: an enumeration that a
// newer recording stores by number is at least visible.
func (r *report) text(v any, place string) string {
	switch x := v.(type) {
	case string:
		return oneLine(x)
	case []byte:
		return oneLine(string(x))
	case int64:
		return fmt.Sprint(x)
	case nil:
		r.fault(place, "NULL")
	case missing:
	default:
		r.fault(place, "not a text")
	}
	return ""
}
