package weirredis

import (
	"context"
	"crypto/tls"
	"net"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/weir-go/weir/internal/fault"
)

// Config configures a [Store]. URL or Addrs is required; the rest has defaults.
type Config struct {
	// URL is where the server is, instead of Addrs, Username, Password, DB and TLS:
	//
	//	redis://user:password@host:6379/0
	//	rediss://host:6379                  TLS
	//	unix:///run/redis.sock
	//	redis://host1:6379?addr=host2:6379  several nodes of a cluster
	//	redis://host1:26379?addr=host2:26379&master_set=main  sentinels
	//
	// A field that is set beside it wins over what URL says.
	URL string

	// Addrs are host:port of the server, of some nodes of a cluster, or of the
	// sentinels. The store asks a server whether it is a node of a cluster.
	Addrs []string
	// Username and Password are those of an ACL user; a Password alone is that of
	// the user default. The package's documentation says which rights it needs.
	Username, Password string
	// PasswordFunc, if not nil, returns the password in place of Password. So a new
	// password can be used without a new store. It is called for new connections, at most
	// once a second, and must return soon. Open connections go on. If it fails, the last
	// password that it returned is used, or Password before that.
	PasswordFunc func() (string, error)
	// DB is the number of the database. A cluster has only 0.
	DB int
	// TLS turns TLS on. nil means none, unless URL says rediss.
	TLS *tls.Config
	// Sentinel says that Addrs are sentinels.
	Sentinel Sentinel

	// Prefix begins every key, so that several gateways or policies can share a
	// server without sharing buckets. Default "weir:". It has no braces.
	Prefix string

	// Deadline bounds a decision. Default 50 ms, range 1 ms to 10 s. If the caller's
	// context ends earlier, the decision ends then.
	Deadline time.Duration
	// DialTimeout bounds connecting, with TLS and authentication. It is also how long a
	// connection may say nothing before it is closed. Default 1 s, range 10 ms to 1 min.
	DialTimeout time.Duration
	// MaxInFlight bounds the scripts under way, and so the goroutines: one each. More
	// fail as [Full] before anything is sent. In a cluster, each of the sixteen parts of
	// its keys may have a quarter of it. Default 512, range 1 to 10,000.
	MaxInFlight int

	// AssumeNoEviction uses the server without checking that its maxmemory-policy is
	// noeviction. It is for servers that forbid INFO. Under any other policy buckets
	// disappear when memory is short, and come back full.
	AssumeNoEviction bool

	// Lease takes tokens ahead of need. Off by default.
	Lease Lease

	// OnDown is called when the server has failed several times in a row and is given up
	// for the moment. In a cluster that may be the node of some of the keys. OnUp is called
	// when it is back. Both are called without a lock, and must not block.
	OnDown func(err error)
	OnUp   func(after time.Duration)

	// OnForeign is called when the value of a key is no bucket: somebody else has written it.
	// The server decides nothing about this key until err.Key is deleted there. It is called
	// at most once a minute for a key, and for 16 keys, without a lock, and must not block.
	OnForeign func(err *Error)

	// Now replaces the process's clock, for leases and down times. Buckets depend on the
	// server's clock only. Default time.Now.
	Now func() time.Time

	toServers, toSentinels *secret // the passwords
	guards                 *guards

	dial func(context.Context, string, *net.Dialer, *tls.Config) (net.Conn, error) // of a URL that is no host
}

// Sentinel says how to find the server through sentinels.
type Sentinel struct {
	// Master is the name of the set of servers. With it, Addrs are the sentinels.
	Master string
	// Username and Password are those of a user at the sentinels, which have users of
	// their own. Config.Username and Config.Password are not sent there. The user needs
	// allchannels, and
	//
	//	+sentinel|sentinels +sentinel|get-master-addr-by-name
	//	+subscribe +unsubscribe +hello +ping
	Username, Password string
	// PasswordFunc is as that of Config.
	PasswordFunc func() (string, error)
	// TLS turns TLS to the sentinels on. nil means none, unless URL says rediss: then
	// Config.TLS is for them, too.
	TLS *tls.Config
}

// Defaults of [Config].
const (
	DefaultPrefix      = "weir:"
	DefaultDeadline    = 50 * time.Millisecond
	DefaultDialTimeout = time.Second
	DefaultMaxInFlight = 512
)

// complete returns c with URL and defaults filled in, or every fault at once.
func (c Config) complete() (Config, error) {
	var f fault.List
	if c.URL == "" {
		f.Require(len(c.Addrs) > 0, nil, "no server; set URL, such as redis://127.0.0.1:6379, or Addrs")
	} else {
		f.AddError(nil, c.fromURL())
	}
	setDefault(&c.Prefix, DefaultPrefix)
	setDefault(&c.Deadline, DefaultDeadline)
	setDefault(&c.DialTimeout, DefaultDialTimeout)
	setDefault(&c.MaxInFlight, DefaultMaxInFlight)
	if c.Now == nil {
		c.Now = time.Now
	}
	c.guards = &guards{open: map[*guard]struct{}{}}
	c.toServers = &secret{ask: c.PasswordFunc, now: c.Password}
	c.toSentinels = &secret{ask: c.Sentinel.PasswordFunc, now: c.Sentinel.Password}
	f.Check(!strings.ContainsAny(c.Prefix, "{}"), fault.Path{"Prefix"}, c.Prefix, "must have no brace; a cluster places a key by what is in braces")
	f.Check(len(c.Prefix) <= 128, fault.Path{"Prefix"}, len(c.Prefix), "must have at most 128 bytes")
	f.Check(c.Deadline >= time.Millisecond && c.Deadline <= 10*time.Second, fault.Path{"Deadline"}, c.Deadline, "must be from 1ms to 10s")
	f.Check(c.DialTimeout >= 10*time.Millisecond && c.DialTimeout <= time.Minute, fault.Path{"DialTimeout"}, c.DialTimeout, "must be from 10ms to 1m")
	f.Check(c.MaxInFlight >= 1 && c.MaxInFlight <= 10_000, fault.Path{"MaxInFlight"}, c.MaxInFlight, "must be from 1 to 10000")
	f.Check(c.DB >= 0, fault.Path{"DB"}, c.DB, "must not be negative")
	c.Lease.complete(&f)
	return c, f.Err("weirredis")
}

// fromURL fills in what URL says and c does not.
func (c *Config) fromURL() error {
	o, err := rueidis.ParseURL(c.URL)
	if err != nil {
		// The error may quote the URL, with its password.
		return fault.New("URL cannot be parsed", "write one such as redis://user:password@host:6379/0, rediss://host:6379 or unix:///path")
	}
	if len(c.Addrs) == 0 {
		c.Addrs = o.InitAddress
	}
	setDefault(&c.Username, o.Username)
	setDefault(&c.Password, o.Password)
	setDefault(&c.DB, o.SelectDB)
	setDefault(&c.Sentinel.Master, o.Sentinel.MasterSet)
	if t := o.TLSConfig; t != nil {
		t.ServerName = "" // each node by its own name, not all by that of the first
		setDefault(&c.TLS, t)
		setDefault(&c.Sentinel.TLS, c.TLS)
	}
	c.dial = o.DialCtxFn
	return nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
