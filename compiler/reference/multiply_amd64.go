package reference

import "golang.org/x/sys/cpu"

// fastRows is how many rows accumulateAVX takes at a time.
const fastRows = 8

// accumulateAVX is accumulate for fastRows rows. It multiplies and adds in
// separate instructions, never fused, so that each of the eight columns sees the
// same operations in the same order as in Go.
//
//go:noescape
func accumulateAVX(sums *[fastRows * panelColumns]float32, a *float32, strideBytes int, panel *float32, inner int)

// fast accumulates the first rows and returns how many it did.
func fast(sums, a []float32, stride int, panel []float32) int {
	inner := len(panel) / panelColumns
	rows := len(sums) / panelColumns / fastRows * fastRows
	if !cpu.X86.HasAVX || inner == 0 {
		return 0
	}
	for r := 0; r < rows; r += fastRows {
		s := (*[fastRows * panelColumns]float32)(sums[r*panelColumns:])
		block := a[r*stride : (r+fastRows-1)*stride+inner] // what the rows span
		accumulateAVX(s, &block[0], 4*stride, &panel[0], inner)
	}
	return rows
}
