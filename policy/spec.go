package policy

import (
	"time"
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
	// Signals are the signals that gates go by, by name, where their defaults
	// will not do. One that a gate names and that is not here reads what it is
	// called: cpu, memory, and the other words of [SignalKinds].
	Signals map[string]SignalSpec `json:"signals,omitempty"`
	// Routes are matched by their patterns, most specific first, as net/http's
	// ServeMux does. Work that matches no route passes no gate.
	Routes []RouteSpec `json:"routes,omitempty"`
}

// IdentitySpec says who is asking. Each source is one of
//
//	header:NAME   the value of a request header, believed only from trusted
//	              peers; empty if it comes twice with different values
//	path:NAME     the value of the route pattern's wildcard {NAME}
//	peer          the address that the request comes from, IPv6 by /64
//	cert:NAME     a name in the client certificate that the TLS server has verified:
//	              uri (the URI in its alternative names, as a SPIFFE ID is),
//	              dns (the first DNS name there, in lower case), subject (the whole, as in
//	              RFC 2253), cn (its common name), or hash (the SHA-256 of the
//	              certificate, in hexadecimal); empty if there is no such name, or
//	              several URIs or common names, or no certificate. A connection may
//	              outlast its certificate: whoever runs the server has to look
//	const:VALUE   always VALUE
//
// and the empty source leaves the field empty. Values longer than [MaxIdentity]
// are hashed. Priority cannot come from path or peer, which the client chooses, or
// from cert.
//
// The address is the peer's. A trusted peer passes on what others ask: it is
// the rightmost address of its X-Forwarded-For that is not in Trusted.
//
// Work whose user is empty gets that address as its User, so that nobody gains by
// inventing names: tenants share what their user has. There are two exceptions, in
// which it stays empty: a trusted peer that has tenant or user to say by a header,
// because it answers for them, and one that names no address outside Trusted.
type IdentitySpec struct {
	Tenant   string `json:"tenant,omitempty"`
	User     string `json:"user,omitempty"`
	Client   string `json:"client,omitempty"`
	Priority string `json:"priority,omitempty"`
	// Admissions is a header, header:NAME, in which a trusted peer says how often the
	// operation that its request is part of has been admitted before: a whole number.
	// Anything else is ignored and counted. A proxy passes on one more, or 1 where
	// nobody who is trusted has said it, if the request has passed a gate. Routes
	// with DemoteAfter go by it.
	Admissions string `json:"admissions,omitempty"`
	// Priorities are further words that Priority may bring, and what they mean:
	// background, normal, high or critical, which are always understood. Upper and
	// lower case are alike. Work with any other word has the route's priority;
	// see [Policy.Ignored].
	Priorities map[string]string `json:"priorities,omitempty"`
	// Trusted are the networks, in CIDR notation, whose headers are believed.
	// From other peers header sources read as empty. Default: loopback only,
	// 127.0.0.0/8 and ::1/128; an empty list trusts nobody.
	Trusted []string `json:"trusted,omitempty"`
	// TrustedCerts are peers that are believed for their verified client
	// certificate, whatever network they are in: uri:, dns:, subject:, cn: or
	// hash: and the name, as in a source. A URI may end with a star, which
	// stands for the rest of it (uri:spiffe://example.org/edge/*), and a DNS name may
	// begin with one, which stands for a label (dns:*.example.org); any is every
	// verified certificate. Default: none. A certificate says who somebody is,
	// not that others may be believed through it, so each list is apart.
	TrustedCerts []string `json:"trusted_certs,omitempty"`
}

// DeadlineSpec says where requests bring their deadlines. The earliest of those
// and of the route's Timeout holds. Anybody may shorten its own wait so; but in a
// policy with a gate of order edf a request whose peer is not trusted is not
// served sooner for it.
type DeadlineSpec struct {
	// Headers hold how long the client waits for an answer, counted from the
	// request's arrival. Default: grpc-timeout and X-Request-Timeout; an empty
	// list reads none. grpc-timeout is written as gRPC does, 250m for 250 ms.
	// The others are a number of seconds, 0.25, or a duration with units, 250ms;
	// a header whose name ends with -Ms is a number of milliseconds. Any other
	// value, and one that is not positive, is ignored and counted (see
	// [Policy.Ignored]), but 0 in grpc-timeout means that the time is over. If
	// there are several, the shortest holds.
	Headers []string `json:"headers,omitempty"`
}

