package config

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// Notes lists what the file allows but its author probably did not mean. Examples are a gate that no
// route uses, a prefix with a star, and an admin listener that other machines can reach.
func (c *Config) Notes() []string {
	var notes []string
	for _, f := range c.noted {
		notes = append(notes, fmt.Sprintf("line %d: %v %s; %s", f.Line, f.Path, f.Problem, f.Instead))
	}
	gates, upstreams := map[string]bool{}, map[string]bool{}
	for i, rt := range c.Routes {
		upstreams[rt.Upstream] = true
		for _, pattern := range rt.Match {
			if note := patternNote(pattern); note != "" {
				notes = append(notes, fmt.Sprintf("routes[%d] (%s) %s", i, pattern, note))
			}
		}
		for _, g := range rt.Gates {
			gates[g] = true
		}
		if n := len(rt.Gates); n > 1 && c.Gates[rt.Gates[n-1]].Shed != nil {
			notes = append(notes, fmt.Sprintf("routes[%d] (%s) ends with the gate %s, where nothing waits: name it first, and work can wait in the others", i, rt.Match[0], rt.Gates[n-1]))
		}
		if len(rt.Gates) == 0 && c.Upstreams[rt.Upstream].Limit == nil {
			notes = append(notes, fmt.Sprintf("routes[%d] (%s) passes no gate: nothing is limited there", i, rt.Match[0]))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Gates)) {
		if !gates[name] {
			notes = append(notes, "no route uses the gate "+name)
		}
	}
	notes = append(notes, c.loadNotes()...)
	notes = append(notes, c.inventedNotes()...)
	notes = append(notes, c.ownNotes()...)
	notes = append(notes, c.queueNotes()...)
	notes = append(notes, c.chainNotes()...)
	notes = append(notes, c.quotaNotes()...)
	notes = append(notes, c.certNotes()...)
	notes = append(notes, c.connectionNotes()...)
	notes = append(notes, c.storeNotes()...)
	used := c.signalsUsed()
	for _, name := range slices.Sorted(maps.Keys(c.Signals)) {
		if !used[name] {
			notes = append(notes, "no gate uses the signal "+name)
		}
	}
	if len(c.Identity.Priorities) > 0 && c.Identity.Priority == "" {
		notes = append(notes, "identity.priorities gives words a priority, but identity.priority names no header to read the words from")
	}
	for _, name := range slices.Sorted(maps.Keys(c.Upstreams)) {
		if !upstreams[name] {
			notes = append(notes, "no route uses the upstream "+name)
		}
	}
	if c.root != nil && c.root.Has(fault.Path{"tracing"}) && !c.Tracing.Enabled() {
		notes = append(notes, "tracing names no endpoint, so there are no spans")
	}
	if strings.HasSuffix(c.Tracing.Endpoint, ":4317") {
		notes = append(notes, "tracing.endpoint has the port 4317, where collectors usually take gRPC; weir sends OTLP over HTTP, usually 4318")
	}
	if c.Admin.Enabled() && !loopback(c.Admin.Address) {
		notes = append(notes, fmt.Sprintf("admin.address %s can be reached from other machines, and readers are not authenticated", c.Admin.Address))
	}
	return notes
}

// loadNotes is about gates that shed by the load of a gate with a room. Its load is 1 as soon as all
// slots are taken, which is no overload: work still waits.
func (c *Config) loadNotes() (notes []string) {
	for _, name := range slices.Sorted(maps.Keys(c.Gates)) {
		s := c.Gates[name].Shed
		if s == nil || s.LoadOf == "" || s.Cursor != nil && s.Cursor.Overload > 1 || s.Thresholds.Critical > 1 {
			continue
		}
		if l := c.Gates[s.LoadOf].Limit; l != nil && l.Queue.Len >= 0 {
			notes = append(notes, fmt.Sprintf("the gate %s sheds by the load of %s, which is 1 whenever all slots are taken: write wait_of, or thresholds (or overload) above 1", name, s.LoadOf))
		}
	}
	return notes
}

// queueNotes is about limits with queue: {len: 0}. It reads like no queue and is the default.
func (c *Config) queueNotes() (notes []string) {
	if c.root == nil {
		return nil
	}
	for _, group := range []string{"gates", "upstreams"} {
		all := c.root.Get(group)
		if all == nil {
			continue
		}
		for _, m := range all.Members {
			path := fault.Path{group, m.Key, "limit", "queue", "len"}
			if n := c.root.At(path); n != nil && n.Text == "0" {
				notes = append(notes, path.String()+": 0 is the default, 1024; for no queue write -1")
			}
		}
	}
	return notes
}

