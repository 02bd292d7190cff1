package admin

import (
	"cmp"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/kafka"
	"github.com/weir-go/weir/gateway/internal/proxy"
	"github.com/weir-go/weir/policy"
)

// Metrics are the gateway's metrics. This file counts what happens; the collector reads the
// rest from the gates when somebody asks. The number of series is bounded: labels are names
// from the configuration, words of fixed lists, and a bounded number of tenants. Series of
// names that a reload removes are dropped.
type Metrics struct {
	src      Source
	registry *prometheus.Registry

	wait, service *prometheus.HistogramVec
	refused       *prometheus.CounterVec
	requests      *prometheus.CounterVec
	duration      *prometheus.HistogramVec

	byTenant *top[tally]

	version               string
	unrouted, crowded     atomic.Uint64 // requests
	reloaded, notReloaded atomic.Uint64 // how often
	lastReloadFailed      atomic.Bool
	loaded                atomic.Int64 // when the configuration in force was, in nanoseconds of Unix time

	mu     sync.Mutex
	gates  atomic.Pointer[map[string]gateSeries]
	routes map[string]*Route
}

// gateSeries are the series of one gate, looked up once and not on each request.
type gateSeries struct {
	gate    *policy.Gate
	service prometheus.Observer
	wait    [weir.Classes]prometheus.Observer
	refused [weir.Classes]prometheus.Counter
	reasons *refusals

	// For a gate with a limit for each key: the key of work, and the waits of each key.
	keyOf func(weir.Work) string
	waits *top[waits]
	// For a gate with a quota: the refusals of each bucket. Operators see there who comes too often.
	buckets *top[uint64]
	// Of clients of Kafka: what was charged to each bucket, and the waits.
	charges *top[charges]
}

// charges are those of one bucket.
type charges struct {
	cost, delays uint64
	seconds      float64 // of the delays
}

// histogramBuckets suit a cache as well as a report: 0.5 ms to 30 s. They are closer around 1 s,
// the default wait.
var histogramBuckets = []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 1.5, 2, 2.5, 5, 10, 30}

// NewMetrics returns the metrics of a gateway, which reads levels from src.
func NewMetrics(src Source, version string) *Metrics {
	m := &Metrics{
		src:      src,
		registry: prometheus.NewRegistry(),
		routes:   make(map[string]*Route),
		byTenant: newTop[tally](0),
		wait:     histogram("weir_gate_wait_seconds", "Time that admitted work spent in the wait room of a gate, by priority.", "gate", "class"),
		refused:  counters("weir_gate_refused_by_class_total", "Work refused by a gate, by priority. Clients that left the wait room do not count.", "gate", "class"),
		service:  histogram("weir_gate_service_seconds", "Time from admission by a gate to the upstream's answer.", "gate"),
		duration: histogram("weir_http_request_seconds", "Time from a request's arrival to the end of its answer, by route and who answered.", "route", "by"),
		requests: counters("weir_http_requests_total", "Requests by route, class of status (499: the client left), and who answered: upstream, gate or gateway.", "route", "code", "by"),
		version:  version,
	}
	m.gates.Store(&map[string]gateSeries{})
	m.loaded.Store(time.Now().UnixNano())
	m.registry.MustRegister(m.wait, m.service, m.refused, m.duration, m.requests, &collector{src: src, metrics: m},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func histogram(name, help string, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: histogramBuckets}, labels)
}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

// readWithin is how long a client may take to read the metrics. As long it keeps one of few places.
const readWithin = 10 * time.Second

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler {
	h := promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(readWithin)) // without it the server's own holds
		h.ServeHTTP(w, r)
	})
}

// refusals counts those of a gate by priority and reason, for /gates. A series for each of
// these would be many, most of them empty.
type refusals [weir.Classes][reasons]atomic.Uint64

// reasons is more than there are.
const reasons = 32

func (c *refusals) add(class int, r weir.Reason) {
	if int(r) < reasons {
		c[class][r].Add(1)
	}
}

// byClass returns the counts above 0.
func (c *refusals) byClass() map[weir.Priority]map[weir.Reason]uint64 {
	all := map[weir.Priority]map[weir.Reason]uint64{}
	for class := range c {
		for r := range c[class] {
			if n := c[class][r].Load(); n > 0 {
				p := weir.PriorityOf(class)
				if all[p] == nil {
					all[p] = map[weir.Reason]uint64{}
				}
				all[p][weir.Reason(r)] = n
			}
		}
	}
	return all
}

// Admitted is a weir.Hooks.Admitted.
func (m *Metrics) Admitted(gate string, w weir.Work, waited time.Duration) {
	if s, ok := (*m.gates.Load())[gate]; ok {
		s.wait[w.Priority.Class()].Observe(waited.Seconds())
		if s.waits != nil {
			s.waits.add(s.keyOf(w), func(k *waits) { k.observe(waited.Seconds()) })
		}
	}
}

