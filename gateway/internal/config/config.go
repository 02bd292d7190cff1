package config

import (
	_ "embed"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	_ "time/tzdata" // so that limits by the calendar know time zones where the machine has none

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
	"github.com/weir-go/weir/policy"
)

// Config is what the gateway's file says, with the defaults filled in. The keys
// in the file are the json tags. The other tags and the comment
// of a field say what it may be; the schema and the reference guide are made from them.
type Config struct {
	// Addresses that accept clients. The default does not hold in a file that names neither upstreams nor routes,
	// and whose kafka has a listen.
	Listeners []Listener `json:"listeners,omitempty" default:"[{address: 127.0.0.1:8080}]" example:"[{address: 127.0.0.1:8080}]"`
	// The servers behind the gateway, by a name that routes refer to.
	// Required where a listener serves http.
	Upstreams map[string]Upstream `json:"upstreams" example:"{app: {targets: [http://127.0.0.1:3000]}}"`
	// Where tenant, user, client and priority of a request come from. Each is a source. header:NAME is believed
	// only from trusted proxies. path:NAME is a wildcard of the route's pattern. address is the client's
	// (IPv6 by /64), behind trusted proxies the one in X-Forwarded-For. cert:NAME is uri, dns, subject, cn or hash
	// of a verified client certificate. const:VALUE is itself. Left out, the field stays empty.
	Identity policy.IdentitySpec `json:"identity,omitzero" example:"{tenant: path:database}"`
	// Which headers carry a request's deadline. The earliest of them and the route's timeout counts. The
	// upstream is told what is left of it.
	Deadline policy.DeadlineSpec `json:"deadline,omitzero" example:"{headers: [grpc-timeout, X-Request-Timeout]}"`
	// Settings of signals, by the names that gates use, where the defaults are not enough. A gate can also name
	// a kind directly: signals: [memory].
	Signals map[string]Signal `json:"signals,omitempty" example:"{behind: {read: http, url: http://127.0.0.1:8000/lag}}"`
	// Clusters of Kafka, by name. A signal may read how far a consumer group is behind, and clients may reach the cluster
	// through the gateway.
	Kafka map[string]Kafka `json:"kafka,omitempty" example:"{main: {bootstrap: [127.0.0.1:9092]}}"`
	// The gates by name. Each has exactly one mechanism: limit, shed or quota. A gate used by several routes is
	// one gate.
	Gates map[string]policy.GateSpec `json:"gates,omitempty" example:"{api: {limit: {limit: 20}}}"`
	// Servers that keep the buckets of quotas for several gateways, by a name that gates refer to.
	Stores map[string]Store `json:"stores,omitempty" example:"{shared: {redis: \"redis://127.0.0.1:6379\"}}"`
	// Limits for the rate limit filter of Envoys, on a listener with serve: [ratelimit].
	RateLimit RateLimit `json:"rate_limit_service,omitzero" example:"{files: [limits.yaml]}"`
	// The gates and the upstream of each request. The most specific pattern wins, whatever the
	// order. Required where a listener serves http or ext_proc.
	Routes []Route `json:"routes" example:"[{match: [/], upstream: app}]"`
	// Keeps rules of quotas that weir quota or /quotas sets while the gateway runs. They win over
	// the rules of this file. Left out, none can be set.
	Quotas Quotas `json:"runtime_quotas,omitzero" was:"quotas" example:"{file: weir.quotas.json}" short:"file"`
	// The listener for /metrics, /healthz, /readyz, /gates, /explain, /quotas and /reload. Keep it on loopback or a
	// private network: reading needs no password.
	Admin Admin `json:"admin,omitzero" example:"{address: 127.0.0.1:8090}" short:"address"`
	// How finely things are counted.
	Metrics Metrics `json:"metrics" example:"{tenants: 20}"`
	// Answers that leave their gate early because they would keep a slot without work for the upstream: upgraded
	// connections, streams, slow readers.
	Streams Streams `json:"streams,omitzero" example:"{max: 1000}"`
	// Where learned limits are kept over a restart.
	State State `json:"state,omitzero" example:"{file: weir.state.json}"`
	// How the gateway stops on SIGTERM.
	Shutdown Shutdown `json:"shutdown,omitzero" example:"{grace: 25s}"`
	// What is logged, and how.
	Log Log `json:"log,omitzero" example:"{level: info}"`
	// A line for each request. Off by default.
	AccessLog AccessLog `json:"access_log,omitzero" example:"{to: access.log}"`
	// Spans of requests for OpenTelemetry. Off by default. The headers traceparent and tracestate are passed on
	// in any case.
	Tracing Tracing `json:"tracing,omitzero" example:"{endpoint: http://127.0.0.1:4318}"`

	name string        // of the file
	root *setting.Node // the parsed document; it finds fields by name

	env   *environment  // whose values messages do not repeat
	noted []fault.Fault // what its reading has noted, such as names of earlier versions
}

