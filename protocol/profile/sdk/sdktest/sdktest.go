// Package sdktest makes recordings for tests: SQLite files with the tables of a
// profile.pop, filled from the rows that the published "SDK ONNX profile analysis"
// (2026-09-07) gives for two recordings of SigLIP So400m on a C600. What it does not
// give, like the steps between, is made up.
package sdktest

import (
	"database/sql"
	"fmt"
	"testing"

	_ "modernc.org/sqlite" // the driver
)

// Row is a published step of the first shared body.
type Row struct {
	Step   int // absolute id in the first inference
	Kind   string
	Name   string // of the compute set or, of an exchange, of the program
	Cycles int
	Tiles  int
	Code   int // exchange code on the fullest tile
}

// Memory is bytes over tiles.
type Memory struct{ Mean, Max int }

// Model is a recording to make.
type Model struct {
	Blocks    int
	Tiles     int
	Body      []Row // ascending Step
	BodySteps int   // from one execution of the body to the next; what Body leaves out is Sync
	FirstSet  int   // compute set of the first step of Body that executes something
	Spans     []int // device cycles of each inference
	Code      Memory
	Allocated Memory
	Casts     []CastOutput
	ClockHz   int // 0: not recorded
}

// CastOutput is what a cast allocates.
type CastOutput struct {
	Name       string
	Tiles      int
	Max, Total int
}

const block = "/visual/trunk/blocks/blocks.0/"

// FullFP8 is the recording of the model whose GEMMs are all FP8. QK is step 140,
// compute set 38.
func FullFP8() *Model {
	return &Model{
		Blocks: 27, Tiles: 1472, BodySteps: 200, FirstSet: 33, Spans: []int{17_886_945, 17_804_824},
		Code: Memory{15_529, 36_696}, Allocated: Memory{487_748, 540_950}, ClockHz: 1_850_000_000,
		Body: []Row{
			{90, "DoExchange", block + "attn/qkv/MatMul/Cast/ExchangePre", 260, 1472, 120},
			{95, "OnTileExecute", block + "attn/qkv/MatMul/Cast/Cast1D", 548, 1440, 0},
			{97, "DoExchange", "", 1_450, 1472, 324},
			{99, "OnTileExecute", block + "attn/qkv/MatMul/1802/matmulGrouped/Conv_1/Convolve", 22_415, 1472, 0},
			{116, "OnTileExecute", block + "attn/MatMul_1/v/Cast/Cast1D", 824, 492, 0},
			{121, "OnTileExecute", block + "attn/MatMul/q/Cast/Cast1D", 824, 491, 0},
			{127, "OnTileExecute", block + "attn/MatMul/k/Cast/Cast1D", 824, 491, 0},
			{138, "DoExchange", "", 612, 1472, 248},
			{140, "OnTileExecute", block + "attn/MatMul/1811/matmulGrouped/Conv_1/Convolve", 5_502, 1472, 0},
			{142, "DoExchange", "", 4_477, 1472, 7_372},
			{144, "OnTileExecute", block + "attn/Softmax/OnTileCopy", 126_283, 1458, 0},
			{145, "OnTileExecute", block + "attn/Softmax/OnTileCopy-2", 2_936, 1458, 0},
			{146, "OnTileExecute", block + "attn/Softmax/max/Reduce0", 3_200, 1458, 0},
			{147, "OnTileExecute", block + "attn/Softmax/Subtract", 2_700, 1458, 0},
			{148, "OnTileExecute", block + "attn/Softmax/Exp", 3_100, 1458, 0},
			{149, "OnTileExecute", block + "attn/Softmax/sum/Reduce0", 3_000, 1458, 0},
			{150, "OnTileExecute", block + "attn/Softmax/sum/Reduce1", 600, 1458, 0},
			{151, "OnTileExecute", block + "attn/Softmax/Inverse", 900, 1458, 0},
			{152, "OnTileExecute", block + "attn/Softmax/Multiply", 4_800, 1458, 0},
			{153, "OnTileExecute", block + "attn/MatMul_1/p/Cast/PreArrange", 1_772, 1458, 0},
			{155, "OnTileExecute", block + "attn/MatMul_1/p/Cast/Cast2D", 3_343, 1458, 0},
			{157, "OnTileExecute", block + "attn/MatMul_1/p/Cast/PostArrange", 52_333, 1458, 0},
			{158, "OnTileExecute", block + "attn/MatMul_1/p/Cast/PostArrange-2", 547, 1458, 0},
			{160, "OnTileExecute", block + "attn/MatMul_1/OnTileCopy", 27_832, 1472, 0},
			{161, "OnTileExecute", block + "attn/MatMul_1/OnTileCopy-2", 24_722, 1472, 0},
			{162, "OnTileExecute", block + "attn/MatMul_1/OnTileCopy-3", 13_165, 1472, 0},
			{164, "OnTileExecute", block + "attn/MatMul_1/1820/PreArrange", 56_986, 1472, 0},
			{170, "DoExchange", "", 1_900, 1472, 2_212},
			{172, "OnTileExecute", block + "attn/MatMul_1/1820/matmulGrouped/Conv_1/Convolve", 7_377, 1472, 0},
			{190, "OnTileExecute", block + "attn/proj/MatMul/1830/matmulGrouped/Conv_1/Convolve", 8_178, 1472, 0},
			{240, "OnTileExecute", block + "mlp/fc1/MatMul/Cast/Cast1D", 548, 1440, 0},
			{245, "OnTileExecute", block + "mlp/fc1/MatMul/1840/matmulGrouped/Conv_1/Convolve", 26_425, 1472, 0},
			{250, "OnTileExecute", block + "mlp/act/Gelu", 2_100, 1464, 0},
			{273, "OnTileExecute", block + "mlp/fc2/MatMul/Cast/Cast1D", 932, 1464, 0},
			{274, "DoExchange", "", 887, 1464, 300},
			{275, "OnTileExecute", block + "mlp/fc2/MatMul/OnTileCopy", 3_123, 1464, 0},
			{277, "DoExchange", "", 2_000, 1472, 400},
			{280, "OnTileExecute", block + "mlp/fc2/MatMul/1850/matmulGrouped/Conv_1/Convolve", 28_265, 1472, 0},
			{285, "OnTileExecute", block + "Add_1/Add", 500, 1458, 0},
		},
		Casts: []CastOutput{
			{block + "attn/qkv/MatMul/cast#1", 1440, 592, 839_808},
			{block + "attn/MatMul/q/cast#1", 491, 1_712, 839_808},
			{block + "attn/MatMul/k/cast#1", 491, 1_712, 839_808},
			{block + "attn/MatMul_1/v/cast#1", 492, 1_712, 839_808},
			{block + "attn/MatMul_1/p/cast#1", 1458, 5_832, 1458 * 5_832},
			{block + "mlp/fc1/MatMul/cast#1", 1440, 592, 839_808},
			{block + "mlp/fc2/MatMul/cast#1", 1464, 2_144, 3_137_616},
		},
	}
}

