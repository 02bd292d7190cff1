package throttle

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/gate"
	"github.com/weir-go/weir/internal/room"
)

func panics(context.Context) error { panic("a handler's own") }

func mustAdmit(t testing.TB, g weir.TryAdmitter, w weir.Work) weir.Permit {
	t.Helper()
	p, err := g.TryAdmit(w)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// manual is a throttle whose clock and random number the test sets.
type manual struct {
	*Throttle
	now    time.Duration
	random float64
}

func newManual(t testing.TB, cfg Config) *manual {
	t.Helper()
	m := &manual{}
	cfg.Now = func() time.Duration { return m.now }
	cfg.Random = func() float64 { return m.random }
	throttle, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	m.Throttle = throttle
	return m
}

// Each way to end work counts as accepted, as refused, or not at all.
func TestWhatCounts(t *testing.T) {
	for _, tt := range []struct {
		name              string
		end               func(weir.Permit)
		requests, accepts uint64
	}{
		{"ok", func(p weir.Permit) { p.Done(weir.OK) }, 1, 1},
		{"an error of its own", func(p weir.Permit) { p.Done(weir.Failed) }, 1, 1},
		{"overload", func(p weir.Permit) { p.Done(weir.Overload) }, 1, 0},
		{"the caller left", func(p weir.Permit) { p.Done(weir.Abandoned) }, 0, 0},
		{"no sample", func(p weir.Permit) { p.Done(weir.NoSample) }, 0, 0},
		{"not sent", weir.Permit.Cancel, 0, 0},
		{"never ends", func(weir.Permit) {}, 0, 0},
		{"sampled, then done otherwise", func(p weir.Permit) { p.Sample(weir.OK); p.Done(weir.Overload) }, 1, 1},
		{"done twice", func(p weir.Permit) { p.Done(weir.Overload); p.Done(weir.OK) }, 1, 0},
		{"an outcome that there is not", func(p weir.Permit) { p.Done(77) }, 0, 0},
	} {
		m := newManual(t, Config{})
		tt.end(mustAdmit(t, m, weir.Work{}))
		if c := m.Status().Classes[normal]; c.Requests != tt.requests || c.Accepted != tt.accepts {
			t.Errorf("%s: %d requests, %d accepted; want %d and %d", tt.name, c.Requests, c.Accepted, tt.requests, tt.accepts)
		}
	}
}

func TestThrottleGate(t *testing.T) {
	m := newManual(t, Config{Name: "shop"})
	for range 92 {
		mustAdmit(t, m, weir.Work{}).Done(weir.Overload)
		m.random = 0.99
	}
	m.random = 0.5
	_, err := m.Admit(t.Context(), weir.Work{})
	r := weir.AsRejection(err)
	if r == nil || r.Reason != weir.ReasonThrottled || r.Retryable || r.RetryAfter != 0 || r.Value != 0.92 || r.Gate != "shop" {
		t.Fatalf("refusal %+v", r)
	}
	if c := m.Status().Classes[normal]; c.Requests != 93 {
		t.Errorf("%d requests: its own refusals count", c.Requests)
	}
	if _, err := m.TryAdmit(weir.Work{Exempt: true}); err != nil {
		t.Errorf("exempt work is refused: %v", err)
	}
	if _, err := m.TryAdmit(weir.Work{Priority: weir.High}); err != nil {
		t.Errorf("work of a class that nothing is known of is refused: %v", err)
	}
	m.random = 0.999999
	if _, err := m.TryAdmit(weir.Work{Priority: -100}); err != nil {
		t.Errorf("locked out: %v", err)
	}
	s := m.Snapshot()
	if s.Kind != "throttle" || s.Rejected[weir.ReasonThrottled] != 1 || s.Admitted != 94 || s.InFlight != 2 || s.Exempt != 1 ||
		!strings.Contains(s.LimitReason, "of normal work (0 of 93 requests were accepted)") {
		t.Errorf("snapshot %+v", s)
	}
}

// Work that must not be sent is refused for its own reason, and is no request.
func TestThrottleUnfit(t *testing.T) {
	m := newManual(t, Config{})
	m.now = time.Second
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tt := range []struct {
		ctx  context.Context
		work weir.Work
		want weir.Reason
	}{
		{gone, weir.Work{}, weir.ReasonCanceled},
		{t.Context(), weir.Work{Cost: -1}, weir.ReasonTooLarge},
		{t.Context(), weir.Work{Deadline: weir.VirtualEpoch}, weir.ReasonDeadline},
	} {
		_, err := m.Admit(tt.ctx, tt.work)
		if r := weir.AsRejection(err); r == nil || r.Reason != tt.want {
			t.Errorf("%+v: %v, want %v", tt.work, err, tt.want)
		}
	}
	if c := m.Status().Classes[normal]; c.Requests != 0 {
		t.Errorf("%d requests", c.Requests)
	}
}

// In a chain, work that a later gate refuses is no request for the throttle. A nested call through the same
// throttle is part of work that was sent.
func TestThrottleInAChain(t *testing.T) {
	m := newManual(t, Config{})
	full := closedGate{}
	if _, err := weir.All(m.Throttle, full).Admit(t.Context(), weir.Work{}); !errors.Is(err, weir.ErrRejected) {
		t.Fatal(err)
	}
	err := weir.Do(t.Context(), m.Throttle, weir.Work{}, func(ctx context.Context) error {
		return weir.Do(ctx, m.Throttle, weir.Work{}, func(context.Context) error { return nil })
	})
	if err != nil {
		t.Fatal(err)
	}
	if s := m.Snapshot(); s.Admitted != 1 || s.InFlight != 0 {
		t.Errorf("%d admitted, %d in flight; want the one that was sent", s.Admitted, s.InFlight)
	}
}

// closedGate refuses everything, as a client's own limit may.
type closedGate struct{}

func (closedGate) Admit(context.Context, weir.Work) (weir.Permit, error) {
	return weir.Permit{}, &weir.Rejection{Gate: "own", Reason: weir.ReasonLimit, Retryable: true}
}

// On the real clock, in a bubble: an outage is throttled, never completely, and forgotten after the server has
// recovered.
func TestThrottleThroughAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		random := rand.New(rand.NewPCG(1, 1)) // one goroutine uses it
		throttle, err := New(Config{Random: random.Float64})
		if err != nil {
			t.Fatal(err)
		}
		play := func(seconds int, outcome weir.Outcome) (sent, refused int) {
			for range seconds * 100 {
				time.Sleep(10 * time.Millisecond)
				p, err := throttle.Admit(t.Context(), weir.Work{})
				if err != nil {
					refused++
					continue
				}
				sent++
				p.Done(outcome)
			}
			return sent, refused
		}
		if _, refused := play(30, weir.OK); refused > 0 {
			t.Errorf("%d refused by a healthy server's throttle", refused)
		}
		play(30, weir.Overload)
		if sent, refused := play(30, weir.Overload); sent == 0 || sent > 100 {
			t.Errorf("%d sent and %d refused in an outage, want a few sent", sent, refused)
		}
		play(60, weir.OK)
		if _, refused := play(30, weir.OK); refused > 0 {
			t.Errorf("%d refused after a minute of answers", refused)
		}
	})
}