// chainNotes is about gates that are the last of one route and an earlier one of another. The work of
// the first route waits there and goes first, whatever its priority. The work of the other never waits.
func (c *Config) chainNotes() (notes []string) {
	waits := map[string]int{} // where a gate is the last, by its name
	for i, rt := range c.Routes {
		if n := len(rt.Gates); n > 0 && c.Upstreams[rt.Upstream].Limit == nil {
			waits[rt.Gates[n-1]] = i
		}
	}
	for i, rt := range c.Routes {
		for k, name := range rt.Gates {
			first, ok := waits[name]
			last := k == len(rt.Gates)-1 && c.Upstreams[rt.Upstream].Limit == nil
			if g := c.Gates[name]; ok && !last && g.Limit != nil && g.Limit.Queue.Len >= 0 {
				notes = append(notes, fmt.Sprintf("routes[%d] only tries the gate %s, but the work of routes[%d] waits there: while any waits, routes[%[1]d] gets no slot; name %[2]s last in both, or give it queue: {len: -1}", i, name, first))
			}
		}
	}
	return notes
}

// inventedNotes is about names that the client chooses. Each new name gets slots of its own.
func (c *Config) inventedNotes() (notes []string) {
	if strings.HasPrefix(c.Identity.User, "path:") {
		notes = append(notes, "identity.user comes from the path, which the client chooses: a client that invents users gets a share of the slots for each")
	}
	sources := map[string]string{"": c.Identity.Tenant, "tenant": c.Identity.Tenant, "user": c.Identity.User, "client": c.Identity.Client}
	for _, name := range slices.Sorted(maps.Keys(c.Gates)) {
		if e := c.Gates[name].Each; e != nil && strings.HasPrefix(sources[e.By], "path:") {
			notes = append(notes, fmt.Sprintf("the gate %s has a limit for each name in the path, which the client chooses: name a gate with one limit after it", name))
		}
	}
	return notes
}

// ownNotes says how much memory the limiters for each key can need. The file does not show it.
func (c *Config) ownNotes() (notes []string) {
	for _, name := range slices.Sorted(maps.Keys(c.Gates)) {
		e := c.Gates[name].Each
		if e == nil || !e.Own {
			continue
		}
		most := e.MaxKeys
		if most == 0 {
			most = policy.DefaultOwnKeys
		}
		by, what, parts := e.By, "a limiter", 1
		if by == "" {
			by = "tenant"
		}
		l := c.Gates[name].Limit
		if l.Probe.ReadWrite {
			what, parts = "two limiters", 2
		}
		notes = append(notes, fmt.Sprintf("the gate %s makes %s for each %s: %d at most (max_keys), in up to %d MiB of memory", name, what, by, most, max(1, most*parts*policy.OwnKeyBytes>>20)))
		if l.Controller == "lag" || l.Controller == "drain" || l.Controller == "resource" {
			notes = append(notes, fmt.Sprintf("the gate %s has a controller %s for each %s, and all of them read the same signals: leave own out, and one controller sizes all", name, l.Controller, by))
		}
	}
	return notes
}

// certNotes is about client certificates that no listener asks for, or that identity does not read.
func (c *Config) certNotes() (notes []string) {
	asks := slices.ContainsFunc(c.Listeners, func(l Listener) bool { return l.TLS != nil && l.TLS.ClientCA != "" })
	optional := slices.ContainsFunc(c.Listeners, func(l Listener) bool {
		return l.TLS != nil && l.TLS.ClientCA != "" && l.TLS.ClientAuth == ClientOptional
	})
	reads := len(c.Identity.TrustedCerts) > 0
	for _, s := range []struct{ key, source string }{
		{"tenant", c.Identity.Tenant}, {"user", c.Identity.User}, {"client", c.Identity.Client},
	} {
		if !strings.HasPrefix(s.source, "cert:") {
			continue
		}
		reads = true
		if !asks {
			notes = append(notes, "identity."+s.key+" comes from client certificates, but no listener has tls: {client_ca: ...}, so no client shows one")
		}
	}
	if len(c.Identity.TrustedCerts) > 0 && !asks {
		notes = append(notes, "identity.trusted_certs names client certificates, but no listener has tls: {client_ca: ...}, so no client shows one")
	}
	if optional && !reads {
		notes = append(notes, "a listener has client_auth: optional, but identity reads nothing from certificates: they make no difference")
	}
	return notes
}

// connectionNotes is about limits of one address that are as high as the limit of all addresses.
func (c *Config) connectionNotes() (notes []string) {
	for i, l := range c.Listeners {
		if l.Connections.Mode == policy.Off {
			continue
		}
		if n := l.Connections.PerAddress; n > 0 && n >= l.MaxConnections {
			notes = append(notes, fmt.Sprintf("listeners[%d].connections.per_address is %d of max_connections %d: one address can take all", i, n, l.MaxConnections))
		}
		if r := l.Connections.RatePerAddress; r > 0 && l.Connections.Rate > 0 && r >= l.Connections.Rate {
			notes = append(notes, fmt.Sprintf("listeners[%d].connections.rate_per_address is %g of rate %g: one address can take all", i, r, l.Connections.Rate))
		}
	}
	return notes
}

