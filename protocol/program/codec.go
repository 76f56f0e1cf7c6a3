package program

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"

	"ipufarm/protocol/internal/message"
	"ipufarm/protocol/profile"
	"ipufarm/protocol/program/wire"
)

// A package file (.ipuexe) is one Cap'n Proto stream message with the schema of
// application.capnp. It carries no checksum: whoever stores or sends one keeps its
// SHA256 beside it (see WriteFile).

// Sizes of the structs of the schema, in 8-byte words.
const (
	applicationWords  = 2 + 12
	segmentWords      = 2 + 1
	tileImageWords    = 2 + 1
	regionSliceWords  = 3
	bindingWords      = 4
	hostPageWords     = 2
	hostSliceWords    = 4
	hostCallWords     = 2 + 5
	hostExchangeWords = 2 + 3
	entryPointWords   = 1 + 1
	configWriteWords  = 1
	profilePlanWords  = 1 + 1
	stepWords         = 3 + 4
	debugSymbolWords  = 1 + 1
	debugRegionWords  = 2 + 1
)

// SHA256 returns the digest of a package file in lower-case hex.
func SHA256(file []byte) string {
	sum := sha256.Sum256(file)
	return hex.EncodeToString(sum[:])
}

// Encode returns the file of a package. Equal packages have equal bytes.
func Encode(p *Package) ([]byte, error) {
	w, err := message.NewWriter(packageWords(p))
	if err != nil {
		return nil, fmt.Errorf("package: %w", err)
	}
	writePackage(w, p)
	b, err := w.Bytes()
	if err != nil {
		return nil, fmt.Errorf("package: %w", err)
	}
	return b, nil
}

// WriteTo writes the file.
func (p *Package) WriteTo(w io.Writer) (int64, error) {
	b, err := Encode(p)
	if err != nil {
		return 0, err
	}
	n, err := w.Write(b)
	return int64(n), err
}

// packageWords is the exact size of the message of a package.
func packageWords(p *Package) int {
	words := 1 + applicationWords + message.TextWords(p.CompilerVersion) + message.TextWords(p.Target) +
		message.ListWords(len(p.Tiles), tileImageWords)
	for i := range p.Tiles {
		segments := p.Tiles[i].Segments
		words += message.ListWords(len(segments), segmentWords)
		for j := range segments {
			words += message.DataWords(len(segments[j].Data))
		}
	}
	for _, bindings := range [][]Binding{p.Inputs, p.Outputs, p.Weights} {
		words += message.ListWords(len(bindings), bindingWords)
		for i := range bindings {
			b := &bindings[i]
			words += message.TextWords(b.Name) + message.TextWords(b.DType) + listWords32(b.Shape) +
				message.ListWords(len(b.Slices), regionSliceWords)
		}
	}
	h := &p.HostExchange
	words += hostExchangeWords + message.ListWords(len(h.Pages), hostPageWords) + listWords32(h.AttachOrder) +
		message.ListWords(len(h.Calls), hostCallWords)
	for i := range h.Calls {
		c := &h.Calls[i]
		words += message.TextWords(c.Name) + message.ListWords(len(c.Inputs), hostSliceWords) +
			message.ListWords(len(c.Outputs), hostSliceWords) + listWords32(c.InputBatchEnds) + listWords32(c.OutputBatchEnds)
	}
	words += message.ListWords(len(p.EntryPoints), entryPointWords)
	for i := range p.EntryPoints {
		words += message.TextWords(p.EntryPoints[i].Name)
	}
	words += message.ListWords(len(p.DeviceConfigWrites), configWriteWords)
	words += message.ListWords(len(p.ProfileTiles), profilePlanWords)
	for i := range p.ProfileTiles {
		steps := p.ProfileTiles[i].Steps
		words += message.ListWords(len(steps), stepWords)
		for j := range steps {
			words += profile.StepWords(&steps[j])
		}
	}
	words += message.ListWords(len(p.DebugSymbols), debugSymbolWords)
	for i := range p.DebugSymbols {
		words += message.TextWords(p.DebugSymbols[i].Name)
	}
	words += message.ListWords(len(p.DebugRegions), debugRegionWords)
	for i := range p.DebugRegions {
		words += message.TextWords(p.DebugRegions[i].Name)
	}
	return words
}

func listWords32(values []uint32) int { return message.DataWords(4 * len(values)) }

