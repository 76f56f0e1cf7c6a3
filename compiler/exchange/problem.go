package exchange

// Receiver is one destination of a transfer: a logical tile and a byte address
// in its SRAM, a multiple of 4.
type Receiver struct {
	Tile    int32
	Address uint32
}

// Transfer moves Words 32-bit words from one tile to one or more others. Its
// receivers are Problem.Receivers[First : First+Count].
type Transfer struct {
	Source  int32  // logical tile
	Address uint32 // byte address on the source, a multiple of 4
	Words   int32  // 1..4,148
	First   int32
	Count   int32
}

// Problem is one exchange phase: transfers between logical tiles 0..Tiles-1
// that may run in any order and at the same time. Everything is in flat arrays,
// because a large phase has more than a million transfers.
type Problem struct {
	Tiles     int
	Transfers []Transfer
	Receivers []Receiver
}
