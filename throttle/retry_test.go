package throttle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir"
)

func retryOf(t testing.TB, r Retry) Retry {
	t.Helper()
	cfg, err := CallerConfig{Retry: r}.complete()
	if err != nil {
		t.Fatal(err)
	}
	return cfg.Retry
}

// The back-off doubles from 100 ms to 10 s, and the jitter is full.
func TestBackoff(t *testing.T) {
	r := retryOf(t, Retry{Attempts: 10})
	for i, want := range []time.Duration{100, 200, 400, 800, 1600, 3200, 6400, 10000} {
		if got := r.backoff(i, false); got != want*time.Millisecond {
			t.Errorf("after attempt %d: %v, want %v", i, got, want*time.Millisecond)
		}
	}
	for _, attempt := range []int{62, 63, 64, 1000, math.MaxInt} {
		if got := r.backoff(attempt, false); got != 10*time.Second {
			t.Errorf("after attempt %d: %v", attempt, got)
		}
	}
	for _, random := range []float64{0, 0.25, 0.999} {
		wait, stop := r.Next(1, Answer{Outcome: weir.Overload}, true, -1, random)
		if want := time.Duration(random * float64(200*time.Millisecond)); wait != want || stop != Again {
			t.Errorf("random %v: waits %v, %q; want %v", random, wait, stop, want)
		}
	}
}

// Textbooks wait up to a minute for an overloaded server, and up to half a minute for a quota.
func TestBackoffOfQuotas(t *testing.T) {
	r := retryOf(t, Retry{Attempts: 10, Backoff: 2 * time.Second, MaxBackoff: time.Minute, QuotaBackoff: time.Second, MaxQuotaBackoff: 30 * time.Second})
	overload, quota := Answer{Outcome: weir.Overload}, Answer{Outcome: weir.OK, Quota: true}
	for attempt, want := range [][2]time.Duration{{1, 2}, {2, 4}, {4, 8}, {8, 16}, {16, 32}, {30, 60}, {30, 60}} {
		for i, a := range []Answer{quota, overload} {
			if wait, stop := r.Next(attempt, a, true, -1, 1); wait != want[i]*time.Second || stop != Again {
				t.Errorf("attempt %d, %+v: waits %v, %q; want %v", attempt, a, wait, stop, want[i]*time.Second)
			}
		}
	}
	r = retryOf(t, Retry{})
	for attempt := range 2 {
		if ofQuota, else_ := r.backoff(attempt, true), r.backoff(attempt, false); ofQuota != else_ {
			t.Errorf("by default it is %v for a quota, and %v otherwise", ofQuota, else_)
		}
	}
}

func TestNext(t *testing.T) {
	const year = 365 * 24 * time.Hour
	overload := Answer{Outcome: weir.Overload}
	told := func(d time.Duration) Answer { return Answer{Outcome: weir.Overload, Told: true, After: d} }
	for _, tt := range []struct {
		name    string
		attempt int
		answer  Answer
		unsafe  bool
		left    time.Duration // 0: no deadline
		wait    time.Duration // with a jitter of a half
		stop    Stop
	}{
		{name: "overload", answer: overload, wait: 50 * time.Millisecond},
		{name: "second", attempt: 1, answer: overload, wait: 100 * time.Millisecond},
		{name: "third is the last", attempt: 2, answer: overload, stop: StopTries},
		{name: "no number", attempt: -1, answer: overload, stop: StopTries},
		{name: "beyond all numbers", attempt: math.MaxInt, answer: overload, stop: StopTries},
		{name: "a success", answer: Answer{Outcome: weir.OK}, stop: StopDone},
		{name: "a fault of its own", answer: Answer{Outcome: weir.Failed}, stop: StopDone},
		{name: "a broken connection", answer: Answer{Outcome: weir.Failed, Transient: true}, wait: 50 * time.Millisecond},
		{name: "the caller left", answer: Answer{Outcome: weir.Abandoned, Transient: true}, stop: StopDone},
		{name: "not safe", answer: overload, unsafe: true, stop: StopUnsafe},
		{name: "not safe, not started", answer: Answer{Outcome: weir.Overload, Unstarted: true}, unsafe: true, wait: 50 * time.Millisecond},
		{name: "not to be retried", answer: Answer{Outcome: weir.Overload, Unstarted: true, Final: true}, stop: StopAsked},
		{name: "a quota", answer: Answer{Outcome: weir.OK, Quota: true, Unstarted: true, Told: true, After: time.Second}, unsafe: true, wait: 1050 * time.Millisecond},
		{name: "a time", answer: told(2 * time.Second), wait: 2050 * time.Millisecond},
		{name: "now", answer: told(0), wait: 50 * time.Millisecond},
		{name: "a time that has passed", answer: told(-time.Hour), wait: 50 * time.Millisecond},
		{name: "a minute", answer: told(time.Minute), wait: time.Minute + 50*time.Millisecond},
		{name: "a year", answer: told(year), stop: StopLong},
		{name: "for ever", answer: told(math.MaxInt64), stop: StopLong},
		{name: "it fits", answer: overload, left: 51 * time.Millisecond, wait: 50 * time.Millisecond},
		{name: "it does not fit", answer: overload, left: 50 * time.Millisecond, stop: StopLate},
		{name: "what the server says does not fit", answer: told(time.Second), left: time.Second, stop: StopLate},
	} {
		r := retryOf(t, Retry{})
		left := tt.left
		if left == 0 {
			left = -1
		}
		if wait, stop := r.Next(tt.attempt, tt.answer, !tt.unsafe, left, 0.5); wait != tt.wait || stop != tt.stop {
			t.Errorf("%s: waits %v, %q; want %v, %q", tt.name, wait, stop, tt.wait, tt.stop)
		}
	}
}

