package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/eventlog"
	"github.com/weir-go/weir/policy"
)

// pair is an upstream of two targets, each with a gate: a dead one, whose slots
// are always free, and a live one. None is ever put out.
type pair struct {
	*Upstream
	gates map[string]*policy.Gate // by the name of the target: dead, live
	heard *atomic.Int32           // refusals that the hook heard of
}

// quietEvents is an event log that nobody reads.
func quietEvents() *eventlog.Log { return eventlog.New(slog.New(slog.DiscardHandler), nil) }

// compile returns a policy that closes with the test.
func compile(t *testing.T, spec policy.Spec, opts policy.Options) *policy.Policy {
	t.Helper()
	pol, err := policy.Compile(spec, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pol.Close)
	return pol
}

// makeUpstream returns an upstream whose policy says nothing.
func makeUpstream(t *testing.T, cfg config.Upstream, log io.Writer, prev *Upstream) *Upstream {
	t.Helper()
	u, err := New("app", cfg, slog.New(slog.NewJSONHandler(log, nil)), quietEvents())
	if err != nil {
		t.Fatal(err)
	}
	u.Attach(compile(t, policy.Spec{}, policy.Options{}), prev)
	return u
}

func newPair(t *testing.T, live http.HandlerFunc, room int) pair {
	t.Helper()
	server := httptest.NewServer(live)
	t.Cleanup(server.Close)
	closed := httptest.NewServer(nil)
	closed.Close()

	p := pair{gates: make(map[string]*policy.Gate), heard: new(atomic.Int32)}
	cfg := config.Upstream{
		Targets: []string{closed.URL, server.URL}, ConnectTimeout: policy.Duration(time.Second),
		Limit: &policy.LimitSpec{Limit: 2, Queue: policy.QueueSpec{Len: room, MaxWait: policy.Duration(time.Minute)}},
	}
	pol := compile(t, policy.Spec{Gates: WithTargetGates(nil, map[string]config.Upstream{"app": cfg})},
		policy.Options{Hooks: weir.Hooks{Rejected: func(weir.Work, *weir.Rejection) { p.heard.Add(1) }}})
	p.gates["dead"] = pol.Gate("app@" + closed.Listener.Addr().String())
	p.gates["live"] = pol.Gate("app@" + server.Listener.Addr().String())
	var err error
	if p.Upstream, err = New("app", cfg, slog.New(slog.DiscardHandler), quietEvents()); err != nil {
		t.Fatal(err)
	}
	p.Attach(pol, nil)
	return p
}

// ask sends one request through the upstream.
func (p pair) ask() *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	p.Serve(w, httptest.NewRequest(http.MethodGet, "/", nil), &Call{})
	return w
}

// fill takes all slots of a gate.
func fill(t *testing.T, g *policy.Gate) (empty func()) {
	t.Helper()
	var held []weir.Permit
	for {
		p, ok := g.Offer(weir.Work{})
		if !ok {
			break
		}
		held = append(held, p)
	}
	return func() {
		for _, p := range held {
			p.Cancel()
		}
	}
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	await.That(t, what, cond)
}

// Who finds one target dead and the other one full was refused, not failed.
func TestNoRoomBehindADeadTarget(t *testing.T) {
	p := newPair(t, func(http.ResponseWriter, *http.Request) {}, -1)
	empty := fill(t, p.gates["live"])
	w := p.ask()
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("%d %v %s, want 503 with Retry-After", w.Code, w.Header(), w.Body)
	}
	if counted := p.gates["live"].Snapshot().Rejected; !maps.Equal(counted, map[weir.Reason]uint64{weir.ReasonLimit: 1}) || p.heard.Load() != 1 {
		t.Errorf("counted %v, the hook heard of %d refusals; want one", counted, p.heard.Load())
	}
	empty()
	for range 4 {
		if w := p.ask(); w.Code != http.StatusOK {
			t.Errorf("%d %s with room", w.Code, w.Body)
		}
	}
	for name, g := range p.gates {
		if s := g.Snapshot(); s.InFlight != 0 {
			t.Errorf("%s: %d in flight at the end", name, s.InFlight)
		}
	}
}

