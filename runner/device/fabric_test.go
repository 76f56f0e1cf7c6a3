package device_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"ipufarm/protocol/machine"
)

// This file checks the interval-based exchange against a model that moves single
// words event by event, on random small phases with multicasts and relays.

// event of a tile's part: a control or a send.
type part struct {
	at, n         int
	source        int // a mux select; -1: none
	pointer       uint32
	send          bool
	address, sctl uint32
}

// wordMove is one transfer of a random phase.
type wordMove struct {
	source, start, n int
	address          uint32
	dests            []int
	to               []uint32
}

// randomPhase makes transfers between a few tiles that keep every rule: nobody
// does two things at once, and controls stay clear of a tile's own sends.
func randomPhase(r *rand.Rand, tiles []int) []wordMove {
	type interval struct{ from, to int }
	busy := map[string][]interval{}
	free := func(key string, from, to int) bool {
		for _, b := range busy[key] {
			if from < b.to && b.from < to {
				return false
			}
		}
		return true
	}
	var list []wordMove
	for range 400 {
		if len(list) == 14 {
			break
		}
		m := wordMove{source: tiles[r.IntN(len(tiles))], start: 120 + r.IntN(700), n: 1 + r.IntN(40)}
		// Few addresses, so that transfers feed and overwrite each other.
		m.address = inter + uint32(r.IntN(60))*4
		claims := map[string]interval{}
		claim := func(key string, from, to int) bool {
			if _, twice := claims[key]; twice || !free(key, from, to) {
				return false
			}
			claims[key] = interval{from, to}
			return true
		}
		ok := claim(fmt.Sprint("tx", m.source), m.start, m.start+m.n) &&
			claim(fmt.Sprint("bus", m.source), m.start-2, m.start+m.n+2)
		for range 1 + r.IntN(3) {
			d := tiles[r.IntN(len(tiles))]
			if d == m.source || slices.Contains(m.dests, d) {
				continue
			}
			x, p := mux(m.source, d, m.start), write(m.source, d, m.start)
			ok = ok && x > 4 && x+m.n != p && claim(fmt.Sprint("mux", d), x, x+m.n+2) &&
				claim(fmt.Sprint("rx", d), p, p+m.n) &&
				// Words and controls on either side of each control, and no send of the
				// receiver near them or while it writes the same element.
				claim(fmt.Sprint("bus", d), x-2, p+m.n+7)
			m.dests = append(m.dests, d)
			m.to = append(m.to, inter+uint32(r.IntN(60))*4)
		}
		if !ok || len(m.dests) == 0 {
			continue
		}
		for key, c := range claims {
			busy[key] = append(busy[key], c)
		}
		list = append(list, m)
	}
	return list
}

// rows composes the rows of a phase.
func rows(list []wordMove) map[int][]uint32 {
	parts := map[int][]part{}
	horizon := map[int]int{}
	for _, m := range list {
		sctl := uint32(3)
		if len(m.dests) == 1 {
			sctl = uint32(machine.Direction(m.source, m.dests[0]))
		}
		parts[m.source] = append(parts[m.source], part{at: m.start, n: m.n, send: true, address: m.address, sctl: sctl, source: -1})
		horizon[m.source] = max(horizon[m.source], m.start+m.n)
		for k, d := range m.dests {
			x, p := mux(m.source, d, m.start), write(m.source, d, m.start)
			parts[d] = append(parts[d], part{at: x, source: m.source}, part{at: x + m.n, source: machine.Neutral}, part{at: p, source: -1, pointer: m.to[k]})
			horizon[d] = max(horizon[d], p+m.n+5)
		}
	}
	words := map[int][]uint32{}
	for tile, list := range parts {
		slices.SortFunc(list, func(a, b part) int { return a.at - b.at })
		r := new(row)
		for _, e := range list {
			switch {
			case e.send:
				r.send(e.at, e.n, e.address, e.sctl)
			case e.source >= 0:
				r.source(e.at, uint32(e.source))
			default:
				r.pointer(e.at, e.pointer)
			}
		}
		words[tile] = r.end(horizon[tile])
	}
	return words
}

// fabric moves one word at a time: at each event every tile sends what its memory
// holds then, whoever listens catches it, and it is written later.
func fabric(list []wordMove, memory map[int][]byte) {
	type landing struct {
		tile  int
		at    uint32
		value uint32
	}
	pending := map[int][]landing{}
	for event := range 2000 {
		for _, l := range pending[event] {
			binary.LittleEndian.PutUint32(memory[l.tile][l.at-inter:], l.value)
		}
		for _, m := range list {
			i := event - m.start
			if i < 0 || i >= m.n {
				continue
			}
			value := binary.LittleEndian.Uint32(memory[m.source][m.address+4*uint32(i)-inter:])
			for k, d := range m.dests {
				at := event + machine.Latency(m.source, d)
				pending[at] = append(pending[at], landing{d, m.to[k] + 4*uint32(i), value})
			}
		}
	}
}

func TestAgainstWordByWordFabric(t *testing.T) {
	const size = 4 * 100
	relays := 0
	for seed := range uint64(150) {
		r := rng(seed)
		var tiles []int
		for len(tiles) < 5 {
			if p := r.IntN(machine.Tiles); !slices.Contains(tiles, p) {
				tiles = append(tiles, p)
			}
		}
		slices.Sort(tiles)
		list := randomPhase(r, tiles)
		memory := map[int][]byte{}
		j := newJob()
		words := rows(list)
		for _, p := range tiles {
			memory[p] = pattern(seed<<16|uint64(p), size/4)
			j.tile(p).put(inter, bytes.Clone(memory[p])).exchange(1, words[p]...)
			j.out(p, inter, size)
		}
		for _, m := range list {
			for _, f := range list {
				if k := slices.Index(f.dests, m.source); k >= 0 && m.address < f.to[k]+4*uint32(f.n) && f.to[k] < m.address+4*uint32(m.n) {
					relays++
				}
			}
		}
		fabric(list, memory)
		var want []byte
		for _, p := range tiles {
			want = append(want, memory[p]...)
		}
		if got := j.mustRun(t).Outputs; !bytes.Equal(got, want) {
			t.Fatalf("seed %d: memory differs after %d transfers", seed, len(list))
		}
	}
	if relays < 100 {
		t.Errorf("only %d relays in all phases", relays)
	}
}