// A Retry alone has its defaults, too.
func TestNextOfTheZeroRetry(t *testing.T) {
	whole := retryOf(t, Retry{})
	for attempt, a := range []Answer{
		{Outcome: weir.Overload}, {Outcome: weir.Overload, Told: true, After: time.Minute}, {Outcome: weir.Overload}, {Outcome: weir.Overload, Told: true, After: time.Hour},
	} {
		wait, stop := new(Retry).Next(attempt%3, a, true, -1, 0.5)
		if wantWait, want := whole.Next(attempt%3, a, true, -1, 0.5); wait != wantWait || stop != want {
			t.Errorf("%+v: waits %v, %q; want %v, %q", a, wait, stop, wantWait, want)
		}
	}
	if wait, stop := (&Retry{Attempts: 9, Backoff: time.Second}).Next(7, Answer{Outcome: weir.Overload}, true, -1, 0.5); wait != 5*time.Second || stop != Again {
		t.Errorf("waits %v, %q", wait, stop)
	}
}

func TestAnswerOf(t *testing.T) {
	dial := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	read := &net.OpError{Op: "read", Err: errors.New("connection reset by peer")}
	for _, tt := range []struct {
		err  error
		want Answer
	}{
		{dial, Answer{Outcome: weir.Overload, Transient: true, Unstarted: true}},
		{fmt.Errorf("get: %w", &net.OpError{Op: "proxyconnect", Err: dial}), Answer{Outcome: weir.Overload, Transient: true, Unstarted: true}},
		{&net.OpError{Op: "socks connect", Err: errors.New("host unreachable")}, Answer{Outcome: weir.Overload, Transient: true, Unstarted: true}},
		{&net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)}, Answer{Outcome: weir.NoSample, Transient: true, Unstarted: true}},
		{fmt.Errorf("get: %w", &net.OpError{Op: "proxyconnect", Err: &net.OpError{Op: "dial", Err: syscall.EMFILE}}), Answer{Outcome: weir.NoSample, Transient: true, Unstarted: true}},
		{&net.OpError{Op: "dial", Err: &net.DNSError{Err: "dial udp 192.0.2.1:53: socket: too many open files", Name: "a"}}, Answer{Outcome: weir.NoSample, Transient: true, Unstarted: true}},
		{&net.OpError{Op: "write", Err: syscall.EMFILE}, Answer{Outcome: weir.Failed, Transient: true}},
		{fmt.Errorf("get: %w", read), Answer{Outcome: weir.Failed, Transient: true}},
		{io.ErrUnexpectedEOF, Answer{Outcome: weir.Failed}},
		{statusError(http.StatusServiceUnavailable), Answer{Outcome: weir.Overload}},
		{fmt.Errorf("call: %w", statusError(http.StatusTooManyRequests)), Answer{Outcome: weir.OK, Quota: true}},
		{fmt.Errorf("call: %w", codeError(http.StatusTooManyRequests)), Answer{Outcome: weir.OK, Quota: true}},
		{codeError(http.StatusServiceUnavailable), Answer{Outcome: weir.Overload}},
		{errors.Join(context.Canceled, statusError(http.StatusTooManyRequests)), Answer{Outcome: weir.Abandoned}},
		{context.DeadlineExceeded, Answer{Outcome: weir.Overload}},
		{context.Canceled, Answer{Outcome: weir.Abandoned}},
		{&weir.Rejection{Reason: weir.ReasonQueueFull, Retryable: true, RetryAfter: time.Second},
			Answer{Outcome: weir.Overload, Unstarted: true, Told: true, After: time.Second}},
		{&weir.Rejection{Reason: weir.ReasonQuota, Retryable: true, RetryAfter: time.Second},
			Answer{Outcome: weir.OK, Quota: true, Unstarted: true, Told: true, After: time.Second}},
		{&weir.Rejection{Reason: weir.ReasonShed}, Answer{Outcome: weir.Overload, Unstarted: true, Final: true}},
		{&weir.Rejection{Reason: weir.ReasonBlocked}, Answer{Outcome: weir.Failed, Unstarted: true, Final: true}},
	} {
		if got := AnswerOf(tt.err); got != tt.want {
			t.Errorf("%v: %+v, want %+v", tt.err, got, tt.want)
		}
	}
}

