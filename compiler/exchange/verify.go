package exchange

import (
	"cmp"
	"fmt"
	"slices"
	"sort"

	"ipufarm/protocol/machine"
)

// Verify decodes rows and proves that they do exactly what the problem asks: it
// follows every span of words from the send through mux and pointer to memory,
// and judges the rows by the hardware's rules. It knows nothing of the schedule
// or of the encoder.
func Verify(p *Problem, rows *Rows) error {
	if err := p.Check(); err != nil {
		return err
	}
	if len(rows.Tile) != p.Tiles {
		return fmt.Errorf("exchange rows of %d tiles for a problem of %d", len(rows.Tile), p.Tiles)
	}
	in, out := p.endpoints()
	v := &verifier{
		p: p, routes: loadRoutes(), in: in, out: out, rows: rows,
		decoded: make([]machine.ExchangeRow, p.Tiles),
		starts:  make([]int32, len(p.Transfers)),
	}
	for t := range v.starts {
		v.starts[t] = -1
	}
	for tile := range int32(p.Tiles) {
		if err := v.decode(tile); err != nil {
			return err
		}
	}
	for tile := range int32(p.Tiles) {
		if err := v.deliveries(tile); err != nil {
			return err
		}
	}
	for tile := range int32(p.Tiles) {
		if err := v.rules(tile); err != nil {
			return err
		}
	}
	return nil
}

// RowsError says what is wrong with a tile's row.
type RowsError struct {
	Tile   int32
	Event  int32 // -1 when it concerns the whole row
	Reason string
}

func (e *RowsError) Error() string {
	if e.Event < 0 {
		return fmt.Sprintf("exchange row of %s: %s", tileName(e.Tile), e.Reason)
	}
	return fmt.Sprintf("exchange row of %s, event %d: %s", tileName(e.Tile), e.Event, e.Reason)
}

func rowError(tile, event int32, format string, args ...any) error {
	return &RowsError{tile, event, fmt.Sprintf(format, args...)}
}

type verifier struct {
	p       *Problem
	routes  *routes
	in, out *byTile
	rows    *Rows
	decoded []machine.ExchangeRow
	starts  []int32 // by transfer: event of the first word, -1 = none seen yet

	// expected[w] is 1 + the receiver index whose destination begins at word w
	// of the tile at hand, and has not arrived yet.
	expected [machine.MemorySize / 4]int32
	uses     []use
}

func (v *verifier) decode(tile int32) error {
	row := &v.rows.Tile[tile]
	if active := len(v.in.of(tile))+len(v.out.of(tile)) > 0; active != (row.Words != nil) {
		return rowError(tile, -1, "has %d words, but takes part: %v", len(row.Words), active)
	}
	if row.Words == nil {
		return nil
	}
	if err := v.decoded[tile].Decode(row.Words); err != nil {
		return fmt.Errorf("%s: %w", tileName(tile), err)
	}
	if row.OutgoingBase != 0 || len(v.decoded[tile].BaseWrites) > 0 {
		return rowError(tile, -1, "uses a base for its sends, accepted are absolute addresses")
	}
	return nil
}

// deliveries follows what one tile's mux lets in.
func (v *verifier) deliveries(tile int32) error {
	if v.rows.Tile[tile].Words == nil {
		return nil
	}
	mine := v.in.of(tile)
	for _, r := range mine {
		v.expected[(v.p.Receivers[r].Address-machine.MemoryBase)/4] = r + 1
	}
	left := len(mine)
	d := &delivery{v: v, tile: tile, left: &left, pointers: v.decoded[tile].Controls, base: v.rows.Tile[tile].IncomingBase}
	row := &v.decoded[tile]
	source, since := uint32(machine.Neutral), int32(0)
	for _, c := range row.Controls {
		switch c.Kind {
		case machine.Source:
			if c.Value == source {
				continue // repeats what it listens to anyway
			}
			if err := d.listen(source, since, c.Event); err != nil {
				return err
			}
			source, since = c.Value, c.Event
		case machine.PairSource, machine.Format:
			return rowError(tile, c.Event, "sets %v, but nothing is sent as 64-bit items", c.Kind)
		}
	}
	if source != machine.Neutral {
		return rowError(tile, since, "ends with the mux on %d, must be neutral (%d)", source, machine.Neutral)
	}
	if left > 0 {
		for _, r := range mine {
			if v.expected[(v.p.Receivers[r].Address-machine.MemoryBase)/4] != 0 {
				t := v.in.transfer[r]
				return rowError(tile, -1, "transfer %d from %s never arrives at 0x%X", t, tileName(v.p.Transfers[t].Source), v.p.Receivers[r].Address)
			}
		}
	}
	return nil
}

