//go:build integration

package integration

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
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir/gateway/internal/await"
)

// Clients that leave while they wait and while they are served leave nothing
// behind.
func TestClientsLeave(t *testing.T) {
	const workers = 4
	up := startGunicorn(t, workers)
	g := startGateway(t, gatewayConfig(up.addr, workers))
	impatient(t, g.url+"/work?ms=100", 60, func() bool { return g.gate(t, "app").InFlight == workers })
	g.idle(t)
	get(t, g.url+"/work?ms=20")
	g.idle(t)
}

// Clients that leave make no room. The upstream goes on with what nobody waits
// for, so letting others in meanwhile would only pile up work inside it.
func TestAbandonedWorkHoldsItsSlot(t *testing.T) {
	const limit, work = 4, 100 * time.Millisecond
	var c crowd
	up := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		defer c.enter()()
		await.Work(work) // whoever has left
	}))
	defer up.Close()
	g := startGateway(t, gatewayConfig(strings.TrimPrefix(up.URL, "http://"), limit))
	for range 5 {
		get(t, g.url) // the gateway has seen how long it takes
	}
	impatient(t, g.url, 60, func() bool { return g.gate(t, "app").InFlight == limit })
	g.idle(t)
	if n, most := c.most.Load(), c.bound(limit, 32*work); n > most { // so long is an answer awaited
		t.Errorf("the upstream had %d requests at a time, at most %d are right with a limit of %d", n, most, limit)
	}
}

// impatient has n clients ask for a URL, each anew when it has its answer. Once the gate is full they leave,
// one after the other within a quarter of a second.
func impatient(t *testing.T, url string, n int, full func() bool) {
	t.Helper()
	var asking sync.WaitGroup
	defer asking.Wait()
	leave := make([]context.CancelFunc, n)
	for i := range leave {
		var ctx context.Context
		ctx, leave[i] = context.WithCancel(t.Context())
		defer leave[i]()
		asking.Go(func() {
			for ctx.Err() == nil {
				req, err := http.NewRequestWithContext(ctx, "GET", url, nil)
				if err != nil {
					t.Error(err)
					return
				}
				if res, err := http.DefaultClient.Do(req); err == nil {
					res.Body.Close()
				}
			}
		})
	}
	eventually(t, "the gate is full", full)
	for i := range leave {
		leave[i]()
		await.Work(240 * time.Millisecond / time.Duration(n))
	}
}

// Half of a request, and then nothing or a reset: no slot is taken by it.
func TestHalfRequests(t *testing.T) {
	up := startNginx(t)
	g := startGateway(t, gatewayConfig(up.addr, 8))
	for _, half := range []string{
		"", "GE", "GET / HTTP/1.1\r\nHost: a\r\n", "GET / HTTP/1.1\r\nHost: a\r\nX: ",
		"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc",
		"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
	} {
		for range 5 {
			c, err := net.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(c, half); err != nil {
				t.Fatal(err)
			}
			c.(*net.TCPConn).SetLinger(0) // reset, rather than close
			c.Close()
		}
	}
	g.idle(t)
	if body := get(t, g.url+"/hello"); string(body) != "hello\n" {
		t.Errorf("got %q", body)
	}
}

// A stream arrives line by line, not when it is over: each line is sent when the one
// before it has arrived.
func TestStream(t *testing.T) {
	arrived := make(chan struct{})
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for i := range 5 {
			fmt.Fprintf(w, "line %d\n", i)
			w.(http.Flusher).Flush()
			select {
			case <-arrived:
			case <-r.Context().Done():
				return
			}
		}
	}))
	defer up.Close()
	g := startGateway(t, gatewayConfig(up.Listener.Addr().String(), 2))
	client := http.Client{Timeout: await.Patience}
	res, err := client.Get(g.url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	n := 0
	for ; lines.Scan(); n++ {
		if want := fmt.Sprint("line ", n); lines.Text() != want {
			t.Errorf("%q, want %q", lines.Text(), want)
		}
		arrived <- struct{}{}
	}
	if n != 5 || lines.Err() != nil {
		t.Errorf("%d lines, %v; want 5", n, lines.Err())
	}
	g.idle(t)
}

