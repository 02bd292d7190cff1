package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
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
		res, err = x.attempt(transport, req)
		trips.end()
		again = err == errRefused && x.sendAgain()
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
// refuses what comes before it has said so. Where no other target is left, one more attempt comes later, each request's at
// another time.
func (x *exchange) sendAgain() bool {
	switch {
	case !x.body.untouched() || x.client.Err() != nil:
		return false
	case x.refusals == 1:
		return true
	case x.rested || x.mayTryAnother():
		return false
	}
	x.rested = true
	rest := time.NewTimer(afterRefusals/2 + rand.N(afterRefusals))
	defer rest.Stop()
	select {
	case <-rest.C:
		return x.client.Err() == nil
	case <-x.Done():
		return false
	}
}

// afterRefusals is the mean pause before the last attempt.
const afterRefusals = time.Second

// attempt sends the request once. net/http's transport would send what an HTTP/2 target has refused to begin again by itself:
// to one that ends each new connection thousands of times a second, and else after pauses of seconds. It says so only by
// asking for another connection, where nothing has been written yet.
func (x *exchange) attempt(transport *http.Transport, req *http.Request) (*http.Response, error) {
	if !x.seat.h2c && x.seat.url.Scheme != "https" {
		return transport.RoundTrip(req)
	}
	ctx, cancel := context.WithCancel(req.Context()) // which ends with the exchange
	conns, refused := 0, false
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(got httptrace.GotConnInfo) {
		if conns++; conns > 1 && (x.seat.h2c || choseHTTP2(got.Conn)) {
			refused = true
			cancel()
		}
	}})
	res, err := transport.RoundTrip(req.WithContext(ctx))
	if err == nil {
		return res, nil
	}
	cancel()
	if refused {
		x.refusals++
		err = errRefused
	}
	return nil, err
}

func choseHTTP2(conn net.Conn) bool {
	c, ok := conn.(*tls.Conn)
	return ok && c.ConnectionState().NegotiatedProtocol == "h2"
}

// errRefused is why an attempt has ended over HTTP/2. The target has begun nothing.
var errRefused = errors.New("the target refused the request over HTTP/2")

var errNoStatus = errors.New("the upstream answered with a status below 100")
