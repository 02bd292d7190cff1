package admin

import (
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
	// Refused are the buckets that were refused most often, as [Metrics.MostRefused]
	// returns them.
	Refused []Refused `json:"refused,omitempty"`
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
	u := &QuotaUse{Rules: len(q.Rules()), StoreErrors: f.StoreErrors, Unsettled: f.Unsettled}
	if m, ok := q.Store().(*quota.Memory); ok {
		s := m.Stats()
		u.Buckets = &Buckets{Known: s.Keys, Max: s.MaxKeys, Bytes: s.Bytes, Purged: s.Purged, Overflowed: s.Overflowed}
	}
	return u
}

// Store is a server that keeps buckets of quotas.
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

// StoreOf returns what there is to see of a store.
func StoreOf(name string, s weirredis.Stats) Store {
	st := Store{
		Name: name, Down: s.Down, Takes: s.Takes, Gives: s.Gives, Failed: make(map[string]uint64, len(s.Failed)),
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