// An upgraded connection passes bytes both ways, and holds no slot of the gate:
// with a limit of 1, ordinary requests go on beside it.
func TestUpgrade(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(echoUpgrade))
	defer up.Close()
	g := startGateway(t, gatewayConfig(strings.TrimPrefix(up.URL, "http://"), 1))

	c, err := net.Dial("tcp", strings.TrimPrefix(g.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(await.Patience))
	io.WriteString(c, "GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
	r := bufio.NewReader(c)
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("status %s, want 101", res.Status)
	}
	for i := range 3 {
		said := fmt.Sprintf("hello %d\n", i)
		io.WriteString(c, said)
		if heard, err := r.ReadString('\n'); heard != said {
			t.Fatalf("sent %q, got %q, %v", said, heard, err)
		}
		if body := get(t, g.url+"/"); string(body) != "plain\n" {
			t.Fatalf("beside the upgraded connection: %q", body)
		}
	}
	c.Close()
	g.idle(t)
}

func echoUpgrade(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") == "" {
		io.WriteString(w, "plain\n")
		return
	}
	w.Header().Set("Connection", "Upgrade")
	w.Header().Set("Upgrade", r.Header.Get("Upgrade"))
	w.WriteHeader(http.StatusSwitchingProtocols)
	c, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	io.Copy(c, rw)
}

// connFrom opens a connection from an address of the loopback network. One that is reset
// may be gone before it is known to be there: reset is true then.
func connFrom(t *testing.T, from, to string) (c net.Conn, reset bool) {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: await.Patience}
	c, err := d.Dial("tcp", to)
	if errors.Is(err, syscall.ECONNRESET) {
		return nil, true
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(await.Patience))
	return c, false
}

// knocks are ways to come to a listener.
type knocks struct {
	to   string
	conf *tls.Config // nil without TLS
}

// begin opens a connection whose client stops halfway, in its header or its handshake.
func (k *knocks) begin(t *testing.T, from string) net.Conn {
	t.Helper()
	c, reset := connFrom(t, from, k.to)
	if reset {
		t.Fatal("reset within the limits")
	}
	half := "GET / HT"
	if k.conf != nil {
		half = "\x16\x03\x01\x02\x00" // the header of a hello
	}
	if _, err := io.WriteString(c, half); err != nil {
		t.Fatal(err)
	}
	return c
}

// ask asks for / and returns the answer's status, 0 for a connection that was reset
// instead, and what it says; the connection is kept alive.
func (k *knocks) ask(t *testing.T, from string) (status int, text string, raw net.Conn) {
	t.Helper()
	raw, reset := connFrom(t, from, k.to)
	if reset {
		return 0, "", nil
	}
	c := raw
	if k.conf != nil {
		c = tls.Client(c, k.conf)
	}
	_, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return 0, "", raw
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if errors.Is(err, syscall.ECONNRESET) {
		return 0, "", raw
	}
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(body), raw
}

