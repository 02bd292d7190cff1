package config

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-go/weir/policy"
)

// Addresses that are used where none is given.
const (
	DefaultListen = "127.0.0.1:8080"
	DefaultAdmin  = "127.0.0.1:9090"
)

// defaulter is implemented by the types whose fields have defaults other than
// zero. The decoder calls it on each new value before it reads the file's keys,
// so that a key left out keeps its default and an explicit 0 is seen as 0.
type defaulter interface{ setDefaults() }

func (c *Config) setDefaults() {
	c.Admin.setDefaults()
	c.Metrics.setDefaults()
	c.Streams.setDefaults()
	c.State.setDefaults()
	c.Shutdown.setDefaults()
	c.Log.setDefaults()
}

func (l *Listener) setDefaults() {
	*l = Listener{
		ReadHeaderTimeout:    policy.Duration(5 * time.Second),
		ReadTimeout:          policy.Duration(30 * time.Second),
		WriteTimeout:         policy.Duration(30 * time.Second),
		IdleTimeout:          policy.Duration(2 * time.Minute),
		MaxHeaderBytes:       64 << 10,
		MaxConnections:       10_000,
		MaxConcurrentStreams: 100,
	}
	l.Connections.setDefaults()
}

func (c *Connections) setDefaults() { *c = Connections{Addresses: 65_536} }

func (t *TLS) setDefaults() { t.ClientAuth = ClientRequire }

func (u *Upstream) setDefaults() {
	*u = Upstream{
		ConnectTimeout:  policy.Duration(2 * time.Second),
		ResponseTimeout: policy.Duration(30 * time.Second),
		OnAbandon:       Hold,
	}
	u.Eject.setDefaults()
}

func (e *Eject) setDefaults() { *e = Eject{Failures: 5, For: policy.Duration(10 * time.Second)} }

func (a *Admin) setDefaults() { *a = Admin{Address: DefaultAdmin} }

func (m *Metrics) setDefaults() { m.Tenants = 20 }

func (s *Streams) setDefaults() { s.Max = 1000 }

func (s *State) setDefaults() { s.MaxAge = policy.Duration(time.Hour) }

func (s *Shutdown) setDefaults() {
	*s = Shutdown{Grace: policy.Duration(25 * time.Second), LameDuck: policy.Duration(time.Second)}
}

func (l *Log) setDefaults() { *l = Log{Level: "info", Format: "auto"} }

// DefaultListener returns a listener on address with every other field at its
// default.
func DefaultListener(address string) Listener {
	var l Listener
	l.setDefaults()
	l.Address = address
	return l
}

// ForUpstream is the configuration of a gateway started without a file: it
// listens on listen (empty for [DefaultListen]) and guards one upstream with
// everything at its default. Route "/" goes through the gate "upstream".
//
// With a positive maxInFlight the gate has that fixed limit. With 0 it finds one
// by itself, with the default controller (knee) and nothing set.
func ForUpstream(upstream, listen string, maxInFlight int64) (*Config, error) {
	if listen == "" {
		listen = DefaultListen
	}
	if err := checkAddress(listen); err != nil {
		return nil, fmt.Errorf("listen address %w", err)
	}
	if err := checkTarget(upstream); err != nil {
		return nil, fmt.Errorf("upstream %w", err)
	}
	if maxInFlight < 0 {
		return nil, fmt.Errorf("limit %d: must be at least 1; leave it out to let the gateway find one", maxInFlight)
	}
	c := new(Config)
	c.setDefaults()
	c.Listeners = []Listener{DefaultListener(listen)}
	var u Upstream
	u.setDefaults()
	u.Targets = []string{upstream}
	c.Upstreams = map[string]Upstream{"upstream": u}
	c.Gates = map[string]policy.GateSpec{"upstream": {Limit: defaultLimit(maxInFlight)}}
	c.Routes = []Route{{
		RouteSpec: policy.RouteSpec{Match: []string{"/"}, Gates: []string{"upstream"}},
		Upstream:  "upstream",
	}}
	return c, nil
}

func defaultLimit(maxInFlight int64) *policy.LimitSpec {
	if maxInFlight > 0 {
		return &policy.LimitSpec{Controller: "fixed", Limit: maxInFlight}
	}
	return &policy.LimitSpec{}
}

// checkAddress says what is wrong with a host:port to listen on.
func checkAddress(address string) error {
	i := strings.LastIndexByte(address, ':')
	if i < 0 {
		if _, err := strconv.ParseUint(address, 10, 16); err == nil {
			return fmt.Errorf("%q: has no host; write 127.0.0.1:%s, or :%s for all interfaces", address, address, address)
		}
		return fmt.Errorf("%q: has no port; write host:port, for instance %s", address, DefaultListen)
	}
	host, port := address[:i], address[i+1:]
	if strings.Contains(address, "://") {
		return fmt.Errorf("%q: is a URL; write only host:port, for instance %s", address, DefaultListen)
	}
	if strings.ContainsRune(host, ':') && (!strings.HasPrefix(host, "[") || !strings.HasSuffix(host, "]")) {
		return fmt.Errorf("%q: an IPv6 host needs brackets; write [::1]:8080", address)
	}
	if strings.ContainsAny(host, " \t/@?#") {
		return fmt.Errorf("%q: %q is no host; write host:port, for instance %s", address, host, DefaultListen)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%q: port %q is no number from 0 to 65535; write host:port, for instance %s", address, port, DefaultListen)
	}
	return nil
}

// checkTarget says what is wrong with the URL of an upstream server.
func checkTarget(target string) error {
	u, err := url.Parse(target)
	switch {
	case target == "":
		return fmt.Errorf(`"": is empty; write a URL, for instance http://127.0.0.1:3000`)
	case err != nil || !slices.Contains([]string{"http", "https", "h2c"}, u.Scheme):
		return fmt.Errorf("%q: is no http, https or h2c URL; write for instance http://127.0.0.1:3000", target)
	case u.Host == "" || u.Hostname() == "":
		return fmt.Errorf("%q: names no host; write for instance %s://127.0.0.1:3000", target, u.Scheme)
	case u.User != nil:
		return fmt.Errorf("%q: carries a user name; leave it out, the gateway passes credentials through from the client", u.Redacted())
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return fmt.Errorf("%q: has a query or fragment; write only scheme, host, port and path", target)
	}
	if p := u.Port(); p != "" {
		if _, err := strconv.ParseUint(p, 10, 16); err != nil || p == "0" {
			return fmt.Errorf("%q: port %s is not from 1 to 65535; write for instance %s://%s:3000", target, p, u.Scheme, u.Hostname())
		}
	}
	return nil
}