// What is said of a request is of the last target, and of the wait for its slot. Where that one answered, nothing failed.
func TestLastTargetIsTold(t *testing.T) {
	p := newPair(t, func(http.ResponseWriter, *http.Request) {}, 1)
	serve := func() *Call { // from the dead target on
		call := new(Call)
		p.rotation.Store(0)
		p.Serve(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil), call)
		return call
	}
	if call := serve(); call.Target != p.seats[1].key || call.Failure != "" {
		t.Errorf("target %s, failure %q; want %s and none", call.Target, call.Failure, p.seats[1].key)
	}
	empty, waited := fill(t, p.gates["live"]), make(chan time.Duration)
	go func() { waited <- serve().Waited }()
	eventually(t, "it waits at the live target", func() bool { return p.gates["live"].Snapshot().Waiting == 1 })
	empty()
	if <-waited == 0 {
		t.Error("the wait behind the dead target is not told")
	}
	if n := p.seats[0].failures[failedConnect].Load(); n != 2 {
		t.Errorf("%d of 2 requests met the dead target", n)
	}
}

// A body goes to the next target whole, whether its length is known or not. The target that got it has not failed.
func TestBodyBehindADeadTarget(t *testing.T) {
	p := newPair(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		_, _ = fmt.Fprint(w, len(body), err)
	}, 0)
	for _, length := range []int64{40_000, -1} {
		for range 2 {
			w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", strings.NewReader(strings.Repeat("x", 40_000)))
			r.ContentLength = length
			if p.Serve(w, r, &Call{}); w.Code != http.StatusOK || w.Body.String() != "40000 <nil>" {
				t.Errorf("length %d: %d %s", length, w.Code, w.Body)
			}
		}
	}
	for _, s := range p.Stats() {
		if s.Failures["reset"] > 0 || s.Failures["body"] > 0 {
			t.Errorf("%s: failures %v", s.Target, s.Failures)
		}
	}
}

// brokenBody is a body whose end does not come: the client leaves, or has announced another length.
type brokenBody struct {
	io.Reader
	wait <-chan struct{}
}

func (b brokenBody) Read(to []byte) (int, error) {
	if n, err := b.Reader.Read(to); err == nil {
		return n, nil
	}
	<-b.wait
	return 0, io.ErrUnexpectedEOF
}

func (brokenBody) Close() error { return nil }

// A client whose body breaks in the middle of the answer ends that, too. No target has failed: else clients could have
// each of them ejected.
func TestBodyBreaksInTheMiddleOfTheAnswer(t *testing.T) {
	for _, protocol := range []string{"http", "h2c"} {
		t.Run(protocol, func(t *testing.T) {
			begun := make(chan struct{}, 1)
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				rc := http.NewResponseController(w)
				_ = rc.EnableFullDuplex() // HTTP/2 has it anyway
				_ = rc.Flush()
				begun <- struct{}{}
				_, _ = io.Copy(w, r.Body)
			}))
			server.Config.Protocols = new(http.Protocols)
			server.Config.Protocols.SetHTTP1(true)
			server.Config.Protocols.SetUnencryptedHTTP2(true)
			server.Start()
			t.Cleanup(server.Close)
			u := makeUpstream(t, config.Upstream{Targets: []string{protocol + "://" + server.Listener.Addr().String()}}, io.Discard, nil)
			for range 3 {
				r := httptest.NewRequest(http.MethodPost, "/", nil)
				r.Body, r.ContentLength = brokenBody{strings.NewReader("x"), begun}, -1
				func() {
					defer func() { _ = recover() }() // ReverseProxy aborts answers that are cut off
					u.Serve(httptest.NewRecorder(), r, &Call{})
				}()
			}
			if s := u.Stats()[0]; s.Requests != 3 || s.Failures["body"]+s.Failures["reset"] != 0 {
				t.Errorf("%d requests, failures %v", s.Requests, s.Failures)
			}
		})
	}
}

