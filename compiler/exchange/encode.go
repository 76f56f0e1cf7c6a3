package exchange

import (
	"cmp"
	"fmt"
	"slices"

	"ipufarm/protocol/machine"
)

// Row is the exchange program of one tile for one phase: its instruction words,
// and the base registers it expects.
type Row struct {
	Words                      []uint32 // ends with the return; nil when the tile takes no part
	IncomingBase, OutgoingBase uint32
}

// Rows are the rows of all tiles of a phase, by logical tile.
type Rows struct {
	Tile []Row
}

// EncodeError says where a schedule cannot be written as instructions.
type EncodeError struct {
	Tile   int32
	Event  int32
	Reason string
}

func (e *EncodeError) Error() string {
	return fmt.Sprintf("exchange row of %s, event %d: %s", tileName(e.Tile), e.Event, e.Reason)
}

// Encode writes the rows of a schedule of a problem that Check accepts.
func Encode(p *Problem, s *Schedule) (*Rows, error) {
	if len(s.Starts) != len(p.Transfers) || s.Wide != nil && len(s.Wide) != len(p.Transfers) {
		return nil, fmt.Errorf("exchange schedule has %d starts and %d widths for %d transfers", len(s.Starts), len(s.Wide), len(p.Transfers))
	}
	for t, start := range s.Starts {
		if start < 0 || start > machine.MaxHorizon {
			return nil, fmt.Errorf("exchange transfer %d starts at event %d, accepted are 0..%d", t, start, machine.MaxHorizon)
		}
		if s.Wide != nil && s.Wide[t] && p.Transfers[t].Words&1 != 0 {
			return nil, fmt.Errorf("exchange transfer %d has %d words, must be even for 64-bit items", t, p.Transfers[t].Words)
		}
	}
	in, out := p.endpoints()
	rows := &Rows{Tile: make([]Row, p.Tiles)}
	e := rowEncoder{p: p, schedule: s, routes: loadRoutes(), in: in, out: out}
	for tile := range int32(p.Tiles) {
		if len(in.of(tile)) == 0 && len(out.of(tile)) == 0 {
			continue
		}
		if err := e.encode(tile, &rows.Tile[tile]); err != nil {
			return nil, err
		}
	}
	return rows, nil
}

// rowEncoder builds one row after another, reusing its lists.
type rowEncoder struct {
	keys     []sortKey // scratch of sortReceives
	spare    []receive
	p        *Problem
	schedule *Schedule
	routes   *routes
	in, out  *byTile

	tile     int32
	horizon  int32
	base     uint32
	anyWide  bool // some receive is of 64-bit items
	sends    []sendRun
	receives []receive
	changes  [kinds][]change // of each receive register
	controls []control       // all of them, in time order
	steps    []step
	words    []uint32
}

// sendRun is a run of items that leave without a pause from consecutive
// addresses in one way.
type sendRun struct {
	start, items int32
	address      uint32
	sctl         uint32
}

// receive is one transfer, or half of one, as its receiver sees it.
type receive struct {
	mux, items int32 // first event on the source, and number of events
	source     int32 // logical tile
	address    uint32
	wide       bool
}

func (r *receive) bytes() uint32 { return itemBytes(r.wide) * uint32(r.items) }

func itemBytes(wide bool) uint32 {
	if wide {
		return 8
	}
	return 4
}

// The receive registers, in the order in which controls of one event are listed.
const (
	source  = iota // incoming mux
	pair           // mux of the borrowed half
	pointer        // receive pointer
	format         // 0, or the route direction of 64-bit items
	kinds
)

// neutral is the mux value that listens to nobody.
const neutral = 0x640

// change sets a register at an event.
type change struct {
	event int32
	value uint32
}

// control is a change and what it changes.
type control struct {
	change
	kind int32
}

