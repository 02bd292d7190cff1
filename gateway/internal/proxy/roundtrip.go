package proxy

import (
	"errors"
	"net"
	"net/http"
	"os"
	"strconv"

	"github.com/weir-go/weir"
)

// roundTripper is the transport that ReverseProxy is given. It sends a request
// to the target that was picked for it; if no connection can be made there, to
// the others in turn. Nothing has been sent then, so nothing happens twice.
type roundTripper struct{ u *Upstream }

func (rt roundTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	x := req.Context().Value(exchangeKey{}).(*exchange)
	for {
		x.seat.requests.Add(1)
		res, err := rt.u.shared.transport.RoundTrip(req)
		if err == nil {
			return x.answer(res)
		}
		f, o := x.diagnose(err)
		if f >= 0 {
			rt.u.note(x, f, err)
		}
		if f == failedConnect && x.mayTryAnother() {
			refused := x.another()
			if refused == nil {
				req = x.address(req)
				continue
			}
			if weir.AsRejection(refused) != nil {
				err, o = refused, weir.NoSample
			}
		}
		x.settle()
		if f == failedConnect {
			x.setCost("", 0) // nothing has been sent to anybody
		}
		x.permit.Sample(o)
		x.call.Request.Sample(o)
		return nil, err
	}
}

// answer takes the headers of an answer: the wait is over.
func (x *exchange) answer(res *http.Response) (*http.Response, error) {
	here := x.settle()
	switch res.StatusCode {
	case http.StatusBadGateway, http.StatusGatewayTimeout:
		// The target is a proxy itself and has lost what is behind it. A 503 is
		// no such sign: to put out a target because it is busy would send its
		// load to the others, until they are all out.
		x.upstream.note(x, failedStatus, errStatus(res.StatusCode))
	default:
		if x.seat.succeeded() {
			x.upstream.opts.Logger.Info("upstream target is back", "upstream", x.upstream.name, "target", x.seat.key)
		}
	}
	took := x.upstream.now() - x.started
	o := weir.ClassifyHTTP(res.StatusCode)
	if o == weir.OK {
		x.upstream.shared.services.add(x.service, took)
	}
	if !here {
		o = weir.Abandoned
	}
	x.settleCost(res.Header)
	if !x.settled {
		x.settleCost(res.Trailer) // which is announced at most: the client hears nothing of it
	}
	x.permit.Sample(o)
	x.call.Request.Sample(o)
	if !here {
		res.Body.Close()
		return nil, errClientLeft
	}
	x.watch(res)
	return res, nil
}

// settleCost tells the gates what the request has really cost, if the answer says so.
func (x *exchange) settleCost(answer http.Header) {
	if settle := x.upstream.opts.Settle; settle != nil && settle(x.call, answer, x.setCost) {
		x.settled = true
	}
}

// setCost tells a gate, or all of them, what the request has really cost.
func (x *exchange) setCost(gate string, units int64) {
	x.permit.SetCost(gate, units)
	x.call.Request.SetCost(gate, units)
}

// diagnose says whose fault err is: a failure of the target, or -1, and the
// outcome to sample.
func (x *exchange) diagnose(err error) (failure, weir.Outcome) {
	var dial *net.OpError
	cause := x.why()
	switch {
	case cause == errResponseTimeout:
		return failedTimeout, weir.Overload
	case x.body.failure() != nil:
		return -1, weir.NoSample
	case cause != nil:
		return -1, weir.Abandoned
	case errors.As(err, &dial) && dial.Op == "dial":
		if dial.Timeout() {
			return failedConnect, weir.Overload
		}
		return failedConnect, weir.Failed
	case timedOut(err):
		return failedTimeout, weir.Overload
	}
	return failedReset, weir.Failed
}

func timedOut(err error) bool {
	var t interface{ Timeout() bool }
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.As(err, &t) && t.Timeout()
}

// mayTryAnother reports whether there is a target that has not been tried, and
// the request can still be sent from the start.
func (x *exchange) mayTryAnother() bool {
	if len(x.upstream.seats) == 1 || !x.body.untouched() {
		return false
	}
	if x.tried == nil {
		x.tried = make(map[*target]bool)
	}
	x.tried[x.seat.target] = true
	return len(x.tried) < len(x.upstream.seats)
}

// another moves the exchange to a target that has not been tried. It may wait
// for a slot there unless the request has waited for one before. A refusal is the
// answer to the client then: a target that cannot be reached is not what keeps
// the request from being served.
func (x *exchange) another() error {
	w := x.call.Work
	if x.waited {
		w.MaxWait = weir.NoWait
	}
	x.permit.Cancel() // nothing is done there
	x.permit = weir.Permit{}
	x.between()
	c, err := x.upstream.pick(x.client, w, x.tried)
	if err != nil {
		return err
	}
	x.restart()
	c.waited = c.waited || x.waited
	x.choice = c
	x.call.Request.AttachFrom(c.seat.gate, c.permit)
	return nil
}

// address returns a copy of req that goes to the present target, and says how
// much time is left now.
func (x *exchange) address(req *http.Request) *http.Request {
	out := *req
	out.URL = x.seat.address(x.url)
	if forward := x.upstream.opts.Forward; forward != nil {
		out.Header = req.Header.Clone() // the first may still be looked at
		forward(out.Header, x.in, x.call, true)
	}
	return &out
}

// note counts and reports a failure of the present target.
func (u *Upstream) note(x *exchange, f failure, err error) {
	t := x.seat.target
	out := t.failed(f, u.now(), u.eject, func() bool { return u.alone(t) })
	u.opts.Logger.Debug("upstream failed", "upstream", u.name, "target", t.key, "kind", failureNames[f], "error", err)
	if out {
		u.opts.Logger.Warn("upstream target left out", "upstream", u.name, "target", t.key,
			"failures_in_a_row", t.row.Load(), "for", u.eject.lasts.String(), "error", err)
	}
}

// alone reports whether no target but t is in rotation.
func (u *Upstream) alone(t *target) bool {
	for _, s := range u.seats {
		if s.target != t && s.inRotation() {
			return false
		}
	}
	return true
}

// errStatus is an answer that counts as a failure.
type errStatus int

func (e errStatus) Error() string { return "it answered " + strconv.Itoa(int(e)) }