// Who did not wait at the dead target may wait at the live one.
func TestWaitBehindADeadTarget(t *testing.T) {
	p := newPair(t, func(http.ResponseWriter, *http.Request) {}, 1)
	empty := fill(t, p.gates["live"])
	status := make(chan int)
	go func() { status <- p.ask().Code }()
	eventually(t, "it waits at the live target", func() bool { return p.gates["live"].Snapshot().Waiting == 1 })
	if s := p.gates["dead"].Snapshot(); s.InFlight != 0 {
		t.Errorf("%d slots of the dead target are held meanwhile", s.InFlight)
	}
	empty()
	if got := <-status; got != http.StatusOK {
		t.Errorf("%d after the wait", got)
	}
}

// A client that leaves while it waits for the second target has abandoned nothing.
func TestClientLeavesBehindADeadTarget(t *testing.T) {
	p := newPair(t, func(http.ResponseWriter, *http.Request) {}, 1)
	defer fill(t, p.gates["live"])()
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan any)
	go func() {
		defer func() { ended <- recover() }()
		r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
		p.Serve(httptest.NewRecorder(), r, &Call{})
	}()
	waiting := func() int64 { return p.gates["live"].Snapshot().Waiting }
	eventually(t, "it waits at the live target", func() bool { return waiting() == 1 })
	leave()
	if got := <-ended; got != http.ErrAbortHandler {
		t.Errorf("ended with %v, want the connection aborted", got)
	}
	if waiting() != 0 || p.Abandoned() != 0 {
		t.Errorf("%d wait, %d counted as abandoned; want none", waiting(), p.Abandoned())
	}
}

// A request whose client has left while a connection was tried is sent to no other target.
func TestGoneClientBehindADeadTarget(t *testing.T) {
	u := makeUpstream(t, config.Upstream{Targets: []string{"http://dead", "http://live"}}, io.Discard, nil)
	dialing, tried := make(chan struct{}), make(chan struct{})
	u.shared.transport.DialContext = func(_ context.Context, network, address string) (net.Conn, error) {
		if address == "dead:80" {
			close(dialing)
			<-tried
		}
		return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("unreachable")}
	}
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan any)
	go func() {
		defer func() { ended <- recover() }()
		u.Serve(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil), &Call{})
	}()
	<-dialing
	leave()
	close(tried)
	if got := <-ended; got != http.ErrAbortHandler {
		t.Errorf("ended with %v, want the connection aborted", got)
	}
	if s := u.Stats(); s[0].Requests != 1 || s[1].Requests != 0 {
		t.Errorf("%d requests to the dead target, %d to the live one; want 1 and none", s[0].Requests, s[1].Requests)
	}
}

// unhanded is a ResponseWriter whose client has gone when its connection is to be handed over.
type unhanded struct{ *httptest.ResponseRecorder }

func (unhanded) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, net.ErrClosed }

