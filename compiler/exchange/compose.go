package exchange

import (
	"fmt"

	"ipufarm/protocol/machine"
)

// step is one instruction of a row before its word count is final.
type step struct {
	start    int32 // first event
	advance  int32 // events
	send     int32 // index of the run whose words leave during it, or -1
	item     int32 // words of the run that left before
	first    bool  // begins the run
	source   int32 // index of the source change that it carries, or -1
	pointer  int32 // index of the pointer change that it carries, or -1
	split    bool  // written as two instructions
	repeated bool  // written as a sendpicp: what it does not change repeats the register's value
}

// What one instruction can advance by.
const (
	maxDelay        = 1 << 19
	maxDelayPointer = 128
	maxDelaySource  = 4096
	maxSend         = 64 // of send, sendpic and sendpicp
	maxSendOff      = 4096
)

func (s *step) pair() bool    { return s.source >= 0 && s.pointer >= 0 }
func (s *step) control() bool { return s.source >= 0 || s.pointer >= 0 }

// compose lists the row's instructions in time order: idle time with its
// controls, runs with theirs. A control of an idle moment acts at the end of its
// instruction, so it swallows the wait before it; a control inside a run, and a
// pair, acts one event after its instruction starts, so it swallows what follows.
func (e *rowEncoder) compose() error {
	c := composer{e: e}
	e.steps = e.steps[:0]
	for k, s := range e.sends {
		if err := c.idle(s.start); err != nil {
			return err
		}
		if s.start < c.now {
			return &EncodeError{e.tile, s.start, "sends two transfers at once"}
		}
		if event, ok := c.next(); ok && event <= s.start+1 {
			return &EncodeError{e.tile, event, fmt.Sprintf("a receive control meets the send that starts at %d", s.start)}
		}
		if err := c.run(int32(k)); err != nil {
			return err
		}
	}
	return c.idle(e.horizon)
}

type composer struct {
	e               *rowEncoder
	now             int32
	source, pointer int // next changes
}

// next returns the event of the next control.
func (c *composer) next() (int32, bool) {
	event, ok := int32(0), false
	if c.source < len(c.e.sources) {
		event, ok = c.e.sources[c.source].event, true
	}
	if c.pointer < len(c.e.pointers) && (!ok || c.e.pointers[c.pointer].event < event) {
		event, ok = c.e.pointers[c.pointer].event, true
	}
	return event, ok
}

// take adds the controls of an event to a step.
func (c *composer) take(s *step, event int32) {
	s.source, s.pointer = -1, -1
	if c.source < len(c.e.sources) && c.e.sources[c.source].event == event {
		s.source = int32(c.source)
		c.source++
	}
	if c.pointer < len(c.e.pointers) && c.e.pointers[c.pointer].event == event {
		s.pointer = int32(c.pointer)
		c.pointer++
	}
}

func (c *composer) add(s step) {
	c.e.steps = append(c.e.steps, s)
	c.now = s.start + s.advance
}

// wait adds plain delays until an event.
func (c *composer) wait(until int32) {
	for c.now < until {
		c.add(step{start: c.now, advance: min(until-c.now, maxDelay), send: -1, source: -1, pointer: -1})
	}
}

// idle fills the time until an event, when nothing leaves.
func (c *composer) idle(until int32) error {
	for {
		event, ok := c.next()
		if !ok || event > until {
			c.wait(until)
			return nil
		}
		if event <= c.now {
			return &EncodeError{c.e.tile, event, "two controls, or a control and the end of a send, leave no time between them"}
		}
		s := step{send: -1}
		c.take(&s, event)
		switch {
		case s.pair():
			c.wait(event - 1)
			limit := until
			if following, ok := c.next(); ok {
				limit = min(limit, following-1)
			}
			s.start, s.advance = c.now, max(1, min(limit-c.now, maxSend))
		case s.source >= 0:
			c.wait(event - maxDelaySource)
			s.start, s.advance = c.now, event-c.now
		default:
			c.wait(event - maxDelayPointer)
			s.start, s.advance = c.now, event-c.now
		}
		c.add(s)
	}
}

// run adds the instructions of a run and of the controls during it.
func (c *composer) run(k int32) error {
	r := c.e.sends[k]
	end := r.start + r.words
	for c.now < end {
		s := step{start: c.now, send: k, item: c.now - r.start, first: c.now == r.start, source: -1, pointer: -1}
		limit := end
		event, ok := c.next()
		if ok && event == c.now+1 && !s.first {
			c.take(&s, event)
			event, ok = c.next()
		}
		if ok {
			limit = min(limit, event-1)
		}
		if limit <= c.now && !s.control() {
			return &EncodeError{c.e.tile, event, "a receive control leaves no time for a send"}
		}
		most := int32(maxSendOff)
		if s.first || s.control() {
			most = maxSend
		}
		s.advance = max(1, min(limit-c.now, most))
		c.add(s)
	}
	return nil
}

