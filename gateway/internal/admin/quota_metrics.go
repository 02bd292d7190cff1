package admin

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/weirredis"
)

// QuotaUse is the state of a gate with a quota, beside its snapshot.
type QuotaUse struct {
	Rules int `json:"rules"`
	// Buckets are those in the memory of the gateway; nil if a store keeps them.
	Buckets *Buckets `json:"buckets,omitempty"`
	// StoreErrors counts failed decisions of the store, Unsettled failed refunds and
	// corrections of a cost.
	StoreErrors uint64 `json:"store_errors"`
	Unsettled   uint64 `json:"unsettled"`
	// Refused are the buckets that were refused most often, as they are in the metrics.
	Refused []Refused `json:"refused,omitempty"`
}

// Buckets is quota.MemoryStats in JSON.
type Buckets struct {
	Known      int64  `json:"known"`
	Max        int64  `json:"max"`
	Bytes      int64  `json:"bytes"`
	Purged     uint64 `json:"purged"`
	Overflowed uint64 `json:"overflowed"`
}

// useOf returns what there is to see of a quota, nil for none.
func useOf(q *quota.Quota) *QuotaUse {
	if q == nil {
		return nil
	}
	f := q.Faults()
	u := &QuotaUse{Rules: len(q.Rules()), StoreErrors: f.StoreErrors, Unsettled: f.Unsettled}
	if m, ok := q.Store().(*quota.Memory); ok {
		s := m.Stats()
		u.Buckets = &Buckets{Known: s.Keys, Max: s.MaxKeys, Bytes: s.Bytes, Purged: s.Purged, Overflowed: s.Overflowed}
	}
	return u
}

// Store is the state of a server that keeps buckets of quotas.
type Store struct {
	Name       string            `json:"name"`
	Down       bool              `json:"down"`
	Why        string            `json:"why,omitempty"`
	Takes      uint64            `json:"takes"`
	Gives      uint64            `json:"gives"`
	Failed     map[string]uint64 `json:"failed"` // by reason
	InFlight   int               `json:"in_flight"`
	Trips      uint64            `json:"trips"`
	Probes     uint64            `json:"probes"`
	Leases     int               `json:"leases"`
	Leased     uint64            `json:"leased"`
	Remembered uint64            `json:"remembered"`
}

// StoreOf returns the state of a store.
func StoreOf(name string, s weirredis.Stats) Store {
	st := Store{
		Name: name, Down: s.Down, Takes: s.Decisions, Gives: s.Refunds, Failed: make(map[string]uint64, len(s.Failed)),
		InFlight: s.InFlight, Trips: s.Trips, Probes: s.Probes, Leases: s.Leases, Leased: s.Leased, Remembered: s.Remembered,
	}
	if s.Why != nil {
		st.Why = s.Why.Error()
	}
	for reason, n := range s.Failed {
		st.Failed[reason.String()] = n
	}
	return st
}

// figure is a metric of one gate or store.
type figure[T any] struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(*T) float64
}

// rising is a counter, present a gauge.
func rising[T any](label, name, help string, of func(*T) uint64) figure[T] {
	return figure[T]{desc(name, help, label), prometheus.CounterValue, func(v *T) float64 { return float64(of(v)) }}
}

func present[T any](label, name, help string, of func(*T) float64) figure[T] {
	return figure[T]{desc(name, help, label), prometheus.GaugeValue, of}
}

// collect sends the figures of what is called name.
func collect[T any](ch chan<- prometheus.Metric, figures []figure[T], name string, v *T) {
	for _, f := range figures {
		ch <- prometheus.MustNewConstMetric(f.desc, f.kind, f.of(v), name)
	}
}

var quotaFigures = []figure[QuotaUse]{
	present("gate", "weir_quota_rules", "Rules of a gate with a quota.",
		func(u *QuotaUse) float64 { return float64(u.Rules) }),
	rising("gate", "weir_quota_store_errors_total", "Decisions that the store failed to make; on_store_error says what happened instead.",
		func(u *QuotaUse) uint64 { return u.StoreErrors }),
	rising("gate", "weir_quota_unsettled_total", "Refunds and corrections of a cost that failed because of the store.",
		func(u *QuotaUse) uint64 { return u.Unsettled }),
}

var bucketFigures = []figure[Buckets]{
	present("gate", "weir_quota_buckets", "Buckets of a gate in the memory of the gateway.",
		func(b *Buckets) float64 { return float64(b.Known) }),
	present("gate", "weir_quota_buckets_limit", "Bound on the buckets of a gate in the memory of the gateway.",
		func(b *Buckets) float64 { return float64(b.Max) }),
	present("gate", "weir_quota_bytes", "Memory that the buckets of a gate take.",
		func(b *Buckets) float64 { return float64(b.Bytes) }),
	rising("gate", "weir_quota_purged_total", "Buckets forgotten because they were full again.",
		func(b *Buckets) uint64 { return b.Purged }),
	rising("gate", "weir_quota_overflowed_total", "Decisions about keys for which there was no bucket left. These keys share one bucket, so they are refused together.",
		func(b *Buckets) uint64 { return b.Overflowed }),
}

var storeFigures = []figure[Store]{
	present("store", "weir_store_down", "1 while a store of quotas is down and decides nothing.",
		func(s *Store) float64 { return oneIf(s.Down) }),
	present("store", "weir_store_in_flight", "Requests to a store that are under way.",
		func(s *Store) float64 { return float64(s.InFlight) }),
	present("store", "weir_store_leases", "Keys with leased tokens.",
		func(s *Store) float64 { return float64(s.Leases) }),
	rising("store", "weir_store_takes_total", "Decisions that a store has made.",
		func(s *Store) uint64 { return s.Takes }),
	rising("store", "weir_store_gives_total", "Refunds and corrections of a cost that a store has made.",
		func(s *Store) uint64 { return s.Gives }),
	rising("store", "weir_store_trips_total", "How often a store went down.",
		func(s *Store) uint64 { return s.Trips }),
	rising("store", "weir_store_probes_total", "Probes of a store that was down.",
		func(s *Store) uint64 { return s.Probes }),
	rising("store", "weir_store_leased_total", "Decisions made by leased tokens, without asking the store.",
		func(s *Store) uint64 { return s.Leased }),
	rising("store", "weir_store_remembered_total", "Refusals repeated without asking the store.",
		func(s *Store) uint64 { return s.Remembered }),
}

var storeFailed = desc("weir_store_failures_total", "Questions that a store was not asked or did not answer, by reason: down, full, canceled, timeout, broken, refused, closed or invalid.", "store", "reason")

// collectStore sends the figures of a store.
func collectStore(ch chan<- prometheus.Metric, s *Store) {
	collect(ch, storeFigures, s.Name, s)
	for reason, n := range s.Failed {
		counter(ch, storeFailed, n, s.Name, reason)
	}
}

// collectQuota sends the figures of a gate with a quota.
func collectQuota(ch chan<- prometheus.Metric, gate string, u *QuotaUse, refused *refusals) {
	collect(ch, quotaFigures, gate, u)
	if u.Buckets != nil {
		collect(ch, bucketFigures, gate, u.Buckets)
	}
	if refused != nil {
		refused.collect(ch, gate)
	}
}
