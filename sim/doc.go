// Package sim runs a policy on synthetic traffic, in virtual time, before it
// meets real traffic. It drives the same gates a service runs, compiled by the
// same package policy; only the clock, the clients and the backend are made up.
// A minute of traffic takes a tenth of a second.
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
// [ParseScenario] reads it strictly and reports all faults at once, [Run] plays
// it once for each seed, and the [Report] prints as a table or a plot.
//
// # Open loop
//
// Clients do not wait for each other: requests arrive at the rate of the phase
// whatever the service does with them, as they do from a large population.
// Latency is counted from the moment an attempt was meant to be sent. A client
// with a timeout leaves; the gate sees it leave, the backend works on, and with
// on_abandon hold (the default) the slot is kept until the backend answers.
// A client with retries comes back.
//
// # The backend is a law
//
// Loads are multiples of the backend's capacity C, the largest throughput its
// law allows ([Backend.Capacity]): cores in order of arrival or shared, with
// thrashing if wanted; a universal-scalability database; a pool of workers; a
// mutex. The time a request needs when alone is drawn from a distribution:
// constant, exponential, Erlang, log-normal, or a few values with weights.
//
// A [Phase] is also where trouble is written: a part of the capacity is gone, the
// backend stands still, requests become larger, the backend answers with errors
// at once, the process with the gates is suspended and learns of everything late.
// A [Class] has clients that leave and try again, or ask a cache first.
//
// A class may also be so many clients in a closed loop, who are always
// backlogged; tasks of several calls, one after the other or nested in the
// handler of the first; and many tenants.
//
// # Who goes first
//
// A [Goal] with a Class is about that class alone: what was served of it, its
// latencies, Jain's index over its tenants. The metrics inversions, share_error
// and user_error are about classes beside each other. All are counted from
// outside, by what comes to the gates and what they let in; the gates are asked
// nothing. The wait rooms apply the weights and guarantees of [Scenario].Fair, and
// the max-min ideal is computed from them. With [Options].Anonymous the gates do
// not learn who asks.
//
// # Deterministic
//
// The same scenario and seed give the same figures. Arrivals, service times,
// tenants and so on have random numbers of their own, so two policies see the
// same requests at the same times, and a difference between their reports is
// theirs.
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
