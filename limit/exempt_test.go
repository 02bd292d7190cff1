package limit

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/room"
)

var exemptWork = weir.Work{Op: "health", Exempt: true}

func (l *Limiter) takeExempt(t *testing.T, n int) (permits []weir.Permit) {
	t.Helper()
	for range n {
		p, err := l.TryAdmit(exemptWork)
		if err != nil {
			t.Fatal(err)
		}
		permits = append(permits, p)
	}
	return permits
}

// Exempt work takes no slot, in either gear, past a full room, through whichever
// door it comes; and it is counted apart.
func TestExemptIsNeverBlocked(t *testing.T) {
	l, _ := byHand(Config{Limit: 1, Queue: Queue{Len: 1}})
	p := l.takeExempt(t, 1)
	if l.slow {
		t.Error("shifted down for exempt work")
	}
	l.take(t, 1)
	l.enter(t, weir.Work{}, nil)
	more, err := l.Admit(t.Context(), exemptWork)
	if err != nil {
		t.Fatal(err)
	}
	last, _, err := l.Arrive(exemptWork, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := l.Snapshot()
	if s.InFlight != 1 || s.Waiting != 1 || s.Admitted != 1 || s.Exempt != 3 || s.ExemptAdmitted != 3 {
		t.Errorf("%+v", s)
	}
	for _, p := range append(p, more, last) {
		p.Sample(weir.OK)
		p.Done(weir.OK)
		p.Done(weir.OK)
		p.Cancel()
	}
	if s := l.Snapshot(); s.InFlight != 1 || s.Exempt != 0 || s.ExemptAdmitted != 3 || len(s.Outcomes) != 0 {
		t.Errorf("%+v", s)
	}
	l.check(t)
}

// Beyond the cap it is refused, with a rejection that says so and when to come
// back; the controller hears nothing of it.
func TestExemptHasACapOfItsOwn(t *testing.T) {
	l, now := byHand(Config{Limit: 1, Exempt: 2})
	for range 8 { // it takes 40 ms
		p := l.takeExempt(t, 1)[0]
		*now += 40 * ms
		p.Done(weir.OK)
	}
	out := l.takeExempt(t, 2)
	_, err := l.Admit(t.Context(), exemptWork)
	r := weir.AsRejection(err)
	if r == nil || r.Reason != weir.ReasonLimit || r.Rule != "exempt" || r.Value != 2 || r.Limit != 2 || !r.Retryable || r.RetryAfter != 20*ms {
		t.Fatalf("%v", err)
	}
	if s := l.Snapshot(); s.Rejected[weir.ReasonLimit] != 1 {
		t.Errorf("refused %v", s.Rejected)
	}
	out[0].Done(weir.OK)
	if l.take(t, 1); l.inFlight() != 1 {
		t.Error("exempt work holds a slot")
	}
	l.takeExempt(t, 1)
}

// While some is refused, how fast it ends tells when to come back.
func TestExemptRetryAfterFollowsTheDrain(t *testing.T) {
	l, now := byHand(Config{Limit: 1, Exempt: 1})
	var last *weir.Rejection
	for range 40 {
		p := l.takeExempt(t, 1)[0]
		_, err := l.TryAdmit(exemptWork)
		last = weir.AsRejection(err)
		*now += 50 * ms
		p.Done(weir.OK)
	}
	if last.RetryAfter != 50*ms {
		t.Errorf("retry after %v where one ends each 50ms", last.RetryAfter)
	}
}

// The cap, and whether anything is exempt at all, change while work is in flight,
// and whatever changes between admission and end, the books balance.
func TestExemptBooksBalance(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 5))
		l, now := byHand(Config{Limit: 4})
		var out []weir.Permit
		var admitted uint64
		for range 300 {
			switch rng.IntN(6) {
			case 0, 1, 2:
				w := weir.Work{Exempt: rng.IntN(2) == 0, Cost: rng.Int64N(3)}
				if p, err := l.TryAdmit(w); err == nil {
					out = append(out, p)
					w.Exempt = !w.Exempt // nobody looks again
					admitted++
				}
			case 3:
				if len(out) > 0 {
					out[rng.IntN(len(out))].Done(weir.OK) // perhaps again
				}
			case 4:
				limit := Config{Limit: rng.Int64N(6) + 1, Exempt: rng.Int64N(8) - 2}
				if err := l.Reconfigure(limit); err != nil {
					t.Fatal(err)
				}
			case 5:
				*now += 50 * ms
				l.Step()
			}
			l.check(t)
			s := l.Snapshot()
			var costs int64
			for _, b := range *l.table.Load() {
				if b.Held() {
					costs += max(1, b.cost)
				}
			}
			if l.slow && s.InFlight != costs || s.ExemptAdmitted+s.Admitted != admitted {
				t.Fatalf("seed %d: in flight %d of %d, admitted %d and %d exempt of %d", seed, s.InFlight, costs, s.Admitted, s.ExemptAdmitted, admitted)
			}
		}
		for _, p := range out {
			p.Done(weir.OK)
		}
		if s := l.Snapshot(); s.InFlight != 0 || s.Exempt != 0 {
			t.Fatalf("seed %d: %d in flight, %d exempt", seed, s.InFlight, s.Exempt)
		}
	}
}

// With a negative cap nothing is exempt.
func TestExemptionCanBeOff(t *testing.T) {
	l, _ := byHand(Config{Limit: 1, Exempt: -1})
	l.takeExempt(t, 1)
	if s := l.Snapshot(); s.InFlight != 1 || s.Exempt != 0 {
		t.Errorf("%+v", s)
	}
	if _, err := l.TryAdmit(exemptWork); weir.AsRejection(err) == nil {
		t.Error("exempt from a limit that exempts nothing")
	}
}

