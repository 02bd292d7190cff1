package kafka

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/weir-go/weir/internal/rawconn"
)

// canLook is whether a check can find that a side has gone.
const canLook = true

// departureOf checks a side. If the system does not say how much the other one has received, the side counts as there.
func departureOf(side, other net.Conn) (d departure) {
	if !hasGone(side) {
		return departure{}
	}
	if d.received, d.gone = receivedBy(other); d.received == 0 {
		// the gateway has dialled the broker, and a kernel that counts has counted that handshake
		n, _ := receivedBy(side)
		d.gone = d.gone && n > 0
	}
	return d
}

// awaitGone waits until the other side has closed a connection, even if bytes from it are still unread. Then the error is io.EOF. The read
// deadline of the connection bounds the wait.
func awaitGone(c net.Conn) error {
	raw, err := rawOf(c)
	if err != nil {
		return err
	}
	if err := raw.Read(hungUp); err != nil {
		return err
	}
	return io.EOF
}

// rawOf returns the socket of TCP below a connection.
func rawOf(c net.Conn) (syscall.RawConn, error) {
	if in := socketOf(c); in != nil {
		return in.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}

// socketOf returns the socket of TCP below a connection, or nil if there is none.
func socketOf(c net.Conn) *net.TCPConn {
	if over, ok := c.(*tls.Conn); ok {
		c = over.NetConn()
	}
	return rawconn.TCP(c)
}

// hungUp reports whether the other side has closed a connection, even if bytes from it are still unread.
func hungUp(fd uintptr) bool {
	events := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(events, 0)
	return n > 0 && err == nil
}

// hasGone is hungUp for a connection that others may use meanwhile. It is false if there is no socket.
func hasGone(c net.Conn) (gone bool) {
	raw, err := rawOf(c)
	if err == nil {
		err = raw.Control(func(fd uintptr) { gone = hungUp(fd) })
	}
	return gone && err == nil
}

// receivedBy returns how many bytes the other side of a connection has confirmed. ok is false if nobody knows.
func receivedBy(c net.Conn) (n uint64, ok bool) {
	raw, err := rawOf(c)
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
