package weirtest

import (
	"context"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/quota"
)

const never = quota.Never

// debt is Kafka's rule (KIP-599): work is admitted if there is no debt, whatever it costs.
func debt(s *store) {
	t := inDebt(of("debt", quota.Samples(5, 100, time.Second)))
	s.decide(cost(t, 560), want{true, 0, -60})
	s.decide(t, want{false, 12 * time.Second, -60})
	s.decide(cost(t, 1000), want{false, 12 * time.Second, -60})
	s.clock.Advance(12 * time.Second)
	s.decide(cost(t, 10), want{true, 0, -10})
	s.clock.Advance(time.Hour)
	s.decide(t, want{true, 0, 499})
}

func toTheMillisecond(s *store) {
	if s.clock.Slack > 0 {
		s.Skip("the clock moves by itself")
	}
	t := inDebt(of("to the millisecond", quota.Samples(10, 11, time.Second)))
	s.decide(cost(t, 111), want{true, 0, -1})
	s.clock.Advance(99 * time.Millisecond)
	s.decide(t, want{false, time.Millisecond, -0.01})
	s.clock.Advance(time.Millisecond)
	s.decide(t, want{true, 0, -1})
}

func strict(s *store) {
	t := of("strict", quota.Window{Rate: 0.5, Burst: 20})
	s.decide(cost(t, 15), want{true, 0, 5})
	s.decide(cost(t, 10), want{false, 10 * time.Second, 5})
	s.decide(cost(t, 5), want{true, 0, 0})
	s.decide(t, want{false, 2 * time.Second, 0})
	s.clock.Advance(2 * time.Second)
	s.decide(t, want{true, 0, 0})
	s.clock.Advance(time.Hour)
	s.decide(cost(t, 21), want{false, never, 20})
	s.decide(cost(t, 20), want{true, 0, 0})
	s.decide(cost(t, 0), want{true, 0, 0})
}

func permissive(s *store) {
	t := mode(inDebt(of("permissive", quota.Samples(10, 10, time.Second))), quota.Permissive)
	s.decide(cost(t, 90), want{true, 0, 10})
	s.decide(cost(t, 90), want{true, 8 * time.Second, -80})
	s.decide(cost(t, 90), want{true, 17 * time.Second, -170})
	t.Debt = false
	s.decide(cost(t, 1000), want{true, 117 * time.Second, -1170})
}

func dryRun(s *store) {
	t := of("dry run", quota.Window{Rate: 1, Burst: 10})
	for range 3 {
		s.decide(mode(cost(t, 10), quota.DryRun), want{true, 0, 10})
	}
	s.decide(mode(cost(t, 11), quota.DryRun), want{false, never, 10})
	s.decide(cost(t, 6), want{true, 0, 4})
	s.decide(mode(cost(t, 6), quota.DryRun), want{false, 2 * time.Second, 4})
	s.decide(mode(inDebt(cost(t, 6)), quota.DryRun), want{true, 0, 4})
}

func reserve(s *store) {
	t := mode(of("reserve", quota.Window{Rate: 0.5, Burst: 2}), quota.Reserve)
	t.MaxWait = 5 * time.Second
	s.decide(cost(t, 2), want{true, 0, 0})
	s.decide(t, want{true, 2 * time.Second, -1})
	s.decide(t, want{true, 4 * time.Second, -2})
	s.decide(t, want{false, 6 * time.Second, -2})
	s.refund(t, 1)
	s.decide(t, want{true, 4 * time.Second, -2})
	s.clock.Advance(2 * time.Second)
	s.decide(t, want{true, 4 * time.Second, -2})
	s.decide(cost(t, 3), want{false, never, -2})
	t.MaxWait = never
	s.decide(cost(t, 3), want{false, never, -2})
	ages := mode(of("reserve for ages", quota.Window{Rate: 1e-9, Burst: 10}), quota.Reserve)
	ages.MaxWait = never
	s.decide(cost(ages, 10), want{true, 0, 0})
	s.decide(cost(ages, 6), want{false, never, 0}) // 190 years
}

