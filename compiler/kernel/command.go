package kernel

import (
	"fmt"
	"math"

	"ipufarm/protocol/program"
)

// FromCommand returns the geometry of a kernel call, and an error if the record
// is no call or asks for what the kernel does not accept.
func FromCommand(c *program.Command) (Geometry, error) {
	if c.Kind != program.Call {
		return Geometry{}, fmt.Errorf("kernel: record of kind %d is no kernel call", c.Kind)
	}
	g := geometryOf(c)
	return g, Check(c.Kernel, g)
}

// CommandCycles returns the modelled cycles of a command record that the compiler
// made: what the device charges for it. Records that are no kernel call cost 0.
// Addresses do not matter, except that a reduction whose local operand is 0 has
// one partial less.
func CommandCycles(c *program.Command) int32 {
	if c.Kind != program.Call {
		return 0
	}
	return int32(min(Cycles(c.Kernel, geometryOf(c)), math.MaxInt32))
}

// geometryOf reads the lengths and flags from the arguments of a call, in the
// order that the kernel's comment in protocol/program gives them.
func geometryOf(c *program.Command) Geometry {
	n := func(arg int) int { return int(c.Args[arg]) }
	flag := func(arg int, bit uint32) bool { return c.Args[arg]&bit != 0 }
	switch c.Kernel {
	case program.KernelGEMM:
		g := Geometry{
			Rows: n(3), Cols: 16 * n(5),
			Packed: flag(6, program.GEMMPacked), StandardWeights: flag(6, program.GEMMStandardWeights),
		}
		if flag(6, program.GEMMF8) {
			g.Precision = F8
		}
		g.Inner = n(4) * g.Precision.Group()
		return g
	case program.KernelReduce:
		g := Geometry{
			Partials: n(3), Elements: n(5),
			AddA: flag(6, program.ReduceAddA), AddB: flag(6, program.ReduceAddB),
			GELU: flag(6, program.ReduceGELU), F8Out: flag(6, program.ReduceF8),
		}
		if n(0) != 0 {
			g.Partials++
		}
		return g
	case program.KernelAdd:
		return Geometry{Elements: n(3)}
	case program.KernelAddRows:
		return Geometry{Rows: n(3), Cols: n(4)}
	case program.KernelLayerNorm:
		return Geometry{Rows: n(4), Cols: n(5), F8Out: flag(6, program.NormF8)}
	case program.KernelAddLayerNorm:
		return Geometry{Rows: n(6), Cols: n(7), F8Out: flag(8, program.NormF8)}
	case program.KernelGELU:
		return Geometry{Elements: n(2), F8Out: flag(3, program.PointwiseF8)}
	case program.KernelBiasGELU:
		return Geometry{Rows: n(3), Cols: n(4), F8Out: flag(5, program.PointwiseF8)}
	case program.KernelSoftmax:
		return Geometry{Rows: n(3), Keys: n(4), Padded: n(5)}
	case program.KernelNormalise:
		return Geometry{Rows: n(3), Cols: n(4), F8Out: flag(5, program.PointwiseF8), Panels: flag(5, program.NormalisePanels)}
	case program.KernelCast:
		return Geometry{Elements: n(2)}
	case program.KernelCastPanels, program.KernelCastLeft, program.KernelPackLeft, program.KernelUnpack:
		return Geometry{Rows: n(2), Cols: n(3)}
	case program.KernelPackRight:
		return Geometry{Rows: n(2), Cols: n(3), Panels: flag(4, program.PackFromPanels)}
	case program.KernelCopy:
		return Geometry{Bytes: n(2)}
	case program.KernelCopyStrided:
		return Geometry{Rows: n(2), Words: n(3)}
	case program.KernelFill:
		return Geometry{Bytes: n(1)}
	}
	return Geometry{}
}
