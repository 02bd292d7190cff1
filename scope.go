package weir

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir/internal/carried"
)

// scope is what a context says of all work in it.
type scope struct {
	priority Priority
	ranked   bool // priority was set
	exempt   bool

	received context.Context // in which work from elsewhere is handled, nil for none; with:
	most     Priority
	deadline time.Time
}

// until is the deadline of the work from elsewhere, as long as that is being handled. What goes on
// afterwards in a context of its own, by context.WithoutCancel, has nobody who waits for it.
func (s *scope) until() time.Time {
	if s.received == nil || s.received.Err() != nil {
		return time.Time{}
	}
	return s.deadline
}

// scoping is set for good by the first scope of the process that gates have to know of. Before that
// they look for none: see nesting.
var scoping atomic.Bool

func scopeOf(ctx context.Context) scope {
	if s, _ := ctx.Value(carried.Scope{}).(*scope); s != nil {
		return *s
	}
	return scope{}
}

func (s scope) in(ctx context.Context) context.Context {
	if !scoping.Load() && (s.ranked || s.exempt || !s.deadline.IsZero()) {
		scoping.Store(true)
	}
	return context.WithValue(ctx, carried.Scope{}, &s)
}

// WithPriority returns a context for a scope in which work has priority p. It has that at every gate
// that is given the context. So have the calls to others that weirhttp.Transport and weirgrpc.Client
// make with it. The innermost scope holds. Work that names a priority of its own keeps that if it is
// lower. Normal is the zero value and names none.
//
// In the context of a request that came in (see [WithReceived]) the scope's priority is at most that
// of the request. A stranger's work never goes up.
func WithPriority(ctx context.Context, p Priority) context.Context {
	s := scopeOf(ctx)
	s.priority, s.ranked = p, true
	if s.received != nil {
		s.priority = min(p, s.most)
	}
	return s.in(ctx)
}

// WithExempt returns a context for a scope in which work is exempt at every gate that is given the
// context (see Work.Exempt). It is for what must go on whatever the load, such as the release of what
// others wait for. The exemption ends at the process: calls to others pass this process's own gates,
// and the server is told nothing of it. Only the program itself may exempt work, by what it is.
func WithExempt(ctx context.Context) context.Context {
	s := scopeOf(ctx)
	s.exempt = true
	return s.in(ctx)
}

// WithReceived returns the context in which w is handled, work that came from elsewhere. A server's
// adapter calls it with what it has admitted; weirhttp.Middleware and weirgrpc.Guard do. What w asks
// others to do has the priority of w, unless that is Normal: then nobody has said anything. It has
// the deadline of w as well, until ctx ends. An exemption of w ends with w.
func WithReceived(ctx context.Context, w Work) context.Context {
	w.Inherit(ctx)
	s := scopeOf(ctx)
	most := w.Priority
	if s.received != nil {
		most = min(most, s.most)
	}
	s.received, s.most, s.deadline = ctx, most, w.Deadline
	if s.ranked || most != Normal {
		s.priority, s.ranked = most, true
	}
	return s.in(ctx)
}

// Received returns the priority and the deadline of the request that ctx belongs to. ok is false if it
// belongs to none. Whoever calls others on behalf of the request tells them no higher priority. Once
// the request's own context has ended there is no deadline.
func Received(ctx context.Context) (p Priority, deadline time.Time, ok bool) {
	s := scopeOf(ctx)
	return s.most, s.until(), s.received != nil
}

// Inherit gives w what the scopes of ctx say: priority, exemption and deadline. Gates call it in Admit,
// after [Nested]; to do so twice changes nothing.
func (w *Work) Inherit(ctx context.Context) {
	if scoping.Load() {
		w.inherit(ctx)
	}
}

func (w *Work) inherit(ctx context.Context) {
	s, _ := ctx.Value(carried.Scope{}).(*scope)
	if s == nil {
		return
	}
	w.Exempt = w.Exempt || s.exempt
	switch {
	case !s.ranked:
	case w.Priority == Normal:
		w.Priority = s.priority
	default:
		w.Priority = min(w.Priority, s.priority)
	}
	if at := s.until(); !at.IsZero() && (w.Deadline.IsZero() || at.Before(w.Deadline)) {
		w.Deadline = at
	}
}
