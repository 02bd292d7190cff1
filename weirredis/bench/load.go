package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// load is who asks for what.
type load struct {
	name        string
	keys        int
	rate, burst int
}

var loads = []load{
	{name: "10,000 keys, let through", keys: 10_000, rate: 1_000_000, burst: 1_000_000},
	{name: "one key, let through", keys: 1, rate: 1_000_000, burst: 1_000_000},
	{name: "one key, refused", keys: 1, rate: 100, burst: 100},
}

// result is a round, or the medians of several.
type result struct {
	perSecond, passed float64
	p50, p99          time.Duration
}

func (r result) String() string {
	return fmt.Sprintf("%.0f | %v | %v | %.1f %%", r.perSecond, r.p50.Round(100*time.Nanosecond), r.p99.Round(100*time.Nanosecond), 100*r.passed)
}

func median(all []result) result {
	return result{
		perSecond: middle(all, func(r result) float64 { return r.perSecond }),
		passed:    middle(all, func(r result) float64 { return r.passed }),
		p50:       middle(all, func(r result) time.Duration { return r.p50 }),
		p99:       middle(all, func(r result) time.Duration { return r.p99 }),
	}
}

func middle[T cmp.Ordered](all []result, of func(result) T) T {
	values := make([]T, len(all))
	for i, r := range all {
		values[i] = of(r)
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// play lets callers ask without a pause.
func play(ctx context.Context, s subject, l load, callers int, length time.Duration) (result, error) {
	var wait sync.WaitGroup
	var passed atomic.Int64
	took := make([][]time.Duration, callers)
	faults := make([]error, callers)
	begin := time.Now()
	for c := range callers {
		wait.Go(func() {
			for i := c; time.Since(begin) < length; i += callers {
				at := time.Now()
				ok, err := s.take(ctx, l.name+strconv.Itoa(i*7919%l.keys), l)
				if err != nil {
					faults[c] = err
					return
				}
				took[c] = append(took[c], time.Since(at))
				if ok {
					passed.Add(1)
				}
			}
		})
	}
	wait.Wait()
	span := time.Since(begin)
	for _, err := range faults {
		if err != nil {
			return result{}, err
		}
	}
	all := slices.Concat(took...)
	slices.Sort(all)
	return result{
		perSecond: float64(len(all)) / span.Seconds(),
		passed:    float64(passed.Load()) / float64(len(all)),
		p50:       all[len(all)/2],
		p99:       all[len(all)*99/100],
	}, nil
}
