package limit

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/room"
)

const ms = time.Millisecond

// measured returns a full limiter with one waiting, slots that come back at 10 a
// second, and a median of 200 ms.
func measured(t *testing.T, order Order) (*Limiter, *time.Duration) {
	t.Helper()
	l, now := byHand(Config{Limit: 1, Queue: Queue{Len: 100, Order: order}})
	l.take(t, 1)
	l.enter(t, weir.Work{}, nil)
	l.drain.rate, l.service = 10, usually(200*ms)
	return l, now
}

// enter brings work that has to wait. told, if not nil, hears the answer.
func (l *Limiter) enter(t *testing.T, w weir.Work, told func(weir.Permit, error)) weir.Waiter {
	t.Helper()
	if told == nil {
		told = func(weir.Permit, error) {}
	}
	_, place, err := l.Arrive(w, told)
	if err != weir.ErrWaiting {
		t.Fatalf("not queued: %v", err)
	}
	return place
}

// With one in front and 10 a second it is a newcomer's turn after 200 ms, and it
// would be done after 400 ms, as a rule.
func TestNobodyWaitsInVain(t *testing.T) {
	const start = 50 * ms
	by := func(d time.Duration) time.Time { return VirtualEpoch.Add(start + d) }
	tests := []struct {
		name         string
		work         weir.Work
		forget       func(*Limiter)
		reason       weir.Reason // none: it waits
		value, limit float64
	}{
		{"time enough", weir.Work{Deadline: by(400 * ms), MaxWait: 200 * ms}, nil, 0, 0, 0},
		{"a deadline too near", weir.Work{Deadline: by(399 * ms)}, nil, weir.ReasonDeadline, .4, .399},
		{"a wait too short", weir.Work{MaxWait: 199 * ms}, nil, weir.ReasonQueueTimeout, .2, .199},
		{"units, not waiters", weir.Work{Cost: 2, MaxWait: 199 * ms}, nil, weir.ReasonQueueTimeout, .2, .199},
		{"the rate is unknown", weir.Work{Deadline: by(ms)}, func(l *Limiter) { l.drain.rate = 0 }, 0, 0, 0},
		{"the rate is old", weir.Work{Deadline: by(ms)}, func(l *Limiter) { l.drain.known = -time.Hour }, 0, 0, 0},
		{"the service is unknown", weir.Work{Deadline: by(200 * ms)}, func(l *Limiter) { l.service = room.Service{} }, 0, 0, 0},
		{"nobody in front", weir.Work{Deadline: by(ms)}, func(l *Limiter) { l.room.Remove(l.room.Oldest()) }, 0, 0, 0},
	}
	for _, tt := range tests {
		l, now := measured(t, FIFO)
		*now = start
		if tt.forget != nil {
			tt.forget(l)
		}
		_, _, err := l.Arrive(tt.work, func(weir.Permit, error) {})
		if tt.reason == 0 {
			if err != weir.ErrWaiting {
				t.Errorf("%s: %v", tt.name, err)
			}
			continue
		}
		r := weir.AsRejection(err)
		if r == nil || r.Reason != tt.reason || r.Value != tt.value || r.Limit != tt.limit || !r.Retryable || r.RetryAfter <= 0 {
			t.Errorf("%s: %v", tt.name, err)
		}
		if late := tt.reason == weir.ReasonDeadline; errors.Is(err, context.DeadlineExceeded) != late {
			t.Errorf("%s: cause %v", tt.name, r.Cause)
		}
	}
}

// Where the newest may go first, a newcomer that would be late in its turn does.
func TestWhoWouldBeLateGoesFirst(t *testing.T) {
	l, now := measured(t, Adaptive)
	var first string
	w := weir.Work{Deadline: VirtualEpoch.Add(350 * ms)}
	l.enter(t, w, func(weir.Permit, error) { first = "newest" })
	*now = 50 * ms
	if err := l.SetLimit(2); err != nil || first != "newest" {
		t.Errorf("%v, went first: %q", err, first)
	}
	l.enter(t, weir.Work{}, nil)
	_, _, err := l.Arrive(weir.Work{Deadline: VirtualEpoch.Add(349 * ms)}, func(weir.Permit, error) {})
	if r := weir.AsRejection(err); r == nil || r.Reason != weir.ReasonDeadline {
		t.Errorf("too late even so: %v", err)
	}
}

