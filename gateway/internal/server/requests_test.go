package server

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

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
		w.Header()["Content-Type"] = nil // or this server would guess one
		w.WriteHeader(http.StatusTeapot)
		fmt.Fprintf(w, "%s;%s;%s;%s;%s", body, r.Header.Get("X-Forwarded-For"), r.Header.Get("X-Forwarded-Proto"),
			r.Header.Get("X-User"), r.Header.Get("Te"))
	})
	request := func(g *running) *http.Request {
		req, _ := http.NewRequest(http.MethodPost, g.url+"/a%2Fb?q=100%&b=1;c&a=%zz", strings.NewReader("hello"))
		req.Host = "shop.example"
		req.Header.Set("X-Forwarded-For", "203.0.113.9")
		req.Header.Set("X-Forwarded-Proto", "https")
		req.Header.Set("X-User", "alice")
		return req
	}
	f := func(trusted []string, want string) {
		t.Helper()
		cfg := baseConfig(t, up.URL)
		cfg.Identity = policy.IdentitySpec{User: "header:X-User", Trusted: trusted}
		g := start(t, cfg, Options{})
		res, body := do(t, request(g))
		if res.StatusCode != http.StatusTeapot || body != want || res.Header.Get("X-Hop") != "" {
			t.Errorf("trusted %q: %d %q, hop %q; want %q", trusted, res.StatusCode, body, res.Header.Get("X-Hop"), want)
		}
		if types, ok := res.Header["Content-Type"]; ok {
			t.Errorf("the content type %q, and the upstream named none", types)
		}
		if seen := res.Header.Get("X-Seen"); seen != "POST shop.example/a%2Fb?q=100%&b=1;c&a=%zz" {
			t.Errorf("the upstream saw %q", seen)
		}
		g.idle()
	}
	f(nil, "hello;203.0.113.9, 127.0.0.1;https;alice;") // loopback
	f([]string{"127.0.0.0/8"}, "hello;203.0.113.9, 127.0.0.1;https;alice;")
	f([]string{"10.0.0.0/8"}, "hello;127.0.0.1;http;;")
	f([]string{}, "hello;127.0.0.1;http;;") // nobody
}

// While retries are common among what a route refuses, its clients are told not to come back: by the route's
// own gate and by those of its targets.
func TestRetriesThatAreCommon(t *testing.T) {
	full := policy.LimitSpec{Limit: 1, Queue: policy.QueueSpec{Len: -1}}
	for where, set := range map[string]func(*config.Upstream, *policy.LimitSpec){
		"the route":  func(_ *config.Upstream, l *policy.LimitSpec) { l.Limit, l.Queue = full.Limit, full.Queue },
		"the target": func(u *config.Upstream, _ *policy.LimitSpec) { u.Limit = &full },
	} {
		t.Run(where, func(t *testing.T) {
			release := make(chan struct{})
			inside := make(chan struct{})
			up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {
				inside <- struct{}{}
				<-release
			})
			cfg := baseConfig(t, up.URL)
			change(cfg, set)
			g := start(t, cfg, Options{})
			var wg sync.WaitGroup
			wg.Go(func() { get(t, g.url) })
			<-inside
			for i := range 12 {
				req, err := http.NewRequest(http.MethodGet, g.url, nil)
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("X-Weir-Attempt", "1")
				res, body := do(t, req)
				final := strings.Contains(body, `"retryable":false`)
				if told := res.Header.Get("Retry-After") != ""; res.StatusCode != http.StatusServiceUnavailable || final != (i >= 9) || told == final {
					t.Errorf("retry %d: %d, Retry-After %q, %s", i+1, res.StatusCode, res.Header.Get("Retry-After"), body)
				}
			}
			close(release)
			wg.Wait()
		})
	}
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

