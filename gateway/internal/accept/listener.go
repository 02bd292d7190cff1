// Package accept decides which connections a listener accepts. It bounds how many there are, in all
// and of one address, and chooses the idle one that makes room for another. It also decides which
// client certificates are trusted, and until when.
//
// A [Listener] is a net.Listener. It imports neither the server nor the log: it is given
// a [Log] to report to.
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

// Log is told who was refused. Its methods may be called concurrently.
type Log interface {
	// ConnectionRefused is called for each connection that a limit refused, or would
	// have refused in observe mode.
	ConnectionRefused(r *weir.Rejection, from netip.AddrPort, observed bool)
	// CertificateRefused is called for each handshake that failed because of the client's
	// certificate.
	CertificateRefused(listener, reason string, from net.Addr, err error)
	// AuthorityExpired is called when the file of a listener's authorities was read, for
	// each that has expired.
	AuthorityExpired(listener, subject string)
}

// Options are what a [Listener] is opened with.
type Options struct {
	Config config.Listener
	// Trusted reports whether an address passes on requests of others, as a proxy does. These
	// addresses are exempt from the limits of one address, unless the configuration names the
	// exempt ones.
	Trusted func(netip.Addr) bool
	// Log is told who was refused. Required.
	Log Log
	// Setting says which options set the address, for errors.
	Setting string
	// Share is a listener at the same address, nil if there is none. Both have one socket and one
	// set of limits. Either of them accepts a connection that waits, so none is lost when the old
	// one stops.
	Share *Listener
	// With is a listener at another address, nil if there is none. Both have one set of limits and one
	// certificate: the addresses of one cluster of Kafka.
	With *Listener
	// Bare is for protocols other than HTTP. Who is refused is reset, and TLS negotiates no protocol.
	Bare bool
	// Inherited are sockets to use in place of opening one, where the address is theirs.
	Inherited *Inherited
}

// Listener is a socket and the connections accepted on it, as far as its limits let them
// in. A connection that is one too many is refused at once: on plain HTTP with an answer,
// under TLS by a reset. It is safe for concurrent use.
type Listener struct {
	cfg     config.Listener
	trusted func(netip.Addr) bool
	socket  socket
	name    *socketName // nil on TCP
	limiter *limiter
	tls     *clientTLS // nil without TLS
	bare    bool
	log     Log

	failures *failures // of TLS handshakes; shared as the limiter is

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

// socket is that of TCP, or a Unix socket.
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
		if err := l.LoadCertificates(); err != nil {
			return nil, err
		}
	}
	err := l.bind(o)
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("cannot listen on %s: another process uses that port; stop it, or choose another with %s", o.Config.Address, o.Setting)
	case errors.Is(err, syscall.EACCES):
		return nil, fmt.Errorf("cannot listen on %s: not permitted (ports below 1024 need a privilege); choose another with %s", o.Config.Address, o.Setting)
	}
	return nil, fmt.Errorf("cannot listen on %s (set by %s): %w", o.Config.Address, o.Setting, err)
}

// bind opens the socket, or shares one that is open.
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
	// A gateway's clients do not use several paths, and a listener for multipath TCP takes no
	// packet filter (see dropNewConnections).
	lc.SetMultipathTCP(false)
	ln, err := lc.Listen(context.Background(), "tcp", o.Config.Address)
	if err != nil {
		return err
	}
	l.socket = ln.(*net.TCPListener)
	return nil
}

func (l *Listener) bindUnix(path string, mode fs.FileMode) error {
	ln, err := ListenUnix(path, mode)
	if err != nil {
		return err
	}
	l.name = &socketName{path: path}
	l.name.users.Store(1)
	if l.name.info, err = os.Lstat(path); err != nil {
		ln.Close()
		return err
	}
	l.socket = ln
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

// Configure puts other limits on connections in force; nobody is forgotten. A Unix socket gets the
// permissions of c.
func (l *Listener) Configure(c config.Listener) {
	if l.name != nil {
		_ = os.Chmod(l.name.path, c.SocketAccess.Mode()) // it fails if somebody has removed the name
	}
	l.limiter.configure(limitsOf(&c, l.trusted), l.limiter.now())
}

// MaxRequests returns how many requests may be in progress on the listener. Each takes
// memory before any gate has seen it.
func (l *Listener) MaxRequests() int64 { return l.limiter.maxRequests.Load() }

// Inherited reports whether a service manager has opened the socket. Then it stays open when the
// listener closes, and who connects waits until somebody accepts again.
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
			// Past the deadline the kernel's queue is not even looked at: on a busy
			// machine it may be anything but empty.
			_ = l.socket.SetDeadline(time.Now().Add(lastLook)) // fails if it is closed: Accept will tell
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

// lastLook is how long Accept, at the end, looks for a connection in the kernel's queue
// before it takes the queue for empty.
const lastLook = 5 * time.Millisecond

// admit lets raw in, or returns the limit that refuses it.
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
	return netip.AddrPort{} // it has gone already
}

