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
// its own deadline, its MaxWait, the room's MaxWait or its context ends, exactly
// then, and is never dispatched after. A newcomer that finds the room full is
// refused. Nobody overtakes those that wait.
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
