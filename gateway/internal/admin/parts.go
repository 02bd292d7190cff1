package admin

import "github.com/prometheus/client_golang/prometheus"

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
