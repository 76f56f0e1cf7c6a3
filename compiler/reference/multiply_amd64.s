#include "textflag.h"

// func accumulateAVX(sums *[64]float32, a *float32, strideBytes int, panel *float32, inner int)
//
// Y0..Y7 are the sums of rows 0..7, Y8 a row of the panel, Y9..Y12 the products.
// R8, R9 and R10 point to rows 0, 3 and 6 of a; BX is the distance of two rows.
TEXT ·accumulateAVX(SB), NOSPLIT, $0-40
	MOVQ sums+0(FP), DI
	MOVQ a+8(FP), R8
	MOVQ strideBytes+16(FP), BX
	MOVQ panel+24(FP), SI
	MOVQ inner+32(FP), CX
	LEAQ (R8)(BX*2), R9
	ADDQ BX, R9
	LEAQ (R9)(BX*2), R10
	ADDQ BX, R10
	VMOVUPS 0(DI), Y0
	VMOVUPS 32(DI), Y1
	VMOVUPS 64(DI), Y2
	VMOVUPS 96(DI), Y3
	VMOVUPS 128(DI), Y4
	VMOVUPS 160(DI), Y5
	VMOVUPS 192(DI), Y6
	VMOVUPS 224(DI), Y7

loop:
	VMOVUPS      (SI), Y8
	VBROADCASTSS (R8), Y9
	VBROADCASTSS (R8)(BX*1), Y10
	VBROADCASTSS (R8)(BX*2), Y11
	VBROADCASTSS (R9), Y12
	VMULPS       Y8, Y9, Y9
	VMULPS       Y8, Y10, Y10
	VMULPS       Y8, Y11, Y11
	VMULPS       Y8, Y12, Y12
	VADDPS       Y9, Y0, Y0
	VADDPS       Y10, Y1, Y1
	VADDPS       Y11, Y2, Y2
	VADDPS       Y12, Y3, Y3
	VBROADCASTSS (R9)(BX*1), Y9
	VBROADCASTSS (R9)(BX*2), Y10
	VBROADCASTSS (R10), Y11
	VBROADCASTSS (R10)(BX*1), Y12
	VMULPS       Y8, Y9, Y9
	VMULPS       Y8, Y10, Y10
	VMULPS       Y8, Y11, Y11
	VMULPS       Y8, Y12, Y12
	VADDPS       Y9, Y4, Y4
	VADDPS       Y10, Y5, Y5
	VADDPS       Y11, Y6, Y6
	VADDPS       Y12, Y7, Y7
	ADDQ         $4, R8
	ADDQ         $4, R9
	ADDQ         $4, R10
	ADDQ         $32, SI
	DECQ         CX
	JNZ          loop

	VMOVUPS Y0, 0(DI)
	VMOVUPS Y1, 32(DI)
	VMOVUPS Y2, 64(DI)
	VMOVUPS Y3, 96(DI)
	VMOVUPS Y4, 128(DI)
	VMOVUPS Y5, 160(DI)
	VMOVUPS Y6, 192(DI)
	VMOVUPS Y7, 224(DI)
	VZEROUPPER
	RET
