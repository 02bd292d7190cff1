package config

import (
	"maps"
	"reflect"
	"strings"
)

// field is what the file format knows of one key beyond its Go type. The decoder
// enforces required, enum, least and most; the schema and the reference guide
// print all of it.
type field struct {
	doc      string
	def      string // default as one would write it; empty: none
	example  string // a value that is right, as flow YAML
	form     string // what a text looks like, in words
	enum     []string
	least    string // smallest value allowed, as one would write it
	most     string
	minusOne string // what -1 means, where it is allowed
	required bool
	anyName  bool // keys of a map that are words of others, such as tenants
}

// orMinusOne ends the remedy of a value that is too small.
func (f field) orMinusOne() string {
	if f.minusOne == "" {
		return ""
	}
	return ", or -1: " + f.minusOne
}

// sample is a value to show in a message.
func (f field) sample() string {
	switch {
	case f.example != "":
		return f.example
	case f.def != "":
		return f.def
	}
	return "..."
}

// key is a field of a struct as the file sees it.
type key struct {
	name  string
	index []int // for reflect.Value.FieldByIndex
	typ   reflect.Type
	field
}

type fieldList []key

// fieldsOf lists the keys of a struct in their order; embedded structs are
// spread out.
func fieldsOf(t reflect.Type) fieldList {
	var list fieldList
	for sf := range t.Fields() {
		if sf.Anonymous {
			for _, k := range fieldsOf(sf.Type) {
				k.index = append([]int{sf.Index[0]}, k.index...)
				list = append(list, k)
			}
			continue
		}
		name, _, _ := strings.Cut(sf.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		list = append(list, key{name: name, index: sf.Index, typ: sf.Type, field: fields[t.Name()+"."+name]})
	}
	return list
}

// holders names the groups in l that have a key called name.
func (l fieldList) holders(name string) []string {
	var in []string
	for _, k := range l {
		t := k.typ
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct {
			continue
		}
		if _, ok := fieldsOf(t).find(name); ok {
			in = append(in, k.name)
		}
	}
	return in
}

func (l fieldList) find(name string) (key, bool) {
	for _, k := range l {
		if k.name == name {
			return k, true
		}
	}
	return key{}, false
}

func (l fieldList) names() []string {
	names := make([]string, len(l))
	for i, k := range l {
		names[i] = k.name
	}
	return names
}

// source is the form of an identity source.
const source = "header:NAME, path:NAME, peer, cert:NAME or const:VALUE"

// fields documents every key of the file, by Go type and key. A test holds it
// against the types in both directions.
var fields = union(generalFields, routeFields, gateFields, quotaFields, storeFields, controllerFields, signalFields, dynamicFields)

func union(tables ...map[string]field) map[string]field {
	all := make(map[string]field)
	for _, t := range tables {
		maps.Copy(all, t)
	}
	return all
}

var generalFields = map[string]field{
	"Config.listeners": {
		doc: "Addresses on which clients are accepted.",
		def: "[{address: 127.0.0.1:8080}]", example: "[{address: 127.0.0.1:8080}]",
	},
	"Config.upstreams": {
		doc:     "The servers behind the gateway, by a name that routes refer to.",
		example: "{app: {targets: [http://127.0.0.1:3000]}}", required: true,
	},
	"Config.identity": {
		doc: "Where tenant, user, client and priority of a request come from. Each is a source: " +
			"header:NAME (believed only from trusted peers), path:NAME (a wildcard of the route's pattern), " +
			"peer (the address that asks, IPv6 by /64; behind trusted peers as X-Forwarded-For says), " +
			"cert:NAME (uri, dns, subject, cn or hash of a verified client certificate), or const:VALUE. Left out, it stays empty.",
		example: "{tenant: path:database}",
	},
	"Config.deadline": {
		doc:     "Where requests bring their deadlines. The earliest of those and of the route's timeout holds, and what is left of it is told to the upstream.",
		example: "{headers: [grpc-timeout, X-Request-Timeout]}",
	},
	"Config.signals": {
		doc:     "Signals that gates go by, by a name of yours, where the defaults will not do. A gate may name what is read itself: signals: [memory].",
		example: "{behind: {read: http, url: http://127.0.0.1:8000/lag}}",
	},
	"Config.gates": {
		doc:     "The gates by name. Each has exactly one mechanism, limit, shed or quota. A gate used by several routes is one gate.",
		example: "{api: {limit: {limit: 20}}}",
	},
	"Config.stores": {
		doc:     "Servers that keep the buckets of quotas for several gateways, by a name that gates refer to.",
		example: "{shared: {redis: \"redis://127.0.0.1:6379\"}}",
	},
	"Config.routes": {
		doc:     "Which requests go through which gates to which upstream. The most specific pattern wins, whatever the order.",
		example: "[{match: [/], upstream: app}]", required: true,
	},
	"Config.admin":    {example: "{address: 127.0.0.1:9090}", doc: "The listener for /metrics, /healthz, /readyz, /gates, /explain and /quotas. Keep it on loopback or a private network: it asks nobody who reads there who they are."},
	"Config.metrics":  {example: "{tenants: 20}", doc: "How finely things are counted."},
	"Config.streams":  {example: "{max: 1000}", doc: "What leaves its gate early because it would hold a slot without working the upstream: upgraded connections, streams, slow readers."},
	"Config.state":    {example: "{file: weir.state.json}", doc: "Where learned limits are kept over a restart."},
	"Config.shutdown": {example: "{grace: 25s}", doc: "How the gateway stops on SIGTERM."},
	"Config.log":      {example: "{level: info}", doc: "What is logged, and how."},

	"Listener.address":             {form: "host:port", doc: "host:port to listen on; :8080 means all interfaces.", example: "127.0.0.1:8080", required: true},
	"Listener.tls":                 {doc: "Certificate for TLS. With it HTTP/2 is offered as well as HTTP/1.1.", example: "{cert: server.crt, key: server.key}"},
	"Listener.h2c":                 {doc: "Accept HTTP/2 without TLS (prior knowledge) beside HTTP/1.1.", def: "false"},
	"Listener.read_header_timeout": {doc: "How long a client may take to send the header of a request.", def: "5s", least: "1ms", most: "1h"},
	"Listener.read_timeout":        {doc: "How long a client may take to send the body of a request; a second more for each 4 KiB that it has sent. A body slower than 64 KiB a second holds no slot while it comes; the request is admitted again when it is complete.", def: "30s", least: "1ms", most: "24h"},
	"Listener.write_timeout":       {doc: "How long a client may take no byte of the answer. An answer that makes progress may last longer.", def: "30s", least: "1ms", most: "24h"},
	"Listener.idle_timeout":        {doc: "How long a kept-alive connection may stand idle between requests.", def: "2m", least: "1ms", most: "24h"},
	"Listener.max_header_bytes":    {doc: "Largest header of a request in bytes; a larger one is answered 431.", def: "65536", least: "1024", most: "16777216"},
	"Listener.max_connections":     {doc: "Connections open at a time, slow handshakes and idle ones included; further ones are refused as soon as they are accepted, with an answer on plain HTTP, by a reset under TLS. Over HTTP/2 also the requests in progress, but at least 1000; further ones are answered with 503.", def: "10000", least: "1", most: "1000000"},
	"Listener.connections":         {doc: "Limits on connections beside max_connections: of one address, and of new ones a second. All of them are taken up by a reload while connections last.", example: "{rate_per_address: 20}"},
	"Listener.max_concurrent_streams": {
		doc: "Requests in progress at a time on one HTTP/2 connection.",
		def: "100", least: "1", most: "10000",
	},

	"Connections.mode": {
		doc: "enforce refuses what is beyond these limits; observe counts it, but lets it in; off counts nothing. max_connections holds in any case: it bounds what the gateway itself needs.",
		def: "enforce", enum: []string{"enforce", "observe", "off"},
	},
	"Connections.per_address": {
		doc: "Connections open at a time from one address (IPv6: one /64 network). 0 means half of max_connections, so that no address can take them all; -1 means no limit.",
		def: "0", example: "100", least: "-1", most: "1000000",
	},
	"Connections.rate":             {doc: "New connections a second; after a pause as many at once, but at least one. 0 means no limit.", def: "0", least: "0", most: "1000000"},
	"Connections.rate_per_address": {doc: "The same for each address.", def: "0", least: "0", most: "1000000"},
	"Connections.addresses": {
		doc: "Addresses known at a time, of 160 bytes each. Those beyond are taken for one address together.",
		def: "65536", least: "1", most: "1000000",
	},
	"Connections.exempt": {
		form:    "a network such as 10.0.0.0/8",
		doc:     "Networks (CIDR) whose addresses have no limits of their own: proxies and load balancers, through which many come. Left out, those of identity.trusted; an empty list exempts nobody.",
		example: "[10.0.0.0/8]",
	},

	"TLS.cert": {doc: "PEM file with the certificate chain, relative to this file.", example: "server.crt", required: true},
	"TLS.key":  {doc: "PEM file with the private key, relative to this file.", example: "server.key", required: true},
	"TLS.client_ca": {
		doc: "PEM file with the authorities that vouch for clients, relative to this file; read again when it changes. With it clients are asked for a certificate, " +
			"and a certificate of anybody else is refused in the handshake. Take an authority of your own: whoever has a certificate of it gets in.",
		example: "clients.pem",
	},
	"TLS.client_auth": {
		doc: "Whether a client may do without a certificate (optional), as anybody does elsewhere.",
		def: "require", enum: []string{"require", "optional"},
	},

	"Upstream.targets": {
		form:    "a URL such as http://127.0.0.1:3000",
		doc:     "URLs of servers that are interchangeable; requests go to them in turn. A path is put before the request's own. The scheme is http, https, or h2c for HTTP/2 without TLS (all of them, or none).",
		example: "[http://127.0.0.1:3000]", required: true,
	},
	"Upstream.limit": {
		doc:     "A concurrency limit for each target, beside the gates of the route.",
		example: "{limit: 10}",
	},
	"Upstream.connect_timeout":  {doc: "How long connecting to a target may take, TLS included.", def: "2s", least: "1ms", most: "10m"},
	"Upstream.response_timeout": {doc: "How long a target may take until the header of its answer. 0 means for ever.", def: "30s", least: "0s", most: "24h"},
	"Upstream.eject":            {doc: "When a target that fails is left out for a while. The last one left is never left out."},
	"Upstream.on_abandon": {
		doc: "What happens to the slot when a client leaves before its answer. hold keeps it until the upstream has answered or the " +
			"expected rest of its work has passed (before the first answer: until response_timeout), because the upstream works on; " +
			"release gives it back at once, for upstreams that stop.",
		def: "hold", enum: []string{"hold", "release"},
	},

	"Eject.failures": {doc: "Failures in a row after which a target is left out: connection errors, time-outs, and 502 and 504 answers. 0 means never.", def: "5", least: "0", most: "1000"},
	"Eject.for":      {doc: "How long it is left out, before one request tries it again.", def: "10s", least: "10ms", most: "24h"},

	"IdentitySpec.tenant":   {form: source, doc: "Source of the tenant. Those who wait are served fairly by user, and then by the tenants of each.", example: "header:X-Tenant"},
	"IdentitySpec.user":     {form: source, doc: "Source of the user, who answers for its tenants. Where the peer is not trusted and the user is empty, its address stands in for it.", example: "header:X-User"},
	"IdentitySpec.client":   {form: source, doc: "Source of the client: the program or the machine that asks.", example: "peer"},
	"IdentitySpec.priority": {form: "header:NAME or const:VALUE", doc: "Source of the priority: background, normal, high or critical. Any other word counts as ignored, and the route's priority holds.", example: "header:X-Priority"},
	"IdentitySpec.priorities": {
		doc:     "Further words for priorities that requests may bring, and what they mean. Upper and lower case are alike.",
		example: "{leader-election: critical, workload-low: background}", anyName: true,
	},
	"IdentitySpec.trusted": {
		form: "a network such as 10.0.0.0/8",
		doc:  "Networks (CIDR) whose headers are believed. From other peers header sources read as empty. An empty list trusts nobody.",
		def:  `[127.0.0.0/8, "::1/128"]`, example: "[10.0.0.0/8]",
	},
	"IdentitySpec.trusted_certs": {
		form: "uri:, dns:, subject:, cn: or hash: and a name, or any",
		doc: "Peers that are believed for their verified client certificate, whatever network they are in. A URI may end with a star (uri:spiffe://example.org/edge/*), " +
			"a DNS name begin with one, for one label (dns:*.edge.example.org); any is every certificate that tls: client_ca stands for. Default: none.",
		example: "[uri:spiffe://example.org/edge]",
	},

	"DeadlineSpec.headers": {
		form: "the name of a header",
		doc: "Headers with how long the client waits for an answer. grpc-timeout is written as gRPC does; the others in seconds (0.25) or with a unit (250ms); " +
			"a name that ends with -Ms in milliseconds. Other values are ignored and counted. An empty list reads none.",
		def: "[grpc-timeout, X-Request-Timeout]", example: "[X-Request-Timeout]",
	},

	"GateSpec.mode": {
		doc: "enforce refuses what the gate refuses; observe decides and counts, but lets everything through; off decides nothing.",
		def: "enforce", enum: []string{"enforce", "observe", "off"},
	},
	"GateSpec.each":  {doc: "Makes the limit one for each tenant, or other key: a pool of its own.", example: "{by: tenant}"},
	"GateSpec.shed":  {doc: "Makes it a gate that refuses by priority, the lowest first, as a pressure rises. Nothing waits in it: name it before the gate with the limit.", example: "{load_of: api}"},
	"GateSpec.quota": {doc: "Makes it a gate that limits what is used up and comes back with time. Nothing is held in it: name it before the gate with the limit. What a later gate refuses gets its tokens back.", example: "{rate: 10/s, by: [user]}"},
	"GateSpec.limit": {doc: "Makes it a concurrency gate: so much work at a time, and a bounded room to wait in. {} finds out by itself how much.", example: "{limit: 20}"},

	"LimitSpec.controller": {
		doc: "What sets the limit. Left out, it is fixed where limit gives a number, and knee, which finds one by itself, where it does not. " +
			"The others are for special cases: docs/guides/controllers.md.",
		enum: []string{"knee", "fixed", "aimd", "vegas", "gradient2", "probe", "lag", "drain", "resource"}, example: "knee",
	},
	"LimitSpec.limit":     {doc: "The limit to keep, or with another controller than fixed the one to begin with (default there: 20; probe two for each processor, lag and drain max).", example: "20", least: "1"},
	"LimitSpec.min":       {doc: "A limit that moves does not go below it (default 1; knee 2, gradient2 20, probe 4, lag and drain 10).", example: "2", least: "1"},
	"LimitSpec.max":       {doc: "A limit that moves does not go above it (default 1000; knee 10000, gradient2 200, probe 128).", example: "500", least: "1"},
	"LimitSpec.threshold": {doc: "aimd: latency above it counts as overload. Set it to about half of what your clients wait.", def: "5s", least: "1us"},
	"LimitSpec.take": {
		doc:  "aimd, vegas, gradient2: which latency of a window counts: the mean, the min, a percentile, or that of each piece of work (defaults: aimd percentile, the others mean).",
		enum: []string{"mean", "min", "percentile", "each"}, example: "mean",
	},
	"LimitSpec.percentile":  {doc: "aimd, vegas, gradient2: which percentile, as a share.", def: "0.95", least: "0.01", most: "1"},
	"LimitSpec.backoff":     {doc: "aimd, gradient2, resource: what the limit is multiplied by on overload (defaults 0.9; resource at least 0.5). vegas: the same after drops (default: it takes the decimal logarithm away).", example: "0.9", least: "0.001", most: "0.999"},
	"LimitSpec.window":      {doc: "aimd, vegas, gradient2, resource: how long samples are gathered before each decision (default 1s; resource 250ms).", example: "1s", least: "10ms"},
	"LimitSpec.min_samples": {doc: "aimd, vegas, gradient2: samples a window needs to be judged; a thinner one is extended.", def: "10", least: "1"},
	"LimitSpec.signals": {
		doc:     "Signals that hold the limit down while one of them is under pressure, whatever the controller finds. Names from signals, or of what is read: cpu, memory and so on. They are those of the gateway's own machine.",
		example: "[memory]",
	},
	"LimitSpec.count":           {doc: "What takes how many slots: cost is what a request costs by its route (cost, cost_from, settle), requests makes each request one, whatever it costs to other gates, such as a quota of tokens.", def: "cost", enum: []string{"cost", "requests"}},
	"LimitSpec.refuse_oversize": {doc: "Refuses at once what costs more than the limit. Otherwise it is charged the whole limit and runs alone.", def: "false"},
	"LimitSpec.exempt":          {doc: "The most work at once of routes that are exempt. 0 means the default.", def: "1024", least: "0", most: "1000000", minusOne: "nothing is exempt here"},
	"LimitSpec.queue":           {doc: "The room in which work waits for a slot.", example: "{len: 100, max_wait: 500ms}"},

	"QueueSpec.len":      {doc: "How much work may wait. 0 means the default.", def: "1024", least: "0", minusOne: "nothing waits"},
	"QueueSpec.max_wait": {doc: "How long work may wait. 0 means the default. Work whose wait can be seen to last longer is refused at once.", def: "2s", least: "0s", minusOne: "only the work's own deadline counts"},
	"QueueSpec.order": {
		doc: "Who goes first of one priority, user and tenant: adaptive the oldest, and while a queue stands the newest, in a short room that the oldest leave; fifo the oldest always; lifo the newest always, " +
			"and in a full room the newcomer takes the place of the oldest; edf the earliest deadline, which gains nothing where the peer is not trusted.",
		def: "adaptive", enum: []string{"adaptive", "fifo", "lifo", "edf"},
	},
	"QueueSpec.shares": {
		doc:     "The part of what is served that a priority gets at least while its work waits, from 0 to 1. Left out, a higher priority is always served first.",
		example: "{background: 0.05}",
	},
	"QueueSpec.weights": {doc: "Who gets how much more than others of the same priority.", example: "{tenants: {acme: 2}}"},
	"QueueSpec.by_time": {doc: "Users and tenants share the time that slots are held, known when work is done, instead of what is admitted by cost.", def: "false"},

	"WeightsSpec.users":   {doc: "Weights by user, from 0.001 to 1000. Who is not named has 1.", example: "{alice: 2}", anyName: true},
	"WeightsSpec.tenants": {doc: "Weights by tenant among the tenants of one user, from 0.001 to 1000. Who is not named has 1.", example: "{acme: 2}", anyName: true},

	"RouteSpec.name": {doc: "Name of the route in metrics and logs, and the operation of its work. Left out, it is the first pattern.", example: "batches"},
	"RouteSpec.match": {
		doc:     `Patterns of net/http: "/" is everything, "/v1/" everything below it, "POST /v1/databases/{database}/batches" a method and a wildcard.`,
		example: "[/v1/]", required: true,
	},
	"RouteSpec.gates":    {doc: "Gates that the work passes, in this order. Each but the last is tried without waiting; the last may make the work wait.", example: "[api]"},
	"RouteSpec.priority": {doc: "Priority of work that brings none that is trusted.", def: "normal", enum: []string{"background", "normal", "high", "critical"}},
	"RouteSpec.exempt":   {doc: "Work that takes no slot and never waits, such as health checks. Gates count it, and bound how much there is at once.", def: "false"},
	"RouteSpec.cost":     {doc: "Slots that one request takes, and tokens of a quota.", def: "1", least: "1", most: "1000000000000000"},
	"RouteSpec.timeout":  {doc: "When an answer stops being useful, counted from the arrival. 0 means never.", def: "0s", least: "0s"},
	"RouteSpec.max_wait": {doc: "Shortens the wait below what the gate allows. 0 means what the gate allows.", def: "0s", least: "0s", minusOne: "refuse instead of waiting"},
	"Route.upstream":     {doc: "Name of the upstream that answers.", example: "app", required: true},

	"Admin.address": {form: "host:port or off", doc: "host:port of the admin listener, or off.", def: "127.0.0.1:9090", example: "127.0.0.1:9090"},
	"Admin.pprof":   {doc: "Serve Go profiles under /debug/pprof/. Left out, they are served where the address is loopback.", example: "true"},
	"Metrics.tenants": {
		doc: "How many tenants have series of their own, those that ask most, and of each quota how many buckets, those that are refused most. The rest are counted as one, other. 0 means none has.",
		def: "20", least: "0", most: "1000",
	},
	"Streams.max":    {doc: "How many there may be at a time. Further ones go on, but keep their slot at the gate, and are counted as overflowed.", def: "1000", least: "1", most: "1000000"},
	"State.file":     {doc: "File for learned limits, relative to this file. Written on shutdown, read at start. Left out, nothing is kept.", example: "weir.state.json"},
	"State.max_age":  {doc: "Older state is not taken up.", def: "1h", least: "1s", most: "8760h"},
	"Shutdown.grace": {doc: "How long work in flight may take to finish; what is left is then cut off.", def: "25s", least: "0s", most: "24h"},
	"Shutdown.lame_duck": {
		doc: "Before that: how long to go on accepting while /readyz says no and clients are told to go elsewhere (Connection: close, GOAWAY).",
		def: "1s", least: "0s", most: "1h",
	},
	"Log.level":  {doc: "The least severe lines that are logged.", def: "info", enum: []string{"debug", "info", "warn", "error"}},
	"Log.format": {doc: "auto is text on a terminal and JSON otherwise.", def: "auto", enum: []string{"auto", "text", "json"}},
}

// routeFields are those by which requests and answers say what they are.
var routeFields = map[string]field{
	"RouteSpec.cost_from": {
		form: "header:NAME", example: "header:X-Cost",
		doc: "Header in which a trusted peer says how many slots, and tokens of quotas, its request takes, a whole number from 1, instead of cost; of several the largest. " +
			"Anything else counts as ignored: where a quota would be charged for it the request is refused with 400, elsewhere cost holds. A gate with a limit takes no more than all of it, or refuses with refuse_oversize.",
	},
	"RouteSpec.settle": {
		form: "header:NAME", example: "header:X-Actual-Cost",
		doc: "Header of the upstream's answer, or else of its trailer, that says what the request has really cost, a whole number from 0; of several the largest. A quota charges the difference, or gives it back; a gate with one limit settles the difference " +
			"with the tenant's share of the next turns; one with each changes what the key holds, at least 1. The client does not see the header.",
	},
	"RouteSpec.access": {
		doc:     "Which pool the work needs of a gate that has one for reads and one for writes (probe: {read_write: true}). Left out, GET, HEAD, OPTIONS and TRACE read, and everything else writes.",
		enum:    []string{"read", "write"},
		example: "read",
	},
	"RouteSpec.demote_after": {
		doc:     "After how many admissions the work of an operation counts as background, and is passed on as such. identity.admissions says how many there have been. Left out, never; exempt and critical work never is.",
		example: "3", least: "1", most: "1000000",
	},
	"IdentitySpec.admissions": {
		form: "header:NAME", example: "header:X-Admissions",
		doc: "Header in which a trusted peer says how often the operation that its request is part of has been admitted before, for demote_after. " +
			"The upstream is told one more. Anything but a whole number counts as ignored.",
	},
	"RouteSpec.settle_keep": {doc: "Let the client see the header of settle.", def: "false"},
}

// gateFields are those of the mechanisms beside the plain limit.
var gateFields = map[string]field{
	"EachSpec.by": {doc: "Whose pool it is.", def: "tenant", enum: []string{"tenant", "user", "client", "route"}},
	"EachSpec.own": {
		doc: "A controller of its own for each key, any of them, instead of one size for all: for keys that differ in what they carry, hundreds of them. " +
			"queue.len is for all keys together, of which one takes a quarter at most.",
		def: "false",
	},
	"EachSpec.max_keys": {
		doc: "Keys that are known at a time, 64 bytes each; with own 1024 unless said, 10000 at most, and up to 64 KiB each. " +
			"Idle ones make room for newcomers; a key in use keeps its place. 0 means the default.",
		def: "65536", least: "0", most: "16777215",
	},
	"EachSpec.overrides": {doc: "Keys with a limit of their own.", example: "{acme: {limit: 50}}", anyName: true},

	"OverrideSpec.limit": {doc: "The key's limit.", example: "50", least: "1", most: "1000000"},
	"OverrideSpec.scale": {doc: "How many times the limit of the others the key has, instead of a limit; not with own.", example: "2", least: "0", most: "1000000"},

	"ShedSpec.signals":    {doc: "Signals whose pressure counts, the highest of them. They are those of the gateway's own machine.", example: "[cpu, memory]"},
	"ShedSpec.load_of":    {doc: "A gate with a limit, whose pressure is what is in flight and waiting over its limit, instead of signals. Where work may wait there, it is at 1 whenever all slots are taken: write thresholds above 1.", example: "api"},
	"ShedSpec.wait_of":    {doc: "A gate with a limit, whose pressure is what a newcomer is expected to wait there over wait, instead of signals.", example: "api"},
	"ShedSpec.wait":       {doc: "The longest wait that is wanted there. 0 means the default.", def: "20ms", least: "0s"},
	"ShedSpec.thresholds": {doc: "Pressures from which each priority is refused.", example: "{background: 0.75}"},
	"ShedSpec.cursor":     {doc: "Find out which priority, and which share of its users, is let through, instead of thresholds (DAGOR).", example: "{overload: 2}"},
	"ShedSpec.interval":   {doc: "Time between two readings of the pressure. 0 means the default.", def: "10ms", least: "0s", most: "1m"},
	"ShedSpec.hold":       {doc: "How long the last pressure stands in while none is known. 0 means the default.", def: "1s", least: "0s"},
	"ShedSpec.blind":      {doc: "What holds after that: open lets everything through, keep leaves it as it is.", def: "open", enum: []string{"open", "keep"}},
	"ShedSpec.resalt":     {doc: "How long users keep their place in the order in which users of one priority are refused. 0 means the default.", def: "1h", least: "0s", minusOne: "for ever"},

	"ThresholdsSpec.background": {doc: "Pressure from which background is refused.", def: "0.75"},
	"ThresholdsSpec.normal":     {doc: "Pressure from which normal is refused.", def: "0.9"},
	"ThresholdsSpec.high":       {doc: "Pressure from which high is refused.", def: "0.95"},
	"ThresholdsSpec.critical":   {doc: "Pressure from which everything is refused but exempt work.", def: "1"},

	"CursorSpec.overload": {doc: "Mean pressure from which a window counts as overloaded; use more before a gate whose work may wait.", def: "1"},
}

// controllerFields documents the groups of settings that belong to one controller.
var controllerFields = map[string]field{
	"LimitSpec.vegas":     {doc: "Settings of the controller vegas.", example: "{alpha: 3, beta: 6}"},
	"LimitSpec.gradient2": {doc: "Settings of the controller gradient2.", example: "{tolerance: 2}"},
	"LimitSpec.probe":     {doc: "Settings of the controller probe.", example: "{step: 0.1}"},
	"LimitSpec.lag":       {doc: "Settings of the controller lag.", example: "{signal: behind, target: 10000}"},
	"LimitSpec.drain":     {doc: "Settings of the controller drain.", example: "{signal: behind, target: 10000}"},
	"LimitSpec.resource":  {doc: "Settings of the controller resource.", example: "{growth: 1.2}"},

	"VegasSpec.alpha":            {doc: "Shortest queue in the upstream, in decimal logarithms of the limit; below it the limit grows.", def: "3", least: "0.001"},
	"VegasSpec.beta":             {doc: "Longest queue, in the same unit; above it the limit shrinks.", def: "6", least: "0.001"},
	"VegasSpec.smoothing":        {doc: "Weight of the new limit against the old.", def: "1", least: "0.001", most: "1"},
	"VegasSpec.probe_multiplier": {doc: "The latency without load is learned anew after about three quarters of this times the limit of observations.", def: "30", least: "1"},

	"Gradient2Spec.smoothing":   {doc: "Weight of the new limit against the old.", def: "0.2", least: "0.001", most: "1"},
	"Gradient2Spec.queue":       {doc: "How much may stand in the upstream's queue.", def: "4", least: "1"},
	"Gradient2Spec.root_queue":  {doc: "Let it be the square root of the limit where that is more.", def: "false"},
	"Gradient2Spec.long_window": {doc: "Over how many observations the baseline latency is averaged.", def: "600", least: "1"},
	"Gradient2Spec.tolerance":   {doc: "How many times the baseline latency may be before the limit shrinks.", def: "1.5", least: "1"},
	"Gradient2Spec.rise":        {doc: "How many times the latency at min the baseline may be.", def: "1.2", least: "1"},
	"Gradient2Spec.recheck":     {doc: "After how many windows of too high latency in a row the latency at min is measured anew.", def: "60", least: "1"},
	"Gradient2Spec.shipped":     {doc: "Behave as concurrency-limits ships it: the baseline follows any load that lasts, and drops are ignored. For comparison.", def: "false"},

	"ProbeSpec.step":     {doc: "By how much a probe goes up or down, as a share.", def: "0.1", least: "0.01", most: "0.5"},
	"ProbeSpec.weight":   {doc: "Weight of a successful probe's size in the moving average that is kept.", def: "0.2", least: "0.001", most: "1"},
	"ProbeSpec.interval": {doc: "The time between two probes.", def: "100ms", least: "10ms"},

	"ProbeSpec.read_write": {
		doc: "Two pools, one for reads and one for writes, sized together by what both get done. limit is that of both at first; min and max are for each. " +
			"A route's access says which one its work needs. With each and own: true, two for each key.",
		def: "false",
	},
	"ProbeSpec.read_ratio": {doc: "The part of the slots that is for reads, with read_write.", def: "0.5", least: "0.001", most: "0.999"},

	"LagSpec.signal":     {doc: "The signal whose value is the lag. Required for the controller lag.", example: "behind"},
	"LagSpec.target":     {doc: "Lag up to which the limit is max.", def: "10000", least: "0.000001"},
	"LagSpec.critical":   {doc: "Lag from which on the limit is min. Above target.", def: "100000", least: "0.000001"},
	"LagSpec.interval":   {doc: "How often the lag is looked at.", def: "5s", least: "10ms"},
	"LagSpec.hold":       {doc: "How many intervals the limit stays while the lag is unknown. 0 means the default.", def: "3", least: "0", minusOne: "none"},
	"LagSpec.safe":       {doc: "The limit while the lag is unknown for longer (default: min).", example: "10", least: "1"},
	"LagSpec.smoothing":  {doc: "Weight of the limit that the lag calls for against the present one.", def: "1", least: "0.001", most: "1"},
	"LagSpec.max_change": {doc: "How far the limit moves at most in one interval, as a share of max − min.", def: "1", least: "0.001", most: "1"},
	"LagSpec.hysteresis": {doc: "By which share of the present limit another one must differ to be worth a change.", def: "0", least: "0", most: "0.999"},

	"DrainSpec.signal":     {doc: "The signal whose value is the lag. Required for the controller drain.", example: "behind"},
	"DrainSpec.target":     {doc: "Lag that is not to be exceeded.", def: "10000", least: "0.000001"},
	"DrainSpec.threshold":  {doc: "Share of target from which on the limit follows what was drained.", def: "0.5", least: "0.001", most: "1"},
	"DrainSpec.interval":   {doc: "How often the lag is looked at.", def: "5s", least: "10ms"},
	"DrainSpec.fudge":      {doc: "Share of what was drained that is let in at the threshold.", def: "0.95", least: "0.001", most: "1"},
	"DrainSpec.decay":      {doc: "What that is multiplied by for every threshold × target of lag above.", def: "0.5", least: "0.001", most: "1"},
	"DrainSpec.adder":      {doc: "Slots added in an interval below the threshold (default: a hundredth of max).", example: "10", least: "0"},
	"DrainSpec.multiplier": {doc: "What the limit is multiplied by in an interval below the threshold.", def: "1.05", least: "1"},
	"DrainSpec.per_work":   {doc: "How many slots a piece of drained work stands for.", def: "1", least: "0.000001"},
	"DrainSpec.hold":       {doc: "As in lag.", def: "3", least: "0", minusOne: "none"},
	"DrainSpec.safe":       {doc: "As in lag.", example: "10", least: "1"},

	"ResourceSpec.growth": {doc: "What the limit is multiplied by at most in one window.", def: "1.1", least: "1.001", most: "2"},
}

// readings are the words of policy.SignalKinds.
var readings = []string{
	"sched_latency", "runnable", "cpu", "cpu_throttling", "memory", "heap", "goroutines", "file", "http",
	"psi_cpu", "psi_io", "psi_memory",
}

// signalFields documents the keys of signals.
var signalFields = map[string]field{
	"SignalSpec.read": {
		doc: "What is read. Left out, it is the signal's name. See docs/guides/controllers.md for each, and for when it is blind.", enum: readings, example: "cpu",
	},
	"SignalSpec.threshold": {
		doc: "The most that is wanted: the value at which the pressure is 1. A share for most signals (defaults: sched_latency 0.1, cpu 0.85, cpu_throttling 0.25, memory 0.9, heap 0.8, psi_memory 0.1, psi_cpu and psi_io 0.5); " +
			"for runnable a number for each processor (32), for goroutines a number (required), for file and http a value (1).",
		example: "0.8", least: "0.000001",
	},
	"SignalSpec.wait": {doc: "sched_latency: a wait for a processor that counts as long (default 10ms).", example: "10ms", least: "1us"},
	"SignalSpec.over": {doc: "How long a time it is measured over (defaults: sched_latency 50ms, cpu 500ms, cpu_throttling and psi 1s).", example: "1s", least: "1ms", most: "1m"},
	"SignalSpec.path": {form: "the name of a file", doc: "file: the file that holds the number, relative to this file.", example: "lag.txt"},
	"SignalSpec.url":  {form: "a URL such as http://127.0.0.1:8000/lag", doc: "http: what to ask for the number, with GET.", example: "http://127.0.0.1:8000/lag"},
	"SignalSpec.field": {
		doc: "file and http: where in a JSON document the number is, with dots. Left out, the text is the number.", example: "lag.total",
	},
	"SignalSpec.interval":   {doc: "The time from one reading to the next (default 100ms; sched_latency and runnable 10ms).", example: "1s", least: "1ms", most: "1h"},
	"SignalSpec.timeout":    {doc: "How long a reading may take (default: hold).", example: "500ms", least: "1ms", most: "1h"},
	"SignalSpec.hold":       {doc: "How long the last good value stands in while readings fail (default: ten intervals, at least 1s).", example: "5s", least: "1ms", most: "24h"},
	"SignalSpec.smooth":     {doc: "Time constant of an exponential average over the readings. 0 means none.", def: "0s", least: "0s", most: "1h"},
	"SignalSpec.then":       {doc: "What holds after that: ignore goes by the other signals, safe puts safe_value in its place.", def: "ignore", enum: []string{"ignore", "safe"}},
	"SignalSpec.safe_value": {doc: "The pressure, or the lag, with then: safe, which needs it. Above 1 shrinks the limit, 1 keeps it.", def: "0", least: "0"},
}

// limitForm is what a limit of a quota looks like.
const limitForm = "a limit such as 10/s, 10/s burst 20, 1000/h or 5000 a day Europe/Berlin"

// quotaFields are those of quotas.
var quotaFields = map[string]field{
	"QuotaLimitSpec.rate": {form: limitForm, doc: "One limit: so many tokens come back in each s, min, h or duration (5/10s), all the time, and by default as many may be taken at once. 5000 a day: all of them come back at midnight, UTC unless a time zone follows; hour, week and month are the others.", example: "10/s"},
	"QuotaLimitSpec.burst": {
		doc: "The most tokens that a bucket holds, if not what the rate says. It starts full.", example: "20", least: "0", most: "1000000000000000",
	},
	"QuotaLimitSpec.limits": {form: limitForm, doc: "Several limits instead of a rate, eight at most: tokens are taken from all of them or from none. Leave them in order when changing one.", example: `["10/s burst 20", 1000/h]`},

	"QuotaSpec.by": {
		doc:     "Whom the limits are for: each user, client, tenant, route, priority or address (IPv6: /64) has buckets of its own; of several words, each combination. Left out, all work shares one bucket.",
		example: "[user]", form: "one of user, client, tenant, route, priority, address",
	},
	"QuotaSpec.rules": {
		doc:     "Quotas of some, beside by and its limits or instead. The most exact rule that matches counts, compared by user, then client, tenant, route, priority and address. Whom none matches is not limited.",
		example: "[{user: alice, rate: 50/s}]",
	},
	"QuotaSpec.count":          {doc: "What a token is: cost is what a request costs by its route (cost, cost_from, settle), requests makes each request one, whatever it costs to other gates.", def: "cost", enum: []string{"cost", "requests"}},
	"QuotaSpec.debt":           {doc: "Let work through iff its bucket is not in debt, whatever the work costs, and let it be paid back afterwards (as Kafka does). Without it there have to be as many tokens as it costs.", def: "false"},
	"QuotaSpec.permissive":     {doc: "Refuse nothing, but charge everything, into debt if need be.", def: "false"},
	"QuotaSpec.queue":          {doc: "Let work wait for its tokens, where this gate is the last of the route.", example: "{len: 100, max_wait: 1s}"},
	"QuotaSpec.store":          {doc: "One of stores, which keeps the buckets for several gateways. Left out, they are in the memory of this one.", example: "shared"},
	"QuotaSpec.on_store_error": {doc: "What to do when the store cannot tell: local goes by buckets in the memory of this gateway, which start full; open lets everything through, but goes by memory too while answers are only late or too many questions are under way; closed refuses.", def: "local", enum: []string{"local", "open", "closed"}},
	"QuotaSpec.max_keys": {
		doc: "Buckets in the memory of this gateway, of up to 40 bytes each; a key has one for each of its limits. What does not fit shares one, which fails closed. 0 means the default. A gate whose bound is changed begins with full buckets.",
		def: "1048576", least: "0", most: "268435456",
	},
	"QuotaSpec.headers": {doc: "What answers tell the client: ratelimit is RateLimit and RateLimit-Policy, legacy X-RateLimit-Limit, -Remaining and -Reset.", def: "ratelimit", enum: []string{"ratelimit", "legacy", "both", "none"}},
	"QuotaSpec.unit":    {doc: "What RateLimit-Policy says that a token is, where routes cost something else than requests. It changes nothing of what is counted.", def: "requests", enum: []string{"requests", "content-bytes"}},

	"QuotaQueueSpec.len":      {doc: "How much work may wait. 0 means that nothing waits.", def: "0", least: "0", most: "1000000"},
	"QuotaQueueSpec.max_wait": {doc: "How long work may wait. 0 means the default. What would have to wait longer is refused at once.", def: "2s", least: "0s", minusOne: "only the work's own deadline counts"},

	"QuotaRuleSpec.name":     {doc: "What refusals call the rule. Left out, it is what the rule matches.", example: "trial"},
	"QuotaRuleSpec.user":     {doc: `The user that the rule is about, or "*": each has a bucket of its own.`, example: "alice"},
	"QuotaRuleSpec.client":   {doc: "The same for the client.", example: "importer"},
	"QuotaRuleSpec.tenant":   {doc: "The same for the tenant.", example: "acme"},
	"QuotaRuleSpec.route":    {doc: "The same for the route, by its name.", example: "batches"},
	"QuotaRuleSpec.priority": {doc: "The same for the priority.", example: "background"},
	"QuotaRuleSpec.address":  {doc: "The same for the address that the request comes from; also a network, whose addresses share a bucket.", example: "10.0.0.0/8"},
	"QuotaRuleSpec.exempt":   {doc: "Do not count them at all, instead of a limit.", def: "false"},
	"QuotaRuleSpec.blocked":  {doc: "Refuse all of them, instead of a limit.", def: "false"},
}

// storeFields are those of servers that keep the buckets of quotas.
var storeFields = map[string]field{
	"Store.redis": {
		form: "a URL such as redis://127.0.0.1:6379/0",
		doc: "Redis 6 or newer, or Valkey: redis://user@host:6379/0, rediss:// with TLS, or unix:///run/redis.sock; more nodes of a cluster, or sentinels, as ?addr=host:6379. " +
			"No password. Its maxmemory-policy must be noeviction.",
		example: "redis://127.0.0.1:6379/0", required: true,
	},
	"Store.sentinel":           {doc: "What to ask the sentinels for, if the URL names those.", example: "{master: main}"},
	"Store.tls":                {doc: "Whom to believe, and as whom to come, with rediss://. Left out, the authorities of the system vouch for the server.", example: "{}"},
	"Store.prefix":             {doc: "What begins every key, so that several policies can share a server without sharing buckets.", def: `"weir:"`},
	"Store.timeout":            {doc: "How long a decision may take before on_store_error holds.", def: "50ms", least: "1ms", most: "10s"},
	"Store.connect_timeout":    {doc: "How long connecting may take, and how long a connection may say nothing.", def: "1s", least: "10ms", most: "1m"},
	"Store.max_in_flight":      {doc: "Decisions under way at a time; further ones fail at once.", def: "512", least: "1", most: "10000"},
	"Store.assume_no_eviction": {doc: "Do not ask the server for its maxmemory-policy, where it does not let itself be asked. Under another than noeviction buckets come back full, debts and all.", def: "false"},
	"Store.lease":              {doc: "Take tokens ahead of need, for fewer round trips.", example: "{tokens: 100}"},

	"Secret.password_file": {doc: "File with the password and nothing else, relative to this file. Read again on a reload, and for new connections, at most once a second.", example: "redis.password"},
	"Secret.password_env":  {doc: "Variable of the environment with the password, instead of a file.", example: "QUOTA_PASSWORD"},

	"Sentinel.master":   {doc: "Name of the set of servers.", example: "main", required: true},
	"Sentinel.username": {doc: "User at the sentinels themselves.", example: "weir"},

	"StoreTLS.ca":   {doc: "PEM file with the authorities that vouch for the server, relative to this file, instead of the system's.", example: "ca.pem"},
	"StoreTLS.cert": {doc: "PEM file with the gateway's own certificate.", example: "me.crt"},
	"StoreTLS.key":  {doc: "PEM file with its private key.", example: "me.key"},

	"Lease.tokens": {
		doc: "The most that is held for a key; 0 means no leases. In any time each gateway may let through so many more than the quota, and over a long time nothing.",
		def: "0", least: "0", most: "1000000",
	},
	"Lease.for":      {doc: "How long they are held before they are given back.", def: "1s", least: "10ms", most: "1m"},
	"Lease.max_keys": {doc: "Keys that may have a lease.", def: "10000", least: "1", most: "1000000"},
}

// dynamicFields are those of rules that are set while the gateway runs, and of who may.
var dynamicFields = map[string]field{
	"Config.quotas": {example: "{file: weir.quotas.json}", doc: "Where rules of quotas are kept that are set while the gateway runs, by weir quota or at /quotas. They win over those of this file. Left out, none can be set."},
	"Quotas.file": {
		doc:     "File for the rules, relative to this file; one gateway can have it at a time. It is replaced as a whole, and a change of it by hand is taken up within a second. Where it is changed by a reload, the rules are those of the new file; the ones before stay in the old one.",
		example: "weir.quotas.json",
	},
	"Quotas.store": {
		doc:     "One of stores, for several gateways: what is set at one is in force at all of them within two seconds. Let that server keep its data on disk. Instead of file.",
		example: "shared",
	},
	"Quotas.start_broken": {doc: "Start with the rules of this file alone where those that are kept cannot be read. By default the gateway does not start: somebody might be let in who was blocked.", def: "false"},
	"Admin.socket": {
		doc:     "Path of a Unix socket, relative to this file, on which the admin listener answers too; only the gateway's user can open it. Who can may also write: set quotas.",
		example: "/run/weir/admin.sock",
	},
	"Admin.token_file": {
		doc:     "File with the token (16 bytes or more) that a write needs which does not come over the socket. Read at each write. Without socket and token_file nobody may write.",
		example: "/etc/weir/admin.token",
	},
}
