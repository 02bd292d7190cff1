package weirhttp

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/internal/carried"
)

// Request is an admitted request while its handler runs. Most handlers never need it. A proxy uses
// it to report the upstream's answer at the moment it arrives, and to tie further permits to the
// request. It can also keep the slot after the client has left, until the upstream has nothing left
// to do.
//
// All methods are safe for concurrent use and do nothing on a nil *Request, so
// the result of [FromContext] needs no check.
type Request struct {
	ctx     requestContext
	out     writer
	streams *Streams
	user    string // of the work

	returned bool // the handler returned, without a panic
	timed    bool // the handler's time is measured

	mu        sync.Mutex
	permits   []weir.Permit
	owners    []weir.Gate // of permits[1:]; nil if unknown
	sampled   bool
	heldBack  bool // no sample by the status of the answer
	moved     bool // has a place in streams instead of its permits
	crowded   bool // found streams full
	hijacked  bool
	detached  bool
	ended     bool
	returning bool          // asks for its permits again
	releasing bool          // exchanges its permits for charged, or the other way round
	charged   Permits       // of a stream: the rest of its permits, which are the charges of quotas
	late      []lateCost    // costs told while releasing
	released  chan struct{} // closed when releasing ends; nil until somebody waits for it

	firstPermits [2]weir.Permit // backs permits
	firstOwner   [1]weir.Gate   // backs owners
}

// lateCost is a cost that was set while the permits were being released.
type lateCost struct {
	gate  string
	units int64
}

// FromContext returns the admitted request that ctx belongs to, nil if there is
// none.
func FromContext(ctx context.Context) *Request {
	q, _ := ctx.Value(requestKey{}).(*Request)
	return q
}

func newRequest(ctx context.Context, g weir.Gate, w *weir.Work, p weir.Permit, s *Streams) *Request {
	if p != (weir.Permit{}) {
		carrying.Do(func() { weir.WithPermit(ctx, g, p) })
	}
	q := &Request{streams: s, user: w.User}
	q.firstPermits[0] = p
	q.permits = q.firstPermits[:1]
	q.ctx = requestContext{Context: ctx, request: q, gate: g, priority: w.Priority, deadline: w.Deadline}
	return q
}

// carrying calls [weir.WithPermit] with the first request that has a permit. telling calls [weir.WithReceived]
// with the first request whose handler has a priority or a deadline to pass on. A gate searches contexts for
// these only after the function was called once in the process. The context of a request would call them only
// when a gate asks it for a value, and then no gate would ask.
var carrying, telling sync.Once

// handled is called before the handler gets the request's context.
func (q *Request) handled() {
	if w := q.ctx.work(); w.Priority != weir.Normal || !w.Deadline.IsZero() {
		telling.Do(func() { weir.WithReceived(q.ctx.Context, w) })
	}
}

// Sample reports the backend's answer on every permit of the request; see
// [weir.Permit.Sample]. The first call decides. The middleware calls it when the
// handler begins its answer, if the handler has not. Handlers call it to say what a
// status code cannot.
func (q *Request) Sample(o weir.Outcome) {
	if q == nil {
		return
	}
	var buf [4]weir.Permit
	q.mu.Lock()
	if q.sampled {
		q.mu.Unlock()
		return
	}
	q.sampled = true
	permits := Permits(append(buf[:0], q.permits...))
	q.mu.Unlock()
	permits.Sample(o)
}

