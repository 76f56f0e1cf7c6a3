package program

import (
	"bytes"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"ipufarm/protocol/profile"
)

var update = flag.Bool("update", false, "rewrite the files in testdata")

// randomPackage fills every field with values that need not make sense together.
func randomPackage(r *rand.Rand) *Package {
	text := func() string {
		return strings.Repeat(string(rune('a'+r.IntN(26))), r.IntN(20)) + []string{"", "é", "\x00", "/"}[r.IntN(4)]
	}
	words := func() []uint32 {
		var w []uint32
		for range r.IntN(5) {
			w = append(w, r.Uint32())
		}
		return w
	}
	hostSlices := func() (s []HostSlice) {
		for range r.IntN(4) {
			s = append(s, HostSlice{r.Uint32(), r.Uint64(), r.Uint64(), r.Uint64()})
		}
		return s
	}
	bindings := func() (b []Binding) {
		for range r.IntN(4) {
			one := Binding{Name: text(), DType: text(), Shape: words()}
			for range r.IntN(4) {
				one.Slices = append(one.Slices, RegionSlice{r.Uint32(), r.Uint32(), r.Uint64(), r.Uint64()})
			}
			b = append(b, one)
		}
		return b
	}
	p := &Package{
		SchemaVersion: SchemaVersion, CompilerVersion: text(), Target: Target,
		TileMemoryBase: r.Uint32(), TileMemorySize: r.Uint32(),
		Inputs: bindings(), Outputs: bindings(), Weights: bindings(),
		HostExchange: HostExchange{StartupMark: r.Uint32(), CommandPage: r.Uint32(), CommandOffset: r.Uint64(), AttachOrder: words()},
	}
	for range r.IntN(6) {
		t := TileImage{PhysicalTile: r.Uint32(), EntryPoint: r.Uint32(), CommandAddress: r.Uint32(), DiagnosticAddress: r.Uint32()}
		for range r.IntN(4) {
			s := Segment{Address: r.Uint32(), MemorySize: r.Uint32(), Flags: r.Uint32()}
			for range r.IntN(40) {
				s.Data = append(s.Data, byte(r.Uint32()))
			}
			t.Segments = append(t.Segments, s)
		}
		p.Tiles = append(p.Tiles, t)
	}
	for range r.IntN(3) {
		p.HostExchange.Pages = append(p.HostExchange.Pages, HostPage{r.Uint32(), r.Uint64()})
	}
	for range r.IntN(3) {
		p.HostExchange.Calls = append(p.HostExchange.Calls, HostCall{text(), r.Uint32(), r.Uint32(), hostSlices(), hostSlices(), r.Uint32N(3), words(), words()})
	}
	for range r.IntN(3) {
		p.EntryPoints = append(p.EntryPoints, EntryPoint{text(), r.Uint32(), r.Uint32()})
		p.DeviceConfigWrites = append(p.DeviceConfigWrites, DeviceConfigWrite{r.Uint32(), r.Uint32()})
		p.DebugSymbols = append(p.DebugSymbols, DebugSymbol{text(), r.Uint32()})
		p.DebugRegions = append(p.DebugRegions, DebugRegion{r.Uint32(), r.Uint32(), r.Uint32(), text()})
	}
	for range r.IntN(4) {
		plan := TileProfilePlan{PhysicalTile: r.Uint32()}
		for range r.IntN(5) {
			s := profile.Step{LocalIndex: r.Uint32(), Phase: r.Uint32(), Epoch: r.Uint32(), Operation: text(),
				Kind: profile.StepKind(r.IntN(4)), Kernel: text(), ExchangeEventCycles: r.Uint32()}
			for range r.IntN(3) {
				s.Metadata = append(s.Metadata, profile.Metadata{Name: text(), Value: text()})
				s.ExchangeActivities = append(s.ExchangeActivities, profile.ExchangeActivity{
					Kind: profile.ActivityKind(r.IntN(3)), StartCycle: r.Uint32(), EndCycle: r.Uint32()})
			}
			plan.Steps = append(plan.Steps, s)
		}
		p.ProfileTiles = append(p.ProfileTiles, plan)
	}
	return p
}