func writePackage(w *message.Writer, p *Package) {
	to, err := wire.NewRootApplication(w.Segment)
	if w.Do(err); !w.OK() {
		return
	}
	to.SetSchemaVersion(p.SchemaVersion)
	w.Text(to.SetCompilerVersion, p.CompilerVersion)
	w.Text(to.SetTarget, p.Target)
	to.SetTileMemoryBase(p.TileMemoryBase)
	to.SetTileMemorySize(p.TileMemorySize)
	tiles := message.Make(w, len(p.Tiles), to.NewTiles)
	for i := 0; i < len(p.Tiles) && w.OK(); i++ {
		writeTile(w, tiles.At(i), &p.Tiles[i])
	}
	writeBindings(w, to.NewInputs, p.Inputs)
	writeBindings(w, to.NewOutputs, p.Outputs)
	writeBindings(w, to.NewWeights, p.Weights)
	host, err := to.NewHostExchange()
	if w.Do(err); w.OK() {
		writeHost(w, host, &p.HostExchange)
	}
	entries := message.Make(w, len(p.EntryPoints), to.NewEntryPoints)
	for i := 0; i < len(p.EntryPoints) && w.OK(); i++ {
		e, from := entries.At(i), &p.EntryPoints[i]
		w.Text(e.SetName, from.Name)
		e.SetCommand(from.Command)
		e.SetExternalSyncs(from.ExternalSyncs)
	}
	writes := message.Make(w, len(p.DeviceConfigWrites), to.NewDeviceConfigWrites)
	for i := 0; i < len(p.DeviceConfigWrites) && w.OK(); i++ {
		c, from := writes.At(i), &p.DeviceConfigWrites[i]
		c.SetOffset(from.Offset)
		c.SetValue(from.Value)
	}
	plans := message.Make(w, len(p.ProfileTiles), to.NewProfileTiles)
	for i := 0; i < len(p.ProfileTiles) && w.OK(); i++ {
		plan, from := plans.At(i), &p.ProfileTiles[i]
		plan.SetPhysicalTile(from.PhysicalTile)
		steps := message.Make(w, len(from.Steps), plan.NewSteps)
		for j := 0; j < len(from.Steps) && w.OK(); j++ {
			profile.WriteStep(w, steps.At(j), &from.Steps[j])
		}
	}
	symbols := message.Make(w, len(p.DebugSymbols), to.NewDebugSymbols)
	for i := 0; i < len(p.DebugSymbols) && w.OK(); i++ {
		s, from := symbols.At(i), &p.DebugSymbols[i]
		w.Text(s.SetName, from.Name)
		s.SetAddress(from.Address)
	}
	regions := message.Make(w, len(p.DebugRegions), to.NewDebugRegions)
	for i := 0; i < len(p.DebugRegions) && w.OK(); i++ {
		r, from := regions.At(i), &p.DebugRegions[i]
		r.SetPhysicalTile(from.PhysicalTile)
		r.SetAddress(from.Address)
		r.SetSize(from.Size)
		w.Text(r.SetName, from.Name)
	}
}

func writeTile(w *message.Writer, to wire.TileImage, t *TileImage) {
	to.SetPhysicalTile(t.PhysicalTile)
	to.SetEntryPoint(t.EntryPoint)
	to.SetCommandAddress(t.CommandAddress)
	to.SetDiagnosticAddress(t.DiagnosticAddress)
	segments := message.Make(w, len(t.Segments), to.NewSegments)
	for i := 0; i < len(t.Segments) && w.OK(); i++ {
		s, from := segments.At(i), &t.Segments[i]
		s.SetAddress(from.Address)
		s.SetMemorySize(from.MemorySize)
		s.SetFlags(from.Flags)
		if len(from.Data) > 0 {
			w.Do(s.SetData(from.Data))
		}
	}
}

func writeBindings(w *message.Writer, create func(int32) (wire.Binding_List, error), bindings []Binding) {
	list := message.Make(w, len(bindings), create)
	for i := 0; i < len(bindings) && w.OK(); i++ {
		b, from := list.At(i), &bindings[i]
		w.Text(b.SetName, from.Name)
		w.Text(b.SetDtype, from.DType)
		w.Words(b.NewShape, from.Shape)
		slices := message.Make(w, len(from.Slices), b.NewSlices)
		for j := 0; j < len(from.Slices) && w.OK(); j++ {
			s, slice := slices.At(j), &from.Slices[j]
			s.SetTile(slice.Tile)
			s.SetTileAddress(slice.TileAddress)
			s.SetFileOffset(slice.FileOffset)
			s.SetSize(slice.Size)
		}
	}
}

