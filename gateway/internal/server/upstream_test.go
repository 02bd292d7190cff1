package server

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/await"
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
	if !strings.Contains(g.log.String(), "upstream target ejected") {
		t.Error("the log does not say that a target was left out")
	}
}

// A target that was not there at the start is told of once more: with its first answer.
func TestTargetComesUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "late")
	g := start(t, baseConfig(t, "unix:"+path), Options{})
	said := func() []string { return g.log.lines("upstream target accepts") }
	eventually(t, "the log says that the target is not there", func() bool { return len(said()) == 1 })
	if res, _ := get(t, g.url); res.StatusCode != http.StatusBadGateway {
		t.Errorf("%s before there is a target", res.Status)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	up := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	up.Listener = l
	up.Start()
	defer up.Close()
	for range 2 {
		if res, _ := get(t, g.url); res.StatusCode != http.StatusOK {
			t.Errorf("%s", res.Status)
		}
	}
	want := `"upstream target accepts connections now" upstream=upstream target=unix:` + path
	if got := said(); len(got) != 2 || got[1] != want {
		t.Errorf("the log says %q, last should be %q", got, want)
	}
}

// Two sockets and an address serve one upstream, each for itself.
func TestUnixTargets(t *testing.T) {
	served := make(chan string, 100)
	dir := t.TempDir()
	socket := func(name string) string {
		path := filepath.Join(dir, name)
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { served <- name + r.Host + r.URL.Path })}
		go s.Serve(l)
		t.Cleanup(func() { s.Close() })
		return "unix:" + path
	}
	b := upstreamOf(t, func(_ http.ResponseWriter, r *http.Request) { served <- "b" + r.Host + r.URL.Path })
	cfg := baseConfig(t, b.URL)
	change(cfg, func(u *config.Upstream, _ *policy.LimitSpec) {
		u.Targets = []string{socket("a"), b.URL, socket("c"), "unix:" + filepath.Join(dir, "gone")}
	})
	g := start(t, cfg, Options{})
	got := map[string]int{}
	for range 40 {
		if res, body := get(t, g.url+"/x"); res.StatusCode != http.StatusOK {
			t.Fatalf("%d %s", res.StatusCode, body)
		}
		got[<-served]++
	}
	for _, name := range []string{"a", "b", "c"} {
		if n := got[name+strings.TrimPrefix(g.url, "http://")+"/x"]; n < 10 {
			t.Errorf("%s served %d of 40: %v", name, n, got)
		}
	}
	if stats := g.Upstreams()[0].Stats(); !stats[3].Ejected || stats[3].Failures["connect"] != 5 {
		t.Errorf("a socket that is not there: %+v", stats[3])
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

func TestUpstreamFailures(t *testing.T) {
	refusing := "http://127.0.0.1:1" // nobody listens there
	hanging := upstreamOf(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	garbage := rawUpstream(t, "SSH-2.0-OpenSSH_9.6\r\n")
	resetting := rawUpstream(t, "")
	huge := rawUpstream(t, "HTTP/1.1 200 OK\r\nX-A: "+strings.Repeat("a", 1<<20))

	f := func(what, target string, timeout time.Duration, status int, outcome weir.Outcome, logged string) {
		t.Helper()
		cfg := baseConfig(t, target)
		change(cfg, func(u *config.Upstream, _ *policy.LimitSpec) { u.ResponseTimeout = policy.Duration(timeout) })
		g := start(t, cfg, Options{})
		res, body := get(t, g.url)
		if res.StatusCode != status || res.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: %d %s, want %d", what, res.StatusCode, body, status)
		}
		g.idle()
		if g.gate().Outcomes[outcome] != 1 {
			t.Errorf("%s: outcomes %v, want one %v", what, g.gate().Outcomes, outcome)
		}
		if line := `level=WARN msg="upstream target failed" upstream=upstream target=` + target + " reason=" + logged; strings.Count(g.log.String(), line) != 1 {
			t.Errorf("%s: the log does not say once that the upstream failed:\n%s", what, g.log)
		}
	}
	f("refuses", refusing, time.Minute, http.StatusBadGateway, weir.Failed, "connect")
	f("hangs", hanging.URL, 100*time.Millisecond, http.StatusGatewayTimeout, weir.Overload, `timeout error="no answer within 100ms"`)
	f("speaks something else", garbage, time.Minute, http.StatusBadGateway, weir.Failed, "reset")
	f("has no status", rawUpstream(t, "HTTP/1.1 099 None\r\nContent-Length: 0\r\n\r\n"), time.Minute, http.StatusBadGateway, weir.Failed, "reset")
	f("resets", resetting, time.Minute, http.StatusBadGateway, weir.Failed, "reset")
	f("sends endless headers", huge, time.Minute, http.StatusBadGateway, weir.Failed, "reset")
}

// An answer that breaks off must not look complete.
func TestAnswerBreaksOff(t *testing.T) {
	f := func(what, answer string) {
		t.Helper()
		g := start(t, baseConfig(t, rawUpstream(t, answer)), Options{})
		res, err := http.Get(g.url)
		if err == nil {
			_, err = io.ReadAll(res.Body)
			res.Body.Close()
		}
		if err == nil {
			t.Errorf("%s: the client saw a complete answer", what)
		}
		g.idle()
	}
	f("reset in the body", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this")
	f("reset in a chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
}

// An upstream that falls silent in the middle of an answer loses its client, is counted, and keeps no slot.
func TestAnswerFallsSilent(t *testing.T) {
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte("only this"))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	cfg := baseConfig(t, up.URL)
	change(cfg, func(u *config.Upstream, _ *policy.LimitSpec) {
		u.ResponseIdleTimeout = policy.Duration(100 * time.Millisecond)
	})
	g := start(t, cfg, Options{})
	res, err := http.Get(g.url)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(res.Body); err == nil || string(text) != "only this" {
		t.Errorf("the client got %q, %v; want an answer that breaks off", text, err)
	}
	res.Body.Close()
	g.idle()
	if stats := g.Upstreams()[0].Stats(); stats[0].Failures["body"] != 1 || !strings.Contains(g.log.String(), "sent nothing for response_idle_timeout") {
		t.Errorf("counted %+v; the log has\n%s", stats, g.log)
	}
}

// An upstream that sends more than it announced.
func TestAnswerTooLong(t *testing.T) {
	g := start(t, baseConfig(t, rawUpstream(t, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello and more")), Options{})
	if _, body := get(t, g.url); body != "hello" {
		t.Errorf("%q, want what was announced", body)
	}
	g.idle()
}

// closedPort returns an address nobody listens on.
func closedPort(t *testing.T) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	return ln.Addr().String()
}

// rawUpstream answers each request with text and closes the connection.
func rawUpstream(t *testing.T, text string) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
					return
				}
				_, _ = io.WriteString(c, text)
			}()
		}
	}()
	return "http://" + ln.Addr().String()
}

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
	g.Upstreams()[0].Expect(time.Millisecond)
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

