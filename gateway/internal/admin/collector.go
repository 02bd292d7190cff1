package admin

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/gateway/internal/accept"
	"github.com/weir-go/weir/gateway/internal/accesslog"
	"github.com/weir-go/weir/gateway/internal/envoy"
	"github.com/weir-go/weir/gateway/internal/kafka"
	"github.com/weir-go/weir/gateway/internal/proxy"
	"github.com/weir-go/weir/gateway/internal/quotas"
	"github.com/weir-go/weir/gateway/internal/ratelimit"
	"github.com/weir-go/weir/gateway/internal/tracing"
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
	Kafka() []kafka.Snapshot
	ExtProc() envoy.Snapshot
	RateLimits() []ratelimit.Count
	Stores() []Store
	Book() quotas.Stats
	AccessLog() accesslog.Snapshot
	Tracing() tracing.Snapshot
	InFlight() int64
	Ready() bool
}

// collector turns the states of gates, signals, upstreams and listeners into metrics, at each
// request.
type collector struct {
	src     Source
	metrics *Metrics
	descs   sync.Map // of *prometheus.Desc, by the metric's name
	peaks   peaks
}

// peaks are the highest values so far of counters that fall when work is cancelled. Prometheus takes a counter that has
// fallen for one that began again at 0, and would count all of it once more.
type peaks struct {
	mu      sync.Mutex
	highest map[peak]uint64
}

type peak struct {
	gate *policy.Gate
	what string
}

// raise returns the highest value of a counter so far, which may be n.
func (p *peaks) raise(g *policy.Gate, what string, n uint64) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.highest == nil {
		p.highest = make(map[peak]uint64)
	}
	k := peak{g, what}
	p.highest[k] = max(p.highest[k], n)
	return p.highest[k]
}

// keep forgets the gates that a new policy has not.
func (p *peaks) keep(now *policy.Policy) {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.highest, func(k peak, _ uint64) bool { return now.Gate(k.gate.Name()) != k.gate })
}

// Describe implements prometheus.Collector. It describes nothing, because what there is to
// collect changes with the configuration.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	all := figures{collector: c, ch: ch}
	c.gateway(all)
	for _, u := range c.src.Upstreams() {
		upstream(all.with("upstream", u.Name()), u)
	}
	for _, s := range c.src.Connections() {
		connections(all.with("listener", s.Listener), &s)
	}
	for _, s := range c.src.Kafka() {
		cluster(all.with("cluster", s.Cluster), &s)
	}
	c.tenants(all)
	c.rules(all)
	for _, s := range c.src.Stores() {
		store(all.with("store", s.Name), &s)
	}
	p := c.src.Policy()
	if p == nil {
		return
	}
	series := *c.metrics.gates.Load()
	for name, g := range p.Gates() {
		f := all.with("gate", name)
		gate(f, g)
		if pools := g.Pools(); pools != nil {
			c.keys(f, pools, series[name].waits)
		}
		if use := useOf(g.Quota()); use != nil {
			quotaUse(f, use, series[name].buckets)
			kafkaCharges(f, series[name].charges)
		}
	}
	c.peaks.keep(p)
	for _, s := range p.Signals() {
		signalStatus(all.with("signal", s.Name), &s)
	}
	ignored := p.Ignored()
	counts(all, "weir_ignored_total", "Headers that could not be read: priority, cost and admissions of trusted peers, timeout of any client, settled_cost of answers. The route's value counts instead, but a request whose cost a quota charges is refused.", "what",
		map[string]uint64{
			"priority": ignored.Priorities, "timeout": ignored.Timeouts, "cost": ignored.Costs,
			"settled_cost": ignored.Settled, "admissions": ignored.Admissions,
		})
	counter(all, "weir_demoted_total", "Requests demoted to background because their operation has been admitted often.", p.Demoted())
}

// figures are metrics with the same labels.
type figures struct {
	collector *collector
	ch        chan<- prometheus.Metric
	labels    []string
	values    []string
}

