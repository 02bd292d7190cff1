package server

import (
	"maps"
	"slices"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/admin"
	"github.com/weir-go/weir/gateway/internal/proxy"
	"github.com/weir-go/weir/weirhttp"
)

// Look is the gateway at one moment, as /gates shows it.
type Look struct {
	Ready       bool                           `json:"ready"`
	InFlight    int64                          `json:"requests_in_flight"`
	Gates       []GateLook                     `json:"gates"`
	Upstreams   map[string][]proxy.TargetStats `json:"upstreams"`
	Streams     weirhttp.StreamsSnapshot       `json:"streams"`
	Connections []admin.Connections            `json:"connections"`
}

// GateLook is one gate: its snapshot, and what it would have refused while it
// only observed.
type GateLook struct {
	weir.Snapshot
	Observed map[weir.Reason]uint64 `json:"observed,omitempty"`
}

// Look returns the gateway at this moment.
func (s *Server) Look() Look {
	look := Look{
		Ready:       s.Ready(),
		InFlight:    s.inFlight.Load(),
		Upstreams:   make(map[string][]proxy.TargetStats),
		Streams:     s.streams.Snapshot(),
		Connections: s.Connections(),
	}
	for _, g := range s.Policy().Gates() {
		look.Gates = append(look.Gates, GateLook{g.Snapshot(), g.Observed()})
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

// Connections returns how many clients each listener has.
func (s *Server) Connections() []admin.Connections {
	s.mu.Lock()
	ls := slices.Clone(s.listeners)
	s.mu.Unlock()
	all := make([]admin.Connections, len(ls))
	for i, l := range ls {
		all[i] = admin.Connections{Listener: l.cfg.Address, Open: l.conns.count(), Refused: l.conns.refused.Load()}
	}
	return all
}
