package server

import (
	"bufio"
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

// Every request that was read gets an answer. What may fail: a connection that nobody accepted, and
// an idle one that the gateway closed as a request was on its way. The lame duck leaves next to
// none of those, and clients may send such a request again.
func TestShutdownUnderLoad(t *testing.T) {
	t.Parallel()
	var worked atomic.Int64
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {
		await.Work(10 * time.Millisecond)
		worked.Add(1)
	})
	cfg := baseConfig(t, up.URL)
	cfg.Shutdown.LameDuck = policy.Duration(time.Second) // each client asks at least once
	g := start(t, cfg, Options{})
	g.listeners[0].restFor = time.Minute // a machine that stands still for a second is no fault
	c := send(g.url, 30, func(status int, err error) bool {
		return status == http.StatusServiceUnavailable || errors.Is(err, syscall.ECONNREFUSED)
	})
	eventually(t, "load has arrived", func() bool { return c.ok.Load() > 40 })
	if err := g.stop(); err != nil {
		t.Errorf("Run returned %v", err)
	}
	c.stop(t)
	if n := g.inFlight.Load(); n != 0 {
		t.Errorf("%d still in flight", n)
	}
	if done, ok := worked.Load(), c.ok.Load(); done != ok {
		t.Errorf("the upstream has done %d requests, clients have %d answers", done, ok)
	}
}

// A request that arrives on a connection accepted before, when the gateway has
// stopped accepting, is served: there are free slots. net/http would drop it once its Shutdown has
// begun.
func TestShutdownAnswersTheLastToCome(t *testing.T) {
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {})
	f := func(what string, begin int, path string, of func(*running) *listener) {
		t.Helper()
		cfg := baseConfig(t, up.URL)
		cfg.Admin.Address = "127.0.0.1:0"
		g := start(t, cfg, Options{})
		l := of(g)
		l.restFor = time.Minute // a machine that stands still for a second is no fault
		request := "GET " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n"
		c := dial(t, l.Addr(), request[:begin])
		eventually(t, what+" is accepted", func() bool { return l.conns.Snapshot().InFlight == 1 })
		g.cancel()
		<-l.ended // nothing is accepted any more
		if _, err := io.WriteString(c, request[begin:]); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || !res.Close || res.StatusCode != http.StatusOK {
			t.Errorf("%s: %v, %v; want an answer that ends the connection", what, res, err)
		}
		if err := g.wait(); err != nil {
			t.Errorf("%s: Run returned %v", what, err)
		}
	}
	public := func(g *running) *listener { return g.listeners[0] }
	admin := func(g *running) *listener { return g.admin }
	f("a new connection", 0, "/", public)
	f("half a request", 18, "/", public)
	f("a new connection of the admin listener", 0, "/metrics", admin)
	f("half a scrape", 18, "/metrics", admin)
}

// A shutdown also lets the listeners come to rest that a reload has replaced, before it closes the gates.
func TestShutdownRestsReplacedListeners(t *testing.T) {
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {})
	next := baseConfig(t, up.URL)
	next.Listeners[0].IdleTimeout = policy.Duration(77 * time.Second)
	g := start(t, baseConfig(t, up.URL), Options{Load: func() (*config.Config, error) { return next, nil }})
	old := g.listeners[0]
	old.restFor = time.Minute
	c := dial(t, g.Addr(), "GET / HTTP/1.1\r\nHo")
	eventually(t, "the connection is accepted", func() bool { return old.conns.Snapshot().InFlight == 1 })
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if g.rest(ctx, time.Minute); ctx.Err() == nil {
		t.Error("half a request on a replaced listener is not waited for")
	}
	g.cancel()
	if _, err := io.WriteString(c, "st: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || !res.Close || res.StatusCode != http.StatusOK {
		t.Errorf("%v, %v; want an answer of the upstream that ends the connection", res, err)
	}
	if err := g.wait(); err != nil {
		t.Errorf("Run returned %v", err)
	}
}

