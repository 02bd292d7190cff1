package policy

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
)

// Route is a compiled route: its patterns, its chain of gates, and what its work is like. A Route
// does not change; its gates are live. The nil Route is empty: it is the route of work that matches
// none.
type Route struct {
	name     string
	upstream string
	patterns []string
	gates    []*Gate
	chain    weir.Gate
	work     weir.Work
	timeout  time.Duration
	charging charging
	access   string // read, write; empty: by the method

	demoteAfter int64 // admissions; 0: never
}

// open is the chain of no gates.
var open = weir.All()

// Name returns the route's name.
func (rt *Route) Name() string {
	if rt == nil {
		return ""
	}
	return rt.name
}

// Upstream returns where a proxy sends the route's work, as the Spec says.
func (rt *Route) Upstream() string {
	if rt == nil {
		return ""
	}
	return rt.upstream
}

// Patterns returns the patterns that the route matches, as the policy wrote
// them.
func (rt *Route) Patterns() []string {
	if rt == nil {
		return nil
	}
	return slices.Clone(rt.patterns)
}

// Gates returns the gates of the chain, in order.
func (rt *Route) Gates() []*Gate {
	if rt == nil {
		return nil
	}
	return slices.Clone(rt.gates)
}

// Gate returns the whole chain as one gate, all or nothing, with the modes
// applied: every gate but the last is tried without waiting. It is a
// weir.TryAdmitter and a weir.Arriver too. The nil Route, and a route without
// gates, admit everything.
func (rt *Route) Gate() weir.Gate {
	if rt == nil {
		return open
	}
	return rt.chain
}

// Work returns what every piece of the route's work has in common: Op,
// Priority, Cost and MaxWait. It has no deadline; add Timeout to the time of
// arrival.
func (rt *Route) Work() weir.Work {
	if rt == nil {
		return weir.Work{}
	}
	return rt.work
}

// Timeout returns how long after its arrival an answer to the route's work is
// useful, 0 for ever.
func (rt *Route) Timeout() time.Duration {
	if rt == nil {
		return 0
	}
	return rt.timeout
}

// writes reports whether a request changes something: as the route says, else by its method (RFC
// 9110, section 9.2.1, calls some methods safe).
func (rt *Route) writes(method string) bool {
	if rt != nil && rt.access != "" {
		return rt.work.Write
	}
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, "": // as net/http, GET
		return false
	}
	return true
}

// Words for RouteSpec.Access.
var accesses = []string{"read", "write"}

func (c *compiler) checkRoutes(p *Policy) {
	p.matcher, p.byName = newMatcher(), map[string]*Route{}
	seen := &patterns{matcher: p.matcher}
	for i := range c.spec.Routes {
		at := fault.Path{"routes"}.Index(i)
		rt := c.checkRoute(at, &c.spec.Routes[i])
		rt.charging.ignored = p.identity.ignored
		p.routes = append(p.routes, rt)
		if at := at.At("name"); rt.name != "" && p.byName[rt.name] != nil {
			c.Add(at, fmt.Sprintf("%q is the name of an earlier route too", rt.name), "give each route a name of its own")
		}
		p.byName[rt.name] = rt
		for j, pattern := range rt.patterns {
			c.checkPattern(at.At("match").Index(j), seen, pattern, rt)
		}
	}
	p.matcher.finish()
}

func (c *compiler) checkRoute(at fault.Path, r *RouteSpec) *Route {
	setting.Check(at, *r, &c.List)
	rt := &Route{name: r.Name, upstream: r.Upstream, access: r.Access, patterns: slices.Clone(r.Match), timeout: time.Duration(r.Timeout)}
	if rt.name == "" && len(r.Match) > 0 {
		rt.name = r.Match[0]
	}
	if rt.name == "" {
		c.Add(at.At("match"), "the route has neither a pattern nor a name, so nothing can reach it",
			"write a pattern, such as \"POST /v1/orders/{id}\"")
	} else {
		c.checkName(at.At("name"), "route", rt.name)
	}
	rt.work = weir.Work{Op: rt.name, Exempt: r.Exempt, Write: r.Access == "write", Cost: r.Cost, MaxWait: time.Duration(r.MaxWait)}
	if p, ok := weir.ParsePriority(r.Priority); ok {
		rt.work.Priority = p
	}
	rt.charging = c.checkCharging(at, r)
	c.checkCost(at, r)
	c.checkChain(at, r)
	return rt
}

// checkCost refuses a cost that no admission could ever meet.
func (c *compiler) checkCost(at fault.Path, r *RouteSpec) {
	for _, name := range r.Gates {
		g := c.spec.Gates[name]
		if g.Limit == nil || g.Limit.Count == "requests" {
			continue
		}
		if most := g.Limit.ceiling(); most > 0 && r.Cost > most {
			c.Add(at.At("cost"), fmt.Sprintf("%d can never be met by gate %s, which has at most %d slots", r.Cost, name, most),
				"write a lower cost or give the gate more slots")
		}
	}
}

func (c *compiler) checkChain(at fault.Path, r *RouteSpec) {
	at = at.At("gates")
	for i, name := range r.Gates {
		if _, ok := c.spec.Gates[name]; !ok {
			known := slices.Sorted(maps.Keys(c.spec.Gates))
			c.Add(at.Index(i), fmt.Sprintf("there is no gate %q", name), fault.Suggest(name, known, "gates"))
		}
		if slices.Contains(r.Gates[:i], name) {
			c.Add(at.Index(i), fmt.Sprintf("%q is in the chain already", name), "name each gate once")
		}
	}
}

// patterns are those registered so far, with their paths in the spec.
type patterns struct {
	matcher *matcher
	earlier []string
	at      []fault.Path
}

func (c *compiler) checkPattern(at fault.Path, seen *patterns, pattern string, rt *Route) {
	if problem, instead := patternFault(pattern); problem != "" {
		c.Add(at, problem, instead)
		return
	}
	if err := seen.matcher.add(pattern, rt); err != nil {
		problem, instead := seen.conflict(pattern, err)
		c.Add(at, problem, instead)
		return
	}
	seen.earlier, seen.at = append(seen.earlier, pattern), append(seen.at, at)
}

// checkWildcards refuses identities that name a wildcard which no pattern has.
func (c *compiler) checkWildcards(p *Policy) {
	var known []string
	for _, rt := range p.routes {
		for _, pattern := range rt.patterns {
			known = append(known, wildcards(pattern)...)
		}
	}
	slices.Sort(known)
	known = slices.Compact(known)
	names := []string{"tenant", "user", "client"}
	for i, s := range p.identity.sources() {
		if s.kind != pathSource || i >= len(names) || slices.Contains(known, s.key) {
			continue
		}
		c.Add(fault.Path{"identity", names[i]}, fmt.Sprintf("no route has the wildcard {%s}", s.key),
			fault.Suggest(s.key, known, "wildcards"))
	}
}

// wildcards returns the names in a pattern's braces.
func wildcards(pattern string) []string {
	var names []string
	for {
		_, rest, ok := strings.Cut(pattern, "{")
		name, rest, closed := strings.Cut(rest, "}")
		if !ok || !closed {
			return names
		}
		if name = strings.TrimSuffix(name, "..."); name != "$" {
			names = append(names, name)
		}
		pattern = rest
	}
}
