package server

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

func TestTwoTargets(t *testing.T) {
	served := make(chan string, 100)
	target := func(name string) *httptest.Server {
		return upstreamOf(t, func(http.ResponseWriter, *http.Request) { served <- name })
	}
	a, b := target("a"), target("b")
	cfg := baseConfig(t, a.URL)
	change(cfg, func(u *config.Upstream, _ *policy.LimitSpec) { u.Targets = []string{a.URL, b.URL} })
	g := start(t, cfg, Options{})
	for range 4 {
		get(t, g.url)
	}
	if got := <-served + <-served + <-served + <-served; got != "abab" {
		t.Errorf("served by %s, want them in turn", got)
	}

	b.Close()
	for range 20 {
		if res, body := get(t, g.url); res.StatusCode != http.StatusOK {
			t.Fatalf("%d %s with one of two targets down", res.StatusCode, body)
		}
	}
	stats := g.Upstreams()[0].Stats()
	if !stats[1].Ejected || stats[1].Failures["connect"] != 5 || stats[0].Ejected {
		t.Errorf("after one target died: %+v; want it left out after 5 failures", stats)
	}
	if !strings.Contains(g.log.String(), "upstream target left out") {
		t.Error("the log does not say that a target was left out")
	}
}

func TestTargetLimit(t *testing.T) {
	hold := make(chan struct{})
	entered := make(chan string, 10)
	target := func(name string) *httptest.Server {
		return upstreamOf(t, func(http.ResponseWriter, *http.Request) {
			entered <- name
			<-hold
		})
	}
	a, b := target("a"), target("b")
	cfg := baseConfig(t, a.URL)
	change(cfg, func(u *config.Upstream, _ *policy.LimitSpec) {
		u.Targets = []string{a.URL, b.URL}
		u.Limit = &policy.LimitSpec{Limit: 1, Queue: policy.QueueSpec{Len: 1}}
	})
	g := start(t, cfg, Options{})
	results := make(chan int, 3)
	for range 3 {
		go func() {
			res, err := http.Get(g.url)
			if err != nil {
				results <- 0
				return
			}
			res.Body.Close()
			results <- res.StatusCode
		}()
	}
	if got := <-entered + <-entered; got != "ab" && got != "ba" {
		t.Errorf("two requests went to %s", got)
	}
	waiting := func() (n int64) {
		for _, gate := range g.Policy().Gates() {
			n += gate.Snapshot().Waiting
		}
		return n
	}
	eventually(t, "the third waits at a target", func() bool { return waiting() == 1 })
	close(hold)
	for range 3 {
		if status := <-results; status != http.StatusOK {
			t.Errorf("status %d", status)
		}
	}
	g.idle()
}

func TestTargetGates(t *testing.T) {
	got := targetGates("app", []string{
		"http://h:1", "https://h:1", "https://h:2", "h2c://h:3", "http://h:1/a", "http://h:4", "https://h:4/b", "HTTPS://h:4",
	})
	want := map[string]string{
		"http://h:1": "app@h:1", "https://h:1": "app@https://h:1", "https://h:2": "app@h:2", "h2c://h:3": "app@h:3",
		"http://h:1/a": "app@h:1/a", "http://h:4": "app@h:4", "https://h:4/b": "app@h:4/b", "HTTPS://h:4": "app@https://h:4",
	}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
