package policy

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
