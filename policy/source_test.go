package policy

import (
	"context"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/signal"
)

// Whatever a server does, one question ends with its context, costs no more than a
// bounded read, and asks nobody else.
func TestHTTPThatMeansHarm(t *testing.T) {
	var elsewhere, sent atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	for name, c := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"silent": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "deadline exceeded"},
		"endless": {func(w http.ResponseWriter, r *http.Request) {
			tick := time.NewTicker(time.Millisecond) // or it would be long, not endless
			defer tick.Stop()
			for r.Context().Err() == nil {
				_, _ = w.Write([]byte(" "))
				_ = http.NewResponseController(w).Flush()
				select {
				case <-tick.C:
				case <-r.Context().Done():
				}
			}
		}, "deadline exceeded"},
		"a gigabyte": {func(w http.ResponseWriter, _ *http.Request) {
			n, _ := io.CopyN(w, zeros{}, 1<<30)
			sent.Store(n)
		}, "longer than 65536 bytes"},
		"redirect": {func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, other.URL, http.StatusFound)
		}, "302 Found, not 200 OK"},
		"header": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Much", strings.Repeat("x", 1<<20))
		}, "header"},
		"nothing": {func(http.ResponseWriter, *http.Request) {}, "no number"},
	} {
		up := httptest.NewServer(c.answer)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		v, err := (SignalSpec{URL: up.URL}).fromHTTP(ctx)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, %v; want %q", name, v, err, c.want)
		}
		cancel()
		up.CloseClientConnections()
		up.Close()
	}
	if elsewhere.Load() > 0 {
		t.Error("a redirect was followed")
	}
	if n := sent.Load(); n > 64<<20 {
		t.Errorf("%d bytes of the gigabyte were taken", n)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// A thousand reloads, each with another poller, while signals hang, lie, fail and
// panic: whatever polled before has ended when the policy is closed, or the bubble
// would not.
//
// It runs on one processor. All timers of a bubble share one context of the race
// detector, and two processors that run such timers at the same time crash it in one of
// 25 storms (golang/go#78156).
func TestReloadStormWithSignals(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, func(t *testing.T) {
		var running atomic.Int64
		var say atomic.Uint64 // bits of what the liar says
		counted := func(name string, read func(context.Context) (float64, error)) signal.Signal {
			return signal.Func(name, func(ctx context.Context) (float64, error) {
				running.Add(1)
				defer running.Add(-1)
				return read(ctx)
			})
		}
		signals := map[string]signal.Signal{
			"hangs": counted("hangs", func(ctx context.Context) (float64, error) { <-ctx.Done(); return 0, ctx.Err() }),
			"lies": counted("lies", func(context.Context) (float64, error) {
				return []float64{math.NaN(), math.Inf(1), -1, 0.5, 1e300}[say.Add(1)%5], nil
			}),
			"panics": counted("panics", func(context.Context) (float64, error) { panic("boo") }),
		}
		var p *Policy
		for n := range 1000 {
			spec := limitSpec(LimitSpec{Controller: "knee", Signals: []string{"hangs", "lies", "panics"}})
			spec.Signals = map[string]SignalSpec{"hangs": {Interval: Duration(time.Duration(1+n) * time.Millisecond)}}
			next := must(t, spec, Options{Signals: signals, Previous: p})
			if p != nil {
				p.Replace(next)
			}
			p = next
			if permit, err := p.Gate("api").TryAdmit(weir.Work{}); err == nil {
				permit.Done(weir.OK)
			}
			time.Sleep(time.Duration(n%20) * time.Millisecond)
		}
		synctest.Wait()
		if n := running.Load(); n > 3 {
			t.Errorf("%d readings under way, want one of each signal at most", n)
		}
		if s := p.Gate("api").Snapshot(); s.Limit < 1 || s.Faults > 0 {
			t.Errorf("limit %d, %d faults", s.Limit, s.Faults)
		}
		p.Close()
		synctest.Wait()
		if n := running.Load(); n > 0 {
			t.Errorf("%d readings after the end", n)
		}
	})
}
