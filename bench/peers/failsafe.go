package peers

import (
	"context"

	"github.com/failsafe-go/failsafe-go/adaptivelimiter"

	"github.com/weir-go/weir"
)

// adaptive is failsafe-go's adaptive limiter, version 0.9.8, as NewBuilder makes
// it: limits 1 to 200, 20 at first, at most 5 times what is in flight; windows
// of at least 1 s and 50 executions, the 90th percentile of each against a
// baseline of age 10; correlations over 50 windows. Every execution is recorded,
// also those that finish late: dropping them instead, which the documentation
// allows, would leave it without samples in a brown-out.
type adaptive struct {
	l     adaptivelimiter.AdaptiveLimiter[any]
	waits bool
}

// newFailsafe is the limiter without a queue, which is its default.
func newFailsafe(*Env) (limiter, error) {
	return &adaptive{adaptivelimiter.NewBuilder[any]().Build(), false}, nil
}

// newFailsafeQueueing adds a queue with the factors that BuildPrioritized takes
// by default: none is refused up to 2 times the limit, everybody from 3 times
// it. Who waits does so until its context's deadline.
func newFailsafeQueueing(*Env) (limiter, error) {
	return &adaptive{adaptivelimiter.NewBuilder[any]().WithQueueing(2, 3).Build(), true}, nil
}

func (a *adaptive) try() (done, error) {
	p, ok := a.l.TryAcquirePermit()
	switch {
	case ok:
		return recorded(p), nil
	case a.waits:
		return nil, errWait // AcquirePermit decides who may
	}
	return nil, errFull
}

func (a *adaptive) wait(ctx context.Context, answer func(done, error)) {
	p, err := a.l.AcquirePermit(ctx)
	answer(recorded(p), err)
}

func recorded(p adaptivelimiter.Permit) done {
	return func(weir.Outcome) { p.Record() }
}
