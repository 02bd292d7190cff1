//go:build integration

package integration

import (
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Reloads by signal and by a changed file, under load: no request notices.
func TestReloadUnderLoad(t *testing.T) {
	const workers, mean = 8, 20
	up := startGunicorn(t, workers)
	g := startGateway(t, gatewayConfig(up.addr, 8))
	l := attack(g.url+"/work?ms="+fmt.Sprint(mean), up.capacity(mean)/2, 5*time.Second)

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
		eventually(t, 3*time.Second, fmt.Sprintf("the gate's limit is %d", limit), func() bool {
			return g.gate(t, "app").Limit == int64(limit)
		})
	}
	allOK(t, l.wait())
	g.idle(t)
	if n := g.gate(t, "app").Admitted; n < 500 {
		t.Errorf("the gate has counted %d admissions: reloads must keep it", n)
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
	eventually(t, 3*time.Second, "the log names the unknown field", func() bool {
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
	l := attack(g.url+"/work?ms="+fmt.Sprint(mean), up.capacity(mean)*8/10, 6*time.Second)
	eventually(t, 3*time.Second, "load has arrived", func() bool { return g.gate(t, "app").Admitted > 50 })

	g.signal(t, syscall.SIGTERM)
	if err := g.wait(t, 6*time.Second); err != nil {
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
