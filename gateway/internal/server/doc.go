// Package server runs the gateway: it opens the listeners, leads each request
// through policy and gates to its upstream, takes up a changed configuration
// without dropping anything, and stops without losing an answer.
//
// The life of a [Server]:
//
//   - New opens every listener, so that an address in use is an error at once.
//   - Run serves until its context ends, then shuts down: first a lame duck that
//     still serves but tells clients to go (Connection: close, GOAWAY) and
//     readiness checks to send no more; then no new connections, and waiting
//     requests are refused as draining; then up to the grace period for what is
//     in flight.
//   - Reload reads the configuration again. Either all of it is taken up or
//     nothing changes.
//
// What a request needs is reached through one atomic pointer, so a request sees
// one configuration from beginning to end.
package server