// HTTP/1.0 has neither answers before the answer nor upgrades (RFC 9110, 7.8 and 15.2).
func TestHTTP10(t *testing.T) {
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusEarlyHints)
		fmt.Fprintf(w, "upgrade %q", r.Header.Get("Upgrade"))
	})
	g := start(t, baseConfig(t, up.URL), Options{})
	for protocol, want := range map[string]string{"1.0": "HTTP/1.0 200 OK", "1.1": "HTTP/1.1 103 Early Hints"} {
		c := dial(t, g.Addr(), "GET / HTTP/"+protocol+"\r\nHost: x\r\nConnection: close, Upgrade\r\nUpgrade: websocket\r\n\r\n")
		answer, err := io.ReadAll(c)
		if first, _, _ := strings.Cut(string(answer), "\r\n"); err != nil || first != want {
			t.Errorf("%s: %v, %q, want %q first", protocol, err, answer, want)
		}
		if ends := strings.HasSuffix(string(answer), `upgrade ""`); ends != (protocol == "1.0") {
			t.Errorf("%s: %q", protocol, answer)
		}
	}
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
	eventually(t, "it counts as an answer of the upstream", func() bool {
		return strings.Contains(g.scrape(), `weir_http_requests_total{by="upstream",code="1xx",route="/"} 1`)
	})
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

// No spelling of a path leads past the gate of its route by way of a server that
// unescapes slashes.
func TestAmbiguousPaths(t *testing.T) {
	var reached []string
	up := upstreamOf(t, func(_ http.ResponseWriter, r *http.Request) { reached = append(reached, r.URL.EscapedPath()) })
	cfg := baseConfig(t, up.URL)
	cfg.Gates["heavy"] = policy.GateSpec{Limit: &policy.LimitSpec{Limit: 1, Queue: policy.QueueSpec{Len: -1}}}
	cfg.Routes = append([]config.Route{{
		RouteSpec: policy.RouteSpec{Match: []string{"/heavy/"}, Gates: []string{"heavy"}}, Upstream: gateName,
	}}, cfg.Routes...)
	g := start(t, cfg, Options{})
	held, err := g.Policy().Gate("heavy").TryAdmit(weir.Work{})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int{
		"/heavy/a":                  http.StatusServiceUnavailable,
		"/x/%2e%2e/heavy/a":         http.StatusServiceUnavailable,
		"//heavy/a":                 http.StatusServiceUnavailable,
		"/x%2f..%2fheavy/a":         http.StatusBadRequest,
		"/x%2F%2E%2e%2Fheavy%2fa":   http.StatusBadRequest,
		"/%2Fheavy/a":               http.StatusBadRequest,
		"/heavy/..%2Fheavy/a":       http.StatusBadRequest,
		"/heavy//../a":              http.StatusBadRequest,
		"/a/../../calm":             http.StatusBadRequest,
		"/x%2F..%2Fheavy/a|":        http.StatusBadRequest,
		"/calm%2Fnames/are|%2Ffine": http.StatusOK,
	} {
		c := dial(t, g.Addr(), "GET "+path+" HTTP/1.1\r\nHost: test\r\n\r\n") // a client of net/http escapes by itself
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != want {
			t.Errorf("%s: %s, want %d", path, res.Status, want)
		}
		if problem := res.Header.Get("Content-Type") == "application/problem+json"; problem != (want != http.StatusOK) {
			t.Errorf("%s: %s", path, res.Header.Get("Content-Type"))
		}
	}
	held.Cancel()
	if got := strings.Join(reached, " "); got != "/calm%2Fnames/are%7C%2Ffine" {
		t.Errorf("the upstream saw %s", got)
	}
	g.idle()

	w := httptest.NewRecorder()
	g.metrics.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if line := `weir_http_requests_total{by="gateway",code="4xx",route="/"} 6`; !strings.Contains(w.Body.String(), line) {
		t.Errorf("no %s", line)
	}
}

