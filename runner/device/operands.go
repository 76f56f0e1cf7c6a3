package device

import (
	"fmt"
	"math/bits"

	"ipufarm/protocol/machine"
	"ipufarm/protocol/numeric"
	"ipufarm/protocol/program"
)

// This file says which bytes each kernel reads and writes and what must hold of
// them: the operand rules of protocol/program/kernels.go and of the SRAM (published
// hardware notes of a C600: alignment and access tails, memory classes,
// simultaneous access).

// broken is a rule that a kernel call breaks.
type broken struct {
	rule   Rule
	detail string
}

// operand is one stream of a call: pieces of equal size at equal distances.
type operand struct {
	name    string
	address uint32
	bytes   uint64 // span, from the first to the last byte
	piece   uint64 // bytes of a piece; 0: one piece of the whole span
	stride  uint64 // bytes from piece to piece
	mask    uint32 // elements that the span touches
	write   bool
	over    uint16 // of a write: reads, by index, that it may coincide with exactly
}

// inPieces describes n pieces.
func inPieces(name string, address uint32, n, piece, stride uint64) operand {
	return operand{name: name, address: address, bytes: (n-1)*stride + piece, piece: piece, stride: stride}
}

// pieces is the number of pieces.
func (o *operand) pieces() uint64 {
	if o.piece == 0 || o.piece == o.bytes {
		return 1
	}
	return (o.bytes-o.piece)/o.stride + 1
}

// coincides reports whether two operands are the same bytes in the same order.
func (o *operand) coincides(p *operand) bool {
	return o.address == p.address && o.bytes == p.bytes && o.piece == p.piece && o.stride == p.stride
}

// overlaps reports whether two operands have a byte in common.
func (o *operand) overlaps(p *operand) bool {
	if uint64(o.address) >= uint64(p.address)+p.bytes || uint64(p.address) >= uint64(o.address)+o.bytes {
		return false
	}
	if o.pieces() < p.pieces() {
		o, p = p, o
	}
	if o.pieces() == 1 {
		return true
	}
	for i := range o.pieces() {
		start := int64(uint64(o.address)+i*o.stride) - int64(p.address) // relative to p
		end := start + int64(o.piece)
		if p.pieces() == 1 {
			if end > 0 && start < int64(p.bytes) {
				return true
			}
			continue
		}
		// The last piece of p that starts before end must end before start.
		if end <= 0 || start >= int64(p.bytes) {
			continue
		}
		last := min((end-1)/int64(p.stride), int64(p.pieces())-1)
		if last*int64(p.stride)+int64(p.piece) > start {
			return true
		}
	}
	return false
}

// call is one kernel call while its operands are collected. The first broken rule
// is kept; what comes after it does nothing.
type call struct {
	tile   *tile
	kernel program.Kernel
	args   *[program.CommandArgs]uint32
	ops    [8]operand
	n      int
	broken *broken
}

// maxCount bounds every count of a call. No tile memory has more elements, and
// products of three counts fit 64 bits.
const maxCount = 1 << 20

func (x *call) refuse(rule Rule, format string, args ...any) {
	if x.broken == nil {
		x.broken = &broken{rule, fmt.Sprintf(format, args...)}
	}
}

// count returns an argument that counts something, at least one.
func (x *call) count(arg int, name string) uint64 {
	v := x.args[arg]
	if v == 0 || v > maxCount {
		x.refuse(RuleArgument, "%s is %d, accepted are 1 to %d", name, v, maxCount)
		return 1
	}
	return uint64(v)
}

// multiple returns a count that must be a multiple of m.
func (x *call) multiple(arg int, name string, m uint64) uint64 {
	v := x.count(arg, name)
	if v%m != 0 {
		x.refuse(RuleArgument, "%s is %d, must be a multiple of %d", name, v, m)
	}
	return v
}

