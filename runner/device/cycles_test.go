package device_test

import (
	"math"
	"testing"

	"ipufarm/protocol/program"
)

// cyclesOf runs a call on poisoned memory and returns its modelled cycles.
func cyclesOf(t *testing.T, k program.Kernel, args []uint32) uint64 {
	t.Helper()
	j := newJob()
	j.tile(0).call(k, args...)
	return j.mustRun(t).Cycles
}

// TestPublishedFigures compares the laws with cycle counts that were read on a
// C600 (published SigLIP benchmark notes, 2026-09; the document is named in each
// row). Errors are signed; the allowed one is that of the family: GEMM 1 %,
// softmax 17 %, others 2 %.
func TestPublishedFigures(t *testing.T) {
	gemm := func(rows, inner, cols int, flags uint32) []uint32 {
		k := 16
		if flags&program.GEMMF8 != 0 {
			k = 32
		}
		left, weights := uint32(standard), uint32(0xC0000)
		if flags&program.GEMMStandardWeights != 0 {
			left, weights = 0xA0000, standard
		}
		return []uint32{left, weights, inter, uint32(rows), uint32(inner+k-1) / uint32(k), uint32(cols+15) / 16, flags, 0}
	}
	const f8, packed, standardWeights = program.GEMMF8, program.GEMMPacked, program.GEMMStandardWeights
	reduce := func(n, partials int) []uint32 {
		return []uint32{0, standard, uint32(2 * n), uint32(partials), 0xC0000, uint32(n), 0, 0, 0, 0}
	}
	norm := func(rows, width int, flags uint32) []uint32 {
		return []uint32{standard, inter, inter, 0xA0000, uint32(rows), uint32(width), flags, 0, uint32(width)}
	}
	addNorm := func(rows, width int) []uint32 {
		return []uint32{standard, inter, 0xA0000, standard2, standard2, 0xB0000, uint32(rows), uint32(width), 0, 0, uint32(width)}
	}
	biasGELU := func(rows, width int, flags uint32) []uint32 {
		return []uint32{standard, inter, 0xA0000, uint32(rows), uint32(width), flags, 0}
	}
	gelu := func(n int, flags uint32) []uint32 { return []uint32{standard, inter, uint32(n), flags, 0} }
	softmax := func(rows, keys, padded int) []uint32 {
		return []uint32{standard, inter, 0xA0000, uint32(rows), uint32(keys), uint32(padded), math.Float32bits(1)}
	}
	castLeft := func(rows, cols int) []uint32 {
		return []uint32{inter, 0xC0000, uint32(rows), uint32(cols), uint32(cols), 0}
	}
	for _, c := range []struct {
		name     string
		k        program.Kernel
		args     []uint32
		measured float64
		allowed  float64 // percent
		source   string
	}{
		{"f8 R244 K128 C64", program.KernelGEMM, gemm(244, 128, 64, f8), 18576, 1, "GEMM utilisation, 2026-09-13"},
		{"f8 R82 K192 C160", program.KernelGEMM, gemm(82, 192, 160, f8), 29508, 1, "GEMM utilisation, 2026-09-13"},
		{"f8 R122 K160 C128", program.KernelGEMM, gemm(122, 160, 128, f8), 26232, 1, "GEMM utilisation, 2026-09-13"},
		{"f8 R146 K96 C48", program.KernelGEMM, gemm(146, 96, 48, f8), 7122, 1, "GEMM utilisation, 2026-09-13"},
		{"f16 R81 K80 C80", program.KernelGEMM, gemm(81, 80, 80, 0), 12402, 1, "GEMM utilisation, 2026-09-13"},
		{"f8 R57 K128 C80", program.KernelGEMM, gemm(57, 128, 80, f8), 8124, 1, "GEMM utilisation, 2026-09-13"},
		{"f8 R56 K128 C80", program.KernelGEMM, gemm(56, 128, 80, f8), 8076, 1, "kernel cost fixtures, 2026-09-13"},
		{"f8 R81 K96 C80", program.KernelGEMM, gemm(81, 96, 80, f8), 7674, 1, "FP8 QK full model, 2026-09-13 (held out)"},
		{"f16 R122 K80 C112", program.KernelGEMM, gemm(122, 80, 112, 0), 22998, 1, "FP8 QK full model, 2026-09-13 (held out, geometry inferred)"},
		{"f8 R122 K96 C112", program.KernelGEMM, gemm(122, 96, 112, f8), 14058, 1, "FP8 QK full model, 2026-09-13 (held out, geometry inferred)"},
		{"f16 R48 K240 C64 packed, standard weights", program.KernelGEMM, gemm(48, 240, 64, packed|standardWeights), 35022, 1, "kernel cost fixtures, 2026-09-09"},
		{"f16 R48 K240 C64 packed", program.KernelGEMM, gemm(48, 240, 64, packed), 33102, 1, "GEMM utilisation, 2026-09-13"},
		{"f16 R96 K64 C64 packed", program.KernelGEMM, gemm(96, 64, 64, packed), 12108, 1, "kernel cost fixtures, 2026-09-09"},
		{"f16 R128 K64 C64 packed", program.KernelGEMM, gemm(128, 64, 64, packed), 19872, 1, "kernel cost fixtures, 2026-09-13"},
		{"1152", program.KernelAdd, []uint32{standard, inter, 0xA0000, 1152}, 1368, 2, "kernel pipelines, 2026-09-13"},
		{"2152", program.KernelAdd, []uint32{standard, inter, 0xA0000, 2152}, 2124, 2, "kernel pipelines, 2026-09-13"},
		{"1x1152", program.KernelLayerNorm, norm(1, 1152, 0), 6732, 2, "kernel pipelines, 2026-09-13"},
		{"1x144", program.KernelLayerNorm, norm(1, 144, 0), 2196, 2, "kernel cost fixtures, 2026-09-13"},
		{"1x576", program.KernelLayerNorm, norm(1, 576, 0), 4140, 2, "kernel cost fixtures, 2026-09-13"},
		{"3x1152", program.KernelLayerNorm, norm(3, 1152, 0), 19938, 2, "kernel cost fixtures, 2026-09-13"},
		{"1x1152 to FP8", program.KernelLayerNorm, norm(1, 1152, program.NormF8), 9936, 2, "encoder fusions, 2026-09-09"},
		{"1x1728 to FP8", program.KernelLayerNorm, norm(1, 1728, program.NormF8), 14040, 2, "encoder fusions, 2026-09-09"},
		{"1x1152", program.KernelAddLayerNorm, addNorm(1, 1152), 8376, 2, "kernel pipelines, 2026-09-13"},
		{"1x144", program.KernelAddLayerNorm, addNorm(1, 144), 2454, 2, "kernel cost fixtures, 2026-09-13"},
		{"1x576", program.KernelAddLayerNorm, addNorm(1, 576), 4992, 2, "kernel cost fixtures, 2026-09-13"},
		{"3x1152", program.KernelAddLayerNorm, addNorm(3, 1152), 24864, 2, "kernel cost fixtures, 2026-09-13"},
		{"2", program.KernelGELU, gelu(2, 0), 462, 2, "kernel cost fixtures, 2026-09-13"},
		{"6", program.KernelGELU, gelu(6, 0), 702, 2, "kernel cost fixtures, 2026-09-13"},
		{"14", program.KernelGELU, gelu(14, 0), 1182, 2, "kernel cost fixtures, 2026-09-13"},
		{"16", program.KernelGELU, gelu(16, 0), 792, 2, "kernel cost fixtures, 2026-09-13"},
		{"18", program.KernelGELU, gelu(18, 0), 810, 2, "kernel cost fixtures, 2026-09-13"},
		{"30", program.KernelGELU, gelu(30, 0), 1182, 2, "kernel cost fixtures, 2026-09-13"},
		{"94", program.KernelGELU, gelu(94, 0), 1182, 2, "kernel cost fixtures, 2026-09-13"},
		{"96", program.KernelGELU, gelu(96, 0), 792, 2, "kernel cost fixtures, 2026-09-13"},
		{"98", program.KernelGELU, gelu(98, 0), 942, 2, "kernel cost fixtures, 2026-09-13"},
		{"1408", program.KernelGELU, gelu(1408, 0), 7260, 2, "normalisation and GELU kernels, 2026-09-11"},
		{"2208", program.KernelGELU, gelu(2208, 0), 10956, 2, "normalisation and GELU kernels, 2026-09-11"},
		{"1152 to FP8", program.KernelGELU, gelu(1152, program.PointwiseF8), 6498, 2, "normalisation and GELU kernels, 2026-09-11"},
		{"2152 to FP8", program.KernelGELU, gelu(2152, program.PointwiseF8), 12510, 2, "normalisation and GELU kernels, 2026-09-11"},
		{"1x16", program.KernelBiasGELU, biasGELU(1, 16, 0), 540, 2, "bias and GELU mix, 2026-09-13"},
		{"1x1408", program.KernelBiasGELU, biasGELU(1, 1408, 0), 5760, 2, "bias and GELU mix, 2026-09-13"},
		{"1x2152", program.KernelBiasGELU, biasGELU(1, 2152, 0), 8550, 2, "bias and GELU mix, 2026-09-13"},
		{"1x2208", program.KernelBiasGELU, biasGELU(1, 2208, 0), 8730, 2, "bias and GELU mix, 2026-09-13"},
		{"3x2152", program.KernelBiasGELU, biasGELU(3, 2152, 0), 25206, 2, "bias and GELU mix, 2026-09-13"},
		{"3x2208", program.KernelBiasGELU, biasGELU(3, 2208, 0), 25746, 2, "bias and GELU mix, 2026-09-13"},
		{"1x1152 to FP8", program.KernelBiasGELU, biasGELU(1, 1152, program.PointwiseF8), 7152, 2, "producer outputs, 2026-09-13"},
		{"1x2152 to FP8", program.KernelBiasGELU, biasGELU(1, 2152, program.PointwiseF8), 13776, 2, "producer outputs, 2026-09-13"},
		{"1 row of 768", program.KernelSoftmax, softmax(1, 768, 768), 5232, 17, "kernel pipelines, 2026-09-13, of 729 keys"},
		{"1 row of 729", program.KernelSoftmax, softmax(1, 729, 768), 5190, 17, "softmax cost test, 2026-09-13, random inputs"},
		{"8 rows of 729", program.KernelSoftmax, softmax(8, 729, 768), 22536, 17, "softmax cost test, 2026-09-13, random inputs"},
		{"1 row of 64", program.KernelSoftmax, softmax(1, 64, 64), 1422, 17, "softmax cost test, 2026-09-13, random inputs"},
		{"8 rows of 64", program.KernelSoftmax, softmax(8, 64, 64), 3168, 17, "softmax cost test, 2026-09-13, random inputs"},
		{"1 row of 65", program.KernelSoftmax, softmax(1, 65, 80), 1770, 17, "softmax cost test, 2026-09-13, random inputs"},
		{"8 rows of 65", program.KernelSoftmax, softmax(8, 65, 80), 3774, 17, "softmax cost test, 2026-09-13, random inputs"},
		{"8x72", program.KernelNormalise, []uint32{standard, inter, 0xA0000, 8, 72, 0, 0}, 3438, 2, "attention merge, cost fixtures, 2026-09-09"},
		{"8, 2 partials", program.KernelReduce, reduce(8, 2), 360, 2, "kernel loop upgrade, 2026-09"},
		{"56, 2 partials", program.KernelReduce, reduce(56, 2), 438, 2, "kernel loop upgrade, 2026-09"},
		{"1472, 2 partials", program.KernelReduce, reduce(1472, 2), 2700, 2, "kernel loop upgrade, 2026-09"},
		{"1472, 4 partials", program.KernelReduce, reduce(1472, 4), 3444, 2, "kernel loop upgrade, 2026-09"},
		{"2208, 4 partials", program.KernelReduce, reduce(2208, 4), 4974, 2, "kernel loop upgrade, 2026-09"},
		{"576, 15 partials", program.KernelReduce, reduce(576, 15), 3090, 2, "kernel loop upgrade, 2026-09"},
		{"2208, 28 partials", program.KernelReduce, []uint32{0, inter, 4416, 28, standard, 2208, 0, 0, 0, 0}, 18222, 2, "kernel loop upgrade, 2026-09"},
		{"2624, 6 partials", program.KernelReduce, reduce(2624, 6), 7218, 2, "reduction epilogue, 2026-09-13 (in a model)"},
		{"2528, 6 partials", program.KernelReduce, reduce(2528, 6), 7092, 2, "reduction epilogue, 2026-09-13 (in a model)"},
		{"1264, 6 partials", program.KernelReduce, reduce(1264, 6), 3690, 2, "reduction epilogue, 2026-09-13 (in a model)"},
		{"122x160", program.KernelCastPanels, []uint32{inter, 0xC0000, 122, 160, 0}, 5496, 2, "reduction epilogue, 2026-09-13 (geometry inferred)"},
		{"164x384", program.KernelCast, []uint32{inter, 0xC0000, 164 * 384, 0}, 16458, 2, "FP8 cast overlap, 2026-09-12"},
		{"97x512", program.KernelCast, []uint32{inter, 0xC0000, 97 * 512, 0}, 13134, 2, "FP8 cast overlap, 2026-09-12"},
		{"128x512", program.KernelCast, []uint32{inter, 0xC0000, 128 * 512, 0}, 17106, 2, "FP8 cast overlap, 2026-09-12"},
		{"97x512", program.KernelCastLeft, castLeft(97, 512), 23334, 2, "FP8 cast overlap, 2026-09-12"},
		{"128x512", program.KernelCastLeft, castLeft(128, 512), 27174, 2, "FP8 cast overlap, 2026-09-12"},
		{"128x16", program.KernelPackRight, []uint32{standard, inter, 128, 16, 0, 16}, 4260, 2, "pointwise and packing, 2026-09-08"},
		{"8x72", program.KernelPackLeft, []uint32{standard, inter, 8, 72, 72}, 2364, 5, "cost constants, 2026-07; the half-full panel is charged as a full one"},
		{"8 KiB", program.KernelCopy, []uint32{standard, inter, 8192}, 1308, 2, "cost constants, 2026-07"},
		{"19456 halves", program.KernelFill, []uint32{inter, 2 * 19456}, 5082, 2, "encoder padding, 2026-09-09"},
		{"35328 halves", program.KernelFill, []uint32{inter, 2 * 35328}, 9048, 2, "encoder padding, 2026-09-09"},
	} {
		got := cyclesOf(t, c.k, c.args)
		e := 100 * (float64(got)/c.measured - 1)
		t.Logf("%-12v %-42s %6.0f measured %6d modelled %+6.2f %%  %s", c.k, c.name, c.measured, got, e, c.source)
		if math.Abs(e) > c.allowed {
			t.Errorf("%v %s: %d modelled, %v measured: %+.2f %%, allowed %v %%", c.k, c.name, got, c.measured, e, c.allowed)
		}
	}
}