// Many goroutines at once: every permit comes back, and every request is counted.
func TestThrottleStorm(t *testing.T) {
	throttle, err := New(Config{Window: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	var refusals atomic.Uint64
	var wg sync.WaitGroup
	const workers, each = 8, 2000
	for i := range workers {
		wg.Go(func() {
			for j := range each {
				p, err := throttle.Admit(context.Background(), weir.Work{Priority: weir.PriorityOf((i + j) % weir.Classes)})
				if err != nil {
					refusals.Add(1)
					continue
				}
				runtime.Gosched()
				p.Done([]weir.Outcome{weir.OK, weir.Overload, weir.Overload}[j%3])
			}
		})
	}
	wg.Wait()
	s := throttle.Snapshot()
	if s.InFlight != 0 || s.Admitted+refusals.Load() != workers*each || s.Rejected[weir.ReasonThrottled] != refusals.Load() {
		t.Errorf("snapshot %+v after %d refusals", s, refusals.Load())
	}
	var requests uint64
	for _, c := range throttle.Status().Classes {
		requests += c.Requests
	}
	if requests != workers*each {
		t.Errorf("%d requests counted of %d", requests, workers*each)
	}
}

func TestConfigs(t *testing.T) {
	for _, cfg := range []any{
		Config{}, Config{K: 1}, Config{K: 1.1}, BudgetConfig{}, BudgetConfig{Floor: -1}, BreakerConfig{}, CallerConfig{}, CallerConfig{Retry: Retry{Attempts: 1}},
	} {
		if err := try(cfg); err != nil {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	for _, tt := range []struct {
		cfg   any
		wants []string
	}{
		{Config{Name: "a", Window: time.Millisecond, K: 0.5, Padding: -1}, []string{`gate "a"`, "Window", "K: is 0.5, too small", "Padding"}},
		{Config{K: math.NaN(), Padding: math.Inf(1)}, []string{"K: NaN", "Padding"}},
		{BudgetConfig{Ratio: 2, Floor: -2, Window: 2 * time.Hour}, []string{"Ratio", "Floor", "or -1: none", "Window"}},
		{BreakerConfig{Rate: 1.5, Least: -1, Run: -1, Open: -1, Probes: 2000}, []string{"Rate", "Least", "Run", "Open", "Probes"}},
		{CallerConfig{Targets: -1, Guard: 9, Retry: Retry{Attempts: 50, Backoff: time.Minute, MaxBackoff: time.Second}, Throttle: Config{K: 0.1}},
			[]string{"Targets", "Guard", "Retry.Attempts", "Retry.MaxBackoff", "Throttle.K"}},
		{CallerConfig{Retry: Retry{QuotaBackoff: time.Minute}}, []string{"Retry.MaxQuotaBackoff: 10s will not do; must not be below QuotaBackoff, which is 1m0s"}},
		{BreakerConfig{Rate: math.NaN(), Open: math.MaxInt64}, []string{"Rate: NaN", "Open"}},
		{CallerConfig{Retry: Retry{Attempts: -1, Backoff: -1, MaxTold: -1}}, []string{"Retry.Attempts", "Retry.Backoff", "Retry.MaxTold"}},
		{CallerConfig{Retry: Retry{QuotaBackoff: -1, MaxQuotaBackoff: 2 * time.Hour}}, []string{"Retry.QuotaBackoff", "Retry.MaxQuotaBackoff"}},
	} {
		err := try(tt.cfg)
		for _, want := range tt.wants {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%+v: no %q in %v", tt.cfg, want, err)
			}
		}
	}
}

func try(cfg any) (err error) {
	switch cfg := cfg.(type) {
	case Config:
		_, err = New(cfg)
	case BudgetConfig:
		_, err = NewBudget(cfg, nil)
	case BreakerConfig:
		_, err = NewBreaker(cfg)
	case CallerConfig:
		_, err = NewCaller(cfg)
	}
	return err
}

// A deadline that is shorter than work takes says nothing about the server. One caller with such deadlines, whoever it is,
// throttles nobody and opens no breaker. Once the server is so slow that all miss theirs, all of them count.
func TestDeadlinesThatAreTooShort(t *testing.T) {
	for name, kind := range map[string]Guard{"throttle": GuardThrottle, "breaker": GuardBreaker} {
		synctest.Test(t, func(t *testing.T) {
			c := mustCaller(t, CallerConfig{Guard: kind, Breaker: BreakerConfig{Least: 5}, Retry: Retry{Attempts: 1}, Random: func() float64 { return 0.5 }})
			takes := 20 * time.Millisecond
			call := func(within time.Duration) error {
				ctx, cancel := context.WithTimeout(t.Context(), within)
				defer cancel()
				return c.Do(ctx, "a", weir.Work{}, false, func(ctx context.Context) error {
					select {
					case <-time.After(takes):
						return nil
					case <-ctx.Done():
						return ctx.Err()
					}
				})
			}
			for range 500 {
				if err := call(time.Second); err != nil {
					t.Fatalf("%s: beside short deadlines: %v", name, err)
				}
				for range 3 {
					if err := call(5 * time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
						t.Fatalf("%s: a short deadline: %v", name, err)
					}
				}
			}
			takes = 10 * time.Second
			refused := 0
			for range 100 {
				if weir.AsRejection(call(time.Second)) != nil {
					refused++
				}
			}
			if refused < 20 {
				t.Errorf("%s: of 100 calls to a server that answers none in time, %d are refused here", name, refused)
			}
		})
	}
}

// While a server is slow, callers with time succeed, late. That does not make the deadlines of the others too short.
func TestSlowServerMutesNobody(t *testing.T) {
	for name, kind := range map[string]Guard{"throttle": GuardThrottle, "breaker": GuardBreaker} {
		now := time.Duration(0)
		c := mustCaller(t, CallerConfig{Guard: kind, Retry: Retry{Attempts: 1}, Random: func() float64 { return 0.5 }, Now: func() time.Duration { return now }})
		refused := 0
		call := func(takes, within time.Duration) {
			call := c.Start("a", weir.VirtualEpoch.Add(now+within), false)
			defer call.End()
			p, err := call.Gate().Admit(t.Context(), weir.Work{Deadline: weir.VirtualEpoch.Add(now + within)})
			if err != nil {
				refused++
				now += 10 * time.Millisecond
				return
			}
			call.Sent()
			if now += min(takes, within); takes > within {
				p.Done(weir.Overload)
			} else {
				p.Done(weir.OK)
			}
		}
		for range 300 {
			call(20*time.Millisecond, time.Hour)
			call(20*time.Millisecond, 100*time.Millisecond)
		}
		if refused > 0 {
			t.Errorf("%s: %d calls to a healthy server are refused", name, refused)
		}
		for i := range 500 {
			if i == 400 {
				refused = 0
			}
			for range 5 {
				call(200*time.Millisecond, 100*time.Millisecond)
			}
			call(200*time.Millisecond, time.Hour)
		}
		if refused < 150 {
			t.Errorf("%s: of the last 500 calls that a slow server cannot answer in time, %d are refused", name, refused)
		}
	}
}

// The usual time is the median of work that succeeds, however long the rest takes and however much of it there is.
func TestUsual(t *testing.T) {
	const ms = time.Millisecond
	for _, every := range []time.Duration{100 * time.Microsecond, 10 * ms, time.Second} {
		var m usual
		var now time.Duration
		for now < 20*usualPace || now < 1000*every {
			now += every
			m.succeeded(now, []time.Duration{ms, 10 * ms, 10 * ms, 11 * ms, time.Hour}[int(now/every)%5])
		}
		if m.median < 8*ms || m.median > 13*ms {
			t.Errorf("one every %v: %v, want about 10 ms", every, m.median)
		}
		before := m.median
		for range 100 {
			m.succeeded(now, time.Hour)
		}
		if m.median > before+100 {
			t.Errorf("one every %v: in no time it goes from %v to %v", every, before, m.median)
		}
	}
	m := usual{median: 10 * ms, failed: 1}
	m.succeeded(time.Second, time.Hour)
	if m.median != 10*ms {
		t.Errorf("after refusals it goes from 10 ms to %v", m.median)
	}
	for i := range 100 {
		m.succeeded(time.Second*time.Duration(i+2), time.Hour)
	}
	if m.median < 20*ms {
		t.Errorf("long after refusals it is %v", m.median)
	}
	m.median = 10 * ms
	slow := usual{median: 10 * ms}
	for i := range 200 { // one call in two has too little time, and the other ends late
		now := time.Duration(i+1) * time.Second
		slow.means(&use{start: now - 50*ms, until: now}, now, weir.Overload)
		slow.means(&use{start: now - time.Minute, until: room.Never}, now, weir.OK)
	}
	if slow.median > 20*ms {
		t.Errorf("while the server is slow it goes from 10 ms to %v", slow.median)
	}
	for _, tt := range []struct {
		allowed, ended time.Duration
		want           bool
	}{
		{5 * ms, 5 * ms, true},
		{5 * ms, 4900 * time.Microsecond, true}, // the server was quicker to say so
		{5 * ms, ms, false},                     // and here it refused
		{50 * ms, 50 * ms, false},
		{room.Never, time.Second, false},
	} {
		m.last = time.Second
		if got := m.tooShort(&use{start: time.Second, until: gate.After(time.Second, tt.allowed)}, time.Second+tt.ended); got != tt.want {
			t.Errorf("%v allowed, ended after %v: too short %v", tt.allowed, tt.ended, got)
		}
	}
	var none usual
	if none.tooShort(&use{until: 1}, 1) {
		t.Error("a deadline is too short although nothing has succeeded yet")
	}
	none.succeeded(0, 0)
	for range 10_000 {
		if none.succeeded(math.MaxInt64/2, math.MaxInt64); none.median <= 0 {
			t.Fatalf("%v after no time and the longest", none.median)
		}
	}
	for now, want := range map[time.Duration]bool{time.Second + usualHolds: true, 2*time.Second + usualHolds: false} {
		m := usual{median: time.Minute, last: time.Second}
		if got := m.tooShort(&use{start: now - ms, until: now}, now); got != want {
			t.Errorf("%v after the last success: too short %v", now-time.Second, got)
		}
	}
}
