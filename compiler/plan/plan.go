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
	// can beat: compute and barriers of the critical tile without any exchange event.
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

// support is what the planner sets aside for tables and commands on each tile, in
// bytes; placement works with the real size.
const support = 48 << 10

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
			errs[i] = s.descend()
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
}

// better orders entries: what fits first, then cycles, then tables, then the key.
func better(x, y *entry) bool {
	if fx, fy := x.cost.Fits(support), y.cost.Fits(support); fx != fy {
		return fx
	}
	if !x.cost.Fits(support) && x.cost.Live != y.cost.Live {
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
		out[i] = Finalist{Rank: i, Family: e.family, Recipe: e.recipe, Cost: *e.cost,
			LowerBound: e.cost.Compute + int64(e.cost.Phases)*240}
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

// price sketches a recipe once.
func (s *search) price(r lower.Recipe) (*entry, error) {
	layTiles(s.model, &r)
	text, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	key := string(text)
	if e := s.seen[key]; e != nil {
		return e, nil
	}
	s.spent++
	cost, err := lower.Sketch(s.model, &r)
	if err != nil {
		return nil, err
	}
	e := &entry{key: key, family: s.family.name, recipe: r, cost: cost}
	s.seen[key] = e
	return e, nil
}

// descend improves one step after another until nothing changes or the effort is
// spent. Steps of equal shape (the layers of an encoder) change together.
func (s *search) descend() error {
	classes := classesOf(s.model)
	start, candidates := s.family.start(s.model, s.options.Tiles)
	best, err := s.price(start)
	if err != nil {
		return err
	}
	for improved := true; improved; {
		improved = false
		for _, class := range classes {
			for _, c := range candidates[class[0]] {
				if s.spent >= s.options.Effort {
					return nil
				}
				r := clone(best.recipe)
				for _, step := range class {
					r.Steps[step] = c
				}
				e, err := s.price(r)
				if err != nil {
					return err
				}
				if e != best && better(e, best) {
					best, improved = e, true
				}
			}
		}
	}
	return nil
}

func clone(r lower.Recipe) lower.Recipe {
	r.Steps = append([]lower.Choice(nil), r.Steps...)
	return r
}
