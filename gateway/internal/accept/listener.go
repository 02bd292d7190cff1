// Package accept decides which connections a listener accepts. It bounds their number, in total and for each
// address, and chooses the idle connection that makes room for a new one. It also decides which client
// certificates are trusted, and until when.
//
// A [Listener] is a net.Listener. It imports neither the server nor the log: it reports to a [Log].
package accept

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/weirhttp"
)

// Log gets the refusals. Its methods may be called concurrently.
type Log interface {
	// ConnectionRefused is called for each connection that a limit refused, or would
	// have refused in observe mode.
	ConnectionRefused(r *weir.Rejection, from netip.AddrPort, observed bool)
	// CertificateRefused is called for each handshake that failed because of the client's
	// certificate.
	CertificateRefused(listener, reason string, from net.Addr, err error)
	// CertificateExpired is called after another certificate of the listener's own was read, if it has expired.
	CertificateExpired(listener string, on time.Time)
	// AuthorityExpired is called after the file of a listener's authorities was read, for each authority that
	// has expired.
	AuthorityExpired(listener, subject string)
}

// Options are the options of [Open].
type Options struct {
	Config config.Listener
	// Trusted reports whether an address forwards requests of others, as a proxy does. Such addresses are
	// exempt from the limits of one address, unless the configuration lists the exempt addresses.
	Trusted func(netip.Addr) bool
	// Log gets the refusals. Required.
	Log Log
	// Setting names the options that set the address, for errors.
	Setting string
	// Share is a listener at the same address, or nil. Both listeners have one socket and one set of limits.
	// Either of them may accept a waiting connection, so none is lost when the old listener stops.
	Share *Listener
	// With is a listener at another address, or nil. Both have one set of limits and one certificate, as for
	// the addresses of one cluster of Kafka.
	With *Listener
	// Bare is for protocols other than HTTP. A refused connection is reset, and TLS negotiates no protocol.
	Bare bool
	// Inherited are open sockets. If one has the address, it is used, and no other is opened.
	Inherited *Inherited
}

// Listener is a socket and its accepted connections. A connection beyond the limits is refused at once: on
// plain HTTP with an answer, under TLS by a reset. It is safe for concurrent use.
type Listener struct {
	cfg     config.Listener
	trusted func(netip.Addr) bool
	socket  socket
	name    *SocketName // nil on TCP
	limiter *limiter
	tls     *clientTLS // nil without TLS
	bare    bool
	log     Log

	failures *failures // of TLS handshakes; shared like the limiter

	inherited bool // the socket stays open when l closes it

	closeOnce sync.Once
	draining  atomic.Bool
	drained   chan struct{} // closed when Accept has returned for good
	drainOnce sync.Once
	answering chan struct{} // bounds the refusals that are being answered

	mu   sync.Mutex
	open map[*conn]struct{}

	epoch time.Time
}

// socket is a TCP socket or a Unix socket.
type socket interface {
	net.Listener
	syscall.Conn
	SetDeadline(time.Time) error
	File() (*os.File, error)
}

// stream is a connection on a socket.
type stream interface {
	net.Conn
	syscall.Conn
	CloseWrite() error
}

// ErrPortInUse is in the error of [Open] for a port that a socket has already. Whose it is, the kernel does not say.
var ErrPortInUse = errors.New("another process uses that port")

// Open opens the socket of a listener and reads its certificates.
func Open(o Options) (*Listener, error) {
	l := &Listener{
		cfg: o.Config, trusted: o.Trusted, bare: o.Bare, log: o.Log,
		drained:   make(chan struct{}),
		answering: make(chan struct{}, 64),
		open:      make(map[*conn]struct{}),
		epoch:     time.Now(),
	}
	switch {
	case o.With != nil:
		l.limiter, l.failures, l.tls = o.With.limiter, o.With.failures, o.With.tls
	case o.Share != nil:
		l.limiter, l.failures = o.Share.limiter, o.Share.failures
	default:
		l.limiter, l.failures = newLimiter(limitsOf(&l.cfg, l.trusted)), new(failures)
	}
	if o.Config.TLS != nil && o.With == nil {
		l.tls = &clientTLS{cfg: *o.Config.TLS, bare: o.Bare}
		use, err := l.ReadCertificates()
		if err != nil {
			return nil, err
		}
		use()
	}
	err := l.bind(o)
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("cannot listen on %s: %w; stop it, or choose another with %s", o.Config.Address, ErrPortInUse, o.Setting)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("cannot listen on %s: not permitted (ports below 1024 need a privilege); choose another with %s", o.Config.Address, o.Setting)
	}
	return nil, fmt.Errorf("cannot listen on %s (set by %s): %w", o.Config.Address, o.Setting, err)
}