// A host is matched as it is sent on, however it was written.
func TestHostsAreMatchedAsSent(t *testing.T) {
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Host) })
	cfg := baseConfig(t, up.URL)
	cfg.Gates["books"] = policy.GateSpec{Limit: &policy.LimitSpec{Limit: 1, Queue: policy.QueueSpec{Len: -1}}}
	cfg.Routes = append([]config.Route{{
		RouteSpec: policy.RouteSpec{Match: []string{"xn--bcher-kva.example/"}, Gates: []string{"books"}}, Upstream: gateName,
	}}, cfg.Routes...)
	g := start(t, cfg, Options{})
	held, err := g.Policy().Gate("books").TryAdmit(weir.Work{})
	if err != nil {
		t.Fatal(err)
	}
	defer held.Cancel()
	for _, target := range []string{"http://xn--bcher-kva.example/", "http://bücher.example/", "http://b%C3%BCcher.example/"} {
		c := dial(t, g.Addr(), "GET "+target+" HTTP/1.1\r\nHost: x\r\n\r\n")
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("%s: %s, want that of its route", target, res.Status)
		}
		_ = c.Close()
	}
}

// A gateway is no tunnel: CONNECT is refused, and so is the preface of HTTP/2 where
// HTTP/2 is not spoken. Neither asks a gate or reaches the upstream.
func TestMethodsThatAreNotForwarded(t *testing.T) {
	up := upstreamOf(t, func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("the upstream saw %s %s", r.Method, r.RequestURI)
	})
	g := start(t, baseConfig(t, up.URL), Options{})
	for text, want := range map[string]int{
		"CONNECT x:443 HTTP/1.1\r\nHost: x:443\r\n\r\n":           http.StatusMethodNotAllowed,
		"CONNECT / HTTP/1.1\r\nHost: x\r\n\r\n":                   http.StatusMethodNotAllowed,
		"CONNECT x:443 HTTP/1.0\r\n\r\n":                          http.StatusMethodNotAllowed,
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":                        http.StatusBadRequest,
		"PRI * HTTP/1.1\r\nHost: x\r\n\r\n":                       http.StatusBadRequest,
		"PRI / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx": http.StatusBadRequest,
	} {
		c := dial(t, g.Addr(), text)
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		_ = c.Close()
		if res.StatusCode != want || !res.Close || res.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%q: %s, closes: %v, %v; want %d and true", text, res.Status, res.Close, res.Header, want)
		}
		if allow := res.Header.Get("Allow"); (allow != "") != (want == http.StatusMethodNotAllowed) || strings.Contains(allow, "CONNECT") {
			t.Errorf("%q: Allow: %s", text, allow)
		}
	}
	g.idle()
	if n := g.gate().Admitted; n > 0 {
		t.Errorf("%d admitted, want none", n)
	}
	w := httptest.NewRecorder()
	g.metrics.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if line := `weir_http_requests_total{by="gateway",code="4xx",route="/"} 6`; !strings.Contains(w.Body.String(), line) {
		t.Errorf("no %s", line)
	}
}

