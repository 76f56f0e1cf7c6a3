package device

import "golang.org/x/sys/cpu"

//go:noescape
func panel16AVX512(acc, left, right *float32, rows int)

//go:noescape
func panel32AVX512(acc, left, right *float32, rows int, scale float32)

//go:noescape
func panel16AVX2(acc, left, right *float32, rows int)

//go:noescape
func panel32AVX2(acc, left, right *float32, rows int, scale float32)

// panelPaths are the implementations that this processor can run, the fastest
// last. All give the same bits; acc may hold infinities where panelGo has NaN.
func panelPaths() []panelPath {
	paths := []panelPath{{"go", panelGo}}
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA && cpu.X86.HasF16C {
		paths = append(paths, panelPath{"avx2", func(acc, left, right []float32, scale float32) {
			acc, left = panelSlices(acc, left, right)
			if len(right) == 16*16 {
				panel16AVX2(&acc[0], &left[0], &right[0], len(acc)/16)
				return
			}
			panel32AVX2(&acc[0], &left[0], &right[0], len(acc)/16, scale)
		}})
	}
	if cpu.X86.HasAVX512F {
		paths = append(paths, panelPath{"avx512", func(acc, left, right []float32, scale float32) {
			acc, left = panelSlices(acc, left, right)
			if len(right) == 16*16 {
				panel16AVX512(&acc[0], &left[0], &right[0], len(acc)/16)
				return
			}
			panel32AVX512(&acc[0], &left[0], &right[0], len(acc)/16, scale)
		}})
	}
	return paths
}

// panelSlices checks the lengths that the assembly relies on.
func panelSlices(acc, left, right []float32) (a, l []float32) {
	rows := len(acc) / 16
	if k := len(right) / 16; rows == 0 || k != 16 && k != 32 || len(right)%16 != 0 {
		panic("device: panel of a wrong shape")
	}
	return acc[:16*rows], left[:rows*len(right)/16]
}