// GateSpec is one gate: a mode and exactly one mechanism, a limit, shedding or a quota.
type GateSpec struct {
	// Mode is enforce (default), observe (decide and count, but let everything
	// through) or off (decide nothing).
	Mode Mode `json:"mode,omitempty"`
	// Limit makes it a concurrency gate.
	Limit *LimitSpec `json:"limit,omitempty"`
	// Each makes the limit one for each tenant, or other key.
	Each *EachSpec `json:"each,omitempty"`
	// Shed makes it a gate that refuses by priority as a pressure rises.
	Shed *ShedSpec `json:"shed,omitempty"`
	// Quota makes it a gate that limits what is used up, by user, client and more.
	Quota *QuotaSpec `json:"quota,omitempty"`
}

// LimitSpec is a concurrency gate. A setting that means nothing to its controller
// is a fault.
type LimitSpec struct {
	// Controller is one of the words of [Controllers], which are the names of
	// the controllers of package control. Left out it is fixed if there is a
	// Limit to keep, and knee, which finds one, if there is none.
	Controller string `json:"controller,omitempty"`
	// Limit is the fixed limit, or the initial one of a controller that moves
	// it. Required for fixed.
	Limit int64 `json:"limit,omitempty"`
	// Min and Max bound a limit that moves. Their defaults are the
	// controller's.
	Min int64 `json:"min,omitempty"`
	Max int64 `json:"max,omitempty"`

	// The settings that several controllers have, and the groups of those that
	// only one has. They are the fields of the same names in the controllers'
	// configurations, control.AIMDConfig and so on, where their meanings, bounds
	// and defaults stand.
	Threshold  Duration      `json:"threshold,omitempty"`
	Take       string        `json:"take,omitempty"`
	Percentile float64       `json:"percentile,omitempty"`
	Backoff    float64       `json:"backoff,omitempty"`
	Window     Duration      `json:"window,omitempty"`
	MinSamples int64         `json:"min_samples,omitempty"`
	Vegas      VegasSpec     `json:"vegas,omitzero"`
	Gradient2  Gradient2Spec `json:"gradient2,omitzero"`
	Probe      ProbeSpec     `json:"probe,omitzero"`
	Lag        LagSpec       `json:"lag,omitzero"`
	Drain      DrainSpec     `json:"drain,omitzero"`
	Resource   ResourceSpec  `json:"resource,omitzero"`

	// Signals are those that hold the limit down when they are under pressure,
	// whatever the controller finds (see [control.Capped]); the controller
	// resource goes by nothing else. Each names one of Spec.Signals, or of
	// [SignalKinds], or of Options.Signals.
	Signals []string `json:"signals,omitempty"`
	// Queue is the wait room.
	Queue QueueSpec `json:"queue,omitempty"`
	// Exempt is the most exempt work at once; beyond it such work is refused. 0
	// means limit.DefaultExempt (1024), -1 that nothing is exempt.
	Exempt int64 `json:"exempt,omitempty"`
	// Count says what takes how many slots: cost (default), what work costs by its
	// route; or requests: each takes one, whatever it costs to other gates, quotas of
	// tokens or bytes say.
	Count string `json:"count,omitempty"`
	// RefuseOversize refuses work that costs more than the limit, which is
	// otherwise charged all of it and runs alone.
	RefuseOversize bool `json:"refuse_oversize,omitempty"`
}

// QueueSpec is the wait room of a concurrency gate.
type QueueSpec struct {
	// Len bounds the work that waits. 0 means limit.DefaultQueueLen (1024), -1
	// that nothing waits.
	Len int `json:"len,omitempty"`
	// MaxWait bounds the time spent waiting. 0 means limit.DefaultMaxWait (2s),
	// -1 only the deadline of the work itself.
	MaxWait Duration `json:"max_wait,omitempty"`
	// Order is that of work of one priority, user and tenant. It is adaptive
	// (default): oldest first, and while a queue stands newest first in a short
	// room, which the oldest leave; lifo: always newest first; fifo; or edf: the
	// earliest deadline first. The deadline of a peer that is not trusted is no
	// advantage there: it only bounds the wait.
	Order string `json:"order,omitempty"`
	// Shares are the parts of what is served that a priority gets at least while
	// its work waits, each from 0 to 1 and together no more than 1: {background:
	// 0.05}. Default none: a higher priority is always served first.
	Shares map[string]float64 `json:"shares,omitempty"`
	// Weights are the parts that users and tenants get in relation to each other.
	Weights WeightsSpec `json:"weights,omitzero"`
	// ByTime makes them parts of the time that slots are held instead of what is
	// admitted. See limit.Queue.ByTime.
	ByTime bool `json:"by_time,omitempty"`
}

