package config

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
	"github.com/weir-go/weir/policy"
)

// Note is what a file allows and its author should hear of.
type Note struct {
	fault.Fault
	// Warning is true if it is probably a mistake, false if it is only good to know.
	Warning bool
}

// Error returns the place, the kind, what there is to say, and what to write instead.
func (n Note) Error() string {
	at, kind := n.At(), "note"
	if n.Warning {
		kind = "warning"
	}
	return at + kind + ": " + n.Text()
}

// At returns where it stands, as in "weir.yaml:12:5: "; empty where that is not known.
func (n Note) At() string {
	switch {
	case n.File != "" && n.Line > 0:
		return fmt.Sprintf("%s:%d:%d: ", n.File, n.Line, n.Col)
	case n.File != "":
		return n.File + ": "
	}
	return ""
}

// Text returns what there is to say, and what to write instead.
func (n Note) Text() string {
	if n.Instead == "" {
		return n.Problem
	}
	return n.Problem + "; " + n.Instead
}

// Notes lists what the file allows but its author probably did not mean, in the order of its lines.
// Examples are a gate that no route uses, a prefix with a star, and an admin listener that other
// machines can reach.
func (c *Config) Notes() []Note {
	w := &warner{Config: c}
	for _, f := range c.noted {
		f.Problem = f.Path.String() + ": " + f.Problem
		w.list = append(w.list, Note{f, true})
	}
	w.routeNotes()
	w.exemptNotes()
	w.latencyNotes()
	w.loadNotes()
	w.inventedNotes()
	w.ownNotes()
	w.queueNotes()
	w.chainNotes()
	w.quotaNotes()
	w.anonymousNotes()
	w.certNotes()
	w.expiryNotes()
	w.connectionNotes()
	w.trustNotes()
	w.shownNotes()
	w.forwardedNotes()
	w.addressNotes()
	w.envoyNotes()
	w.tracingNotes()
	w.poolNotes()
	w.ownListenerNotes()
	w.ownBrokerNotes()
	w.nodePortNotes()
	w.kafkaNotes()
	w.kafkaLoginNotes()
	w.secretNotes()
	w.fileNotes()
	w.unusedNotes()
	slices.SortStableFunc(w.list, func(a, b Note) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
	})
	if c.env != nil {
		for i := range w.list {
			c.env.hide(&w.list[i].Fault)
		}
	}
	return w.list
}

// warner collects notes on a configuration.
type warner struct {
	*Config
	list []Note
}

// warn adds a warning about the setting at a path, or about what should stand there.
func (w *warner) warn(at fault.Path, format string, args ...any) { w.add(true, at, format, args...) }

// remark adds a note that is no warning.
func (w *warner) remark(at fault.Path, format string, args ...any) { w.add(false, at, format, args...) }

func (w *warner) add(warning bool, at fault.Path, format string, args ...any) {
	f := fault.Fault{Path: at, File: w.name}
	if w.root != nil {
		f.Place = w.root.Where(at)
	}
	f.Problem, f.Instead, _ = strings.Cut(fmt.Sprintf(format, args...), "; ")
	w.list = append(w.list, Note{f, warning})
}

// shortestUseful is the least timeout that is probably meant: a shorter one is in the wrong unit.
const shortestUseful = policy.Duration(time.Millisecond)

// routeNotes is about patterns, times in which no answer can come, and chains of gates that end where nothing waits, or are empty.
func (w *warner) routeNotes() {
	for i, rt := range w.Routes {
		at := fault.Path{"routes"}.Index(i)
		for k, pattern := range rt.Match {
			if note := patternNote(pattern); note != "" {
				w.warn(at.At("match").Index(k), "routes[%d] (%s) %s", i, pattern, note)
			}
		}
		if rt.Timeout > 0 && rt.Timeout < shortestUseful {
			w.warn(at.At("timeout"), "routes[%d] (%s) has a timeout of %v: hardly any answer comes so soon; if another unit was meant, write it, such as 30s", i, rt.Match[0], time.Duration(rt.Timeout))
		}
		if n := len(rt.Gates); n > 1 && w.Gates[rt.Gates[n-1]].Shed != nil {
			w.warn(at.At("gates"), "routes[%d] (%s) ends with the gate %s, where nothing waits: name it first, and work can wait in the others", i, rt.Match[0], rt.Gates[n-1])
		}
		if len(rt.Gates) == 0 && w.Upstreams[rt.Upstream].Limit == nil {
			w.warn(at, "routes[%d] (%s) passes no gate: nothing is limited there", i, rt.Match[0])
		}
	}
}

// exemptNotes is about routes whose gates limit nobody, because all routes with gates are exempt.
func (w *warner) exemptNotes() {
	first := -1
	for i, rt := range w.Routes {
		switch {
		case len(rt.Gates) == 0:
		case !rt.Exempt || slices.ContainsFunc(rt.Gates, w.servesOthers):
			return
		case first < 0:
			first = i
		}
	}
	if first >= 0 {
		w.warn(fault.Path{"routes"}.Index(first).At("exempt"), "every route that passes a gate is exempt, so these gates limit nobody; leave exempt out where they are to hold")
	}
}