// What net/http lets in and does not send on is the client's fault. Else clients could have targets ejected.
func TestRequestsThatCannotBeSent(t *testing.T) {
	up := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	up.Config.Protocols = new(http.Protocols)
	up.Config.Protocols.SetHTTP1(true)
	up.Config.Protocols.SetUnencryptedHTTP2(true)
	up.Start()
	t.Cleanup(up.Close)
	for _, scheme := range []string{"http", "h2c"} {
		cfg := baseConfig(t, strings.Replace(up.URL, "http", scheme, 1))
		cfg.Listeners[0].H2C = true
		cfg.Routes[0].Match = append(cfg.Routes[0].Match, "heavy.test/") // else no host is ambiguous
		g := start(t, cfg, Options{})
		for _, tt := range []struct {
			method, host, want string
		}{
			{"GET", "x", "200"},
			{"GET", "bücher.example:80", "200"},
			{"GET", "", "200"},
			{"PURGE", "[::1]", "200"},
			{"GET", "a b", "400"},
			{"GET", "a/b", "400"},
			{"GET", "x:80", "200"},
			{"GET", "x:80:80", "400"}, // x to nginx
			{"GET", "xn--é", "400"},
			{"g(t", "x", "400"},
			{"é", "x", "400"},
			{"post", "x", "400"},
		} {
			c := dial(t, g.Addr(), http2.ClientPreface)
			framer, block := http2.NewFramer(c, c), new(bytes.Buffer)
			framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
			encoder := hpack.NewEncoder(block)
			for name, value := range map[string]string{":method": tt.method, ":scheme": "http", ":authority": tt.host, ":path": "/"} {
				if err := encoder.WriteField(hpack.HeaderField{Name: name, Value: value}); err != nil {
					t.Fatal(err)
				}
			}
			if err := errors.Join(framer.WriteSettings(), framer.WriteHeaders(http2.HeadersFrameParam{
				StreamID: 1, EndHeaders: true, EndStream: true, BlockFragment: block.Bytes(),
			})); err != nil {
				t.Fatal(err)
			}
			var got string
			for got == "" {
				f, err := framer.ReadFrame()
				if err != nil {
					t.Fatalf("%s %s: %v", tt.method, tt.host, err)
				}
				if h, ok := f.(*http2.MetaHeadersFrame); ok {
					got = h.PseudoValue("status")
				}
			}
			if got != tt.want {
				t.Errorf("%s: %s %s: %s, want %s", scheme, tt.method, tt.host, got, tt.want)
			}
			_ = c.Close()
		}
		c := dial(t, g.Addr(), "GET http://xn--é/ HTTP/1.1\r\nHost: x\r\n\r\n")
		if res := answer(t, c); res.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: HTTP/1: %s", scheme, res.Status)
		}
		_ = c.Close()
		if s := g.Upstreams()[0].Stats()[0]; s.Failures["reset"] != 0 {
			t.Errorf("%s: failures %v", scheme, s.Failures)
		}
	}
}

