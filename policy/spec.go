package policy

import (
	"strconv"
	"time"

	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/jsontree"
	"github.com/weir-go/weir/internal/setting"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/shed"
)

// Spec is a policy as data: the same types are read from the gateway's YAML,
// from scenario files (JSON) and built by hand. Compile turns it into a Policy.
// Field names in files are the json tags; durations are written 250ms.
type Spec struct {
	// Identity says where tenant, user, client and priority come from.
	Identity IdentitySpec `json:"identity,omitempty"`
	// Deadline says where requests bring their deadlines.
	Deadline DeadlineSpec `json:"deadline,omitzero"`
	// Gates are the gates by name. A gate used by several routes is one gate.
	Gates map[string]GateSpec `json:"gates,omitempty"`
	// Signals are the signals that gates read, by name, if their defaults do not fit. A gate may
	// name a signal that is not here. Then the name says what it reads, such as cpu, memory and the
	// other words of [SignalKinds].
	Signals map[string]SignalSpec `json:"signals,omitempty"`
	// Routes are matched by their patterns, most specific first, as net/http's
	// ServeMux does. Work that matches no route passes no gate.
	Routes []RouteSpec `json:"routes,omitempty"`
	// RuntimeRules says that rules of quotas are set while the policy is in force. Then a quota may have none at first.
	RuntimeRules bool `json:"-"`
	// OtherWork are the gates whose work is no request of HTTP. Its names are compared as they are, no rule about clients matches where
	// none is named, and Identity says nothing of it. The value is the part of it that is an address (user, client or tenant), empty if none is.
	OtherWork map[string]string `json:"-"`
}

// IdentitySpec says who is asking. Each source is one of
//
//	header:NAME   the value of a request header, believed only from trusted
//	              peers; empty if it comes twice with different values
//	path:NAME     the value of the route pattern's wildcard {NAME}
//	address       the address that the request comes from, IPv6 by /64; peer is its old name
//	cert:NAME     a name in the client certificate that the TLS server has verified:
//	              uri (the URI in its alternative names, as a SPIFFE ID is),
//	              dns (the first DNS name there, in lower case), subject (the whole, as in
//	              RFC 2253), cn (its common name), or hash (the SHA-256 of the
//	              certificate, in hexadecimal); empty if there is no such name, or
//	              several URIs or common names, or no certificate. A connection may
//	              outlast its certificate: whoever runs the server has to look
//	const:VALUE   always VALUE
//
// and the empty source leaves the field empty. Values longer than [MaxIdentity] are hashed.
// Priority cannot come from path, address or cert: the client chooses the first two.
//
// The address is the peer's. A trusted peer passes on what others ask: then it is the rightmost
// address of its X-Forwarded-For that is not in Trusted.
//
// If the user of work is empty, the address becomes its User. So a client gains nothing by
// inventing names: tenants share what their user has. The user stays empty in two cases. The first
// is a trusted peer that can name a tenant or user by a header, because it answers for them. The
// second is a trusted peer that names no address outside Trusted.
type IdentitySpec struct {
	// Source of the tenant. Waiting work is served fairly by user, and then by the tenants of each.
	Tenant string `json:"tenant,omitempty" example:"header:X-Tenant" form:"header:NAME, path:NAME, address, cert:NAME or const:VALUE" renamed:"peer=address"`
	// Source of the user, who answers for its tenants. If the peer is not trusted and the user is
	// empty, the user is the peer's address.
	User string `json:"user,omitempty" example:"header:X-User" form:"header:NAME, path:NAME, address, cert:NAME or const:VALUE" renamed:"peer=address"`
	// Source of the client: the program or the machine that sends the request.
	Client string `json:"client,omitempty" example:"address" form:"header:NAME, path:NAME, address, cert:NAME or const:VALUE" renamed:"peer=address"`
	// Source of the priority: background, normal, high or critical. Any other word is counted as ignored, and
	// the route's priority is used.
	Priority string `json:"priority,omitempty" example:"header:X-Priority" form:"header:NAME or const:VALUE"`
	// Header from trusted peers with the number of times that the operation was admitted before,
	// for demote_after. The upstream gets the number plus one. Anything but a whole number is
	// counted as ignored.
	Admissions string `json:"admissions,omitempty" example:"header:X-Admissions" form:"header:NAME"`
	// Further words for priorities in requests, and what they mean. Upper and lower case are alike.
	Priorities map[string]string `json:"priorities,omitempty" example:"{leader-election: critical, workload-low: background}" names:"any"`
	// Networks (CIDR) of peers with headers that are believed. From other peers, header sources
	// read as empty. An empty list trusts nobody.
	Trusted []string `json:"trusted_proxies,omitempty" was:"trusted" default:"[127.0.0.0/8, \"::1/128\"]" example:"[10.0.0.0/8]" form:"a network such as 10.0.0.0/8"`
	// Peers that are believed for their verified client certificate, whatever network they are in. A URI may end
	// with a star (uri:spiffe://example.org/edge/*). A DNS name may begin with one, for one label
	// (dns:*.edge.example.org). any is every certificate of an authority in tls: client_ca. Default: none.
	TrustedCerts []string `json:"trusted_certs,omitempty" example:"[uri:spiffe://example.org/edge]" form:"uri:, dns:, subject:, cn: or hash: and a name, or any"`
}

