package server

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/weirhttp"
)

// worker is an upstream that reads bodies and then works.
type worker struct {
	url            string
	now, most, all atomic.Int64
	broken         atomic.Int64 // bodies that were never complete
}

func newWorker(t *testing.T, work time.Duration) *worker {
	t.Helper()
	wk := new(worker)
	wk.url = upstreamOf(t, func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			wk.broken.Add(1)
			return
		}
		n := wk.now.Add(1)
		defer wk.now.Add(-1)
		for most := wk.most.Load(); n > most && !wk.most.CompareAndSwap(most, n); most = wk.most.Load() {
		}
		wk.all.Add(1)
		await.Work(work)
		fmt.Fprint(w, "done")
	}).URL
	return wk
}

// slowClient sends uploads that stop before their end.
type slowClient struct {
	*http.Client
	url    string
	length int64 // announced; -1: none
	finish chan struct{}
	status chan *http.Response
	group  sync.WaitGroup
}

// uploadBytes is more than the gateway reads before it admits a request, and than
// the buffers of a client hold back.
const uploadBytes = bufferedBody + 8<<10

func newSlowClient(t *testing.T, url, protocol string, length int64) *slowClient {
	t.Helper()
	tr := &http.Transport{Protocols: new(http.Protocols)}
	tr.Protocols.SetHTTP1(protocol == "HTTP/1.1")
	tr.Protocols.SetUnencryptedHTTP2(protocol == "HTTP/2.0")
	t.Cleanup(tr.CloseIdleConnections)
	return &slowClient{
		Client: &http.Client{Transport: tr, Timeout: time.Minute}, url: url, length: length,
		finish: make(chan struct{}), status: make(chan *http.Response, 100),
	}
}

// begin sends all but the last byte of a body, and keeps quiet then.
func (c *slowClient) begin(t *testing.T, tail string) {
	c.group.Go(func() {
		r, w := io.Pipe()
		defer r.Close()
		go func() {
			_, _ = io.WriteString(w, strings.Repeat("a", uploadBytes-len(tail)))
			<-c.finish
			_, _ = io.WriteString(w, tail)
			_ = w.Close()
		}()
		req, err := http.NewRequest(http.MethodPost, c.url, r)
		if err != nil {
			t.Error(err)
			return
		}
		req.ContentLength = c.length
		res, err := c.Do(req)
		if err != nil {
			c.status <- &http.Response{Status: err.Error()} // which no test wants
			return
		}
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		c.status <- res
	})
}

// end sends the rest of all bodies and returns how often each status came.
func (c *slowClient) end() map[int]int {
	close(c.finish)
	c.group.Wait()
	close(c.status)
	statuses := make(map[int]int)
	for res := range c.status {
		statuses[res.StatusCode]++
	}
	return statuses
}

// Bodies that stall give their slots up, and when they are complete the upstream
// has no more of them to work on than its gate allows.
func TestStalledBodiesComeBackThroughTheGate(t *testing.T) {
	t.Parallel()
	f := func(name, protocol string, length int64, target bool) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stalledBodies(t, protocol, length, target)
		})
	}
	f("HTTP/1 gate", "HTTP/1.1", uploadBytes, false)
	f("HTTP/1 target, chunked", "HTTP/1.1", -1, true)
	f("HTTP/2 target", "HTTP/2.0", uploadBytes, true)
	f("HTTP/2 gate, chunked", "HTTP/2.0", -1, false)
}

