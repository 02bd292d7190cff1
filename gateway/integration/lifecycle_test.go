//go:build integration

package integration

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/weir-go/weir/gateway/internal/await"
)

// Reloads by signal and by a changed file, under load: no request notices.
func TestReloadUnderLoad(t *testing.T) {
	const workers, mean = 8, 20
	up := startGunicorn(t, workers)
	g := startGateway(t, gatewayConfig(up.addr, 8))
	l := keepAsking(g.url+"/work?ms="+fmt.Sprint(mean), workers+4) // some of them wait

	limit := 8
	for i := range 8 {
		before := limit
		limit = 9 + i%3
		g.rewrite(t, func(old string) string {
			return strings.Replace(old, fmt.Sprintf("limit: %d,", before), fmt.Sprintf("limit: %d,", limit), 1)
		})
		if i%2 == 0 {
			g.signal(t, syscall.SIGHUP)
		}
		eventually(t, fmt.Sprintf("the gate's limit is %d", limit), func() bool {
			return g.gate(t, "app").Limit == int64(limit)
		})
	}
	l.stop()
	all := l.wait()
	allOK(t, all)
	g.idle(t)
	if n := g.gate(t, "app").Admitted; n != uint64(len(all)) {
		t.Errorf("the gate has counted %d admissions of %d: reloads must keep them", n, len(all))
	}
}

// A file with a fault in it changes nothing.
func TestBadReload(t *testing.T) {
	up := startNginx(t)
	g := startGateway(t, gatewayConfig(up.addr, 8))
	g.rewrite(t, func(old string) string {
		return strings.Replace(old, "limit: 8,", "limit: 12, thresold: 1s,", 1)
	})
	g.signal(t, syscall.SIGHUP)
	eventually(t, "the log names the unknown field", func() bool {
		return strings.Contains(g.out.String(), "thresold")
	})
	if n := g.gate(t, "app").Limit; n != 8 {
		t.Errorf("limit is %d after a bad file, want 8", n)
	}
	if body := get(t, g.url+"/hello"); string(body) != "hello\n" {
		t.Errorf("got %q", body)
	}
}

// SIGTERM under load: every request that was read is answered, and the process
// ends by itself. A refused connection is no lost request: nothing was sent.
func TestShutdownUnderLoad(t *testing.T) {
	const workers, mean = 8, 50
	up := startGunicorn(t, workers)
	g := startGateway(t, gatewayConfig(up.addr, workers))
	l := attack(g.url+"/work?ms="+fmt.Sprint(mean), up.capacity(mean)*8/10, time.Minute)
	eventually(t, "load has arrived", func() bool { return g.gate(t, "app").Admitted > 50 })

	g.signal(t, syscall.SIGTERM)
	if err := g.wait(t); err != nil {
		t.Errorf("weir ended with %v, want status 0\n%s", err, g.out)
	}
	l.stop()
	ok, rest := split(l.wait())
	if len(ok) < 50 {
		t.Errorf("only %d requests were served", len(ok))
	}
	for _, r := range rest {
		if r.Code == http.StatusServiceUnavailable || strings.Contains(r.Error, "connection refused") {
			continue
		}
		t.Errorf("lost: %d %s", r.Code, r.Error)
	}
	t.Logf("%d served; the rest:\n%s", len(ok), tally(rest))
}

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
	eventually(t, "load has arrived", func() bool { return g.gate(t, "app").Admitted > 50 })

	g.signal(t, syscall.SIGTERM)
	if err := g.wait(t); err != nil {
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
	eventually(t, "/readyz says 503", func() bool {
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
	eventually(t, "weir ends", func() bool {
		select {
		case <-g.done:
			return true
		default:
			_ = g.cmd.Process.Signal(syscall.SIGTERM) // it may have ended just now
			return false
		}
	})
	if g.err != nil {
		t.Errorf("weir ended with %v, want status 0: there was nothing left to cut off", g.err)
	}
}

// weirCommand runs the binary to its end and returns what it printed, and whether it
// ended with status 0.
func weirCommand(t *testing.T, args ...string) (out string, ok bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir = t.TempDir()
	b, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("weir %v does not end\n%s", args, b)
	}
	return string(b), err == nil
}

// What weir init writes is a configuration that weir accepts.
func TestInitWritesAConfiguration(t *testing.T) {
	init, ok := weirCommand(t, "init")
	if !ok {
		t.Fatalf("weir init failed:\n%s", init)
	}
	file := filepath.Join(t.TempDir(), "weir.yaml")
	writeFile(t, file, []byte(init))
	if out, ok := weirCommand(t, "check", file); !ok {
		t.Errorf("weir check refuses what weir init wrote:\n%s", out)
	}
}

// Mistakes end with a status that is not 0 and a text that says what and where.
func TestMistakes(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bad.yaml")
	writeFile(t, file, []byte(`upstreams:
  app:
    targets: [127.0.0.1:3000]
gates:
  app:
    limit: {limit: 0, queue: {max_wait: 5 minutes}}
routes:
  - match: [/]
    gates: [ap]
    upstreem: app
`))
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, tt := range []struct {
		name string
		args []string
		says []string
	}{
		{"every fault of a file", []string{"check", file}, []string{"bad.yaml:3:", "bad.yaml:6:", "bad.yaml:9:", "bad.yaml:10:", "upstreem", "5 minutes"}},
		{"the same on run", []string{"run", "--config", file}, []string{"bad.yaml:10:", "upstreem"}},
		{"a file that is not there", []string{"check", "nothing.yaml"}, []string{"nothing.yaml"}},
		{"a port in use", []string{"run", "--upstream", "http://127.0.0.1:1", "--listen", taken.Addr().String(), "--admin", "off"}, []string{taken.Addr().String(), "another process"}},
		{"no URL", []string{"run", "--upstream", "127.0.0.1:3000"}, []string{"http://127.0.0.1:3000"}},
		{"nothing to guard", []string{"run"}, []string{"--upstream", "weir init"}},
		{"an unknown command", []string{"rum"}, []string{"rum"}},
	} {
		out, ok := weirCommand(t, tt.args...)
		if ok {
			t.Errorf("%s: weir %v ended with status 0", tt.name, tt.args)
		}
		for _, s := range tt.says {
			if !strings.Contains(out, s) {
				t.Errorf("%s: does not say %q:\n%s", tt.name, s, out)
			}
		}
	}
}