// Work with a deadline leaves when the median service no longer fits before it.
func TestLeavesWhenTooLittleIsLeft(t *testing.T) {
	tests := []struct {
		deadline, patience, want time.Duration
		outOf                    weir.Reason
	}{
		{time.Second, 2 * time.Second, 800 * ms, weir.ReasonDeadline},
		{time.Second, 700 * ms, 700 * ms, weir.ReasonQueueTimeout},
		{200 * ms, time.Second, 200 * ms, weir.ReasonDeadline}, // too little from the outset
		{201 * ms, time.Second, 1 * ms, weir.ReasonDeadline},
		{room.Never, time.Second, time.Second, weir.ReasonQueueTimeout},
		{room.Never, room.Never, room.Never, weir.ReasonQueueTimeout},
	}
	for _, tt := range tests {
		var w waiter
		w.until(0, bounds{tt.patience, tt.deadline}, 200*ms)
		if w.Expires != tt.want || w.outOf != tt.outOf {
			t.Errorf("%v: until %v, %v", tt, w.Expires, w.outOf)
		}
	}
}

// usually is the service of work that takes d.
func usually(d time.Duration) (s room.Service) {
	for range 8 {
		s.Add(d)
	}
	return s
}

// keep is how many of a queue that stands may wait.
const keep = 64

// The oldest hears at once when it has lost its place for good, and to how many.
func TestDisplaced(t *testing.T) {
	l, now := byHand(Config{Limit: 1})
	l.take(t, 1)
	l.drain.rate = 640
	var r *weir.Rejection
	l.enter(t, weir.Work{}, func(_ weir.Permit, err error) { r = weir.AsRejection(err) })
	for range keep - 2 {
		l.enter(t, weir.Work{}, nil)
	}
	for range 2 {
		*now += 100 * ms
		l.drain.known = *now
		l.Step()
	}
	l.enter(t, weir.Work{}, nil)
	if r != nil {
		t.Fatalf("displaced with a place left: %v", r)
	}
	l.enter(t, weir.Work{}, nil)
	if r == nil || r.Reason != weir.ReasonQueueFull || r.Value != keep || r.Limit != keep || !r.Retryable {
		t.Errorf("%v", r)
	}
	if s := l.Snapshot(); s.Waiting != keep || s.Rejected[weir.ReasonQueueFull] != 1 {
		t.Errorf("%d wait, %v", s.Waiting, s.Rejected)
	}
}

// What failed fast says nothing about how long work takes.
func TestServiceCountsAnswers(t *testing.T) {
	l, now := byHand(Config{Limit: 1, Hooks: weir.Hooks{Done: func(string, weir.Outcome, time.Duration) {}}})
	for _, o := range weir.Outcomes() {
		l.service = room.Service{}
		for range 8 {
			p := l.take(t, 1)[0]
			*now += 10 * ms
			p.Done(o)
		}
		want := 10 * ms
		if o == weir.Failed || o == weir.NoSample {
			want = 0
		}
		if got := l.service.Median(); got != want {
			t.Errorf("%v: %v, want %v", o, got, want)
		}
	}
}

func TestDrainRateGoesStale(t *testing.T) {
	var d drain
	d.finish(100*ms, 4, true) // 40 a second: four intervals of 4 take 400 ms
	for at, want := range map[time.Duration]float64{100 * ms: 40, 1500 * ms: 40, 1500*ms + 1: 0} {
		if got := d.current(at); got != want {
			t.Errorf("%v a second at %v, want %v", got, at, want)
		}
	}
}

func TestUnknownOrder(t *testing.T) {
	for order := range EDF + 2 {
		_, err := New(Config{Name: "t", Limit: 1, Queue: Queue{Order: order}})
		if (err != nil) != (order > EDF) {
			t.Errorf("order %d: %v", order, err)
		}
	}
}
