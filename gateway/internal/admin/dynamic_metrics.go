package admin

import (
	"github.com/prometheus/client_golang/prometheus"
)

// dynamicCollector turns what there is to count of rules that are set at run time into
// metrics. Their number is bounded: by the gates of the configuration and fixed lists of
// words.
type dynamicCollector struct{ src Source }

var (
	dynamicRules    = dynamicDesc("weir_quota_dynamic_rules", "Rules of quotas set at run time, by gate and whether they are in force; under the empty name those of gates that there are no more.", "gate", "in_force")
	dynamicKept     = dynamicDesc("weir_quota_dynamic_kept_info", "Always 1; the labels say where rules set at run time are kept: kind is file or store. Absent where they are kept nowhere.", "kind", "in")
	dynamicAge      = dynamicDesc("weir_quota_dynamic_read_age_seconds", "Time since the rules set at run time were last read from where they are kept, which is done each second. Absent while they never were.")
	dynamicFailures = dynamicDesc("weir_quota_dynamic_failures_total", "Failures of where rules set at run time are kept: read, broken (what is there is no document), write.", "kind")
	dynamicChanges  = dynamicDesc("weir_quota_dynamic_changes_total", "Changes of rules and resets of buckets that were asked for, by who asked (socket, token; nobody who may) and what came of it: changed, reset, validated, refused, conflict, failed, unsure or denied.", "who", "outcome")
)

func dynamicDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// Describe implements prometheus.Collector. It describes nothing, because the labels come
// and go.
func (dynamicCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c dynamicCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.src.Book()
	for gate, n := range s.InForce {
		gauge(ch, dynamicRules, float64(n), gate, "yes")
	}
	for gate, n := range s.Idle {
		gauge(ch, dynamicRules, float64(n), gate, "no")
	}
	for by, n := range s.Changes {
		counter(ch, dynamicChanges, n, by.Who, by.Outcome)
	}
	if s.Kept == "" {
		return
	}
	gauge(ch, dynamicKept, 1, s.Kept, s.In)
	if s.Age >= 0 {
		gauge(ch, dynamicAge, s.Age.Seconds())
	}
	for kind, n := range s.Failures {
		counter(ch, dynamicFailures, n, kind)
	}
}
