package server

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
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