// WeightsSpec says who gets how much more than others of what is served of one
// priority. Who is not named has weight 1. A weight is from limit.MinWeight
// (0.001) to limit.MaxWeight (1000).
type WeightsSpec struct {
	// Users are the weights by user, Tenants those by tenant among the tenants of
	// one user.
	Users   map[string]float64 `json:"users,omitempty"`
	Tenants map[string]float64 `json:"tenants,omitempty"`
}

// RouteSpec sends matching work through a chain of gates.
type RouteSpec struct {
	// Name is the route's name, the Op of its work and its metric label.
	// Default: the first pattern.
	Name string `json:"name,omitempty"`
	// Upstream is where a proxy sends the route's work. The policy only carries it, see
	// [Route.Upstream]; how it is written in a file is the proxy's matter.
	Upstream string `json:"-"`
	// Match are net/http patterns: "POST /v1/databases/{database}/batches". A
	// route without any is reached by its name only ([Policy.Route]).
	Match []string `json:"match"`
	// Gates names the gates in order. Each but the last is tried without
	// waiting; the last may make the work wait.
	Gates []string `json:"gates,omitempty"`
	// Priority of this route's work where the request brings none that is
	// trusted: background, normal, high or critical.
	Priority string `json:"priority,omitempty"`
	// DemoteAfter is after how many admissions the work of an operation counts as
	// background (see IdentitySpec.Admissions), and is passed on as such. 0 means
	// never. Exempt and critical work is never demoted.
	DemoteAfter int64 `json:"demote_after,omitempty"`
	// Exempt work takes no slot and never waits: health checks, an operator's way
	// in. Gates count it, and bound how much there is at once.
	Exempt bool `json:"exempt,omitempty"`
	// Access is read or write: which of the pools of a gate that has two of them this
	// route's work needs (ProbeSpec.ReadWrite). Left out, GET, HEAD, OPTIONS and TRACE
	// read and everything else writes; work that comes by the route's name reads.
	Access string `json:"access,omitempty"`
	// Cost of one request in slots, and in tokens of quotas, at most
	// quota.MaxTokens. Default 1.
	Cost int64 `json:"cost,omitempty"`
	// CostFrom is a header, header:NAME, in which a trusted peer says what its
	// request costs: a whole number of slots, and tokens of quotas, 1 or more, that
	// stands in for Cost. Of several lines the largest number counts. What is above
	// quota.MaxTokens is that, and to a gate with a limit what is above
	// limit.MaxLimit is that; such a gate charges no more than its whole limit, or
	// refuses what costs more, as it does with Cost. Where there is anything but
	// such a number, work that an enforced quota would charge for it has a cost of
	// -1, which every gate refuses; other work has Cost. Both are counted (see
	// [Policy.Ignored]).
	CostFrom string `json:"cost_from,omitempty"`
	// Settle is a header of the answer, header:NAME, or else one of its trailer, that
	// says what the work has really cost, in the same unit, 0 included; see [Route.Settle].
	// Of several lines the largest number counts. A gate with one
	// limit settles the difference with the share of the tenant, one with a limit
	// for each key changes what is held. The header is taken out of the answer
	// unless SettleKeep is set.
	Settle     string `json:"settle,omitempty"`
	SettleKeep bool   `json:"settle_keep,omitempty"`
	// Timeout is when an answer to this route's work stops being useful,
	// counted from its arrival. 0 means never.
	Timeout Duration `json:"timeout,omitempty"`
	// MaxWait shortens the wait below what the gate allows; -1 refuses instead
	// of waiting.
	MaxWait Duration `json:"max_wait,omitempty"`
}

// VegasSpec is what only the controller vegas has; see [control.VegasConfig].
type VegasSpec struct {
	Alpha           float64 `json:"alpha,omitempty"`
	Beta            float64 `json:"beta,omitempty"`
	Smoothing       float64 `json:"smoothing,omitempty"`
	ProbeMultiplier int64   `json:"probe_multiplier,omitempty"`
}

