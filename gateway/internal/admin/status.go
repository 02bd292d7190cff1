package admin

import (
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/accept"
	"github.com/weir-go/weir/gateway/internal/proxy"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/signal"
	"github.com/weir-go/weir/weirhttp"
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
}

// GateStatus is one gate. Its snapshot names the signal that bounds the limit now.
type GateStatus struct {
	weir.Snapshot
	Observed map[weir.Reason]uint64   `json:"observed,omitempty"` // would have been refused in enforce mode
	Signals  []string                 `json:"signals,omitempty"`  // that the gate uses
	Keys     *KeysStatus              `json:"keys,omitempty"`     // of a gate with a limit for each key
	Quota    *QuotaUse                `json:"quota,omitempty"`
	Parts    map[string]weir.Snapshot `json:"parts,omitempty"` // read and write, of a gate with a pool for each
}

// KeysStatus is the keys of a gate with a limit for each key.
type KeysStatus struct {
	Known   int64  `json:"known"`
	Max     int64  `json:"max"`  // that may be known
	Busy    int64  `json:"busy"` // use a slot or wait
	Evicted uint64 `json:"evicted"`
	Bytes   int64  `json:"bytes"`
	Top     any    `json:"top"` // list of keyed.KeyUse: those that use most
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
	if s.Quota != nil {
		s.Quota.Refused = m.mostRefused(g.Name())
	}
	if k := g.Pools(); k != nil {
		u := k.Usage(mostKeys)
		s.Keys = &KeysStatus{Known: u.Keys, Max: u.MaxKeys, Busy: u.Busy, Evicted: u.Evicted, Bytes: u.Bytes, Top: u.Top}
	}
	return s
}
