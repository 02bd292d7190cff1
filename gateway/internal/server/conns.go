package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/weirhttp"
)

// conns is a listener's socket and the connections accepted on it, as far as its door
// lets them in. One that it does not is refused at once, where waiting would leave its
// client in the dark: on plain HTTP with an answer, under TLS by a reset.
type conns struct {
	socket *net.TCPListener
	door   *door
	plain  bool
	rest   time.Duration // see settle

	// note is told of refusals, and of those that would be; may be nil.
	note func(r *weir.Rejection, from netip.AddrPort, observed bool)

	finishing atomic.Bool
	drained   chan struct{} // closed when Accept has returned for good
	drainOnce sync.Once
	turnAway  chan struct{} // bounds the refusals in progress

	mu   sync.Mutex
	open map[*conn]struct{}

	epoch time.Time
}

// conn is an accepted connection.
type conn struct {
	*net.TCPConn
	from *conns
	peer *peer // nil: nobody in particular
	once sync.Once

	state   atomic.Int32 // an http.ConnState
	writeBy atomic.Int64 // the socket's write deadline, in nanoseconds since from.epoch; 0: none
	unbound atomic.Bool  // which has been taken back
}

func newConns(socket *net.TCPListener, d *door, plain bool) *conns {
	return &conns{
		socket: socket, door: d, plain: plain, rest: settleFor,
		drained:  make(chan struct{}),
		turnAway: make(chan struct{}, 64),
		open:     make(map[*conn]struct{}),
		epoch:    time.Now(),
	}
}

// Addr implements net.Listener.
func (c *conns) Addr() net.Addr { return c.socket.Addr() }

// Close implements net.Listener. Closing again is no error: net/http takes one
// for a sign that a shutdown has failed.
func (c *conns) Close() error {
	c.drainOnce.Do(func() { close(c.drained) })
	if err := c.socket.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// acceptLook is how long Accept, at the end, looks for a connection in the
// kernel's queue before it takes it for empty.
const acceptLook = 5 * time.Millisecond

// Accept implements net.Listener.
func (c *conns) Accept() (net.Conn, error) {
	for looked := false; ; {
		raw, err := c.socket.AcceptTCP()
		finishing := c.finishing.Load()
		switch {
		case err == nil:
			accepted, rule := c.add(raw)
			if rule == doorOpen {
				return accepted, nil
			}
			c.refuse(raw, rule)
			continue
		case finishing && !looked && errors.Is(err, os.ErrDeadlineExceeded):
			// Past the deadline the queue is not even looked at: on a busy
			// machine it may be anything but empty.
			_ = c.socket.SetDeadline(time.Now().Add(acceptLook)) // fails if it is closed: Accept will tell
			looked = true
			continue
		case finishing:
			c.drainOnce.Do(func() { close(c.drained) })
			if errors.Is(err, os.ErrDeadlineExceeded) {
				err = errors.New("listener drained")
			}
		}
		return nil, err
	}
}

// add takes a place for raw, or says which limit refuses it.
func (c *conns) add(raw *net.TCPConn) (*conn, doorRule) {
	addr := remote(raw).Addr()
	p, rule := c.door.enter(addr, c.door.now())
	if rule == doorFull && c.makeRoom(addr) {
		p, rule = c.door.enter(addr, c.door.now())
	}
	if rule != doorOpen {
		would := rule
		if rule = c.door.observe(would); rule != doorOpen {
			c.door.refuse(rule)
			return nil, rule
		}
		c.tell(would, raw, true)
	}
	accepted := &conn{TCPConn: raw, from: c, peer: p}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[accepted] = struct{}{}
	return accepted, doorOpen
}

// remote is the address of a client.
func remote(raw *net.TCPConn) netip.AddrPort {
	if at, ok := raw.RemoteAddr().(*net.TCPAddr); ok {
		return at.AddrPort()
	}
	return netip.AddrPort{} // it has gone already
}

// Close closes the connection and gives its place back.
func (c *conn) Close() error {
	c.once.Do(func() {
		c.from.mu.Lock()
		delete(c.from.open, c)
		c.from.mu.Unlock()
		c.from.door.leave(c.peer, c.from.door.now())
	})
	return c.TCPConn.Close()
}

// SetWriteDeadline allows up to a quarter more time than it is asked to. Every
// answer asks for a deadline of its own, which net/http takes back afterwards,
// and to move a timer costs more than all else that is done to bound answers. So
// a deadline that is there already and late enough is left, and one that is taken
// back goes only when something is written without.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.unbound.Store(t.IsZero())
	if t.IsZero() {
		return nil
	}
	by, now := t.Sub(c.from.epoch), time.Since(c.from.epoch)
	latest := by + max(by-now, 0)/4
	if there := time.Duration(c.writeBy.Load()); by <= there && there <= latest {
		return nil
	}
	c.writeBy.Store(int64(latest))
	return c.TCPConn.SetWriteDeadline(c.from.epoch.Add(latest))
}

