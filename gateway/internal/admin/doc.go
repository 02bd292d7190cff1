// Package admin is what the gateway shows of itself: Prometheus metrics, health
// and readiness, a snapshot of every gate as JSON, and Go's profiles; and what of it
// can be changed there, the rules of quotas.
//
// Whoever reads is asked nothing, and who writes for a token, or to come over a Unix
// socket that only the gateway's user can open. So it listens on loopback unless told otherwise,
// and it refuses what a web page on another site could make a browser on this
// machine send: on loopback, requests for a host that is neither an address nor
// localhost (DNS rebinding); anywhere, requests that a browser marks as coming
// from another origin.
package admin
