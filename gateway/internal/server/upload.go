package server

import (
	"io"
	"net/http"
	"time"

	"github.com/weir-go/weir/weirhttp"
)

// uploadRate is the slowest body, in bytes a second, that may take longer than
// the read time-out.
const uploadRate = 4 << 10

// upload is the body of a request as it comes in. A client gets the read
// time-out, and then a second more for each uploadRate bytes it has sent: one
// that sends a byte at a time is cut, one that sends a large file over a slow
// line is not. Nobody may be silent for longer than the read time-out, however
// much was sent before.
//
// A body that is still arriving after the time-out holds no slot any more: it
// becomes a stream, so that bodies without end cannot fill a gate.
type upload struct {
	io.ReadCloser
	control *http.ResponseController
	request *weirhttp.Request // nil before admission
	started time.Time
	timeout time.Duration
	n       int64
	err     error // what went wrong with it
}

func newUpload(w http.ResponseWriter, r *http.Request, timeout time.Duration) *upload {
	return &upload{ReadCloser: r.Body, control: http.NewResponseController(w), started: time.Now(), timeout: timeout}
}

// Read implements io.Reader.
func (u *upload) Read(p []byte) (int, error) {
	allowed := u.timeout + time.Duration(float64(u.n)/uploadRate*float64(time.Second))
	deadline := u.started.Add(allowed)
	if silent := time.Now().Add(u.timeout); silent.Before(deadline) {
		deadline = silent
	}
	_ = u.control.SetReadDeadline(deadline) // without one there is nothing to bound
	if u.request != nil && time.Since(u.started) > u.timeout {
		u.request.Stream()
		u.request = nil
	}
	n, err := u.ReadCloser.Read(p)
	u.n += int64(n)
	switch err {
	case nil:
	case io.EOF:
		// net/http goes on to watch the connection for the client's departure;
		// a deadline that passes there would look like one.
		_ = u.control.SetReadDeadline(time.Time{})
	default:
		// The deadline stays: net/http reads what is left of a body before it
		// answers.
		u.err = err
	}
	return n, err
}