// Write implements net.Conn.
func (c *conn) Write(p []byte) (int, error) {
	c.unbind()
	return c.TCPConn.Write(p)
}

// ReadFrom implements io.ReaderFrom, as sending files needs it.
func (c *conn) ReadFrom(r io.Reader) (int64, error) {
	c.unbind()
	return c.TCPConn.ReadFrom(r)
}

// unbind removes a deadline that has been taken back.
func (c *conn) unbind() {
	if c.unbound.Load() && c.writeBy.Swap(0) != 0 {
		_ = c.TCPConn.SetWriteDeadline(time.Time{}) // the write will tell
	}
}

// SetDeadline sets both deadlines, exactly.
func (c *conn) SetDeadline(t time.Time) error {
	c.writeBy.Store(0)
	return c.TCPConn.SetDeadline(t)
}

// count returns the connections open now.
func (c *conns) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open)
}

// cut closes every connection, hijacked ones too.
func (c *conns) cut() {
	c.mu.Lock()
	open := make([]*conn, 0, len(c.open))
	for conn := range c.open {
		open = append(open, conn)
	}
	c.mu.Unlock()
	for _, conn := range open {
		_ = conn.Close() // it is gone either way
	}
}

// waitEmpty returns when no connection is open any more, or when ctx ends.
func (c *conns) waitEmpty(ctx context.Context) {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for c.count() > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// finish lets Accept take what the kernel has already connected, for at most d,
// and then end.
func (c *conns) finish(d time.Duration) {
	c.finishing.Store(true)
	turnAwayNew(c.socket)
	if err := c.socket.SetDeadline(time.Now().Add(d)); err != nil {
		return // closed already
	}
	select {
	case <-c.drained:
	case <-time.After(d + time.Second): // nobody was accepting
	}
}

// doorRejections are what a door says by each of its rules. They are made when the limits
// are set, and shared: a flood of refusals makes nothing.
type doorRejections [numDoorRules]*weir.Rejection

func (l *doorLimits) rejections() *doorRejections {
	var all doorRejections
	full := func(rule doorRule, limit int) {
		all[rule] = &weir.Rejection{
			Gate: l.name, Rule: rule.String(), Reason: rule.reason(), Value: float64(limit), Limit: float64(limit),
			RetryAfter: time.Second, Retryable: true,
		}
	}
	fast := func(rule doorRule, rate float64) {
		all[rule] = &weir.Rejection{
			Gate: l.name, Rule: rule.String(), Reason: rule.reason(), Limit: rate,
			RetryAfter: nextIn(rate), Retryable: true,
		}
	}
	full(doorFull, l.open)
	full(doorPeerFull, l.peerOpen)
	fast(doorRate, l.rate)
	fast(doorPeerRate, l.peerRate)
	full(doorCrowd, l.peers)
	return &all
}

// nextIn is how long at most it takes until a bucket holds one again.
func nextIn(rate float64) time.Duration {
	if rate <= 0 {
		return time.Second
	}
	return time.Duration(min(1/rate, 1e6) * float64(time.Second))
}

// refuse turns a connection away. Telling it why takes a moment; under TLS, and when many
// are being told already, it is reset: that costs one packet, and leaves nothing behind in
// the kernel, where a connection that the server closes first lingers for a minute.
func (c *conns) refuse(raw *net.TCPConn, rule doorRule) {
	rej := c.tell(rule, raw, false)
	if !c.plain {
		reset(raw)
		return
	}
	select {
	case c.turnAway <- struct{}{}:
	default:
		reset(raw)
		return
	}
	go func() {
		defer func() { <-c.turnAway }()
		defer raw.Close()
		// Reading what the client sends keeps its kernel from throwing the answer
		// away with a reset.
		_ = raw.SetDeadline(time.Now().Add(100 * time.Millisecond))
		_, _ = raw.Write(plainAnswer(rej))
		_ = raw.CloseWrite()
		buf := make([]byte, 4<<10)
		for {
			if _, err := raw.Read(buf); err != nil {
				return
			}
		}
	}()
}

// tell tells of a connection that was refused, or would have been, and returns what there
// is to say of it.
func (c *conns) tell(rule doorRule, raw *net.TCPConn, observed bool) *weir.Rejection {
	rej := c.door.said.Load()[rule]
	if c.note != nil {
		c.note(rej, remote(raw), observed)
	}
	return rej
}

// reset closes a connection without a word.
func reset(raw *net.TCPConn) {
	_ = raw.SetLinger(0) // or it lingers
	_ = raw.Close()
}

// plainAnswer is the answer to a connection whose request has not been read.
func plainAnswer(rej *weir.Rejection) []byte {
	var a rawAnswer
	weirhttp.WriteRejection(&a, &http.Request{Method: http.MethodGet}, rej)
	a.Header().Set("Connection", "close")
	a.Header().Set("Content-Length", strconv.Itoa(a.body.Len()))
	var b bytes.Buffer
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\n", a.status, http.StatusText(a.status))
	_ = a.header.Write(&b) // to memory
	b.WriteString("\r\n")
	b.Write(a.body.Bytes())
	return b.Bytes()
}

// rawAnswer is a ResponseWriter that keeps what is written.
type rawAnswer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (a *rawAnswer) Header() http.Header {
	if a.header == nil {
		a.header = make(http.Header)
	}
	return a.header
}

// WriteHeader implements http.ResponseWriter.
func (a *rawAnswer) WriteHeader(status int) { a.status = status }

// Write implements http.ResponseWriter.
func (a *rawAnswer) Write(p []byte) (int, error) { return a.body.Write(p) }

// mostLooked bounds the connections that are looked at for one that may go: those who
// come to a full listener may be many.
const mostLooked = 64

// makeRoom closes an idle connection of an address that has at least two more than addr,
// and reports whether there was one among those it looked at: of the addresses it met,
// the one with the most. So idle connections share the places fairly, and whoever holds
// them all for nothing does not lock others out. A request may just be on its way on a
// connection that is closed so; but the newcomer's would be refused for certain.
func (c *conns) makeRoom(addr netip.Addr) bool {
	idle := c.someIdle()
	i := c.door.greediest(addr, idle)
	if i < 0 {
		return false
	}
	c.door.evicted.Add(1)
	_ = idle[i].Close() // it is gone either way
	return true
}

// someIdle returns the idle among connections taken at random: a map begins anywhere.
func (c *conns) someIdle() []*conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	var idle []*conn
	looked := 0
	for conn := range c.open {
		if conn.peer != nil && http.ConnState(conn.state.Load()) == http.StateIdle {
			idle = append(idle, conn)
		}
		if looked++; looked == mostLooked {
			break
		}
	}
	return idle
}

