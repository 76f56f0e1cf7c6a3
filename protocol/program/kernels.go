package program

// Kernel is the code of a tile kernel in a command record: the contract between
// the compiler that places operands and whatever executes them.
//
// Forms of an operand of rows × cols elements (offsets in elements):
//
//	row-major   r*stride + c
//	panels16    ((c/16)*rows + r)*16 + c%16          F16 AMP-left, and the native GEMM output
//	panels32    ((c/32)*rows + r)*32 + c%32          FP8 AMP-left
//	coefficient panel p = (c/16)*(K/k) + r/k, then p*16*k + (c%16)*k + r%k, for a
//	            K × N right operand with k = 16 (F16) or 32 (FP8); 512 bytes a panel
//
// "Padded with zeros" below means that the kernel writes zeros there. Every
// kernel reads all operands it names in full; alignment is 8 bytes for all
// operands, 32 bytes for the three of a GEMM, 4 bytes for CopyStrided, unless
// said otherwise. A wrong alignment, memory class or element overlap faults.
//
// Rounding: F16 results round to nearest even, overflow gives NaN (NANOO on,
// stochastic rounding off). FP8 is F143: value = code * 2^scale, and a scale
// argument is a two's-complement int32.
type Kernel uint16

const (
	KernelNone Kernel = iota

	// GEMM: left, right, out, rows, kPanels, cPanels, flags, scale.
	// out[rows × 16*cPanels] F16 = left × right, summed panel by panel: K16 of F16
	// or K32 of FP8, each panel's products in F32 in 16 lanes by k mod 16, reduced
	// by a fixed tree (lane i with i+8, then +4, +2, +1), multiplied by 2^scale,
	// added in F32 to the F16 partial (zero at first), rounded once to F16.
	// left in panels16/panels32, right in coefficient panels (order of kPanels fastest:
	// panel (cPanel*kPanels + kPanel)), out in panels16, or row-major with stride
	// 16*cPanels if GEMMPacked. scale is the sum of both operand scales (0 for F16).
	// left is read 16 bytes past its end. out must lie in region 1; right too,
	// unless GEMMStandardWeights; left and out in different effective elements.
	KernelGEMM

	// Reduce: local, remote, stride, remotes, out, n, flags, a, b, scale.
	// F16 chain: local (0: none) then remotes partials at remote + i*stride bytes, each
	// of n elements, added in that order and rounded to F16 after each addition. Then
	// the epilogues of the flags in this order, each rounded to F16: + a (ReduceAddA),
	// + b (ReduceAddB), tanh GELU (ReduceGELU), conversion to FP8 (ReduceF8).
	// At least one of local and remotes. out may equal local. n is a multiple of 8.
	KernelReduce

	// Add: a, b, out, n. out = a + b; any order that the operands share.
	KernelAdd

	// AddRows: in, row, out, rows, width. Row-major; row is added to every row.
	KernelAddRows

	// LayerNorm: in, gamma, beta, out, rows, width, flags, scale, outStride.
	// Row-major F16 rows of width elements (stride width); statistics in F32,
	// epsilon 1e-6; out row-major F16, or FP8 if NormF8, with outStride >= width
	// elements from row to row, padded with zeros.
	KernelLayerNorm

	// AddLayerNorm: a, b, sum, gamma, beta, out, rows, width, flags, scale, outStride.
	// sum = a + b rounded to F16 (stored row-major, stride width), then LayerNorm of sum.
	KernelAddLayerNorm

	// GELU: in, out, n, flags, scale. tanh form; PointwiseF8 converts. Any shared order.
	KernelGELU

	// BiasGELU: in, bias, out, rows, width, flags, scale. Row-major; bias of width
	// elements is added to every row and rounded, then GELU.
	KernelBiasGELU

	// Softmax: in, out, sums, rows, keys, padded, factor (F32 bits).
	// Row-major F16 scores with stride padded; out[r][c] = exp(factor*(in[r][c] - max_r))
	// in F16 for c < keys, zero for keys <= c < padded; sums[r] = sum of the exponentials
	// before rounding, F32. Not divided: Normalise does that after P*V.
	KernelSoftmax

	// Normalise: in, sums, out, rows, cols, flags, scale. out = in / sums[row];
	// panels16 in and out if NormalisePanels (cols a multiple of 16), else row-major
	// with stride cols. PointwiseF8 converts and keeps the order.
	KernelNormalise

	// Cast: in, out, n, scale. F16 to FP8 in the same order. n a multiple of 8.
	KernelCast

	// CastPanels: in, out, rows, cols, scale. panels16 F16 (cols a multiple of 16) to
	// panels32 FP8, the last panel padded with zeros.
	KernelCastPanels

	// CastLeft: in, out, rows, cols, inStride, scale. Row-major F16 to panels32 FP8,
	// padded with zeros.
	KernelCastLeft

	// PackLeft: in, out, rows, cols, inStride. Row-major F16 to panels16, padded with zeros.
	KernelPackLeft

	// PackRight: in, out, rows, cols, flags, inStride. A K × N F16 operand, K = rows,
	// N = cols, in panels16 if PackFromPanels, else row-major with inStride, to coefficient
	// panels of k = 16; rows and cols padded with zeros to multiples of 16.
	KernelPackRight

	// Unpack: in, out, rows, cols, outStride. panels16 F16 to row-major.
	KernelUnpack

	// Copy: source, destination, bytes. Contiguous, a multiple of 8 bytes, no overlap.
	KernelCopy

	// CopyStrided: source, destination, rows, words, sourceStride, destinationStride.
	// rows pieces of words 32-bit words; strides in bytes, multiples of 4.
	KernelCopyStrided

	// Fill: destination, bytes. Zeros; a multiple of 8 bytes.
	KernelFill

	KernelCount
)

// Flags of the kernels that have them.
const (
	GEMMF8              = 1 << 0
	GEMMPacked          = 1 << 1
	GEMMStandardWeights = 1 << 2

	ReduceAddA = 1 << 0
	ReduceAddB = 1 << 1
	ReduceGELU = 1 << 2
	ReduceF8   = 1 << 3

	NormF8      = 1 << 0
	PointwiseF8 = 1 << 0

	NormalisePanels = 1 << 1

	PackFromPanels = 1 << 0
)
