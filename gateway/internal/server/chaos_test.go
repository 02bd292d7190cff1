package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir/gateway/internal/await"
	"github.com/weir-go/weir/gateway/internal/config"
)

// Clients, targets and reloads do what they like, at random. Nobody gets the answer to the request of another. In the end
// every slot is free, nobody waits, and no goroutine is left. make soak-http does it for longer, with other seeds.
func TestChaos(t *testing.T) {
	inChaos(t, func(t *testing.T, seed uint64) {
		before := runtime.NumGoroutine()
		targets := chaosTargets(t)
		src := new(source)
		text := chaosConfigs(closedPort(t), targets)
		g := startChaos(t, src, text[0])
		var clients sync.WaitGroup
		var sent, answered atomic.Int64
		for i := range 12 {
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			clients.Go(func() {
				c := &chaosClient{t: t, random: random, addr: g.Addr().String()}
				defer c.leave()
				for range 60 {
					sent.Add(1)
					if c.ask() {
						answered.Add(1)
					}
				}
			})
		}
		stop := reloading(t, g, src, text, rand.New(rand.NewPCG(seed, 1000)), func(random *rand.Rand) {
			if random.IntN(3) == 0 {
				targets[random.IntN(len(targets))].CloseClientConnections()
			}
		})
		clients.Wait()
		reloads := stop()
		g.settles(sent.Load(), answered.Load())
		for _, u := range targets {
			u.Close()
		}
		noMoreGoroutines(t, before)
		t.Logf("%d of %d answered, %d reloads", answered.Load(), sent.Load(), reloads)
	})
}

// inChaos runs a test with one seed, or with WEIR_LONG=1 with some that nobody has tried.
func inChaos(t *testing.T, fn func(t *testing.T, seed uint64)) {
	rounds, seed := 1, uint64(1)
	if os.Getenv("WEIR_LONG") != "" {
		rounds, seed = 20, rand.Uint64()
	}
	for range rounds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { fn(t, seed) })
		seed++
	}
}

// startChaos starts a gateway that will read its configuration from src.
func startChaos(t *testing.T, src *source, text string) *running {
	src.set(func() (*config.Config, error) { return config.Parse("weir.yaml", []byte(text)) })
	first, err := src.load()
	if err != nil {
		t.Fatal(err)
	}
	return start(t, first, Options{Load: src.load})
}

// reloading has the gateway read one of the texts again and again, and does more in between. stop returns how often.
func reloading(t *testing.T, g *running, src *source, text []string, random *rand.Rand, more func(*rand.Rand)) (stop func() int) {
	stopped, reloads := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		defer func() { reloads <- n }()
		for {
			select {
			case <-stopped:
				return
			case <-time.After(time.Duration(random.IntN(100)) * time.Millisecond):
			}
			next := []byte(text[random.IntN(len(text))])
			src.set(func() (*config.Config, error) { return config.Parse("weir.yaml", next) })
			if err := g.Reload(); err != nil {
				t.Error(err)
				return
			}
			n++
			more(random)
		}
	}()
	return func() int { close(stopped); return <-reloads }
}

// settles waits until every slot is free and every client's connection is closed, and stops the gateway.
func (g *running) settles(sent, answered int64) {
	g.t.Helper()
	g.idle()
	eventually(g.t, "no connection is left", func() bool { return g.Connections()[0].InFlight == 0 })
	if answered == 0 {
		g.t.Errorf("none of %d was answered: nothing is shown", sent)
	}
	if err := g.stop(); err != nil {
		g.t.Error(err)
	}
}

