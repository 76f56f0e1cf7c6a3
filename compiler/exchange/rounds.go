package exchange

import (
	"math/bits"
	"slices"
)

// rounds is the policy for dense point-to-point phases: it places colour after
// colour of a colouring in which units of one colour share no tile. Where every
// tile has as much to do as every other, no clot of awkward pairs is left at the
// end.
func (l *lister) rounds(units []unit, colour []int32) {
	inOrder(units, colour)
	keys := make([]sortKey, len(units))
	for i := range units {
		keys[i] = sortKey{uint64(colour[i]), int32(i)}
	}
	for _, k := range sortByKey(keys) {
		l.place(&units[k.item], l.earliest(&units[k.item]))
	}
}

// inOrder exchanges colours between units of one source and receiver, so that
// they are placed in address order.
func inOrder(units []unit, colour []int32) {
	from := 0
	for i := range units {
		if units[i].last {
			slices.Sort(colour[from : i+1])
			from = i + 1
		}
	}
}

// maxColours bounds the memory of a colouring.
const maxColours = 4096

// colouring is a partial edge colouring of the graph whose edges are units and
// whose vertices are the tiles as senders and, after those, as receivers.
type colouring struct {
	ends    [][2]int32 // sender and receiver of each unit
	colour  []int32    // of each unit
	colours int32
	width   int32    // of a vertex in free, in words
	free    []uint64 // by vertex: bit set of colours not taken
	taken   []int32  // by vertex and colour: the unit, or -1
}

// colourUnits numbers units so that equal numbers share no sender and no
// receiver. By König's theorem it needs no more numbers than the busiest tile
// has units on one side; it fails when that is over a limit.
func colourUnits(p *sorted, units []unit, limit int32) (c *colouring, ok bool) {
	c = &colouring{ends: make([][2]int32, len(units)), colour: make([]int32, len(units))}
	vertices := int32(2 * p.Tiles)
	degree := make([]int32, vertices)
	for i := range units {
		ends := [2]int32{units[i].source, int32(p.Tiles) + p.Receivers[units[i].first].Tile}
		c.ends[i] = ends
		for _, v := range ends {
			degree[v]++
			c.colours = max(c.colours, degree[v])
		}
	}
	if c.colours > min(limit, maxColours) {
		return c, false
	}
	c.width = (c.colours + 63) / 64
	c.free = make([]uint64, vertices*c.width)
	for v := range vertices {
		for k := range c.colours {
			c.free[v*c.width+k>>6] |= 1 << (k & 63)
		}
	}
	c.taken = make([]int32, vertices*c.colours)
	for i := range c.taken {
		c.taken[i] = -1
	}
	for i := range c.ends {
		c.add(int32(i))
	}
	return c, true
}

// add colours one more unit.
func (c *colouring) add(unit int32) {
	s, d := c.ends[unit][0], c.ends[unit][1]
	fs, fd := c.free[s*c.width:(s+1)*c.width], c.free[d*c.width:(d+1)*c.width]
	for k := range fs {
		if both := fs[k] & fd[k]; both != 0 {
			c.paint(unit, int32(64*k+bits.TrailingZeros64(both)))
			return
		}
	}
	a, b := first(fs), first(fd)
	c.swap(d, a, b)
	c.paint(unit, a)
}

// paint gives an uncoloured unit a colour that is free at its ends.
func (c *colouring) paint(unit, colour int32) {
	c.colour[unit] = colour
	for _, v := range c.ends[unit] {
		c.taken[v*c.colours+colour] = unit
		c.free[v*c.width+colour>>6] &^= 1 << (colour & 63)
	}
}

// swap exchanges two colours along the path of units of these colours that
// begins at a vertex with colour a; b is free there. The path cannot come back.
func (c *colouring) swap(v, a, b int32) {
	var path []int32
	for want := a; ; want = a + b - want {
		unit := c.taken[v*c.colours+want]
		if unit < 0 {
			break
		}
		path = append(path, unit)
		v = c.ends[unit][0] + c.ends[unit][1] - v
	}
	for _, unit := range path {
		for _, v := range c.ends[unit] {
			c.taken[v*c.colours+c.colour[unit]] = -1
			c.free[v*c.width+c.colour[unit]>>6] |= 1 << (c.colour[unit] & 63)
		}
	}
	for _, unit := range path {
		c.paint(unit, a+b-c.colour[unit])
	}
}

// first returns the lowest member of a set that is not empty.
func first(set []uint64) int32 {
	for k, w := range set {
		if w != 0 {
			return int32(64*k + bits.TrailingZeros64(w))
		}
	}
	panic("exchange: a tile has more units than colours")
}