// Exempt from the limit, not from sense.
func TestExemptIsRefusedWhatNobodyWants(t *testing.T) {
	l, _ := byHand(Config{Limit: 1})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	late, negative := exemptWork, exemptWork
	late.Deadline, negative.Cost = weir.VirtualEpoch.Add(-1), -1
	_, err1 := l.Admit(gone, exemptWork)
	_, err2 := l.TryAdmit(late)
	_, err3 := l.TryAdmit(negative)
	l.Close()
	_, err4 := l.TryAdmit(exemptWork)
	for i, want := range []weir.Reason{weir.ReasonCanceled, weir.ReasonDeadline, weir.ReasonTooLarge, weir.ReasonDraining} {
		if r := weir.AsRejection([]error{err1, err2, err3, err4}[i]); r == nil || r.Reason != want {
			t.Errorf("%v, want %v", r, want)
		}
	}
}

// listener is a controller that keeps the window it is shown.
type listener struct{ last control.Window }

func (c *listener) Name() string { return "listener" }
func (c *listener) Start() control.Decision {
	return control.Decision{Limit: 1, Next: time.Second}
}
func (c *listener) Update(w *control.Window) control.Decision {
	c.last = *w
	return c.Start()
}

// The controller must not take the latency of exempt work for that of the rest,
// nor see it in flight.
func TestExemptIsNoSample(t *testing.T) {
	c := &listener{}
	l, now := byHand(Config{Controller: c, Exempt: 3})
	out := l.takeExempt(t, 3)
	_, _ = l.TryAdmit(exemptWork)
	*now += time.Second
	for i, p := range out {
		p.Done(weir.Outcomes()[i+1])
	}
	l.Step()
	w := &c.last
	if w.Elapsed != time.Second || w.Timed+w.Admitted+w.MaxInFlight+w.OK+w.Failed+w.Overload != 0 || w.MeanInFlight != 0 || l.service != (room.Service{}) {
		t.Errorf("%+v", w)
	}
}

func TestExemptHooks(t *testing.T) {
	var told []string
	l, now := byHand(Config{Limit: 1, Exempt: 1, Hooks: weir.Hooks{
		Admitted: func(_ string, w weir.Work, _ time.Duration) { told = append(told, "admitted "+w.Op) },
		Rejected: func(w weir.Work, r *weir.Rejection) { told = append(told, "rejected "+r.Rule) },
		Done: func(_ string, o weir.Outcome, d time.Duration) {
			told = append(told, "done "+o.String()+" "+d.String())
		},
	}})
	p := l.takeExempt(t, 1)[0]
	_, _ = l.TryAdmit(exemptWork)
	*now += 3 * ms
	p.Sample(weir.OK)
	p.Sample(weir.OK)
	*now += 3 * ms
	p.Done(weir.Failed)
	p = l.takeExempt(t, 1)[0]
	*now += 4 * ms
	p.Done(weir.Failed)
	want := "admitted health, rejected exempt, done ok 3ms, admitted health, done failed 4ms"
	if got := strings.Join(told, ", "); got != want {
		t.Errorf("told %s\nwant %s", got, want)
	}
}

func TestDrainWaitsForExempt(t *testing.T) {
	l := weir.Must(New(Config{Name: "t", Limit: 1}))
	p := l.takeExempt(t, 1)[0]
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Drain(gone); err == nil || !strings.Contains(err.Error(), "1 exempt") || !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	go p.Done(weir.OK)
	if err := l.Drain(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestExemptFromManyGoroutines(t *testing.T) {
	l := weir.Must(New(Config{Name: "t", Limit: 2, Exempt: 8}))
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := range 400 {
				w := weir.Work{Exempt: i%2 == 0, MaxWait: weir.NoWait}
				if p, err := l.Admit(context.Background(), w); err == nil {
					if s := l.Snapshot(); s.Exempt > 8 {
						t.Errorf("%d exempt", s.Exempt)
					}
					p.Done(weir.OK)
				}
			}
		})
	}
	wg.Wait()
	if s := l.Snapshot(); s.InFlight != 0 || s.Exempt != 0 {
		t.Errorf("%d in flight, %d exempt", s.InFlight, s.Exempt)
	}
}

func TestExemptAllocatesNothing(t *testing.T) {
	l := weir.Must(New(Config{Name: "t", Limit: 2, Exempt: 1}))
	if n := testing.AllocsPerRun(100, func() {
		p, _ := l.TryAdmit(exemptWork)
		_, _ = l.TryAdmit(weir.Work{Exempt: true}) // refused
		p.Done(weir.OK)
	}); n > 0.1 {
		t.Errorf("%v allocations", n)
	}
}

func TestExemptCapTooLarge(t *testing.T) {
	_, err := New(Config{Name: "t", Limit: -1, Exempt: MaxLimit + 1})
	if err == nil || !strings.Contains(err.Error(), "Exempt") || !strings.Contains(err.Error(), "Limit: -1") {
		t.Error(err)
	}
}

// Exempt work that is cancelled was never admitted.
func TestCancelledExemptIsNotCounted(t *testing.T) {
	l, _ := byHand(Config{Limit: 1})
	p := l.takeExempt(t, 2)
	p[0].Cancel()
	p[0].Cancel()
	if s := l.Snapshot(); s.Exempt != 1 || s.ExemptAdmitted != 1 {
		t.Errorf("one of two cancelled: %+v", s)
	}
	p[1].Cancel()
	if s := l.Snapshot(); s.Exempt != 0 || s.ExemptAdmitted != 0 {
		t.Errorf("both cancelled: %+v", s)
	}
}
