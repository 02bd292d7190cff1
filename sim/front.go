package sim

import (
	"fmt"
	"math"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/policy"
)

// epoch is what virtual time counts from, for deadlines.
var epoch = limit.VirtualEpoch

func standstill() time.Duration { return 0 }

// newFront compiles the scenario's policy for one gateway of a run.
func newFront(w *world, s *Scenario) (*front, error) {
	watched := concurrencyGate(s)
	p, err := policy.Compile(s.Policy.Spec, policy.Options{
		Now: func() time.Duration { return w.now },
		Hooks: weir.Hooks{
			LimitChanged: func(gate string, from, to int64, _ string) {
				if gate == watched {
					w.stats.addLimit(w.now, to-from)
				}
			},
		},
	})
	if err != nil {
		return nil, err
	}
	f := &front{next: p.Next, step: p.Step, close: p.Close, limit: unlimited}
	if g := p.Gate(watched); g != nil && g.Quota() == nil { // a quota limits no concurrency
		f.limit = func() int64 { return g.Snapshot().Limit }
		w.stats.addLimit(w.now, g.Snapshot().Limit)
	}
	for i, c := range w.classes {
		rt := route(p, s, i)
		gate, ok := rt.Gate().(weir.Arriver)
		if !ok {
			p.Close()
			return nil, fmt.Errorf("sim: route %q: its gates cannot be driven on virtual time", rt.Name())
		}
		f.gates = append(f.gates, gate)
		c.adopt(rt)
	}
	return f, nil
}

// unlimited is the limit of no gate at all.
func unlimited() int64 { return math.MaxInt32 }

// route is the route of a class, the first one where it names none.
func route(p *policy.Policy, s *Scenario, class int) *policy.Route {
	if name := s.Traffic[class].Route; name != "" {
		return p.Route(name)
	}
	for rt := range p.Routes() {
		return rt
	}
	return nil
}

// concurrencyGate is the name of the gate whose limit reports are about: the
// last one on the route of the first class.
func concurrencyGate(s *Scenario) string {
	for _, r := range s.Policy.Spec.Routes {
		if name := s.Traffic[0].Route; (name == "" || name == routeName(&r)) && len(r.Gates) > 0 {
			return r.Gates[len(r.Gates)-1]
		}
	}
	return ""
}

// adopt takes over what a route says about its work, where the class itself
// says nothing.
func (c *class) adopt(rt *policy.Route) {
	base := rt.Work()
	c.template.Op = base.Op
	c.template.MaxWait = base.MaxWait
	if c.template.Cost == 0 {
		c.template.Cost = base.Cost
	}
	if !c.ranked {
		c.template.Priority = base.Priority
	}
	if t := rt.Timeout(); t > 0 && (c.told == 0 || t < c.told) {
		c.told = t
	}
}
