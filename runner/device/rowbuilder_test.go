package device_test

import (
	"fmt"

	"ipufarm/protocol/machine"
)

// row writes an exchange row instruction by instruction, from the published table.
type row struct {
	words []uint32
	now   int
}

// wait passes time up to an event.
func (r *row) wait(event int) *row {
	if event < r.now {
		panic(fmt.Sprintf("row is at event %d, past %d", r.now, event))
	}
	if n := event - r.now; n > 0 {
		r.words = append(r.words, 0x40A00000|uint32(n-1))
	}
	r.now = event
	return r
}

// xpic selects a source (pair: on the paired mux), effective at an event.
func (r *row) xpic(event int, source uint32, pair bool) *row {
	r.wait(event - 1)
	w := 0x64000000 | source
	if pair {
		w |= 1 << 13
	}
	r.words = append(r.words, w)
	r.now = event
	return r
}

func (r *row) source(event int, source uint32) *row { return r.xpic(event, source, false) }

// pointer sets the receive pointer to an address, effective at an event.
func (r *row) pointer(event int, address uint32) *row {
	r.wait(event - 1)
	r.words = append(r.words, 0x60000000|address/4)
	r.now = event
	return r
}

func (r *row) format(event int, value uint32) *row {
	r.wait(event - 1)
	r.words = append(r.words, 0x60000000|1<<18|value)
	r.now = event
	return r
}

// both sets source and pointer at one event, by a sendpicp that sends nothing.
// flags are bit 27 of the first word (format) and bit 31 of the second (pair).
func (r *row) both(event int, source, address uint32, flags ...uint32) *row {
	if len(r.words)%2 == 0 { // two delays: the sendpicp must be 8-byte aligned
		r.wait(event - 2)
	}
	r.wait(event - 1)
	if len(r.words)%2 != 0 {
		panic("sendpicp at an odd word")
	}
	first, second := uint32(0xF0000000), source<<18|address/4
	if len(flags) == 2 {
		first, second = first|flags[0], second|flags[1]
	}
	r.words = append(r.words, first, second)
	r.now = event
	return r
}

// send starts a stream at an event; n items, continued by sendoff.
func (r *row) send(event, n int, address, sctl uint32) *row {
	r.wait(event)
	unit := uint32(4)
	if sctl&4 != 0 {
		unit = 8
	}
	first := min(n, 64)
	r.words = append(r.words, 0x78000000|uint32(first-1)<<21|address/unit<<3|sctl)
	for left := n - first; left > 0; {
		k := min(left, 4096)
		c := uint32(k - 1)
		r.words = append(r.words, 0x70000000|c&63<<21|c>>6<<14|sctl)
		left -= k
	}
	r.now += n
	return r
}

// base writes OUTGOING_BASE from a register.
func (r *row) base(register uint32) *row {
	r.words = append(r.words, 0x43008000&^0xFF|register<<20|0xA7)
	r.now += 13
	return r
}

// end waits for the horizon and returns the words.
func (r *row) end(horizon int) []uint32 { return append(r.wait(horizon).words, 0x43A00000) }

// mux is the event at which d's mux must select what s sends at event start, and
// write the event at which d writes it.
func mux(s, d, start int) int { return start + machine.MuxTime(s, d) + 1 }

func write(s, d, start int) int { return mux(s, d, start) + machine.PointerLag(d) }

// receiver is the row of a tile that receives n words of one transfer.
func receiver(s, d, start, n int, address uint32) []uint32 {
	x, p := mux(s, d, start), write(s, d, start)
	r := new(row).source(x, uint32(s))
	if x+n <= p {
		r.source(x+n, machine.Neutral)
		if x+n == p {
			panic("source and pointer at one event")
		}
		r.pointer(p, address)
	} else {
		r.pointer(p, address).source(x+n, machine.Neutral)
	}
	return r.end(p + n + 5)
}
