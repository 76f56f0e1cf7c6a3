package profile

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"ipufarm/protocol/machine"
)

var update = flag.Bool("update", false, "rewrite the files in testdata")

func compute(phase uint32, operation, kernel string, start, end uint32) CycleSample {
	return CycleSample{Step{Phase: phase, Operation: operation, Kernel: kernel, Kind: KindCompute,
		Metadata: []Metadata{{"rows", "8"}}}, start, end}
}

func exchange(phase uint32, operation string, horizon, start, end uint32) CycleSample {
	s := CycleSample{Step{Phase: phase, Operation: operation, Kind: KindExchange, ExchangeEventCycles: horizon}, start, end}
	if horizon > 0 {
		s.Step.ExchangeActivities = []ExchangeActivity{{ActivitySend, 0, horizon / 2}, {ActivityReceive, horizon / 4, horizon}}
	}
	return s
}

// example is a run of three tiles through two barriers:
//
//	cycle    100   110            200            300            400      460    500
//	tile 0   load............... | gather (row of 80)......... | sum..  | share  tail
//	tile 2         load. wait... | gather (row of 60)... | sum wait.... | share
//	tile 64  load... wait....... | leaves at once | mul wait........... | share
func example() *Profile {
	p := &Profile{SchemaVersion: SchemaVersion, ClockHz: machine.ClockHz, Tiles: []TileProfile{
		{0, []CycleSample{compute(0, "load", "copy", 100, 200), exchange(0, "gather", 80, 200, 300),
			compute(1, "sum", "reduce", 300, 400), exchange(1, "share", 40, 400, 460), compute(2, "tail", "add", 460, 500)}},
		{2, []CycleSample{compute(0, "load", "copy", 110, 150), exchange(0, "gather", 60, 150, 280),
			compute(1, "sum", "reduce", 280, 330), exchange(1, "share", 40, 330, 460)}},
		{64, []CycleSample{compute(0, "load", "copy", 100, 170), exchange(0, "gather", 0, 170, 200),
			compute(1, "mul", "gemm", 200, 250), exchange(1, "share", 20, 250, 440)}},
	}}
	for i := range p.Tiles {
		for j := range p.Tiles[i].Samples {
			p.Tiles[i].Samples[j].Step.LocalIndex = uint32(j)
		}
	}
	return p
}

func encode(t testing.TB, p *Profile) []byte {
	t.Helper()
	b, err := Encode(p)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func randomProfile(r *rand.Rand) *Profile {
	p := &Profile{SchemaVersion: 1 + r.Uint32N(SchemaVersion), ClockHz: r.Uint64()}
	text := func() string { return strings.Repeat("x", r.IntN(18)) + []string{"", "é", "\x00"}[r.IntN(3)] }
	for range r.IntN(5) {
		t := TileProfile{PhysicalTile: r.Uint32()}
		for range r.IntN(6) {
			s := CycleSample{StartCycle: r.Uint32(), EndCycle: r.Uint32(), Step: Step{
				LocalIndex: r.Uint32(), Phase: r.Uint32(), Epoch: r.Uint32(), Operation: text(),
				Kind: StepKind(r.IntN(4)), Kernel: text(), ExchangeEventCycles: r.Uint32()}}
			for range r.IntN(4) {
				s.Step.Metadata = append(s.Step.Metadata, Metadata{text(), text()})
				s.Step.ExchangeActivities = append(s.Step.ExchangeActivities, ExchangeActivity{ActivityKind(r.IntN(3)), r.Uint32(), r.Uint32()})
			}
			t.Samples = append(t.Samples, s)
		}
		p.Tiles = append(p.Tiles, t)
	}
	return p
}

func TestRandomProfilesSurviveARoundTrip(t *testing.T) {
	for seed := range uint64(200) {
		p := randomProfile(rand.New(rand.NewPCG(seed, 0)))
		raw := encode(t, p)
		packed, err := EncodeCompressed(p)
		if err != nil {
			t.Fatal(err)
		}
		if again, _ := EncodeCompressed(p); !bytes.Equal(again, packed) {
			t.Fatalf("seed %d: two compressed encodings differ", seed)
		}
		for _, b := range [][]byte{raw, packed} {
			got, err := Decode(b)
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if !reflect.DeepEqual(got, p) {
				t.Fatalf("seed %d: decoded\n%+v\nwant\n%+v", seed, got, p)
			}
		}
		var out bytes.Buffer
		if _, err := p.WriteTo(&out); err != nil || !bytes.Equal(out.Bytes(), raw) {
			t.Fatalf("seed %d: WriteTo differs from Encode (%v)", seed, err)
		}
	}
}

func TestEncodingIsStable(t *testing.T) {
	b := encode(t, example())
	golden := filepath.Join("testdata", "example.ipuprof")
	if *update {
		if err := os.WriteFile(golden, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b, want) {
		t.Errorf("the example encodes to %d bytes that differ from the %d of %s (rewrite with -update if that is intended)", len(b), len(want), golden)
	}
}

func TestTheCapnpToolReadsAndWritesProfiles(t *testing.T) {
	if _, err := exec.LookPath("capnp"); err != nil {
		t.Skip("the capnp tool (Debian package capnproto) is not installed")
	}
	const schema = "protocol/profile/profile.capnp"
	capnp := func(stdin []byte, args ...string) []byte {
		cmd := exec.Command("capnp", args...)
		cmd.Dir, cmd.Stdin = filepath.Join("..", ".."), bytes.NewReader(stdin)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("capnp %v: %v", args, err)
		}
		return out
	}
	text := capnp(encode(t, example()), "decode", schema, "Profile")
	for _, want := range []string{"clockHz = 1500000000", `operation = "gather"`, "kind = receive", "exchangeEventCycles = 80"} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("capnp decode does not print %q", want)
		}
	}
	profiles := []*Profile{example()}
	for seed := range uint64(5) {
		profiles = append(profiles, randomProfile(rand.New(rand.NewPCG(seed, 1))))
	}
	for i, p := range profiles {
		json := capnp(encode(t, p), "convert", "binary:json", schema, "Profile")
		got, err := Decode(capnp(json, "convert", "json:binary", schema, "Profile"))
		if err != nil {
			t.Fatalf("profile %d written by capnp: %v", i, err)
		}
		if !reflect.DeepEqual(got, p) {
			t.Errorf("profile %d changed on its way through capnp:\n%+v\nwant\n%+v", i, got, p)
		}
	}
}

