package server

import (
	"errors"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

// crowd sends requests from several clients until stopped, and counts what is
// not a plain success.
type crowd struct {
	stopped chan struct{}
	all     sync.WaitGroup
	ok      atomic.Int64
	bad     atomic.Int64
	last    atomic.Value // of string: what went wrong last
}

// send starts n clients, each with connections of its own kind. accept says
// which failures are fine.
func send(url string, n int, accept func(status int, err error) bool) *crowd {
	c := &crowd{stopped: make(chan struct{})}
	for i := range n {
		c.all.Go(func() {
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: i%2 == 0}}
			defer client.CloseIdleConnections()
			for {
				select {
				case <-c.stopped:
					return
				default:
				}
				status := 0
				req, err := http.NewRequest(http.MethodPost, url, strings.NewReader("x"))
				if err != nil {
					panic(err) // it is a fault of the test
				}
				if accept != nil {
					// Where connections are closed, the client tries again if an idle one was closed
					// as the request was on its way. It does not if the connection was new.
					req.Header["Idempotency-Key"] = nil
				}
				res, err := client.Do(req)
				if err == nil {
					status = res.StatusCode
					res.Body.Close()
				}
				switch {
				case status == http.StatusOK:
					c.ok.Add(1)
				case accept == nil || !accept(status, err):
					c.bad.Add(1)
					if err != nil {
						c.last.Store(err.Error())
					} else {
						c.last.Store(res.Status)
					}
				}
				if err != nil {
					await.Work(time.Millisecond) // nobody listens: do not spin
				}
			}
		})
	}
	return c
}

func (c *crowd) stop(t *testing.T) {
	t.Helper()
	close(c.stopped)
	c.all.Wait()
	if n := c.bad.Load(); n > 0 {
		t.Errorf("%d requests lost of %d, the last: %v", n, n+c.ok.Load(), c.last.Load())
	}
	if c.ok.Load() == 0 {
		t.Error("no request was served: nothing is shown")
	}
}

// source is a configuration that a test changes.
type source struct {
	mu  sync.Mutex
	cfg func() (*config.Config, error)
}

func (s *source) load() (*config.Config, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cfg()
}

func (s *source) set(fn func() (*config.Config, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cfg = fn
}

func TestReloadUnderLoad(t *testing.T) {
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) { await.Work(2 * time.Millisecond) })
	src := new(source)
	first := baseConfig(t, up.URL)
	first.Listeners[0].Address = closedPort(t)
	g := start(t, first, Options{Load: src.load})
	c := send(g.url, 6, nil)
	eventually(t, "load has arrived", func() bool { return c.ok.Load() > 20 })
	admitted := g.gate().Admitted

	for i := range 12 {
		next := baseConfig(t, up.URL)
		next.Listeners[0] = first.Listeners[0]
		next.Listeners[0].IdleTimeout += policy.Duration(i % 3) // a new HTTP server on the same socket
		change(next, func(u *config.Upstream, l *policy.LimitSpec) {
			l.Limit = int64(20 + i)
			u.ConnectTimeout += policy.Duration(i % 2) // a new transport
		})
		src.set(func() (*config.Config, error) { return next, nil })
		if err := g.Reload(); err != nil {
			t.Fatal(err)
		}
		before := c.ok.Load()
		eventually(t, "requests are served", func() bool { return c.ok.Load() > before+10 })
	}
	c.stop(t)
	if s := g.gate(); s.Limit != 31 || s.Admitted <= admitted {
		t.Errorf("limit %d, admitted %d then %d; the gate must live on with the new limit 31", s.Limit, admitted, s.Admitted)
	}
	g.idle()
}