func encode(t testing.TB, p *Package) []byte {
	t.Helper()
	b, err := Encode(p)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestRandomPackagesSurviveARoundTrip(t *testing.T) {
	for seed := range uint64(300) {
		p := randomPackage(rand.New(rand.NewPCG(seed, 0)))
		b := encode(t, p)
		if again := encode(t, p); !bytes.Equal(b, again) {
			t.Fatalf("seed %d: two encodings differ", seed)
		}
		got, err := Decode(b)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if !reflect.DeepEqual(got, p) {
			t.Fatalf("seed %d: decoded\n%+v\nwant\n%+v", seed, got, p)
		}
		var out bytes.Buffer
		if n, err := p.WriteTo(&out); err != nil || n != int64(len(b)) || !bytes.Equal(out.Bytes(), b) {
			t.Fatalf("seed %d: WriteTo wrote %d bytes (%v), Encode gave %d", seed, n, err, len(b))
		}
	}
}

func TestEncodingIsStable(t *testing.T) {
	b := encode(t, example())
	golden := filepath.Join("testdata", "example.ipuexe")
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

// capnpTool skips without the Debian tool that is the other implementation here.
func capnpTool(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("capnp"); err != nil {
		t.Skip("the capnp tool (Debian package capnproto) is not installed")
	}
}

// capnp runs the tool in the repository's root.
func capnp(t *testing.T, stdin []byte, args ...string) []byte {
	t.Helper()
	cmd := exec.Command("capnp", args...)
	cmd.Dir = filepath.Join("..", "..")
	cmd.Stdin = bytes.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("capnp %v: %v\n%s", args, err, stderr.Bytes())
	}
	return out
}

func TestTheCapnpToolReadsAndWritesPackages(t *testing.T) {
	capnpTool(t)
	const schema = "protocol/program/application.capnp"
	text := capnp(t, encode(t, example()), "decode", schema, "Application")
	for _, want := range []string{`target = "ipu21"`, `name = "bias"`, "kind = exchange", "fileOffset = 32"} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("capnp decode does not print %q", want)
		}
	}
	packages := []*Package{example()}
	for seed := range uint64(6) {
		packages = append(packages, randomPackage(rand.New(rand.NewPCG(seed, 1))))
	}
	for i, p := range packages {
		json := capnp(t, encode(t, p), "convert", "binary:json", schema, "Application")
		got, err := Decode(capnp(t, json, "convert", "json:binary", schema, "Application"))
		if err != nil {
			t.Fatalf("package %d written by capnp: %v", i, err)
		}
		if !reflect.DeepEqual(got, p) {
			t.Errorf("package %d changed on its way through capnp:\n%+v\nwant\n%+v", i, got, p)
		}
	}
}

// TestGeneratedCodeIsCurrent runs the generator and compares.
func TestGeneratedCodeIsCurrent(t *testing.T) {
	capnpTool(t)
	generator, err := exec.LookPath("capnpc-go")
	if err != nil {
		t.Skip("capnpc-go is not installed")
	}
	for schema, committed := range map[string]string{
		"protocol/program/application.capnp":    "wire/application.capnp.go",
		"protocol/profile/profile.capnp":        "../profile/wire/profile.capnp.go",
		"protocol/profile/profile_common.capnp": "../profile/wire/profile_common.capnp.go",
	} {
		request := capnp(t, nil, "compile", "-o-", schema)
		dir := t.TempDir()
		cmd := exec.Command(generator, "-promises=false", "-schemas=false", "-structstrings=false")
		cmd.Dir, cmd.Stdin = dir, bytes.NewReader(request)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", schema, err, out)
		}
		got, err := os.ReadFile(filepath.Join(dir, schema+".go"))
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(committed)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what %s generates: run go generate", committed, schema)
		}
	}
}

func TestTruncatedAtEveryLength(t *testing.T) {
	b := encode(t, example())
	for n := range b {
		if _, err := Decode(b[:n]); err == nil || !strings.Contains(err.Error(), "truncated") {
			t.Fatalf("first %d of %d bytes: error %v, want one that says truncated", n, len(b), err)
		}
	}
	if _, err := Decode(append(b[:len(b):len(b)], 0)); err == nil || !strings.Contains(err.Error(), "1 bytes follow") {
		t.Errorf("one byte too many: %v", err)
	}
}

