package proxy

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"
)

const (
	// keptBody is how much of a body is kept until the answer, so that the request can be sent again.
	keptBody = 16 << 10
	// mostRepeats is how often a request is sent again to a server that has not begun it. The pauses are random, of
	// up to firstPause before the first, and of twice as much before each further one. Requests that come together would
	// all meet the next new connection before its server has said how many streams it allows.
	mostRepeats = 6
	firstPause  = 10 * time.Millisecond
)

// textRefused is what the client of such a request is told.
const textRefused = "the upstream took no more requests on its connections; it has not begun this one, which can be sent again"

// Of these net/http has no error that can be compared, once it has read from the body or closed it.
var textsUnbegun = []string{
	"; REFUSED_STREAM",
	"http2: Transport received Server's graceful shutdown GOAWAY", // and it leaves the request out
	"net/http: cannot rewind body after connection loss",          // nothing was sent: the connection had no room left
}

// unbegun reports whether a request over HTTP/2 failed before its server did anything for it (RFC 9113, 8.7).
func unbegun(err error) bool {
	return slices.ContainsFunc(textsUnbegun, func(text string) bool { return strings.Contains(err.Error(), text) })
}

// bodyStart is what has been read of the body of a request until its answer came.
type bodyStart struct {
	bytes []byte
	lost  bool // too much has been read to keep
}

// keep notes what has been read of the body.
func (x *exchange) keep(p []byte) {
	if !x.upstream.mayHTTP2 || len(p) == 0 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if s := &x.start; x.answered || s.lost || len(s.bytes)+len(p) > keptBody {
		*s = bodyStart{lost: true}
	} else {
		s.bytes = append(s.bytes, p...)
	}
}

// repeat returns req to be sent again, after a pause; nil if err does not allow that. It has been sent again so many times.
// net/http itself repeats a request without a body.
func (x *exchange) repeat(req *http.Request, err error, times int) *http.Request {
	if times == mostRepeats || !x.upstream.mayHTTP2 || req.Body == nil || !unbegun(err) {
		return nil
	}
	select {
	case <-time.After(rand.N(firstPause << times)):
	case <-x.Done():
		return nil
	case <-x.client.Done():
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.start.lost {
		return nil
	}
	again := *req
	again.Body = openBody{io.MultiReader(bytes.NewReader(x.start.bytes), &x.bodies.sent)}
	return &again
}
