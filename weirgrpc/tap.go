package weirgrpc

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	grpctap "google.golang.org/grpc/tap"

	"github.com/weir-go/weir"
)

// defaultLongestTap is the default of [WithLongestTap].
const defaultLongestTap = time.Minute

// WithLongestTap bounds the time-outs of the calls about which a tap decides. Default 60 s. grpc-go keeps 250
// to 440 bytes of each call that a tap has refused, until the call's deadline. So a tap passes calls with a
// longer time-out, or with none. The interceptor decides about them.
func WithLongestTap(d time.Duration) Option {
	return func(g *Guard) { g.longestTap = d }
}

// Tap returns a handle for grpc.InTapHandle, which decides about calls before their messages are read. It needs
// the interceptors, too:
//
//	grpc.NewServer(append(guard.ServerOptions(), grpc.InTapHandle(guard.Tap(nil)))...)
//
// A server has only one tap. If you have a tap of your own, pass it as next. It is called first, and a call
// that it refuses asks for no slot.
//
// The tap runs under a lock of the connection, so it never waits. If there is no slot yet, the call gets its
// place in the wait room, and the interceptor waits. The tap passes these calls, and the interceptor decides
// about them:
//
//   - calls with a time-out longer than [WithLongestTap] allows, or without one
//   - the first call of each method: until then it is unknown whether the server has the method
//   - calls at a gate that is [weir.Distant], or that cannot answer without waiting
//   - housekeeping
//
// A gRPC server that runs under net/http does not call taps. A refusal by a tap has a code and details, but no
// trailers, so no [PushbackHeader]. No stats.Handler is told of it. The counters of the gate and
// [Guard.TapSnapshot] count it.
//
// A permit of the tap is held while the message arrives, and the gate's controller measures that time, too. If
// the client leaves, or its message is invalid, no handler runs. Then the permit is given back when the call's
// context ends, or within a millisecond of that.
func (g *Guard) Tap(next grpctap.ServerInHandle) grpctap.ServerInHandle {
	g.tapping.Store(true)
	return func(ctx context.Context, info *grpctap.Info) (context.Context, error) {
		if next != nil {
			var err error
			if ctx, err = next(ctx, info); err != nil {
				return ctx, err
			}
		}
		return g.tapIn(ctx, info)
	}
}

func (g *Guard) tapIn(ctx context.Context, info *grpctap.Info) (context.Context, error) {
	method := info.FullMethodName
	if d, ok := timeLeft(ctx); !ok || d > g.longestTap || isHousekeeping(method) || !g.methods.has(method) {
		g.tapped.passed.Add(1)
		return ctx, nil
	}
	t := &tap{}
	t.call = Call{incoming: ctx, guard: g, method: method, md: info.Header, tap: t}
	c := &t.call
	var w weir.Work
	gate := g.choose(c, &w)
	if rej := g.closed(&w); gate != nil && rej != nil {
		g.tapped.refused.Add(1)
		return ctx, g.writeRejection(ctx, method, rej)
	}
	if d, ok := gate.(weir.Distant); ok && d.IsDistant() || w.Exempt || gate == nil {
		g.tapped.passed.Add(1)
		return ctx, nil
	}
	err := t.arrive(gate, w)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		g.tapped.passed.Add(1)
		return ctx, nil
	case err != nil:
		g.tapped.refused.Add(1)
		return ctx, c.answerRefusal(ctx, &w, err)
	}
	g.tapped.admitted.Add(1)
	g.untended.add(t)
	return (*callContext)(c), nil
}

// tap is a call about which a tap has decided. The interceptor claims it.
type tap struct {
	call   Call
	state  atomic.Uint32
	next   *tap        // among those without a handler
	waiter weir.Waiter // nil for a call that was admitted at once
	work   weir.Work   // the work that waits

	mu    sync.Mutex    // guards what follows
	gone  bool          // nobody needs the answer any more
	came  bool          // the answer has come: got or err is set
	ready chan struct{} // closed when the answer comes; nil until somebody waits for it
	got   weir.Permit
	err   error
}

// The states of a tap.
const (
	untapped  uint32 = iota
	unclaimed        // no handler runs yet
	claimed          // a handler runs, or is about to run
	dropped          // no handler will run
)

// open reports whether the call has no handler yet. On nil, for a call without a tap, it returns false.
func (t *tap) open() bool { return t != nil && t.state.Load() == unclaimed }