// bind opens the socket, or shares an open one.
func (l *Listener) bind(o Options) (err error) {
	if o.Share != nil {
		if l.name = o.Share.name; l.name != nil {
			l.name.users.Add(1)
		}
		l.inherited = o.Share.inherited
		l.socket, err = share(o.Share.socket)
		return err
	}
	if given := o.Inherited.at(o.Config.Address); given != nil {
		l.inherited = true
		l.socket, err = share(given)
		return err
	}
	if path, ok := o.Config.Socket(); ok {
		return l.bindUnix(path, o.Config.SocketAccess.Mode())
	}
	var lc net.ListenConfig
	// Clients of a gateway do not use several paths, and a listener for multipath TCP accepts no packet filter
	// (see dropNewConnections).
	lc.SetMultipathTCP(false)
	ln, err := lc.Listen(context.Background(), "tcp", o.Config.Address)
	if err != nil {
		return err
	}
	l.socket = ln.(*net.TCPListener)
	return nil
}

func (l *Listener) bindUnix(path string, mode fs.FileMode) error {
	ln, name, err := ListenUnix(path, mode)
	if err != nil {
		return err
	}
	l.socket, l.name = ln, name
	return nil
}

// share returns another listener on an open socket.
func share(s socket) (socket, error) {
	f, err := s.File()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	ln, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	return ln.(socket), nil
}

// Configure sets new limits on connections; the counts stay. A Unix socket gets the permissions of c.
func (l *Listener) Configure(c config.Listener) {
	if l.name != nil {
		_ = os.Chmod(l.name.path, c.SocketAccess.Mode()) // it fails if the name was removed
	}
	l.limiter.configure(limitsOf(&c, l.trusted), l.limiter.now())
}

// MaxRequests returns how many requests may be in progress on the listener. Each takes
// memory before any gate has seen it.
func (l *Listener) MaxRequests() int64 { return l.limiter.maxRequests.Load() }

// Inherited reports whether a service manager has opened the socket. Then the socket stays open when the
// listener closes, and clients wait until another listener accepts.
func (l *Listener) Inherited() bool { return l.inherited }

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return l.socket.Addr() }

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	for looked := false; ; {
		accepted, err := l.socket.Accept()
		draining := l.draining.Load()
		switch {
		case err == nil:
			raw := accepted.(stream)
			c, refusedBy := l.admit(raw)
			if refusedBy == noLimit {
				return c, nil
			}
			l.turnAway(raw, refusedBy)
			continue
		case draining && !looked && errors.Is(err, os.ErrDeadlineExceeded):
			// After the deadline, Accept would not look at the kernel's queue at all. On a busy machine the
			// queue may still have connections.
			_ = l.socket.SetDeadline(time.Now().Add(lastLook)) // if the socket is closed, Accept returns the error
			looked = true
			continue
		case draining:
			l.drainOnce.Do(func() { close(l.drained) })
			if errors.Is(err, os.ErrDeadlineExceeded) {
				err = errors.New("listener drained")
			}
		}
		return nil, err
	}
}

// lastLook is how long the last Accept waits for a connection in the kernel's queue before it assumes that the
// queue is empty.
const lastLook = 5 * time.Millisecond

// admit admits raw, or returns the limit that refuses it.
func (l *Listener) admit(raw stream) (*conn, limitKind) {
	addr := remote(raw).Addr()
	p, refusedBy := l.limiter.admit(addr, l.limiter.now())
	if refusedBy == limitOpen && l.makeRoom(addr) {
		p, refusedBy = l.limiter.admit(addr, l.limiter.now())
	}
	if refusedBy != noLimit {
		would := refusedBy
		if refusedBy = l.limiter.observe(would); refusedBy != noLimit {
			l.limiter.countRefused(refusedBy)
			return nil, refusedBy
		}
		l.log.ConnectionRefused(l.limiter.rejections.Load()[would], remote(raw), true)
	}
	c := &conn{stream: raw, from: l, peer: p}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[c] = struct{}{}
	return c, noLimit
}

// remote is the address of a client.
func remote(raw stream) netip.AddrPort {
	if at, ok := raw.RemoteAddr().(*net.TCPAddr); ok {
		return at.AddrPort()
	}
	return netip.AddrPort{} // the client has left already
}