// Gradient2Spec is what only the controller gradient2 has; see
// [control.Gradient2Config].
type Gradient2Spec struct {
	Smoothing  float64 `json:"smoothing,omitempty"`
	Queue      int64   `json:"queue,omitempty"`
	RootQueue  bool    `json:"root_queue,omitempty"`
	LongWindow int64   `json:"long_window,omitempty"`
	Tolerance  float64 `json:"tolerance,omitempty"`
	Rise       float64 `json:"rise,omitempty"`
	Recheck    int64   `json:"recheck,omitempty"`
	Shipped    bool    `json:"shipped,omitempty"`
}

// ProbeSpec is what only the controller probe has; see [control.ProbeConfig].
type ProbeSpec struct {
	Step     float64  `json:"step,omitempty"`
	Weight   float64  `json:"weight,omitempty"`
	Interval Duration `json:"interval,omitempty"`
	// ReadWrite makes two pools, one for reads and one for writes (weir.Work.Write),
	// which are sized together by what both get done; see keyed.ReadWrite. Limit is
	// that of both at first, of which ReadRatio is for reads (default 0.5), and Min
	// and Max are for each. With EachSpec.Own there are two for each key.
	ReadWrite bool    `json:"read_write,omitempty"`
	ReadRatio float64 `json:"read_ratio,omitempty"`
}

// LagSpec is what only the controller lag has; see [control.LagMapConfig].
type LagSpec struct {
	// Signal names the signal whose value is the lag. Required.
	Signal     string   `json:"signal,omitempty"`
	Target     float64  `json:"target,omitempty"`
	Critical   float64  `json:"critical,omitempty"`
	Interval   Duration `json:"interval,omitempty"`
	Hold       int      `json:"hold,omitempty"`
	Safe       int64    `json:"safe,omitempty"`
	Smoothing  float64  `json:"smoothing,omitempty"`
	MaxChange  float64  `json:"max_change,omitempty"`
	Hysteresis float64  `json:"hysteresis,omitempty"`
}

// DrainSpec is what only the controller drain has; see [control.DrainConfig].
type DrainSpec struct {
	// Signal names the signal whose value is the lag. Required.
	Signal     string   `json:"signal,omitempty"`
	Target     float64  `json:"target,omitempty"`
	Threshold  float64  `json:"threshold,omitempty"`
	Interval   Duration `json:"interval,omitempty"`
	Fudge      float64  `json:"fudge,omitempty"`
	Decay      float64  `json:"decay,omitempty"`
	Adder      float64  `json:"adder,omitempty"`
	Multiplier float64  `json:"multiplier,omitempty"`
	PerWork    float64  `json:"per_work,omitempty"`
	Hold       int      `json:"hold,omitempty"`
	Safe       int64    `json:"safe,omitempty"`
}

// ResourceSpec is what only the controller resource has; see
// [control.ResourceConfig]. It goes by LimitSpec.Signals.
type ResourceSpec struct {
	Growth float64 `json:"growth,omitempty"`
}

// EachSpec makes the limit of a gate one for each key instead of one for all: each
// tenant, or database, has a pool of its own. See package keyed for what that is
// good for, and when a gate that is fair between tenants is better.
//
// The controller, if there is one, sizes all pools alike. It goes by readings (lag,
// drain, resource) or by throughput (probe). Those that learn from latencies see too little of one
// key. Work waits for its own key: priorities, Shares and Weights count among those
// that wait for the same one, and Queue.Len is for all keys together.
//
// With Own each key has a limiter of its own instead, with a controller of its own:
// any of them. That is for hundreds of keys, not for millions.
type EachSpec struct {
	// By says whose pool it is: tenant (default), user, client, or route.
	By string `json:"by,omitempty"`
	// Own gives each key a limiter of its own: what it carries is found out, or
	// fixed, for it alone. Queue.Len is for all of them together, and one may take
	// a quarter of it. What was learned is remembered of evicted keys (see
	// keyed.Adaptive), but not saved over a restart.
	Own bool `json:"own,omitempty"`
	// MaxKeys bounds the keys that are known at a time. 0 means
	// keyed.DefaultMaxKeys (65,536), with Own DefaultOwnKeys (1024), of which each
	// takes up to OwnKeyBytes.
	MaxKeys int `json:"max_keys,omitempty"`
	// Overrides are keys with a limit of their own.
	Overrides map[string]OverrideSpec `json:"overrides,omitempty"`
}

// OverrideSpec is the limit of one key: either a number, or how many times the
// limit of the others, of which there is none with Own.
type OverrideSpec struct {
	Limit int64   `json:"limit,omitempty"`
	Scale float64 `json:"scale,omitempty"`
}

