package quota

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/weir-go/weir"
)

// flaky is a store that can be made to fail.
type flaky struct {
	Store
	err error
}

func (f *flaky) Take(ctx context.Context, t *Take) (Result, error) {
	if f.err != nil {
		return Result{}, f.err
	}
	return f.Store.Take(ctx, t)
}

func (f *flaky) Give(ctx context.Context, key string, limits []Limit, tokens float64) error {
	if f.err != nil {
		return f.err
	}
	return f.Store.Give(ctx, key, limits, tokens)
}

func TestStoreFails(t *testing.T) {
	down := errors.New("the store is down")
	for _, c := range []struct {
		on       OnStoreError
		admitted int
	}{{Local, 3}, {Open, 10}, {Closed, 0}} {
		var clock still
		store := &flaky{Store: newMemory(t, MemoryConfig{Now: clock.now})}
		r := &rig{newQuota(t, Config{Name: "q", Rules: everyUser(Per(3, time.Hour)), Store: store, OnStoreError: c.on, Now: clock.now}), t, &clock}
		r.admit(alice).Cancel()
		held := r.admit(of(alice, 3))
		r.refused(alice)
		store.err = down
		admitted := 0
		var last weir.Permit
		for range 10 {
			p, err := r.TryAdmit(alice)
			if err == nil {
				admitted++
				last = p
			} else if c.on == Closed && (!errors.Is(err, down) || r.rejection(err).Reason != weir.ReasonStore || !r.rejection(err).Retryable) {
				t.Errorf("%v", err)
			}
		}
		if admitted != c.admitted || r.Faults().StoreErrors != 10 {
			t.Errorf("%v: %d let through, want %d; %+v", c.on, admitted, c.admitted, r.Faults())
		}
		last.Cancel() // goes back where it came from
		if c.on == Local {
			r.admit(alice)
		}
		held.Cancel()
		if r.Faults().Unsettled != 1 {
			t.Errorf("%+v, want one give lost", r.Faults())
		}
		store.err = nil
		if got := r.left(alice); got != 0 {
			t.Errorf("%v: %v left in the store, want 0", c.on, got)
		}
	}
}