// claim reports whether the interceptor goes on with the tap's decision. It returns false without such a
// decision, and if the call has ended meanwhile.
func (t *tap) claim() bool {
	return t.open() && t.state.CompareAndSwap(unclaimed, claimed)
}

// arrive asks the gate without waiting. It returns ErrUnsupported if the gate always waits.
func (t *tap) arrive(gate weir.Gate, w weir.Work) (err error) {
	var p weir.Permit
	switch g := gate.(type) {
	case weir.Arriver:
		var waiter weir.Waiter
		p, waiter, err = g.Arrive(w, t.answered)
		if err == weir.ErrWaiting {
			t.waiter, t.work, err = waiter, w, nil
		}
	case weir.TryAdmitter:
		p, err = g.TryAdmit(w)
	default:
		return errors.ErrUnsupported
	}
	if err != nil {
		return err
	}
	t.state.Store(unclaimed)
	t.call.start(gate, &w, p)
	return nil
}

// answered is called when a call that waits is admitted or refused.
func (t *tap) answered(p weir.Permit, err error) {
	t.mu.Lock()
	t.came, t.got, t.err = true, p, err
	gone := t.gone
	if t.ready != nil {
		close(t.ready)
	}
	t.mu.Unlock()
	if gone {
		p.Cancel()
	}
}

// answer returns a channel that is closed once the waiting call is admitted or refused.
func (t *tap) answer() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ready == nil {
		t.ready = make(chan struct{})
		if t.came {
			close(t.ready)
		}
	}
	return t.ready
}

// drop gives back the permit or the place of a call that has ended before its handler ran.
func (t *tap) drop() {
	if !t.state.CompareAndSwap(unclaimed, dropped) {
		return
	}
	t.call.guard.tapped.dropped.Add(1)
	t.leave()
}

// leave gives the permit back, or the place in the wait room.
func (t *tap) leave() {
	if t.waiter == nil {
		t.call.permit.Cancel()
		return
	}
	if t.waiter.Cancel() {
		return
	}
	t.mu.Lock()
	t.gone = true
	p := t.got
	t.mu.Unlock()
	p.Cancel() // p is the zero permit if the answer has not come
}

// resume goes on with what the tap has decided, now that there is a handler.
func (g *Guard) resume(ctx context.Context, c *Call) (*Call, error) {
	t := c.tap
	c.handler = ctx // ctx is derived from the call's own context
	if t.waiter == nil {
		return c, nil
	}
	select {
	case <-t.answer():
	case <-ctx.Done():
		t.leave()
		return nil, g.writeRejection(ctx, c.method, rejectionOf(ctx.Err()))
	}
	if t.err != nil {
		return nil, c.answerRefusal(ctx, &t.work, t.err)
	}
	c.start(c.gate, &t.work, t.got)
	return c, nil
}

// untended are calls that a tap has admitted and that may not have a handler yet. Usually the handler runs
// within microseconds, unless the message is still on its way. So the contexts of the calls are not watched at
// first. A moment later, tend watches those that still have no handler. That costs a fraction of watching each
// call from its start.
type untended struct{ first atomic.Pointer[tap] }

// tending is the time from the first untended call to tend. A call that ends without a handler in that time
// keeps its slot until tend.
const tending = time.Millisecond

func (u *untended) add(t *tap) {
	first := u.first.Load()
	for t.next = first; !u.first.CompareAndSwap(first, t); t.next = first {
		first = u.first.Load()
	}
	if first == nil {
		time.AfterFunc(tending, u.tend)
	}
}

// tend watches the contexts of the calls that still have no handler.
func (u *untended) tend() {
	for t := u.first.Swap(nil); t != nil; {
		next := t.next
		t.next = nil // so that a long call does not keep another in memory
		if t.open() {
			context.AfterFunc(t.call.incoming, t.drop)
		}
		t = next
	}
}

// tapCounters count what taps have decided.
type tapCounters struct{ admitted, refused, passed, dropped atomic.Uint64 }

// TapSnapshot counts what the tap of a guard has decided. The counters only grow.
type TapSnapshot struct {
	// Admitted calls got a permit or a place in the wait room, and Refused calls neither. Passed calls were
	// left to the interceptor. Dropped calls are those of the admitted calls for which no handler ran.
	Admitted, Refused, Passed, Dropped uint64
}

// TapSnapshot returns the counters of the guard's tap.
func (g *Guard) TapSnapshot() TapSnapshot {
	t := &g.tapped
	return TapSnapshot{t.admitted.Load(), t.refused.Load(), t.passed.Load(), t.dropped.Load()}
}