func TestDamagedFiles(t *testing.T) {
	raw := encode(t, example())
	packed, err := Compress(raw)
	if err != nil {
		t.Fatal(err)
	}
	for n := range raw {
		if _, err := Verify(raw[:n]); err == nil || !strings.Contains(err.Error(), "profile: truncated") {
			t.Fatalf("first %d of %d bytes: %v", n, len(raw), err)
		}
	}
	for n := range packed {
		if _, err := Verify(packed[:n]); err == nil || !strings.Contains(err.Error(), "profile: ") {
			t.Fatalf("first %d of %d compressed bytes: %v", n, len(packed), err)
		}
	}
	for _, b := range [][]byte{raw, packed} {
		for i := range b {
			for bit := range 8 {
				b[i] ^= 1 << bit
				if p, err := Verify(b); err == nil {
					// Accepted damage must not break what is computed from it.
					p.Barriers()
					p.CriticalPath()
					p.ByKind()
					Diff(p, p)
				}
				b[i] ^= 1 << bit
			}
		}
	}
}

func TestCompressedClaimsAreNotTrusted(t *testing.T) {
	zeros, err := Compress(make([]byte, 64<<20))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Decode(zeros); err == nil || !strings.Contains(err.Error(), "profile: compressed: ") {
		t.Errorf("%d bytes that claim to be 64 MiB: %v", len(zeros), err)
	}
}

func TestEveryBrokenPromiseIsNamed(t *testing.T) {
	for _, c := range []struct {
		change func(p *Profile)
		want   string
	}{
		{func(p *Profile) { p.SchemaVersion = 0 }, "schema version 0"},
		{func(p *Profile) { p.SchemaVersion = 6 }, "schema version 6"},
		{func(p *Profile) { p.ClockHz = 0 }, "clock of 0 Hz"},
		{func(p *Profile) { p.Tiles[2].PhysicalTile = 1472 }, "tile 1472 does not exist"},
		{func(p *Profile) { p.Tiles[2].PhysicalTile = 2 }, "tile 2 (logical 1) follows tile 2 (logical 1)"},
		{func(p *Profile) { p.Tiles[1].Samples[1].StartCycle = 149 }, "tile 2 (logical 1): sample 1: starts at cycle 149 before the end of the one before it at 150"},
		{func(p *Profile) { p.Tiles[1].Samples[1].EndCycle = 149 }, "sample 1: ends at cycle 149"},
		{func(p *Profile) { p.Tiles[1].Samples[1].Step.Operation = "\x1b[2J" }, `operation "\x1b[2J"`},
		{func(p *Profile) { p.Tiles[1].Samples[0].Step.Metadata[0].Value = "a\nb" }, `property "rows" = "a\nb"`},
		{func(p *Profile) { p.Tiles[1].Samples[1].Step.Kind = 9 }, "unknown kind 9"},
		{func(p *Profile) { p.Tiles[1].Samples[1].Step.ExchangeActivities[0].Kind = 9 }, "exchange activity 0: unknown kind 9"},
		{func(p *Profile) { p.Tiles[1].Samples[1].Step.ExchangeActivities[1].StartCycle = 99 }, "exchange activity 1: ends at cycle 60"},
	} {
		p := example()
		c.change(p)
		if _, err := Verify(encode(t, p)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want one that contains %q", err, c.want)
		}
	}
	if _, err := Verify(encode(t, example())); err != nil {
		t.Error(err)
	}
}

