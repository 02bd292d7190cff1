package server

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

func TestPassesThrough(t *testing.T) {
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Seen", r.Method+" "+r.Host+r.URL.RequestURI())
		w.Header().Set("Connection", "X-Hop")
		w.Header().Set("X-Hop", "1")
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprintf(w, "%s;%s;%s;%s;%s", body, r.Header.Get("X-Forwarded-For"), r.Header.Get("X-Forwarded-Proto"),
			r.Header.Get("X-User"), r.Header.Get("Te"))
	})
	request := func(g *running) *http.Request {
		req, _ := http.NewRequest(http.MethodPost, g.url+"/a%2Fb?q=1", strings.NewReader("hello"))
		req.Host = "shop.example"
		req.Header.Set("X-Forwarded-For", "203.0.113.9")
		req.Header.Set("X-Forwarded-Proto", "https")
		req.Header.Set("X-User", "alice")
		return req
	}
	f := func(trusted, want string) {
		t.Helper()
		cfg := baseConfig(t, up.URL)
		cfg.Identity = policy.IdentitySpec{User: "header:X-User", Trusted: []string{trusted}}
		g := start(t, cfg, Options{})
		res, body := do(t, request(g))
		if res.StatusCode != http.StatusTeapot || body != want || res.Header.Get("X-Hop") != "" {
			t.Errorf("trusted %s: %d %q, hop %q; want %q", trusted, res.StatusCode, body, res.Header.Get("X-Hop"), want)
		}
		if seen := res.Header.Get("X-Seen"); seen != "POST shop.example/a%2Fb?q=1" {
			t.Errorf("the upstream saw %q", seen)
		}
		g.idle()
	}
	f("127.0.0.0/8", "hello;203.0.113.9, 127.0.0.1;https;alice;")
	f("10.0.0.0/8", "hello;127.0.0.1;http;;")
}

func TestNoRoute(t *testing.T) {
	cfg := baseConfig(t, "http://127.0.0.1:1")
	cfg.Routes[0].Match = []string{"/only"}
	g := start(t, cfg, Options{})
	res, body := get(t, g.url+"/other")
	if res.StatusCode != http.StatusNotFound || res.Header.Get("Content-Type") != "application/problem+json" || !strings.Contains(body, "no route") {
		t.Errorf("%d %s %s", res.StatusCode, res.Header.Get("Content-Type"), body)
	}
}

func TestTrailersAndHTTP2(t *testing.T) {
	up := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		fmt.Fprint(w, r.Proto)
		w.Header().Set("X-Sum", "42")
		w.Header().Set(http.TrailerPrefix+"X-Late", "yes")
	}))
	up.Config.Protocols = new(http.Protocols)
	up.Config.Protocols.SetUnencryptedHTTP2(true)
	up.Config.Protocols.SetHTTP1(true)
	up.Start()
	t.Cleanup(up.Close)

	f := func(target, clientProto, want string) {
		t.Helper()
		cfg := baseConfig(t, up.URL)
		cfg.Listeners[0].H2C = true
		change(cfg, func(u *config.Upstream, _ *policy.LimitSpec) { u.Targets = []string{target} })
		g := start(t, cfg, Options{})
		tr := &http.Transport{Protocols: new(http.Protocols)}
		tr.Protocols.SetHTTP1(clientProto == "HTTP/1.1")
		tr.Protocols.SetUnencryptedHTTP2(clientProto == "HTTP/2.0")
		defer tr.CloseIdleConnections()
		res, err := (&http.Client{Transport: tr}).Get(g.url)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		if err != nil || string(body) != want || res.Proto != clientProto {
			t.Errorf("%s to %s: %q over %s, %v; want %q", clientProto, target, body, res.Proto, err, want)
		}
		if res.Trailer.Get("X-Sum") != "42" || res.Trailer.Get("X-Late") != "yes" {
			t.Errorf("%s to %s: trailers %v", clientProto, target, res.Trailer)
		}
		g.idle()
	}
	h2c := "h2c" + strings.TrimPrefix(up.URL, "http")
	f(up.URL, "HTTP/1.1", "HTTP/1.1")
	f(up.URL, "HTTP/2.0", "HTTP/1.1")
	f(h2c, "HTTP/1.1", "HTTP/2.0")
	f(h2c, "HTTP/2.0", "HTTP/2.0")
}

