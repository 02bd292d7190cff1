package quota

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
)

// The vectors of other systems' rate limiters that no other table has. K is Kafka
// (bucket_test.go has the rest), P its precedence (rules_test.go), M the limiters of
// MongoDB (quota_test.go has M60, M61 and M64). K15 and K32 are about who mutes a
// connection for how long, which is for an adapter of that protocol: nothing here
// holds a connection.

// K34, K36: the quotas of bytes that Kafka keeps are rates over the last S samples, not
// buckets. What such a window takes at once is the burst of a bucket with a sample
// less; and what it says of a load that never lets it run empty is what a bucket says
// that began empty. A bucket that began full has its burst on top.
func TestRatesOverAWindow(t *testing.T) {
	if l := Samples(10, 4-1, time.Second); l.Burst != 30 {
		t.Errorf("K36: a burst of %v, want 30", l.Burst)
	}
	for name, c := range map[string]struct {
		before int64
		wait   time.Duration
	}{"K34": {5500, 2100 * ms}, "began full": {0, 0}} {
		p := newPail(true, Samples(500, 11, time.Second))
		p.Mode = Permissive
		p.take(c.before)
		for range 10 {
			p.advance(time.Second)
			p.take(400)
		}
		p.advance(500 * ms)
		if r := p.take(2300); r.Wait != c.wait {
			t.Errorf("%s: a wait of %v, want %v", name, r.Wait, c.wait)
		}
	}
}

// P6, P8, P10: where a rule that goes, or comes, changes whose bucket it is, usage
// begins anew.
func TestPrecedenceChangesTheBucket(t *testing.T) {
	noBoth := without(kafka(), "user=*,client=*")
	noUser := without(noBoth, "user=*")
	withOne := append(slices.Clip(kafka()), Rule{User: Named("userA"), Client: Named("client6"), Limits: samples(11_000)})
	for name, c := range map[string]struct {
		before, after []Rule
		who           weir.Work
		was, is       float64 // rates
	}{
		"P6":  {kafka(), noBoth, weir.Work{User: "userD", Client: "client1"}, 3000, 1000},
		"P8":  {noBoth, noUser, weir.Work{User: "userF", Client: "client4"}, 1000, 2000},
		"P10": {kafka(), withOne, weir.Work{User: "userA", Client: "client6"}, 4000, 11_000},
	} {
		r := newRig(t, Config{Debt: true, Rules: c.before})
		r.admit(of(c.who, int64(11*c.was)+1))
		if got := r.refused(c.who); got.Limit != 11*c.was {
			t.Errorf("%s, exhausted: %+v, want a burst of %v", name, *got, 11*c.was)
		}
		if err := r.SetRules(c.after); err != nil {
			t.Fatal(err)
		}
		if got := r.left(c.who); got != 11*c.is {
			t.Errorf("%s, anew: %v left, want %v", name, got, 11*c.is)
		}
		r.admit(c.who)
	}
}

// M64, an operation with 5 ms left: elsewhere it waits, and hears of its deadline. Here
// it hears at once that the wait is longer, and nothing has been taken.
func TestDeadlineBeforeTheTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQuota(t, Config{Name: "q", Rules: everyUser(Limit{Rate: .01, Burst: 1}), Queue: Queue{Len: 1, MaxWait: -1}})
		if _, err := q.Admit(ctx, alice); err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(ctx, 5*ms)
		defer cancel()
		began := time.Now()
		_, err := q.Admit(short, alice)
		if r := weir.AsRejection(err); r == nil || r.Reason != weir.ReasonQuota || r.RetryAfter != 100*time.Second || time.Since(began) != 0 {
			t.Errorf("%v after %v, want a refusal at once with a wait of 100s", err, time.Since(began))
		}
		if d, _ := q.Peek(ctx, of(alice, 0)); d.Remaining != 0 || q.Snapshot().Waiting != 0 {
			t.Errorf("%v left, %d waiting; want 0 and 0", d.Remaining, q.Snapshot().Waiting)
		}
	})
}

// M66: no burst is a fault, when the gate is made and when it is changed.
func TestNoBurst(t *testing.T) {
	none := everyUser(Limit{Rate: 4})
	if _, err := New(Config{Name: "q", Rules: none}); err == nil || !strings.Contains(err.Error(), "Limits[0].Burst 0: must be above 0") {
		t.Errorf("made: %v", err)
	}
	r := newRig(t, Config{Rules: everyUser(Per(4, time.Second))})
	for name, err := range map[string]error{"Reconfigure": r.Reconfigure(Config{Rules: none}), "SetRules": r.SetRules(none)} {
		if err == nil || !strings.Contains(err.Error(), "Limits[0].Burst 0: must be above 0") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := r.left(alice); got != 4 {
		t.Errorf("%v left after changes that were refused, want 4", got)
	}
}

// M67, M70: who goes at once has waited 0, which counts; at a rate of 20 the last of 199
// that wait has waited 9.95 s, and one more finds no place.
func TestTimeInTheQueue(t *testing.T) {
	var waited []time.Duration
	r := newRig(t, Config{
		Rules: everyUser(Limit{Rate: 20, Burst: 1}), Queue: Queue{Len: 199, MaxWait: time.Minute},
		Hooks: weir.Hooks{Admitted: func(_ string, _ weir.Work, d time.Duration) { waited = append(waited, d) }},
	})
	for range 200 {
		if _, _, err := r.Arrive(alice, func(weir.Permit, error) {}); err != nil && err != weir.ErrWaiting {
			t.Fatal(err)
		}
	}
	if len(waited) != 1 || waited[0] != 0 {
		t.Errorf("M67: who went at once waited %v, want 0", waited)
	}
	if _, _, err := r.Arrive(alice, nil); r.rejection(err).Reason != weir.ReasonQueueFull {
		t.Errorf("one too many: %v", err)
	}
	for at, ok := r.Next(); ok; at, ok = r.Next() {
		r.clock.advance(at - r.clock.now())
		r.Step()
	}
	if last := waited[len(waited)-1]; len(waited) != 200 || last != 9950*ms {
		t.Errorf("M70: %d went, the last after %v; want 200 and 9.95s", len(waited), last)
	}
}

// A reservation that is given back pulls nobody forward, but who comes next finds it.
func TestGivenBackReservation(t *testing.T) {
	r := newRig(t, Config{Rules: everyUser(Limit{Rate: 4, Burst: 1}), Queue: Queue{Len: 9, MaxWait: time.Minute}})
	due := func() time.Duration { at, _ := r.Next(); return at }
	r.admit(alice)
	_, first, _ := r.Arrive(alice, func(weir.Permit, error) {})
	_, second, _ := r.Arrive(alice, func(weir.Permit, error) {})
	if first.Cancel(); due() != 500*ms {
		t.Errorf("the second's turn is at %v, want 500ms", due())
	}
	if second.Cancel(); r.left(alice) != 0 {
		t.Errorf("%v left, want 0", r.left(alice))
	}
	if _, _, err := r.Arrive(alice, func(weir.Permit, error) {}); err != weir.ErrWaiting || due() != 250*ms {
		t.Errorf("%v, the next turn is at %v, want 250ms", err, due())
	}
}
