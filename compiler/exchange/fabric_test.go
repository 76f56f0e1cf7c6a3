package exchange

import (
	"fmt"

	"ipufarm/protocol/machine"
)

// word names one 32-bit word of a source tile.
type word struct {
	source  int32
	address uint32
}

// arrival is what reaches a tile's memory at one event.
type arrival struct {
	word
	direction uint32
	wide      bool
}

// fabricTile is a tile of the slow model: its row spread out over events.
type fabricTile struct {
	row      machine.ExchangeRow
	mux      []uint32 // by event
	pairMux  []uint32
	format   []uint32
	pointer  map[int32]uint32 // event -> byte address
	arrivals map[int32][]arrival
	sends    map[int32]uint32 // event -> address
	memory   map[uint32]word
}

// spread lists the value of one register at every event.
func (t *fabricTile) spread(kind machine.ControlKind, value uint32) ([]uint32, error) {
	first := value
	var list []uint32
	for _, c := range t.row.Controls {
		if c.Kind == kind {
			for len(list) < int(c.Event) {
				list = append(list, value)
			}
			value = c.Value
		}
	}
	for len(list) <= int(t.row.Horizon) {
		list = append(list, value)
	}
	if value != first {
		return nil, fmt.Errorf("%v ends as %d", kind, value)
	}
	return list, nil
}

// fabric is the slow judge: it moves one item at a time. Each is offered to every
// tile's muxes of that event, and written where the pointer of its arrival is. It
// returns what every tile's memory holds at the end.
func fabric(p *Problem, rows *Rows) ([]map[uint32]word, error) {
	tiles := make([]fabricTile, p.Tiles)
	for i := range tiles {
		t := &tiles[i]
		*t = fabricTile{pointer: map[int32]uint32{}, arrivals: map[int32][]arrival{}, sends: map[int32]uint32{}, memory: map[uint32]word{}}
		if rows.Tile[i].Words == nil {
			continue
		}
		var err error
		if t.row, err = machine.DecodeRow(rows.Tile[i].Words); err != nil {
			return nil, err
		}
		if t.mux, err = t.spread(machine.Source, machine.Neutral); err != nil {
			return nil, err
		}
		if t.pairMux, err = t.spread(machine.PairSource, machine.Neutral); err != nil {
			return nil, err
		}
		if t.format, err = t.spread(machine.Format, 0); err != nil {
			return nil, err
		}
		for _, c := range t.row.Controls {
			if c.Kind == machine.Pointer {
				t.pointer[c.Event] = c.Value*4 + rows.Tile[i].IncomingBase
			}
		}
		for _, run := range t.row.Sends {
			for k := range run.Items {
				t.sends[run.Start+k] = run.Address + uint32(k)*itemBytes(run.Wide)
			}
		}
	}
	for s := range tiles {
		if err := offer(tiles, s); err != nil {
			return nil, err
		}
	}
	memory := make([]map[uint32]word, len(tiles))
	for i := range tiles {
		if err := tiles[i].land(); err != nil {
			return nil, fmt.Errorf("tile %d: %w", i, err)
		}
		memory[i] = tiles[i].memory
	}
	return memory, nil
}

