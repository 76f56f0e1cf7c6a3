package machine

import "fmt"

// This file reads exchange rows: the straight-line supervisor code by which one
// tile plays its part in a phase. It is written from the published instruction
// table (exchange instruction reference of the C600 bring-up, forms verified
// with the SDK assembler and by execution) and shares nothing with the encoder
// in compiler/exchange, so that the two check each other.
//
// Timing: an instruction that starts at event t and advances by a ends at t+a.
// A control of delaypic/delayxpic takes effect at t+a, of sendpic/sendpicp at
// t+1; word i of any send leaves at t+i.

// ControlKind says which register of the receive side a control changes.
type ControlKind uint8

const (
	Source     ControlKind = iota // incoming mux: physical tile or Neutral
	PairSource                    // incoming mux of the borrowed half of a 64-bit receive
	Pointer                       // receive pointer, a word address relative to INCOMING_BASE
	Format                        // receive format: 0 = 32-bit, 1 or 2 = 64-bit
)

func (k ControlKind) String() string {
	return [...]string{"source", "pair-source", "pointer", "format"}[k&3]
}

// Neutral is the source value that listens to nobody.
const Neutral = 0x640

// BaseWriteEvents is what a write of a base register costs inside a row
// (measured on a C600 by substituting delays).
const BaseWriteEvents = 13

// MaxHorizon bounds the events of one row, so that untrusted rows cannot
// overflow event arithmetic: 2^28 events are 0.18 s of device time.
const MaxHorizon = 1 << 28

// Send is a maximal run of items that leave one per event from consecutive
// addresses with one direction mask and width, however many instructions it took.
type Send struct {
	Start, Items int32  // first event, and number of events
	Address      uint32 // byte address of the first item, relative to OUTGOING_BASE
	Direction    uint8  // mask 1..3
	Wide         bool   // 64-bit items
}

// Control is a change of one receive register that takes effect at Event.
type Control struct {
	Event int32
	Kind  ControlKind
	Value uint32
}

// BaseWrite copies a supervisor register to a base register; it occupies the
// BaseWriteEvents events before Event, when the new base holds.
type BaseWrite struct {
	Event    int32
	Outgoing bool // OUTGOING_BASE, else INCOMING_BASE
	Register uint8
}

// ExchangeRow is a decoded exchange row. Sends, controls and base writes are in event
// order; of the two controls of one sendpicp the source comes first.
type ExchangeRow struct {
	Horizon    int32 // events until the return
	Sends      []Send
	Controls   []Control
	BaseWrites []BaseWrite
}

// RowError is what is wrong with a row, and where.
type RowError struct {
	Index  int    // word index in the row
	Word   uint32 // zero when the row ends too early
	Reason string
}

func (e *RowError) Error() string {
	return fmt.Sprintf("exchange row word %d (0x%08X): %s", e.Index, e.Word, e.Reason)
}

// DecodeRow decodes one row, which must end with its return word. Every error
// is a *RowError. Work and memory are linear in len(words).
func DecodeRow(words []uint32) (ExchangeRow, error) {
	var r ExchangeRow
	err := r.Decode(words)
	return r, err
}

// Decode is DecodeRow into r, reusing its slices.
func (r *ExchangeRow) Decode(words []uint32) error {
	r.Horizon, r.Sends, r.Controls, r.BaseWrites = 0, r.Sends[:0], r.Controls[:0], r.BaseWrites[:0]
	d := rowDecoder{row: r}
	for i := 0; i < len(words); i++ {
		w := words[i]
		if w == 0x43A00000 { // br m10
			if i+1 != len(words) {
				return &RowError{i + 1, words[i+1], "follows the return, which must be the last word"}
			}
			r.Horizon = d.now
			return nil
		}
		second := uint32(0)
		if w>>28 == 0xF { // sendpicp is the only two-word form
			if i&1 != 0 {
				return &RowError{i, w, "sendpicp at an odd word, must be 8-byte aligned"}
			}
			if i+1 == len(words) {
				return &RowError{i, w, "sendpicp without its second word"}
			}
			i++
			second = words[i]
		}
		if reason := d.step(w, second); reason != "" {
			return &RowError{i, w, reason}
		}
		if d.now > MaxHorizon {
			return &RowError{i, w, fmt.Sprintf("ends at event %d, rows may last at most %d", d.now, MaxHorizon)}
		}
	}
	return &RowError{len(words), 0, "row ends without a return"}
}

