package admin

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/accept"
	"github.com/weir-go/weir/gateway/internal/proxy"
	"github.com/weir-go/weir/gateway/internal/quotas"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/signal"
	"github.com/weir-go/weir/weirhttp"
)

// Source is what the collector reads for each request for metrics.
type Source interface {
	Policy() *policy.Policy
	Streams() *weirhttp.Streams
	Upstreams() []*proxy.Upstream
	Connections() []accept.Snapshot
	Stores() []Store
	Book() quotas.Stats
	InFlight() int64
	Ready() bool
}

// collector turns the states of gates, signals, upstreams and listeners into metrics, at each
// request.
type collector struct {
	src     Source
	metrics *Metrics
}

// Describe implements prometheus.Collector. It describes nothing, because what there is to
// collect changes with the configuration.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	c.gateway(ch)
	c.upstreams(ch)
	c.connections(ch)
	c.tenants(ch)
	c.rules(ch)
	for _, s := range c.src.Stores() {
		collectStore(ch, &s)
	}
	p := c.src.Policy()
	if p == nil {
		return
	}
	series := *c.metrics.gates.Load()
	for name, g := range p.Gates() {
		c.gate(ch, name, g)
		if pools := g.Pools(); pools != nil {
			c.keys(ch, name, pools, series[name].keys)
		}
		if use := useOf(g.Quota()); use != nil {
			collectQuota(ch, name, use, series[name].refusals)
		}
	}
	c.signals(ch, p.Signals())
	ignored := p.Ignored()
	counter(ch, ignoredTotal, ignored.Priorities, "priority")
	counter(ch, ignoredTotal, ignored.Timeouts, "timeout")
	counter(ch, ignoredTotal, ignored.Costs, "cost")
	counter(ch, ignoredTotal, ignored.Settled, "settled_cost")
	counter(ch, ignoredTotal, ignored.Admissions, "admissions")
	counter(ch, demotedTotal, p.Demoted())
}

