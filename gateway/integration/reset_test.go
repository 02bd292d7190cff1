//go:build integration

package integration

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// Streams that are opened and reset by the thousand take what the gate gives and
// no more, whether the upstream is stuck or fast. Others are served meanwhile.
func TestRapidReset(t *testing.T) {
	const limit, streams = 4, 10000
	var c crowd
	unstick := make(chan struct{})
	up := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/attacked" {
			defer c.enter()()
			<-unstick // whoever has left
		}
	}))
	defer up.Close()
	g := startGateway(t, attackedConfig(up.URL, limit))
	get(t, g.url+"/calm")
	before := g.memory(t, "VmRSS")
	calm := attack(g.url+"/calm", 100, 10*time.Second)

	// Nothing is known yet of how long the upstream takes: what is abandoned
	// keeps its slot.
	conns := resetStreams(t, g.addr, "/attacked", streams)
	if n := c.most.Load(); n != limit {
		t.Errorf("%d requests at a time in the upstream that is stuck, want %d", n, limit)
	}
	if s := g.gate(t, "app"); s.InFlight > limit {
		t.Errorf("%d in flight, the limit is %d", s.InFlight, limit)
	}

	close(unstick)
	get(t, g.url+"/attacked")
	beside := attack(g.url+"/attacked", 100, 10*time.Second)
	conns += resetStreams(t, g.addr, "/attacked", streams)
	beside.stop()
	if served, rest := split(beside.wait()); len(served) == 0 || len(rest) > len(served) {
		t.Errorf("at the attacked gate %d were served; the rest:\n%s", len(served), tally(rest))
	}
	calm.stop()
	allOK(t, calm.wait())
	g.idle(t)

	// A few more than the limit is the price of guessing how long it takes.
	if n := c.most.Load(); n > 2*limit {
		t.Errorf("%d requests at a time in the upstream, the limit is %d", n, limit)
	}
	peak := g.memory(t, "VmHWM")
	if peak-before > 64<<10 {
		t.Errorf("memory went from %d KiB to %d KiB; 64 MiB more should do", before, peak)
	}
	t.Logf("%d connections; %d in the upstream at a time; %d KiB before, %d KiB at most", conns, c.most.Load(), before, peak)
}

// attackedConfig has a second route to the attacked upstream, with a gate of its
// own. How long one route takes is no measure for the other.
func attackedConfig(upstream string, limit int) string {
	return strings.NewReplacer(
		"gates:\n", "gates:\n  calm: {limit: {limit: 64}}\n",
		"routes:", "routes:\n  - {match: [/calm], gates: [calm], upstream: app}",
	).Replace(gatewayConfig(strings.TrimPrefix(upstream, "http://"), limit))
}

// resetStreams opens streams and resets each at once until the gateway has taken
// that many. It uses one connection for as long as the gateway lets it, and
// returns how many there were.
func resetStreams(t *testing.T, addr, path string, streams uint32) (conns int) {
	t.Helper()
	const batch, mostConns = 50, 500
	for taken := uint32(0); taken < streams; conns++ {
		if conns == mostConns {
			t.Fatalf("the gateway took %d of %d streams on %d connections", taken, streams, conns)
		}
		c, err := dialH2(t, addr)
		for sent := uint32(0); sent < streams-taken && err == nil; sent += batch {
			err = c.write(func() {
				for range batch {
					c.framer.WriteRSTStream(c.begin(path), http2.ErrCodeCancel)
				}
			})
		}
		if c == nil {
			t.Fatal(err)
		}
		last := c.settle()
		c.conn.Close()
		<-c.done
		for _, f := range c.goAways {
			if f.code != http2.ErrCodeEnhanceYourCalm {
				t.Errorf("GOAWAY with %v", f.code)
			}
		}
		taken += (last + 1) / 2
	}
	return conns
}

// memory reads a size of the process from the kernel, in KiB.
func (p *process) memory(t *testing.T, name string) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
			if err != nil {
				t.Fatal(err)
			}
			return kib
		}
	}
	t.Fatalf("the kernel does not say %s", name)
	return 0
}
