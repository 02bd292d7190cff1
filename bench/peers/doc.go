// Package peers is the layer of the scoreboard that other projects stand on:
// their limiters beside weir's, before the same simulated backends, under the
// same scenario files.
//
// The simulator (package sim) owns backend, clients and figures. The limiters of
// others read the wall clock, so a run takes place inside a testing/synctest
// bubble, whose wall clock moves when everybody waits: the simulator asks the
// bubble to let time pass up to its next event, and hears on the way of those
// who were admitted meanwhile. A minute of a thousand requests a second takes
// about a second. Goroutines that are due at the same instant run in no fixed
// order, and some peers draw random numbers of their own, so a figure repeats
// within its spread, not to the last digit.
//
// Because a bubble needs a test, the scoreboard is one:
//
//	make scoreboard-peers
//
// A second board is about who goes first: peers that have priorities and peers that
// are fair, each in the scenarios about what it has ([OrderRows]):
//
//	make scoreboard-order-peers
//
// Each [Peer] is the library as published: its version is in go.mod, its default
// settings are in its comment. Where a peer cannot be run without a number that
// somebody has to measure first (a semaphore's size), it gets the backend's best
// concurrency and is marked as told; where it reads the processor, the reading
// is injected, once as of a process that only waits for its backend and once as
// of one that is its backend.
package peers
