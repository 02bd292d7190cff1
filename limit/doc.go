// Package limit is the concurrency gate: slots that come back, and a room to
// wait for one.
//
// A [Limiter] admits work while fewer than its limit are in flight. The rest
// waits in a bounded room, for a bounded time, or is refused with a
// [weir.Rejection] that says how long coming back would take. What is admitted
// must be given back:
//
//	l, err := limit.New(limit.Config{Name: "db", Limit: 20})
//	...
//	p, err := l.Admit(ctx, weir.Work{Op: "SELECT"})
//	if err != nil {
//		return err
//	}
//	defer p.Done(weir.NoSample)
//	rows, err := db.QueryContext(ctx, query)
//	p.Done(weir.Classify(err))
//
// # What sets the limit
//
// A number ([Config.Limit]) or a controller ([Config.Controller]): see package
// control. Raise the limit with [Limiter.SetLimit] and waiters start at once;
// lower it and nothing is revoked, but nothing is granted either until less
// than the new limit is in flight.
//
// # Who waits, and for how long
//
// [Queue] bounds the room in places and in time. Work leaves it unserved when
// its MaxWait, the room's MaxWait or its context ends, exactly then, and is never
// dispatched after. While somebody waits, nobody takes a slot past the room.
//
// Once the limiter has measured how fast slots come back and how long work takes,
// it does not let work wait in vain. It refuses a newcomer at once if what would
// be served before it takes longer than the newcomer may wait, or leaves less than
// the median service time before its deadline; and work whose deadline is nearer
// than that leaves the room. The first in line is not refused by an estimate:
// somebody should be there when a slot comes back.
//
// # Who goes first
//
// Three things decide, in this order.
//
//   - Priority ([weir.Work.Priority]) is strict: nothing of a lower one is served
//     while something of a higher one waits. [Queue.Shares] guarantees a priority
//     a part of what is served all the same.
//   - Within a priority, users ([weir.Work.User]) are served in equal parts while
//     they have work waiting, or in the proportion of [Queue.Weights]; and within a
//     user so are its tenants ([weir.Work.Tenant]). This is start-time fair queueing
//     (Goyal, Vin and Cheng 1996): whoever has been served least for its weight goes
//     next, work counts by its cost, and nobody saves up a claim while it does not
//     wait. Whoever sends a hundred times as much waits behind its own work. A user
//     gains nothing by inventing tenants.
//   - Within a tenant, [Queue.Order].
//
// When the room is full, a newcomer takes the place of the last waiter of the
// lowest priority below its own; or else, within its own priority, that of the last
// waiter of whoever has most waiting for its weight. That one hears at once, with
// [weir.ReasonQueueFull] and why. If it is the newcomer's own queue that is the
// longest, the newcomer is refused, or takes the place of its own oldest where the
// newest goes first.
//
// Work that names neither user nor tenant is of one user, and all of one priority
// waits in one queue: who names nobody has a plain queue.
//
// Work of a cost above 1 that goes next waits until as much is free, and those
// behind it wait with it: nothing lighter slips past, or it might wait for ever.
// Only a higher priority does, and whoever the fair order puts before it. Where
// the cost is known only afterwards, say it with [weir.Permit.SetCost]: what was
// used beyond what was asked for is taken from the tenant's share.
//
// # What is exempt
//
// Work marked [weir.Work.Exempt] is admitted at once and takes no slot: health
// checks, an operator's way in, the release of what others wait for. It is counted
// apart, its latency is no sample, and [Config.Exempt] bounds how much of it there
// is at once.
//
// A call made while its caller holds a permit of the same limiter takes no second
// slot, if its context says so: see [weir.WithPermit].
//
// # When a queue stands
//
// A room is there for bursts. A queue that does not drain only makes everybody
// late, and serving the oldest first then means to serve those who have all but
// given up. [Adaptive], the default order, tells the two apart: a queue stands if
// in an interval no more was served than came, by more than chance, the first
// interval after the room was empty excepted. An interval is as long as 64 units
// take to be served, but at least 100 ms, which is CoDel's (RFC 8289), and at
// most 10 s.
//
// While a queue stands, 64 may wait; while all are one tenant's fewer, where the
// overload leaves those at the back hardly a chance. A flood cuts nobody else:
// neither a priority that is served faster than it comes, nor the first two waiters
// of a user (of a tenant, if the user has no name), unless such alone are too many.
// When that is not enough,
// the newest goes first (adaptive LIFO, as Facebook has described it), and each
// newcomer takes the place of the oldest, which is refused with
// [weir.ReasonQueueFull]: it would not have been served before it expired, and
// hears so early. The newest goes first in a burst too, once that is the only way to
// serve a newcomer in time. When half of the queue is gone, or an interval has
// drained it, the oldest goes first again.
//
// The newest also goes first while waiters leave of themselves, because their
// clients lose patience: who has waited longest will leave next. Those that leave
// sooner than an answer could have come do not count.
//
// All of that is within a tenant that has itself given such a reason: the others'
// waiters stay in order. Between tenants and users it decides only among those who
// are owed alike, and between priorities nothing.
//
// What it is worth, in virtual time, is on the scoreboard (docs/scoreboard).
//
// # Cost
//
// A limiter with a fixed limit and no hooks admits by one compare-and-swap and
// is released by another, until somebody has to wait. With a controller or hooks
// each admission and each release takes a lock for some tens of nanoseconds.
// Neither allocates. Work that finds everything taken and may not wait is
// refused without the lock.
//
// Finding a free slot takes a look at every slot in the worst case, just below
// the limit: about a nanosecond a slot.
//
// # When not to use it
//
// A limit on concurrency bounds work in flight, not work per second: for a
// contract of so many requests a minute it is the wrong mechanism. It is local
// to the process, because it measures a local queue.
//
// Priorities and shares order those that wait. Where nobody waits they do nothing,
// and they take no slot from work in flight: a tenant whose work holds every slot
// for a minute makes the others wait for that minute. If that must not happen,
// give each tenant slots of its own (package keyed). A strict priority is no
// better than whoever sets it: if everything is critical, nothing is. And a user
// must be somebody who can be held to it, authenticated or at least an address:
// where names can be made up, fairness is among names.
package limit