// statusError is the error of a client that knows what HTTP answered.
type statusError int

func (e statusError) Error() string   { return http.StatusText(int(e)) }
func (e statusError) HTTPStatus() int { return int(e) }

// codeError says the same by another method.
type codeError int

func (e codeError) Error() string   { return http.StatusText(int(e)) }
func (e codeError) StatusCode() int { return int(e) }

func TestParseRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		values []string
		want   time.Duration
		ok     bool
	}{
		{nil, 0, false},
		{[]string{""}, 0, false},
		{[]string{"0"}, 0, true},
		{[]string{"7"}, 7 * time.Second, true},
		{[]string{" 7 "}, 7 * time.Second, true},
		{[]string{"-1"}, 0, false},
		{[]string{"1.5"}, 0, false},
		{[]string{"NaN"}, 0, false},
		{[]string{"soon"}, 0, false},
		{[]string{"31536000"}, 365 * 24 * time.Hour, true},
		{[]string{"99999999999999999999"}, math.MaxInt64, true},
		{[]string{"3", "5"}, 5 * time.Second, true},
		{[]string{"5", "3"}, 5 * time.Second, true},
		{[]string{"soon", "5"}, 5 * time.Second, true},
		{[]string{"3, 5,4"}, 5 * time.Second, true}, // joined by a proxy
		{[]string{","}, 0, false},
		{[]string{"3, soon"}, 3 * time.Second, true},
		{[]string{"soon, 3"}, 0, false},
		{[]string{"120, Mon, 23 Nov 2026 12:00:30 GMT"}, 2 * time.Minute, true},
		{[]string{"Mon, 23 Nov 2026 12:00:30 GMT,7"}, 30 * time.Second, true},
		{[]string{"Mon, 23 Nov 2026 12:00:30 GMT, Monday, 23-Nov-26 12:00:40 GMT"}, 40 * time.Second, true},
		{[]string{strings.Repeat("3,", 15) + "5"}, 5 * time.Second, true},
		{[]string{strings.Repeat("3,", 16) + "5"}, 3 * time.Second, true}, // beyond what is read
		{append(slices.Repeat([]string{"3"}, 15), "5"), 5 * time.Second, true},
		{append(slices.Repeat([]string{"3"}, 16), "5"), 3 * time.Second, true},
		{[]string{"Mon, 23 Nov 2026 12:00:30 GMT"}, 30 * time.Second, true},
		{[]string{"Mon, 23 Nov 2026 11:00:00 GMT"}, 0, true},
		{[]string{"Monday, 23-Nov-26 12:00:30 GMT"}, 30 * time.Second, true},
		{[]string{"Tue, 23 Nov 9999 12:00:30 GMT"}, math.MaxInt64, true},
	} {
		if got, ok := ParseRetryAfter(tt.values, now); got != tt.want || ok != tt.ok {
			t.Errorf("%q: %v, %v; want %v, %v", tt.values, got, ok, tt.want, tt.ok)
		}
	}
}

func TestParsePushback(t *testing.T) {
	for _, tt := range []struct {
		values    []string
		want      time.Duration
		final, ok bool
	}{
		{nil, 0, false, false},
		{[]string{"0"}, 0, false, true},
		{[]string{"250"}, 250 * time.Millisecond, false, true},
		{[]string{"-1"}, 0, true, true},
		{[]string{"x"}, 0, true, true},
		{[]string{""}, 0, true, true},
		{[]string{"2147483648"}, 0, true, true}, // beyond 32 bits
		{[]string{"10", "10"}, 0, true, true},
	} {
		if got, final, ok := ParsePushback(tt.values); got != tt.want || final != tt.final || ok != tt.ok {
			t.Errorf("%q: %v, final %v, %v", tt.values, got, final, ok)
		}
	}
}

func FuzzRetryAfter(f *testing.F) {
	for _, s := range []string{"0", "7", "-1", "NaN", "Mon, 23 Nov 2026 12:00:30 GMT", "99999999999999999999"} {
		f.Add(s)
	}
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, text string) {
		if d, ok := ParseRetryAfter([]string{text}, now); d < 0 || !ok && d != 0 {
			t.Errorf("%q: %v, %v", text, d, ok)
		}
		if d, final, ok := ParsePushback([]string{text}); d < 0 || !ok || final && d != 0 {
			t.Errorf("%q: %v, %v, %v", text, d, final, ok)
		}
	})
}
