package server

import (
	"net/http"
	"net/netip"
)

// mostLooked bounds the connections that are looked at for one that may go: those who
// come to a full listener may be many.
const mostLooked = 64

// makeRoom closes an idle connection of an address that has at least two more than addr,
// and reports whether there was one among those it looked at: of the addresses it met,
// the one with the most. So idle connections share the places fairly, and whoever holds
// them all for nothing does not lock others out. A request may just be on its way on a
// connection that is closed so; but the newcomer's would be refused for certain.
func (c *conns) makeRoom(addr netip.Addr) bool {
	idle := c.someIdle()
	i := c.door.greediest(addr, idle)
	if i < 0 {
		return false
	}
	c.door.evicted.Add(1)
	_ = idle[i].Close() // it is gone either way
	return true
}

// someIdle returns the idle among connections taken at random: a map begins anywhere.
func (c *conns) someIdle() []*conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	var idle []*conn
	looked := 0
	for conn := range c.open {
		if conn.peer != nil && http.ConnState(conn.state.Load()) == http.StateIdle {
			idle = append(idle, conn)
		}
		if looked++; looked == mostLooked {
			break
		}
	}
	return idle
}

// greediest returns which of the connections is of the address with the most, -1 if none
// has two more than addr.
func (d *door) greediest(addr netip.Addr, of []*conn) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	most, best := 1, -1
	if p := d.peers.known[peerKey(addr)]; p != nil {
		most += p.open
	}
	for i, c := range of {
		if c.peer.open > most {
			most, best = c.peer.open, i
		}
	}
	return best
}