func writeHost(w *message.Writer, to wire.HostExchange, h *HostExchange) {
	to.SetStartupMark(h.StartupMark)
	to.SetCommandPage(h.CommandPage)
	to.SetCommandOffset(h.CommandOffset)
	pages := message.Make(w, len(h.Pages), to.NewPages)
	for i := 0; i < len(h.Pages) && w.OK(); i++ {
		page := pages.At(i)
		page.SetIndex(h.Pages[i].Index)
		page.SetSize(h.Pages[i].Size)
	}
	w.Words(to.NewAttachOrder, h.AttachOrder)
	calls := message.Make(w, len(h.Calls), to.NewCalls)
	for i := 0; i < len(h.Calls) && w.OK(); i++ {
		c, from := calls.At(i), &h.Calls[i]
		w.Text(c.SetName, from.Name)
		c.SetCommand(from.Command)
		c.SetPhases(from.Phases)
		writeHostSlices(w, c.NewInputs, from.Inputs)
		writeHostSlices(w, c.NewOutputs, from.Outputs)
		c.SetInvocations(from.Invocations)
		w.Words(c.NewInputBatchEnds, from.InputBatchEnds)
		w.Words(c.NewOutputBatchEnds, from.OutputBatchEnds)
	}
}

func writeHostSlices(w *message.Writer, create func(int32) (wire.HostSlice_List, error), slices []HostSlice) {
	list := message.Make(w, len(slices), create)
	for i := 0; i < len(slices) && w.OK(); i++ {
		s, from := list.At(i), &slices[i]
		s.SetPage(from.Page)
		s.SetPageOffset(from.PageOffset)
		s.SetFileOffset(from.FileOffset)
		s.SetSize(from.Size)
	}
}

// Decode reads a package file. The segments of the result refer to b, which must
// not change. Decode accepts whatever is well formed: Check says whether it makes
// sense, and Verify does all there is. Memory stays within a fixed multiple of
// len(b).
func Decode(b []byte) (*Package, error) {
	r, err := message.Open(b)
	if err != nil {
		return nil, fmt.Errorf("package: %w", err)
	}
	from := wire.Application(r.Root())
	p := &Package{
		SchemaVersion:   from.SchemaVersion(),
		CompilerVersion: r.Text("compilerVersion", from.HasCompilerVersion(), from.CompilerVersionBytes),
		Target:          r.Text("target", from.HasTarget(), from.TargetBytes),
		TileMemoryBase:  from.TileMemoryBase(),
		TileMemorySize:  from.TileMemorySize(),
	}
	// Another version may mean other things by the same bytes.
	if r.Err() == nil && (p.SchemaVersion != SchemaVersion || p.Target != Target) {
		return nil, fmt.Errorf("package: schema version %d for target %.40q, only version %d for %q can be read",
			p.SchemaVersion, p.Target, SchemaVersion, Target)
	}
	readTiles(r, from, p)
	p.Inputs = readBindings(r, "inputs", from.HasInputs(), from.Inputs)
	p.Outputs = readBindings(r, "outputs", from.HasOutputs(), from.Outputs)
	p.Weights = readBindings(r, "weights", from.HasWeights(), from.Weights)
	if r.Err() == nil && from.HasHostExchange() {
		host, err := from.HostExchange()
		r.Fail(err)
		readHost(r, host, &p.HostExchange)
	}
	readLists(r, from, p)
	readPlans(r, from, p)
	if err := r.Err(); err != nil {
		return nil, fmt.Errorf("package: %w", err)
	}
	return p, nil
}

func readTiles(r *message.Reader, from wire.Application, p *Package) {
	tiles := message.List(r, "tiles", from.HasTiles(), from.Tiles)
	p.Tiles = message.New[TileImage](r, tiles.Len())
	for i := range p.Tiles {
		image, t := tiles.At(i), &p.Tiles[i]
		t.PhysicalTile = image.PhysicalTile()
		t.EntryPoint = image.EntryPoint()
		t.CommandAddress = image.CommandAddress()
		t.DiagnosticAddress = image.DiagnosticAddress()
		segments := message.List(r, "segments", image.HasSegments(), image.Segments)
		t.Segments = message.New[Segment](r, segments.Len())
		for j := range t.Segments {
			s := segments.At(j)
			t.Segments[j] = Segment{s.Address(), s.MemorySize(), r.Data("data", s.HasData(), s.Data), s.Flags()}
		}
		if r.Err() != nil {
			r.Within("tiles[%d] (physical tile %d)", i, t.PhysicalTile)
			return
		}
	}
}

func readBindings(r *message.Reader, field string, has bool, get func() (wire.Binding_List, error)) []Binding {
	list := message.List(r, field, has, get)
	bindings := message.New[Binding](r, list.Len())
	for i := range bindings {
		from, b := list.At(i), &bindings[i]
		b.Name = r.Text("name", from.HasName(), from.NameBytes)
		b.DType = r.Text("dtype", from.HasDtype(), from.DtypeBytes)
		b.Shape = r.Words("shape", from.HasShape(), from.Shape)
		slices := message.List(r, "slices", from.HasSlices(), from.Slices)
		b.Slices = message.New[RegionSlice](r, slices.Len())
		for j := range b.Slices {
			s := slices.At(j)
			b.Slices[j] = RegionSlice{s.Tile(), s.TileAddress(), s.FileOffset(), s.Size()}
		}
		if r.Err() != nil {
			r.Within("%s[%d] (%.60q)", field, i, b.Name)
			return nil
		}
	}
	return bindings
}

