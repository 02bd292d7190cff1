package server

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// conns is a listener's socket and the connections accepted on it: at most max
// at a time. One more is refused at once, where waiting would leave its client
// in the dark: on plain HTTP with a 503, under TLS by closing it.
type conns struct {
	socket *net.TCPListener
	max    int
	plain  bool
	rest   time.Duration // see settle

	refused   atomic.Uint64
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
	once sync.Once

	state   atomic.Int32 // an http.ConnState
	writeBy atomic.Int64 // the socket's write deadline, in nanoseconds since from.epoch; 0: none
	unbound atomic.Bool  // which has been taken back
}

func newConns(socket *net.TCPListener, maxOpen int, plain bool) *conns {
	return &conns{
		socket: socket, max: maxOpen, plain: plain, rest: settleFor,
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
			if accepted, ok := c.add(raw); ok {
				return accepted, nil
			}
			c.refused.Add(1)
			c.refuse(raw)
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

// add takes a place for raw, if one is free.
func (c *conns) add(raw *net.TCPConn) (*conn, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.max > 0 && len(c.open) >= c.max {
		return nil, false
	}
	accepted := &conn{TCPConn: raw, from: c}
	c.open[accepted] = struct{}{}
	return accepted, true
}

// Close closes the connection and gives its place back.
func (c *conn) Close() error {
	c.once.Do(func() {
		c.from.mu.Lock()
		defer c.from.mu.Unlock()
		delete(c.from.open, c)
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

const busyAnswer = "HTTP/1.1 503 Service Unavailable\r\n" +
	"Connection: close\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"

// refuse turns a connection away. Telling it so takes a moment; when many are
// being told already, it is only closed.
func (c *conns) refuse(raw *net.TCPConn) {
	select {
	case c.turnAway <- struct{}{}:
	default:
		_ = raw.Close()
		return
	}
	go func() {
		defer func() { <-c.turnAway }()
		defer raw.Close()
		if !c.plain {
			return
		}
		// Reading first what the client sends keeps its kernel from throwing
		// the answer away with a reset.
		_ = raw.SetDeadline(time.Now().Add(100 * time.Millisecond))
		_, _ = raw.Write([]byte(busyAnswer))
		_ = raw.CloseWrite()
		buf := make([]byte, 4<<10)
		for {
			if _, err := raw.Read(buf); err != nil {
				return
			}
		}
	}()
}