func TestCropAndKinds(t *testing.T) {
	p := example()
	if start, end := p.Cropped(); start != 110 || end != 500 || p.Cycles() != 390 {
		t.Errorf("cropped %d..%d, %d cycles", start, end, p.Cycles())
	}
	kinds, tile := p.ByKind()
	if want := (Kinds{Compute: 90 + 100 + 40, Exchange: 80 + 40, Synchronization: 20 + 20}); kinds != want || tile != 0 {
		t.Errorf("critical tile %d: %+v, want %+v", tile, kinds, want)
	}
	all := p.TileKinds()
	for i, want := range []Kinds{
		kinds,
		{Compute: 40 + 50, Exchange: 60 + 40, Synchronization: 50 + 20 + 70 + 20, Idle: 40},
		{Compute: 60 + 50, Exchange: 20, Synchronization: 30 + 150 + 20, Idle: 60},
	} {
		if all[i] != want || want.Total() != 390 {
			t.Errorf("tile %d: %+v, want %+v", p.Tiles[i].PhysicalTile, all[i], want)
		}
	}
	empty := &Profile{Tiles: []TileProfile{{PhysicalTile: 1}}}
	if start, end := empty.Cropped(); start != 0 || end != 0 || empty.CriticalPath() != nil {
		t.Errorf("empty profile: cropped %d..%d", start, end)
	}
}

func TestBarriers(t *testing.T) {
	want := []Barrier{
		{Phase: 0, Operation: "gather", Tiles: 3, Active: 2, FirstArrival: 150, LastArrival: 200, LastLeave: 300, LastTile: 0,
			EntrySpread: 50, AfterArrival: 100, Horizon: 80, Overhead: 20, tile: 0, sample: 1},
		{Phase: 1, Operation: "share", Tiles: 3, Active: 3, FirstArrival: 250, LastArrival: 400, LastLeave: 460, LastTile: 0,
			EntrySpread: 150, AfterArrival: 60, Horizon: 40, Overhead: 20, tile: 0, sample: 3},
	}
	if got := example().Barriers(); !reflect.DeepEqual(got, want) {
		t.Errorf("barriers\n%+v, want\n%+v", got, want)
	}
}

// separateWaits rewrites exchanges so that waiting is a step of its own, as a
// device that samples the barrier itself records it.
func separateWaits(p *Profile) {
	for _, b := range p.Barriers() {
		for i := range p.Tiles {
			var samples []CycleSample
			for _, s := range p.Tiles[i].Samples {
				if s.Step.Kind == KindExchange && s.Step.Phase == b.Phase && s.StartCycle < b.LastArrival {
					wait := s
					wait.EndCycle = b.LastArrival
					wait.Step = Step{Phase: b.Phase, Kind: KindSynchronization}
					s.StartCycle = b.LastArrival
					samples = append(samples, wait)
				}
				samples = append(samples, s)
			}
			p.Tiles[i].Samples = samples
		}
	}
}

func TestWaitingAsAStepOfItsOwnMeansTheSame(t *testing.T) {
	p, want := example(), example()
	separateWaits(p)
	if err := p.Check(); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(p.TileKinds(), want.TileKinds()) {
		t.Errorf("kinds %+v, want %+v", p.TileKinds(), want.TileKinds())
	}
	for i, b := range p.Barriers() {
		w := want.Barriers()[i]
		w.tile, w.sample, b.tile, b.sample = 0, 0, 0, 0
		if b != w {
			t.Errorf("barrier %d: %+v, want %+v", i, b, w)
		}
	}
	for _, d := range Diff(want, p) {
		if d.Delta != 0 {
			t.Errorf("diff %+v", d)
		}
	}
}