// makeRoom closes an idle connection of an address that has at least two more connections than addr. Among the
// idle connections that it compares, it chooses the address with most connections. It reports whether it found
// one. So idle connections share the listener fairly, and one address cannot lock others out with connections
// that it does not use. A request may be on its way on the closed connection. But without makeRoom, the request
// of the new connection would certainly be refused.
func (l *Listener) makeRoom(addr netip.Addr) bool {
	idle := l.someIdle()
	i := l.limiter.greediest(addr, idle)
	if i < 0 {
		return false
	}
	l.limiter.evicted.Add(1)
	_ = idle[i].Close() // the connection ends in any case
	return true
}

// mostLooked bounds the connections that makeRoom compares, because many clients may connect to a full
// listener.
const mostLooked = 64

// someIdle returns the idle connections among some random ones: the order of a map is random.
func (l *Listener) someIdle() []*conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	var idle []*conn
	looked := 0
	for c := range l.open {
		if c.peer != nil && http.ConnState(c.state.Load()) == http.StateIdle {
			idle = append(idle, c)
		}
		if looked++; looked == mostLooked {
			break
		}
	}
	return idle
}

// turnAway ends a connection that is refused. To tell the client the reason takes a moment. So the connection
// is reset instead under TLS, for protocols other than HTTP, and if many clients are being told already. A
// reset costs one packet and leaves nothing in the kernel. A connection that the server closes first stays in
// the kernel for a minute.
func (l *Listener) turnAway(raw stream, by limitKind) {
	rej := l.limiter.rejections.Load()[by]
	l.log.ConnectionRefused(rej, remote(raw), false)
	if l.tls != nil || l.bare {
		reset(raw)
		return
	}
	select {
	case l.answering <- struct{}{}:
	default:
		reset(raw)
		return
	}
	go func() {
		defer func() { <-l.answering }()
		defer raw.Close()
		// If the client's bytes stayed unread, a reset would follow, and the client's kernel would drop the
		// answer.
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

// Reset resets an accepted connection that a gate, and not a limit of the listener, has refused.
func Reset(accepted net.Conn) {
	if c, ok := accepted.(*conn); ok {
		if tcp, ok := c.stream.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // or it lingers
		}
	}
	_ = accepted.Close() // it is gone either way
}

// reset closes a connection by a reset.
func reset(raw stream) {
	if tcp, ok := raw.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // or it lingers
	}
	_ = raw.Close()
}

// plainAnswer is the answer to a connection whose request has not been read.
func plainAnswer(rej *weir.Rejection) []byte {
	a := rawAnswer{header: make(http.Header)}
	weirhttp.WriteRejectionTo(&a, &http.Request{Method: http.MethodGet}, rej, nil)
	a.header.Set("Connection", "close")
	a.header.Set("Content-Length", strconv.Itoa(a.body.Len()))
	var b bytes.Buffer
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\n", a.status, http.StatusText(a.status))
	_ = a.header.Write(&b) // to memory
	b.WriteString("\r\n")
	b.Write(a.body.Bytes())
	return b.Bytes()
}

// rawAnswer is a ResponseWriter that writes to memory.
type rawAnswer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (a *rawAnswer) Header() http.Header         { return a.header }
func (a *rawAnswer) WriteHeader(status int)      { a.status = status }
func (a *rawAnswer) Write(p []byte) (int, error) { return a.body.Write(p) }

// conn is an accepted connection.
type conn struct {
	stream
	from *Listener
	peer *peer // nil if the connection counts for no address
	once sync.Once

	state   atomic.Int32 // an http.ConnState
	writeBy atomic.Int64 // the socket's write deadline, in nanoseconds since from.epoch; 0: none
	unbound atomic.Bool  // writeBy has been removed
}

// Close closes the connection and makes room for another.
func (c *conn) Close() error {
	c.once.Do(func() {
		c.from.mu.Lock()
		delete(c.from.open, c)
		c.from.mu.Unlock()
		c.from.limiter.leave(c.peer, c.from.limiter.now())
	})
	return c.stream.Close()
}

// SetWriteDeadline may allow up to a quarter more time than t. Every answer sets a deadline, and net/http
// removes it afterwards. Each change moves a timer, which is the most expensive part of bounding answers. So a
// deadline that is already late enough stays. After a removal, the socket keeps its deadline until the next
// write without one.
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
	return c.stream.SetWriteDeadline(c.from.epoch.Add(latest))
}

// Write implements net.Conn.
func (c *conn) Write(p []byte) (int, error) {
	c.unbind()
	return c.stream.Write(p)
}