// answer reads one answer from a raw connection.
func answer(t *testing.T, c io.Reader) *http.Response {
	t.Helper()
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

func TestMalformedRequests(t *testing.T) {
	reached := make(chan string, 100)
	up := upstreamOf(t, func(_ http.ResponseWriter, r *http.Request) { reached <- r.URL.String() })
	cfg := baseConfig(t, up.URL)
	cfg.Listeners[0].MaxHeaderBytes = 8 << 10
	g := start(t, cfg, Options{})
	f := func(what, request string, status int) {
		t.Helper()
		if res := answer(t, dial(t, g.Addr(), request)); res.StatusCode != status {
			t.Errorf("%s: %d, want %d", what, res.StatusCode, status)
		}
	}
	f("no request line", "hello\r\n\r\n", http.StatusBadRequest)
	f("no host", "GET / HTTP/1.1\r\n\r\n", http.StatusBadRequest)
	f("a space in a header name", "GET / HTTP/1.1\r\nHost: x\r\nX A: b\r\n\r\n", http.StatusBadRequest)
	f("two lengths", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", http.StatusBadRequest)
	f("a negative length", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", http.StatusBadRequest)
	f("an unknown encoding", "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: zip\r\n\r\n", http.StatusNotImplemented)
	f("huge headers", "GET / HTTP/1.1\r\nHost: x\r\nX-A: "+strings.Repeat("a", 64<<10)+"\r\n\r\n", http.StatusRequestHeaderFieldsTooLarge)
	f("an unknown version", "GET / HTTP/9.9\r\nHost: x\r\n\r\n", http.StatusHTTPVersionNotSupported)

	cfg.Listeners[0].ReadHeaderTimeout = policy.Duration(150 * time.Millisecond)
	g = start(t, cfg, Options{})
	slow := dial(t, g.Addr(), "GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
	if rest, err := io.ReadAll(slow); err != nil || strings.Contains(string(rest), "200") {
		t.Errorf("a header that never ends: %q, %v; want the connection closed", rest, err)
	}
	g.idle()
	if len(reached) > 0 {
		t.Errorf("the upstream saw %s", <-reached)
	}
}

func TestBadBodies(t *testing.T) {
	t.Parallel()
	up := upstreamOf(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	cfg := baseConfig(t, up.URL)
	g := start(t, cfg, Options{})
	// A broken body frees its slot when the rest of the work has had its time, so the gateway learns
	// first how little that is.
	get(t, g.url)
	const head = "POST / HTTP/1.1\r\nHost: x\r\n"

	c := dial(t, g.Addr(), head+"Transfer-Encoding: chunked\r\n\r\nnonsense\r\n")
	if res := answer(t, c); res.StatusCode != http.StatusBadRequest {
		t.Errorf("a malformed chunk: %d, want 400", res.StatusCode)
	}
	g.idle()

	c = dial(t, g.Addr(), head+"Content-Length: 100\r\n\r\nonly this")
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if res, err := http.ReadResponse(bufio.NewReader(c), nil); err == nil && res.StatusCode != http.StatusBadRequest {
		t.Errorf("a body shorter than announced: %d, want 400 or nothing", res.StatusCode)
	}
	g.idle()

	cfg.Listeners[0].ReadTimeout = policy.Duration(200 * time.Millisecond)
	g = start(t, cfg, Options{})
	get(t, g.url)
	for _, length := range []string{"Content-Length: 100", "Content-Length: 1000000", "Transfer-Encoding: chunked"} {
		c = dial(t, g.Addr(), head+length+"\r\n\r\n")
		if res := answer(t, c); res.StatusCode != http.StatusRequestTimeout {
			t.Errorf("a body that never comes (%s): %d, want 408", length, res.StatusCode)
		}
		g.idle()
	}

	// What was sent before buys no silence.
	c = dial(t, g.Addr(), head+"Content-Length: 1000000\r\n\r\n"+strings.Repeat("a", 900_000))
	if res := answer(t, c); res.StatusCode != http.StatusRequestTimeout {
		t.Errorf("a large body that stops: %d, want 408", res.StatusCode)
	}
	g.idle()
}

// A body without end that keeps coming leaves the gate to others.
func TestEndlessBody(t *testing.T) {
	t.Parallel()
	up := upstreamOf(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	cfg := baseConfig(t, up.URL)
	cfg.Listeners[0].ReadTimeout = policy.Duration(time.Second)
	g := start(t, cfg, Options{})
	c := dial(t, g.Addr(), "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
	stop := make(chan struct{})
	go func() {
		piece := fmt.Sprintf("%x\r\n%s\r\n", 16<<10, strings.Repeat("a", 16<<10))
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
			if _, err := io.WriteString(c, piece); err != nil {
				return
			}
		}
	}()
	eventually(t, "it counts as a stream", func() bool { return g.streams.Snapshot().Open == 1 && g.gate().InFlight == 0 })
	close(stop)
	_ = c.Close()
	g.idle()
}

// The gateway's own answer does not wait for a body that never comes.
func TestAnswerWithoutTheBody(t *testing.T) {
	t.Parallel()
	g := start(t, baseConfig(t, "http://127.0.0.1:1"), Options{})
	conns := map[int]io.Reader{
		http.StatusBadRequest: dial(t, g.Addr(), "POST /a%2F../b HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"),
		http.StatusBadGateway: dial(t, g.Addr(), "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"),
	}
	for want, c := range conns {
		if res := answer(t, c); res.StatusCode != want || !res.Close {
			t.Errorf("%s, closes the connection: %v; want %d that does", res.Status, res.Close, want)
		}
	}
}

// A client that stops reading gives its slot back, and is cut in the end.
func TestClientStopsReading(t *testing.T) {
	t.Parallel()
	up := upstreamOf(t, func(w http.ResponseWriter, _ *http.Request) {
		piece := make([]byte, 256<<10)
		for range 400 { // 100 MB: more than any buffer on the way
			if _, err := w.Write(piece); err != nil {
				return
			}
		}
	})
	cfg := baseConfig(t, up.URL)
	cfg.Listeners[0].WriteTimeout = policy.Duration(2 * time.Second)
	g := start(t, cfg, Options{})
	c := dial(t, g.Addr(), "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	if res := answer(t, c); res.StatusCode != http.StatusOK {
		t.Fatalf("status %d", res.StatusCode)
	}
	eventually(t, "the slow reader is among the streams", func() bool { return g.streams.Snapshot().Open == 1 && g.gate().InFlight == 0 })
	g.idle()
	if n := g.streams.Snapshot().Cut; n != 1 {
		t.Errorf("%d answers cut, want 1", n)
	}
}

func TestMaxConnections(t *testing.T) {
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {})
	cfg := baseConfig(t, up.URL)
	cfg.Listeners[0].MaxConnections = 2
	g := start(t, cfg, Options{})
	a := dial(t, g.Addr(), "")
	dial(t, g.Addr(), "")
	eventually(t, "both are open", func() bool { return g.Connections()[0].InFlight == 2 })
	if res := answer(t, dial(t, g.Addr(), "GET / HTTP/1.1\r\nHost: x\r\n\r\n")); res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a third connection: %d, want 503", res.StatusCode)
	}
	if c := g.Connections()[0]; c.Refused["max_connections"] != 1 || c.Rejected[weir.ReasonLimit] != 1 || c.Limit != 2 {
		t.Errorf("%+v, want one refused of a limit of 2", c)
	}
	_ = a.Close()
	eventually(t, "one has gone", func() bool { return g.Connections()[0].InFlight == 1 })
	if res, _ := get(t, g.url); res.StatusCode != http.StatusOK {
		t.Errorf("with a place free again: %d", res.StatusCode)
	}
}

// Clients that end their connections at every bad moment leak nothing.
func TestAborts(t *testing.T) {
	t.Parallel()
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, strings.Repeat("x", 100<<10))
	})
	cfg := baseConfig(t, up.URL)
	cfg.Gates[gateName].Limit.Limit = 4
	cfg.Gates[gateName].Limit.Queue.Len = 8
	cfg.Listeners[0].ReadTimeout = policy.Duration(100 * time.Millisecond)
	cfg.Listeners[0].ReadHeaderTimeout = policy.Duration(100 * time.Millisecond)
	g := start(t, cfg, Options{})
	get(t, g.url) // the slot of a client that leaves is held for as long as such work takes: now that is known

	const get, post = "GET / HTTP/1.1\r\nHost: x\r\n", "POST / HTTP/1.1\r\nHost: x\r\n"
	requests := []string{
		"GE", get, get + "\r\n",
		post + "Content-Length: 50000\r\n\r\n", post + "Content-Length: 50\r\n\r\nhalf",
		post + "Transfer-Encoding: chunked\r\n\r\n5\r\nhel",
		get + "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
		get + "\r\n" + get + "\r\n" + get + "\r\n", // pipelined
	}
	endings := []func(*net.TCPConn){
		func(c *net.TCPConn) { _ = c.Close() },
		func(c *net.TCPConn) { _ = c.SetLinger(0); _ = c.Close() }, // a reset
		func(c *net.TCPConn) { _ = c.CloseWrite(); _, _ = io.Copy(io.Discard, c); _ = c.Close() },
		func(c *net.TCPConn) { _, _ = c.Read(make([]byte, 10)); _ = c.SetLinger(0); _ = c.Close() },
	}
	var all sync.WaitGroup
	for worker := range 16 {
		all.Go(func() {
			for k := range 20 {
				i := worker*20 + k
				raw, err := net.Dial("tcp", g.Addr().String())
				if err != nil {
					t.Error(err)
					return
				}
				c := raw.(*net.TCPConn)
				_ = c.SetDeadline(time.Now().Add(time.Minute))
				_, _ = io.WriteString(c, requests[i%len(requests)])
				endings[i/len(requests)%len(endings)](c)
			}
		})
	}
	all.Wait()
	g.idle()
	eventually(t, "no connection is left", func() bool { return g.Connections()[0].InFlight == 0 })
	if g.gate().Admitted < 50 {
		t.Errorf("only %d were admitted: nothing is shown", g.gate().Admitted)
	}
}

// claims are what a client says of itself, and more than that.
var claims = http.Header{
	"X-Tenant": {"acme"}, "X-User": {"root"}, "X-Priority": {"critical"},
	"X_tenant": {"acme"}, "X_Priority": {"critical"},
	"X-Request-Timeout": {"30"},
}

// The upstream sees what was decided, not what a stranger says.
func TestUpstreamSeesWhatWasDecided(t *testing.T) {
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		for name := range claims {
			fmt.Fprintf(w, "%s=%s;", strings.ToLower(name), strings.Join(r.Header[name], ","))
		}
	})
	f := func(trusted []string, header http.Header, want ...string) {
		t.Helper()
		cfg := baseConfig(t, up.URL)
		cfg.Identity = policy.IdentitySpec{Tenant: "header:X-Tenant", User: "header:X-User", Priority: "header:X-Priority", Trusted: trusted}
		cfg.Routes[0].Priority = "high"
		g := start(t, cfg, Options{})
		req, err := http.NewRequest(http.MethodGet, g.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header = header.Clone()
		res, body := do(t, req)
		for _, part := range want {
			if !strings.Contains(body, part+";") {
				t.Errorf("trusting %q: %d %s, want %s in it", trusted, res.StatusCode, body, part)
			}
		}
		g.idle()
	}
	strange := []string{"10.0.0.0/8"}
	f(strange, claims, "x-tenant=", "x_tenant=", "x-user=", "x_priority=", "x-priority=high")
	f(nil, claims, "x-tenant=acme", "x_tenant=", "x-user=root", "x_priority=", "x-priority=critical")
	f(strange, http.Header{}, "x-tenant=", "x-user=", "x-priority=high", "x-request-timeout=")
	hop := claims.Clone()
	hop.Set("Connection", "X-Tenant, X-Priority")
	f(strange, hop, "x-tenant=", "x-priority=high")
	f(nil, hop, "x-tenant=acme", "x-priority=critical")
	twice := http.Header{"X-Tenant": {"a", "b"}, "X-Priority": {"critical", "background"}}
	f(nil, twice, "x-tenant=", "x-priority=high")
}

