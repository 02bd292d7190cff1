package accept

import (
	"net"

	"golang.org/x/sys/unix"
)

// dropNewConnections makes the kernel drop packets that would open a connection on
// socket, so that its queue can be emptied before it is closed: closing resets
// whatever is still in the queue. A client whose first packet was dropped sends
// it again after a second, and is refused then, or accepted by whoever has the
// address by that time.
func dropNewConnections(socket *net.TCPListener) {
	raw, err := socket.SyscallConn()
	if err != nil {
		return // closed already
	}
	drop := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}} // accept 0 bytes of any packet
	_ = raw.Control(func(fd uintptr) {
		// Where it is not allowed, a connection may be reset in the moment of
		// closing, as without it.
		_ = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
			&unix.SockFprog{Len: uint16(len(drop)), Filter: &drop[0]})
	})
}
