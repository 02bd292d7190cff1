// Package weirhttp puts a weir gate in front of net/http handlers.
//
//	api := weir.Must(limit.New(limit.Config{Name: "api", Limit: 50}))
//	guard := weirhttp.Middleware(api)
//	http.ListenAndServe(":8080", guard(mux))
//
// Requests beyond the limit wait in the gate's room; those that cannot wait are
// answered 503 with Retry-After and a problem document that names the gate, the
// reason and the exact time (see [WriteRejection] and [Status]). Wrap the whole
// mux, or single handlers with gates of their own: inside a mux, Work.Op is the
// pattern that matched. Leave health checks outside.
//
// # What a slot is held for
//
// A controller learns from how long the backend took, and a slot is free when
// the backend has nothing left to do. So the permit is sampled when the handler
// begins its answer, by status (see [weir.ClassifyHTTP]), and given back when
// the handler returns, panics, or ends its goroutine. What becomes of a request
// that ends without an answer:
//
//	the handler returns                        OK: net/http sends 200
//	it panics, http.ErrAbortHandler included   Failed
//	the client left before the answer          Abandoned, whatever is answered
//	the context's deadline passed              Overload
//	the connection is hijacked                 NoSample
//
// Panics are passed on, not recovered.
//
// # Streams
//
// A client that reads slowly is no slow backend. Downloads, server-sent events
// and upgraded connections give their slot back early and hold a place in a
// bounded pool instead: see [Streams] for when, and what happens when it is
// full. [WithWriteTimeout] cuts those that stop reading. Time spent reading a
// request's body does count, because the middleware cannot tell it from work:
// bound it with Server.ReadTimeout, or let [WithBufferedBody] read small bodies
// first.
//
// # Clients that leave
//
// A request that waits leaves the room when its client goes. Over HTTP/1 the
// server notices that only once the request's body has been read, which is at
// once for requests without one; see [WithBufferedBody] for the others. Once
// admitted, the handler decides what a departure means: its context is
// cancelled, and the slot is free when it returns. A proxy whose upstream goes on
// working should keep the slot until that is over, with [Request.Detach].
//
// # Refused requests
//
// Their bodies are not read. Over HTTP/1 the connection is closed after the
// answer if more than 4 KiB are still to come, or an unknown amount; a client
// that waits for "100 Continue" is never told to send. Over HTTP/2 the stream
// ends and the connection stays.
//
// # Quotas
//
// A quota that is used up is answered 429, with a Retry-After that is true: it has no
// random part, and who comes back then is let through, unless others of the same
// bucket were quicker.
// [SetRateLimit] tells clients beforehand what is left. A rule that blocks is 403,
// without a Retry-After.
//
// # Wrapped writers
//
// The handler's ResponseWriter implements http.Flusher, http.Hijacker,
// io.ReaderFrom and http.Pusher when the server's does; files still reach the
// kernel's sendfile; [http.ResponseController] works. Only http.CloseNotifier,
// long deprecated, is gone: use the request's context. Hijack returns a
// connection with the methods of a *net.TCPConn or *tls.Conn, but of a type of
// this package.
package weirhttp
