package device_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"ipufarm/protocol/machine"
	"ipufarm/protocol/program"
	"ipufarm/runner/device"
)

// Two tiles that most tests use: tile 0 sends to tile 53 by direction 1. A word
// sent at event 130 reaches the mux at X and is written at P.
const (
	s0, d0 = 0, 53
	sentAt = 130
)

// TestExchangeFaults changes one thing of a transfer of four words.
func TestExchangeFaults(t *testing.T) {
	x, p := mux(s0, d0, sentAt), write(s0, d0, sentAt)
	send := func() []uint32 { return new(row).send(sentAt, 4, standard, 1).end(sentAt + 4) }
	// receive is the row of the receiver, to be broken.
	receive := func() *row { return new(row).source(x, s0).source(x+4, machine.Neutral) }
	for _, c := range []struct {
		name     string
		sender   []uint32
		receiver []uint32
		rule     device.Rule
		says     []string
	}{
		{"silent source", nil, receiver(s0, d0, sentAt, 4, inter), device.RuleSource, []string{"tile 53", "event 108", "tile 0 (logical 0)", "nothing at its event 130"}},
		{"source stops early", new(row).send(sentAt, 3, standard, 1).end(200), receiver(s0, d0, sentAt, 4, inter), device.RuleSource, []string{"event 111", "nothing at its event 133"}},
		{"source starts late", new(row).send(sentAt+1, 4, standard, 1).end(200), receiver(s0, d0, sentAt, 4, inter), device.RuleSource, []string{"event 108"}},
		{"other direction", new(row).send(sentAt, 4, standard, 2).end(200), receiver(s0, d0, sentAt, 4, inter), device.RuleDirection, []string{"mask 2", "reached by 1"}},
		{"no direction", new(row).send(sentAt, 4, standard, 0).end(200), receiver(s0, d0, sentAt, 4, inter), device.RuleSource, nil},
		{"left connected", send(), new(row).source(x, s0).pointer(p, inter).end(p + 9), device.RuleConnected, []string{"neutral"}},
		{"source of no tile", send(), new(row).source(x, 0x600).source(x+4, machine.Neutral).pointer(p, inter).end(p + 9), device.RuleSource, []string{"0x600"}},
		{"source outside of the package", send(), new(row).source(x, 9).source(x+4, machine.Neutral).pointer(p, inter).end(p + 9), device.RuleSource, []string{"tile 9", "not part"}},
		{"no pointer", send(), receive().end(p + 9), device.RulePointer, []string{"event 160"}},
		{"pointer too late", send(), receive().pointer(p+1, inter).end(p + 9), device.RulePointer, nil},
		{"pointer below memory", send(), receive().pointer(p, 0x4BFFC).end(p + 9), device.RuleRange, []string{"0x4BFFC"}},
		{"pointer past memory", send(), receive().pointer(p, machine.MemoryEnd-12).end(p + 9), device.RuleRange, nil},
		{"receive on code", send(), receive().pointer(p, streamAt).end(p + 9), device.RuleCode, []string{"overwrite"}},
		{"receive beside code", send(), receive().pointer(p, streamAt+0x2000).end(p + 9), device.RuleFetch, []string{"element 7"}},
		{"receive beside the row", send(), receive().pointer(p, rowsAt+0x2000).end(p + 9), device.RuleFetch, []string{"element 6"}},
		{"send beside the row", new(row).send(sentAt, 4, rowsAt+0x2000, 1).end(200), receiver(s0, d0, sentAt, 4, inter), device.RuleFetch, []string{"tile 0", "event 130"}},
		{"send from below memory", new(row).send(sentAt, 4, 0x4BFF4, 1).end(200), receiver(s0, d0, sentAt, 4, inter), device.RuleRange, nil},
		{"send past memory", new(row).send(sentAt, 4, machine.MemoryEnd-12, 1).end(200), receiver(s0, d0, sentAt, 4, inter), device.RuleRange, nil},
		{"row too short", send(), receive().pointer(p, inter).end(p + 8), device.RuleHorizon, []string{"5 more"}},
		{"format during a word", send(), receive().pointer(p, inter).format(p+2, 1).format(p+9, 0).end(p + 30), device.RuleFormat, []string{"format is 1"}},
		{"format left on", send(), receive().pointer(p, inter).format(p+9, 2).end(p + 30), device.RuleConnected, []string{"format 2"}},
		{"unknown format", send(), receive().pointer(p, inter).format(p+9, 3).format(p+10, 0).end(p + 30), device.RuleFormat, []string{"format 3"}},
		{"control at the first word of a send", new(row).source(sentAt, machine.Neutral).send(sentAt, 4, standard, 1).end(200), receiver(s0, d0, sentAt, 4, inter), device.RuleCollision, []string{"tile 0", "event 130"}},
		{"control at the second word of a send", append(new(row).wait(sentAt-1).wait(sentAt).words, 0xF0000000|3<<21|standard/4<<3|1, machine.Neutral<<18, 0x43A00000), receiver(s0, d0, sentAt, 4, inter), device.RuleCollision, []string{"event 131"}},
		{"wide send, ordinary mux", new(row).send(sentAt, 4, standard, 5).end(200), receiver(s0, d0, sentAt, 4, inter), device.RuleFormat, []string{"8-byte items"}},
		{"word of no instruction", []uint32{0x12345678, 0x43A00000}, receiver(s0, d0, sentAt, 4, inter), device.RuleRow, []string{"0x12345678"}},
		{"row without return", []uint32{0x40A00000}, receiver(s0, d0, sentAt, 4, inter), device.RuleRow, []string{"return"}},
		{"base from an unknown register", new(row).base(6).send(sentAt, 4, standard, 1).end(200), receiver(s0, d0, sentAt, 4, inter), device.RuleBase, []string{"m6"}},
		{"incoming base in a row", append([]uint32{0x430080A4 | 15<<20}, send()...), receiver(s0, d0, sentAt, 4, inter), device.RuleBase, []string{"INCOMING_BASE"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := newJob()
			j.tile(s0).exchange(9, c.sender...)
			j.tile(d0).exchange(9, c.receiver...)
			f := j.mustFault(t, c.rule, append(c.says, "phase 9")...)
			if f.Phase != 9 || f.Tile != s0 && f.Tile != d0 {
				t.Errorf("fault %+v", f)
			}
		})
	}
	// The starting point is accepted, at the bounds as well.
	j := newJob()
	j.tile(s0).exchange(9, send()...)
	j.tile(d0).exchange(9, receive().pointer(p, inter).end(p+9)...)
	j.mustRun(t)
}