// What a listener may have at once and a second, in all and of one address, with and
// without TLS: whoever is beyond it is refused before a handshake, everybody else is
// served, and the metrics and weir status name the setting.
func TestConnectionLimits(t *testing.T) {
	up := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer up.Close()
	cert := newCertificate(t, t.TempDir(), 1)
	for _, tt := range []struct {
		settings, rule string
		held           int // connections of one address that are held before the one that is too many
		status         int
		others         bool // another address gets in all the same
		freed          bool // so does the same one when a connection is closed
	}{
		{"connections: {per_address: 2, exempt: []}", "connections.per_address", 2, 503, true, true},
		// one that the start of the test has looked with may not have gone yet
		{"max_connections: 3\n    connections: {per_address: -1}", "max_connections", 3, 503, false, true},
		{"connections: {rate_per_address: 0.01, exempt: []}", "connections.rate_per_address", 1, 429, true, false},
		{"connections: {rate: 0.01}", "connections.rate", 0, 429, false, false}, // that one has used it up
		{"connections: {mode: observe, per_address: 1, exempt: []}", "connections.per_address", 1, 200, true, true},
	} {
		for _, scheme := range []string{"http", "https"} {
			t.Run(tt.rule+" "+scheme, func(t *testing.T) {
				settings, way, refused := tt.settings+"\n    read_header_timeout: 1m\n    read_timeout: 1m", knocks{}, tt.status // who is slow keeps its place
				if scheme == "https" {
					settings, way.conf = settings+"\n    "+cert.listener(), &tls.Config{RootCAs: cert.pool, ServerName: "127.0.0.1"}
					if refused != 200 {
						refused = 0 // a reset: an answer would cost the handshake
					}
				}
				g := startListening(t, scheme, settings, gatewayConfig(up.Listener.Addr().String(), 8))
				way.to = g.addr
				eventually(t, "nobody is in", func() bool {
					return strings.Contains(string(get(t, g.admin+"/metrics")), fmt.Sprintf("weir_connections{listener=%q} 0\n", g.addr))
				})
				var last net.Conn
				for i := range tt.held {
					if i%2 == 0 { // half of them slow, half of them idle
						last = way.begin(t, "127.0.0.2")
						eventually(t, "it has its place", func() bool {
							return strings.Contains(string(get(t, g.admin+"/metrics")), fmt.Sprintf("weir_connections{listener=%q} %d\n", g.addr, i+1))
						})
						continue
					}
					status, text, c := way.ask(t, "127.0.0.2")
					if status != 200 {
						t.Fatalf("within the limits: %d %s", status, text)
					}
					last = c
				}
				status, text, _ := way.ask(t, "127.0.0.2")
				if status != refused || refused >= 400 && !strings.Contains(text, fmt.Sprintf("%q:%q", "rule", tt.rule)) {
					t.Errorf("one too many: %d %s; want %d by %s", status, text, refused, tt.rule)
				}
				g.names(t, tt.rule, refused == 200)
				if tt.others {
					if status, text, _ := way.ask(t, "127.0.0.3"); status != 200 {
						t.Errorf("from another address: %d %s", status, text)
					}
				}
				if tt.freed {
					_ = last.Close()
					eventually(t, "its place is free", func() bool {
						status, _, c := way.ask(t, "127.0.0.2")
						if c != nil {
							_ = c.Close()
						}
						return status == 200
					})
				}
			})
		}
	}
}

// names holds that metrics and weir status tell of one connection that was refused, or
// would have been, by the rule.
func (g *gateway) names(t *testing.T, rule string, observed bool) {
	t.Helper()
	metric, title := "refused", "LISTENER"
	if observed {
		metric, title = "observed", "ONLY OBSERVED, WOULD REFUSE"
	}
	if want := fmt.Sprintf("weir_connections_%s_total{listener=%q,rule=%q} 1\n", metric, g.addr, rule); !strings.Contains(string(get(t, g.admin+"/metrics")), want) {
		t.Errorf("no %s in the metrics", want)
	}
	out, ok := weirCommand(t, "status", "--admin", strings.TrimPrefix(g.admin, "http://"))
	if !ok || !strings.Contains(out, title) || !strings.Contains(out, rule+" 1") {
		t.Errorf("weir status does not name %s:\n%s", rule, out)
	}
}

// A client of IPv6 is its network: here of loopback, which is one address. (The table of
// accept has the others, and IPv4 addresses written as IPv6.)
func TestConnectionsOfIPv6(t *testing.T) {
	at, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skip("no IPv6 here: ", err)
	}
	addr := at.Addr().String()
	_ = at.Close()
	up := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer up.Close()
	admin, conf := freeAddr(t), filepath.Join(t.TempDir(), "weir.yaml")
	writeFile(t, conf, fmt.Appendf(nil, "listeners: [{address: %q, connections: {per_address: 1, exempt: []}}]\nadmin: {address: %s}\n%s",
		addr, admin, gatewayConfig(up.Listener.Addr().String(), 8)))
	start(t, admin, t.TempDir(), binary, "run", "--config", conf)
	way := knocks{to: addr}
	for _, want := range []int{200, 503} {
		if status, text, _ := way.ask(t, "::1"); status != want {
			t.Errorf("%d %s, want %d", status, text, want)
		}
	}
}