// DeadlineSpec says where requests bring their deadlines. The earliest of those and of the route's
// Timeout holds. Any client may shorten its own wait with it. With order edf, a request from an
// untrusted peer is not served sooner for it.
type DeadlineSpec struct {
	// Headers that say how long the client waits for an answer. grpc-timeout is written as in gRPC. The others
	// are in seconds (0.25) or have a unit (250ms); a name that ends with -Ms is in milliseconds. Other values
	// are ignored and counted. An empty list reads none.
	Headers []string `json:"headers,omitempty" default:"[grpc-timeout, X-Request-Timeout]" example:"[X-Request-Timeout]" form:"the name of a header"`
}

// GateSpec is one gate: a mode and exactly one mechanism, a limit, shedding or a quota.
type GateSpec struct {
	// enforce refuses. observe decides and counts, but admits everything. off decides nothing.
	Mode Mode `json:"mode,omitempty" default:"enforce" enum:"enforce,observe,off" meant:"dry-run=observe,dryrun=observe,shadow=observe,monitor=observe,log=observe,report=observe,permissive=observe,on=enforce,disabled=off"`
	// Makes it a concurrency gate: so much work at a time, and a bounded room to wait in. {} finds the limit by
	// itself, and so does auto. A number is a fixed limit.
	Limit *LimitSpec `json:"limit,omitempty" example:"{limit: 20}" short:"limit" words:"auto="`
	// Gives each tenant, or other key, a limit of its own: a pool for each.
	Each *EachSpec `json:"each,omitempty" example:"{by: tenant}"`
	// Makes it a gate that refuses by priority, the lowest first, as a pressure rises. Nothing waits in it:
	// name it before the gate with the limit.
	Shed *ShedSpec `json:"shed,omitempty" example:"{load_of: api}"`
	// Makes it a gate that limits what is used up and comes back with time. It takes no slots: name it before
	// the gate with the limit. What a later gate refuses gets its tokens back. rate, with burst and by, may also
	// stand in the gate itself.
	Quota *QuotaSpec `json:"quota,omitempty" example:"{rate: 10/s, by: [user]}" short:"rate" lift:"rate,burst,by"`
}

// Guess returns the gate that a scalar in its place was meant to be, empty if it is none. A number is
// its limit, 10/s its rate.
func (g *GateSpec) Guess(scalar string) string {
	if _, err := ParseLimit(scalar); err == nil {
		return "{rate: " + scalar + "}"
	}
	if _, err := strconv.Atoi(scalar); err == nil || scalar == "auto" {
		return "{limit: " + scalar + "}"
	}
	return ""
}

