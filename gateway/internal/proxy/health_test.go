package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/policy"
)

// check are the settings of checks in these tests.
var check = config.HealthCheck{
	Path: "/healthz", Interval: policy.Duration(10 * time.Second), Timeout: policy.Duration(time.Second), Healthy: 2, Unhealthy: 3,
}

// TestHealthModel holds the state of a target against its definition, for all runs of ten checks.
func TestHealthModel(t *testing.T) {
	refused := errors.New("refused")
	for run := range 1 << 10 {
		var h health
		down, results := false, ""
		for i := range 10 {
			err, mark := error(nil), "+"
			if run>>i&1 == 1 {
				err, mark = refused, "-"
			}
			results += mark
			before := down
			switch {
			case strings.HasSuffix(results, "---"):
				down = true
			case strings.HasSuffix(results, "++"):
				down = false
			}
			if changed := h.record(err, &check); changed != (down != before) || h.down.Load() != down {
				t.Fatalf("%s: down %v, changed %v; want %v, %v", results, h.down.Load(), changed, down, down != before)
			}
		}
		if s := h.stats(); s.Failed != uint64(strings.Count(results, "-")) || s.Passed != uint64(strings.Count(results, "+")) {
			t.Fatalf("%s: %+v", results, s)
		}
	}
}

// tripper answers checks without a network.
type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// checkedUpstream returns an upstream whose checks are answered by f, and what it logs.
func checkedUpstream(t *testing.T, cfg config.HealthCheck, f tripper, prev *Upstream, targets ...string) (*Upstream, *logBuffer) {
	t.Helper()
	log := new(logBuffer)
	u := makeUpstream(t, config.Upstream{Targets: targets, HealthCheck: &cfg}, log, prev)
	u.checks = f
	return u, log
}

// logBuffer is a log that can be read while it is written.
type logBuffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *logBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func answer(status int) (*http.Response, error) {
	return &http.Response{StatusCode: status, Body: http.NoBody}, nil
}

// A target that fails its checks is left out, and comes back. If all fail, all are tried. A reload
// changes nothing about that.
func TestHealthChecks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sick sync.Map
		asked := new(atomic.Int32)
		var lacking atomic.Bool
		respond := func(r *http.Request) (*http.Response, error) {
			asked.Add(1)
			if lacking.Load() {
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", syscall.EMFILE)}
			}
			if r.URL.Path != "/healthz" || r.Header.Get("User-Agent") != "weir-health-check" {
				t.Errorf("asked for %s as %s", r.URL, r.Header.Get("User-Agent"))
			}
			if _, ok := sick.Load(r.URL.Host); ok {
				return answer(http.StatusServiceUnavailable)
			}
			return answer(http.StatusNoContent)
		}
		u, log := checkedUpstream(t, check, respond, nil, "http://a", "http://b")
		slots := make(chan struct{}, 4)
		ctx, cancel := context.WithCancel(t.Context())
		run := func(u *Upstream) { go u.Check(ctx, slots) }
		run(u)
		expect := func(when string, u *Upstream, want string) {
			t.Helper()
			synctest.Wait()
			got := strings.Split(picks(t, u, 12), "")
			slices.Sort(got)
			if got := strings.Join(slices.Compact(got), ""); got != want {
				t.Errorf("%s: requests go to %s, want %s", when, got, want)
			}
		}
		expect("before the first check", u, "ab")
		time.Sleep(12 * time.Second)
		if n := asked.Load(); n < 2 || n > 4 {
			t.Errorf("%d checks after an interval, want one or two of each", n)
		}
		lacking.Store(true)
		time.Sleep(45 * time.Second)
		expect("the gateway has no file descriptor", u, "ab")
		lacking.Store(false)
		sick.Store("a", true)
		time.Sleep(45 * time.Second)
		expect("a is sick", u, "b")
		if s := u.Stats(); s[0].Health.State != "unhealthy" || s[0].Health.Error != "it answered 503" || s[1].Health.State != "healthy" {
			t.Errorf("stats %+v, %+v", *s[0].Health, *s[1].Health)
		}

		cancel()
		synctest.Wait()
		ctx, cancel = context.WithCancel(t.Context())
		defer cancel()
		next, nextLog := checkedUpstream(t, check, respond, u, "http://a", "http://b", "http://c")
		run(next)
		expect("after a reload", next, "bc")
		sick.Store("b", true)
		sick.Store("c", true)
		time.Sleep(45 * time.Second)
		expect("all are sick", next, "abc")
		sick.Clear()
		time.Sleep(45 * time.Second)
		expect("all are well", next, "abc")
		for text, want := range map[string]int{"is unhealthy": 1, `"target":"http://a"`: 1} {
			if n := strings.Count(log.String(), text); n != want {
				t.Errorf("the first log has %q %d times, want %d:\n%s", text, n, want, log)
			}
		}
		for text, want := range map[string]int{"is unhealthy": 2, "healthy again": 3} {
			if n := strings.Count(nextLog.String(), text); n != want {
				t.Errorf("the second log has %q %d times, want %d:\n%s", text, n, want, nextLog)
			}
		}
	})
}

