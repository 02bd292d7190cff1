// Package proxy passes requests on to upstream servers: one [Upstream] for each
// set of interchangeable servers in the configuration.
//
// It is [net/http/httputil.ReverseProxy] with a transport tuned for one hop,
// and what a gateway needs around it:
//
//   - targets in turn, each behind a gate of its own if it has a limit; one
//     that keeps failing is left out for a while,
//   - a bound on every wait: connecting, sending the request, waiting for the
//     answer,
//   - the outcome of each request, sampled when the upstream's headers arrive,
//   - a client that leaves does not free its slot: the upstream goes on working
//     and so the request goes on, until the upstream answers or the time it was
//     expected to take has passed.
//
// Headers that claim something about the client (X-Forwarded-*, Forwarded, the
// headers identities are read from) are passed on only from trusted peers;
// everybody else's are dropped, and X-Forwarded-* written anew.
package proxy
