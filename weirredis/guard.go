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

	"github.com/weir-go/weir/internal/rawconn"
)

// guard is a connection that closes if the server breaks the protocol. The server does so
// if it answers what nobody has asked, or announces a message that does not fit into
// memory. The client would end the process then, by a panic in one of its goroutines or
// for want of memory.
type guard struct {
	net.Conn
	asked  frames // by whoever writes
	said   frames // by whoever reads
	count  atomic.Uint64
	follow bool        // it leads to a sentinel, which reports changes
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

// breakAll closes the connections, because each may return the answer to another
// question. A server that has left out one answer is one behind from then on, even if it
// follows the protocol again.
func (a *guards) breakAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for g := range a.open {
		_ = g.Conn.Close()
	}
	clear(a.open)
}

// errProtocol is the error of a server whose answers cannot be trusted.
var errProtocol = errors.New("the server does not follow the protocol")

// Write counts the commands before the server can see them.
func (g *guard) Write(p []byte) (int, error) {
	if err := g.asked.scan(p); err != nil {
		return 0, fmt.Errorf("weirredis: what is asked is not a command: %w", err)
	}
	g.count.Store(g.asked.whole)
	if g.follow && bytes.Contains(p, []byte("SUBSCRIBE\r\n")) {
		g.heeds.Store(true)
	}
	return g.Conn.Write(p)
}

// Read returns what the server says, as long as it was asked.
func (g *guard) Read(p []byte) (int, error) {
	n, err := g.Conn.Read(p)
	wrong := g.said.scan(p[:n])
	switch {
	case wrong != nil:
	case g.said.whole > g.count.Load():
		wrong = fmt.Errorf("%d answers to %d commands", g.said.whole, g.count.Load())
	case (g.said.pushes > 0 || g.said.push) && !g.heeds.Load():
		wrong = errors.New("it sends what nobody has asked for")
	default:
		return n, err
	}
	_ = g.Close() // it is broken either way
	return 0, fmt.Errorf("%w: %w", errProtocol, wrong)
}

// RemoteAddr marks the address of a sentinel: see Config.credentials.
func (g *guard) RemoteAddr() net.Addr {
	if g.follow {
		return sentinelAddr{g.Conn.RemoteAddr()}
	}
	return g.Conn.RemoteAddr()
}

// guarded dials a connection with a guard.
func (c *Config) guarded(ctx context.Context, addr string, d *net.Dialer, conf *tls.Config) (net.Conn, error) {
	conn, err := c.reach(ctx, addr, d, conf)
	if err != nil {
		return nil, err
	}
	g := &guard{Conn: conn, follow: d.Resolver == toSentinel, among: c.guards}
	c.guards.add(g)
	return g, nil
}

// reach dials as rueidis does by itself.
func (c *Config) reach(ctx context.Context, addr string, d *net.Dialer, conf *tls.Config) (net.Conn, error) {
	switch {
	case c.dial != nil:
		return c.dial(ctx, addr, d, conf)
	case conf != nil:
		return (&tls.Dialer{NetDialer: d, Config: conf}).DialContext(ctx, "tcp", addr)
	}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return rawconn.New(conn), nil
}

// Bounds of one message of a server. The largest that is asked for is a [Document], or a
// cluster's list of its slots.
const (
	mostFrame  = 16 << 20 // bytes that a message needs in memory, lists included
	perItem    = 64       // bytes for a place in a list, before anything is in it
	mostNested = 16
	mostNumber = 20 // digits of a length, and a sign
)

// frames follows a stream of messages of the Redis protocol (RESP 2 and 3). It finds where
// each ends, and whether it can be read without harm. It reads lengths only.
type frames struct {
	whole  uint64 // complete messages so far, without pushes
	pushes uint64

	kind   byte // first byte of the line; 0 between lines
	length int64
	minus  bool
	digits int
	last   byte // of the line
	skip   int64
	budget int64   // bytes that the rest of the message may need
	open   []int64 // missing elements of each list around
	push   bool    // nobody asked for the message
}

