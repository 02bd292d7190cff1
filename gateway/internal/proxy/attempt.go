package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"time"
)

// send sends the request to the present target, and returns with the header of the answer.
func (x *exchange) send(req *http.Request) (*http.Response, error) {
	u := x.upstream
	transport, trips := u.shared.transport, u.shared.trips
	x.upgrading = false
	switch {
	case x.call.GRPC:
		if !x.seat.takesCalls(u.now()) {
			return nil, errNotHTTP2
		}
		transport = u.shared.calls
	case x.seat.url.Scheme == "https" && upgradeOf(req.Header) != "": // HTTP/2 has none
		transport, x.upgrading = u.shared.upgrades, true
	}
	var res *http.Response
	var err error
	for again := true; again; {
		x.seat.requests.Add(1)
		trips.begin()
		res, err = x.seat.attempt(transport, req)
		trips.end()
		if again = err == errRefused; again {
			x.refusals++
			again = x.sendAgain()
		}
		if again {
			req = x.address(req)
		}
	}
	switch {
	case errors.Is(err, errNotHTTP2):
		x.seat.noCallsUntil.Store(int64(u.now() + callsAgain))
	case err == nil && res.StatusCode < 100: // net/http reads it, and panics when it is to write it
		res.Body.Close()
		return nil, errNoStatus
	}
	return res, err
}

// sendAgain reports whether the present target gets what it has refused once more. One that ends a connection refuses what
// meets that, so the second attempt is made at once, and mostly works. One that allows few requests on each connection
// refuses what comes before it has said so. Where no other target is left, more attempts come later, each request's at other
// times, so that a burst comes through.
func (x *exchange) sendAgain() bool {
	switch {
	case !x.body.repeatable() || x.client.Err() != nil:
		return false
	case x.refusals == 1:
		return true
	case x.rests == mostRests || x.mayTryAnother():
		return false
	}
	mean := firstRest << x.rests
	x.rests++
	return x.rest(mean/2 + rand.N(mean))
}

// The pauses before further attempts are twice as long each time; firstRest is the mean of the first. Together they take
// some seven seconds on average, and less than twelve: a target that refuses everything holds a request and its slot so long.
const (
	firstRest = 500 * time.Millisecond
	mostRests = 4
)

// rest waits for d, and reports whether the request may then be sent: its client is there, and its deadline and
// response_timeout leave time.
func (x *exchange) rest(d time.Duration) bool {
	if by := x.call.Work.Deadline; !by.IsZero() && time.Until(by) <= d || !x.pauseWithin(d) {
		return false
	}
	rest := time.NewTimer(d)
	defer rest.Stop()
	select {
	case <-rest.C:
		x.goOn()
		return x.client.Err() == nil
	case <-x.client.Done():
	case <-x.Done():
	}
	return false
}

// attempt sends a request to the target once. net/http's transport would send what an HTTP/2 target has refused to begin
// again by itself: to one that ends each new connection thousands of times a second, and else after pauses of seconds. It
// says so only by asking for another connection, where nothing has been written yet, or in an error that names the body.
func (t *target) attempt(transport http.RoundTripper, req *http.Request) (*http.Response, error) {
	if !t.h2c && t.url.Scheme != "https" {
		return transport.RoundTrip(req)
	}
	ctx, cancel := context.WithCancel(req.Context()) // which ends with the exchange
	conns, http2, refused := 0, false, false
	body, _ := req.Body.(*sentBody)
	if body == nil {
		body = new(sentBody) // that nobody reads
	}
	body.abort = cancel
	out := req.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		conns++
		if http2 = t.h2c || choseHTTP2(got.Conn); http2 && !t.http2.Load() {
			t.http2.Store(true)
		}
		body.begun.Store(!http2)
		if conns > 1 && http2 {
			refused = true
			cancel()
		}
	}, GotFirstResponseByte: func() { body.begun.Store(true) }}))
	res, err := transport.RoundTrip(out)
	if err == nil {
		return res, nil
	}
	cancel()
	switch said := err.Error(); {
	case refused:
		return nil, errRefused
	case http2 && said == cannotRewind: // the connection could not be used, nor another one
		return nil, errRefused
	case http2 && strings.Contains(said, cannotRetry):
		if !strings.Contains(said, "REFUSED_STREAM") && !strings.Contains(said, "graceful shutdown GOAWAY") {
			body.body.settle() // a PROTOCOL_ERROR, before which something may have begun
		}
		return nil, errRefused
	}
	return nil, err
}

func choseHTTP2(conn net.Conn) bool {
	c, ok := conn.(*tls.Conn)
	return ok && c.ConnectionState().NegotiatedProtocol == "h2"
}

// errRefused is why an attempt has ended over HTTP/2. The target has begun nothing.
var errRefused = errors.New("the target refused the request over HTTP/2")

// What net/http says of a request that it would send again if it could read the body again.
const (
	cannotRetry  = "http2: Transport: cannot retry err ["
	cannotRewind = "net/http: cannot rewind body after connection loss"
)

var errNoStatus = errors.New("the upstream answered with a status below 100")
