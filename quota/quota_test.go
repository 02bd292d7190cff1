package quota

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir"
)

func TestQuota(t *testing.T) {
	r := newRig(t, Config{Rules: everyUser(Per(2, time.Second))})
	r.admit(alice)
	r.admit(alice).Done(weir.OK)
	got := r.refused(alice)
	want := weir.Rejection{Gate: "q", Rule: "user=*", Reason: weir.ReasonQuota, Value: 2, Limit: 2, RetryAfter: 500 * ms, Retryable: true}
	if *got != want {
		t.Errorf("%+v, want %+v", *got, want)
	}
	r.admit(bob)
	r.clock.advance(500 * ms)
	r.admit(alice)
	if got := r.refused(of(bob, 3)); got.Reason != weir.ReasonTooLarge || got.Retryable || got.Value != 3 || got.Limit != 2 {
		t.Errorf("a cost above the burst: %+v", *got)
	}
	if got := r.refused(of(bob, -1)); got.Reason != weir.ReasonTooLarge {
		t.Errorf("a negative cost: %+v", *got)
	}
	if got := r.refused(of(bob, math.MaxInt64)); got.Reason != weir.ReasonTooLarge {
		t.Errorf("the greatest cost: %+v", *got)
	}
}

// Which of several windows refuses is said, also where they have the same burst.
func TestRefusalNamesItsWindow(t *testing.T) {
	r := newRig(t, Config{Rules: everyUser(Limit{Rate: 10, Burst: 2}, Limit{Rate: 1, Burst: 2}, Limit{Rate: 1, Burst: 4})})
	r.admit(of(alice, 2))
	if got := r.refused(alice); got.Window != 2 || got.Limit != 2 || got.RetryAfter != time.Second {
		t.Errorf("%+v, want the second window's", *got)
	}
	if got := r.refused(of(bob, 3)); got.Window != 2 || got.Reason != weir.ReasonTooLarge || got.Limit != 2 {
		t.Errorf("%+v, want the last window that it is too large for", *got)
	}
	single := newRig(t, Config{Rules: everyUser(Per(1, time.Hour))})
	single.admit(alice)
	if got := single.refused(alice); got.Window != 0 {
		t.Errorf("%+v, want no window: there is one", *got)
	}
}

// S24: a rate of 5, a burst of 500, a cost of 560.
func TestDebt(t *testing.T) {
	r := newRig(t, Config{Debt: true, Rules: everyUser(Samples(5, 100, time.Second))})
	r.admit(of(alice, 560))
	if got := r.refused(alice); got.RetryAfter != 12*time.Second || got.Value != 560 || got.Remaining != -60 {
		t.Errorf("%+v", *got)
	}
	r.clock.advance(12*time.Second - ms)
	if got := r.refused(alice); got.RetryAfter != ms {
		t.Errorf("a millisecond before: %+v", *got)
	}
	r.clock.advance(ms)
	r.admit(alice)
}

// K24: whom no rule matches is not limited. Exempt and blocked are what they say.
func TestWithoutLimit(t *testing.T) {
	r := newRig(t, Config{Rules: []Rule{
		{Client: Named("batch"), Limits: []Limit{Per(1, time.Hour)}},
		{User: Named("root"), Exempt: true},
		{Name: "banned", User: Named("eve"), Blocked: true},
	}})
	for range 3 {
		r.admit(of(alice, 30))
		r.admit(weir.Work{User: "root", Client: "batch"})
		r.admit(weir.Work{Client: "batch", User: "eve", Exempt: true})
	}
	if got := r.refused(weir.Work{User: "eve", Client: "batch"}); got.Reason != weir.ReasonBlocked || got.Rule != "banned" || got.Retryable {
		t.Errorf("%+v", *got)
	}
	r.admit(weir.Work{User: "alice", Client: "batch"})
	if s := r.Snapshot(); s.ExemptAdmitted != 9 || s.Admitted != 1 || s.Rejected[weir.ReasonBlocked] != 1 {
		t.Errorf("%+v", s)
	}
}