// ShedSpec is a gate that refuses by priority, the lowest first, as a pressure
// rises. Nothing waits in it and nothing is held, so it stands before the gate with
// the limit. See package shed.
type ShedSpec struct {
	// Signals are those whose pressure counts, the highest of them. LoadOf and
	// WaitOf name a gate with a limit instead: its pressure is what is in flight and
	// waiting over its limit, or what a newcomer is expected to wait there over Wait
	// (default DefaultShedWait, 20ms). One of the three is required. The load is at 1
	// whenever all slots are taken, so before a gate where work may wait it needs
	// thresholds above 1.
	Signals []string `json:"signals,omitempty"`
	LoadOf  string   `json:"load_of,omitempty"`
	WaitOf  string   `json:"wait_of,omitempty"`
	Wait    Duration `json:"wait,omitempty"`
	// Thresholds are the pressures from which each priority is refused.
	Thresholds ThresholdsSpec `json:"thresholds,omitzero"`
	// Cursor finds the priority, and within it the share of users, that is let
	// through, instead of thresholds.
	Cursor *CursorSpec `json:"cursor,omitempty"`
	// Interval is the time between two readings (default 10ms), Hold how long the
	// last one stands in while there is none (default ten intervals, at least 1s). Blind says what holds
	// after that: open (default) lets everything through, keep leaves it as it is.
	Interval Duration `json:"interval,omitempty"`
	Hold     Duration `json:"hold,omitempty"`
	Blind    string   `json:"blind,omitempty"`
	// Resalt is how long users keep their place in the order in which users of one
	// priority are refused. Default 1h; -1 means for ever.
	Resalt Duration `json:"resalt,omitempty"`
}

// DefaultShedWait is [ShedSpec].Wait where it is left out: DAGOR's.
const DefaultShedWait = Duration(20 * time.Millisecond)

// ThresholdsSpec are the pressures from which each priority is refused. Defaults:
// 0.75, 0.90, 0.95 and 1, where everything is.
type ThresholdsSpec struct {
	Background float64 `json:"background,omitempty"`
	Normal     float64 `json:"normal,omitempty"`
	High       float64 `json:"high,omitempty"`
	Critical   float64 `json:"critical,omitempty"`
}

// CursorSpec is the way of DAGOR; see shed.Cursor.
type CursorSpec struct {
	Overload float64 `json:"overload,omitempty"`
}

// QuotaSpec is a gate that limits what is used up and comes back with time: requests,
// bytes, tokens, so many a second or a day. See package quota. Nothing is held in it,
// so it stands before the gate with a limit; work that a later gate refuses gets back
// what it has been charged.
type QuotaSpec struct {
	QuotaLimitSpec
	// By says whom the limits are for: each user, client, tenant, route, priority or
	// address has buckets of its own, and with several words each combination. Left out,
	// all work shares one. It is short for a rule with "*" for each word.
	By []string `json:"by,omitempty"`
	// Rules are quotas of some, instead of or beside that. The most exact one that matches
	// counts, whatever their order: see quota.Rule.
	Rules []QuotaRuleSpec `json:"rules,omitempty"`
	// Count says what a token is: cost (default), what work costs by its route, settled when
	// it is known; or requests: each is one, whatever it costs to other gates.
	Count string `json:"count,omitempty"`
	// Debt lets work through iff its bucket is not in debt, whatever the work costs, as
	// Kafka does. Without it there have to be as many tokens as it costs.
	Debt bool `json:"debt,omitempty"`
	// Permissive refuses nothing: all is charged, into debt if need be.
	Permissive bool `json:"permissive,omitempty"`
	// Queue lets work wait for its tokens, where the gate is the last of its route. By
	// default nothing waits.
	Queue QuotaQueueSpec `json:"queue,omitzero"`
	// Store names one of Options.Stores, which keeps the buckets. Left out, they are in
	// the memory of the process.
	Store string `json:"store,omitempty"`
	// OnStoreError says what to do when that store cannot tell: local (default) goes by
	// buckets in the memory of the process, open lets everything through, closed refuses.
	OnStoreError string `json:"on_store_error,omitempty"`
	// MaxKeys bounds the buckets in memory, without a Store: quota.MemoryConfig.MaxKeys. A
	// gate whose bound is changed begins anew, with full buckets.
	MaxKeys int `json:"max_keys,omitempty"`
	// Headers are those in which answers tell the client about its quota: ratelimit
	// (default; RateLimit and RateLimit-Policy), legacy (X-RateLimit-Limit and its
	// like), both or none. Policy only keeps it for whoever answers: [Gate.QuotaHeaders].
	Headers string `json:"headers,omitempty"`
	// Unit is what RateLimit-Policy says that a token is: requests (default), which goes
	// without saying, or content-bytes. It changes nothing of what is counted, and is kept
	// for whoever answers: [Gate.QuotaUnit].
	Unit string `json:"unit,omitempty"`
}

