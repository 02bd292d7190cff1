package throttle

import (
	"math"
	"testing"
	"time"

	"github.com/weir-go/weir"
)

// Retries are common above a tenth of the refusals, if there are ten. Then only refusals for overload are
// final, and attempts of strangers do not count.
func TestAttempts(t *testing.T) {
	var now time.Duration
	full := &weir.Rejection{Gate: "db", Reason: weir.ReasonQueueFull, Retryable: true, RetryAfter: time.Second}
	quota := &weir.Rejection{Gate: "api", Reason: weir.ReasonQuota, Retryable: true, RetryAfter: time.Second}
	final := &weir.Rejection{Gate: "db", Reason: weir.ReasonQueueFull}
	a := weir.Must(NewAttempts(AttemptsConfig{}, func() time.Duration { return now }))
	refuse := func(n, attempt int, trusted bool) (told *weir.Rejection) {
		for range n {
			told = a.Told(&weir.Work{Attempt: attempt}, trusted, full)
		}
		return told
	}
	if got := refuse(90, 0, true); got != full {
		t.Errorf("first attempts: %+v", got)
	}
	if got := refuse(1000, 1, false); got != full {
		t.Errorf("strangers' retries make retries common: %+v", got)
	}
	if got := refuse(1, 2, false); got.Retryable || got.RetryAfter != 0 || got.Cause == nil {
		t.Errorf("a stranger's third attempt: %+v", got)
	}
	if got := refuse(10, 1, true); got != full {
		t.Errorf("a tenth: %+v", got)
	}
	got := refuse(1, math.MaxInt, true)
	if got.Retryable || got.RetryAfter != 0 || got.Gate != "db" || got.Error() != `weir: gate "db" refused: the wait room is full: overloaded, do not retry` {
		t.Errorf("more than a tenth: %+v", got)
	}
	if got := refuse(1, 0, false); got.Retryable {
		t.Errorf("a first attempt while retries are common: %+v", got)
	}
	if got := a.Told(&weir.Work{Attempt: 1}, true, quota); got != quota {
		t.Errorf("a quota: %+v", got)
	}
	if got := a.Told(&weir.Work{Attempt: 1}, true, final); got != final {
		t.Errorf("what is final already: %+v", got)
	}
	if !full.Retryable {
		t.Error("the gate's own Rejection was changed")
	}
	now = 31 * time.Second
	if got := refuse(1, 1, true); got != full {
		t.Errorf("after the window: %+v", got)
	}
	if got := refuse(1, -1, true); got != full {
		t.Errorf("a negative attempt: %+v", got)
	}
}

// Absurd numbers of attempts, and a clock that jumps, do no harm.
func TestAttemptsOfBadInput(t *testing.T) {
	var now time.Duration
	a := weir.Must(NewAttempts(AttemptsConfig{}, func() time.Duration { return now }))
	full := &weir.Rejection{Reason: weir.ReasonLimit, Retryable: true}
	for _, now = range []time.Duration{0, -time.Hour, math.MaxInt64, 0, math.MinInt64} {
		for _, attempt := range []int{math.MinInt, -1, 0} {
			for range 100 {
				if got := a.Told(&weir.Work{Attempt: attempt}, true, full); got != full {
					t.Fatalf("at %v, attempt %d: %+v", now, attempt, got)
				}
			}
		}
	}
	if got := a.Told(&weir.Work{Attempt: math.MaxInt}, false, full); got.Retryable {
		t.Error("a stranger's last attempt of many is not its last")
	}
}

// The share above which retries are common is a setting. With a share of 1, retries are never common.
func TestAttemptsShare(t *testing.T) {
	full := &weir.Rejection{Reason: weir.ReasonLimit, Retryable: true}
	for _, tt := range []struct {
		share   float64
		most    int // retries among 100 refusals that are not common
		retries int
	}{{0.2, 20, 100}, {1, 100, 100}} {
		a := weir.Must(NewAttempts(AttemptsConfig{Share: tt.share}, func() time.Duration { return 0 }))
		for range 100 - tt.most {
			a.Told(new(weir.Work), true, full)
		}
		for i := range tt.retries {
			if got := a.Told(&weir.Work{Attempt: 1}, true, full).Retryable; got != (i < tt.most) {
				t.Errorf("share %v: retry %d is retryable: %v", tt.share, i+1, got)
			}
		}
	}
	for _, share := range []float64{-1, 1.1, math.NaN()} {
		if a, err := NewAttempts(AttemptsConfig{Share: share}, nil); err == nil {
			t.Errorf("share %v: %v", share, a)
		}
	}
}

// Few retries are no sign, even if nothing else is refused.
func TestFewRetriesAreNotCommon(t *testing.T) {
	a := weir.Must(NewAttempts(AttemptsConfig{}, nil))
	full := &weir.Rejection{Reason: weir.ReasonLimit, Retryable: true}
	for i := range 10 {
		if got := a.Told(&weir.Work{Attempt: 1}, true, full); got.Retryable != (i < 9) {
			t.Errorf("retry %d: retryable %v", i+1, got.Retryable)
		}
	}
}

// Exactly the share is not above the share, whatever its digits.
func TestAttemptsAtTheirShare(t *testing.T) {
	full := &weir.Rejection{Gate: "db", Reason: weir.ReasonQueueFull, Retryable: true}
	for retries := 10; retries < 100; retries++ {
		share := float64(retries) / 100
		a := weir.Must(NewAttempts(AttemptsConfig{Share: share}, func() time.Duration { return 0 }))
		for range 100 - retries {
			a.Told(&weir.Work{}, true, full)
		}
		for i := range retries + 1 {
			if told, want := a.Told(&weir.Work{Attempt: 1}, true, full), i < retries; told.Retryable != want {
				t.Errorf("share %v: retry %d of 100 refusals may be followed by another: %v", share, i+1, told.Retryable)
			}
		}
	}
}