func TestEventStream(t *testing.T) {
	next := make(chan struct{})
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for range 2 {
			fmt.Fprint(w, "data: x\n\n")
			w.(http.Flusher).Flush()
			<-next
		}
	})
	g := start(t, baseConfig(t, up.URL), Options{})
	res, err := http.Get(g.url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	line, err := bufio.NewReader(res.Body).ReadString('\n')
	if line != "data: x\n" || err != nil {
		t.Fatalf("%q, %v", line, err)
	}
	if in, open := g.gate().InFlight, g.streams.Snapshot().Open; in != 0 || open != 1 {
		t.Errorf("an event stream holds %d slots and %d places among the streams, want 0 and 1", in, open)
	}
	close(next)
	g.idle()
}

func TestWebSocketUpgrade(t *testing.T) {
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "websocket" {
			t.Errorf("upgrade %q", r.Header.Get("Upgrade"))
		}
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "websocket")
		w.WriteHeader(http.StatusSwitchingProtocols)
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		_, _ = io.Copy(c, rw) // an echo, until the other side ends
	})
	g := start(t, baseConfig(t, up.URL), Options{})
	c := dial(t, g.Addr(), "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	r := bufio.NewReader(c)
	res, err := http.ReadResponse(r, nil)
	if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%v, %v", res, err)
	}
	if _, err := io.WriteString(c, "ping\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := r.ReadString('\n'); line != "ping\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if in, open := g.gate().InFlight, g.streams.Snapshot().Open; in != 0 || open != 1 {
		t.Errorf("an upgraded connection holds %d slots and %d places among the streams, want 0 and 1", in, open)
	}
	_ = c.Close()
	g.idle()
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
			time.Sleep(50 * time.Millisecond)
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

func TestUpstreamFailures(t *testing.T) {
	refusing := "http://" + closedPort(t)
	hanging := upstreamOf(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	garbage := rawUpstream(t, "SSH-2.0-OpenSSH_9.6\r\n")
	resetting := rawUpstream(t, "")
	huge := rawUpstream(t, "HTTP/1.1 200 OK\r\nX-A: "+strings.Repeat("a", 1<<20))

	f := func(what, target string, status int, outcome weir.Outcome) {
		t.Helper()
		cfg := baseConfig(t, target)
		change(cfg, func(u *config.Upstream, _ *policy.LimitSpec) {
			u.ResponseTimeout = policy.Duration(100 * time.Millisecond)
		})
		g := start(t, cfg, Options{})
		res, body := get(t, g.url)
		if res.StatusCode != status || res.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: %d %s, want %d", what, res.StatusCode, body, status)
		}
		g.idle()
		if g.gate().Outcomes[outcome] != 1 {
			t.Errorf("%s: outcomes %v, want one %v", what, g.gate().Outcomes, outcome)
		}
	}
	f("refuses", refusing, http.StatusBadGateway, weir.Failed)
	f("hangs", hanging.URL, http.StatusGatewayTimeout, weir.Overload)
	f("speaks something else", garbage, http.StatusBadGateway, weir.Failed)
	f("resets", resetting, http.StatusBadGateway, weir.Failed)
	f("sends endless headers", huge, http.StatusBadGateway, weir.Failed)
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

func TestTLS(t *testing.T) {
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Header.Get("X-Forwarded-Proto")) })
	cfg := baseConfig(t, up.URL)
	cert, key := certificate(t)
	cfg.Listeners[0].TLS = &config.TLS{Cert: cert, Key: key}
	g := start(t, cfg, Options{})
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true}
	defer tr.CloseIdleConnections()
	res, err := (&http.Client{Transport: tr}).Get("https://" + g.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || string(body) != "https" || res.Proto != "HTTP/2.0" {
		t.Errorf("%q over %s, %v", body, res.Proto, err)
	}
	cfg.Listeners[0].TLS = &config.TLS{Cert: "none.pem", Key: key}
	if _, err := New(cfg, Options{}); err == nil || errors.Is(err, net.ErrClosed) {
		t.Errorf("a missing certificate: %v", err)
	}
}
