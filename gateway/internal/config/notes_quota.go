package config

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/quota"
)

// quotaNotes is about quotas. Some count by a part of the identity that is always empty, or that the
// client chooses. The other notes are those of the functions that it ends with.
func (w *warner) quotaNotes() {
	sources := map[string]string{"tenant": w.Identity.Tenant, "user": w.Identity.User, "client": w.Identity.Client}
	for _, name := range slices.Sorted(maps.Keys(w.Gates)) {
		q := w.Gates[name].Quota
		if q == nil || w.onlyKafka(name) {
			continue
		}
		for _, part := range slices.Sorted(maps.Keys(sources)) {
			switch {
			case !q.LooksAt(part):
			case strings.HasPrefix(sources[part], "path:") && q.Each(part):
				w.warn(fault.Path{"gates", name, "quota"}, "the gate %s gives each %s in the path a full bucket, and the client chooses the path. Count also by a part of the identity that no client can invent. End the route with a gate that has one bucket or a limit", name, part)
			case sources[part] == "" && part != "user": // the address stands in for an empty user
				w.warn(fault.Path{"gates", name, "quota"}, "the gate %s counts by the %s, but identity.%[2]s names no source: it is empty in all requests", name, part)
			}
		}
	}
	w.exemptAll()
	w.zeroBursts()
	w.smallBursts()
	w.quotaPlaces()
	w.quotaUnits()
	w.domainsWithoutLimit()
}

// domainsWithoutLimit is about files of the rate limit service that nobody asks for, or that hold no limit at all. As in envoyproxy/ratelimit that is no
// fault: whoever has deleted the last limit wants the rest of the file in force.
func (w *warner) domainsWithoutLimit() {
	if len(w.RateLimit.Files) > 0 && !w.servesRateLimit() {
		w.warn(fault.Path{"rate_limit_service", "files"}, "rate_limit_service.files limit nothing, because no listener serves %s; write serve: [%[1]s] at one", ServeRateLimit)
	} else if w.servesRateLimit() && !slices.ContainsFunc(slices.Collect(maps.Keys(w.withDomains())), w.IsDomain) {
		w.warn(fault.Path{"rate_limit_service", "files"}, "rate_limit_service.files have no limit, so every Envoy that asks hears OK; write descriptors: with a rate_limit")
	}
}

// anonymousNotes is about gates that count by users or tenants where the identity names no source. An
// address then stands for each user, and behind a proxy all have the same.
func (w *warner) anonymousNotes() {
	const stands = "The address stands for the user, and behind a proxy that names no clients all share one"
	for _, name := range slices.Sorted(maps.Keys(w.Gates)) {
		g := w.Gates[name]
		if w.onlyKafka(name) {
			continue
		}
		if q := g.Quota; q != nil && w.Identity.User == "" && q.LooksAt("user") {
			w.warn(fault.Path{"gates", name, "quota"}, "the gate %s counts by the user, but identity.user names no source. %s; write identity: {user: header:X-User}. Write by: [address] if addresses are meant", name, stands)
		}
		if g.Each == nil {
			continue
		}
		switch by := g.Each.By; {
		case by == "user" && w.Identity.User == "":
			w.warn(fault.Path{"gates", name, "each"}, "the gate %s has a limit for each user, but identity.user names no source. %s; write identity: {user: header:X-User}. Write user: address if addresses are meant", name, stands)
		case (by == "tenant" || by == "") && w.Identity.Tenant == "":
			w.warn(fault.Path{"gates", name, "each"}, "the gate %s has a limit for each tenant, but identity.tenant names no source: all share one; write identity: {tenant: header:X-Tenant}", name)
		case by == "client" && w.Identity.Client == "":
			w.warn(fault.Path{"gates", name, "each"}, "the gate %s has a limit for each client, but identity.client names no source: all share one; write identity: {client: address}", name)
		}
	}
}

// onlyKafka reports whether a gate counts for clients of Kafka, and for no route. Who they are, no identity says.
func (w *warner) onlyKafka(gate string) bool {
	return w.servesKafka(gate) && !slices.ContainsFunc(w.Routes, func(r Route) bool { return slices.Contains(r.Gates, gate) })
}

// everybody are the patterns of rules that match all work, or nearly.
var everybody = map[string]string{
	"user=*": "every user", "client=*": "every client", "tenant=*": "every tenant", "address=*": "every address",
	"address=0.0.0.0/0": "every address of IPv4", "address=::/0": "every address of IPv6",
}

