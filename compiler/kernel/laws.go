package kernel

// The laws: geometry to cycles. Each function is one formula of the table; the
// table says where it comes from. Lengths are positive, n/m rounds up to whole
// rounds of the six workers where the loop does.

// up divides rounding up.
func up(n, m int) int { return (n + m - 1) / m }

// workers share the rows or the vectors of an operand.
const workers = 6

// gemm: per panel 4 cycles a row, 155.5 of fill, drain, coefficient load and
// synchronisation, and 32 more if the coefficients come from standard memory.
func gemm(g Geometry) int {
	n := up(g.Inner, g.Precision.Group()) * up(g.Cols, 16)
	standard := 0
	if g.StandardWeights {
		standard = 32
	}
	if g.Packed {
		return 342 + n*(packedRows(g.Rows)+170+standard)
	}
	return 464 + up(n*(8*g.Rows+311+2*standard), 2)
}

// packedRows is the time of the busiest worker for one panel that is stored
// row-major: 24 cycles a row and 184 for each 16-row piece that it touches. Rows
// are dealt in contiguous runs, the longer runs first.
func packedRows(rows int) int {
	worst, start := 0, 0
	for w := range workers {
		end := start + rows/workers
		if w < rows%workers {
			end++
		}
		if end > start {
			pieces := (end-1)/16 - start/16 + 1
			worst = max(worst, 24*(end-start)+184*pieces)
		}
		start = end
	}
	return worst
}

// A part is the cost of a loop: what a call pays once and what the data costs.
type part struct{ fixed, variable int }

func (p part) total() int { return p.fixed + p.variable }

// fuse adds a loop to a fused kernel: the data costs add, and of the fixed costs
// only the largest is paid. (Assumed: one call instead of two.)
func (p part) fuse(q part) part { return part{max(p.fixed, q.fixed), p.variable + q.variable} }

func add(n int) part { return part{504, 18 * up(n, 24)} }

func convert(n int) part { return part{246, 12 * up(n, 48)} }

// reduce: per 8 elements 11 slots and 2 for every partial after the first.
func reduce(g Geometry) int {
	p := part{282, 6 * up(g.Elements, 48) * (11 + 2*(g.Partials-1))}
	if g.AddA {
		p = p.fuse(add(g.Elements))
	}
	if g.AddB {
		p = p.fuse(add(g.Elements))
	}
	if g.GELU {
		p = p.fuse(geluPart(g.Elements))
	}
	if g.F8Out {
		p = p.fuse(convert(g.Elements))
	}
	return p.total()
}

func addRows(g Geometry) int { return 504 + g.Rows*18*up(g.Cols, 24) + 234*(g.Rows-1) }

// layerNorm: all six workers share a row: sum, centred variance, apply.
func layerNorm(g Geometry) int {
	if g.F8Out {
		return layerNormF8(g)
	}
	w := g.Cols
	return 132 + g.Rows*(1329+12*up(w, 48)+30*up(w, 24)+24+66+72*up(w, 24))
}

// layerNormF8 is 1,728 + 7.125 w per row.
func layerNormF8(g Geometry) int { return up(g.Rows*(13824+57*g.Cols), 8) }

func addLayerNorm(g Geometry) int {
	w := g.Cols
	if g.F8Out {
		// An add fused in front of the FP8 form; its 132 cycles are the smaller of
		// the two fixed costs and fall away.
		return add(g.Rows*w).total() + layerNormF8(g) - 132
	}
	return 132 + g.Rows*(1386+30*up(w, 48)+42*up(w, 24)+24+66+84*up(w, 24))
}

func geluKernel(g Geometry) int {
	if g.F8Out {
		return 126 + 360 + 1002*up(g.Elements, 192)
	}
	return geluPart(g.Elements).total()
}

// geluPart: blocks of 16 elements go round the six workers, 462 cycles each. What
// is left goes as pairs, 120 cycles each, to the next worker.
func geluPart(n int) part {
	const fixed = 330
	blocks, pairs := n/16, up(n%16, 2)
	cycles := 462 * up(blocks, workers)
	if pairs > 0 {
		if blocks > 0 {
			cycles += 18
		}
		tail := 12 + 120*pairs
		if done := blocks / workers; done > 0 {
			tail = 462*done + 30 + 120*pairs
		}
		cycles = max(cycles, tail)
	}
	return part{fixed, cycles}
}

func biasGELU(g Geometry) int {
	if g.F8Out {
		return 330 + g.Rows*(198+1104*up(g.Cols, 192))
	}
	return 222 + g.Rows*(228+90*up(g.Cols, 24))
}

// softmax is the faster of two kernels. Keys are padded to panels of 16, and
// padded keys cost like keys.
func softmax(g Geometry) int {
	whole := softmaxWhole(g)
	if g.Keys < 128 {
		return whole
	}
	return min(whole, softmaxSplit(g))
}

// softmaxWhole deals whole rows to the workers. Masking the padding costs 17 slots
// a row (from the published figures of 65 keys in 80).
func softmaxWhole(g Geometry) int {
	slots := 37 + 41*g.panels()
	if 16*g.panels() > g.Keys {
		slots += 17
	}
	return 222 + 6*up(g.Rows, workers)*slots
}

// softmaxSplit deals three segments a row to the workers.
func softmaxSplit(g Geometry) int {
	return 408 + 6*up(g.Rows, 2)*(41*up(g.panels(), 3)+123) + 126*up(g.Rows, workers)
}

// panels is the length of a softmax row in panels of 16 keys.
func (g *Geometry) panels() int { return up(max(g.Padded, g.Keys), 16) }

// normalise is the last merge of an attention row by its published law.
func normalise(g Geometry) int {
	v := g.Cols
	p := part{222, 6 * up(g.Rows, workers) * (34 + 1 + 3*(v/16) + 6*up(v, 2) + 5)}
	if g.F8Out {
		p = p.fuse(convert(g.Rows * v))
	}
	return p.total()
}

func castLinear(g Geometry) int { return 718 + 12*up(g.Elements, 48) }

func castPanels(g Geometry) int { return 246 + 6*up(g.Cols, 32)*(8*up(g.Rows, workers)+7) }

func castLeft(g Geometry) int { return 1350 + up(g.Cols, 32)*(558+48*up(g.Rows, workers)) }

func packLeft(g Geometry) int { return 132 + 6*up(g.Rows, workers)*(19+35*up(g.Cols, 16)) }

func packRight(g Geometry) int { return 300 + 360*up(up(g.Rows, 16)*16, 12)*up(g.Cols, 16) }

func copyBytes(g Geometry) int { return 284 + g.Bytes/8 }

func copyStrided(g Geometry) int { return 294 + 6*up(g.Rows, workers)*(2*g.Words+6) }

func fill(g Geometry) int { return 240 + 6*up(g.Bytes/8, workers) }
