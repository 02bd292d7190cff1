package weirhttp

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/slot"
)

// fakeGate is a gate of n slots with an unbounded wait room. It remembers the outcome of each permit.
type fakeGate struct {
	slots chan struct{}
	group slot.Group

	mu       sync.Mutex
	refuse   error
	admitted int
	inFlight int
	waiting  int
	sampled  []weir.Outcome
	works    []weir.Work
	idle     sync.Cond
}

func newFakeGate(n int) *fakeGate {
	g := &fakeGate{slots: make(chan struct{}, n)}
	g.idle.L = &g.mu
	g.group.Holder = g
	g.group.Attention.Store(1)
	for range n {
		g.slots <- struct{}{}
	}
	return g
}

func (g *fakeGate) Admit(ctx context.Context, w weir.Work) (weir.Permit, error) {
	if p, ok := weir.Nested(ctx, g); ok {
		return p, nil
	}
	g.mu.Lock()
	g.works = append(g.works, w)
	refuse := g.refuse
	if refuse == nil {
		g.waiting++
	}
	g.idle.Broadcast()
	g.mu.Unlock()
	if refuse != nil {
		return weir.Permit{}, refuse
	}
	var err error
	select {
	case <-g.slots:
	case <-ctx.Done():
		err = &weir.Rejection{Gate: "fake", Reason: weir.ReasonCanceled, Cause: ctx.Err()}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting--
	g.idle.Broadcast()
	if err != nil {
		return weir.Permit{}, err
	}
	g.inFlight++
	g.admitted++
	s := new(slot.Slot)
	s.Init(&g.group, 0)
	return weir.NewPermit(s.Issue()), nil
}

func (g *fakeGate) Done(t slot.Ticket, outcome uint8) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if t.MarkSampled() {
		g.sampled = append(g.sampled, weir.Outcome(outcome))
	}
	if live, _ := t.Recall(); live {
		g.inFlight--
		g.slots <- struct{}{}
		g.idle.Broadcast()
	}
}

func (g *fakeGate) Sample(t slot.Ticket, outcome uint8) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if t.MarkSampled() {
		g.sampled = append(g.sampled, weir.Outcome(outcome))
	}
}

func (g *fakeGate) Cancel(t slot.Ticket)               { g.Done(t, uint8(weir.NoSample)) }
func (g *fakeGate) SetCost(slot.Ticket, string, int64) {}

// await returns once ok holds. ok is called with g.mu held.
func (g *fakeGate) await(ok func() bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for !ok() {
		g.idle.Wait()
	}
}

// settled waits until n requests have been admitted and all have ended.
func (g *fakeGate) settled(n int) {
	g.await(func() bool { return g.admitted == n && g.inFlight == 0 })
}

func (g *fakeGate) outcomes() []weir.Outcome {
	g.mu.Lock()
	defer g.mu.Unlock()
	return append([]weir.Outcome(nil), g.sampled...)
}

func (g *fakeGate) held() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.inFlight
}

// serve starts a real server on the loopback interface.
func serve(t testing.TB, protocol string, h http.Handler) *httptest.Server {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	if protocol == "HTTP/2.0" {
		srv.EnableHTTP2 = true
		srv.StartTLS()
	} else {
		srv.Start()
	}
	t.Cleanup(srv.Close)
	return srv
}

// protocols are those that tests run over.
var protocols = []string{"HTTP/1.1", "HTTP/2.0"}

// pipes is a listener and dialer whose connections are pipes without buffers,
// so that a server and its clients run on a bubble's time and a client that
// does not read blocks the first write.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.conns <- server:
		return client, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// inBubble runs fn in a bubble with an HTTP/1.1 client of a server for h.
func inBubble(t *testing.T, h http.Handler, fn func(t *testing.T, client *http.Client, dial func() net.Conn)) {
	t.Helper()
	inBubbleOver(t, "HTTP/1.1", h, fn)
}

// inBubbleOver is inBubble over a protocol of the caller's choice.
func inBubbleOver(t *testing.T, protocol string, h http.Handler, fn func(t *testing.T, client *http.Client, dial func() net.Conn)) {
	t.Helper()
	inBubbleWith(t, protocol, &http.Server{Handler: h}, fn)
}

// inBubbleWith is inBubbleOver with the settings of srv.
func inBubbleWith(t *testing.T, protocol string, srv *http.Server, fn func(t *testing.T, client *http.Client, dial func() net.Conn)) {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetHTTP1(protocol == "HTTP/1.1")
	protocols.SetUnencryptedHTTP2(protocol == "HTTP/2.0")
	synctest.Test(t, func(t *testing.T) {
		l := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
		srv.ErrorLog, srv.Protocols = log.New(io.Discard, "", 0), protocols
		go srv.Serve(l)
		transport := &http.Transport{DialContext: l.dial, Protocols: protocols}
		fn(t, &http.Client{Transport: transport}, func() net.Conn {
			c, err := l.dial(t.Context(), "", "")
			if err != nil {
				t.Fatal(err)
			}
			return c
		})
		transport.CloseIdleConnections()
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
	})
}

// mustGet fetches a URL and reads the whole answer.
func mustGet(t *testing.T, c *http.Client, url string) (*http.Response, string) {
	t.Helper()
	resp, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, string(body)
}

// read fetches a URL to its end, and ignores errors.
func read(c *http.Client, url string) {
	resp, err := c.Get(url)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
}