// LimitSpec is a concurrency gate. A setting that means nothing to its controller
// is a fault.
type LimitSpec struct {
	// What sets the limit. Left out, it is fixed where limit gives a number, and otherwise belief, which finds the
	// limit by itself. The others are for special cases: docs/reference/controllers.md.
	Controller string `json:"controller,omitempty" enum:"belief,knee,fixed,aimd,vegas,gradient2,probe,lag,drain,resource" example:"belief"`
	// The limit to keep. With another controller than fixed, the limit to begin with (default there: 20; probe
	// two for each processor, lag and drain max).
	Limit int64 `json:"limit,omitempty" min:"1" max:"1000000" example:"20" meant:"auto=a number or leave it out to have the limit found"`
	// A limit that moves does not go below it (default 1; belief and knee 2, gradient2 20, probe 4, lag and drain 10).
	Min int64 `json:"min,omitempty" min:"1" max:"1000000" example:"2"`
	// A limit that moves does not go above it (default 1000; belief and knee 10000, gradient2 200, probe 128).
	Max int64 `json:"max,omitempty" min:"1" max:"1000000" example:"500"`

	// aimd: latency above it counts as overload. Set it to about half of what your clients wait.
	Threshold Duration `json:"threshold,omitempty" default:"5s" min:"1us"`
	// aimd, vegas, gradient2: which latency of a window counts. That is the mean, the min, a percentile, or that
	// of each piece of work (defaults: aimd percentile, the others mean).
	Take string `json:"take,omitempty" enum:"mean,min,percentile,each" example:"mean"`
	// aimd, vegas, gradient2: which percentile, as a share.
	Percentile float64 `json:"percentile,omitempty" default:"0.95" min:"0.01" max:"1"`
	// aimd, gradient2, resource: factor on the limit after overload (defaults 0.9; resource at least 0.5).
	// vegas: the same after drops (default: it subtracts the decimal logarithm).
	Backoff float64 `json:"backoff,omitempty" min:"0.001" max:"0.999" example:"0.9"`
	// aimd, vegas, gradient2, resource: how long samples are collected before each decision (default 1s;
	// resource 250ms).
	Window Duration `json:"window,omitempty" min:"10ms" example:"1s"`
	// aimd, vegas, gradient2: samples that a window needs for a decision; with fewer it is extended.
	MinSamples int64 `json:"min_samples,omitempty" default:"10" min:"1"`
	// Settings of the controller vegas.
	Vegas VegasSpec `json:"vegas,omitzero" example:"{alpha: 3, beta: 6}"`
	// Settings of the controller gradient2.
	Gradient2 Gradient2Spec `json:"gradient2,omitzero" example:"{tolerance: 2}"`
	// Settings of the controller probe.
	Probe ProbeSpec `json:"probe,omitzero" example:"{step: 0.1}"`
	// Settings of the controller lag.
	Lag LagSpec `json:"lag,omitzero" example:"{signal: behind, target: 10000}"`
	// Settings of the controller drain.
	Drain DrainSpec `json:"drain,omitzero" example:"{signal: behind, target: 10000}"`
	// Settings of the controller resource.
	Resource ResourceSpec `json:"resource,omitzero" example:"{growth: 1.2}"`

	// Signals that hold the limit down while one of them is under pressure, whatever the controller finds. Names
	// from signals, or kinds: cpu, memory and so on. They are those of the gateway's own machine.
	Signals []string `json:"signals,omitempty" example:"[memory]"`
	// The room for work that waits for a slot. A number is its len; off means that nothing waits.
	Queue QueueSpec `json:"queue,omitempty" example:"{len: 100, max_wait: 500ms}" short:"len" words:"off=-1"`
	// The most work of exempt routes at once. 0 means the default.
	Exempt int64 `json:"exempt,omitempty" default:"1024" min:"0" max:"1000000" minus1:"nothing is exempt here"`
	// How many slots work takes. cost: the cost of the request by its route (cost, cost_from,
	// settle). requests: one for each request. Use that if another gate, for example a quota of
	// tokens, counts the cost.
	Count string `json:"count,omitempty" default:"cost" enum:"cost,requests"`
	// Refuses work at once if it costs more than the limit. Without it, the work is charged the
	// whole limit and runs alone.
	RefuseOversize bool `json:"refuse_oversize,omitempty" default:"false"`
}

