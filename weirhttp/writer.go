package weirhttp

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/weir-go/weir"
)

// writeTimeout is how long one write may take; 0 means for ever.
type writeTimeout time.Duration

// writer is the handler's http.ResponseWriter. It samples the request when the answer
// begins, and notices when the response becomes a stream. One goroutine at a time uses
// it, as net/http demands of every ResponseWriter.
type writer struct {
	inner   http.ResponseWriter
	request *Request
	timeout writeTimeout

	longBody bool // a 413 closes the connection, as http.MaxBytesReader does through the server's own writer
	answered bool // the final status is known
	flushed  bool
	failed   bool // a write has failed at its deadline
	wrote    int64
	stall    *time.Timer // runs while a write may block
	grace    *time.Timer // runs from the first flush

	mu          sync.Mutex // guards what follows against a Read of the request's body
	expects     bool       // the first Read of the request's body is to come, or may be writing "100 Continue"
	writing     bool       // a write is under way; not kept up where the middleware sets no deadlines
	ownDeadline bool       // the handler sets write deadlines itself
	over        bool       // the connection is hijacked, or perhaps another request's
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
	if status < 200 && status != http.StatusSwitchingProtocols {
		w.inform(status)
		return
	}
	w.answer(status)
	if status == http.StatusRequestEntityTooLarge && w.longBody {
		w.inner.Header().Set("Connection", "close")
	}
	w.inner.WriteHeader(status)
}