// A reload that takes checks away takes their verdict away, too: nobody would find out that the target works again.
func TestVerdictWithoutChecks(t *testing.T) {
	sick := errors.New("sick")
	u, _ := checkedUpstream(t, check, nil, nil, "http://a", "http://b")
	for range check.Unhealthy {
		u.learn(u.seats[0].target, sick)
	}
	if got := picks(t, u, 4); got != "bbbb" {
		t.Errorf("with checks requests go to %s, want b", got)
	}
	next := makeUpstream(t, config.Upstream{Targets: []string{"http://a", "http://b"}}, io.Discard, u)
	if got := picks(t, next, 4); got != "abab" {
		t.Errorf("without checks requests go to %s, want both in turn", got)
	}
}

// A connection that a check does not wait for any more is closed, when it comes.
func TestConnectionOfACheckThatIsOver(t *testing.T) {
	for _, protocol := range []string{"http", "h2c"} {
		t.Run(protocol, func(t *testing.T) {
			var opened, closed atomic.Int32
			server := httptest.NewUnstartedServer(nil)
			server.Config.Protocols = new(http.Protocols)
			server.Config.Protocols.SetHTTP1(true)
			server.Config.Protocols.SetUnencryptedHTTP2(true)
			server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
				switch state {
				case http.StateNew:
					opened.Add(1)
				case http.StateClosed:
					closed.Add(1)
				}
			}
			server.Start()
			defer server.Close()
			short := check
			short.Timeout = policy.Duration(10 * time.Millisecond)
			u := makeUpstream(t, config.Upstream{Targets: []string{protocol + "://" + server.Listener.Addr().String()}, HealthCheck: &short}, io.Discard, nil)
			checks, over := u.checks.(*http.Transport), make(chan struct{})
			checks.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
				<-over
				return new(net.Dialer).DialContext(context.WithoutCancel(ctx), network, address)
			}
			if err := u.probe(t.Context(), u.seats[0].target); err == nil {
				t.Error("a check without a connection has passed")
			}
			close(over)
			eventually(t, "it is opened, and closed", func() bool { return opened.Load() == 1 && closed.Load() == 1 })
		})
	}
}

// A check that a target of HTTP/2 refuses is sent once more, and not thousands of times until its time is over.
func TestCheckIsRefused(t *testing.T) {
	f := func(first, sent int32, want error) {
		t.Helper()
		for _, goAway := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				u := makeUpstream(t, config.Upstream{Targets: []string{"h2c://a"}, HealthCheck: &check}, io.Discard, nil)
				a := startRefusing(t, first, goAway)
				defer u.ReplacedBy(nil)
				defer u.checks.(*http.Transport).CloseIdleConnections() // one that came for nothing may stay for the next check
				defer time.Sleep(time.Minute)                           // until what net/http has begun has ended
				u.checks.(*http.Transport).DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return a.DialContext(ctx) }
				if err := u.probe(t.Context(), u.seats[0].target); err != want || a.seen.Load() != sent {
					t.Errorf("%d refused (GOAWAY: %v): %v, sent %d times; want %v and %d", first, goAway, err, a.seen.Load(), want, sent)
				}
			})
		}
	}
	f(1, 2, nil)
	f(1000, 2, errRefused)
}

