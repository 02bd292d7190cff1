package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/weirredis"
)

// Store is a server that keeps the buckets of quotas for several gateways.
type Store struct {
	// Redis 6 or newer, or Valkey: redis://user@host:6379/0, rediss:// with TLS, or unix:///run/redis.sock. More
	// nodes of a cluster, or sentinels, are ?addr=host:6379. No password here. Its maxmemory-policy must be
	// noeviction.
	Redis string `json:"redis" example:"redis://127.0.0.1:6379/0" form:"a URL such as redis://127.0.0.1:6379/0" required:"true"`
	Secret
	// The set of servers to ask for, if the URL names sentinels.
	Sentinel *Sentinel `json:"sentinel,omitempty" example:"{master: main}"`
	// Certificates for rediss://. Left out, the authorities of the system vouch for the server.
	TLS *StoreTLS `json:"tls,omitempty" example:"{}"`
	// Beginning of every key, so that several policies can share a server without sharing buckets.
	Prefix string `json:"prefix,omitempty" default:"\"weir:\""`
	// Longest time of a decision. After that on_store_error decides.
	Timeout policy.Duration `json:"timeout,omitempty" default:"50ms" min:"1ms" max:"10s"`
	// Longest time to connect, and longest silence of a connection.
	ConnectTimeout policy.Duration `json:"connect_timeout,omitempty" default:"1s" min:"10ms" max:"1m"`
	// Decisions in flight at a time. Further ones fail at once.
	MaxInFlight int `json:"max_in_flight,omitempty" default:"512" min:"1" max:"10000"`
	// Do not ask the server for its maxmemory-policy, for servers that do not allow it. Under any other than
	// noeviction buckets come back full, debts included.
	AssumeNoEviction bool `json:"assume_no_eviction,omitempty" default:"false"`
	// Take tokens ahead of need, for fewer round trips.
	Lease Lease `json:"lease,omitzero" example:"{tokens: 100}"`
}

// Secret is a password, which stands in no configuration: in a file of its own, or in a
// variable of the environment.
type Secret struct {
	// File with the password and nothing else, relative to this file. Read again on a reload, and for new
	// connections, at most once a second.
	PasswordFile string `json:"password_file,omitempty" example:"redis.password"`
	// Environment variable with the password, instead of a file.
	PasswordEnv string `json:"password_env,omitempty" example:"QUOTA_PASSWORD"`
}

// Sentinel names the set of servers that the sentinels at Store.Redis know.
type Sentinel struct {
	// Name of the set of servers.
	Master string `json:"master" example:"main" required:"true"`
	// User at the sentinels themselves.
	Username string `json:"username,omitempty" example:"weir"`
	Secret
}

// StoreTLS has what rediss:// does not say: other authorities for the server's certificate, and a
// certificate of the gateway's own.
type StoreTLS struct {
	// PEM file with the authorities that vouch for the server, relative to this file, instead of the system's.
	CA string `json:"ca,omitempty" example:"ca.pem"`
	// PEM file with the gateway's own certificate.
	Cert string `json:"cert,omitempty" example:"me.crt"`
	// PEM file with its private key.
	Key string `json:"key,omitempty" example:"me.key"`
}

// Lease is weirredis.Lease.
type Lease struct {
	// The most tokens leased for a key; 0 means no leases. In any time each gateway may admit that many more
	// than the quota; in the long run it admits none more.
	Tokens int64 `json:"tokens,omitempty" default:"0" min:"0" max:"1000000"`
	// How long they are kept before they are given back.
	For policy.Duration `json:"for,omitempty" default:"1s" min:"10ms" max:"1m"`
	// Keys that may have a lease.
	MaxKeys int `json:"max_keys,omitempty" default:"10000" min:"1" max:"1000000"`
}

// Guess implements setting.Guesser: an address or a URL in the place of a store is where it is.
func (s *Store) Guess(scalar string) string {
	if _, _, err := net.SplitHostPort(scalar); err == nil {
		scalar = "redis://" + scalar
	}
	if checkStore(scalar) != nil {
		return ""
	}
	return "{redis: " + strconv.Quote(scalar) + "}"
}

// SetDefaults fills in what the file may leave out.
func (s *Store) SetDefaults() { setting.Fill(s) }

// storeSchemes are those of the URL of a store.
var storeSchemes = []string{"redis", "rediss", "unix", "valkey", "valkeys"}

// stores checks the stores, without connecting to any.
func (m *meaning) stores() {
	for name, s := range m.Stores {
		path := fault.Path{"stores", name}
		if err := checkStore(s.Redis); err != nil {
			m.reportError(path.At("redis"), err)
		}
		m.secret(path, &s.Secret)
		if strings.ContainsAny(s.Prefix, "{}") || len(s.Prefix) > 128 {
			m.report(path.At("prefix"), "write at most 128 bytes without { and }, which say by what a cluster places a key", "%s is not a prefix for keys", quote(s.Prefix))
		}
		if s.Sentinel != nil {
			m.secret(path.At("sentinel"), &s.Sentinel.Secret)
		}
		if s.TLS != nil {
			m.storeTLS(path.At("tls"), &s)
		}
		m.Stores[name] = s
	}
	for name, g := range m.Gates {
		if g.Quota != nil && g.Quota.Store != "" && len(m.Stores) == 0 {
			m.report(fault.Path{"gates", name, "quota", "store"}, m.storeMeant(g.Quota.Store), "there is no store %s", quote(g.Quota.Store))
		}
	}
}

