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

// Encode writes the rows of a schedule.
func Encode(p *Problem, s *Schedule) (*Rows, error) {
	if len(s.Starts) != len(p.Transfers) {
		return nil, fmt.Errorf("exchange schedule has %d starts for %d transfers", len(s.Starts), len(p.Transfers))
	}
	in, out := p.endpoints()
	rows := &Rows{Tile: make([]Row, p.Tiles)}
	e := rowEncoder{p: p, starts: s.Starts, routes: loadRoutes(), in: in, out: out}
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
	p       *Problem
	starts  []int32
	routes  *routes
	in, out *byTile

	tile     int32
	horizon  int32
	base     uint32
	sends    []sendRun
	receives []receive
	sources  []change // of the incoming mux
	pointers []change
	steps    []step
	words    []uint32
}

// sendRun is a run of words that leave without a pause from consecutive
// addresses on one side of the tile.
type sendRun struct {
	start, words int32
	address      uint32
	direction    uint32
}

// receive is one transfer as its receiver sees it.
type receive struct {
	mux, words int32 // first event on the source, and number of events
	source     int32 // logical tile
	address    uint32
}

// change sets a receive register at an event.
type change struct {
	event int32
	value uint32
}

func (e *rowEncoder) encode(tile int32, row *Row) error {
	e.tile, e.horizon = tile, 0
	e.listSends()
	e.listReceives()
	if err := e.listSources(); err != nil {
		return err
	}
	e.listPointers()
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

// listSends joins the tile's transfers into runs.
func (e *rowEncoder) listSends() {
	e.sends = e.sends[:0]
	for _, t := range e.out.of(e.tile) {
		x := &e.p.Transfers[t]
		direction := uint32(3)
		if x.Count == 1 {
			direction = uint32(machine.Direction(machine.Physical(int(e.tile)), machine.Physical(int(e.p.Receivers[x.First].Tile))))
		}
		e.sends = append(e.sends, sendRun{e.starts[t], x.Words, x.Address, direction})
		e.horizon = max(e.horizon, e.starts[t]+x.Words, senderTail)
	}
	slices.SortFunc(e.sends, func(a, b sendRun) int { return cmp.Compare(a.start, b.start) })
	n := 0
	for _, s := range e.sends {
		if n > 0 {
			last := &e.sends[n-1]
			if last.start+last.words == s.start && last.address+uint32(last.words)*4 == s.address && last.direction == s.direction {
				last.words += s.words
				continue
			}
		}
		e.sends[n] = s
		n++
	}
	e.sends = e.sends[:n]
}

// listReceives puts what the tile receives in time order and chooses its base:
// a tile that receives one message meant for it alone gets the address there
// and a zero pointer, any other uses absolute pointers (mixing the two loses
// data on a C600).
func (e *rowEncoder) listReceives() {
	e.receives = e.receives[:0]
	mine := e.in.of(e.tile)
	e.base = 0
	for _, r := range mine {
		t := e.in.transfer[r]
		x := &e.p.Transfers[t]
		mux := e.starts[t] + int32(e.routes.from(x.Source)[e.tile])
		e.receives = append(e.receives, receive{mux, x.Words, x.Source, e.p.Receivers[r].Address})
		e.horizon = max(e.horizon, mux+e.routes.lag[e.tile]+x.Words+receiverTail)
		if len(mine) == 1 && x.Count == 1 {
			e.base = e.p.Receivers[r].Address
		}
	}
	slices.SortFunc(e.receives, func(a, b receive) int { return cmp.Compare(a.mux, b.mux) })
}

// listSources says when the mux turns to whom. It turns away right after the
// last word, unless the tile then begins to send, which only happens to a tile
// that hears itself: see listen.
func (e *rowEncoder) listSources() error {
	e.sources = e.sources[:0]
	for i, r := range e.receives {
		if r.mux < 1 {
			return &EncodeError{e.tile, r.mux, fmt.Sprintf("must listen to %s before event 1", tileName(r.source))}
		}
		if i == 0 || e.receives[i-1].mux+e.receives[i-1].words != r.mux || e.receives[i-1].source != r.source {
			e.sources = append(e.sources, change{r.mux, uint32(machine.Physical(int(r.source)))})
		}
		end := r.mux + r.words
		if i+1 < len(e.receives) && e.receives[i+1].mux <= end {
			if e.receives[i+1].mux < end {
				return &EncodeError{e.tile, end, fmt.Sprintf("listens to %s and %s at once", tileName(r.source), tileName(e.receives[i+1].source))}
			}
			continue
		}
		if r.source == e.tile {
			if k := e.sendAt(end); k >= 0 && end < e.sends[k].start+beginEvents {
				end = e.sends[k].start + beginEvents + 1
			}
			if i+1 < len(e.receives) && e.receives[i+1].mux == end {
				continue
			}
		}
		e.sources = append(e.sources, change{end, machine.Neutral})
	}
	return nil
}

// sendAt returns the last run that starts at or before an event, or -1.
func (e *rowEncoder) sendAt(event int32) int {
	k, found := slices.BinarySearchFunc(e.sends, event, func(s sendRun, event int32) int { return cmp.Compare(s.start, event) })
	if !found {
		k--
	}
	return k
}

// listPointers says when the receive pointer jumps.
func (e *rowEncoder) listPointers() {
	e.pointers = e.pointers[:0]
	next := uint32(0)
	for _, r := range e.receives {
		if r.address != next {
			e.pointers = append(e.pointers, change{r.mux + e.routes.lag[e.tile], (r.address - e.base) / 4})
		}
		next = r.address + uint32(r.words)*4
	}
}
