// Package keyed is concurrency gates with a pool of slots for each key: for each
// tenant, database or route. One busy key does not touch the others.
//
// A pool exists from the first work of its key on. [Pools] has pools of one size,
// which a controller may move for all of them, and takes 64 bytes a key. [Adaptive]
// has a whole limit.Limiter for each key, with a controller each, and takes
// kilobytes.
//
//	g, err := keyed.New(keyed.Config{Name: "databases", Limit: 100})
//	...
//	p, err := g.Admit(ctx, weir.Work{Tenant: "orders"})
//	if err != nil {
//		return err
//	}
//	defer p.Done(weir.NoSample)
//
// # When to use it, and when not
//
// Use it where keys have resources of their own behind the gate. Examples are a
// connection pool for each database, a shard for each tenant, a queue for each
// topic. Or where a cap for each key is what was promised.
//
// Where keys share one backend, pools are the wrong tool. Fixed pools waste what
// the quiet keys leave. Together they admit more than the backend carries: a
// thousand keys of ten slots are ten thousand slots. One limit.Limiter whose wait
// room is fair between tenants shares the backend as it is needed. Both can be
// had: weir.All(pools, limiter) is a cap for each key, in front of the limit of
// the backend. The cap counts work that waits at the limiter, too, and knows no
// priorities. So background work that waits can fill it, and then critical work of the
// same key is refused.
//
// A key must be something that a client cannot choose: its proven identity, or the
// thing that the work is about. Anybody who can invent keys has a pool for each. No
// gate of this package bounds what all pools admit together. Put a limiter behind.
//
// # What sets the size
//
// A number, or one controller for all pools. EvidentDB's admission control is
// control.LagMap here: the pool of each database follows the lag of one queue. The
// controller is asked once a window, whatever the number of keys. Its limit holds for each
// key, also for keys to come. If the limit has a fraction (control.Drain), so many of the
// keys have one slot more. At 2.25 a quarter of them has 3 and the others 2, another
// quarter each window. Keys with an override are not among them.
//
// The controller is shown the window of the mean key in use. Counts and levels are
// divided by the number of keys that hold something at the window's end, rounded up.
// So they compare with the limit. MaxInFlight is the busiest key's. Latencies and
// Samples are empty. So the controller must go by readings (control.LagMap,
// control.Drain, control.Resource, control.Fixed). Controllers that learn from service
// times (control.Belief, control.AIMD) belong in [Adaptive], one for each key.
//
// [Override] gives single keys a limit of their own: a number, a multiple of the others',
// or thresholds of a lag of their own. All settings can be changed while the gate runs
// ([Pools.Reconfigure]).
//
// A limit that shrinks revokes nothing. Work is granted only while its key stays
// within the limit, so nothing is granted until enough has come back. A limit that
// grows lets in at once as many as wait and fit.
//
// Work that costs more than the whole limit of its key is charged the whole limit
// and runs alone. [Config.RefuseOversize] refuses it at once instead. For [Adaptive]
// this is in the configuration of each limiter.
//
// [weir.Permit.SetCost] changes how many slots a permit of [Pools] holds: where slots
// stand for bytes, say, once the size is known. (A limit.Limiter leaves the slots as
// they are.) More may bring the key above its limit. The difference is also charged to
// the share of whoever sent the work, if it had to wait.
//
// # Whose lag it is
//
// A lag is a total. Where work keeps its permit until it is no part of the lag any more,
// what a key holds is its own part. With [Config.LargestFirst] the controller is told what
// each key holds. Its limit is then the largest that is right for the lag left under it:
// the lag without what keys hold beyond the limit. So keys that hold most are cut first.
// The limit goes on to those that hold less only when what is left is still too much.
//
// It is one number for all keys, so admission costs the same. A key that holds less never
// meets it. On the same reading it is never below the limit that one lag for all gives.
// Once a window all known keys are visited, some ns each, one shard at a time.
//
// Do not use it where permits end before the work is applied, or where most of the lag
// comes from elsewhere. Then what a key holds says little about its part. With several
// processes before one queue each judges by its own keys. Leave out Smoothing, MaxChange
// and Hysteresis: the limit goes to its fixed point by itself, and damping only delays the
// first cut.
//
// # Which keys are known, and for how long
//
// A key is known from its first work on. [Config.MaxKeys] bounds how many are. Then
// a newcomer evicts a key that is idle and has not been seen for long. A key with
// work in flight or waiting keeps its place, so nobody gets a fresh pool by coming
// back. An idle key loses nothing but two counters.
//
// If every known key is in use, a newcomer is refused (rule "keys"). Strangers do not
// share one pool instead: there one of them would starve the others, which pools are
// there to prevent. It cannot happen if MaxKeys is above the work that the process can
// have in flight and waiting.
//
// Counts of two keys never mix. A table keeps keys whole up to 36 bytes (a UUID
// with dashes). It keeps longer ones by 160 bits of their SHA-256, see
// internal/keys. It finds them by a hash with a seed of the process's own, so
// nobody can choose keys that collide. A long key costs the time to hash it: some
// 10 µs for 10 KB.
//
// # Who waits
//
// Work waits for its own key: by priority, user, tenant and order, as in package
// limit. Priorities may have guaranteed shares, and users and tenants weights
// ([Queue]). Each key is a matter of its own. A high priority takes no slot and no
// place from another key's background work. What a user is served at one key does not
// count at another.
//
// By default the key is the tenant. Then users of one tenant share its pool by their
// weights. Weights of tenants have no effect, because each room has one tenant. Give
// a tenant more by an [Override]. Where the key is a route or a database, users
// share it. The tenants of a user share that user's part.
//
// A room exists while somebody is in it. All rooms share one number of places by
// dynamic thresholds: see [Queue]. A waiter leaves when its time is up or its
// context ends. No newcomer of the same share overtakes it.
//
// As at a limit.Limiter, nobody waits in vain. A newcomer is refused at once if
// its turn would come too late. A waiter leaves when less than the median service
// time is left before its deadline. Both are measured at the key itself, while
// somebody waits for it. Until enough is known, nobody is refused by an estimate.
// RetryAfter goes by the same rate, or else by the service time of all keys. It is
// that of the work's priority, as at a limit.Limiter.
//
// A call made under a permit of the gate ([weir.WithPermit]) rides on that permit
// whichever key the two are for. It cannot wait for its own caller, and does not count
// in the pool of the other key. Work of one key may call on another's, and that may
// have to be counted. Then make the call with a context of its own, or have a gate for
// each layer.
//
// # Cost
//
// The keys are split into shards (four a processor, at most 64). Each has a lock and a
// flat table without pointers: 56 bytes a key, and up to 8 for its index. The garbage
// collector reads none of it. Admission and release look the key up and take the lock
// of its shard, a hundred nanoseconds, and allocate nothing. A slot takes some 64 bytes
// for each piece of work that was ever in flight at the same time. It takes 72 more
// where somebody had to wait. Slots are reused and never freed. `go test -bench .
// ./keyed` measures all of it.
//
// Without a Done hook or a controller, one admission in 16 is timed. The clock costs
// as much as the rest of an admission.
package keyed