// greediest returns which of the connections is of the address with the most, -1 if none
// has two more than addr.
func (d *door) greediest(addr netip.Addr, of []*conn) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	most, best := 1, -1
	if p := d.peers.known[peerKey(addr)]; p != nil {
		most += p.open
	}
	for i, c := range of {
		if c.peer.open > most {
			most, best = c.peer.open, i
		}
	}
	return best
}

// net/http closes a connection on which it reads a request after Shutdown has
// been called, without an answer. So connections that a request may come on any
// moment, those just accepted and those in use, are let come to rest first:
// their answers end them.

// settleFor is how long connections have to come to rest. One that its client
// never says anything on, and an answer that takes longer, need not be waited
// for here: Shutdown waits for them.
const settleFor = time.Second

// connState is an http.Server.ConnState.
func (s *Server) connState(l *listener, c net.Conn, state http.ConnState) {
	if c, ok := c.(*tls.Conn); ok && state == http.StateClosed {
		s.handshakeEnded(l, c)
	}
	noteState(c, state)
}

func noteState(c net.Conn, state http.ConnState) {
	if outer, ok := c.(interface{ NetConn() net.Conn }); ok { // TLS
		c = outer.NetConn()
	}
	if c, ok := c.(*conn); ok {
		c.state.Store(int32(state))
	}
}

// atRest reports whether no connection is new or in use.
func (c *conns) atRest() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		switch http.ConnState(conn.state.Load()) {
		case http.StateNew, http.StateActive:
			return false
		default: // idle, hijacked or closed
		}
	}
	return true
}

// settle waits until every connection has come to rest, at most c.rest and
// until ctx ends.
func (c *conns) settle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, c.rest)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !c.atRest() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
