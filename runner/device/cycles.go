package device

import "ipufarm/protocol/program"

// This file is the time of every kernel: modelled cycles of one call on one tile
// with its six workers, supervisor call and rendezvous included. What a kernel
// computes is elsewhere and does not depend on it.
//
// The laws are fits to, or restatements of, cycle counters read on a C600 and
// published in the SigLIP benchmark notes of August and September 2026 (named by
// their titles below); DEVIATIONS.md repeats what is weak about them. They take
// extents as the operands have them, padding included, and never addresses: no
// figure separates what sharing an SRAM element costs.

// A law is one kernel's row of the table.
type law struct {
	form    string // operand form, where a kernel has several
	formula string // q(x) rounds up
	source  string
	status  string // fit, restated, or assumed (no figure of this form)
	cycles  func(x *call) uint64
}

const (
	fit      = "fit"      // few constants on more figures
	restated = "restated" // published structure and constants; its own figures prove little
	assumed  = "assumed"  // no figure of this form
)

var laws = [program.KernelCount]law{
	program.KernelGEMM: {
		"panels in; panels out; packed out",
		"464 + n(4R + 155.5 + 32s); packed 342 + n(max over workers(24 rows + 184 pieces of 16 rows) + 170 + 32s); n panels, s = 1 for standard weights",
		"GEMM utilisation, 2026-09-13 (7 figures within 0.4 %, 3 held out within 0.6 %); packed: 4 figures within 0.5 %",
		fit, gemmCycles,
	},
	program.KernelReduce: {
		"P partials; epilogues",
		"282 + 6 q(n/48)(11 + 2(P-1)); epilogues add, GELU and conversion (246 + 12 q(n/48)) by the rule of fused forms",
		"kernel loop upgrade, 2026-09 (13 figures within 1.9 %); epilogues: none",
		restated, reduceCycles,
	},
	program.KernelAdd: {
		"dense", "504 + 18 q(n/24)", "kernel pipelines, 2026-09-13 (2 figures)", restated,
		func(x *call) uint64 { return addPart(x.n64(3)).total() },
	},
	program.KernelAddRows: {
		"row-major, one row added to all", "504 + 18 R q(w/24) + 234 (R-1)", "published cost model, 2026-09-13", assumed,
		func(x *call) uint64 {
			rows, width := x.n64(3), x.n64(4)
			return 504 + 18*rows*ceil(width, 24) + 234*(rows-1)
		},
	},
	program.KernelLayerNorm: {
		"F16 out; FP8 out",
		"132 + R(1419 + 12 q(w/48) + 102 q(w/24)); FP8 R(1728 + 7.125 w): several rows repeat the one-row cost",
		"kernel pipelines, 2026-09-13 (4 figures within 0.2 %); FP8: encoder fusions, 2026-09-09 (2 figures of an older loop)",
		restated, func(x *call) uint64 { return layerNormCycles(x.n64(4), x.n64(5), x.args[6]) },
	},
	program.KernelAddLayerNorm: {
		"F16 out; FP8 out",
		"132 + R(1476 + 30 q(w/48) + 126 q(w/24)); FP8: add and layernorm to FP8 by the rule of fused forms",
		"kernel pipelines, 2026-09-13 (4 figures, exact); FP8: none",
		restated, addLayerNormCycles,
	},
	program.KernelGELU: {
		"F16 out; FP8 out",
		"330 + 462 q(n/96), n a multiple of 16, else pairs of 120 on one worker; FP8 486 + 1002 q(n/192)",
		"normalisation and GELU kernels, 2026-09-11, and cost fixtures, 2026-09-13 (11 figures, exact); FP8: 2 figures",
		restated, geluCycles,
	},
	program.KernelBiasGELU: {
		"F16 out; FP8 out",
		"222 + R(228 + 90 q(w/24)); FP8 330 + R(198 + 1104 q(w/192))",
		"bias and GELU mix, 2026-09-13 (7 figures within 0.1 %); FP8: producer outputs, 2026-09-13 (2 figures)",
		restated, biasGELUCycles,
	},
	program.KernelSoftmax: {
		"whole rows or, from 128 keys, rows in three segments; the faster one",
		"whole 222 + 6 q(R/6)(37 + 41 p + 17 if keys are masked), p panels of 16; segments 408 + 6 q(R/2)(41 q(p/3) + 123) + 126 q(R/6)",
		"kernel pipelines, 2026-09-13 (1 row within 0.5 %; 7 and 8 rows of random data run up to 17 % longer)",
		restated, softmaxCycles,
	},
	program.KernelNormalise: {
		"F16 out; FP8 out",
		"222 + 6 q(R/6)(40 + 3 floor(v/16) + 6 q(v/2)); FP8: conversion by the rule of fused forms",
		"attention merge, last step, cost fixtures, 2026-09-09 (1 figure); FP8: none",
		restated, normaliseCycles,
	},
	program.KernelCast: {
		"same order", "718 + 12 q(n/48)", "FP8 cast overlap, 2026-09-12 (3 figures within 0.1 %)", fit,
		func(x *call) uint64 { return 718 + 12*ceil(x.n64(2), 48) },
	},
	program.KernelCastPanels: {
		"K16 panels to K32 panels", "246 + 6 q(K/32)(8 q(R/6) + 7)", "reduction epilogue, 2026-09-13 (2 constants on 1 figure)", restated,
		func(x *call) uint64 { return 246 + 6*ceil(x.n64(3), 32)*(8*ceil(x.n64(2), 6)+7) },
	},
	program.KernelCastLeft: {
		"row-major to K32 panels", "1350 + q(C/32)(558 + 48 q(R/6))", "FP8 cast overlap, 2026-09-12 (3 figures, exact)", fit,
		func(x *call) uint64 { return 1350 + ceil(x.n64(3), 32)*(558+48*ceil(x.n64(2), 6)) },
	},
	program.KernelPackLeft: {
		"row-major to K16 panels, 32-bit moves", "132 + 6 q(R/6)(19 + 35 q(C/16))", "cost constants, 2026-07 (1 figure)", restated,
		func(x *call) uint64 { return packLeftCycles(x.n64(2), x.n64(3)) },
	},
	program.KernelPackRight: {
		"row-major or panels to coefficient panels", "300 + 360 q(K/12) q(C/16), K padded to 16",
		"pointwise and packing, 2026-09-08 (2 figures within 1 %); from panels: none", restated,
		func(x *call) uint64 { return 300 + 360*ceil(16*ceil(x.n64(2), 16), 12)*ceil(x.n64(3), 16) },
	},
	program.KernelUnpack: {
		"K16 panels to row-major", "as pack-left", "none", assumed,
		func(x *call) uint64 { return packLeftCycles(x.n64(2), x.n64(3)) },
	},
	program.KernelCopy: {
		"contiguous", "284 + bytes/8", "cost constants, 2026-07 (1 figure)", restated,
		func(x *call) uint64 { return 284 + x.n64(2)/8 },
	},
	program.KernelCopyStrided: {
		"rows of words", "294 + 6 q(R/6)(2 words + 6)", "published price; no figure", assumed,
		func(x *call) uint64 { return 294 + 6*ceil(x.n64(2), 6)*(2*x.n64(3)+6) },
	},
	program.KernelFill: {
		"zeros", "240 + 6 q(bytes/48)", "encoder padding, 2026-09-09 (2 figures)", restated,
		func(x *call) uint64 { return 240 + 6*ceil(x.n64(1), 48) },
	},
}

