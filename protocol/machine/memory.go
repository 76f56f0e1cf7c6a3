package machine

// The SRAM map of one tile, in byte addresses (SDK target queries; loader limit
// and aperture observed on a C600).
const (
	MemoryBase = 0x4C000 // first byte of tile memory
	MemorySize = 624 << 10
	MemoryEnd  = MemoryBase + MemorySize // 0xE8000

	// Region 0 is the only memory that code can be fetched from; 64-bit loads.
	Region0End = 0x80000
	// Region 1 is two-way interleaved and also serves 128-bit loads.
	Region1Base = 0x80000

	// LoadEnd is the first address that the secondary loader cannot fill.
	LoadEnd = 0xE7BB0

	EntryPoint = 0x4C010 // image load base; the entry stub lives here

	// The host exchange aperture: transients only, never resident data.
	ApertureBase = 0x50000
	ApertureEnd  = 0x58000

	// RuntimeState holds the completion word, cycle counters and stacks.
	RuntimeState    = 0x58000
	RuntimeStateEnd = 0x586E0

	// DataBase is the first address that data may use.
	DataBase = RuntimeStateEnd

	// SupportBase starts the code and tables that a package adds. The first
	// 32 KiB are taken by the runtime and the kernels (assumed, until kernels
	// are real tile code); exchange tables start at the next element, TableBase.
	SupportBase = 0x5C000
	SupportSize = 32 << 10
	TableBase   = SupportBase + SupportSize // 0x64000

	Element0Size = 16 << 10 // effective element of region 0
	Element1Size = 32 << 10 // effective element of region 1: an interleaved pair

	// FetchGuard is how far past its end running code is touched by look-ahead.
	FetchGuard = 64

	// MaxWords is the largest transfer verified on a C600, in 32-bit words
	// (in 64-bit items when paired).
	MaxWords = 4148
)

// Element returns the number of the effective SRAM element that holds an
// address of tile memory: 0..12 in region 0, 13..25 in region 1. Two accesses
// that the hardware cannot serve together clash when their elements are equal.
func Element(address uint32) int {
	if address < Region1Base {
		return int(address-MemoryBase) / Element0Size
	}
	return (Region0End-MemoryBase)/Element0Size + int(address-Region1Base)/Element1Size
}

// Elements is the number of effective elements of a tile.
const Elements = (Region0End-MemoryBase)/Element0Size + (MemoryEnd-Region1Base)/Element1Size

// ElementMask returns the set of effective elements, one bit each, that the
// bytes [address, address+size) touch. Size must be positive and the range must
// lie in tile memory.
func ElementMask(address, size uint32) uint32 {
	lo, hi := Element(address), Element(address+size-1)
	return (uint32(1)<<(hi+1) - 1) &^ (uint32(1)<<lo - 1)
}

// Interleaved reports whether an address lies in region 1.
func Interleaved(address uint32) bool { return address >= Region1Base }
