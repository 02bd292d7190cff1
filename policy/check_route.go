package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/weir"
)

func (c *compiler) checkRoutes(p *Policy) {
	p.matcher, p.byName = newMatcher(), map[string]*Route{}
	seen := &patterns{matcher: p.matcher}
	for i := range c.spec.Routes {
		at := place{"routes"}.index(i)
		rt := c.checkRoute(at, &c.spec.Routes[i])
		rt.charging.ignored = p.identity.ignored
		p.routes = append(p.routes, rt)
		if at := at.at("name"); rt.name != "" && p.byName[rt.name] != nil {
			c.add(at, fmt.Sprintf("%q is the name of an earlier route too", rt.name), "give each route a name of its own")
		}
		p.byName[rt.name] = rt
		for j, pattern := range rt.patterns {
			c.checkPattern(at.at("match").index(j), seen, pattern, rt)
		}
	}
	p.matcher.finish()
}

func (c *compiler) checkRoute(at place, r *RouteSpec) *Route {
	rt := &Route{name: r.Name, access: r.Access, patterns: slices.Clone(r.Match), timeout: time.Duration(r.Timeout)}
	if rt.name == "" && len(r.Match) > 0 {
		rt.name = r.Match[0]
	}
	if rt.name == "" {
		c.add(at.at("match"), "the route has neither a pattern nor a name, so nothing can reach it",
			"write a pattern, such as \"POST /v1/orders/{id}\"")
	} else {
		c.checkName(at.at("name"), "route", rt.name)
	}
	rt.work = weir.Work{Op: rt.name, Exempt: r.Exempt, Write: r.Access == "write", Cost: r.Cost, MaxWait: time.Duration(r.MaxWait)}
	if p, ok := weir.ParsePriority(r.Priority); ok {
		rt.work.Priority = p
	}
	c.checkWord(at.at("priority"), "priority", r.Priority, priorities)
	c.checkWord(at.at("access"), "access", r.Access, accesses)
	if r.Timeout < 0 {
		c.add(at.at("timeout"), fmt.Sprintf("%v is negative", time.Duration(r.Timeout)),
			"write how long an answer is useful, such as 2s, or leave it out")
	}
	if r.MaxWait < 0 && r.MaxWait != NoDuration {
		c.add(at.at("max_wait"), fmt.Sprintf("%v is negative", time.Duration(r.MaxWait)),
			"write the longest wait, such as 500ms, or -1 to refuse instead of waiting")
	}
	rt.charging = c.checkCharging(at, r)
	c.checkCost(at, r)
	c.checkChain(at, r)
	return rt
}

// checkCost refuses a cost that no admission could ever meet.
func (c *compiler) checkCost(at place, r *RouteSpec) {
	if r.Cost < 0 {
		c.add(at.at("cost"), fmt.Sprintf("%d is negative", r.Cost), "write how many slots a request takes, 1 or more")
		return
	}
	if r.Cost > largestCost {
		c.add(at.at("cost"), fmt.Sprintf("%d is more than any quota holds", r.Cost), fmt.Sprintf("write at most %d", largestCost))
	}
	for _, name := range r.Gates {
		g := c.spec.Gates[name]
		if g.Limit == nil || g.Limit.Count == "requests" {
			continue
		}
		if most := g.Limit.ceiling(); most > 0 && r.Cost > most {
			c.add(at.at("cost"), fmt.Sprintf("%d can never be met by gate %s, which has at most %d slots", r.Cost, name, most),
				"write a lower cost or give the gate more slots")
		}
	}
}

func (c *compiler) checkChain(at place, r *RouteSpec) {
	at = at.at("gates")
	for i, name := range r.Gates {
		if _, ok := c.spec.Gates[name]; !ok {
			known := slices.Sorted(maps.Keys(c.spec.Gates))
			c.add(at.index(i), fmt.Sprintf("there is no gate %q", name), suggest(name, known, "gates"))
		}
		if slices.Contains(r.Gates[:i], name) {
			c.add(at.index(i), fmt.Sprintf("%q is in the chain already", name), "name each gate once")
		}
	}
}

// patterns are the ones registered so far, with the places they stand at.
type patterns struct {
	matcher *matcher
	earlier []string
	at      []place
}

func (c *compiler) checkPattern(at place, seen *patterns, pattern string, rt *Route) {
	if problem, instead := patternFault(pattern); problem != "" {
		c.add(at, problem, instead)
		return
	}
	if err := seen.matcher.add(pattern, rt); err != nil {
		problem, instead := seen.conflict(pattern, err)
		c.add(at, problem, instead)
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
		c.add(place{"identity", names[i]}, fmt.Sprintf("no route has the wildcard {%s}", s.key),
			suggest(s.key, known, "wildcards"))
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
