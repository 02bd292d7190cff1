// Package limit is the concurrency gate: slots that come back, and a room to
// wait for one.
//
// A [Limiter] admits work while fewer than its limit are in flight. The rest waits
// in a bounded room, for a bounded time, or is refused. The [weir.Rejection] says
// when coming back has a chance. A permit must be given back:
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
// control. With neither, the limiter finds out by itself: [Auto] is that limiter. Raise
// the limit with [Limiter.SetLimit] and waiters start at once. Lower it and nothing is
// revoked, but nothing is granted until less than the new limit is in flight.
//
// # Who waits, and for how long
//
// [Queue] bounds the room in places and in time. Work waits no longer than its MaxWait,
// the room's MaxWait and its context allow. It never starts after that. While somebody
// waits, no newcomer takes a slot past the room.
//
// Nobody waits in vain. The limiter measures how fast slots come back and how long
// work takes. It refuses a newcomer at once if the work in front of it takes longer
// than the newcomer may wait. It also does so if the wait would leave less than the
// median service time before the newcomer's deadline. A waiter leaves when less than
// the median is left. The first in line is never refused by an estimate: somebody
// should be there when a slot comes back.
//
// RetryAfter of a refusal is true of the work's priority. It goes by what higher
// priorities leave, and by how many come for each one that is served. Nobody can tell
// how long an overload lasts. So it is assumed to last as long again as it has, and
// nobody is told more than 30 s.
//
// # Who goes first
//
// Three things decide, in this order.
//
//   - Priority ([weir.Work.Priority]) is strict: nothing of a lower one is served
//     while something of a higher one waits. [Queue.Shares] guarantees a priority
//     a part of what is served all the same.
//   - Within a priority, users ([weir.Work.User]) get equal parts while they have work
//     waiting, or parts by [Queue.Weights]. Within a user the tenants
//     ([weir.Work.Tenant]) do. This is start-time fair queueing (Goyal, Vin and Cheng
//     1996). The user served least for its weight goes next, and work counts by its
//     cost. Nobody saves up a claim while it does not wait. A user that sends a hundred
//     times as much waits behind its own work, and gains nothing by inventing tenants.
//   - Within a tenant, [Queue.Order].
//
// When the room is full, a newcomer takes the place of the last waiter of the lowest
// priority below its own. If there is none, it displaces work of its own priority:
// the last waiter of the user with the most waiting for its weight. That waiter is
// refused at once, with [weir.ReasonQueueFull] and the rule. If the newcomer's own
// queue is the longest, the newcomer is refused. Where the newest goes first, it
// displaces its own oldest instead.
//
// Work that names neither user nor tenant belongs to one user. So programs that name
// nobody have a plain queue for each priority.
//
// Work of a cost above 1 that goes next waits until enough slots are free. The
// work behind it waits too. Nothing lighter slips past, or heavy work might wait
// for ever. Where the cost is known only afterwards, report it with
// [weir.Permit.SetCost]: the difference is taken from the tenant's share.
//
// # What is exempt
//
// Work marked [weir.Work.Exempt] is admitted at once and takes no slot. It is for
// health checks, an operator's access, and the release of what others wait for. It
// is counted apart, its latency is no sample, and [Config.Exempt] bounds how much
// of it there is at once.
//
// A call made under a permit of the same limiter takes no second slot, if its
// context says so: see [weir.WithPermit].
//
// # When a queue stands
//
// A room is there for bursts. A queue that does not drain only makes everybody late.
// Then the oldest are about to give up, so it makes no sense to serve them first.
// [Adaptive], the default order, tells the two apart. A queue stands if, in an
// interval, no more was served than came, by more than chance. The first interval
// after the room was empty does not count. An interval is the time in which 64 units
// are served. It is at least 100 ms, as in CoDel (RFC 8289), and at most 10 s.
//
// While a queue stands, 64 may wait. While all are one tenant's, only as many may as
// have a chance. A flood cuts nobody else. A priority that is served faster than it
// comes loses nothing. Nor does one below which others have their turn. The first two
// waiters of each user (of each tenant, if the user has no name) keep their places,
// unless these are too many.
//
// If the queue is still too long, the newest goes first (adaptive LIFO, as described
// by Facebook). Each newcomer then takes the place of the oldest, which is refused
// with [weir.ReasonQueueFull]. It would not have been served before it expired, and
// learns so early. In a burst the newest goes first once that is the only way to
// serve a newcomer in time. The oldest goes first again when half of the queue is
// gone, or an interval has drained it.
//
// The newest also goes first while waiters give up because their clients lose
// patience: the oldest will leave next. A waiter that gives up sooner than an
// answer could have come does not count.
//
// A tenant's own order turns only if the tenant itself has given such a reason.
// Between tenants and users the turn decides only among equals, and only if
// enough have given a reason of late: as many as an eighth of the waiters, from
// two to eight. Between priorities it never decides.
//
// The scoreboard (docs/scoreboard) shows in virtual time what this is worth.
//
// # Cost
//
// A limiter with a fixed limit and no hooks admits by one compare-and-swap and
// releases by another, until somebody has to wait. With a controller or hooks
// each admission and each release takes a lock for some tens of nanoseconds.
// Neither allocates. Work that finds everything taken and may not wait is
// refused without the lock.
//
// Just below the limit, finding a free slot may look at every slot: about a
// nanosecond each.
//
// # When not to use it
//
// A limit on concurrency bounds work in flight, not work per second. For a
// contract of so many requests a minute use package quota. The limit is local to
// the process, because it measures a local queue.
//
// Priorities and shares order those that wait. Where nobody waits they do nothing,
// and they take no slot from work in flight. If a tenant's work holds every slot for
// a minute, the others wait for that minute. If that must not happen, give each
// tenant slots of its own (package keyed). If everything is critical, nothing is.
// And a user must be somebody who can be held to it, authenticated or at least an
// address. Where names can be made up, fairness is among names.
package limit