// A client that connects and sends nothing does not hold up a shutdown. net/http alone would wait
// for it for 5 s.
func TestShutdownDoesNotWaitForSilence(t *testing.T) {
	silent := func() time.Duration {
		g := start(t, baseConfig(t, "http://127.0.0.1:1"), Options{})
		g.listeners[0].restFor = time.Millisecond
		dial(t, g.Addr(), "")
		eventually(t, "the connection is accepted", func() bool { return g.listeners[0].conns.Snapshot().InFlight == 1 })
		began := time.Now()
		if err := g.stop(); err != nil {
			t.Errorf("Run returned %v", err)
		}
		return time.Since(began)
	}
	var took time.Duration
	for range 3 { // the machine may stand still once
		if took = silent(); took < 5*time.Second {
			return
		}
	}
	t.Errorf("a shutdown took %v", took)
}

func TestLameDuck(t *testing.T) {
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {})
	cfg := baseConfig(t, up.URL)
	cfg.Shutdown.LameDuck = policy.Duration(time.Minute)
	cfg.Listeners[0].H2C = true
	g := start(t, cfg, Options{})
	const request = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
	c := dial(t, g.Addr(), request)
	r := bufio.NewReader(c)
	res, err := http.ReadResponse(r, nil)
	if err != nil || res.Close {
		t.Fatalf("%v, %v", res, err)
	}
	g.cancel()
	eventually(t, "readiness is gone", func() bool { return !g.Ready() })
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	res, err = http.ReadResponse(r, nil)
	if err != nil || res.StatusCode != http.StatusOK || !res.Close {
		t.Errorf("on a connection from before: %v, %v; want an answer that closes it", res, err)
	}
	if res, _ := get(t, g.url); res.StatusCode != http.StatusOK {
		t.Errorf("a new connection: %d; a lame duck still serves", res.StatusCode)
	}
	g.Abort()
	if err := g.wait(); err != nil && !errors.Is(err, ErrAborted) {
		t.Errorf("Run returned %v", err)
	}
}

// oneAtATime is a gateway of one slot, and a long wait for it, before an upstream
// that tells when a request has come and answers once hold is closed.
func oneAtATime(t *testing.T) (cfg *config.Config, url string, entered <-chan struct{}, hold chan<- struct{}) {
	in, out := make(chan struct{}, 1), make(chan struct{})
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {
		in <- struct{}{}
		<-out
	})
	cfg = baseConfig(t, up.URL)
	change(cfg, func(_ *config.Upstream, l *policy.LimitSpec) {
		l.Limit = 1
		l.Queue.MaxWait = policy.Duration(time.Minute)
	})
	return cfg, up.URL, in, out
}

// The admin listener answers until the end, also who asks for the figures of the listeners.
func TestMetricsWhileShuttingDown(t *testing.T) {
	cfg, _, entered, hold := oneAtATime(t)
	cfg.Admin.Address = "127.0.0.1:0"
	g := start(t, cfg, Options{})
	admin := "http://" + g.AdminAddr().String()
	go func() {
		if res, err := http.Get(g.url); err == nil {
			res.Body.Close()
		}
	}()
	<-entered
	g.cancel()
	<-g.closing.Done()
	client := http.Client{Timeout: await.Patience}
	for _, path := range []string{"/metrics", "/gates"} {
		res, err := client.Get(admin + path)
		if err != nil {
			t.Error(err)
			continue
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != http.StatusOK || !strings.Contains(string(body), "requests_in_flight") {
			t.Errorf("%s: %s, %v", path, res.Status, err)
		}
	}
	close(hold)
	if err := g.wait(); err != nil {
		t.Error(err)
	}
}

func TestShutdownRefusesWaiters(t *testing.T) {
	cfg, _, entered, hold := oneAtATime(t)
	g := start(t, cfg, Options{})
	answers := make(chan *http.Response, 2)
	ask := func() {
		res, err := http.Get(g.url)
		if err != nil {
			t.Error(err)
			res = &http.Response{}
		}
		answers <- res
	}
	go ask()
	<-entered
	go ask()
	eventually(t, "one waits", func() bool { return g.gate().Waiting == 1 })
	g.cancel()
	refused := <-answers
	body, err := io.ReadAll(refused.Body)
	if refused.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(body), `"draining"`) || refused.Header.Get("Retry-After") == "" {
		t.Errorf("the one that waited: %d %v %s, %v", refused.StatusCode, refused.Header, body, err)
	}
	close(hold)
	if served := <-answers; served.StatusCode != http.StatusOK {
		t.Errorf("the one in flight: %d", served.StatusCode)
	}
	if err := g.wait(); err != nil {
		t.Errorf("Run returned %v", err)
	}
}