// stride returns the distance of rows in elements of size bytes: at least cols,
// and a whole number of 64-bit words if there is more than one row, because rows
// are loaded and stored in them.
func (x *call) stride(arg int, name string, rows, cols, size uint64) uint64 {
	v := x.count(arg, name)
	if v < cols {
		x.refuse(RuleArgument, "%s is %d, at least the row length %d", name, v, cols)
	}
	x.aligned(name, rows, v, size)
	return v
}

// aligned checks that the rows after the first start at 64-bit words.
func (x *call) aligned(name string, rows, stride, size uint64) {
	if rows > 1 && stride*size%8 != 0 {
		x.refuse(RuleAlignment, "%s of %d elements of %d bytes: rows after the first do not start at multiples of 8 bytes", name, stride, size)
	}
}

func (x *call) flags(arg int, known uint32) uint32 {
	v := x.args[arg]
	if v&^known != 0 {
		x.refuse(RuleArgument, "flags 0x%X, known are 0x%X", v, known)
	}
	return v
}

// scale checks the exponent of an FP8 result: the conversion takes its negative
// in a 6-bit field, so -32 does not fit.
func (x *call) scale(arg int) {
	if v := int32(x.args[arg]); v <= numeric.ScaleMin || v > numeric.ScaleMax {
		x.refuse(RuleArgument, "scale %d, accepted are %d to %d", v, numeric.ScaleMin+1, numeric.ScaleMax)
	}
}

// read adds an operand that the call reads and returns its index.
func (x *call) read(arg int, name string, bytes uint64) int {
	return x.add(operand{name: name, address: x.args[arg], bytes: bytes}, 8)
}

// write adds an operand that the call writes; over are reads that may lie at the
// same place with the same size.
func (x *call) write(arg int, name string, bytes uint64, over ...int) int {
	o := operand{name: name, address: x.args[arg], bytes: bytes, write: true}
	for _, i := range over {
		o.over |= 1 << i
	}
	return x.add(o, 8)
}

func (x *call) add(o operand, align uint32) int {
	if o.address%align != 0 {
		x.refuse(RuleAlignment, "%s 0x%X is not a multiple of %d", o.name, o.address, align)
	}
	end := uint64(o.address) + o.bytes
	if o.address < machine.MemoryBase || o.bytes > machine.MemorySize || end > machine.MemoryEnd {
		x.refuse(RuleRange, "%s 0x%X with %d bytes lies outside of 0x%X..0x%X", o.name, o.address, o.bytes, uint32(machine.MemoryBase), uint32(machine.MemoryEnd))
		return 0
	}
	o.mask = machine.ElementMask(o.address, uint32(o.bytes))
	x.ops[x.n] = o
	x.n++
	return x.n - 1
}

// interleaved checks that an operand lies in region 1.
func (x *call) interleaved(i int) {
	if o := &x.ops[i]; x.broken == nil && o.address < machine.Region1Base {
		x.refuse(RuleClass, "%s 0x%X must lie in interleaved memory, from 0x%X", o.name, o.address, uint32(machine.Region1Base))
	}
}

// apart checks that two operands share no effective element.
func (x *call) apart(i, j int) {
	a, b := &x.ops[i], &x.ops[j]
	if x.broken == nil && a.mask&b.mask != 0 {
		x.refuse(RuleElement, "%s 0x%X and %s 0x%X share SRAM element %d", a.name, a.address, b.name, b.address, bits.TrailingZeros32(a.mask&b.mask))
	}
}