func gauge(ch chan<- prometheus.Metric, d *prometheus.Desc, v float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func counter(ch chan<- prometheus.Metric, d *prometheus.Desc, n uint64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	ready             = desc("weir_ready", "1 while the gateway wants requests, 0 while it shuts down.")
	requestsInFlight  = desc("weir_http_requests_in_flight", "Requests in the gateway now: waiting, at an upstream, or being answered.")
	streamsOpen       = desc("weir_streams_open", "Streams, upgraded connections and slow readers now.")
	streamsMax        = desc("weir_streams_max", "Most streams at a time.")
	streamsMoved      = desc("weir_streams_total", "Answers that became streams.")
	streamsOverflowed = desc("weir_streams_overflowed_total", "Answers that kept their slot because there were too many streams.")
	streamsCut        = desc("weir_streams_cut_total", "Answers cut because the client did not read them.")
	ignoredTotal      = desc("weir_ignored_total", "Headers that could not be read, so that the settings of the route were used instead: priority, cost or admissions of a trusted peer, a timeout, or the cost in an answer (settled_cost).", "what")
	demotedTotal      = desc("weir_demoted_total", "Requests demoted to background because their operation has been admitted often.")
)

func (c collector) gateway(ch chan<- prometheus.Metric) {
	gauge(ch, ready, oneIf(c.src.Ready()))
	gauge(ch, requestsInFlight, float64(c.src.InFlight()))
	s := c.src.Streams().Snapshot()
	gauge(ch, streamsOpen, float64(s.Open))
	gauge(ch, streamsMax, float64(s.Max))
	counter(ch, streamsMoved, s.Moved)
	counter(ch, streamsOverflowed, s.Overflowed)
	counter(ch, streamsCut, s.Cut)
}

var (
	gateLimit          = desc("weir_gate_limit", "Limit of a gate now, in slots.", "gate")
	gateInFlight       = desc("weir_gate_in_flight", "Slots in use now. Above the limit for a while after the limit has fallen.", "gate")
	gateWaiting        = desc("weir_gate_waiting", "Work in the wait room now.", "gate")
	gateWaitingByClass = desc("weir_gate_waiting_by_class", "Work in the wait room now, by priority.", "gate", "class")
	gatePressure       = desc("weir_gate_pressure", "Pressure that a load shedding gate measures: 1 is the most that is wanted. Absent while it is unknown.", "gate")
	gateExempt         = desc("weir_gate_exempt_in_flight", "Exempt work in progress now. It is not part of weir_gate_in_flight.", "gate")
	gateExemptAdmitted = desc("weir_gate_exempt_admitted_total", "Exempt work admitted. It is not part of weir_gate_admitted_total.", "gate")
	gateMode           = desc("weir_gate_mode", "1 for the mode of a gate: enforce, observe or off.", "gate", "mode")
	gateExpected       = desc("weir_gate_expected_seconds", "Service time that a gate expects, 0 if it measures none.", "gate")
	gateAdmitted       = desc("weir_gate_admitted_total", "Work admitted.", "gate")
	gateRejected       = desc("weir_gate_rejected_total", "Work refused, by reason.", "gate", "reason")
	gateObserved       = desc("weir_gate_observed_total", "Work that a gate in observe mode admitted but would have refused, by reason.", "gate", "reason")
	gateOutcomes       = desc("weir_gate_outcomes_total", "Admitted work, by outcome.", "gate", "outcome")
	gateFaults         = desc("weir_gate_controller_faults_total", "Invalid decisions of a gate's controller, which the gate ignored. Above 0 only by a bug.", "gate")
	gateBound          = desc("weir_gate_bound_by_signal", "1 for the signal that bounds the limit of a gate now, 0 for its other signals.", "gate", "signal")
	gateLeaked         = desc("weir_gate_leaked_total", "Permits that were never given back. Above 0 only by a bug.", "gate")

	partLimit    = desc("weir_part_limit", "Slots now of the reads, or the writes, of a gate with a pool for each.", "gate", "part")
	partInFlight = desc("weir_part_in_flight", "Slots that reads, or writes, use now.", "gate", "part")
	partWaiting  = desc("weir_part_waiting", "Reads, or writes, in the wait room now.", "gate", "part")
	partAdmitted = desc("weir_part_admitted_total", "Reads, or writes, admitted.", "gate", "part")
)

// limitReasons are why a limit refuses. They have a series before the first refusal, so
// that increase and rate see that one too.
var limitReasons = []weir.Reason{
	weir.ReasonLimit, weir.ReasonQueueFull, weir.ReasonQueueTimeout, weir.ReasonDeadline,
	weir.ReasonCanceled, weir.ReasonDraining, weir.ReasonTooLarge,
}

// quotaReasons are the same for a quota.
var quotaReasons = []weir.Reason{
	weir.ReasonQuota, weir.ReasonBlocked, weir.ReasonStore, weir.ReasonTooLarge, weir.ReasonQueueFull,
	weir.ReasonDeadline, weir.ReasonCanceled, weir.ReasonDraining,
}

func (c collector) gate(ch chan<- prometheus.Metric, name string, g *policy.Gate) {
	s := g.Snapshot()
	gauge(ch, gateLimit, float64(s.Limit), name)
	gauge(ch, gateInFlight, float64(s.InFlight), name)
	gauge(ch, gateWaiting, float64(s.Waiting), name)
	for class := range weir.Classes {
		priority := weir.PriorityOf(class)
		gauge(ch, gateWaitingByClass, float64(s.WaitingByClass[priority]), name, priority.String())
	}
	gauge(ch, gateExempt, float64(s.Exempt), name)
	counter(ch, gateExemptAdmitted, s.ExemptAdmitted, name)
	if shedder := g.Shedder(); shedder != nil {
		if st := shedder.Status(); st.Known {
			gauge(ch, gatePressure, st.Pressure, name)
		}
	}
	gauge(ch, gateExpected, s.Latency.Seconds(), name)
	for _, mode := range policy.Modes() {
		gauge(ch, gateMode, oneIf(g.Mode() == mode), name, string(mode))
	}
	counter(ch, gateAdmitted, s.Admitted, name)
	counter(ch, gateLeaked, s.Leaked, name)
	counter(ch, gateFaults, s.Faults, name)
	for _, signal := range g.Signals() {
		gauge(ch, gateBound, oneIf(s.Signal == signal), name, signal)
	}
	usual := limitReasons
	if g.Quota() != nil {
		usual = quotaReasons
	}
	for _, reason := range usual {
		counter(ch, gateRejected, s.Rejected[reason], name, reason.String())
	}
	for reason, n := range s.Rejected {
		if !slices.Contains(usual, reason) {
			counter(ch, gateRejected, n, name, reason.String())
		}
	}
	for reason, n := range g.Observed() {
		counter(ch, gateObserved, n, name, reason.String())
	}
	for outcome, n := range s.Outcomes {
		counter(ch, gateOutcomes, n, name, outcome.String())
	}
	for part, s := range g.Parts() { // read and write, of a gate with a pool for each
		gauge(ch, partLimit, float64(s.Limit), name, part)
		gauge(ch, partInFlight, float64(s.InFlight), name, part)
		gauge(ch, partWaiting, float64(s.Waiting), name, part)
		counter(ch, partAdmitted, s.Admitted, name, part)
	}
}

var (
	keyLimit    = desc("weir_key_limit", "Limit of one key now, of a gate with a limit for each key: the keys that use most slots, and those with a histogram of their waits.", "gate", "key")
	keyInFlight = desc("weir_key_in_flight", "Slots that one key uses now.", "gate", "key")
	keyWaiting  = desc("weir_key_waiting", "Work of one key in the wait room now.", "gate", "key")
	keyWait     = desc("weir_key_wait_seconds", "Time that admitted work of one key spent in the wait room: the keys with most admissions. All other keys are other.", "gate", "key")
	keyCount    = desc("weir_gate_keys", "Keys that a gate with a limit for each key knows now.", "gate")
	keyMost     = desc("weir_gate_keys_max", "Most keys that a gate may know at a time.", "gate")
	keyBusy     = desc("weir_gate_keys_busy", "Keys of a gate that use a slot or wait now.", "gate")
	keyBytes    = desc("weir_gate_keys_bytes", "Memory that the keys of a gate take.", "gate")
	keyEvicted  = desc("weir_gate_keys_evicted_total", "Idle keys that were forgotten to make room for others.", "gate")
)

// keys shows the pools of a gate with a limit for each key. By name it shows two sets of keys; each
// has as many keys as tenants have series. The first set has the keys with most in flight and
// waiting: levels lose nothing when a key leaves the set. The second has the keys with most
// admissions, with the histogram of their waits.
func (c collector) keys(ch chan<- prometheus.Metric, name string, pools policy.Pools, series *keySeries) {
	u := pools.Usage(c.metrics.byTenant.size())
	gauge(ch, keyCount, float64(u.Keys), name)
	gauge(ch, keyMost, float64(u.MaxKeys), name)
	gauge(ch, keyBusy, float64(u.Busy), name)
	if u.Bytes > 0 { // else it is not known
		gauge(ch, keyBytes, float64(u.Bytes), name)
	}
	counter(ch, keyEvicted, u.Evicted, name)
	seen := make(names, len(u.Top))
	for _, use := range u.Top {
		if key, first := seen.first(use.Key); first {
			gauge(ch, keyLimit, float64(use.Limit), name, key)
			gauge(ch, keyInFlight, float64(use.InFlight), name, key)
			gauge(ch, keyWaiting, float64(use.Waiting), name, key)
		}
	}
	if series == nil {
		return
	}
	waited := make(names)
	series.waits.each(func(full string, w waits) {
		use, known := pools.Key(full)
		if full == Rest {
			use.Key, known = Rest, false
		}
		key, first := waited.first(use.Key)
		if !first {
			return
		}
		ch <- w.metric(name, key)
		if _, first := seen.first(use.Key); first && known {
			gauge(ch, keyLimit, float64(use.Limit), name, key)
		}
	})
}

// names are the keys that have series. A long key is cut, perhaps in the middle of a character. If
// two then look the same, only the first has a series.
type names map[string]bool

// first returns a key as a label, and whether it is the first that looks so.
func (n names) first(key string) (label string, first bool) {
	label = strings.ToValidUTF8(key, "\ufffd")
	if n[label] {
		return label, false
	}
	n[label] = true
	return label, true
}

var (
	signalValue    = desc("weir_signal_value", "Value of a signal: a pressure, where 1 is the most that is wanted, or a lag. Absent while it is unknown.", "signal")
	signalState    = desc("weir_signal_state", "1 for the state of a signal: starting, live, held, safe, unknown or unsupported.", "signal", "state")
	signalAge      = desc("weir_signal_age_seconds", "Time since the last good reading of a signal began.", "signal")
	signalReads    = desc("weir_signal_reads_total", "Readings of a signal.", "signal")
	signalFailures = desc("weir_signal_failures_total", "Readings of a signal that failed or gave no usable number.", "signal")
)

// signalStates are the states of a signal that is being polled.
var signalStates = []signal.State{
	signal.Starting, signal.Fresh, signal.Stale, signal.Fallback, signal.Unknown, signal.Unsupported,
}

func (c collector) signals(ch chan<- prometheus.Metric, all []signal.Status) {
	for _, s := range all {
		if s.Known {
			gauge(ch, signalValue, s.Value, s.Name)
		}
		for _, state := range signalStates {
			gauge(ch, signalState, oneIf(s.State == state), s.Name, string(state))
		}
		gauge(ch, signalAge, s.Age.Seconds(), s.Name)
		counter(ch, signalReads, s.Reads, s.Name)
		counter(ch, signalFailures, s.Failures+s.Bad, s.Name)
	}
}

var (
	upstreamRequests  = desc("weir_upstream_requests_total", "Requests sent to a target, further tries included.", "upstream", "target")
	upstreamFailures  = desc("weir_upstream_failures_total", "Requests that failed at a target, by kind: connect, timeout, reset, body or status (502, 504).", "upstream", "target", "kind")
	upstreamEjected   = desc("weir_upstream_ejected", "1 while a target gets no requests because it failed too often in a row.", "upstream", "target")
	upstreamEjections = desc("weir_upstream_ejections_total", "How often a target was ejected.", "upstream", "target")
	upstreamAbandoned = desc("weir_upstream_abandoned_total", "Requests whose client left while the upstream was working on them.", "upstream")
	upstreamExpected  = desc("weir_upstream_expected_seconds", "Moving mean of the time until an upstream answers.", "upstream")
)

func (c collector) upstreams(ch chan<- prometheus.Metric) {
	for _, u := range c.src.Upstreams() {
		counter(ch, upstreamAbandoned, u.Abandoned(), u.Name())
		gauge(ch, upstreamExpected, u.Expected().Seconds(), u.Name())
		for _, t := range u.Stats() {
			counter(ch, upstreamRequests, t.Requests, u.Name(), t.Target)
			counter(ch, upstreamEjections, t.Ejections, u.Name(), t.Target)
			gauge(ch, upstreamEjected, oneIf(t.Ejected), u.Name(), t.Target)
			for kind, n := range t.Failures {
				counter(ch, upstreamFailures, n, u.Name(), t.Target, kind)
			}
		}
	}
}

var (
	connections         = desc("weir_connections", "Client connections open now.", "listener")
	connectionsLimit    = desc("weir_connections_limit", "Most client connections at a time.", "listener")
	connectionsAccepted = desc("weir_connections_accepted_total", "Client connections accepted.", "listener")
	connectionsRefused  = desc("weir_connections_refused_total", "Client connections refused, by the setting that refused.", "listener", "rule")
	connectionsObserved = desc("weir_connections_observed_total", "Client connections accepted in observe mode, by the setting that would have refused.", "listener", "rule")
	connectionsMode     = desc("weir_connections_mode", "1 for the mode of a listener's limits on connections, except max_connections: enforce, observe or off.", "listener", "mode")
	connectionAddresses = desc("weir_connection_addresses", "Client addresses known now, IPv6 by /64: those with connections, and those whose rate limit has not recovered since.", "listener")
	connectionMost      = desc("weir_connection_addresses_limit", "Most client addresses known at a time.", "listener")
	connectionsCrowd    = desc("weir_connections_crowd", "Connections open now of addresses beyond weir_connection_addresses_limit. Together they have the limits of one address.", "listener")
	connectionsEvicted  = desc("weir_connections_evicted_total", "Idle client connections closed on a full listener, to make room for addresses with fewer connections.", "listener")
	handshakeFailures   = desc("weir_tls_handshake_failures_total", "TLS handshakes that failed, by reason. For the client's certificate: no_certificate, unknown_ca, expired, bad_certificate, "+
		"outdated (it was good when the connection began). Otherwise: timeout, gone (the client), other.", "listener", "reason")
)

func (c collector) connections(ch chan<- prometheus.Metric) {
	for _, s := range c.src.Connections() {
		at := s.Listener
		gauge(ch, connections, float64(s.InFlight), at)
		gauge(ch, connectionsLimit, float64(s.Limit), at)
		counter(ch, connectionsAccepted, s.Admitted, at)
		for rule, n := range s.Refused {
			counter(ch, connectionsRefused, n, at, rule)
		}
		for rule, n := range s.Observed {
			counter(ch, connectionsObserved, n, at, rule)
		}
		for _, mode := range policy.Modes() {
			gauge(ch, connectionsMode, oneIf(s.Mode == string(mode)), at, string(mode))
		}
		gauge(ch, connectionAddresses, float64(s.Addresses), at)
		gauge(ch, connectionMost, float64(s.MaxAddresses), at)
		gauge(ch, connectionsCrowd, float64(s.Crowd), at)
		counter(ch, connectionsEvicted, s.Evicted, at)
		for reason, n := range s.Handshakes {
			counter(ch, handshakeFailures, n, at, reason)
		}
	}
}

var (
	tenantRequests = desc("weir_tenant_requests_total", "Requests by tenant and who answered: upstream, gate or gateway. The tenants with most requests; all others are other.", "tenant", "by")
	tenantSeconds  = desc("weir_tenant_request_seconds_total", "Time from the arrival of requests to the end of their answers, summed up, by tenant and who answered.", "tenant", "by")
)

func (c collector) tenants(ch chan<- prometheus.Metric) {
	c.metrics.byTenant.each(func(name string, t tally) {
		for by := range proxy.NumAnswerers {
			counter(ch, tenantRequests, t.requests[by], name, by.String())
			ch <- prometheus.MustNewConstMetric(tenantSeconds, prometheus.CounterValue, t.seconds[by], name, by.String())
		}
	})
}

var (
	dynamicRules    = desc("weir_quota_dynamic_rules", "Rules of quotas set at run time, by gate and whether they are in force. The empty name is for gates that are not in the configuration.", "gate", "in_force")
	dynamicKept     = desc("weir_quota_dynamic_kept_info", "Always 1. The labels say where rules set at run time are kept: kind is file or store. Absent if they are kept nowhere.", "kind", "in")
	dynamicAge      = desc("weir_quota_dynamic_read_age_seconds", "Time since the rules set at run time were last read from where they are kept; they are read every second. Absent before the first time.")
	dynamicFailures = desc("weir_quota_dynamic_failures_total", "Failures of the place where rules set at run time are kept, by kind: read, broken (what is there is no document), write.", "kind")
	dynamicChanges  = desc("weir_quota_dynamic_changes_total", "Requests to change rules or reset buckets, by who asked (socket, token; nobody: who may not) and outcome: changed, reset, validated, refused, conflict, failed, unsure or denied.", "who", "outcome")
)

// rules shows what there is to count of rules that are set at run time.
func (c collector) rules(ch chan<- prometheus.Metric) {
	s := c.src.Book()
	for gate, n := range s.InForce {
		gauge(ch, dynamicRules, float64(n), gate, "yes")
	}
	for gate, n := range s.Idle {
		gauge(ch, dynamicRules, float64(n), gate, "no")
	}
	for by, n := range s.Changes {
		counter(ch, dynamicChanges, n, by.Who, by.Outcome)
	}
	if s.Kept == "" {
		return
	}
	gauge(ch, dynamicKept, 1, s.Kept, s.In)
	if s.Age >= 0 {
		gauge(ch, dynamicAge, s.Age.Seconds())
	}
	for kind, n := range s.Failures {
		counter(ch, dynamicFailures, n, kind)
	}
}
