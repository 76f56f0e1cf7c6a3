package place

import (
	"math/rand/v2"

	"ipufarm/protocol/machine"
)

// A shape says what randomProblem makes.
type shape struct {
	requests int     // about so many
	steps    int32   // of the program
	slack    float64 // share of each rectangle that is taken off again
	separate int     // at most so many pairs
}

// typicalFree is what support code and tables leave of a tile: the aperture, a
// rest of element 3, and everything from the end of the tables.
var typicalFree = []Range{
	{machine.ApertureBase, machine.ApertureEnd},
	{machine.DataBase, machine.SupportBase},
	{machine.TableBase + 3*machine.Element0Size, machine.LoadEnd},
}

// A block is a rectangle of time × memory.
type block struct {
	start, end  uint32
	first, last int32
}

// randomProblem makes a problem that is feasible by construction: it cuts the
// time × memory plane of every free range into rectangles, makes a request of
// each and forgets where they were. The addresses come back for the tests of
// Check.
func randomProblem(rng *rand.Rand, sh shape) (Problem, []uint32) {
	p := Problem{Free: typicalFree}
	blocks := []block{}
	for _, r := range typicalFree {
		for _, part := range []Range{clip(r, 0, machine.Region0End), clip(r, machine.Region1Base, machine.MemoryEnd)} {
			if part.Start < part.End {
				part.End &^= 31
				blocks = append(blocks, block{part.Start, part.End, 0, sh.steps})
			}
		}
	}
	for tries := 0; len(blocks) < sh.requests && tries < 20*sh.requests; tries++ {
		// The larger of two random blocks is cut, so that sizes stay mixed.
		k, other := rng.IntN(len(blocks)), rng.IntN(len(blocks))
		if area(blocks[other]) > area(blocks[k]) {
			k = other
		}
		b := blocks[k]
		rest := b
		if rng.IntN(2) == 0 && b.last > b.first {
			at := b.first + rng.Int32N(b.last-b.first)
			b.last, rest.first = at, at+1
		} else {
			step := []uint32{8, 32, 32, 64}[rng.IntN(4)]
			cells := (b.end - b.start) / step
			if cells < 2 {
				continue
			}
			at := b.start + step*(1+rng.Uint32N(cells-1))
			b.end, rest.start = at, at
		}
		blocks[k] = b
		blocks = append(blocks, rest)
	}
	rng.Shuffle(len(blocks), func(i, j int) { blocks[i], blocks[j] = blocks[j], blocks[i] })
	var addresses []uint32
	for i, b := range blocks {
		size := b.end - b.start
		size -= uint32(sh.slack * float64(size) * 2 * rng.Float64())
		r := Request{Bytes: int32(max(size&^3, 4)), Align: 4, First: b.first, Last: b.last, ID: int32(1000 + i)}
		for r.Align < 32 && b.start%uint32(2*r.Align) == 0 && rng.IntN(4) != 0 {
			r.Align *= 2
		}
		if b.start >= machine.Region1Base && rng.IntN(2) == 0 {
			r.Class = Interleaved
		}
		r.Transient = b.start < machine.ApertureEnd || b.first > 0 && b.last < sh.steps
		p.Requests = append(p.Requests, r)
		addresses = append(addresses, b.start)
	}
	for range sh.separate {
		i, j := rng.IntN(len(blocks)), rng.IntN(len(blocks))
		a := machine.ElementMask(addresses[i], uint32(p.Requests[i].Bytes))
		b := machine.ElementMask(addresses[j], uint32(p.Requests[j].Bytes))
		if i != j && a&b == 0 {
			p.Separate = append(p.Separate, [2]int32{int32(i), int32(j)})
		}
	}
	return p, addresses
}

func area(b block) int64 { return int64(b.end-b.start) * int64(b.last-b.first+1) }