// with returns figures with one more label.
func (f figures) with(label, value string) figures {
	f.labels = append(slices.Clip(f.labels), label)
	f.values = append(slices.Clip(f.values), value)
	return f
}

// desc returns the description of a metric, which always has the same help and labels.
func (f figures) desc(name, help string) *prometheus.Desc {
	if d, ok := f.collector.descs.Load(name); ok {
		return d.(*prometheus.Desc)
	}
	d, _ := f.collector.descs.LoadOrStore(name, prometheus.NewDesc(name, help, f.labels, nil))
	return d.(*prometheus.Desc)
}

type number interface {
	~int | ~int64 | ~uint64 | ~float64
}

func gauge[N number](f figures, name, help string, v N) {
	f.ch <- prometheus.MustNewConstMetric(f.desc(name, help), prometheus.GaugeValue, float64(v), f.values...)
}

func counter[N number](f figures, name, help string, v N) {
	f.ch <- prometheus.MustNewConstMetric(f.desc(name, help), prometheus.CounterValue, float64(v), f.values...)
}

// counts sends a counter for each key of m, which is the value of a label.
func counts[K comparable](f figures, name, help, label string, m map[K]uint64) {
	for k, n := range m {
		counter(f.with(label, fmt.Sprint(k)), name, help, n)
	}
}

// current sends 1 for the state that something is in, and 0 for the others.
func current[S ~string](f figures, name, help, label string, all []S, now S) {
	for _, state := range all {
		gauge(f.with(label, string(state)), name, help, oneIf(state == now))
	}
}

