package quota

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// crowded is a store of one place, which a key that never fills has taken.
func crowded(t *testing.T, clock *still) *Memory {
	m := newMemory(t, MemoryConfig{MaxKeys: 1, Now: clock.now})
	take(t, m, Take{Key: "resident", Limits: []Limit{{Rate: 1, Burst: 60}}, Cost: 60})
	return m
}

// A debt made without a place of one's own is still there when there is one.
func TestDebtOutlivesOverflow(t *testing.T) {
	var clock still
	m := crowded(t, &clock)
	limits := []Limit{{Rate: 1, Burst: 10}}
	if r := take(t, m, Take{Key: "debtor", Limits: limits, Cost: 1010, Debt: true}); !r.OK || r.Remaining != -1000 {
		t.Fatalf("%+v", r)
	}
	clock.advance(100 * time.Second) // the resident's bucket is full: there is a place
	for _, key := range []string{"debtor", "somebody else"} {
		peek := take(t, m, Take{Key: key, Limits: limits, Cost: 1, Debt: true, Mode: DryRun})
		r := take(t, m, Take{Key: key, Limits: limits, Cost: 1, Debt: true})
		if r.OK || r.Wait != 900*time.Second || math.Abs(r.Remaining+900) > 1e-6 || peek != r {
			t.Errorf("%s: %+v, before %+v", key, r, peek)
		}
	}
	if s := m.Stats(); s.Keys != 1 || s.Purged != 1 {
		t.Errorf("%+v", s)
	}
}

// What is taken from the shared bucket and given back to one's own is no gain.
func TestRefundAfterOverflow(t *testing.T) {
	var clock still
	m := crowded(t, &clock)
	limits := []Limit{{Rate: 1e-6, Burst: 500}}
	if r := take(t, m, Take{Key: "k", Limits: limits, Cost: 499}); !r.OK {
		t.Fatalf("%+v", r)
	}
	clock.advance(60 * time.Second)
	if r := take(t, m, Take{Key: "k", Limits: limits, Cost: 2}); r.OK || m.Stats().Purged != 1 {
		t.Fatalf("%+v, %+v", r, m.Stats())
	}
	if err := m.Give(ctx, "k", limits, 499); err != nil {
		t.Fatal(err)
	}
	if r := take(t, m, Take{Key: "k", Limits: limits, Cost: 500, Mode: DryRun}); !r.OK {
		t.Errorf("%+v, want 500 of 500", r)
	}
	if r := take(t, m, Take{Key: "k", Limits: limits, Cost: 501, Mode: DryRun}); r.OK {
		t.Errorf("%+v, want 500 of 500", r)
	}
}

// Once the shared bucket is full again it is forgotten, and newcomers start with a
// full one.
func TestOverflowIsForgotten(t *testing.T) {
	var clock still
	m := crowded(t, &clock)
	for i := range 100 {
		take(t, m, Take{Key: fmt.Sprint(i), Limits: []Limit{{Rate: 1, Burst: float64(10 + i)}}, Cost: 10})
	}
	if n := m.strays.used; n != 100 {
		t.Fatalf("%d shared buckets, want 100", n)
	}
	clock.advance(time.Hour)
	if r := take(t, m, Take{Key: "new", Limits: []Limit{{Rate: 1, Burst: 10}}, Cost: 10}); !r.OK {
		t.Errorf("%+v", r)
	}
	if m.strays.used != 0 || m.strays.any.Load() || m.Stats().Keys != 1 {
		t.Errorf("%d shared buckets left, %+v", m.strays.used, m.Stats())
	}
}

// However small the store, a newcomer finds the place of a bucket that is full again,
// in whichever part of the store that is.
func TestSmallStoreServesNewcomers(t *testing.T) {
	for _, most := range []int{1, 3, 10, 100} {
		for windows := range 2 {
			if windows >= most {
				continue
			}
			t.Run(fmt.Sprintf("%d keys, %d windows", most, windows+1), func(t *testing.T) {
				var clock still
				m := newMemory(t, MemoryConfig{MaxKeys: most, Now: clock.now})
				limits := []Limit{{Rate: 10, Burst: 10}, {Rate: 5, Burst: 10}}[:windows+1]
				for i := range 10 * most {
					if r := take(t, m, Take{Key: fmt.Sprint(i), Limits: limits, Cost: 10}); !r.OK {
						t.Fatalf("newcomer %d: %+v", i, r)
					}
					clock.advance(2 * time.Second)
				}
				if s := m.Stats(); s.Overflowed != 0 {
					t.Errorf("%+v", s)
				}
			})
		}
	}
}

// A clock that was set back does not end the search for places.
func TestPlacesAfterTheClockWentBack(t *testing.T) {
	var clock still
	clock.advance(time.Hour)
	m := newMemory(t, MemoryConfig{MaxKeys: 1, Now: clock.now})
	limits := []Limit{{Rate: 1, Burst: 10}}
	take(t, m, Take{Key: "a", Limits: limits, Cost: 10})
	take(t, m, Take{Key: "b", Limits: limits, Cost: 10}) // searched, in vain
	clock.advance(-30 * time.Minute)
	take(t, m, Take{Key: "a", Limits: limits, Cost: 0}) // time counts from here
	clock.advance(11 * time.Second)
	if take(t, m, Take{Key: "c", Limits: limits, Cost: 1}); m.Stats().Purged != 1 {
		t.Errorf("%+v", m.Stats())
	}
}

// Whoever comes and goes, in whatever bucket a key is counted: it is let through
// only what a bucket of its own would have let through.
func TestNoKeyEscapesByOverflow(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		var clock still
		m := newMemory(t, MemoryConfig{MaxKeys: 1 + r.IntN(8), Now: clock.now})
		own := newMemory(t, MemoryConfig{Now: clock.now})
		limits := []Limit{{Rate: 1, Burst: 20}, {Rate: .5, Burst: 30}}[:1+r.IntN(2)]
		debt := r.IntN(2) == 0
		for range 2000 {
			key, cost := fmt.Sprint(r.IntN(12)), int64(r.IntN(20))
			switch r.IntN(10) {
			case 0:
				clock.advance(time.Duration(r.IntN(10)) * time.Second)
			case 1: // settled: it cost less, or more
				tokens := float64(r.IntN(40)-20) / 4
				_ = m.Give(ctx, key, limits, tokens)
				_ = own.Give(ctx, key, limits, tokens)
			default:
				tk := Take{Key: key, Limits: limits, Cost: cost, Debt: debt}
				if !take(t, m, tk).OK {
					continue
				}
				if r := take(t, own, tk); !r.OK {
					t.Fatalf("seed %d: key %s was let through, and its own bucket says %+v", seed, key, r)
				}
			}
		}
		if s := m.Stats(); s.Keys > s.MaxKeys || s.Overflowed == 0 || s.Purged == 0 {
			t.Fatalf("seed %d: %+v", seed, s)
		}
	}
}
