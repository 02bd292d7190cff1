package server

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

// running is a gateway in this process.
type running struct {
	*Server
	t      *testing.T
	url    string
	cancel context.CancelFunc
	ended  chan error
	log    *logBuffer
}

// logBuffer keeps what the gateway logs.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// gateName is what config.ForUpstream calls gate, route and upstream.
const gateName = "upstream"

// baseConfig guards upstream with a limit of 10, on a free port.
func baseConfig(t *testing.T, upstream string) *config.Config {
	t.Helper()
	cfg, err := config.ForUpstream(upstream, "127.0.0.1:0", 10)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Admin.Address = config.Off
	cfg.Shutdown = config.Shutdown{Grace: policy.Duration(time.Minute)}
	cfg.Listeners[0].ReadHeaderTimeout = policy.Duration(time.Minute) // and none of a client
	change(cfg, func(u *config.Upstream, l *policy.LimitSpec) {
		l.Queue.MaxWait = policy.Duration(time.Minute)
		u.ConnectTimeout = policy.Duration(time.Minute) // a machine that stands still is no fault of the upstream
	})
	return cfg
}

// change edits the parts of a configuration that are values in maps.
func change(cfg *config.Config, fn func(u *config.Upstream, l *policy.LimitSpec)) {
	u := cfg.Upstreams[gateName]
	fn(&u, cfg.Gates[gateName].Limit)
	cfg.Upstreams[gateName] = u
}

// start runs a gateway until the test ends.
func start(t *testing.T, cfg *config.Config, opts Options) *running {
	t.Helper()
	log := new(logBuffer)
	opts.Logger = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s, err := New(cfg, opts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	g := &running{Server: s, t: t, url: "http://" + s.Addr().String(), cancel: cancel, ended: make(chan error, 1), log: log}
	go func() { g.ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		s.Abort()
		select {
		case <-g.ended:
		case <-time.After(await.Patience):
			t.Error("the gateway does not end")
		}
		if t.Failed() {
			t.Log(log.String())
		}
	})
	return g
}

// stop shuts the gateway down and returns what Run returned.
func (g *running) stop() error {
	g.t.Helper()
	g.cancel()
	return g.wait()
}

func (g *running) wait() error {
	g.t.Helper()
	select {
	case err := <-g.ended:
		g.ended <- err // for the clean-up
		return err
	case <-time.After(await.Patience):
		g.t.Fatal("the gateway does not end")
		return nil
	}
}

func (g *running) gate() weir.Snapshot { return g.Policy().Gate(gateName).Snapshot() }

// eventually waits until ok holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	await.That(t, what, ok)
}

// idle waits until no gate and no stream holds anything.
func (g *running) idle() {
	g.t.Helper()
	eventually(g.t, "nothing in flight, nothing waiting", func() bool {
		for _, gate := range g.Policy().Gates() {
			if s := gate.Snapshot(); s.InFlight != 0 || s.Waiting != 0 {
				return false
			}
		}
		return g.inFlight.Load() == 0 && g.streams.Snapshot().Open == 0
	})
}

// upstreamOf starts a server for the length of the test.
func upstreamOf(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	up := httptest.NewServer(h)
	t.Cleanup(up.Close)
	return up
}

// get sends a request on a connection of its own and returns the answer, read.
func get(t *testing.T, url string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	return do(t, req)
}

func do(t *testing.T, req *http.Request) (*http.Response, string) {
	t.Helper()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(body)
}

// dial opens a raw connection and sends text.
func dial(t *testing.T, addr net.Addr, text string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(await.Patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	return c.(*net.TCPConn)
}