// Policy returns the part of the configuration that policy.Compile takes.
func (c *Config) Policy() policy.Spec {
	routes := make([]policy.RouteSpec, len(c.Routes))
	for i, rt := range c.Routes {
		routes[i] = rt.RouteSpec
		routes[i].Upstream = rt.Upstream
	}
	return policy.Spec{
		Identity: c.Identity, Deadline: c.Deadline, Signals: c.signalSpecs(), Gates: c.withDomains(), Routes: routes, RuntimeRules: c.Quotas.Kept(), OtherWork: c.kafkaWork(),
	}
}

// servesRoutes reports whether a listener serves requests by routes, of HTTP or of ext_proc.
func (c *Config) servesRoutes() bool {
	return c.ServesHTTP() || c.servesExtProc()
}

// servesExtProc reports whether a listener admits the requests of an Envoy.
func (c *Config) servesExtProc() bool {
	return slices.ContainsFunc(c.Listeners, func(l Listener) bool { return slices.Contains(l.Serve, ServeExtProc) })
}

// ServesHTTP reports whether a listener passes requests on. Without any, there is one by default, but not if
// clients of Kafka are all that the file is about.
func (c *Config) ServesHTTP() bool {
	return len(c.Listeners) == 0 && len(c.KafkaListeners()) == 0 || slices.ContainsFunc(c.Listeners, func(l Listener) bool { return !l.ServesEnvoy() })
}

// Upstream is a set of interchangeable servers that requests are passed on to.
type Upstream struct {
	// URLs of interchangeable servers; requests go to them in turn. A path is put before the request's own. The
	// scheme is http, https, or h2c for HTTP/2 without TLS (all of them, or none). unix:/run/app.sock is a Unix
	// socket with HTTP/1.1; a path that does not begin with / is relative to this file.
	Targets []string `json:"targets" example:"[http://127.0.0.1:3000]" form:"a URL such as http://127.0.0.1:3000" required:"true"`
	// A concurrency limit for each target, beside the gates of the route. auto finds it; a number is fixed.
	Limit *policy.LimitSpec `json:"limit,omitempty" example:"{limit: 10}" short:"limit" words:"auto="`
	// Which target gets a request. round_robin takes them in turn. least_loaded takes the one with the fewest
	// requests in progress, so that a slow target gets less to do.
	Balance Balance `json:"balance,omitempty" default:"round_robin" enum:"round_robin,least_loaded" meant:"leastconn=least_loaded,least_conn=least_loaded,least_connections=least_loaded,least_request=least_loaded,roundrobin=round_robin,round-robin=round_robin,wrr=round_robin"`
	// How long connecting to a target may take, TLS included.
	ConnectTimeout policy.Duration `json:"connect_timeout,omitempty" default:"2s" min:"1ms" max:"10m"`
	// How long a target may take until the header of its answer. 0 means no limit.
	ResponseTimeout policy.Duration `json:"response_timeout" default:"30s" min:"0s" max:"24h"`
	// How long a target may send nothing in the middle of an answer. Then the answer is cut off. Connections that were
	// upgraded, as by WebSockets, have no such limit, and calls of gRPC have one of their own. 0 means no limit.
	ResponseIdleTimeout policy.Duration `json:"response_idle_timeout" default:"5m" min:"0s" max:"24h"`
	// How long a call of gRPC may go without a byte of either side before it is ended. It begins with
	// the call, and does not count while the target works on a complete request: response_timeout
	// does then. 0 means no limit.
	GRPCIdleTimeout policy.Duration `json:"grpc_idle_timeout" default:"5m" min:"0s" max:"24h"`
	// When a failing target is ejected for a while. The last one left is never ejected.
	Eject Eject `json:"passive_health,omitzero" was:"eject"`
	// Asks each target whether it works, and sends no requests to those that do not. If none works, all are
	// tried. Left out, targets are not asked.
	HealthCheck *HealthCheck `json:"health_check,omitempty" example:"{path: /healthz}"`
	// Connections over HTTP/1 to one target at a time. Further requests wait for one, where no gate sees them: a
	// limit of the targets should refuse before. Requests over HTTP/2 share connections, which nothing here bounds.
	// Upgrades at https targets have as many of their own. 0 means no limit.
	MaxConnections int `json:"max_connections,omitempty" default:"0" min:"0" max:"1000000" example:"100"`
	// Idle connections that are kept to one target.
	MaxIdleConnections int `json:"max_idle_connections,omitempty" default:"1024" min:"1" max:"1000000" minus1:"none is kept"`
	// How long an idle connection to a target is kept. Make it shorter than the target does, else requests
	// meet connections that it has just closed.
	IdleTimeout policy.Duration `json:"idle_timeout,omitempty" default:"45s" min:"1ms" max:"24h"`
	// What happens to the slot when a client leaves before its answer. hold keeps it, because the
	// upstream works on. It is free again when the upstream has answered. After 32 times the expected
	// rest of the work, or after response_timeout, the request is cancelled. Where weir cannot hear
	// the answer, as before an Envoy, the slot is free after the expected rest. release gives it back
	// at once, for upstreams that stop.
	OnAbandon OnAbandon `json:"on_client_disconnect,omitempty" was:"on_abandon" default:"hold" enum:"hold,release"`
}

