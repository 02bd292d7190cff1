package limit

import (
	"math"
	"strings"
	"testing"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/waiting"
)

// All that is wrong is said at once, with where it is and what is allowed.
func TestQueueFaults(t *testing.T) {
	q := Queue{
		Order: EDF + 1,
		Shares: map[weir.Priority]float64{weir.Background: math.NaN(), weir.Normal: -.1, weir.High: .6, weir.Critical: .5,
			weir.Critical + 1: .1, weir.Background - 1: .1},
		Weights: Weights{
			Users:   map[string]float64{"zero": 0, "good": 1, "negative": -1, "huge": math.Inf(1)},
			Tenants: map[string]float64{"": math.NaN(), strings.Repeat("x", 10<<10): MaxWeight, "heavy": MaxWeight * 2},
		},
	}
	_, err := New(Config{Name: "t", Queue: q})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		"Limit 0", "Queue.Order 4",
		"Queue.Shares[priority(-2)]: no such", "Queue.Shares[background] NaN", "Queue.Shares[normal] -0.1", "Queue.Shares[priority(3)]: no such",
		"1.1 together", `Users["zero"] 0`, `Users["negative"] -1`, `Users["huge"] +Inf`, `Tenants[""] NaN`, `Tenants["heavy"] 2000: must be from 0.001 to 1000`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s is missing in:\n%v", want, err)
		}
	}
	if n := strings.Count(err.Error(), "\n"); n != 11 {
		t.Errorf("%d lines more than one:\n%v", n, err)
	}
}

func TestQueueLimitsAreAllowed(t *testing.T) {
	q := Queue{Shares: map[weir.Priority]float64{weir.Background: .1, weir.Normal: .2, weir.High: .7},
		Weights: Weights{Users: map[string]float64{"a": MinWeight}, Tenants: map[string]float64{"b": MaxWeight}}}
	if faults := q.settings().Faults(); faults != nil {
		t.Error(faults)
	}
}

// The weights are the limiter's own: changing the map afterwards changes nothing.
func TestWeightsAreCopied(t *testing.T) {
	users := map[string]float64{"a": 3}
	l, _ := byHand(Config{Limit: 1, Queue: Queue{Weights: Weights{Users: users, Tenants: map[string]float64{"x": 2}}}})
	users["a"] = -1
	tests := []struct {
		user, tenant string
		uw, tw       float64
	}{{"a", "x", 3, 2}, {"a", "", 3, 1}, {"", "x", 1, 2}, {"b", "y", 1, 1}}
	for _, tt := range tests {
		if uw, tw := l.parts.Weights(tt.user, tt.tenant); uw != tt.uw || tw != tt.tw {
			t.Errorf("%q, %q: %v and %v", tt.user, tt.tenant, uw, tw)
		}
	}
}

// What a waiter is known by.
func TestWaiterStandsForItsWork(t *testing.T) {
	l, now := byHand(Config{Limit: 2, Queue: Queue{Weights: Weights{Users: map[string]float64{"u": 4}}}})
	*now = 3 * ms
	l.take(t, 2)
	l.enter(t, weir.Work{Priority: 9, User: "u", Tenant: "t", Cost: 5, Deadline: VirtualEpoch.Add(50 * ms)}, nil)
	w := l.room.Next(*now)
	if w.Class != 3 || w.User != "u" || w.Tenant != "t" || w.UserWeight != 4 || w.TenantWeight != 1 || w.Units != 2 || w.Deadline != 50*ms {
		t.Errorf("%+v", w)
	}
	s := l.Snapshot()
	if len(s.WaitingByClass) != 1 || s.WaitingByClass[weir.Critical] != 1 {
		t.Errorf("%v", s.WaitingByClass)
	}
}

