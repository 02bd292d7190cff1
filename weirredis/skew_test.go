//go:build integration

package weirredis

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/quota"
)

// Two processes share a quota, and the clock of one is half a second ahead. The
// clock of the server is the test's, so that a minute takes a few seconds.
func TestSkewedProcesses(t *testing.T) {
	addr := startRedis(t).addr
	server := time.Unix(1_000_000, 0)
	stores := make([]*Store, 2)
	for i, skew := range []time.Duration{0, 500 * time.Millisecond} {
		stores[i] = open(t, Config{Addrs: []string{addr}, Now: func() time.Time { return server.Add(skew) }})
		stores[i].clock = func() int64 { return server.UnixMicro() }
	}
	const rate, burst, span = 10, 10, time.Minute
	admitted := 0
	for end := server.Add(span); server.Before(end); server = server.Add(4 * time.Millisecond) {
		for _, s := range stores {
			if takeOne(t, s, quota.Window{Rate: rate, Burst: burst}).OK {
				admitted++
			}
		}
	}
	within1Percent(t, admitted, burst+rate*span.Seconds())
}

// The same by the server's own clock, for as long as a test may take.
func TestSkewedProcessesForReal(t *testing.T) {
	t.Parallel() // it mostly waits
	addr := startRedis(t).addr
	stores := make([]*Store, 2)
	for i, skew := range []time.Duration{0, 500 * time.Millisecond} {
		stores[i] = open(t, Config{Addrs: []string{addr}, Now: func() time.Time { return time.Now().Add(skew) }})
	}
	const rate, burst = 100, 10_000 // a burst that no pause fills
	l := quota.Window{Rate: rate, Burst: burst}
	ask := func(s *Store, cost float64) (ok bool, left float64, now time.Time) {
		q := []question{s.question("k", &request{cost: cost, limits: []quota.Window{l}})}
		s.run(context.Background(), q)
		a, err := s.replyTo(&q[0], 1)
		if err != nil {
			t.Fatal(err)
		}
		return a.ok, a.tokens[0] - a.charged, a.now
	}
	ok, first, begin := ask(stores[0], burst) // spend the burst: from here on only what comes back counts
	if !ok {
		t.Fatal("the burst is refused")
	}
	admitted, left, now := 0, first, begin
	for i := 0; now.Sub(begin) < 2*time.Second; i++ {
		if ok, left, now = ask(stores[i%2], 1); ok {
			admitted++
		}
	}
	// A slow machine asks for less than comes back, and leaves the rest.
	within1Percent(t, admitted, rate*now.Sub(begin).Seconds()-(left-first))
}