// storeMeant is the remedy for the name of a store that there is not.
func (m *meaning) storeMeant(name string) string {
	if len(m.Stores) == 0 {
		if setting.BadName(name) != "" {
			name = "shared"
		}
		return "define it, as in stores: {" + name + ": {redis: \"redis://127.0.0.1:6379/0\"}}"
	}
	return oneOf(name, slices.Sorted(maps.Keys(m.Stores)), "stores")
}

// checkStore says what is wrong with the URL of a store. It repeats nothing of it
// that may be a password.
func checkStore(text string) error {
	const forms = "write for instance redis://127.0.0.1:6379/0, rediss://host:6379 for TLS, or unix:///run/redis.sock"
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return fault.New("is not a URL", forms)
	case !slices.Contains(storeSchemes, u.Scheme):
		return fault.New(fmt.Sprintf("%q is not a scheme of a store", u.Scheme), forms)
	}
	if _, has := u.User.Password(); has || u.Query().Has("password") {
		return fault.New("carries a password, and a configuration is read by many", "leave it out and write password_file, or password_env")
	}
	if u.Scheme == "unix" && u.Path == "" || u.Scheme != "unix" && u.Hostname() == "" {
		return fault.New("names no server", forms)
	}
	return nil
}

// secret makes the name of the file absolute. Whether the environment has the variable is
// seen at the start only: a file is checked elsewhere than it is run.
func (m *meaning) secret(path fault.Path, s *Secret) {
	at := path.At("password_file")
	if s.PasswordFile == "" || m.Wrong(at) {
		return
	}
	if s.PasswordEnv != "" {
		m.report(at, "leave one of them out", "there is a password_env too")
		return
	}
	s.PasswordFile = m.resolve(s.PasswordFile)
	if problem := unreadable(s.PasswordFile); problem != "" {
		m.report(at, "write the name of a file with nothing but the password, relative to this file", "%s", problem)
	}
}

func (m *meaning) storeTLS(path fault.Path, s *Store) {
	if !strings.HasPrefix(s.Redis, "rediss:") && !strings.HasPrefix(s.Redis, "valkeys:") {
		m.report(path, "write redis: rediss://..., or remove tls", "means nothing without TLS, and the URL does not ask for it")
	}
	m.clientTLS(path, s.TLS)
}

// clientTLS checks the certificates for a server that the gateway connects to.
func (m *meaning) clientTLS(path fault.Path, t *StoreTLS) {
	if t.CA != "" && m.pemFile(path.At("ca"), &t.CA) {
		if _, err := roots(t.CA); err != nil {
			m.report(path.At("ca"), "name a PEM file with the certificates of the authorities that vouch for the server", "cannot be used: %v", err)
		}
	}
	if (t.Cert == "") != (t.Key == "") {
		m.report(path, "write both cert and key, or neither", "has one of cert and key without the other")
		return
	}
	if t.Cert != "" && m.pemFile(path.At("cert"), &t.Cert) && m.pemFile(path.At("key"), &t.Key) {
		m.keyPair(path, t.Cert, t.Key)
	}
}

// roots returns the authorities in a PEM file.
func roots(file string) (*x509.CertPool, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	certs, err := ParseCAs(data)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	for _, c := range certs {
		pool.AddCert(c)
	}
	return pool, nil
}

// unasked stands for each store where a file is only checked: to check it is to connect
// to nothing.
func (c *Config) unasked() map[string]quota.Store {
	stores := make(map[string]quota.Store, len(c.Stores))
	for name := range c.Stores {
		stores[name] = struct{ quota.Store }{}
	}
	return stores
}

// Connection returns the settings of the client, with passwords and certificates read.
// The error names what cannot be read.
func (s *Store) Connection() (weirredis.Config, error) {
	c := weirredis.Config{
		URL: s.Redis, Prefix: s.Prefix, Deadline: time.Duration(s.Timeout), DialTimeout: time.Duration(s.ConnectTimeout),
		MaxInFlight: s.MaxInFlight, AssumeNoEviction: s.AssumeNoEviction,
		Lease: weirredis.Lease{Tokens: s.Lease.Tokens, For: time.Duration(s.Lease.For), MaxKeys: s.Lease.MaxKeys},
	}
	var err, errSentinel, errTLS error
	c.Password, err = s.read()
	c.PasswordFunc = s.again()
	if s.Sentinel != nil {
		c.Sentinel.Master, c.Sentinel.Username = s.Sentinel.Master, s.Sentinel.Username
		c.Sentinel.Password, errSentinel = s.Sentinel.read()
		c.Sentinel.PasswordFunc = s.Sentinel.again()
	}
	if s.TLS != nil {
		c.TLS, errTLS = s.TLS.config()
		c.Sentinel.TLS = c.TLS
	}
	return c, errors.Join(err, errSentinel, errTLS)
}

func (s *Secret) read() (string, error) {
	switch {
	case s.PasswordFile != "":
		data, err := ReadFile(s.PasswordFile)
		return strings.TrimRight(string(data), "\r\n"), err
	case s.PasswordEnv != "":
		password, ok := os.LookupEnv(s.PasswordEnv)
		if !ok {
			return "", fmt.Errorf("the environment has no variable %s, which password_env names", s.PasswordEnv)
		}
		return password, nil
	}
	return "", nil
}

// again reads a file once more, for connections made after the password has been
// changed; nil where there is none.
func (s *Secret) again() func() (string, error) {
	if s.PasswordFile == "" {
		return nil
	}
	return s.read
}

// config leaves ServerName to the client, which asks each node by its own.
func (t *StoreTLS) config() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.CA != "" {
		pool, err := roots(t.CA)
		if err != nil {
			return nil, err
		}
		cfg.RootCAs = pool
	}
	if t.Cert != "" {
		pair, err := tls.LoadX509KeyPair(t.Cert, t.Key)
		if err != nil {
			return nil, err
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return cfg, nil
}
