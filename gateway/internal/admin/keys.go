package admin

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-go/weir/policy"
)

// keyCollector turns the pools of gates with a limit for each key into metrics: the
// keys with most in flight and waiting by name, as many as tenants have series, and
// all of them in sum. They are levels, so nothing is lost when a key drops out.
type keyCollector struct {
	src     Source
	tenants *tenants

	limit, inFlight, waiting   *prometheus.Desc
	keys, busy, bytes, evicted *prometheus.Desc
}

func newKeyCollector(src Source, ts *tenants) *keyCollector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, labels, nil)
	}
	return &keyCollector{
		src: src, tenants: ts,
		limit:    d("weir_key_limit", "Slots of one key now, of a gate with a limit for each: the keys that use most.", "gate", "key"),
		inFlight: d("weir_key_in_flight", "Slots that one key holds now.", "gate", "key"),
		waiting:  d("weir_key_waiting", "Work of one key in the wait room now.", "gate", "key"),
		keys:     d("weir_gate_keys", "Keys that a gate with a limit for each knows.", "gate"),
		busy:     d("weir_gate_keys_busy", "Keys of a gate that hold something now.", "gate"),
		bytes:    d("weir_gate_keys_bytes", "Memory that the keys of a gate take.", "gate"),
		evicted:  d("weir_gate_keys_evicted_total", "Idle keys that have made room for others.", "gate"),
	}
}

// Describe implements prometheus.Collector. It describes nothing, because the
// labels come and go.
func (c *keyCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *keyCollector) Collect(ch chan<- prometheus.Metric) {
	p := c.src.Policy()
	if p == nil {
		return
	}
	for name, g := range p.Gates() {
		c.collect(ch, name, g)
	}
}

func (c *keyCollector) collect(ch chan<- prometheus.Metric, name string, g *policy.Gate) {
	k := g.Keyed()
	if k == nil {
		return
	}
	u := k.Usage(c.tenants.size())
	gauge(ch, c.keys, float64(u.Keys), name)
	gauge(ch, c.busy, float64(u.Busy), name)
	gauge(ch, c.bytes, float64(u.Bytes), name)
	counter(ch, c.evicted, u.Evicted, name)
	seen := make(map[string]bool, len(u.Top))
	for _, use := range u.Top {
		// A long key is cut, perhaps in the middle of a character, and two may look
		// the same: the series of the larger one is kept.
		key := strings.ToValidUTF8(use.Key, "\ufffd")
		if seen[key] {
			continue
		}
		seen[key] = true
		gauge(ch, c.limit, float64(use.Limit), name, key)
		gauge(ch, c.inFlight, float64(use.InFlight), name, key)
		gauge(ch, c.waiting, float64(use.Waiting), name, key)
	}
}
