package machine

import "testing"

func TestPhysical(t *testing.T) {
	for _, c := range [][2]int{{0, 0}, {1, 2}, {2, 64}, {3, 66}, {44, 1408}, {46, 1409}, {47, 1411}, {92, 4}, {274, 9}, {1286, 53}, {1470, 61}, {1471, 63}} {
		if got := Physical(c[0]); got != c[1] {
			t.Errorf("Physical(%d) = %d, want %d", c[0], got, c[1])
		}
	}
	var seen [Tiles]bool
	for l := range Tiles {
		p := Physical(l)
		if p < 0 || p >= Tiles || seen[p] {
			t.Fatalf("Physical(%d) = %d is out of range or taken", l, p)
		}
		seen[p] = true
		if Logical(p) != l {
			t.Errorf("Logical(%d) = %d, want %d", p, Logical(p), l)
		}
		if Partner(p) != Physical(l^1) {
			t.Errorf("partner of logical %d is physical %d, want %d", l, Partner(p), Physical(l^1))
		}
	}
}

// The published self-check vectors, which SDK tools or SDK-built rows confirm.
func TestRouteVectors(t *testing.T) {
	// Point rows fix the source select at event 113, so the send starts at
	// 112 - T and the delay before it counts 111 - T.
	for _, c := range []struct {
		source, dest int
		delay        uint32
		direction    int
	}{
		{0, 1286, 0x40A00086, 1}, {736, 100, 0x40A0003E, 2}, {1286, 1471, 0x40A0007D, 2}, {32, 0, 0x40A0006C, 1},
	} {
		s, d := Physical(c.source), Physical(c.dest)
		if got := 0x40A00000 + uint32(111-MuxTime(s, d)); got != c.delay {
			t.Errorf("%d->%d: delay word 0x%08X, want 0x%08X", c.source, c.dest, got, c.delay)
		}
		if got := Direction(s, d); got != c.direction {
			t.Errorf("%d->%d: direction %d, want %d", c.source, c.dest, got, c.direction)
		}
	}
	// 736->100: the pointer delay of the published row is 59 events; its 52-word
	// timing is known to be one event early.
	if d := Physical(100); Row(d) != 4 || PointerLag(d)-1 != 0x61D00000>>19&0x7F+1 {
		t.Errorf("logical 100: row %d, pointer lag %d", Row(d), PointerLag(d))
	}
	// Multicast 0->{274,1286}: the smallest natural start is 23.
	if got := -min(MuxTime(0, Physical(274)), MuxTime(0, Physical(1286))); got != 23 {
		t.Errorf("multicast start %d, want 23", got)
	}
	// Paired 0->{2,3}, 64 items: S = 31, X = 1, format on 54, pointer 56, neutral
	// 65, format off 118, row end 125.
	a, b := Physical(2), Physical(3)
	early := min(MuxTime(0, a), MuxTime(0, b))
	x := 31 + early + 1
	if early != -31 || x != 1 || x+51+2*Row(a) != 54 || x+PointerLag(a)+1 != 56 || x+64 != 65 || x+51+2*Row(a)+64+7 != 125 {
		t.Errorf("paired 0->{2,3}: early mux time %d, row %d", early, Row(a))
	}
	// SDK ordinary sequence into physical tile 64: sources 2, 54, ..., pointers 56, 108, ...
	if 2+PointerLag(64) != 56 {
		t.Errorf("pointer lag of physical 64 is %d, want 54", PointerLag(64))
	}
}

func TestRouteRanges(t *testing.T) {
	minT, maxT, minLat, maxLat := 1000, -1000, 1000, -1000
	sumT, sumLat := 0, 0
	for s := range Tiles {
		for d := range Tiles {
			m, lat := MuxTime(s, d), Latency(s, d)
			minT, maxT, minLat, maxLat = min(minT, m), max(maxT, m), min(minLat, lat), max(maxLat, lat)
			sumT, sumLat = sumT+m, sumLat+lat
			if m != MuxTime(Partner(s), d) {
				t.Fatalf("mux time of %d->%d depends on the lane of the source", s, d)
			}
			if diff := m - MuxTime(s, Partner(d)); diff != 1 && diff != -1 {
				t.Fatalf("receivers %d and %d of source %d differ by %d, want 1", d, Partner(d), s, diff)
			}
			if lat != m+53+2*Row(d) {
				t.Fatalf("latency of %d->%d is %d", s, d, lat)
			}
			if dir := Direction(s, d); dir != 1 && dir != 2 {
				t.Fatalf("direction of %d->%d is %d", s, d, dir)
			}
			if x := displacement(&places[s], &places[d]); x == 0 || x < -47 || x > 47 {
				t.Fatalf("displacement of %d->%d is %d", s, d, x)
			}
		}
	}
	if minT != -78 || maxT != 112 || minLat != 19 || maxLat != 165 {
		t.Errorf("mux time %d..%d, want -78..112; latency %d..%d, want 19..165", minT, maxT, minLat, maxLat)
	}
	if mean := float64(sumLat) / (Tiles * Tiles); mean < 64.5 || mean > 65.5 {
		t.Errorf("mean latency %.2f, want about 65", mean)
	}
	if mean := float64(sumT) / (Tiles * Tiles); mean < -10 || mean > -9.8 {
		t.Errorf("mean mux time %.2f, want about -9.9", mean)
	}
}

func TestElementMask(t *testing.T) {
	if Elements != 26 {
		t.Fatalf("%d effective elements, want 13 of region 0 and 13 of region 1", Elements)
	}
	for _, c := range []struct{ address, size, want uint32 }{
		{0x4C000, 1, 1}, {0x4C000, 0x4000, 1}, {0x4FFFC, 8, 3}, {0x7FFFC, 4, 1 << 12}, {0x7FFFC, 8, 3 << 12},
		{0x80000, 0x8000, 1 << 13}, {0x87FFC, 8, 3 << 13}, {0xE7FFC, 4, 1 << 25}, {0x4C000, MemorySize, 1<<26 - 1},
	} {
		if got := ElementMask(c.address, c.size); got != c.want {
			t.Errorf("ElementMask(0x%X, %d) = 0x%X, want 0x%X", c.address, c.size, got, c.want)
		}
	}
	for a := uint32(MemoryBase); a < MemoryEnd; a += 4 {
		if ElementMask(a, 4) != 1<<Element(a) {
			t.Fatalf("mask and element of 0x%X differ", a)
		}
		if Interleaved(a) != (Element(a) >= 13) {
			t.Fatalf("interleaving of 0x%X", a)
		}
	}
}