// emit writes the steps as words. A sendpicp must lie on an even word; where it
// would not, the row gets one more word since the last one: a step of two or
// more events is split, or the step after the last sendpicp becomes one too and
// repeats the values of both registers where it has nothing new to say. That is
// always possible in the scheduler's rows: no control acts as a send begins, and
// sends are apart by nothing or by at least two events (sendGap), so if every
// step lasts one event, a sendpicp is followed by a lone control, or by one wait
// and the next sendpicp; a row begins with a control or at least two idle events.
func (e *rowEncoder) emit() error {
	e.words = e.words[:0]
	since := 0 // first step that may still be changed
	length := 0
	for i := range e.steps {
		if !e.steps[i].pair() {
			length++
			continue
		}
		if length&1 == 1 && !pad(e.steps[since:i]) {
			return &EncodeError{e.tile, e.steps[i].start, "a pair of controls cannot be put on an even word"}
		}
		since, length = i, 0
	}
	for i := range e.steps {
		if s := &e.steps[i]; s.split {
			a, b := s.halves()
			e.word(&a)
			e.word(&b)
		} else {
			e.word(s)
		}
	}
	e.words = append(e.words, 0x43A00000) // return
	return nil
}

// pad makes the steps one word longer. They are single words, after one pair or
// at the start of the row.
func pad(steps []step) bool {
	for i := len(steps) - 1; i >= 0; i-- {
		if steps[i].advance > 1 {
			steps[i].split = true
			return true
		}
	}
	first := &steps[0]
	if first.pair() {
		first = &steps[1]
	}
	first.repeated = first.control() || first.send < 0
	return first.repeated
}

// halves cuts one event off the end of a step. A lone control of idle time acts
// at the end, all others one event after the start.
func (s *step) halves() (a, b step) {
	a, b = *s, *s
	a.split, b.split = false, false
	a.advance--
	b.start, b.item, b.advance, b.first = s.start+a.advance, s.item+a.advance, 1, false
	if s.send < 0 && s.control() && !s.pair() {
		a.source, a.pointer = -1, -1
	} else {
		b.source, b.pointer = -1, -1
	}
	return a, b
}

// word appends the words of one step.
func (e *rowEncoder) word(s *step) {
	advance := uint32(s.advance - 1)
	var sctl, item uint32
	if s.send >= 0 {
		r := &e.sends[s.send]
		sctl = r.direction
		item = r.address/4 + uint32(s.item)
	}
	switch {
	case s.pair() || s.repeated:
		event := s.start + 1
		source, pointer := e.sourceAt(event), e.pointerAt(event)
		e.words = append(e.words, 0xF0000000|advance<<21|item<<3|sctl, source<<18|pointer)
	case s.send >= 0 && s.first:
		e.words = append(e.words, 0x78000000|advance<<21|item<<3|sctl)
	case s.send >= 0 && s.source >= 0:
		e.words = append(e.words, 0x70100000|advance<<21|e.sources[s.source].value)
	case s.send >= 0 && s.pointer >= 0:
		e.words = append(e.words, 0x70100000|advance<<21|2<<18|e.pointers[s.pointer].value)
	case s.send >= 0:
		e.words = append(e.words, 0x70000000|advance&0x3F<<21|advance>>6<<14|sctl)
	case s.source >= 0:
		e.words = append(e.words, 0x64000000|advance<<14|e.sources[s.source].value)
	case s.pointer >= 0:
		e.words = append(e.words, 0x60000000|advance<<19|e.pointers[s.pointer].value)
	default:
		e.words = append(e.words, 0x40A00000|advance)
	}
}

// sourceAt returns the mux value that holds from an event.
func (e *rowEncoder) sourceAt(event int32) uint32 {
	if k := lastChange(e.sources, event); k >= 0 {
		return e.sources[k].value
	}
	return machine.Neutral
}

// pointerAt returns the pointer value that holds from an event: where the word
// of that event goes, or the next word that arrives after it.
func (e *rowEncoder) pointerAt(event int32) uint32 {
	lag := e.routes.lag[e.tile]
	value := uint32(0)
	lo, hi := 0, len(e.receives)
	for lo < hi {
		if mid := (lo + hi) / 2; e.receives[mid].mux+lag <= event {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo > 0 {
		r := &e.receives[lo-1]
		value = (r.address-e.base)/4 + uint32(min(event-r.mux-lag, r.words))
	}
	return value
}

// lastChange returns the last change at or before an event, or -1.
func lastChange(c []change, event int32) int {
	lo, hi := 0, len(c)
	for lo < hi {
		if mid := (lo + hi) / 2; c[mid].event <= event {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo - 1
}