func stalledBodies(t *testing.T, protocol string, length int64, target bool) {
	const limit, n = 4, 24
	wk := newWorker(t, 20*time.Millisecond)
	cfg := baseConfig(t, wk.url)
	cfg.Listeners[0].H2C = true
	guarded := gateName
	change(cfg, func(u *config.Upstream, l *policy.LimitSpec) {
		l.Limit = n
		// How fast slots come back was measured while the bodies stalled, and says
		// nothing about the worker: no longest wait to hold that against.
		l.Queue = policy.QueueSpec{Len: n, MaxWait: policy.NoDuration}
		if target {
			bound := *l
			u.Limit = &bound
			guarded = gateName + "@" + strings.TrimPrefix(wk.url, "http://")
		}
	})
	g := start(t, cfg, Options{})
	c := newSlowClient(t, g.url, protocol, length)
	for range n {
		c.begin(t, "z")
	}
	eventually(t, "all stalled bodies are streams and hold no slot", func() bool {
		return g.streams.Snapshot().Open == n && g.gate().InFlight == 0 && g.Policy().Gate(guarded).Snapshot().InFlight == 0
	})
	if err := g.Policy().Gate(guarded).Limiter().SetLimit(limit); err != nil {
		t.Fatal(err)
	}
	statuses := c.end()
	if statuses[http.StatusOK] != n || wk.all.Load() != n {
		t.Errorf("statuses %v, %d done, want all %d", statuses, wk.all.Load(), n)
	}
	if most := wk.most.Load(); most > limit {
		t.Errorf("%d at work in an upstream with a limit of %d", most, limit)
	}
	g.idle()
}

// A complete body that finds no slot is refused, and the upstream never sees it
// complete.
func TestCompleteBodyIsRefused(t *testing.T) {
	t.Parallel()
	f := func(name, protocol string, length int64) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refusedBody(t, protocol, length)
		})
	}
	f("HTTP/1", "HTTP/1.1", uploadBytes)
	f("HTTP/1, chunked", "HTTP/1.1", -1)
	f("HTTP/2", "HTTP/2.0", uploadBytes)
}

func refusedBody(t *testing.T, protocol string, length int64) {
	wk := newWorker(t, 0)
	cfg := baseConfig(t, wk.url)
	cfg.Listeners[0].H2C = true
	change(cfg, func(_ *config.Upstream, l *policy.LimitSpec) {
		l.Limit = 1
		l.Queue = policy.QueueSpec{Len: 1, MaxWait: policy.Duration(30 * time.Millisecond)}
	})
	g := start(t, cfg, Options{})
	c := newSlowClient(t, g.url, protocol, length)
	c.begin(t, "zz")
	eventually(t, "it is a stream", func() bool { return g.streams.Snapshot().Open == 1 && g.gate().InFlight == 0 })
	p, err := g.Policy().Gate(gateName).TryAdmit(weir.Work{})
	if err != nil {
		t.Fatal(err)
	}
	close(c.finish)
	res := <-c.status
	if res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" ||
		res.Header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("%s, %v", res.Status, res.Header)
	}
	eventually(t, "the upstream has lost the request", func() bool { return wk.broken.Load() == 1 })
	p.Done(weir.NoSample)
	g.idle()
	if n := wk.all.Load(); n != 0 {
		t.Errorf("the upstream worked on %d refused requests", n)
	}
	if st := g.Upstreams()[0].Stats()[0]; st.Ejected || st.Failures["reset"] != 0 {
		t.Errorf("the target was blamed: %+v", st)
	}
}

// Over HTTP/2 a body of announced length may be complete long before its end is.
func TestCompleteBodyWithoutAnEnd(t *testing.T) {
	gate, err := limit.New(limit.Config{Name: "test", Controller: control.Fixed(1)})
	if err != nil {
		t.Fatal(err)
	}
	streams := weirhttp.NewStreams(weirhttp.StreamsConfig{})
	held := func() [2]int64 { return [2]int64{gate.Snapshot().InFlight, streams.Snapshot().Open} }
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", strings.NewReader("ab"))
	u := newUpload(w, r, time.Minute)
	weirhttp.NewGuard(weirhttp.WithStreams(streams)).Serve(w, r, gate, weir.Work{}, func(_ http.ResponseWriter, r *http.Request, q *weirhttp.Request) {
		u.admitted(r.Context(), q, weir.Work{}, func() bool { return false })
		u.reading = true
		u.timeIsUp()
		steps := []struct {
			want [2]int64
			err  error
		}{{[2]int64{0, 1}, nil}, {[2]int64{1, 0}, nil}, {[2]int64{1, 0}, io.EOF}}
		for i, step := range steps {
			if _, err := u.Read(make([]byte, 1)); err != step.err || held() != step.want {
				t.Errorf("read %d: %v, slots and streams %v, want %v and %v", i+1, err, held(), step.err, step.want)
			}
			u.timeIsUp() // what comes now is no business of the client
		}
	})
}

