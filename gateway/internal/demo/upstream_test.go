package demo

import (
	"context"
	"math"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

func TestUpstreamHasItsCapacity(t *testing.T) {
	for _, capacity := range []float64{MinCapacity, DefaultCapacity, MaxCapacity} {
		u := newUpstream(capacity, 1)
		const n = 100_000
		var done time.Duration
		for range n { // all at once: every worker is busy until the end
			done = max(done, u.accept(0))
		}
		if rate := n / done.Seconds(); math.Abs(rate/capacity-1) > 0.02 {
			t.Errorf("an upstream of %v/s did %.1f/s", capacity, rate)
		}
		if mean := u.mean; mean < service/2 || mean > 2*service {
			t.Errorf("capacity %v: %v a request on average, want about %v", capacity, mean, service)
		}
	}
}

func TestUpstreamServesInOrderOfArrival(t *testing.T) {
	u := newUpstream(MinCapacity, 1) // one worker
	if len(u.free) != 1 {
		t.Fatalf("%d workers, want 1", len(u.free))
	}
	var before time.Duration
	for i := range 1000 {
		done := u.accept(time.Duration(i) * time.Millisecond)
		if done < before {
			t.Fatalf("request %d is done at %v, the one before at %v", i, done, before)
		}
		before = done
	}
	// A worker that is free begins at once.
	later := before + time.Hour
	if wait := u.accept(later) - later; wait > time.Second {
		t.Errorf("an idle upstream took %v", wait)
	}
}

func TestUpstreamWorksOnForThoseWhoLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUpstream(MinCapacity, 1)
		var planned time.Duration
		for range 400 { // ten seconds of work for clients that leave at once
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			u.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
			cancel()
			planned = max(planned, u.free[0])
		}
		begin := time.Now()
		w := httptest.NewRecorder()
		u.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
		if waited := time.Since(begin); waited < 5*time.Second || w.Body.String() != "done\n" {
			t.Errorf("answered %q after %v; the work of those who left comes first, until %v", w.Body, waited, planned)
		}
	})
}
