package weirredis

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// askAgain is how long a password is used for new connections before the function that
// knows it is asked again: a server that is gone is connected to often.
const askAgain = time.Second

// secret is a password that may change.
type secret struct {
	ask func() (string, error) // nil: it does not

	mu    sync.Mutex
	now   string // the last that is known
	asked time.Time
}

// password returns what it is now. If that cannot be told, it is what it was: a file
// that is being replaced must not cut anybody off.
func (s *secret) password(at time.Time) string {
	if s.ask == nil {
		return s.now
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.asked.IsZero() || at.Sub(s.asked) >= askAgain {
		s.asked = at
		if p, err := s.ask(); err == nil {
			s.now = p
		}
	}
	return s.now
}

// credentials makes the client ask for the passwords whenever it connects, if there is
// anything to ask.
func (c *Config) credentials(o *rueidis.ClientOption) {
	if c.PasswordFunc == nil && c.Sentinel.PasswordFunc == nil {
		return
	}
	servers := &secret{ask: c.PasswordFunc, now: c.Password}
	sentinels := &secret{ask: c.Sentinel.PasswordFunc, now: c.Sentinel.Password}
	o.AuthCredentialsFn = func(to rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
		if _, ok := to.Address.(sentinelAddr); ok {
			return rueidis.AuthCredentials{Username: c.Sentinel.Username, Password: sentinels.password(time.Now())}, nil
		}
		return rueidis.AuthCredentials{Username: c.Username, Password: servers.password(time.Now())}, nil
	}
	if c.Sentinel.Master != "" {
		o.Sentinel.Dialer.Resolver = toSentinel
		o.DialCtxFn = dial
	}
}

// The client asks for the credentials of an address, and does not say whether it is a
// sentinel's. It dials those with a dialer of their own: what that dials is marked.
var toSentinel = &net.Resolver{} // does what none does

// sentinelConn is a connection to a sentinel, sentinelAddr its address.
type (
	sentinelConn struct{ net.Conn }
	sentinelAddr struct{ net.Addr }
)

func (c sentinelConn) RemoteAddr() net.Addr { return sentinelAddr{c.Conn.RemoteAddr()} }

func dial(ctx context.Context, addr string, d *net.Dialer, t *tls.Config) (c net.Conn, err error) {
	if t == nil {
		c, err = d.DialContext(ctx, "tcp", addr)
	} else {
		c, err = (&tls.Dialer{NetDialer: d, Config: t}).DialContext(ctx, "tcp", addr)
	}
	if err == nil && d.Resolver == toSentinel {
		c = sentinelConn{c}
	}
	return c, err
}