// QuotaLimitSpec is the limits of a bucket: one, written as Rate and Burst, or several
// Limits, of which tokens are taken from all or none.
type QuotaLimitSpec struct {
	// Rate and Burst are one limit: "10/s", and the most that may come at once. Rate is
	// whatever [ParseLimit] reads. Burst is 0 where Rate says all.
	Rate  string  `json:"rate,omitempty"`
	Burst float64 `json:"burst,omitempty"`
	// Limits are several, each as ParseLimit reads it: "10/s burst 20", "1000/h",
	// "5000 a day Europe/Berlin". A window is known by its place: leave them in order.
	Limits []string `json:"limits,omitempty"`
}

// QuotaRuleSpec is a rule of a quota. Each part that it names must match: a value, or
// "*" for each value there is, which gives each a bucket of its own.
type QuotaRuleSpec struct {
	// Name is what rejections call the rule. Default: what it matches.
	Name     string `json:"name,omitempty"`
	User     string `json:"user,omitempty"`
	Client   string `json:"client,omitempty"`
	Tenant   string `json:"tenant,omitempty"`
	Route    string `json:"route,omitempty"`
	Priority string `json:"priority,omitempty"`
	// Address is a network in CIDR notation, such as 10.0.0.0/8 or 192.0.2.7/32, or "*".
	// One of IdentitySpec's sources must be peer.
	Address string `json:"address,omitempty"`
	QuotaLimitSpec
	// Exempt lets those whom the rule matches through without counting, Blocked refuses
	// them all; either stands instead of limits.
	Exempt  bool `json:"exempt,omitempty"`
	Blocked bool `json:"blocked,omitempty"`
}

// QuotaQueueSpec is the wait for tokens to come back.
type QuotaQueueSpec struct {
	// Len is how many may wait. 0 means the default, none; negative the same.
	Len int `json:"len,omitempty"`
	// MaxWait bounds the time spent waiting. 0 means quota.DefaultMaxWait (2s), -1 only
	// the work's own bounds.
	MaxWait Duration `json:"max_wait,omitempty"`
}

// SignalSpec is a signal that gates may go by. The zero value reads what the
// signal is named after, at its defaults.
type SignalSpec struct {
	// Read is what is read: one of the words of [SignalKinds], or a name of
	// Options.Signals. Default: the signal's own name.
	Read string `json:"read,omitempty"`
	// Threshold is the most that is wanted, the value at which the pressure is
	// 1: a share for most signals, a number for goroutines, runnable (for each
	// processor), file, http and those of Options.Signals. Defaults: those of
	// package signal; required for goroutines; 1 for file, http and
	// Options.Signals, whose value then is the pressure.
	Threshold float64 `json:"threshold,omitempty"`
	// Wait is sched_latency's: the wait for a processor that counts as long.
	Wait Duration `json:"wait,omitempty"`
	// Over is the time that is looked back over, for sched_latency, cpu,
	// cpu_throttling and the pressure stall signals.
	Over Duration `json:"over,omitempty"`
	// Path is the file to read, for file.
	Path string `json:"path,omitempty"`
	// URL is what to ask, for http.
	URL string `json:"url,omitempty"`
	// Field leads to the number in a JSON document, with dots: lag.orders.0.
	// Without it the text is the number. For file and http.
	Field string `json:"field,omitempty"`

	// Interval, Timeout, Hold and Smooth say how to poll it; see signal.Watch.
	Interval Duration `json:"interval,omitempty"`
	Timeout  Duration `json:"timeout,omitempty"`
	Hold     Duration `json:"hold,omitempty"`
	Smooth   Duration `json:"smooth,omitempty"`
	// Then is what holds once nothing good was read for longer than Hold:
	// ignore (default) or safe, which puts SafeValue, above 0, in its place.
	Then      string  `json:"then,omitempty"`
	SafeValue float64 `json:"safe_value,omitempty"`
}

// ParseSpec reads a Spec from JSON.
func ParseSpec(data []byte) (Spec, error) {
	var s Spec
	return s, Decode(data, &s)
}