// inform passes an informational answer on. net/http sends it at once, and does not say whether that failed.
func (w *writer) inform(status int) {
	deadline := w.beginWrite()
	w.inner.WriteHeader(status)
	switch {
	case deadline.IsZero():
	case !time.Now().Before(deadline):
		w.clearDeadline(deadline, os.ErrDeadlineExceeded)
	default:
		w.dropDeadline(&w.writing)
	}
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
	w.request.sampleStatus(o)
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

// quiet reports whether n more bytes fit into the server's buffer, so that writing them cannot block on the
// client.
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

// grow moves the request to the streams before a write that makes the response long. It tries again for a
// response that found no place before.
func (w *writer) grow(n int64) {
	if s := w.request.streams; s != nil && (w.wrote+n > s.bytes || w.request.lacksPlace()) {
		w.request.move()
	}
}

// watched performs one write that may block. The write has a new deadline. If it takes too long, a
// timer makes the response a stream.
func (w *writer) watched(write func() (int64, error)) (int64, error) {
	deadline := w.beginWrite()
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

// beginWrite sets the deadline of the next write, as renewDeadline does, and keeps the end of a Read from clearing it.
func (w *writer) beginWrite() time.Time {
	w.mu.Lock()
	w.writing = true
	w.mu.Unlock()
	return w.renewDeadline()
}

// renewDeadline sets the deadline of the next write. It returns the zero time if the
// middleware sets none.
func (w *writer) renewDeadline() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.timeout <= 0 || w.ownDeadline || w.over {
		return time.Time{}
	}
	deadline := time.Now().Add(time.Duration(w.timeout))
	// If the writer has no deadlines, the write goes on without one.
	_ = http.NewResponseController(w.inner).SetWriteDeadline(deadline)
	return deadline
}

// clearDeadline follows a write with a deadline. HTTP/2 resets a stream when its deadline passes,
// even if nothing is being written, so a silent stream must have none. A write that failed after
// its deadline was cut; HTTP/2 reports it as a closed stream.
func (w *writer) clearDeadline(deadline time.Time, err error) {
	w.mu.Lock()
	w.writing = false
	w.mu.Unlock()
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

// dropDeadline says that what begun tells of has ended. It clears the deadline unless something else may be writing under
// it. A deadline that stayed would also bound what TLS writes by itself: the answer to a new key of the client.
func (w *writer) dropDeadline(begun *bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	*begun = false
	if !w.writing && !w.expects && !w.ownDeadline && !w.over {
		_ = http.NewResponseController(w.inner).SetWriteDeadline(time.Time{})
	}
}

// SetWriteDeadline is called by [http.ResponseController]. From then on, the handler sets the deadlines.
func (w *writer) SetWriteDeadline(t time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ownDeadline = true
	return http.NewResponseController(w.inner).SetWriteDeadline(t)
}

// FlushError is called by [http.ResponseController] to flush.
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

// firstFlush decides whether a response that is sent in pieces is a stream. An event stream is one at once, any
// other response after Grace.
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
	w.beginWrite()
	w.setOver(true)
}

func (w *writer) setOver(over bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.over = over
}

// expecting returns r with an expectingBody if its client may wait for "100 Continue". Over HTTP/2 a client cannot
// hold that up.
func (w *writer) expecting(r *http.Request) *http.Request {
	if w.timeout <= 0 || r.ProtoMajor != 1 || r.Header.Get("Expect") == "" || r.Body == nil || r.Body == http.NoBody {
		return r
	}
	w.expects = true
	expecting := *r
	expecting.Body = &expectingBody{ReadCloser: r.Body, out: w}
	return &expecting
}

// expectingBody bounds the "100 Continue" that net/http writes in the first Read, in whatever goroutine that is. It does
// not say when it has written that, so the deadline stays until the Read ends.
type expectingBody struct {
	io.ReadCloser
	out   *writer
	begun bool
}

// Read implements [io.Reader].
func (b *expectingBody) Read(p []byte) (int, error) {
	if !b.begun {
		b.begun = true
		b.out.renewDeadline()
		defer b.out.dropDeadline(&b.out.expects)
	}
	return b.ReadCloser.Read(p)
}

// readFrom copies src into the response. Files go to the server's own ReadFrom in
// pieces, so the kernel still sends them; the first piece ends where the response
// becomes a stream. Any other source is copied through Write, because waiting for the
// source must not look like a client that stalls.
func (w *writer) readFrom(src io.Reader) (int64, error) {
	if !isFile(src) {
		buf := copyBuffers.Get().(*[]byte)
		defer copyBuffers.Put(buf)
		return io.CopyBuffer(onlyWriter{w}, onlyReader{src}, *buf)
	}
	w.answer(http.StatusOK)
	var total int64
	for {
		piece := &io.LimitedReader{R: src, N: w.pieceLen()}
		if limited, ok := src.(*io.LimitedReader); ok {
			piece.R = limited.R
			piece.N = min(piece.N, limited.N)
		}
		want := piece.N
		if want <= 0 {
			return total, nil
		}
		w.grow(want)
		n, err := w.watched(func() (int64, error) { return w.inner.(io.ReaderFrom).ReadFrom(piece) })
		total += n
		if limited, ok := src.(*io.LimitedReader); ok {
			limited.N -= n
		}
		if err != nil || n < want {
			return total, err
		}
	}
}

// pieceLen is how much of a file may be sent under one deadline. A piece ends exactly where the response
// becomes a stream, so a file that ends there is not a stream.
func (w *writer) pieceLen() int64 {
	if s := w.request.streams; s != nil && w.wrote < s.bytes {
		return min(s.bytes-w.wrote, writeChunk)
	}
	return writeChunk
}

// isFile reports whether the server can send src by itself. src is a file, or a part of one as
// [http.ServeContent] passes it. Connections are left out, because reading from one may wait.
func isFile(src io.Reader) bool {
	if l, ok := src.(*io.LimitedReader); ok {
		src = l.R
	}
	if _, ok := src.(net.Conn); ok {
		return false
	}
	_, seeks := src.(io.Seeker)
	_, ok := src.(syscall.Conn)
	return ok && seeks
}

// onlyWriter and onlyReader hide the methods that io.CopyBuffer would use instead of
// the buffer.
type onlyWriter struct{ io.Writer }

type onlyReader struct{ io.Reader }

var copyBuffers = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}

// kind returns the writer as a type with exactly the optional interfaces of the server's writer, because
// handlers test for them. Each type is one pointer, so the conversion allocates nothing.
//
// http.Pusher exists on HTTP/2 only, where there is no Hijack and no sendfile. http.CloseNotifier is left out:
// it is deprecated in favour of the request's context.
func (w *writer) kind() http.ResponseWriter {
	flush := supports[http.Flusher](w.inner) || supports[flushErrorer](w.inner)
	hijack := supports[http.Hijacker](w.inner)
	_, from := w.inner.(io.ReaderFrom)
	_, push := w.inner.(http.Pusher)
	switch {
	case flush && hijack && from:
		return flushHijackFrom{flushHijack{flushOnly{w}}}
	case flush && hijack:
		return flushHijack{flushOnly{w}}
	case flush && from:
		return flushFrom{flushOnly{w}}
	case hijack && from:
		return hijackFrom{hijackOnly{w}}
	case hijack:
		return hijackOnly{w}
	case from:
		return fromOnly{w}
	case flush && push:
		return flushPush{flushOnly{w}}
	case flush:
		return flushOnly{w}
	}
	return w
}