// A switch of protocols that comes to nothing is the gateway's 502, and ends the connection to the target. So it is if
// the target switches to another protocol than the request names, or to none.
func TestUpgradeThatFails(t *testing.T) {
	for _, tt := range []struct{ asked, given http.Header }{
		{http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket, x"}}, http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}},
		{http.Header{}, http.Header{}},
		{http.Header{"Connection": {"Upgrade"}, "Upgrade": {"x"}}, http.Header{"Connection": {"Upgrade"}, "Upgrade": {"x"}}},
	} {
		closed := make(chan error, 1)
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\n")
			_ = tt.given.Write(c)
			_, _ = io.WriteString(c, "\r\n")
			_, err = c.Read(make([]byte, 1))
			closed <- err
		}))
		t.Cleanup(server.Close)
		u := makeUpstream(t, config.Upstream{Targets: []string{server.URL}}, io.Discard, nil)
		w, r, call := unhanded{httptest.NewRecorder()}, httptest.NewRequest(http.MethodGet, "/", nil), new(Call)
		r.Header = tt.asked
		if u.Serve(w, r, call); w.Code != http.StatusBadGateway || call.By != ByGateway {
			t.Errorf("%v: %d by %v, want 502 by the gateway", tt.asked, w.Code, call.By)
		}
		select {
		case err := <-closed:
			if err != io.EOF {
				t.Errorf("%v: the target read %v", tt.asked, err)
			}
		case <-time.After(await.Patience):
			t.Errorf("%v: the connection stays open", tt.asked)
		}
	}
}

// leaving is a ResponseWriter whose client leaves when its connection is to be handed over.
type leaving struct {
	unhanded
	leave func()
}

func (w leaving) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.leave()
	return w.unhanded.Hijack()
}

// A client that leaves before a switch of protocols has had no answer, so the access log has a 499.
func TestUpgradeOfAClientThatLeaves(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "x")
		w.WriteHeader(http.StatusSwitchingProtocols)
	}))
	t.Cleanup(server.Close)
	u := makeUpstream(t, config.Upstream{Targets: []string{server.URL}}, io.Discard, nil)
	ctx, leave := context.WithCancel(t.Context())
	call, r := new(Call), httptest.NewRequest(http.MethodGet, "/", nil).WithContext(ctx)
	r.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"x"}}
	defer func() {
		if fault := recover(); fault != http.ErrAbortHandler || call.Status != 0 || call.By != ByGateway {
			t.Errorf("%d by %v, and a panic with %v; want no answer", call.Status, call.By, fault)
		}
	}()
	u.Serve(leaving{unhanded{httptest.NewRecorder()}, leave}, r, call)
}

// An upgrade goes to an https target over HTTP/1.1, also where that would choose HTTP/2. A target that knows HTTP/2 alone
// is not to blame: else clients could have each of them ejected. One that knows HTTP/1 is.
func TestUpgradeOverTLS(t *testing.T) {
	f := func(http1, http2 bool, upgrade, want string, failures uint64) {
		t.Helper()
		server := startHTTP2(t, func(w http.ResponseWriter, r *http.Request) {
			if !http1 && (r.ProtoMajor == 1 || r.URL.Path == "/h2c") {
				panic(http.ErrAbortHandler)
			}
			_, _ = io.WriteString(w, r.Proto+" "+r.Header.Get("Upgrade"))
		})
		if !http2 {
			server.TLS.NextProtos = []string{"http/1.1"}
		}
		u := makeUpstream(t, config.Upstream{Targets: []string{server.URL}}, io.Discard, nil)
		defer u.ReplacedBy(nil)
		settings := &tls.Config{RootCAs: server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}
		u.shared.transport.TLSClientConfig, u.shared.upgrades.TLSClientConfig = settings, settings.Clone()
		u.Serve(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil), &Call{})
		before := u.Stats()[0].Failures["reset"]
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/"+upgrade, nil)
		r.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {upgrade}}
		u.Serve(w, r, &Call{})
		if got := strconv.Itoa(w.Code) + " " + w.Body.String(); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", upgrade, got, want)
		}
		if got := u.Stats()[0].Failures["reset"] - before; got != failures {
			t.Errorf("%s: %d failures of the target, want %d", upgrade, got, failures)
		}
	}
	for _, upgrade := range []string{"tcp", "websocket"} {
		f(true, true, upgrade, "200 HTTP/1.1 "+upgrade, 0)
		f(true, false, upgrade, "200 HTTP/1.1 "+upgrade, 0)
		f(false, true, upgrade, "502", 0)
		f(false, false, upgrade, "502", 1)
	}
	f(true, true, "h2c", "200 HTTP/2.0 ", 0) // which is removed
	f(false, true, "h2c", "502", 1)
}

