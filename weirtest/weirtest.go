// Package weirtest has the tests that an implementation of one of weir's
// interfaces must pass. So far that is quota.Store:
//
//	func TestMyStore(t *testing.T) {
//		weirtest.TestStore(t, func(t *testing.T) (quota.Store, weirtest.Clock) {
//			now := time.Duration(0)
//			s := mystore.New(mystore.Config{Now: func() time.Duration { return now }})
//			return s, weirtest.Clock{Advance: func(d time.Duration) { now += d }}
//		})
//	}
//
// It is for authors of stores. Users of stores do not need it.
package weirtest

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/weir-go/weir/quota"
)

// Clock is the clock of a store under test.
type Clock struct {
	// Advance moves the clock forward.
	Advance func(time.Duration)
	// Back moves it back; nil if that is impossible.
	Back func(time.Duration)
	// Slack is how far the clock may move by itself during one test, or 0. Tests use rates
	// of up to 10 a second, and compare tokens and waits within it.
	Slack time.Duration
}

// TestStore runs every test of a store as a subtest. It calls open for each. open returns a
// store that nobody has used, or at least one with keys of its own. A store that has to be
// closed registers that with t.Cleanup.
func TestStore(t *testing.T, open func(t *testing.T) (quota.Store, Clock)) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s, clock := open(t)
			c.run(&store{t, s, clock})
		})
	}
}

// cases are the tests. Each uses a key of its own.
var cases = []struct {
	name string
	run  func(*store)
}{
	{"debt", debt},
	{"debt to the millisecond", toTheMillisecond},
	{"strict", strict},
	{"permissive", permissive},
	{"dry run", dryRun},
	{"reserve", reserve},
	{"reserve in debt", reserveInDebt},
	{"several windows", severalWindows},
	{"refund", refund},
	{"refund to a stranger", refundToAStranger},
	{"the rate changes", rateChanges},
	{"calendar", calendar},
	{"calendar with a debt", calendarDebt},
	{"the clock goes back", clockGoesBack},
	{"wait is honest", waitIsHonest},
	{"asked often", askedOften},
	{"odd keys", oddKeys},
	{"absurd costs", absurdCosts},
	{"requests that make no sense", nonsense},
	{"several requests at once", batch},
	{"many at one key", manyAtOneKey},
	{"many at several windows", manyAtSeveralWindows},
}

// store is a store under test.
type store struct {
	*testing.T
	quota.Store
	clock Clock
}

// want is the expected decision.
type want struct {
	ok   bool
	wait time.Duration
	left float64
}

// decide makes a request and compares the decision.
func (s *store) decide(t quota.Request, w want) quota.Decision {
	s.Helper()
	r := s.must(t)
	if r.OK != w.ok {
		s.Errorf("request %d of %q, %v: ok %v, want %v: %+v", t.Cost, t.Key, t.Mode, r.OK, w.ok, r)
	}
	if off := r.Wait - w.wait; off > 0 || off < -s.clock.Slack {
		s.Errorf("request %d of %q, %v: wait %v, want %v", t.Cost, t.Key, t.Mode, r.Wait, w.wait)
	}
	if r.Window < 0 || r.Window >= len(t.Windows) {
		s.Errorf("request %d of %q: there is no window %d", t.Cost, t.Key, r.Window)
		return r
	}
	const rounding = 1e-6
	came := t.Windows[r.Window].Rate * s.clock.Slack.Seconds()
	if off := r.Remaining - w.left; off < -rounding*(1+math.Abs(w.left)) || off > came+rounding*(1+math.Abs(w.left)) {
		s.Errorf("request %d of %q, %v: %v left, want %v", t.Cost, t.Key, t.Mode, r.Remaining, w.left)
	}
	return r
}

func (s *store) must(t quota.Request) quota.Decision {
	s.Helper()
	r, err := s.Decide(context.Background(), &t)
	if err != nil {
		s.Fatalf("request %+v: %v", t, err)
	}
	return r
}

func (s *store) refund(t quota.Request, tokens float64) {
	s.Helper()
	if err := s.Refund(context.Background(), t.Key, t.Windows, tokens); err != nil {
		s.Fatalf("refund %v: %v", tokens, err)
	}
}

// of is a request for one token of a key.
func of(key string, windows ...quota.Window) quota.Request {
	return quota.Request{Key: key, Windows: windows, Cost: 1}
}

func cost(t quota.Request, n int64) quota.Request { t.Cost = n; return t }

func inDebt(t quota.Request) quota.Request { t.Debt = true; return t }

func mode(t quota.Request, m quota.Mode) quota.Request { t.Mode = m; return t }
