package admin

import (
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/accept"
	"github.com/weir-go/weir/gateway/internal/kafka"
	"github.com/weir-go/weir/gateway/internal/proxy"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/signal"
	"github.com/weir-go/weir/weirhttp"
	"github.com/weir-go/weir/weirredis"
)

// Status is the gateway at one moment, as /gates shows it.
type Status struct {
	Ready       bool                           `json:"ready"`
	InFlight    int64                          `json:"requests_in_flight"`
	Gates       []GateStatus                   `json:"gates"`
	Signals     []SignalStatus                 `json:"signals,omitempty"`
	Tenants     []TenantUse                    `json:"tenants"`
	Upstreams   map[string][]proxy.TargetStats `json:"upstreams"`
	Streams     weirhttp.StreamsSnapshot       `json:"streams"`
	Stores      []Store                        `json:"stores,omitempty"`
	Connections []accept.Snapshot              `json:"connections"`
	Kafka       []kafka.Snapshot               `json:"kafka,omitempty"`
}

// GateStatus is one gate. Its snapshot names the signal that bounds the limit now.
type GateStatus struct {
	weir.Snapshot
	// RefusedByClass counts what was refused since the gateway started, by priority and reason.
	RefusedByClass map[weir.Priority]map[weir.Reason]uint64 `json:"refused_by_class,omitempty"`

	Observed map[weir.Reason]uint64   `json:"observed,omitempty"` // would have been refused in enforce mode
	Signals  []string                 `json:"signals,omitempty"`  // that the gate uses
	Keys     *KeysStatus              `json:"keys,omitempty"`     // of a gate with a limit for each key
	Quota    *QuotaUse                `json:"quota,omitempty"`
	Parts    map[string]weir.Snapshot `json:"parts,omitempty"` // read and write, of a gate with a pool for each
}

// KeysStatus is the keys of a gate with a limit for each key.
type KeysStatus struct {
	Known   int64    `json:"known"`
	Max     int64    `json:"max"`  // that may be known
	Busy    int64    `json:"busy"` // use a slot or wait
	Evicted uint64   `json:"evicted"`
	Bytes   int64    `json:"bytes"`
	Top     []KeyUse `json:"top"` // those that use most
}

// KeyUse is the use of one key, as package keyed has it.
type KeyUse struct {
	Key      string `json:"key"`
	Limit    int64  `json:"limit"`
	InFlight int64  `json:"in_flight"`
	Waiting  int64  `json:"waiting"`
	Admitted uint32 `json:"admitted"`
	Refused  uint32 `json:"refused"`
}

// mostKeys is how many keys of a gate are shown.
const mostKeys = 20

// SignalStatus is one signal. Value is null while it is unknown.
type SignalStatus struct {
	Name     string        `json:"name"`
	State    signal.State  `json:"state"`
	Value    *float64      `json:"value"`
	Age      time.Duration `json:"age_ns"`
	Reads    uint64        `json:"reads"`
	Failures uint64        `json:"failures"` // bad values included
	Error    string        `json:"error,omitempty"`
}

// Status returns the gateway at this moment.
func (m *Metrics) Status() Status {
	s := Status{
		Ready:       m.src.Ready(),
		InFlight:    m.src.InFlight(),
		Tenants:     m.topTenants(),
		Upstreams:   make(map[string][]proxy.TargetStats),
		Streams:     m.src.Streams().Snapshot(),
		Stores:      m.src.Stores(),
		Connections: m.src.Connections(),
		Kafka:       m.src.Kafka(),
	}
	p := m.src.Policy()
	for _, g := range p.Gates() {
		s.Gates = append(s.Gates, m.gateStatus(g))
	}
	for _, from := range p.Signals() {
		to := SignalStatus{Name: from.Name, State: from.State, Age: from.Age, Reads: from.Reads, Failures: from.Failures + from.Bad}
		if from.Known {
			to.Value = &from.Value
		}
		if from.Err != nil {
			to.Error = from.Err.Error()
		}
		s.Signals = append(s.Signals, to)
	}
	for _, u := range m.src.Upstreams() {
		s.Upstreams[u.Name()] = u.Stats()
	}
	return s
}

func (m *Metrics) gateStatus(g *policy.Gate) GateStatus {
	s := GateStatus{Snapshot: g.Snapshot(), Observed: g.Observed(), Signals: g.Signals(), Parts: g.Parts(), Quota: useOf(g.Quota())}
	if series, ok := (*m.gates.Load())[g.Name()]; ok {
		s.RefusedByClass = series.reasons.byClass()
	}
	if s.Quota != nil {
		s.Quota.Refused = m.mostRefused(g.Name())
	}
	if k := g.Pools(); k != nil {
		u := k.Usage(mostKeys)
		s.Keys = &KeysStatus{Known: u.Keys, Max: u.MaxKeys, Busy: u.Busy, Evicted: u.Evicted, Bytes: u.Bytes}
		for _, use := range u.Top {
			s.Keys.Top = append(s.Keys.Top, KeyUse(use))
		}
	}
	return s
}

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
