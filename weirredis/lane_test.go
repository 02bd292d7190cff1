package weirredis

import (
	"errors"
	"io"
	"testing"
	"time"
)

func TestLane(t *testing.T) {
	l := &lane{epoch: time.Now().Add(-time.Hour)}
	now := time.Unix(1000, 0)
	if _, err := l.enter(1, 2); err != nil {
		t.Fatalf("no place for one: %v", err)
	}
	if _, err := l.enter(1, 2); err != nil {
		t.Fatalf("no place for two: %v", err)
	}
	if _, err := l.enter(1, 2); err == nil || err.Reason != Full || !l.busy(err.Reason) {
		t.Errorf("a third: %v, want full", err)
	}
	l.leave(1)
	if _, err := l.enter(1, 2); err != nil {
		t.Errorf("after one has left: %v", err)
	}
	cause := errors.New("gone")
	for i := range tripAfter - 1 {
		if l.failed(now, cause) {
			t.Errorf("down after %d", i+1)
		}
	}
	l.succeeded() // the row is broken
	for i := range tripAfter {
		if tripped := l.failed(now, cause); tripped != (i == tripAfter-1) {
			t.Errorf("failure %d: tripped %v", i+1, tripped)
		}
	}
	if l.failed(now, cause) {
		t.Error("it goes down twice")
	}
	if _, err := l.enter(1, 2); err == nil || err.Reason != Down || !errors.Is(err, cause) {
		t.Errorf("%v, want down, with its cause", err)
	}
	if d := l.up(now.Add(time.Second)); d != time.Second {
		t.Errorf("down for %v, want 1s", d)
	}
	l.leave(1)
	if _, err := l.enter(1, 2); err != nil {
		t.Errorf("up again: %v", err)
	}
}

// Probes come ever more seldom, up to a bound, and never in step.
func TestBackoff(t *testing.T) {
	for _, random := range []float64{0, 0.5, 0.999999} {
		var b backoff
		for i, want := range []time.Duration{20, 40, 80, 160, 320, 640, 1000, 1000, 1000} {
			want *= time.Millisecond
			got, exact := b.next(random), want/2+time.Duration(random*float64(want))
			if got != exact {
				t.Errorf("probe %d at %v: after %v, want %v", i, random, got, exact)
			}
		}
	}
}

func TestErrors(t *testing.T) {
	for r := Down; int(r) < len(reasons); r++ {
		e := fail(r, errors.New("cause"))
		if !errors.Is(e, ErrUnavailable) || r.String() == "" || e.Error() != "quota store "+r.String()+": cause" {
			t.Errorf("%d: %v", r, e)
		}
		if e.Charged() != (r == Timeout || r == Broken) {
			t.Errorf("%v: charged %v", r, e.Charged())
		}
	}
	if Reason(200).String() != "" {
		t.Error("a reason out of nowhere")
	}
}

// A server that owed no answer has not been silent, however long ago it gave one.
func TestLaneAfterARest(t *testing.T) {
	l := &lane{epoch: time.Now().Add(-time.Hour)}
	l.spoke.Store(int64(time.Since(l.epoch) - 2*silence))
	if l.busy(Timeout) {
		t.Error("silent for two seconds, and not held to be")
	}
	if _, err := l.enter(1, 2); err != nil || !l.busy(Timeout) {
		t.Errorf("%v: held to be silent when it is asked", err)
	}
	l.spoke.Store(int64(time.Since(l.epoch) - 2*silence))
	if _, err := l.enter(1, 2); err != nil || l.busy(Timeout) {
		t.Errorf("%v: not held to be silent, though it owes an answer", err)
	}
}

// That answers are late is no fault of a server that answers: only silence is, and what
// it or the connection says.
func TestLaneBusy(t *testing.T) {
	epoch := time.Now().Add(-time.Hour)
	now := int64(time.Since(epoch))
	for _, c := range []struct {
		why    Reason
		silent int64
		cause  error
		want   bool
	}{
		{Full, now - int64(silence), nil, true},
		{Timeout, now, nil, true},
		{Timeout, now - int64(silence), nil, false},
		{Down, now, errDeadline, true},
		{Down, now, fail(Timeout, errors.New("a probe took 60ms")), true},
		{Down, now, fail(Broken, io.EOF), false},
		{Down, now - int64(silence), errDeadline, false},
		{Broken, now, nil, false},
		{Refused, now, nil, false},
		{Invalid, now, nil, false},
	} {
		l := &lane{epoch: epoch, cause: c.cause}
		l.spoke.Store(c.silent)
		if got := l.busy(c.why); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