// QueueSpec is the wait room of a concurrency gate.
type QueueSpec struct {
	// How much work may wait. 0 means the default.
	Len int `json:"len,omitempty" default:"1024" min:"0" max:"1000000" minus1:"nothing waits"`
	// How long work may wait. 0 means the default. Work that would clearly wait longer is refused at once.
	MaxWait Duration `json:"max_wait,omitempty" default:"2s" min:"0s" minus1:"only the work's own deadline counts"`
	// Who goes first of one priority, user and tenant. adaptive: the oldest; while a queue stands the newest, in
	// a short room that the oldest leave. fifo: always the oldest. lifo: always the newest; in a full room the
	// newcomer replaces the oldest. edf: the earliest deadline, but deadlines of untrusted peers do not count.
	Order string `json:"order,omitempty" default:"adaptive" enum:"adaptive,fifo,lifo,edf"`
	// The least part of what is served that a priority gets while its work waits, from 0 to 1. Left out, a
	// higher priority is always served first.
	Shares map[string]float64 `json:"shares,omitempty" min:"0" max:"1" example:"{background: 0.05}"`
	// How much more some users or tenants get than others of the same priority.
	Weights WeightsSpec `json:"weights,omitzero" example:"{tenants: {acme: 2}}"`
	// Users and tenants share the time that slots are in use, known when work is done, instead of what is
	// admitted by cost.
	ByTime bool `json:"by_time,omitempty" default:"false"`
}

// WeightsSpec says who gets how much more than others of what is served of one
// priority. Who is not named has weight 1. A weight is from limit.MinWeight
// (0.001) to limit.MaxWeight (1000).
type WeightsSpec struct {
	// Weights by user, from 0.001 to 1000. A user without one has 1.
	Users map[string]float64 `json:"users,omitempty" min:"0.001" max:"1000" example:"{alice: 2}" names:"any"`
	// Weights by tenant among the tenants of one user, from 0.001 to 1000. A tenant without one has 1.
	Tenants map[string]float64 `json:"tenants,omitempty" min:"0.001" max:"1000" example:"{acme: 2}" names:"any"`
}

