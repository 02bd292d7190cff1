package weirtest

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/quota"
)

// nonsense is refused with an error and takes nothing.
func nonsense(s *store) {
	good := quota.Limit{Rate: .1, Burst: 10}
	t := of("nonsense", good)
	for name, bad := range map[string]quota.Take{
		"a negative cost":  cost(t, -1),
		"no mode":          mode(t, 99),
		"no limits":        of("nonsense"),
		"too many limits":  of("nonsense", make([]quota.Limit, quota.MaxWindows+1)...),
		"no rate":          of("nonsense", quota.Limit{Burst: 1}),
		"a negative rate":  of("nonsense", quota.Limit{Rate: -1, Burst: 1}),
		"a rate too large": of("nonsense", quota.Limit{Rate: 1e300, Burst: 1}),
		"no number":        of("nonsense", good, quota.Limit{Rate: math.NaN(), Burst: 1}),
		"an endless burst": of("nonsense", quota.Limit{Rate: 1, Burst: math.Inf(1)}),
	} {
		if r, err := s.Take(context.Background(), &bad); err == nil || r.OK {
			s.Errorf("%s: %+v, %v, want an error", name, r, err)
		}
	}
	if err := s.Give(context.Background(), t.Key, t.Limits, math.NaN()); err == nil {
		s.Error("give NaN: no error")
	}
	if err := s.Give(context.Background(), t.Key, nil, 1); err == nil {
		s.Error("give without limits: no error")
	}
	s.take(t, want{true, 0, 9})
}

// manyAtOneKey: as many are let in as there are tokens.
func manyAtOneKey(s *store) {
	const burst = 500
	t := of("many", quota.Limit{Rate: 1e-6, Burst: burst})
	if n := s.crowd(func(int) quota.Take { return t }); n != burst {
		s.Errorf("%d were let in, want %d", n, burst)
	}
}

// manyAtSeveralWindows: whoever is refused by one window has taken nothing from the
// other.
func manyAtSeveralWindows(s *store) {
	wide, narrow := quota.Limit{Rate: 1e-6, Burst: 500}, quota.Limit{Rate: 1e-6, Burst: 300}
	n := s.crowd(func(i int) quota.Take {
		return of("many windows", wide, narrow)
	})
	if n != 300 {
		s.Errorf("%d were let in, want 300", n)
	}
	left := s.must(mode(cost(of("many windows", wide), 0), quota.DryRun)).Remaining
	if math.Abs(left-200) > .01 {
		s.Errorf("the wide window has %v left, want 200", left)
	}
}

// crowd takes a thousand times from eight goroutines and returns how many were let
// in.
func (s *store) crowd(next func(i int) quota.Take) int64 {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 125 {
				t := next(i)
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
