package admin

import (
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// peerOf names the process at the other end of a Unix socket, as it was when it
// connected.
func peerOf(c net.Conn) string {
	const unknown = "somebody over the socket"
	sock, ok := c.(syscall.Conn)
	if !ok {
		return unknown
	}
	raw, err := sock.SyscallConn()
	if err != nil {
		return unknown
	}
	name := unknown
	_ = raw.Control(func(fd uintptr) { // a closed connection asks for nothing
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			name = fmt.Sprintf("uid %d (process %d) over the socket", cred.Uid, cred.Pid)
		}
	})
	return name
}
