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
	single  bool  // one server, without sentinels
	places  int64 // in flight of each lane
}

// Config.MaxInFlight is divided by share for each lane of a cluster. So one node that
// stands still does not use all of it.
const share = 4

// bufferSize is the size of each of the two buffers of a connection.
const bufferSize = 64 << 10

// options says how the client connects. With DisableRetry it does not send a script again that
// may have run. It does send again what a node of a cluster refused because the key is on
// another node.
func (c *Config) options() rueidis.ClientOption {
	quiet := c.maxSilence()
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
		// A connection that does not answer a ping within ConnWriteTimeout is closed.
		// Until then, what was sent on it keeps its places in flight.
		Dialer:           net.Dialer{Timeout: c.DialTimeout, KeepAlive: quiet},
		ConnWriteTimeout: quiet,
		// As many as may be in flight, so that none waits for the client.
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

// maxSilence is how long a connection may say nothing before it is closed.
func (c *Config) maxSilence() time.Duration { return max(c.DialTimeout, 2*c.Deadline) }

// connect makes a client and checks its servers.
func connect(ctx context.Context, cfg *Config) (*client, *Error) {
	inner, err := rueidis.NewClient(cfg.options())
	if err != nil {
		return nil, errorOf(err)
	}
	c := &client{Client: inner, places: int64(cfg.MaxInFlight)}
	c.single = inner.Mode() == rueidis.ClientModeStandalone
	if inner.Mode() == rueidis.ClientModeCluster {
		c.cluster, c.places = true, max(c.places/share, 1)
	}
	if err := c.checkNodes(ctx, cfg); err != nil {
		inner.Close()
		return nil, err
	}
	return c, nil
}

// errUnfit is the error of a server that must not keep buckets.
var errUnfit = errors.New("unfit")

// checkNodes checks every node that answers.
func (c *client) checkNodes(ctx context.Context, cfg *Config) *Error {
	if cfg.AssumeNoEviction {
		return nil
	}
	var last *Error
	answered := false
	for addr, node := range c.Nodes() {
		info, err := node.Do(ctx, node.B().Info().Build()).ToString()
		if err != nil {
			last = errorOf(err)
			if last.Reason == Refused && !temporary(last) {
				return unreadable(addr, err)
			}
			continue
		}
		answered = true
		if err := checkInfo(addr, info); err != nil {
			return err
		}
	}
	if !answered {
		return last
	}
	return nil
}

// checkNodeOf checks the node that has key. It asks by a script, because INFO itself names no
// key that leads to the node.
func (c *client) checkNodeOf(ctx context.Context, cfg *Config, key string) *Error {
	if cfg.AssumeNoEviction {
		return nil
	}
	const script = "return redis.call('INFO', 'memory')"
	info, err := c.Do(ctx, c.B().Eval().Script(script).Numkeys(1).Key(key).Build()).ToString()
	if err != nil {
		return errorOf(err)
	}
	return checkInfo("the server", info)
}

// checkInfo refuses a server that is too old, or that drops keys when its memory is full.
// A dropped bucket would come back full, without its debt.
func checkInfo(addr, info string) *Error {
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
		return unreadable(addr, fmt.Errorf("%w: INFO does not say it", errProtocol))
	case policy != "noeviction":
		return fail(Refused, fmt.Errorf("%w: %s has maxmemory-policy %s, so it may drop buckets and their debts. "+
			"Set maxmemory-policy noeviction there, or keep quotas on a server of their own", errUnfit, addr, policy))
	}
	return nil
}

func unreadable(addr string, err error) *Error {
	return fail(Refused, fmt.Errorf("%w: cannot read the maxmemory-policy of %s: %w; allow the user INFO, "+
		"or set AssumeNoEviction (in a file assume_no_eviction) if it is surely noeviction", errUnfit, addr, err))
}

// askAgain is the least time between two calls of PasswordFunc: while a server is gone, the
// client tries to connect often.
const askAgain = time.Second

// secret is a password that may change.
type secret struct {
	ask func() (string, error) // nil: it does not change

	mu    sync.Mutex
	now   string // the last one known
	asked time.Time
}

// password returns the password. If ask fails it returns the last one: a file that is being
// replaced must not cut anybody off.
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

// credentials makes the client ask for the passwords whenever it connects, if they may change.
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

// toSentinel marks the dialer of sentinels. The client asks for the credentials of an
// address and does not say whether it is a sentinel's. But it dials sentinels with a
// dialer of their own. An address that was dialled with this resolver becomes a
// sentinelAddr. The resolver itself is as the default.
var toSentinel = &net.Resolver{}

type sentinelAddr struct{ net.Addr }
