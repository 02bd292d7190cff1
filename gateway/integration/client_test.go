//go:build integration

package integration

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
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
	impatient(t, g.url+"/work?ms=100", 60)
	eventually(t, 3*time.Second, "the gate is full", func() bool { return g.gate(t, "app").InFlight == workers })
	g.idle(t)
	get(t, g.url+"/work?ms=20")
	g.idle(t)
}

// Clients that leave make no room. The upstream goes on with what nobody waits
// for, so letting others in meanwhile would only pile up work inside it.
func TestAbandonedWorkHoldsItsSlot(t *testing.T) {
	const limit = 4
	var c crowd
	up := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		defer c.enter()()
		await.Work(100 * time.Millisecond) // whoever has left
	}))
	defer up.Close()
	g := startGateway(t, gatewayConfig(strings.TrimPrefix(up.URL, "http://"), limit))
	for range 5 {
		get(t, g.url) // the gateway has seen how long it takes
	}
	impatient(t, g.url, 60)
	eventually(t, 3*time.Second, "the gate is full", func() bool { return g.gate(t, "app").InFlight == limit })
	g.idle(t)
	// A few more than the limit is the price of guessing how long it takes.
	if n := c.most.Load(); n > 2*limit {
		t.Errorf("the upstream had %d requests at a time, the limit is %d", n, limit)
	}
}

// impatient sends n requests at once, from clients that leave one after the
// other within a quarter of a second.
func impatient(t *testing.T, url string, n int) {
	t.Helper()
	for i := range n {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond+time.Duration(i)*240*time.Millisecond/time.Duration(n))
		req, err := http.NewRequestWithContext(ctx, "GET", url, nil)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			defer cancel()
			if res, err := http.DefaultClient.Do(req); err == nil {
				res.Body.Close()
			}
		}()
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

// A stream arrives line by line, not when it is over.
func TestStream(t *testing.T) {
	up := startGunicorn(t, 2)
	g := startGateway(t, gatewayConfig(up.addr, 2))
	begun := time.Now()
	res, err := http.Get(g.url + "/stream?n=5&ms=200")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	if !lines.Scan() || lines.Text() != "line 0" {
		t.Fatalf("first line %q, %v", lines.Text(), lines.Err())
	}
	if first := time.Since(begun); first > 700*time.Millisecond {
		t.Errorf("the first line took %v; the whole takes 1 s", first)
	}
	n := 1
	for lines.Scan() {
		n++
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
	c.SetDeadline(time.Now().Add(5 * time.Second))
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
