package server

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

// A few connections with many requests each do not fill the memory.
func TestRequestsInProgressAreBounded(t *testing.T) {
	release := make(chan struct{})
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) { <-release })
	cfg := baseConfig(t, up.URL)
	cfg.Listeners[0].H2C = true
	cfg.Listeners[0].MaxConnections = 1
	cfg.Listeners[0].MaxConcurrentStreams = 2 * leastRequests
	change(cfg, func(_ *config.Upstream, l *policy.LimitSpec) {
		l.Limit = 10
		// In order of arrival: the other orders let a newcomer take the place of
		// the oldest in a queue that has stood for a while.
		l.Queue = policy.QueueSpec{Len: leastRequests, MaxWait: policy.Duration(time.Minute), Order: "fifo"}
	})
	g := start(t, cfg, Options{})
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr}
	var group sync.WaitGroup
	ask := func(want int) {
		res, err := client.Get(g.url)
		if err != nil {
			t.Error(err)
			return
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s, want %d", res.Status, want)
		}
	}
	group.Go(func() { ask(http.StatusOK) }) // opens the connection
	eventually(t, "one is in", func() bool { return g.inFlight.Load() == 1 })
	for range leastRequests - 1 {
		group.Go(func() { ask(http.StatusOK) })
	}
	eventually(t, "all are in", func() bool { return g.inFlight.Load() == leastRequests })

	res, err := client.Get(g.url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" ||
		res.Header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("one too many: %s, %v", res.Status, res.Header)
	}
	if !strings.Contains(g.log.String(), "rule=max_connections") {
		t.Error("the log does not say why")
	}
	close(release)
	group.Wait()
	ask(http.StatusOK)
	g.idle()
}
