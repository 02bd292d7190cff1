package server

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

// leave sends a request and closes the connection once the upstream has it.
func leave(t *testing.T, g *running, arrived <-chan struct{}) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, g.url, nil)
	go func() {
		<-arrived
		cancel()
	}()
	if res, err := http.DefaultClient.Do(req); err == nil {
		res.Body.Close()
		t.Fatal("answered before the client left")
	}
}

func TestClientLeavesHold(t *testing.T) {
	arrived, release := make(chan struct{}, 1), make(chan struct{})
	var upstreamErr error
	ended := make(chan struct{})
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" { // teaches the gateway what to expect
			await.Work(50 * time.Millisecond)
			return
		}
		arrived <- struct{}{}
		<-release
		upstreamErr = r.Context().Err()
		close(ended)
	})
	cfg := baseConfig(t, up.URL)
	g := start(t, cfg, Options{})
	g.Upstreams()[0].Expect(time.Minute)
	leave(t, g, arrived)
	eventually(t, "the gateway has noticed", func() bool { return g.Upstreams()[0].Abandoned() == 1 })
	if n := g.gate().InFlight; n != 1 {
		t.Errorf("%d in flight after the client left, want 1: the upstream still works", n)
	}
	close(release)
	<-ended
	if upstreamErr != nil {
		t.Errorf("the upstream's request was cancelled: %v", upstreamErr)
	}
	g.idle()
	if n := g.gate().Outcomes[weir.Abandoned]; n != 1 {
		t.Errorf("outcomes %v, want one abandoned", g.gate().Outcomes)
	}
}

// With hold, too, a slot does not stay taken for ever.
func TestClientLeavesHoldEnds(t *testing.T) {
	arrived := make(chan struct{}, 1)
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-r.Context().Done()
	})
	g := start(t, baseConfig(t, up.URL), Options{})
	g.Upstreams()[0].Expect(30 * time.Millisecond)
	leave(t, g, arrived)
	g.idle() // the upstream ends only because the gateway cancels it
	if n := g.gate().Outcomes[weir.Abandoned]; n != 1 {
		t.Errorf("outcomes %v, want one abandoned", g.gate().Outcomes)
	}
}

func TestClientLeavesRelease(t *testing.T) {
	arrived := make(chan struct{}, 1)
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-r.Context().Done()
	})
	cfg := baseConfig(t, up.URL)
	change(cfg, func(u *config.Upstream, _ *policy.LimitSpec) { u.OnAbandon = config.Release })
	g := start(t, cfg, Options{})
	g.Upstreams()[0].Expect(time.Hour) // which must not matter
	leave(t, g, arrived)
	g.idle()
}

// Before the first answer nothing says how long the upstream takes. Clients that
// leave must not make room there: it goes on working on what they asked for.
func TestClientsLeaveAColdStart(t *testing.T) {
	const limit = 2
	arrived, release := make(chan struct{}, 10*limit), make(chan struct{})
	var inside, most atomic.Int64
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {
		most.Store(max(most.Load(), inside.Add(1)))
		defer inside.Add(-1)
		arrived <- struct{}{}
		<-release
	})
	defer close(release)
	cfg := baseConfig(t, up.URL)
	change(cfg, func(_ *config.Upstream, l *policy.LimitSpec) {
		l.Limit = limit
		l.Queue.MaxWait = policy.Duration(150 * time.Millisecond)
	})
	g := start(t, cfg, Options{})
	for range limit {
		leave(t, g, arrived)
	}
	eventually(t, "the gateway has noticed", func() bool { return g.Upstreams()[0].Abandoned() == limit })
	for range limit {
		if res, _ := get(t, g.url); res.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("%s after clients have left, want 503: the upstream has room for nobody", res.Status)
		}
	}
	if n := most.Load(); n != limit {
		t.Errorf("%d at a time inside the upstream, the limit is %d", n, limit)
	}
}
