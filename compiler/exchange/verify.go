package exchange

import (
	"cmp"
	"fmt"
	"math"
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
		wide:    make([]bool, len(p.Transfers)),
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
	starts  []int32 // by transfer: event of the first item, -1 = none seen yet
	wide    []bool  // by transfer: it arrived as 64-bit items
	windows []window
	anyWide bool // the tile at hand receives 64-bit items

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

// window is a span of events during which a mux listens to a source. Events are
// those of the mux, which belongs to this tile or, for 64-bit items, to either
// tile of the pair.
type window struct {
	from, to int32
	source   int32 // logical tile
	offset   int32 // from the source's event to the mux's
	lag      int32 // from the mux to the SRAM write
	wide     bool
}

// deliveries follows what one tile's muxes let in.
func (v *verifier) deliveries(tile int32) error {
	if v.rows.Tile[tile].Words == nil {
		return nil
	}
	mine := v.in.of(tile)
	for _, r := range mine {
		v.expected[(v.p.Receivers[r].Address-machine.MemoryBase)/4] = r + 1
	}
	v.windows = v.windows[:0]
	if err := v.addWindows(tile, tile, machine.Source); err != nil {
		return err
	}
	ordinary := len(v.windows)
	for _, issuer := range [2]int32{tile, tile ^ 1} {
		if int(issuer) < v.p.Tiles {
			if err := v.addWindows(tile, issuer, machine.PairSource); err != nil {
				return err
			}
		}
	}
	if len(v.windows) > ordinary {
		slices.SortFunc(v.windows, func(a, b window) int { return cmp.Compare(a.from+a.lag, b.from+b.lag) })
	}
	d := delivery{v: v, tile: tile, left: len(mine), controls: v.decoded[tile].Controls, base: v.rows.Tile[tile].IncomingBase}
	for _, c := range d.controls {
		if c.Kind == machine.Format {
			d.formats = append(d.formats, c)
		}
	}
	if n := len(d.formats); n > 0 && d.formats[n-1].Value != 0 {
		return rowError(tile, d.formats[n-1].Event, "ends with format %d, must be 0", d.formats[n-1].Value)
	}
	end := int32(0)
	for _, w := range v.windows {
		if w.from+w.lag < end {
			return rowError(tile, w.from, "listens to %s while words of another tile are still arriving", tileName(w.source))
		}
		end = w.to + w.lag
		if err := d.listen(w); err != nil {
			return err
		}
	}
	if d.left > 0 {
		for _, r := range mine {
			if v.expected[(v.p.Receivers[r].Address-machine.MemoryBase)/4] != 0 {
				t := v.in.transfer[r]
				return rowError(tile, -1, "transfer %d from %s never arrives at 0x%X", t, tileName(v.p.Transfers[t].Source), v.p.Receivers[r].Address)
			}
		}
	}
	return nil
}

// addWindows lists what one mux listens to, as tile receives it.
func (v *verifier) addWindows(tile, issuer int32, kind machine.ControlKind) error {
	add := func(value uint32, from, to int32) error {
		if value == machine.Neutral {
			return nil
		}
		physical := value
		if kind == machine.PairSource { // names the lane of the source's pair
			physical ^= uint32(machine.Physical(int(issuer))) & 2
		}
		if value >= machine.Tiles || machine.Logical(int(physical)) >= v.p.Tiles {
			return rowError(issuer, from, "listens to %d, which is no tile of the phase", value)
		}
		w := window{from: from, to: to, source: int32(machine.Logical(int(physical))), lag: v.routes.lag[tile]}
		mux := v.routes.from(w.source)
		w.offset = int32(mux[issuer])
		if kind == machine.PairSource {
			w.wide = true
			w.lag++
			if mux[issuer] > mux[issuer^1] {
				return rowError(issuer, from, "sets the mux of its pair, but %s hears %s earlier", tileName(issuer^1), tileName(w.source))
			}
		}
		v.windows = append(v.windows, w)
		return nil
	}
	value, since := uint32(machine.Neutral), int32(0)
	for _, c := range v.decoded[issuer].Controls {
		if c.Kind != kind || c.Value == value { // or repeats what it listens to anyway
			continue
		}
		if err := add(value, since, c.Event); err != nil {
			return err
		}
		value, since = c.Value, c.Event
	}
	if value != machine.Neutral {
		return rowError(issuer, since, "ends with the %v on %d, must be neutral (%d)", kind, value, machine.Neutral)
	}
	return nil
}

// delivery is the state of one tile's receive side.
type delivery struct {
	v        *verifier
	tile     int32
	left     int               // expected receives that have not arrived
	controls []machine.Control // from the next pointer on
	base     uint32
	set      bool              // some pointer is in force
	pointer  uint32            // byte address of the next item
	half     int32             // 1 + the receiver that the first half of a transfer has reached
	formats  []machine.Control // from the next change of format on
	format   uint32
}

// listen follows the items that arrive during a window. There must be one at
// every event.
func (d *delivery) listen(w window) error {
	v := d.v
	route := uint8(direction(w.source, d.tile))
	sends := v.decoded[w.source].Sends
	at, stop := w.from-w.offset, w.to-w.offset // in events of the source
	k := sort.Search(len(sends), func(i int) bool { return sends[i].Start+sends[i].Items > at })
	for ; at < stop; k++ {
		if k == len(sends) || sends[k].Start > at {
			return rowError(d.tile, at+w.offset, "listens to %s, which sends nothing at its event %d", tileName(w.source), at)
		}
		x := &sends[k]
		if x.Wide != w.wide || x.Direction&route == 0 {
			return rowError(d.tile, at+w.offset, "listens to %s, which sends another way at its event %d (64-bit %v, direction %d; wanted %v, %d)",
				tileName(w.source), at, x.Wide, x.Direction, w.wide, route)
		}
		until := min(stop, x.Start+x.Items)
		if err := d.arrive(&w, at, until, x.Address+uint32(at-x.Start)*itemBytes(w.wide)); err != nil {
			return err
		}
		at = until
	}
	return d.checkFormat(&w)
}

// checkFormat checks that the format is right for a window: 0 while words are
// written, the route direction from two events before the first 64-bit item is
// written until two before the last has been.
func (d *delivery) checkFormat(w *window) error {
	from, to, want := w.from+w.lag, w.to+w.lag, uint32(0)
	if w.wide {
		from, to, want = from-2, to-2, direction(w.source, d.tile)
	}
	for len(d.formats) > 0 && d.formats[0].Event <= from {
		d.format = d.formats[0].Value
		d.formats = d.formats[1:]
	}
	format := d.format
	for k := 0; ; k++ {
		if format != want {
			return rowError(d.tile, from, "receives from %s with format %d, must be %d", tileName(w.source), format, want)
		}
		if k == len(d.formats) || d.formats[k].Event >= to {
			return nil
		}
		format = d.formats[k].Value
	}
}

// arrive writes the items that a source sent from an address during [begin, end).
func (d *delivery) arrive(w *window, begin, end int32, address uint32) error {
	lag := w.offset + w.lag
	size := itemBytes(w.wide)
	for begin < end {
		until := end
		for len(d.controls) > 0 {
			c := d.controls[0]
			if c.Kind != machine.Pointer {
				d.controls = d.controls[1:]
				continue
			}
			if c.Event > begin+lag {
				if event := c.Event - lag; event < end {
					if d.set && c.Value*4+d.base == d.pointer+uint32(event-begin)*size {
						d.controls = d.controls[1:] // repeats where it is anyway
						continue
					}
					until = event
				}
				break
			}
			d.pointer, d.set = c.Value*4+d.base, true
			d.controls = d.controls[1:]
			d.half = 0
		}
		if !d.set {
			return rowError(d.tile, begin+lag, "writes words from %s before any pointer is set", tileName(w.source))
		}
		if err := d.write(w, begin, until, address); err != nil {
			return err
		}
		d.pointer += uint32(until-begin) * size
		address += uint32(until-begin) * size
		begin = until
	}
	return nil
}

// write checks off the transfers that a span of items at the pointer fulfils.
func (d *delivery) write(w *window, begin, end int32, address uint32) error {
	v := d.v
	size := itemBytes(w.wide)
	for at := d.pointer; begin < end; {
		wrong := func(format string, args ...any) error {
			return rowError(d.tile, begin+w.offset+w.lag,
				"writes 0x%X with words from 0x%X of %s: %s", at, address, tileName(w.source), fmt.Sprintf(format, args...))
		}
		if at < machine.MemoryBase || at >= machine.MemoryEnd {
			return wrong("not tile memory")
		}
		e := v.expected[(at-machine.MemoryBase)/4]
		offset := uint32(0)
		if d.half != 0 { // goes on with a transfer that began before a pause
			e = d.half
			offset = at - v.p.Receivers[e-1].Address
		}
		if e == 0 {
			return wrong("no transfer starts there, or it has arrived before")
		}
		t := v.in.transfer[e-1]
		x := &v.p.Transfers[t]
		start := begin
		if offset > 0 {
			start -= int32(offset/4) + sendPause
		}
		items := (int32(x.Words)*4 - int32(offset)) / int32(size)
		switch {
		case x.Source != w.source || x.Address+offset != address:
			return wrong("transfer %d wants 0x%X of %s there", t, x.Address+offset, tileName(x.Source))
		case w.wide && (x.Words&1 != 0 || at&7 != 0 || address&7 != 0):
			return wrong("transfer %d of %d words cannot be sent as 64-bit items", t, x.Words)
		case v.starts[t] >= 0 && v.starts[t] != start:
			return wrong("transfer %d leaves at event %d for this receiver and at %d for others", t, start, v.starts[t])
		case end-begin < items:
			if end-begin != x.Words/2 || offset > 0 || !v.mayPause(t) {
				return wrong("transfer %d is cut after %d of %d items", t, end-begin, items)
			}
			v.starts[t] = start
			d.half = e
			return nil
		}
		v.starts[t] = start
		v.wide[t] = w.wide
		v.expected[(v.p.Receivers[e-1].Address-machine.MemoryBase)/4] = 0
		d.half = 0
		d.left--
		begin += items
		at += uint32(items) * size
		address += uint32(items) * size
	}
	return nil
}

// sendPause is the pause in the middle of a transfer that may have one.
const sendPause = 2

// mayPause reports whether a transfer may leave in two halves: one whose source
// hears itself and would deselect at the first two events of the send.
func (v *verifier) mayPause(t int32) bool {
	x := &v.p.Transfers[t]
	deselect := x.Words + int32(v.routes.from(x.Source)[x.Source])
	return hearsItself(x.Source, v.p.receivers(t)) && (deselect == 0 || deselect == 1)
}

// use is a span of events during which a send or a receive uses SRAM elements.
type use struct {
	start, end int32
	elements   uint32
	receive    bool
	wide       bool
}

// rules checks what deliveries alone do not show.
func (v *verifier) rules(tile int32) error {
	row := &v.decoded[tile]
	mine, sent := v.in.of(tile), v.out.of(tile)
	v.uses, v.anyWide = v.uses[:0], false
	words, horizon := int32(0), int32(0)
	for _, t := range sent {
		x := &v.p.Transfers[t]
		s := v.starts[t]
		if got := v.sendAt(tile, s).Direction; (got == 3) == v.oneWay(t) {
			return rowError(tile, s, "transfer %d to %d receivers is sent with direction %d", t, x.Count, got)
		}
		end := s + v.events(t)
		words += x.Words
		v.uses = append(v.uses, use{s, max(end, senderTail), elements(x.Address, x.Words), false, v.wide[t]})
		horizon = max(horizon, end, senderTail)
	}
	for _, r := range mine {
		t := v.in.transfer[r]
		s := v.writes(t, tile)
		end := s + v.events(t) + receiverTail
		v.uses = append(v.uses, use{s, end, elements(v.p.Receivers[r].Address, v.p.Transfers[t].Words), true, v.wide[t]})
		horizon = max(horizon, end)
		v.anyWide = v.anyWide || v.wide[t]
	}
	for _, s := range row.Sends {
		words -= int32(itemBytes(s.Wide)/4) * s.Items
	}
	if words != 0 {
		return rowError(tile, -1, "sends %d words fewer than its transfers have", words)
	}
	if row.Horizon < horizon {
		return rowError(tile, row.Horizon, "ends, but is busy until event %d", horizon)
	}
	if err := v.borrows(tile); err != nil {
		return err
	}
	if err := v.controls(tile); err != nil {
		return err
	}
	return v.conflicts(tile)
}

// oneWay reports whether all receivers of a transfer are on one side: it has one,
// or one pair that is not the source's own.
func (v *verifier) oneWay(t int32) bool {
	x := &v.p.Transfers[t]
	if v.wide[t] {
		return x.Count == 2 && v.p.Receivers[x.First].Tile|1 != x.Source|1
	}
	return x.Count == 1
}

// events is how long a transfer takes from its first item to its last.
func (v *verifier) events(t int32) int32 {
	switch x := &v.p.Transfers[t]; {
	case v.wide[t]:
		return x.Words / 2
	case v.mayPause(t):
		return x.Words + sendPause
	default:
		return x.Words
	}
}

// writes is the event at which a tile writes the first item of a transfer.
func (v *verifier) writes(t, tile int32) int32 {
	mux := v.routes.from(v.p.Transfers[t].Source)
	if v.wide[t] {
		return v.starts[t] + int32(min(mux[tile], mux[tile^1])) + v.routes.lag[tile] + 1
	}
	return v.starts[t] + int32(mux[tile]) + v.routes.lag[tile]
}

// sendAt returns the decoded send that an event belongs to.
func (v *verifier) sendAt(tile, event int32) machine.Send {
	sends := v.decoded[tile].Sends
	k := sort.Search(len(sends), func(i int) bool { return sends[i].Start+sends[i].Items > event })
	return sends[k]
}

// borrows checks that nothing leaves by the lane that a 64-bit send borrows from
// the tile's partner.
func (v *verifier) borrows(tile int32) error {
	var lane []machine.Send
	for _, s := range v.decoded[tile].Sends {
		if !s.Wide {
			continue
		}
		if int(tile^1) >= v.p.Tiles {
			return rowError(tile, s.Start, "64-bit items need the lane of %s, which is no tile of the phase", tileName(tile^1))
		}
		if lane == nil {
			lane = v.decoded[tile^1].Sends
		}
		for len(lane) > 0 && lane[0].Start+lane[0].Items <= s.Start {
			lane = lane[1:]
		}
		if len(lane) > 0 && lane[0].Start < max(s.Start+s.Items, senderTail) {
			return rowError(tile, s.Start, "borrows the lane of %s, which sends at event %d", tileName(tile^1), lane[0].Start)
		}
	}
	return nil
}

// controls checks when controls act: alone, or as one ordinary source and one
// ordinary pointer, and not while a send begins; and how they are based.
func (v *verifier) controls(tile int32) error {
	row := &v.decoded[tile]
	mine := v.in.of(tile)
	base := v.rows.Tile[tile].IncomingBase
	alone := len(mine) == 1 && v.p.Transfers[v.in.transfer[mine[0]]].Count == 1
	if base != 0 && !alone {
		return rowError(tile, -1, "receives %d transfers relative to base 0x%X, only one that is meant for it alone may be", len(mine), base)
	}
	sends, pointers := row.Sends, 0
	for i, c := range row.Controls {
		if i > 0 && row.Controls[i-1].Event == c.Event && (row.Controls[i-1].Kind != machine.Source || c.Kind != machine.Pointer || v.pairPointer(tile, c.Event)) {
			return rowError(tile, c.Event, "%v and %v act together", row.Controls[i-1].Kind, c.Kind)
		}
		if c.Kind == machine.Pointer {
			if pointers++; alone && (c.Value != 0 || pointers > 1) {
				return rowError(tile, c.Event, "pointer %d, the only one must be 0 because the address is in the base", c.Value)
			}
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

// pairPointer reports whether a pointer that acts at an event is one of a 64-bit
// receive: the item written there, or next, is wide.
func (v *verifier) pairPointer(tile, event int32) bool {
	if !v.anyWide {
		return false
	}
	next, wide := int32(math.MaxInt32), false
	for _, u := range v.uses {
		if u.receive && u.end-receiverTail > event && u.start < next {
			next, wide = u.start, u.wide
		}
	}
	return wide
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
