package admin

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/weirredis"
)

// QuotaUse is what there is to see of a gate with a quota beside its snapshot.
type QuotaUse struct {
	Rules int `json:"rules"`
	// Buckets are those in the memory of the gateway, nil where a store keeps them.
	Buckets *Buckets `json:"buckets,omitempty"`
	// StoreErrors are decisions at which the store failed, Unsettled what could not be
	// given back or charged afterwards.
	StoreErrors uint64 `json:"store_errors"`
	Unsettled   uint64 `json:"unsettled"`
}

// Buckets is quota.MemoryStats.
type Buckets struct {
	Known      int64  `json:"known"`
	Max        int64  `json:"max"`
	Bytes      int64  `json:"bytes"`
	Purged     uint64 `json:"purged"`
	Overflowed uint64 `json:"overflowed"`
}

// UseOf returns what there is to see of a quota, nil for none.
func UseOf(q *quota.Quota) *QuotaUse {
	if q == nil {
		return nil
	}
	f := q.Faults()
	u := &QuotaUse{Rules: len(q.Rules()), StoreErrors: f.StoreErrors, Unsettled: f.LostGives}
	if m, ok := q.Store().(*quota.Memory); ok {
		s := m.Stats()
		u.Buckets = &Buckets{Known: s.Keys, Max: s.MaxKeys, Bytes: s.Bytes, Purged: s.Purged, Overflowed: s.Overflowed}
	}
	return u
}

// Store is a server that keeps buckets of quotas.
type Store struct {
	Name     string            `json:"name"`
	Down     bool              `json:"down"`
	Why      string            `json:"why,omitempty"`
	Takes    uint64            `json:"takes"`
	Gives    uint64            `json:"gives"`
	Failed   map[string]uint64 `json:"failed"` // by reason
	InFlight int               `json:"in_flight"`
	Trips    uint64            `json:"trips"`
	Probes   uint64            `json:"probes"`
	Leases   int               `json:"leases"`
	Leased   uint64            `json:"leased"`
	Recalled uint64            `json:"recalled"`
}

// StoreOf returns what there is to see of a store.
func StoreOf(name string, s weirredis.Stats) Store {
	st := Store{
		Name: name, Down: s.Down, Takes: s.Takes, Gives: s.Gives, Failed: make(map[string]uint64, len(s.Failed)),
		InFlight: s.InFlight, Trips: s.Trips, Probes: s.Probes, Leases: s.Leases, Leased: s.Leased, Recalled: s.Remembered,
	}
	if s.Why != nil {
		st.Why = s.Why.Error()
	}
	for reason, n := range s.Failed {
		st.Failed[reason.String()] = n
	}
	return st
}

// quotaCollector turns quotas, and the stores of their buckets, into metrics.
type quotaCollector struct{ src Source }

var (
	quotaRules       = quotaDesc("weir_quota_rules", "Rules of a gate with a quota.")
	quotaBuckets     = quotaDesc("weir_quota_buckets", "Buckets of a gate in the memory of the gateway now.")
	quotaBucketsMost = quotaDesc("weir_quota_buckets_limit", "Most buckets of a gate in the memory of the gateway.")
	quotaBytes       = quotaDesc("weir_quota_bytes", "Memory that the buckets of a gate take.")
	quotaPurged      = quotaDesc("weir_quota_purged_total", "Buckets forgotten because they were full again.")
	quotaOverflowed  = quotaDesc("weir_quota_overflowed_total", "Decisions about keys for which there was no place among the buckets: they share one, which fails closed.")
	quotaStoreErrors = quotaDesc("weir_quota_store_errors_total", "Decisions at which the store failed, so that on_store_error held.")
	quotaUnsettled   = quotaDesc("weir_quota_unsettled_total", "Charges that could not be given back or settled, because the store failed.")

	storeDown     = storeDesc("weir_store_down", "1 while a store of quotas is not asked because it does not answer.")
	storeTakes    = storeDesc("weir_store_takes_total", "Decisions that a store has made.")
	storeGives    = storeDesc("weir_store_gives_total", "Charges that a store has given back or settled.")
	storeFailed   = storeDesc("weir_store_failures_total", "What a store was not asked or did not answer: down, full, canceled, timeout, broken, refused, closed or invalid.", "reason")
	storeInFlight = storeDesc("weir_store_in_flight", "Questions to a store under way now.")
	storeTrips    = storeDesc("weir_store_trips_total", "How often a store was given up for the moment.")
	storeProbes   = storeDesc("weir_store_probes_total", "How often it was looked whether a store is back.")
	storeLeases   = storeDesc("weir_store_leases", "Keys whose tokens are leased now.")
	storeLeased   = storeDesc("weir_store_leased_total", "Decisions made by leases alone.")
	storeRecalled = storeDesc("weir_store_recalled_total", "Refusals repeated without asking the store.")
)

func quotaDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, []string{"gate"}, nil)
}

func storeDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, append([]string{"store"}, labels...), nil)
}

// Describe implements prometheus.Collector. It describes nothing, because the labels come
// and go.
func (quotaCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c quotaCollector) Collect(ch chan<- prometheus.Metric) {
	for _, s := range c.src.Stores() {
		collectStore(ch, &s)
	}
	p := c.src.Policy()
	if p == nil {
		return
	}
	for name, g := range p.Gates() {
		u := UseOf(g.Quota())
		if u == nil {
			continue
		}
		gauge(ch, quotaRules, float64(u.Rules), name)
		counter(ch, quotaStoreErrors, u.StoreErrors, name)
		counter(ch, quotaUnsettled, u.Unsettled, name)
		if b := u.Buckets; b != nil {
			gauge(ch, quotaBuckets, float64(b.Known), name)
			gauge(ch, quotaBucketsMost, float64(b.Max), name)
			gauge(ch, quotaBytes, float64(b.Bytes), name)
			counter(ch, quotaPurged, b.Purged, name)
			counter(ch, quotaOverflowed, b.Overflowed, name)
		}
	}
}

func collectStore(ch chan<- prometheus.Metric, s *Store) {
	gauge(ch, storeDown, oneIf(s.Down), s.Name)
	gauge(ch, storeInFlight, float64(s.InFlight), s.Name)
	gauge(ch, storeLeases, float64(s.Leases), s.Name)
	counter(ch, storeTakes, s.Takes, s.Name)
	counter(ch, storeGives, s.Gives, s.Name)
	counter(ch, storeTrips, s.Trips, s.Name)
	counter(ch, storeProbes, s.Probes, s.Name)
	counter(ch, storeLeased, s.Leased, s.Name)
	counter(ch, storeRecalled, s.Recalled, s.Name)
	for reason, n := range s.Failed {
		counter(ch, storeFailed, n, s.Name, reason)
	}
}
