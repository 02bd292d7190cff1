package proxy

import (
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// unheardFor is how long a peer may acknowledge nothing, neither bytes nor the probes of an idle connection. It is also how long it may
// take nothing of what waits for it.
const unheardFor = 30 * time.Second

// endUnheard has the kernel end a connection whose peer acknowledges nothing. Keepalive alone finds a dead peer only
// while nothing is under way; bytes are sent again for a quarter of an hour.
func endUnheard(network, _ string, socket syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	return socket.Control(func(fd uintptr) {
		// Without it the kernel gives up later.
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(unheardFor.Milliseconds()))
	})
}
