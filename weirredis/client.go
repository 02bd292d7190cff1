package weirredis

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// client is a connected client and what is known of its servers.
type client struct {
	rueidis.Client
	cluster bool
	single  bool  // one server, and no sentinel that may name another
	places  int64 // in flight of each lane
}

// share of Config.MaxInFlight that each lane of a cluster has: so one node that
// stands still does not hold all of it.
const share = 4

// bufferSize is that of the buffers of a connection, of which there are two.
const bufferSize = 64 << 10

// options says how the client connects. DisableRetry keeps it from sending a
// script again that may have run. What it does send again are commands that a
// node of a cluster did not take because the key is elsewhere.
func (c *Config) options() rueidis.ClientOption {
	quiet := c.quiet()
	o := rueidis.ClientOption{
		InitAddress: slices.Clone(c.Addrs),
		Username:    c.Username,
		Password:    c.Password,
		SelectDB:    c.DB,
		TLSConfig:   c.TLS,
		DialCtxFn:   c.guarded,
		ClientName:  "weir",
		// One right less to grant, and Redis before 7.2 does not know it.
		ClientSetInfo: rueidis.DisableClientSetInfo,
		// A connection that does not answer a ping within ConnWriteTimeout is given
		// up. Until then what was sent on it holds its places in flight.
		Dialer:           net.Dialer{Timeout: c.DialTimeout, KeepAlive: quiet},
		ConnWriteTimeout: quiet,
		// As many as can be in flight, so that the client never makes one wait.
		RingScaleEachConn:   max(8, bits.Len(uint(lanes/share*c.MaxInFlight-1))),
		ReadBufferEachConn:  bufferSize,
		WriteBufferEachConn: bufferSize,
		DisableRetry:        true,
		DisableCache:        true,
		ClusterOption:       rueidis.ClusterOption{MaxMovedRedirections: 5},
	}
	if c.Sentinel.Master != "" {
		o.Sentinel = rueidis.SentinelOption{
			MasterSet:               c.Sentinel.Master,
			Username:                c.Sentinel.Username,
			Password:                c.Sentinel.Password,
			TLSConfig:               c.Sentinel.TLS,
			Dialer:                  net.Dialer{Timeout: c.DialTimeout, KeepAlive: quiet, Resolver: toSentinel},
			TopologyRefreshInterval: 5 * time.Second,
		}
	}
	c.credentials(&o)
	return o
}

// quiet is how long a connection may say nothing.
func (c *Config) quiet() time.Duration { return max(c.DialTimeout, 2*c.Deadline) }

// connect makes a client and looks whether its servers are fit. A client that is
// returned with an error has been closed.
func connect(ctx context.Context, cfg *Config) (*client, *Error) {
	inner, err := rueidis.NewClient(cfg.options())
	if err != nil {
		return nil, understood(err)
	}
	c := &client{Client: inner, places: int64(cfg.MaxInFlight)}
	c.single = inner.Mode() == rueidis.ClientModeStandalone
	if inner.Mode() == rueidis.ClientModeCluster {
		c.cluster, c.places = true, max(c.places/share, 1)
	}
	if err := c.fit(ctx, cfg); err != nil {
		inner.Close()
		return nil, err
	}
	return c, nil
}

// take runs the script. A server that has forgotten it, or never knew it, says so
// and has done nothing; then it is sent in full.
func (c *client) take(key, arg string) (string, *Error) {
	// A context without an end: see Store.run.
	ctx := context.Background()
	answer := c.Do(ctx, takeBySHA(c.B(), key, arg))
	if e, ok := rueidis.IsRedisErr(answer.Error()); ok && e.IsNoScript() {
		answer = c.Do(ctx, c.B().Eval().Script(script).Numkeys(1).Key(key).Arg(arg).Build())
	}
	s, err := answer.ToString()
	return s, understood(err)
}

// takeBySHA is the script on one key, for a server that knows it.
func takeBySHA(b rueidis.Builder, key, arg string) rueidis.Completed {
	return b.Evalsha().Sha1(scriptSHA).Numkeys(1).Key(key).Arg(arg).Build()
}

// errUnfit is what a server is that must not hold buckets.
var errUnfit = errors.New("unfit")

// fit asks every node that answers whether it may hold buckets.
func (c *client) fit(ctx context.Context, cfg *Config) *Error {
	if cfg.AssumeNoEviction {
		return nil
	}
	var last *Error
	answered := false
	for addr, node := range c.Nodes() {
		info, err := node.Do(ctx, node.B().Info().Build()).ToString()
		if err != nil {
			last = understood(err)
			if last.Reason == Refused {
				return unreadable(addr, err)
			}
			continue
		}
		answered = true
		if err := judge(addr, info); err != nil {
			return err
		}
	}
	if !answered {
		return last
	}
	return nil
}

// fitHere asks the node that holds key the same, through a script: INFO itself
// names no key to find the node by.
func (c *client) fitHere(ctx context.Context, cfg *Config, key string) *Error {
	if cfg.AssumeNoEviction {
		return nil
	}
	const script = "return redis.call('INFO', 'memory')"
	info, err := c.Do(ctx, c.B().Eval().Script(script).Numkeys(1).Key(key).Build()).ToString()
	if err != nil {
		return understood(err)
	}
	return judge("the server", info)
}

// judge refuses a server that is too old, or that drops keys when its memory is
// full: a bucket that is dropped comes back full, debts and all.
func judge(addr, info string) *Error {
	fields := map[string]string{}
	for line := range strings.Lines(info) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	if v, ok := fields["redis_version"]; ok {
		major, _, _ := strings.Cut(v, ".")
		if n, err := strconv.Atoi(major); err == nil && n < 6 {
			return fail(Refused, fmt.Errorf("%w: %s is Redis %s; scripts that read the clock need 6.0 or newer", errUnfit, addr, v))
		}
	}
	switch policy, ok := fields["maxmemory_policy"]; {
	case !ok:
		return unreadable(addr, fmt.Errorf("%w: INFO does not tell it", errLies))
	case policy != "noeviction":
		return fail(Refused, fmt.Errorf("%w: %s has maxmemory-policy %s, so it may drop buckets and forgive what they owe; "+
			"set maxmemory-policy noeviction there, or keep quotas on a server of their own", errUnfit, addr, policy))
	}
	return nil
}

func unreadable(addr string, err error) *Error {
	return fail(Refused, fmt.Errorf("%w: cannot read the maxmemory-policy of %s: %w; allow the user INFO, "+
		"or set AssumeNoEviction if it is noeviction for certain", errUnfit, addr, err))
}

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