// RouteSpec sends matching work through a chain of gates.
type RouteSpec struct {
	// Name of the route in metrics and logs, and the operation of its work. Left out, it is the first pattern.
	Name string `json:"name,omitempty" example:"batches"`
	// Upstream is where a proxy sends the route's work. The policy only carries it, see
	// [Route.Upstream]; how it is written in a file is the proxy's matter.
	Upstream string `json:"-"`
	// Patterns of net/http: "/" is everything, "/v1/" everything below it, "POST
	// /v1/databases/{database}/batches" a method and a wildcard.
	Match []string `json:"match" example:"[/v1/]"`
	// Gates that the work passes, in this order. All but the last are tried without waiting. The last may make
	// the work wait.
	Gates []string `json:"gates,omitempty" example:"[api]"`
	// Priority of work without a trusted priority of its own.
	Priority string `json:"priority,omitempty" default:"normal" enum:"background,normal,high,critical" meant:"low=background,lowest=background,batch=background,medium=normal,default=normal,highest=critical,urgent=critical"`
	// After so many admissions, the work of an operation is demoted to background, and sent on as
	// background. identity.admissions names the header with the number. Left out, never. Exempt and
	// critical work is never demoted.
	DemoteAfter int64 `json:"demote_after,omitempty" min:"1" max:"1000000" example:"3"`
	// Work that takes no slot and never waits, for example health checks. Gates count it, and bound
	// how much of it runs at once.
	Exempt bool `json:"exempt,omitempty" default:"false"`
	// Which pool the work needs, at a gate with one for reads and one for writes (probe: {read_write: true}).
	// Left out, GET, HEAD, OPTIONS and TRACE read, and everything else writes.
	Access string `json:"access,omitempty" enum:"read,write" example:"read"`
	// Slots that one request takes, and tokens of a quota.
	Cost int64 `json:"cost,omitempty" default:"1" min:"1" max:"1000000000000000"`
	// Header from trusted peers with the slots, and tokens of quotas, that the request takes,
	// instead of cost. It is a whole number from 1; of several, the largest counts. Anything else
	// is counted as ignored. Then a quota that would charge it refuses with 400; elsewhere cost is
	// used. A gate with a limit takes at most all of it, or refuses with refuse_oversize.
	CostFrom string `json:"cost_from,omitempty" example:"header:X-Cost" form:"header:NAME"`
	// Header of the upstream's answer, or else of its trailer, with the real cost of the request.
	// It is a whole number from 0; of several, the largest counts. A quota charges the difference,
	// or gives it back. A gate with one limit corrects the tenant's share of the next turns by the
	// difference. One with each changes the key's slots, to at least 1. The client does not see the
	// header.
	Settle string `json:"settle,omitempty" example:"header:X-Actual-Cost" form:"header:NAME"`
	// Where server-sent events, or an answer in JSON, say the real cost: names with dots between. The last
	// number there counts, as that of settle does, when the answer ends. Of a stream that breaks off it
	// counts if it is more than was charged. Only events and JSON of at most 64 KiB are read. The upstream
	// is asked not to compress.
	SettleEvent string `json:"settle_event,omitempty" example:"usage.total_tokens"`
	// Let the client see the header of settle.
	SettleKeep bool `json:"settle_keep,omitempty" default:"false"`
	// When an answer is no longer useful, counted from the arrival. What would come later is not begun; an answer that
	// comes later all the same is not cut off. 0 means never.
	Timeout Duration `json:"timeout,omitempty" default:"0s" min:"0s"`
	// Shortens the wait below what the gate allows, also all of it where a request waits once more for a slot of a
	// target. 0 means what each gate allows.
	MaxWait Duration `json:"max_wait,omitempty" default:"0s" min:"0s" minus1:"refuse instead of waiting"`
	// Share of retries, among what the route refuses for overload, above which clients are told not to come back. The default
	// suits clients that retry a tenth of their requests at most. Where a proxy may retry a fifth, write 0.2. With 1 they are told so never.
	RetryShare float64 `json:"retry_share,omitempty" default:"0.1" min:"0.000001" max:"1"`
}

// VegasSpec is what only the controller vegas has.
type VegasSpec struct{ control.VegasConfig }

// Gradient2Spec is what only the controller gradient2 has.
type Gradient2Spec struct{ control.Gradient2Config }

// ProbeSpec is what only the controller probe has.
type ProbeSpec struct {
	control.ProbeConfig
	// The time between two probes.
	Interval Duration `json:"interval,omitempty" default:"100ms" min:"10ms"`
	// Two pools, one for reads and one for writes, sized together by the throughput of both. limit is that of
	// both at first; min and max are for each. A route's access says which one its work needs. With each and
	// own: true, every key has two.
	ReadWrite bool `json:"read_write,omitempty" default:"false"`
}

// LagSpec is what only the controller lag has.
type LagSpec struct {
	control.LagMapConfig
	// How often the limit is set anew, by the newest reading of the lag.
	Interval Duration `json:"interval,omitempty" default:"5s" min:"10ms"`
}

// DrainSpec is what only the controller drain has.
type DrainSpec struct {
	control.DrainConfig
	// How often the limit is set anew, by the newest reading of the lag.
	Interval Duration `json:"interval,omitempty" default:"5s" min:"10ms"`
}

// ResourceSpec is what only the controller resource has. It reads LimitSpec.Signals.
type ResourceSpec struct{ control.ResourceConfig }

