package weirsql

import (
	"context"
	"database/sql"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/weir-go/weir"
)

// use is one use of a connection: of a statement, of a transaction, of a [sql.Conn]. It has the permit. It is
// also the context that database/sql passes to the connection, so the connection finds the use in it.
type use struct {
	context.Context // the caller's
	guard           *guard
	permit          weir.Permit
	method          string
	began           time.Time       // when the driver was called last; like the next two it matters only with WithHold
	took            time.Duration   // that call, to its answer; 0 before
	leftAt          time.Time       // when it was answered, or its rows were cut off, after its context had ended; else zero
	limited         context.Context // with the budget of the statement; nil if there is none
	unlimit         func()          // frees what limited has; nil without it
	reading         context.Context // of the last query, whose rows may be open; nil if something was answered since
	failed          weir.Outcome    // of the last statement of a transaction that was not OK
	asked           bool            // the driver was called
	answered        bool            // the server has nothing left to do
	kept            bool            // the connection ends the use
	ended           atomic.Bool
}

type useKey struct{}

// Value implements [context.Context].
func (u *use) Value(key any) any {
	if key == (useKey{}) {
		return u
	}
	return u.Context.Value(key)
}

// useIn returns the use that a context carries for a guard, or nil if there is none or it has ended.
func useIn(ctx context.Context, g *guard) *use {
	u, ok := ctx.(*use)
	if !ok {
		u, _ = ctx.Value(useKey{}).(*use)
	}
	if u == nil || u.guard != g || u.ended.Load() {
		return nil
	}
	return u
}

// bounded returns the context for a statement outside of a transaction. Its timer ends with the use.
func (u *use) bounded() context.Context {
	ctx, free := u.guard.budget.Bound(u)
	if free != nil {
		u.limited, u.unlimit = ctx, free
	}
	return ctx
}

// ask notes that the driver is called now. From here this call decides what is held.
func (u *use) ask() {
	u.asked = true
	if u.guard.holds != nil {
		u.began, u.took, u.leftAt = time.Now(), 0, time.Time{}
	}
}

// answer notes that the driver has answered. left says that the context had ended before: the server may work on.
func (u *use) answer(left bool) {
	h := u.guard.holds
	if h == nil {
		return
	}
	now := time.Now()
	u.took, u.leftAt = now.Sub(u.began), time.Time{}
	if left {
		u.leftAt = now
	} else {
		h.count(u.took)
	}
}

// leftBehind reports whether the server may still work for a caller that has left.
func (u *use) leftBehind() bool {
	over := u.Err() != nil || u.limited != nil && u.limited.Err() != nil
	return u.asked && (!u.leftAt.IsZero() || over && !u.answered)
}

// sample tells the gate the outcome of the work.
func (u *use) sample(o weir.Outcome) { u.permit.Sample(o) }

// executed samples a call that has given its connection back.
func (u *use) executed(err error) {
	u.answered = err == nil
	u.sample(u.guard.classify(u.Context, err))
}

// queried samples a call that keeps its connection for the rows if there is no error.
func (u *use) queried(err error) {
	u.sample(u.guard.classify(u.Context, err)) // it may panic, and then nobody gets the rows
	u.kept = err == nil
}

// endUnlessKept is deferred by methods that may leave the use with a connection. It also covers panics.
func (u *use) endUnlessKept() {
	if !u.kept {
		u.end()
	}
}

// end gives the permit back, or leaves it to holds if the server may still work. Only the first call counts.
func (u *use) end() {
	if !u.ended.CompareAndSwap(false, true) {
		return
	}
	if u.unlimit != nil {
		u.unlimit()
	}
	if h := u.guard.holds; h != nil && h.hold(u) {
		return
	}
	u.permit.Done(weir.NoSample)
}

// abortWait bounds the wait for a rollback after a panic.
const abortWait = time.Second

// abort rolls a transaction back after a panic. After one of the driver, or of an argument of a query, database/sql may
// still have a lock. A rollback would then wait for ever. The panic goes on all the same, and the permit is free.
func (u *use) abort(tx *sql.Tx) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = tx.Rollback()
	}()
	late := time.NewTimer(abortWait)
	defer late.Stop()
	select {
	case <-ended:
	case <-late.C:
		u.end()
	}
}

// findLeak drops the permit once the owner of the use is collected, so that a gate that looks for leaks finds
// the permit.
func findLeak[T any](u *use, owner *T) {
	if u.guard.leaks {
		runtime.AddCleanup(owner, (*use).drop, u)
	}
}

func (u *use) drop() {
	if u.ended.CompareAndSwap(false, true) {
		u.permit = weir.Permit{}
	}
}

// holds are permits whose callers have left while the server works on.
type holds struct {
	longest time.Duration
	mean    atomic.Int64 // how long calls of the driver take, a moving mean in ns
}

// count adds a call to the mean. What its caller does afterwards, such as reading rows slowly, is no work of the
// server. Where a driver prepares each statement, that is not counted: it would halve the mean.
func (h *holds) count(call time.Duration) {
	took, old := int64(min(call, h.longest)), h.mean.Load()
	if old == 0 {
		old = took
	}
	h.mean.Store(old + (took-old)/32) // of two updates at once, one may be lost
}

// hold gives the permit back later if the server may still work. Otherwise it returns false. What the caller did since it
// has left, such as a pause in its transaction, is part of the time.
func (h *holds) hold(u *use) bool {
	if !u.leftBehind() {
		return false
	}
	rest := min(max(time.Duration(h.mean.Load()), u.took), h.longest)
	if !u.leftAt.IsZero() {
		rest -= time.Since(u.leftAt)
	}
	if rest <= 0 {
		return false
	}
	time.AfterFunc(rest, func() { u.permit.Done(weir.NoSample) })
	return true
}