// Under overload everybody is served or refused.
func TestOverloadBesideADeadTarget(t *testing.T) {
	const clients = 32
	hold := make(chan struct{})
	p := newPair(t, func(http.ResponseWriter, *http.Request) { <-hold }, 2)
	codes := make(chan int, clients)
	for range clients {
		go func() { codes <- p.ask().Code }()
	}
	eventually(t, "all but those in the live target and its room are refused", func() bool {
		s := p.gates["live"].Snapshot()
		return int64(len(codes))+s.InFlight+s.Waiting == clients
	})
	close(hold)
	count := make(map[int]int)
	for range clients {
		count[<-codes]++
	}
	served, refused := count[http.StatusOK], count[http.StatusServiceUnavailable]
	if served+refused != clients || served < 2 {
		t.Errorf("answers by status: %v; want 200 and 503 only", count)
	}
}

// A target that is passed over for want of a slot has refused nobody.
func TestPassingOverIsNoRefusal(t *testing.T) {
	p := newPair(t, func(http.ResponseWriter, *http.Request) {}, 1)
	defer fill(t, p.gates["dead"])()
	for range 4 {
		if w := p.ask(); w.Code != http.StatusOK {
			t.Errorf("%d %s, want the answer of the target with room", w.Code, w.Body)
		}
	}
	if s := p.gates["dead"].Snapshot(); len(s.Rejected) != 0 || p.heard.Load() != 0 {
		t.Errorf("counted %v, the hook heard of %d refusals; nobody was refused", s.Rejected, p.heard.Load())
	}
}

// The log tells when a target goes, for how long, and when it is back.
func TestLogOfEjections(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	var log bytes.Buffer
	u := makeUpstream(t, config.Upstream{
		Targets: []string{server.URL, "http://b"}, Eject: config.Eject{Failures: 1, For: policy.Duration(10 * time.Second)},
	}, &log, nil)
	u.recordFailure(&exchange{call: new(Call), choice: choice{seat: u.seats[0]}}, failedConnect, errors.New("refused"))
	u.seats[0].ejectedUntil.Store(1) // long ago
	for range 2 {
		u.rotation.Store(0)
		u.Serve(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil), &Call{})
	}
	for _, want := range []string{`"msg":"upstream target ejected after too many failures in a row"`, `"for":"10s"`, `"msg":"upstream target is back"`} {
		if strings.Count(log.String(), want) != 1 {
			t.Errorf("the log says\n%s\nwant %s once", log.String(), want)
		}
	}
}

// A further target is told the time that is left then, and the first one's header
// is left alone.
func TestFurtherTargetIsToldTheTime(t *testing.T) {
	got := make(chan string, 1)
	p := newPair(t, func(_ http.ResponseWriter, r *http.Request) { got <- r.Header.Get("X-Left-Ms") }, 0)
	clock := time.Duration(0) // a second later each time that somebody looks
	p.policy = compile(t, policy.Spec{Deadline: policy.DeadlineSpec{Headers: []string{"X-Left-Ms"}}},
		policy.Options{Now: func() time.Duration { clock += time.Second; return clock }})
	var first http.Header
	rewrite := p.reverse.Rewrite
	p.reverse.Rewrite = func(pr *httputil.ProxyRequest) {
		rewrite(pr)
		first = pr.Out.Header
	}
	further := 0
	for range 2 { // one of them begins at the dead target
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("X-Left-Ms", "100000")
		p.Serve(httptest.NewRecorder(), r, &Call{Arrived: time.Unix(0, 0)})
		left, err := strconv.Atoi(<-got)
		before, err2 := strconv.Atoi(first.Get("X-Left-Ms"))
		if err != nil || err2 != nil || left > before || before >= 100_000 || r.Header.Get("X-Left-Ms") != "100000" {
			t.Errorf("the target was told %d (%v), the first %d (%v)", left, err, before, err2)
		}
		if left < before {
			further++
		}
	}
	if further == 0 {
		t.Error("no further target was asked")
	}
}

