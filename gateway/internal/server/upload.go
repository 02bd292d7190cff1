package server

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/weirhttp"
)

const (
	// uploadRate is the slowest body, in bytes a second, that may take longer
	// than the read time-out.
	uploadRate = 4 << 10
	// slotRate is the slowest body, in bytes a second, that keeps the slot of
	// its request.
	slotRate = 64 << 10
	// slotStall is how long such a body may keep the gateway waiting besides.
	slotStall = time.Second
)

// upload is the body of a request as it comes in. A client gets the read
// time-out, and then a second more for each uploadRate bytes it has sent: one
// that sends a byte at a time is cut, one that sends a large file over a slow
// line is not. Nobody may be silent for longer than the read time-out, however
// much was sent before.
//
// A body that does not come at slotRate, or is still arriving after the time-out,
// holds no slot any more: it becomes a stream, so that neither stalled bodies nor
// those without end can fill a gate. While it comes, the upstream waits for the
// client too. Before it is told of the end the request is admitted anew, because
// then it has work to do; refused, it never sees the end.
type upload struct {
	io.ReadCloser
	control *http.ResponseController
	started time.Time
	timeout time.Duration
	stall   time.Duration
	length  int64 // as announced, -1 if it was not
	n       int64
	err     error // what went wrong with it
	refused error // why it was not admitted when it was complete

	// What follows is for bodies of admitted requests.
	ctx      context.Context // of the request
	work     weir.Work
	admitted time.Time

	mu       sync.Mutex        // against the timer
	request  *weirhttp.Request // nil before admission
	timer    *time.Timer       // nil before the first wait
	blocked  time.Duration     // how long the client has been waited for
	reading  bool
	moved    bool // has given up its slot
	complete bool
}

func newUpload(w http.ResponseWriter, r *http.Request, timeout time.Duration) *upload {
	return &upload{
		ReadCloser: r.Body, control: http.NewResponseController(w), started: time.Now(),
		timeout: timeout, stall: min(slotStall, timeout/2), length: r.ContentLength,
	}
}

// admit says that the request has a slot, which the body can lose.
func (u *upload) admit(ctx context.Context, q *weirhttp.Request, w weir.Work) {
	u.ctx, u.work, u.admitted = ctx, w, time.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	u.request = q
}

// Read implements io.Reader.
func (u *upload) Read(p []byte) (int, error) {
	if u.refused != nil {
		return 0, u.refused
	}
	began := time.Now()
	u.bound(began)
	u.begin(began)
	n, err := u.ReadCloser.Read(p)
	u.n += int64(n)
	complete := err == io.EOF || err == nil && u.n == u.length
	if complete {
		// net/http goes on to watch the connection for the client's departure;
		// a deadline that passes there would look like one.
		_ = u.control.SetReadDeadline(time.Time{})
	} else if err != nil {
		// The deadline stays: net/http reads what is left of a body before it
		// answers.
		u.err = err
	}
	if u.finish(time.Since(began), complete) {
		if u.refused = u.comeBack(); u.refused != nil {
			return 0, u.refused // with the rest the upstream could begin
		}
	}
	return n, err
}

// bound sets the time by which the client must have sent more.
func (u *upload) bound(now time.Time) {
	allowed := u.timeout + time.Duration(float64(u.n)/uploadRate*float64(time.Second))
	deadline := u.started.Add(allowed)
	if silent := now.Add(u.timeout); silent.Before(deadline) {
		deadline = silent
	}
	_ = u.control.SetReadDeadline(deadline) // without one there is nothing to bound
}

// begin bounds the time for which the slot is held while the client is waited
// for.
func (u *upload) begin(now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.request == nil || u.moved || u.complete {
		return
	}
	u.reading = true
	left := u.stall + time.Duration(float64(u.n)/slotRate*float64(time.Second)) - u.blocked
	switch {
	case left <= 0 || now.Sub(u.started) > u.timeout:
		u.leave()
	case u.timer == nil:
		u.timer = time.AfterFunc(left, u.late)
	default:
		u.timer.Reset(left)
	}
}

// late runs when the client has been waited for long enough.
func (u *upload) late() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.reading {
		u.leave()
	}
}

// leave gives the slot up, if there is a place for it among the streams. u.mu is
// held.
func (u *upload) leave() { u.moved = u.request.Stream() }

// finish ends a wait for the client, and reports whether the body has just come
// to its end without a slot.
func (u *upload) finish(took time.Duration, complete bool) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.reading {
		u.reading = false
		u.blocked += took
		if u.timer != nil {
			u.timer.Stop()
		}
	}
	first := complete && !u.complete
	u.complete = u.complete || complete
	return first && u.moved
}

// comeBack gets a new slot for a request that has given its own up. What the
// client took to send the body does not count against the request's deadline.
func (u *upload) comeBack() error {
	if !u.work.Deadline.IsZero() {
		u.work.Deadline = u.work.Deadline.Add(time.Since(u.admitted))
	}
	return u.request.Return(u.ctx, u.work)
}
