package weirhttp

import (
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/weir-go/weir"
)

// writeTimeout is how long one write may take; 0 means for ever.
type writeTimeout time.Duration

// writer is the handler's http.ResponseWriter. It watches the answer go by: it
// samples the request when the answer begins, and notices when the response
// becomes a stream. Only the handler's goroutine uses it, or one at a time that
// the handler lets in, as net/http demands of every ResponseWriter.
type writer struct {
	inner   http.ResponseWriter
	request *Request
	timeout writeTimeout

	answered    bool // the final status is known
	flushed     bool
	ownDeadline bool // the handler sets write deadlines itself
	hijacked    bool
	failed      bool // a write was cut
	wrote       int64
	stall       *time.Timer // runs while a write may block
	grace       *time.Timer // runs from the first flush
}

func (w *writer) init(inner http.ResponseWriter, q *Request, t writeTimeout) {
	w.inner, w.request, w.timeout = inner, q, t
}

// Unwrap lets [http.ResponseController] reach the server's own writer.
func (w *writer) Unwrap() http.ResponseWriter { return w.inner }

// Header implements [http.ResponseWriter].
func (w *writer) Header() http.Header { return w.inner.Header() }

// WriteHeader implements [http.ResponseWriter]. Informational responses (1xx
// but 101) are not yet the answer.
func (w *writer) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		w.answer(status)
	}
	w.inner.WriteHeader(status)
}

// answer samples the request with the first final status.
func (w *writer) answer(status int) {
	if w.answered {
		return
	}
	w.answered = true
	o := weir.ClassifyHTTP(status)
	if w.request.clientLeft() {
		o = weir.Abandoned
	}
	w.request.Sample(o)
}

// Write implements [http.ResponseWriter].
func (w *writer) Write(p []byte) (int, error) {
	w.answer(http.StatusOK)
	if w.quiet(len(p)) {
		n, err := w.inner.Write(p)
		w.wrote += int64(n)
		return n, err
	}
	return w.chunked(len(p), func(from, to int) (int, error) { return w.inner.Write(p[from:to]) })
}

// WriteString implements [io.StringWriter].
func (w *writer) WriteString(s string) (int, error) {
	w.answer(http.StatusOK)
	if w.quiet(len(s)) {
		n, err := io.WriteString(w.inner, s)
		w.wrote += int64(n)
		return n, err
	}
	return w.chunked(len(s), func(from, to int) (int, error) { return io.WriteString(w.inner, s[from:to]) })
}

// quiet reports whether n more bytes stay within what the server holds back, so
// that writing them cannot block on the client.
func (w *writer) quiet(n int) bool {
	return !w.flushed && w.wrote+int64(n) <= quietBytes
}

// chunked writes n bytes in pieces small enough for one deadline each.
func (w *writer) chunked(n int, write func(from, to int) (int, error)) (int, error) {
	w.grow(int64(n))
	done := 0
	for {
		end := min(n, done+writeChunk)
		k, err := w.watched(func() (int64, error) {
			k, err := write(done, end)
			return int64(k), err
		})
		done += int(k)
		if err != nil || done >= n {
			return done, err
		}
	}
}

// grow moves the request to the streams before a write that makes it long, or
// tries again for one that found no place before.
func (w *writer) grow(n int64) {
	if s := w.request.streams; s != nil && (w.wrote+n > s.bytes || w.request.waitsForPlace()) {
		w.request.move()
	}
}

// watched performs one write that may block: under a fresh deadline, and with a
// timer that makes the response a stream if the write takes too long.
func (w *writer) watched(write func() (int64, error)) (int64, error) {
	deadline := w.renewDeadline()
	w.startStall()
	n, err := write()
	if w.stall != nil {
		w.stall.Stop()
	}
	w.wrote += n
	if !deadline.IsZero() {
		w.clearDeadline(deadline, err)
	}
	return n, err
}

func (w *writer) startStall() {
	s := w.request.streams
	if s == nil {
		return
	}
	if w.stall == nil {
		w.stall = time.AfterFunc(s.stall, w.request.moveLater)
		return
	}
	w.stall.Reset(s.stall)
}

// renewDeadline gives the next write its time, and returns the zero time if
// that is not the middleware's to do.
func (w *writer) renewDeadline() time.Time {
	if w.timeout <= 0 || w.ownDeadline {
		return time.Time{}
	}
	deadline := time.Now().Add(time.Duration(w.timeout))
	// A writer that has no deadlines is no reason to refuse to write.
	_ = http.NewResponseController(w.inner).SetWriteDeadline(deadline)
	return deadline
}

// clearDeadline follows a write under a deadline. HTTP/2 resets a stream whose
// deadline passes even if nothing is being written, so a stream that is silent
// for a while must have none. A write that failed late was cut; HTTP/2 reports
// it as a closed stream.
func (w *writer) clearDeadline(deadline time.Time, err error) {
	if err == nil {
		_ = http.NewResponseController(w.inner).SetWriteDeadline(time.Time{})
		return
	}
	if w.failed || time.Now().Before(deadline) && !errors.Is(err, os.ErrDeadlineExceeded) {
		return
	}
	w.failed = true
	if s := w.request.streams; s != nil {
		s.cut.Add(1)
	}
}

// SetWriteDeadline is what [http.ResponseController] calls: the handler takes
// the deadline into its own hands.
func (w *writer) SetWriteDeadline(t time.Time) error {
	w.ownDeadline = true
	return http.NewResponseController(w.inner).SetWriteDeadline(t)
}

// FlushError is what [http.ResponseController] calls to flush.
func (w *writer) FlushError() error {
	w.answer(http.StatusOK)
	if !w.flushed {
		w.flushed = true
		w.firstFlush()
	} else {
		w.grow(0)
	}
	_, err := w.watched(func() (int64, error) {
		return 0, http.NewResponseController(w.inner).Flush()
	})
	return err
}

// firstFlush decides what a response that is sent piece by piece is: events are
// a stream for certain, anything else if it lasts.
func (w *writer) firstFlush() {
	s := w.request.streams
	if s == nil {
		return
	}
	if isEventStream(w.inner.Header()) {
		w.request.move()
		return
	}
	w.grace = time.AfterFunc(s.grace, w.request.moveLater)
}

func isEventStream(h http.Header) bool {
	t, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	return strings.EqualFold(strings.TrimSpace(t), "text/event-stream")
}

// handlerEnded stops the timers and bounds the flush that net/http does next.
func (w *writer) handlerEnded() {
	if w.stall != nil {
		w.stall.Stop()
	}
	if w.grace != nil {
		w.grace.Stop()
	}
	if !w.hijacked {
		w.renewDeadline()
	}
}
