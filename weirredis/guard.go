package weirredis

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
)

// guard is a connection that breaks where the server does not keep to the protocol:
// where it answers what nobody has asked, or announces more than anybody can hold. The
// client would end the process there, by a panic in a goroutine of its own or by memory
// that is not to be had.
type guard struct {
	net.Conn
	asked  frames // by whoever writes
	said   frames // by whoever reads
	count  atomic.Uint64
	follow bool        // it is one to a sentinel, which tells of changes
	heeds  atomic.Bool // and has been asked to
	among  *guards
}

// guards are the connections that are open.
type guards struct {
	mu   sync.Mutex
	open map[*guard]struct{}
}

// Close forgets the connection, too.
func (g *guard) Close() error {
	g.among.mu.Lock()
	delete(g.among.open, g)
	g.among.mu.Unlock()
	return g.Conn.Close()
}

func (a *guards) add(g *guard) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open[g] = struct{}{}
}

// breakAll breaks the connections, for each may hand out the answer to another question:
// a server that has left out one answer is behind by one from then on, even if it keeps
// to the protocol again.
func (a *guards) breakAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for g := range a.open {
		_ = g.Conn.Close()
	}
	clear(a.open)
}

// errLies is what is wrong with a server whose answers cannot be gone by.
var errLies = errors.New("the server does not keep to the protocol")

// Write counts what is asked, before the server can know of it.
func (g *guard) Write(p []byte) (int, error) {
	if err := g.asked.scan(p); err != nil {
		return 0, fmt.Errorf("weirredis: what is asked is no command: %w", err)
	}
	g.count.Store(g.asked.whole)
	if g.follow && bytes.Contains(p, []byte("SUBSCRIBE\r\n")) {
		g.heeds.Store(true)
	}
	return g.Conn.Write(p)
}

// Read hands on what the server says, as far as it was asked.
func (g *guard) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	wrong := g.said.scan(p[:n])
	switch {
	case wrong != nil:
	case g.said.whole > g.count.Load():
		wrong = fmt.Errorf("%d answers to %d commands", g.said.whole, g.count.Load())
	case (g.said.pushes > 0 || g.said.push) && !g.heeds.Load():
		wrong = errors.New("it tells what nobody has asked for")
	default:
		return n, err
	}
	_ = g.Close() // it is broken either way
	return 0, fmt.Errorf("%w: %w", errLies, wrong)
}

// RemoteAddr marks the address of a sentinel: see Config.credentials.
func (g *guard) RemoteAddr() net.Addr {
	if g.follow {
		return sentinelAddr{g.Conn.RemoteAddr()}
	}
	return g.Conn.RemoteAddr()
}

// guarded connects behind a guard.
func (c *Config) guarded(ctx context.Context, addr string, d *net.Dialer, conf *tls.Config) (net.Conn, error) {
	conn, err := c.reach(ctx, addr, d, conf)
	if err != nil {
		return nil, err
	}
	g := &guard{Conn: conn, follow: d.Resolver == toSentinel, among: c.guards}
	c.guards.add(g)
	return g, nil
}

// reach connects as rueidis does by itself.
func (c *Config) reach(ctx context.Context, addr string, d *net.Dialer, conf *tls.Config) (net.Conn, error) {
	switch {
	case c.dial != nil:
		return c.dial(ctx, addr, d, conf)
	case conf != nil:
		return (&tls.Dialer{NetDialer: d, Config: conf}).DialContext(ctx, "tcp", addr)
	}
	return d.DialContext(ctx, "tcp", addr)
}
