// Package sdk reads recordings that the Graphcore SDK makes of its own programs
// (profile.pop), without the SDK. It labels their steps by stage of a transformer
// block, measures them at the boundaries of the published "SDK ONNX profile
// analysis" (2026-09-07), and puts them beside profiles of this project.
//
// Cycles of a recording are measured, at the clock of the recording; cycles of a
// profile of the simulated device are modelled. Whatever is printed says which.
//
// A recording is an SQLite database. Its layout is not documented; this is the part
// that is known and used, with the columns of each table:
//
//	steps             id, type, program, compute_set   executed steps in order of id
//	steps_by_ipu      step_id, cycles, active_tiles,   cycles of the longest tile, and when
//	                  cycles_base, active_cycles_from_min, active_cycles_to_max
//	programs          id, name
//	compute_sets      compute_set, name
//	vars_info         tile, category, size_bytes       what is allocated
//	var_categories    id, name                         one of them internalExchangeCode
//	vars_string_table id, string                       names of variables
//	memory_by_tile    total
//
// Another SDK may write other tables. What is missing is reported and the rest is
// used. Everything in the file is untrusted: see open.go for what is refused.
package sdk

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
)

// Limits of what is read. A recording of two inferences of a 27-layer model has
// some ten thousand steps and some ten million variables.
const (
	maxSteps     = 1 << 21
	maxNames     = 1 << 21
	maxVariables = 1 << 28
)

// DefaultClockHz is the clock of the recordings of the published analysis.
const DefaultClockHz = 1_850_000_000

// Clock converts measured cycles to time.
type Clock struct {
	Hz     float64 `json:"hz"`
	Source string  `json:"source"`
}

// Milliseconds converts cycles to time.
func (c Clock) Milliseconds(cycles int64) float64 { return float64(cycles) * 1000 / c.Hz }

func (c Clock) String() string { return fmt.Sprintf("%g GHz, %s", c.Hz/1e9, c.Source) }

// Step is one executed step of the device program. Numbers that the recording does
// not have are -1, texts are empty.
type Step struct {
	ID          int64
	Type        string // DoExchange, OnTileExecute, StreamCopyBegin, ...
	Program     int64
	ComputeSet  int64
	Name        string // of the compute set, else of the program
	Cycles      int64  // of the longest tile
	ActiveTiles int64
	Start, End  int64 // first tile in to last tile out, from the start of the recording
	CodeBytes   int64 // exchange code of the program on the fullest tile

	Stage Stage
	Role  Role
}

// TileBytes is memory on one tile.
type TileBytes struct {
	Tile  int64
	Bytes int64
}

// variable is an allocation named after a cast.
type variable struct {
	name       string
	total, max int64 // bytes of all tiles, of the fullest tile
}

// Recording is what a profile.pop says.
type Recording struct {
	File         string
	Clock        Clock
	Steps        []Step      // ascending ID
	ExchangeCode []TileBytes // ascending tile
	Memory       []TileBytes // allocated; ascending tile
	Missing      []string    // tables and columns that are not there
	Anomalies    []string    // values that were left out, and other remarks

	casts []variable // ascending name
}

// Read reads a recording. clockHz overrides the clock; 0 takes the recording's, or
// DefaultClockHz if it has none. Errors are one line that starts with the path.
func Read(ctx context.Context, path string, clockHz float64) (*Recording, error) {
	var r report
	d, err := open(ctx, path, &r)
	if err != nil {
		return nil, err
	}
	defer d.close()
	known := []string{"steps", "steps_by_ipu", "programs", "compute_sets", "vars_info", "var_categories", "vars_string_table", "memory_by_tile"}
	if !slices.ContainsFunc(known, func(t string) bool { return d.has(t, "") }) {
		return nil, fmt.Errorf("%s: an SQLite database, but no recording of a known layout: it has none of the tables %s; its tables: %s",
			path, strings.Join(known, ", "), oneLine(cmp.Or(strings.Join(d.tables[:min(len(d.tables), 20)], ", "), "none")))
	}
	rec := &Recording{File: path}
	if err := d.steps(ctx, rec); err != nil {
		return nil, err
	}
	if err := d.memory(ctx, rec); err != nil {
		return nil, err
	}
	if err := d.clock(ctx, rec, clockHz); err != nil {
		return nil, err
	}
	label(rec.Steps)
	rec.Missing, rec.Anomalies = r.lacks, r.anomalies()
	return rec, nil
}