// supports reports whether w, or a writer that it wraps, implements T. It searches as [http.ResponseController]
// does.
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

type (
	flushOnly       struct{ *writer }
	flushHijack     struct{ flushOnly }
	flushHijackFrom struct{ flushHijack }
	flushFrom       struct{ flushOnly }
	flushPush       struct{ flushOnly }
	hijackOnly      struct{ *writer }
	hijackFrom      struct{ hijackOnly }
	fromOnly        struct{ *writer }
)

// Flush implements [http.Flusher].
func (w flushOnly) Flush() { _ = w.FlushError() }

// Hijack implements [http.Hijacker].
func (w flushHijack) Hijack() (net.Conn, *bufio.ReadWriter, error) { return w.hijack() }

// Hijack implements [http.Hijacker].
func (w hijackOnly) Hijack() (net.Conn, *bufio.ReadWriter, error) { return w.hijack() }

// ReadFrom implements [io.ReaderFrom].
func (w flushHijackFrom) ReadFrom(r io.Reader) (int64, error) { return w.readFrom(r) }

// ReadFrom implements [io.ReaderFrom].
func (w flushFrom) ReadFrom(r io.Reader) (int64, error) { return w.readFrom(r) }

// ReadFrom implements [io.ReaderFrom].
func (w hijackFrom) ReadFrom(r io.Reader) (int64, error) { return w.readFrom(r) }

// ReadFrom implements [io.ReaderFrom].
func (w fromOnly) ReadFrom(r io.Reader) (int64, error) { return w.readFrom(r) }

// Push implements [http.Pusher].
func (w flushPush) Push(target string, opts *http.PushOptions) error {
	return w.inner.(http.Pusher).Push(target, opts)
}

// hijack wraps the connection that it returns, so that the request keeps its place among the streams until the
// connection is closed. If there was no place, the request keeps its slot.
func (w *writer) hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.mu.Lock()
	expects := w.expects
	w.mu.Unlock()
	if expects {
		w.renewDeadline() // Hijack waits for a "100 Continue" that is being written, and clears the deadline then
	}
	w.setOver(true)
	c, rw, err := http.NewResponseController(w.inner).Hijack()
	if err != nil {
		w.setOver(false)
		return nil, nil, err
	}
	w.answered = true
	q := w.request
	q.Sample(weir.NoSample)
	q.mu.Lock()
	q.hijacked = true
	q.mu.Unlock()
	q.move()
	return wrapConn(c, q), rw, nil
}

// lease ends a request once, when its connection is closed.
type lease struct {
	request *Request
	once    sync.Once
}

func (l *lease) end() { l.once.Do(func() { l.request.end(weir.NoSample) }) }

// wrapConn keeps the methods of the connection types that net/http serves: half-closing, splicing, the state of
// the TLS session. The garbage collector closes a connection that is dropped without Close. Its lease ends
// then, too.
func wrapConn(c net.Conn, q *Request) net.Conn {
	l := &lease{request: q}
	switch c := c.(type) {
	case *net.TCPConn:
		return leased(&tcpConn{c, l}, l)
	case *tls.Conn:
		return leased(&tlsConn{c, l}, l)
	}
	return leased(&plainConn{c, l}, l)
}

// leased ends l when the garbage collector finds c.
func leased[T any](c *T, l *lease) *T {
	runtime.AddCleanup(c, (*lease).end, l)
	return c
}

type tcpConn struct {
	*net.TCPConn
	lease *lease
}

// Close implements [net.Conn].
func (c *tcpConn) Close() error {
	defer c.lease.end()
	return c.TCPConn.Close()
}

type tlsConn struct {
	*tls.Conn
	lease *lease
}

// Close implements [net.Conn].
func (c *tlsConn) Close() error {
	defer c.lease.end()
	return c.Conn.Close()
}

type plainConn struct {
	net.Conn
	lease *lease
}

// Close implements [net.Conn].
func (c *plainConn) Close() error {
	defer c.lease.end()
	return c.Conn.Close()
}