// A check that a target answers at all tells that it can be reached again, once.
func TestCheckReachesTarget(t *testing.T) {
	u, log := checkedUpstream(t, check, func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusServiceUnavailable, Body: http.NoBody}, nil
	}, nil, "http://a")
	u.Unreachable("http://a", errors.New("refused"))
	for range 2 {
		_ = u.probe(t.Context(), u.seats[0].target)
	}
	if got := log.String(); strings.Count(got, `"msg":"upstream target accepts connections now","upstream":"app","target":"http://a"`) != 1 {
		t.Errorf("the log says\n%s", got)
	}
}

// Frequent reloads do not keep checks from being made, and no more are in progress than allowed.
func TestHealthChecksAreDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most, all atomic.Int32
		slow := func(r *http.Request) (*http.Response, error) {
			n := now.Add(1)
			defer now.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			select {
			case <-r.Context().Done():
				return nil, r.Context().Err()
			case <-time.After(100 * time.Millisecond):
				all.Add(1)
				return answer(http.StatusOK)
			}
		}
		var targets []string
		for c := 'a'; c <= 'p'; c++ {
			targets = append(targets, "http://"+string(c))
		}
		slots := make(chan struct{}, 2)
		var u *Upstream
		for range 60 { // a reload every half second, for three intervals
			u, _ = checkedUpstream(t, check, slow, u, targets...)
			ctx, cancel := context.WithCancel(t.Context())
			go u.Check(ctx, slots)
			time.Sleep(500 * time.Millisecond)
			cancel()
			synctest.Wait()
		}
		if n := all.Load(); n < 3*16*8/10 || n > 3*16*3/2 {
			t.Errorf("%d checks in three intervals of 16 targets", n)
		}
		if most.Load() != 2 {
			t.Errorf("%d checks at a time, want 2", most.Load())
		}
		for _, s := range u.Stats() {
			if s.Health.State != "healthy" || s.Health.Failed != 0 {
				t.Errorf("%s: %+v; a check that was cut off is no failure", s.Target, *s.Health)
			}
		}
	})
}

// What a check is, with a real server.
func TestAsk(t *testing.T) {
	stop := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/base/ok":
			_, _ = io.WriteString(w, r.URL.RawQuery)
		case "/base/moved":
			http.Redirect(w, r, "/base/ok", http.StatusFound)
		case "/base/hang":
			<-stop
		default:
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer server.Close()
	defer close(stop)
	gone := httptest.NewServer(nil)
	gone.Close()
	for _, tt := range []struct {
		target, path string
		status       []int
		want         string
	}{
		{server.URL + "/base", "/ok?deep=1", nil, ""},
		{server.URL + "/base/", "/moved", nil, ""},
		{server.URL + "/base", "/moved", []int{200, 204}, "it answered 302"},
		{server.URL + "/base", "/broken", nil, "it answered 500"},
		{server.URL + "/base", "/broken", []int{500}, ""},
		{server.URL + "/base", "/hang", nil, "no answer within 50ms"},
		{gone.URL, "/", nil, "connect"},
	} {
		cfg := check
		cfg.Path, cfg.Status = tt.path, tt.status
		cfg.Timeout = policy.Duration(time.Minute)
		if tt.path == "/hang" {
			cfg.Timeout = policy.Duration(50 * time.Millisecond)
		}
		u := makeUpstream(t, config.Upstream{Targets: []string{tt.target}, HealthCheck: &cfg}, io.Discard, nil)
		err := u.probe(t.Context(), u.seats[0].target)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s%s: %v, want %q", tt.target, tt.path, err, tt.want)
		}
	}
}

// A target may answer anything, and why a check failed repeats it. What is kept of that is short.
func TestCauseIsShort(t *testing.T) {
	var h health
	h.record(errors.New(strings.Repeat("\u20ac", 400_000)), &check)
	if got := h.stats().Error; len(got) > 250 || !strings.HasPrefix(got, "\u20ac") {
		t.Errorf("%d bytes are kept: %.300q", len(got), got)
	}
}
