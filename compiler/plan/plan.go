// Package plan chooses how a model is spread over the tiles. It proposes complete
// recipes, prices each by sketching its lowering, and returns a ranked shortlist
// of finalists that differ in kind, so that when the fastest does not fit, the
// next one is not its twin.
//
// The search is a coordinate descent: from a starting recipe of each family, one
// step's choice after another is replaced by the candidate that lowers the price
// of the whole recipe. Effort is a count of sketches, never seconds, so the same
// spec gives the same shortlist everywhere.
package plan

import (
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"sort"
	"sync"

	"ipufarm/compiler/lower"
)

// Finalist is one entry of a shortlist.
type Finalist struct {
	Rank   int          `json:"rank"`
	Family string       `json:"family"`
	Recipe lower.Recipe `json:"recipe"`
	// Cost is the planner's estimate, in modelled cycles and bytes.
	Cost lower.Cost `json:"cost"`
	// LowerBound is a bound on the modelled cycles that no schedule of the recipe
	// can beat; the farm prunes by it.
	LowerBound int64 `json:"lower_bound_cycles"`
}

// Options bound a search.
type Options struct {
	Tiles     int
	Finalists int // length of the shortlist
	Effort    int // sketches for each family
}

// DefaultEffort is the number of sketches a family may take.
const DefaultEffort = 400

// Search returns the shortlist, fastest estimate first.
func Search(m *lower.Model, o Options, progress func(string)) ([]Finalist, error) {
	if o.Effort == 0 {
		o.Effort = DefaultEffort
	}
	if o.Finalists == 0 {
		o.Finalists = 8
	}
	families := familiesOf(m, o.Tiles)
	results := make([]map[string]*entry, len(families))
	errs := make([]error, len(families))
	var wg sync.WaitGroup
	limit := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i, f := range families {
		wg.Add(1)
		go func() {
			defer wg.Done()
			limit <- struct{}{}
			defer func() { <-limit }()
			s := &search{model: m, options: o, family: f, seen: map[string]*entry{}}
			errs[i] = s.search()
			results[i] = s.seen
			if progress != nil {
				progress(fmt.Sprintf("family %s: %d recipes priced", f.name, len(s.seen)))
			}
		}()
	}
	wg.Wait()
	var all []*entry
	taken := map[string]bool{}
	for i := range families {
		if errs[i] != nil {
			return nil, errs[i]
		}
		keys := make([]string, 0, len(results[i]))
		for k := range results[i] {
			keys = append(keys, k)
		}
		sort.Strings(keys)
		for _, k := range keys {
			if !taken[k] {
				taken[k] = true
				all = append(all, results[i][k])
			}
		}
	}
	return shortlist(all, o.Finalists), nil
}

// entry is a priced recipe.
type entry struct {
	key    string
	family string
	recipe lower.Recipe
	cost   *lower.Cost
	sketch *lower.Sketch // only while the descent stands on it
}

// better orders entries: what fits first, then cycles, then tables, then the key.
func better(x, y *entry) bool {
	if fx, fy := x.cost.Fits(), y.cost.Fits(); fx != fy {
		return fx
	}
	if !x.cost.Fits() && x.cost.Live != y.cost.Live {
		return x.cost.Live < y.cost.Live
	}
	if x.cost.Cycles != y.cost.Cycles {
		return x.cost.Cycles < y.cost.Cycles
	}
	if x.cost.TableBytes != y.cost.TableBytes {
		return x.cost.TableBytes < y.cost.TableBytes
	}
	return x.key < y.key
}

// shortlist keeps of each family the fastest, the one with the smallest tables and
// the one that needs least memory, and fills up by latency.
func shortlist(all []*entry, n int) []Finalist {
	sort.Slice(all, func(i, j int) bool { return better(all[i], all[j]) })
	byFamily := map[string][]*entry{}
	var names []string
	for _, e := range all {
		if byFamily[e.family] == nil {
			names = append(names, e.family)
		}
		byFamily[e.family] = append(byFamily[e.family], e)
	}
	chosen := map[string]*entry{}
	keep := func(e *entry) {
		if len(chosen) < n {
			chosen[e.key] = e
		}
	}
	// One round over the families for each virtue, best family first.
	for _, f := range names {
		keep(byFamily[f][0])
	}
	for _, f := range names {
		keep(least(byFamily[f], func(c *lower.Cost) int64 { return int64(c.Live) }))
	}
	for _, f := range names {
		keep(least(byFamily[f], func(c *lower.Cost) int64 { return int64(c.TableBytes) }))
	}
	for _, e := range all {
		keep(e)
	}
	var list []*entry
	for _, e := range chosen {
		list = append(list, e)
	}
	sort.Slice(list, func(i, j int) bool { return better(list[i], list[j]) })
	out := make([]Finalist, len(list))
	for i, e := range list {
		out[i] = Finalist{Rank: i, Family: e.family, Recipe: e.recipe, Cost: *e.cost, LowerBound: e.cost.Bound}
	}
	return out
}

// least is the entry of smallest value among those not much slower than the best.
func least(list []*entry, value func(*lower.Cost) int64) *entry {
	best := list[0]
	for _, e := range list {
		if e.cost.Cycles*4 <= list[0].cost.Cycles*5 && value(e.cost) < value(best.cost) {
			best = e
		}
	}
	return best
}

