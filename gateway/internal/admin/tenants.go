package admin

import (
	"cmp"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-go/weir/gateway/internal/proxy"
)

// tally is what is counted of the requests of one tenant, by who answered.
type tally struct {
	requests [proxy.NumAnswerers]uint64
	seconds  [proxy.NumAnswerers]float64
}

func (t *tally) add(by proxy.Answerer, d time.Duration) {
	t.requests[by]++
	t.seconds[by] += d.Seconds()
}

// Tenants sets how many tenants, keys of each gate with a limit for each, and buckets of
// each quota that are refused have series of their own; the others share one.
func (m *Metrics) Tenants(most int) {
	m.tenants.setMost(most)
	for _, s := range *m.gates.Load() {
		if s.keys != nil {
			s.keys.waits.setMost(most)
		}
		if s.refusals != nil {
			s.refusals.by.setMost(most)
		}
	}
}

// Tenant counts a request of a tenant that by has answered, and that has ended
// after d.
func (m *Metrics) Tenant(name string, by proxy.Answerer, d time.Duration) {
	m.tenants.add(name, func(t *tally) { t.add(by, d) })
}

// TenantUse is what the requests of one tenant have come to since the tenant has
// series.
type TenantUse struct {
	Tenant string `json:"tenant"` // Rest for all that have no series
	// Served were answered by the upstream, Refused by a gate, Failed by the
	// gateway, which had no answer to pass on.
	Served  uint64 `json:"served"`
	Refused uint64 `json:"refused"`
	Failed  uint64 `json:"failed"`
	// Seconds is the time that the served took from arrival to the end of the
	// answer, summed up.
	Seconds float64 `json:"served_seconds"`
}

// TopTenants returns the tenants that have series, those that asked most first, and
// the rest at last.
func (m *Metrics) TopTenants() []TenantUse {
	var uses []TenantUse
	m.tenants.each(func(name string, t tally) {
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

// tenantCollector turns what is counted by tenant into metrics.
type tenantCollector struct{ tenants *top[tally] }

var (
	tenantRequests = prometheus.NewDesc("weir_tenant_requests_total",
		"Requests by tenant and who answered: upstream, gate or gateway. The tenants that ask most; the rest are one, other.", []string{"tenant", "by"}, nil)
	tenantSeconds = prometheus.NewDesc("weir_tenant_request_seconds_total",
		"Time from a request's arrival to the end of its answer, summed up, by tenant and who answered.", []string{"tenant", "by"}, nil)
)

// Describe implements prometheus.Collector. It describes nothing, because the
// labels come and go.
func (tenantCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c tenantCollector) Collect(ch chan<- prometheus.Metric) {
	c.tenants.each(func(name string, t tally) {
		for by := range proxy.NumAnswerers {
			counter(ch, tenantRequests, t.requests[by], name, by.String())
			ch <- prometheus.MustNewConstMetric(tenantSeconds, prometheus.CounterValue, t.seconds[by], name, by.String())
		}
	})
}
