package proxy

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

// counted starts a server that counts its connections.
func counted(t *testing.T, h http.HandlerFunc) (*httptest.Server, *atomic.Int32) {
	t.Helper()
	n := new(atomic.Int32)
	server := httptest.NewUnstartedServer(h)
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			n.Add(1)
		}
	}
	server.Start()
	t.Cleanup(server.Close)
	return server, n
}

// Requests beyond max_connections wait for a connection; max_idle_connections says how many are kept.
func TestPool(t *testing.T) {
	for _, tt := range []struct {
		name       string
		open, idle int
		together   bool
		want       int32
	}{
		{"one connection for all", 1, 10, true, 1},
		{"one after the other, kept", 0, 10, false, 1},
		{"one after the other, none kept", 0, -1, false, 6},
	} {
		server, n := counted(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
		u := makeUpstream(t, config.Upstream{Targets: []string{server.URL}, MaxConnections: tt.open, MaxIdleConnections: tt.idle}, io.Discard, nil)
		var all sync.WaitGroup
		for range 6 {
			ask := func() {
				w := httptest.NewRecorder()
				u.Serve(w, httptest.NewRequest(http.MethodGet, "/", nil), &Call{})
				if w.Code != http.StatusOK || w.Body.String() != "hello" {
					t.Errorf("%s: %d %s", tt.name, w.Code, w.Body)
				}
			}
			if tt.together {
				all.Go(ask)
			} else {
				ask()
			}
		}
		all.Wait()
		if got := n.Load(); got != tt.want {
			t.Errorf("%s: %d connections, want %d", tt.name, got, tt.want)
		}
	}
}

// A reload keeps the connections unless what it says of them has changed.
func TestPoolOverReloads(t *testing.T) {
	cfg := config.Upstream{Targets: []string{"http://a"}, MaxIdleConnections: 7, IdleTimeout: policy.Duration(9 * time.Second)}
	first := makeUpstream(t, cfg, io.Discard, nil)
	if tr := first.shared.transport; tr.MaxIdleConnsPerHost != 7 || tr.IdleConnTimeout != 9*time.Second || tr.MaxConnsPerHost != 0 {
		t.Errorf("the transport keeps %d connections for %v, of %d", tr.MaxIdleConnsPerHost, tr.IdleConnTimeout, tr.MaxConnsPerHost)
	}
	cfg.Balance = config.LeastLoaded
	second := makeUpstream(t, cfg, io.Discard, first)
	if second.shared.transport != first.shared.transport {
		t.Error("another transport, though nothing about connections has changed")
	}
	cfg.MaxConnections = 5
	third := makeUpstream(t, cfg, io.Discard, second)
	if tr := third.shared.transport; tr == second.shared.transport || tr.MaxConnsPerHost != 5 {
		t.Errorf("the transport allows %d connections, want another one, which allows 5", tr.MaxConnsPerHost)
	}
}

// Idle connections are closed between round trips: once when the transports are used no more and the last
// round trip has ended, and again after one that was on its way. net/http fails requests otherwise.
func TestDrainWaitsForRoundTrips(t *testing.T) {
	closed := 0
	r := roundTrips{close: func() { closed++ }}
	for i, step := range []struct {
		do   func()
		want int
	}{
		{r.begin, 0}, {r.begin, 0}, {r.end, 0}, {r.drain, 0}, {r.end, 1},
		{r.begin, 1}, {r.begin, 1}, {r.end, 1}, {r.end, 2},
	} {
		if step.do(); closed != step.want {
			t.Errorf("step %d: closed %d times, want %d", i, closed, step.want)
		}
	}
	unused := roundTrips{close: func() { closed = 100 }}
	if unused.drain(); closed != 100 {
		t.Error("transports that nobody uses stay open")
	}
}

func TestNoRoundTripWhileClosing(t *testing.T) {
	var underWay, bad, closed atomic.Int64
	r := roundTrips{close: func() {
		closed.Add(1)
		for range 100 {
			if underWay.Load() != 0 {
				bad.Add(1)
			}
			runtime.Gosched()
		}
	}}
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for n := range 200 {
				r.begin()
				underWay.Add(1)
				runtime.Gosched()
				underWay.Add(-1)
				r.end()
				if i == 0 && n == 20 {
					r.drain()
				}
			}
		})
	}
	all.Wait()
	if bad.Load() > 0 || closed.Load() == 0 {
		t.Errorf("closed %d times, with round trips under way at %d looks", closed.Load(), bad.Load())
	}
}

