package admin

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/accept"
	"github.com/weir-go/weir/gateway/internal/proxy"
	"github.com/weir-go/weir/gateway/internal/quotas"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/signal"
	"github.com/weir-go/weir/weirhttp"
)

// Source is what the collector reads when somebody asks for the metrics.
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

// collector turns snapshots into metrics.
type collector struct {
	src Source

	limit, inFlight, waiting, mode, expected   *prometheus.Desc
	admitted, rejected, observed, outcomes     *prometheus.Desc
	leaked, faults, bound                      *prometheus.Desc
	waitingBy, exempt, exemptAdmitted          *prometheus.Desc
	pressure                                   *prometheus.Desc
	sigValue, sigState, sigAge                 *prometheus.Desc
	sigReads, sigFailures                      *prometheus.Desc
	upRequests, upFailures, upOut, upEjections *prometheus.Desc
	upAbandoned, upExpected                    *prometheus.Desc
	streamsOpen, streamsMax, streamsMoved      *prometheus.Desc
	streamsOverflowed, streamsCut              *prometheus.Desc
	requests, ready, ignored, demoted          *prometheus.Desc
}

func newCollector(src Source) *collector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &collector{
		src:            src,
		limit:          d("weir_gate_limit", "Slots of a gate now.", "gate"),
		inFlight:       d("weir_gate_in_flight", "Slots held now; above the limit after it has fallen.", "gate"),
		waiting:        d("weir_gate_waiting", "Work in the wait room now.", "gate"),
		waitingBy:      d("weir_gate_waiting_by_class", "Work in the wait room now, by its priority.", "gate", "class"),
		pressure:       d("weir_gate_pressure", "What a gate that sheds goes by, where 1 is the most that is wanted. Absent while it is not known.", "gate"),
		exempt:         d("weir_gate_exempt_in_flight", "Exempt work in progress now, which is not part of what is in flight.", "gate"),
		exemptAdmitted: d("weir_gate_exempt_admitted_total", "Exempt work admitted, which is not part of what is admitted.", "gate"),
		mode:           d("weir_gate_mode", "1 for the gate's mode: enforce, observe or off.", "gate", "mode"),
		expected:       d("weir_gate_expected_seconds", "Service time the gate expects, 0 if it measures none.", "gate"),
		admitted:       d("weir_gate_admitted_total", "Work admitted.", "gate"),
		rejected:       d("weir_gate_rejected_total", "Work refused, by reason.", "gate", "reason"),
		observed:       d("weir_gate_observed_total", "Work that a gate in observe mode let through but would have refused, by reason.", "gate", "reason"),
		outcomes:       d("weir_gate_outcomes_total", "What became of admitted work.", "gate", "outcome"),
		faults:         d("weir_gate_controller_faults_total", "Decisions of a gate's controller that made no sense and were not carried out. Always 0 unless there is a bug.", "gate"),
		bound:          d("weir_gate_bound_by_signal", "1 for the signal that binds the limit of a gate now, 0 for the others it goes by.", "gate", "signal"),
		leaked:         d("weir_gate_leaked_total", "Permits that were dropped without being given back. Always 0 unless there is a bug.", "gate"),

		sigValue:    d("weir_signal_value", "What a signal says: a pressure, where 1 is the most that is wanted, or a lag. Absent while it is not known.", "signal"),
		sigState:    d("weir_signal_state", "1 for the state of a signal: starting, live, held, safe, unknown or unsupported.", "signal", "state"),
		sigAge:      d("weir_signal_age_seconds", "Time since the last good reading of a signal began.", "signal"),
		sigReads:    d("weir_signal_reads_total", "Readings of a signal.", "signal"),
		sigFailures: d("weir_signal_failures_total", "Readings of a signal that failed or brought no usable number.", "signal"),

		upRequests:  d("weir_upstream_requests_total", "Requests sent to a target, further tries included.", "upstream", "target"),
		upFailures:  d("weir_upstream_failures_total", "Requests that failed at a target: connect, timeout, reset, body or status (502, 504).", "upstream", "target", "kind"),
		upOut:       d("weir_upstream_ejected", "1 while a target is left out.", "upstream", "target"),
		upEjections: d("weir_upstream_ejections_total", "How often a target was left out.", "upstream", "target"),
		upAbandoned: d("weir_upstream_abandoned_total", "Requests whose client left while the upstream was working.", "upstream"),
		upExpected:  d("weir_upstream_expected_seconds", "Moving mean of the time to an answer.", "upstream"),

		streamsOpen:       d("weir_streams_open", "Streams, upgrades and slow readers now."),
		streamsMax:        d("weir_streams_max", "Most streams there may be at a time."),
		streamsMoved:      d("weir_streams_total", "Answers that became streams."),
		streamsOverflowed: d("weir_streams_overflowed_total", "Answers that found no room among the streams and kept their slot."),
		streamsCut:        d("weir_streams_cut_total", "Answers cut because the client did not read them."),

		requests: d("weir_http_requests_in_flight", "Requests in the gateway now: waiting, upstream, or being answered."),
		ignored:  d("weir_ignored_total", "What requests brought and was not understood, so that the route's own holds: a priority, a cost or a count of admissions, from trusted peers, or a timeout; and what answers brought, a settled cost.", "what"),
		demoted:  d("weir_demoted_total", "Requests that count as background because their operation has been admitted often."),
		ready:    d("weir_ready", "1 while the gateway wants requests, 0 while it shuts down."),
	}
}

