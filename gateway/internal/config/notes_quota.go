package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// quotaNotes is about quotas that look at what nothing says, or at what the client
// chooses, and about their places in routes.
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
	return append(notes, c.quotaPlaces()...)
}

// quotaPlaces is about routes in which a quota stands after a limit, or could make work
// wait but is not the last gate.
func (c *Config) quotaPlaces() (notes []string) {
	for i, rt := range c.Routes {
		limit := ""
		for k, name := range rt.Gates {
			g := c.Gates[name]
			switch {
			case g.Limit != nil && limit == "":
				limit = name
			case g.Quota == nil:
			case limit != "":
				notes = append(notes, fmt.Sprintf("routes[%d] asks the quota %s after the limit %s: work that has waited for a slot may be refused then; name %s first", i, name, limit, name))
			case g.Quota.Queue.Len > 0 && (k < len(rt.Gates)-1 || c.Upstreams[rt.Upstream].Limit != nil):
				notes = append(notes, fmt.Sprintf("routes[%d] only tries the quota %s, because it is not the last gate: nothing waits in its queue", i, name))
			}
		}
	}
	return notes
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
