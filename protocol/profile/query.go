package profile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Query selects samples and groups them. Only the cycles inside the crop count.
type Query struct {
	GroupBy   string // kernel, phase, operation, tile or kind
	Kernel    string // only this kernel; empty: all
	Operation string // only operations that contain this text; empty: all
	Kind      string // only this kind of step; empty: all
	Phase     int    // only this phase; negative: all
	Tile      int    // only this physical tile; negative: all
	Top       int    // at most this many groups, largest first; 0: all
}

// GroupKeys are what a query can group by.
var GroupKeys = []string{"kernel", "phase", "operation", "tile", "kind"}

// QueryRow is one group.
type QueryRow struct {
	Group        string  `json:"group"`
	Count        int     `json:"count"`             // samples
	Tiles        int     `json:"tiles"`             // with at least one sample
	TotalCycles  uint64  `json:"total_cycles"`      // of all tiles
	MaxCycles    uint64  `json:"max_sample_cycles"` // longest sample
	MaxOnTile    uint64  `json:"max_tile_cycles"`   // most on one tile
	SlowestTile  uint32  `json:"slowest_tile"`      // that tile
	Share        float64 `json:"share"`             // of all cycles of all tiles
	ByKind       Kinds   `json:"by_kind"`           // TotalCycles, split
	onTile       uint64  // of the tile being read
	lastSeenTile int     // index of the tile that onTile belongs to, plus 1
}

// check reports what is wrong with a query.
func (q *Query) check() error {
	if !slices.Contains(GroupKeys, q.GroupBy) {
		return fmt.Errorf("cannot group by %q, want one of %s", q.GroupBy, strings.Join(GroupKeys, ", "))
	}
	if q.Kind != "" && q.Kind != KindExchange.String() && q.Kind != KindCompute.String() &&
		q.Kind != KindSynchronization.String() && q.Kind != KindIdle.String() {
		return fmt.Errorf("unknown kind %q, want compute, exchange, synchronization or idle", q.Kind)
	}
	if q.Top < 0 {
		return fmt.Errorf("top %d, want 0 (all groups) or more", q.Top)
	}
	return nil
}

func (q *Query) selects(tile uint32, s *Step) bool {
	return (q.Tile < 0 || uint32(q.Tile) == tile) &&
		(q.Phase < 0 || uint32(q.Phase) == s.Phase) &&
		(q.Kernel == "" || q.Kernel == s.Kernel) &&
		(q.Kind == "" || q.Kind == s.Kind.String()) &&
		(q.Operation == "" || strings.Contains(s.Operation, q.Operation))
}

// Query returns the groups by falling TotalCycles, then by name.
func (p *Profile) Query(q Query) ([]QueryRow, error) {
	if err := q.check(); err != nil {
		return nil, err
	}
	x := p.splitter()
	var rows []QueryRow
	byText := map[string]int{}
	byNumber := map[uint32]int{} // spares a text for every sample
	for i := range p.Tiles {
		tile := p.Tiles[i].PhysicalTile
		for j := range p.Tiles[i].Samples {
			s := &p.Tiles[i].Samples[j]
			if !q.selects(tile, &s.Step) {
				continue
			}
			var k int
			switch q.GroupBy {
			case "kernel":
				k = group(&rows, byText, s.Step.Kernel, func(name string) string { return cmp.Or(name, "(no kernel)") })
			case "operation":
				k = group(&rows, byText, s.Step.Operation, func(name string) string { return cmp.Or(name, "(no operation)") })
			case "phase":
				k = group(&rows, byNumber, s.Step.Phase, func(n uint32) string { return fmt.Sprintf("phase %d", n) })
			case "tile":
				k = group(&rows, byNumber, tile, TileName)
			case "kind":
				k = group(&rows, byNumber, uint32(s.Step.Kind), func(n uint32) string { return StepKind(n).String() })
			}
			rows[k].add(i, tile, x.split(s))
		}
	}
	all := uint64(x.end-x.start) * uint64(len(p.Tiles))
	for i := range rows {
		rows[i].Share = float64(rows[i].TotalCycles) / float64(max(all, 1))
	}
	slices.SortFunc(rows, func(a, b QueryRow) int {
		return cmp.Or(cmp.Compare(b.TotalCycles, a.TotalCycles), cmp.Compare(a.Group, b.Group))
	})
	if q.Top > 0 && len(rows) > q.Top {
		rows = rows[:q.Top]
	}
	return rows, nil
}

// group returns the index of a key's row, which it adds if it is new.
func group[K comparable](rows *[]QueryRow, index map[K]int, key K, name func(K) string) int {
	k, ok := index[key]
	if !ok {
		k = len(*rows)
		index[key] = k
		*rows = append(*rows, QueryRow{Group: name(key)})
	}
	return k
}

// add adds a sample of the i-th tile.
func (r *QueryRow) add(i int, tile uint32, k Kinds) {
	cycles := k.Total()
	r.Count++
	r.TotalCycles += cycles
	r.MaxCycles = max(r.MaxCycles, cycles)
	r.ByKind.plus(k)
	if r.lastSeenTile != i+1 {
		r.lastSeenTile, r.onTile = i+1, 0
		r.Tiles++
	}
	r.onTile += cycles
	if r.onTile > r.MaxOnTile || r.Tiles == 1 {
		r.MaxOnTile, r.SlowestTile = r.onTile, tile
	}
}

// OperationDiff is how many cycles of the critical path an operation has in two
// runs.
type OperationDiff struct {
	Operation string `json:"operation"`
	A         Kinds  `json:"a"`
	B         Kinds  `json:"b"`
	Delta     int64  `json:"delta"` // B less A, in cycles
}

// Diff says where the cycles went between two runs: the critical path of each by
// operation. The deltas sum to the difference of the two Cycles. Rows come by
// falling size of their delta, then by name.
func Diff(a, b *Profile) []OperationDiff {
	var rows []OperationDiff
	index := map[string]int{}
	for _, side := range []struct {
		p    *Profile
		pick func(*OperationDiff) *Kinds
	}{
		{a, func(d *OperationDiff) *Kinds { return &d.A }},
		{b, func(d *OperationDiff) *Kinds { return &d.B }},
	} {
		for _, s := range side.p.CriticalPath() {
			name := "(no sample)"
			if s.Step != nil {
				name = cmp.Or(s.Step.Operation, "(no operation)")
			}
			k, ok := index[name]
			if !ok {
				k = len(rows)
				index[name] = k
				rows = append(rows, OperationDiff{Operation: name})
			}
			side.pick(&rows[k]).plus(s.Kinds())
		}
	}
	for i := range rows {
		rows[i].Delta = int64(rows[i].B.Total()) - int64(rows[i].A.Total())
	}
	slices.SortFunc(rows, func(x, y OperationDiff) int {
		return cmp.Or(cmp.Compare(max(y.Delta, -y.Delta), max(x.Delta, -x.Delta)), cmp.Compare(x.Operation, y.Operation))
	})
	return rows
}