// limitReasons are why a limit refuses. They have a series before the first
// refusal, so that increase and rate see that one too.
var limitReasons = []weir.Reason{
	weir.ReasonLimit, weir.ReasonQueueFull, weir.ReasonQueueTimeout, weir.ReasonDeadline,
	weir.ReasonCanceled, weir.ReasonDraining, weir.ReasonTooLarge,
}

// quotaReasons are the same for a quota.
var quotaReasons = []weir.Reason{
	weir.ReasonQuota, weir.ReasonBlocked, weir.ReasonStore, weir.ReasonTooLarge, weir.ReasonQueueFull,
	weir.ReasonDeadline, weir.ReasonCanceled, weir.ReasonDraining,
}

// Describe implements prometheus.Collector. It describes nothing, because what
// there is to collect changes with the configuration.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	c.collectGates(ch)
	c.collectSignals(ch)
	c.collectUpstreams(ch)
	s := c.src.Streams().Snapshot()
	gauge(ch, c.requests, float64(c.src.InFlight()))
	gauge(ch, c.streamsOpen, float64(s.Open))
	gauge(ch, c.streamsMax, float64(s.Max))
	counter(ch, c.streamsMoved, s.Moved)
	counter(ch, c.streamsOverflowed, s.Overflowed)
	counter(ch, c.streamsCut, s.Cut)
	gauge(ch, c.ready, oneIf(c.src.Ready()))
	if p := c.src.Policy(); p != nil {
		ignored := p.Ignored()
		counter(ch, c.ignored, ignored.Priorities, "priority")
		counter(ch, c.ignored, ignored.Timeouts, "timeout")
		counter(ch, c.ignored, ignored.Costs, "cost")
		counter(ch, c.ignored, ignored.Settled, "settled_cost")
		counter(ch, c.ignored, ignored.Admissions, "admissions")
		counter(ch, c.demoted, p.Demoted())
	}
}

