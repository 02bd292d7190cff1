package admin

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/policy"
)

// Connections are those of one listener: a gate like any other, but for what passes it.
type Connections struct {
	Listener string `json:"listener"`
	weir.Snapshot
	// PerAddress is the limit of one address, 0 if there is none, and Refused counts by
	// the setting that refused. Observed counts what limits in observe mode would have
	// refused, and let in.
	PerAddress int               `json:"per_address,omitempty"`
	Refused    map[string]uint64 `json:"refused"`
	Observed   map[string]uint64 `json:"observed,omitempty"`
	// Addresses are those known, at most MaxAddresses; Crowd are the connections of
	// others, which have the limits of one address together.
	Addresses    int `json:"addresses"`
	MaxAddresses int `json:"max_addresses"`
	Crowd        int `json:"crowd,omitempty"`
	// Evicted were closed while idle, for newcomers from addresses that had fewer.
	Evicted uint64 `json:"evicted"`
	// Handshakes counts those of TLS that failed, by reason; nil without TLS.
	Handshakes map[string]uint64 `json:"handshakes_failed,omitempty"`
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
