package server

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir/gateway/internal/accept"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

// dialFrom opens a connection from an address of its own in the loopback network.
func dialFrom(from byte, to net.Addr) (net.Conn, error) {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, from)}, Timeout: time.Minute}
	c, err := d.Dial("tcp", to.String())
	if err == nil {
		err = c.SetDeadline(time.Now().Add(time.Minute))
	}
	return c, err
}

// strict is a configuration in which no address is exempt.
func strict(t *testing.T, c config.Connections) *config.Config {
	t.Helper()
	cfg := baseConfig(t, upstreamOf(t, func(http.ResponseWriter, *http.Request) {}).URL)
	c.Addresses, c.Exempt = 1000, []string{}
	cfg.Listeners[0].Connections = c
	return cfg
}

func (g *running) connections() accept.Snapshot { return g.Connections()[0] }

const plainGet = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"

// askFrom sends a request from an address, and returns the answer and the connection.
func askFrom(t *testing.T, from byte, to net.Addr) (*http.Response, net.Conn) {
	t.Helper()
	c, err := dialFrom(from, to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := io.WriteString(c, plainGet); err != nil {
		t.Fatal(err)
	}
	return answer(t, c), c
}

// One address takes so many connections and no more, idle ones included; others are
// not touched by it.
func TestConnectionsOfOneAddress(t *testing.T) {
	g := start(t, strict(t, config.Connections{PerAddress: 2}), Options{})
	var held []net.Conn
	for range 2 {
		res, c := askFrom(t, 2, g.Addr())
		if res.StatusCode != http.StatusOK {
			t.Fatalf("within the limit: %s", res.Status)
		}
		held = append(held, c) // kept alive, idle
	}
	res, _ := askFrom(t, 2, g.Addr())
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" || !res.Close ||
		!strings.Contains(string(body), `"rule":"connections.per_address"`) {
		t.Errorf("one too many: %s, %v, %s", res.Status, res.Header, body)
	}
	if res, _ := askFrom(t, 3, g.Addr()); res.StatusCode != http.StatusOK {
		t.Errorf("from another address: %s", res.Status)
	}
	if c := g.connections(); c.InFlight != 3 || c.Refused["connections.per_address"] != 1 || c.Addresses != 2 || c.PerAddress != 2 {
		t.Errorf("%+v", c)
	}
	if log := g.log.String(); !strings.Contains(log, `gate="listener 127.0.0.1:0" reason=limit value=2 limit=2 retry_after=1s rule=connections.per_address peer=127.0.0.2:`) {
		t.Errorf("the log does not say who was refused, and why:\n%s", log)
	}
	_ = held[0].Close()
	eventually(t, "one has gone", func() bool { return g.connections().InFlight == 2 })
	if res, _ := askFrom(t, 2, g.Addr()); res.StatusCode != http.StatusOK {
		t.Errorf("with a place free again: %s", res.Status)
	}
	if m := g.scrape(); !strings.Contains(m, `weir_connections_refused_total{listener="127.0.0.1:0",rule="connections.per_address"} 1`) {
		t.Error("the metrics do not name the rule")
	}
}

// Without a setting nobody takes more than half, but those through whom many come.
func TestConnectionsByDefault(t *testing.T) {
	cfg := strict(t, config.Connections{})
	cfg.Listeners[0].MaxConnections = 5
	for name, tt := range map[string]struct {
		exempt []string
		trust  []string
		want   int64
	}{
		"strangers":       {[]string{}, nil, 2},
		"trusted proxies": {nil, nil, 5},
		"nobody trusted":  {nil, []string{}, 2},
		"load balancers":  {[]string{"127.0.0.2/32"}, []string{}, 5},
	} {
		cfg := cloneListeners(cfg)
		cfg.Listeners[0].Connections.Exempt = tt.exempt
		cfg.Identity.Trusted = tt.trust
		g := start(t, cfg, Options{})
		for range 6 {
			askFrom(t, 2, g.Addr())
		}
		if n := g.connections().InFlight; n != tt.want {
			t.Errorf("%s: %d connections, want %d", name, n, tt.want)
		}
	}
}

// cloneListeners copies a configuration and its listeners.
func cloneListeners(cfg *config.Config) *config.Config {
	c := *cfg
	c.Listeners = append([]config.Listener(nil), cfg.Listeners...)
	return &c
}

// So many new connections come in a moment, in all and from one address; 429 tells when
// the next may.
func TestConnectionRate(t *testing.T) {
	for _, tt := range []struct {
		c    config.Connections
		rule string
		in   [2]int // of two addresses, of three tries each
	}{
		{config.Connections{Rate: 0.001}, "connections.rate", [2]int{1, 0}},
		{config.Connections{RatePerAddress: 0.001}, "connections.rate_per_address", [2]int{1, 1}},
		{config.Connections{RatePerAddress: 0.001, PerAddress: -1}, "connections.rate_per_address", [2]int{1, 1}},
	} {
		g := start(t, strict(t, tt.c), Options{})
		for i, want := range tt.in {
			got := 0
			for range 3 {
				res, c := askFrom(t, byte(2+i), g.Addr())
				_ = c.Close() // which brings nothing back
				if res.StatusCode == http.StatusOK {
					got++
				} else if res.StatusCode != http.StatusTooManyRequests || res.Header.Get("Retry-After") != "1000" {
					t.Errorf("%s: %s, after %s; want 429 after 1000", tt.rule, res.Status, res.Header.Get("Retry-After"))
				}
			}
			if got != want {
				t.Errorf("%s: %d of address %d, want %d", tt.rule, got, i, want)
			}
		}
		if n := g.connections().Refused[tt.rule]; n != uint64(6-tt.in[0]-tt.in[1]) {
			t.Errorf("%s: %d refused", tt.rule, n)
		}
	}
}

// Under TLS a place is held from before the handshake, and who finds none is reset before
// a handshake begins.
func TestConnectionsBeforeTLS(t *testing.T) {
	cfg := strict(t, config.Connections{PerAddress: 1})
	cert, key := certificate(t)
	cfg.Listeners[0].TLS = &config.TLS{Cert: cert, Key: key}
	g := start(t, cfg, Options{})
	silent, err := dialFrom(2, g.Addr()) // never says hello
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	eventually(t, "it has its place", func() bool { return g.connections().InFlight == 1 })
	c, err := dialFrom(2, g.Addr())
	if err == nil {
		defer c.Close()
		_, err = c.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("one too many: %v, want a reset", err)
	}
	_ = silent.Close()
	eventually(t, "its place is free", func() bool { return g.connections().InFlight == 0 })
	c, err = dialFrom(2, g.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := tls.Client(c, &tls.Config{InsecureSkipVerify: true}).Handshake(); err != nil {
		t.Errorf("in its place: %v", err)
	}
}

// A reload changes the limits of connections that last.
func TestConnectionLimitsReloaded(t *testing.T) {
	cfg := strict(t, config.Connections{PerAddress: 2})
	next := cfg
	g := start(t, cfg, Options{Load: func() (*config.Config, error) { return next, nil }})
	status := func(want int, what string) net.Conn {
		t.Helper()
		res, c := askFrom(t, 2, g.Addr())
		if res.StatusCode != want {
			t.Errorf("%s: %s, want %d", what, res.Status, want)
		}
		return c
	}
	first := status(200, "at first")
	status(200, "at first")
	status(503, "beyond the limit")
	listener := g.listeners[0]

	reload := func(change func(*config.Listener)) {
		t.Helper()
		next = cloneListeners(next)
		change(&next.Listeners[0])
		if err := g.Reload(); err != nil {
			t.Fatal(err)
		}
	}
	reload(func(l *config.Listener) { l.Connections.PerAddress = 3 })
	status(200, "with a higher limit")
	status(503, "beyond it")
	reload(func(l *config.Listener) { l.Connections.PerAddress = 1 })
	status(503, "with a lower limit")
	if g.listeners[0] != listener {
		t.Error("the listener was replaced for a limit")
	}
	if _, err := io.WriteString(first, plainGet); err != nil {
		t.Fatal(err)
	}
	if res := answer(t, first); res.StatusCode != 200 || res.Close {
		t.Errorf("on a connection from before: %s, close %t", res.Status, res.Close)
	}
	// A listener that is replaced hands its account on.
	reload(func(l *config.Listener) { l.MaxHeaderBytes++ })
	if g.listeners[0] == listener {
		t.Error("the listener was not replaced for another setting")
	}
	if c := g.connections(); c.InFlight != 3 || c.Refused["connections.per_address"] != 3 {
		t.Errorf("after a replacement: %+v", c)
	}
	status(503, "with those of the old listener")
	reload(func(l *config.Listener) { l.MaxConnections, l.Connections.PerAddress = 3, -1 })
	status(503, "beyond the limit of all")
	if n := g.connections().Refused["max_connections"]; n != 1 {
		t.Errorf("%d refused by the limit of all, want 1", n)
	}
}

// Limits that only observe let everybody in, count and tell; a reload makes them hold, or
// ends them.
func TestConnectionsObserved(t *testing.T) {
	cfg := strict(t, config.Connections{PerAddress: 1, Mode: policy.Observe})
	cfg.Listeners[0].MaxConnections = 3
	next := cfg
	g := start(t, cfg, Options{Load: func() (*config.Config, error) { return next, nil }})
	status := func(want int, what string) net.Conn {
		t.Helper()
		res, c := askFrom(t, 2, g.Addr())
		if res.StatusCode != want {
			t.Errorf("%s: %s, want %d", what, res.Status, want)
		}
		return c
	}
	status(200, "within the limit")
	status(200, "beyond it")
	last := status(200, "beyond it")
	status(503, "beyond that of all at once")
	c := g.connections()
	if c.InFlight != 3 || c.Mode != "observe" || c.Observed["connections.per_address"] != 2 || c.Refused["connections.per_address"] != 0 || c.Refused["max_connections"] != 1 {
		t.Errorf("%+v", c)
	}
	if log := g.log.String(); strings.Count(log, `msg="would refuse (gate in observe mode)" gate="listener 127.0.0.1:0" reason=limit`) != 1 || !strings.Contains(log, "rule=connections.per_address peer=127.0.0.2:") {
		t.Errorf("the log does not say what would be refused:\n%s", log)
	}
	m := g.scrape()
	for _, want := range []string{
		`weir_connections_observed_total{listener="127.0.0.1:0",rule="connections.per_address"} 2`,
		`weir_connections_observed_total{listener="127.0.0.1:0",rule="connections.rate"} 0`,
		`weir_connections_mode{listener="127.0.0.1:0",mode="observe"} 1`, `weir_connections_mode{listener="127.0.0.1:0",mode="enforce"} 0`,
	} {
		if !strings.Contains(m, want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
	for mode, want := range map[policy.Mode]int{policy.Enforce: 503, policy.Off: 200} {
		_ = last.Close()
		eventually(t, "a place is free", func() bool { return g.connections().InFlight < 3 })
		next = cloneListeners(next)
		next.Listeners[0].Connections.Mode = mode
		if err := g.Reload(); err != nil {
			t.Fatal(err)
		}
		if got := g.connections().Mode; got != string(mode) {
			t.Errorf("mode %s after the reload, want %s", got, mode)
		}
		last = status(want, string(mode))
	}
}

// Thousands come at once from many addresses, and leave: no place is lost, no limit
// passed, and in the end nobody is known.
func TestCrowds(t *testing.T) {
	const addresses, each, per, most = 20, 100, 30, 400
	cfg := strict(t, config.Connections{PerAddress: per})
	cfg.Listeners[0].MaxConnections = most
	cfg.Listeners[0].Address = "127.0.9.1:0"                                      // where no other test dials what it takes for a closed port
	change(cfg, func(_ *config.Upstream, l *policy.LimitSpec) { l.Limit = most }) // the gate is not what is tested
	g := start(t, cfg, Options{})
	var in atomic.Int64
	var all, heard sync.WaitGroup
	release := make(chan struct{})
	heard.Add(addresses * each)
	for i := range addresses {
		for range each {
			all.Go(func() {
				tell := sync.OnceFunc(heard.Done)
				defer tell()
				c, err := dialFrom(byte(2+i), g.Addr())
				if err != nil {
					return
				}
				defer c.Close()
				if _, err := io.WriteString(c, plainGet); err != nil {
					return
				}
				buf := make([]byte, 64)
				n, _ := c.Read(buf)
				if !strings.HasPrefix(string(buf[:n]), "HTTP/1.1 200") {
					return
				}
				in.Add(1)
				tell()
				<-release
			})
		}
	}
	heard.Wait()
	c := g.connections()
	if c.InFlight != most || c.Admitted != most+c.Evicted || in.Load() < most {
		t.Errorf("%d were answered, %+v; want %d in", in.Load(), c, most)
	}
	var refused uint64
	for _, n := range c.Refused {
		refused += n
	}
	if refused+c.Admitted != addresses*each {
		t.Errorf("%d refused and %d taken of %d: %v", refused, c.Admitted, addresses*each, c.Refused)
	}
	close(release)
	all.Wait()
	eventually(t, "all have left", func() bool { return g.connections().InFlight == 0 })
	for i := range 2 * addresses { // each newcomer makes room for two
		askFrom(t, byte(100+i), g.Addr())
	}
	if n := g.connections().Addresses; n > 2*addresses {
		t.Errorf("%d addresses are known in the end", n)
	}
}

// In a full listener idle connections make room for addresses that have fewer, until all
// have the same; busy ones do not.
func TestIdleConnectionsMakeRoom(t *testing.T) {
	const most = 10
	release := make(chan struct{})
	busy := upstreamOf(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/busy" {
			<-release
		}
	})
	defer close(release)
	cfg := baseConfig(t, busy.URL)
	change(cfg, func(_ *config.Upstream, l *policy.LimitSpec) { l.Limit = 2 * most })
	cfg.Listeners[0].MaxConnections = most
	cfg.Listeners[0].Connections = config.Connections{PerAddress: most, Addresses: 100, Exempt: []string{}}
	g := start(t, cfg, Options{})
	idle := func(n int) {
		t.Helper()
		eventually(t, "as many are idle", func() bool { return g.connections().InFlight == int64(n) && g.listeners[0].conns.AtRest() })
	}
	for range most {
		askFrom(t, 2, g.Addr())
	}
	idle(most)
	got := 0
	for range most {
		if res, _ := askFrom(t, 3, g.Addr()); res.StatusCode == http.StatusOK {
			got++
			idle(most)
		}
	}
	if c := g.connections(); got != most/2 || c.Evicted != most/2 || c.InFlight != most || c.Refused["max_connections"] != most/2 {
		t.Errorf("%d got in, %+v; want half", got, c)
	}
	if res, _ := askFrom(t, 4, g.Addr()); res.StatusCode != http.StatusOK {
		t.Errorf("a third: %s", res.Status)
	}
	idle(most)

	next := start(t, cfg, Options{})
	for range most {
		c, err := dialFrom(2, next.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "GET /busy HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all are busy", func() bool { return next.InFlight() == most })
	if res, _ := askFrom(t, 3, next.Addr()); res.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("where all are busy: %s", res.Status)
	}
}

// Clients of the admin listener that keep their connections lock nobody out.
func TestAdminConnectionsEnd(t *testing.T) {
	cfg := baseConfig(t, "http://127.0.0.1:1")
	cfg.Admin.Address = "127.0.0.1:0"
	g := start(t, cfg, Options{})
	for i := range g.admin.cfg.MaxConnections + 1 {
		res, c := askFrom(t, 1, g.AdminAddr()) // which is kept open here
		if res.StatusCode == http.StatusServiceUnavailable || !res.Close {
			t.Fatalf("connection %d: %s, ends with the answer: %t", i+1, res.Status, res.Close)
		}
		if _, err := io.Copy(io.Discard, c); err != nil { // until the gateway ends it
			t.Fatal(err)
		}
	}
}

// Of more addresses than are known, those beyond are one; who was there before is not
// touched.
func TestFloodOfAddresses(t *testing.T) {
	cfg := strict(t, config.Connections{PerAddress: 2})
	cfg.Listeners[0].Connections.Addresses = 4
	g := start(t, cfg, Options{})
	got := map[int]int{}
	for i := range 20 {
		res, _ := askFrom(t, byte(2+i), g.Addr())
		got[res.StatusCode]++
	}
	if c := g.connections(); got[200] != 6 || c.Addresses != 4 || c.Crowd != 2 || c.Refused["connections.addresses"] != 14 {
		t.Errorf("%v, %+v; want four of their own and two of the crowd", got, c)
	}
	if res, _ := askFrom(t, 2, g.Addr()); res.StatusCode != 200 {
		t.Errorf("one that is known: %s", res.Status)
	}
	if m := g.scrape(); !strings.Contains(m, `weir_connections_crowd{listener="127.0.0.1:0"} 2`) {
		t.Error("the metrics do not show the crowd")
	}
}

// A flood of refusals is told in few lines, and takes nobody's place.
func TestRefusedConnectionsAreCheap(t *testing.T) {
	cfg := strict(t, config.Connections{PerAddress: 1})
	g := start(t, cfg, Options{})
	res, _ := askFrom(t, 2, g.Addr())
	if res.StatusCode != 200 {
		t.Fatal(res.Status)
	}
	var all sync.WaitGroup
	for range 500 {
		all.Go(func() {
			c, err := dialFrom(2, g.Addr())
			if err != nil {
				return // reset before it was there
			}
			_, _ = io.Copy(io.Discard, c)
			_ = c.Close()
		})
	}
	all.Wait()
	eventually(t, "all were refused", func() bool { return g.connections().Refused["connections.per_address"] == 500 })
	if n := strings.Count(g.log.String(), "connections.per_address"); n > 3 {
		t.Errorf("%d lines in the log", n)
	}
	if c := g.connections(); c.InFlight != 1 || c.Addresses != 1 {
		t.Errorf("%+v", c)
	}
}

// A few connections with many requests each do not fill the memory.
func TestRequestsInProgressAreBounded(t *testing.T) {
	release := make(chan struct{})
	var asked atomic.Int64
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {
		if asked.Add(1) > 1 {
			<-release
		}
	})
	cfg := baseConfig(t, up.URL)
	cfg.Listeners[0].H2C = true
	cfg.Listeners[0].MaxConnections = 1
	const most = 1000 // however few connections there may be
	cfg.Listeners[0].MaxConcurrentStreams = 2 * most
	change(cfg, func(_ *config.Upstream, l *policy.LimitSpec) {
		l.Limit = 2 * most // on a slow machine a queue of so many would stand, and be cut
	})
	g := start(t, cfg, Options{})
	free := sync.OnceFunc(func() { close(release) })
	t.Cleanup(free)
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetUnencryptedHTTP2(true)
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr}
	var group sync.WaitGroup
	ask := func(want int) {
		res, err := client.Get(g.url)
		if err != nil {
			t.Error(err)
			return
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s, want %d", res.Status, want)
		}
	}
	// The first opens the connection. The client has read the settings of the server before the
	// answer. Until then it expects room for 100 streams only, and would open more connections.
	ask(http.StatusOK)
	eventually(t, "the first has ended", func() bool { return g.inFlight.Load() == 0 })
	for range most {
		group.Go(func() { ask(http.StatusOK) })
	}
	eventually(t, "all are in", func() bool { return g.inFlight.Load() == most })

	res, err := client.Get(g.url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" ||
		res.Header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("one too many: %s, %v", res.Status, res.Header)
	}
	if !strings.Contains(g.log.String(), "rule=max_connections") {
		t.Error("the log does not say why")
	}
	if !strings.Contains(g.scrape(), "\nweir_http_crowded_total 1\n") {
		t.Error("no metric counts it")
	}
	free()
	group.Wait()
	ask(http.StatusOK)
	g.idle()
}

