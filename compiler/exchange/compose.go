package exchange

import "fmt"

// step is one instruction of a row before its word count is final.
type step struct {
	start    int32 // first event
	advance  int32 // events
	send     int32 // index of the run whose items leave during it, or -1
	item     int32 // items of the run that left before
	first    bool  // begins the run
	control  int32 // index of the first control that it carries
	count    int32 // controls that it carries: one, or a source and a pointer
	split    bool  // written as two instructions
	repeated bool  // written as a sendpicp: what it does not change repeats the register's value
}

// What one instruction can advance by.
const (
	maxDelay        = 1 << 19
	maxDelayPointer = 128  // or format
	maxDelaySource  = 4096 // of either mux
	maxSend         = 64   // of send, sendpic and sendpicp
	maxSendOff      = 4096
)

// compose lists the row's instructions in time order: idle time with its
// controls, runs with theirs. A lone control of an idle moment acts at the end of
// its instruction, so it swallows the wait before it; a control inside a run, and
// a pair, acts one event after its instruction starts, so it swallows what follows.
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
		if event, ok := c.event(); ok && event < s.start+beginEvents {
			return &EncodeError{e.tile, event, fmt.Sprintf("a receive control meets the send that starts at %d", s.start)}
		}
		if err := c.run(int32(k)); err != nil {
			return err
		}
	}
	return c.idle(e.horizon)
}

type composer struct {
	e    *rowEncoder
	now  int32
	next int // next control
}

// event returns the event of the next control.
func (c *composer) event() (int32, bool) {
	if c.next == len(c.e.controls) {
		return 0, false
	}
	return c.e.controls[c.next].event, true
}

// take adds the controls of the next event to a step.
func (c *composer) take(s *step) error {
	s.control, s.count = int32(c.next), 1
	k := c.e.controls[c.next:]
	c.next++
	if len(k) < 2 || k[1].event != k[0].event {
		return nil
	}
	s.count = 2
	c.next++
	if k[0].kind != source || k[1].kind != pointer || len(k) > 2 && k[2].event == k[0].event {
		return &EncodeError{c.e.tile, k[0].event, "two controls act together that must act alone"}
	}
	return nil
}

func (c *composer) add(s step) {
	c.e.steps = append(c.e.steps, s)
	c.now = s.start + s.advance
}

// wait adds plain delays until an event.
func (c *composer) wait(until int32) {
	for c.now < until {
		c.add(step{start: c.now, advance: min(until-c.now, maxDelay), send: -1})
	}
}

// idle fills the time until an event, when nothing leaves.
func (c *composer) idle(until int32) error {
	for {
		event, ok := c.event()
		if !ok || event > until {
			c.wait(until)
			return nil
		}
		if event <= c.now {
			return &EncodeError{c.e.tile, event, "a control and the end of a send leave no time between them"}
		}
		s := step{send: -1}
		if err := c.take(&s); err != nil {
			return err
		}
		if s.count == 2 {
			c.wait(event - 1)
			limit := until
			if following, ok := c.event(); ok {
				limit = min(limit, following-1)
			}
			s.start, s.advance = c.now, max(1, min(limit-c.now, maxSend))
		} else {
			longest := int32(maxDelayPointer)
			if kind := c.e.controls[s.control].kind; kind == source || kind == pair {
				longest = maxDelaySource
			}
			c.wait(event - longest)
			s.start, s.advance = c.now, event-c.now
		}
		c.add(s)
	}
}

