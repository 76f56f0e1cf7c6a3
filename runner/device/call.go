package device

import (
	"encoding/binary"
	"math"

	"ipufarm/protocol/numeric"
	"ipufarm/protocol/program"
)

// scratch is the working memory of one goroutine.
type scratch struct {
	call     call
	floats   [3][]float32
	words    []uint32
	reads    []access
	writes   []access
	granules []uint64
}

// f32 returns n floats of scratch buffer i; their contents are undefined.
func (s *scratch) f32(i int, n uint64) []float32 {
	if uint64(cap(s.floats[i])) < n {
		s.floats[i] = make([]float32, n)
	}
	return s.floats[i][:n]
}

// run is a call whose operands are checked: what kernels work on.
type run struct {
	tile    *tile
	args    *[program.CommandArgs]uint32
	scratch *scratch
}

// n returns an argument as a count.
func (r run) n(arg int) int { return int(r.args[arg]) }

// scale returns an argument as an exponent.
func (r run) scale(arg int) int { return int(int32(r.args[arg])) }

// bytes returns n bytes at the address in an argument.
func (r run) bytes(arg, n int) []byte { return r.tile.bytes(r.args[arg], n) }

// decode reads n halves at the address in an argument, plus offset bytes, into
// scratch buffer i.
func (r run) decode(i, arg, offset, n int) []float32 {
	x := r.scratch.f32(i, uint64(n))
	numeric.DecodeF16LE(x, r.tile.bytes(r.args[arg]+uint32(offset), 2*n))
	return x
}

// values is what each kernel computes.
var values = [program.KernelCount]func(run){
	program.KernelGEMM:         gemm,
	program.KernelReduce:       reduce,
	program.KernelAdd:          add,
	program.KernelAddRows:      addRows,
	program.KernelLayerNorm:    layerNorm,
	program.KernelAddLayerNorm: addLayerNorm,
	program.KernelGELU:         geluKernel,
	program.KernelBiasGELU:     biasGELU,
	program.KernelSoftmax:      softmax,
	program.KernelNormalise:    normalise,
	program.KernelCast:         cast,
	program.KernelCastPanels:   castPanels,
	program.KernelCastLeft:     castLeft,
	program.KernelPackLeft:     packLeft,
	program.KernelPackRight:    packRight,
	program.KernelUnpack:       unpack,
	program.KernelCopy:         copyBytes,
	program.KernelCopyStrided:  copyStrided,
	program.KernelFill:         fill,
}

// call checks and executes one kernel call and returns its cycles.
func (t *tile) call(c *program.Command, s *scratch) (uint64, *broken) {
	x := &s.call
	*x = call{tile: t, kernel: c.Kernel, args: &c.Args}
	operandRules[c.Kernel](x)
	if x.broken == nil {
		x.check()
	}
	if x.broken != nil {
		return 0, x.broken
	}
	values[c.Kernel](run{t, &c.Args, s})
	return laws[c.Kernel].cycles(x), nil
}

func half(b []byte, i int) float32 {
	return numeric.F16ToF32(binary.LittleEndian.Uint16(b[2*i:]))
}

func setHalf(b []byte, i int, x float32) {
	binary.LittleEndian.PutUint16(b[2*i:], numeric.F32ToF16(x))
}

// convert turns n halves at src into FP8 codes at dst.
func convert(dst, src []byte, scale int) {
	for i := range dst {
		dst[i] = numeric.F16ToF143(binary.LittleEndian.Uint16(src[2*i:]), scale)
	}
}

// storeF8 rounds x to F16 and then to FP8, as a conversion at the end of a kernel
// does: fused kernels give the bits of separate ones.
func storeF8(x float32, scale int) byte { return numeric.F16ToF143(numeric.F32ToF16(x), scale) }

// exp returns e^x, correctly rounded for F32 but for ties in the last bits of a
// float64. It is spelled out, with every product rounded, so that all machines
// agree.
func exp(x float64) float64 {
	switch {
	case x > 700:
		return math.Inf(1)
	case x < -700:
		return 0
	case x != x:
		return x
	}
	const (
		log2e = 1.44269504088896338700
		ln2hi = 6.93147180369123816490e-01 // 32 bits: k*ln2hi is exact
		ln2lo = 1.90821492927058770002e-10
	)
	k := math.Floor(float64(x*log2e) + 0.5)
	r := x - float64(k*ln2hi) - float64(k*ln2lo) // |r| <= 0.35
	p := 1.0
	for n := 13; n > 0; n-- { // Taylor: the next term is below 1e-17
		p = 1 + float64(float64(p*r)*inverse[n])
	}
	return p * math.Float64frombits(uint64(int(k)+1023)<<52)
}

var inverse = [14]float64{1: 1, 2: 1. / 2, 3: 1. / 3, 4: 1. / 4, 5: 1. / 5, 6: 1. / 6, 7: 1. / 7, 8: 1. / 8,
	9: 1. / 9, 10: 1. / 10, 11: 1. / 11, 12: 1. / 12, 13: 1. / 13}

// gelu is the tanh form, x/2 * (1 + tanh(sqrt(2/pi)*(x + 0.044715*x^3))), rounded
// once to F32. 1 + tanh(u) is 2/(1 + exp(-2u)).
func gelu(x float32) float32 {
	const c = 1.59576912160573071176 // 2*sqrt(2/pi)
	v := float64(x)
	u := float64(c*v) * (1 + float64(float64(0.044715*v)*v))
	return float32(v / (1 + exp(-u)))
}