// Weights is the recording of the model that stores FP8 weights and computes in F16.
// QK is step 121, compute set 28.
func Weights() *Model {
	return &Model{
		Blocks: 27, Tiles: 1472, BodySteps: 190, FirstSet: 26, Spans: []int{15_987_664, 15_987_659},
		Code: Memory{15_603, 37_092}, Allocated: Memory{550_544, 596_494},
		Body: []Row{
			{80, "DoExchange", "", 1_800, 1472, 164},
			{85, "OnTileExecute", block + "attn/qkv/b_cast/Cast2D", 2_000, 1472, 0},
			{88, "OnTileExecute", block + "attn/qkv/MatMul/1574/matmulGrouped/Conv_1/Convolve", 37_277, 1472, 0},
			{119, "DoExchange", "", 700, 1472, 248},
			{121, "OnTileExecute", block + "attn/MatMul/1583/matmulGrouped/Conv_1/Convolve", 8_488, 1472, 0},
			{123, "DoExchange", "", 4_477, 1472, 7_372},
			{125, "OnTileExecute", block + "attn/Softmax/OnTileCopy", 126_283, 1458, 0},
			{126, "OnTileExecute", block + "attn/Softmax/OnTileCopy-2", 2_936, 1458, 0},
			{128, "OnTileExecute", block + "attn/Softmax/Exp", 18_300, 1458, 0},
			{150, "OnTileExecute", block + "attn/MatMul_1/1592/matmulGrouped/Conv_1/Convolve", 12_900, 1472, 0},
			{170, "OnTileExecute", block + "attn/proj/MatMul/1601/matmulGrouped/Conv_1/Convolve", 14_153, 1472, 0},
			{220, "OnTileExecute", block + "mlp/fc1/MatMul/1610/matmulGrouped/Conv_1/Convolve", 48_248, 1472, 0},
			{260, "OnTileExecute", block + "mlp/fc2/MatMul/1619/matmulGrouped/Conv_1/Convolve", 52_187, 1472, 0},
		},
	}
}

