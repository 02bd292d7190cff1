package weirhttp

import (
	"bufio"
	"crypto/tls"
	"net"
	"net/http"
	"runtime"
	"sync"

	"github.com/weir-go/weir"
)

// hijack hands out the connection wrapped, so that the request's place among
// the streams, or its slot if there was none, is held until the connection is
// closed.
func (w *writer) hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, rw, err := http.NewResponseController(w.inner).Hijack()
	if err != nil {
		return nil, nil, err
	}
	w.hijacked, w.answered = true, true
	q := w.request
	q.Sample(weir.NoSample)
	q.mu.Lock()
	q.hijacked = true
	q.mu.Unlock()
	q.move()
	return wrapConn(c, q), rw, nil
}

// lease ends a request once, when its connection is closed.
type lease struct {
	request *Request
	once    sync.Once
}

func (l *lease) end() { l.once.Do(func() { l.request.end(weir.NoSample) }) }

// wrapConn keeps the methods of the connection types that net/http serves:
// half-closing, splicing, the state of the TLS session. A connection that is
// dropped without Close is closed by the garbage collector; its lease ends with
// it.
func wrapConn(c net.Conn, q *Request) net.Conn {
	l := &lease{request: q}
	switch c := c.(type) {
	case *net.TCPConn:
		t := &tcpConn{c, l}
		runtime.AddCleanup(t, (*lease).end, l)
		return t
	case *tls.Conn:
		t := &tlsConn{c, l}
		runtime.AddCleanup(t, (*lease).end, l)
		return t
	}
	t := &plainConn{c, l}
	runtime.AddCleanup(t, (*lease).end, l)
	return t
}

type tcpConn struct {
	*net.TCPConn
	lease *lease
}

// Close implements [net.Conn].
func (c *tcpConn) Close() error {
	defer c.lease.end()
	return c.TCPConn.Close()
}

type tlsConn struct {
	*tls.Conn
	lease *lease
}

// Close implements [net.Conn].
func (c *tlsConn) Close() error {
	defer c.lease.end()
	return c.Conn.Close()
}

type plainConn struct {
	net.Conn
	lease *lease
}

// Close implements [net.Conn].
func (c *plainConn) Close() error {
	defer c.lease.end()
	return c.Conn.Close()
}