func TestReloadListeners(t *testing.T) {
	t.Parallel()
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {})
	src := new(source)
	first := baseConfig(t, up.URL)
	first.Listeners = []config.Listener{config.DefaultListener(closedPort(t))}
	g := start(t, first, Options{Load: src.load})

	second := baseConfig(t, up.URL)
	second.Listeners = []config.Listener{config.DefaultListener(closedPort(t))}
	src.set(func() (*config.Config, error) { return second, nil })
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	if res, _ := get(t, "http://"+g.Addr().String()); res.StatusCode != http.StatusOK || g.Addr().String() != second.Listeners[0].Address {
		t.Errorf("the new address %s: %d", g.Addr(), res.StatusCode)
	}
	eventually(t, "the old address is closed", func() bool {
		c, err := net.Dial("tcp", first.Listeners[0].Address)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})

	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	third := baseConfig(t, up.URL)
	third.Listeners = []config.Listener{second.Listeners[0], config.DefaultListener(taken.Addr().String())}
	change(third, func(_ *config.Upstream, l *policy.LimitSpec) { l.Limit = 99 })
	src.set(func() (*config.Config, error) { return third, nil })
	if err := g.Reload(); err == nil || !strings.Contains(err.Error(), "another process uses that port") {
		t.Errorf("an address in use: %v", err)
	}
	if res, _ := get(t, "http://"+g.Addr().String()); res.StatusCode != http.StatusOK || g.gate().Limit != 10 {
		t.Errorf("after a reload that failed: status %d, limit %d; nothing may have changed", res.StatusCode, g.gate().Limit)
	}
}

// An address that was removed a moment ago can be listened on again at once.
func TestReloadTakesAddressBack(t *testing.T) {
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {})
	src := new(source)
	first := baseConfig(t, up.URL)
	g := start(t, first, Options{Load: src.load})
	other, admin := closedPort(t), closedPort(t) // when it has its own
	listen := func(addresses ...string) *config.Config {
		cfg := baseConfig(t, up.URL)
		cfg.Listeners = []config.Listener{first.Listeners[0]}
		for _, a := range addresses {
			cfg.Listeners = append(cfg.Listeners, config.DefaultListener(a))
		}
		return cfg
	}
	reload := func(what string, cfg *config.Config) {
		t.Helper()
		src.set(func() (*config.Config, error) { return cfg, nil })
		if err := g.Reload(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	withAdmin := listen()
	withAdmin.Admin.Address = admin
	socket := "unix:" + filepath.Join(t.TempDir(), "s")
	for _, step := range []struct {
		what string
		cfg  *config.Config
	}{
		{"an address", listen(other)}, {"none", listen()}, {"the same again", listen(other)},
		{"none", listen()}, {"its port at all addresses", listen("0.0.0.0" + other[strings.LastIndex(other, ":"):])},
		{"a socket", listen(socket)}, {"none", listen()}, {"the same socket", listen(socket)},
		{"the admin's", withAdmin}, {"none", listen()}, {"the admin's again", withAdmin},
	} {
		reload(step.what, step.cfg)
	}
}

// An address that is written in another way is the same, also the admin's. One that takes more of the same port cannot be
// opened while the old one serves; no other process is to blame.
func TestReloadOwnPort(t *testing.T) {
	src := new(source)
	first := baseConfig(t, "http://127.0.0.1:1")
	first.Listeners[0].Address, first.Admin.Address = closedPort(t), closedPort(t)
	s, _ := idleServer(t, first, Options{Load: src.load})
	f := func(listen, admin, want string) {
		t.Helper()
		next := baseConfig(t, "http://127.0.0.1:1")
		next.Listeners[0].Address, next.Admin.Address = listen, admin
		src.set(func() (*config.Config, error) { return next, nil })
		if err := s.Reload(); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("listen on %s, admin on %s: %v, want %q", listen, admin, err, want)
		}
	}
	port := func(address string) string { return strings.TrimPrefix(address, "127.0.0.1:") }
	listen, admin := first.Listeners[0].Address, first.Admin.Address
	f("localhost:"+port(listen), "localhost:"+port(admin), "")
	f("0.0.0.0:"+port(listen), admin, "this gateway listens on "+listen+" until the reload is over; restart it, or choose another port")
	f(listen, ":"+port(admin), "this gateway listens on "+admin)
	f(admin, "off", "this gateway listens on "+admin)
	f(listen, "0.0.0.0:"+port(listen), "this gateway is to listen on "+listen+" too; choose another port")
	f(listen, admin, "")
}

