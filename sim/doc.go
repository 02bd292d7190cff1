// Package sim runs a policy on synthetic traffic, in virtual time, before it meets real traffic. It
// runs the same gates as a service, compiled by the same package policy. Only the clock, the
// clients and the backend are made up. A minute of traffic takes a tenth of a second.
//
// # A scenario is data
//
// A [Scenario] names a backend, the traffic on it, the policy in between, and
// what is expected:
//
//	{
//	  "name": "twice the load",
//	  "backend": {
//	    "law": "usl", "sigma": 0.05, "kappa": 0.0005,
//	    "service": {"dist": "exponential", "mean": "10ms"},
//	    "deadline": "500ms"
//	  },
//	  "policy": {
//	    "gates": {"db": {"limit": {"limit": 44, "queue": {"max_wait": "250ms"}}}},
//	    "routes": [{"name": "all", "match": ["/"], "gates": ["db"]}]
//	  },
//	  "phases": [{"for": "10s", "load": 0.5}, {"for": "30s", "load": 2}],
//	  "goals": [{"metric": "goodput", "from": "15s", "to": "40s", "min": 0.95}]
//	}
//
// [ParseScenario] reads it strictly and reports all faults at once. [Run] plays it once for each
// seed. The [Report] prints as a table or a plot.
//
// # Open loop
//
// Clients do not wait for each other. As from a large population, requests arrive at the rate of
// the phase, whatever the service does with them. Latency is counted from the moment an attempt was
// meant to be sent. A client with a timeout leaves. The gate sees it leave, but the backend works
// on. With on_abandon hold (the default), the slot is kept until the backend answers. A client with
// retries comes back.
//
// # The backend is a law
//
// Loads are multiples of the backend's capacity C. That is the largest throughput its law allows
// ([Backend.Capacity]). The laws are cores in order of arrival or shared, with thrashing if wanted;
// a universal-scalability database; a pool of workers; and a mutex. The time of a request without
// others beside it is drawn from a distribution: constant, exponential, Erlang, log-normal, or a
// few values with weights.
//
// A [Phase] can also have trouble. A part of the capacity is gone, or the backend stands still.
// Requests become larger, or the backend answers with errors at once. Or the process with the gates
// is suspended and learns of everything late. A [Class] has clients that leave and try again, or
// ask a cache first.
//
// Clients may belong to a [Process]. They share a throttle or a breaker and a budget for retries, as
// the clients of one service do, by the code of package throttle.
//
// A class may also be a number of clients in a closed loop, which always have work to send. It may
// have tasks of several calls, one after the other or nested in the handler of the first. And it
// may have many tenants.
//
// # Who goes first
//
// A [Goal] with a Class is about that class alone: how much of it was served, its latencies, Jain's
// index over its tenants. The metrics inversions, share_error and user_error compare classes. All
// are counted outside the gates, by what arrives there and what they let in; the gates are asked
// nothing. The wait rooms apply the weights and guarantees of [Scenario].Fair. The max-min ideal is
// computed from them. With [Options].Anonymous the gates do not learn who asks.
//
// # Deterministic
//
// The same scenario and seed give the same figures. Arrivals, service times, tenants and so on have
// random numbers of their own. So two policies see the same requests at the same times, and only
// the policies can make their reports differ.
//
// [Options].Outside replaces the policy, for instance by another library's limiter
// on a clock of its own.
//
// # When not to trust it
//
// A refusal costs nothing here, and neither does the network. Jobs inside the
// backend slow each other down alike; real ones have caches, garbage
// collections and locks. A handler that burns processor time in the process of
// the gate itself delays the gate too, which is not modelled. Compare policies
// with it, and read absolute figures as the best case.
package sim
