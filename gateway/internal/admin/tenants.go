package admin

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/weir-go/weir/gateway/internal/proxy"
)

// candidates is how many tenants are watched for each that has series of its own.
const candidates = 8

// leastPromoted is how often a tenant must have been seen for sure to take the
// series of another: a flood of names that come once changes nothing.
const leastPromoted = 16

// tenants counts requests by tenant with a bounded number of series: the tenants
// that ask most have their own, the rest share one. Those without are counted by
// space-saving (Metwally, Agrawal and El Abbadi, Efficient Computation of Frequent
// and Top-k Elements in Data Streams, ICDT 2005), which forgets the rarest when it
// has no room, and knows by how much it may be wrong; one that has surely come
// twice as often as the rarest with series of its own takes that one's place.
// Counts fade, so that the series follow the present.
//
// A request counts with its tenant if that has series at that moment, else with the
// rest. So nothing that is counted ever falls, but a tenant's series may begin
// late, end, and begin again at 0.
type tenants struct {
	mu    sync.Mutex
	most  int // with series
	named map[string]*tenant
	rest  tally
	known map[string]*tenant // the candidates
	heap  []*tenant          // the same, the rarest first
	seen  int                // since the last fading
	free  int                // places that have never been taken
	moves int                // left until the next fading
	floor uint64             // at most the least count of those with series
}

// tally is what is counted.
type tally struct {
	requests [proxy.NumAnswerers]uint64
	seconds  [proxy.NumAnswerers]float64
}

func (t *tally) add(by proxy.Answerer, d time.Duration) {
	t.requests[by]++
	t.seconds[by] += d.Seconds()
}

// tenant is one that has series, or is a candidate.
type tenant struct {
	name  string
	count uint64 // recent requests; for a candidate at most
	wrong uint64 // by how much that may be too high
	at    int    // in the heap
	tally tally
}

func newTenants() *tenants {
	return &tenants{named: make(map[string]*tenant), known: make(map[string]*tenant)}
}

// setMost sets how many tenants have series of their own.
func (ts *tenants) setMost(n int) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if n == ts.most {
		return
	}
	ts.free += max(0, n-ts.most)
	for ts.most = n; len(ts.named) > n; {
		delete(ts.named, ts.rarest().name)
	}
	ts.free = min(ts.free, n-len(ts.named))
	ts.known, ts.heap = make(map[string]*tenant), nil
	ts.moves, ts.floor = n, 0
}

// size is how many tenants have series of their own.
func (ts *tenants) size() int {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.most
}

// add counts a request of the named tenant, which took d.
func (ts *tenants) add(name string, by proxy.Answerer, d time.Duration) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.most == 0 || name == Rest {
		ts.rest.add(by, d)
		return
	}
	ts.fade()
	t := ts.named[name]
	if t == nil {
		t = ts.promoted(name)
	}
	if t == nil {
		ts.rest.add(by, d)
		return
	}
	t.count++
	t.tally.add(by, d)
}

// fade halves what has been seen, every so often.
func (ts *tenants) fade() {
	const each = 100
	if ts.seen++; ts.seen < each*candidates*ts.most {
		return
	}
	ts.seen, ts.moves, ts.floor = 0, ts.most, ts.floor/2
	for _, t := range ts.named {
		t.count /= 2
	}
	for _, t := range ts.heap { // which keeps their order
		t.count, t.wrong = t.count/2, t.wrong/2
	}
}

// promoted counts a tenant without series, and returns it if it now has them.
func (ts *tenants) promoted(name string) *tenant {
	if ts.free > 0 {
		ts.free--
		t := &tenant{name: name}
		ts.named[name] = t
		return t
	}
	t := ts.watch(name)
	sure := t.count - t.wrong
	if sure < leastPromoted || sure <= 2*ts.floor || ts.moves == 0 {
		return nil
	}
	out := ts.rarest()
	if ts.floor = out.count; sure <= 2*ts.floor {
		return nil
	}
	ts.moves--
	delete(ts.known, name)
	delete(ts.named, out.name)
	in := &tenant{name: name, count: sure - 1} // the caller counts this one
	ts.named[name] = in
	*t = tenant{name: out.name, count: out.count, at: t.at}
	ts.known[t.name] = t
	ts.up(t.at)
	ts.down(t.at)
	return in
}

// watch counts a candidate.
func (ts *tenants) watch(name string) *tenant {
	t := ts.known[name]
	switch {
	case t != nil:
		t.count++
	case len(ts.heap) < candidates*ts.most:
		t = &tenant{name: name, count: 1, at: len(ts.heap)}
		ts.heap = append(ts.heap, t)
		ts.known[name] = t
		ts.up(t.at)
	default: // in the place of the rarest
		t = ts.heap[0]
		delete(ts.known, t.name)
		t.name, t.wrong = name, t.count
		t.count++
		ts.known[name] = t
	}
	ts.down(t.at)
	return t
}

// rarest returns the one with series that is seen least.
func (ts *tenants) rarest() *tenant {
	var least *tenant
	for _, t := range ts.named {
		if least == nil || t.count < least.count || t.count == least.count && t.name < least.name {
			least = t
		}
	}
	return least
}

func (ts *tenants) up(i int) {
	for i > 0 && ts.heap[i].count < ts.heap[(i-1)/2].count {
		ts.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (ts *tenants) down(i int) {
	for {
		least := i
		for _, child := range [2]int{2*i + 1, 2*i + 2} {
			if child < len(ts.heap) && ts.heap[child].count < ts.heap[least].count {
				least = child
			}
		}
		if least == i {
			return
		}
		ts.swap(i, least)
		i = least
	}
}

func (ts *tenants) swap(i, j int) {
	ts.heap[i], ts.heap[j] = ts.heap[j], ts.heap[i]
	ts.heap[i].at, ts.heap[j].at = i, j
}

// Rest is the label of the tenants that have no series of their own. One that is
// really called so is counted among them.
const Rest = "other"

// each calls visit with what was counted for each label.
func (ts *tenants) each(visit func(name string, t tally)) {
	ts.mu.Lock()
	rest := ts.rest
	named := make([]tenant, 0, len(ts.named))
	for _, t := range ts.named {
		named = append(named, *t)
	}
	ts.mu.Unlock()
	for i := range named {
		visit(named[i].name, named[i].tally)
	}
	visit(Rest, rest)
}

// tenantCollector turns what is counted by tenant into metrics.
type tenantCollector struct{ tenants *tenants }

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
