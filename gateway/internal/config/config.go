package config

import (
	_ "embed"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"time"
	_ "time/tzdata" // so that limits by the calendar know time zones where the machine has none

	"github.com/weir-go/weir/policy"
)

// Config is what the gateway's file says, with the defaults filled in. The keys
// in the file are the json tags. fields.go holds the text, the default and
// the bounds of each field; the schema and the reference guide are made from it.
type Config struct {
	Listeners []Listener                   `json:"listeners,omitempty"`
	Upstreams map[string]Upstream          `json:"upstreams"`
	Identity  policy.IdentitySpec          `json:"identity,omitzero"`
	Deadline  policy.DeadlineSpec          `json:"deadline,omitzero"`
	Signals   map[string]policy.SignalSpec `json:"signals,omitempty"`
	Gates     map[string]policy.GateSpec   `json:"gates,omitempty"`
	Stores    map[string]Store             `json:"stores,omitempty"`
	Routes    []Route                      `json:"routes"`
	Quotas    Quotas                       `json:"quotas,omitzero"`
	Admin     Admin                        `json:"admin,omitzero"`
	Metrics   Metrics                      `json:"metrics"`
	Streams   Streams                      `json:"streams,omitzero"`
	State     State                        `json:"state,omitzero"`
	Shutdown  Shutdown                     `json:"shutdown,omitzero"`
	Log       Log                          `json:"log,omitzero"`

	name   string         // of the file
	places map[string]int // lines of quotas in it, and of admin.socket, by path
}

// Policy returns the part of the configuration that policy.Compile takes.
func (c *Config) Policy() policy.Spec {
	routes := make([]policy.RouteSpec, len(c.Routes))
	for i, rt := range c.Routes {
		routes[i] = rt.RouteSpec
		routes[i].Upstream = rt.Upstream
	}
	return policy.Spec{Identity: c.Identity, Deadline: c.Deadline, Signals: c.Signals, Gates: c.Gates, Routes: routes}
}

// Listener is an address the gateway accepts clients on, and what one client
// may take there: every wait is bounded, and so is every size.
type Listener struct {
	Address              string          `json:"address"`
	TLS                  *TLS            `json:"tls,omitempty"`
	H2C                  bool            `json:"h2c,omitempty"`
	ReadHeaderTimeout    policy.Duration `json:"read_header_timeout,omitempty"`
	ReadTimeout          policy.Duration `json:"read_timeout,omitempty"`
	WriteTimeout         policy.Duration `json:"write_timeout,omitempty"`
	IdleTimeout          policy.Duration `json:"idle_timeout,omitempty"`
	MaxHeaderBytes       int             `json:"max_header_bytes,omitempty"`
	MaxConnections       int             `json:"max_connections,omitempty"`
	Connections          Connections     `json:"connections,omitzero"`
	MaxConcurrentStreams int             `json:"max_concurrent_streams,omitempty"`
}

// Connections limits those of a listener further: how many one address may have at once,
// and how fast new ones may come. An address is one of IPv4, or a /64 network of IPv6.
type Connections struct {
	Mode           policy.Mode `json:"mode,omitempty"`        // of what is below; MaxConnections holds whatever it is
	PerAddress     int         `json:"per_address,omitempty"` // 0: half of MaxConnections; -1: no limit
	Rate           float64     `json:"rate,omitempty"`        // 0: no limit
	RatePerAddress float64     `json:"rate_per_address,omitempty"`
	Addresses      int         `json:"addresses,omitempty"`
	Exempt         []string    `json:"exempt,omitempty"` // nil: the networks of identity.trusted
}

// Networks returns Exempt. What is no network is left out; Parse finds it.
func (c *Connections) Networks() []netip.Prefix {
	networks := make([]netip.Prefix, 0, len(c.Exempt))
	for _, text := range c.Exempt {
		if n, err := policy.ParseNetwork(text); err == nil {
			networks = append(networks, n)
		}
	}
	return networks
}

// TLS names the PEM files of a listener's certificate, and of the authorities that
// vouch for its clients, if it asks those for certificates. Names that are not
// absolute are relative to the configuration file; Load resolves them.
type TLS struct {
	Cert       string     `json:"cert"`
	Key        string     `json:"key"`
	ClientCA   string     `json:"client_ca,omitempty"`
	ClientAuth ClientAuth `json:"client_auth,omitempty"`
}

// ClientAuth says whether a client may do without a certificate where there is a
// ClientCA. Empty is ClientRequire.
type ClientAuth string