// EachSpec gives each key a limit of its own, instead of one limit for all: each tenant, or
// database, has a pool. Package keyed says what that is good for, and when a gate that is fair
// between tenants is better.
//
// The controller, if there is one, gives all pools the same size. It uses readings (lag, drain,
// resource) or throughput (probe). Controllers that learn from latencies see too little of one key.
// Work waits for its own key. Priorities, Shares and Weights count among the work that waits for
// the same key. Queue.Len is for all keys together.
//
// With Own, each key has a limiter with a controller of its own instead; any controller will do.
// That is for hundreds of keys, not for millions.
type EachSpec struct {
	// What the key is.
	By string `json:"by,omitempty" default:"tenant" enum:"tenant,user,client,route" meant:"address=client with identity: {client: address},ip=client with identity: {client: address}"`
	// A controller for each key, any of them, instead of one size for all. It is for hundreds of
	// keys with different capacities. queue.len is for all keys together; one key may use a quarter
	// of it at most.
	Own bool `json:"own,omitempty" default:"false"`
	// Keys that are known at a time, 64 bytes each. With own the default is 1024, the most 10000, and a key
	// takes up to 64 KiB. Idle keys are evicted for newcomers; a key in use stays. 0 means the default.
	MaxKeys int `json:"max_keys,omitempty" default:"65536" min:"0" max:"16777215"`
	// Which keys shrink when the controller lag or drain lowers the limit: all alike, or those first
	// that hold most. Work must hold its slot until it is no part of the lag any more.
	Shrink string `json:"shrink,omitempty" default:"alike" enum:"alike,largest_first"`
	// Keys with a limit of their own.
	Overrides map[string]OverrideSpec `json:"overrides,omitempty" example:"{acme: {limit: 50}}" names:"any"`
}

// OverrideSpec is the limit of one key: a number, or a factor on the limit of the others. With
// thresholds of its own, it is what the controller lag or drain makes of them. With Own only the number has a meaning.
type OverrideSpec struct {
	// The key's limit.
	Limit int64 `json:"limit,omitempty" min:"1" max:"1000000" example:"50"`
	// The key's limit as a multiple of the others', instead of a limit; not with own.
	Scale float64 `json:"scale,omitempty" min:"0" max:"1000000" example:"2"`
	// The key's own target, instead of that of the controller lag or drain; not with own.
	Target float64 `json:"target,omitempty" min:"0.000001" example:"5000"`
	// The key's own critical lag, instead of that of the controller lag; not with own.
	Critical float64 `json:"critical,omitempty" min:"0.000001" example:"50000"`
}

// ShedSpec is a gate that refuses by priority, the lowest first, as a pressure
// rises. Nothing waits in it and nothing is held, so it stands before the gate with
// the limit. See package shed.
type ShedSpec struct {
	// Signals; the one with the highest pressure counts. They are those of the gateway's own
	// machine.
	Signals []string `json:"signals,omitempty" example:"[cpu, memory]"`
	// A gate with a limit, instead of signals. The pressure is its work in flight and waiting over
	// its limit. If work may wait there, the pressure is 1 whenever all slots are taken: write
	// thresholds above 1.
	LoadOf string `json:"load_of,omitempty" example:"api"`
	// A gate with a limit, instead of signals. The pressure is a newcomer's expected wait there over wait.
	WaitOf string `json:"wait_of,omitempty" example:"api"`
	// The longest wait that you want there. 0 means the default.
	Wait Duration `json:"wait,omitempty" default:"20ms" min:"0s"`
	// From which pressure on each priority is refused.
	Thresholds shed.Thresholds `json:"thresholds,omitzero" example:"{background: 0.75}"`
	// Find out which priority, and which share of its users, passes, instead of thresholds (DAGOR).
	Cursor *shed.Cursor `json:"cursor,omitempty" example:"{overload: 2}" gone:"window,requests,alpha,max_cut,beta,max_grow,plain"`
	// Time between two readings of the pressure. 0 means the default.
	Interval Duration `json:"interval,omitempty" default:"10ms" min:"0s" max:"1m"`
	// How long the last pressure is used while none is known (default: ten intervals, at least 1s). 0 means the default.
	Hold Duration `json:"hold,omitempty" min:"0s" example:"5s"`
	// What happens after that: open admits everything, keep leaves the level as it is.
	Blind string `json:"blind,omitempty" default:"open" enum:"open,keep"`
	// How long users keep their place in the order in which one priority is refused. 0 means the
	// default.
	Resalt Duration `json:"resalt,omitempty" default:"1h" min:"0s" minus1:"for ever"`
}