// n64 returns an argument as a count.
func (x *call) n64(arg int) uint64 { return uint64(x.args[arg]) }

// part is a loop with a fixed cost for each call and a cost for the data. Fused
// forms without figures cost their parts with one fixed cost, the largest.
type part struct{ fixed, data uint64 }

func (p part) fuse(q part) part { return part{max(p.fixed, q.fixed), p.data + q.data} }

func (p part) total() uint64 { return p.fixed + p.data }

func addPart(n uint64) part { return part{504, 18 * ceil(n, 24)} }

func convertPart(n uint64) part { return part{246, 12 * ceil(n, 48)} }

func gemmCycles(x *call) uint64 {
	rows, n := x.n64(3), x.n64(4)*x.n64(5)
	var standard uint64
	if x.args[6]&program.GEMMStandardWeights != 0 {
		standard = 32
	}
	if x.args[6]&program.GEMMPacked != 0 {
		return 342 + n*(packedWorker(rows)+170+standard)
	}
	return 464 + ceil(n*(8*rows+311+2*standard), 2)
}

// packedWorker is the time per panel of the busiest of six workers that share rows
// in runs, the first rows mod 6 workers with one more: 24 cycles a row and 184 for
// each piece of 16 rows that a run touches. The distribution is the one that
// explains the figure of 128 rows.
func packedWorker(rows uint64) uint64 {
	var worst, start uint64
	for w := range uint64(6) {
		n := rows / 6
		if w < rows%6 {
			n++
		}
		if n == 0 {
			break
		}
		worst = max(worst, 24*n+184*((start+n-1)/16-start/16+1))
		start += n
	}
	return worst
}

