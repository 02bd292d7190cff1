//go:build linux && !race

package rawconn

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"unsafe"
)

// New returns a connection that reads and writes the socket of c by raw system calls. Everything else it leaves to c, deadlines too. What c does beside in a Read or Write of its own is passed
// over. It returns c itself if c has no socket, as with TLS. So it does on systems other than Linux, and under the race detector, which does not see what such calls order.
func New(c net.Conn) net.Conn {
	has, ok := c.(syscall.Conn)
	if !ok {
		return c
	}
	raw, err := has.SyscallConn()
	if err != nil {
		return c
	}
	r := &conn{Conn: c, raw: raw}
	r.reads.number, r.writes.number = syscall.SYS_READ, syscall.SYS_WRITE
	r.reads.try, r.writes.try = r.reads.once, r.writes.once
	return r
}

// conn is a connection of [New].
type conn struct {
	net.Conn
	raw           syscall.RawConn
	reads, writes call
}

// TCP returns the socket, nil if it is none of TCP. Splices need it.
func (c *conn) TCP() *net.TCPConn { return TCP(c.Conn) }

// Read implements [net.Conn].
func (c *conn) Read(b []byte) (int, error) {
	if len(b) == 0 || len(b) > Most {
		return c.Conn.Read(b)
	}
	switch n, err := c.reads.do(c.raw.Read, b); {
	case err != nil:
		return 0, c.failed("read", err)
	case n == 0:
		return 0, io.EOF
	default:
		return n, nil
	}
}

// Write implements [net.Conn].
func (c *conn) Write(b []byte) (int, error) {
	if len(b) == 0 || len(b) > Most {
		c.writes.mu.Lock() // or it would go between the parts of another
		defer c.writes.mu.Unlock()
		return c.Conn.Write(b)
	}
	n, err := c.writes.do(c.raw.Write, b)
	if err != nil {
		return n, c.failed("write", err)
	}
	return n, nil
}

// failed returns the error that package net has for a failed operation.
func (c *conn) failed(op string, err error) error {
	switch e := err.(type) {
	case syscall.Errno:
		err = os.NewSyscallError(op, e)
	case *net.OpError: // of a RawConn
		err = e.Err
	}
	return &net.OpError{Op: op, Net: c.LocalAddr().Network(), Source: c.LocalAddr(), Addr: c.RemoteAddr(), Err: err}
}

// call is a system call on a socket, read or write. One goroutine makes it at a time.
type call struct {
	number uintptr
	try    func(fd uintptr) bool // once, as a value that is made only once

	mu    sync.Mutex
	b     []byte
	n     int
	errno syscall.Errno
}

// do makes the call whenever the socket is ready for it: a write until all of b is written, a read once.
func (c *call) do(ready func(func(fd uintptr) bool) error, b []byte) (done int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() { c.b = nil }()
	for {
		c.b = b[done:]
		if err := ready(c.try); err != nil {
			return done, err
		}
		if c.errno != 0 {
			return done, c.errno
		}
		done += c.n
		if c.number == syscall.SYS_READ || done == len(b) {
			return done, nil
		}
	}
}

// once makes the call, and returns false if the socket is not ready.
func (c *call) once(fd uintptr) bool {
	for {
		n, _, errno := syscall.RawSyscall(c.number, fd, uintptr(unsafe.Pointer(unsafe.SliceData(c.b))), uintptr(len(c.b)))
		switch errno {
		case syscall.EINTR:
		case syscall.EAGAIN:
			return false
		default:
			c.n, c.errno = int(n), errno
			return true
		}
	}
}