// Who waits in a gate that a reload has taken away is refused at a shutdown like
// anybody else, and the log sums up before it ends.
func TestShutdownRefusesWaitersOfGoneGates(t *testing.T) {
	cfg, url, entered, hold := oneAtATime(t)
	src := new(source)
	g := start(t, cfg, Options{Load: src.load})
	answers := make(chan int, 3)
	for range 3 {
		go func() {
			res, err := http.Get(g.url)
			if err != nil {
				answers <- 0
				return
			}
			res.Body.Close()
			answers <- res.StatusCode
		}()
	}
	<-entered
	gone := g.Policy().Gate(gateName)
	eventually(t, "two wait", func() bool { return gone.Snapshot().Waiting == 2 })
	src.set(func() (*config.Config, error) {
		next := baseConfig(t, url)
		next.Gates = map[string]policy.GateSpec{"other": next.Gates[gateName]}
		next.Routes[0].Gates = []string{"other"}
		return next, nil
	})
	for range 2 { // the second finds the gate gone already
		if err := g.Reload(); err != nil {
			t.Fatal(err)
		}
	}
	g.cancel()
	for range 2 {
		if status := <-answers; status != http.StatusServiceUnavailable {
			t.Errorf("one that waited: %d", status)
		}
	}
	// The shutdown waits for the one in flight; a reload does not wait with it.
	if err := g.Reload(); !errors.Is(err, errShuttingDown) {
		t.Errorf("a reload while it shuts down: %v", err)
	}
	close(hold)
	if status := <-answers; status != http.StatusOK {
		t.Errorf("the one in flight: %d", status)
	}
	if err := g.wait(); err != nil {
		t.Errorf("Run returned %v", err)
	}
	got := g.log.lines("refusing", "refused since", "stopped")
	want := []string{
		"refusing gate=upstream reason=draining",
		`"refused since the last line" gate=upstream reason=draining count=1`,
		"stopped",
	}
	if len(got) != 3 || !strings.HasPrefix(got[0], want[0]) || !strings.HasPrefix(got[1], want[1]) || got[2] != want[2] {
		t.Errorf("log: %q\nwant %q", got, want)
	}
}

func TestShutdownCutsWhatStays(t *testing.T) {
	f := func(what string, want error, grace time.Duration, end func(*running)) {
		t.Helper()
		entered := make(chan struct{}, 1)
		up := upstreamOf(t, func(_ http.ResponseWriter, r *http.Request) {
			entered <- struct{}{}
			<-r.Context().Done()
		})
		cfg := baseConfig(t, up.URL)
		cfg.Shutdown.Grace = policy.Duration(grace)
		change(cfg, func(u *config.Upstream, _ *policy.LimitSpec) { u.OnAbandon = config.Release })
		g := start(t, cfg, Options{})
		lost := make(chan error, 1)
		go func() {
			res, err := http.Get(g.url)
			if err == nil {
				res.Body.Close()
			}
			lost <- err
		}()
		<-entered
		end(g)
		if err := g.wait(); !errors.Is(err, want) {
			t.Errorf("%s: Run returned %v, want %v", what, err, want)
		}
		if err := <-lost; err == nil {
			t.Errorf("%s: the request was answered", what)
		}
	}
	f("grace over", ErrGrace, 50*time.Millisecond, func(g *running) { g.cancel() })
	f("aborted at once", ErrAborted, time.Hour, func(g *running) { g.Abort() })
	f("a second signal", ErrAborted, time.Hour, func(g *running) {
		g.cancel()
		eventually(t, "shutting down", func() bool { return !g.Ready() })
		g.Abort()
	})
}