// TestControlPairs: only a source and a pointer may take effect together.
func TestControlPairs(t *testing.T) {
	for name, flags := range map[string][2]uint32{
		"pair source and pointer": {0, 1 << 31},
		"source and format":       {1 << 27, 0},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob()
			j.tile(0).exchange(1, new(row).both(20, machine.Neutral, 0, flags[0], flags[1]).end(40)...)
			j.mustFault(t, device.RuleCollision, "event 20")
		})
	}
	j := newJob()
	j.tile(0).exchange(1, new(row).both(20, machine.Neutral, 0).end(40)...)
	j.mustRun(t)
}

// TestIncomingBase: one pointer 0 with a base, or absolute pointers without.
func TestIncomingBase(t *testing.T) {
	x, p := mux(s0, d0, sentAt), write(s0, d0, sentAt)
	with := func(base, pointer uint32, more ...uint32) *job {
		j := newJob()
		j.tile(s0).put(standard, pattern(2, 4)).exchange(9, new(row).send(sentAt, 4, standard, 1).end(200)...)
		r := new(row).source(x, s0).source(x+4, machine.Neutral).pointer(p, pointer)
		for _, m := range more {
			r.pointer(r.now+10, m)
		}
		j.tile(d0).exchangeBase(9, base, 0, r.end(p+50)...)
		j.out(d0, inter, 16)
		return j
	}
	for _, j := range []*job{with(inter, 0), with(0, inter)} {
		if got := j.mustRun(t).Outputs; !bytes.Equal(got, pattern(2, 4)) {
			t.Error("words differ")
		}
	}
	with(inter, 8).mustFault(t, device.RuleBase, "single pointer 0")
	with(inter, 0, 0).mustFault(t, device.RuleBase, "2 pointers")
	with(inter+2, 0).mustFault(t, device.RuleAlignment, "INCOMING_BASE")
}