func (e *rowEncoder) encode(tile int32, row *Row) error {
	e.tile, e.horizon, e.anyWide = tile, 0, false
	e.listSends()
	e.listReceives()
	for kind := range e.changes {
		e.changes[kind] = e.changes[kind][:0]
	}
	if err := e.changeSources(); err != nil {
		return err
	}
	e.changePointers()
	e.changeFormats()
	e.mergeChanges()
	if err := e.compose(); err != nil {
		return err
	}
	if err := e.emit(); err != nil {
		return err
	}
	row.Words = slices.Clone(e.words)
	row.IncomingBase = e.base
	return nil
}

func (e *rowEncoder) isWide(t int32) bool { return e.schedule.Wide != nil && e.schedule.Wide[t] }

// halves calls f for the whole of a transfer, or for each of its halves.
func (e *rowEncoder) halves(t int32, f func(start, items int32, offset uint32)) {
	x := &e.p.Transfers[t]
	start := e.schedule.Starts[t]
	switch half := e.p.halved(t); {
	case e.isWide(t):
		f(start, x.Words/2, 0)
	case half > 0:
		f(start, half, 0)
		f(start+half+sendGap, x.Words-half, uint32(half)*4)
	default:
		f(start, x.Words, 0)
	}
}

// listSends joins the tile's transfers into runs.
func (e *rowEncoder) listSends() {
	e.sends = e.sends[:0]
	for _, t := range e.out.of(e.tile) {
		sctl := e.sctl(t)
		e.halves(t, func(start, items int32, offset uint32) {
			e.sends = append(e.sends, sendRun{start, items, e.p.Transfers[t].Address + offset, sctl})
			e.horizon = max(e.horizon, start+items, senderTail)
		})
	}
	slices.SortFunc(e.sends, func(a, b sendRun) int { return cmp.Compare(a.start, b.start) })
	n := 0
	for _, s := range e.sends {
		if n > 0 {
			last := &e.sends[n-1]
			if last.start+last.items == s.start && last.address+uint32(last.items)*itemBytes(last.sctl&4 != 0) == s.address && last.sctl == s.sctl {
				last.items += s.items
				continue
			}
		}
		e.sends[n] = s
		n++
	}
	e.sends = e.sends[:n]
}

// sctl is the control field of a transfer's sends: the direction to a single
// receiver, or to a single pair that is not the sender's own, else both; and the
// width.
func (e *rowEncoder) sctl(t int32) uint32 {
	x := &e.p.Transfers[t]
	to := e.p.Receivers[x.First].Tile
	switch {
	case !e.isWide(t) && x.Count == 1:
		return direction(e.tile, to)
	case !e.isWide(t):
		return 3
	case x.Count == 2 && to|1 != e.tile|1:
		return 4 | direction(e.tile, to)
	}
	return 7
}

// listReceives puts what the tile receives in time order and chooses its base:
// a tile that receives one ordinary message meant for it alone gets the address
// there and a zero pointer, any other uses absolute pointers (mixing the two
// loses data on a C600).
func (e *rowEncoder) listReceives() {
	e.receives = e.receives[:0]
	mine := e.in.of(e.tile)
	e.base = 0
	for _, r := range mine {
		t := e.in.transfer[r]
		x := &e.p.Transfers[t]
		wide := e.isWide(t)
		hear := e.routes.hear(x.Source, e.tile, wide)
		e.halves(t, func(start, items int32, offset uint32) {
			r := receive{start + hear, items, x.Source, e.p.Receivers[r].Address + offset, wide}
			e.receives = append(e.receives, r)
			e.horizon = max(e.horizon, e.writes(&r)+items+receiverTail)
		})
		e.anyWide = e.anyWide || wide
		if len(mine) == 1 && x.Count == 1 {
			e.base = e.p.Receivers[r].Address
		}
	}
	e.sortReceives()
}