// Rejected is a weir.Hooks.Rejected.
func (m *Metrics) Rejected(w weir.Work, r *weir.Rejection) {
	if s, ok := (*m.gates.Load())[r.Gate]; ok && r.Reason != weir.ReasonCanceled {
		s.refused[w.Priority.Class()].Inc()
		s.reasons.add(w.Priority.Class(), r.Reason)
		if s.buckets != nil && tooOften(r.Reason) {
			// As weir explain shows it. A rule that blocks has no bucket, and counts as itself.
			bucket := r.Bucket
			if bucket == "" {
				bucket = r.Gate + "/" + r.Rule
			}
			s.buckets.add(bucket, func(n *uint64) { *n++ })
		}
	}
}

// KafkaCharged counts a charge to a client of Kafka, or a wait.
func (m *Metrics) KafkaCharged(c kafka.Charge) {
	if s, ok := (*m.gates.Load())[c.Gate]; ok && s.charges != nil {
		// A rule that blocks has no bucket, and counts as itself.
		s.charges.add(cmp.Or(c.Bucket, c.Gate+"/"+c.Rule), func(n *charges) {
			n.cost += uint64(c.Cost)
			if c.Wait > 0 {
				n.delays++
				n.seconds += c.Wait.Seconds()
			}
		})
	}
}

// Done is a weir.Hooks.Done.
func (m *Metrics) Done(gate string, o weir.Outcome, service time.Duration) {
	if o == weir.NoSample {
		return
	}
	if s, ok := (*m.gates.Load())[gate]; ok {
		s.service.Observe(service.Seconds())
	}
}

// Reloaded counts a reload.
func (m *Metrics) Reloaded(ok bool) {
	m.lastReloadFailed.Store(!ok)
	if !ok {
		m.notReloaded.Add(1)
		return
	}
	m.reloaded.Add(1)
	m.loaded.Store(time.Now().UnixNano())
}

// NoRoute counts a request that no route matched.
func (m *Metrics) NoRoute() { m.unrouted.Add(1) }

// Crowded counts a request that was refused because too many others were in progress.
func (m *Metrics) Crowded() { m.crowded.Add(1) }

// KeepOnly sets which gates and routes there are, and drops the series of those that are gone. tenants
// bounds how many tenants have series of their own. It also bounds the keys of each gate with a
// limit for each key, and the refused buckets of each quota. The others share one series.
func (m *Metrics) KeepOnly(p *policy.Policy, tenants int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.byTenant.setMost(tenants)
	m.keepGates(maps.Collect(p.Gates()), tenants)
	for name := range m.routes {
		if p.Route(name) == nil {
			delete(m.routes, name)
			m.duration.DeletePartialMatch(prometheus.Labels{"route": name})
			m.requests.DeletePartialMatch(prometheus.Labels{"route": name})
		}
	}
}

// keepGates is KeepOnly for the gates.
func (m *Metrics) keepGates(gates map[string]*policy.Gate, most int) {
	old := maps.Clone(*m.gates.Load())
	series := make(map[string]gateSeries, len(gates))
	for name, was := range old {
		if gates[name] != was.gate { // another one of that name begins anew, as what it counts itself does
			m.wait.DeletePartialMatch(prometheus.Labels{"gate": name})
			m.refused.DeletePartialMatch(prometheus.Labels{"gate": name})
			m.service.DeleteLabelValues(name)
			delete(old, name)
		}
	}
	for name, g := range gates {
		s := gateSeries{gate: g, service: m.service.WithLabelValues(name), reasons: cmp.Or(old[name].reasons, new(refusals))}
		for class := range weir.Classes {
			s.wait[class] = m.wait.WithLabelValues(name, weir.PriorityOf(class).String())
			s.refused[class] = m.refused.WithLabelValues(name, weir.PriorityOf(class).String())
		}
		if pools := g.Pools(); pools != nil {
			s.keyOf, s.waits = pools.KeyOf, old[name].waits.orNew(most)
		}
		if g.Quota() != nil {
			s.buckets, s.charges = old[name].buckets.orNew(most), old[name].charges.orNew(most)
		}
		series[name] = s
	}
	m.gates.Store(&series)
}

// Route returns the metrics of a route, the same for the same name.
func (m *Metrics) Route(name string) *Route {
	m.mu.Lock()
	defer m.mu.Unlock()
	rt := m.routes[name]
	if rt == nil {
		rt = new(Route)
		for by := range rt.by {
			who := proxy.Answerer(by).String()
			a := &rt.by[by]
			a.duration = m.duration.WithLabelValues(name, who)
			for class := 1; class <= 5; class++ {
				a.classes[class] = m.requests.WithLabelValues(name, strconv.Itoa(class)+"xx", who)
			}
			a.classes[0] = m.requests.WithLabelValues(name, "499", who)
		}
		m.routes[name] = rt
	}
	return rt
}

// FindRoute returns the counters of a route, nil if there are none: a reload may have removed it.
func (m *Metrics) FindRoute(name string) *Route {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.routes[name]
}