// TestOutgoingBase: send addresses are relative to the base of the command, and
// after a base write in the row from m15 absolute.
func TestOutgoingBase(t *testing.T) {
	j := newJob()
	r := new(row).send(sentAt, 4, 0x40, 1).base(15)
	second := r.now
	r.send(second, 4, standard+0x80, 1)
	j.tile(s0).put(standard, pattern(2, 64)).exchangeBase(9, 0, standard, r.end(300)...)
	x, p := mux(s0, d0, sentAt), write(s0, d0, sentAt)
	x2, p2 := mux(s0, d0, second), write(s0, d0, second)
	rx := new(row).source(x, s0).source(x+4, machine.Neutral).source(x2, s0).source(x2+4, machine.Neutral)
	j.tile(d0).exchange(9, rx.pointer(p, inter).pointer(p2, inter+16).end(p2+9)...)
	j.out(d0, inter, 32)
	want := append(append([]byte(nil), pattern(2, 64)[0x40:0x50]...), pattern(2, 64)[0x80:0x90]...)
	if got := j.mustRun(t).Outputs; !bytes.Equal(got, want) {
		t.Error("words differ")
	}
	j = newJob()
	j.tile(s0).exchangeBase(9, 0, standard+2, new(row).send(sentAt, 4, 0x40, 1).end(300)...)
	j.mustFault(t, device.RuleAlignment, "aligned to 4")
}

// TestPointerInTheMiddle: a pointer one event early takes the last word of the
// transfer before it, the published trap of 52-word messages.
func TestPointerInTheMiddle(t *testing.T) {
	x, p := mux(s0, d0, sentAt), write(s0, d0, sentAt)
	j := newJob()
	j.tile(s0).put(standard, pattern(3, 4)).exchange(9, new(row).send(sentAt, 4, standard, 1).end(200)...)
	j.tile(d0).exchange(9, new(row).source(x, s0).source(x+4, machine.Neutral).pointer(p, inter).pointer(p+3, inter2).end(p+9)...)
	j.out(d0, inter, 12)
	j.out(d0, inter2, 4)
	r := j.mustRun(t)
	if !bytes.Equal(r.Outputs, pattern(3, 4)) {
		t.Error("words differ")
	}
	if r.Phases[0].Receives != 2 || r.Phases[0].Words != 4 {
		t.Errorf("phase %+v", r.Phases[0])
	}
}

// TestElementClash: a tile may not read what is sent from an element while a
// receive writes it.
func TestElementClash(t *testing.T) {
	// Tile 53 receives at P..P+40 and sends its own words at an event.
	with := func(address uint32, event int) *job {
		x, p := mux(s0, d0, sentAt), write(s0, d0, sentAt)
		j := newJob()
		j.tile(s0).exchange(9, new(row).send(sentAt, 40, standard, 1).end(200)...)
		rx := new(row).source(x, s0).source(x+40, machine.Neutral).pointer(p, inter)
		j.tile(d0).exchange(9, rx.send(event, 8, address, 1).end(max(p+45, event+8))...)
		return j
	}
	p := write(s0, d0, sentAt)
	with(inter+0x4000, p+2).mustFault(t, device.RuleClash, "tile 53", "element 13")
	with(inter+0x4000, p+39).mustFault(t, device.RuleClash)
	with(inter+0x4000, p+44).mustFault(t, device.RuleClash) // within the landing time
	with(inter+0x4000, p+45).mustRun(t)
	with(inter2, p+10).mustRun(t) // another element
	// The element counts at its event only: the send crosses into the element of the
	// receive when that is over.
	j := newJob()
	x := mux(s0, d0, sentAt)
	j.tile(s0).exchange(9, new(row).send(sentAt, 8, standard, 1).end(200)...)
	j.tile(d0).exchange(9, new(row).source(x, s0).source(x+8, machine.Neutral).pointer(p, inter2).send(p+2, 64, inter2-4*32, 1).end(p+80)...)
	j.mustRun(t)
}

// TestMulticast sends to three receivers, one of them the sender.
func TestMulticast(t *testing.T) {
	const n, start = 20, 130
	j := newJob()
	j.tile(0).put(standard, pattern(5, n)).exchange(2, loopback(start, n)...)
	j.out(0, inter, 4*n)
	for _, d := range []int{machine.Physical(274), machine.Physical(1286)} {
		j.tile(d).exchange(2, receiver(0, d, start, n, inter)...)
		j.out(d, inter, 4*n)
	}
	r := j.mustRun(t)
	for k := range 3 {
		if !bytes.Equal(r.Outputs[4*n*k:][:4*n], pattern(5, n)) {
			t.Errorf("receiver %d: words differ", k)
		}
	}
	// Its own words may not land in the element that they come from.
	j.tile(0).rows, j.tile(0).stream = nil, nil
	j.tile(0).exchange(2, new(row).source(mux(0, 0, start), 0).source(mux(0, 0, start)+n, machine.Neutral).
		send(start, n, inter+0x1000, 3).pointer(write(0, 0, start), inter).end(write(0, 0, start)+n+5)...)
	j.mustFault(t, device.RuleClash, "its own words", "same SRAM element")
	// Alone, a tile cannot send to itself.
	j = newJob()
	j.tile(0).exchange(2, loopback(start, n)...)
	j.mustFault(t, device.RuleLoopback, "only receiver")
}

