package device

import "ipufarm/protocol/program"

// Kernels that change the order of elements (AMP operand layouts of the published
// hardware notes), and the conversions to FP8 that do so on the way.

// packLeft: row-major to panels of 16 columns.
func packLeft(r run) {
	rows, cols, stride := r.n(2), r.n(3), r.n(4)
	out := r.bytes(1, (cols+15)/16*rows*32)
	for row := range rows {
		in := r.tile.bytes(r.args[0]+uint32(2*row*stride), 2*cols)
		for c := 0; c < cols; c += 16 {
			line := out[(c/16*rows+row)*32:][:32]
			clear(line[copy(line, in[2*c:]):])
		}
	}
}

// unpack: panels of 16 columns to row-major.
func unpack(r run) {
	rows, cols, stride := r.n(2), r.n(3), r.n(4)
	in := r.bytes(0, (cols+15)/16*rows*32)
	for row := range rows {
		out := r.tile.bytes(r.args[1]+uint32(2*row*stride), 2*cols)
		for c := 0; c < cols; c += 16 {
			copy(out[2*c:], in[(c/16*rows+row)*32:][:32])
		}
	}
}

// packRight: a K x N operand to coefficient panels of K16 x C16, which hold the 16
// rows of each column together.
func packRight(r run) {
	rows, cols := r.n(2), r.n(3)
	kPanels, cPanels := (rows+15)/16, (cols+15)/16
	out := r.bytes(1, kPanels*cPanels*512)
	clear(out)
	at := func(row, col int) []byte { // of the row, from column col on
		return r.tile.bytes(r.args[0]+uint32(2*(row*r.n(5)+col)), 2*min(16, cols-col))
	}
	if r.args[4]&program.PackFromPanels != 0 {
		at = func(row, col int) []byte {
			return r.tile.bytes(r.args[0]+uint32((col/16*rows+row)*32), 2*min(16, cols-col))
		}
	}
	for c := range cPanels {
		for row := range rows {
			in := at(row, 16*c)
			panel := out[(c*kPanels+row/16)*512:]
			for i := 0; i < len(in); i += 2 {
				copy(panel[i*16+row%16*2:], in[i:i+2])
			}
		}
	}
}

// castPanels: F16 panels of 16 columns to FP8 panels of 32 columns.
func castPanels(r run) {
	rows, cols, scale := r.n(2), r.n(3), r.scale(4)
	in := r.bytes(0, 2*rows*cols)
	out := r.bytes(1, (cols+31)/32*rows*32)
	for c := 0; c < (cols+31)/32*32; c += 16 {
		for row := range rows {
			line := out[(c/32*rows+row)*32+c%32:][:16]
			if c >= cols {
				clear(line)
				continue
			}
			convert(line, in[(c/16*rows+row)*32:], scale)
		}
	}
}

// castLeft: row-major F16 to FP8 panels of 32 columns.
func castLeft(r run) {
	rows, cols, stride, scale := r.n(2), r.n(3), r.n(4), r.scale(5)
	out := r.bytes(1, (cols+31)/32*rows*32)
	for row := range rows {
		in := r.tile.bytes(r.args[0]+uint32(2*row*stride), 2*cols)
		for c := 0; c < cols; c += 32 {
			line := out[(c/32*rows+row)*32:][:32]
			n := min(32, cols-c)
			convert(line[:n], in[2*c:], scale)
			clear(line[n:])
		}
	}
}