// Small is a recording of two blocks on four tiles, for what is then damaged.
func Small() *Model {
	m := FullFP8()
	m.Blocks, m.Tiles, m.Spans = 2, 4, []int{1_500_000}
	m.Code, m.Allocated, m.Casts = Memory{100, 130}, Memory{1000, 1300}, nil
	return m
}

// writer fills a database.
type writer struct {
	t      testing.TB
	tx     *sql.Tx
	step   int
	base   int64 // cycle counter
	byName map[string]int
	next   map[string]int
}

func (w *writer) exec(query string, args ...any) {
	w.t.Helper()
	if _, err := w.tx.Exec(query, args...); err != nil {
		w.t.Fatalf("%s: %v", query, err)
	}
}

// id returns the number of a program or compute set, which it adds if it is new.
func (w *writer) id(table, key, name string) int {
	id, ok := w.byName[key]
	if !ok {
		id = w.next[table]
		w.next[table]++
		w.byName[key] = id
		w.exec("INSERT INTO "+table+" VALUES (?, ?)", id, name)
	}
	return id
}

// add adds a step that is active for some cycles after a gap. key tells programs
// apart that have no name.
func (w *writer) add(kind, key, name string, cycles, tiles, code, gap int) {
	const entered = 7 // the first tile is active so long after the base
	w.base += int64(gap)
	var program, set any
	switch kind {
	case "OnTileExecute":
		program, set = w.id("programs", "execute "+key, "OnTileExecute"), w.id("compute_sets", key, name)
	case "DoExchange":
		program = w.id("programs", "exchange "+key, name)
	default:
		program = w.id("programs", kind, kind)
	}
	w.exec("INSERT INTO steps VALUES (?, ?, ?, ?)", w.step, kind, program, set)
	w.exec("INSERT INTO steps_by_ipu VALUES (?, 0, ?, ?, ?, ?, ?)", w.step, cycles, tiles, w.base, entered, entered+cycles)
	if code > 0 {
		w.exec("INSERT OR IGNORE INTO program_code VALUES (?, 0, ?)", program, code)
		w.exec("INSERT OR IGNORE INTO program_code VALUES (?, 1, ?)", program, code/2)
	}
	w.base += int64(entered + cycles)
	w.step++
}

func (w *writer) fill(until int) {
	for w.step < until {
		w.add("Sync", "", "", 40, 0, 0, 0)
	}
}

// inference adds one whose first body begins at a step: delivery of the input, the
// model, which spans exactly as many device cycles as asked, streaming of the output.
func (w *writer) inference(m *Model, until, span int) {
	w.add("StreamCopyBegin", "", "", 9_000_000, 1, 0, 0) // the host lets the device wait
	w.add("StreamCopyEnd", "", "", 500, 1, 0, 0)
	w.add("OnTileExecute", "unpack input", "/visual/trunk/patch_embed/OnTileCopy", 3_000, 1472, 0, 0)
	start := w.base + 7
	w.add("DoExchange", "embedding", "", 900, 1472, 80, 0)
	w.add("OnTileExecute", "embedding", "/visual/trunk/patch_embed/proj/Conv/Convolve", 15_000, 1472, 0, 0)
	w.fill(until)
	for b := range m.Blocks {
		for i, r := range m.Body {
			w.fill(until + b*m.BodySteps + r.Step - m.Body[0].Step)
			w.add(r.Kind, fmt.Sprint("body ", i), r.Name, r.Cycles, r.Tiles, r.Code, 0)
		}
	}
	w.add("DoExchange", "pool", "", 700, 1472, 90, 0)
	const last = 4_000
	gap := start + int64(span) - int64(last) - 7 - w.base
	if gap < 0 {
		w.t.Fatalf("a span of %d cycles is too short by %d", span, -gap)
	}
	w.add("OnTileExecute", "pool", "/visual/trunk/attn_pool/proj/MatMul/9/matmulGrouped/Conv_1/Convolve", last, 1472, 0, int(gap))
	w.add("Sync", "", "", 60, 0, 0, 0)
	w.add("StreamCopyBegin", "", "", 700_000, 1, 0, 0)
	w.add("StreamCopyEnd", "", "", 500, 1, 0, 0)
}

