package quota

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
)

// between is a store that calls something before it reserves tokens, or after it has
// and before anybody is told.
type between struct {
	Store
	first, then func()
}

func (b *between) Take(ctx context.Context, t *Take) (Result, error) {
	if t.Mode == Reserve && b.first != nil {
		b.first()
	}
	r, err := b.Store.Take(ctx, t)
	if t.Mode == Reserve && b.then != nil {
		b.then()
	}
	return r, err
}

// A store that takes its time lets nobody start ahead of the rate.
func TestSlowStoreIsNotAhead(t *testing.T) {
	var clock still
	store := &between{Store: newMemory(t, MemoryConfig{Now: clock.now}), first: func() { clock.advance(40 * ms) }}
	r := &rig{newQuota(t, Config{Name: "q", Rules: everyUser(Per(1, time.Second)), Queue: Queue{Len: 9, MaxWait: -1}, Store: store, Now: clock.now}), t, &clock}
	r.admit(alice)
	for n := range 9 {
		if _, _, err := r.Arrive(alice, func(weir.Permit, error) {}); err != weir.ErrWaiting {
			t.Fatal(err)
		}
		if due := time.Duration(n+1) * time.Second; r.room.heap[n].due != due { // each is the last one so far
			t.Errorf("number %d starts at %v, its token comes back at %v", n, r.room.heap[n].due, due)
		}
	}
}

// Who has reserved tokens when the gate is closed gives them back.
func TestClosedWhileReserving(t *testing.T) {
	var clock still
	store := &between{Store: newMemory(t, MemoryConfig{Now: clock.now})}
	r := &rig{newQuota(t, Config{Name: "q", Rules: everyUser(Per(1, time.Second)), Queue: Queue{Len: 1}, Store: store, Now: clock.now}), t, &clock}
	store.then = r.Close
	r.admit(alice)
	if _, err := r.Admit(ctx, alice); r.rejection(err).Reason != weir.ReasonDraining {
		t.Errorf("%v, want that the gate is closing", err)
	}
	left := take(t, store, Take{Key: "q/user=alice", Limits: []Limit{Per(1, time.Second)}, Debt: true, Mode: DryRun})
	if left.Remaining != 0 || r.Snapshot().Waiting != 0 {
		t.Errorf("%v left, want 0; %+v", left.Remaining, r.Snapshot())
	}
}

// Whose turn comes in the moment in which they give up has either the permit or the
// tokens back, never neither.
func TestGivingUpInTurn(t *testing.T) {
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			var clock still
			r := &rig{newQuota(t, Config{Name: "q", Rules: everyUser(Per(1, time.Second)), Queue: Queue{Len: 1}, Now: clock.now}), t, &clock}
			r.admit(alice).Done(weir.OK)
			waiting, cancel := context.WithCancel(ctx)
			defer cancel()
			var wg sync.WaitGroup
			var err error
			wg.Go(func() { _, err = r.Admit(waiting, alice) })
			synctest.Wait()
			clock.advance(time.Second)
			cancel()
			r.Step()
			wg.Wait()
			want, held := 0., int64(1)
			if err != nil {
				want, held = 1, 0
			}
			if got := r.Snapshot().InFlight; r.left(alice) != want || got != held {
				t.Fatalf("%v: %v left, want %v; %d permits are out, want %d", err, r.left(alice), want, got, held)
			}
		})
	}
}

// A permit that has ended changes nothing for whoever holds its place now.
func TestSettleAfterTheEnd(t *testing.T) {
	r := newRig(t, Config{Rules: everyUser(Per(100, time.Hour))})
	for range 20 { // as many as it takes that a place is used again, in each part
		old := r.admit(of(alice, 1))
		old.Done(weir.OK)
		next := r.admit(of(alice, 2))
		before := r.left(alice)
		old.SetCost("", 50)
		old.SetCost("q", 50)
		if got := r.left(alice); got != before {
			t.Fatalf("%v left, want %v as before", got, before)
		}
		next.Cancel()
		if got := r.left(alice); got != before+2 {
			t.Fatalf("%v left, want what was charged back: %v", got, before+2)
		}
	}
}

// Work is settled in the windows that it was charged in, not in one that came later.
func TestSettleLeavesNewWindowsAlone(t *testing.T) {
	r := newRig(t, Config{Rules: everyUser(Per(100, time.Hour))})
	old := r.admit(of(alice, 5))
	if err := r.SetRules(everyUser(Per(100, time.Hour), Per(7, time.Hour))); err != nil {
		t.Fatal(err)
	}
	r.admit(of(alice, 4))
	for _, settle := range []func(){func() { old.SetCost("", 6) }, old.Cancel} {
		if settle(); r.left(alice) != 3 {
			t.Errorf("%v left, want 3 in the window that came later", r.left(alice))
		}
	}
}
