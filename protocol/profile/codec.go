package profile

import (
	"bytes"
	"fmt"
	"io"
	"unsafe"

	"github.com/klauspost/compress/zstd"

	"ipufarm/protocol/internal/message"
	"ipufarm/protocol/profile/wire"
)

// A profile file (.ipuprof) is one Cap'n Proto stream message with the schema of
// profile.capnp, either plain, which is what other programs expect, or inside one
// zstd frame, which is a fifth of the size or less. Both decode here; zstd -dc
// turns one into the other.

// MaxBytes is the largest profile that is decoded, uncompressed. A full-size run
// (1,472 tiles, about 150 samples each) has about 100 MB.
const MaxBytes = 1 << 30

// maxCompression bounds what a compressed profile may claim to grow to. Profiles
// of real runs compress 5 to 30 times.
const maxCompression = 256

var zstdMagic = []byte{0x28, 0xB5, 0x2F, 0xFD}

// Sizes of the structs of the schemas, in 8-byte words.
const (
	profileWords     = 2 + 1
	tileProfileWords = 1 + 1
	cycleSampleWords = 1 + 1
	stepWords        = 3 + 4
	metadataWords    = 2
	activityWords    = 2
)

// Encode returns the file of a profile, uncompressed. Equal profiles have equal
// bytes.
func Encode(p *Profile) ([]byte, error) {
	words := 1 + profileWords + message.ListWords(len(p.Tiles), tileProfileWords)
	for i := range p.Tiles {
		samples := p.Tiles[i].Samples
		words += message.ListWords(len(samples), cycleSampleWords)
		for j := range samples {
			words += stepWords + StepWords(&samples[j].Step)
		}
	}
	w, err := message.NewWriter(words)
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	root, err := wire.NewRootProfile(w.Segment)
	w.Do(err)
	if w.OK() {
		root.SetSchemaVersion(p.SchemaVersion)
		root.SetClockHz(p.ClockHz)
	}
	tiles := message.Make(w, len(p.Tiles), root.NewTiles)
	for i := 0; i < len(p.Tiles) && w.OK(); i++ {
		writeTile(w, tiles.At(i), &p.Tiles[i])
	}
	b, err := w.Bytes()
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	return b, nil
}

func writeTile(w *message.Writer, to wire.TileProfile, t *TileProfile) {
	to.SetPhysicalTile(t.PhysicalTile)
	samples := message.Make(w, len(t.Samples), to.NewSamples)
	for i := 0; i < len(t.Samples) && w.OK(); i++ {
		sample := samples.At(i)
		sample.SetStartCycle(t.Samples[i].StartCycle)
		sample.SetEndCycle(t.Samples[i].EndCycle)
		step, err := sample.NewStep()
		w.Do(err)
		if w.OK() {
			WriteStep(w, step, &t.Samples[i].Step)
		}
	}
}

// EncodeCompressed is Encode inside a zstd frame.
func EncodeCompressed(p *Profile) ([]byte, error) {
	raw, err := Encode(p)
	if err != nil {
		return nil, err
	}
	return Compress(raw)
}

// Compress puts the bytes of a plain file into a zstd frame. Equal bytes compress
// to equal bytes.
func Compress(raw []byte) ([]byte, error) {
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedDefault))
	if err != nil {
		return nil, err
	}
	defer encoder.Close()
	return encoder.EncodeAll(raw, make([]byte, 0, len(raw)/8+1024)), nil
}

// WriteTo writes the plain file.
func (p *Profile) WriteTo(w io.Writer) (int64, error) {
	b, err := Encode(p)
	if err != nil {
		return 0, err
	}
	n, err := w.Write(b)
	return int64(n), err
}

// Decode reads a file, plain or compressed. It accepts whatever is well formed;
// Check says whether it makes sense. Memory stays within a fixed multiple of the
// (uncompressed) size.
func Decode(b []byte) (*Profile, error) {
	if bytes.HasPrefix(b, zstdMagic) {
		raw, err := decompress(b)
		if err != nil {
			return nil, fmt.Errorf("profile: compressed: %w", err)
		}
		b = raw
	}
	if len(b) > MaxBytes {
		return nil, fmt.Errorf("profile: %d bytes, at most %d are accepted", len(b), MaxBytes)
	}
	r, err := message.Open(b)
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	root := wire.Profile(r.Root())
	p := &Profile{SchemaVersion: root.SchemaVersion(), ClockHz: root.ClockHz()}
	// An unknown version may mean other things by the same bytes.
	if r.Err() == nil && (p.SchemaVersion < 1 || p.SchemaVersion > SchemaVersion) {
		return nil, fmt.Errorf("profile: schema version %d, versions 1 to %d can be read", p.SchemaVersion, SchemaVersion)
	}
	tiles := message.List(r, "tiles", root.HasTiles(), root.Tiles)
	p.Tiles = message.New[TileProfile](r, tiles.Len())
	steps := NewStepReader(r)
	for i := 0; i < len(p.Tiles) && r.Err() == nil; i++ {
		readTile(r, steps, tiles.At(i), &p.Tiles[i])
		r.Within("tiles[%d] (physical tile %d)", i, p.Tiles[i].PhysicalTile)
	}
	if err := r.Err(); err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	return p, nil
}