// delivery is the state of one tile's receive side.
type delivery struct {
	v        *verifier
	tile     int32
	left     *int // expected receives that have not arrived
	pointers []machine.Control
	base     uint32
	set      bool   // some pointer is in force
	pointer  uint32 // byte address of the next word
}

// listen follows the words that arrive while the mux is on a source during
// [from, to).
func (d *delivery) listen(source uint32, from, to int32) error {
	if source == machine.Neutral {
		return nil
	}
	v := d.v
	if source >= machine.Tiles || machine.Logical(int(source)) >= v.p.Tiles {
		return rowError(d.tile, from, "listens to %d, which is no tile of the phase", source)
	}
	s := int32(machine.Logical(int(source)))
	offset := int32(v.routes.from(s)[d.tile])
	direction := uint8(machine.Direction(int(source), machine.Physical(int(d.tile))))
	sends := v.decoded[s].Sends
	k := sort.Search(len(sends), func(i int) bool { return sends[i].Start+sends[i].Items > from-offset })
	for ; k < len(sends) && sends[k].Start < to-offset; k++ {
		x := &sends[k]
		if x.Direction&direction == 0 {
			continue
		}
		begin := max(x.Start, from-offset)
		end := min(x.Start+x.Items, to-offset)
		if err := d.arrive(s, begin, end, x.Address+uint32(begin-x.Start)*4, offset); err != nil {
			return err
		}
	}
	return nil
}

// arrive writes the words that source sent from an address during [begin, end).
func (d *delivery) arrive(source, begin, end int32, address uint32, offset int32) error {
	lag := offset + d.v.routes.lag[d.tile]
	for begin < end {
		until := end
		for len(d.pointers) > 0 {
			c := d.pointers[0]
			if c.Kind != machine.Pointer {
				d.pointers = d.pointers[1:]
				continue
			}
			if c.Event > begin+lag {
				if event := c.Event - lag; event < end {
					if d.set && c.Value*4+d.base == d.pointer+uint32(event-begin)*4 {
						d.pointers = d.pointers[1:] // repeats where it is anyway
						continue
					}
					until = event
				}
				break
			}
			d.pointer, d.set = c.Value*4+d.base, true
			d.pointers = d.pointers[1:]
		}
		if !d.set {
			return rowError(d.tile, begin+lag, "writes words from %s before any pointer is set", tileName(source))
		}
		if err := d.write(source, begin, until, address); err != nil {
			return err
		}
		d.pointer += uint32(until-begin) * 4
		address += uint32(until-begin) * 4
		begin = until
	}
	return nil
}

// write checks off the transfers that a span of words at the pointer fulfils.
func (d *delivery) write(source, begin, end int32, address uint32) error {
	v := d.v
	for at := d.pointer; begin < end; {
		wrong := func(format string, args ...any) error {
			return rowError(d.tile, begin+int32(v.routes.from(source)[d.tile])+v.routes.lag[d.tile],
				"writes 0x%X with words from 0x%X of %s: %s", at, address, tileName(source), fmt.Sprintf(format, args...))
		}
		if at < machine.MemoryBase || at >= machine.MemoryEnd {
			return wrong("not tile memory")
		}
		e := &v.expected[(at-machine.MemoryBase)/4]
		if *e == 0 {
			return wrong("no transfer starts there, or it has arrived before")
		}
		t := v.in.transfer[*e-1]
		x := &v.p.Transfers[t]
		switch {
		case x.Source != source || x.Address != address:
			return wrong("transfer %d wants 0x%X of %s there", t, x.Address, tileName(x.Source))
		case end-begin < x.Words:
			return wrong("transfer %d is cut after %d of %d words", t, end-begin, x.Words)
		case v.starts[t] >= 0 && v.starts[t] != begin:
			return wrong("transfer %d leaves at event %d for this receiver and at %d for others", t, begin, v.starts[t])
		}
		v.starts[t] = begin
		*e = 0
		*d.left--
		begin += x.Words
		at += uint32(x.Words) * 4
		address += uint32(x.Words) * 4
	}
	return nil
}

// use is a span of events during which a send or a receive uses SRAM elements.
type use struct {
	start, end int32
	elements   uint32
	receive    bool
}