// HoldSample says that the status of the answer does not show the outcome of the request. So the middleware
// takes no sample when the answer begins. The handler calls [Request.Sample] later; for instance, a proxy of
// gRPC does so when it reads the trailer. If the handler does not, its end decides.
func (q *Request) HoldSample() {
	if q == nil {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.heldBack = true
}

// sampleStatus samples the request by the status of its answer.
func (q *Request) sampleStatus(o weir.Outcome) {
	q.mu.Lock()
	heldBack := q.heldBack
	q.mu.Unlock()
	if !heldBack {
		q.Sample(o)
	}
}

// SetCost says what the request has really cost, on every permit of the request; see [weir.Permit.SetCost].
// Call it when the cost is known, before the handler returns. A stream has no slot any more, so only the
// charges of its quotas change. gate names the gate to charge; the empty name means every gate.
func (q *Request) SetCost(gate string, units int64) {
	if q == nil {
		return
	}
	q.mu.Lock()
	if q.releasing {
		q.late = append(q.late, lateCost{gate, units})
		q.mu.Unlock()
		return
	}
	var buf [4]weir.Permit
	moved, permits := q.moved, Permits(append(buf[:0], q.permits...))
	if moved {
		permits = append(permits[:0], q.charged...)
	}
	q.mu.Unlock()
	permits.setCost(gate, units)
	q.mu.Lock()
	exchanged := q.moved != moved // then the permits may have ended before they got the cost
	q.mu.Unlock()
	if exchanged {
		q.SetCost(gate, units)
	}
}

// Attach ties p, a permit of g, to the request. p is sampled and done together with the request's
// own permit, also when the response becomes a stream. A proxy attaches the permit of the upstream
// it has chosen. It may still call Done on p earlier, for instance to try another upstream. If the
// request's slot has been released already, p is done at once, as NoSample.
//
// [Request.Reacquire] asks g for another permit. A nil g means that p cannot be
// acquired again.
func (q *Request) Attach(g weir.Gate, p weir.Permit) {
	if q == nil {
		return
	}
	q.mu.Lock()
	late := q.moved || q.ended
	if !late {
		if q.owners == nil {
			q.owners = q.firstOwner[:0]
		}
		q.permits, q.owners = append(q.permits, p), append(q.owners, g)
	}
	q.mu.Unlock()
	if late {
		p.Done(weir.NoSample)
	}
}

// Detach gives the request's permits to the caller, who must call Done on them; the middleware leaves them
// alone from then on. A proxy does this when the client has left but the upstream still works. Detach returns
// nil if the slot has been released or detached already, or on a nil *Request. Done on nil does nothing.
func (q *Request) Detach() Permits {
	if q == nil {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.moved || q.ended {
		return nil
	}
	q.detached = true
	permits := append(Permits(nil), q.permits...)
	q.permits = nil
	return permits
}

// ReleaseForStream says that the response is a stream from now on. Its permits are sampled as NoSample, if
// there was no sample before, and released; see [weir.Permit.Release]. Until its end the response has a place
// in the [Streams] pool instead. ReleaseForStream reports whether the request has no slot any more. If the pool is
// full, the response keeps its slot. The middleware finds most streams by itself. [Request.Reacquire] is the way back.
func (q *Request) ReleaseForStream() bool {
	if q == nil {
		return false
	}
	return q.move()
}

// Reacquire is the way back from [Request.ReleaseForStream]. The request's gate admits w once more,
// then the gates given to [Request.Attach], and the place among the streams is free again. It waits
// as long as those gates let w wait, or until ctx ends.
//
// A proxy releases the slot if the body of a request arrives too slowly. It reacquires a slot before it passes
// the end of the body on. Until then the client needs the time; from then on the backend works.
//
// The error carries a [*weir.Rejection]. The request is still a stream then, and the backend must not get the
// rest of the work. Reacquire returns nil at once if there is nothing to acquire: the request still has its
// slot, was sampled (the backend has answered), has ended or was detached.
func (q *Request) Reacquire(ctx context.Context, w weir.Work) error {
	if q == nil {
		return nil
	}
	q.mu.Lock()
	for q.releasing && !q.returning { // wait for the charges of the release, which are cancelled below
		if q.released == nil {
			q.released = make(chan struct{})
		}
		released := q.released
		q.mu.Unlock()
		<-released
		q.mu.Lock()
	}
	if !q.away() || q.returning {
		q.mu.Unlock()
		return nil
	}
	q.returning, q.releasing = true, true
	owners, charged := q.owners, q.charged
	q.charged = nil
	q.mu.Unlock()
	charged.cancel() // the gates charge it anew
	permits, err := readmit(ctx, w, q.ctx.gate, owners)

	q.mu.Lock()
	q.returning = false
	back := err == nil && q.away()
	if back {
		q.moved, q.permits = false, permits
		q.ctx.carrier.Store(&carrier{permit: permits[0]})
	}
	q.mu.Unlock()
	if back {
		q.streams.Leave(q.user)
		q.exchanged(permits, false)
		return nil
	}
	// Without an error, the backend has answered meanwhile, or the request has ended. The request is charged
	// all the same.
	q.exchanged(permits.release(weir.NoSample), true)
	return err
}

// readmit asks every gate for a permit: all of them, or none.
func readmit(ctx context.Context, w weir.Work, gate weir.Gate, owners []weir.Gate) (Permits, error) {
	permits := make(Permits, 0, 1+len(owners))
	for i := range cap(permits) {
		g := gate
		if i > 0 {
			g = owners[i-1]
		}
		p, err := g.Admit(ctx, w)
		if err != nil {
			permits.cancel()
			if weir.AsRejection(err) == nil {
				err = foreign(err)
			}
			return nil, err
		}
		permits = append(permits, p)
	}
	return permits, nil
}

// move exchanges the permits for a place among the streams, and reports whether the request has no permit any more.
func (q *Request) move() bool {
	q.mu.Lock()
	switch {
	case q.moved || q.ended || q.detached || q.streams == nil:
		moved := q.moved
		q.mu.Unlock()
		return moved
	case !slices.ContainsFunc(q.permits, weir.Permit.Live): // or what passes no gate would take the places of what does
		q.mu.Unlock()
		return true
	}
	if !q.streams.Enter(q.user) {
		if !q.crowded {
			q.crowded = true
			q.streams.Overflow()
		}
		q.mu.Unlock()
		return false
	}
	q.moved, q.releasing = true, true
	permits := Permits(q.permits)
	q.keepLive()
	q.mu.Unlock()
	q.exchanged(permits.release(weir.NoSample), true)
	return true
}

// exchanged ends an exchange of permits for those in now. It sets the costs on now that came during the
// exchange. If now is the rest of the permits of a stream, q keeps it until the stream ends.
func (q *Request) exchanged(now Permits, stream bool) {
	q.mu.Lock()
	late := q.late
	q.releasing, q.late = false, nil
	if q.released != nil {
		close(q.released)
		q.released = nil
	}
	over := q.ended || q.moved != stream
	if stream && !over {
		q.charged = now
	}
	q.mu.Unlock()
	for _, c := range late {
		now.setCost(c.gate, c.units)
	}
	if over {
		now.Done(weir.NoSample)
	}
}

// keepLive keeps the owners with live permits. The other permits are done already, for instance that of a
// target that could not be reached. q.mu is locked.
func (q *Request) keepLive() {
	live := q.owners[:0]
	for i, g := range q.owners {
		// The zero permit comes from a gate that admits everything.
		if p := q.permits[i+1]; g != nil && (p == weir.Permit{} || p.Live()) {
			live = append(live, g)
		}
	}
	q.owners = live
}

// away reports whether the request has a place among the streams and the backend
// has not answered it. q.mu is locked.
func (q *Request) away() bool { return q.moved && !q.sampled && !q.ended && !q.detached }

// lacksPlace reports whether the response is a stream that found no place.
func (q *Request) lacksPlace() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.crowded && !q.moved
}

// moveLater is move for timers.
func (q *Request) moveLater() { q.move() }

// handlerEnded runs when the handler has returned, panicked or called
// runtime.Goexit. A hijacked connection outlives its handler.
func (q *Request) handlerEnded() {
	q.out.handlerEnded()
	q.mu.Lock()
	hijacked := q.hijacked
	q.mu.Unlock()
	if !hijacked {
		q.end(q.outcome())
	}
}

// outcome is the outcome of a request that has ended without being sampled.
func (q *Request) outcome() weir.Outcome {
	switch q.ctx.Err() {
	case context.Canceled:
		return weir.Abandoned
	case context.DeadlineExceeded:
		return weir.Overload
	}
	if !q.returned {
		return weir.Failed
	}
	return weir.ClassifyHTTP(http.StatusOK) // net/http sends this status
}

// end releases what the request still has.
func (q *Request) end(o weir.Outcome) {
	q.mu.Lock()
	if q.ended {
		q.mu.Unlock()
		return
	}
	q.ended = true
	moved, permits, charged := q.moved, Permits(q.permits), q.charged
	q.mu.Unlock()
	if moved {
		q.streams.Leave(q.user)
		charged.Done(o)
		return
	}
	permits.Done(o)
}

// clientLeft reports whether nobody waits for the answer any more.
func (q *Request) clientLeft() bool { return q.ctx.Err() == context.Canceled }

type requestKey struct{}

// requestContext is the handler's context. It has the Request. For nested calls it also carries the permit,
// priority and deadline, in a context that is made when a gate first asks. Most handlers never need that
// context. After [Request.Reacquire] it is another one, because the first permit is done.
type requestContext struct {
	context.Context
	request *Request
	gate    weir.Gate

	// Priority and deadline of the request, for nested calls and for the handler's calls to others.
	priority weir.Priority
	deadline time.Time

	carrier atomic.Pointer[carrier] // nil until a gate first asks
}

// carrier makes the context that carries one permit. It is made once, because it bounds the nested calls that
// ride on the permit.
type carrier struct {
	permit weir.Permit
	once   sync.Once
	ctx    context.Context
}

func (c *requestContext) work() weir.Work {
	return weir.Work{Priority: c.priority, Deadline: c.deadline}
}

// Value implements [context.Context].
func (c *requestContext) Value(key any) any {
	if _, ok := key.(requestKey); ok {
		return c.request
	}
	if !carried.Is(key) {
		return c.Context.Value(key)
	}
	if c.carrier.Load() == nil {
		c.carrier.CompareAndSwap(nil, &carrier{permit: c.request.firstPermits[0]}) // or Reacquire has set it
	}
	now := c.carrier.Load()
	now.once.Do(func() {
		now.ctx = weir.WithReceived(weir.WithPermit(c.Context, c.gate, now.permit), c.work())
	})
	return now.ctx.Value(key)
}

// Permits are the permits of one request, released together.
type Permits []weir.Permit

// Sample calls Sample on each permit.
func (ps Permits) Sample(o weir.Outcome) {
	for _, p := range ps {
		p.Sample(o)
	}
}

// Done calls Done on each permit, the last one first.
func (ps Permits) Done(o weir.Outcome) {
	for i := len(ps) - 1; i >= 0; i-- {
		ps[i].Done(o)
	}
}

// release gives the slots of the permits back, the last one first, and returns the permits that keep a charge.
func (ps Permits) release(o weir.Outcome) (left Permits) {
	for i := len(ps) - 1; i >= 0; i-- {
		if p := ps[i].Release(o); p != (weir.Permit{}) {
			left = append(left, p)
		}
	}
	return left
}

// setCost calls SetCost on each permit.
func (ps Permits) setCost(gate string, units int64) {
	for _, p := range ps {
		p.SetCost(gate, units)
	}
}

// cancel cancels each permit, the last one first.
func (ps Permits) cancel() {
	for i := len(ps) - 1; i >= 0; i-- {
		ps[i].Cancel()
	}
}
