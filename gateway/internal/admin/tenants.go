package admin

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/proxy"
	"github.com/weir-go/weir/policy"
)

// candidates is how many names are watched for each that has series of its own.
const candidates = 8

// leastPromoted is how often a name must have been seen for sure to take the
// series of another: a flood of names that come once changes nothing.
const leastPromoted = 16

// top keeps a T for each of a bounded number of names, those that come most, which
// have series of their own; the rest share one. Those without are counted by
// space-saving (Metwally, Agrawal and El Abbadi, Efficient Computation of Frequent
// and Top-k Elements in Data Streams, ICDT 2005), which forgets the rarest when it
// has no room, and knows by how much it may be wrong; one that has surely come
// twice as often as the rarest with series of its own takes that one's place.
// Counts fade, so that the series follow the present.
//
// What comes counts with its name if that has series at that moment, else with the
// rest. So nothing that is counted ever falls, but a name's series may begin late,
// end, and begin again at 0.
type top[T any] struct {
	mu    sync.Mutex
	most  int // with series
	named map[string]*entry[T]
	rest  T
	known map[string]*entry[T] // the candidates
	heap  []*entry[T]          // the same, the rarest first
	seen  int                  // since the last fading
	free  int                  // places that have never been taken
	moves int                  // left until the next fading
	floor uint64               // at most the least count of those with series
}

// entry is a name that has series, or is a candidate.
type entry[T any] struct {
	name  string
	count uint64 // how often it came lately; for a candidate at most
	wrong uint64 // by how much that may be too high
	at    int    // in the heap
	kept  T
}

func newTop[T any](most int) *top[T] {
	t := &top[T]{named: make(map[string]*entry[T]), known: make(map[string]*entry[T])}
	t.setMost(most)
	return t
}

// setMost sets how many names have series of their own.
func (t *top[T]) setMost(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n == t.most {
		return
	}
	t.free += max(0, n-t.most)
	for t.most = n; len(t.named) > n; {
		delete(t.named, t.rarest().name)
	}
	t.free = min(t.free, n-len(t.named))
	t.known, t.heap = make(map[string]*entry[T]), nil
	t.moves, t.floor = n, 0
}

// size is how many names have series of their own.
func (t *top[T]) size() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.most
}

// add says that name has come, and has count change what is kept for it.
func (t *top[T]) add(name string, count func(*T)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	count(t.of(name))
}

// of returns what is kept for name, which has come once more.
func (t *top[T]) of(name string) *T {
	if t.most == 0 || name == Rest {
		return &t.rest
	}
	t.fade()
	e := t.named[name]
	if e == nil {
		e = t.promoted(name)
	}
	if e == nil {
		return &t.rest
	}
	e.count++
	return &e.kept
}

// fade halves what has been seen, every so often.
func (t *top[T]) fade() {
	const each = 100
	if t.seen++; t.seen < each*candidates*t.most {
		return
	}
	t.seen, t.moves, t.floor = 0, t.most, t.floor/2
	for _, e := range t.named {
		e.count /= 2
	}
	for _, e := range t.heap { // which keeps their order
		e.count, e.wrong = e.count/2, e.wrong/2
	}
}

// promoted counts a name without series, and returns it if it now has them.
func (t *top[T]) promoted(name string) *entry[T] {
	if t.free > 0 {
		t.free--
		e := &entry[T]{name: name}
		t.named[name] = e
		return e
	}
	e := t.watch(name)
	sure := e.count - e.wrong
	if sure < leastPromoted || sure <= 2*t.floor || t.moves == 0 {
		return nil
	}
	out := t.rarest()
	if t.floor = out.count; sure <= 2*t.floor {
		return nil
	}
	t.moves--
	delete(t.known, name)
	delete(t.named, out.name)
	in := &entry[T]{name: name, count: sure - 1} // the caller counts this one
	t.named[name] = in
	*e = entry[T]{name: out.name, count: out.count, at: e.at}
	t.known[e.name] = e
	t.up(e.at)
	t.down(e.at)
	return in
}

