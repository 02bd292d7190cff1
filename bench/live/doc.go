// Package live is the scoreboard's second layer: real servers, real sockets,
// real processors, on loopback.
//
// Virtual time judges the algorithms. What it cannot see is judged here: Go's
// scheduler, which lets a handler that computes run to its end before the next
// request is counted; HTTP parsing, connection pools, timers; clients that
// leave by closing their connection.
//
// # Arrangement
//
// The system under test is a process of its own, pinned to one core. This
// process, which generates the load, and the backends behind proxies are pinned
// to the other. Load is open: requests leave at times drawn beforehand (Poisson),
// latency counts from the time a request was due, and a client whose patience
// ends closes its connection. A run in which more than [VoidAbove] of the
// requests left late says more about the generator than about what it measures:
// it is void, repeated, and named in the report if it stays void.
//
// A request says itself how much work it is (a header that only the backend
// reads), so all that compete in a round get the same requests at the same
// times.
//
// # Three parts
//
// In part one the limiter is in the server's own process (weirhttp around a
// handler). In part two it is in a proxy: the gateway as it is built and started
// by its users, beside ReverseProxy alone and ReverseProxy inside another
// limiter's handler, in front of backends that keep working for clients that left.
//
// In part three the gateway is told who asks, and some clients must not suffer from
// others: priorities, tenants, weights, exempt work, a batch, tasks of several calls,
// calls that admitted work makes of its own service (these also with the gate inside
// the server). It is not in the scoreboard's hour, but run by itself, and rows of it
// can be measured anew by themselves (-rows S15,S21 -merge).
//
// All figures are ratios to something measured or known in the same round: the
// backend's capacity, or the best fixed limit.
package live
