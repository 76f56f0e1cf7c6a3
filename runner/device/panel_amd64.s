#include "textflag.h"

// One panel of a GEMM: for every row, sixteen output columns at once. The lanes of
// the definition (k mod 16) are registers here, each with its sixteen columns, so
// that the fixed tree is plain vector additions. Fused multiply-adds are exact in
// the product, so the bits are those of panelGo.
//
// An overflow in the conversion gives an infinity instead of a NaN; no later
// addition makes it finite, and storing the result turns both into one NaN.
//
//	DI  acc    rows x 16, updated in place
//	SI  left   rows x k
//	DX  right  k x 16
//	CX  rows, at least 1

// SUM8 adds Z16..Z23 by the tree and leaves the sum in Z16; SUM8B does Z24..Z31.
#define SUM8 \
	VADDPS Z20, Z16, Z16 \
	VADDPS Z21, Z17, Z17 \
	VADDPS Z22, Z18, Z18 \
	VADDPS Z23, Z19, Z19 \
	VADDPS Z18, Z16, Z16 \
	VADDPS Z19, Z17, Z17 \
	VADDPS Z17, Z16, Z16

#define SUM8B \
	VADDPS Z28, Z24, Z24 \
	VADDPS Z29, Z25, Z25 \
	VADDPS Z30, Z26, Z26 \
	VADDPS Z31, Z27, Z27 \
	VADDPS Z26, Z24, Z24 \
	VADDPS Z27, Z25, Z25 \
	VADDPS Z25, Z24, Z24

// func panel16AVX512(acc, left, right *float32, rows int)
TEXT ·panel16AVX512(SB), NOSPLIT, $0-32
	MOVQ acc+0(FP), DI
	MOVQ left+8(FP), SI
	MOVQ right+16(FP), DX
	MOVQ rows+24(FP), CX
	VMOVUPS 0(DX), Z0
	VMOVUPS 64(DX), Z1
	VMOVUPS 128(DX), Z2
	VMOVUPS 192(DX), Z3
	VMOVUPS 256(DX), Z4
	VMOVUPS 320(DX), Z5
	VMOVUPS 384(DX), Z6
	VMOVUPS 448(DX), Z7
	VMOVUPS 512(DX), Z8
	VMOVUPS 576(DX), Z9
	VMOVUPS 640(DX), Z10
	VMOVUPS 704(DX), Z11
	VMOVUPS 768(DX), Z12
	VMOVUPS 832(DX), Z13
	VMOVUPS 896(DX), Z14
	VMOVUPS 960(DX), Z15

row16:
	VMULPS.BCST 0(SI), Z0, Z16
	VMULPS.BCST 4(SI), Z1, Z17
	VMULPS.BCST 8(SI), Z2, Z18
	VMULPS.BCST 12(SI), Z3, Z19
	VMULPS.BCST 16(SI), Z4, Z20
	VMULPS.BCST 20(SI), Z5, Z21
	VMULPS.BCST 24(SI), Z6, Z22
	VMULPS.BCST 28(SI), Z7, Z23
	VFMADD231PS.BCST 32(SI), Z8, Z16
	VFMADD231PS.BCST 36(SI), Z9, Z17
	VFMADD231PS.BCST 40(SI), Z10, Z18
	VFMADD231PS.BCST 44(SI), Z11, Z19
	VFMADD231PS.BCST 48(SI), Z12, Z20
	VFMADD231PS.BCST 52(SI), Z13, Z21
	VFMADD231PS.BCST 56(SI), Z14, Z22
	VFMADD231PS.BCST 60(SI), Z15, Z23
	SUM8
	VADDPS (DI), Z16, Z16
	VCVTPS2PH $0, Z16, Y16 // to nearest even
	VCVTPH2PS Y16, Z16
	VMOVUPS Z16, (DI)
	ADDQ $64, SI
	ADDQ $64, DI
	DECQ CX
	JNZ row16
	VZEROUPPER
	RET

// LANES forms lane j and lane j+8 of two rows (at SI and R8) and adds them into A
// and B: x[j]w[j] + x[j+16]w[j+16], then x[j+8]w[j+8] + x[j+24]w[j+24].
#define LANES(j, A, B) \
	VMOVUPS (64*j)(DX), Z0 \
	VMULPS.BCST (4*j)(SI), Z0, A \
	VMULPS.BCST (4*j)(R8), Z0, B \
	VMOVUPS (64*(j+16))(DX), Z1 \
	VFMADD231PS.BCST (4*(j+16))(SI), Z1, A \
	VFMADD231PS.BCST (4*(j+16))(R8), Z1, B \
	VMOVUPS (64*(j+8))(DX), Z2 \
	VMULPS.BCST (4*(j+8))(SI), Z2, Z4 \
	VMULPS.BCST (4*(j+8))(R8), Z2, Z5 \
	VMOVUPS (64*(j+24))(DX), Z3 \
	VFMADD231PS.BCST (4*(j+24))(SI), Z3, Z4 \
	VFMADD231PS.BCST (4*(j+24))(R8), Z3, Z5 \
	VADDPS Z4, A, A \
	VADDPS Z5, B, B

// func panel32AVX512(acc, left, right *float32, rows int, scale float32)
TEXT ·panel32AVX512(SB), NOSPLIT, $0-36
	MOVQ acc+0(FP), DI
	MOVQ left+8(FP), SI
	MOVQ right+16(FP), DX
	MOVQ rows+24(FP), CX
	VBROADCASTSS scale+32(FP), Z6

