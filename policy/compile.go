package policy

import (
	"slices"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
)

// Compile turns a Spec into a Policy. It finds every fault at once: the error is
// a *Faults.
//
// With a Previous policy its live gates are adopted by name. That happens last,
// when nothing can fail any more, so an error leaves the running policy as it
// was. A success has already changed the settings of the adopted gates: do first
// whatever else can fail, then compile, swap in the new policy, and tell the old
// one with [Policy.Retire]. Only one Compile at a time may have a given Previous.
func Compile(spec Spec, opts Options) (*Policy, error) {
	c := &compiler{spec: &spec, opts: &opts}
	p := c.check()
	if err := c.err(); err != nil {
		return nil, err
	}
	c.poll(p)
	made := c.make(p.names)
	if err := c.err(); err != nil {
		for _, g := range made {
			g.close()
		}
		if p.polled != nil && !c.shares(p.polled) {
			p.polled.Close()
		}
		return nil, err
	}
	p.gates = c.adopt(made)
	c.link(p)
	return p, nil
}

// compiler is one Compile: check reads the spec, make makes gates, adopt prefers
// those that live, link joins routes and gates.
type compiler struct {
	collector
	spec   *Spec
	opts   *Options
	source control.Source     // of readings, nil if no gate goes by any
	loads  map[pressing]*load // of gates that others go by
}

// make makes a gate for every name, whether or not one is going to be adopted:
// settings that a new mechanism takes, a live one takes too.
func (c *compiler) make(names []string) map[string]*Gate {
	made := make(map[string]*Gate, len(names))
	for _, name := range names {
		m, err := c.newMechanism(name)
		if err != nil {
			c.add(place{"gates", name}, err.Error(), "")
			continue
		}
		spec := c.spec.Gates[name]
		made[name] = &Gate{name: name, kind: kindOf(&spec), mechanism: m, tokens: spec.Quota != nil}
	}
	return made
}

// adopt replaces new gates by live ones that take up the new settings. A gate
// that cannot, because somebody has closed it or it is of another kind, stays
// behind.
func (c *compiler) adopt(made map[string]*Gate) map[string]*Gate {
	for name, g := range made {
		live := c.heir(name)
		if live == nil || live.kind != g.kind || c.reconfigure(live.mechanism, name) != nil {
			continue
		}
		g.close()
		made[name] = live
	}
	return made
}

// heir returns the live gate that the new policy can take over under this name.
func (c *compiler) heir(name string) *Gate {
	prev := c.opts.Previous
	if prev == nil || prev.now != nil || c.opts.Now != nil {
		return nil
	}
	return prev.gates[name]
}

// link sets what a Gate itself keeps and builds the chains of the routes. Routes
// with the same gates share one chain, so that a permit of one covers a nested
// call on the other.
func (c *compiler) link(p *Policy) {
	for name, g := range p.gates {
		spec := c.spec.Gates[name]
		g.hooks.Store(&gateHooks{rejected: c.opts.Hooks.Rejected, observed: c.opts.Observed})
		g.retire.Store(int64(spec.retirement()))
		signals := spec.sources()
		g.signals.Store(&signals)
		told := spec.told()
		g.tells.Store(&told)
		g.level.Store(uint32(spec.Mode.level()))
		g.requests.Store(spec.countsRequests())
	}
	p.costed = c.costed(p.names)
	c.linkLoads(p.gates)
	for i, rt := range p.routes {
		for _, name := range c.spec.Routes[i].Gates {
			rt.gates = append(rt.gates, p.gates[name])
		}
		rt.chain = chainOf(rt.gates, p.routes[:i])
	}
}

func chainOf(gates []*Gate, earlier []*Route) weir.Gate {
	for _, rt := range earlier {
		if slices.Equal(rt.gates, gates) {
			return rt.chain
		}
	}
	chain := make([]weir.Gate, len(gates))
	for i, g := range gates {
		chain[i] = g
	}
	return weir.All(chain...)
}

// longestRetirement bounds how long a gate outlives its policy.
const longestRetirement = 30 * time.Second

// retirement is how long after the last policy somebody may still be waiting in
// the room: the longest wait, and a little more for work on its way to it.
func (q *QueueSpec) retirement() time.Duration {
	wait := time.Duration(q.MaxWait)
	switch {
	case wait < 0:
		return longestRetirement
	case wait == 0:
		wait = limit.DefaultMaxWait
	}
	return min(wait+time.Second, longestRetirement)
}