// Bodies of requests that wait do not use up a connection's window: another request on it is served.
func TestBodiesThatWaitHoldUpNobody(t *testing.T) {
	const waiting = 8
	release := make(chan struct{})
	var working atomic.Int32
	up := upstreamOf(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/" {
			working.Add(1)
			<-release
		}
		_, _ = io.Copy(io.Discard, r.Body)
	})
	cfg := baseConfig(t, up.URL)
	cfg.Listeners[0].H2C, cfg.Listeners[0].MaxConcurrentStreams = true, 2*waiting // the client counts one that has just ended for a while
	cfg.Listeners[0].ReadTimeout = policy.Duration(time.Hour)
	cfg.Gates["other"] = policy.GateSpec{Limit: &policy.LimitSpec{Limit: 1}}
	cfg.Routes = append(cfg.Routes, config.Route{RouteSpec: policy.RouteSpec{Match: []string{"/other"}, Gates: []string{"other"}}, Upstream: gateName})
	change(cfg, func(_ *config.Upstream, l *policy.LimitSpec) { l.Limit = 1 })
	g := start(t, cfg, Options{})
	free := sync.OnceFunc(func() { close(release) })
	t.Cleanup(free)
	var conns atomic.Int32
	tr := &http.Transport{Protocols: new(http.Protocols), DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		conns.Add(1)
		return new(net.Dialer).DialContext(ctx, network, address)
	}}
	tr.Protocols.SetUnencryptedHTTP2(true)
	defer tr.CloseIdleConnections()
	var all sync.WaitGroup
	post := func(path string, body io.Reader) {
		res, err := (&http.Client{Transport: tr}).Post(g.url+path, "text/plain", body)
		if err != nil {
			t.Error(err)
			return
		}
		res.Body.Close()
		if res.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", path, res.Status)
		}
	}
	post("/other", nil) // the client knows the server's settings now
	all.Go(func() { post("/", nil) })
	eventually(t, "one works", func() bool { return working.Load() == 1 })
	for i := range waiting {
		body := &sentBody{left: 1 << 20}
		all.Go(func() { post("/", body) })
		eventually(t, "it waits, with as much sent as a stream may", func() bool {
			return int(g.gate().Waiting) == i+1 && body.sent.Load() >= unreadBody
		})
	}
	post("/other", strings.NewReader("small"))
	if n := working.Load(); n != 1 {
		t.Errorf("%d at the upstream beyond a limit of 1", n)
	}
	free()
	all.Wait()
	if n := conns.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
	g.idle()
}

// sentBody is a body that counts what has been sent before the last read.
type sentBody struct {
	left int
	sent atomic.Int64
	last int
}

func (b *sentBody) Read(p []byte) (int, error) {
	b.sent.Add(int64(b.last))
	if b.last = min(len(p), b.left); b.last == 0 {
		return 0, io.EOF
	}
	b.left -= b.last
	return b.last, nil
}