// loopback is a row of tile 0 that multicasts n words and receives them as well.
func loopback(start, n int) []uint32 {
	x, p := mux(0, 0, start), write(0, 0, start)
	r := new(row).source(x, 0).source(x+n, machine.Neutral) // both before the send starts
	r.send(start, n, standard, 3)
	return r.pointer(p, inter).end(p + n + 5)
}

// TestRelay: words that arrive in a phase may leave in it again, and a word that
// leaves before the new one arrives is the old one.
func TestRelay(t *testing.T) {
	const n = 12
	// 0 sends to 53 at 130, 53 sends on to 700; the landing place of 53 is inter.
	with := func(onward int) (*job, int) {
		x, p := mux(s0, d0, sentAt), write(s0, d0, sentAt)
		const last = 700
		j := newJob()
		j.tile(s0).put(standard, pattern(7, n)).exchange(9, new(row).send(sentAt, n, standard, 1).end(200)...)
		rx := new(row)
		send := func() { rx.send(onward, n, inter, uint32(machine.Direction(d0, last))) }
		if onward < x-2 {
			send()
			rx.source(x, s0).source(x+n, machine.Neutral).pointer(p, inter)
		} else {
			rx.source(x, s0).source(x+n, machine.Neutral).pointer(p, inter)
			send()
		}
		j.tile(d0).put(inter, pattern(8, n)).exchange(9, rx.end(max(rx.now, p+n+5))...)
		j.tile(last).exchange(9, receiver(d0, last, onward, n, inter2)...)
		j.out(last, inter2, 4*n)
		j.out(d0, inter, 4*n)
		return j, p
	}
	after, p := with(240)
	if p+n+5 > 240 {
		t.Fatalf("words land at %d", p+n)
	}
	if got := after.mustRun(t).Outputs; !bytes.Equal(got[:4*n], pattern(7, n)) || !bytes.Equal(got[4*n:], pattern(7, n)) {
		t.Error("relayed words differ")
	}
	before, _ := with(80)
	if got := before.mustRun(t).Outputs; !bytes.Equal(got[:4*n], pattern(8, n)) || !bytes.Equal(got[4*n:], pattern(7, n)) {
		t.Error("words sent before others arrive differ")
	}
}