func TestReloadBad(t *testing.T) {
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {})
	src := new(source)
	src.set(func() (*config.Config, error) { return nil, errors.New("line 3: no such field") })
	var applied *config.Config
	g := start(t, baseConfig(t, up.URL), Options{Load: src.load, Applied: func(c *config.Config) { applied = c }})
	f := func(want string, edit func(*config.Config)) {
		t.Helper()
		if edit != nil {
			bad := baseConfig(t, up.URL)
			bad.Listeners[0] = g.state.Load().cfg.Listeners[0]
			edit(bad)
			src.set(func() (*config.Config, error) { return bad, nil })
		}
		before := g.state.Load()
		if err := g.Reload(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("reload: %v, want %q", err, want)
		}
		if g.state.Load() != before || applied != nil {
			t.Errorf("%s: the state has changed", want)
		}
		if !strings.Contains(g.log.String(), want) {
			t.Errorf("the log does not say %q", want)
		}
		if res, _ := get(t, g.url); res.StatusCode != http.StatusOK {
			t.Errorf("%s: status %d afterwards", want, res.StatusCode)
		}
	}
	f("no such field", nil)
	f("is not defined", func(c *config.Config) { c.Routes[0].Upstream = "none" })
	f("scheme", func(c *config.Config) { c.Upstreams[gateName] = config.Upstream{Targets: []string{"ftp://x"}} })
	f("gates.upstream.limit", func(c *config.Config) { c.Gates[gateName].Limit.Limit = -1 })
	f("certificate", func(c *config.Config) { c.Listeners[0].TLS = &config.TLS{Cert: "none", Key: "none"} })

	good := baseConfig(t, up.URL)
	src.set(func() (*config.Config, error) { return good, nil })
	if err := g.Reload(); err != nil || applied != good {
		t.Errorf("a good configuration: %v, told of %p, want %p", err, applied, good)
	}

	g = start(t, baseConfig(t, up.URL), Options{})
	if err := g.Reload(); !errors.Is(err, ErrNoReload) {
		t.Errorf("without a file: %v", err)
	}
}

// lines returns what the log says, without times and levels, of messages that
// begin with one of the given words.
func (b *logBuffer) lines(begins ...string) []string {
	var found []string
	for line := range strings.Lines(b.String()) {
		_, text, _ := strings.Cut(strings.TrimSpace(line), " msg=")
		for _, begin := range begins {
			if strings.HasPrefix(strings.Trim(text, `"`), begin) {
				found = append(found, text)
			}
		}
	}
	return found
}

// The change of a limit stands before the line of the reload that made it.
func TestReloadTellsLimits(t *testing.T) {
	src := new(source)
	g := start(t, baseConfig(t, "http://127.0.0.1:1"), Options{Load: src.load})
	next := baseConfig(t, "http://127.0.0.1:1")
	change(next, func(_ *config.Upstream, l *policy.LimitSpec) { l.Limit = 6 })
	src.set(func() (*config.Config, error) { return next, nil })
	g.events.LimitChanged(gateName, 2, 10, "room") // by itself, and not yet told
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	got := strings.Join(g.log.lines("limit changed", "configuration"), "\n")
	want := `limit changed" gate=upstream from=2 to=10 steps=1 reason=room
"limit changed" gate=upstream from=10 to=6 steps=1 reason=configured
"configuration reloaded" `
	if !strings.Contains(got, want) {
		t.Errorf("log:\n%s\nwant:\n%s", got, want)
	}
}

// What else a reload has changed stands in its line: a quota has no limit that a hook hears of.
func TestReloadTellsChanges(t *testing.T) {
	src := new(source)
	withRate := func(rate string) *config.Config {
		cfg := baseConfig(t, "http://127.0.0.1:1")
		cfg.Gates["plan"] = policy.GateSpec{Quota: &policy.QuotaSpec{QuotaLimitSpec: policy.QuotaLimitSpec{Rate: rate}}}
		return cfg
	}
	g := start(t, withRate("10/s"), Options{Load: src.load})
	for _, want := range []string{`changes="[gates.plan.quota.rate: 20/s (was 10/s)]"`, "changes=[]"} {
		src.set(func() (*config.Config, error) { return withRate("20/s"), nil })
		if err := g.Reload(); err != nil {
			t.Fatal(err)
		}
		if last := g.log.lines("configuration reloaded"); len(last) == 0 || !strings.Contains(last[len(last)-1], want) {
			t.Errorf("the log has %q, want %s", last, want)
		}
	}
}