// HealthCheck says how targets are asked whether they work.
type HealthCheck struct {
	// Path that is asked for with GET, after the path of the target.
	Path string `json:"path" example:"/healthz" form:"a path such as /healthz" required:"true"`
	// How often a target is asked, a tenth more or less.
	Interval policy.Duration `json:"interval,omitempty" default:"10s" min:"100ms" max:"24h"`
	// How long an answer may take, connecting included: no longer than the interval, which is the default of a shorter one.
	Timeout policy.Duration `json:"timeout,omitempty" default:"2s" min:"1ms" max:"10m"`
	// The statuses of a target that works. Left out, 200 to 399. Redirects are not followed.
	Status []int `json:"status,omitempty" min:"100" max:"599" example:"[200, 204]"`
	// Checks in a row that an unhealthy target must pass to get requests again.
	Healthy int `json:"healthy_threshold,omitempty" default:"2" min:"1" max:"100"`
	// Checks in a row that a healthy target must fail to get no more requests.
	Unhealthy int `json:"unhealthy_threshold,omitempty" default:"3" min:"1" max:"100"`
}

// SetDefaults fills in what the file may leave out.
func (h *HealthCheck) SetDefaults() { setting.Fill(h) }

// Balance says which target of an upstream gets a request.
type Balance string

// How targets are chosen.
const (
	RoundRobin  Balance = "round_robin"  // in turn
	LeastLoaded Balance = "least_loaded" // the one with the fewest requests in progress
)

// Eject says when a target that fails is left out, and for how long.
type Eject struct {
	// Failures in a row after which a target is ejected: connection errors, time-outs, and 502 and 504 answers.
	// 0 means never.
	Failures int `json:"failures" default:"5" min:"0" max:"1000"`
	// How long it is ejected, before one request tries it again.
	For policy.Duration `json:"for,omitempty" default:"10s" min:"10ms" max:"24h"`
}

// OnAbandon says when a request's slot becomes free after its client has left.
type OnAbandon string

// What to do when a client leaves.
const (
	Hold    OnAbandon = "hold"    // keep the slot until the upstream is done, as far as can be known
	Release OnAbandon = "release" // give the slot back at once
)

// Route is a route of the policy and the upstream its requests go to.
type Route struct {
	policy.RouteSpec `required:"match"`
	// Name of the upstream that answers. Required where a listener serves http. On a listener for
	// ext_proc Envoy knows where to go; only on_client_disconnect and response_timeout of it count.
	Upstream string `json:"upstream,omitempty" example:"app"`
}