rows32:
	// Two rows at a time; the second is the first again if only one is left.
	LEAQ 128(SI), R8
	LEAQ 64(DI), R9
	CMPQ CX, $1
	CMOVQEQ SI, R8
	CMOVQEQ DI, R9
	LANES(0, Z16, Z24)
	LANES(1, Z17, Z25)
	LANES(2, Z18, Z26)
	LANES(3, Z19, Z27)
	LANES(4, Z20, Z28)
	LANES(5, Z21, Z29)
	LANES(6, Z22, Z30)
	LANES(7, Z23, Z31)
	SUM8
	SUM8B
	VMULPS Z6, Z16, Z16
	VMULPS Z6, Z24, Z24
	VADDPS (DI), Z16, Z16
	VADDPS (R9), Z24, Z24
	VCVTPS2PH $0, Z16, Y16
	VCVTPS2PH $0, Z24, Y24
	VCVTPH2PS Y16, Z16
	VCVTPH2PS Y24, Z24
	VMOVUPS Z16, (DI)
	VMOVUPS Z24, (R9)
	ADDQ $256, SI
	ADDQ $128, DI
	SUBQ $2, CX
	JG rows32
	VZEROUPPER
	RET

// PAIR16 puts lane j + lane j+8 of K16 into the columns A (0 to 7) and B (8 to 15).
#define PAIR16(j, A, B) \
	VBROADCASTSS (4*j)(SI), Y15 \
	VMULPS (64*j)(DX), Y15, A \
	VMULPS (64*j+32)(DX), Y15, B \
	VBROADCASTSS (4*(j+8))(SI), Y14 \
	VFMADD231PS (64*(j+8))(DX), Y14, A \
	VFMADD231PS (64*(j+8)+32)(DX), Y14, B

// PAIR32 is PAIR16 for K32.
#define PAIR32(j, A, B) \
	VBROADCASTSS (4*j)(SI), Y15 \
	VMULPS (64*j)(DX), Y15, A \
	VMULPS (64*j+32)(DX), Y15, B \
	VBROADCASTSS (4*(j+16))(SI), Y14 \
	VFMADD231PS (64*(j+16))(DX), Y14, A \
	VFMADD231PS (64*(j+16)+32)(DX), Y14, B \
	VBROADCASTSS (4*(j+8))(SI), Y15 \
	VMULPS (64*(j+8))(DX), Y15, Y12 \
	VMULPS (64*(j+8)+32)(DX), Y15, Y13 \
	VBROADCASTSS (4*(j+24))(SI), Y14 \
	VFMADD231PS (64*(j+24))(DX), Y14, Y12 \
	VFMADD231PS (64*(j+24)+32)(DX), Y14, Y13 \
	VADDPS Y12, A, A \
	VADDPS Y13, B, B

// ADD2 adds the columns C, D to A, B.
#define ADD2(C, D, A, B) \
	VADDPS C, A, A \
	VADDPS D, B, B

// TREE forms the sum of one row in Y0 and Y1, depth first to save registers: pairs
// 0 and 4, 2 and 6, then 1 and 5, 3 and 7.
#define TREE(PAIR) \
	PAIR(0, Y0, Y1) \
	PAIR(4, Y2, Y3) \
	ADD2(Y2, Y3, Y0, Y1) \
	PAIR(2, Y2, Y3) \
	PAIR(6, Y4, Y5) \
	ADD2(Y4, Y5, Y2, Y3) \
	ADD2(Y2, Y3, Y0, Y1) \
	PAIR(1, Y2, Y3) \
	PAIR(5, Y4, Y5) \
	ADD2(Y4, Y5, Y2, Y3) \
	PAIR(3, Y4, Y5) \
	PAIR(7, Y6, Y7) \
	ADD2(Y6, Y7, Y4, Y5) \
	ADD2(Y4, Y5, Y2, Y3) \
	ADD2(Y2, Y3, Y0, Y1)

// STORE adds the row at DI and rounds.
#define STORE \
	VADDPS (DI), Y0, Y0 \
	VADDPS 32(DI), Y1, Y1 \
	VCVTPS2PH $0, Y0, X0 \
	VCVTPS2PH $0, Y1, X1 \
	VCVTPH2PS X0, Y0 \
	VCVTPH2PS X1, Y1 \
	VMOVUPS Y0, (DI) \
	VMOVUPS Y1, 32(DI)

// func panel16AVX2(acc, left, right *float32, rows int)
TEXT ·panel16AVX2(SB), NOSPLIT, $0-32
	MOVQ acc+0(FP), DI
	MOVQ left+8(FP), SI
	MOVQ right+16(FP), DX
	MOVQ rows+24(FP), CX

row16:
	TREE(PAIR16)
	STORE
	ADDQ $64, SI
	ADDQ $64, DI
	DECQ CX
	JNZ row16
	VZEROUPPER
	RET

// func panel32AVX2(acc, left, right *float32, rows int, scale float32)
TEXT ·panel32AVX2(SB), NOSPLIT, $0-36
	MOVQ acc+0(FP), DI
	MOVQ left+8(FP), SI
	MOVQ right+16(FP), DX
	MOVQ rows+24(FP), CX
	VBROADCASTSS scale+32(FP), Y11

row32:
	TREE(PAIR32)
	VMULPS Y11, Y0, Y0
	VMULPS Y11, Y1, Y1
	STORE
	ADDQ $128, SI
	ADDQ $64, DI
	DECQ CX
	JNZ row32
	VZEROUPPER
	RET
