//go:build integration

package weirredis

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weir-go/weir/quota"
)

// twin is a store on a server and one in memory, with one clock for both.
type twin struct {
	redis  *Store
	memory *quota.Memory
	now    time.Duration // since 1970
}

func newTwin(t *testing.T, addr string) *twin {
	t.Helper()
	w := &twin{now: 1000 * time.Hour}
	w.redis = open(t, Config{Addrs: []string{addr}, Now: func() time.Time { return time.Unix(0, int64(w.now)) }})
	w.redis.clock = func() int64 { return w.now.Microseconds() }
	var err error
	if w.memory, err = quota.NewMemory(quota.MemoryConfig{Now: func() time.Duration { return w.now }}); err != nil {
		t.Fatal(err)
	}
	return w
}

// take asks both, and fails if they differ by more than a rounding error.
func (w *twin) take(t *testing.T, k *quota.Take) quota.Result {
	t.Helper()
	got, err := w.redis.Take(context.Background(), k)
	if err != nil {
		t.Fatalf("%+v: %v", k, err)
	}
	want, err := w.memory.Take(context.Background(), k)
	if err != nil {
		t.Fatal(err)
	}
	if !alike(got, want, k.Limits) {
		t.Fatalf("at %v %+v:\nredis  %+v\nmemory %+v", w.now, k, got, want)
	}
	return got
}

// alike allows for what Memory leaves out of Remaining: what came back in the last
// millisecond.
func alike(a, b quota.Result, limits []quota.Limit) bool {
	if a.OK != b.OK || a.Window != b.Window || (a.Wait-b.Wait).Abs() > time.Microsecond {
		return false
	}
	close := 1e-9*max(1, math.Abs(b.Remaining)) + limits[b.Window].Rate/1000
	return math.Abs(a.Remaining-b.Remaining) <= close
}

// TestDecidesAsMemory plays the same takes, gifts, changes of limits and steps of
// the clock on both stores.
func TestDecidesAsMemory(t *testing.T) {
	each(t, func(t *testing.T, start func(...string) *server) { playTwins(t, newTwin(t, start().addr)) })
}

func playTwins(t *testing.T, w *twin) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		all := someLimits(r)
		limits := all
		key := fmt.Sprintf("seed %d", seed)
		for range 100 {
			switch r.IntN(12) {
			case 0:
				// A store need not write down when it refused or made a dry run. So that
				// both know between which times the clock steps back, both are charged.
				charge := &quota.Take{Key: key, Limits: limits, Cost: 1, Mode: quota.Permissive}
				w.take(t, charge)
				w.now -= time.Duration(r.Int64N(1e6)) * time.Microsecond
				w.take(t, charge)
			case 1:
				w.now += time.Duration(r.Int64N(1e11)) * time.Microsecond
			case 2, 3, 4:
				w.now += time.Duration(r.Int64N(100)) * time.Microsecond
			default:
				w.now += time.Duration(r.Int64N(2e6)) * time.Microsecond
			}
			if r.IntN(20) == 0 {
				// Charged, for the same reason: the new rates hold from here.
				w.take(t, &quota.Take{Key: key, Limits: limits, Cost: 1, Mode: quota.Permissive})
				limits = changed(r, all)
			}
			if r.IntN(10) == 0 {
				w.give(t, key, limits, (r.Float64()-.5)*100)
			}
			k := someTake(r, key, limits)
			if res := w.take(t, &k); !res.OK && res.Wait < quota.Never && k.Mode == quota.Strict {
				w.waitOut(t, k, res.Wait)
			}
		}
	}
}