// run adds the instructions of a run and of the controls during it.
func (c *composer) run(k int32) error {
	r := c.e.sends[k]
	end := r.start + r.items
	for c.now < end {
		s := step{start: c.now, send: k, item: c.now - r.start, first: c.now == r.start}
		limit, most := end, int32(maxSendOff)
		event, ok := c.event()
		if ok && event == c.now+1 && !s.first {
			if err := c.take(&s); err != nil {
				return err
			}
			event, ok = c.event()
		}
		if ok {
			limit = min(limit, event-1)
		}
		if limit <= c.now && s.count == 0 {
			return &EncodeError{c.e.tile, event, "a receive control leaves no time for a send"}
		}
		if s.first || s.count > 0 {
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
// always possible in ordinary rows of the scheduler: no control acts as a send
// begins, and sends are apart by nothing or by at least two events (sendGap), so
// if every step lasts one event, a sendpicp is followed by a lone control, or by
// one wait and the next sendpicp; a row begins with a wait that can be split
// (firstSend) or with a control. Beside 64-bit receives nothing may be repeated.
func (e *rowEncoder) emit() error {
	e.words = e.words[:0]
	since := 0 // first step that may still be changed
	length := 0
	for i := range e.steps {
		if e.steps[i].count < 2 {
			length++
			continue
		}
		if length&1 == 1 && !e.pad(e.steps[since:i]) {
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
func (e *rowEncoder) pad(steps []step) bool {
	for i := len(steps) - 1; i >= 0; i-- {
		if steps[i].advance > 1 {
			steps[i].split = true
			return true
		}
	}
	first := &steps[0]
	if first.count == 2 {
		first = &steps[1]
	}
	first.repeated = (first.count == 1 || first.send < 0) && !e.anyWide && e.base == 0
	return first.repeated
}

// halves cuts one event off the end of a step. A lone control of idle time acts
// at the end, all others one event after the start.
func (s *step) halves() (a, b step) {
	a, b = *s, *s
	a.split, b.split = false, false
	a.advance--
	b.start, b.item, b.advance, b.first = s.start+a.advance, s.item+a.advance, 1, false
	if s.send < 0 && s.count == 1 {
		a.count = 0
	} else {
		b.count = 0
	}
	return a, b
}

// word appends the words of one step.
func (e *rowEncoder) word(s *step) {
	advance := uint32(s.advance - 1)
	var sctl, item uint32
	if s.send >= 0 {
		r := &e.sends[s.send]
		sctl = r.sctl
		item = r.address/itemBytes(sctl&4 != 0) + uint32(s.item)
	}
	if s.count == 2 || s.repeated {
		from, to := e.sourceAt(s.start+1), e.pointerAt(s.start+1)
		e.words = append(e.words, 0xF0000000|advance<<21|item<<3|sctl, from<<18|to)
		return
	}
	var word uint32
	switch {
	case s.send >= 0 && s.first:
		word = 0x78000000 | advance<<21 | item<<3 | sctl
	case s.send >= 0 && s.count == 0:
		word = 0x70000000 | advance&0x3F<<21 | advance>>6<<14 | sctl
	case s.count == 0:
		word = 0x40A00000 | advance
	default:
		c := &e.controls[s.control]
		switch {
		case s.send >= 0: // the kinds are numbered as the selectors of sendpic
			word = 0x70100000 | advance<<21 | uint32(c.kind)<<18 | c.value
		case c.kind == source || c.kind == pair:
			word = 0x64000000 | advance<<14 | uint32(c.kind-source)<<13 | c.value
		default:
			word = 0x60000000 | advance<<19 | uint32(c.kind-pointer)<<18 | c.value
		}
	}
	e.words = append(e.words, word)
}

// sourceAt returns the value of the ordinary mux that holds from an event.
func (e *rowEncoder) sourceAt(event int32) uint32 {
	list := e.changes[source]
	lo, hi := 0, len(list)
	for lo < hi {
		if mid := (lo + hi) / 2; list[mid].event <= event {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == 0 {
		return neutral
	}
	return list[lo-1].value
}

// pointerAt returns the pointer value that holds from an event: where the item
// of that event goes, or the next one that arrives after it.
func (e *rowEncoder) pointerAt(event int32) uint32 {
	lo, hi := 0, len(e.receives)
	for lo < hi {
		if mid := (lo + hi) / 2; e.writes(&e.receives[mid]) <= event {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == 0 {
		return 0
	}
	r := &e.receives[lo-1]
	written := uint32(min(event-e.writes(r), r.items)) * itemBytes(r.wide)
	return (r.address + written - e.base) / 4
}