func readHost(r *message.Reader, from wire.HostExchange, h *HostExchange) {
	h.StartupMark = from.StartupMark()
	h.CommandPage = from.CommandPage()
	h.CommandOffset = from.CommandOffset()
	pages := message.List(r, "pages", from.HasPages(), from.Pages)
	h.Pages = message.New[HostPage](r, pages.Len())
	for i := range h.Pages {
		h.Pages[i] = HostPage{pages.At(i).Index(), pages.At(i).Size()}
	}
	h.AttachOrder = r.Words("attachOrder", from.HasAttachOrder(), from.AttachOrder)
	calls := message.List(r, "calls", from.HasCalls(), from.Calls)
	h.Calls = message.New[HostCall](r, calls.Len())
	for i := range h.Calls {
		call, c := calls.At(i), &h.Calls[i]
		c.Name = r.Text("name", call.HasName(), call.NameBytes)
		c.Command = call.Command()
		c.Phases = call.Phases()
		c.Inputs = readHostSlices(r, "inputs", call.HasInputs(), call.Inputs)
		c.Outputs = readHostSlices(r, "outputs", call.HasOutputs(), call.Outputs)
		c.Invocations = call.Invocations()
		c.InputBatchEnds = r.Words("inputBatchEnds", call.HasInputBatchEnds(), call.InputBatchEnds)
		c.OutputBatchEnds = r.Words("outputBatchEnds", call.HasOutputBatchEnds(), call.OutputBatchEnds)
		if r.Err() != nil {
			r.Within("hostExchange: calls[%d] (%.60q)", i, c.Name)
			return
		}
	}
}

func readHostSlices(r *message.Reader, field string, has bool, get func() (wire.HostSlice_List, error)) []HostSlice {
	list := message.List(r, field, has, get)
	slices := message.New[HostSlice](r, list.Len())
	for i := range slices {
		s := list.At(i)
		slices[i] = HostSlice{s.Page(), s.PageOffset(), s.FileOffset(), s.Size()}
	}
	return slices
}

// readLists reads the lists whose elements hold nothing but numbers and a name.
func readLists(r *message.Reader, from wire.Application, p *Package) {
	entries := message.List(r, "entryPoints", from.HasEntryPoints(), from.EntryPoints)
	p.EntryPoints = message.New[EntryPoint](r, entries.Len())
	for i := range p.EntryPoints {
		e := entries.At(i)
		p.EntryPoints[i] = EntryPoint{r.Text("entry point name", e.HasName(), e.NameBytes), e.Command(), e.ExternalSyncs()}
	}
	writes := message.List(r, "deviceConfigWrites", from.HasDeviceConfigWrites(), from.DeviceConfigWrites)
	p.DeviceConfigWrites = message.New[DeviceConfigWrite](r, writes.Len())
	for i := range p.DeviceConfigWrites {
		p.DeviceConfigWrites[i] = DeviceConfigWrite{writes.At(i).Offset(), writes.At(i).Value()}
	}
	symbols := message.List(r, "debugSymbols", from.HasDebugSymbols(), from.DebugSymbols)
	p.DebugSymbols = message.New[DebugSymbol](r, symbols.Len())
	for i := range p.DebugSymbols {
		s := symbols.At(i)
		p.DebugSymbols[i] = DebugSymbol{r.Text("debug symbol name", s.HasName(), s.NameBytes), s.Address()}
	}
	regions := message.List(r, "debugRegions", from.HasDebugRegions(), from.DebugRegions)
	p.DebugRegions = message.New[DebugRegion](r, regions.Len())
	for i := range p.DebugRegions {
		g := regions.At(i)
		p.DebugRegions[i] = DebugRegion{g.PhysicalTile(), g.Address(), g.Size(), r.Text("debug region name", g.HasName(), g.NameBytes)}
	}
}

func readPlans(r *message.Reader, from wire.Application, p *Package) {
	plans := message.List(r, "profileTiles", from.HasProfileTiles(), from.ProfileTiles)
	p.ProfileTiles = message.New[TileProfilePlan](r, plans.Len())
	reader := profile.NewStepReader(r)
	for i := range p.ProfileTiles {
		plan, t := plans.At(i), &p.ProfileTiles[i]
		t.PhysicalTile = plan.PhysicalTile()
		steps := message.List(r, "steps", plan.HasSteps(), plan.Steps)
		t.Steps = message.New[profile.Step](r, steps.Len())
		for j := range t.Steps {
			reader.Read(steps.At(j), &t.Steps[j])
		}
		if r.Err() != nil {
			r.Within("profileTiles[%d] (physical tile %d)", i, t.PhysicalTile)
			return
		}
	}
}
