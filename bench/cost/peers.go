package cost

import (
	"context"

	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
	"golang.org/x/sync/semaphore"
)

func semaphoreTry() Loop {
	s := semaphore.NewWeighted(size)
	return func(n int) error {
		for range n {
			if !s.TryAcquire(1) {
				return errFull
			}
			s.Release(1)
		}
		return nil
	}
}

func semaphoreAcquire() Loop {
	s := semaphore.NewWeighted(size)
	ctx := context.Background()
	return func(n int) error {
		for range n {
			if err := s.Acquire(ctx, 1); err != nil {
				return err
			}
			s.Release(1)
		}
		return nil
	}
}

func semaphoreFull() Loop {
	s := semaphore.NewWeighted(1)
	taken := s.TryAcquire(1)
	return func(n int) error {
		for range n {
			if !taken || s.TryAcquire(1) {
				return errTaken
			}
		}
		return nil
	}
}

// failsafeTry uses the adaptive limiter at its published defaults, but for a
// lower bound that keeps it from refusing the goroutines at work. Each Record
// is a latency sample.
func failsafeTry() Loop {
	l := adaptivelimiter.NewBuilder[any]().WithLimits(size, 200, size).Build()
	return func(n int) error {
		for range n {
			p, ok := l.TryAcquirePermit()
			if !ok {
				return errFull
			}
			p.Record()
		}
		return nil
	}
}

func failsafeFull() Loop {
	l := adaptivelimiter.NewBuilder[any]().WithLimits(1, 1, 1).Build()
	_, taken := l.TryAcquirePermit()
	return func(n int) error {
		for range n {
			if _, ok := l.TryAcquirePermit(); ok || !taken {
				return errTaken
			}
		}
		return nil
	}
}

func semaphoreHandoff() Loop {
	s := semaphore.NewWeighted(1)
	ctx := context.Background()
	return between(func() error { return s.Acquire(ctx, 1) }, func() { s.Release(1) })
}

func failsafeHandoff() Loop {
	l := adaptivelimiter.NewBuilder[any]().WithLimits(1, 1, 1).WithQueueing(2, 3).Build()
	ctx := context.Background()
	var held adaptivelimiter.Permit // by whoever has the slot
	return between(func() error {
		p, err := l.AcquirePermit(ctx)
		if err == nil {
			held = p
		}
		return err
	}, func() { held.Record() })
}
