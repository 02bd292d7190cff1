package kafka

import (
	"errors"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// awaitGone waits until the other side has closed a connection, even if bytes from it are still unread. Then the error is io.EOF. The read
// deadline of the connection bounds the wait.
func awaitGone(c net.Conn) error {
	in, ok := c.(syscall.Conn)
	if !ok {
		return errors.ErrUnsupported
	}
	raw, err := in.SyscallConn()
	if err != nil {
		return err
	}
	if err := raw.Read(hungUp); err != nil {
		return err
	}
	return io.EOF
}

// hungUp reports whether the other side has closed a connection, even if bytes from it are still unread.
func hungUp(fd uintptr) bool {
	events := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(events, 0)
	return n > 0 && err == nil
}

// hasGone is hungUp for a socket that others may use meanwhile. It is false if there is no socket.
func hasGone(c *net.TCPConn) (gone bool) {
	if c == nil {
		return false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Control(func(fd uintptr) { gone = hungUp(fd) })
	return gone && err == nil
}

// receivedBy returns how many bytes the other side of a socket has confirmed. ok is false if nobody knows.
func receivedBy(c *net.TCPConn) (n uint64, ok bool) {
	if c == nil {
		return 0, false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, false
	}
	_ = raw.Control(func(fd uintptr) { // an error leaves ok false
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if ok = err == nil; ok {
			n = info.Bytes_acked
		}
	})
	return n, ok
}
