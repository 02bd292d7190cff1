//go:build integration

package integration

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// nginx behind TLS is spoken to in HTTP/2. It ends each connection with a GOAWAY
// after 100 requests, in the middle of others: none of them is lost.
func TestUpstreamTLS(t *testing.T) {
	const clients, each = 20, 20
	cert := newCertificate(t, t.TempDir(), 1)
	t.Setenv("SSL_CERT_FILE", cert.cert) // what the gateway believes
	addr := freeAddr(t)
	startNginxOn(t, addr, fmt.Sprintf("listen %s ssl http2; ssl_certificate %s; ssl_certificate_key %s; keepalive_requests 100;",
		addr, cert.cert, cert.key))
	conf := strings.Replace(gatewayConfig(addr, clients), "http://", "https://", 1)
	g := startGateway(t, conf)

	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for range each {
				if body, err := fetch(g.url + "/echo"); err != nil || string(body) != "GET  HTTP/2.0\n" {
					t.Errorf("nginx says %q, %v; want HTTP/2.0", body, err)
				}
			}
		})
	}
	all.Wait()
	g.idle(t)
	if n := g.gate(t, "app").Admitted; n != clients*each {
		t.Errorf("%d admitted, want %d", n, clients*each)
	}
}

// An upstream with a certificate that nobody vouches for is no upstream.
func TestUpstreamTLSUnknown(t *testing.T) {
	up := httptest.NewUnstartedServer(http.NotFoundHandler())
	up.Config.ErrorLog = log.New(io.Discard, "", 0) // it hears of handshakes that end early
	up.StartTLS()
	defer up.Close()
	conf := strings.Replace(gatewayConfig(strings.TrimPrefix(up.URL, "https://"), 1), "http://", "https://", 1)
	g := startGateway(t, conf)
	res, err := http.Get(g.url)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusBadGateway {
		t.Errorf("%s, want 502", res.Status)
	}
	g.idle(t)
}

// An upstream over h2c is worked to its limit, also when it takes fewer streams
// than that on one connection, and never above.
func TestUpstreamH2C(t *testing.T) {
	const limit, clients, each = 16, 24, 10
	var c crowd
	var http1 atomic.Int64
	var once sync.Once
	full := make(chan struct{}) // closed when limit have been inside at a time
	up := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		defer c.enter()()
		if r.ProtoMajor != 2 {
			http1.Add(1)
		}
		if c.most.Load() >= limit {
			once.Do(func() { close(full) })
		}
		select {
		case <-full:
		case <-time.After(5 * time.Second): // the test has failed
		}
	}))
	up.Config.Protocols = new(http.Protocols)
	up.Config.Protocols.SetUnencryptedHTTP2(true)
	up.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: limit / 4}
	up.Start()
	defer up.Close()
	conf := gatewayConfig(strings.TrimPrefix(up.URL, "http://"), limit)
	conf = strings.NewReplacer("http://", "h2c://", "max_wait: 200ms", "max_wait: 5s", "timeout: 1s", "timeout: 5s").Replace(conf)
	g := startGateway(t, conf)

	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for range each {
				if _, err := fetch(g.url); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	g.idle(t)
	if n := c.most.Load(); n != limit {
		t.Errorf("at most %d requests at a time in the upstream, want %d", n, limit)
	}
	if n := http1.Load(); n > 0 {
		t.Errorf("%d requests came over HTTP/1", n)
	}
}
