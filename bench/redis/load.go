package main

import (
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
	// A rate at which no key is full again, and goes by itself, before it is asked for again.
	{name: "10,000 keys, let through", keys: 10_000, rate: 100, burst: 1_000_000},
	{name: "one key, let through", keys: 1, rate: 1_000_000, burst: 1_000_000},
	{name: "one key, refused", keys: 1, rate: 100, burst: 100},
}

// callers are how many ask at once.
var callers = []int{1, 16, 64}

// result is a round.
type result struct {
	perSecond, passed float64
	p50, p99          float64 // µs
}

// over returns the rounds of one subject over those of another, played at about the same
// time: what else the machine does concerns both.
func over(all, peer []result) []result {
	ratios := make([]result, len(all))
	for i, r := range all {
		p := peer[i]
		ratios[i] = result{perSecond: r.perSecond / p.perSecond, p50: r.p50 / p.p50, p99: r.p99 / p.p99}
	}
	return ratios
}

// show prints the rounds of a subject as a row; the forms are those of decisions per
// second, p50 and p99.
func show(l load, callers int, name string, all []result, forms [3]string, passed string) {
	fmt.Printf("| %s | %d | %s | %s | %s | %s | %s |\n", l.name, callers, name,
		spread(forms[0], all, func(r result) float64 { return r.perSecond }),
		spread(forms[1], all, func(r result) float64 { return r.p50 }),
		spread(forms[2], all, func(r result) float64 { return r.p99 }), passed)
}

// spread is a median of rounds, with the least and the greatest.
func spread(form string, all []result, of func(result) float64) string {
	values := sorted(all, of)
	return fmt.Sprintf(form+" ("+form+" to "+form+")", values[len(values)/2], values[0], values[len(values)-1])
}

func sorted(all []result, of func(result) float64) []float64 {
	values := make([]float64, len(all))
	for i, r := range all {
		values[i] = of(r)
	}
	slices.Sort(values)
	return values
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
	if len(all) == 0 {
		return result{}, fmt.Errorf("%s: not one decision in %v; run it on a machine that does less", s.name, span)
	}
	slices.Sort(all)
	return result{
		perSecond: float64(len(all)) / span.Seconds(),
		passed:    float64(passed.Load()) / float64(len(all)),
		p50:       microseconds(all[len(all)/2]),
		p99:       microseconds(all[len(all)*99/100]),
	}, nil
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