// What to do with a client that shows no certificate. One that shows a certificate of
// another authority is refused either way.
const (
	ClientRequire  ClientAuth = "require"  // refuse it
	ClientOptional ClientAuth = "optional" // take it for anybody
)

// Upstream is a set of interchangeable servers that requests are passed on to.
type Upstream struct {
	Targets         []string          `json:"targets"`
	Limit           *policy.LimitSpec `json:"limit,omitempty"`
	ConnectTimeout  policy.Duration   `json:"connect_timeout,omitempty"`
	ResponseTimeout policy.Duration   `json:"response_timeout"`
	Eject           Eject             `json:"eject,omitzero"`
	OnAbandon       OnAbandon         `json:"on_abandon,omitempty"`
}

// Eject says when a target that fails is left out, and for how long.
type Eject struct {
	Failures int             `json:"failures"`
	For      policy.Duration `json:"for,omitempty"`
}

// OnAbandon says when the slot of a request becomes free whose client has left.
type OnAbandon string

// What to do when a client leaves.
const (
	Hold    OnAbandon = "hold"    // keep the slot until the upstream is done, as far as can be known
	Release OnAbandon = "release" // give the slot back at once
)

// Route is a route of the policy and the upstream its requests go to.
type Route struct {
	policy.RouteSpec
	Upstream string `json:"upstream"`
}

// Admin is the listener for metrics, health and snapshots.
type Admin struct {
	Address string `json:"address,omitempty"`
	Pprof   *bool  `json:"pprof,omitempty"` // nil: see Profiles
	// Socket and TokenFile open writes: to those who can open the one, or have the other.
	Socket    string `json:"socket,omitempty"`
	TokenFile string `json:"token_file,omitempty"`
}

// Off as the address of Admin means that there is no admin listener.
const Off = "off"

// Enabled reports whether there is an admin listener.
func (a Admin) Enabled() bool { return a.Address != Off }

// Profiles reports whether the listener serves profiles: as Pprof says, and if it
// says nothing, where only this machine reaches the listener. A profile costs CPU
// and tells of the process's inside, and nobody is asked who they are.
func (a Admin) Profiles() bool {
	if a.Pprof != nil {
		return *a.Pprof
	}
	host, _, err := net.SplitHostPort(a.Address)
	if err != nil {
		return false
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback() || host == "localhost"
}

// Metrics says how finely things are counted.
type Metrics struct {
	Tenants int `json:"tenants"`
}

// Streams bounds what leaves its gate early: streams, upgrades, slow readers.
type Streams struct {
	Max int `json:"max,omitempty"`
}

// State says where learned limits are kept over a restart.
type State struct {
	File   string          `json:"file,omitempty"`
	MaxAge policy.Duration `json:"max_age,omitempty"`
}

// Shutdown says how the gateway stops: LameDuck of telling clients to go while
// still accepting, then up to Grace for what is in flight.
type Shutdown struct {
	Grace    policy.Duration `json:"grace,omitempty"`
	LameDuck policy.Duration `json:"lame_duck"`
}

// Log says what is logged and how.
type Log struct {
	Level  string `json:"level,omitempty"`
	Format string `json:"format,omitempty"`
}

// TargetCount returns the number of targets of all upstreams.
func (c *Config) TargetCount() int {
	n := 0
	for _, u := range c.Upstreams {
		n += len(u.Targets)
	}
	return n
}

// Quotas says where rules of quotas are kept that are set while the gateway runs.
type Quotas struct {
	File        string `json:"file,omitempty"`
	Store       string `json:"store,omitempty"`
	StartBroken bool   `json:"start_broken,omitempty"`
}

// QuotaPlace says where in the file a field of a gate's quota stands, as in
// weir.yaml:12; empty where that is not known.
func (c *Config) QuotaPlace(gate, field string) string {
	return c.place("gates." + gate + ".quota." + field)
}

func (c *Config) place(path string) string {
	line, ok := c.places[path]
	if !ok {
		return ""
	}
	return fmt.Sprintf("%s:%d", filepath.Base(c.name), line)
}

// At names a field for messages, with where it stands if that is known, as in
// "weir.yaml:12: quotas.file". It knows the places of quotas and of admin.socket.
func (c *Config) At(path string) string {
	if at := c.place(path); at != "" {
		return at + ": " + path
	}
	return path
}

// Addresses that are used where none is given.
const (
	DefaultListen = "127.0.0.1:8080"
	DefaultAdmin  = "127.0.0.1:9090"
)

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

// Starter is a commented file to grow from. It passes Parse as it is.
//
//go:embed starter.yaml
var Starter []byte