// Admin is the listener for metrics, health and snapshots.
type Admin struct {
	// host:port of the admin listener, or off.
	Address string `json:"address,omitempty" default:"127.0.0.1:8090" example:"127.0.0.1:8090" form:"host:port or off"`
	// Serve Go profiles under /debug/pprof/. Left out, they are served where the address is loopback.
	Pprof *bool `json:"pprof,omitempty" example:"true"`
	// Path of a Unix socket, relative to this file. The admin listener answers there too. Only the
	// gateway's user can open it. Who can open it may also write: set quotas, reload.
	Socket string `json:"socket,omitempty" example:"/run/weir/admin.sock"`
	// File with a token of 16 bytes or more. A write that does not come over the socket needs it. Read at each
	// write. Without socket and token_file nobody may write.
	TokenFile string `json:"token_file,omitempty" example:"/etc/weir/admin.token"`
}

// Guess implements setting.Guesser: a port in the place of admin is one of this machine, and false is off.
func (a *Admin) Guess(scalar string) string {
	if _, err := strconv.ParseUint(scalar, 10, 16); err == nil {
		return "127.0.0.1:" + scalar
	}
	if scalar == "false" {
		return Off
	}
	return ""
}

// Off as the address of Admin means that there is no admin listener. As the place of AccessLog it
// means that there is no such log.
const Off = "off"

// Enabled reports whether there is an admin listener.
func (a Admin) Enabled() bool { return a.Address != Off }

// Profiles reports whether the listener serves profiles. Pprof decides. If it is not set, profiles
// are served if only this machine reaches the listener. A profile costs CPU and shows the inside of
// the process, and readers are not authenticated.
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
	// How many tenants have series of their own: those with the most requests. For each quota, how many buckets:
	// those that refuse most. The rest are counted as one, other. 0 means none has.
	Tenants int `json:"tenants" default:"20" min:"0" max:"1000"`
}

// Streams bounds what leaves its gate early: streams, upgrades, slow readers.
type Streams struct {
	// How many may be open at a time. Further ones go on, but keep their slot at the gate, and are counted as
	// overflowed. One user may have half of them.
	Max int `json:"max,omitempty" default:"1000" min:"1" max:"1000000"`
}

// State says where learned limits are kept over a restart.
type State struct {
	// File for learned limits, relative to this file. Written once a minute and on shutdown, read at start.
	// Left out, nothing is saved.
	File string `json:"file,omitempty" example:"weir.state.json"`
	// Older state is not used.
	MaxAge policy.Duration `json:"max_age,omitempty" default:"1h" min:"1s" max:"8760h"`
}

// Shutdown says how the gateway stops: LameDuck of telling clients to go while
// still accepting, then up to Grace for what is in flight.
type Shutdown struct {
	// How long work in flight may take to finish. The rest is then cut off.
	Grace policy.Duration `json:"grace,omitempty" default:"25s" min:"0s" max:"24h"`
	// Before that: how long to go on accepting while /readyz answers 503 and clients are told to reconnect
	// (Connection: close, GOAWAY).
	LameDuck policy.Duration `json:"lame_duck" default:"1s" min:"0s" max:"1h"`
}

// Log says what is logged and how.
type Log struct {
	// The least severe lines that are logged.
	Level string `json:"level,omitempty" default:"info" enum:"debug,info,warn,error"`
	// auto is text on a terminal and JSON otherwise.
	Format string `json:"format,omitempty" default:"auto" enum:"auto,text,json"`
}

// AccessLog says where a line for each request goes, and what is in it.
type AccessLog struct {
	// Where the lines go: off, stdout, stderr, or a file, relative to this file. A reload (SIGHUP) opens the file
	// again, for logrotate. Lines that cannot be written in time are lost and counted; no request waits for them.
	To string `json:"to,omitempty" default:"off" example:"access.log" form:"off, stdout, stderr or the name of a file"`
	// One JSON object a line, or key=value.
	Format string `json:"format,omitempty" default:"json" enum:"json,text"`
	// Write the query of the URL too. It may hold passwords and tokens.
	Query bool `json:"query,omitempty" default:"false"`
	// The share of lines that is written, of answers below 400. All others have a line each.
	Sample float64 `json:"sample" default:"1" min:"0" max:"1" example:"0.1"`
}