// defaultShedWait is [ShedSpec].Wait where it is left out, as in DAGOR.
const defaultShedWait = Duration(20 * time.Millisecond)

// QuotaSpec is a gate that limits what is used up and comes back with time. That is requests, bytes
// or tokens, for example so many a second or a day. See package quota. It takes no slots, so it
// stands before the gate with a limit. If a later gate refuses, the work gets back what it was
// charged.
type QuotaSpec struct {
	QuotaLimitSpec
	// Who has buckets of its own: each user, client, tenant, route, priority, address (IPv6:
	// /64) or descriptor. With several words, each combination has. Left out, all work shares one bucket.
	By []string `json:"by,omitempty" example:"[user]" form:"one of user, client, tenant, route, priority, address, descriptor"`
	// Quotas for some, beside by and its limits or instead. The most exact rule that matches counts, compared by
	// user, then client, tenant, route, priority, address and descriptor. Work that no rule matches is not limited.
	Rules []QuotaRuleSpec `json:"rules,omitempty" example:"[{user: alice, rate: 50/s}]"`
	// What a token is. cost: what a request costs by its route (cost, cost_from, settle). requests: one for each
	// request, whatever it costs at other gates.
	Count string `json:"count,omitempty" default:"cost" enum:"cost,requests"`
	// Admit work unless its bucket is in debt, whatever the work costs; the debt is paid back afterwards (as in
	// Kafka). Without it there must be as many tokens as the work costs.
	Debt bool `json:"debt,omitempty" default:"false"`
	// Refuse nothing, but charge everything, into debt if necessary.
	Permissive bool `json:"permissive,omitempty" default:"false"`
	// Lets work wait for its tokens, where this gate is the last of the route. A number is its len.
	Queue QuotaQueueSpec `json:"queue,omitzero" example:"{len: 100, max_wait: 1s}" short:"len" words:"off=-1"`
	// One of stores, which keeps the buckets for several gateways. Left out, they are in the memory of this
	// one.
	Store string `json:"store,omitempty" example:"shared"`
	// What to do when the store does not answer. local decides by buckets in the memory of this gateway, which
	// start full. open admits everything, but decides by memory too while answers are only late or too many
	// decisions are in flight. closed refuses.
	OnStoreError string `json:"on_store_error,omitempty" default:"local" enum:"local,open,closed"`
	// Buckets in the memory of this gateway, of up to 40 bytes each; a key has one for each of its
	// limits. Further keys share one bucket, which fails closed. 0 means the default. A change of
	// this number begins with full buckets.
	MaxKeys int `json:"max_keys,omitempty" default:"1048576" min:"0" max:"268435456"`
	// Headers of answers about the quota: ratelimit is RateLimit and RateLimit-Policy, legacy X-RateLimit-Limit,
	// -Remaining and -Reset.
	Headers string `json:"headers,omitempty" default:"ratelimit" enum:"ratelimit,legacy,both,none"`
	// The unit of a token in RateLimit-Policy, where routes cost something else than requests. It does not
	// change what is counted.
	Unit string `json:"unit,omitempty" default:"requests" enum:"requests,content-bytes"`
}

// QuotaLimitSpec is the limits of a bucket: one, written as Rate and Burst, or several Limits.
// Tokens are taken from all of them, or from none.
type QuotaLimitSpec struct {
	// One limit. So many tokens come back in each s, min, h or duration (5/10s), all the time; by default as
	// many may be taken at once. 5000 a day: all of them come back at midnight, UTC unless a time zone follows;
	// hour, week and month are the others.
	Rate string `json:"rate,omitempty" example:"10/s" form:"a limit such as 10/s, 10/s burst 20, 1000/h or 5000 a day Europe/Berlin"`
	// The most tokens in a bucket, if not what the rate says. It starts full.
	Burst float64 `json:"burst,omitempty" min:"0" max:"1000000000000000" example:"20"`
	// Several limits instead of a rate, eight at most: tokens are taken from all of them or from none. Keep
	// their order when you change one.
	Limits []string `json:"limits,omitempty" example:"[\"10/s burst 20\", 1000/h]" form:"a limit such as 10/s, 10/s burst 20, 1000/h or 5000 a day Europe/Berlin"`
}