func TestAddress(t *testing.T) {
	f := func(target, in, want string) {
		t.Helper()
		tg, err := newTarget(target)
		if err != nil {
			t.Fatal(err)
		}
		u, err := url.ParseRequestURI(in)
		if err != nil {
			t.Fatal(err)
		}
		if got := tg.address(u).String(); got != want {
			t.Errorf("%s at %s: %s, want %s", in, target, got, want)
		}
	}
	f("http://a:1", "/", "http://a:1/")
	f("http://a:1/", "/x?q=1", "http://a:1/x?q=1")
	f("http://a:1/base", "/x", "http://a:1/base/x")
	f("http://a:1/base/", "/x/", "http://a:1/base/x/")
	f("http://a:1/ba%2Fse", "/x%2Fy?q", "http://a:1/ba%2Fse/x%2Fy?q")
	f("https://a", "/a//b", "https://a/a//b")
	f("h2c://a:1", "/", "http://a:1/")
}

func TestFaultsOfUpstreams(t *testing.T) {
	f := func(want string, targets ...string) {
		t.Helper()
		_, err := New("app", config.Upstream{Targets: targets}, slog.New(slog.DiscardHandler), quietEvents())
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v: %v, want %q", targets, err, want)
		}
	}
	f("", "http://a:1", "https://b:2")
	f("", "h2c://a:1", "h2c://b:2")
	f("no targets")
	f("scheme", "ftp://a")
	f("no host", "http://")
	f("1 of its 2 targets are h2c", "http://a:1", "h2c://b:2")
}

// Without a file descriptor of the gateway's own nobody knows how the target is: neither a request nor a check counts.
func TestNoMeansForAConnection(t *testing.T) {
	for _, lack := range []error{
		os.NewSyscallError("socket", syscall.EMFILE),
		&net.DNSError{Err: "dial udp 192.0.2.1:53: socket: too many open files in system", Name: "a"},
	} {
		u := makeUpstream(t, config.Upstream{
			Targets: []string{"http://a", "http://b"}, Eject: config.Eject{Failures: 1, For: policy.Duration(time.Hour)},
		}, io.Discard, nil)
		u.shared.transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: lack}
		}
		w, call := httptest.NewRecorder(), new(Call)
		u.Serve(w, httptest.NewRequest(http.MethodGet, "/", nil), call)
		if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "file descriptor") || call.Failure != "gateway_limits" {
			t.Errorf("%v: %d %s, %q; want 503 and why", lack, w.Code, w.Body, call.Failure)
		}
		if got := picks(t, u, 2); got != "ab" && got != "ba" {
			t.Errorf("%v: requests go to %s afterwards, want both targets", lack, got)
		}
	}
}

// A target for which this host has no address is one that cannot be reached: others are tried, and it is ejected. What lacks
// memory after it is connected has failed.
func TestNoAddressForATarget(t *testing.T) {
	unreachable := os.NewSyscallError("connect", syscall.EADDRNOTAVAIL)
	for want, err := range map[failure]error{
		failedConnect: &net.OpError{Op: "dial", Net: "tcp", Err: unreachable},
		failedReset:   &net.OpError{Op: "write", Net: "tcp", Err: os.NewSyscallError("write", syscall.ENOBUFS)},
	} {
		u := newTestUpstream(t, "http://a")
		x := &exchange{upstream: u, choice: choice{seat: u.seats[0]}, call: new(Call), client: t.Context()}
		if f, o := x.diagnose(err); f != want || o != weir.Failed {
			t.Errorf("%v: failure %v and %v, want %v", err, f, o, want)
		}
	}
}