func (c *collector) collectGates(ch chan<- prometheus.Metric) {
	p := c.src.Policy()
	if p == nil {
		return
	}
	for name, g := range p.Gates() {
		s := g.Snapshot()
		gauge(ch, c.limit, float64(s.Limit), name)
		gauge(ch, c.inFlight, float64(s.InFlight), name)
		gauge(ch, c.waiting, float64(s.Waiting), name)
		for class := range weir.Classes {
			priority := weir.PriorityOf(class)
			gauge(ch, c.waitingBy, float64(s.WaitingByClass[priority]), name, priority.String())
		}
		gauge(ch, c.exempt, float64(s.Exempt), name)
		counter(ch, c.exemptAdmitted, s.ExemptAdmitted, name)
		if shedder := g.Shedder(); shedder != nil {
			if st := shedder.Status(); st.Known {
				gauge(ch, c.pressure, st.Pressure, name)
			}
		}
		gauge(ch, c.expected, s.Latency.Seconds(), name)
		for _, mode := range []policy.Mode{policy.Enforce, policy.Observe, policy.Off} {
			gauge(ch, c.mode, oneIf(g.Mode() == mode), name, string(mode))
		}
		counter(ch, c.admitted, s.Admitted, name)
		counter(ch, c.leaked, s.Leaked, name)
		counter(ch, c.faults, s.Faults, name)
		for _, signal := range g.Signals() {
			gauge(ch, c.bound, oneIf(s.Signal == signal), name, signal)
		}
		usual := limitReasons
		if g.Quota() != nil {
			usual = quotaReasons
		}
		for _, reason := range usual {
			counter(ch, c.rejected, s.Rejected[reason], name, reason.String())
		}
		for reason, n := range s.Rejected {
			if !slices.Contains(usual, reason) {
				counter(ch, c.rejected, n, name, reason.String())
			}
		}
		for reason, n := range g.Observed() {
			counter(ch, c.observed, n, name, reason.String())
		}
		for outcome, n := range s.Outcomes {
			counter(ch, c.outcomes, n, name, outcome.String())
		}
	}
}

// signalStates are the states of a signal whose poller is at work.
var signalStates = []signal.State{
	signal.Starting, signal.Live, signal.Held, signal.Safely, signal.Unknown, signal.Unsupported,
}

func (c *collector) collectSignals(ch chan<- prometheus.Metric) {
	p := c.src.Policy()
	if p == nil {
		return
	}
	for _, s := range p.Signals() {
		if s.Known {
			gauge(ch, c.sigValue, s.Value, s.Name)
		}
		for _, state := range signalStates {
			gauge(ch, c.sigState, oneIf(s.State == state), s.Name, string(state))
		}
		gauge(ch, c.sigAge, s.Age.Seconds(), s.Name)
		counter(ch, c.sigReads, s.Reads, s.Name)
		counter(ch, c.sigFailures, s.Failures+s.Bad, s.Name)
	}
}

func (c *collector) collectUpstreams(ch chan<- prometheus.Metric) {
	for _, u := range c.src.Upstreams() {
		counter(ch, c.upAbandoned, u.Abandoned(), u.Name())
		gauge(ch, c.upExpected, u.Expected().Seconds(), u.Name())
		for _, t := range u.Stats() {
			counter(ch, c.upRequests, t.Requests, u.Name(), t.Target)
			counter(ch, c.upEjections, t.Ejections, u.Name(), t.Target)
			gauge(ch, c.upOut, oneIf(t.Ejected), u.Name(), t.Target)
			for kind, n := range t.Failures {
				counter(ch, c.upFailures, n, u.Name(), t.Target, kind)
			}
		}
	}
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

// connCollector turns the connections of listeners into metrics.
type connCollector struct {
	src Source

	open, limit, taken              *prometheus.Desc
	refused, observed, mode         *prometheus.Desc
	addresses, most, crowd, evicted *prometheus.Desc
	handshakes                      *prometheus.Desc
}

func newConnCollector(src Source) *connCollector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, append([]string{"listener"}, labels...), nil)
	}
	return &connCollector{
		src:       src,
		open:      d("weir_connections", "Client connections open now."),
		limit:     d("weir_connections_limit", "Most client connections at a time."),
		taken:     d("weir_connections_accepted_total", "Client connections taken."),
		refused:   d("weir_connections_refused_total", "Client connections refused, by the setting that refused.", "rule"),
		observed:  d("weir_connections_observed_total", "Client connections let in by limits in observe mode, by the setting that would have refused.", "rule"),
		mode:      d("weir_connections_mode", "1 for the mode of the listener's limits on connections but max_connections: enforce, observe or off.", "mode"),
		addresses: d("weir_connection_addresses", "Client addresses known now, IPv6 by /64: those with connections, and with a rate for each those that have left until their bucket is full again."),
		most:      d("weir_connection_addresses_limit", "Most client addresses known at a time."),
		crowd:     d("weir_connections_crowd", "Connections open now of addresses that found no place among those known, and have the limits of one address together."),
		evicted:   d("weir_connections_evicted_total", "Idle client connections closed while the listener was full, for newcomers from addresses that had fewer."),
		handshakes: d("weir_tls_handshake_failures_total", "TLS handshakes that failed, by reason: of the client's certificate no_certificate, unknown_ca, expired, bad_certificate, "+
			"outdated (it was good when the connection began); and timeout, gone (the client), other.", "reason"),
	}
}