// names reads a table of names by id.
func (d *database) names(ctx context.Context, table, id, name, where string) (map[int64]string, error) {
	m := map[int64]string{}
	err := d.scan(ctx, table, []string{id, name}, where, maxNames, func(v []any) {
		if key := d.report.number(v[0], table+"."+id, maxID); key >= 0 {
			m[key] = d.report.text(v[1], table+"."+name)
		}
	})
	return m, err
}

// steps reads the executed steps with their names and times.
func (d *database) steps(ctx context.Context, rec *Recording) error {
	programs, err := d.names(ctx, "programs", "id", "name", "")
	if err != nil {
		return err
	}
	sets, err := d.names(ctx, "compute_sets", "compute_set", "name", "")
	if err != nil {
		return err
	}
	code, err := d.programCode(ctx)
	if err != nil {
		return err
	}
	index := map[int64]int{}
	err = d.scan(ctx, "steps", []string{"id", "type", "program", "compute_set"}, "", maxSteps, func(v []any) {
		s := Step{ID: d.report.number(v[0], "steps.id", maxID), Type: d.report.text(v[1], "steps.type"),
			Program: d.report.reference(v[2], "steps.program"), ComputeSet: d.report.reference(v[3], "steps.compute_set"),
			Cycles: none, ActiveTiles: none, Start: none, End: none, CodeBytes: none}
		if !d.has("steps", "id") {
			s.ID = int64(len(rec.Steps)) // in the order in which they are stored, and nothing can be joined
		} else if _, twice := index[s.ID]; s.ID < 0 {
			return
		} else if twice {
			d.report.fault("steps.id", "repeated")
			return
		} else {
			index[s.ID] = len(rec.Steps)
		}
		s.Name = cmp.Or(sets[s.ComputeSet], programs[s.Program])
		if bytes, ok := code[s.Program]; ok && s.Type == typeExchange {
			s.CodeBytes = bytes
		}
		rec.Steps = append(rec.Steps, s)
	})
	if err != nil {
		return err
	}
	if err := d.times(ctx, rec.Steps, index); err != nil {
		return err
	}
	slices.SortStableFunc(rec.Steps, func(a, b Step) int { return cmp.Compare(a.ID, b.ID) })
	return nil
}

// interval is when a step ran on one IPU, as stored.
type interval struct {
	step           int
	base, from, to int64
}

// times joins what the IPUs counted. A step of several IPUs lasts from the first to
// the last of them, its cycles are those of the slowest.
func (d *database) times(ctx context.Context, steps []Step, index map[int64]int) error {
	var all []interval
	r := d.report
	const t = "steps_by_ipu"
	err := d.scan(ctx, t, []string{"step_id", "cycles", "active_tiles", "cycles_base", "active_cycles_from_min", "active_cycles_to_max"}, "", 16*maxSteps, func(v []any) {
		id := r.number(v[0], t+".step_id", maxID)
		i, ok := index[id]
		if id < 0 || !ok {
			if id >= 0 && d.has("steps", "id") {
				r.fault(t+".step_id", "no such step")
			}
			return
		}
		s := &steps[i]
		s.Cycles = max(s.Cycles, r.number(v[1], t+".cycles", maxCycles))
		if tiles := r.number(v[2], t+".active_tiles", maxTile); tiles >= 0 {
			s.ActiveTiles = max(s.ActiveTiles, 0) + tiles
		}
		x := interval{i, r.number(v[3], t+".cycles_base", maxCounter), r.number(v[4], t+".active_cycles_from_min", maxCounter), r.number(v[5], t+".active_cycles_to_max", maxCounter)}
		if x.base >= 0 && x.from >= 0 && x.to >= 0 {
			all = append(all, x)
		}
	})
	if err != nil {
		return err
	}
	place(all, steps, r)
	return nil
}