// idleServer is a server with a log that is never run.
func idleServer(t *testing.T, cfg *config.Config, opts Options) (*Server, *logBuffer) {
	t.Helper()
	log := new(logBuffer)
	opts.Logger = slog.New(slog.NewTextHandler(log, nil))
	s, err := New(cfg, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.discard)
	return s, log
}

// A reload that fails leaves the log as it was: a limit that moves on in small steps gets its
// line when it has doubled.
func TestFailedReloadKeepsLimitSteps(t *testing.T) {
	src := new(source)
	s, log := idleServer(t, baseConfig(t, "http://127.0.0.1:1"), Options{Load: src.load})
	next := baseConfig(t, "http://127.0.0.1:1")
	next.Routes[0].Gates = []string{"none"} // which the compiler finds, last of all
	src.set(func() (*config.Config, error) { return next, nil })
	s.events.LimitChanged(gateName, 10, 15, "room")
	if err := s.Reload(); err == nil {
		t.Fatal("a route with an unknown gate is in force")
	}
	s.events.LimitChanged(gateName, 15, 20, "room")
	s.events.Flush()
	want := []string{`"limit changed" gate=upstream from=10 to=20 steps=2 reason=room`}
	if got := log.lines("limit changed"); !slices.Equal(got, want) {
		t.Errorf("log: %q, want %q", got, want)
	}
}

// A reload that fails in the compiler, last of all, closes the listener that it has opened.
// The next reload can open it.
func TestFailedReloadClosesItsListener(t *testing.T) {
	src := new(source)
	first := baseConfig(t, "http://127.0.0.1:1")
	s, _ := idleServer(t, first, Options{Load: src.load})
	next := baseConfig(t, "http://127.0.0.1:1")
	added := next.Listeners[0]
	added.Address = closedPort(t)
	next.Listeners = append(slices.Clone(first.Listeners), added)
	next.Routes[0].Gates = []string{"none"}
	src.set(func() (*config.Config, error) { return next, nil })
	if err := s.Reload(); err == nil {
		t.Fatal("a route with an unknown gate is in force")
	}
	if c, err := net.Dial("tcp", added.Address); err == nil {
		c.Close()
		t.Error("the listener of a rejected configuration takes connections")
	}
	next.Routes[0].Gates = []string{gateName}
	if err := s.Reload(); err != nil {
		t.Fatalf("the same listener, mended: %v", err)
	}
	c, err := net.Dial("tcp", added.Address)
	if err != nil {
		t.Fatalf("the listener is not there: %v", err)
	}
	c.Close()
}

// A server of gRPC has goroutines before it serves anybody.
func TestFailedReloadEndsItsServerForEnvoy(t *testing.T) {
	src := new(source)
	first := baseConfig(t, "http://127.0.0.1:1")
	s, _ := idleServer(t, first, Options{Load: src.load})
	next := baseConfig(t, "http://127.0.0.1:1")
	added := next.Listeners[0]
	added.Address, added.Serve = closedPort(t), []string{config.ServeExtProc}
	next.Listeners = append(slices.Clone(first.Listeners), added)
	next.Routes[0].Gates = []string{"none"}
	src.set(func() (*config.Config, error) { return next, nil })
	before := runtime.NumGoroutine()
	for range 4 {
		if err := s.Reload(); err == nil {
			t.Fatal("a route with an unknown gate is in force")
		}
	}
	eventually(t, "their goroutines have ended", func() bool { return runtime.NumGoroutine() < before+10 })
}

