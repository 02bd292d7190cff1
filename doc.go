// Package weir is admission control: load shedding, adaptive concurrency limits and rate
// limits. It decides for every piece of work: start now, wait, or be refused with the time
// to come back. So a service under several times its load still does nearly all the work
// it can.
//
// # Three calls
//
// A gate that finds out by itself how much at a time is best:
//
//	api, err := limit.New(limit.Config{Name: "api"}) // or Limit: 32, if you know
//
// Any function behind it:
//
//	err = weir.Do(ctx, api, weir.Work{Op: "reindex", Tenant: "acme"}, reindex)
//
// A server behind it:
//
//	http.ListenAndServe(":8080", weirhttp.Middleware(api)(mux))
//
// [Do] returns the function's error, or a [*Rejection] if the function did not run. The
// Rejection says which gate refused and why, the value against the limit, and when to come
// back. [Work] says who asks, how important it is, how much it takes and until when. The
// zero Work is fine.
//
// Where work begins in one function and ends in another, Do is these lines:
//
//	p, err := api.Admit(ctx, work)
//	if err != nil {
//		return err
//	}
//	defer p.Done(weir.NoSample) // covers panics; a no-op after the next Done
//	err = reindex(ctx)
//	p.Done(weir.Classify(err))
//
// # The packages
//
// Gates, each a [Gate]; [All] joins several into one:
//
//   - limit bounds the work in flight, and keeps a wait room with priorities and fairness.
//   - quota bounds the work in a time: a rate, a burst, so many a day.
//   - shed refuses by priority while a service is overloaded.
//   - keyed gives each tenant, database or route a limit of its own.
//   - throttle is for clients: it refuses locally what a server would refuse, and bounds retries.
//
// What gates are used with:
//
//   - weirhttp is middleware for net/http, and writes refusals as responses.
//   - weirgrpc, a module of its own, is the same for gRPC, before servers and under clients.
//   - weirsql puts a gate above database/sql. weirpgx, a module of its own, does so above pgx's pool.
//   - weirkafka, a module of its own, reads how far a consumer group of Kafka is behind, and
//     has gates before its producers.
//   - weirredis, a module of its own, keeps quotas on Redis for several processes.
//   - control has the controllers that move a limit, and signal has what they can heed.
//   - policy makes gates and routes from data, such as a file.
//   - sim plays a policy on simulated traffic, in virtual time.
//   - slot and weirtest are for authors of gates and of stores.
//
// # Coming from golang.org/x/time/rate
//
// Package quota is the counterpart, with a bucket for each user or tenant where you want
// one. This is rate.NewLimiter(10, 20):
//
//	q, err := quota.New(quota.Config{Rules: []quota.Rule{
//		{Windows: []quota.Window{{Rate: 10, Burst: 20}}},
//	}})
//
// AllowN and WaitN are q.Allow and q.Wait with a Work of that Cost. Reserve has none:
// q.Admit returns a permit, and Cancel gives its tokens back.
//
// # Coming from failsafe-go
//
//   - failsafe.Run with one policy is [Do]; several policies are [All].
//   - A bulkhead is limit.New with a Limit, and its wait is Queue.MaxWait.
//   - An adaptive limiter is limit.New without a Limit. Nothing else needs to be set.
//   - A rate limiter is quota.New.
//   - Priorities are Work.Priority, and users are Work.User.
//
// Retries and circuit breakers are throttle.Caller. weir has no hedges: keep failsafe-go's
// around Do.
//
// # Coming from Netflix concurrency-limits
//
//   - Limiter.acquire is Admit, and an empty answer is a [*Rejection].
//   - onSuccess, onDropped and onIgnore are Done with [OK], [Overload] and [NoSample].
//   - VegasLimit, Gradient2Limit and AIMDLimit are control.Vegas, control.Gradient2 and
//     control.AIMD. Try the default first: it has no threshold to set.
//   - A blocking limiter is every gate of package limit: Queue bounds its room.
//   - A partitioned limiter is limit.Queue with Shares for priorities, or with Weights for
//     users and tenants.
//
// # When not to use it
//
// A gate protects what one process can see: its limit on concurrency measures a local
// queue. A contract about requests a minute is a quota. No gate helps a service that is
// slow without load.
package weir