// The time that is left, and no more, goes on; bad values change nothing.
func TestTimeoutGoesOn(t *testing.T) {
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("X-Request-Timeout"))
	})
	g := start(t, baseConfig(t, up.URL), Options{})
	f := func(sent string, ok func(string) bool) {
		t.Helper()
		req, err := http.NewRequest(http.MethodGet, g.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Request-Timeout", sent)
		if res, body := do(t, req); res.StatusCode != http.StatusOK || !ok(body) {
			t.Errorf("%.40s: %d %.40s", sent, res.StatusCode, body)
		}
	}
	less := func(d time.Duration) func(string) bool {
		return func(got string) bool {
			left, err := time.ParseDuration(strings.TrimSuffix(got, "s") + "s")
			return err == nil && left > 0 && left <= d
		}
	}
	f("3600", less(time.Hour))
	f("99999999999999999999", less(366*24*time.Hour))
	for _, bad := range []string{"-1", "0", "soon", "1e9", strings.Repeat("9", 10<<10)} {
		f(bad, func(got string) bool { return got == bad })
	}
	if n := g.Policy().Ignored().Timeouts; n != 5 {
		t.Errorf("%d timeouts were ignored, want 5", n)
	}
}

// A client that waits less than the others is refused for its deadline, here
// because it is over.
func TestTimeoutIsOver(t *testing.T) {
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) { t.Error("it reached the upstream") })
	g := start(t, baseConfig(t, up.URL), Options{})
	req, err := http.NewRequest(http.MethodPost, g.url, strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Grpc-Timeout", "0n")
	if res, body := do(t, req); res.StatusCode != http.StatusServiceUnavailable || !strings.Contains(body, `"reason":"deadline"`) {
		t.Errorf("%d %s", res.StatusCode, body)
	}
}

