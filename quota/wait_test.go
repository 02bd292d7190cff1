package quota

import (
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
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
				q := newQuota(t, Config{Name: "q", Rules: everyUser(Window{Rate: 0.01, Burst: 1}), Queue: Queue{Len: 1, MaxWait: -1},
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
				r := take(t, q.store, Request{Key: "q/user=alice", Windows: []Window{{Rate: 0.01, Burst: 1}}, Debt: true, Mode: DryRun})
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
	r := newRig(t, Config{Rules: everyUser(Window{Rate: 0.1, Burst: 1}), Queue: Queue{Len: 10, MaxWait: 15 * time.Second}})
	r.admit(alice)
	for name, w := range map[string]weir.Work{
		"by itself":   {User: "alice", MaxWait: 9 * time.Second},
		"by deadline": {User: "alice", Deadline: weir.VirtualEpoch.Add(9 * time.Second)},
		"not at all":  {User: "alice", MaxWait: weir.NoWait},
	} {
		if _, err := r.Admit(ctx, w); r.rejection(err).RetryAfter != 10*time.Second || r.left(alice) != 0 {
			t.Errorf("%s: %v, %v left", name, err, r.left(alice))
		}
	}
	if got := r.refused(weir.Work{User: "alice", Deadline: weir.VirtualEpoch.Add(-1)}); got.Reason != weir.ReasonDeadline {
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
	r := newRig(t, Config{Rules: everyUser(Window{Rate: 1, Burst: 1}), Queue: Queue{Len: 4, MaxWait: time.Minute}})
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
	// No place is no overload: it is alice's own quota, and the time is when there would be tokens.
	_, _, err = r.Arrive(alice, wake)
	if got := r.rejection(err); got.Reason != weir.ReasonQuota || got.Limit != 1 || got.Remaining != -2 || got.RetryAfter != 3*time.Second || !got.Retryable {
		t.Errorf("%+v", *got)
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
	if err := r.Reconfigure(Config{}); !errors.Is(err, weir.ErrClosed) {
		t.Errorf("%v", err)
	}
}

// A bucket that is flooded leaves half of the places to the others, unless there are no others.
func TestOneBucketCannotTakeAllPlaces(t *testing.T) {
	all, each := Rule{Windows: []Window{Per(1, time.Second)}}, everyUser(Per(1, time.Second))[0]
	for _, tt := range []struct {
		name  string
		rules []Rule
		want  []int // how many of each user wait
	}{
		{"a bucket for each", []Rule{each}, []int{6, 3, 2, 1, 0}},
		{"one of user 0, one of all others", []Rule{all, {User: "0", Windows: all.Windows}}, []int{6, 3, 0}},
		{"one for all that is counted", []Rule{all, {User: "0", Exempt: true}}, []int{0, 12, 0}},
	} {
		for _, isMemory := range []bool{true, false} {
			var clock still
			store := Store(newMemory(t, MemoryConfig{Now: clock.now}))
			if !isMemory {
				store = &flaky{Store: store}
			}
			r := &rig{newQuota(t, Config{Name: "q", Rules: tt.rules, Queue: Queue{Len: 12, MaxWait: -1}, Store: store, Now: clock.now}), t, &clock}
			for i, want := range tt.want {
				n, err := 0, error(nil)
				for range 20 {
					if _, _, err = r.Arrive(weir.Work{User: strconv.Itoa(i)}, func(weir.Permit, error) {}); err == weir.ErrWaiting {
						n++
					}
				}
				if n != want || err != nil && r.rejection(err).Reason != weir.ReasonQuota {
					t.Errorf("%s, in a Memory: %v: %d of user %d wait, want %d; the last: %v", tt.name, isMemory, n, i, want, err)
				}
			}
			clock.advance(time.Minute)
			if r.Step(); r.room.size() != 0 || len(r.room.mine) != 0 {
				t.Errorf("%s: %d places taken by nobody, %v", tt.name, r.room.size(), r.room.mine)
			}
		}
	}
}

// A queue of a negative length is none, as in limit.Queue, and so is one in which nobody may wait.
func TestNegativeQueue(t *testing.T) {
	for _, none := range []Queue{{Len: -1}, {Len: 5, MaxWait: weir.NoWait}} {
		r := newRig(t, Config{Rules: everyUser(Per(1, time.Second)), Queue: none})
		r.admit(alice)
		if _, _, err := r.Arrive(alice, nil); r.rejection(err).Reason != weir.ReasonQuota {
			t.Errorf("%+v: %v", none, err)
		}
	}
}

// Allow charges what it allows, and nothing else.
func TestAllow(t *testing.T) {
	r := newRig(t, Config{Rules: append(everyUser(Per(2, time.Second)), Rule{User: Named("mallory"), Blocked: true}), Queue: Queue{Len: 9}})
	for i, want := range []bool{true, true, false, false} {
		if got := r.Allow(alice); got != want {
			t.Errorf("%d: %v, want %v", i, got, want)
		}
	}
	if r.Allow(weir.Work{User: "mallory"}) || !r.Allow(of(bob, 2)) || r.Allow(of(weir.Work{User: "carol"}, 3)) || !r.Allow(weir.Work{User: "mallory", Exempt: true}) {
		t.Error("blocked, another bucket, too large, or exempt is wrong")
	}
	r.clock.advance(500 * ms)
	if !r.Allow(alice) || r.Allow(alice) {
		t.Error("one token came back")
	}
	if s := r.Snapshot(); s.InFlight != 0 || s.Admitted != 4 || s.Rejected[weir.ReasonQuota] != 3 {
		t.Errorf("%+v", s)
	}
	r.Close()
	if r.Allow(bob) {
		t.Error("allowed by a closed gate")
	}
}

// Wait waits without a Queue, as long as its caller does, and in time with others.
func TestWaitFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQuota(t, Config{Name: "q", Rules: everyUser(Per(1, time.Second))})
		begin := time.Now()
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if err := q.Wait(ctx, alice); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(begin); took < 9*time.Second || took > 9*time.Second+10*ms {
			t.Errorf("ten at one a second took %v, want 9s", took)
		}
		if s := q.Snapshot(); s.InFlight != 0 || s.Waiting != 0 || s.Admitted != 10 {
			t.Errorf("%+v", s)
		}
	})
}

// What Wait cannot wait for it refuses at once, and charges nothing for it.
func TestWaitRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQuota(t, Config{Name: "q", Rules: everyUser(Per(1, time.Second))})
		bounded := newQuota(t, Config{Name: "bounded", Rules: everyUser(Per(1, time.Second)), Queue: Queue{Len: 1, MaxWait: 500 * ms}})
		short, cancel := context.WithTimeout(ctx, 900*ms)
		defer cancel()
		begin := time.Now()
		for _, g := range []*Quota{q, bounded} {
			if err := g.Wait(ctx, alice); err != nil {
				t.Fatal(err)
			}
		}
		for what, c := range map[string]struct {
			gate   *Quota
			ctx    context.Context
			work   weir.Work
			reason weir.Reason
		}{
			"context":   {q, short, alice, weir.ReasonQuota},
			"MaxWait":   {q, ctx, weir.Work{User: "alice", MaxWait: 900 * ms}, weir.ReasonQuota},
			"no wait":   {q, ctx, weir.Work{User: "alice", MaxWait: -1}, weir.ReasonQuota},
			"deadline":  {q, ctx, weir.Work{User: "alice", Deadline: begin.Add(900 * ms)}, weir.ReasonQuota},
			"too large": {q, ctx, of(alice, 2), weir.ReasonTooLarge},
			"queue":     {bounded, ctx, alice, weir.ReasonQuota},
		} {
			if r := weir.AsRejection(c.gate.Wait(c.ctx, c.work)); r == nil || r.Reason != c.reason {
				t.Errorf("%s: %v, want %v", what, r, c.reason)
			}
		}
		if took := time.Since(begin); took != 0 {
			t.Errorf("took %v, want no time", took)
		}
		gone, leave := context.WithCancel(ctx)
		time.AfterFunc(400*ms, leave)
		if r := weir.AsRejection(q.Wait(gone, alice)); r == nil || r.Reason != weir.ReasonCanceled {
			t.Errorf("%v, want canceled", r)
		}
		if err := q.Wait(ctx, alice); err != nil || time.Since(begin) > time.Second+ms {
			t.Errorf("%v after %v: who left has its token back", err, time.Since(begin))
		}
	})
}

// A store that panics costs no place to wait.
func TestPanicGivesThePlaceBack(t *testing.T) {
	memory, err := NewMemory(MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	q := newQuota(t, Config{Rules: everyUser(Window{Rate: 1, Burst: 1}), Store: reservesNothing{memory}, Queue: Queue{Len: 1, MaxWait: time.Minute}})
	if !q.Allow(alice) {
		t.Fatal("refused")
	}
	for range 2 {
		func() {
			defer func() { _ = recover() }()
			_, err := q.Admit(ctx, alice)
			t.Errorf("no panic: %v", err)
		}()
	}
	if n := q.Snapshot().Waiting; n != 0 {
		t.Errorf("%d wait", n)
	}
}

// reservesNothing panics where it should reserve tokens.
type reservesNothing struct{ *Memory }

func (s reservesNothing) Decide(ctx context.Context, r *Request) (Decision, error) {
	if r.Mode == Reserve {
		panic("no such mode")
	}
	return s.Memory.Decide(ctx, r)
}