// Describe implements prometheus.Collector. It describes nothing, as collector does.
func (c *connCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *connCollector) Collect(ch chan<- prometheus.Metric) {
	for _, conns := range c.src.Connections() {
		at := conns.Listener
		gauge(ch, c.open, float64(conns.InFlight), at)
		gauge(ch, c.limit, float64(conns.Limit), at)
		counter(ch, c.taken, conns.Admitted, at)
		for rule, n := range conns.Refused {
			counter(ch, c.refused, n, at, rule)
		}
		for rule, n := range conns.Observed {
			counter(ch, c.observed, n, at, rule)
		}
		for _, mode := range policy.Modes() {
			gauge(ch, c.mode, oneIf(conns.Mode == string(mode)), at, string(mode))
		}
		gauge(ch, c.addresses, float64(conns.Addresses), at)
		gauge(ch, c.most, float64(conns.MaxAddresses), at)
		gauge(ch, c.crowd, float64(conns.Crowd), at)
		counter(ch, c.evicted, conns.Evicted, at)
		for reason, n := range conns.Handshakes {
			counter(ch, c.handshakes, n, at, reason)
		}
	}
}

// partCollector turns gates with one pool for reads and one for writes into metrics.
// The gate's own are both together.
type partCollector struct{ src Source }

var (
	partLimit    = partDesc("weir_part_limit", "Slots now of the reads, or the writes, of a gate with a pool for each.")
	partInFlight = partDesc("weir_part_in_flight", "Slots that reads, or writes, hold now.")
	partWaiting  = partDesc("weir_part_waiting", "Reads, or writes, in the wait room now.")
	partAdmitted = partDesc("weir_part_admitted_total", "Reads, or writes, admitted.")
)

func partDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, []string{"gate", "part"}, nil)
}

// Describe implements prometheus.Collector. It describes nothing, because the
// labels come and go.
func (partCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c partCollector) Collect(ch chan<- prometheus.Metric) {
	p := c.src.Policy()
	if p == nil {
		return
	}
	for name, g := range p.Gates() {
		for part, s := range g.Parts() {
			gauge(ch, partLimit, float64(s.Limit), name, part)
			gauge(ch, partInFlight, float64(s.InFlight), name, part)
			gauge(ch, partWaiting, float64(s.Waiting), name, part)
			counter(ch, partAdmitted, s.Admitted, name, part)
		}
	}
}

// dynamicCollector turns what there is to count of rules that are set at run time into
// metrics. Their number is bounded: by the gates of the configuration and fixed lists of
// words.
type dynamicCollector struct{ src Source }

var (
	dynamicRules    = dynamicDesc("weir_quota_dynamic_rules", "Rules of quotas set at run time, by gate and whether they are in force; under the empty name those of gates that there are no more.", "gate", "in_force")
	dynamicKept     = dynamicDesc("weir_quota_dynamic_kept_info", "Always 1; the labels say where rules set at run time are kept: kind is file or store. Absent where they are kept nowhere.", "kind", "in")
	dynamicAge      = dynamicDesc("weir_quota_dynamic_read_age_seconds", "Time since the rules set at run time were last read from where they are kept, which is done each second. Absent while they never were.")
	dynamicFailures = dynamicDesc("weir_quota_dynamic_failures_total", "Failures of where rules set at run time are kept: read, broken (what is there is no document), write.", "kind")
	dynamicChanges  = dynamicDesc("weir_quota_dynamic_changes_total", "Changes of rules and resets of buckets that were asked for, by who asked (socket, token; nobody who may) and what came of it: changed, reset, validated, refused, conflict, failed, unsure or denied.", "who", "outcome")
)

func dynamicDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Describe implements prometheus.Collector. It describes nothing, because the labels come
// and go.
func (dynamicCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c dynamicCollector) Collect(ch chan<- prometheus.Metric) {
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
