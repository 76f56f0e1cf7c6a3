package lower

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"ipufarm/compiler/graph"
	"ipufarm/protocol/machine"
)

// Recipe is the choices of one finalist, small enough to print. Lowering it again
// anywhere gives the same program.
type Recipe struct {
	Family string `json:"family"`
	// Tiles is the number of tiles the recipe was planned for.
	Tiles int      `json:"tiles"`
	Steps []Choice `json:"steps"` // one for each step of the model
}

// Check reports whether a recipe, which may come from another process, decides
// every step of a model with numbers that lowering can work with.
func (r *Recipe) Check(m *Model) error {
	if r.Tiles < 1 || r.Tiles > machine.Tiles {
		return fmt.Errorf("recipe: %d tiles, 1 to %d are accepted", r.Tiles, machine.Tiles)
	}
	if len(r.Steps) != len(m.Steps) {
		return fmt.Errorf("recipe: %d steps, the model has %d", len(r.Steps), len(m.Steps))
	}
	whole := m.WholeRows()
	for i := range r.Steps {
		if err := r.Steps[i].check(&m.Steps[i], r.Tiles, whole); err != nil {
			return fmt.Errorf("recipe: step %d: %w", i, err)
		}
	}
	return nil
}

func (c *Choice) check(s *Step, tiles int, whole map[*graph.Value]bool) error {
	grid := func(name string, g *Grid, rows, panels, inner, multiple int) error {
		switch {
		case g == nil:
			return fmt.Errorf("no %s", name)
		case g.M < 1 || g.N < 1 || g.K < 1 || g.Base < 0 || g.Base >= tiles || g.M > tiles || g.N > tiles || g.K > tiles || g.Size() > tiles:
			return fmt.Errorf("%s %v does not fit %d tiles", name, g, tiles)
		case g.M > rows || g.N > panels || g.K > inner || g.N%multiple != 0:
			return fmt.Errorf("%s %v for %d rows, %d column panels (in parts of %d) and %d contraction panels", name, g, rows, panels, multiple, inner)
		}
		return nil
	}
	inner := func(n *Linear) int {
		g := int(grainOf(n.GEMM))
		return (n.Weight.Shape[0] + g - 1) / g
	}
	if n := s.Linear; n != nil {
		if whole[n.Out] && c.Owners == nil {
			return errors.New("no row owners")
		}
		if o := c.Owners; o != nil && (o.PerTile < 1 || o.Stride < 1 || o.Stride > tiles || o.Base < 0 || o.Base >= tiles || (rowsOf(n.GEMM)+o.PerTile-1)/o.PerTile > tiles) {
			return fmt.Errorf("owners %+v for %d rows on %d tiles", *o, rowsOf(n.GEMM), tiles)
		}
		unit := n.ColumnUnit(whole[n.Out])
		return grid("grid", c.Grid, rowsOf(n.GEMM), (n.To-n.From+unit-1)/unit, inner(n), 1)
	}
	a, o := s.Attend, c.Attend
	if a == nil {
		return nil
	}
	width, keys := pad16(a.Width)/16, pad16(a.Keys)/16
	var err error
	if a.Given == nil {
		err = errors.Join(
			grid("grid of Q", c.Q, rowsOf(a.Q.GEMM), a.Heads*width, inner(a.Q), 1),
			grid("grid of K", c.K, rowsOf(a.K.GEMM), a.Heads*width, inner(a.K), 1),
			grid("grid of V", c.V, a.Heads*width*16, a.Batch*keys, inner(a.V), a.Batch))
	}
	if err != nil || o == nil {
		return errors.Join(err, missingIf(o == nil, "score layout"))
	}
	within := func(v, high int) bool { return v >= 1 && v <= high }
	if !within(o.QM, a.Queries) || !within(o.QN, keys) || !within(o.PM, a.Queries) || !within(o.PN, width) || !within(o.PK, keys) ||
		o.QN > 1 && !within(o.Softmax, a.Queries) || min(o.ScoreBase, o.SoftmaxBase, o.ValueBase) < 0 {
		return fmt.Errorf("score layout %+v for %d queries, %d key panels and %d channel panels", *o, a.Queries, keys, width)
	}
	return nil
}

func missingIf(missing bool, what string) error {
	if missing {
		return errors.New("no " + what)
	}
	return nil
}

// Choice is what a recipe decides for one step: Grid for a linear step; Q, K, V
// and Attend for an attention step; Owners for every step whose result is kept
// in whole rows.
type Choice struct {
	// Packed, of a norm, lays its result out in panels on the owners. It costs a
	// kernel, and saves a piece for every row of an owner but the first where the
	// result is received.
	Packed bool    `json:"packed,omitempty"`
	Grid   *Grid   `json:"grid,omitempty"`
	Owners *Owners `json:"owners,omitempty"`
	Q      *Grid   `json:"q,omitempty"`
	K      *Grid   `json:"k,omitempty"`
	V      *Grid   `json:"v,omitempty"`
	Attend *Scores `json:"attend,omitempty"`
}