// spread returns the bytes of each of some tiles: the first has the most, the
// others share the rest evenly.
func spread(tiles, most, total int) []int {
	list := make([]int, tiles)
	list[0] = most
	for i := 1; i < tiles; i++ {
		list[i] = (total - most) / (tiles - 1)
		if i <= (total-most)%(tiles-1) {
			list[i]++
		}
	}
	return list
}

const schema = `
CREATE TABLE programs (id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE compute_sets (compute_set INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE steps (id INTEGER PRIMARY KEY, type TEXT, program INTEGER, compute_set INTEGER);
CREATE TABLE steps_by_ipu (step_id INTEGER, ipu INTEGER, cycles INTEGER, active_tiles INTEGER, cycles_base INTEGER, active_cycles_from_min INTEGER, active_cycles_to_max INTEGER);
CREATE TABLE program_code (program INTEGER, tile INTEGER, code_bytes INTEGER, PRIMARY KEY (program, tile));
CREATE TABLE var_categories (id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE vars_string_table (id INTEGER PRIMARY KEY, string TEXT);
CREATE TABLE vars_info (tile INTEGER, category INTEGER, size_bytes INTEGER, name INTEGER);
CREATE TABLE memory_by_tile (tile INTEGER, total INTEGER);
CREATE TABLE target (num_tiles INTEGER, clock_frequency INTEGER);
INSERT INTO var_categories VALUES (1, 'variable'), (2, 'internalExchangeCode'), (3, 'message');
INSERT INTO vars_string_table VALUES (0, 'exchange code'), (1, 'weights');`

// memory fills the tables of variables and tiles.
func (w *writer) memory(m *Model) {
	for tile, n := range spread(m.Tiles, m.Allocated.Max, m.Allocated.Mean*m.Tiles) {
		w.exec("INSERT INTO memory_by_tile VALUES (?, ?)", tile, n)
	}
	for tile, n := range spread(m.Tiles, m.Code.Max, m.Code.Mean*m.Tiles) {
		w.exec("INSERT INTO vars_info VALUES (?, 2, ?, 0)", tile, n/2)
		w.exec("INSERT INTO vars_info VALUES (?, 2, ?, 0)", tile, n-n/2)
		w.exec("INSERT INTO vars_info VALUES (?, 1, 4096, 1)", tile)
	}
	for i, c := range m.Casts {
		id := 2 + i
		w.exec("INSERT INTO vars_string_table VALUES (?, ?)", id, c.Name)
		for tile, n := range spread(c.Tiles, c.Max, c.Total) {
			w.exec("INSERT INTO vars_info VALUES (?, 1, ?, ?)", tile, n, id)
		}
		w.exec("INSERT INTO vars_info VALUES (0, 3, 100000, ?)", id) // a copy for an exchange
	}
	if m.ClockHz > 0 {
		w.exec("INSERT INTO target VALUES (?, ?)", m.Tiles, m.ClockHz)
	}
}

// Write makes the recording and then runs statements on it, to damage it.
func Write(t testing.TB, path string, m *Model, after ...string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	w := &writer{t: t, tx: tx, base: 3_000_000_000, byName: map[string]int{}, next: map[string]int{}}
	w.exec(schema)
	w.next["compute_sets"] = 3
	// The setup run: weights arrive and are rearranged.
	w.add("StreamCopyBegin", "", "", 40_000_000, 1, 0, 0)
	w.add("StreamCopyEnd", "", "", 500, 1, 0, 0)
	w.add("DoExchange", "weights", "", 5_000, 1472, 60, 0)
	for i := range 3 {
		w.add("OnTileExecute", fmt.Sprint("weights ", i), "/weights/OnTileCopy", 80_000, 1472, 0, 0)
	}
	// Sets before those of the body, so that their numbers are the published ones.
	for w.next["compute_sets"] < m.FirstSet-2 {
		w.exec("INSERT INTO compute_sets VALUES (?, 'unused')", w.next["compute_sets"])
		w.next["compute_sets"]++
	}
	lead := m.Body[0].Step - w.step // from the start of an inference to its first body
	for _, span := range m.Spans {
		w.inference(m, w.step+lead, span)
	}
	w.memory(m)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	for _, statement := range after {
		if _, err := db.Exec(statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}