// deadlines is a ResponseWriter that tells of its read deadline.
type deadlines struct {
	http.ResponseWriter
	read time.Time
}

func (d *deadlines) SetReadDeadline(t time.Time) error {
	d.read = t
	return nil
}

// reads is a body.
type reads func(p []byte) (int, error)

func (f reads) Read(p []byte) (int, error) { return f(p) }

// Only the time in which somebody reads a body is its client's. Over HTTP/2 no deadline stays: it would end the
// body while nobody reads. When the handler has returned, the connection is left alone.
func TestDeadlineOfABody(t *testing.T) {
	for _, major := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			var left, takes time.Duration
			w := new(deadlines)
			r := httptest.NewRequest(http.MethodPost, "/", reads(func(p []byte) (int, error) {
				left = time.Until(w.read)
				time.Sleep(takes)
				return len(p), nil
			}))
			r.ProtoMajor = major
			u := newUpload(w, r, 10*time.Second)
			for i, step := range []struct{ after, takes, left time.Duration }{
				{time.Minute, 0, 10 * time.Second}, // it has waited for its slot
				{time.Minute, 4 * time.Second, 10 * time.Second},
				{time.Minute, 5 * time.Second, 8 * time.Second}, // four seconds are gone, and two were earned
				{0, time.Second, 4 * time.Second},
			} {
				time.Sleep(step.after)
				takes = step.takes
				if _, err := u.Read(make([]byte, uploadRate)); err != nil || left != step.left {
					t.Errorf("HTTP/%d, read %d: %v left, want %v; %v", major, i, left, step.left, err)
				}
				if w.read.IsZero() != (major == 2) {
					t.Errorf("HTTP/%d, after read %d: the deadline is %v", major, i, w.read)
				}
			}
			u.end()
			before := w.read
			if _, err := u.Read(make([]byte, 1)); err != nil || w.read != before {
				t.Errorf("HTTP/%d, after the handler: the deadline is %v, %v", major, w.read, err)
			}
		})
	}
}

// net/http's transport may read a body whose handler has returned. Over HTTP/2 there is no connection any more then.
func TestBodyOutlivesItsHandler(t *testing.T) {
	bodies := make(chan *upload, 1)
	front := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := &request{ResponseWriter: w, body: newUpload(w, r, time.Minute)}
		defer new(Server).finished(q, r)
		bodies <- q.body
	}))
	front.EnableHTTP2 = true
	front.StartTLS()
	defer front.Close()
	body, more := io.Pipe()
	defer more.Close()
	res, err := front.Client().Post(front.URL, "text/plain", body)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	front.Close()
	if n, err := (<-bodies).Read(make([]byte, 1)); err == nil || res.ProtoMajor != 2 {
		t.Errorf("read %d bytes over %s, %v", n, res.Proto, err)
	}
}

// A body that waits for its slot longer than a client may be silent is no slow body.
func TestBodyThatHasWaited(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		for _, length := range []int64{uploadBytes, -1} {
			t.Run(fmt.Sprint(protocol, length), func(t *testing.T) {
				t.Parallel()
				wk := newWorker(t, 0)
				cfg := baseConfig(t, wk.url)
				cfg.Listeners[0].H2C = true
				cfg.Listeners[0].ReadTimeout = policy.Duration(time.Second)
				change(cfg, func(_ *config.Upstream, l *policy.LimitSpec) {
					l.Limit = 1
					l.Queue = policy.QueueSpec{Len: 1, MaxWait: policy.NoDuration}
				})
				g := start(t, cfg, Options{})
				p, err := g.Policy().Gate(gateName).TryAdmit(weir.Work{})
				if err != nil {
					t.Fatal(err)
				}
				c := newSlowClient(t, g.url, protocol, length)
				close(c.finish)
				c.begin(t, "z")
				eventually(t, "it waits", func() bool { return g.gate().Waiting == 1 })
				await.Work(2 * time.Second)
				p.Done(weir.NoSample)
				if res := <-c.status; res.StatusCode != http.StatusOK {
					t.Error(res.Status)
				}
				c.group.Wait()
				g.idle()
				if n := g.streams.Snapshot().Moved; n != 0 {
					t.Errorf("it has lost its slot %d times", n)
				}
			})
		}
	}
}