// scan reads on in the stream.
func (f *frames) scan(b []byte) error {
	for len(b) > 0 {
		if f.skip > 0 { // within a text
			n := min(f.skip, int64(len(b)))
			b, f.skip = b[n:], f.skip-n
			if f.skip == 0 {
				f.ended()
			}
			continue
		}
		if f.kind == 0 {
			if err := f.begin(b[0]); err != nil {
				return err
			}
			b = b[1:]
			continue
		}
		n := bytes.IndexByte(b, '\n') + 1
		if n == 0 {
			n = len(b)
		}
		if err := f.line(b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// begin reads the first byte of a line, which says what follows.
func (f *frames) begin(kind byte) error {
	if !sized(kind) && !plainLine(kind) {
		return fmt.Errorf("a message that begins with %q is not an answer", kind)
	}
	if len(f.open) == 0 {
		f.budget, f.push = mostFrame, kind == '>'
	} else if kind == '>' {
		return errors.New("a push is a part of another message")
	}
	f.kind, f.length, f.minus, f.digits, f.last = kind, 0, false, 0, 0
	return nil
}

// sized reports whether a line is the length of what follows it.
func sized(kind byte) bool {
	switch kind {
	case '$', '!', '=', '*', '%', '~', '>':
		return true
	}
	return false
}

// plainLine reports whether a line is all there is.
func plainLine(kind byte) bool {
	switch kind {
	case '+', '-', ':', '_', ',', '#', '(':
		return true
	}
	return false
}

// line reads a part of a line, up to its end if that is there.
func (f *frames) line(b []byte) error {
	if f.budget -= int64(len(b)); f.budget < 0 {
		return errTooLarge
	}
	number := sized(f.kind)
	for i := 0; number && i < len(b) && b[i] != '\n'; i++ {
		if b[i] != '\r' {
			if err := f.digit(b[i]); err != nil {
				return err
			}
		}
		f.last = b[i]
	}
	ends := b[len(b)-1] == '\n'
	if len(b) > 1 && ends {
		f.last = b[len(b)-2]
	}
	switch {
	case !ends:
		f.last = b[len(b)-1]
		return nil
	case f.last != '\r':
		return errors.New("a line ends in the middle")
	case !number:
		f.ended()
		return nil
	}
	return f.follow()
}

func (f *frames) digit(c byte) error {
	f.digits++
	switch {
	case f.last == '\r' || f.digits > mostNumber:
		return errors.New("a length is not a number")
	case c == '-' && f.digits == 1:
		f.minus = true
	case c >= '0' && c <= '9':
		if f.length = f.length*10 + int64(c-'0'); f.length > mostFrame {
			return errTooLarge
		}
	default:
		return errors.New("a length is not a number")
	}
	return nil
}

// follow begins the value whose length the line was.
func (f *frames) follow() error {
	kind, n := f.kind, f.length
	switch {
	case f.digits == 0 || f.minus && (n != 1 || kind != '$' && kind != '*'):
		return errors.New("a length is not a number")
	case f.minus: // the null of RESP 2
		f.ended()
		return nil
	case kind == '$' || kind == '!' || kind == '=':
		f.budget -= n
		f.skip, f.kind = n+2, 0
	default:
		if kind == '%' {
			n *= 2
		}
		if f.budget -= n * perItem; len(f.open) == mostNested {
			return errTooLarge
		}
		if f.open, f.kind = append(f.open, n), 0; n == 0 {
			f.open = f.open[:len(f.open)-1]
			f.ended()
		}
	}
	if f.budget < 0 {
		return errTooLarge
	}
	return nil
}

var errTooLarge = fmt.Errorf("a message of more than %d bytes, or nested more than %d deep", mostFrame, mostNested)

// ended ends a message, or a part of one.
func (f *frames) ended() {
	f.kind = 0
	for len(f.open) > 0 {
		top := len(f.open) - 1
		if f.open[top]--; f.open[top] > 0 {
			return
		}
		f.open = f.open[:top]
	}
	if f.push {
		f.pushes++
	} else {
		f.whole++
	}
}
