package device

import (
	"context"
	"sync"
	"sync/atomic"
)

// parallel calls do for 0..n-1 on several goroutines; worker is the number of the
// goroutine, for its scratch memory. It stops early only when ctx is done, so that
// what it computes does not depend on who ran first. The work of do must be
// independent between indexes.
func parallel(ctx context.Context, workers, n int, do func(worker, i int)) error {
	workers = min(workers, n)
	if workers <= 1 {
		for i := range n {
			if ctx.Err() != nil {
				break
			}
			do(0, i)
		}
		return ctx.Err()
	}
	var next atomic.Int64
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				do(w, i)
			}
		})
	}
	group.Wait()
	return ctx.Err()
}

// first returns the fault of the lowest tile, so that the same package faults in
// the same way with any number of workers.
func first(faults []*Fault) *Fault {
	for _, f := range faults {
		if f != nil {
			return f
		}
	}
	return nil
}
