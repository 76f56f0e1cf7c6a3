package place

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// SolveAll places the tiles ps[0], ps[1], ... with the given number of workers
// (at least one). The answer does not depend on that number: if tiles fail, the
// error is that of the lowest one and names it; a *Refusal also holds its index.
func SolveAll(ps []Problem, workers int) ([][]uint32, error) {
	out := make([][]uint32, len(ps))
	errs := make([]error, len(ps))
	var next, failed atomic.Int64
	failed.Store(int64(len(ps)))

	// Tiles are handed out in ascending order, so every tile below a failed one is
	// decided before the workers stop.
	work := func() {
		var s Solver
		for {
			i := next.Add(1) - 1
			if i >= failed.Load() {
				return
			}
			err := s.Reset(&ps[i])
			if err == nil {
				out[i], err = s.Solve()
			}
			if err == nil {
				continue
			}
			errs[i] = err
			for low := failed.Load(); i < low && !failed.CompareAndSwap(low, i); low = failed.Load() {
			}
		}
	}
	var group sync.WaitGroup
	for range min(max(workers, 1), len(ps)) {
		group.Add(1)
		go func() {
			defer group.Done()
			work()
		}()
	}
	group.Wait()

	tile := failed.Load()
	if tile == int64(len(ps)) {
		return out, nil
	}
	var r *Refusal
	if errors.As(errs[tile], &r) {
		r.Tile = int32(tile)
		return nil, r
	}
	return nil, fmt.Errorf("place: tile %d: %w", tile, errs[tile])
}