// rowDecoder is the state that instructions leave behind for later ones.
type rowDecoder struct {
	row    *ExchangeRow
	now    int32
	cursor uint32 // byte address that a continuation sends from
	sctl   uint32 // of the running stream; direction 0 when there is none
}

// step decodes one instruction and returns what is wrong with it, or "".
func (d *rowDecoder) step(w, second uint32) string {
	switch {
	case w&0xFFF80000 == 0x40A00000: // delay
		d.now += int32(w&0x7FFFF) + 1
	case w>>26 == 0x60000000>>26: // delaypic
		d.now += int32(w>>19&0x7F) + 1
		d.pic(d.now, w>>18&1, w&0x3FFFF)
	case w>>26 == 0x64000000>>26: // delayxpic
		d.now += int32(w>>14&0xFFF) + 1
		d.xpic(d.now, w>>13&1, w&0x1FFF)
	case w>>27 == 0x78000000>>27: // send
		return d.start(w)
	case w&0xF8100000 == 0x70000000: // sendoff
		switch {
		case w>>3&0x7FF != 0:
			return "sendoff with a source delta, only 0 (continue) is known"
		case d.sctl&3 == 0:
			return "sendoff without a running stream"
		case w&3 == 0:
			return "sendoff without a direction"
		case (w^d.sctl)&4 != 0:
			return "sendoff changes the item width of its stream"
		}
		d.sctl = w & 7
		d.items(int32(w>>21&0x3F|w>>14&0x3F<<6) + 1)
	case w&0xF8100000 == 0x70100000: // sendpic
		if d.sctl&3 == 0 {
			return "sendpic without a running stream"
		}
		if w>>19&1 == 1 {
			d.pic(d.now+1, w>>18&1, w&0x3FFFF)
		} else if w&0x3E000 != 0 {
			return "sendpic with a source value over 13 bits"
		} else {
			d.xpic(d.now+1, w>>18&1, w&0x1FFF)
		}
		d.items(int32(w>>21&0x3F) + 1)
	case w>>28 == 0xF: // sendpicp
		d.xpic(d.now+1, second>>31, second>>18&0x1FFF)
		d.pic(d.now+1, w>>27&1, second&0x3FFFF)
		return d.start(w)
	case w&0xFF0FFFFF == 0x430080A4, w&0xFF0FFFFF == 0x430080A7: // put INCOMING_BASE, OUTGOING_BASE
		d.now += BaseWriteEvents
		d.sctl = 0 // a cursor does not survive its base
		d.row.BaseWrites = append(d.row.BaseWrites, BaseWrite{d.now, w&0xFF == 0xA7, uint8(w >> 20 & 0xF)})
	default:
		return "not an exchange instruction"
	}
	return ""
}

// start begins a stream at an absolute item address: the fields that send and
// sendpicp share. Without a direction nothing leaves and only time passes.
func (d *rowDecoder) start(w uint32) string {
	d.sctl = w & 7
	if d.sctl == 4 {
		return "64-bit items without a direction"
	}
	d.cursor = w >> 3 & 0x3FFFF * d.itemBytes()
	d.items(int32(w>>21&0x3F) + 1)
	return ""
}

func (d *rowDecoder) itemBytes() uint32 { return 4 << (d.sctl >> 2) }

// items sends n items of the running stream.
func (d *rowDecoder) items(n int32) {
	start := d.now
	d.now += n
	if d.sctl&3 == 0 {
		return
	}
	s := Send{start, n, d.cursor, uint8(d.sctl & 3), d.sctl&4 != 0}
	d.cursor += uint32(n) * d.itemBytes()
	sends := d.row.Sends
	if k := len(sends) - 1; k >= 0 && sends[k].joins(s) {
		sends[k].Items += n
		return
	}
	d.row.Sends = append(sends, s)
}

// joins reports whether t continues s without a gap in time or address.
func (s Send) joins(t Send) bool {
	return s.Start+s.Items == t.Start && s.End() == t.Address && s.Direction == t.Direction && s.Wide == t.Wide
}

// End returns the byte address after the last item.
func (s Send) End() uint32 {
	if s.Wide {
		return s.Address + uint32(s.Items)*8
	}
	return s.Address + uint32(s.Items)*4
}

func (d *rowDecoder) pic(event int32, selector, value uint32) {
	d.row.Controls = append(d.row.Controls, Control{event, Pointer + ControlKind(selector), value})
}

func (d *rowDecoder) xpic(event int32, selector, value uint32) {
	d.row.Controls = append(d.row.Controls, Control{event, Source + ControlKind(selector), value})
}