// TestAssumedLaws pins the laws that no figure covers to their sentences in the
// table.
func TestAssumedLaws(t *testing.T) {
	for _, c := range []struct {
		name string
		k    program.Kernel
		args []uint32
		want uint64
	}{
		{"bias rows repeat the one-row cost", program.KernelAddRows, []uint32{standard, inter, 0xA0000, 3, 1152}, 504 + 3*18*48 + 234*2},
		{"rows to FP8 repeat the one-row cost", program.KernelLayerNorm, []uint32{standard, inter, inter, 0xA0000, 3, 144, program.NormF8, 0, 160}, 3 * (1728 + 1026)},
		{"add and layernorm to FP8", program.KernelAddLayerNorm, []uint32{standard, inter, 0xA0000, standard2, standard2, 0xB0000, 2, 144, program.NormF8, 0, 160}, 504 + 18*12 + 2*(1728+1026) - 132},
		{"unpack costs what pack costs", program.KernelUnpack, []uint32{standard, inter, 8, 72, 72}, 132 + 6*2*(19+35*5)},
		{"strided copy", program.KernelCopyStrided, []uint32{standard, inter, 7, 5, 20, 20}, 294 + 6*2*16},
		{"normalise to FP8", program.KernelNormalise, []uint32{standard, inter, 0xA0000, 8, 72, program.PointwiseF8, 0}, 246 + 12*268 + 12*12},
		{"reduce with bias", program.KernelReduce, []uint32{standard, 0xA0000, 96, 1, 0xB0000, 48, program.ReduceAddA, inter, 0, 0}, 504 + 6*13 + 18*2},
		{"reduce with everything", program.KernelReduce, []uint32{standard, 0xA0000, 192, 3, 0xB0000, 96, 15, inter, inter, 0},
			504 + 6*2*17 + 2*18*4 + 462 + 12*2},
		{"one worker's rest of GELU", program.KernelGELU, []uint32{standard, inter, 100, 0, 0}, 330 + 462 + 30 + 240},
		{"weights in standard memory", program.KernelGEMM, []uint32{0xC0000, standard, 0xA0000, 8, 5, 48, program.GEMMStandardWeights, 0}, 464 + 240*(32+32) + 240*311/2},
	} {
		if got := cyclesOf(t, c.k, c.args); got != c.want {
			t.Errorf("%s: %d cycles, want %d", c.name, got, c.want)
		}
	}
}