// place sets the start and end of steps, counted from the first start. The names of
// the columns say that the activity is counted from a base; should every step of a
// recording be active at or after its base by the stored numbers themselves, then
// they are absolute, and adding the base again would double every span.
func place(all []interval, steps []Step, r *report) {
	absolute, based := true, false
	for _, x := range all {
		if x.base > 0 {
			based = true
			absolute = absolute && x.from >= x.base
		}
	}
	if absolute = absolute && based; absolute {
		r.note("steps_by_ipu: active cycles are not less than cycles_base anywhere, so they are taken as absolute")
	}
	origin := int64(-1)
	for _, x := range all {
		if x.to < x.from {
			r.fault("steps_by_ipu.active_cycles_to_max", "before active_cycles_from_min")
			continue
		}
		if !absolute {
			x.from, x.to = x.from+x.base, x.to+x.base
		}
		s := &steps[x.step]
		if s.Start < 0 || x.from < s.Start {
			s.Start = x.from
		}
		s.End = max(s.End, x.to)
		if origin < 0 || x.from < origin {
			origin = x.from
		}
	}
	for i := range steps {
		if steps[i].Start >= 0 {
			steps[i].Start -= origin
			steps[i].End -= origin
		}
	}
}

// find returns the first table that has all of some columns.
func (d *database) find(columns ...string) (string, bool) {
	for _, t := range d.tables {
		if !slices.ContainsFunc(columns, func(c string) bool { return !d.has(t, c) }) {
			return t, true
		}
	}
	return "", false
}

// programCode returns the most bytes of code that a program has on a tile. Where a
// recording keeps it is not known; a table that has the columns is taken.
func (d *database) programCode(ctx context.Context) (map[int64]int64, error) {
	code := map[int64]int64{}
	t, ok := d.find("program", "tile", "code_bytes")
	if !ok {
		d.report.missing("exchange code of a program: a table with the columns program, tile and code_bytes")
		return code, nil
	}
	err := d.scan(ctx, t, []string{"program", "code_bytes"}, "", maxVariables, func(v []any) {
		if p, n := d.report.number(v[0], t+".program", maxID), d.report.number(v[1], t+".code_bytes", maxBytes); p >= 0 && n >= 0 {
			code[p] = max(code[p], n)
		}
	})
	return code, err
}

// exchangeCategory is the category of variables that hold exchange rows.
const exchangeCategory = "internalExchangeCode"

// memory reads what is allocated on the tiles.
func (d *database) memory(ctx context.Context, rec *Recording) error {
	// The tile of a row of memory_by_tile is its position, unless it says so.
	columns := []string{"total"}
	if d.has("memory_by_tile", "tile") {
		columns = append(columns, "tile")
	}
	totals := map[int64]int64{}
	row := int64(0)
	err := d.scan(ctx, "memory_by_tile", columns, "", maxTile, func(v []any) {
		tile := row
		if row++; len(v) > 1 {
			tile = d.report.number(v[1], "memory_by_tile.tile", maxTile)
		}
		if n := d.report.number(v[0], "memory_by_tile.total", maxBytes); n >= 0 && tile >= 0 {
			totals[tile] += n
		}
	})
	if err != nil {
		return err
	}
	rec.Memory = byTile(totals)

	categories, err := d.names(ctx, "var_categories", "id", "name", "")
	if err != nil {
		return err
	}
	exchange := int64(none)
	for id, name := range categories {
		if strings.EqualFold(name, exchangeCategory) && (exchange < 0 || id < exchange) {
			exchange = id
		}
	}
	if exchange < 0 {
		d.report.missing("category " + exchangeCategory + " in var_categories")
	}
	if exchange >= 0 && d.has("vars_info", "category") {
		totals := map[int64]int64{}
		err := d.scan(ctx, "vars_info", []string{"tile", "size_bytes"}, fmt.Sprintf(` WHERE "category" = %d`, exchange), maxVariables, func(v []any) {
			tile, n := d.report.number(v[0], "vars_info.tile", maxTile), d.report.number(v[1], "vars_info.size_bytes", maxBytes)
			if tile >= 0 && n >= 0 {
				totals[tile] += n
			}
		})
		if err != nil {
			return err
		}
		rec.ExchangeCode = byTile(totals)
	} else if !d.has("vars_info", "") {
		d.report.missing("table vars_info")
	} else if !d.has("vars_info", "category") {
		d.report.missing("column vars_info.category")
	}
	return d.castOutputs(ctx, rec, categories)
}