func oneIf(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (c *collector) gateway(f figures) {
	m := c.metrics
	gauge(f.with("version", m.version).with("go", runtime.Version()), "weir_build_info", "Always 1. The labels say what is running.", 1)
	counts(f, "weir_config_reloads_total", "Reloads of the configuration by result: success or failure.", "result",
		map[string]uint64{"success": m.reloaded.Load(), "failure": m.notReloaded.Load()})
	gauge(f, "weir_config_last_reload_successful", "1 if the last reload succeeded, 0 if it failed and the configuration before it is still in force.", oneIf(!m.lastReloadFailed.Load()))
	gauge(f, "weir_config_last_success_timestamp_seconds", "When the configuration in force was loaded.", float64(m.loaded.Load())/1e9)
	counter(f, "weir_http_unrouted_total", "Requests that no route matched.", m.unrouted.Load())
	counter(f, "weir_http_crowded_total", "Requests refused because as many as max_connections allows were in progress.", m.crowded.Load())
	gauge(f, "weir_ready", "1 while the gateway wants requests, 0 while it shuts down.", oneIf(c.src.Ready()))
	gauge(f, "weir_http_requests_in_flight", "Requests in the gateway now: waiting, at an upstream, or being answered.", c.src.InFlight())
	lines := c.src.AccessLog()
	counter(f, "weir_access_log_lines_total", "Lines written to the access log.", lines.Written)
	counts(f, "weir_access_log_lost_total", "Lines of the access log that were lost, by reason: buffer_full (the file or stream is too slow) or write_failed.", "reason",
		map[string]uint64{"buffer_full": lines.Full, "write_failed": lines.Failed})
	spans := c.src.Tracing()
	counter(f, "weir_tracing_spans_total", "Spans of requests that have ended. Each was sent, or lost, or waits to be sent, or was dropped because too many waited.", spans.Spans)
	counter(f, "weir_tracing_sent_total", "Spans that the collector has taken.", spans.Sent)
	counter(f, "weir_tracing_lost_total", "Spans that the collector refused, or that did not reach it.", spans.Lost)
	s := c.src.Streams().Snapshot()
	gauge(f, "weir_streams_open", "Streams now: event streams, upgraded connections, long answers and slow clients. They hold no slot.", s.Open)
	gauge(f, "weir_streams_max", "Most streams at a time.", s.Max)
	counter(f, "weir_streams_total", "Requests that became streams.", s.Moved)
	counter(f, "weir_streams_overflowed_total", "Requests that should have become streams and kept their slot, because there were too many streams.", s.Overflowed)
	counter(f, "weir_streams_cut_total", "Answers cut off because the client did not read them for write_timeout.", s.Cut)
	extProc(f, c.src.ExtProc())
	for _, n := range c.src.RateLimits() {
		rateLimit(f.with("domain", n.Domain).with("rule", n.Rule), n)
	}
}

// extProc tells of the streams of an Envoy.
func extProc(f figures, s envoy.Snapshot) {
	ended := make(map[string]uint64, len(s.Ended))
	for end, n := range s.Ended {
		ended[envoy.End(end).String()] = n
	}
	gauge(f, "weir_ext_proc_streams_open", "Streams of ext_proc now, one for each request in Envoy.", s.Open)
	gauge(f, "weir_ext_proc_held", "Slots held for requests that Envoy has given up, because the server behind it works on.", s.Held)
	counts(f, "weir_ext_proc_streams_total", "Streams of ext_proc by how they ended. If many have the end early, clients leave, the stream times out, or the processing_mode of Envoy has too few phases.", "end", ended)
}

// rateLimit tells of one limit of the rate limit service.
func rateLimit(f figures, n ratelimit.Count) {
	results := make(map[string]uint64)
	for r, times := range n.Results {
		if times > 0 {
			results[ratelimit.Result(r).String()] = times
		}
	}
	counts(f, "weir_ratelimit_descriptors_total", "Descriptors that Envoys have asked about, by the rule that counts and what came of it.", "result", results)
}

// limitReasons are why a limit refuses. They have a series before the first refusal, so
// that increase and rate see that one too.
var limitReasons = []weir.Reason{
	weir.ReasonLimit, weir.ReasonQueueFull, weir.ReasonQueueTimeout, weir.ReasonDeadline,
	weir.ReasonCanceled, weir.ReasonDraining, weir.ReasonTooLarge,
}

// quotaReasons are the same for a quota.
var quotaReasons = []weir.Reason{
	weir.ReasonQuota, weir.ReasonBlocked, weir.ReasonStore, weir.ReasonTooLarge,
	weir.ReasonDeadline, weir.ReasonCanceled, weir.ReasonDraining,
}

func gate(f figures, g *policy.Gate) {
	s := g.Snapshot()
	gauge(f, "weir_gate_limit", "Limit of a gate now, in slots. Of a gate with a limit for each key, that of one key. Of a gate that sheds, how many of its 512 levels pass.", s.Limit)
	gauge(f, "weir_gate_in_flight", "Slots in use now. Above the limit for a while after the limit has fallen.", s.InFlight)
	gauge(f, "weir_gate_waiting", "Work in the wait room now.", s.Waiting)
	for class := range weir.Classes {
		priority := weir.PriorityOf(class)
		gauge(f.with("class", priority.String()), "weir_gate_waiting_by_class", "Work in the wait room now, by priority.", s.WaitingByClass[priority])
	}
	gauge(f, "weir_gate_exempt_in_flight", "Exempt work in progress now. It is not part of weir_gate_in_flight.", s.Exempt)
	counter(f, "weir_gate_exempt_admitted_total", "Exempt work admitted. It is not part of weir_gate_admitted_total.", f.collector.peaks.raise(g, "exempt", s.ExemptAdmitted))
	if shedder := g.Shedder(); shedder != nil {
		if st := shedder.Status(); st.Known {
			gauge(f, "weir_gate_pressure", "Pressure that a load shedding gate measures: 1 is the most that is wanted. Absent while it is unknown.", st.Pressure)
		}
	}
	gauge(f, "weir_gate_expected_seconds", "Service time that a gate expects, 0 if it measures none.", s.Latency.Seconds())
	current(f, "weir_gate_mode", "1 for the mode of a gate: enforce, observe or off.", "mode", policy.Modes(), g.Mode())
	counter(f, "weir_gate_admitted_total", "Work admitted.", f.collector.peaks.raise(g, "all", s.Admitted))
	counter(f, "weir_gate_leaked_total", "Permits that were never given back. Above 0 only by a bug.", s.Leaked)
	counter(f, "weir_gate_controller_faults_total", "Invalid decisions of a gate's controller, which the gate ignored. Above 0 only by a bug.", s.Faults)
	if s.Estimate != nil {
		estimate(f, s.Estimate)
	}
	if s.Probes != nil {
		probes(f, s.Probes)
	}
	for _, signal := range g.Signals() {
		gauge(f.with("signal", signal), "weir_gate_bound_by_signal", "1 for the signal that bounds the limit of a gate now, 0 for its other signals.", oneIf(s.Signal == signal))
	}
	rejected := make(map[weir.Reason]uint64)
	usual := limitReasons
	if g.Quota() != nil {
		usual = quotaReasons
	}
	for _, reason := range usual {
		rejected[reason] = 0
	}
	maps.Copy(rejected, s.Rejected)
	counts(f, "weir_gate_rejected_total", "Work refused, by reason.", "reason", rejected)
	counts(f, "weir_gate_observed_total", "Work that a gate in observe mode admitted but would have refused, by reason.", "reason", g.Observed())
	counts(f, "weir_gate_outcomes_total", "Admitted work, by outcome.", "outcome", s.Outcomes)
	for part, s := range g.Parts() { // read and write, of a gate with a pool for each
		f := f.with("part", part)
		gauge(f, "weir_part_limit", "Slots now for reads, or for writes, of a gate with a pool for each.", s.Limit)
		gauge(f, "weir_part_in_flight", "Slots that reads, or writes, use now.", s.InFlight)
		gauge(f, "weir_part_waiting", "Reads, or writes, in the wait room now.", s.Waiting)
		counter(f, "weir_part_admitted_total", "Reads, or writes, admitted.", f.collector.peaks.raise(g, part, s.Admitted))
	}
	if read := g.Parts()["read"]; read.Probes != nil { // both parts are one probe
		probes(f, read.Probes)
	}
}

// estimate sends what the controller of a gate believes of the backend.
func estimate(f figures, e *weir.Estimate) {
	gauge(f, "weir_gate_best_limit", "Limit that the gate's controller now thinks best. Absent while it climbs from a cold start.", e.Best)
	gauge(f, "weir_gate_best_limit_low", "Lower end of the interval in which the best concurrency lies with a probability of 0.95.", e.Low)
	gauge(f, "weir_gate_best_limit_high", "Upper end of that interval.", e.High)
	gauge(f, "weir_gate_expected_loss_ratio", "Part of the backend's throughput, 0 to 1, that the limit now is expected to lose because the best one is not known.", e.Loss)
	current(f, "weir_gate_shape", "1 for the likeliest shape of how much slower work becomes with concurrency, 0 for the others.", "shape", control.Shapes(), e.Shape)
}

// probes sends what a gate's controller has tried.
func probes(f figures, p *weir.Probes) {
	const help = "Probes of the controller probe that have ended, by direction and by whether a part of the step was kept."
	for direction, n := range map[string][2]uint64{"up": {p.Up, p.UpKept}, "down": {p.Down, p.DownKept}} {
		f := f.with("direction", direction)
		counts(f, "weir_gate_probes_total", help, "result", map[string]uint64{"kept": n[1], "undone": n[0] - n[1]})
	}
	counter(f, "weir_gate_probe_nudges_total", "Pools that a probe moved by one slot, because rounding would have left them.", p.Nudged)
	gauge(f, "weir_gate_probe_stable_limit", "Size between two probes, of both pools together.", p.Stable)
	gauge(f.with("at", "stable"), "weir_gate_probe_throughput", "Requests a second that were finished before the last probe (stable), and in it (probe).", p.Throughput)
	gauge(f.with("at", "probe"), "weir_gate_probe_throughput", "Requests a second that were finished before the last probe (stable), and in it (probe).", p.Probed)
}

// keys shows the pools of a gate with a limit for each key. By name it shows two sets of keys; each
// has as many keys as tenants have series. The first set has the keys with most in flight and
// waiting: levels lose nothing when a key leaves the set. The second has the keys with most
// admissions, with the histogram of their waits.
func (c *collector) keys(f figures, pools policy.Pools, byKey *top[waits]) {
	u := pools.Usage(c.metrics.byTenant.size())
	gauge(f, "weir_gate_keys", "Keys that a gate with a limit for each key knows now.", u.Keys)
	gauge(f, "weir_gate_keys_max", "Most keys that a gate may know at a time.", u.MaxKeys)
	gauge(f, "weir_gate_keys_busy", "Keys of a gate that use a slot or wait now.", u.Busy)
	if u.Bytes > 0 { // else it is not known
		gauge(f, "weir_gate_keys_bytes", "Memory that the keys of a gate take.", u.Bytes)
	}
	counter(f, "weir_gate_keys_evicted_total", "Idle keys that were forgotten to make room for others.", u.Evicted)
	limit := func(f figures, n int64) {
		gauge(f, "weir_key_limit", "Limit of one key now, of a gate with a limit for each key. Shown are the keys that use most slots, and those with a histogram of their waits.", n)
	}
	seen := make(names, len(u.Top))
	for _, use := range u.Top {
		if key, first := seen.add(use.Key); first {
			f := f.with("key", key)
			limit(f, use.Limit)
			gauge(f, "weir_key_in_flight", "Slots that one key uses now.", use.InFlight)
			gauge(f, "weir_key_waiting", "Work of one key in the wait room now.", use.Waiting)
		}
	}
	if byKey == nil {
		return
	}
	waited := make(names)
	byKey.each(func(full string, w waits) {
		use, known := pools.Key(full)
		if full == Rest {
			use.Key, known = Rest, false
		}
		key, first := waited.add(use.Key)
		if !first {
			return
		}
		f := f.with("key", key)
		w.collect(f, "weir_key_wait_seconds", "Time that admitted work of one key spent in the wait room: the keys with most admissions. All other keys are counted together as other.")
		if _, first := seen.add(use.Key); first && known {
			limit(f, use.Limit)
		}
	})
}

// names are the keys that have series. A long key is cut, perhaps in the middle of a character. If
// two then look the same, only the first has a series.
type names map[string]bool

// add notes a key. It returns the key as a label, and whether it is the first that looks so.
func (n names) add(key string) (label string, first bool) {
	label = strings.ToValidUTF8(key, "\ufffd")
	if n[label] {
		return label, false
	}
	n[label] = true
	return label, true
}

// signalStates are the states of a signal that is being polled.
var signalStates = []signal.State{
	signal.Starting, signal.Fresh, signal.Stale, signal.Fallback, signal.Unknown, signal.Unsupported,
}

func signalStatus(f figures, s *signal.Status) {
	if s.Known {
		gauge(f, "weir_signal_value", "Value of a signal: a pressure, where 1 is the most that is wanted, or a lag. Absent while it is unknown.", s.Value)
	}
	current(f, "weir_signal_state", "1 for the state of a signal: starting, live, held, safe, unknown or unsupported.", "state", signalStates, s.State)
	gauge(f, "weir_signal_age_seconds", "Time since the last good reading of a signal began.", s.Age.Seconds())
	counter(f, "weir_signal_reads_total", "Readings of a signal.", s.Reads)
	counter(f, "weir_signal_failures_total", "Readings of a signal that failed or gave no usable number.", s.Failures+s.Bad)
}

func upstream(f figures, u *proxy.Upstream) {
	counter(f, "weir_upstream_abandoned_total", "Requests whose client left while the upstream was working on them.", u.Abandoned())
	gauge(f, "weir_upstream_expected_seconds", "Moving mean of the time until an upstream answers.", u.Expected().Seconds())
	for _, t := range u.Stats() {
		f := f.with("target", t.Target)
		counter(f, "weir_upstream_requests_total", "Requests sent to a target, further tries included.", t.Requests)
		counter(f, "weir_upstream_ejections_total", "How often a target was ejected.", t.Ejections)
		gauge(f, "weir_upstream_ejected", "1 while a target gets no requests because it failed too often in a row.", oneIf(t.Ejected))
		gauge(f, "weir_upstream_in_flight", "Requests in progress at a target now.", t.InFlight)
		if h := t.Health; h != nil {
			gauge(f, "weir_upstream_healthy", "1 while a target passes its health checks, 0 while it gets no requests because it fails them. Absent without health_check.", oneIf(h.State != "unhealthy"))
			counts(f, "weir_upstream_health_checks_total", "Health checks of a target, by result: passed or failed.", "result",
				map[string]uint64{"passed": h.Passed, "failed": h.Failed})
		}
		counts(f, "weir_upstream_failures_total", "Requests that failed at a target, by kind: connect, timeout, reset, body or status (502, 504).", "kind", t.Failures)
	}
}

func connections(f figures, s *accept.Snapshot) {
	gauge(f, "weir_connections", "Client connections open now.", s.InFlight)
	gauge(f, "weir_connections_limit", "Most client connections at a time.", s.Limit)
	counter(f, "weir_connections_accepted_total", "Client connections accepted.", s.Admitted)
	counts(f, "weir_connections_refused_total", "Client connections refused, by the setting that refused.", "rule", s.Refused)
	counts(f, "weir_connections_observed_total", "Client connections accepted in observe mode, by the setting that would have refused.", "rule", s.Observed)
	current(f, "weir_connections_mode", "1 for the mode of a listener's limits on connections, except max_connections: enforce, observe or off.", "mode",
		policy.Modes(), policy.Mode(s.Mode))
	gauge(f, "weir_connection_addresses", "Client addresses known now, IPv6 by /64: those with connections, and those whose rate limit has not recovered since.", s.Addresses)
	gauge(f, "weir_connection_addresses_limit", "Most client addresses known at a time.", s.MaxAddresses)
	gauge(f, "weir_connections_crowd", "Connections open now of addresses beyond weir_connection_addresses_limit. Together they have the limits of one address.", s.Crowd)
	counter(f, "weir_connections_evicted_total", "Idle client connections closed on a full listener, to make room for addresses with fewer connections.", s.Evicted)
	counts(f, "weir_tls_handshake_failures_total", "TLS handshakes that failed, by reason. For the client's certificate: no_certificate, unknown_ca, expired, bad_certificate, "+
		"outdated (it was good when the connection began). Otherwise: timeout, gone (the client), other.", "reason", s.Handshakes)
	if on := s.CertificateExpires; !on.IsZero() {
		gauge(f, "weir_tls_certificate_expires_timestamp_seconds", "When the listener's certificate expires, as the Unix time.", on.Unix())
	}
}

func cluster(f figures, s *kafka.Snapshot) {
	var left int
	for _, n := range append(s.Nodes, s.Bootstrap) {
		name := "bootstrap"
		if n.Node >= 0 {
			name = strconv.Itoa(int(n.Node))
		}
		if n.Trouble != "" {
			left++
		}
		f := f.with("node", name)
		gauge(f, "weir_kafka_connections", "Connections of clients of Kafka open now, by cluster and node (or bootstrap). Each has one to a broker.", n.Connections)
		counter(f, "weir_kafka_connections_accepted_total", "Connections of clients of Kafka accepted.", n.Accepted)
		counter(f, "weir_kafka_connections_failed_total", "Connections of clients of Kafka closed because the broker could not be reached.", n.Failed)
		counter(f, "weir_kafka_node_requests_total", "Requests of clients of Kafka, by cluster and node (or bootstrap).", n.Requests)
		counter(f, "weir_kafka_node_request_bytes_total", "Bytes of those requests.", n.RequestBytes)
		counter(f, "weir_kafka_node_answer_bytes_total", "Bytes of the answers to them.", n.AnswerBytes)
	}
	for _, a := range s.APIs {
		f := f.with("api", a.API)
		counter(f, "weir_kafka_requests_total", "Requests of clients of Kafka, by API as Kafka names it.", a.Requests)
		counter(f, "weir_kafka_answers_total", "Answers to clients of Kafka. Produce with acks=0 has none.", a.Answers)
		counter(f, "weir_kafka_request_bytes_total", "Bytes of requests of clients of Kafka.", a.RequestBytes)
		counter(f, "weir_kafka_answer_bytes_total", "Bytes of answers to clients of Kafka.", a.AnswerBytes)
	}
	logins := "Logins by SASL of clients of Kafka, again included, by result: ok, unnamed or failed. unnamed: the broker agreed, and the name is not in the exchange, as with a delegation token."
	counter(f.with("result", "ok"), "weir_kafka_logins_total", logins, s.Logins-s.LoginsUnnamed)
	counter(f.with("result", "unnamed"), "weir_kafka_logins_total", logins, s.LoginsUnnamed)
	counter(f.with("result", "failed"), "weir_kafka_logins_total", logins, s.LoginsFailed)
	for _, t := range []struct {
		api string
		by  kafka.Throttled
	}{{"produce", s.ThrottledProduce}, {"fetch", s.ThrottledFetch}, {"mutations", s.ThrottledMutations}} {
		f := f.with("api", t.api)
		counter(f, "weir_kafka_throttled_total", "Delays of clients of Kafka by a quota.", t.by.Times)
		counter(f, "weir_kafka_throttle_seconds_total", "Seconds of those delays, each as long as its client was told.", t.by.Seconds)
	}
	gauge(f, "weir_kafka_muted", "Connections of clients of Kafka that are not read now, because of a quota.", s.Muted)
	gauge(f, "weir_kafka_held_bytes", "Memory of large requests and answers of clients of Kafka that are held whole. It is bounded, for all connections together.", s.HeldBytes)
	gauge(f, "weir_kafka_held_waiting", "Connections of clients of Kafka that wait for a share of that memory.", s.HeldWaiting)
	for key, n := range s.BrokerQuotas {
		gauge(f.with("key", key), "weir_kafka_broker_quotas", "Quotas that brokers have for what the gateway counts, by Kafka's name for it. Both hold; weir kafka import takes them over.", n)
	}
	gauge(f, "weir_kafka_nodes", "Nodes of a cluster of Kafka that clients can reach through the gateway.", len(s.Nodes)-left)
	gauge(f, "weir_kafka_nodes_left_out", "Nodes of a cluster of Kafka that are left out of all answers: their port is taken, or beyond nodes.ports.", left)
}

func (c *collector) tenants(all figures) {
	c.metrics.byTenant.each(func(name string, t tally) {
		for by := range proxy.NumAnswerers {
			f := all.with("tenant", name).with("by", by.String())
			counter(f, "weir_tenant_requests_total", "Requests by tenant and who answered: upstream, gate or gateway. Only the tenants with most requests have a series; the rest is counted together as other.", t.requests[by])
			counter(f, "weir_tenant_request_seconds_total", "Time from the arrival of requests to the end of their answers, summed up, by tenant and who answered.", t.seconds[by])
		}
	})
}

// rules shows what there is to count of rules that are set at run time.
func (c *collector) rules(all figures) {
	s := c.src.Book()
	for inForce, rules := range map[string]map[string]int{"yes": s.InForce, "no": s.Idle} {
		for gate, n := range rules {
			gauge(all.with("gate", gate).with("in_force", inForce), "weir_quota_dynamic_rules", "Rules of quotas set at run time, by gate and whether they are in force. The empty name is for gates that are not in the configuration.", n)
		}
	}
	for by, n := range s.Changes {
		counter(all.with("who", by.Via).with("result", by.Result), "weir_quota_dynamic_changes_total", "Requests to change rules or reset buckets, by who asked and by result. Who: socket, token, kafka (by its protocol), or nobody for those who may not. Result: changed, reset, validated, refused, conflict, failed, unsure or denied.", n)
	}
	if s.Kept == "" {
		return
	}
	gauge(all.with("kind", s.Kept).with("in", s.In), "weir_quota_dynamic_kept_info", "Always 1. The labels say where rules set at run time are kept: kind is file or store. Absent if they are kept nowhere.", 1)
	gauge(all, "weir_quota_dynamic_read_age_seconds", "Time since the rules set at run time were last read from where they are kept; they are read every second. Before the first time, the time since that was first tried.", s.Age.Seconds())
	counts(all, "weir_quota_dynamic_failures_total", "Failures of the place where rules set at run time are kept, by kind: read, broken (its content is not a document of rules), write.", "kind", s.Failures)
}

func quotaUse(f figures, u *QuotaUse, refused *top[uint64]) {
	gauge(f, "weir_quota_rules", "Rules of a gate with a quota.", u.Rules)
	counter(f, "weir_quota_store_errors_total", "Decisions that the store failed to make; on_store_error says what happened instead.", u.StoreErrors)
	counter(f, "weir_quota_unsettled_total", "Refunds and corrections of a cost that failed because of the store.", u.Unsettled)
	if b := u.Buckets; b != nil {
		gauge(f, "weir_quota_buckets", "Buckets of a gate in the memory of the gateway.", b.Known)
		gauge(f, "weir_quota_buckets_limit", "Bound on the buckets of a gate in the memory of the gateway.", b.Max)
		gauge(f, "weir_quota_bytes", "Memory that the buckets of a gate take.", b.Bytes)
		counter(f, "weir_quota_purged_total", "Buckets forgotten because they were full again.", b.Purged)
		counter(f, "weir_quota_overflowed_total", "Decisions about keys for which there was no bucket left. Those with one limit share a bucket, or have none, so they are refused together. If it grows, max_keys is too small, or somebody invents names.", b.Overflowed)
	}
	if refused == nil {
		return
	}
	seen := make(names)
	refused.each(func(name string, n uint64) {
		if label, first := seen.add(name); first {
			counter(f.with("bucket", label), "weir_quota_refused_total", "Refusals of a quota by bucket: the buckets with most refusals. All others are counted together as other.", n)
		}
	})
}

// kafkaCharges tells of the buckets of a gate that clients of Kafka are charged to. There is nothing before the first charge.
func kafkaCharges(f figures, all *top[charges]) {
	if all == nil {
		return
	}
	seen := make(names)
	all.each(func(name string, n charges) {
		label, first := seen.add(name)
		if !first || n == (charges{}) {
			return
		}
		f := f.with("bucket", label)
		counter(f, "weir_kafka_charged_total", "Bytes or partitions that a quota has charged to clients of Kafka, by bucket: the buckets charged most often. Refunds are not taken off. All others are counted together as other.", n.cost)
		counter(f, "weir_kafka_delays_total", "Delays of clients of Kafka by bucket, as weir_kafka_charged_total.", n.delays)
		counter(f, "weir_kafka_delay_seconds_total", "Seconds of those delays.", n.seconds)
	})
}

func store(f figures, s *Store) {
	gauge(f, "weir_store_down", "1 while a store of quotas does not answer, or answers that it cannot keep counts. Each gate then does what its on_store_error says.", oneIf(s.Down))
	gauge(f, "weir_store_in_flight", "Requests to a store in progress now.", s.InFlight)
	gauge(f, "weir_store_leases", "Keys with leased tokens.", s.Leases)
	counter(f, "weir_store_takes_total", "Decisions that a store has made.", s.Takes)
	counter(f, "weir_store_gives_total", "Refunds and corrections of a cost that a store has made.", s.Gives)
	counter(f, "weir_store_trips_total", "How often a store went down.", s.Trips)
	counter(f, "weir_store_probes_total", "Probes of a store that was down.", s.Probes)
	counter(f, "weir_store_leased_total", "Decisions made by leased tokens, without asking the store.", s.Leased)
	counter(f, "weir_store_remembered_total", "Refusals repeated without asking the store.", s.Remembered)
	counts(f, "weir_store_failures_total", "Requests to a store that were not sent or not answered, by reason: down, full, canceled, timeout, broken, refused, closed or invalid.", "reason", s.Failed)
}