// signalsUsed returns the signals that gates use.
func (c *Config) signalsUsed() map[string]bool {
	used := map[string]bool{}
	note := func(l *policy.LimitSpec) {
		if l == nil {
			return
		}
		for _, name := range append(slices.Clone(l.Signals), l.Lag.Signal, l.Drain.Signal) {
			used[name] = true
		}
	}
	for _, g := range c.Gates {
		note(g.Limit)
		if g.Shed != nil {
			for _, name := range g.Shed.Signals {
				used[name] = true
			}
		}
	}
	for _, u := range c.Upstreams {
		note(u.Limit)
	}
	return used
}

// patternNote says what a pattern means if its author probably meant another kind: a prefix with a
// star, a regular expression, or a path without its first slash. Otherwise it returns nothing.
func patternNote(pattern string) string {
	host, path, _ := strings.Cut(pattern[strings.LastIndexAny(pattern, " \t")+1:], "/")
	switch {
	case strings.ContainsAny(host, "^*"), strings.Contains(path, "*"):
		return "has ^ or *, which match only themselves; a path that ends with / matches everything below it"
	case host != "" && host != "localhost" && !strings.ContainsAny(host, ".:"):
		return fmt.Sprintf("matches requests to the host %s only; a path begins with /", host)
	}
	return ""
}

// loopback reports whether only this machine can reach an address.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// quotaNotes is about quotas. Some count by a part of the identity that is always empty, or that the
// client chooses. The other notes are those of smallBursts, quotaPlaces and quotaUnits.
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
				notes = append(notes, fmt.Sprintf("the gate %s gives each %s in the path a full bucket, and the client chooses the path: count also by a part of the identity that no client can invent, and end the route with a gate that has one bucket or a limit", name, part))
			case sources[part] == "" && part != "user": // the address stands in for an empty user
				notes = append(notes, fmt.Sprintf("the gate %s counts by the %s, but identity.%[2]s names no source: it is empty in all requests", name, part))
			}
		}
	}
	return slices.Concat(notes, c.smallBursts(), c.quotaPlaces(), c.quotaUnits())
}

// smallBursts is about quotas that all clients share, with a burst below what comes back in a second.
// Retry-After is in whole seconds, so refused clients return together and find only the burst.
func (c *Config) smallBursts() (notes []string) {
	for _, name := range slices.Sorted(maps.Keys(c.Gates)) {
		q := c.Gates[name].Quota
		if q == nil || q.Queue.Len > 0 || slices.ContainsFunc([]string{"user", "client", "tenant", "address"}, q.LooksAt) {
			continue
		}
		limits, _ := q.Parse() // check reports the faults
		if i := slices.IndexFunc(limits, func(l quota.Window) bool { return l.Rate > l.Burst }); i >= 0 {
			notes = append(notes, fmt.Sprintf("the quota %s is shared by all clients, and holds %g, less than the %g that come back in a second: Retry-After is in whole seconds, so refused clients return together and find only %[2]g; give it a burst of %[3]g, or a queue", name, limits[i].Burst, limits[i].Rate))
		}
	}
	return notes
}

// quotaUnits is about routes with a cost that a quota counts in tokens and a limit in slots.
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

// quotaPlaces is about routes that cost more than a quota ever holds. It is also about quotas that stand
// after a limit, or that have a queue but are not the last gate.
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
				notes = append(notes, fmt.Sprintf("routes[%d] costs %d, more than the quota %s ever holds: all work that it limits is refused; give it a burst of at least %d, or debt: true", i, rt.Cost, name, rt.Cost))
			case limit != "":
				notes = append(notes, fmt.Sprintf("routes[%d] asks the quota %s after the limit %s: work may wait for a slot and be refused after that; name %s first", i, name, limit, name))
			case g.Quota.Queue.Len > 0 && (k < len(rt.Gates)-1 || c.Upstreams[rt.Upstream].Limit != nil):
				notes = append(notes, fmt.Sprintf("routes[%d] only tries the quota %s, because it is not the last gate: nothing waits in its queue", i, name))
			}
		}
	}
	return notes
}

// tooDear reports whether every rule of a quota with a limit refuses work of this cost, even with full
// buckets.
func tooDear(q *policy.QuotaSpec, cost int64) bool {
	if q.Debt || q.Permissive || q.Count == "requests" {
		return false
	}
	all := append([]policy.QuotaRuleSpec{{QuotaLimitSpec: q.QuotaLimitSpec}}, q.Rules...)
	dear := false
	for i := range all {
		limits, _ := all[i].Parse() // check reports the faults
		if len(limits) == 0 {
			continue
		}
		if !slices.ContainsFunc(limits, func(l quota.Window) bool { return l.Burst < float64(cost) }) {
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
