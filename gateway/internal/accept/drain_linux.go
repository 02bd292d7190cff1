package accept

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// dropNewConnections makes the kernel drop packets that would open a connection on socket. Then the queue can
// be emptied before the socket is closed. Otherwise, closing the socket would reset the connections in the
// queue. A client sends its first packet again after a second. By then the connection is refused, or accepted
// by the new owner of the address.
func dropNewConnections(socket syscall.Conn) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return // closed already
	}
	drop := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}} // accept 0 bytes of any packet
	_ = raw.Control(func(fd uintptr) {
		// If the filter is not permitted, a connection may be reset when the socket is closed.
		_ = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: uint16(len(drop)), Filter: &drop[0]})
	})
}
