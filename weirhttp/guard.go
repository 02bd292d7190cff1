package weirhttp

import (
	"net/http"

	"github.com/weir-go/weir"
)

// Guard does what [Middleware] does, for servers that know gate, work and
// handler of each request themselves. The handler is given the [*Request]
// instead of finding it in its context, which saves a copy of the request: on
// the path of a proxy that is worth having.
type Guard struct{ m middleware }

// NewGuard returns a guard with the options of a [Middleware]. [WithSelect] and
// [WithWork] have no effect on it.
func NewGuard(opts ...Option) *Guard { return &Guard{newMiddleware(nil, opts)} }

// Serve admits r through gate and then calls next, with everything Middleware
// promises: but r comes with its own context, so that [FromContext] finds
// nothing, and nested calls through the same gate take a slot of their own. A
// nil gate lets r through untouched, and q is nil.
func (g *Guard) Serve(w http.ResponseWriter, r *http.Request, gate weir.Gate, work weir.Work,
	next func(w http.ResponseWriter, r *http.Request, q *Request)) {
	if gate == nil {
		next(w, r, nil)
		return
	}
	if g.m.bodies != nil {
		buffered, release := g.m.bodies.buffer(r)
		defer release()
		defer handBack(buffered, r)
		r = buffered
	}
	q := g.m.admit(w, r, gate, work)
	if q == nil {
		return
	}
	defer q.handlerEnded()
	next(q.out.kind(), r, q)
	q.returned = true
}