// search is one family's descent.
type search struct {
	model   *lower.Model
	options Options
	family  family
	seen    map[string]*entry
	spent   int
}

// price sketches a whole recipe once.
func (s *search) price(r lower.Recipe) (*entry, error) {
	layTiles(s.model, &r)
	text, err := json.Marshal(r.Steps) // two families may arrive at one recipe
	if err != nil {
		return nil, err
	}
	key := string(text)
	if e := s.seen[key]; e != nil && e.sketch != nil {
		return e, nil
	}
	s.spent++
	sketch, err := lower.NewSketch(s.model, &r)
	if err != nil {
		return nil, err
	}
	e := &entry{key: key, family: s.family.name, recipe: r, cost: &sketch.Cost, sketch: sketch}
	s.seen[key] = e
	return e, nil
}

// choice is a candidate of a class of steps with its window's price.
type choice struct {
	lower.Choice
	price float64
}

// search finds the price of memory at which the family's first guess fits, descends
// from there, and again at twice the price as long as the outcome does not fit.
func (s *search) search() error {
	rounds := leanRounds
	for ; rounds > 1; rounds-- {
		start, _ := s.family.start(s.model, s.options.Tiles)
		e, err := s.price(start)
		if err != nil {
			return err
		}
		if e.sketch = nil; e.cost.Fits() {
			break
		}
		s.family.lean *= 2
	}
	for ; rounds > 0; rounds-- {
		s.spent = 0
		best, err := s.descend()
		if err != nil || best.cost.Fits() {
			return err
		}
		s.family.lean *= 2
	}
	return nil
}

// leanRounds bounds how often the price of memory doubles.
const leanRounds = 8

// descend improves one class of steps after another until nothing changes or the
// effort is spent. Steps of equal shape (the layers of an encoder) change together.
// Then the runners-up of each class are priced in full, to give the shortlist
// something to choose from.
func (s *search) descend() (*entry, error) {
	classes := classesOf(s.model)
	start, candidates := s.family.start(s.model, s.options.Tiles)
	best, err := s.price(start)
	if err != nil {
		return nil, err
	}
	second := make([]*choice, len(classes))
	// A class is ranked again only if a neighbour, whose layout its window sees, chose
	// anew since.
	clock, ranked, changed := 1, make([]int, len(classes)), make([]int, len(classes))
	stale := func(i int) bool {
		near := changed[max(i-1, 0) : min(i+1, len(classes)-1)+1]
		return ranked[i] == 0 || slices.Max(near) > ranked[i]
	}
	for improved := true; improved && s.spent < s.options.Effort; {
		improved = false
		for i, class := range classes {
			if len(candidates[class[0]]) == 1 || !stale(i) {
				continue
			}
			order, err := s.rank(best, class, candidates[class[0]])
			if err != nil {
				return nil, err
			}
			if len(order) == 0 {
				continue
			}
			ranked[i] = clock
			if len(order) > 1 {
				second[i] = &order[1]
			}
			e, err := s.price(with(best.recipe, class, order[0].Choice))
			if err != nil {
				return nil, err
			}
			if e == best {
				continue
			}
			if s.better(e, best) {
				clock++
				changed[i] = clock
				ranked[i] = clock
				best.sketch = nil
				best, improved = e, true
			} else {
				e.sketch = nil
			}
		}
	}
	for i, c := range second {
		if c == nil {
			continue
		}
		e, err := s.price(with(best.recipe, classes[i], c.Choice))
		if err != nil {
			return nil, err
		}
		if e != best {
			e.sketch = nil
		}
	}
	best.sketch = nil
	return best, nil
}

// rank orders the candidates of a class by the price of the window that they change.
func (s *search) rank(best *entry, class []int, candidates []lower.Choice) ([]choice, error) {
	from := class[0]
	to := from + 1
	if step := &s.model.Steps[from]; step.Linear == nil || best.recipe.Steps[from].Owners == nil {
		to = min(to+1, len(s.model.Steps)) // the next step reads what this one lays out
	}
	var out []choice
	for _, c := range candidates {
		if s.spent >= s.options.Effort {
			break
		}
		s.spent++
		r := with(best.recipe, class, c)
		layTiles(s.model, &r)
		cost, err := best.sketch.Window(s.model, &r, from, to)
		if err != nil {
			return nil, err
		}
		out = append(out, choice{c, s.family.worth(cost)})
	}
	sort.SliceStable(out, func(i, j int) bool { return out[i].price < out[j].price })
	return out, nil
}

// better is the family's own taste: cycles, and bytes as far as it is lean.
func (s *search) better(x, y *entry) bool {
	return s.family.worth(x.cost) < s.family.worth(y.cost)
}

// worth is the cost of a recipe or window to the family, bytes included; see price
// for the conversion.
func (f family) worth(c *lower.Cost) float64 {
	return float64(c.Cycles) + float64(f.lean*float64(c.Live+c.TableBytes))
}

// with returns a recipe with another choice for a class of steps.
func with(r lower.Recipe, class []int, c lower.Choice) lower.Recipe {
	r.Steps = append([]lower.Choice(nil), r.Steps...)
	for _, step := range class {
		r.Steps[step] = c
	}
	return r
}