// QuotaRuleSpec is a rule of a quota with its limits as text, in place of Windows. Each part
// that it names must match: a value, or "*" for each value there is, which gives each a
// bucket of its own.
type QuotaRuleSpec struct {
	quota.Rule
	QuotaLimitSpec
}

// QuotaQueueSpec is the wait for tokens to come back.
type QuotaQueueSpec struct {
	// How much work may wait. 0 means the default, which is none. A bucket may fill the queue if it is the only one. Of
	// several, none may have more waiting than there are places left: one that is flooded gets half of them. So double len
	// with the first rule that has a bucket of its own. Work without a place is answered 429, with its wait.
	Len int `json:"len,omitempty" default:"0" min:"0" max:"1000000" minus1:"nothing waits"`
	// How long work may wait. 0 means the default. Work that would have to wait longer is refused at once.
	MaxWait Duration `json:"max_wait,omitempty" default:"2s" min:"0s" minus1:"only the work's own deadline counts"`
}

// SignalSpec is a signal for gates. The zero value reads what the signal's name says, with
// defaults.
type SignalSpec struct {
	// What is read. Left out, it is the signal's name. docs/reference/signals.md describes each, and says when it
	// is blind.
	Read string `json:"read,omitempty" example:"cpu"`
	// The highest value you want: there the pressure is 1. For most signals it is a share
	// (defaults: sched_latency 0.1, cpu 0.85, cpu_throttling 0.25, memory 0.9, heap 0.8, psi_memory
	// 0.1, psi_cpu and psi_io 0.5). For runnable it is a number for each processor (32), for
	// goroutines a number (required), for file and http a value (1).
	Threshold float64 `json:"threshold,omitempty" min:"0.000001" example:"0.8"`
	// sched_latency: a wait for a processor that counts as long (default 10ms).
	Wait Duration `json:"wait,omitempty" min:"1us" example:"10ms"`
	// Time over which it is measured (defaults: sched_latency 50ms, cpu 500ms, cpu_throttling and psi 1s).
	Over Duration `json:"over,omitempty" min:"1ms" max:"1m" example:"1s"`
	// file: the file with the number, relative to this file.
	Path string `json:"path,omitempty" example:"lag.txt" form:"the name of a file"`
	// http: the URL that answers with the number, by GET.
	URL string `json:"url,omitempty" example:"http://127.0.0.1:8000/lag" form:"a URL such as http://127.0.0.1:8000/lag"`
	// file and http: where the number is in a JSON document, with dots. Left out, the text is the number.
	Field string `json:"field,omitempty" example:"lag.total"`

	// Time between two readings (default 100ms; sched_latency and runnable 10ms).
	Interval Duration `json:"interval,omitempty" min:"1ms" max:"1h" example:"1s"`
	// How long a reading may take (default: hold).
	Timeout Duration `json:"timeout,omitempty" min:"1ms" max:"1h" example:"500ms"`
	// How long the last good value is used while readings fail (default: ten intervals, at least 1s).
	Hold Duration `json:"hold,omitempty" min:"1ms" max:"24h" example:"5s"`
	// Time constant of an exponential average over the readings. 0 means none.
	Smooth Duration `json:"smooth,omitempty" default:"0s" min:"0s" max:"1h"`
	// What happens after hold: ignore goes on without the signal, safe uses safe_value instead.
	Then string `json:"then,omitempty" default:"ignore" enum:"ignore,safe"`
	// The pressure, or the lag, with then: safe, which needs it. A pressure above 1 shrinks the limit, and 1 keeps it.
	SafeValue float64 `json:"safe_value,omitempty" default:"0" min:"0"`
}

// ParseSpec reads a Spec from JSON.
func ParseSpec(data []byte) (Spec, error) {
	var s Spec
	var faults fault.List
	if root := jsontree.Parse(data, &faults); root != nil {
		setting.Decode(root, &s, &faults)
	}
	return s, faults.Err("policy")
}