// Enabled reports whether requests have lines.
func (a AccessLog) Enabled() bool { return a.To != "" && a.To != Off }

// Stream returns the standard stream that the lines go to, nil if they go to a file.
func (a AccessLog) Stream() *os.File {
	switch a.To {
	case "stdout", "/dev/stdout":
		return os.Stdout
	case "stderr", "/dev/stderr":
		return os.Stderr
	}
	return nil
}

// Tracing says where spans of requests go, and how many requests have one.
type Tracing struct {
	// URL of a collector that takes OTLP over HTTP. Without a path it is /v1/traces. Headers for it, such as a
	// token, are in the environment: OTEL_EXPORTER_OTLP_HEADERS=name=value. Left out, there are no spans.
	Endpoint string `json:"endpoint,omitempty" example:"http://127.0.0.1:4318" form:"a URL such as http://127.0.0.1:4318"`
	// The share of requests that has a span. If a trusted peer sends a trace, its flag decides instead.
	Sample float64 `json:"sample" default:"1" min:"0" max:"1" example:"0.01"`
	// What the gateway is called in spans, service.name.
	ServiceName string `json:"service_name,omitempty" default:"weir" empty:"no"`
}

// Enabled reports whether there are spans.
func (t Tracing) Enabled() bool { return t.Endpoint != "" }

// URL returns where spans are posted.
func (t Tracing) URL() string {
	u, err := url.Parse(t.Endpoint)
	if err != nil { // cannot be: Parse has checked it
		return t.Endpoint
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/traces"
	}
	return u.String()
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
	// File for the rules, relative to this file; only one gateway can use it at a time. It is replaced as a
	// whole. A change by hand is in force within a second. If a reload names another file, its rules count;
	// those of the old one stay there.
	File string `json:"file,omitempty" example:"weir.quotas.json"`
	// One of stores, for several gateways, instead of file. A rule set at one gateway is in force
	// at all of them within two seconds. Let that server keep its data on disk.
	Store string `json:"store,omitempty" example:"shared"`
	// Start with the rules of this file alone if the kept rules cannot be read. By default the
	// gateway does not start then, because it might admit users that are blocked.
	StartBroken bool `json:"start_broken,omitempty" default:"false"`
	// InMemory keeps them until the gateway ends. It is for running without a file.
	InMemory bool `json:"-"`
}

// Kept reports whether rules can be set while the gateway runs.
func (q *Quotas) Kept() bool { return q.File != "" || q.Store != "" || q.InMemory }

// QuotaPlace says where in the file a field of a gate's quota stands, as in
// weir.yaml:12; empty where that is not known.
func (c *Config) QuotaPlace(gate, field string) string {
	if at := c.domainPlace(gate, field); at != "" {
		return at
	}
	return c.place(append(fault.Path{"gates", gate, "quota"}, steps(field)...))
}

// At names a field for messages, with where it stands if that is known, as in
// "weir.yaml:12: runtime_quotas.file".
func (c *Config) At(path string) string {
	if at := c.place(steps(path)); at != "" {
		return at + ": " + path
	}
	return path
}

func steps(path string) fault.Path {
	return strings.FieldsFunc(path, func(r rune) bool { return strings.ContainsRune(".[]", r) })
}

func (c *Config) place(path fault.Path) string {
	if c.root == nil || !c.root.Has(path) {
		return ""
	}
	return fmt.Sprintf("%s:%d", filepath.Base(c.name), c.root.Where(path).Line)
}

// Addresses that are used where none is given.
const (
	DefaultListen = "127.0.0.1:8080"
	DefaultAdmin  = "127.0.0.1:8090"
)

// ForUpstream is the configuration of a gateway started without a file. It listens on listen (empty
// for [DefaultListen]) and guards one upstream with all defaults. Route "/" goes through the gate
// "upstream".
//
// With a positive maxInFlight the gate has that fixed limit. With 0 it finds one
// by itself, with the default controller (belief) and nothing set.
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
	c.SetDefaults()
	c.Listeners = []Listener{DefaultListener(listen)}
	var u Upstream
	u.SetDefaults()
	u.Targets = []string{upstream}
	c.Upstreams = map[string]Upstream{"upstream": u}
	c.Gates = map[string]policy.GateSpec{"upstream": {Limit: defaultLimit(maxInFlight)}}
	c.Routes = []Route{{
		RouteSpec: policy.RouteSpec{Match: []string{"/"}, Gates: []string{"upstream"}},
		Upstream:  "upstream",
	}}
	return c, nil
}

