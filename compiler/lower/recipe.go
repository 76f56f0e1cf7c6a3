package lower

import "fmt"

// Recipe is the choices of one finalist, small enough to print. Lowering it again
// anywhere gives the same program.
type Recipe struct {
	Family string `json:"family"`
	// Tiles is the number of tiles the recipe was planned for.
	Tiles int      `json:"tiles"`
	Steps []Choice `json:"steps"` // one for each step of the model
}

// Choice is what a recipe decides for one step: Grid for a linear step; Q, K, V
// and Attend for an attention step; Owners for every step whose result is kept
// in whole rows.
type Choice struct {
	Grid   *Grid   `json:"grid,omitempty"`
	Owners *Owners `json:"owners,omitempty"`
	Q      *Grid   `json:"q,omitempty"`
	K      *Grid   `json:"k,omitempty"`
	V      *Grid   `json:"v,omitempty"`
	Attend *Scores `json:"attend,omitempty"`
}

// Grid spreads a GEMM over M × N × K tiles: parts of the rows, of the columns and
// of the contraction. Tile (m, n, k) is logical tile Base + (m*N + n)*K + k.
type Grid struct {
	M    int `json:"m"`
	N    int `json:"n"`
	K    int `json:"k"`
	Base int `json:"base,omitempty"`
}

// Size is the number of tiles of the grid.
func (g Grid) Size() int { return g.M * g.N * g.K }

func (g Grid) String() string { return fmt.Sprintf("%dx%dx%d@%d", g.M, g.N, g.K, g.Base) }

func (g Grid) tile(m, n, k, tiles int) int32 {
	return int32((g.Base + (m*g.N+n)*g.K + k) % tiles)
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
