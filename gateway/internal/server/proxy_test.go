package server

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

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
	f := func(trusted []string, want string) {
		t.Helper()
		cfg := baseConfig(t, up.URL)
		cfg.Identity = policy.IdentitySpec{User: "header:X-User", Trusted: trusted}
		g := start(t, cfg, Options{})
		res, body := do(t, request(g))
		if res.StatusCode != http.StatusTeapot || body != want || res.Header.Get("X-Hop") != "" {
			t.Errorf("trusted %q: %d %q, hop %q; want %q", trusted, res.StatusCode, body, res.Header.Get("X-Hop"), want)
		}
		if seen := res.Header.Get("X-Seen"); seen != "POST shop.example/a%2Fb?q=1" {
			t.Errorf("the upstream saw %q", seen)
		}
		g.idle()
	}
	f(nil, "hello;203.0.113.9, 127.0.0.1;https;alice;") // loopback
	f([]string{"127.0.0.0/8"}, "hello;203.0.113.9, 127.0.0.1;https;alice;")
	f([]string{"10.0.0.0/8"}, "hello;127.0.0.1;http;;")
	f([]string{}, "hello;127.0.0.1;http;;") // nobody
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
