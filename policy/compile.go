package policy

import (
	"slices"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/limit"
)

// Compile turns a Spec into a Policy. It finds every fault at once: the error is
// a *Faults.
//
// With a Previous policy its live gates are adopted by name. That happens last,
// when nothing can fail any more, so an error leaves the running policy as it
// was. A success has already changed the settings of the adopted gates: swap in
// the new policy and tell the old one with [Policy.Retire].
func Compile(spec Spec, opts Options) (*Policy, error) {
	c := &compiler{spec: &spec, opts: &opts}
	p := c.check()
	if err := c.err(); err != nil {
		return nil, err
	}
	c.build(p)
	if err := c.err(); err != nil {
		return nil, err
	}
	c.adopt(p)
	if err := c.err(); err != nil {
		return nil, err
	}
	c.link(p)
	return p, nil
}

// compiler is one Compile: check reads the spec, build makes the gates that are
// new, adopt changes those that live, link joins routes and gates.
type compiler struct {
	collector
	spec *Spec
	opts *Options

	adopted map[string]*Gate
	// configs are the settings for the adopted gates, proven to be good.
	configs map[string]limit.Config
}

// build makes a gate for every name. Settings for a gate that lives on are tried
// on a limiter of their own first, which is then thrown away: what New accepts,
// Reconfigure does.
func (c *compiler) build(p *Policy) {
	p.gates = make(map[string]*Gate, len(c.spec.Gates))
	c.adopted, c.configs = map[string]*Gate{}, map[string]limit.Config{}
	for _, name := range p.names {
		l, err := limit.New(c.config(name))
		if err != nil {
			c.add(place{"gates", name, "limit"}, err.Error(), "")
			continue
		}
		g := c.heir(name)
		if g == nil {
			p.gates[name] = &Gate{name: name, limiter: l}
			continue
		}
		l.Close()
		c.adopted[name], c.configs[name] = g, c.config(name)
	}
	if len(c.faults) > 0 {
		for _, g := range p.gates {
			g.close()
		}
	}
}

// heir returns the live gate that the new policy can take over under this name.
func (c *compiler) heir(name string) *Gate {
	prev := c.opts.Previous
	if prev == nil || prev.virtual || c.opts.Now != nil {
		return nil
	}
	if g := prev.gates[name]; g != nil && !g.closed.Load() {
		return g
	}
	return nil
}

// adopt gives the live gates their new settings.
func (c *compiler) adopt(p *Policy) {
	for _, name := range p.names {
		g := c.adopted[name]
		if g == nil {
			continue
		}
		if err := g.limiter.Reconfigure(c.configs[name]); err != nil {
			c.add(place{"gates", name, "limit"}, err.Error(), "")
			continue
		}
		p.gates[name] = g
	}
}

// link sets what a Gate itself keeps and builds the chains of the routes. Routes
// with the same gates share one chain, so that a permit of one covers a nested
// call on the other.
func (c *compiler) link(p *Policy) {
	for name, g := range p.gates {
		spec := c.spec.Gates[name]
		g.hooks.Store(&gateHooks{rejected: c.opts.Hooks.Rejected, observed: c.opts.Observed})
		g.retire.Store(int64(longestWait(spec.Limit.Queue)))
		g.level.Store(uint32(spec.Mode.level()))
	}
	for i, rt := range p.routes {
		for _, name := range c.spec.Routes[i].Gates {
			rt.gates = append(rt.gates, p.gates[name])
		}
		rt.chain = c.chain(p.routes[:i], rt)
	}
}

func (c *compiler) chain(earlier []*Route, rt *Route) weir.Gate {
	for _, other := range earlier {
		if slices.Equal(other.gates, rt.gates) {
			return other.chain
		}
	}
	gates := make([]weir.Gate, len(rt.gates))
	for i, g := range rt.gates {
		gates[i] = g
	}
	return weir.All(gates...)
}

// config returns a gate's settings with a controller of their own.
func (c *compiler) config(name string) limit.Config {
	spec := c.spec.Gates[name].Limit
	hooks := c.opts.Hooks
	hooks.Rejected = nil // the Gate calls it: only it knows what is carried out
	return limit.Config{
		Name:       name,
		Limit:      spec.Limit,
		Controller: spec.controller(),
		Queue:      spec.Queue.queue(),
		Hooks:      hooks,
		FindLeaks:  c.opts.FindLeaks,
		Now:        c.opts.Now,
	}
}

// longestRetirement bounds how long a gate outlives its policy.
const longestRetirement = 30 * time.Second

// longestWait is how long work can wait in a room, and a little more for work
// that was on its way to it.
func longestWait(q QueueSpec) time.Duration {
	wait := time.Duration(q.MaxWait)
	switch {
	case wait < 0:
		return longestRetirement
	case wait == 0:
		wait = limit.DefaultMaxWait
	}
	return min(wait+time.Second, longestRetirement)
}
