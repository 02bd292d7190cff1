package quota

import (
	"context"
	"errors"
	"fmt"
	"math"
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

// A store that is busy lets a flood through no gate, whatever is to be done if it
// fails.
func TestStoreIsBusy(t *testing.T) {
	for on, want := range map[OnStoreError]int{Local: 3, Open: 3, Closed: 0} {
		var clock still
		store := &flaky{Store: newMemory(t, MemoryConfig{Now: clock.now}), err: fmt.Errorf("full: %w", ErrBusy)}
		r := &rig{newQuota(t, Config{Name: "q", Rules: everyUser(Per(3, time.Hour)), Store: store, OnStoreError: on, Now: clock.now}), t, &clock}
		admitted := 0
		for range 10 {
			if _, err := r.TryAdmit(alice); err == nil {
				admitted++
			}
		}
		if admitted != want || r.Faults().StoreErrors != 10 {
			t.Errorf("%v: %d let through, want %d; %+v", on, admitted, want, r.Faults())
		}
	}
}

// lying is a store that says the same to everybody.
type lying struct {
	Store
	says, reserves Result
}

func (l *lying) Take(_ context.Context, t *Take) (Result, error) {
	if t.Mode == Reserve {
		return l.reserves, nil
	}
	return l.says, nil
}

// What cannot be true counts as a store that fails.
func TestStoreLies(t *testing.T) {
	short := Result{Wait: 10 * time.Millisecond}
	for _, lie := range []lying{
		{says: Result{Window: 1, Wait: time.Second}}, {says: Result{Window: -1}}, {says: Result{OK: true, Window: 9}},
		{says: Result{OK: true, Remaining: math.NaN()}}, {says: Result{Remaining: math.Inf(1), Wait: time.Second}},
		{says: Result{Wait: -time.Second}}, {says: Result{Wait: math.MinInt64}},
		{says: short, reserves: Result{OK: true, Wait: Never}}, {says: short, reserves: Result{OK: true, Wait: time.Hour}},
	} {
		var clock still
		q := newQuota(t, Config{
			Name: "q", Rules: everyUser(Per(3, time.Hour)), Store: &lie, OnStoreError: Closed, Now: clock.now,
			Queue: Queue{Len: 1, MaxWait: time.Second},
		})
		_, place, err := q.Arrive(alice, func(weir.Permit, error) {})
		if r := weir.AsRejection(err); place != nil || r == nil || r.Reason != weir.ReasonStore || q.Faults().StoreErrors == 0 {
			t.Errorf("%+v: %v, %+v; want that the store is at fault", lie, err, q.Faults())
		}
		if _, err := q.Peek(t.Context(), alice); lie.says != short && weir.AsRejection(err).Reason != weir.ReasonStore {
			t.Errorf("%+v: a look: %v", lie, err)
		}
	}
}