// The targets that are tried are those of the configuration at the start, also if a reload puts
// others in force meanwhile.
func TestTryTargets(t *testing.T) {
	src := new(source)
	first, next := closedPort(t), baseConfig(t, "http://127.0.0.1:1")
	next.Upstreams["other"] = next.Upstreams[gateName]
	delete(next.Upstreams, gateName)
	next.Routes[0].Upstream = "other"
	src.set(func() (*config.Config, error) { return next, nil })
	s, log := idleServer(t, baseConfig(t, "http://"+first), Options{Load: src.load})
	st := s.state.Load()
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	s.tryTargets(t.Context(), st)
	want := `"upstream target accepts no connections now; requests that find no other target are answered 502 or 504 until it does" ` +
		"upstream=upstream target=http://" + first + " "
	if got := log.lines("upstream target"); len(got) != 1 || !strings.HasPrefix(got[0], want) {
		t.Errorf("log: %q, want one line %q", got, want)
	}
}

// A fault is told once, whoever asks for the reload.
func TestReloadFaultOnce(t *testing.T) {
	file := filepath.Join(t.TempDir(), "weir.yaml")
	save := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	save("good")
	src, loads := new(source), 0
	bad := func(text string) func() (*config.Config, error) {
		return func() (*config.Config, error) { loads++; return nil, errors.New(text) }
	}
	s, log := idleServer(t, baseConfig(t, "http://127.0.0.1:1"), Options{Load: src.load, Watch: file})
	step := func(what string, act func(), wantLoads int, want ...string) {
		t.Helper()
		act()
		if got := log.lines("configuration"); loads != wantLoads || !slices.Equal(got, want) {
			t.Errorf("%s: read %d times, log %q; want %d and %q", what, loads, got, wantLoads, want)
		}
		loads, log = 0, new(logBuffer)
		s.log = slog.New(slog.NewTextHandler(log, nil))
	}
	signal := func() { _ = s.Reload() }
	const (
		full  = `"configuration not reloaded; the configuration in force stays" error="line 3"`
		again = `"configuration not reloaded, for the same reason as at the last try; the configuration in force stays. weir reload tries again, and prints the reason"`
	)
	step("nothing has changed", s.reloadChanged, 0)
	src.set(bad("line 3"))
	save("bad, line 3")
	step("saved, then a signal", signal, 1, full)
	step("the look after that", s.reloadChanged, 0)
	step("another signal", signal, 1, again)
	src.set(bad("line 7"))
	save("bad in another way, line 7")
	step("half of it saved, then a look", s.reloadChanged, 0)
	save("bad in another way, line 7, and line 8")
	step("all of it saved, then a look", s.reloadChanged, 0)
	step("the look after that", s.reloadChanged, 1, strings.Replace(full, "3", "7", 1))
	step("a signal after that", signal, 1, again)
	src.set(func() (*config.Config, error) { loads++; return baseConfig(t, "http://127.0.0.1:1"), nil })
	step("mended", func() { signal(); log = new(logBuffer) }, 1)
	src.set(bad("line 7"))
	step("broken again", signal, 1, strings.Replace(full, "3", "7", 1))
	looks := func() {
		for range retryAfter {
			s.reloadChanged()
		}
	}
	step("and for a while after that", looks, 1)
	src.set(bad("line 9 of another file"))
	step("another fault in a file that nobody looks at", looks, 1, strings.Replace(full, "line 3", `line 9 of another file`, 1))
	attempts := s.lastReload().Attempts
	step("no news", looks, 1)
	if n := s.lastReload().Attempts; n != attempts {
		t.Errorf("tries without news are counted: %d, then %d", attempts, n)
	}
	src.set(func() (*config.Config, error) { loads++; return baseConfig(t, "http://127.0.0.1:1"), nil })
	step("mended there", func() { looks(); log = new(logBuffer) }, 1)
	step("and then", looks, 0)
}

// A policy that was replaced is let go once nothing can wait in it, without another reload.
func TestReplacedPolicyIsLetGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := baseConfig(t, "http://127.0.0.1:1")
		src := new(source)
		src.set(func() (*config.Config, error) { return cfg, nil })
		s, _ := idleServer(t, cfg, Options{Load: src.load})
		for range 3 {
			if err := s.Reload(); err != nil {
				t.Fatal(err)
			}
		}
		kept := func() int {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.replaced)
		}
		if n := kept(); n != 3 {
			t.Errorf("%d policies wait for their end, want 3", n)
		}
		time.Sleep(policy.ClosesWithin)
		synctest.Wait()
		if n := kept(); n != 0 {
			t.Errorf("%d policies are kept", n)
		}
	})
}

