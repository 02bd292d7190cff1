package config

import "maps"

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
