// Package signal tells how loaded the process and its machine are: signals that
// read one figure each, and a [Poller] that keeps the newest figure of each for
// a controller.
//
// A signal's value is a pressure: what was measured over the most that is
// wanted. 1 is the threshold, 0.5 half of it, 3 three times too much. Pressures
// of different things can therefore be compared, and the highest one binds. A
// controller that heeds them ([control.Capped], [control.Resource]) needs to
// know nothing else about them. The exception is a signal made for one
// controller with a unit of its own, such as a count of messages for
// control.LagMap; make it with [Func].
//
// What to use:
//
//   - [NewSchedLatency]: goroutines wait for a processor. The first choice for
//     handlers that compute: it moves within tens of milliseconds, and it sees
//     what an in-flight count does not.
//   - [NewRunnable]: goroutines that wait right now, on Go 1.26 and later.
//   - [NewCPU]: processor time used. Late, and it cannot exceed the machine: it
//     says that there is too much, hardly by how much.
//   - [NewThrottling]: the container's CPU quota stops the process.
//   - [NewMemory]: memory of the container, or of the machine.
//   - [NewHeap]: live heap against GOMEMLIMIT, before collecting takes over.
//   - [NewPSI]: Linux's stall times for cpu, io and memory.
//   - [NewGoroutines]: a bound on their number.
//   - [Func]: anything else.
//
// [Default] is a choice of these that does little harm anywhere. No signal of
// the processor says anything about a backend that waits for a disk, a lock or
// another service: they guard this process, and an inner controller finds the
// limit of what is behind it.
//
// What a reading costs on a machine is a benchmark: go test -bench Read
// ./signal. The run time's own figures cost nanoseconds, files tens of
// microseconds.
//
// Where the kernel or the platform has no such figure, Read says so with an
// error that matches errors.ErrUnsupported; the poller tells of it once and
// carries on with the others.
package signal
