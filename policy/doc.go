// Package policy turns a policy written as data into gates on live traffic.
//
// A [Spec] says three things: who is asking (identity), what there is of each
// resource (gates), and which work goes through which gates in which order
// (routes). [Compile] checks all of it, with every fault at once, and returns a
// [Policy]:
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
// A limit with a number keeps it; one without finds it, by the controller knee.
//
// For each request, [Policy.Match] names the route and builds the work; the
// route's gate decides:
//
//	route, work := p.Match(r)
//	permit, err := route.Gate().Admit(r.Context(), work)
//
// # Routes
//
// Patterns are those of net/http's ServeMux, with its rules: the most specific
// one wins, and two of which neither is more specific cannot stand side by side.
// In these points a policy is no ServeMux, because it must not let a request
// around its gates and never answers one:
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
// A route's gates are joined by weir.All: in the order given, all or nothing,
// with nothing ever waiting but in the last. Put the gate that work may wait for
// last, and cheap refusals first.
//
// # Identity
//
// Tenant, user, client and priority each come from one source. Headers are what
// the peer says, so they are believed only from trusted networks, which are
// loopback unless the spec says otherwise, and read as empty from everybody
// else. A header that comes several times with different values reads as empty
// too: a proxy that adds its own line behind the client's would otherwise let
// the client choose. Values are bounded (see [MaxIdentity]).
//
// The user answers for what its tenants send: a gate is fair between users, and
// then between the tenants of each. Who is not believed is the user that its
// address says, IPv4 or the /64 network of an IPv6 address, so that it gains
// nothing by inventing tenants. A trusted proxy's X-Forwarded-For says whose
// address that is: the rightmost one that is not trusted itself. See
// [IdentitySpec].
//
// # Deadlines
//
// A route's Timeout and what a request says in grpc-timeout or X-Request-Timeout
// (see [DeadlineSpec]) are deadlines, and the earliest holds. A proxy tells its
// upstream what is left of it, and who asks, with [Policy.Forward].
//
// # Costs, and operations that come back
//
// A trusted peer may say what its request costs ([RouteSpec].CostFrom), and the
// answer what it has really cost (Settle): hand what [Route.Settle] finds to
// [Policy.SetCost] before the slot is given back. A trusted peer may also count
// how often an operation of many requests has been admitted
// ([IdentitySpec].Admissions), so that a route makes it background from there on
// (DemoteAfter); [Policy.Forward] passes the count on.
//
// # Mechanisms
//
// A gate has one of four: a limit (package limit), in whose room higher
// priorities go first and users and tenants share; a limit for each key
// ([EachSpec], package keyed), for keys that have something of their own behind
// the gate, of one size for all or each with a controller of its own; or shedding
// ([ShedSpec], package shed), which refuses by priority as a pressure rises, before
// anything has to wait; or a quota ([QuotaSpec], package quota), of what is used up and
// comes back with time, by user, client and more. Name those that shed and those with
// quotas before those with limits; what a later gate refuses gets its tokens back. A
// limit, of all or of each key, may be two, for reads and for writes
// ([ProbeSpec].ReadWrite).
//
// # Controllers and signals
//
// What sets a limit is a controller of package control, named by
// [LimitSpec].Controller: fixed where there is a number to keep, knee where there is
// none, and others for special cases. Signals hold a limit down besides: a gate
// lists them by name, and they are read for all gates by one poller, which the
// policy starts and closes. What they read are the figures of package signal, a file
// or an HTTP server, and [Options].Signals:
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
// Each gate has a mode: enforce, observe (decide and count, but let everything
// through) or off. The way to a new gate on live traffic is observe, a look at
// [Gate.Observed], then enforce. See [Gate] for what observing cannot see.
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
// With [Options].Now a policy runs on a clock of its owner's: ask Next when
// something is due, and call Step then. The simulator judges policies that way,
// with the code that runs in production.
package policy