func reserveInDebt(s *store) {
	t := mode(inDebt(of("reserve in debt", quota.Window{Rate: 1, Burst: 10})), quota.Reserve)
	t.MaxWait = 20 * time.Second
	s.decide(cost(t, 25), want{true, 0, -15})
	s.decide(cost(t, 100), want{true, 15 * time.Second, -115})
	s.decide(t, want{false, 115 * time.Second, -115})
}

// severalWindows: all windows are charged or none, and the decision is about the one that
// binds most.
func severalWindows(s *store) {
	t := of("several windows", quota.Window{Rate: 1, Burst: 10}, quota.Window{Rate: 0.01, Burst: 15})
	if r := s.decide(cost(t, 10), want{true, 0, 0}); r.Window != 0 {
		s.Errorf("window %d has fewest left", r.Window)
	}
	s.decide(t, want{false, time.Second, 0})
	s.clock.Advance(10 * time.Second)
	if r := s.decide(cost(t, 8), want{false, 290 * time.Second, 5.1}); r.Window != 1 {
		s.Errorf("window %d is waited for longest", r.Window)
	}
	s.decide(cost(t, 5), want{true, 0, 0.1})
	only := of("several windows", t.Windows[0])
	s.decide(mode(only, quota.DryRun), want{true, 0, 5})
}

func refund(s *store) {
	t := inDebt(of("refund", quota.Window{Rate: 0.1, Burst: 100}, quota.Window{Rate: 0.1, Burst: 50}))
	look := mode(cost(t, 0), quota.DryRun)
	s.decide(cost(t, 40), want{true, 0, 10})
	s.refund(t, 15)
	s.decide(look, want{true, 0, 25})
	s.refund(t, -95)
	s.decide(look, want{false, 700 * time.Second, -70})
	s.refund(t, 1000)
	s.decide(look, want{true, 0, 50})
}

func refundToAStranger(s *store) {
	t := inDebt(of("stranger", quota.Window{Rate: 0.1, Burst: 100}))
	s.refund(t, 10)
	s.decide(mode(t, quota.DryRun), want{true, 0, 100})
	s.refund(t, -130)
	s.decide(mode(t, quota.DryRun), want{false, 300 * time.Second, -30})
}

// rateChanges: tokens and debts stay, clipped to the new burst.
func rateChanges(s *store) {
	fast, slow := quota.Window{Rate: 10, Burst: 110}, quota.Window{Rate: 0.2, Burst: 22}
	t := inDebt(of("rate", fast))
	s.decide(mode(t, quota.DryRun), want{true, 0, 110})
	s.decide(cost(t, 10), want{true, 0, 100})
	t.Windows = []quota.Window{slow}
	s.decide(cost(t, 42), want{true, 0, -20})
	s.decide(t, want{false, 100 * time.Second, -20})
	s.clock.Advance(50 * time.Second)
	s.decide(t, want{false, 50 * time.Second, -10})
	t.Windows = []quota.Window{{Rate: 1, Burst: 1000}}
	s.clock.Advance(40 * time.Second)
	s.decide(t, want{true, 0, 29})
}

// calendar does not know the store's time. It only waits for an hour to pass, or a month of
// 31 days.
func calendar(s *store) {
	for period, longest := range map[quota.Period]time.Duration{quota.Hour: time.Hour, quota.Day: 24 * time.Hour,
		quota.Week: 7 * 24 * time.Hour, quota.Month: 31 * 24 * time.Hour} {
		t := of("calendar "+period.String(), quota.PerCalendar(100, period, nil))
		s.decide(cost(t, 100), want{true, 0, 0})
		r := s.must(t)
		if r.OK || r.Wait <= 0 || r.Wait > longest {
			s.Errorf("%v: %+v, want a wait until its end", period, r)
			continue
		}
		s.clock.Advance(r.Wait)
		s.decide(t, want{true, 0, 99})
		s.clock.Advance(7 * longest)
		s.decide(t, want{true, 0, 99})
	}
}