// sortReceives puts the receives in the order of their mux windows: by radix, for
// a tile may have thousands.
func (e *rowEncoder) sortReceives() {
	byMux := func(a, b receive) int { return cmp.Compare(a.mux, b.mux) }
	if len(e.receives) < 64 || slices.IsSortedFunc(e.receives, byMux) {
		slices.SortStableFunc(e.receives, byMux)
		return
	}
	e.keys = slices.Grow(e.keys[:0], len(e.receives))
	for i := range e.receives {
		e.keys = append(e.keys, sortKey{uint64(uint32(e.receives[i].mux) ^ 1<<31), int32(i)})
	}
	sorted := slices.Grow(e.spare[:0], len(e.receives))
	for _, k := range sortByKey(e.keys) {
		sorted = append(sorted, e.receives[k.item])
	}
	e.receives, e.spare = sorted, e.receives
}

// writes returns the event at which a receive writes its first item.
func (e *rowEncoder) writes(r *receive) int32 {
	if r.wide {
		return r.mux + e.routes.lag[e.tile] + pairPointer
	}
	return r.mux + e.routes.lag[e.tile]
}

func (e *rowEncoder) change(kind int, event int32, value uint32) {
	e.changes[kind] = append(e.changes[kind], change{event, value})
}

// changeSources says when the two muxes turn to whom, and away right after the
// last item. Of a pair only one member turns its mux.
func (e *rowEncoder) changeSources() error {
	for i := range e.receives {
		r := &e.receives[i]
		if r.mux < 1 {
			return &EncodeError{e.tile, r.mux, fmt.Sprintf("must listen to %s before event 1", tileName(r.source))}
		}
		if i > 0 && e.receives[i-1].mux+e.receives[i-1].items > r.mux {
			return &EncodeError{e.tile, r.mux, fmt.Sprintf("listens to %s and %s at once", tileName(e.receives[i-1].source), tileName(r.source))}
		}
		kind, value := source, uint32(machine.Physical(int(r.source)))
		if r.wide {
			if !e.routes.issues(r.source, e.tile) {
				continue
			}
			kind, value = pair, value^uint32(machine.Physical(int(e.tile)))&2
		}
		list := e.changes[kind]
		if n := len(list); n > 0 && list[n-1].event == r.mux { // cut over
			e.changes[kind] = list[:n-1]
			if n > 1 && list[n-2].value == value {
				e.change(kind, r.mux+r.items, neutral)
				continue
			}
		}
		e.change(kind, r.mux, value)
		e.change(kind, r.mux+r.items, neutral)
	}
	return nil
}

// changePointers says when the receive pointer jumps.
func (e *rowEncoder) changePointers() {
	next := uint32(0)
	for i := range e.receives {
		r := &e.receives[i]
		if r.address != next {
			e.change(pointer, e.writes(r), (r.address-e.base)/4)
		}
		next = r.address + r.bytes()
	}
}

// changeFormats says when 64-bit items are received.
func (e *rowEncoder) changeFormats() {
	for i := range e.receives {
		r := &e.receives[i]
		if !r.wide {
			continue
		}
		value := direction(r.source, e.tile)
		on := r.mux + e.routes.lag[e.tile] + pairFormat
		list := e.changes[format]
		if n := len(list); n > 0 && list[n-1].event == on { // goes on
			e.changes[format] = list[:n-1]
			if list[n-2].value == value {
				e.change(format, on+r.items, 0)
				continue
			}
		}
		e.change(format, on, value)
		e.change(format, on+r.items, 0)
	}
}

// mergeChanges lists the changes of all registers in time order.
func (e *rowEncoder) mergeChanges() {
	e.controls = e.controls[:0]
	var at [kinds]int
	for {
		next := -1
		for kind := range e.changes {
			if at[kind] < len(e.changes[kind]) && (next < 0 || e.changes[kind][at[kind]].event < e.changes[next][at[next]].event) {
				next = kind
			}
		}
		if next < 0 {
			return
		}
		e.controls = append(e.controls, control{e.changes[next][at[next]], int32(next)})
		at[next]++
	}
}
