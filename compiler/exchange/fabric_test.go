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

// fabric is the slow judge: it moves one word at a time: each is offered to
// every tile's mux of that event, and written where the pointer of its arrival is, and returns what every tile's
// memory holds at the end.
func fabric(p *Problem, rows *Rows) ([]map[uint32]word, error) {
	type tile struct {
		row     machine.ExchangeRow
		mux     []uint32         // by event
		pointer map[int32]uint32 // event -> byte address
		arrives map[int32]word   // event -> word
		sends   map[int32]uint32 // event -> address
		memory  map[uint32]word
	}
	tiles := make([]tile, p.Tiles)
	for t := range tiles {
		x := &tiles[t]
		*x = tile{pointer: map[int32]uint32{}, arrives: map[int32]word{}, sends: map[int32]uint32{}, memory: map[uint32]word{}}
		if rows.Tile[t].Words == nil {
			continue
		}
		var err error
		if x.row, err = machine.DecodeRow(rows.Tile[t].Words); err != nil {
			return nil, err
		}
		x.mux = make([]uint32, x.row.Horizon+1)
		at, value := int32(0), uint32(machine.Neutral)
		for _, c := range x.row.Controls {
			if c.Kind == machine.Pointer {
				x.pointer[c.Event] = c.Value*4 + rows.Tile[t].IncomingBase
				continue
			}
			for ; at < c.Event; at++ {
				x.mux[at] = value
			}
			value = c.Value
		}
		for ; at < int32(len(x.mux)); at++ {
			x.mux[at] = value
		}
		if value != machine.Neutral {
			return nil, fmt.Errorf("tile %d ends on source %d", t, value)
		}
	}
	for s := range tiles {
		for d := range tiles {
			ps, pd := machine.Physical(s), machine.Physical(d)
			listens, direction, latency := int32(machine.MuxTime(ps, pd))+1, machine.Direction(ps, pd), int32(machine.Latency(ps, pd))
			for _, run := range tiles[s].row.Sends {
				for i := range run.Items {
					mux := run.Start + i + listens
					if mux < 0 || int(mux) >= len(tiles[d].mux) || tiles[d].mux[mux] != uint32(ps) || int(run.Direction)&direction == 0 {
						continue
					}
					tiles[d].arrives[run.Start+i+latency] = word{int32(s), run.Address + 4*uint32(i)}
				}
			}
		}
		for _, run := range tiles[s].row.Sends {
			for i := range run.Items {
				tiles[s].sends[run.Start+i] = run.Address + 4*uint32(i)
			}
		}
	}
	for t := range tiles {
		x := &tiles[t]
		pointer := uint32(0)
		for event := range x.row.Horizon {
			if a, ok := x.pointer[event]; ok {
				pointer = a
			}
			w, ok := x.arrives[event]
			if !ok {
				continue
			}
			delete(x.arrives, event)
			if pointer < machine.MemoryBase || pointer >= machine.MemoryEnd {
				return nil, fmt.Errorf("tile %d writes 0x%X at event %d", t, pointer, event)
			}
			if _, twice := x.memory[pointer]; twice {
				return nil, fmt.Errorf("tile %d writes 0x%X twice", t, pointer)
			}
			if a, ok := x.sends[event]; ok && machine.Element(a) == machine.Element(pointer) {
				return nil, fmt.Errorf("tile %d sends 0x%X and writes 0x%X at event %d", t, a, pointer, event)
			}
			x.memory[pointer] = w
			pointer += 4
		}
		if len(x.arrives) > 0 {
			return nil, fmt.Errorf("tile %d leaves before its last word", t)
		}
	}
	memory := make([]map[uint32]word, len(tiles))
	for t := range tiles {
		memory[t] = tiles[t].memory
	}
	return memory, nil
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
