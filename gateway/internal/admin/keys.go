package admin

import (
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/policy"
)

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