// check tests what holds for every kernel: no operand in an element that code
// runs from, no write to code, no write onto something else that is read or
// written.
func (x *call) check() {
	for i := range x.n {
		o := &x.ops[i]
		if hit := o.mask & x.tile.codeElements; hit != 0 {
			rule := RuleFetch
			if _, bad := x.tile.damaged(o.address, o.address+uint32(o.bytes)); bad && o.write {
				rule = RuleCode
			}
			x.refuse(rule, "%s 0x%X with %d bytes touches SRAM element %d, which code runs from", o.name, o.address, o.bytes, bits.TrailingZeros32(hit))
		}
		if !o.write {
			continue
		}
		if code, bad := x.tile.damaged(o.address, o.address+uint32(o.bytes)); bad {
			x.refuse(RuleCode, "%s 0x%X with %d bytes would overwrite code at 0x%X..0x%X", o.name, o.address, o.bytes, code.start, code.end)
		}
		for j := range x.n {
			p := &x.ops[j]
			if j == i || j < i && p.write || !o.overlaps(p) || o.over>>j&1 == 1 && o.coincides(p) {
				continue
			}
			x.refuse(RuleOverlap, "%s 0x%X with %d bytes overlaps %s 0x%X with %d bytes", o.name, o.address, o.bytes, p.name, p.address, p.bytes)
		}
	}
}

func ceil(a, b uint64) uint64 { return (a + b - 1) / b }

// f16 is the size of n halves.
func f16(n uint64) uint64 { return 2 * n }

// panels is the span of an AMP-left operand: panels of k columns, every row of
// every panel full. It is 32 bytes for each row and panel in both formats.
func panels(rows, cols, k uint64) uint64 { return ceil(cols, k) * rows * 32 }

// gemmTail is what an AMP left stream reads past its payload.
const gemmTail = 16