// discard closes the sockets of a server that is never run.
func (s *Server) discard() {
	for _, l := range s.all() {
		_ = l.conns.Close()
	}
}

// The log says which addresses a reload has opened and closed.
func TestReloadTellsListeners(t *testing.T) {
	src := new(source)
	first := baseConfig(t, "http://127.0.0.1:1")
	stays, goes, comes := config.DefaultListener(closedPort(t)), config.DefaultListener(closedPort(t)), config.DefaultListener(closedPort(t))
	first.Listeners = []config.Listener{stays, goes}
	g := start(t, first, Options{Load: src.load})
	eventually(t, "the start is told", func() bool { return len(g.log.lines("listening")) == 2 })

	next := baseConfig(t, "http://127.0.0.1:1")
	stays.IdleTimeout++ // another HTTP server on the same socket
	next.Listeners = []config.Listener{stays, comes}
	next.Admin.Address = closedPort(t)
	src.set(func() (*config.Config, error) { return next, nil })
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of one is told", func() bool { return len(g.log.lines("stopped listening")) > 0 })
	got := g.log.lines("listening", "admin listening", "stopped listening")[2:]
	want := []string{
		"listening address=" + comes.Address + " tls=false h2c=false",
		`"admin listening" address=http://` + next.Admin.Address + ` paths="/metrics /healthz /readyz /gates /explain /quotas /reload"`,
		`"stopped listening" address=` + goes.Address,
	}
	if !slices.Equal(got, want) {
		t.Errorf("log: %q\nwant %q", got, want)
	}
}

// A file that changes between the reading of the configuration and the start is not missed.
func TestWatchFromTheReading(t *testing.T) {
	t.Parallel()
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {})
	file := filepath.Join(t.TempDir(), "weir.yaml")
	if err := os.WriteFile(file, []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	read, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("changed"), 0o600); err != nil {
		t.Fatal(err)
	}
	src := new(source)
	src.set(func() (*config.Config, error) {
		next := baseConfig(t, up.URL)
		change(next, func(_ *config.Upstream, l *policy.LimitSpec) { l.Limit = 77 })
		return next, nil
	})
	g := start(t, baseConfig(t, up.URL), Options{Load: src.load, Watch: file, Read: read})
	eventually(t, "the file is taken up", func() bool { return g.gate().Limit == 77 })
}

// A change of a file during a reload may have come after its reading.
func TestChangeDuringReload(t *testing.T) {
	dir := t.TempDir()
	file, limits := filepath.Join(dir, "weir.yaml"), filepath.Join(dir, "limits.yaml")
	save := func(name, text string) {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	save(file, "1")
	save(limits, "1")
	load := func() *config.Config {
		cfg := baseConfig(t, "http://127.0.0.1:1")
		cfg.RateLimit.Files = []string{limits}
		return cfg
	}
	src, loads := new(source), 0
	src.set(func() (*config.Config, error) {
		if loads++; loads == 1 {
			save(limits, "changed")
		}
		return load(), nil
	})
	s, _ := idleServer(t, load(), Options{Load: src.load, Watch: file})
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		s.reloadChanged()
	}
	if loads != 2 {
		t.Errorf("%d reloads, want one more for the change", loads)
	}
}

func TestWatch(t *testing.T) {
	t.Parallel()
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {})
	file := filepath.Join(t.TempDir(), "weir.yaml")
	if err := os.WriteFile(file, []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	src := new(source)
	src.set(func() (*config.Config, error) {
		next := baseConfig(t, up.URL)
		change(next, func(_ *config.Upstream, l *policy.LimitSpec) { l.Limit = 77 })
		return next, nil
	})
	g := start(t, baseConfig(t, up.URL), Options{Load: src.load, Watch: file})
	if err := os.WriteFile(file+".new", []byte("2"), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the watcher has begun", func() bool { return strings.Contains(g.log.String(), "listening") })
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the file is taken up", func() bool { return g.gate().Limit == 77 })
}
