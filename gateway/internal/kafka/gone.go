package kafka

import (
	"crypto/tls"
	"net"
	"time"

	"github.com/weir-go/weir/internal/rawconn"
)

// lookEvery is how often a connection is checked for a side that has gone. If the other side has received nothing between two checks, the
// connection ends.
const lookEvery = 10 * time.Second

// departure is what a check has found of a side. The zero value is a side that is there.
type departure struct {
	gone     bool
	received uint64 // by the other side so far, in bytes
}

// idles notes what a check finds. It reports whether the check before found the same side gone, and the other one has received nothing since.
func (d *departure) idles(found departure) bool {
	was := *d
	*d = found
	return found.gone && was == found
}

// departureOf checks a side. If the system does not say how much the other one has received, the side counts as there.
func departureOf(side, other net.Conn) (d departure) {
	if hasGone(socketOf(side)) {
		d.received, d.gone = receivedBy(socketOf(other))
	}
	return d
}

// socketOf returns the socket of TCP below a connection, or nil if there is none.
func socketOf(c net.Conn) *net.TCPConn {
	if over, ok := c.(*tls.Conn); ok {
		c = over.NetConn()
	}
	return rawconn.TCP(c)
}

// look ends the connection if one side has gone and what it has sent does not reach the other. While a goroutine waits for one side to read,
// or for memory, nobody reads from the other side, and so nobody sees its end.
func (r *relay) look() {
	ends := r.sides.client.idles(departureOf(r.raw, r.broker))
	if r.sides.broker.idles(departureOf(r.broker, r.raw)) {
		r.logEnd(endErrorf("the broker has closed its connection, and the client has received nothing for %v", r.server.lookEvery))
		ends = true
	}
	if ends {
		r.close()
		return
	}
	r.lookLater()
}

// lookLater starts the time to the next check.
func (r *relay) lookLater() {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
	case r.sides.next == nil:
		r.sides.next = time.AfterFunc(r.server.lookEvery, r.look)
	default:
		r.sides.next.Reset(r.server.lookEvery)
	}
}