func TestHooksOfAQuota(t *testing.T) {
	var told []string
	tell := func(format string, args ...any) { told = append(told, fmt.Sprintf(format, args...)) }
	r := newRig(t, Config{Rules: everyUser(Per(1, time.Second)), Queue: Queue{Len: 1}, Hooks: weir.Hooks{
		Admitted: func(gate string, w weir.Work, waited time.Duration) { tell("admitted %s %s %v", gate, w.User, waited) },
		Rejected: func(w weir.Work, r *weir.Rejection) { tell("rejected %s %v", w.User, r.Reason) },
		Done:     func(gate string, o weir.Outcome, service time.Duration) { tell("done %s %v %v", gate, o, service) },
	}})
	p := r.admit(alice)
	r.refused(alice)
	r.clock.advance(100 * ms)
	p.Sample(weir.OK)
	p.Done(weir.Failed)
	if _, _, err := r.Arrive(alice, func(p weir.Permit, _ error) { p.Done(weir.Failed) }); err != weir.ErrWaiting {
		t.Fatal(err)
	}
	r.clock.advance(900 * ms)
	r.Step()
	want := "admitted q alice 0s, rejected alice quota, done q ok 100ms, admitted q alice 900ms, done q failed 0s"
	if got := strings.Join(told, ", "); got != want {
		t.Errorf("told %s\nwant %s", got, want)
	}
	if s := r.Snapshot(); s.Outcomes[weir.OK] != 1 || s.Outcomes[weir.Failed] != 1 || s.InFlight != 0 || s.Kind != "quota" {
		t.Errorf("%+v", s)
	}
}

func TestNestedWorkIsPaidFor(t *testing.T) {
	r := newRig(t, Config{Rules: everyUser(Per(1, time.Hour))})
	p := r.admit(alice)
	inner, err := r.Admit(weir.WithPermit(ctx, r.Quota, p), alice)
	if err != nil || r.left(alice) != 0 {
		t.Errorf("%v, %v left", err, r.left(alice))
	}
	inner.Done(weir.OK)
}

func TestQuotaAllocatesNothing(t *testing.T) {
	q := newQuota(t, Config{Name: "api", Rules: append(kafka(), Rule{Tenant: Every, Route: Named("/x"), Limits: samples(10)})})
	for _, w := range []weir.Work{{User: "userA", Client: "client1"}, {User: "userB", Client: "client9"}, {User: "x", Client: "y"}} {
		if n := testing.AllocsPerRun(1000, func() {
			if p, err := q.Admit(ctx, w); err == nil {
				p.SetCost("", 0)
				p.Done(weir.OK)
			}
		}); n != 0 {
			t.Errorf("%+v: %v allocations", w, n)
		}
	}
}

// Many at once, waiting, leaving, settling, while rules change: no token is spent
// twice, and everybody gets an answer.
func TestCrowd(t *testing.T) {
	q := newQuota(t, Config{Name: "q", Rules: everyUser(Limit{Rate: 2000, Burst: 50}), Queue: Queue{Len: 20, MaxWait: 5 * ms}})
	began := time.Now()
	var mu sync.Mutex
	spent := 0
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 200 {
				limited, cancel := context.WithTimeout(ctx, time.Duration(i%7)*ms)
				p, err := q.Admit(limited, of(alice, 2))
				cancel()
				if err != nil {
					continue
				}
				cost := i % 3
				p.SetCost("", int64(cost))
				if i%5 == 0 {
					cost = 0
					p.Cancel()
				}
				p.Done(weir.OK)
				mu.Lock()
				spent += cost
				mu.Unlock()
				if g == 0 && i%20 == 0 {
					if err := q.Reconfigure(Config{Rules: everyUser(Limit{Rate: 1000, Burst: 50}), Queue: Queue{Len: 20, MaxWait: 5 * ms}}); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	const early = .001 // seconds: who would wait for less starts at once
	most := 50 + 2000*(time.Since(began).Seconds()+early)
	if s := q.Snapshot(); float64(spent) > most || s.InFlight != 0 || s.Waiting != 0 {
		t.Errorf("spent %d, no more than %.0f came; %+v", spent, most, s)
	}
}
