package server

import (
	"maps"
	"slices"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/admin"
	"github.com/weir-go/weir/gateway/internal/proxy"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/signal"
	"github.com/weir-go/weir/weirhttp"
)

// Look is the gateway at one moment, as /gates shows it.
type Look struct {
	Ready       bool                           `json:"ready"`
	InFlight    int64                          `json:"requests_in_flight"`
	Gates       []GateLook                     `json:"gates"`
	Signals     []SignalLook                   `json:"signals,omitempty"`
	Tenants     []admin.TenantUse              `json:"tenants"`
	Upstreams   map[string][]proxy.TargetStats `json:"upstreams"`
	Streams     weirhttp.StreamsSnapshot       `json:"streams"`
	Stores      []admin.Store                  `json:"stores,omitempty"`
	Connections []admin.Connections            `json:"connections"`
}

// GateLook is one gate: its snapshot, what it would have refused while it only
// observed, the signals that it goes by, the pools where each key has one, or
// reads and writes have, and the buckets of a quota. Which of the signals binds is in the snapshot.
type GateLook struct {
	weir.Snapshot
	Observed map[weir.Reason]uint64 `json:"observed,omitempty"`
	Signals  []string               `json:"signals,omitempty"`
	Keys     *KeysLook              `json:"keys,omitempty"`
	Quota    *admin.QuotaUse        `json:"quota,omitempty"`

	Parts map[string]weir.Snapshot `json:"parts,omitempty"` // read and write
}

// KeysLook is the pools of a gate with a limit for each key: how many keys are
// known, may be, hold something and were forgotten, what they take, and those that
// use most.
type KeysLook struct {
	Known   int64  `json:"known"`
	Max     int64  `json:"max"`
	Busy    int64  `json:"busy"`
	Evicted uint64 `json:"evicted"`
	Bytes   int64  `json:"bytes"`
	Top     any    `json:"top"` // list of keyed.KeyUse
}

// mostKeys is how many keys of a gate are shown.
const mostKeys = 20

// lookInto returns what there is to see of a gate.
func lookInto(g *policy.Gate) GateLook {
	look := GateLook{Snapshot: g.Snapshot(), Observed: g.Observed(), Signals: g.Signals(), Parts: g.Parts(), Quota: admin.UseOf(g.Quota())}
	if k := g.Pools(); k != nil {
		u := k.Usage(mostKeys)
		look.Keys = &KeysLook{Known: u.Keys, Max: u.MaxKeys, Busy: u.Busy, Evicted: u.Evicted, Bytes: u.Bytes, Top: u.Top}
	}
	return look
}

// SignalLook is one signal. Value is null while it is not known.
type SignalLook struct {
	Name     string        `json:"name"`
	State    signal.State  `json:"state"`
	Value    *float64      `json:"value"`
	Age      time.Duration `json:"age_ns"`
	Reads    uint64        `json:"reads"`
	Failures uint64        `json:"failures"` // bad values included
	Error    string        `json:"error,omitempty"`
}

func lookAt(s signal.Status) SignalLook {
	look := SignalLook{Name: s.Name, State: s.State, Age: s.Age, Reads: s.Reads, Failures: s.Failures + s.Bad}
	if s.Known {
		look.Value = &s.Value
	}
	if s.Err != nil {
		look.Error = s.Err.Error()
	}
	return look
}

// Look returns the gateway at this moment.
func (s *Server) Look() Look {
	look := Look{
		Ready:       s.Ready(),
		InFlight:    s.inFlight.Load(),
		Tenants:     s.metrics.TopTenants(),
		Upstreams:   make(map[string][]proxy.TargetStats),
		Streams:     s.streams.Snapshot(),
		Stores:      s.Stores(),
		Connections: s.Connections(),
	}
	p := s.Policy()
	for _, g := range p.Gates() {
		gate := lookInto(g)
		if gate.Quota != nil {
			gate.Quota.Refused = s.metrics.MostRefused(g.Name())
		}
		look.Gates = append(look.Gates, gate)
	}
	for _, status := range p.Signals() {
		look.Signals = append(look.Signals, lookAt(status))
	}
	for _, u := range s.Upstreams() {
		look.Upstreams[u.Name()] = u.Stats()
	}
	return look
}

// InFlight returns how many requests are in the gateway now.
func (s *Server) InFlight() int64 { return s.inFlight.Load() }

// Upstreams returns the upstreams in force, sorted by name.
func (s *Server) Upstreams() []*proxy.Upstream {
	ups := s.state.Load().upstreams
	sorted := make([]*proxy.Upstream, 0, len(ups))
	for _, name := range slices.Sorted(maps.Keys(ups)) {
		sorted = append(sorted, ups[name])
	}
	return sorted
}
