// Package machine describes the IPU21 of a C600 card as data: how its 1,472
// tiles are numbered, how long a word takes from one to another, what a tile's
// 624 KiB of SRAM are used for, and how an exchange row is decoded. It holds no
// policy: the compiler and the simulated device both read it, so a wrong number
// here shows on both sides and is checked against published SDK vectors.
//
// Words used throughout:
//
//   - logical tile: 0..tiles-1, the numbering of plans, captures and specs
//   - physical tile: 0..1471, the numbering of packages, rows and profiles
//   - event: one cycle of the exchange timeline; event 0 is the barrier release
//   - element: the 16 KiB (region 0) or 32 KiB (region 1) unit of SRAM that
//     serves one access at a time
//
// Sources: the published hardware notes of a C600 bring-up (exchange
// instruction reference, SRAM and topology tables, July to September 2026),
// whose rows were produced by SDK tools and replayed on a C600.
package machine

// Tiles is the number of compute tiles on one C600.
const Tiles = 1472

// ClockHz converts cycles to time. It is configuration, not a constant of
// nature: an SDK profile of the same card recorded 1.85 GHz.
const ClockHz = 1_500_000_000

// Physical returns the physical id of a logical tile. The numbering snakes up
// and down the 23 rows of a column pair (SDK topology, checked on a C600).
func Physical(logical int) int {
	q, lane := logical/2, logical&1
	block, r := q/23, q%23
	if block&1 == 1 {
		r = 22 - r
	}
	return 64*r + 4*(block>>1) + 2*lane + block&1
}

// Logical is the inverse of Physical.
func Logical(physical int) int {
	row, column := physical>>6, physical>>2&15
	lane, sub := physical>>1&1, physical&1
	block := 2*column + sub
	if block&1 == 1 {
		row = 22 - row
	}
	return 2*(block*23+row) + lane
}

// Partner returns the other physical tile of a pair: the two share the
// double-width exchange resources. For logical ids the partner is l^1.
func Partner(physical int) int { return physical ^ 2 }

// Row returns the physical row, 0..22, of a physical tile.
func Row(physical int) int { return physical >> 6 }

// place are the topology fields of a physical tile that routing depends on.
type place struct{ row, half, folded, lane, sub int32 }

// places are the topology fields of all physical tiles: routes are asked for by the
// million.
var places = func() (p [Tiles]place) {
	for t := range p {
		p[t] = newPlace(t)
	}
	return p
}()

func newPlace(physical int) place {
	column := physical >> 2 & 15
	p := place{row: int32(physical >> 6), half: int32(column >> 3), folded: int32(column), lane: int32(physical >> 1 & 1), sub: int32(physical & 1)}
	if column > 7 {
		p.folded = int32(15 - column)
	}
	return p
}

// displacement is the signed horizontal distance of a route, never zero.
func displacement(s, d *place) int32 {
	eps := 1 + d.lane
	if d.half != d.sub {
		eps = 5 - d.lane
	}
	return 6*(d.folded-(s.folded+(s.half^s.sub))) + eps
}

// Direction is the outgoing side, 1 or 2, that a word leaves source by to reach
// dest. The send field is a mask: 3 sends both ways.
func Direction(source, dest int) int {
	if displacement(&places[source], &places[dest]) > 0 {
		return 1
	}
	return 2
}

// MuxTime is T(s,d) in events: a word sent at event S is selected by the
// receiver's incoming mux at event S + MuxTime + 1 of the receiver's timeline.
// It lies in -78..112 and does not depend on the lane of the source.
func MuxTime(source, dest int) int {
	s, d := &places[source], &places[dest]
	k := int32(5)
	if d.half == 1 {
		k = 3
	}
	t := k*(s.folded-d.folded) + 2*(s.row-d.row) + abs(displacement(s, d)) - 30
	if s.half == 1 && d.half == 0 {
		t += 16
	}
	return int(t)
}

// PointerLag is the number of events between the mux selecting a word and its
// write to SRAM: a transfer's pointer takes effect PointerLag after its source.
func PointerLag(dest int) int { return 52 + 2*Row(dest) }

// Latency is the number of events from a word's send to its SRAM write.
func Latency(source, dest int) int { return MuxTime(source, dest) + 1 + PointerLag(dest) }

func abs(x int32) int32 {
	if x < 0 {
		return -x
	}
	return x
}