// A refusal says whose work was refused to peers that are trusted, and to nobody
// else.
func TestRefusalNamesWhom(t *testing.T) {
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {})
	f := func(trusted []string, class, tenant any) {
		t.Helper()
		cfg := baseConfig(t, up.URL)
		cfg.Identity = policy.IdentitySpec{Tenant: "header:X-Tenant", Priority: "header:X-Priority", Trusted: trusted}
		g := start(t, cfg, Options{})
		req, err := http.NewRequest(http.MethodGet, g.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"X-Tenant": {`a"c<me`}, "X-Priority": {"background"}, "Grpc-Timeout": {"0n"}}
		res, body := do(t, req)
		var document map[string]any
		if err := json.Unmarshal([]byte(body), &document); err != nil || res.StatusCode != http.StatusServiceUnavailable {
			t.Fatalf("%d %s: %v", res.StatusCode, body, err)
		}
		if document["class"] != class || document["tenant"] != tenant || document["reason"] != "deadline" {
			t.Errorf("trusting %q: %s", trusted, body)
		}
	}
	f(nil, "background", `a"c<me`)
	f([]string{"10.0.0.0/8"}, nil, nil)
}

// Whatever identity a client brings, it is answered, and what is kept of it is
// bounded.
func TestHostileIdentities(t *testing.T) {
	up := upstreamOf(t, func(w http.ResponseWriter, _ *http.Request) {})
	cfg := baseConfig(t, up.URL)
	cfg.Identity = policy.IdentitySpec{Tenant: "header:X-Tenant", User: "header:X-User", Priority: "header:X-Priority"}
	cfg.Metrics.Tenants = 5
	g := start(t, cfg, Options{})
	f := func(status, header string) {
		t.Helper()
		c := dial(t, g.Addr(), "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"+header+"\r\n\r\n")
		answer, err := io.ReadAll(c)
		if err != nil && len(answer) == 0 || !strings.HasPrefix(string(answer), "HTTP/1.1 "+status) {
			t.Errorf("%.60q: %.60q, %v; want %s", header, answer, err, status)
		}
	}
	long := strings.Repeat("x", 10<<10)
	f("200", "X-Tenant: "+long+"\r\nX-User: "+long+"\r\nX-Priority: "+long)
	f("200", "X-Tenant: a\tb\r\nX-Priority: \xff\xfe")
	f("400", "X-Tenant: a\x00b")
	f("200", "X-Tenant: a\r\nX-Tenant: b\r\nX-Priority: critical\r\nX-Priority: normal")
	f("200", "X-Priority: -2147483649\r\nGrpc-Timeout: 99999999H\r\nX-Request-Timeout: -9223372036854775808")
	f("200", "Grpc-Timeout: \xff\r\nX-Request-Timeout: NaN\r\nX-Forwarded-For: ,,,\xff,::::")
	for i := range 100 {
		f("200", fmt.Sprintf("X-Tenant: invented%d", i))
	}
	g.idle()
	rec := httptest.NewRecorder()
	g.metrics.Handler().ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if n := strings.Count(rec.Body.String(), `weir_tenant_requests_total{by="upstream"`); rec.Code != http.StatusOK || n != 6 {
		t.Errorf("%d, series of %d tenants, want 5 and the rest", rec.Code, n)
	}
	if g.Policy().Ignored().Priorities != 4 {
		t.Errorf("%d priorities ignored, want 4", g.Policy().Ignored().Priorities)
	}
}