func TestCriticalPath(t *testing.T) {
	p := example()
	// Tile 2 arrives last at the second barrier.
	p.Tiles[1].Samples[2].EndCycle, p.Tiles[1].Samples[3].StartCycle = 420, 420
	var got []string
	at, _ := p.Cropped()
	for _, s := range p.CriticalPath() {
		if s.Start != at {
			t.Errorf("a piece starts at %d, the one before it ends at %d", s.Start, at)
		}
		at = s.End
		got = append(got, fmt.Sprintf("%d:%s:%d..%d", s.Tile, s.Step.Operation, s.Start, s.End))
	}
	want := "0:load:110..200 2:gather:200..280 2:sum:280..420 0:share:420..460 0:tail:460..500"
	if strings.Join(got, " ") != want {
		t.Errorf("path %v, want %s", got, want)
	}
}

func TestQuery(t *testing.T) {
	rows, err := example().Query(Query{GroupBy: "operation", Phase: -1, Tile: -1})
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]QueryRow{}
	total := uint64(0)
	for _, r := range rows {
		byName[r.Group] = r
		total += r.TotalCycles
		if r.ByKind.Total() != r.TotalCycles {
			t.Errorf("%s: kinds %+v do not sum to %d", r.Group, r.ByKind, r.TotalCycles)
		}
	}
	if want := uint64(3*390 - 40 - 60); total != want { // two tiles end early
		t.Errorf("total %d, want %d", total, want)
	}
	g := byName["gather"]
	if g.Count != 3 || g.Tiles != 3 || g.TotalCycles != 260 || g.MaxCycles != 130 || g.MaxOnTile != 130 || g.SlowestTile != 2 ||
		g.ByKind != (Kinds{Exchange: 140, Synchronization: 120}) {
		t.Errorf("gather: %+v", g)
	}
	if l := byName["load"]; l.TotalCycles != 90+40+60 {
		t.Errorf("load, cropped: %+v", l)
	}

	for _, c := range []struct {
		q    Query
		want string
	}{
		{Query{GroupBy: "kernel", Kind: "compute", Phase: -1, Tile: -1, Top: 2}, "copy:190 reduce:150"},
		{Query{GroupBy: "phase", Kind: "exchange", Phase: -1, Tile: -1}, "phase 1:380 phase 0:260"},
		{Query{GroupBy: "tile", Kernel: "copy", Phase: -1, Tile: -1}, "tile 0 (logical 0):90 tile 64 (logical 2):60 tile 2 (logical 1):40"},
		{Query{GroupBy: "operation", Operation: "a", Phase: -1, Tile: 2}, "gather:130 share:130 load:40"},
		{Query{GroupBy: "kind", Phase: 1, Tile: -1}, "exchange:380 compute:200"},
		{Query{GroupBy: "kernel", Kernel: "none", Phase: -1, Tile: -1}, ""},
	} {
		rows, err := example().Query(c.q)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range rows {
			got = append(got, fmt.Sprintf("%s:%d", r.Group, r.TotalCycles))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v: %v, want %s", c.q, got, c.want)
		}
	}
	for _, q := range []Query{{GroupBy: "colour"}, {GroupBy: "kernel", Kind: "sleep"}, {GroupBy: "kernel", Top: -1}} {
		if _, err := example().Query(q); err == nil {
			t.Errorf("%+v: no error", q)
		}
	}
}

func TestDiffSumsToTheDifference(t *testing.T) {
	a, b := example(), example()
	// The sum on tile 0 takes 25 cycles more and everything after it shifts.
	s := b.Tiles[0].Samples
	s[2].EndCycle += 25
	s[3].StartCycle, s[3].EndCycle = s[3].StartCycle+25, s[3].EndCycle+25
	s[4].StartCycle, s[4].EndCycle = s[4].StartCycle+25, s[4].EndCycle+25
	b.Tiles[1].Samples[3].EndCycle += 25
	b.Tiles[2].Samples[3].EndCycle += 25
	rows := Diff(a, b)
	sum := int64(0)
	for _, r := range rows {
		sum += r.Delta
	}
	if sum != int64(b.Cycles())-int64(a.Cycles()) || sum != 25 {
		t.Errorf("deltas sum to %d, the runs differ by %d", sum, int64(b.Cycles())-int64(a.Cycles()))
	}
	if rows[0].Operation != "sum" || rows[0].Delta != 25 || rows[0].B.Compute != 125 {
		t.Errorf("first row %+v", rows[0])
	}
}