// A full room is no reason to refuse, without a look, work that may go before
// those who are in it.
func TestWhoIsRefusedWithoutTheLock(t *testing.T) {
	l, _ := byHand(Config{Limit: 1, Queue: Queue{Len: 1, Order: FIFO}})
	l.take(t, 1)
	l.enter(t, weir.Work{}, nil)
	tests := []struct {
		work weir.Work
		want bool
	}{
		{weir.Work{}, true}, {weir.Work{Priority: weir.Background}, true}, {weir.Work{Op: "o", Client: "c"}, true},
		{weir.Work{Priority: weir.High}, false}, {weir.Work{Tenant: "t"}, false}, {weir.Work{User: "u"}, false},
	}
	for _, tt := range tests {
		if got := l.refuseUnlocked(&tt.work, true) != nil; got != tt.want {
			t.Errorf("%+v: refused at a glance: %v", tt.work, got)
		}
		if l.refuseUnlocked(&tt.work, false) == nil {
			t.Errorf("%+v: looks for a slot where there is none", tt.work)
		}
	}
}

// A cost above the limit runs alone, or is refused at once where that is asked
// for; and when the limit shrinks below what waits, that runs alone in any case.
func TestOversize(t *testing.T) {
	for _, refuse := range []bool{false, true} {
		l, _ := byHand(Config{Limit: 4, RefuseOversize: refuse})
		p, err := l.TryAdmit(weir.Work{Cost: math.MaxInt64})
		if r := weir.AsRejection(err); refuse {
			if r == nil || r.Reason != weir.ReasonTooLarge || r.Limit != 4 || r.Retryable {
				t.Errorf("%v", err)
			}
			p = l.take(t, 1)[0]
		} else if err != nil || l.inFlight() != 4 {
			t.Errorf("%v, %d in flight", err, l.inFlight())
		}
		held := l.take(t, int(4-l.inFlight()))
		_, err = l.TryAdmit(weir.Work{Cost: 5})
		if r := weir.AsRejection(err); refuse != (r != nil && r.Reason == weir.ReasonTooLarge) {
			t.Errorf("when it is full: %v", err)
		}
		for _, other := range held {
			other.Done(weir.OK)
		}
		admitted := false
		l.enter(t, weir.Work{Cost: 4}, func(weir.Permit, error) { admitted = true })
		if err := l.SetLimit(2); err != nil {
			t.Fatal(err)
		}
		if p.Done(weir.OK); !admitted || l.inFlight() != 2 {
			t.Errorf("admitted %v, %d in flight", admitted, l.inFlight())
		}
	}
	l, _ := byHand(Config{Controller: &listener{}, RefuseOversize: true})
	_, err := l.TryAdmit(weir.Work{Cost: 2})
	if r := weir.AsRejection(err); r == nil || !r.Retryable {
		t.Errorf("the limit may grow: %v", err)
	}
}

// Work that must not wait does not, whoever asks.
func TestArriveWithoutWaiting(t *testing.T) {
	l, _ := byHand(Config{Limit: 1})
	l.take(t, 1)
	_, w, err := l.Arrive(weir.Work{MaxWait: weir.NoWait}, func(weir.Permit, error) { t.Error("woken") })
	if r := weir.AsRejection(err); w != nil || r == nil || r.Reason != weir.ReasonLimit || l.Snapshot().Waiting != 0 {
		t.Errorf("%v, %v, %d wait", w, err, l.Snapshot().Waiting)
	}
}

// Who loses its place to a share that is guaranteed to others hears so.
func TestDisplacedByAShare(t *testing.T) {
	l, _ := byHand(Config{Limit: 1, Queue: Queue{Len: 2, Order: FIFO, Shares: map[weir.Priority]float64{weir.Background: 0.5}}})
	l.take(t, 1)
	var r *weir.Rejection
	l.enter(t, weir.Work{Priority: weir.High}, nil)
	l.enter(t, weir.Work{Priority: weir.High}, func(_ weir.Permit, err error) { r = weir.AsRejection(err) })
	l.enter(t, weir.Work{Priority: weir.Background}, nil)
	if r == nil || r.Rule != waiting.RuleShare || r.Reason != weir.ReasonQueueFull {
		t.Errorf("%v", r)
	}
}
