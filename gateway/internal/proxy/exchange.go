package proxy

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/config"
	"github.com/weir-go/weir/weirhttp"
)

// exchange is one request on its way through an upstream. It is the context of
// the outgoing request: that context has the values of the incoming one but not
// its cancellation, because a client that leaves does not stop the upstream.
//
// The context below it always has a Done channel. With one that has none (that
// of context.WithoutCancel alone) ReverseProxy would watch the client's
// connection by itself, and cancel all the same.
type exchange struct {
	context.Context
	cancel context.CancelCauseFunc

	upstream *Upstream
	client   context.Context
	work     weir.Work
	seat     seat
	permit   weir.Permit // at the target's gate
	tried    map[*target]bool
	started  time.Duration
	url      *url.URL    // of the request, without the target
	body     *clientBody // nil for a request without a body

	mu       sync.Mutex
	timer    *time.Timer // bounds the wait for the upstream; nil when there is no bound
	answered bool        // the wait is over
	left     bool        // the client has gone before that
}

// Why an exchange is cancelled by the gateway itself.
var (
	errResponseTimeout = errors.New("the upstream did not answer in time")
	errClientLeft      = errors.New("the client left")
)

type exchangeKey struct{}

// Value finds the exchange itself, without a context of its own around it.
func (x *exchange) Value(key any) any {
	if key == (exchangeKey{}) {
		return x
	}
	return x.Context.Value(key)
}

// Serve passes r on to one of the targets and its answer back to w. It returns
// when the answer has been passed on; or, after the client has left, when the
// upstream has answered or has had the time it was expected to take.
func (u *Upstream) Serve(w http.ResponseWriter, r *http.Request, work weir.Work) {
	s, permit, err := u.pick(r.Context(), work, nil)
	if err != nil {
		u.refuse(w, r, err)
		return
	}
	x := &exchange{
		upstream: u, client: r.Context(), work: work,
		seat: s, permit: permit, started: u.now(),
	}
	weirhttp.FromContext(x.client).Attach(permit)
	x.Context, x.cancel = context.WithCancelCause(context.WithoutCancel(x.client))
	defer x.end()
	out := r.WithContext(x)
	if r.Body != nil && r.Body != http.NoBody {
		x.body = &clientBody{body: r.Body, x: x}
		out.Body = x.body
	}
	x.arm()
	stop := context.AfterFunc(x.client, x.clientLeft)
	defer stop()
	u.reverse.ServeHTTP(w, out)
}

// refuse answers a request that no target took.
func (u *Upstream) refuse(w http.ResponseWriter, r *http.Request, err error) {
	weirhttp.FromContext(r.Context()).Sample(weir.NoSample)
	if rej := weir.AsRejection(err); rej != nil {
		u.status(r.Context(), weirhttp.Status(rej))
		u.opts.Refuse(w, r, rej)
		return
	}
	u.problem(w, r, http.StatusBadGateway, err.Error())
}

// end runs when the handler returns, by a panic too.
func (x *exchange) end() {
	x.settle()
	x.cancel(nil)
	x.permit.Done(weir.NoSample)
}

// arm starts the bound on the wait for the upstream's answer.
func (x *exchange) arm() {
	if d := time.Duration(x.upstream.cfg.ResponseTimeout); d > 0 {
		x.timer = time.AfterFunc(d, x.expire)
	}
}

// expire ends a wait that has lasted too long.
func (x *exchange) expire() {
	x.mu.Lock()
	answered, left := x.answered, x.left
	x.mu.Unlock()
	switch {
	case answered:
	case left:
		x.cancel(errClientLeft)
	default:
		x.cancel(errResponseTimeout)
	}
}

// pause stops the clock while it is the client that is waited for.
func (x *exchange) pause() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.timer != nil && !x.answered && !x.left {
		x.timer.Stop()
	}
}

// resume starts the clock again: the upstream took what was sent before.
func (x *exchange) resume() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.timer != nil && !x.answered && !x.left {
		x.timer.Reset(time.Duration(x.upstream.cfg.ResponseTimeout))
	}
}

// settle ends the wait for the answer and reports whether the client was still
// there.
func (x *exchange) settle() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.answered = true
	if x.timer != nil {
		x.timer.Stop()
	}
	return !x.left
}

// clientLeft is called once when the client's context ends: it has gone, or the
// request's own deadline has passed.
func (x *exchange) clientLeft() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.answered {
		x.upstream.shared.abandoned.Add(1)
	}
	if x.answered || x.upstream.cfg.OnAbandon == config.Release {
		x.left = !x.answered
		x.cancel(errClientLeft)
		return
	}
	x.left = true
	rest := x.rest()
	if x.timer == nil {
		x.timer = time.AfterFunc(rest, x.expire)
		return
	}
	x.timer.Reset(rest)
}

// rest is how long the upstream is expected to go on working on the request. A
// request that has lasted longer than the mean is a long one, and has as long
// to go as it has been going: nothing better is known of heavy-tailed work.
func (x *exchange) rest() time.Duration {
	elapsed := x.upstream.now() - x.started
	rest := max(x.upstream.shared.service.value(), elapsed)
	if bound := time.Duration(x.upstream.cfg.ResponseTimeout); bound > 0 {
		rest = min(rest, bound-elapsed)
	}
	return max(rest, 0)
}