func readTile(r *message.Reader, steps *StepReader, from wire.TileProfile, t *TileProfile) {
	t.PhysicalTile = from.PhysicalTile()
	samples := message.List(r, "samples", from.HasSamples(), from.Samples)
	t.Samples = message.New[CycleSample](r, samples.Len())
	for i := 0; i < len(t.Samples) && r.Err() == nil; i++ {
		sample, s := samples.At(i), &t.Samples[i]
		s.StartCycle, s.EndCycle = sample.StartCycle(), sample.EndCycle()
		step, err := sample.Step()
		r.Fail(err)
		steps.Read(step, &s.Step)
	}
}

// decompress opens a zstd frame without trusting its claims.
func decompress(b []byte) ([]byte, error) {
	limit := min(uint64(MaxBytes), maxCompression*uint64(len(b))+1<<20)
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(limit))
	if err != nil {
		return nil, err
	}
	defer decoder.Close()
	return decoder.DecodeAll(b, nil)
}

// StepWords is the size of what a step refers to (not of its struct, which lies
// in a list or behind a pointer), in 8-byte words.
func StepWords(s *Step) int {
	words := message.TextWords(s.Operation) + message.TextWords(s.Kernel) +
		message.ListWords(len(s.Metadata), metadataWords) +
		message.ListWords(len(s.ExchangeActivities), activityWords)
	for i := range s.Metadata {
		words += message.TextWords(s.Metadata[i].Name) + message.TextWords(s.Metadata[i].Value)
	}
	return words
}

// WriteStep fills a step of a message. Package program uses it for its plans.
func WriteStep(w *message.Writer, to wire.Step, s *Step) {
	to.SetLocalIndex(s.LocalIndex)
	to.SetPhase(s.Phase)
	to.SetEpoch(s.Epoch)
	to.SetKind(wire.StepKind(s.Kind))
	to.SetExchangeEventCycles(s.ExchangeEventCycles)
	w.Text(to.SetOperation, s.Operation)
	w.Text(to.SetKernel, s.Kernel)
	metadata := message.Make(w, len(s.Metadata), to.NewMetadata)
	for i := 0; i < len(s.Metadata) && w.OK(); i++ {
		m := metadata.At(i)
		w.Text(m.SetName, s.Metadata[i].Name)
		w.Text(m.SetValue, s.Metadata[i].Value)
	}
	activities := message.Make(w, len(s.ExchangeActivities), to.NewExchangeActivities)
	for i := 0; i < len(s.ExchangeActivities) && w.OK(); i++ {
		a, from := activities.At(i), &s.ExchangeActivities[i]
		a.SetKind(wire.ExchangeActivityKind(from.Kind))
		a.SetStartCycle(from.StartCycle)
		a.SetEndCycle(from.EndCycle)
	}
}

// StepReader reads the steps of one message. Their lists are cut from shared
// blocks, because a full-size profile has several hundred thousand short ones.
type StepReader struct {
	r          *message.Reader
	metadata   []Metadata
	activities []ExchangeActivity
}

// NewStepReader starts reading the steps of a message.
func NewStepReader(r *message.Reader) *StepReader { return &StepReader{r: r} }

// Read reads one step.
func (d *StepReader) Read(from wire.Step, s *Step) {
	r := d.r
	if r.Err() != nil {
		return
	}
	s.LocalIndex = from.LocalIndex()
	s.Phase = from.Phase()
	s.Epoch = from.Epoch()
	s.Kind = StepKind(from.Kind())
	s.ExchangeEventCycles = from.ExchangeEventCycles()
	s.Operation = r.Text("operation", from.HasOperation(), from.OperationBytes)
	s.Kernel = r.Text("kernel", from.HasKernel(), from.KernelBytes)
	metadata := message.List(r, "metadata", from.HasMetadata(), from.Metadata)
	s.Metadata, d.metadata = cut(r, d.metadata, metadata.Len())
	for i := range s.Metadata {
		m := metadata.At(i)
		s.Metadata[i].Name = r.Text("metadata name", m.HasName(), m.NameBytes)
		s.Metadata[i].Value = r.Text("metadata value", m.HasValue(), m.ValueBytes)
	}
	activities := message.List(r, "exchangeActivities", from.HasExchangeActivities(), from.ExchangeActivities)
	s.ExchangeActivities, d.activities = cut(r, d.activities, activities.Len())
	for i := range s.ExchangeActivities {
		a := activities.At(i)
		s.ExchangeActivities[i] = ExchangeActivity{ActivityKind(a.Kind()), a.StartCycle(), a.EndCycle()}
	}
}

// cut takes n elements off a block and returns them and the rest, starting a new
// block when the old one is too small. It takes none after an error.
func cut[T any](r *message.Reader, block []T, n int) (taken, rest []T) {
	const blockLen = 1024
	var element T
	if n == 0 || !r.Spend(n, int(unsafe.Sizeof(element))) {
		return nil, block
	}
	if n > len(block) {
		block = make([]T, max(n, blockLen))
	}
	return block[:n:n], block[n:]
}
