// Package policy turns a policy written as data into gates on live traffic.
//
// A [Spec] says who is asking (identity), which gates there are, and which work goes through which
// of them in which order (routes). [Compile] checks all of it, reports every fault at once, and
// returns a [Policy]:
//
//	p, err := policy.Compile(policy.Spec{
//		Identity: policy.IdentitySpec{Tenant: "path:database"},
//		Gates: map[string]policy.GateSpec{
//			"writes":  {Limit: &policy.LimitSpec{Limit: 16}},
//			"backend": {Limit: &policy.LimitSpec{}},
//		},
//		Routes: []policy.RouteSpec{
//			{Match: []string{"POST /v1/databases/{database}/batches"}, Gates: []string{"writes", "backend"}},
//			{Match: []string{"/"}, Gates: []string{"backend"}},
//		},
//	}, policy.Options{})
//
// A limit with a number keeps it; one without finds it, by the controller belief.
//
// For each request, [Policy.Match] names the route and builds the work; the
// route's gate decides:
//
//	route, work := p.Match(r)
//	permit, err := route.Gate().Admit(r.Context(), work)
//
// Requests of other protocols come as a [View], to [Policy.MatchView]. Routes, identities,
// deadlines and trust are the same.
//
// # Routes
//
// Patterns are those of net/http's ServeMux, with its rules. The most specific pattern wins. Two
// patterns that match the same request are an error if neither is more specific. A policy must not
// let a request around its gates, and never answers one. So it differs from a ServeMux in these
// points:
//
//   - It does not redirect. A path is matched as the one it would be redirected
//     to: without empty, "." and ".." segments, and /tree as /tree/ where only
//     the latter has a pattern.
//   - A request without a path (CONNECT, OPTIONS *) is matched as if it asked for
//     "/".
//   - Hosts are compared in lower case, without port and trailing dot.
//   - Where no pattern matches, not even with another method, there is no route,
//     and the work passes no gate. A last route with the pattern "/" prevents it.
//
// A pattern with a method matches that method only (GET also HEAD). Leave it out
// where every method burdens the same resource.
//
// A route's gates are joined by weir.All. They are asked in the order given, all or nothing, and
// work waits only in the last. Put the gate that work may wait for last, and cheap refusals first.
//
// # Identity
//
// Tenant, user, client and priority each come from one source. Headers are what the peer says, so
// they are believed only from trusted networks, and read as empty from everybody else. Only
// loopback is trusted unless the spec says otherwise. A header that comes several times with
// different values reads as empty too. Otherwise a client could choose its identity behind a proxy
// that adds a line of its own. Values are bounded (see [MaxIdentity]).
//
// The user answers for what its tenants send: a gate is fair between users, and then between the
// tenants of each. If the peer is not trusted, its address is the user: the IPv4 address, or the
// /64 network of the IPv6 address. So a client gains nothing by inventing tenants. Behind a trusted
// proxy it is the rightmost address in X-Forwarded-For that is not trusted itself. See
// [IdentitySpec].
//
// # Deadlines
//
// A deadline comes from a route's Timeout, or from the request in grpc-timeout or X-Request-Timeout
// (see [DeadlineSpec]). The earliest holds. With [Policy.Forward] a proxy tells its upstream how
// much time is left, and who asks.
//
// # Costs, and operations that come back
//
// A trusted peer may say what its request costs ([RouteSpec].CostFrom). The answer may say what it
// has really cost (Settle): read that with [Route.Settle], and give it to [Policy.SetCost] before
// the slot is released. An operation may need many requests. A trusted peer may count how often it
// has been admitted ([IdentitySpec].Admissions), and after so many admissions a route makes it
// background work (DemoteAfter). [Policy.Forward] passes the count on.
//
// # Mechanisms
//
// A gate has one of four mechanisms:
//
//   - A limit (package limit). Higher priorities go first in its room, and users and tenants share it.
//   - A limit for each key ([EachSpec], package keyed), for keys with a resource of their own behind
//     the gate. All limits have one size, or each has a controller of its own.
//   - Shedding ([ShedSpec], package shed). It refuses by priority as a pressure rises, before any work
//     has to wait.
//   - A quota ([QuotaSpec], package quota) of what is used up and comes back with time, by user, client
//     and more.
//
// Name gates that shed and gates with quotas before those with limits. If a later gate refuses, the
// work gets its tokens back. A limit, of all or of each key, may be two: for reads and for writes
// ([ProbeSpec].ReadWrite).
//
// # Controllers and signals
//
// A controller of package control sets a limit. [LimitSpec].Controller names it: fixed if you know
// the number, belief if you do not, and others for special cases. Signals can lower a limit further.
// A gate lists them by name. One poller reads them for all gates, and the policy starts and closes
// it. They read the figures of package signal, a file or an HTTP server, or a signal of
// [Options].Signals:
//
//	p, err := policy.Compile(policy.Spec{
//		Signals: map[string]policy.SignalSpec{"memory": {Threshold: 0.8}},
//		Gates: map[string]policy.GateSpec{
//			"api": {Limit: &policy.LimitSpec{Signals: []string{"memory", "jobs"}}},
//		},
//	}, policy.Options{Signals: map[string]signal.Signal{"jobs": jobs}})
//
// The signal that binds a limit is in the gate's Snapshot and in its rejections;
// [Policy.Signals] has the state of each.
//
// # Modes
//
// Each gate has a mode: enforce, observe (decide and count, but let everything through) or off. To
// add a gate on live traffic, begin with observe, read [Gate.Observed], then enforce. [Gate] says
// what an observing gate cannot see.
//
// # Changing a policy
//
// Compile with [Options].Previous adopts live gates by name: what is in flight or
// waiting stays, and so does what the controller has learned. A spec with a fault
// changes nothing.
//
//	next, err := policy.Compile(spec, policy.Options{Previous: now})
//	if err != nil {
//		return err // the running policy is untouched
//	}
//	current.Store(next) // an atomic.Pointer[policy.Policy]
//	now.Replace(next)    // gates that are gone close once nobody waits in them
//
// [Policy.Save] and [Policy.Restore] carry what was learned over a restart.
//
// # Virtual time
//
// With [Options].Now a policy runs on a clock of its owner. Ask Next when something is due, and
// call Step then. The simulator runs policies that way, with the code that runs in production.
package policy