// What is cut off has its line and its span, also before an upstream that works on whoever leaves.
func TestShutdownTellsWhatItCuts(t *testing.T) {
	collector := upstreamOf(t, func(http.ResponseWriter, *http.Request) {})
	f := func(what string, grace time.Duration, end func(*running)) {
		t.Helper()
		entered, release := make(chan struct{}, 1), make(chan struct{})
		up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {
			entered <- struct{}{}
			<-release
		})
		defer close(release)
		cfg, file := logged(t, up.URL)
		cfg.Shutdown.Grace = policy.Duration(grace)
		cfg.Tracing = config.Tracing{Endpoint: collector.URL, Sample: 1, ServiceName: "weir"}
		change(cfg, func(u *config.Upstream, _ *policy.LimitSpec) { u.ResponseTimeout = policy.Duration(time.Hour) })
		g := start(t, cfg, Options{})
		dial(t, g.Addr(), "GET /cut HTTP/1.1\r\nHost: x\r\n\r\n")
		<-entered
		end(g)
		if err := g.wait(); err == nil {
			t.Errorf("%s: nothing was cut", what)
		}
		text, err := os.ReadFile(file)
		if line := string(text); err != nil || strings.Count(line, "\n") != 1 || !strings.Contains(line, `"path":"/cut"`) || !strings.Contains(line, `"status":499`) || !strings.Contains(line, `"reason":"shutdown"`) {
			t.Errorf("%s: the access log has %q, %v", what, line, err)
		}
		if c := g.Tracing(); c.Sent != 1 || c.Lost != 0 {
			t.Errorf("%s: of spans %+v", what, c)
		}
	}
	f("grace over", 50*time.Millisecond, func(g *running) { g.cancel() })
	f("a second signal", time.Hour, func(g *running) {
		g.cancel()
		eventually(t, "shutting down", func() bool { return !g.Ready() })
		g.Abort()
	})
}

// After a reload, a shutdown waits for answers on the replaced listener whose handlers have
// returned: their last bytes wait for the client's window.
func TestShutdownAfterReloadSendsAnswersWhole(t *testing.T) {
	t.Parallel()
	const window, length = 100, 200 // what the client takes at first, and the answer
	up := upstreamOf(t, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(make([]byte, length))
	})
	f := func(grace time.Duration, want error) {
		t.Helper()
		settings := func() *config.Config {
			cfg := baseConfig(t, up.URL)
			cfg.Listeners[0].H2C = true
			cfg.Shutdown.Grace = policy.Duration(grace)
			return cfg
		}
		src := new(source)
		g := start(t, settings(), Options{Load: src.load})
		c := dial(t, g.Addr(), http2.ClientPreface)
		framer := http2.NewFramer(c, c)
		get := http2.HeadersFrameParam{StreamID: 1, EndHeaders: true, EndStream: true, BlockFragment: []byte{0x82, 0x86, 0x84, 0x41, 1, 'x'}} // GET http://x/
		if err := errors.Join(framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window}), framer.WriteHeaders(get)); err != nil {
			t.Fatal(err)
		}
		received, goAway := 0, false
		read := func(until func(http2.Frame) bool) {
			t.Helper()
			for {
				frame, err := framer.ReadFrame()
				if err != nil {
					t.Fatalf("after %d bytes: %v", received, err)
				}
				switch frame := frame.(type) {
				case *http2.DataFrame:
					received += len(frame.Data())
				case *http2.GoAwayFrame:
					goAway = true
				}
				if until(frame) {
					return
				}
			}
		}
		read(func(http2.Frame) bool { return received == window })
		eventually(t, "the handler has returned", func() bool { return g.inFlight.Load() == 0 })

		next := settings()
		next.Listeners[0].Address = g.Addr().String()
		next.Listeners[0].IdleTimeout = policy.Duration(77 * time.Second)
		src.set(func() (*config.Config, error) { return next, nil })
		if err := g.Reload(); err != nil {
			t.Fatal(err)
		}
		g.cancel()
		if want == nil {
			read(func(http2.Frame) bool { return goAway })
			if err := framer.WriteWindowUpdate(1, length); err != nil {
				t.Fatal(err)
			}
			read(func(f http2.Frame) bool {
				return f.Header().Flags.Has(http2.FlagDataEndStream) && f.Header().Type == http2.FrameData
			})
			if received != length {
				t.Errorf("received %d bytes of %d", received, length)
			}
			_ = c.Close()
		}
		if err := g.wait(); !errors.Is(err, want) {
			t.Errorf("grace %v: Run returned %v, want %v", grace, err, want)
		}
	}
	f(time.Hour, nil)
	f(50*time.Millisecond, ErrGrace)
}

