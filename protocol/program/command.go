package program

// The command stream.
//
// A tile's program is an array of 64-byte records at TileImage.CommandAddress,
// sixteen little-endian 32-bit words each, executed in order until End. Every
// tile of a package executes the same number of Exchange records with the same
// phase numbers: an exchange is a barrier over all tiles.
//
//	word 0   kind in bits 0-7, kernel code in bits 8-23 (Kernel records only)
//	word 1   a number for people: the phase of an exchange, the operation of a
//	         kernel call (an index into the profile plan's names); no effect
//	word 2.. arguments; unused words are zero
//
// Exchange: word 2 row address (0: the tile only joins the barrier), word 3 row
// bytes, word 4 INCOMING_BASE, word 5 OUTGOING_BASE, both in bytes, set before
// the barrier.
//
// Kernel: words 2..15 are the arguments of the kernel, in the order of its
// comment in kernels.go. Addresses are byte addresses in the tile's SRAM.
//
// End: the program is complete; the tile reports completion.
const (
	CommandBytes = 64
	CommandWords = CommandBytes / 4
	CommandArgs  = 14
)

// Kind is the kind of a command record.
type Kind uint8

const (
	End Kind = iota
	Exchange
	Call
)

// Command is one decoded record.
type Command struct {
	Kind   Kind
	Kernel Kernel // of a Call
	Label  uint32 // phase of an Exchange, operation of a Call
	Args   [CommandArgs]uint32
}

// Row, RowBytes, IncomingBase and OutgoingBase name the arguments of an
// Exchange record.
const (
	ArgRow = iota
	ArgRowBytes
	ArgIncomingBase
	ArgOutgoingBase
)
