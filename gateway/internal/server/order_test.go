package server

import (
	"encoding/json"
	"io"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/admin"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

// turnstile is an upstream that serves one request after the other, each when it is
// told to, and says who they were.
type turnstile struct {
	t      *testing.T
	url    string
	came   chan string
	next   chan struct{}
	asking sync.WaitGroup
}

func newTurnstile(t *testing.T, who func(*http.Request) string) *turnstile {
	ts := &turnstile{t: t, came: make(chan string, 100), next: make(chan struct{})}
	ts.url = upstreamOf(t, func(_ http.ResponseWriter, r *http.Request) {
		ts.came <- who(r)
		<-ts.next
	}).URL
	return ts
}

// ask sends a request from a loopback address, and returns when it waits at the
// gate, the n-th to do so.
func (ts *turnstile) ask(g *running, n int64, from, path string, header http.Header) {
	ts.t.Helper()
	ts.asking.Go(func() {
		tr := &http.Transport{DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext}
		defer tr.CloseIdleConnections()
		req, err := http.NewRequest(http.MethodGet, g.url+path, nil)
		if err != nil {
			ts.t.Error(err)
			return
		}
		maps.Copy(req.Header, header)
		res, err := tr.RoundTrip(req)
		if err != nil {
			ts.t.Error(err)
			return
		}
		defer res.Body.Close()
		if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != http.StatusOK {
			ts.t.Errorf("%s: %d, %v", path, res.StatusCode, err)
		}
	})
	eventually(ts.t, "it waits", func() bool { return g.gate().Waiting == n })
}

// order lets everybody through and returns who came when.
func (ts *turnstile) order(n int) (all []string) {
	ts.t.Helper()
	for range n {
		select {
		case who := <-ts.came:
			all = append(all, who)
		case <-time.After(time.Minute):
			ts.t.Fatalf("only %q came", all)
		}
		ts.next <- struct{}{}
	}
	ts.asking.Wait()
	return all
}

// inTurn checks that, as long as both have somebody waiting, neither a nor b is
// ahead of the other by more than one.
func inTurn(t *testing.T, order []string, a, b string) {
	t.Helper()
	left, count := map[string]int{}, map[string]int{}
	for _, who := range order {
		left[who]++
	}
	for i, who := range order {
		count[who]++
		left[who]--
		if d := count[a] - count[b]; d < -1 || d > 1 {
			t.Errorf("number %d of %q: %s and %s are not in turn", i, order, a, b)
			return
		}
		if left[a] == 0 || left[b] == 0 {
			return
		}
	}
}

// serialConfig lets one request at a time through to the upstream, with nothing
// else changed but the longest wait.
func serialConfig(t *testing.T, upstream string, id policy.IdentitySpec) *config.Config {
	cfg := baseConfig(t, upstream)
	change(cfg, func(_ *config.Upstream, l *policy.LimitSpec) {
		l.Limit, l.Queue.MaxWait = 1, policy.Duration(time.Minute)
	})
	cfg.Identity = id
	return cfg
}

// Two tenants and two priorities, through the whole proxy: the higher priority is
// served first, and within each the tenants take turns, however many one sends and
// however early.
func TestTwoTenantsTwoPriorities(t *testing.T) {
	ts := newTurnstile(t, func(r *http.Request) string { return r.Header.Get("X-Priority") + " " + r.Header.Get("X-Tenant") })
	g := start(t, serialConfig(t, ts.url, policy.IdentitySpec{Tenant: "header:X-Tenant", Priority: "header:X-Priority"}), Options{})
	ts.ask(g, 0, "127.0.0.1", "/", nil)
	eventually(t, "the slot is taken", func() bool { return g.gate().InFlight == 1 })
	var waiting int64
	send := func(n int, priority, tenant string) {
		for range n {
			waiting++
			ts.ask(g, waiting, "127.0.0.1", "/", http.Header{"X-Priority": {priority}, "X-Tenant": {tenant}})
		}
	}
	send(8, "normal", "busy")
	send(4, "normal", "quiet")
	send(3, "critical", "busy")
	send(3, "critical", "quiet")
	if by := g.gate().WaitingByClass; by[0] != 12 {
		t.Errorf("waiting by class: %v", by)
	}
	order := ts.order(1 + int(waiting))[1:]
	for i, who := range order {
		if strings.HasPrefix(who, "critical") != (i < 6) {
			t.Errorf("number %d of %q is out of its class", i, order)
		}
	}
	inTurn(t, order[:6], "critical busy", "critical quiet")
	inTurn(t, order[6:], "normal busy", "normal quiet")
	g.idle()
}

// The default limiter is strict between priorities too: as long as anything
// critical waits, nothing else leaves the room.
func TestDefaultLimiterIsStrict(t *testing.T) {
	ts := newTurnstile(t, func(r *http.Request) string { return r.Header.Get("X-Priority") })
	cfg, err := config.ForUpstream(ts.url, "127.0.0.1:0", 0)
	if err != nil {
		t.Fatal(err)
	}
	change(cfg, func(_ *config.Upstream, l *policy.LimitSpec) { l.Queue.MaxWait = policy.Duration(time.Minute) })
	cfg.Admin.Address, cfg.Shutdown.LameDuck = config.Off, 0
	cfg.Identity = policy.IdentitySpec{Tenant: "header:X-Tenant", Priority: "header:X-Priority"}
	g := start(t, cfg, Options{})
	sent := int64(0)
	send := func(priority string) {
		sent++
		ts.ask(g, max(0, sent-g.gate().Limit), "127.0.0.1", "/", http.Header{"X-Priority": {priority}})
		eventually(t, "it is in the gate", func() bool { s := g.gate(); return s.InFlight+s.Waiting == sent })
	}
	for g.gate().Waiting < 6 {
		send("normal")
	}
	send("critical")
	send("critical")
	for range sent {
		<-ts.came
		ts.next <- struct{}{}
		if by := g.gate().WaitingByClass; by[weir.Normal] < 6 && by[weir.Critical] > 0 {
			t.Errorf("normal work left the room before critical work: %v", by)
		}
	}
	ts.asking.Wait()
	g.idle()
}

// A client that nobody vouches for gains nothing by inventing tenants: it is one
// address.
func TestInventedTenantsGainNothing(t *testing.T) {
	ts := newTurnstile(t, func(r *http.Request) string {
		host, _, _ := strings.Cut(r.Header.Get("X-Forwarded-For"), ",")
		return host
	})
	cfg := serialConfig(t, ts.url, policy.IdentitySpec{Tenant: "path:tenant", Trusted: []string{"10.0.0.0/8"}})
	cfg.Routes[0].Match = []string{"/{tenant}"}
	cfg.Routes[0].Name = gateName
	g := start(t, cfg, Options{})
	ts.ask(g, 0, "127.0.0.1", "/first", nil)
	eventually(t, "the slot is taken", func() bool { return g.gate().InFlight == 1 })
	for i := range 9 {
		ts.ask(g, int64(i+1), "127.0.0.2", "/invented"+string(rune('a'+i)), nil)
	}
	for i := range 4 {
		ts.ask(g, int64(i+10), "127.0.0.3", "/honest", nil)
	}
	order := ts.order(14)[1:]
	inTurn(t, order, "127.0.0.2", "127.0.0.3")
	g.idle()
}

// Weights are taken up by a reload while everybody waits.
func TestWeightsAreReloaded(t *testing.T) {
	ts := newTurnstile(t, func(r *http.Request) string { return r.Header.Get("X-Tenant") })
	id := policy.IdentitySpec{Tenant: "header:X-Tenant"}
	heavy := serialConfig(t, ts.url, id)
	change(heavy, func(_ *config.Upstream, l *policy.LimitSpec) {
		l.Queue.Weights.Tenants = map[string]float64{"heavy": 3}
	})
	g := start(t, serialConfig(t, ts.url, id), Options{Load: func() (*config.Config, error) { return heavy, nil }})
	ts.ask(g, 0, "127.0.0.1", "/", nil)
	eventually(t, "the slot is taken", func() bool { return g.gate().InFlight == 1 })
	for i, tenant := range strings.Fields("light light light light heavy heavy heavy heavy heavy heavy") {
		ts.ask(g, int64(i+1), "127.0.0.1", "/", http.Header{"X-Tenant": {tenant}})
	}
	heavy.Listeners = []config.Listener{config.DefaultListener(g.Addr().String())}
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	order := ts.order(11)[1:]
	n := 0
	for _, who := range order[:8] {
		if who == "heavy" {
			n++
		}
	}
	if n < 5 || n > 6 { // three of four, but for where the round begins
		t.Errorf("the weight of 3 got %d of the first 8: %q", n, order)
	}
	g.idle()
}

// Exempt requests pass while the gate is full, and are counted apart.
func TestExemptRoute(t *testing.T) {
	ts := newTurnstile(t, func(r *http.Request) string { return r.URL.Path })
	cfg := serialConfig(t, ts.url, policy.IdentitySpec{})
	health := cfg.Routes[0]
	health.Match, health.Exempt = []string{"/healthz"}, true
	cfg.Routes = append(cfg.Routes, health)
	g := start(t, cfg, Options{})
	ts.ask(g, 0, "127.0.0.1", "/", nil)
	first := <-ts.came // and not only admitted: the next may overtake it on the way
	ts.ask(g, 1, "127.0.0.1", "/", nil)
	ts.ask(g, 1, "127.0.0.1", "/healthz", nil)
	if second := <-ts.came; first != "/" || second != "/healthz" {
		t.Errorf("%s, then %s reached the upstream", first, second)
	}
	if s := g.gate(); s.Exempt != 1 || s.InFlight != 1 || s.Waiting != 1 {
		t.Errorf("%+v", s)
	}
	ts.next <- struct{}{}
	ts.next <- struct{}{}
	ts.order(1)
	g.idle()
}

// One database that is busy leaves the others alone, behind a gate that sheds; what
// holds is to be seen.
func TestPoolsByKey(t *testing.T) {
	ts := newTurnstile(t, func(r *http.Request) string { return r.URL.Path })
	cfg := baseConfig(t, ts.url)
	cfg.Identity = policy.IdentitySpec{Tenant: "path:database"}
	cfg.Metrics.Tenants = 5
	limit := &policy.LimitSpec{Limit: 1, Queue: policy.QueueSpec{MaxWait: policy.Duration(time.Minute)}}
	cfg.Gates = map[string]policy.GateSpec{
		gateName: {Limit: limit, Each: &policy.EachSpec{}},
		"all":    {Limit: &policy.LimitSpec{Limit: 100}},
		"front":  {Shed: &policy.ShedSpec{LoadOf: "all"}},
	}
	cfg.Routes[0].Match, cfg.Routes[0].Gates = []string{"/{database}"}, []string{"front", "all", gateName}
	g := start(t, cfg, Options{})
	ts.ask(g, 0, "127.0.0.1", "/busy", nil)
	first := <-ts.came // and not only admitted: the next may overtake it on the way
	ts.ask(g, 1, "127.0.0.1", "/busy", nil)
	ts.ask(g, 2, "127.0.0.1", "/busy", nil)
	ts.ask(g, 2, "127.0.0.1", "/quiet", nil)
	if second := <-ts.came; first != "/busy" || second != "/quiet" {
		t.Errorf("%s, then %s reached the upstream", first, second)
	}
	text, err := json.Marshal(g.metrics.Status())
	if err != nil || !strings.Contains(string(text), `"keys":{"known":2,"max":65536,"busy":2,"evicted":0,"bytes":`) ||
		!strings.Contains(string(text), `"top":[{"key":"busy","limit":1,"in_flight":1,"waiting":2,`) {
		t.Errorf("%s, %v", text, err)
	}
	ts.next <- struct{}{}
	ts.next <- struct{}{}
	ts.order(2)
	g.idle()
	top := func() []admin.TenantUse { return g.metrics.Status().Tenants }
	eventually(t, "the tenants have been counted", func() bool { return len(top()) == 3 && top()[0].Served == 3 })
	if top := top(); top[0].Tenant != "busy" || top[1].Tenant != "quiet" || top[1].Served != 1 || top[2].Tenant != admin.Rest || top[0].Seconds <= 0 {
		t.Errorf("%+v", top)
	}
}

// An operation that comes back is background from the request on that its route
// says, at this gateway and at whatever is behind it. Who is not trusted is told
// nothing of it, and its own claims do not count.
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
	if parts := g.metrics.Status().Gates[0].Parts; parts["write"].InFlight != 4 || parts["read"].Admitted != 1 {
		t.Errorf("%+v", parts)
	}
}