// makeRoom closes an idle connection of an address that has at least two more connections than
// addr. Of the addresses that it finds, it takes the one with the most. It reports whether it found
// one. So idle connections share the listener fairly, and one address cannot lock others out with
// connections that it does not use. A request may be on its way on the closed connection. But
// without this, the request of the new connection would certainly be refused.
func (l *Listener) makeRoom(addr netip.Addr) bool {
	idle := l.someIdle()
	i := l.limiter.greediest(addr, idle)
	if i < 0 {
		return false
	}
	l.limiter.evicted.Add(1)
	_ = idle[i].Close() // it is gone either way
	return true
}

// mostLooked bounds the connections that makeRoom compares, because many clients may come to a full
// listener.
const mostLooked = 64

// someIdle returns the idle among connections chosen at random: a map begins anywhere.
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

// turnAway ends a connection that is refused. Telling the client why takes a moment. Under TLS, and where HTTP is not spoken, the connection
// is reset instead, and also if many clients are being told already. A reset costs one packet and
// leaves nothing in the kernel. A connection that the server closes first stays there for a minute.
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

// Reset closes an accepted connection without a word, where a gate beside the listener's limits refuses it.
func Reset(accepted net.Conn) {
	if c, ok := accepted.(*conn); ok {
		if tcp, ok := c.stream.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // or it lingers
		}
	}
	_ = accepted.Close() // it is gone either way
}

// reset closes a connection without a word.
func reset(raw stream) {
	if tcp, ok := raw.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // or it lingers
	}
	_ = raw.Close()
}

// plainAnswer is the answer on a connection before its request has been read.
func plainAnswer(rej *weir.Rejection) []byte {
	a := rawAnswer{header: make(http.Header)}
	weirhttp.WriteRejection(&a, &http.Request{Method: http.MethodGet}, rej)
	a.header.Set("Connection", "close")
	a.header.Set("Content-Length", strconv.Itoa(a.body.Len()))
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

func (a *rawAnswer) Header() http.Header         { return a.header }
func (a *rawAnswer) WriteHeader(status int)      { a.status = status }
func (a *rawAnswer) Write(p []byte) (int, error) { return a.body.Write(p) }

// conn is an accepted connection.
type conn struct {
	stream
	from *Listener
	peer *peer // nil: it counts for no address
	once sync.Once

	state   atomic.Int32 // an http.ConnState
	writeBy atomic.Int64 // the socket's write deadline, in nanoseconds since from.epoch; 0: none
	unbound atomic.Bool  // writeBy has been taken back
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

// SetWriteDeadline may allow up to a quarter more time than asked for. Every answer sets a
// deadline, and net/http removes it afterwards. Each change moves a timer, which costs more than
// everything else that bounds answers. So a deadline that is already late enough stays. A removed
// deadline ends only at the next write without one.
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

// ReadFrom implements io.ReaderFrom, as sending files needs it.
func (c *conn) ReadFrom(r io.Reader) (int64, error) {
	c.unbind()
	if to, ok := c.stream.(io.ReaderFrom); ok {
		return to.ReadFrom(r)
	}
	return io.Copy(struct{ io.Writer }{c.stream}, r)
}

// TCP returns the connection's socket for reading, nil if it is one of Unix. The kernel can splice from nothing else.
func (c *conn) TCP() *net.TCPConn {
	socket, _ := c.stream.(*net.TCPConn)
	return socket
}

// unbind removes a deadline that has been taken back.
func (c *conn) unbind() {
	if c.unbound.Load() && c.writeBy.Swap(0) != 0 {
		_ = c.stream.SetWriteDeadline(time.Time{}) // the write will tell
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

// Drain lets Accept take what the kernel has already connected, for at most d, and then
// end: connections in the kernel's queue would be reset. Those of an inherited socket are not: its next
// owner accepts them.
func (l *Listener) Drain(d time.Duration) {
	if l.inherited {
		return
	}
	l.draining.Store(true)
	if l.name == nil { // who connects to a Unix socket waits, or is refused
		dropNewConnections(l.socket)
	}
	if err := l.socket.SetDeadline(time.Now().Add(d)); err != nil {
		return // closed already
	}
	select {
	case <-l.drained:
	case <-time.After(d + time.Second): // nobody was accepting
	}
}

// Close implements net.Listener. Closing again is no error: net/http takes an error for a
// sign that a shutdown has failed.
func (l *Listener) Close() error {
	l.drainOnce.Do(func() { close(l.drained) })
	l.closeOnce.Do(l.name.leave)
	if err := l.socket.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// AwaitRest waits until every connection is idle, or until ctx ends. Call it before
// http.Server.Shutdown: after that, net/http closes a connection without an answer when it reads a
// request on it. A request may come at any moment on connections just accepted and on those in use.
// Their answers end them.
func (l *Listener) AwaitRest(ctx context.Context) { until(ctx, 2*time.Millisecond, l.AtRest) }

// AwaitEmpty waits until no connection is open any more, or until ctx ends.
func (l *Listener) AwaitEmpty(ctx context.Context) {
	until(ctx, 100*time.Millisecond, func() bool { return l.count() == 0 })
}

// until asks done in each interval, until it is true or ctx ends.
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

// CloseNew closes the connections on which no request has been read. It is for a server that is
// shutting down: net/http answers nothing that it reads on them then, yet waits for them for 5 s. A client in the middle of its
// header loses its request.
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
		_ = c.Close() // it is gone either way
	}
}