// exemptAll is about rules that exempt everybody from the one bucket of a quota.
func (w *warner) exemptAll() {
	for _, name := range slices.Sorted(maps.Keys(w.Gates)) {
		q := w.Gates[name].Quota
		if q == nil || len(q.By) > 0 || len(limitsOf(q)[0]) == 0 {
			continue
		}
		for i := range q.Rules {
			if all := everybody[q.Rules[i].Pattern().String()]; q.Rules[i].Exempt && all != "" {
				at := fault.Path{"gates", name, "quota", "rules"}.Index(i)
				w.warn(at.At("exempt"), "%v exempts %s from the limit of the quota; name whom you mean, or leave the rule out", at, all)
			}
		}
	}
}

// zeroBursts is about bursts of 0, which mean none elsewhere and are the default here.
func (w *warner) zeroBursts() {
	if w.root == nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(w.Gates)) {
		q := w.Gates[name].Quota
		if q == nil {
			continue
		}
		for i, limits := range limitsOf(q) {
			at := fault.Path{"gates", name, "quota"}
			if i > 0 {
				at = at.At("rules").Index(i - 1)
			}
			at = at.At("burst")
			if n := w.root.At(at); n != nil && len(limits) > 0 {
				if zero, err := strconv.ParseFloat(n.Text, 64); err == nil && zero == 0 {
					w.warn(at, "%v is 0, which is as if it were left out. The bucket holds %s; write burst: 1 if no two may come at once, or leave it out", at, written(limits[0].Burst))
				}
			}
		}
	}
}

// smallBursts is about quotas that all clients share, with a burst below what comes back in a second.
// Retry-After is in whole seconds, so refused clients return together and find only the burst.
func (w *warner) smallBursts() {
	for _, name := range slices.Sorted(maps.Keys(w.Gates)) {
		q := w.Gates[name].Quota
		if q == nil || q.Queue.Len > 0 || w.onlyKafka(name) || slices.ContainsFunc([]string{"user", "client", "tenant", "address"}, q.LooksAt) {
			continue
		}
		limits, _ := q.Parse() // check reports the faults
		if i := slices.IndexFunc(limits, func(l quota.Window) bool { return l.Rate > l.Burst }); i >= 0 {
			w.warn(fault.Path{"gates", name, "quota"}, "the quota %s is shared by all clients, and holds %g, less than the %g that come back in a second. Retry-After is in whole seconds, so refused clients return together and find only %[2]g; give it a burst of %[3]g, or a queue", name, limits[i].Burst, limits[i].Rate)
		}
	}
}

// quotaUnits is about routes with a cost that a quota counts in tokens and a limit in slots.
func (w *warner) quotaUnits() {
	for i, rt := range w.Routes {
		tokens, slots := "", ""
		for _, name := range rt.Gates {
			switch g := w.Gates[name]; {
			case g.Quota != nil && g.Quota.Count != "requests":
				tokens = name
			case g.Limit != nil && g.Limit.Count != "requests":
				slots = "gate " + name
			}
		}
		if l := w.Upstreams[rt.Upstream].Limit; l != nil && l.Count != "requests" {
			slots = "upstream " + rt.Upstream
		}
		if tokens != "" && slots != "" && (rt.Cost > 1 || rt.CostFrom != "") {
			w.warn(fault.Path{"routes"}.Index(i), "routes[%d] takes as many slots of the limit of %s as tokens of the quota %s. If that is not meant, give one of them count: requests", i, slots, tokens)
		}
	}
}

// quotaPlaces is about routes that cost more than a quota ever holds. It is also about quotas that stand
// after a limit, or that have a queue but are not the last gate.
func (w *warner) quotaPlaces() {
	for i, rt := range w.Routes {
		limit := ""
		for k, name := range rt.Gates {
			g := w.Gates[name]
			switch {
			case g.Limit != nil && limit == "":
				limit = name
			case g.Quota == nil:
			case rt.CostFrom == "" && tooDear(g.Quota, rt.Cost):
				w.warn(fault.Path{"routes"}.Index(i).At("cost"), "routes[%d] costs %d, more than the quota %s ever holds: all work that it limits is refused. Give it a burst of at least %d, or debt: true", i, rt.Cost, name, rt.Cost)
			case limit != "":
				w.warn(fault.Path{"routes"}.Index(i).At("gates").Index(k), "routes[%d] asks the quota %s after the limit %s: work may wait for a slot and be refused after that; name %s first", i, name, limit, name)
			case g.Quota.Queue.Len > 0 && k < len(rt.Gates)-1:
				w.warn(fault.Path{"routes"}.Index(i).At("gates").Index(k), "routes[%d] only tries the quota %s, because it is not the last gate: nothing waits in its queue", i, name)
			}
		}
	}
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