// rules checks what deliveries alone do not show.
func (v *verifier) rules(tile int32) error {
	row := &v.decoded[tile]
	mine, sent := v.in.of(tile), v.out.of(tile)
	v.uses = v.uses[:0]
	alone := false
	words, horizon := int32(0), int32(0)
	for _, t := range sent {
		x := &v.p.Transfers[t]
		s := v.starts[t]
		if single := x.Count == 1; single != (v.sendAt(tile, s).Direction != 3) {
			return rowError(tile, s, "transfer %d to %d receivers is sent with direction %d", t, x.Count, v.sendAt(tile, s).Direction)
		}
		words += x.Words
		v.uses = append(v.uses, use{s, max(s+x.Words, senderTail), elements(x.Address, x.Words), false})
		horizon = max(horizon, s+x.Words, senderTail)
	}
	for _, r := range mine {
		t := v.in.transfer[r]
		x := &v.p.Transfers[t]
		s := v.starts[t] + int32(v.routes.from(x.Source)[tile]) + v.routes.lag[tile]
		v.uses = append(v.uses, use{s, s + x.Words + receiverTail, elements(v.p.Receivers[r].Address, x.Words), true})
		horizon = max(horizon, s+x.Words+receiverTail)
		alone = len(mine) == 1 && x.Count == 1
	}
	for _, s := range row.Sends {
		words -= s.Items
		if s.Wide {
			return rowError(tile, s.Start, "sends 64-bit items, the transfer is ordinary")
		}
	}
	if words != 0 {
		return rowError(tile, -1, "sends %d words fewer than its transfers have", words)
	}
	if row.Horizon < horizon {
		return rowError(tile, row.Horizon, "ends, but is busy until event %d", horizon)
	}
	if base := v.rows.Tile[tile].IncomingBase; base != 0 && !alone {
		return rowError(tile, -1, "receives %d transfers relative to base 0x%X, only one that is meant for it alone may be", len(mine), base)
	}
	if err := v.controls(tile, alone); err != nil {
		return err
	}
	return v.conflicts(tile)
}

// sendAt returns the decoded send that an event belongs to.
func (v *verifier) sendAt(tile, event int32) machine.Send {
	sends := v.decoded[tile].Sends
	k := sort.Search(len(sends), func(i int) bool { return sends[i].Start+sends[i].Items > event })
	return sends[k]
}

// controls checks when controls act: alone or as one source and one pointer,
// and not while a send begins.
func (v *verifier) controls(tile int32, alone bool) error {
	row := &v.decoded[tile]
	sends := row.Sends
	for i, c := range row.Controls {
		if i > 0 && row.Controls[i-1].Event == c.Event && (row.Controls[i-1].Kind != machine.Source || c.Kind != machine.Pointer) {
			return rowError(tile, c.Event, "%v and %v act together", row.Controls[i-1].Kind, c.Kind)
		}
		if alone && c.Kind == machine.Pointer && c.Value != 0 {
			return rowError(tile, c.Event, "pointer %d, must be 0 because the address is in the base", c.Value)
		}
		for len(sends) > 0 && sends[0].Start+1 < c.Event {
			sends = sends[1:]
		}
		if len(sends) > 0 && sends[0].Start <= c.Event {
			return rowError(tile, c.Event, "%v acts at the beginning of the send at event %d", c.Kind, sends[0].Start)
		}
	}
	return nil
}

// conflicts finds a send and a receive that use one SRAM element at a time.
func (v *verifier) conflicts(tile int32) error {
	reads, writes := uint32(0), uint32(0)
	for _, u := range v.uses {
		if u.receive {
			writes |= u.elements
		} else {
			reads |= u.elements
		}
	}
	both := reads & writes
	if both == 0 {
		return nil
	}
	slices.SortFunc(v.uses, func(a, b use) int { return cmp.Compare(a.start, b.start) })
	// busy[side][element] is when the last send or receive there ends.
	var busy [2][machine.Elements]int32
	for _, u := range v.uses {
		side := 0
		if u.receive {
			side = 1
		}
		for e := range busy[0] {
			if u.elements&both>>e&1 == 0 {
				continue
			}
			if busy[1-side][e] > u.start {
				return rowError(tile, u.start, "a send and a receive use SRAM element %d at a time", e)
			}
			busy[side][e] = max(busy[side][e], u.end)
		}
	}
	return nil
}