// servesOthers reports whether a gate decides about more than the work of routes: it is a domain of the
// rate limit service, or serves Kafka.
func (w *warner) servesOthers(gate string) bool {
	return w.looksAtDescriptors(gate) && w.servesRateLimit() || w.servesKafka(gate)
}

// longestAnswer is more than an answer takes: response_timeout may be no longer.
const longestAnswer = policy.Duration(24 * time.Hour)

// latencyNotes is about thresholds that no latency reaches.
func (w *warner) latencyNotes() {
	check := func(at fault.Path, l *policy.LimitSpec) {
		if l != nil && l.Controller == "aimd" && l.Threshold > longestAnswer {
			w.warn(at.At("limit", "threshold"), "%v.limit.threshold is %v: hardly any answer takes so long, so no latency cuts the limit; write about half of what clients wait", at, time.Duration(l.Threshold))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.Gates)) {
		check(fault.Path{"gates", name}, w.Gates[name].Limit)
	}
	for _, name := range slices.Sorted(maps.Keys(w.Upstreams)) {
		check(fault.Path{"upstreams", name}, w.Upstreams[name].Limit)
	}
}

// unusedNotes is about what is defined and used by nothing.
func (w *warner) unusedNotes() {
	gates, upstreams := map[string]bool{}, map[string]bool{}
	for _, rt := range w.Routes {
		upstreams[rt.Upstream] = true
		for _, g := range rt.Gates {
			gates[g] = true
		}
	}
	for name := range w.Gates {
		gates[name] = gates[name] || w.servesOthers(name)
	}
	unused(w, "route", "gate", w.Gates, gates)
	unused(w, "route", "upstream", w.Upstreams, upstreams)
	unused(w, "gate", "signal", w.Signals, w.signalsUsed())
	stores := map[string]bool{w.Quotas.Store: true, w.RateLimit.Store: true}
	for _, g := range w.Gates {
		if g.Quota != nil {
			stores[g.Quota.Store] = true
		}
	}
	unused(w, "gate", "store", w.Stores, stores)
	clusters := map[string]bool{}
	for _, s := range w.Signals {
		clusters[s.Cluster] = true
	}
	for _, name := range w.KafkaListeners() {
		clusters[name] = true
	}
	unused(w, "signal", "cluster", w.Config.Kafka, clusters)
	if len(w.Identity.Priorities) > 0 && w.Identity.Priority == "" {
		w.warn(fault.Path{"identity", "priorities"}, "identity.priorities gives words a priority, but identity.priority names no header to read the words from")
	}
}

func unused[V any](w *warner, by, kind string, defined map[string]V, used map[string]bool) {
	for _, name := range slices.Sorted(maps.Keys(defined)) {
		if !used[name] {
			w.warn(fault.Path{kind + "s", name}, "no %s uses the %s %s", by, kind, name)
		}
	}
}

// poolNotes is about bounds on the connections to targets without a limit: what waits for a
// connection is in no gate.
func (w *warner) poolNotes() {
	for _, name := range slices.Sorted(maps.Keys(w.Upstreams)) {
		if u := w.Upstreams[name]; u.MaxConnections > 0 && u.Limit == nil {
			w.warn(fault.Path{"upstreams", name, "max_connections"},
				"upstreams.%s has max_connections and no limit: further requests wait for a connection where no gate sees them; add limit: {limit: %d}", name, u.MaxConnections)
		}
	}
}

// loadNotes is about gates that shed by the load of a gate with a room. Its load is 1 as soon as all
// slots are taken, which is no overload: work still waits.
func (w *warner) loadNotes() {
	for _, name := range slices.Sorted(maps.Keys(w.Gates)) {
		s := w.Gates[name].Shed
		if s == nil || s.LoadOf == "" || s.Cursor != nil && s.Cursor.Overload > 1 || s.Thresholds.Critical > 1 {
			continue
		}
		if l := w.Gates[s.LoadOf].Limit; l != nil && l.Queue.Len >= 0 {
			w.warn(fault.Path{"gates", name, "shed", "load_of"}, "the gate %s sheds by the load of %s, which is 1 whenever all slots are taken: write wait_of, or thresholds (or overload) above 1", name, s.LoadOf)
		}
	}
}

// queueNotes is about queues with len: 0 or max_wait: 0s. They read like no queue and are the defaults.
func (w *warner) queueNotes() {
	if w.root == nil {
		return
	}
	for _, group := range []string{"gates", "upstreams"} {
		all := w.root.Get(group)
		if all == nil {
			continue
		}
		for _, m := range all.Members {
			queue := fault.Path{group, m.Key, "limit", "queue"}
			if at := queue.At("len"); w.zero(at) {
				w.warn(at, "%v: 0 is the default, 1024; for no queue write queue: off", at)
			}
			if at := queue.At("max_wait"); w.zero(at) {
				w.warn(at, "%v: 0 is the default, 2s; for no queue write queue: off", at)
			}
			if q := w.Gates[m.Key].Quota; group == "gates" && q != nil && q.Queue.Len > 0 {
				if at := (fault.Path{group, m.Key, "quota", "queue", "max_wait"}); w.zero(at) {
					w.warn(at, "%v: 0 is the default, 2s; for no queue leave queue out", at)
				}
			}
		}
	}
}