// watch counts a candidate.
func (t *top[T]) watch(name string) *entry[T] {
	e := t.known[name]
	switch {
	case e != nil:
		e.count++
	case len(t.heap) < candidates*t.most:
		e = &entry[T]{name: name, count: 1, at: len(t.heap)}
		t.heap = append(t.heap, e)
		t.known[name] = e
		t.up(e.at)
	default: // in the place of the rarest
		e = t.heap[0]
		delete(t.known, e.name)
		e.name, e.wrong = name, e.count
		e.count++
		t.known[name] = e
	}
	t.down(e.at)
	return e
}

// rarest returns the one with series that is seen least.
func (t *top[T]) rarest() *entry[T] {
	var least *entry[T]
	for _, e := range t.named {
		if least == nil || e.count < least.count || e.count == least.count && e.name < least.name {
			least = e
		}
	}
	return least
}

func (t *top[T]) up(i int) {
	for i > 0 && t.heap[i].count < t.heap[(i-1)/2].count {
		t.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (t *top[T]) down(i int) {
	for {
		least := i
		for _, child := range [2]int{2*i + 1, 2*i + 2} {
			if child < len(t.heap) && t.heap[child].count < t.heap[least].count {
				least = child
			}
		}
		if least == i {
			return
		}
		t.swap(i, least)
		i = least
	}
}

func (t *top[T]) swap(i, j int) {
	t.heap[i], t.heap[j] = t.heap[j], t.heap[i]
	t.heap[i].at, t.heap[j].at = i, j
}

// Rest is the label of what has no series of its own. One that is really called so
// is counted there.
const Rest = "other"

// each calls visit with what is kept for each name that has series, in their order,
// and with the rest at last.
func (t *top[T]) each(visit func(name string, kept T)) {
	t.mu.Lock()
	rest := t.rest
	named := make([]entry[T], 0, len(t.named))
	for _, e := range t.named {
		named = append(named, *e)
	}
	t.mu.Unlock()
	slices.SortFunc(named, func(a, b entry[T]) int { return strings.Compare(a.name, b.name) })
	for i := range named {
		visit(named[i].name, named[i].kept)
	}
	visit(Rest, rest)
}

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

// keyBuckets are fewer than those of a gate, because each key has them.
var keyBuckets = [...]float64{.001, .01, .1, .25, .5, 1, 2.5, 10}

// waits is a histogram of the waits of one key.
type waits struct {
	within [len(keyBuckets) + 1]uint64 // not added up; the last are longer than all
	sum    float64
}

func (w *waits) observe(seconds float64) {
	at, _ := slices.BinarySearch(keyBuckets[:], seconds)
	w.within[at]++
	w.sum += seconds
}

// metric returns the histogram as Prometheus wants it, added up.
func (w *waits) metric(labels ...string) prometheus.Metric {
	buckets, n := make(map[float64]uint64, len(keyBuckets)), uint64(0)
	for i, most := range keyBuckets {
		n += w.within[i]
		buckets[most] = n
	}
	return prometheus.MustNewConstHistogram(keyWait, n+w.within[len(keyBuckets)], w.sum, buckets, labels...)
}

// keySeries is what is counted by key of a gate with a limit for each.
type keySeries struct {
	of    func(weir.Work) string
	waits *top[waits]
}

// keysOf returns the series of a gate, those that it had if it had any; nil if it
// has no limit for each key.
func keysOf(g *policy.Gate, old *keySeries, most int) *keySeries {
	k := g.Pools()
	switch {
	case k == nil:
		return nil
	case old == nil:
		return &keySeries{k.KeyOf, newTop[waits](most)}
	}
	return &keySeries{k.KeyOf, old.waits}
}

func (s *keySeries) add(w weir.Work, waited time.Duration) {
	s.waits.add(s.of(w), func(of *waits) { of.observe(waited.Seconds()) })
}

// keyCollector turns the pools of gates with a limit for each key into metrics. By
// name it shows the keys with most in flight and waiting, as many as tenants have
// series, with levels, of which nothing is lost when a key drops out of them; and
// as many that most is admitted of, with their waits. All of them it shows in sum.
type keyCollector struct {
	src     Source
	metrics *Metrics
}

var (
	keyLimit    = keyDesc("weir_key_limit", "Slots of one key now, of a gate with a limit for each: the keys that use most, and those that have a histogram of their waits.", "key")
	keyInFlight = keyDesc("weir_key_in_flight", "Slots that one key holds now.", "key")
	keyWaiting  = keyDesc("weir_key_waiting", "Work of one key in the wait room now.", "key")
	keyWait     = keyDesc("weir_key_wait_seconds", "Time admitted work of one key spent in the wait room: the keys that most is admitted of. The rest are one, other.", "key")
	keyCount    = keyDesc("weir_gate_keys", "Keys that a gate with a limit for each knows.")
	keyMost     = keyDesc("weir_gate_keys_max", "Most keys that a gate may know at a time.")
	keyBusy     = keyDesc("weir_gate_keys_busy", "Keys of a gate that hold something now.")
	keyBytes    = keyDesc("weir_gate_keys_bytes", "Memory that the keys of a gate take.")
	keyEvicted  = keyDesc("weir_gate_keys_evicted_total", "Idle keys that have made room for others.")
)

func keyDesc(name, help string, more ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, append([]string{"gate"}, more...), nil)
}

// Describe implements prometheus.Collector. It describes nothing, because the
// labels come and go.
func (keyCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c keyCollector) Collect(ch chan<- prometheus.Metric) {
	p := c.src.Policy()
	if p == nil {
		return
	}
	series := *c.metrics.gates.Load()
	for name, g := range p.Gates() {
		if pools := g.Pools(); pools != nil {
			c.collect(ch, name, pools, series[name].keys)
		}
	}
}

func (c keyCollector) collect(ch chan<- prometheus.Metric, name string, pools policy.Pools, series *keySeries) {
	u := pools.Usage(c.metrics.tenants.size())
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

// names are the keys that have series. A long key is cut, perhaps in the middle of
// a character, and two may look the same: the series of the first one is kept.
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

// refusals counts the refusals of a gate with a quota by bucket, so that operators see who
// comes too often.
type refusals struct{ by *top[uint64] }

// refusalsOf returns the refusals of a gate, those that it had if it had any; nil if it
// has no quota.
func refusalsOf(g *policy.Gate, old *refusals, most int) *refusals {
	switch {
	case g.Quota() == nil:
		return nil
	case old == nil:
		return &refusals{newTop[uint64](most)}
	}
	return old
}

// add counts a refusal under its bucket, as weir explain shows it. A rule that blocks has
// none, and counts as itself.
func (s *refusals) add(r *weir.Rejection) {
	switch r.Reason {
	case weir.ReasonQuota, weir.ReasonTooLarge, weir.ReasonBlocked, weir.ReasonQueueFull:
	default:
		return // nobody has come too often
	}
	s.by.add(cmp.Or(r.Bucket, r.Gate+"/"+r.Rule), func(n *uint64) { *n++ })
}

// Refused is how often a quota has refused for one of its buckets.
type Refused struct {
	Bucket string `json:"bucket"` // Rest for all that have no series
	Times  uint64 `json:"times"`
}

// MostRefused returns the buckets of a gate's quota that have series, those refused most
// often first, and the rest at last if there is any; nil if nothing was refused.
func (m *Metrics) MostRefused(gate string) []Refused {
	s := (*m.gates.Load())[gate].refusals
	if s == nil {
		return nil
	}
	var all []Refused
	s.by.each(func(name string, n uint64) {
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

var quotaRefused = describe("gate", "weir_quota_refused_total", "Refusals of a quota by bucket: those refused most. The rest are one, other.", "bucket")

// collect sends what is refused most.
func (s *refusals) collect(ch chan<- prometheus.Metric, gate string) {
	seen := make(names)
	s.by.each(func(name string, n uint64) {
		if label, first := seen.first(name); first {
			counter(ch, quotaRefused, n, gate, label)
		}
	})
}
