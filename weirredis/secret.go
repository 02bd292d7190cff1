package weirredis

import (
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
	o.AuthCredentialsFn = func(to rueidis.AuthCredentialsContext) (rueidis.AuthCredentials, error) {
		if _, ok := to.Address.(sentinelAddr); ok {
			return rueidis.AuthCredentials{Username: c.Sentinel.Username, Password: c.toSentinels.password(time.Now())}, nil
		}
		return rueidis.AuthCredentials{Username: c.Username, Password: c.toServers.password(time.Now())}, nil
	}
}

// The client asks for the credentials of an address, and does not say whether it is a
// sentinel's. It dials those with a dialer of their own, which is known by its resolver:
// what that dials has an address that is marked.
var toSentinel = &net.Resolver{} // does what none does

type sentinelAddr struct{ net.Addr }