// fullSize has the dimensions of a full-size run: 1,472 tiles, 60 barriers with
// one or two kernel calls before each.
func fullSize() *Profile {
	r := rand.New(rand.NewPCG(1, 2))
	p := &Profile{SchemaVersion: SchemaVersion, ClockHz: machine.ClockHz, Tiles: make([]TileProfile, machine.Tiles)}
	now := make([]uint32, machine.Tiles)
	for i := range p.Tiles {
		p.Tiles[i].PhysicalTile = uint32(i)
		now[i] = r.Uint32N(50)
	}
	kernels := []string{"gemm", "reduce", "cast-panels", "pack-left", "layernorm", "softmax"}
	for phase := range uint32(60) {
		operation := fmt.Sprintf("encoder/block0/operation %d", phase/3)
		last := uint32(0)
		for i := range p.Tiles {
			t := &p.Tiles[i]
			for k := range 1 + phase%2 {
				kernel := kernels[(phase+k)%uint32(len(kernels))]
				cycles := 400 + r.Uint32N(3000) + 12000*(phase%5/4)
				s := compute(phase, operation, kernel, now[i], now[i]+cycles)
				s.Step.Metadata = []Metadata{{"rows", fmt.Sprint(80 + i%4)}, {"inner", "128"}, {"columns", "64"}}
				t.Samples = append(t.Samples, s)
				now[i] += cycles
			}
			last = max(last, now[i])
		}
		for i := range p.Tiles {
			t := &p.Tiles[i]
			horizon := 900 + r.Uint32N(2500)
			s := exchange(phase, operation, horizon, now[i], last+240+horizon)
			if i%7 == 3 {
				s = exchange(phase, operation, 0, now[i], last)
			}
			t.Samples = append(t.Samples, s)
			now[i] = s.EndCycle
		}
	}
	for i := range p.Tiles {
		for j := range p.Tiles[i].Samples {
			p.Tiles[i].Samples[j].Step.LocalIndex = uint32(j)
		}
	}
	return p
}

func TestFullSizeFitsItsLimits(t *testing.T) {
	p := fullSize()
	if err := p.Check(); err != nil {
		t.Fatal(err)
	}
	raw := encode(t, p)
	packed, err := Compress(raw)
	if err != nil {
		t.Fatal(err)
	}
	if len(raw) > 120<<20 || len(packed) > 25<<20 {
		t.Errorf("%d bytes, %d compressed; limits are 120 MB and 25 MB", len(raw), len(packed))
	}
	t.Logf("%d bytes, %d compressed", len(raw), len(packed))
}

func FuzzDecode(f *testing.F) {
	f.Add(encode(f, example()))
	packed, _ := Compress(encode(f, example()))
	f.Add(packed)
	f.Add([]byte{})
	for seed := range uint64(3) {
		f.Add(encode(f, randomProfile(rand.New(rand.NewPCG(seed, 3)))))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Decode(b)
		if err != nil {
			return
		}
		again, err := Decode(encode(t, p))
		if err != nil || !reflect.DeepEqual(again, p) {
			t.Fatalf("decode, encode, decode changed the profile (%v)", err)
		}
		if p.Check() != nil {
			return
		}
		total := uint64(0)
		for _, s := range p.CriticalPath() {
			total += uint64(s.End - s.Start)
		}
		if total != uint64(p.Cycles()) {
			t.Fatalf("the critical path has %d cycles, the run %d", total, p.Cycles())
		}
		if _, err := p.Query(Query{GroupBy: "operation", Phase: -1, Tile: -1}); err != nil {
			t.Fatal(err)
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	p := fullSize()
	for b.Loop() {
		b.SetBytes(int64(len(encode(b, p))))
	}
}

func BenchmarkCompress(b *testing.B) {
	raw := encode(b, fullSize())
	b.SetBytes(int64(len(raw)))
	for b.Loop() {
		if _, err := Compress(raw); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeCompressed(b *testing.B) {
	packed, err := EncodeCompressed(fullSize())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decode(packed); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkQuery(b *testing.B) {
	p := fullSize()
	for b.Loop() {
		if _, err := p.Query(Query{GroupBy: "operation", Phase: -1, Tile: -1}); err != nil {
			b.Fatal(err)
		}
	}
}
