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
// dispatched after. Nobody overtakes those that wait, unless the newest goes
// first.
//
// Once the limiter has measured how fast slots come back and how long work takes,
// it does not let work wait in vain. It refuses a newcomer at once if what is in
// front of it takes longer than the newcomer may wait, or leaves less than the
// median service time before its deadline; and work whose deadline is nearer than
// that leaves the room. The first in line is not refused by an estimate: somebody
// should be there when a slot comes back.
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
// While a queue stands, 64 may wait. When that is not enough, the newest goes
// first (adaptive LIFO, as Facebook has described it), and each newcomer takes the
// place of the oldest, which is refused with [weir.ReasonQueueFull]: it would not
// have been served before it expired, and hears so early. The newest goes first in
// a burst too, once that is the only way to serve a newcomer in time. When half of
// the queue is gone, or an interval has drained it, the oldest goes first again.
//
// The newest also goes first while waiters leave of themselves, because their
// clients lose patience: who has waited longest will leave next. Those that leave
// sooner than an answer could have come do not count.
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
package limit