// operandRules collect the operands of a call and check what is particular to the
// kernel.
var operandRules = [program.KernelCount]func(x *call){
	program.KernelGEMM: func(x *call) {
		rows, kPanels, cPanels := x.count(3, "rows"), x.count(4, "kPanels"), x.count(5, "cPanels")
		flags := x.flags(6, program.GEMMF8|program.GEMMPacked|program.GEMMStandardWeights)
		switch scale := int32(x.args[7]); {
		case flags&program.GEMMF8 == 0 && scale != 0:
			x.refuse(RuleArgument, "scale %d of an F16 product, must be 0", scale)
		case scale < numeric.ScaleMin || scale > numeric.ScaleMax:
			x.refuse(RuleArgument, "scale %d, accepted are %d to %d", scale, numeric.ScaleMin, numeric.ScaleMax)
		}
		left := x.add(operand{name: "left", address: x.args[0], bytes: rows*32*kPanels + gemmTail}, 32)
		right := x.add(operand{name: "right", address: x.args[1], bytes: kPanels * cPanels * 512}, 32)
		out := x.add(operand{name: "out", address: x.args[2], bytes: rows * 32 * cPanels, write: true}, 32)
		x.interleaved(out)
		if flags&program.GEMMStandardWeights == 0 {
			x.interleaved(right)
		}
		x.apart(left, out)
	},
	program.KernelReduce: func(x *call) {
		n := x.multiple(5, "n", 8)
		flags := x.flags(6, program.ReduceAddA|program.ReduceAddB|program.ReduceGELU|program.ReduceF8)
		remotes := uint64(x.args[3])
		var over []int
		if x.args[0] != 0 {
			over = append(over, x.read(0, "local", f16(n)))
		}
		if remotes == 0 && x.args[0] == 0 {
			x.refuse(RuleArgument, "neither a local nor a remote partial")
		}
		if remotes > 0 {
			stride := uint64(x.args[2])
			if remotes == 1 {
				stride = 0
			} else if remotes > maxCount || stride < f16(n) {
				x.refuse(RuleArgument, "%d remotes at a distance of %d bytes, each has %d", remotes, stride, f16(n))
				return
			}
			if stride%8 != 0 {
				x.refuse(RuleAlignment, "distance of remotes is %d bytes, must be a multiple of 8", stride)
			}
			x.add(inPieces("remote", x.args[1], remotes, f16(n), stride), 8)
		}
		if flags&program.ReduceAddA != 0 {
			over = append(over, x.read(7, "a", f16(n)))
		}
		if flags&program.ReduceAddB != 0 {
			over = append(over, x.read(8, "b", f16(n)))
		}
		if flags&program.ReduceF8 != 0 {
			x.scale(9)
			x.write(4, "out", n)
		} else {
			x.write(4, "out", f16(n), over...)
		}
	},
	program.KernelAdd: func(x *call) {
		n := x.count(3, "n")
		a, b := x.read(0, "a", f16(n)), x.read(1, "b", f16(n))
		x.write(2, "out", f16(n), a, b)
	},
	program.KernelAddRows: func(x *call) {
		rows, width := x.count(3, "rows"), x.count(4, "width")
		x.aligned("width", rows, width, 2)
		in := x.read(0, "in", f16(rows*width))
		x.read(1, "row", f16(width))
		x.write(2, "out", f16(rows*width), in)
	},
	program.KernelLayerNorm: func(x *call) {
		rows, width := x.count(4, "rows"), x.count(5, "width")
		x.aligned("width", rows, width, 2)
		in := x.read(0, "in", f16(rows*width))
		x.read(1, "gamma", f16(width))
		x.read(2, "beta", f16(width))
		x.normOut(3, rows, width, x.flags(6, program.NormF8), 7, in)
	},
	program.KernelAddLayerNorm: func(x *call) {
		rows, width := x.count(6, "rows"), x.count(7, "width")
		x.aligned("width", rows, width, 2)
		a, b := x.read(0, "a", f16(rows*width)), x.read(1, "b", f16(rows*width))
		x.read(3, "gamma", f16(width))
		x.read(4, "beta", f16(width))
		x.write(2, "sum", f16(rows*width), a, b)
		x.normOut(5, rows, width, x.flags(8, program.NormF8), 9, a, b)
	},
	program.KernelGELU: func(x *call) {
		n := x.count(2, "n")
		in := x.read(0, "in", f16(n))
		x.pointwiseOut(1, n, x.flags(3, program.PointwiseF8), 4, in)
	},
	program.KernelBiasGELU: func(x *call) {
		rows, width := x.count(3, "rows"), x.count(4, "width")
		flags := x.flags(5, program.PointwiseF8)
		x.aligned("width", rows, width, 2)
		if flags&program.PointwiseF8 != 0 {
			x.aligned("width", rows, width, 1)
		}
		in := x.read(0, "in", f16(rows*width))
		x.read(1, "bias", f16(width))
		x.pointwiseOut(2, rows*width, flags, 6, in)
	},
	program.KernelSoftmax: func(x *call) {
		rows, keys, padded := x.count(3, "rows"), x.count(4, "keys"), x.multiple(5, "padded", 16)
		if keys > padded {
			x.refuse(RuleArgument, "%d keys in rows of %d", keys, padded)
		}
		in := x.read(0, "in", f16(rows*padded))
		x.write(1, "out", f16(rows*padded), in)
		x.write(2, "sums", 4*rows)
	},
	program.KernelNormalise: func(x *call) {
		rows, cols := x.count(3, "rows"), x.count(4, "cols")
		flags := x.flags(5, program.PointwiseF8|program.NormalisePanels)
		size := uint64(2)
		if flags&program.PointwiseF8 != 0 {
			size = 1
		}
		if flags&program.NormalisePanels != 0 {
			x.multiple(4, "cols", 16)
		} else {
			x.aligned("cols", rows, cols, 2)
			x.aligned("cols", rows, cols, size)
		}
		in := x.read(0, "in", f16(rows*cols))
		x.read(1, "sums", 4*rows)
		x.pointwiseOut(2, rows*cols, flags, 6, in)
	},
	program.KernelCast: func(x *call) {
		n := x.multiple(2, "n", 8)
		x.scale(3)
		x.read(0, "in", f16(n))
		x.write(1, "out", n)
	},
	program.KernelCastPanels: func(x *call) {
		rows, cols := x.count(2, "rows"), x.multiple(3, "cols", 16)
		x.scale(4)
		x.read(0, "in", f16(rows*cols))
		x.write(1, "out", panels(rows, cols, 32))
	},
	program.KernelCastLeft: func(x *call) {
		rows, cols := x.count(2, "rows"), x.count(3, "cols")
		stride := x.stride(4, "inStride", rows, cols, 2)
		x.scale(5)
		x.add(inPieces("in", x.args[0], rows, f16(cols), f16(stride)), 8)
		x.write(1, "out", panels(rows, cols, 32))
	},
	program.KernelPackLeft: func(x *call) {
		rows, cols := x.count(2, "rows"), x.count(3, "cols")
		stride := x.stride(4, "inStride", rows, cols, 2)
		x.add(inPieces("in", x.args[0], rows, f16(cols), f16(stride)), 8)
		x.write(1, "out", panels(rows, cols, 16))
	},
	program.KernelPackRight: func(x *call) {
		rows, cols := x.count(2, "rows"), x.count(3, "cols")
		if x.flags(4, program.PackFromPanels)&program.PackFromPanels != 0 {
			x.read(0, "in", panels(rows, cols, 16))
		} else {
			stride := x.stride(5, "inStride", rows, cols, 2)
			x.add(inPieces("in", x.args[0], rows, f16(cols), f16(stride)), 8)
		}
		x.write(1, "out", ceil(rows, 16)*ceil(cols, 16)*512)
	},
	program.KernelUnpack: func(x *call) {
		rows, cols := x.count(2, "rows"), x.count(3, "cols")
		stride := x.stride(4, "outStride", rows, cols, 2)
		x.read(0, "in", panels(rows, cols, 16))
		o := inPieces("out", x.args[1], rows, f16(cols), f16(stride))
		o.write = true
		x.add(o, 8)
	},
	program.KernelCopy: func(x *call) {
		n := x.multiple(2, "bytes", 8)
		x.read(0, "source", n)
		x.write(1, "destination", n)
	},
	program.KernelCopyStrided: func(x *call) {
		rows, words := x.count(2, "rows"), x.count(3, "words")
		from, to := uint64(x.args[4]), uint64(x.args[5])
		if rows == 1 {
			from, to = 0, 0
		} else if to < 4*words || from > machine.MemorySize || to > machine.MemorySize {
			x.refuse(RuleArgument, "strides %d and %d bytes for rows of %d words", from, to, words)
			return
		}
		if from%4 != 0 || to%4 != 0 {
			x.refuse(RuleAlignment, "strides %d and %d bytes must be multiples of 4", from, to)
		}
		x.add(inPieces("source", x.args[0], rows, 4*words, from), 4)
		o := inPieces("destination", x.args[1], rows, 4*words, to)
		o.write = true
		x.add(o, 4)
	},
	program.KernelFill: func(x *call) {
		x.write(0, "destination", x.multiple(1, "bytes", 8))
	},
}

// normOut adds the result of a layernorm: rows at outStride, the argument after
// the scale, padded with zeros.
func (x *call) normOut(arg int, rows, width uint64, flags uint32, scaleArg int, over ...int) {
	size := uint64(2)
	if flags&program.NormF8 != 0 {
		x.scale(scaleArg)
		size, over = 1, nil
	}
	stride := x.stride(scaleArg+1, "outStride", rows, width, size)
	x.write(arg, "out", rows*stride*size, over...)
}

// pointwiseOut adds the result of an elementwise kernel: F16, or FP8 in the same order.
func (x *call) pointwiseOut(arg int, n uint64, flags uint32, scaleArg int, over ...int) {
	if flags&program.PointwiseF8 != 0 {
		x.scale(scaleArg)
		x.write(arg, "out", n)
		return
	}
	x.write(arg, "out", f16(n), over...)
}