// Grid spreads a GEMM over M × N × K tiles: parts of the rows, of the columns and
// of the contraction. Tile (m, n, k) is logical tile Base + (m*K + k)*N + n: the
// tiles that need the same activations follow each other, so that with an even N and
// Base they are whole pairs and can be sent 64 bits an event.
type Grid struct {
	M    int `json:"m"`
	N    int `json:"n"`
	K    int `json:"k"`
	Base int `json:"base,omitempty"`
	// Moved keeps the weights once, spread over the tiles that need them, and
	// multicasts them with the activations; otherwise every tile of the grid keeps
	// what it needs. It saves memory where the weights' blocks are on many tiles.
	Moved bool `json:"moved,omitempty"`
}

// Size is the number of tiles of the grid.
func (g Grid) Size() int { return g.M * g.N * g.K }

func (g Grid) String() string { return fmt.Sprintf("%dx%dx%d@%d", g.M, g.N, g.K, g.Base) }

func (g Grid) tile(m, n, k, tiles int) int32 {
	return int32((g.Base + (m*g.K+k)*g.N + n) % tiles)
}

// Owners spreads whole rows over tiles: PerTile rows on a tile, block i on logical
// tile Base + i*Stride.
type Owners struct {
	PerTile int `json:"per_tile"`
	Base    int `json:"base,omitempty"`
	Stride  int `json:"stride"`
}

// Scores is how the products of attention are spread, for each stream (one head of
// one image). Scores are made on QM × QN tiles (parts of the queries and of the
// keys). With QN = 1 softmax works where they are made; otherwise they move to
// Softmax tiles of whole rows. Values are weighted on PM × PN × PK tiles (parts of
// the queries, of the head's channels, of the keys).
type Scores struct {
	QM      int `json:"qm"`
	QN      int `json:"qn"`
	Softmax int `json:"softmax,omitempty"`
	PM      int `json:"pm"`
	PN      int `json:"pn"`
	PK      int `json:"pk"`
	// Bases of the three groups of tiles; stream s starts s group sizes further on.
	ScoreBase   int `json:"score_base,omitempty"`
	SoftmaxBase int `json:"softmax_base,omitempty"`
	ValueBase   int `json:"value_base,omitempty"`
}

// RandomRecipe decides every step at random, within what Check accepts: lowering has
// to be right for recipes that no planner would choose, too.
func RandomRecipe(rng *rand.Rand, m *Model, tiles int) Recipe {
	whole := m.WholeRows()
	grid := func(rows, panels, inner, multiple int) *Grid {
		for {
			g := Grid{M: 1 + rng.IntN(min(rows, 6)), N: multiple * (1 + rng.IntN(min(panels/multiple, 10))), K: 1 + rng.IntN(min(inner, 5)),
				Base: rng.IntN(tiles), Moved: rng.IntN(2) == 0}
			if g.Size() <= tiles {
				return &g
			}
		}
	}
	inner := func(n *Linear) int { return (n.Weight.Shape[0] + int(grainOf(n.GEMM)) - 1) / int(grainOf(n.GEMM)) }
	r := Recipe{Family: "random", Tiles: tiles, Steps: make([]Choice, len(m.Steps))}
	for i := range m.Steps {
		c := &r.Steps[i]
		switch s := &m.Steps[i]; {
		case s.Norm != nil:
			c.Packed = rng.IntN(2) == 0
		case s.Linear != nil:
			n := s.Linear
			unit := n.ColumnUnit(whole[n.Out])
			c.Grid = grid(rowsOf(n.GEMM), (n.To-n.From+unit-1)/unit, inner(n), 1)
			c.Owners = &Owners{PerTile: 1 + rng.IntN(3), Base: rng.IntN(tiles), Stride: 1}
		default:
			a := s.Attend
			width, keys := pad16(a.Width)/16, pad16(a.Keys)/16
			if a.Given == nil {
				c.Q = grid(rowsOf(a.Q.GEMM), a.Heads*width, inner(a.Q), 1)
				c.K = grid(rowsOf(a.K.GEMM), a.Heads*width, inner(a.K), 1)
				c.V = grid(a.Heads*width*16, a.Batch*keys, inner(a.V), a.Batch)
			}
			c.Attend = &Scores{QM: 1 + rng.IntN(min(a.Queries, 3)), QN: 1 + rng.IntN(keys), Softmax: 1 + rng.IntN(min(a.Queries, 4)),
				PM: 1 + rng.IntN(min(a.Queries, 3)), PN: 1 + rng.IntN(width), PK: 1 + rng.IntN(keys),
				ScoreBase: rng.IntN(tiles), SoftmaxBase: rng.IntN(tiles), ValueBase: rng.IntN(tiles)}
		}
	}
	return r
}
