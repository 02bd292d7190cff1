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
	err = raw.Read(func(fd uintptr) bool {
		events := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(events, 0)
		return n > 0 && err == nil
	})
	if err != nil {
		return err
	}
	return io.EOF
}
