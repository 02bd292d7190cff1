package peers

import (
	"context"
	"errors"

	"golang.org/x/sync/semaphore"

	"github.com/weir-go/weir"
)

var (
	errWait = errors.New("no slot yet")
	errFull = errors.New("no slot")
)

// refusal is what the simulator hears of every refusal of a peer.
var refusal = &weir.Rejection{Gate: "peer", Reason: weir.ReasonLimit}

// open admits everything.
type open struct{}

func newOpen(*Env) (limiter, error)                  { return open{}, nil }
func (open) try() (done, error)                      { return func(weir.Outcome) {}, nil }
func (open) wait(context.Context, func(done, error)) {}

// weighted is golang.org/x/sync/semaphore, of the backend's best concurrency.
type weighted struct {
	s     *semaphore.Weighted
	waits bool
}

func newSemaphore(waits bool) func(*Env) (limiter, error) {
	return func(e *Env) (limiter, error) {
		return &weighted{semaphore.NewWeighted(int64(e.Best)), waits}, nil
	}
}

func (w *weighted) try() (done, error) {
	switch {
	case w.s.TryAcquire(1): // false while others wait
		return w.release, nil
	case w.waits:
		return nil, errWait
	}
	return nil, errFull
}

func (w *weighted) wait(ctx context.Context, answer func(done, error)) {
	answer(w.release, w.s.Acquire(ctx, 1))
}

func (w *weighted) release(weir.Outcome) { w.s.Release(1) }