// Route counts the requests of one route.
type Route struct {
	by [proxy.NumAnswerers]answers
}

// answers are those of one answerer on one route.
type answers struct {
	classes  [6]prometheus.Counter // by the first digit of the status; 0: the client left
	duration prometheus.Observer
}

// Answered counts a request that by has answered with status, and that has ended after d.
// Status 0, which means no answer, and 499 count as a client that left.
func (rt *Route) Answered(status int, by proxy.Answerer, d time.Duration) {
	class := status / 100
	if class < 1 || class > 5 || status == 499 {
		class = 0
	}
	a := &rt.by[by]
	a.classes[class].Inc()
	a.duration.Observe(d.Seconds())
}

// tally counts the requests of one tenant, by who answered.
type tally struct {
	requests [proxy.NumAnswerers]uint64
	seconds  [proxy.NumAnswerers]float64
}

func (t *tally) add(by proxy.Answerer, d time.Duration) {
	t.requests[by]++
	t.seconds[by] += d.Seconds()
}

// Tenant counts a request of a tenant that by has answered, and that has ended after d.
func (m *Metrics) Tenant(name string, by proxy.Answerer, d time.Duration) {
	m.byTenant.add(name, func(t *tally) { t.add(by, d) })
}

// TenantUse counts the requests of one tenant since it has series of its own.
type TenantUse struct {
	Tenant string `json:"tenant"` // Rest for all that have no series
	// Served were answered by the upstream, Refused by a gate, Failed by the
	// gateway, which had no answer to pass on.
	Served  uint64 `json:"served"`
	Refused uint64 `json:"refused"`
	Failed  uint64 `json:"failed"`
	// Seconds is the sum of the times from arrival to the end of the answer, of those served.
	Seconds float64 `json:"served_seconds"`
}

// topTenants returns the tenants that have series, those with most requests first, and the
// rest at last.
func (m *Metrics) topTenants() []TenantUse {
	var uses []TenantUse
	m.byTenant.each(func(name string, t tally) {
		uses = append(uses, TenantUse{
			Tenant: name, Served: t.requests[proxy.ByUpstream], Refused: t.requests[proxy.ByGate],
			Failed: t.requests[proxy.ByGateway], Seconds: t.seconds[proxy.ByUpstream],
		})
	})
	named := uses[:len(uses)-1]
	slices.SortFunc(named, func(a, b TenantUse) int {
		return cmp.Or(cmp.Compare(b.asked(), a.asked()), cmp.Compare(a.Tenant, b.Tenant))
	})
	return uses
}

func (u *TenantUse) asked() uint64 { return u.Served + u.Refused + u.Failed }

// keyHistogramBuckets are fewer than those of a gate, because each key has them.
var keyHistogramBuckets = [...]float64{0.001, 0.01, 0.1, 0.25, 0.5, 1, 2.5, 10}

// waits is a histogram of the waits of one key.
type waits struct {
	within [len(keyHistogramBuckets) + 1]uint64 // not cumulative; the last is for longer waits
	sum    float64
}

func (w *waits) observe(seconds float64) {
	at, _ := slices.BinarySearch(keyHistogramBuckets[:], seconds)
	w.within[at]++
	w.sum += seconds
}

// collect sends the histogram as Prometheus wants it, with cumulative buckets.
func (w *waits) collect(f figures, name, help string) {
	buckets, n := make(map[float64]uint64, len(keyHistogramBuckets)), uint64(0)
	for i, most := range keyHistogramBuckets {
		n += w.within[i]
		buckets[most] = n
	}
	f.ch <- prometheus.MustNewConstHistogram(f.desc(name, help), n+w.within[len(keyHistogramBuckets)], w.sum, buckets, f.values...)
}

// tooOften reports whether a refusal for this reason means that somebody has come too often.
func tooOften(reason weir.Reason) bool {
	switch reason {
	case weir.ReasonQuota, weir.ReasonTooLarge, weir.ReasonBlocked:
		return true
	}
	return false
}

// Refused is how often a quota has refused for one of its buckets.
type Refused struct {
	Bucket string `json:"bucket"` // Rest for all that have no series
	Times  uint64 `json:"times"`
}

// mostRefused returns the buckets of a gate's quota that have series, the most refused first. The
// rest, if there is any, comes last. It is nil if nothing was refused.
func (m *Metrics) mostRefused(gate string) []Refused {
	buckets := (*m.gates.Load())[gate].buckets
	if buckets == nil {
		return nil
	}
	var all []Refused
	buckets.each(func(name string, n uint64) {
		if n > 0 {
			all = append(all, Refused{name, n})
		}
	})
	slices.SortFunc(all, func(a, b Refused) int {
		if rest := a.Bucket == Rest; rest != (b.Bucket == Rest) {
			return map[bool]int{true: 1, false: -1}[rest]
		}
		return cmp.Or(cmp.Compare(b.Times, a.Times), cmp.Compare(a.Bucket, b.Bucket))
	})
	return all
}