// calendarDebt: each period brings Burst, which pays back debts first.
func calendarDebt(s *store) {
	t := inDebt(of("calendar with a debt", quota.PerCalendar(100, quota.Hour, nil)))
	s.decide(cost(t, 350), want{true, 0, -250})
	r := s.must(t)
	if r.OK || r.Wait <= 2*time.Hour-s.clock.Slack || r.Wait > 3*time.Hour {
		s.Fatalf("%+v, want a wait to the start of the third hour", r)
	}
	s.clock.Advance(r.Wait - time.Hour)
	s.decide(t, want{false, time.Hour, -50})
	s.clock.Advance(time.Hour)
	s.decide(t, want{true, 0, 49})
}

// clockGoesBack: no tokens are won or lost, and time counts on from there.
func clockGoesBack(s *store) {
	if s.clock.Back == nil {
		s.Skip("the clock cannot go back")
	}
	t := of("back", quota.Window{Rate: 1, Burst: 20})
	s.clock.Advance(time.Hour)
	s.decide(cost(t, 15), want{true, 0, 5})
	s.clock.Back(30 * time.Minute)
	s.decide(cost(t, 10), want{false, 5 * time.Second, 5})
	s.clock.Advance(5 * time.Second)
	s.decide(cost(t, 10), want{true, 0, 0})
}

// waitIsHonest: work that waits as long as the store says is admitted.
func waitIsHonest(s *store) {
	for _, l := range []quota.Window{{Rate: 0.3, Burst: 7}, {Rate: 9.7, Burst: 3}, {Rate: 0.0123, Burst: 1}} {
		t := of("honest "+l.String(), l)
		for range 20 {
			r := s.must(t)
			if r.OK {
				continue
			}
			s.clock.Advance(r.Wait)
			if again := s.must(t); !again.OK {
				s.Errorf("%v: refused after the wait of %v that the store gave: %+v", l, r.Wait, again)
			}
		}
	}
}

// askedOften: work that comes back too early hears of the same time each time.
func askedOften(s *store) {
	if s.clock.Slack > 0 {
		s.Skip("the clock moves by itself")
	}
	const wait = 27 * time.Minute
	t := of("asked often", quota.Window{Rate: 1 / wait.Seconds(), Burst: 1})
	s.must(t)
	for left := wait; left > 0; left -= time.Minute {
		if r := s.must(t); r.OK || r.Wait != left {
			s.Errorf("%v before its time: %+v, want a refusal for as long", left, r)
		}
		s.clock.Advance(time.Minute)
	}
	if r := s.must(t); !r.OK {
		s.Errorf("after %v: %+v, want it admitted", wait, r)
	}
}

// oddKeys: any string is a key with a bucket of its own.
func oddKeys(s *store) {
	long := strings.Repeat("ü", 5000)
	for _, key := range []string{"", "\x00", "\x00\x00", "a\nb", "a\r\nb", "{}", "{a}", "{a}b", "}{", "a:b", "a/b", "*", "\xff\xfe", long, long + "y"} {
		t := of(key, quota.Window{Rate: 0.01, Burst: 10})
		s.decide(cost(t, 10), want{true, 0, 0})
		s.decide(t, want{false, 100 * time.Second, 0})
	}
}

// absurdCosts: no cost makes a bucket infinite, or not a number.
func absurdCosts(s *store) {
	t := inDebt(of("absurd", quota.Window{Rate: 1, Burst: 10}))
	s.must(cost(t, math.MaxInt64))
	r := s.must(t)
	if r.OK || r.Wait <= 0 || r.Remaining < -quota.MaxTokens || r.Remaining > -quota.MaxTokens/2 {
		s.Errorf("%+v, want a debt of %v", r, float64(quota.MaxTokens))
	}
	s.refund(t, 2*quota.MaxTokens)
	s.decide(t, want{true, 0, 9})
	t.Debt = false
	s.decide(cost(t, math.MaxInt64), want{false, never, 9})
}

