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

// Where most of what is sent ends without a verdict, an outage is over as soon as elsewhere, and where all does in a few minutes.
// The throttle's own refusals once counted in full. With nine in ten who leave they outweighed all answers for good.
func TestThrottleWhereFewResultsCount(t *testing.T) {
	for _, silent := range []float64{0.5, 0.9, 1} {
		random := rand.New(rand.NewPCG(1, 2))
		m := newManual(t, Config{})
		play := func(length time.Duration, stays weir.Outcome) (refused int) {
			for end := m.now + length; m.now < end; m.now += 10 * time.Millisecond {
				m.random = random.Float64()
				p, err := m.TryAdmit(weir.Work{})
				switch {
				case err != nil:
					refused++
				case random.Float64() < silent:
					p.Done(weir.Abandoned)
				default:
					p.Done(stays)
				}
			}
			return refused
		}
		play(time.Minute, weir.OK)
		for range 100 {
			m.random = 1
			mustAdmit(t, m, weir.Work{}).Done(weir.Overload)
		}
		play(20*time.Second, weir.Overload)
		play(time.Minute, weir.OK)
		if silent == 1 {
			play(3*time.Minute, weir.OK)
		}
		if refused := play(time.Minute, weir.OK); refused > 0 {
			t.Errorf("%v end without a verdict: of 6000, %d are refused afterwards", silent, refused)
		}
	}
}

// Where an overloaded server takes a tenth, and most callers of the rest leave, it gets about K times what it takes. Deadlines
// below MinTimeout change nothing for others.
func TestThrottleOfAnOverloadThatIsLeft(t *testing.T) {
	for _, tt := range []struct{ leave, hurry float64 }{{0, 0}, {0.8, 0}, {0.9, 0}, {0, 0.5}, {0, 0.9}} {
		random := rand.New(rand.NewPCG(1, 2))
		m := newManual(t, Config{MinTimeout: time.Second})
		sent, taken := 0, 0
		play := func(length time.Duration, capacity float64) {
			room := 0.0
			for end := m.now + length; m.now < end; m.now += 5 * time.Millisecond {
				room = min(capacity, room+capacity/200)
				m.random = random.Float64()
				w, hurries := weir.Work{}, random.Float64() < tt.hurry
				if hurries {
					w.Deadline = weir.VirtualEpoch.Add(m.now + 5*time.Millisecond)
				}
				p, err := m.TryAdmit(w)
				switch {
				case err != nil:
				case hurries:
					m.now += 5 * time.Millisecond
					p.Done(weir.Overload)
				case room >= 1:
					room--
					sent, taken = sent+1, taken+1
					p.Done(weir.OK)
				case random.Float64() < tt.leave:
					sent++
					p.Done(weir.Abandoned)
				default:
					sent++
					p.Done(weir.Overload)
				}
			}
		}
		play(time.Minute, 1000)
		play(20*time.Second, 0.001)
		play(time.Minute, 10)
		sent, taken = 0, 0
		play(5*time.Minute, 10)
		if got := float64(sent) / float64(taken); got > 3 {
			t.Errorf("%v leave, %v hurry: %.1f are sent for each that is taken, want about 2", tt.leave, tt.hurry, got)
		}
	}
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
		{CallerConfig{Breaker: BreakerConfig{MinTimeout: time.Second}}, []string{"must be GuardBreaker, or the settings of Breaker have no effect"}},
		{CallerConfig{Guard: GuardBreaker, Throttle: Config{K: 3}}, []string{"must be GuardThrottle, or the settings of Throttle have no effect"}},
		{CallerConfig{Guard: NoGuard, Throttle: Config{Padding: 20}, Breaker: BreakerConfig{Run: 3}},
			[]string{"must be GuardThrottle, or", "must be GuardBreaker, or"}},
		{Config{MinTimeout: 2 * time.Hour}, []string{"MinTimeout"}},
		{BreakerConfig{MinTimeout: -1}, []string{"MinTimeout"}},
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

// Deadlines below MinTimeout throttle nobody and open no breaker, neither by their time-outs nor by refusals here. Others
// count, and so do refusals of the server.
func TestMinTimeout(t *testing.T) {
	for name, cfg := range map[string]CallerConfig{
		"throttle": {Throttle: Config{MinTimeout: 20 * time.Millisecond}},
		"breaker":  {Guard: GuardBreaker, Breaker: BreakerConfig{MinTimeout: 20 * time.Millisecond, Least: 5}},
	} {
		now := time.Duration(0)
		cfg.Retry = Retry{Attempts: 1}
		cfg.Random, cfg.Now = func() float64 { return 0.5 }, func() time.Duration { return now }
		c := mustCaller(t, cfg)
		call := func(takes, within time.Duration, o weir.Outcome) error {
			call := c.Start("a", weir.VirtualEpoch.Add(now+within), false)
			defer call.End()
			p, err := call.Gate().Admit(t.Context(), weir.Work{Deadline: weir.VirtualEpoch.Add(now + within)})
			if err != nil {
				return err
			}
			call.Sent()
			now += takes
			p.Done(o)
			return nil
		}
		const ms = time.Millisecond
		for range 300 { // from the start, before anything has succeeded
			for range 9 {
				if err := call(5*ms, 5*ms, weir.Overload); err != nil {
					t.Fatalf("%s: beside short deadlines: %v", name, err)
				}
			}
			if err := call(20*ms, time.Second, weir.OK); err != nil {
				t.Fatalf("%s: beside short deadlines: %v", name, err)
			}
		}
		for what, tt := range map[string]struct{ takes, within time.Duration }{
			"time-outs of long deadlines":     {time.Second, time.Second},
			"refusals of short ones":          {ms, 5 * ms},
			"time-outs of just enough":        {20 * ms, 20 * ms},
			"refusals without much of a wait": {ms, time.Second},
		} {
			refused := 0
			for range 2000 {
				if call(tt.takes, tt.within, weir.Overload) != nil {
					refused++
					now += 20 * ms
				}
			}
			if refused < 500 {
				t.Errorf("%s: %s: %d of 2,000 are refused here", name, what, refused)
			}
			for range 1000 { // until it has recovered
				now += 100 * ms
				_ = call(ms, time.Second, weir.OK)
			}
		}
	}
	m := newManual(t, Config{MinTimeout: 20 * time.Millisecond})
	for range 92 {
		mustAdmit(t, m, weir.Work{}).Done(weir.Overload)
		m.random = 0.99
	}
	m.random = 0.5
	for within, counted := range map[time.Duration]uint64{19 * time.Millisecond: 0, 20 * time.Millisecond: 1} {
		before := m.Status().Classes[normal].Requests
		if _, err := m.TryAdmit(weir.Work{Deadline: weir.VirtualEpoch.Add(within)}); weir.AsRejection(err) == nil {
			t.Fatal("not refused here")
		}
		if n := m.Status().Classes[normal].Requests - before; n != counted {
			t.Errorf("a refusal here with %v left counts as %d requests", within, n)
		}
	}
}
