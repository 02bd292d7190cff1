package weirhttp

import (
	"bufio"
	"io"
	"net"
	"net/http"
)

// kind returns the writer as a type with exactly the optional interfaces that
// the server's writer has: a handler finds out what it can do by asking. Each
// type is one pointer, so that none of them costs an allocation.
//
// http.Pusher exists on HTTP/2 only, where nothing can be hijacked or sent by
// the kernel. http.CloseNotifier, deprecated for the request's context, is not
// carried over.
func (w *writer) kind() http.ResponseWriter {
	flush := supports[http.Flusher](w.inner) || supports[flushErrorer](w.inner)
	hijack := supports[http.Hijacker](w.inner)
	_, from := w.inner.(io.ReaderFrom)
	switch {
	case flush && hijack && from:
		return flushHijackFrom{w}
	case flush && hijack:
		return flushHijack{w}
	case flush && from:
		return flushFrom{w}
	case hijack && from:
		return hijackFrom{w}
	case hijack:
		return hijackOnly{w}
	case from:
		return fromOnly{w}
	case flush:
		if _, ok := w.inner.(http.Pusher); ok {
			return flushPush{w}
		}
		return flushOnly{w}
	}
	return w
}

// supports reports whether w, or a writer it wraps, implements T: where
// [http.ResponseController] would find it.
func supports[T any](w http.ResponseWriter) bool {
	for {
		if _, ok := w.(T); ok {
			return true
		}
		u, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return false
		}
		w = u.Unwrap()
	}
}

type flushErrorer interface{ FlushError() error }

type flushHijackFrom struct{ *writer }

// Flush implements [http.Flusher].
func (w flushHijackFrom) Flush() { _ = w.FlushError() }

// Hijack implements [http.Hijacker].
func (w flushHijackFrom) Hijack() (net.Conn, *bufio.ReadWriter, error) { return w.hijack() }

// ReadFrom implements [io.ReaderFrom].
func (w flushHijackFrom) ReadFrom(r io.Reader) (int64, error) { return w.readFrom(r) }

type flushHijack struct{ *writer }

// Flush implements [http.Flusher].
func (w flushHijack) Flush() { _ = w.FlushError() }

// Hijack implements [http.Hijacker].
func (w flushHijack) Hijack() (net.Conn, *bufio.ReadWriter, error) { return w.hijack() }

type flushFrom struct{ *writer }

// Flush implements [http.Flusher].
func (w flushFrom) Flush() { _ = w.FlushError() }

// ReadFrom implements [io.ReaderFrom].
func (w flushFrom) ReadFrom(r io.Reader) (int64, error) { return w.readFrom(r) }

type hijackFrom struct{ *writer }

// Hijack implements [http.Hijacker].
func (w hijackFrom) Hijack() (net.Conn, *bufio.ReadWriter, error) { return w.hijack() }

// ReadFrom implements [io.ReaderFrom].
func (w hijackFrom) ReadFrom(r io.Reader) (int64, error) { return w.readFrom(r) }

type hijackOnly struct{ *writer }

// Hijack implements [http.Hijacker].
func (w hijackOnly) Hijack() (net.Conn, *bufio.ReadWriter, error) { return w.hijack() }

type fromOnly struct{ *writer }

// ReadFrom implements [io.ReaderFrom].
func (w fromOnly) ReadFrom(r io.Reader) (int64, error) { return w.readFrom(r) }

type flushPush struct{ *writer }

// Flush implements [http.Flusher].
func (w flushPush) Flush() { _ = w.FlushError() }

// Push implements [http.Pusher].
func (w flushPush) Push(target string, opts *http.PushOptions) error {
	return w.inner.(http.Pusher).Push(target, opts)
}

type flushOnly struct{ *writer }

// Flush implements [http.Flusher].
func (w flushOnly) Flush() { _ = w.FlushError() }
