package weirtest

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/quota"
)

// manyAtOneKey: as many are let in as there are tokens.
func manyAtOneKey(s *store) {
	const burst = 500
	t := of("many", quota.Limit{Rate: 1e-6, Burst: burst})
	if n := s.crowd(t); n != burst {
		s.Errorf("%d were let in, want %d", n, burst)
	}
}

// manyAtSeveralWindows: whoever is refused by one window has taken nothing from the
// other.
func manyAtSeveralWindows(s *store) {
	wide, narrow := quota.Limit{Rate: 1e-6, Burst: 500}, quota.Limit{Rate: 1e-6, Burst: 300}
	if n := s.crowd(of("many windows", wide, narrow)); n != 300 {
		s.Errorf("%d were let in, want 300", n)
	}
	left := s.must(mode(cost(of("many windows", wide), 0), quota.DryRun)).Remaining
	if math.Abs(left-200) > .01 {
		s.Errorf("the wide window has %v left, want 200", left)
	}
}

// crowd does a take a thousand times from eight goroutines and returns how many were
// let in.
func (s *store) crowd(take quota.Take) int64 {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 125 {
				t := take
				r, err := s.Take(ctx, &t)
				if err != nil {
					s.Errorf("take: %v", err)
					return
				}
				if r.OK {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	return admitted.Load()
}