func someLimits(r *rand.Rand) []quota.Limit {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		berlin = nil
	}
	all := []quota.Limit{
		quota.Per(10, time.Second),
		quota.Per(1000, time.Hour),
		quota.Samples(5, 10, 2*time.Second),
		{Rate: .015, Burst: 30},
		{Rate: 1e6, Burst: 1e7},
		{Rate: 1e5, Burst: 50}, // so that waits are shorter than a millisecond
		quota.Each(100, quota.Hour, nil),
		quota.Each(1000, quota.Day, berlin),
		quota.Each(50, quota.Week, nil),
		quota.Each(500, quota.Month, berlin),
	}
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:1+r.IntN(3)]
}

// changed returns some of the windows from the first on, with other rates and bursts.
func changed(r *rand.Rand, all []quota.Limit) []quota.Limit {
	limits := slices.Clone(all[:1+r.IntN(len(all))])
	for i := range limits {
		limits[i].Rate *= math.Exp(r.NormFloat64())
		limits[i].Burst *= math.Exp(r.NormFloat64())
	}
	return limits
}

func someTake(r *rand.Rand, key string, limits []quota.Limit) quota.Take {
	k := quota.Take{
		Key: key, Limits: limits, Cost: r.Int64N(40), Debt: r.IntN(2) == 0,
		Mode: quota.Mode(r.IntN(4)), MaxWait: time.Duration(r.Int64N(int64(time.Minute))),
	}
	if r.IntN(3) == 0 {
		k.MaxWait = 0
	}
	return k
}

// A reservation reaches as many periods ahead as it may wait.
func TestReservePeriodsAhead(t *testing.T) {
	w := newTwin(t, startRedis(t).addr)
	limits := []quota.Limit{quota.Each(10, quota.Hour, nil), quota.Per(1000, time.Second)}
	w.take(t, &quota.Take{Key: "k", Limits: limits, Cost: 35, Debt: true})
	reserve := quota.Take{Key: "k", Limits: limits, Cost: 1, Debt: true, Mode: quota.Reserve, MaxWait: 2 * time.Hour}
	if r := w.take(t, &reserve); r.OK || r.Wait != 3*time.Hour {
		t.Errorf("%+v, want a refusal for 3h", r)
	}
	reserve.MaxWait = 3 * time.Hour
	if r := w.take(t, &reserve); !r.OK || r.Wait != 3*time.Hour {
		t.Errorf("%+v, want a place in 3h", r)
	}
}

// Where a token is as small as a rounding error, what is larger than the burst is
// refused all the same.
func TestLargerThanBurst(t *testing.T) {
	w := newTwin(t, startRedis(t).addr)
	for i, limits := range [][]quota.Limit{{{Rate: 1, Burst: 1e15}}, {{Rate: 1, Burst: 1e15}, quota.Each(1e15, quota.Day, nil)}} {
		k := quota.Take{Key: fmt.Sprint(i), Limits: limits, Cost: 1e15 + 500}
		if r := w.take(t, &k); r.OK || r.Wait != quota.Never {
			t.Errorf("%+v, want it refused for ever", r)
		}
		k.Cost = 1e15
		if r := w.take(t, &k); !r.OK {
			t.Errorf("%+v, want it let through", r)
		}
	}
}

func (w *twin) give(t *testing.T, key string, limits []quota.Limit, tokens float64) {
	t.Helper()
	for _, s := range []quota.Store{w.redis, w.memory} {
		if err := s.Give(context.Background(), key, limits, tokens); err != nil {
			t.Fatal(err)
		}
	}
}

// waitOut checks that the wait is what it says: the same is refused a millisecond
// before, and let through after.
func (w *twin) waitOut(t *testing.T, k quota.Take, wait time.Duration) {
	t.Helper()
	k.Mode = quota.DryRun
	w.now += wait - time.Millisecond
	if r := w.take(t, &k); r.OK && wait > time.Millisecond {
		t.Fatalf("%+v after %v less a millisecond: %+v", k, wait, r)
	}
	w.now += time.Millisecond
	if r := w.take(t, &k); !r.OK {
		t.Fatalf("%+v after %v: %+v", k, wait, r)
	}
}
