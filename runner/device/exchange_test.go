package device_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"ipufarm/protocol/machine"
	"ipufarm/protocol/program"
	"ipufarm/runner/device"
)

// pattern is n words that differ from each other.
func pattern(seed uint64, words int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, 4*words)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// transfer is a job in which s sends n words to d in phase 9.
func transfer(s, d, n int) *job {
	j := newJob()
	const start = 130
	j.tile(s).put(standard, pattern(1, n)).exchange(9, new(row).send(start, n, standard, uint32(machine.Direction(s, d))).end(start+n)...)
	j.tile(d).exchange(9, receiver(s, d, start, n, inter)...)
	j.out(d, inter, uint32(4*n))
	return j
}

// TestPublishedPointRow replays a row that the SDK produced: logical 0 to 1286,
// 3 words, delay word 0x40A00086 on the sender, source selected at event 113.
func TestPublishedPointRow(t *testing.T) {
	s, d := machine.Physical(0), machine.Physical(1286)
	j := newJob()
	j.tile(s).put(standard, pattern(1, 3)).exchange(0, 0x40A00086, 0x78000000|2<<21|standard/4<<3|1, 0x43A00000)
	j.tile(d).exchange(0, 0x64000000|112<<14|uint32(s), 0x64000000|2<<14|0x640, 0x60000000|48<<19|inter/4, 0x40A00007, 0x43A00000)
	j.out(d, inter, 12)
	r := j.mustRun(t)
	if !bytes.Equal(r.Outputs, pattern(1, 3)) {
		t.Errorf("received % x", r.Outputs)
	}
	if want := uint64(120 + 173 + 120); r.Cycles != want {
		t.Errorf("%d cycles, want %d", r.Cycles, want)
	}
}

// TestPublishedSequence replays the published receiver row for four messages of 52
// words from tiles 130, 192, 194 and 256 to a tile of row 0. Only the last address
// is another one: 0x5C000 holds code here.
func TestPublishedSequence(t *testing.T) {
	const d = 0
	j := newJob()
	j.tile(d).exchange(0, 0x64000082, 0x40A00032, 0xF6600000, 0x03014048, 0xF6600000, 0x03095000, 0xF6600000, 0x04016000, 0xF7200000, 0x1901C000, 0x43A00000)
	var want []byte
	for k, s := range []int{130, 192, 194, 256} {
		event := 1 + 52*k - machine.MuxTime(s, d) - 1 // selected at event 1 + 52k
		if event < 0 {
			t.Fatalf("tile %d would send at event %d", s, event)
		}
		j.tile(s).put(standard, pattern(uint64(s), 52)).
			exchange(0, new(row).send(event, 52, standard, uint32(machine.Direction(s, d))).end(event+52)...)
		want = append(want, pattern(uint64(s), 52)...)
		j.out(d, []uint32{0x14048 * 4, 0x15000 * 4, 0x16000 * 4, standard2}[k], 52*4)
	}
	r := j.mustRun(t)
	if !bytes.Equal(r.Outputs, want) {
		t.Error("wrong words")
	}
	if r.Phases[0].Horizon != 266 || r.Phases[0].Words != 208 || r.Phases[0].ActiveTiles != 5 {
		t.Errorf("phase %+v", r.Phases[0])
	}
}

// TestGrowth is the published observation that a phase grows by one cycle a word.
func TestGrowth(t *testing.T) {
	base := transfer(0, 53, 64).mustRun(t).Cycles
	for _, n := range []int{1, 65, 1024, 4148} {
		r := transfer(0, 53, n).mustRun(t)
		if r.Cycles != base+uint64(n)-64 {
			t.Errorf("%d words take %d cycles, 64 take %d", n, r.Cycles, base)
		}
		if !bytes.Equal(r.Outputs, pattern(1, n)) {
			t.Errorf("%d words: wrong data", n)
		}
	}
}

func TestEveryRouteDelivers(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 60 {
		s, d := r.IntN(machine.Tiles), r.IntN(machine.Tiles)
		if s == d {
			continue
		}
		n := 1 + r.IntN(40)
		t.Run(fmt.Sprintf("%d-%d-%d", s, d, n), func(t *testing.T) {
			if got := transfer(s, d, n).mustRun(t); !bytes.Equal(got.Outputs, pattern(1, n)) {
				t.Error("wrong words")
			}
		})
	}
}

func TestBarrier(t *testing.T) {
	j := transfer(0, 53, 10)
	// A third tile comes late, a fourth takes no part.
	late := j.tile(7)
	late.call(program.KernelFill, inter, 8000)
	late.exchange(9)
	j.tile(8).exchange(9).call(program.KernelFill, inter, 48)
	r := j.mustRun(t)
	const fill = 240 + 6*167
	horizon := uint64(r.Phases[0].Horizon)
	if want := fill + 120 + horizon + 120; r.Cycles != want {
		t.Errorf("%d cycles, want %d", r.Cycles, want)
	}
	if want := (device.Kinds{Exchange: horizon, Synchronization: fill + 240}); r.ByKind != want || r.CriticalTile != 53 {
		t.Errorf("tile %d spent %+v, want %+v", r.CriticalTile, r.ByKind, want)
	}
	if p := r.Phases[0]; p.FirstArrival != 0 || p.LastArrival != fill || p.Label != 9 {
		t.Errorf("phase %+v", p)
	}
}