// A body that trickles is never silent for long, and gives its slot up too.
func TestTricklingBodyGivesItsSlotUp(t *testing.T) {
	t.Parallel()
	wk := newWorker(t, 0)
	cfg := baseConfig(t, wk.url)
	cfg.Listeners[0].ReadTimeout = policy.Duration(time.Minute) // no machine stands still for so long
	g := start(t, cfg, Options{})
	r, w := io.Pipe()
	done := make(chan *http.Response, 1)
	go func() {
		res, err := http.Post(g.url, "text/plain", r)
		if err != nil {
			t.Error(err)
		}
		done <- res
	}()
	_, _ = io.WriteString(w, strings.Repeat("a", uploadBytes))
	began := time.Now()
	await.Holds(await.Patience, func() bool {
		_, _ = io.WriteString(w, "a")
		return g.streams.Snapshot().Open > 0
	})
	// A second of patience, and as long as so many bytes take at slotRate.
	if took := time.Since(began); took > 30*time.Second || g.gate().InFlight != 0 {
		t.Errorf("a body of a byte every 20 ms held its slot for %v", took)
	}
	_ = w.Close()
	if res := <-done; res == nil || res.StatusCode != http.StatusOK {
		t.Errorf("%+v", res)
	}
	g.idle()
	if n := g.gate().Outcomes[weir.OK]; n != 1 {
		t.Errorf("outcomes %v, want the answer counted", g.gate().Outcomes)
	}
}

// A body that comes fast keeps its slot to the end.
func TestFastBodyKeepsItsSlot(t *testing.T) {
	wk := newWorker(t, 0)
	g := start(t, baseConfig(t, wk.url), Options{})
	res, err := http.Post(g.url, "text/plain", strings.NewReader(strings.Repeat("a", 8<<20)))
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	g.idle()
	if s := g.streams.Snapshot(); res.StatusCode != http.StatusOK || s.Moved != 0 {
		t.Errorf("%s, %d moved, want none", res.Status, s.Moved)
	}
}

// beforeAServerThatWorks is a gateway with one slot before a server that does not read bodies, and works until the test is over.
func beforeAServerThatWorks(t *testing.T) (cfg *config.Config, arrived <-chan struct{}) {
	t.Helper()
	came, release := make(chan struct{}, 1), make(chan struct{})
	up := upstreamOf(t, func(http.ResponseWriter, *http.Request) {
		came <- struct{}{}
		<-release
	})
	t.Cleanup(func() { close(release) }) // before the server is closed
	cfg = baseConfig(t, up.URL)
	change(cfg, func(u *config.Upstream, l *policy.LimitSpec) {
		u.ResponseTimeout, l.Limit, l.Queue.Len = policy.Duration(2*time.Hour), 1, -1
	})
	return cfg, came
}

// A client that breaks off its upload makes no room by that: a server that does not read works on.
// The slot is held for as long as its work usually takes, and before the first answer as long as it
// may take.
func TestBrokenUpload(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		expect time.Duration // what earlier answers took; 0: there were none
		change func(*config.Upstream)
		held   bool
	}{
		{"work that takes an hour", time.Hour, nil, true},
		{"before the first answer", 0, nil, true},
		{"quick work", time.Millisecond, nil, false},
		{"release", time.Hour, func(u *config.Upstream) { u.OnAbandon = config.Release }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cfg, arrived := beforeAServerThatWorks(t)
			if tt.change != nil {
				change(cfg, func(u *config.Upstream, _ *policy.LimitSpec) { tt.change(u) })
			}
			g := start(t, cfg, Options{})
			g.Upstreams()[0].Expect(tt.expect)
			c := dial(t, g.Addr(), "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 1048576\r\n\r\n"+strings.Repeat("x", uploadBytes))
			<-arrived
			_ = c.Close()
			eventually(t, "the gateway is done with it", func() bool { return g.InFlight() == 0 })
			if !tt.held {
				g.idle()
				return
			}
			if n := g.gate().InFlight; n != 1 {
				t.Fatalf("%d in flight, and the server works on one", n)
			}
			if res, body := get(t, g.url); res.StatusCode != http.StatusServiceUnavailable {
				t.Errorf("%s %s, want 503: the server works on", res.Status, body)
			}
		})
	}
}

