package policy

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/keyed"
	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/shed"
)

// Fault is one thing that is wrong with a policy: where, what, and what to write instead.
type Fault = fault.Fault

// Faults is everything that is wrong with a policy. It is the error of [Compile] and [ParseSpec];
// errors.As finds it.
type Faults = fault.Faults

// Compile turns a Spec into a Policy. It finds every fault at once: the error is
// a *Faults.
//
// With a Previous policy its live gates are adopted by name. That happens last, when nothing can
// fail any more, so an error leaves the running policy as it was. A success has already changed the
// settings of the adopted gates. So first do everything else that can fail. Then compile, swap in
// the new policy, and tell the old one with [Policy.Replace]. Only one Compile at a time may have a
// given Previous.
func Compile(spec Spec, opts Options) (*Policy, error) {
	c := &compiler{spec: &spec, opts: &opts}
	p := c.check()
	if err := c.Err("policy"); err != nil {
		return nil, err
	}
	c.poll(p)
	made := c.makeGates(p.names)
	if err := c.Err("policy"); err != nil {
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

// compiler is one Compile: check reads the spec, make makes gates, adopt keeps those that live, link
// connects routes and gates.
type compiler struct {
	fault.List
	spec   *Spec
	opts   *Options
	source control.Source     // of readings, nil if no gate uses any
	loads  map[pressing]*load // of gates that other gates use
}

// check finds every fault in the spec itself. It returns the parts of the policy that need no
// gates: identity, routes, matcher.
func (c *compiler) check() *Policy {
	p := &Policy{now: c.opts.Now}
	p.identity = c.checkIdentity()
	p.timeouts = c.checkTimeouts()
	c.checkSignals()
	p.names = slices.Sorted(maps.Keys(c.spec.Gates))
	for _, name := range p.names {
		c.checkGate(name)
		if l := c.spec.Gates[name].Limit; l != nil && l.Queue.Order == edf {
			p.edf = true
		}
	}
	c.checkRoutes(p)
	c.checkAdmissions(p)
	c.checkWildcards(p)
	return p
}

// maxName bounds names of gates and routes, which become metric labels.
const maxName = 256

// checkName refuses names that would spoil a log line or a metric label.
func (c *compiler) checkName(at fault.Path, what, name string) {
	switch {
	case name == "":
		c.Add(at, "a "+what+" without a name", "give it one")
	case len(name) > maxName:
		c.Add(at, fmt.Sprintf("a name of %d bytes", len(name)), fmt.Sprintf("write one of at most %d", maxName))
	case !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl):
		c.Add(at, fmt.Sprintf("the name %q has characters that cannot be printed", name), "leave them out")
	}
}

// checkWord refuses a word that is not known; the empty word is the default.
func (c *compiler) checkWord(at fault.Path, what, word string, known []string) bool {
	if word == "" || slices.Contains(known, word) {
		return true
	}
	c.Add(at, fmt.Sprintf("%q is not a %s", word, what), fault.Suggest(word, known, what+"s"))
	return false
}

// priorities are the words for weir.Priority, least important first.
var priorities = []string{"background", "normal", "high", "critical"}

// makeGates makes a gate for every name, also for those that will be adopted. Settings that a new
// mechanism accepts, a live one accepts too.
func (c *compiler) makeGates(names []string) map[string]*Gate {
	made := make(map[string]*Gate, len(names))
	for _, name := range names {
		m, err := c.mechanism(name, nil)
		if err != nil {
			c.AddError(fault.Path{"gates", name}, err)
			continue
		}
		spec := c.spec.Gates[name]
		made[name] = &Gate{name: name, kind: kindOf(&spec), mechanism: m, tokens: spec.Quota != nil}
	}
	return made
}

// mechanism makes the mechanism of a gate. If there is a live one of the same kind, that takes up
// the settings instead.
func (c *compiler) mechanism(name string, live mechanism) (mechanism, error) {
	switch g := c.spec.Gates[name]; {
	case g.Shed != nil:
		return build(live, shed.New, c.shedConfig(name), nil)
	case g.Quota != nil:
		return c.quota(name, live)
	case g.isPair():
		return build(live, keyed.NewAdaptive, c.pairConfig(name), nil)
	case g.Each != nil && g.Each.Own:
		return build(live, keyed.NewAdaptive, c.ownConfig(name), nil)
	case g.Each != nil:
		cfg, err := c.keyedConfig(name)
		return build(live, keyed.New, cfg, err)
	}
	cfg, err := c.config(name) // a controller belongs to one limiter
	return build(live, limit.New, cfg, err)
}

// build makes a mechanism of its settings, or reconfigures the live one. A nil pointer must not
// become a mechanism that is not nil.
func build[C any, M reconfigured[C]](live mechanism, make func(C) (M, error), cfg C, err error) (mechanism, error) {
	if err != nil {
		return nil, err
	}
	if live != nil {
		return live, live.(M).Reconfigure(cfg)
	}
	m, err := make(cfg)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// reconfigured is a mechanism with settings of type C.
type reconfigured[C any] interface {
	mechanism
	Reconfigure(cfg C) error
}

// kindOf names the mechanism of a gate and what about it cannot change while it lives. A gate of
// another kind is not adopted.
func kindOf(g *GateSpec) string {
	switch {
	case g.Shed != nil:
		return "shed"
	case g.Quota != nil:
		return g.Quota.quotaKind()
	case g.isPair() && g.Each != nil:
		return readWrite + " " + g.Each.by()
	case g.isPair():
		return readWrite
	case g.Each != nil && g.Each.Own:
		return "own " + g.Each.by()
	case g.Each != nil:
		return "each " + g.Each.by()
	}
	return "limit"
}

// mechanism is what decides in a Gate.
type mechanism interface {
	weir.Gate
	weir.TryAdmitter
	weir.Arriver
	weir.Snapshotter
	Close()
	Next() (time.Duration, bool)
	Step()
}

// learner is a mechanism with a controller that learns.
type learner interface {
	Save() (control.State, bool)
	Restore(control.State)
}

// drainer is a mechanism whose permits hold slots. Drain waits until they are back.
type drainer interface {
	Drain(ctx context.Context) error
}

// adopt replaces new gates by live ones that take the new settings. A live gate that is closed or of
// another kind is not adopted.
func (c *compiler) adopt(made map[string]*Gate) map[string]*Gate {
	for name, g := range made {
		live := c.live(name)
		if live == nil || live.kind != g.kind {
			continue
		}
		if _, err := c.mechanism(name, live.mechanism); err != nil {
			continue
		}
		g.close()
		made[name] = live
	}
	return made
}

// live returns the live gate that the new policy can take over under this name.
func (c *compiler) live(name string) *Gate {
	prev := c.opts.Previous
	if prev == nil || prev.now != nil || c.opts.Now != nil {
		return nil
	}
	return prev.gates[name]
}

// link sets what a Gate itself keeps, and builds the chains of the routes. Routes with the same
// gates share one chain, so a permit of one covers a nested call on the other.
func (c *compiler) link(p *Policy) {
	for name, g := range p.gates {
		spec := c.spec.Gates[name]
		g.hooks.Store(&gateHooks{rejected: c.opts.Hooks.Rejected, observed: c.opts.Observed})
		g.closesAfter.Store(int64(spec.closesAfter()))
		signals := spec.sources()
		g.signals.Store(&signals)
		format := spec.quotaFormat()
		g.format.Store(&format)
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
		if names := c.spec.Routes[i].Gates; len(names) > 0 {
			last := c.spec.Gates[names[len(names)-1]]
			rt.longest = last.LongestWait()
		}
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

// hooks are the hooks of the mechanisms. The Gate calls Rejected itself: only it knows what is
// enforced.
func (c *compiler) hooks() weir.Hooks {
	h := c.opts.Hooks
	h.Rejected = nil
	return h
}

// ClosesWithin bounds how long a gate outlives its policy: see [Policy.Replace].
const ClosesWithin = 30 * time.Second

// closesAfter is how long work can still wait at a gate after its last policy was replaced. It
// includes a little more, for work on its way to the gate.
func (g *GateSpec) closesAfter() time.Duration {
	wait := g.LongestWait()
	if wait < 0 {
		return ClosesWithin
	}
	return min(wait+time.Second, ClosesWithin)
}

// LongestWait returns how long work may wait at the gate. It is negative if only the work's own deadline
// counts.
func (g *GateSpec) LongestWait() time.Duration {
	switch {
	case g.Quota != nil && g.Quota.Queue.Len > 0:
		return cmp.Or(time.Duration(g.Quota.Queue.MaxWait), quota.DefaultMaxWait)
	case g.Limit != nil && g.Limit.Queue.Len >= 0:
		return cmp.Or(time.Duration(g.Limit.Queue.MaxWait), limit.DefaultMaxWait)
	}
	return 0
}