// offer sends every item of a tile to the muxes of all tiles.
func offer(tiles []fabricTile, s int) error {
	ps := machine.Physical(s)
	for _, run := range tiles[s].row.Sends {
		if !run.Wide {
			continue
		}
		for k := range run.Items {
			if s^1 >= len(tiles) {
				return fmt.Errorf("tile %d has no partner", s)
			}
			if _, busy := tiles[s^1].sends[run.Start+k]; busy {
				return fmt.Errorf("tile %d and its partner send at event %d, one of them 64-bit items", s, run.Start+k)
			}
		}
	}
	for d := range tiles {
		pd := machine.Physical(d)
		hears, latency := int32(machine.MuxTime(ps, pd))+1, int32(machine.Latency(ps, pd))
		for _, run := range tiles[s].row.Sends {
			for k := range run.Items {
				event := run.Start + k
				mux := event + hears
				if mux < 0 || int(mux) >= len(tiles[d].mux) {
					continue
				}
				a := arrival{word{int32(s), run.Address + uint32(k)*itemBytes(run.Wide)}, uint32(machine.Direction(ps, pd)), run.Wide}
				if tiles[d].mux[mux] == uint32(ps) && uint32(run.Direction)&a.direction != 0 {
					if run.Wide {
						return fmt.Errorf("tile %d hears 64-bit items of tile %d as words", d, s)
					}
					tiles[d].arrivals[event+latency] = append(tiles[d].arrivals[event+latency], a)
				}
				if tiles[d].pairMux[mux]^uint32(pd)&2 != uint32(ps) {
					continue
				}
				if !run.Wide {
					return fmt.Errorf("tile %d hears words of tile %d as 64-bit items", d, s)
				}
				if d^1 >= len(tiles) {
					return fmt.Errorf("tile %d has no partner", d)
				}
				for _, member := range []int{d, d ^ 1} {
					a.direction = uint32(machine.Direction(ps, machine.Physical(member)))
					if uint32(run.Direction)&a.direction != 0 {
						tiles[member].arrivals[event+latency+1] = append(tiles[member].arrivals[event+latency+1], a)
					}
				}
			}
		}
	}
	return nil
}

// land writes what arrives at a tile.
func (t *fabricTile) land() error {
	pointer := uint32(0)
	for event := range t.row.Horizon {
		if a, ok := t.pointer[event]; ok {
			pointer = a
		}
		here := t.arrivals[event]
		if len(here) == 0 {
			continue
		}
		delete(t.arrivals, event)
		if len(here) > 1 {
			return fmt.Errorf("two items arrive at event %d", event)
		}
		a := here[0]
		if a.wide && t.format[event-2] != a.direction || !a.wide && t.format[event] != 0 {
			return fmt.Errorf("format %d at event %d", t.format[event], event)
		}
		if sent, ok := t.sends[event]; ok && machine.Element(sent) == machine.Element(pointer) {
			return fmt.Errorf("sends 0x%X and writes 0x%X at event %d", sent, pointer, event)
		}
		if pointer%itemBytes(a.wide) != 0 {
			return fmt.Errorf("writes unaligned 0x%X at event %d", pointer, event)
		}
		for k := uint32(0); k < itemBytes(a.wide); k += 4 {
			if pointer < machine.MemoryBase || pointer >= machine.MemoryEnd {
				return fmt.Errorf("writes 0x%X at event %d", pointer, event)
			}
			if _, twice := t.memory[pointer]; twice {
				return fmt.Errorf("writes 0x%X twice", pointer)
			}
			t.memory[pointer] = word{a.source, a.address + k}
			pointer += 4
		}
	}
	if len(t.arrivals) > 0 {
		return fmt.Errorf("leaves before its last word")
	}
	return nil
}

// judge says whether rows do what a problem asks, by the slow model.
func judge(p *Problem, rows *Rows) error {
	got, err := fabric(p, rows)
	if err != nil {
		return err
	}
	want := 0
	for t := range p.Transfers {
		x := &p.Transfers[t]
		for _, r := range p.receivers(int32(t)) {
			for i := range uint32(x.Words) {
				if w, ok := got[r.Tile][r.Address+4*i]; !ok || w != (word{x.Source, x.Address + 4*i}) {
					return fmt.Errorf("transfer %d: tile %d has %+v at 0x%X", t, r.Tile, w, r.Address+4*i)
				}
			}
			want += int(x.Words)
		}
	}
	for _, m := range got {
		want -= len(m)
	}
	if want != 0 {
		return fmt.Errorf("%d words more than asked for", -want)
	}
	return nil
}