func byTile(m map[int64]int64) []TileBytes {
	list := make([]TileBytes, 0, len(m))
	for tile, n := range m {
		list = append(list, TileBytes{tile, n})
	}
	slices.SortFunc(list, func(a, b TileBytes) int { return cmp.Compare(a.Tile, b.Tile) })
	return list
}

// castMark is what the names of the results of casts contain (published analysis).
const castMark = "cast#"

// castOutputs reads the allocations that are results of casts, without the copies
// of them that exchanges make for their messages.
func (d *database) castOutputs(ctx context.Context, rec *Recording, categories map[int64]string) error {
	// Which columns join the two tables is not known, but likely.
	pick := func(table string, names ...string) string {
		for _, n := range names {
			if d.has(table, n) {
				return n
			}
		}
		d.report.missing("column " + table + "." + strings.Join(names, " or "))
		return ""
	}
	if !d.has("vars_string_table", "") {
		d.report.missing("table vars_string_table")
		return nil
	}
	if !d.has("vars_info", "") {
		return nil // reported before
	}
	text, id, name := pick("vars_string_table", "string", "name", "value", "text"), pick("vars_string_table", "id"), pick("vars_info", "name", "name_id", "string", "string_id")
	if text == "" || id == "" || name == "" {
		return nil
	}
	marked := fmt.Sprintf(" WHERE instr(%s, '%s') > 0", quoteName(text), castMark)
	names, err := d.names(ctx, "vars_string_table", id, text, marked)
	if err != nil || len(names) == 0 {
		return err
	}
	type cell struct{ name, tile int64 }
	totals := map[cell]int64{}
	where := fmt.Sprintf(` WHERE %s IN (SELECT %s FROM "vars_string_table" NOT INDEXED%s)`, quoteName(name), quoteName(id), marked)
	columns := []string{name, "tile", "size_bytes"}
	if d.has("vars_info", "category") {
		columns = append(columns, "category")
	}
	err = d.scan(ctx, "vars_info", columns, where, maxVariables, func(v []any) {
		if len(v) > 3 && isMessage(categories[d.report.reference(v[3], "vars_info.category")]) {
			return
		}
		c := cell{d.report.number(v[0], "vars_info."+name, maxID), d.report.number(v[1], "vars_info.tile", maxTile)}
		if n := d.report.number(v[2], "vars_info.size_bytes", maxBytes); n >= 0 && c.name >= 0 && c.tile >= 0 && !isMessage(names[c.name]) {
			totals[c] += n
		}
	})
	if err != nil {
		return err
	}
	byName := map[string]*variable{}
	for c, n := range totals {
		key := names[c.name]
		if byName[key] == nil {
			byName[key] = &variable{name: key}
		}
		byName[key].total += n
		byName[key].max = max(byName[key].max, n)
	}
	for _, v := range byName {
		rec.casts = append(rec.casts, *v)
	}
	slices.SortFunc(rec.casts, func(a, b variable) int { return cmp.Compare(a.name, b.name) })
	return nil
}

func isMessage(s string) bool { return strings.Contains(strings.ToLower(s), "message") }

// clock takes the clock that was asked for, or the first sensible one of a table
// that has a column for it, or the published one.
func (d *database) clock(ctx context.Context, rec *Recording, hz float64) error {
	if hz > 0 {
		rec.Clock = Clock{hz, "as asked for"}
		return nil
	}
	for _, column := range []string{"clock_frequency", "clockfrequency", "tile_clock_frequency"} {
		t, ok := d.find(column)
		if !ok {
			continue
		}
		err := d.scan(ctx, t, []string{column}, "", maxTile, func(v []any) {
			if f := d.report.number(v[0], t+"."+column, 1e10); f >= 1e8 && rec.Clock.Hz == 0 {
				rec.Clock = Clock{float64(f), "recorded"}
			}
		})
		if err != nil || rec.Clock.Hz > 0 {
			return err
		}
	}
	rec.Clock = Clock{DefaultClockHz, "assumed: that of the published recordings"}
	return nil
}