// ReadFrom implements io.ReaderFrom, so that the kernel can send files.
func (c *conn) ReadFrom(r io.Reader) (int64, error) {
	c.unbind()
	if to, ok := c.stream.(io.ReaderFrom); ok {
		return to.ReadFrom(r)
	}
	return io.Copy(struct{ io.Writer }{c.stream}, r)
}

// TCP returns the connection's TCP socket for reading, or nil for a Unix socket. The kernel splices only from
// TCP sockets.
func (c *conn) TCP() *net.TCPConn {
	socket, _ := c.stream.(*net.TCPConn)
	return socket
}

// unbind clears the socket's deadline after SetWriteDeadline has removed it.
func (c *conn) unbind() {
	if c.unbound.Load() && c.writeBy.Swap(0) != 0 {
		_ = c.stream.SetWriteDeadline(time.Time{}) // the write returns the error
	}
}

// SetDeadline sets both deadlines, exactly.
func (c *conn) SetDeadline(t time.Time) error {
	c.writeBy.Store(0)
	return c.stream.SetDeadline(t)
}

// ConnState is an http.Server.ConnState.
func (l *Listener) ConnState(c net.Conn, state http.ConnState) {
	if c, ok := c.(*tls.Conn); ok && state == http.StateClosed {
		l.handshakeEnded(c)
	}
	setState(c, state)
}

func setState(c net.Conn, state http.ConnState) {
	if outer, ok := c.(interface{ NetConn() net.Conn }); ok { // TLS
		c = outer.NetConn()
	}
	if c, ok := c.(*conn); ok {
		c.state.Store(int32(state))
	}
}

// Drain lets Accept accept the connections in the kernel's queue, for at most d, and then ends it. Otherwise
// these connections would be reset. For an inherited socket Drain does not do so, because the next owner
// accepts them.
func (l *Listener) Drain(d time.Duration) {
	if l.inherited {
		return
	}
	l.draining.Store(true)
	if l.name == nil { // a client of a Unix socket waits, or is refused
		dropNewConnections(l.socket)
	}
	if err := l.socket.SetDeadline(time.Now().Add(d)); err != nil {
		return // closed already
	}
	select {
	case <-l.drained:
	case <-time.After(d + time.Second): // no goroutine was in Accept
	}
}

// Close implements net.Listener. A second call returns nil, because to net/http an error would mean that a
// shutdown has failed.
func (l *Listener) Close() error {
	l.drainOnce.Do(func() { close(l.drained) })
	l.closeOnce.Do(l.name.Leave)
	if err := l.socket.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// AwaitRest waits until every connection is idle, or until ctx ends. Call it before http.Server.Shutdown: after
// that, net/http closes a connection without an answer when it reads a request on it. A request may arrive at
// any moment on a connection that is new or in use. Such a connection ends with the answer.
func (l *Listener) AwaitRest(ctx context.Context) { until(ctx, 2*time.Millisecond, l.AtRest) }

// AwaitEmpty waits until no connection is open any more, or until ctx ends.
func (l *Listener) AwaitEmpty(ctx context.Context) {
	until(ctx, 100*time.Millisecond, func() bool { return l.count() == 0 })
}

// until calls done at intervals, until it returns true or ctx ends.
func until(ctx context.Context, interval time.Duration, done func() bool) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// AtRest reports whether no connection is new or in use.
func (l *Listener) AtRest() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		switch http.ConnState(c.state.Load()) {
		case http.StateNew, http.StateActive:
			return false
		default: // idle, hijacked or closed
		}
	}
	return true
}

// count returns the connections open now.
func (l *Listener) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open)
}

// CloseAll closes every connection, hijacked ones too.
func (l *Listener) CloseAll() { l.closeIf(func(http.ConnState) bool { return true }) }

// CloseNew closes the connections on which no request has been read. It is for a server that is shutting down.
// net/http then answers no request on them, but still waits 5 s for them. A client in the middle of its header
// loses its request.
func (l *Listener) CloseNew() {
	l.closeIf(func(state http.ConnState) bool { return state == http.StateNew })
}

func (l *Listener) closeIf(which func(http.ConnState) bool) {
	l.mu.Lock()
	var chosen []*conn
	for c := range l.open {
		if which(http.ConnState(c.state.Load())) {
			chosen = append(chosen, c)
		}
	}
	l.mu.Unlock()
	for _, c := range chosen {
		_ = c.Close() // the connection ends in any case
	}
}
