package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// quotaNotes is about quotas that look at what nothing says, or at what the client
// chooses, that hold little for many, about their places in routes, and about routes that they never let through.
func (c *Config) quotaNotes() (notes []string) {
	sources := map[string]string{"tenant": c.Identity.Tenant, "user": c.Identity.User, "client": c.Identity.Client}
	for _, name := range slices.Sorted(maps.Keys(c.Gates)) {
		q := c.Gates[name].Quota
		if q == nil {
			continue
		}
		for _, part := range slices.Sorted(maps.Keys(sources)) {
			switch {
			case !q.LooksAt(part):
			case strings.HasPrefix(sources[part], "path:") && q.Each(part):
				notes = append(notes, fmt.Sprintf("the gate %s gives each %s in the path, which the client chooses, a full bucket: name a part of the identity that cannot be invented too, and last a gate with one bucket or a limit", name, part))
			case sources[part] == "" && part != "user": // of a user that nobody says, the address stands in
				notes = append(notes, fmt.Sprintf("the gate %s looks at the %s, but identity.%s says nothing: it is empty in all requests", name, part, part))
			}
		}
	}
	return slices.Concat(notes, c.smallBursts(), c.quotaPlaces(), c.quotaUnits())
}

// smallBursts is about quotas that all clients share, and of which those who come back
// together, in the whole seconds of Retry-After, find less than a second brings.
func (c *Config) smallBursts() (notes []string) {
	for _, name := range slices.Sorted(maps.Keys(c.Gates)) {
		q := c.Gates[name].Quota
		if q == nil || q.Queue.Len > 0 || slices.ContainsFunc([]string{"user", "client", "tenant", "address"}, q.LooksAt) {
			continue
		}
		limits, _ := q.Parse() // faults are told elsewhere
		if i := slices.IndexFunc(limits, func(l quota.Limit) bool { return l.Rate > l.Burst }); i >= 0 {
			notes = append(notes, fmt.Sprintf("the quota %s is shared by all clients, and holds %g, less than the %g that come back in a second: those who come back together, as Retry-After is in whole seconds, find no more; give it a burst of %[3]g, or a queue", name, limits[i].Burst, limits[i].Rate))
		}
	}
	return notes
}

// quotaUnits is about routes whose cost is tokens to a quota, and slots to a limit.
func (c *Config) quotaUnits() (notes []string) {
	for i, rt := range c.Routes {
		tokens, slots := "", ""
		for _, name := range rt.Gates {
			switch g := c.Gates[name]; {
			case g.Quota != nil && g.Quota.Count != "requests":
				tokens = name
			case g.Limit != nil && g.Limit.Count != "requests":
				slots = "gate " + name
			}
		}
		if l := c.Upstreams[rt.Upstream].Limit; l != nil && l.Count != "requests" {
			slots = "upstream " + rt.Upstream
		}
		if tokens != "" && slots != "" && (rt.Cost > 1 || rt.CostFrom != "") {
			notes = append(notes, fmt.Sprintf("routes[%d] takes as many slots of the limit of %s as tokens of the quota %s: if that is not meant, give one of them count: requests", i, slots, tokens))
		}
	}
	return notes
}

// quotaPlaces is about routes that cost more than a quota holds, in which one stands
// after a limit, or could make work wait but is not the last gate.
func (c *Config) quotaPlaces() (notes []string) {
	for i, rt := range c.Routes {
		limit := ""
		for k, name := range rt.Gates {
			g := c.Gates[name]
			switch {
			case g.Limit != nil && limit == "":
				limit = name
			case g.Quota == nil:
			case rt.CostFrom == "" && tooDear(g.Quota, rt.Cost):
				notes = append(notes, fmt.Sprintf("routes[%d] costs %d, more than the quota %s ever holds: whom it limits is always refused; give it a burst of at least %d, or debt: true", i, rt.Cost, name, rt.Cost))
			case limit != "":
				notes = append(notes, fmt.Sprintf("routes[%d] asks the quota %s after the limit %s: work that has waited for a slot may be refused then; name %s first", i, name, limit, name))
			case g.Quota.Queue.Len > 0 && (k < len(rt.Gates)-1 || c.Upstreams[rt.Upstream].Limit != nil):
				notes = append(notes, fmt.Sprintf("routes[%d] only tries the quota %s, because it is not the last gate: nothing waits in its queue", i, name))
			}
		}
	}
	return notes
}

// tooDear reports whether work of a cost is refused by every rule of a quota that has
// a limit, whatever is left.
func tooDear(q *policy.QuotaSpec, cost int64) bool {
	if q.Debt || q.Permissive || q.Count == "requests" {
		return false
	}
	all := append([]policy.QuotaRuleSpec{{QuotaLimitSpec: q.QuotaLimitSpec}}, q.Rules...)
	dear := false
	for i := range all {
		limits, _ := all[i].Parse() // faults are told elsewhere
		if len(limits) == 0 {
			continue
		}
		if !slices.ContainsFunc(limits, func(l quota.Limit) bool { return l.Burst < float64(cost) }) {
			return false
		}
		dear = true
	}
	return dear
}

// storeNotes is about stores that no gate uses.
func (c *Config) storeNotes() (notes []string) {
	for _, name := range slices.Sorted(maps.Keys(c.Stores)) {
		used := false
		for _, g := range c.Gates {
			used = used || g.Quota != nil && g.Quota.Store == name
		}
		if !used {
			notes = append(notes, "no gate uses the store "+name)
		}
	}
	return notes
}