// TestEveryBitFlip checks that no single damaged bit makes anything panic, and
// that damage which is accepted is visible in the digest, which is what the
// sidecar of WriteFile is for.
func TestEveryBitFlip(t *testing.T) {
	b := encode(t, example())
	want, refused := SHA256(b), 0
	for i := range b {
		for bit := range 8 {
			b[i] ^= 1 << bit
			if _, err := Verify(b); err != nil {
				refused++
			}
			if SHA256(b) == want {
				t.Fatalf("byte %d bit %d: same digest", i, bit)
			}
			b[i] ^= 1 << bit
		}
	}
	if _, err := Verify(b); err != nil {
		t.Errorf("the undamaged package: %v", err)
	}
	t.Logf("%d of %d single-bit flips refused by Verify without a digest", refused, 8*len(b))
	if refused == 0 {
		t.Error("no flip was refused")
	}
}

func TestHostileMessagesCostMemoryInProportion(t *testing.T) {
	// Every list pointer of the example is pointed at itself in turn and made as
	// long as the encoding allows; whatever comes of it must stay small.
	b := encode(t, example())
	for i := 8; i+8 <= len(b); i += 8 {
		for _, pointer := range []uint64{
			1 | 2<<32 | 0x1FFFFFFF<<35, // 2^29-1 bytes
			1 | 0<<32 | 0x1FFFFFFF<<35, // 2^29-1 voids
			1 | 7<<32 | 0<<35,          // structs whose tag is the next word
			0x0000FFFF_00000000,        // a struct of 65,535 words
			2 | 0xFFFFFFF8,             // far
		} {
			damaged := bytes.Clone(b)
			for k := range 8 {
				damaged[i+k] = byte(pointer >> (8 * k))
			}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			Decode(damaged)
			runtime.ReadMemStats(&after)
			if grown := after.TotalAlloc - before.TotalAlloc; grown > uint64(64*len(b)+1<<20) {
				t.Fatalf("pointer %#x at byte %d: %d bytes allocated for a file of %d", pointer, i, grown, len(b))
			}
		}
	}
}

func TestOtherVersionsAndTargetsAreRefused(t *testing.T) {
	p := example()
	p.SchemaVersion = 6
	if _, err := Decode(encode(t, p)); err == nil || !strings.Contains(err.Error(), "schema version 6") {
		t.Errorf("version 6: %v", err)
	}
	p = example()
	p.Target = "ipu2"
	if _, err := Decode(encode(t, p)); err == nil || !strings.Contains(err.Error(), `"ipu2"`) {
		t.Errorf("target ipu2: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(encode(f, example()))
	f.Add([]byte{})
	f.Add(make([]byte, 16))
	for seed := range uint64(4) {
		f.Add(encode(f, randomPackage(rand.New(rand.NewPCG(seed, 2)))))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Decode(b)
		if err != nil {
			return
		}
		again, err := Decode(encode(t, p))
		if err != nil {
			t.Fatalf("decoded, but its encoding does not: %v", err)
		}
		if !reflect.DeepEqual(again, p) {
			t.Fatal("decode, encode, decode changed the package")
		}
		Verify(b)
	})
}

// bigPackage has the dimensions of a full-size model: 1,472 tiles, about 50 KiB
// of image and 150 planned steps a tile.
func bigPackage() *Package {
	p := example()
	p.Tiles, p.ProfileTiles = nil, nil
	image := make([]byte, 48<<10)
	for tile := range uint32(1472) {
		p.Tiles = append(p.Tiles, TileImage{PhysicalTile: tile, EntryPoint: 0x4C010, CommandAddress: 0x64000,
			Segments: []Segment{{Address: 0x64000, MemorySize: uint32(len(image)), Data: image, Flags: Read}}})
		plan := TileProfilePlan{PhysicalTile: tile}
		for i := range uint32(150) {
			plan.Steps = append(plan.Steps, profile.Step{LocalIndex: i, Phase: i / 3, Operation: fmt.Sprintf("block 0 operation %d", i/4), Kernel: "gemm-f16",
				Kind:     profile.KindCompute,
				Metadata: []profile.Metadata{{Name: "rows", Value: "244"}, {Name: "useful", Value: "123456"}}})
		}
		p.ProfileTiles = append(p.ProfileTiles, plan)
	}
	return p
}

func BenchmarkEncode(b *testing.B) {
	p := bigPackage()
	for b.Loop() {
		file := encode(b, p)
		b.SetBytes(int64(len(file)))
	}
}

func BenchmarkDecode(b *testing.B) {
	file := encode(b, bigPackage())
	b.SetBytes(int64(len(file)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decode(file); err != nil {
			b.Fatal(err)
		}
	}
}