// shut is a connection that breaks after some bytes, as one does that the other side closes without reading.
type shut struct {
	net.Conn // nil
	left     int
	closed   chan struct{}
	once     sync.Once
}

func (c *shut) Write(p []byte) (int, error) {
	if c.left -= len(p); c.left < 0 {
		return 0, &net.OpError{Op: "write", Net: "tcp", Err: os.NewSyscallError("write", syscall.EPIPE)}
	}
	return len(p), nil
}

func (c *shut) Read([]byte) (int, error) {
	<-c.closed
	return 0, net.ErrClosed
}

func (c *shut) Close() error {
	c.once.Do(func() { close(c.closed) })
	return nil
}

// shutTCP is such a connection of TCP, to which a body goes by ReadFrom.
type shutTCP struct{ *net.TCPConn }

func dialShutTCP(t *testing.T) net.Conn {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return shutTCP{c.(*net.TCPConn)}
}

func (c shutTCP) ReadFrom(r io.Reader) (int64, error) {
	_ = c.CloseWrite() // so that a write fails, as on a connection that was reset
	return c.TCPConn.ReadFrom(r)
}

// A connection that breaks in the middle of an upload ejects no target: it may have answered 413 and closed. Without a
// body, there is nothing that a client has done.
func TestUploadThatIsCutOff(t *testing.T) {
	body := strings.Repeat("x", 100_000)
	f := func(what, body string, ejects bool, conn net.Conn) {
		t.Helper()
		u := makeUpstream(t, config.Upstream{
			Targets: []string{"http://a", "http://b"}, Eject: config.Eject{Failures: 1, For: policy.Duration(time.Hour)},
		}, io.Discard, nil)
		u.shared.transport.DialContext = func(context.Context, string, string) (net.Conn, error) { return conn, nil }
		w := httptest.NewRecorder()
		u.Serve(w, httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body)), &Call{})
		if s := u.Stats()[0]; w.Code != http.StatusBadGateway || s.Failures["reset"] != 1 || s.Ejected != ejects {
			t.Errorf("%s: %d, %+v; want ejected: %v", what, w.Code, s, ejects)
		}
	}
	f("no body", "", true, &shut{closed: make(chan struct{})})
	f("half a body", body, false, &shut{left: len(body) / 2, closed: make(chan struct{})})
	f("a body over TCP", body, false, dialShutTCP(t))
}

// newTestUpstream returns an upstream that leaves targets out after 3 failures,
// for 10 s.
func newTestUpstream(t *testing.T, targets ...string) *Upstream {
	t.Helper()
	return makeUpstream(t, config.Upstream{
		Targets: targets, Eject: config.Eject{Failures: 3, For: policy.Duration(10 * time.Second)},
	}, io.Discard, nil)
}

// picks says which targets n requests in a row go to, by the last letter of
// their host.
func picks(t *testing.T, u *Upstream, n int) string {
	t.Helper()
	var b strings.Builder
	for range n {
		c, err := u.pick(context.Background(), weir.Work{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		b.WriteString(c.seat.url.Hostname())
	}
	return b.String()
}

func TestEjection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newTestUpstream(t, "http://a", "http://b")
		fail := func(i, n int) {
			for range n {
				u.recordFailure(&exchange{call: new(Call), choice: choice{seat: u.seats[i]}}, failedConnect, errors.New("refused"))
			}
		}
		check := func(when, want string) {
			t.Helper()
			if got := picks(t, u, len(want)); got != want {
				t.Errorf("%s: requests go to %s, want %s", when, got, want)
			}
		}
		check("at first", "abab")
		fail(0, 2)
		u.seats[0].succeeded()
		fail(0, 2)
		check("two in a row twice, with a success between", "abab")
		fail(0, 1)
		check("three in a row", "bbbb")
		fail(1, 3)
		check("the last one left fails too: it stays", "bbbb")
		if st := u.Stats(); st[1].Ejected || st[1].Ejections != 0 || !st[0].Ejected || st[0].Ejections != 1 {
			t.Errorf("stats %+v", st)
		}
		if out := u.LeftOut(); !slices.Equal(out, []string{"app@a"}) {
			t.Errorf("%q are left out", out)
		}
		u.seats[1].succeeded()

		time.Sleep(10 * time.Second)
		if got := picks(t, u, 6); strings.Count(got, "a") != 1 {
			t.Errorf("after 10 s requests go to %s, want one that tries a", got)
		}
		fail(0, 1)
		check("it failed again", "bbbb")
		time.Sleep(10 * time.Second)
		if got := picks(t, u, 2); !strings.Contains(got, "a") {
			t.Errorf("after another 10 s requests go to %s, want one that tries a", got)
		}
		if !u.seats[0].succeeded() || u.seats[0].succeeded() {
			t.Error("the first success brings it back, and only that one")
		}
		if got := picks(t, u, 4); got != "abab" && got != "baba" {
			t.Errorf("after a success: %s, want both in turn", got)
		}
	})
}

func TestRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newTestUpstream(t, "http://a")
		u.Expect(100 * time.Millisecond)
		x := &exchange{call: new(Call), upstream: u, started: u.now(), deadline: u.now() + time.Second}
		f := func(want time.Duration) {
			t.Helper()
			if got := x.expectedEnd(u.now(), 0, 1) - u.now(); got != want {
				t.Errorf("after %v: %v to go, want %v", u.now()-x.started, got, want)
			}
		}
		f(100 * time.Millisecond)
		time.Sleep(50 * time.Millisecond)
		f(100 * time.Millisecond)
		time.Sleep(350 * time.Millisecond)
		f(400 * time.Millisecond)
		time.Sleep(400 * time.Millisecond)
		f(200 * time.Millisecond) // the response time-out is near
		u.Expect(0)
		f(200 * time.Millisecond)
		x.deadline = 0
		u.Expect(time.Second)
		f(time.Second)
	})
}

func TestReloadKeepsTargets(t *testing.T) {
	old := newTestUpstream(t, "http://a", "http://b")
	old.seats[1].requests.Add(7)
	next := makeUpstream(t, config.Upstream{Targets: []string{"http://b", "http://c"}}, io.Discard, old)
	st := next.Stats()
	if st[0].Target != "http://b" || st[0].Requests != 7 || st[1].Requests != 0 {
		t.Errorf("stats %+v; want b with its 7 requests, and a new c", st)
	}
	if next.shared.transport != old.shared.transport {
		t.Error("the connections were thrown away although nothing about them has changed")
	}
}

// The time in which the upstream waited for the client is no work.
func TestRestOfAnUpload(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newTestUpstream(t, "http://a")
		u.Expect(100 * time.Millisecond)
		x := &exchange{call: new(Call), upstream: u, started: u.now(), deadline: u.now() + time.Hour}
		time.Sleep(200 * time.Millisecond)
		x.pause()
		time.Sleep(time.Minute)
		x.resume()
		x.pause()
		time.Sleep(time.Minute)
		if got, want := x.expectedEnd(u.now(), 0, 1)-u.now(), 200*time.Millisecond; got != want {
			t.Errorf("%v to go, want %v", got, want)
		}
	})
}

func TestTargetGates(t *testing.T) {
	got := targetGates("app", []string{
		"http://h:1", "https://h:1", "https://h:2", "h2c://h:3", "http://h:1/a", "http://h:4", "https://h:4/b", "HTTPS://h:4",
	})
	want := map[string]string{
		"http://h:1": "app@h:1", "https://h:1": "app@https://h:1", "https://h:2": "app@h:2", "h2c://h:3": "app@h:3",
		"http://h:1/a": "app@h:1/a", "http://h:4": "app@h:4", "https://h:4/b": "app@h:4/b", "HTTPS://h:4": "app@https://h:4",
	}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