// zero reports whether the file has a number or a duration of 0 at a path.
func (w *warner) zero(at fault.Path) bool {
	n := w.root.At(at)
	if n == nil {
		return false
	}
	d, err := setting.ParseDuration(n.Text)
	return err == nil && d == 0
}

// chainNotes is about gates that are the last of one route and an earlier one of another. The work of
// the first route waits there and goes first, whatever its priority. The work of the other never waits.
func (w *warner) chainNotes() {
	waits := map[string]int{} // where a gate is the last, by its name
	for i, rt := range w.Routes {
		if n := len(rt.Gates); n > 0 {
			waits[rt.Gates[n-1]] = i
		}
	}
	for i, rt := range w.Routes {
		for k, name := range rt.Gates {
			first, ok := waits[name]
			last := k == len(rt.Gates)-1
			if g := w.Gates[name]; ok && !last && g.Limit != nil && g.Limit.Queue.Len >= 0 {
				w.warn(fault.Path{"routes"}.Index(i).At("gates").Index(k), "routes[%d] only tries the gate %s, but the work of routes[%d] waits there: while any waits, routes[%[1]d] gets no slot. Name %[2]s last in both, or give it queue: {len: -1}", i, name, first)
			}
		}
	}
}

// inventedNotes is about names that the client chooses. Each new name gets slots of its own.
func (w *warner) inventedNotes() {
	if strings.HasPrefix(w.Identity.User, "path:") {
		w.warn(fault.Path{"identity", "user"}, "identity.user comes from the path, which the client chooses: a client that invents users gets a share of the slots for each")
	}
	sources := map[string]string{"": w.Identity.Tenant, "tenant": w.Identity.Tenant, "user": w.Identity.User, "client": w.Identity.Client}
	for _, name := range slices.Sorted(maps.Keys(w.Gates)) {
		if e := w.Gates[name].Each; e != nil && strings.HasPrefix(sources[e.By], "path:") {
			w.warn(fault.Path{"gates", name, "each"}, "the gate %s has a limit for each name in the path, which the client chooses: name a gate with one limit after it", name)
		}
	}
}

// ownNotes says how much memory the limiters for each key can need. The file does not show it.
func (w *warner) ownNotes() {
	for _, name := range slices.Sorted(maps.Keys(w.Gates)) {
		e := w.Gates[name].Each
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
		l := w.Gates[name].Limit
		if l.Probe.ReadWrite {
			what, parts = "two limiters", 2
		}
		w.remark(fault.Path{"gates", name, "each"}, "the gate %s makes %s for each %s: %d at most (max_keys), in up to %d MiB of memory", name, what, by, most, max(1, most*parts*policy.OwnKeyBytes>>20))
		if l.Controller == "lag" || l.Controller == "drain" || l.Controller == "resource" {
			w.warn(fault.Path{"gates", name, "each", "own"}, "the gate %s has a controller %s for each %s, and all of them read the same signals. Leave own out, and one controller sizes all", name, l.Controller, by)
		}
	}
}

// signalsUsed returns the signals that gates use.
func (w *warner) signalsUsed() map[string]bool {
	used := map[string]bool{}
	note := func(l *policy.LimitSpec) {
		if l == nil {
			return
		}
		for _, name := range append(slices.Clone(l.Signals), l.Lag.Signal, l.Drain.Signal) {
			used[name] = true
		}
	}
	for _, g := range w.Gates {
		note(g.Limit)
		if g.Shed != nil {
			for _, name := range g.Shed.Signals {
				used[name] = true
			}
		}
	}
	for _, u := range w.Upstreams {
		note(u.Limit)
	}
	return used
}

// patternNote says what a pattern means if its author probably meant another kind. Examples are a
// prefix with a star, a regular expression, and a path without its first slash. Otherwise it
// returns nothing.
func patternNote(pattern string) string {
	host, path, _ := strings.Cut(pattern[strings.LastIndexAny(pattern, " \t")+1:], "/")
	instead := ""
	if meant := policy.PatternMeant(pattern); meant != "" {
		instead = "; write " + meant
	}
	method := policy.MethodMeant(pattern)
	switch {
	case method != "":
		return "matches a method that hardly anybody sends; did you mean " + method + "?"
	case strings.ContainsAny(host, "*"):
		return "has * in the host, which matches only itself" + cmp.Or(instead, "; write a pattern for each host")
	case strings.ContainsAny(host+path, "^*") || strings.HasPrefix(pattern, "~") || strings.HasPrefix(pattern, "^") || strings.HasPrefix(pattern, "="):
		return "is written as for another proxy, and matches only this very text" + cmp.Or(instead, "; a path that ends with / matches everything below it")
	case host != "" && host != "localhost" && !strings.ContainsAny(host, ".:"):
		return fmt.Sprintf("matches requests to the host %s only, because a path begins with /", host) + instead
	case instead != "":
		return "is written as for another router, and matches only this very text" + instead
	}
	return ""
}
