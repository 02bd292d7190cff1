// Package shed is the gate that lets work through by priority: the more loaded
// the service is, the more important work must be. Nothing waits in it and
// nothing is held: it answers in some tens of nanoseconds, so it stands first in
// a chain, before the gate that counts slots.
//
//	pressure := shed.Wait(database, 100*time.Millisecond) // a *limit.Limiter
//	front := weir.Must(shed.New(shed.Config{Name: "front", Pressure: pressure}))
//	defer front.Close()
//	gate := weir.All(front, database)
//
// What it goes by is a pressure: 1 is the most that is wanted. It is the load of
// another gate ([Load]) or the wait before it ([Wait]), signals of the process
// or the machine (package signal), or any function. It is read apart from the
// requests, every 10 ms, so a function that hangs, panics or returns nonsense
// delays nobody; when the pressure has not been known for a second, everything
// is let through, or the level stays, as Config.Blind says.
//
// # Levels
//
// A piece of work has a level: its priority, and within it one of 128 that its
// user has been given by a hash. The gate has one too, and lets through what is
// not below. So a class is refused only when every lower class already is, and
// two requests of one user fare alike, which is what makes a page of ten calls
// either load or fail at once. Every hour users are dealt new levels
// (Config.Resalt). Work that names no user goes by its tenant; work that names
// nobody gets another level each time, so that a share of it passes.
//
// User must then be who the caller was found to be, not who it says it is: who
// chooses its name chooses its level.
//
// # Thresholds
//
// Fixed pressures from which classes are refused, by default:
//
//	below 0.75   everything passes
//	0.75         background is refused
//	0.90         normal too
//	0.95         high too
//	1            everything: the hard cap, without which critical work has no bound
//
// This is simple, has no memory, and reacts at the next reading. But a class is
// refused as a whole: where background is most of the load, it comes and goes in
// turns, and a burst between two readings is let through.
//
// # Cursor
//
// With Config.Cursor set, the gate finds the level itself, as DAGOR does (Zhou
// et al., SoCC 2018): it counts arrivals by level for a window, decides how much
// of as much again to let through, and takes the level from which that much
// arrived. So it gets there in one step, cuts through the middle of a class, and
// leaves a 128th of the highest class open to hear of better times.
//
// Down: by Alpha (5 %) of what was admitted, where the pressure was too high.
// Up: by Beta (1 %) of what arrived, where it was not. These are the paper's,
// which leave it at that (Cursor.Plain), and take dozens of windows to follow a
// step. Here the gate also remembers the most that was admitted without
// overload: beyond that, it cuts by as much as the pressure is too high; below,
// it goes back to it at once. A window that is overloaded at less than that is
// taken for a queue that drains, or for lost capacity.
//
// A server tells its callers its [Shedder.Level] if it likes; with a common
// Config.Salt they know by [Shedder.LevelOf] what would be refused, and need not
// send it.
//
// # When not to use it
//
// Where work can wait, a wait room in strict order of priority (package limit)
// is better: it refuses nothing that there would have been time for, orders
// what is there instead of guessing a level, and never idles while somebody of a
// lower class waits. Use a Shedder where waiting is of no use (the queue is
// elsewhere: in the scheduler, on a disk, behind another service), where the
// limit that counts is not one of concurrency (memory, lag), or in front of a
// room that low work would only fill. A pressure that comes late makes any of
// this swing: read something that moves within a window. Below some tens of
// requests in a window the counts say little; use thresholds there.
//
// Work is counted as one each, whatever its Cost; what a later gate of the chain
// refuses still counts as let through here.
package shed
