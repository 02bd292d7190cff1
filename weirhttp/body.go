package weirhttp

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// maxBuffered bounds the request bodies that one [Middleware] has in memory at the
// same time because of [WithBufferedBody]. A request beyond it is served unbuffered.
const maxBuffered = 64 << 20

// bodyBuffers reads small request bodies ahead of admission. nil reads none.
type bodyBuffers struct {
	max  int64
	held atomic.Int64
}

// buffer returns r with its body in memory, if the body is small enough, and a
// function to call when that memory is free again.
func (b *bodyBuffers) buffer(r *http.Request) (*http.Request, func()) {
	if !b.wants(r) {
		return r, func() {}
	}
	size := r.ContentLength
	if size < 0 {
		size = b.max
	}
	if b.held.Add(size) > maxBuffered {
		b.held.Add(-size)
		return r, func() {}
	}
	// One byte more than allowed tells a longer body from one that just fits.
	data, err := io.ReadAll(io.LimitReader(r.Body, size+1))
	body := &bufferedBody{original: r.Body, complete: err == nil && int64(len(data)) <= size}
	switch {
	case err != nil:
		body.Reader = io.MultiReader(bytes.NewReader(data), failing{err})
	case body.complete:
		body.Reader = bytes.NewReader(data)
	default:
		body.Reader = io.MultiReader(bytes.NewReader(data), r.Body)
	}
	buffered := *r
	buffered.Body = body
	return &buffered, func() { b.held.Add(-size) }
}

func (b *bodyBuffers) wants(r *http.Request) bool {
	return b != nil && r.Body != nil && r.Body != http.NoBody && r.ContentLength != 0 &&
		r.ContentLength <= b.max && r.Header.Get("Expect") == "" && !talksBothWays(r.Header.Get("Content-Type"))
}

// talksBothWays reports whether a client may wait for the answer before it sends the rest of its
// body. Clients of gRPC and Connect do so with streams.
func talksBothWays(contentType string) bool {
	for _, streamed := range []string{"application/grpc", "application/connect+"} {
		if n := len(streamed); len(contentType) >= n && strings.EqualFold(contentType[:n], streamed) {
			rest := contentType[n:]
			return rest == "" || strings.HasSuffix(streamed, "+") || strings.ContainsRune("+-; ", rune(rest[0]))
		}
	}
	return false
}

// bufferedBody replays what was read, and goes on with the original.
type bufferedBody struct {
	io.Reader
	original io.Closer
	complete bool // nothing of the body is left on the wire
}

// Close implements [io.Closer].
func (b *bufferedBody) Close() error { return b.original.Close() }

// failing returns the error of reading ahead when the handler gets there.
type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// leaveBody keeps net/http from reading up to 256 KB of the refused request's
// body before it sends the answer.
func leaveBody(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor != 1 || r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		return // HTTP/2 resets the stream after the answer
	}
	if b, ok := r.Body.(*bufferedBody); ok && b.complete {
		return
	}
	if r.ContentLength < 0 || r.ContentLength > smallBody {
		w.Header().Set("Connection", "close")
	}
	// A writer without deadlines is not a server's connection: nothing to bound.
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(drainTime))
}

// smallBody is how much of an unread body the server may read to keep an
// HTTP/1 connection: what usually came with the headers.
const smallBody = 4 << 10

// drainTime bounds the time that reading it may take.
const drainTime = time.Second
