package explain

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/gateway/internal/proxy"
	"github.com/weir-go/weir/policy"
)

// slots is a limit with what is taken of it.
type slots struct {
	spec                     policy.LimitSpec
	limit, inFlight, waiting int64
	wait                     time.Duration // of a newcomer, 0 if it is not known
}

// slotsOf returns the slots that w takes one or more of. key is that of its pool, if the gate has a pool
// for each key. known is false if that key is new.
func slotsOf(g *policy.Gate, spec *policy.LimitSpec, w weir.Work) (s slots, key string, known bool) {
	if spec != nil {
		s.spec = *spec
	}
	if p := g.Pools(); p != nil {
		key = p.KeyOf(w)
		use, known := p.Key(key)
		s.limit, s.inFlight, s.waiting = use.Limit, use.InFlight, use.Waiting
		return s, key, known
	}
	now := g.Snapshot()
	if part, ok := g.Parts()[partOf(w)]; ok {
		now = part
	}
	s.limit, s.inFlight, s.waiting, s.wait = now.Limit, now.InFlight, now.Waiting, now.Wait
	return s, "", true
}

// partOf is the key of Parts, of a gate with a pool for reads and one for writes.
func partOf(w weir.Work) string {
	if w.Write {
		return "write"
	}
	return "read"
}

// slots describes a gate with a limit. Whether work that waits is served in the end depends on what
// comes meanwhile.
func (gate *Gate) slots(g *policy.Gate, spec *policy.LimitSpec, w weir.Work) *weir.Rejection {
	s, key, known := slotsOf(g, spec, w)
	gate.Bucket = key
	if w.Exempt && s.spec.Exempt >= 0 {
		gate.Why = "exempt: takes no slot"
		return nil
	}
	gate.Why = fmt.Sprintf("%d of %d slots taken", s.inFlight, s.limit)
	switch {
	case !known:
		gate.Why = "nothing is known of this key: all of its pool is free"
	case s.waiting > 0:
		gate.Why += fmt.Sprintf(", %d waiting", s.waiting)
	}
	cost := s.cost(w)
	if known && s.limit > 0 && cost > s.limit {
		gate.Why += fmt.Sprintf(", and it takes all, because it costs %d", cost)
	}
	switch {
	case cost < 0:
		gate.Why = "its cost cannot be read"
		return &weir.Rejection{Reason: weir.ReasonTooLarge, Value: float64(cost)}
	case s.spec.RefuseOversize && s.limit > 0 && cost > s.limit:
		gate.Why = fmt.Sprintf("costs %d, more than the limit of %d", cost, s.limit)
		return &weir.Rejection{Reason: weir.ReasonTooLarge}
	case s.hasRoom(cost):
		return nil
	case s.spec.Queue.Len < 0 || w.MaxWait < 0:
		gate.Why += ", and nothing waits"
		return &weir.Rejection{Reason: weir.ReasonLimit, RetryAfter: s.wait, Retryable: true}
	}
	gate.Says = Waits
	if s.wait > 0 {
		gate.Why += ", about " + s.wait.Round(time.Millisecond).String()
	}
	return nil
}

// cost is what w takes of the slots.
func (s *slots) cost(w weir.Work) int64 {
	if s.spec.Count == "requests" {
		return 1
	}
	return w.CostOrOne()
}

// hasRoom reports whether so many slots are free and nobody waits for them. Work that costs more than
// the limit runs alone.
func (s *slots) hasRoom(cost int64) bool {
	return s.waiting == 0 && (s.inFlight == 0 || s.inFlight+cost <= s.limit)
}

// addTarget adds the gate of an upstream's target, if the upstream has a limit. Of several it is the one with
// most slots free: a request takes any that has room. Targets that are left out count if all are.
func (a *Answer) addTarget(v *View, upstream string, w weir.Work) {
	u := v.Config.Upstreams[upstream]
	var freest *policy.Gate
	var free int64
	targets := slices.Sorted(maps.Keys(proxy.WithTargetGates(nil, map[string]config.Upstream{upstream: u})))
	if v.LeftOut != nil {
		if out := v.LeftOut(upstream); len(out) < len(targets) {
			targets = slices.DeleteFunc(targets, func(name string) bool { return slices.Contains(out, name) })
		}
	}
	for _, name := range targets {
		g := v.Policy.Gate(name)
		if g == nil { // a reload has just replaced the policy
			continue
		}
		if s, _, _ := slotsOf(g, u.Limit, w); freest == nil || s.limit-s.inFlight-s.waiting > free {
			freest, free = g, s.limit-s.inFlight-s.waiting
		}
	}
	if freest == nil {
		return
	}
	a.addGate(freest, policy.GateSpec{Limit: u.Limit}, w, true)
	if last := &a.Gates[len(a.Gates)-1]; len(targets) > 1 && last.Says != NotReached {
		last.Why += fmt.Sprintf(", the freest of %d targets", len(targets))
	}
}
