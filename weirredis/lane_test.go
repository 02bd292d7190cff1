package weirredis

import (
	"errors"
	"testing"
	"time"

	"github.com/weir-go/weir/quota"
)

func TestLane(t *testing.T) {
	l := &lane{}
	now := time.Unix(1000, 0)
	if _, err := l.enter(2); err != nil {
		t.Fatalf("no place for one: %v", err)
	}
	if _, err := l.enter(2); err != nil {
		t.Fatalf("no place for two: %v", err)
	}
	if _, err := l.enter(2); err == nil || err.Reason != Full || !errors.Is(err, quota.ErrBusy) || !errors.Is(err, ErrUnavailable) {
		t.Errorf("a third: %v, want full", err)
	}
	l.leave()
	if _, err := l.enter(2); err != nil {
		t.Errorf("after one has left: %v", err)
	}
	cause := errors.New("gone")
	for i := range tripAfter - 1 {
		if l.failed(now, cause) {
			t.Errorf("down after %d", i+1)
		}
	}
	l.worked() // the row is broken
	for i := range tripAfter {
		if tripped := l.failed(now, cause); tripped != (i == tripAfter-1) {
			t.Errorf("failure %d: tripped %v", i+1, tripped)
		}
	}
	if l.failed(now, cause) {
		t.Error("it goes down twice")
	}
	if _, err := l.enter(2); err == nil || err.Reason != Down || !errors.Is(err, cause) {
		t.Errorf("%v, want down, with its cause", err)
	}
	if d := l.up(now.Add(time.Second)); d != time.Second {
		t.Errorf("down for %v, want 1s", d)
	}
	l.leave()
	if _, err := l.enter(2); err != nil {
		t.Errorf("up again: %v", err)
	}
}

// Probes come ever more seldom, up to a bound, and never in step.
func TestBackoff(t *testing.T) {
	for _, random := range []float64{0, .5, .999999} {
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