func TestPortInUse(t *testing.T) {
	g := start(t, baseConfig(t, "http://127.0.0.1:1"), Options{})
	cfg := baseConfig(t, "http://127.0.0.1:1")
	cfg.Listeners[0].Address = g.Addr().String()
	if _, err := New(cfg, Options{}); err == nil || !strings.Contains(err.Error(), "--listen") {
		t.Errorf("listener: %v", err)
	}
	cfg = baseConfig(t, "http://127.0.0.1:1")
	cfg.Admin.Address = g.Addr().String()
	if _, err := New(cfg, Options{}); err == nil || !strings.Contains(err.Error(), "--admin") {
		t.Errorf("admin: %v", err)
	}
	cfg = baseConfig(t, "http://127.0.0.1:1")
	cfg.Listeners[0].Address = closedPort(t)
	cfg.Admin.Address = strings.Replace(cfg.Listeners[0].Address, "127.0.0.1", "localhost", 1)
	if _, err := New(cfg, Options{}); err == nil || !strings.Contains(err.Error(), "this gateway is to listen on "+cfg.Listeners[0].Address+" too; choose another port") {
		t.Errorf("its own: %v", err)
	}
}

// learning is a configuration with a limit that moves, and a state file.
func learning(t *testing.T, upstream, file string, l policy.LimitSpec) *config.Config {
	t.Helper()
	cfg := baseConfig(t, upstream)
	cfg.Gates[gateName] = policy.GateSpec{Limit: &l}
	cfg.State = config.State{File: file, MaxAge: policy.Duration(time.Hour)}
	return cfg
}

// What was learned holds from the start: before the first request.
func TestLearnedLimitsAreKept(t *testing.T) {
	for name, l := range map[string]policy.LimitSpec{
		"belief":       {},
		"knee":         {Controller: "knee"},
		"aimd":         {Controller: "aimd", Limit: 20, Max: 100},
		"with signals": {Controller: "aimd", Signals: []string{"heap"}},
		"gradient2":    {Controller: "gradient2"},
	} {
		t.Run(name, func(t *testing.T) { keptLimit(t, l) })
	}
}

func keptLimit(t *testing.T, l policy.LimitSpec) {
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {})
	file := filepath.Join(t.TempDir(), "state.json")
	g := start(t, learning(t, up.URL, file, l), Options{})
	saved := g.Policy().Save()
	learnt := saved.Gates[gateName]
	learnt.Limit = 42
	saved.Gates[gateName] = learnt
	if _, err := g.Policy().Restore(saved, 0); err != nil {
		t.Fatal(err)
	}
	if err := g.stop(); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("state file: %v, %v; want mode 0600", info, err)
	}

	g = start(t, learning(t, up.URL, file, l), Options{})
	if again := g.Policy().Save().Gates[gateName].Limit; math.Abs(again-42) > 0.01 {
		t.Errorf("a limit of %v is learned after a restart, want 42", again)
	}
	// A controller that compares two limits holds one of the two beside it.
	if now := g.gate().Limit; now < 34 || now > 52 {
		t.Errorf("limit %d after a restart, want about the learned 42", now)
	}
	if left, _ := filepath.Glob(file + ".*"); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

// A gateway that stops does not try again to save what it has learned.
func TestLastSave(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	g := start(t, learning(t, "http://127.0.0.1:1", filepath.Join(dir, "state.json"), policy.LimitSpec{}), Options{})
	if err := g.stop(); err != nil {
		t.Fatal(err)
	}
	if log := g.log.String(); !strings.Contains(log, "learned limits not saved; the next start begins with older limits") || strings.Contains(log, "every minute") {
		t.Errorf("logs\n%s", log)
	}
}

// A state that cannot be used is no reason not to start.
func TestBadState(t *testing.T) {
	f := func(what, text, want string) {
		t.Helper()
		file := filepath.Join(t.TempDir(), "state.json")
		if text != "" {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		g := start(t, learning(t, "http://127.0.0.1:1", file, policy.LimitSpec{Controller: "aimd"}), Options{})
		if g.gate().Limit != 20 || !strings.Contains(g.log.String(), want) {
			t.Errorf("%s: limit %d; want the configured 20, and a log line with %q", what, g.gate().Limit, want)
		}
	}
	f("missing", "", "no learned limits")
	f("broken", "{", "unexpected end of JSON")
	f("old", `{"saved_at":"2020-01-01T00:00:00Z","gates":{"upstream":{"controller":"aimd","limit":42}}}`, "more than the 1h0m0s allowed")
	f("huge", strings.Repeat(" ", maxLearned+1), "larger than")
}
