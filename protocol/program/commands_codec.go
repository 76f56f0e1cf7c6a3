package program

import (
	"encoding/binary"
	"fmt"
)

// kernelInfo is what a record of a kernel looks like.
type kernelInfo struct {
	name string
	args int // number of words it uses after word 1
}

var kernels = [KernelCount]kernelInfo{
	KernelNone:         {"none", 0},
	KernelGEMM:         {"gemm", 8},
	KernelReduce:       {"reduce", 10},
	KernelAdd:          {"add", 4},
	KernelAddRows:      {"add-rows", 5},
	KernelLayerNorm:    {"layernorm", 9},
	KernelAddLayerNorm: {"add-layernorm", 11},
	KernelGELU:         {"gelu", 5},
	KernelBiasGELU:     {"bias-gelu", 7},
	KernelSoftmax:      {"softmax", 7},
	KernelNormalise:    {"normalise", 7},
	KernelCast:         {"cast", 4},
	KernelCastPanels:   {"cast-panels", 5},
	KernelCastLeft:     {"cast-left", 6},
	KernelPackLeft:     {"pack-left", 5},
	KernelPackRight:    {"pack-right", 6},
	KernelUnpack:       {"unpack", 5},
	KernelCopy:         {"copy", 3},
	KernelCopyStrided:  {"copy-strided", 6},
	KernelFill:         {"fill", 2},
}

// String names a kernel for people.
func (k Kernel) String() string {
	if k >= KernelCount {
		return fmt.Sprintf("kernel %d", uint16(k))
	}
	return kernels[k].name
}

// Args is the number of arguments of a kernel, 0 for one that does not exist.
func (k Kernel) Args() int {
	if k >= KernelCount {
		return 0
	}
	return kernels[k].args
}

func (k Kind) String() string {
	switch k {
	case End:
		return "end"
	case Exchange:
		return "exchange"
	case Call:
		return "call"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// EncodeCommand writes the record of c to the first CommandBytes bytes of dst,
// which must be that long.
func EncodeCommand(dst []byte, c Command) {
	dst = dst[:CommandBytes]
	binary.LittleEndian.PutUint32(dst, uint32(c.Kind)|uint32(c.Kernel)<<8)
	binary.LittleEndian.PutUint32(dst[4:], c.Label)
	for i, a := range c.Args {
		binary.LittleEndian.PutUint32(dst[8+4*i:], a)
	}
}

// DecodeCommand reads the record in the first CommandBytes bytes of src. It
// accepts exactly what EncodeCommand writes for a known kind and kernel with
// zeros in the words that they do not use.
func DecodeCommand(src []byte) (Command, error) {
	if len(src) < CommandBytes {
		return Command{}, fmt.Errorf("command record of %d bytes, need %d", len(src), CommandBytes)
	}
	word := binary.LittleEndian.Uint32(src)
	c := Command{
		Kind:   Kind(word),
		Kernel: Kernel(word >> 8),
		Label:  binary.LittleEndian.Uint32(src[4:]),
	}
	for i := range c.Args {
		c.Args[i] = binary.LittleEndian.Uint32(src[8+4*i:])
	}
	used := 0
	switch {
	case word>>24 != 0:
		return Command{}, fmt.Errorf("command word 0x%08X: bits 24-31 are not zero", word)
	case c.Kind > Call:
		return Command{}, fmt.Errorf("command word 0x%08X: unknown kind %d, known are 0 to %d", word, c.Kind, Call)
	case c.Kind != Call && c.Kernel != KernelNone:
		return Command{}, fmt.Errorf("command word 0x%08X: %v record with a kernel", word, c.Kind)
	case c.Kind == Exchange:
		used = ArgOutgoingBase + 1
	case c.Kind == Call:
		if c.Kernel == KernelNone || c.Kernel >= KernelCount {
			return Command{}, fmt.Errorf("command word 0x%08X: unknown kernel %d, known are 1 to %d", word, uint16(c.Kernel), KernelCount-1)
		}
		used = c.Kernel.Args()
	}
	for i, a := range c.Args[used:] {
		if a != 0 {
			return Command{}, fmt.Errorf("%v record: unused word %d is 0x%08X, want 0", c.name(), 2+used+i, a)
		}
	}
	return c, nil
}

// name is the kind, or the kernel of a call.
func (c Command) name() string {
	if c.Kind == Call {
		return c.Kernel.String()
	}
	return c.Kind.String()
}