func reduceCycles(x *call) uint64 {
	n, partials := x.n64(5), x.n64(3)
	if x.args[0] != 0 {
		partials++
	}
	p := part{282, 6 * ceil(n, 48) * (11 + 2*(partials-1))}
	flags := x.args[6]
	if flags&program.ReduceAddA != 0 {
		p = p.fuse(addPart(n))
	}
	if flags&program.ReduceAddB != 0 {
		p = p.fuse(addPart(n))
	}
	if flags&program.ReduceGELU != 0 {
		p = p.fuse(geluPart(n))
	}
	if flags&program.ReduceF8 != 0 {
		p = p.fuse(convertPart(n))
	}
	return p.total()
}

func layerNormCycles(rows, width uint64, flags uint32) uint64 {
	if flags&program.NormF8 != 0 {
		return ceil(rows*(8*1728+57*width), 8)
	}
	return 132 + rows*(1419+12*ceil(width, 48)+102*ceil(width, 24))
}

func addLayerNormCycles(x *call) uint64 {
	rows, width := x.n64(6), x.n64(7)
	if x.args[8]&program.NormF8 != 0 {
		// The fixed cost of a layernorm call is 132, that of an add 504.
		return addPart(rows*width).total() + layerNormCycles(rows, width, program.NormF8) - 132
	}
	return 132 + rows*(1476+30*ceil(width, 48)+126*ceil(width, 24))
}

func geluCycles(x *call) uint64 {
	n := x.n64(2)
	if x.args[3]&program.PointwiseF8 != 0 {
		return 486 + 1002*ceil(n, 192)
	}
	return geluPart(n).total()
}

// geluPart: the six workers take blocks of 16 in turn; a rest goes in pairs to the
// worker whose turn it would be, and costs every worker that had a block 18.
func geluPart(n uint64) part {
	blocks, pairs := n/16, ceil(n%16, 2)
	if pairs == 0 {
		return part{330, 462 * ceil(blocks, 6)}
	}
	others := 462 * ceil(blocks, 6)
	if blocks > 0 {
		others += 18
	}
	own := 462*(blocks/6) + 12 + 120*pairs
	if blocks >= 6 {
		own += 18
	}
	return part{330, max(others, own)}
}

func biasGELUCycles(x *call) uint64 {
	rows, width := x.n64(3), x.n64(4)
	if x.args[5]&program.PointwiseF8 != 0 {
		return 330 + rows*(198+1104*ceil(width, 192))
	}
	return 222 + rows*(228+90*ceil(width, 24))
}

func softmaxCycles(x *call) uint64 {
	rows, keys, panels := x.n64(3), x.n64(4), x.n64(5)/16
	slots := 37 + 41*panels
	if keys < 16*panels {
		slots += 17
	}
	whole := 222 + 6*ceil(rows, 6)*slots
	if keys < 128 {
		return whole
	}
	return min(whole, 408+6*ceil(rows, 2)*(41*ceil(panels, 3)+123)+126*ceil(rows, 6))
}

func normaliseCycles(x *call) uint64 {
	rows, cols := x.n64(3), x.n64(4)
	p := part{222, 6 * ceil(rows, 6) * (40 + 3*(cols/16) + 6*ceil(cols, 2))}
	if x.args[5]&program.PointwiseF8 != 0 {
		p = p.fuse(convertPart(rows * cols))
	}
	return p.total()
}

func packLeftCycles(rows, cols uint64) uint64 { return 132 + 6*ceil(rows, 6)*(19+35*ceil(cols, 16)) }