// noMoreGoroutines waits until there are no more goroutines than before.
func noMoreGoroutines(t *testing.T, before int) {
	if !await.Holds(await.Patience, func() bool { return runtime.NumGoroutine() <= before+2 }) {
		buf := make([]byte, 1<<20)
		t.Errorf("%d goroutines are left, %d before\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
	}
}

// chaosConfigs are configurations that differ in what gates, upstreams and routes do.
func chaosConfigs(listen string, targets []*httptest.Server) []string {
	plain, other, h2c := targets[0].URL, targets[1].URL, strings.Replace(targets[2].URL, "http:", "h2c:", 1)
	head := fmt.Sprintf("listeners: [{address: %s, h2c: true, read_timeout: 200ms, read_header_timeout: 200ms, write_timeout: 500ms}]\nadmin: off\n", listen)
	identity := "identity: {tenant: header:X-Tenant, user: header:X-User, priority: header:X-Priority}\n"
	return []string{
		head + identity + fmt.Sprintf(`
upstreams: {app: {targets: [%s, %s], response_timeout: 300ms, response_idle_timeout: 300ms}}
gates: {app: {limit: {queue: {len: 20, max_wait: 100ms}}}}
routes: [{match: [/], gates: [app], upstream: app}]
`, plain, other),
		head + identity + fmt.Sprintf(`
upstreams: {app: {targets: [%s, %s], balance: least_loaded, response_timeout: 300ms, response_idle_timeout: 300ms, limit: {limit: 3, queue: {len: 4, max_wait: 50ms}}, health_check: {path: /ok, interval: 1s}}}
gates:
  front: {shed: {load_of: app}}
  quota: {quota: {rate: 1000/s, burst: 20, by: [user], queue: {len: 10, max_wait: 50ms}}}
  app: {limit: {limit: 4, queue: {len: 8, max_wait: 100ms, shares: {background: 0.1}}}}
routes:
  - {match: [/], gates: [front, quota, app], upstream: app, cost: 2, settle: "header:X-Cost", timeout: 250ms}
  - {match: [/ok], upstream: app, gates: [app], exempt: true}
streams: {max: 2}
`, plain, other),
		head + identity + fmt.Sprintf(`
upstreams: {app: {targets: ["%s"], response_timeout: 300ms, response_idle_timeout: 300ms, on_client_disconnect: release}}
gates:
  app: {mode: observe, limit: {limit: 2, queue: {len: 2, max_wait: 20ms}}}
  each: {limit: {limit: 3, queue: {len: 4, max_wait: 50ms}}, each: {by: tenant, max_keys: 2}}
routes: [{match: [/], gates: [each, app], upstream: app, max_wait: 30ms}]
`, h2c),
		head + fmt.Sprintf(`
upstreams: {app: {targets: ["%s"], response_timeout: 300ms, response_idle_timeout: 300ms, limit: {limit: 5, queue: {len: 10, max_wait: 50ms}}, max_connections: 3, max_idle_connections: -1}}
gates: {other: {limit: {controller: probe, probe: {read_write: true}, queue: {len: 10, max_wait: 50ms}}}}
routes: [{match: [/], gates: [other], upstream: app}]
`, plain),
	}
}

// chaosTargets are servers of which nothing can be relied on. The last speaks HTTP/2 too.
func chaosTargets(t *testing.T) []*httptest.Server {
	var all []*httptest.Server
	for i := range 3 {
		s := httptest.NewUnstartedServer(http.HandlerFunc(chaosAnswer))
		if i == 2 {
			s.Config.Protocols = new(http.Protocols)
			s.Config.Protocols.SetHTTP1(true)
			s.Config.Protocols.SetUnencryptedHTTP2(true)
		}
		s.Config.ErrorLog = log.New(io.Discard, "", 0)
		s.Start()
		t.Cleanup(s.Close)
		all = append(all, s)
	}
	return all
}

func chaosAnswer(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Id", r.Header.Get("X-Id"))
	control := http.NewResponseController(w)
	switch what, _, _ := strings.Cut(r.URL.Path[1:], "/"); what {
	case "work":
		_, _ = io.Copy(io.Discard, r.Body)
		await.Work(time.Duration(rand.IntN(20)) * time.Millisecond)
		w.Header().Set("X-Cost", fmt.Sprint(rand.IntN(4)))
	case "hang":
		select {
		case <-r.Context().Done():
		case <-time.After(time.Second):
		}
	case "reset":
		panic(http.ErrAbortHandler)
	case "part":
		w.Header().Set("Content-Length", "1000")
		_, _ = io.WriteString(w, "part")
		_ = control.Flush()
		panic(http.ErrAbortHandler)
	case "stall":
		_, _ = io.WriteString(w, "part")
		_ = control.Flush()
		select {
		case <-r.Context().Done():
		case <-time.After(time.Second):
		}
	case "early":
		w.Header().Set("Link", "</a>")
		w.WriteHeader(http.StatusEarlyHints)
		_, _ = io.WriteString(w, "late")
	case "events":
		w.Header().Set("Content-Type", "text/event-stream")
		for range 5 {
			_, _ = io.WriteString(w, "data: x\n\n")
			if control.Flush() != nil || r.Context().Err() != nil {
				return
			}
			await.Work(5 * time.Millisecond)
		}
	case "large":
		_, _ = io.WriteString(w, strings.Repeat("x", 1<<20))
	case "fail":
		w.WriteHeader(http.StatusBadGateway)
	case "upgrade":
		if r.ProtoMajor == 2 || r.Header.Get("Upgrade") == "" {
			return
		}
		c, both, err := control.Hijack()
		if err != nil {
			return
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(time.Second))
		_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_, _ = io.CopyN(c, both, 4)
	}
}

// chaosPaths are what a client asks for, the harmless more often.
var chaosPaths = strings.Fields("ok ok ok ok work work work work work hang reset part stall early events large fail upgrade")

// chaosClient does at random what clients do. No answer that it gets may be to the request of somebody else.
type chaosClient struct {
	t      *testing.T
	random *rand.Rand
	addr   string
	n      uint64       // of the requests that had an id
	conn   *chaosConn   // of HTTP/1, nil if there is none
	held   []net.Conn   // which read nothing any more
	h2     *http.Client // nil if there is none
	ends   *ends        // the connections of h2
}

// chaosConn is a connection of HTTP/1.
type chaosConn struct {
	*net.TCPConn
	in      *bufio.Reader
	pending []chaosRequest
	written chan struct{} // closed when the last text is
}

// chaosRequest is a request without an answer.
type chaosRequest struct{ method, id string }

// id returns what a request is told apart by.
func (c *chaosClient) id() string {
	c.n++
	return fmt.Sprintf("%p-%d", c, c.n)
}

// ask sends a request, and reports whether an answer began.
func (c *chaosClient) ask() bool {
	if c.random.IntN(3) == 0 {
		return c.askHTTP2()
	}
	if c.conn == nil {
		conn, err := net.Dial("tcp", c.addr)
		if err != nil {
			c.t.Error(err)
			return false
		}
		c.conn = &chaosConn{TCPConn: conn.(*net.TCPConn), in: bufio.NewReader(conn)}
	}
	text, whole := c.text()
	conn, written := c.conn, make(chan struct{})
	conn.written = written
	go func() { // the gateway may answer before it has read all
		defer close(written)
		_, _ = io.WriteString(conn, text)
	}()
	return c.read(whole)
}

// text is what a request is sent as. whole says that another one may follow it.
func (c *chaosClient) text() (text string, whole bool) {
	path, whole := chaosPaths[c.random.IntN(len(chaosPaths))], true
	one := chaosRequest{[...]string{"GET", "POST", "HEAD", "PUT"}[c.random.IntN(4)], c.id()}
	c.conn.pending = append(c.conn.pending, one)
	text = fmt.Sprintf("%s /%s HTTP/1.1\r\nHost: x\r\nX-Id: %s\r\n%s", one.method, path, one.id, c.fields())
	if path == "upgrade" {
		text += "Connection: Upgrade\r\nUpgrade: echo\r\n"
		whole = false
	}
	switch c.random.IntN(8) {
	case 0:
		text += "Content-Length: 5\r\n\r\nhello"
	case 1:
		text += "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
	case 2:
		text += "Content-Length: 50\r\n\r\nhello" // and no more
		whole = false
	case 3:
		text += "Expect: 100-continue\r\nContent-Length: 5\r\n\r\n"
		if whole = whole && c.random.IntN(2) == 0; whole {
			text += "hello"
		}
	case 4:
		text += fmt.Sprintf("Content-Length: %d\r\n\r\n%s", 1<<17, strings.Repeat("x", 1<<17))
	default:
		text += "\r\n"
		for whole && c.random.IntN(2) == 0 { // pipelined
			next := chaosRequest{"GET", c.id()}
			c.conn.pending = append(c.conn.pending, next)
			text += "GET /ok HTTP/1.1\r\nHost: x\r\nX-Id: " + next.id + "\r\n\r\n"
		}
	}
	if c.random.IntN(10) == 0 {
		return text[:c.random.IntN(len(text))], false
	}
	return text, whole
}

func (c *chaosClient) fields() string {
	all := fmt.Sprintf("X-Tenant: t%d\r\nX-User: u%d\r\nX-Priority: %s\r\n", c.random.IntN(4), c.random.IntN(6), [...]string{"background", "normal", "high", "?"}[c.random.IntN(4)])
	if c.random.IntN(4) == 0 {
		all += fmt.Sprintf("X-Request-Timeout: %dms\r\n", c.random.IntN(100))
	}
	return all
}

// read reads some of what comes, and ends the connection in one of several ways, or keeps it.
func (c *chaosClient) read(whole bool) (answered bool) {
	conn, end := c.conn, c.random.IntN(6)
	c.conn = nil
	if end == 0 {
		_ = conn.Close()
		return false
	}
	_ = conn.SetReadDeadline(time.Now().Add(time.Duration(1+c.random.IntN(700)) * time.Millisecond))
	for whole && len(conn.pending) > 0 {
		ok := conn.readAnswer(c.t)
		answered, whole = answered || ok, ok
	}
	if !whole && !answered {
		n, _ := conn.in.Read(make([]byte, 4<<10))
		answered = n > 0
	}
	if whole {
		select {
		case <-conn.written:
		default:
			whole = false
		}
	}
	switch {
	case end == 1:
		_ = conn.SetLinger(0)
		_ = conn.Close()
	case end == 2:
		_ = conn.CloseWrite()
		_ = conn.SetReadDeadline(time.Now().Add(await.Patience))
		_, _ = io.Copy(io.Discard, conn)
		_ = conn.Close()
	case end == 3 && len(c.held) < 3:
		c.held = append(c.held, conn)
	case whole:
		c.conn = conn
	default:
		_ = conn.Close()
	}
	return answered
}

// readAnswer reads the next answer, and reports whether another one may follow.
func (conn *chaosConn) readAnswer(t *testing.T) bool {
	one := conn.pending[0]
	for {
		res, err := http.ReadResponse(conn.in, &http.Request{Method: one.method})
		if err != nil {
			return false
		}
		if res.StatusCode == http.StatusContinue || res.StatusCode == http.StatusEarlyHints {
			continue
		}
		checkID(t, res, one.id)
		conn.pending = conn.pending[1:]
		_, err = io.Copy(io.Discard, res.Body)
		return err == nil && !res.Close && res.StatusCode != http.StatusSwitchingProtocols
	}
}

// checkID checks that an answer is to a request. Those of the gateway itself do not say to which they are.
func checkID(t *testing.T, res *http.Response, want string) {
	if id := res.Header.Get("X-Id"); id != want && (id != "" || res.StatusCode == http.StatusOK) {
		t.Errorf("request %s got the answer to %q, %s", want, id, res.Status)
	}
}

func (c *chaosClient) askHTTP2() bool {
	if c.h2 == nil {
		only := new(http.Protocols)
		only.SetUnencryptedHTTP2(true)
		c.ends = new(ends)
		c.h2 = &http.Client{Transport: &http.Transport{Protocols: only, DialContext: c.ends.dial}}
	}
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Duration(1+c.random.IntN(600))*time.Millisecond)
	defer cancel()
	var body io.Reader
	if c.random.IntN(2) == 0 {
		body = io.MultiReader(strings.NewReader("hello"), failing{})
		if c.random.IntN(2) == 0 {
			body = strings.NewReader(strings.Repeat("x", c.random.IntN(1<<17)))
		}
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+c.addr+"/"+chaosPaths[c.random.IntN(len(chaosPaths))], body)
	if err != nil {
		c.t.Error(err)
		return false
	}
	id := c.id()
	r.Header = http.Header{"X-Tenant": {"t1"}, "X-User": {"u2"}, "X-Id": {id}}
	res, err := c.h2.Do(r)
	if c.random.IntN(20) == 0 {
		defer c.leaveHTTP2()
	}
	if err != nil {
		return false
	}
	checkID(c.t, res, id)
	if c.random.IntN(2) == 0 {
		_, _ = io.Copy(io.Discard, res.Body)
	}
	_ = res.Body.Close()
	return true
}

// failing is the end of a body that breaks off.
type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("broken off") }

// leaveHTTP2 ends the connections of HTTP/2, whatever is in progress there.
func (c *chaosClient) leaveHTTP2() {
	if c.h2 != nil {
		c.ends.close()
		c.h2 = nil
	}
}

// ends are connections that are closed together.
type ends struct {
	mu     sync.Mutex
	all    []net.Conn
	closed bool
}

func (e *ends) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed { // nobody waits for it
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	e.all = append(e.all, conn)
	return conn, nil
}

func (e *ends) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	for _, conn := range e.all {
		_ = conn.Close()
	}
}

func (c *chaosClient) leave() {
	c.leaveHTTP2()
	if c.conn != nil {
		_ = c.conn.Close()
	}
	for _, conn := range c.held {
		_ = conn.Close()
	}
}
