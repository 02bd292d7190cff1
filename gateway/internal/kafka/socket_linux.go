//go:build !race

package kafka

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"unsafe"
)

// socket is a connection of TCP that reads and writes without telling Go's scheduler. A system call is announced to the scheduler, since it
// may block. One that takes longer than some 20 µs loses its processor to another thread, which has to be woken for it. A socket of Go's never
// blocks, but a write often takes that long where other processes share the cores, as it wakes whoever reads. Two fifths of the CPU time of
// passing on a small request were spent on waking threads.
//
// The race detector does not see what these system calls order, so under it connections stay as they are.
type socket struct {
	net.Conn
	tcp           *net.TCPConn
	raw           syscall.RawConn
	reads, writes call
}

// mostUntold bounds what is moved in a system call that the scheduler does not know of, in bytes. A collection of garbage has to wait for it,
// so it is no more than what is copied at a time.
const mostUntold = largeBuffer

// quick returns a connection that reads and writes the socket of c, or c if it has none.
func quick(c net.Conn) net.Conn {
	tcp := socketOf(c)
	if tcp == nil {
		return c
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return c
	}
	s := &socket{Conn: c, tcp: tcp, raw: raw}
	s.reads.number, s.writes.number = syscall.SYS_READ, syscall.SYS_WRITE
	s.reads.try, s.writes.try = s.reads.once, s.writes.once
	return s
}

// TCP returns the socket.
func (s *socket) TCP() *net.TCPConn { return s.tcp }

// Read implements net.Conn.
func (s *socket) Read(b []byte) (int, error) {
	if len(b) == 0 || len(b) > mostUntold {
		return s.Conn.Read(b)
	}
	switch n, err := s.reads.do(s.raw.Read, b); {
	case err != nil:
		return 0, s.failed("read", err)
	case n == 0:
		return 0, io.EOF
	default:
		return n, nil
	}
}

// Write implements net.Conn.
func (s *socket) Write(b []byte) (int, error) {
	if len(b) == 0 || len(b) > mostUntold {
		s.writes.mu.Lock() // or it would go between the parts of another
		defer s.writes.mu.Unlock()
		return s.Conn.Write(b)
	}
	n, err := s.writes.do(s.raw.Write, b)
	if err != nil {
		return n, s.failed("write", err)
	}
	return n, nil
}

// failed returns the error that package net has for a failed operation.
func (s *socket) failed(op string, err error) error {
	switch e := err.(type) {
	case syscall.Errno:
		err = os.NewSyscallError(op, e)
	case *net.OpError: // of a RawConn
		err = e.Err
	}
	return &net.OpError{Op: op, Net: "tcp", Source: s.LocalAddr(), Addr: s.RemoteAddr(), Err: err}
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
