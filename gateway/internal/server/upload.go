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
	// uploadRate is in bytes a second. A body that comes this fast may take longer than the read
	// time-out.
	uploadRate = 4 << 10
	// slotRate is in bytes a second. A body that comes this fast keeps its slot.
	slotRate = 64 << 10
	// slotStall is how long in all a body may be slower than slotRate.
	slotStall = time.Second
)

// upload is the body of a request as it comes in. A client has the read time-out, and a second more
// for each uploadRate bytes that it has sent. That cuts off a client that sends a byte at a time,
// but not one that sends a large file over a slow line. No client may be silent for longer than the
// read time-out, however much it sent before. Only the time in which somebody reads counts: while the
// request waits for its slot, or the upstream takes what has come, the client can do nothing.
//
// A body loses its slot if it comes slower than slotRate, or is still coming after the time-out.
// The request becomes a stream, so neither stalled nor endless bodies can fill a gate. While the
// body comes, the upstream waits for the client too. When the body is complete the upstream has
// work to do. So the request is admitted again before the upstream sees the end. If it is refused,
// the upstream never sees the end. A body that finds no place among the streams keeps its slot, until no slot is free.
// Then it is broken off.
//
// Few handlers read the body of a GET before they work. So that of a method that needs none is broken off where another one
// would lose its slot. The slot is kept as for a client that has left.
type upload struct {
	io.ReadCloser
	control *http.ResponseController
	timeout time.Duration
	stall   time.Duration
	http2   bool
	needs   bool          // the method needs a body
	length  int64         // as announced, -1 if it was not
	n       int64         // bytes read
	waited  time.Duration // for the client
	err     error         // of the client
	refused error         // why it was not admitted again
	readAt  time.Time     // when a part was last read before admission

	// What follows is for bodies of admitted requests.
	ctx        context.Context // of the request
	work       weir.Work
	needed     func() bool // whether no slot is free
	admittedAt time.Time

	mu       sync.Mutex        // guards what follows against the timer
	request  *weirhttp.Request // nil before admission
	timer    *time.Timer       // nil before the first wait
	blocked  time.Duration     // time spent waiting for the client
	reading  bool
	moved    bool // it is a stream, and has no slot
	complete bool
	over     bool // the handler has returned
}

func newUpload(w http.ResponseWriter, r *http.Request, timeout time.Duration) *upload {
	return &upload{
		ReadCloser: r.Body, control: http.NewResponseController(w), timeout: timeout, stall: min(slotStall, timeout/2),
		http2: r.ProtoMajor == 2, length: r.ContentLength, needs: needsBody(r.Method),
	}
}

func needsBody(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodDelete, http.MethodOptions, http.MethodTrace:
		return false
	}
	return true
}

// end is called when the handler returns. net/http's transport may read on then. The connection is another
// request's by that time, and over HTTP/2 to touch it panics.
func (u *upload) end() {
	if u == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.over = true
}

// admitted is called when the request has got a slot, which the body can lose.
func (u *upload) admitted(ctx context.Context, q *weirhttp.Request, w weir.Work, needed func() bool) {
	u.ctx, u.work, u.needed, u.admittedAt = ctx, w, needed, time.Now()
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
	u.setDeadline(began)
	u.startClock(began)
	n, err := u.ReadCloser.Read(p)
	took := time.Since(began)
	u.n, u.waited = u.n+int64(n), u.waited+took
	if u.admittedAt.IsZero() {
		u.readAt = time.Now()
	}
	complete := err == io.EOF || err == nil && u.n == u.length
	switch {
	case complete, err == nil && u.http2:
		// net/http goes on reading, to notice a client that leaves. A deadline that passes then would look
		// like a client that left. Over HTTP/2 one that passes while nobody reads ends the body.
		u.bound(time.Time{})
	case err != nil:
		// The deadline stays: net/http reads the rest of a body before it answers.
		u.err = err
	}
	if u.stopClock(took, complete) {
		if u.refused = u.readmit(); u.refused != nil {
			return 0, u.refused // hold these bytes back: with the complete body the upstream would begin
		}
	}
	return n, err
}

// setDeadline sets the time when the client must have sent more.
func (u *upload) setDeadline(now time.Time) {
	left := u.timeout + time.Duration(float64(u.n)/uploadRate*float64(time.Second)) - u.waited
	u.bound(now.Add(min(left, u.timeout)))
}

// bound sets the read deadline, unless the handler has returned.
func (u *upload) bound(deadline time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.over {
		_ = u.control.SetReadDeadline(deadline) // an error means that the connection has no deadlines
	}
}

// startClock bounds how long the request keeps its slot while the gateway waits for the client.
func (u *upload) startClock(now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.request == nil || u.moved || u.complete {
		return
	}
	u.reading = true
	left := u.stall + time.Duration(float64(u.n)/slotRate*float64(time.Second)) - u.blocked
	if left <= 0 || now.Sub(u.admittedAt) > u.timeout {
		u.becomeStream()
		return
	}
	u.wake(left)
}

// wake has timeIsUp run after a while. u.mu is held.
func (u *upload) wake(after time.Duration) {
	if u.timer == nil {
		u.timer = time.AfterFunc(after, u.timeIsUp)
		return
	}
	u.timer.Reset(after)
}

// timeIsUp runs when the client has been waited for long enough.
func (u *upload) timeIsUp() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.reading {
		u.becomeStream()
	}
}

// becomeStream gives the slot up, or breaks the body off. If there are too many streams and slots are free, it looks
// again later. u.mu is held, also while hooks run: the end of the body has to see whether there is a slot.
func (u *upload) becomeStream() {
	if u.needs {
		if u.moved = u.request.ReleaseForStream(); u.moved {
			return
		}
		if !u.needed() {
			u.wake(u.stall)
			return
		}
	}
	if !u.over {
		_ = u.control.SetReadDeadline(time.Now()) // which ends the Read under way
	}
}

// stopClock ends a wait for the client, and reports whether the body has just become complete
// without a slot.
func (u *upload) stopClock(took time.Duration, complete bool) bool {
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

// readmit gets a new slot for a request that gave its own up. The time that the client took
// for the body does not count against the request's deadline.
func (u *upload) readmit() error {
	if !u.work.Deadline.IsZero() {
		u.work.Deadline = u.work.Deadline.Add(time.Since(u.admittedAt))
	}
	return u.request.Reacquire(u.ctx, u.work)
}