// A call may be silent for long: no ping makes a server of gRPC end its connection.
func TestQuietCall(t *testing.T) {
	withTLS := startHTTP2(t, nil)
	for scheme, creds := range map[string]credentials.TransportCredentials{
		"h2c": insecure.NewCredentials(), "https": credentials.NewServerTLSFromCert(&withTLS.TLS.Certificates[0]),
	} {
		synctest.Test(t, func(t *testing.T) {
			l := bufconn.Listen(64 << 10)
			s := grpc.NewServer(grpc.Creds(creds), grpc.UnknownServiceHandler(func(_ any, s grpc.ServerStream) error {
				select {
				case <-time.After(10 * time.Minute):
				case <-s.Context().Done():
				}
				return s.Context().Err()
			}))
			var serving sync.WaitGroup
			serving.Go(func() { _ = s.Serve(l) }) // it ends with Stop
			defer serving.Wait()
			defer s.Stop()
			tr := makeUpstream(t, config.Upstream{Targets: []string{scheme + "://example.com"}}, io.Discard, nil).shared.calls
			if got := tr.HTTP2.SendPingTimeout; got <= 0 {
				t.Error("no pings: a far end that is dead behind a relay is never found")
			}
			tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return l.DialContext(ctx) }
			if tr.TLSClientConfig != nil {
				tr.TLSClientConfig.RootCAs = withTLS.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
			}
			defer tr.CloseIdleConnections()
			url := strings.Replace(scheme, "h2c", "http", 1) + "://example.com/a/b"
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader("\x00\x00\x00\x00\x00"))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/grpc")
			req.Header.Set("Te", "trailers")
			res, err := tr.RoundTrip(req)
			if err != nil {
				t.Fatalf("%s: %v", scheme, err)
			}
			defer res.Body.Close()
			if got := res.Header.Get("Grpc-Status"); got != "0" {
				t.Errorf("%s: status %s %s", scheme, got, res.Header.Get("Grpc-Message"))
			}
		})
	}
}

// Clients that do not read cost little memory, and hold up nobody else on the same connection.
func TestUnreadAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clients = 20
		l := bufconn.Listen(64 << 10)
		var sent, conns atomic.Int64
		server := &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/endless" {
				_, _ = io.WriteString(w, "hello")
				return
			}
			for {
				n, err := w.Write(make([]byte, 16<<10))
				if err != nil {
					return
				}
				sent.Add(int64(n))
			}
		})}
		server.Protocols.SetUnencryptedHTTP2(true)
		var serving sync.WaitGroup
		serving.Go(func() { _ = server.Serve(l) }) // it ends with Close
		defer serving.Wait()
		defer server.Close()
		tr := makeUpstream(t, config.Upstream{Targets: []string{"h2c://app"}}, io.Discard, nil).shared.transport
		tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			conns.Add(1)
			return l.DialContext(ctx)
		}
		defer tr.CloseIdleConnections()
		ask := func(path string) *http.Response {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://app"+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			res, err := tr.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			return res
		}
		for range clients {
			defer ask("/endless").Body.Close()
		}
		synctest.Wait()
		if got, most := sent.Load()/clients, int64(unreadAnswer+bufferSize); got > most {
			t.Errorf("%d KiB for a client that reads nothing, want at most %d", got>>10, most>>10)
		}
		res := ask("/")
		defer res.Body.Close()
		if body, err := io.ReadAll(res.Body); string(body) != "hello" || conns.Load() != 1 {
			t.Errorf("%q, %v over %d connections", body, err, conns.Load())
		}
	})
}