// TestPaired replays the published 64-bit transfer of 64 items from logical 0 to
// the pair {2, 3}: S = 31, X = 1, format on 54, pointer 56, neutral 65, format off
// 118, row end 125.
func TestPaired(t *testing.T) {
	const n, start = 64, 31
	early, late := machine.Physical(2), machine.Physical(3)
	if machine.MuxTime(0, early) > machine.MuxTime(0, late) {
		early, late = late, early
	}
	direction := uint32(machine.Direction(0, early))
	value := uint32(0 ^ early&2)
	sender := func(sctl uint32) []uint32 { return new(row).send(start, n, standard, sctl).end(start + n) }
	member := func(issues bool) *row {
		r := new(row)
		if issues {
			r.xpic(1, value, true)
		}
		r.format(54, direction).pointer(56, inter)
		if issues {
			r.xpic(65, machine.Neutral, true)
		}
		return r
	}
	build := func(sctl uint32, e, l []uint32) *job {
		j := newJob()
		j.tile(0).put(standard, pattern(6, 2*n)).exchange(4, sender(sctl)...)
		j.tile(2).exchange(4) // partner of the sender
		j.tile(early).exchange(4, e...)
		j.tile(late).exchange(4, l...)
		j.out(early, inter, 8*n)
		j.out(late, inter, 8*n)
		return j
	}
	issuing, listening := member(true).format(118, 0).end(125), member(false).format(118, 0).end(125)
	r := build(direction|4, issuing, listening).mustRun(t)
	if want := pattern(6, 2*n); !bytes.Equal(r.Outputs, append(want, want...)) {
		t.Error("items differ")
	}
	if r.Phases[0].Words != 4*n || r.Phases[0].Horizon != 125 {
		t.Errorf("phase %+v", r.Phases[0])
	}

	build(direction, issuing, listening).mustFault(t, device.RuleFormat, "4-byte items")
	build(direction^3|4, issuing, listening).mustFault(t, device.RuleDirection)
	build(direction|4, issuing, new(row).pointer(56, inter).end(125)).mustFault(t, device.RuleFormat, "format is 0")
	build(direction|4, issuing, nil).mustFault(t, device.RuleFormat, "takes no part")
	build(direction|4, new(row).xpic(1, value, true).format(54, direction^3).pointer(56, inter).xpic(65, machine.Neutral, true).format(118, 0).end(125), listening).
		mustFault(t, device.RuleFormat, "8-byte items need")
	build(direction|4, issuing, new(row).format(54, direction).pointer(56, inter).format(117, 0).end(125)).mustFault(t, device.RuleFormat, "event 117")
	build(direction|4, issuing, new(row).format(54, direction).pointer(56, inter+4).format(118, 0).end(125)).mustFault(t, device.RuleAlignment, "aligned to 8")
	build(direction|4, member(true).format(118, 0).end(124), listening).mustFault(t, device.RuleHorizon)
	build(direction|4, new(row).xpic(1, value, true).format(54, direction).pointer(56, inter).format(118, 0).end(125), listening).mustFault(t, device.RuleConnected, "pair-source")
	build(direction|4, issuing, new(row).xpic(2, value^2, true).format(54, direction).pointer(56, inter).xpic(66, machine.Neutral, true).format(118, 0).end(125)).
		mustFault(t, device.RuleFormat, "earlier member")
	// The lane of the sender's partner is taken.
	j := build(direction|4, issuing, listening)
	j.tile(2).stream, j.tile(2).rows = nil, nil
	j.tile(2).exchange(4, new(row).send(94, 8, standard, 1).end(110)...)
	j.mustFault(t, device.RuleLane, "tile 0", "event 94")
	j = build(direction|4, issuing, listening)
	j.tile(2).stream, j.tile(2).rows = nil, nil
	j.tile(2).exchange(4, new(row).send(95, 8, standard, 1).end(110)...)
	j.mustRun(t)
}

// TestTwoReceivesAtOnce: an ordinary and a paired receive whose words would be
// written at one event.
func TestTwoReceivesAtOnce(t *testing.T) {
	const n, start = 8, 131
	early, late := machine.Physical(2), machine.Physical(3)
	if machine.MuxTime(0, early) > machine.MuxTime(0, late) {
		early, late = late, early
	}
	direction := uint32(machine.Direction(0, early))
	j := newJob()
	j.tile(0).exchange(4, new(row).send(start, n, standard, direction|4).end(200)...)
	j.tile(2).exchange(4)
	x, p := mux(0, early, start), write(0, early, start)+1
	// Tile 100 sends ordinary words that are written at the same events.
	other := start + 20
	for write(100, early, other) != p {
		if write(100, early, other) < p {
			other++
		} else {
			other--
		}
	}
	j.tile(100).exchange(4, new(row).send(other, n, standard, uint32(machine.Direction(100, early))).end(300)...)
	y := mux(100, early, other)
	if y-x != 1 {
		t.Fatalf("muxes select at %d and %d", x, y)
	}
	value := uint32(early & 2)
	r := new(row).xpic(x, value, true).source(y, 100).xpic(x+n, machine.Neutral, true).source(y+n, machine.Neutral)
	j.tile(early).exchange(4, r.pointer(p, inter).end(p+n+5)...)
	j.tile(late).exchange(4, new(row).end(10)...)
	j.mustFault(t, device.RuleCollision, "written at one event")
}

// TestMissingPartner: 64-bit sends need the lane of a tile of the package.
func TestMissingPartner(t *testing.T) {
	j := newJob()
	j.tile(0).exchange(4, new(row).send(131, 4, standard, 5).end(200)...)
	j.mustFault(t, device.RuleLane, "tile 2", "not part of the package")
}

// TestRowTrailingWord: the pad after a row is not part of it.
func TestRowTrailingWord(t *testing.T) {
	j := newJob()
	m := j.tile(0)
	c := program.Command{Kind: program.Exchange}
	c.Args[0], c.Args[1] = rowsAt, 8
	m.record(c)
	m.rows = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, 0x43A00000), 0)
	j.mustFault(t, device.RuleRow, "return")
}
