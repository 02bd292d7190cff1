package admin

import (
	"net/http"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/proxy"
	"github.com/weir-go/weir/policy"
)

// Metrics are the gateway's metrics: what is counted as it happens, here, and
// what is read from the gates when somebody asks, in the collector. Labels are
// names from the configuration, words of fixed lists, and a bounded number of
// tenants, so their number is bounded too; series of names that a reload removes
// are dropped.
type Metrics struct {
	registry *prometheus.Registry

	wait, service *prometheus.HistogramVec
	refused       *prometheus.CounterVec
	requests      *prometheus.CounterVec
	duration      *prometheus.HistogramVec
	unrouted      prometheus.Counter
	reloads       *prometheus.CounterVec
	lastReload    prometheus.Gauge
	lastSuccess   prometheus.Gauge

	tenants *top[tally]

	mu     sync.Mutex
	gates  atomic.Pointer[map[string]gateSeries]
	routes map[string]*Route
}

// gateSeries are the series of one gate, found once and not on each request.
type gateSeries struct {
	service prometheus.Observer
	wait    [weir.Classes]prometheus.Observer
	refused [weir.Classes]prometheus.Counter
	keys    *keySeries // nil: no limit for each key

	refusals *refusals // nil: no quota
}

// buckets suit both a cache and a report: 0.5 ms to 30 s. They are closer around
// the wait of 1 s that is the default, and what an answer after it takes.
var buckets = []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 1.5, 2, 2.5, 5, 10, 30}

// NewMetrics returns the metrics of a gateway, whose levels are read from src.
func NewMetrics(src Source, version string) *Metrics {
	m := &Metrics{
		registry:    prometheus.NewRegistry(),
		routes:      make(map[string]*Route),
		tenants:     newTop[tally](0),
		wait:        histogram("weir_gate_wait_seconds", "Time admitted work spent in the wait room of a gate, by its priority.", "gate", "class"),
		refused:     counters("weir_gate_refused_by_class_total", "Work refused by a gate, by its priority; without those who left the wait room.", "gate", "class"),
		service:     histogram("weir_gate_service_seconds", "Time from admission to the upstream's answer, by gate.", "gate"),
		duration:    histogram("weir_http_request_seconds", "Time from a request's arrival to the end of its answer, by route and who answered.", "route", "by"),
		requests:    counters("weir_http_requests_total", "Requests by route, class of status (499 stands for clients that left), and who answered: upstream, gate or gateway.", "route", "code", "by"),
		reloads:     counters("weir_config_reloads_total", "Reloads of the configuration by result: success or failure.", "result"),
		unrouted:    prometheus.NewCounter(prometheus.CounterOpts{Name: "weir_http_unrouted_total", Help: "Requests that no route matched."}),
		lastReload:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "weir_config_last_reload_successful", Help: "1 if the configuration in force is the newest one, 0 if the last reload failed."}),
		lastSuccess: prometheus.NewGauge(prometheus.GaugeOpts{Name: "weir_config_last_success_timestamp_seconds", Help: "When the configuration in force was taken up."}),
	}
	m.gates.Store(&map[string]gateSeries{})
	m.reloads.WithLabelValues("success")
	m.reloads.WithLabelValues("failure")
	m.lastReload.Set(1)
	m.lastSuccess.SetToCurrentTime()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "weir_build_info", Help: "Always 1; the labels say what is running.",
		ConstLabels: prometheus.Labels{"version": version, "go": runtime.Version()},
	})
	build.Set(1)
	m.registry.MustRegister(m.wait, m.service, m.refused, m.duration, m.requests, m.reloads, m.unrouted,
		m.lastReload, m.lastSuccess, build, newCollector(src), newConnCollector(src), tenantCollector{m.tenants}, keyCollector{src, m}, partCollector{src}, quotaCollector{src, m}, dynamicCollector{src},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func histogram(name, help string, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
}

func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

// Handler serves the metrics.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
}

// Admitted is a weir.Hooks.Admitted.
func (m *Metrics) Admitted(gate string, w weir.Work, waited time.Duration) {
	if s, ok := (*m.gates.Load())[gate]; ok {
		s.wait[w.Priority.Class()].Observe(waited.Seconds())
		if s.keys != nil {
			s.keys.add(w, waited)
		}
	}
}

// Rejected is a weir.Hooks.Rejected.
func (m *Metrics) Rejected(w weir.Work, r *weir.Rejection) {
	if s, ok := (*m.gates.Load())[r.Gate]; ok && r.Reason != weir.ReasonCanceled {
		s.refused[w.Priority.Class()].Inc()
		if s.refusals != nil {
			s.refusals.add(r)
		}
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
	if !ok {
		m.reloads.WithLabelValues("failure").Inc()
		m.lastReload.Set(0)
		return
	}
	m.reloads.WithLabelValues("success").Inc()
	m.lastReload.Set(1)
	m.lastSuccess.SetToCurrentTime()
}

// NoRoute counts a request that no route matched.
func (m *Metrics) NoRoute() { m.unrouted.Inc() }

// Keep sets which gates and routes there are. Series of others are dropped.
func (m *Metrics) Keep(gates map[string]*policy.Gate, routes []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.keepGates(gates)
	keep := make(map[string]bool, len(routes))
	for _, name := range routes {
		keep[name] = true
	}
	for name := range m.routes {
		if !keep[name] {
			delete(m.routes, name)
			m.duration.DeletePartialMatch(prometheus.Labels{"route": name})
			m.requests.DeletePartialMatch(prometheus.Labels{"route": name})
		}
	}
}

// keepGates is Keep for the gates.
func (m *Metrics) keepGates(gates map[string]*policy.Gate) {
	old, most := *m.gates.Load(), m.tenants.size()
	series := make(map[string]gateSeries, len(gates))
	for name, g := range gates {
		s := gateSeries{service: m.service.WithLabelValues(name)}
		for class := range weir.Classes {
			s.wait[class] = m.wait.WithLabelValues(name, weir.PriorityOf(class).String())
			s.refused[class] = m.refused.WithLabelValues(name, weir.PriorityOf(class).String())
		}
		s.keys = keysOf(g, old[name].keys, most)
		s.refusals = refusalsOf(g, old[name].refusals, most)
		series[name] = s
	}
	for name := range old {
		if _, ok := series[name]; !ok {
			m.wait.DeletePartialMatch(prometheus.Labels{"gate": name})
			m.refused.DeletePartialMatch(prometheus.Labels{"gate": name})
			m.service.DeleteLabelValues(name)
		}
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

// Route counts the requests of one route.
type Route struct {
	by [proxy.NumAnswerers]answers
}

// answers are those of one answerer on one route.
type answers struct {
	classes  [6]prometheus.Counter // by the first digit of the status; 0: the client left
	duration prometheus.Observer
}

// Answered counts a request that by has answered with status, and that has ended
// after d. Status 0 means that nothing was answered; that and 499 count as a
// client that left.
func (rt *Route) Answered(status int, by proxy.Answerer, d time.Duration) {
	class := status / 100
	if class < 1 || class > 5 || status == 499 {
		class = 0
	}
	a := &rt.by[by]
	a.classes[class].Inc()
	a.duration.Observe(d.Seconds())
}