// The head of an answer is what counts: also of one that becomes a stream. An
// upgrade says nothing.
func TestOutcomesOfStreams(t *testing.T) {
	const long = 3 << 20
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/download":
			_, _ = w.Write(make([]byte, long)) // a client that leaves is no matter
		case "/events":
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: 1\n\n")
		case "/upgrade":
			w.Header().Set("Connection", "Upgrade")
			w.Header().Set("Upgrade", "echo")
			w.WriteHeader(http.StatusSwitchingProtocols)
		}
	})
	g := start(t, baseConfig(t, up.URL), Options{})
	f := func(path string, want weir.Outcome, fetch func()) {
		t.Helper()
		before, moved := g.gate().Outcomes, g.streams.Snapshot().Moved
		fetch()
		g.idle()
		if g.streams.Snapshot().Moved != moved+1 {
			t.Errorf("%s has not become a stream", path)
		}
		after := g.gate().Outcomes
		for _, o := range weir.Outcomes() {
			n := after[o] - before[o]
			if o == want && n != 1 || o != want && n != 0 {
				t.Errorf("%s: %d more of %v, want 1 %v alone", path, n, o, want)
			}
		}
	}
	f("/download", weir.OK, func() {
		if _, body := get(t, g.url+"/download"); len(body) != long {
			t.Errorf("%d bytes, want %d", len(body), long)
		}
	})
	f("/events", weir.OK, func() { get(t, g.url+"/events") })
	f("/upgrade", weir.NoSample, func() {
		c := dial(t, g.Addr(), "GET /upgrade HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
			t.Errorf("%v, %v", res, err)
		}
		_ = c.Close() // it is read to the end
	})
}
