package quota

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
)

// M60: rate 4, burst 2, ten at once: two go at once, then one every 250 ms.
func TestWaitersGoOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQuota(t, Config{Name: "q", Rules: everyUser(Window{Rate: 4, Burst: 2}), Queue: Queue{Len: 100, MaxWait: time.Minute}})
		began := time.Now()
		var mu sync.Mutex
		var at []time.Duration
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				p, err := q.Admit(ctx, alice)
				if err != nil {
					t.Error(err)
				}
				mu.Lock()
				at = append(at, time.Since(began).Round(ms))
				mu.Unlock()
				p.Done(weir.OK)
			})
		}
		synctest.Wait()
		if s := q.Snapshot(); s.Waiting != 8 || s.Admitted != 2 { // M61
			t.Errorf("%+v", s)
		}
		wg.Wait()
		slices.Sort(at)
		for i, got := range at {
			if want := time.Duration(max(i-1, 0)) * 250 * ms; got != want {
				t.Errorf("number %d went after %v, want %v", i, got, want)
			}
		}
		if s := q.Snapshot(); s.Waiting != 0 || s.Admitted != 10 || len(s.Rejected) != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// M64: who gives up gives back, whatever the reason.
func TestWaitersGiveBack(t *testing.T) {
	for name, c := range map[string]struct {
		leave  func(*Quota, context.CancelFunc)
		reason weir.Reason
	}{
		"cancelled": {func(_ *Quota, cancel context.CancelFunc) { cancel() }, weir.ReasonCanceled},
		"closed":    {func(q *Quota, _ context.CancelFunc) { q.Close() }, weir.ReasonDraining},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rejected := 0
				q := newQuota(t, Config{Name: "q", Rules: everyUser(Window{Rate: .01, Burst: 1}), Queue: Queue{Len: 1, MaxWait: -1},
					Hooks: weir.Hooks{Rejected: func(weir.Work, *weir.Rejection) { rejected++ }}})
				if _, err := q.Admit(ctx, alice); err != nil {
					t.Fatal(err)
				}
				waiting, cancel := context.WithCancel(ctx)
				defer cancel()
				var wg sync.WaitGroup
				wg.Go(func() {
					if _, err := q.Admit(waiting, alice); weir.AsRejection(err) == nil || weir.AsRejection(err).Reason != c.reason {
						t.Errorf("%v, want %v", err, c.reason)
					}
				})
				synctest.Wait()
				c.leave(q, cancel)
				wg.Wait()
				r := take(t, q.store, Request{Key: "q/user=alice", Windows: []Window{{Rate: .01, Burst: 1}}, Debt: true, Mode: DryRun})
				if math.Abs(r.Remaining) > 1e-3 || rejected != 1 || q.Snapshot().Waiting != 0 {
					t.Errorf("%v left, want 0; %d rejected; %+v", r.Remaining, rejected, q.Snapshot())
				}
			})
		})
	}
}

// Who would have to wait too long is refused at once, with the wait, and takes
// nothing.
func TestPatience(t *testing.T) {
	r := newRig(t, Config{Rules: everyUser(Window{Rate: .1, Burst: 1}), Queue: Queue{Len: 10, MaxWait: 15 * time.Second}})
	r.admit(alice)
	for name, w := range map[string]weir.Work{
		"by itself":   {User: "alice", MaxWait: 9 * time.Second},
		"by deadline": {User: "alice", Deadline: VirtualEpoch.Add(9 * time.Second)},
		"not at all":  {User: "alice", MaxWait: weir.NoWait},
	} {
		if _, err := r.Admit(ctx, w); r.rejection(err).RetryAfter != 10*time.Second || r.left(alice) != 0 {
			t.Errorf("%s: %v, %v left", name, err, r.left(alice))
		}
	}
	if got := r.refused(weir.Work{User: "alice", Deadline: VirtualEpoch.Add(-1)}); got.Reason != weir.ReasonDeadline {
		t.Errorf("too late: %+v", *got)
	}
	done, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := r.Admit(done, bob); r.rejection(err).Reason != weir.ReasonCanceled || !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// An event loop waits without a goroutine, on a clock of its own.
func TestArrive(t *testing.T) {
	r := newRig(t, Config{Rules: everyUser(Window{Rate: 1, Burst: 1}), Queue: Queue{Len: 2, MaxWait: time.Minute}})
	var woken []error
	wake := func(p weir.Permit, err error) {
		woken = append(woken, err)
		if err == nil && !p.Live() {
			t.Error("woken without a permit")
		}
	}
	if p, _, err := r.Arrive(alice, wake); err != nil || !p.Live() {
		t.Fatal(err)
	}
	_, first, err := r.Arrive(alice, wake)
	if err != weir.ErrWaiting {
		t.Fatal(err)
	}
	_, second, err := r.Arrive(alice, wake)
	if err != weir.ErrWaiting {
		t.Fatal(err)
	}
	if _, _, err := r.Arrive(alice, wake); r.rejection(err).Reason != weir.ReasonQueueFull || r.rejection(err).RetryAfter != 3*time.Second {
		t.Errorf("%v", err)
	}
	if at, ok := r.Next(); !ok || at != time.Second {
		t.Errorf("the next is due at %v, %v", at, ok)
	}
	r.clock.advance(time.Second - ms)
	if r.Step(); len(woken) != 0 {
		t.Error("woken too early")
	}
	r.clock.advance(ms)
	if r.Step(); len(woken) != 1 || first.Cancel() {
		t.Errorf("woken: %v", woken)
	}
	if !second.Cancel() || second.Cancel() || r.left(alice) != 0 {
		t.Errorf("%v left after one has left, want 0", r.left(alice))
	}
	if _, _, err := r.Arrive(alice, wake); err != weir.ErrWaiting {
		t.Fatal(err)
	}
	if r.Close(); len(woken) != 2 || r.rejection(woken[1]).Reason != weir.ReasonDraining {
		t.Errorf("closed: %v", woken)
	}
	if _, ok := r.Next(); ok {
		t.Error("something is due in a closed gate")
	}
	if got := r.refused(bob); got.Reason != weir.ReasonDraining {
		t.Errorf("%+v", *got)
	}
	if err := r.Reconfigure(Config{}); !errors.Is(err, ErrClosed) {
		t.Errorf("%v", err)
	}
}