// Where clients reach a cluster without a file: DefaultKafka is the address to bootstrap at, and DefaultNodes are the ports of nodes.
const (
	DefaultKafka = "127.0.0.1:19092"
	DefaultNodes = "19100-19199"
)

// mostDialing bounds the connections that wait for a quota of new ones without a file.
const mostDialing = 1000

// ForKafka is the configuration of a gateway started without a file before a cluster of Kafka. Clients bootstrap at
// [DefaultKafka].
func ForKafka(bootstrap ...string) (*Config, error) {
	for _, address := range bootstrap {
		if problem, remedy := brokerProblem(address); problem != "" {
			return nil, fmt.Errorf("broker %s; %s", problem, remedy)
		}
	}
	c := new(Config)
	c.SetDefaults()
	c.Listeners = nil
	var l KafkaListen
	l.SetDefaults()
	l.Address = DefaultKafka
	k := Kafka{Bootstrap: bootstrap, Listen: &l, Nodes: &KafkaNodes{Ports: DefaultNodes, Advertise: "127.0.0.1"}}
	for _, address := range bootstrap {
		if k.itself(address) != "" {
			return nil, fmt.Errorf("broker %s is this gateway itself, where clients of Kafka reach it; write the address of a broker, for instance 127.0.0.1:9092", address)
		}
	}
	k.SetDefaults()
	k.Quotas.Mutations, k.Quotas.Produce, k.Quotas.Fetch, k.Quotas.Connections = "mutations", "produce", "fetch", "connections"
	c.Kafka = map[string]Kafka{"kafka": k}
	c.Gates = map[string]policy.GateSpec{}
	for _, name := range k.Quotas.gates() { // which limit nobody until clients set quotas
		c.Gates[name] = policy.GateSpec{Quota: &policy.QuotaSpec{Debt: name == k.Quotas.Mutations}}
	}
	dial := c.Gates[k.Quotas.Connections].Quota
	dial.Queue.Len, dial.Queue.MaxWait = mostDialing, k.Quotas.MaxThrottle
	c.Quotas.InMemory = true
	return c, nil
}

func defaultLimit(maxInFlight int64) *policy.LimitSpec {
	if maxInFlight > 0 {
		return &policy.LimitSpec{Controller: "fixed", Limit: maxInFlight}
	}
	return &policy.LimitSpec{}
}

// SetDefaults fills in what the file may leave out: the defaults in the tags.
func (c *Config) SetDefaults() { setting.Fill(c) }

// SetDefaults does the same for an upstream.
func (u *Upstream) SetDefaults() { setting.Fill(u) }

// Starter is a short file to grow from, FullStarter one with every setting in it, most of them
// commented out. Both pass Parse as they are, without a warning.
//
//go:embed starter.yaml
var Starter []byte

// FullStarter has every setting.
//
//go:embed starter-full.yaml
var FullStarter []byte

// StartFor returns a starter with another target. If that listens where the starter does, the
// listener moves on by a port. The error says what is wrong with the target.
func StartFor(starter []byte, target string) ([]byte, error) {
	if err := checkTarget(target); err != nil {
		return nil, err
	}
	text := strings.Replace(string(starter), "["+someTarget+"]", "["+flowText(target)+"]", 1)
	if u, err := url.Parse(target); err == nil && reaches(u.Hostname(), u.Port(), DefaultListen) {
		text = strings.Replace(text, "address: "+DefaultListen, "address: 127.0.0.1:8081", 1)
	}
	return []byte(text), nil
}

// Schema is the JSON schema (2020-12) of the file. make docs makes it from the types, their tags
// and their comments.
//
//go:embed schema.json
var Schema []byte

// SchemaID is the name of the schema. Editors take it from a comment in the file:
//
//	# yaml-language-server: $schema=...
const SchemaID = "https://raw.githubusercontent.com/weir-go/weir/main/docs/config.schema.json"
