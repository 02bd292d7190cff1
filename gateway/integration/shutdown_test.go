//go:build integration

package integration

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// SIGTERM under HTTP/2 load: each connection is told to go away, and every
// stream up to the last that the gateway says it has taken is answered.
func TestShutdownHTTP2(t *testing.T) {
	const workers, conns, streams = 4, 6, 4
	up := startGunicorn(t, workers)
	g := startGateway(t, gatewayConfig(up.addr, workers))
	var clients []*h2conn
	for range conns {
		c, err := dialH2(t, g.addr)
		if err == nil {
			err = c.keep(streams, "/work?ms=20")
		}
		if err != nil {
			t.Fatal(err)
		}
		clients = append(clients, c)
	}
	eventually(t, 3*time.Second, "load has arrived", func() bool { return g.gate(t, "app").Admitted > 50 })

	g.signal(t, syscall.SIGTERM)
	if err := g.wait(t, 6*time.Second); err != nil {
		t.Errorf("weir ended with %v, want status 0\n%s", err, g.out)
	}
	served := 0
	for i, c := range clients {
		<-c.done
		ok, why := c.farewell()
		served += ok
		if why != "" {
			t.Errorf("connection %d, of %d streams begun: %s", i, (c.opened+1)/2, why)
		}
	}
	t.Logf("%d served", served)
	if served < 50 {
		t.Errorf("only %d streams were served", served)
	}
}

// farewell says what is wrong with how the connection ended, and how many of
// its streams were served.
func (c *h2conn) farewell() (served int, why string) {
	if c.err != io.EOF {
		return 0, fmt.Sprint("it ended with ", c.err)
	}
	if len(c.goAways) == 0 {
		return 0, "it ended without a GOAWAY"
	}
	last := c.opened
	for _, f := range c.goAways {
		if f.code != http2.ErrCodeNo {
			return 0, "GOAWAY with " + f.code.String()
		}
		last = min(last, f.last)
	}
	for id := uint32(1); id <= last; id += 2 {
		switch c.answers[id] {
		case "200":
			served++
		case "503": // it was waiting when the gate closed
		default:
			return served, fmt.Sprintf("stream %d, up to %d were taken, ended with %q", id, last, c.answers[id])
		}
	}
	return served, ""
}

// A lame duck still serves, on new connections too, but tells everybody to go.
// A second signal ends it at once.
func TestLameDuck(t *testing.T) {
	up := startNginx(t)
	g := startGateway(t, strings.Replace(gatewayConfig(up.addr, 8), "lame_duck: 300ms", "lame_duck: 1m", 1))
	kept := clientFor("HTTP/1.1")
	asked := func(client *http.Client, url string) (status int, closes bool) {
		t.Helper()
		res, err := client.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, res.Close
	}
	if status, closes := asked(kept, g.url+"/hello"); status != 200 || closes {
		t.Errorf("before: %d, connection closed: %v; want 200 and false", status, closes)
	}
	if status, _ := asked(kept, g.admin+"/readyz"); status != 200 {
		t.Errorf("before: /readyz says %d, want 200", status)
	}
	idle, err := dialH2(t, g.addr)
	if err != nil {
		t.Fatal(err)
	}

	g.signal(t, syscall.SIGTERM)
	eventually(t, 3*time.Second, "/readyz says 503", func() bool {
		status, _ := asked(kept, g.admin+"/readyz")
		return status == 503
	})
	if status, _ := asked(kept, g.admin+"/healthz"); status != 200 {
		t.Errorf("/healthz says %d, want 200", status)
	}
	for _, tt := range []struct {
		path   string
		client *http.Client
		status int
	}{
		{"/hello", kept, 200},
		{"/hello", clientFor("HTTP/1.1"), 200},
		{"/nothing", clientFor("HTTP/1.1"), 404},
	} {
		if status, closes := asked(tt.client, g.url+tt.path); status != tt.status || !closes {
			t.Errorf("%s: %d, connection closed: %v; want %d and true", tt.path, status, closes, tt.status)
		}
	}
	if err := idle.write(func() { idle.begin("/hello") }); err != nil {
		t.Fatal(err)
	}
	<-idle.done // the gateway closes it
	if ok, why := idle.farewell(); ok != 1 || why != "" {
		t.Errorf("HTTP/2: %d served, want 1; %s", ok, why)
	}

	// Right after the first it would count as its echo: ask until it obeys.
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for range 50 {
		select {
		case <-g.done:
			if g.err != nil {
				t.Errorf("weir ended with %v, want status 0: there was nothing left to cut off", g.err)
			}
			return
		case <-again.C:
			_ = g.cmd.Process.Signal(syscall.SIGTERM) // it may have ended just now
		}
	}
	t.Error("weir still runs 5s after the first of many second signals")
}
