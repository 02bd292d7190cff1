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
)

// Clients that leave while they wait, while they are served, and while they
// read, leave nothing behind.
func TestClientsLeave(t *testing.T) {
	const workers = 4
	up := startGunicorn(t, workers)
	g := startGateway(t, gatewayConfig(up.addr, workers))
	for i := range 60 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(20+5*i)*time.Millisecond)
		defer cancel()
		go func() {
			req, _ := http.NewRequestWithContext(ctx, "GET", g.url+"/work?ms=150", nil)
			if res, err := http.DefaultClient.Do(req); err == nil {
				res.Body.Close()
			}
		}()
	}
	eventually(t, 3*time.Second, "the gate is full", func() bool { return g.gate(t, "app").InFlight == workers })
	g.idle(t)
	allOK(t, attack(g.url+"/work?ms=20", 50, time.Second).wait())
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
