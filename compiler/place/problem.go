package place

// Class says which memory a request may use.
type Class uint8

const (
	Standard    Class = iota // region 0 or region 1
	Interleaved              // region 1 only
)

// Request is one buffer of one tile.
type Request struct {
	Bytes int32 // payload and access tail
	Align int32 // a power of two, at least 4
	First int32 // first step it is live, inclusive
	Last  int32 // last step it is live, inclusive
	Class Class
	// Transient requests may use the host aperture; a request that is live before
	// the first step or after the last (parameters, inputs, outputs) may not.
	Transient bool
	ID        int32 // for messages: the caller's number of the buffer
}

// Range is a free interval of addresses, [Start, End).
type Range struct{ Start, End uint32 }

// Problem is the placement of one tile.
type Problem struct {
	Requests []Request
	// Separate are pairs of request indexes that must not touch a common effective
	// element at all (the whole spans of both are compared).
	Separate [][2]int32
	Free     []Range // what support code, tables and the runtime left over, ascending
}