// The clock of a server that steps back neither credits anything nor freezes the
// bucket, whoever asks.
func TestServerClockStepsBack(t *testing.T) {
	addr := startRedis(t).addr
	for key, limits := range map[string][]quota.Window{
		"one window":   {{Rate: 10, Burst: 10}},
		"several":      {{Rate: 10, Burst: 10}, {Rate: 100, Burst: 1000}},
		"and calendar": {{Rate: 10, Burst: 10}, quota.PerCalendar(1000, quota.Hour, nil)},
	} {
		now := time.Unix(1_000_000, 0)
		s := open(t, Config{Addrs: []string{addr}, Now: func() time.Time { return now }})
		s.clock = func() int64 { return now.UnixMicro() }
		take := func() quota.Decision {
			t.Helper()
			r, err := s.Decide(context.Background(), &quota.Request{Key: key, Windows: limits, Cost: 1})
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		for range 10 {
			take()
		}
		now = now.Add(-time.Hour)
		if r := take(); r.OK || r.Wait != 100*time.Millisecond {
			t.Errorf("%s, an hour back: %+v, want a refusal for 100ms", key, r)
		}
		now = now.Add(100 * time.Millisecond)
		if r := take(); !r.OK {
			t.Errorf("%s, 100ms after that: %+v, want one let through", key, r)
		}
	}
}

// A window that goes by a calendar from now on keeps its tokens and its debt.
func TestRateBecomesCalendar(t *testing.T) {
	now := time.Date(2026, 3, 10, 12, 0, 0, 0, time.UTC)
	s := open(t, Config{Addrs: []string{startRedis(t).addr}, Now: func() time.Time { return now }})
	s.clock = func() int64 { return now.UnixMicro() }
	for _, l := range []quota.Window{quota.Per(100, time.Hour), quota.PerCalendar(100, quota.Day, nil), quota.PerCalendar(100, quota.Month, nil), quota.Per(100, time.Hour)} {
		r, err := s.Decide(context.Background(), &quota.Request{Key: "k", Windows: []quota.Window{l}, Cost: 40, Mode: quota.Permissive})
		if err != nil {
			t.Fatal(err)
		}
		t.Log(l, r.Remaining)
	}
	r, err := s.Decide(context.Background(), &quota.Request{Key: "k", Windows: []quota.Window{quota.Per(100, time.Hour)}, Mode: quota.DryRun})
	if err != nil || r.Remaining != -60 {
		t.Errorf("%+v, %v; want a debt of 60 after 160 of 100", r, err)
	}
}

func takeOne(t *testing.T, s *Store, l quota.Window) quota.Decision {
	t.Helper()
	r, err := s.Decide(context.Background(), &quota.Request{Key: "k", Windows: []quota.Window{l}, Cost: 1})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// look returns how the bucket is, once the store is not down: a slow machine may have
// taken it there.
func (s *Store) look(t *testing.T) (r quota.Decision) {
	t.Helper()
	eventually(t, "the bucket", func() bool {
		var err error
		r, err = s.Decide(context.Background(), &quota.Request{Key: "k", Windows: []quota.Window{vast}, Mode: quota.DryRun})
		return err == nil
	})
	return r
}

// takeKey asks for one of a key that has enough.
func takeKey(s *Store, key string) error {
	_, err := s.Decide(context.Background(), &quota.Request{Key: key, Windows: []quota.Window{vast}, Cost: 1})
	return err
}

func within1Percent(t *testing.T, admitted int, limit float64) {
	t.Helper()
	off := float64(admitted)/limit - 1
	t.Logf("%d let through, the limit is %.0f: %+.2f %%", admitted, limit, 100*off)
	if math.Abs(off) > 0.01 {
		t.Error("that is more than 1 % off")
	}
}

// The calendar is the process's, the time the server's: a process whose clock is an
// hour off still shares the hour, and one that is a day off is told so.
func TestCalendarByServersClock(t *testing.T) {
	addr := startRedis(t).addr
	server := time.Date(2026, 3, 10, 11, 59, 30, 0, time.UTC)
	at := func(skew time.Duration) *Store {
		s := open(t, Config{Addrs: []string{addr}, Now: func() time.Time { return server.Add(skew) }})
		s.clock = func() int64 { return server.UnixMicro() }
		return s
	}
	right, ahead, lost := at(0), at(time.Hour), at(24*time.Hour)
	l := quota.PerCalendar(2, quota.Hour, nil)
	takeOne(t, right, l)
	takeOne(t, ahead, l)
	for _, s := range []*Store{right, ahead} {
		if r := takeOne(t, s, l); r.OK || r.Wait != 30*time.Second {
			t.Errorf("a third in the hour: %+v, want a refusal for 30s", r)
		}
	}
	_, err := lost.Decide(context.Background(), &quota.Request{Key: "k", Windows: []quota.Window{l}, Cost: 1})
	var e *Error
	if !errors.As(err, &e) || e.Reason != Invalid || e.Key != "" || !strings.Contains(err.Error(), "clocks") {
		t.Errorf("a day off: %v, want that the clocks are apart", err)
	}
	server = server.Add(30 * time.Second)
	if r := takeOne(t, ahead, l); !r.OK || r.Remaining != 1 {
		t.Errorf("in the next hour: %+v, want one let through and one left", r)
	}
}

// Where clocks are put back by half an hour, an hour lasts as long, and the next one
// brings its tokens all the same.
func TestHalfAnHour(t *testing.T) {
	in, err := time.LoadLocation("Australia/Lord_Howe")
	if err != nil {
		t.Skip(err)
	}
	now := time.Date(2026, 4, 4, 14, 10, 0, 0, time.UTC) // 01:10 before clocks are put back
	s := open(t, Config{Addrs: []string{startRedis(t).addr}, Now: func() time.Time { return now }})
	s.clock = func() int64 { return now.UnixMicro() }
	for _, wait := range []time.Duration{50 * time.Minute, 30 * time.Minute, time.Hour, time.Hour} {
		l := quota.PerCalendar(1, quota.Hour, in)
		if r := takeOne(t, s, l); !r.OK {
			t.Errorf("at %v: %+v, want one let through", now.In(in), r)
		}
		if r := takeOne(t, s, l); r.OK || r.Wait != wait {
			t.Errorf("at %v: %+v, want a refusal for %v", now.In(in), r, wait)
		}
		now = now.Add(wait)
	}
}
