package device

import (
	"encoding/binary"

	"ipufarm/protocol/numeric"
	"ipufarm/protocol/program"
)

// gemm multiplies panel by panel as the AMP does. For one panel of K16 (F16) or
// K32 (FP8) and one output element, products are formed in F32 in 16 lanes by
// k mod 16, lanes are added in a fixed tree (i with i+8, then +4, +2, +1), the sum
// is multiplied by 2^scale, added in F32 to the F16 partial, and rounded once to
// F16. A product of two halves, or of two FP8 codes, is exact in F32, so a fused
// multiply-add gives the same bits as a product and a sum.
//
// Operands are decoded to F32 once; right panels are turned so that the 16 columns
// of one k lie together, which makes every step of the tree an operation on 16
// columns at once.
func gemm(r run) {
	rows, kPanels, cPanels, flags := r.n(3), r.n(4), r.n(5), r.args[6]
	k := 16
	if flags&program.GEMMF8 != 0 {
		k = 32
	}
	left := r.scratch.f32(0, uint64(rows*kPanels*k))
	right := r.scratch.f32(1, uint64(kPanels*cPanels*16*k))
	leftBytes, rightBytes := r.bytes(0, rows*kPanels*32), r.bytes(1, kPanels*cPanels*512)
	if k == 16 {
		numeric.DecodeF16LE(left, leftBytes)
		for p := 0; p < len(right); p += 16 * 16 {
			for i := range 16 * 16 {
				right[p+i%16*16+i/16] = numeric.F16ToF32(binary.LittleEndian.Uint16(rightBytes[2*(p+i):]))
			}
		}
	} else {
		numeric.DecodeF143(left, leftBytes)
		for p := 0; p < len(right); p += 16 * 32 {
			for i := range 16 * 32 {
				right[p+i%32*16+i/32] = numeric.F143ToF32(rightBytes[p+i])
			}
		}
	}
	scale := numeric.Pow2(r.scale(7))
	acc := r.scratch.f32(2, uint64(rows)*16)
	for c := range cPanels {
		clear(acc)
		for p := range kPanels {
			panel(acc, left[p*rows*k:][:rows*k], right[(c*kPanels+p)*16*k:][:16*k], scale)
		}
		if flags&program.GEMMPacked == 0 {
			numeric.EncodeF16LE(r.tile.bytes(r.args[2]+uint32(c*rows*32), rows*32), acc)
			continue
		}
		for row := range rows {
			numeric.EncodeF16LE(r.tile.bytes(r.args[2]+uint32((row*cPanels+c)*32), 32), acc[16*row:][:16])
		}
	}
}

// panelPath is one implementation of panel: it adds the products of one panel to
// acc (rows x 16, each value a half) and rounds. left is rows x k, right is k x 16,
// k is 16 or 32; scale is 1 for k = 16.
type panelPath struct {
	name string
	run  func(acc, left, right []float32, scale float32)
}

// panel is the fastest path of this processor.
var panel = func() func(acc, left, right []float32, scale float32) {
	paths := panelPaths()
	return paths[len(paths)-1].run
}()

// panelGo is the definition in plain Go.
func panelGo(acc, left, right []float32, scale float32) {
	k := len(right) / 16
	var lane [16][16]float32
	for len(acc) > 0 {
		for i := range lane {
			x, w := left[i], right[16*i:][:16]
			for c, v := range w {
				lane[i][c] = x * v
			}
		}
		if k == 32 {
			for i := range lane {
				x, w := left[16+i], right[16*(16+i):][:16]
				for c, v := range w {
					lane[i][c] += float32(x * v)
				}
			}
		}
		for step := 8; step > 0; step /= 2 {
			for i := range step {
				for c := range 16 {
					lane[i][c] += lane[i+step][c]
				}
			}
		}
		for c := range 16 {
			acc[c] = numeric.RoundF16(acc[c] + float32(lane[0][c]*scale))
		}
		acc, left = acc[16:], left[k:]
	}
}
