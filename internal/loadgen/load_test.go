package loadgen

import (
	"context"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// answerAfter is a system that answers everything after d.
func answerAfter(d time.Duration, a Answer) func(context.Context) Answer {
	return func(ctx context.Context) Answer {
		select {
		case <-time.After(d):
			return a
		case <-ctx.Done():
			return GaveUp
		}
	}
}

func run1(t *testing.T, l Load) []Tally {
	t.Helper()
	m, err := l.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	<-m.Done()
	ts := make([]Tally, m.Seconds())
	for i := range ts {
		ts[i] = m.Second(i)
	}
	return ts
}

func TestRatesFollowThePhases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := run1(t, Load{
			Phases:   []Phase{{100, 10 * time.Second}, {0, 5 * time.Second}, {1000, 10 * time.Second}},
			Patience: time.Second,
			Send:     answerAfter(20*time.Millisecond, OK),
		})
		var phases [3]Tally
		for i := range got {
			phases[[]int{0, 0, 1, 2, 2}[i/5]].Add(&got[i])
		}
		for i, want := range []float64{1000, 0, 10000} {
			n := float64(phases[i].Offered)
			if sigma := math.Sqrt(want); math.Abs(n-want) > 4*sigma {
				t.Errorf("phase %d offered %v requests, want %v ± %.0f", i, n, want, 4*sigma)
			}
			if phases[i].OK != phases[i].Offered || phases[i].Open() != 0 {
				t.Errorf("phase %d: %d of %d answered, %d open", i, phases[i].OK, phases[i].Offered, phases[i].Open())
			}
			if phases[i].Void() {
				t.Errorf("phase %d is void: %d of %d late", i, phases[i].LateSends, phases[i].Offered)
			}
		}
		if p50 := phases[2].Admitted.Bound(0.5); p50 < 20*time.Millisecond || p50 > 21*time.Millisecond {
			t.Errorf("median latency %v, want 20ms", p50)
		}
	})
}

// TestOpenLoop: the load does not slow down with the system.
func TestOpenLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var open, most atomic.Int64
		got := run1(t, Load{
			Phases:   []Phase{{200, 5 * time.Second}},
			Patience: 500 * time.Millisecond,
			Send: func(ctx context.Context) Answer {
				most.Store(max(most.Load(), open.Add(1)))
				defer open.Add(-1)
				return answerAfter(time.Hour, OK)(ctx)
			},
		})
		var sum Tally
		for i := range got {
			sum.Add(&got[i])
		}
		if sum.Offered < 850 || sum.GaveUp != sum.Offered || sum.OK != 0 {
			t.Errorf("offered %d, gave up %d, OK %d; want about 1000, all of them, 0", sum.Offered, sum.GaveUp, sum.OK)
		}
		if p := sum.Admitted.Bound(0.5); p < 500*time.Millisecond || p > 516*time.Millisecond {
			t.Errorf("those who gave up count with %v, want their patience of 500ms", p)
		}
		if most.Load() < 70 || most.Load() > 150 {
			t.Errorf("%d requests open at most, want about 200/s · 0.5 s", most.Load())
		}
	})
}

func TestLatencyCountsFromTheTimeDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// The clock stands still for the generator while its own goroutine is
		// held up for 300 ms: everything due in between leaves late.
		m := &Meter{seconds: make([]Tally, 2), done: make(chan struct{})}
		l := Load{Patience: time.Second, Send: func(context.Context) Answer { return OK }}
		loop := l.loop(t.Context(), time.Now(), m)
		time.Sleep(300 * time.Millisecond)
		loop.Due = slices.Values([]time.Duration{0, 260 * time.Millisecond}) // 40 ms late: within 5 % of a second
		loop.Run(t.Context())
		got := m.Second(0)
		if got.LateSends != 1 || got.Offered != 2 {
			t.Errorf("%d late of %d, want 1 of 2", got.LateSends, got.Offered)
		}
		if p := got.Admitted.Bound(1); p < 300*time.Millisecond || p > 310*time.Millisecond {
			t.Errorf("longest latency %v, want 300ms from the time due", p)
		}
		if !got.Void() {
			t.Error("half of the sends were late and the second is not void")
		}
	})
}

func TestTooManyOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Load{Patience: time.Second, Send: answerAfter(100*time.Millisecond, OK)}
		m := &Meter{seconds: make([]Tally, 1)}
		loop := l.loop(t.Context(), time.Now(), m)
		loop.Most, loop.Due = 2, slices.Values(make([]time.Duration, 5))
		loop.Run(t.Context())
		if got := m.Second(0); got.OK != 2 || got.Unsent != 3 || got.Open() != 0 || !got.Void() {
			t.Errorf("OK %d, unsent %d, open %d, void %v; want 2, 3, 0, true", got.OK, got.Unsent, got.Open(), got.Void())
		}
	})
}

func TestSameSeedSameArrivals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Load{Phases: []Phase{{300, 3 * time.Second}}, Patience: time.Second, Seed: 7, Send: answerAfter(0, OK)}
		a, b := run1(t, l), run1(t, l)
		l.Seed = 8
		c := run1(t, l)
		same := true
		for i := range a {
			if a[i].Offered != b[i].Offered {
				t.Errorf("second %d: %d and %d requests from the same seed", i, a[i].Offered, b[i].Offered)
			}
			same = same && a[i].Offered == c[i].Offered
		}
		if same {
			t.Error("another seed offered the same")
		}
	})
}

func TestContextEndsTheLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		m, err := Load{
			Phases: []Phase{{100, time.Minute}}, Patience: 10 * time.Second, Send: answerAfter(time.Hour, OK),
		}.Start(ctx)
		if err != nil {
			t.Fatal(err)
		}
		<-m.Done()
		if d := time.Since(begin); d != time.Second {
			t.Errorf("ended after %v, want 1s", d)
		}
	})
}

func TestFaults(t *testing.T) {
	good := Load{Phases: []Phase{{1, time.Second}}, Patience: time.Second, Send: answerAfter(0, OK)}
	for _, tt := range []struct {
		name string
		set  func(*Load)
		want string
	}{
		{"rate above the bound", func(l *Load) { l.Phases = []Phase{{MaxRate + 1, time.Second}} }, "rate 20001/s"},
		{"rate not a number", func(l *Load) { l.Phases = []Phase{{math.NaN(), time.Second}} }, "rate NaN/s"},
		{"no time", func(l *Load) { l.Phases = []Phase{{1, 0}} }, "lasts 0s"},
		{"too long", func(l *Load) { l.Phases = []Phase{{1, MaxDuration}, {1, MaxDuration}} }, "20m0s together"},
		{"no patience", func(l *Load) { l.Patience = 0 }, "patience 0s"},
		{"nothing to send", func(l *Load) { l.Send = nil }, "no Send"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := good
			tt.set(&l)
			if _, err := l.Start(t.Context()); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one that says %q", err, tt.want)
			}
		})
	}
}

func TestGET(t *testing.T) {
	release := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/ok":
			w.WriteHeader(http.StatusNoContent)
		case "/busy":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "/quota":
			w.WriteHeader(http.StatusTooManyRequests)
		case "/broken":
			w.WriteHeader(http.StatusBadGateway)
		case "/hang":
			<-release
		}
	}))
	defer srv.Close()
	defer close(release)
	for path, want := range map[string]Answer{
		"/ok": OK, "/busy": Refused, "/quota": Refused, "/broken": Failed, "/hang": GaveUp,
	} {
		send, closeIdle, err := GET(srv.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		patience := 10 * time.Second
		if want == GaveUp {
			patience = 50 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if got := send(ctx); got != want {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
		cancel()
		closeIdle()
	}
	if _, _, err := GET("http://[bad"); err == nil {
		t.Error("a URL that cannot be parsed gave no error")
	}
}