// batch: a [quota.Batcher] decides about each of several requests by itself, in their order.
func batch(s *store) {
	b, ok := s.Store.(quota.Batcher)
	if !ok {
		return
	}
	limit := quota.Window{Rate: 0.01, Burst: 10}
	ask := func(of ...quota.Request) ([]quota.Decision, []error) {
		s.Helper()
		all := make([]*quota.Request, len(of))
		for i := range of {
			all[i] = &of[i]
		}
		decisions, errs := b.DecideAll(s.Context(), all)
		if len(decisions) != len(of) || len(errs) != len(of) {
			s.Fatalf("%d decisions and %d errors about %d requests", len(decisions), len(errs), len(of))
		}
		return decisions, errs
	}
	ask()
	first, second, senseless := of("batch 1", limit), of("batch 2", limit, quota.Window{Rate: 1, Burst: 3}), of("batch 3")
	for round, left := range [][3]float64{{6, 2, 2}, {2, 1, -2}, {2, 0, -6}} {
		d, errs := ask(cost(first, 4), second, senseless, mode(cost(of("batch 4", quota.Window{Rate: 0.01, Burst: 6}), 4), quota.Permissive))
		for i, err := range errs {
			if (err != nil) != (i == 2) {
				s.Fatalf("round %d: request %d: %v", round, i, err)
			}
		}
		for i, got := range []quota.Decision{d[0], d[1], d[3]} {
			slack := s.clock.Slack.Seconds()
			if off := got.Remaining - left[i]; off < -1e-6 || off > slack+1e-6 {
				s.Errorf("round %d: %v of request %d are left, want %v", round, got.Remaining, i, left[i])
			}
		}
		if want := round < 2; d[0].OK != want || !d[1].OK || !d[3].OK {
			s.Errorf("round %d: %v, %v, %v", round, d[0].OK, d[1].OK, d[3].OK)
		}
	}
}

// nonsense: a request that makes no sense is an error, and charges nothing.
func nonsense(s *store) {
	good := quota.Window{Rate: 0.1, Burst: 10}
	t := of("nonsense", good)
	for name, bad := range map[string]quota.Request{
		"a negative cost":  cost(t, -1),
		"no mode":          mode(t, 99),
		"no windows":       of("nonsense"),
		"too many windows": of("nonsense", make([]quota.Window, quota.MaxWindows+1)...),
		"no rate":          of("nonsense", quota.Window{Burst: 1}),
		"a negative rate":  of("nonsense", quota.Window{Rate: -1, Burst: 1}),
		"a rate too large": of("nonsense", quota.Window{Rate: 1e300, Burst: 1}),
		"no number":        of("nonsense", good, quota.Window{Rate: math.NaN(), Burst: 1}),
		"an endless burst": of("nonsense", quota.Window{Rate: 1, Burst: math.Inf(1)}),
	} {
		if r, err := s.Decide(context.Background(), &bad); err == nil || r.OK {
			s.Errorf("%s: %+v, %v, want an error", name, r, err)
		}
	}
	if err := s.Refund(context.Background(), t.Key, t.Windows, math.NaN()); err == nil {
		s.Error("refund NaN: no error")
	}
	if err := s.Refund(context.Background(), t.Key, nil, 1); err == nil {
		s.Error("refund without windows: no error")
	}
	s.decide(t, want{true, 0, 9})
}

// manyAtOneKey: as many are admitted as there are tokens.
func manyAtOneKey(s *store) {
	const burst = 500
	t := of("many", quota.Window{Rate: 1e-6, Burst: burst})
	if n := s.crowd(t); n != burst {
		s.Errorf("%d were admitted, want %d", n, burst)
	}
}

// manyAtSeveralWindows: work that one window refuses is not charged to the other.
func manyAtSeveralWindows(s *store) {
	wide, narrow := quota.Window{Rate: 1e-6, Burst: 500}, quota.Window{Rate: 1e-6, Burst: 300}
	if n := s.crowd(of("many windows", wide, narrow)); n != 300 {
		s.Errorf("%d were admitted, want 300", n)
	}
	left := s.must(mode(cost(of("many windows", wide), 0), quota.DryRun)).Remaining
	if math.Abs(left-200) > 0.01 {
		s.Errorf("the wide window has %v left, want 200", left)
	}
}

// crowd makes a request a thousand times from eight goroutines, and returns how many were
// admitted.
func (s *store) crowd(req quota.Request) int64 {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 125 {
				t := req
				r, err := s.Decide(ctx, &t)
				if err != nil {
					s.Errorf("request: %v", err)
					return
				}
				if r.OK {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	return admitted.Load()
}