// A body that stalls without a place among the streams is broken off when no slot is free, and not before: at a gate, at
// its pool there, or at a target.
func TestStalledBodiesWithoutAPlace(t *testing.T) {
	t.Parallel()
	two := policy.LimitSpec{Limit: 2, Queue: policy.QueueSpec{Len: 10, MaxWait: policy.Duration(time.Minute)}}
	for name, limit := range map[string]func(*config.Config){
		"a gate": func(cfg *config.Config) { cfg.Gates[gateName] = policy.GateSpec{Limit: &two} },
		"a pool": func(cfg *config.Config) {
			cfg.Gates[gateName] = policy.GateSpec{Limit: &two, Each: &policy.EachSpec{By: "user"}}
		},
		"a target": func(cfg *config.Config) {
			change(cfg, func(u *config.Upstream, _ *policy.LimitSpec) { u.Limit = &two })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := baseConfig(t, newWorker(t, 0).url)
			cfg.Identity.Trusted = []string{}
			cfg.Streams.Max = 2                                       // one for each user
			cfg.Listeners[0].ReadTimeout = policy.Duration(time.Hour) // which would end a body, too
			limit(cfg)
			cfg.Gates["watched"] = policy.GateSpec{Limit: &policy.LimitSpec{Limit: 1}, Mode: policy.Observe} // which breaks nothing off
			cfg.Routes[0].Gates = append([]string{"watched"}, cfg.Routes[0].Gates...)
			g := start(t, cfg, Options{})
			g.Upstreams()[0].Expect(time.Nanosecond) // or slots of what is broken off are held
			stalledWithoutAPlace(t, g)
		})
	}
}

func stalledWithoutAPlace(t *testing.T, g *running) {
	const rest = 65536 - uploadBytes
	stall := func() net.Conn {
		return dial(t, g.Addr(), "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 65536\r\n\r\n"+strings.Repeat("x", uploadBytes))
	}
	stall()
	eventually(t, "the first is a stream", func() bool { return g.streams.Snapshot().Open == 1 && g.gate().InFlight == 0 })
	others := []net.Conn{stall()}
	eventually(t, "the second finds no place", func() bool { return g.streams.Snapshot().Overflowed == 1 })
	if n := g.gate().InFlight; n != 1 {
		t.Errorf("%d in flight while a slot is free, want the second", n)
	}
	others = append(others, stall())
	answers := make(chan string, len(others))
	for _, c := range others {
		go func() {
			res, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				answers <- err.Error()
				return
			}
			answers <- res.Status
		}()
	}
	if got := <-answers; got != "408 Request Timeout" {
		t.Errorf("one of two, while both slots are taken: %s, want 408", got)
	}
	for _, c := range others { // one of which is closed
		_, _ = io.WriteString(c, strings.Repeat("x", rest))
	}
	if got := <-answers; got != "200 OK" {
		t.Errorf("the other one, when it is complete: %s, want 200", got)
	}
	eventually(t, "all slots are free", func() bool { return g.gate().InFlight == 0 })
}

// The body of a GET that stalls is broken off, and its slot is kept: the server may have begun without it.
func TestStalledBodyOfAGet(t *testing.T) {
	t.Parallel()
	cfg, arrived := beforeAServerThatWorks(t)
	g := start(t, cfg, Options{})
	g.Upstreams()[0].Expect(time.Hour)
	c := dial(t, g.Addr(), "GET / HTTP/1.1\r\nHost: test\r\nContent-Length: 1048576\r\n\r\n"+strings.Repeat("x", uploadBytes))
	<-arrived
	res, err := http.ReadResponse(bufio.NewReader(c), nil) // nothing more is sent
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusRequestTimeout {
		t.Errorf("%s, want 408", res.Status)
	}
	if n, open := g.gate().InFlight, g.streams.Snapshot().Open; n != 1 || open != 0 {
		t.Errorf("%d in flight and %d streams, and the server works on one", n, open)
	}
}
