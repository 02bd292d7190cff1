package cost

import (
	"context"
	"sync"
	"time"

	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
	"golang.org/x/time/rate"
)

// decide is one decision about a key by somebody else's limiter. Rates and bursts
// are so high that nothing is refused.
type decide func(key string) error

// quotaPeers are the limiters of others that keep their state in memory, at their
// defaults but for bounds on keys, for a number of keys; 0 means one.
func quotaPeers(keys int) []Subject {
	return []Subject{
		{Name: "golang.org/x/time/rate Allow, in a map with a mutex", New: asked(keys, xrate)},
		{Name: "throttled GCRA, memory", New: asked(keys, throttledGCRA)},
		{Name: "sethvargo/go-limiter, memory", New: asked(keys, goLimiter)},
	}
}

func asked(keys int, peer func(ctx context.Context) (decide, func(), error)) func() (Loop, func(), error) {
	return func() (Loop, func(), error) {
		do, stop, err := peer(context.Background())
		if err != nil {
			return nil, nil, err
		}
		ring := newKeyring(max(keys, 1))
		for i := range ring.len() {
			if err := do(ring.at(i)); err != nil {
				stop()
				return nil, nil, err
			}
		}
		return func(n int) error { return ring.turn(n, do) }, stop, nil
	}
}

// xrate is how programs keep x/time/rate by key.
func xrate(context.Context) (decide, func(), error) {
	var mu sync.Mutex
	limiters := map[string]*rate.Limiter{}
	return func(key string) error {
		mu.Lock()
		l := limiters[key]
		if l == nil {
			l = rate.NewLimiter(1e6, 1<<40)
			limiters[key] = l
		}
		mu.Unlock()
		if !l.Allow() {
			return errOutOfTokens
		}
		return nil
	}, func() {}, nil
}

func throttledGCRA(ctx context.Context) (decide, func(), error) {
	store, err := memstore.NewCtx(0) // no bound
	if err != nil {
		return nil, nil, err
	}
	l, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{MaxRate: throttled.PerSec(1e6), MaxBurst: 1 << 40})
	if err != nil {
		return nil, nil, err
	}
	l.SetMaxCASAttemptsLimit(1000)
	return func(key string) error {
		limited, _, err := l.RateLimitCtx(ctx, key, 1)
		if limited {
			return errOutOfTokens
		}
		return err
	}, func() {}, nil
}

func goLimiter(ctx context.Context) (decide, func(), error) {
	store, err := memorystore.New(&memorystore.Config{Tokens: 1 << 40, Interval: time.Hour})
	if err != nil {
		return nil, nil, err
	}
	return func(key string) error {
		_, _, _, ok, err := store.Take(ctx, key)
		if err == nil && !ok {
			return errOutOfTokens
		}
		return err
	}, func() { _ = store.Close(ctx) }, nil
}
