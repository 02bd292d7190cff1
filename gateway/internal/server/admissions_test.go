package server

import (
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-go/weir/policy"
)

// An operation that comes back is background from the request on that its route
// says, at this gateway and at whatever is behind it; who is not trusted is told
// nothing of, and believed nothing.
func TestOperationsThatComeBackAreDemoted(t *testing.T) {
	up := upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Seen", r.Header.Get("X-Admissions")+" "+r.Header.Get("X-Priority"))
	})
	cfg := baseConfig(t, up.URL)
	cfg.Identity = policy.IdentitySpec{Priority: "header:X-Priority", Admissions: "header:X-Admissions"}
	cfg.Routes[0].DemoteAfter = 3
	g := start(t, cfg, Options{})
	seen := func(g *running) string {
		var all []string
		for n := range 5 {
			req, err := http.NewRequest(http.MethodGet, g.url, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Header = http.Header{"X-Admissions": {strconv.Itoa(n)}, "X-Priority": {"high"}}
			res, _ := do(t, req)
			all = append(all, res.Header.Get("X-Seen"))
		}
		return strings.Join(all, ", ")
	}
	if got, want := seen(g), "1 high, 2 high, 3 high, 4 background, 5 background"; got != want {
		t.Errorf("the upstream saw %s, want %s", got, want)
	}
	if n := g.Policy().Demoted(); n != 2 {
		t.Errorf("%d were demoted, want 2", n)
	}
	cfg.Identity.Trusted = []string{}
	if got, want := seen(start(t, cfg, Options{})), "1 normal, 1 normal, 1 normal, 1 normal, 1 normal"; got != want {
		t.Errorf("of a stranger the upstream saw %s, want %s", got, want)
	}
}

// Reads get in while all slots for writes are taken, through the whole proxy, and a
// target's own limit may have two pools too.
func TestReadsBesideWrites(t *testing.T) {
	came, next := make(chan struct{}, 100), make(chan struct{})
	up := upstreamOf(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			came <- struct{}{}
			<-next
		}
	})
	defer close(next)
	pair := func() *policy.LimitSpec {
		return &policy.LimitSpec{Controller: "probe", Limit: 8, Max: 4, Queue: policy.QueueSpec{Len: -1}, Probe: policy.ProbeSpec{ReadWrite: true}}
	}
	cfg := baseConfig(t, up.URL)
	cfg.Gates[gateName] = policy.GateSpec{Limit: pair()}
	u := cfg.Upstreams[gateName]
	u.Limit = pair()
	cfg.Upstreams[gateName] = u
	g := start(t, cfg, Options{})
	for range 4 {
		go func() {
			if res, err := http.Post(g.url, "text/plain", nil); err == nil {
				res.Body.Close()
			}
		}()
		<-came
	}
	res, err := http.Post(g.url, "text/plain", nil)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a fifth write: %d", res.StatusCode)
	}
	if res, _ := get(t, g.url); res.StatusCode != http.StatusOK {
		t.Errorf("a read beside four writes: %d", res.StatusCode)
	}
	if parts := g.Look().Gates[0].Parts; parts["write"].InFlight != 4 || parts["read"].Admitted != 1 {
		t.Errorf("%+v", parts)
	}
}
