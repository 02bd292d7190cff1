package board

import (
	"context"
	"runtime"
	"sync"
)

// inParallel fills groups, one on each processor.
func inParallel(ctx context.Context, groups []group, fill func(context.Context, group) ([]Cell, error), progress func(string, string, int, int)) ([]Cell, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		mu    sync.Mutex
		cells []Cell
		done  int
	)
	work := make(chan group)
	var wg sync.WaitGroup
	for range min(len(groups), runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			for g := range work {
				filled, err := fill(ctx, g)
				if err != nil {
					cancel(err)
					continue
				}
				mu.Lock()
				cells = append(cells, filled...)
				if done++; progress != nil {
					progress(g.scenario.Name, g.backend, done, len(groups))
				}
				mu.Unlock()
			}
		})
	}
	for _, g := range groups {
		work <- g
	}
	close(work)
	wg.Wait()
	return cells, context.Cause(ctx)
}
