package server

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"time"
)

// net/http closes a connection on which it reads a request after Shutdown has
// been called, without an answer. So connections that a request may come on any
// moment, those just accepted and those in use, are let come to rest first:
// their answers end them.

// settleFor is how long connections have to come to rest. One that its client
// never says anything on, and an answer that takes longer, need not be waited
// for here: Shutdown waits for them.
const settleFor = time.Second

// connState is an http.Server.ConnState.
func (s *Server) connState(l *listener, c net.Conn, state http.ConnState) {
	if c, ok := c.(*tls.Conn); ok && state == http.StateClosed {
		s.handshakeEnded(l, c)
	}
	noteState(c, state)
}

func noteState(c net.Conn, state http.ConnState) {
	if outer, ok := c.(interface{ NetConn() net.Conn }); ok { // TLS
		c = outer.NetConn()
	}
	if c, ok := c.(*conn); ok {
		c.state.Store(int32(state))
	}
}

// atRest reports whether no connection is new or in use.
func (c *conns) atRest() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		switch http.ConnState(conn.state.Load()) {
		case http.StateNew, http.StateActive:
			return false
		default: // idle, hijacked or closed
		}
	}
	return true
}

// settle waits until every connection has come to rest, at most c.rest and
// until ctx ends.
func (c *conns) settle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, c.rest)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !c.atRest() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
