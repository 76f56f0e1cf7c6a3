package machine

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"
)

const ret = 0x43A00000

// The receiver row that SDK tools produced for four 52-word messages, published
// with its decoding in the exchange instruction reference.
func TestDecodeSDKReceiverRow(t *testing.T) {
	row, err := DecodeRow([]uint32{0x64000082, 0x40A00032, 0xF6600000, 0x03014048, 0xF6600000, 0x03095000,
		0xF6600000, 0x04016000, 0xF7200000, 0x19017000, ret})
	if err != nil {
		t.Fatal(err)
	}
	want := []Control{{1, Source, 130},
		{53, Source, 192}, {53, Pointer, 0x14048},
		{105, Source, 194}, {105, Pointer, 0x15000},
		{157, Source, 256}, {157, Pointer, 0x16000},
		{209, Source, Neutral}, {209, Pointer, 0x17000}}
	if !slices.Equal(row.Controls, want) {
		t.Errorf("controls %v, want %v", row.Controls, want)
	}
	if len(row.Sends) != 0 {
		t.Errorf("directionless sendpicp sends %v", row.Sends)
	}
	if row.Horizon != 266 {
		t.Errorf("horizon %d, want 266 (52 words and 5 events after the last pointer, rounded as the SDK does)", row.Horizon)
	}
}

func TestDecodeSDKSendpicp(t *testing.T) {
	row, err := DecodeRow([]uint32{0xF54A0109, 0x19015000, ret})
	if err != nil {
		t.Fatal(err)
	}
	if want := []Send{{0, 43, 0x14021 * 4, 1, false}}; !slices.Equal(row.Sends, want) {
		t.Errorf("sends %v, want %v", row.Sends, want)
	}
	if want := []Control{{1, Source, Neutral}, {1, Pointer, 0x15000}}; !slices.Equal(row.Controls, want) {
		t.Errorf("controls %v, want %v", row.Controls, want)
	}
}

