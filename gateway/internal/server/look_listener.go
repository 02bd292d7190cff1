package server

import (
	"cmp"
	"slices"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/admin"
	"github.com/weir-go/weir/policy"
)

// Connections returns what there is to see of the connections of each listener.
func (s *Server) Connections() []admin.Connections {
	s.mu.Lock()
	ls := slices.Clone(s.listeners)
	s.mu.Unlock()
	all := make([]admin.Connections, len(ls))
	for i, l := range ls {
		all[i] = l.look()
	}
	return all
}

func (l *listener) look() admin.Connections {
	d := l.conns.door.snapshot()
	look := admin.Connections{
		Listener: l.cfg.Address,
		Snapshot: weir.Snapshot{
			Name: d.limits.name, Kind: "connections", Mode: string(cmp.Or(d.limits.mode, policy.Enforce)),
			Limit: int64(d.limits.open), InFlight: int64(d.open), Admitted: d.entered,
			Rejected: make(map[weir.Reason]uint64),
		},
		PerAddress: d.limits.peerOpen, Refused: make(map[string]uint64, numDoorRules), Observed: make(map[string]uint64),
		Addresses: d.peers, MaxAddresses: d.limits.peers, Crowd: d.crowd, Evicted: l.conns.door.evicted.Load(),
	}
	for rule := doorOpen + 1; rule < numDoorRules; rule++ {
		look.Refused[rule.String()] = d.refused[rule]
		if d.limits.mode == policy.Observe || d.observed[rule] > 0 {
			look.Observed[rule.String()] = d.observed[rule]
		}
		if d.refused[rule] > 0 {
			look.Rejected[rule.reason()] += d.refused[rule]
		}
	}
	if l.cfg.TLS != nil {
		look.Handshakes = l.handshakes.counts()
	}
	return look
}