// Each form by itself, with the extreme values of its fields.
func TestDecodeForms(t *testing.T) {
	send := uint32(0x78000000 | 2<<3 | 1) // one item from word 2, direction 1
	stream := Send{0, 1, 8, 1, false}
	for _, c := range []struct {
		name  string
		words []uint32
		want  ExchangeRow
	}{
		{"delay", []uint32{0x40A00000}, ExchangeRow{Horizon: 1}},
		{"delay long", []uint32{0x40A7FFFF}, ExchangeRow{Horizon: 524288}},
		{"delaypic", []uint32{0x63F80000 | 0x3FFFF}, ExchangeRow{Horizon: 128, Controls: []Control{{128, Pointer, 0x3FFFF}}}},
		{"delaypic format", []uint32{0x60000000 | 1<<18 | 2}, ExchangeRow{Horizon: 1, Controls: []Control{{1, Format, 2}}}},
		{"delayxpic", []uint32{0x64000000 | 4095<<14 | 0x640}, ExchangeRow{Horizon: 4096, Controls: []Control{{4096, Source, 0x640}}}},
		{"delayxpic pair", []uint32{0x64000000 | 1<<13 | 5}, ExchangeRow{Horizon: 1, Controls: []Control{{1, PairSource, 5}}}},
		{"send", []uint32{0x78000000 | 63<<21 | 0x3FFFF<<3 | 3}, ExchangeRow{Horizon: 64, Sends: []Send{{0, 64, 0xFFFFC, 3, false}}}},
		{"send wide", []uint32{0x78000000 | 1<<21 | 5<<3 | 6}, ExchangeRow{Horizon: 2, Sends: []Send{{0, 2, 40, 2, true}}}},
		{"send nothing", []uint32{0x78000000 | 9<<21}, ExchangeRow{Horizon: 10}},
		{"sendoff", []uint32{send, 0x70000000 | 63<<21 | 63<<14 | 1}, ExchangeRow{Horizon: 4097, Sends: []Send{{0, 4097, 8, 1, false}}}},
		{"sendoff turns", []uint32{send, 0x70000000 | 1<<14 | 2}, ExchangeRow{Horizon: 66, Sends: []Send{stream, {1, 65, 12, 2, false}}}},
		{"sendoff after delay", []uint32{send, 0x40A00001, 0x70000001}, ExchangeRow{Horizon: 4, Sends: []Send{stream, {3, 1, 12, 1, false}}}},
		{"sendpic source", []uint32{send, 0x70100000 | 2<<21 | 7}, ExchangeRow{Horizon: 4, Sends: []Send{{0, 4, 8, 1, false}}, Controls: []Control{{2, Source, 7}}}},
		{"sendpic pair", []uint32{send, 0x70100000 | 1<<18 | 7}, ExchangeRow{Horizon: 2, Sends: []Send{{0, 2, 8, 1, false}}, Controls: []Control{{2, PairSource, 7}}}},
		{"sendpic pointer", []uint32{send, 0x70100000 | 2<<18 | 0x3FFFF}, ExchangeRow{Horizon: 2, Sends: []Send{{0, 2, 8, 1, false}}, Controls: []Control{{2, Pointer, 0x3FFFF}}}},
		{"sendpic format", []uint32{send, 0x70100000 | 3<<18 | 1}, ExchangeRow{Horizon: 2, Sends: []Send{{0, 2, 8, 1, false}}, Controls: []Control{{2, Format, 1}}}},
		{"sendpicp restarts where the stream is", []uint32{send, 0x40A00000, 0xF0000000 | 9<<3 | 1, 0},
			ExchangeRow{Horizon: 3, Sends: []Send{stream, {2, 1, 36, 1, false}}, Controls: []Control{{3, Source, 0}, {3, Pointer, 0}}}},
		{"sendpicp joins", []uint32{send, send + 1<<3, 0xF8000000 | 4<<3 | 1, 0x80000000 | 3<<18 | 1},
			ExchangeRow{Horizon: 3, Sends: []Send{{0, 3, 8, 1, false}}, Controls: []Control{{3, PairSource, 3}, {3, Format, 1}}}},
		{"base writes", []uint32{0x430080A4 | 8<<20, 0x430080A7 | 15<<20}, ExchangeRow{Horizon: 26, BaseWrites: []BaseWrite{{13, false, 8}, {26, true, 15}}}},
	} {
		got, err := DecodeRow(append(c.words, ret))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if got.Horizon != c.want.Horizon || !slices.Equal(got.Sends, c.want.Sends) ||
			!slices.Equal(got.Controls, c.want.Controls) || !slices.Equal(got.BaseWrites, c.want.BaseWrites) {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	send := uint32(0x78000000 | 1)
	long := make([]uint32, MaxHorizon/524288+1)
	for i := range long {
		long[i] = 0x40A7FFFF
	}
	for _, c := range []struct {
		name  string
		words []uint32
		index int
	}{
		{"empty", nil, 0},
		{"no return", []uint32{0x40A00000}, 1},
		{"after the return", []uint32{ret, ret}, 1},
		{"zero word", []uint32{0, ret}, 0},
		{"sync", []uint32{0x41800003, ret}, 0},
		{"delay with stray bits", []uint32{0x40A80000, ret}, 0},
		{"put of another register", []uint32{0x438080A6, ret}, 0},
		{"odd sendpicp", []uint32{0x40A00000, 0xF0000000, 0x19000000, ret}, 1},
		{"half a sendpicp", []uint32{0xF0000000}, 0},
		{"sendoff first", []uint32{0x70000001, ret}, 0},
		{"sendoff with delta", []uint32{send, 0x70000009, ret}, 1},
		{"sendoff without direction", []uint32{send, 0x70000000, ret}, 1},
		{"sendoff changes width", []uint32{send, 0x70000005, ret}, 1},
		{"sendpic first", []uint32{0x70100000, ret}, 0},
		{"sendpic after a directionless sendpicp", []uint32{0xF0000000, 0x19000000, 0x70100000, ret}, 2},
		{"sendpic source over 13 bits", []uint32{send, 0x70102000, ret}, 1},
		{"continuation over a base write", []uint32{send, 0x43F080A7, 0x70000001, ret}, 2},
		{"wide without direction", []uint32{0x78000004, ret}, 0},
		{"too long", long, MaxHorizon / 524288},
	} {
		_, err := DecodeRow(c.words)
		var e *RowError
		if !errors.As(err, &e) {
			t.Errorf("%s: error %v, want a *RowError", c.name, err)
		} else if e.Index != c.index {
			t.Errorf("%s: %v, want word %d", c.name, e, c.index)
		}
	}
}

// FuzzDecodeRow holds the decoder to what its readers rely on: order, bounds and
// one stream at a time, whatever the bytes.
func FuzzDecodeRow(f *testing.F) {
	for _, words := range [][]uint32{
		{0x64000082, 0x40A00032, 0xF6600000, 0x03014048, 0xF7200000, 0x19017000, ret},
		{0x78000001, 0x70000001, 0x70100007, 0x43F080A7, ret},
		{0xF54A0109, 0x19015000, ret},
	} {
		var b []byte
		for _, w := range words {
			b = binary.LittleEndian.AppendUint32(b, w)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		words := make([]uint32, len(b)/4)
		for i := range words {
			words[i] = binary.LittleEndian.Uint32(b[4*i:])
		}
		row, err := DecodeRow(words)
		if err != nil {
			return
		}
		if row.Horizon < 0 || row.Horizon > MaxHorizon || len(row.Sends) > len(words) || len(row.Controls) > len(words) {
			t.Fatalf("out of bounds: %+v", row)
		}
		end := int32(0)
		for _, s := range row.Sends {
			if s.Start < end || s.Items < 1 || s.Direction < 1 || s.Direction > 3 || s.Address&3 != 0 {
				t.Fatalf("bad send %+v", s)
			}
			end = s.Start + s.Items
		}
		if end > row.Horizon {
			t.Fatalf("send ends at %d after horizon %d", end, row.Horizon)
		}
		last := int32(0)
		for _, c := range row.Controls {
			if c.Event < last || c.Event < 1 || c.Event > row.Horizon {
				t.Fatalf("bad control %+v after event %d", c, last)
			}
			last = c.Event
		}
	})
}
