package weir

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/weir-go/weir/slot"
)

// All joins several gates into one that is all or nothing. The gates are tried in the
// order given, each but the last without waiting. So only the last gate ever waits
// while other grants are held. Put the concurrency gate there, and the cheap refusals
// first.
//
// Neighbours that ask servers ([Distant]) are asked at the same time, but for the last gate of
// all. So two quotas on a server cost the time of one. Several of them may refuse then. If one of
// them is a [Predictor] and would refuse, they are asked in their order.
//
// When a gate refuses, the grants before it are cancelled in reverse order, and its
// Rejection is returned. If it refuses for [ReasonQuota], the later gates that are a
// [Predictor] are asked, too. If one of them would keep the work waiting longer, or for
// ever, its Rejection is returned instead. Otherwise work that comes back when told would
// be refused again. Only the gate that refused counts the refusal.
//
// All() admits everything; All(g) is g. A nil gate is a fault of the program: All panics.
func All(gates ...Gate) Gate {
	for i, g := range gates {
		if g == nil {
			panic(fmt.Sprintf("weir.All: gate %d of %d is nil", i+1, len(gates)))
		}
	}
	switch len(gates) {
	case 0:
		return open{}
	case 1:
		return gates[0]
	}
	a := &all{gates: append([]Gate(nil), gates...)}
	for i, g := range gates[:len(gates)-1] {
		_, distant := g.(Distant)
		if _, before := gates[max(i-1, 0)].(Distant); i > 0 && distant && before {
			a.neighbours = true
		}
	}
	return a
}

// open is the gate that admits everything.
type open struct{}

func (open) Admit(context.Context, Work) (Permit, error) { return Permit{}, nil }
func (open) TryAdmit(Work) (Permit, error)               { return Permit{}, nil }
func (open) Arrive(Work, func(Permit, error)) (Permit, Waiter, error) {
	return Permit{}, nil, nil
}

// all keeps the permits of each admitted work in a bundle. Bundles are reused,
// so a steady state allocates nothing.
type all struct {
	gates      []Gate
	neighbours bool // two neighbours may ask servers

	mu   sync.Mutex
	idle *bundle
}

// bundle is one admission's permits. Its slot stands for all of them. Its group's
// attention stays raised, so that every release goes through the bundle.
type bundle struct {
	all     *all
	slot    slot.Slot
	group   slot.Group
	permits []Permit // one for each gate, in their order
	next    *bundle  // in the idle list
}

// Admit implements [Gate].
func (a *all) Admit(ctx context.Context, w Work) (Permit, error) {
	if p, ok := Nested(ctx, a); ok {
		return p, nil
	}
	w.Inherit(ctx)
	return a.admit(ctx, w, true)
}

// TryAdmit implements [TryAdmitter].
func (a *all) TryAdmit(w Work) (Permit, error) {
	return a.admit(context.Background(), w, false)
}

// admit gets a permit of every gate. waits says whether the last may let w wait.
func (a *all) admit(ctx context.Context, w Work, waits bool) (p Permit, err error) {
	if !waits {
		w.MaxWait = NoWait // for outlast: no queue would keep w
	}
	b, err := a.collect(ctx, w)
	if err != nil {
		return Permit{}, err
	}
	whole := false
	defer func() {
		if !whole { // refused, or the gate panicked
			b.abort()
		}
	}()
	last := a.gates[len(a.gates)-1]
	if waits {
		p, err = last.Admit(ctx, w)
	} else {
		p, err = try(ctx, last, w)
	}
	if err != nil {
		return Permit{}, err
	}
	whole = true
	return b.complete(p), nil
}

// Arrive implements [Arriver], if the last gate does.
func (a *all) Arrive(w Work, wake func(Permit, error)) (Permit, Waiter, error) {
	last, ok := a.gates[len(a.gates)-1].(Arriver)
	if !ok {
		p, err := a.TryAdmit(w)
		return p, nil, err
	}
	b, err := a.collect(context.Background(), w)
	if err != nil {
		return Permit{}, nil, err
	}
	kept := false
	defer func() {
		if !kept { // refused, or the gate panicked
			b.abort()
		}
	}()
	p, waiter, err := last.Arrive(w, func(p Permit, err error) {
		if err != nil {
			b.abort()
			wake(Permit{}, err)
			return
		}
		wake(b.complete(p), nil)
	})
	switch err {
	case nil:
		kept = true
		return b.complete(p), nil, nil
	case ErrWaiting:
		kept = true
		return Permit{}, bundleWaiter{waiter, b}, ErrWaiting
	}
	return Permit{}, nil, err
}

// bundleWaiter gives the earlier grants back when nobody waits for the last one
// any more.
type bundleWaiter struct {
	Waiter
	bundle *bundle
}

func (w bundleWaiter) Cancel() bool {
	if !w.Waiter.Cancel() {
		return false
	}
	w.bundle.abort()
	return true
}

// collect gets a permit of every gate but the last, without waiting.
func (a *all) collect(ctx context.Context, w Work) (*bundle, error) {
	b := a.take()
	if next, err := b.fill(ctx, w); err != nil {
		return nil, a.outlast(ctx, w, err, next)
	}
	return b, nil
}

// fill adds a permit of every gate but the last. If a gate refuses, fill aborts the bundle and
// returns the number of the gate after it. It aborts the bundle also if a gate panics.
func (b *bundle) fill(ctx context.Context, w Work) (next int, err error) {
	filled := false
	defer func() {
		if !filled {
			b.abort()
		}
	}()
	gates := b.all.gates
	for i := 0; i < len(gates)-1; i++ {
		if b.all.neighbours {
			if n := distantAt(gates[i : len(gates)-1]); n > 1 && !wouldRefuse(ctx, w, gates[i:i+n]) {
				if next, err := b.fillAtOnce(ctx, w, i, i+n); err != nil {
					return next, err
				}
				i += n - 1
				continue
			}
		}
		p, err := try(ctx, gates[i], w)
		if err != nil {
			return i + 1, err
		}
		b.permits = append(b.permits, p)
	}
	filled = true
	return 0, nil
}

// distantAt returns how many gates ask servers, up to the first that does not.
func distantAt(gates []Gate) (n int) {
	for _, g := range gates {
		if d, ok := g.(Distant); !ok || !d.IsDistant() {
			break
		}
		n++
	}
	return n
}

// wouldRefuse reports whether one of the gates is known to refuse w, without asking a server. Then they
// are asked in their order. Asked at once, a caller above its own quota would keep taking from a
// shared one. That would be empty until each refusal has given back.
func wouldRefuse(ctx context.Context, w Work, gates []Gate) bool {
	w.MaxWait = NoWait
	for _, g := range gates {
		if p, ok := g.(Predictor); ok && p.Predict(ctx, w) != nil {
			return true
		}
	}
	return false
}

// errNoAnswer is the error for a gate that ended its goroutine.
var errNoAnswer = errors.New("weir: a gate has ended its goroutine without an answer")

// fillAtOnce is fill for the gates from number from to before number to, which are asked at the
// same time. Of several refusals it returns the first in their order.
func (b *bundle) fillAtOnce(ctx context.Context, w Work, from, to int) (next int, err error) {
	type answer struct {
		permit   Permit
		err      error
		panicked any
	}
	gates, answers := b.all.gates[from:to], make([]answer, to-from)
	ask := func(i int) {
		a := &answers[i]
		a.err = errNoAnswer
		defer func() { a.panicked = recover() }()
		a.permit, a.err = try(ctx, gates[i], w)
	}
	var asked sync.WaitGroup
	for i := 1; i < len(gates); i++ {
		asked.Go(func() { ask(i) })
	}
	ask(0)
	asked.Wait()
	for i := range answers {
		if a := &answers[i]; a.err == nil && a.panicked == nil {
			b.permits = append(b.permits, a.permit)
		} else if err == nil {
			next, err = from+i+1, a.err
		}
	}
	for i := range answers {
		if a := &answers[i]; a.panicked != nil {
			panic(a.panicked) // fill gives the permits back
		}
	}
	return next, err
}

// outlast returns err, the refusal by the gate before number from. If a later gate
// keeps w waiting longer, it returns the refusal by that gate.
func (a *all) outlast(ctx context.Context, w Work, err error, from int) error {
	first := AsRejection(err)
	if first == nil || first.Reason != ReasonQuota {
		return err
	}
	if told := a.predict(ctx, w, first, from); told != first {
		return told
	}
	return err
}

// Predict implements [Predictor].
func (a *all) Predict(ctx context.Context, w Work) *Rejection {
	return a.predict(ctx, w, nil, 0)
}

// predict returns told. If a gate from number from on would keep w waiting longer, it
// returns the refusal by that gate. Only the last gate may let w wait in its queue.
func (a *all) predict(ctx context.Context, w Work, told *Rejection, from int) *Rejection {
	maxWait, last := w.MaxWait, len(a.gates)-1
	for i, g := range a.gates[from:] {
		if p, ok := Nested(ctx, g); ok {
			p.Cancel()
			continue
		}
		f, ok := g.(Predictor)
		if !ok {
			continue
		}
		w.MaxWait = NoWait
		if from+i == last {
			w.MaxWait = maxWait
		}
		if r := f.Predict(ctx, w); r.outlasts(told) {
			told = r
		}
	}
	return told
}

// outlasts reports whether r keeps work waiting longer than told does, or for ever.
func (r *Rejection) outlasts(told *Rejection) bool {
	switch {
	case r == nil:
		return false
	case told == nil:
		return true
	case told.Retryable && r.Retryable:
		return r.RetryAfter > told.RetryAfter
	}
	return told.Retryable
}

// try admits w without waiting. A permit counts that ctx carries already through another chain.
// An inner chain looks for such permits of its own gates.
func try(ctx context.Context, g Gate, w Work) (Permit, error) {
	if p, ok := Nested(ctx, g); ok {
		return p, nil
	}
	switch g := g.(type) {
	case *all:
		return g.admit(ctx, w, false)
	case TryAdmitter:
		return g.TryAdmit(w)
	}
	w.MaxWait = NoWait
	return g.Admit(ctx, w)
}

func (a *all) take() *bundle {
	a.mu.Lock()
	defer a.mu.Unlock()
	if b := a.idle; b != nil {
		a.idle = b.next
		return b
	}
	b := &bundle{all: a, permits: make([]Permit, 0, len(a.gates))}
	b.group.Holder = b
	b.group.Attention.Store(1)
	b.slot.Init(&b.group, 0)
	return b
}

func (b *bundle) recycle() {
	b.all.mu.Lock()
	defer b.all.mu.Unlock()
	b.permits = b.permits[:0]
	b.next = b.all.idle
	b.all.idle = b
}

// complete adds the last permit and issues the one that stands for all.
func (b *bundle) complete(last Permit) Permit {
	b.permits = append(b.permits, last)
	return Permit{b.slot.Issue()}
}

// IsDistant implements [Distant]: one of the gates may ask a server.
func (a *all) IsDistant() bool {
	for _, g := range a.gates {
		if d, ok := g.(Distant); ok && d.IsDistant() {
			return true
		}
	}
	return false
}

// abort cancels what has been collected so far, last first.
func (b *bundle) abort() { b.giveBack(len(b.permits), Permit.Cancel) }

// giveBack ends the first n permits, the last of them first, and recycles the bundle. If a
// gate panics, the other permits are given back all the same.
func (b *bundle) giveBack(n int, end func(Permit)) {
	defer func() {
		if n > 0 {
			b.giveBack(n, end)
			return
		}
		b.recycle()
	}()
	for n > 0 {
		n--
		end(b.permits[n])
	}
}

// Done implements [slot.Holder].
func (b *bundle) Done(t slot.Ticket, outcome uint8) {
	if live, _ := t.Recall(); !live {
		return
	}
	b.giveBack(len(b.permits), func(p Permit) { p.Done(Outcome(outcome)) })
}

// Release implements [slot.Releaser]. What is left of the permits moves to a bundle of its own.
func (b *bundle) Release(t slot.Ticket, outcome uint8) slot.Ticket {
	if live, _ := t.Recall(); !live {
		return slot.Ticket{}
	}
	var buf [8]Permit
	left, some, whole := buf[:0], false, false
	defer func() {
		if !whole { // a gate panicked
			for _, p := range left {
				p.Done(Outcome(outcome))
			}
		}
	}()
	b.giveBack(len(b.permits), func(p Permit) {
		p = p.Release(Outcome(outcome))
		left, some = append(left, p), some || p != (Permit{})
	})
	whole = true
	if !some {
		return slot.Ticket{}
	}
	slices.Reverse(left) // in the order of the gates again
	rest := b.all.take()
	rest.permits = append(rest.permits, left...)
	return rest.slot.Issue()
}

// Cancel implements [slot.Holder].
func (b *bundle) Cancel(t slot.Ticket) {
	if live, _ := t.Recall(); live {
		b.abort()
	}
}

// Sample implements [slot.Holder].
func (b *bundle) Sample(t slot.Ticket, outcome uint8) {
	var buf [8]Permit
	for _, inner := range b.inner(buf[:0], t, slot.Ticket.MarkSampled) {
		inner.Sample(Outcome(outcome))
	}
}

// SetCost implements [slot.Holder].
func (b *bundle) SetCost(t slot.Ticket, gate string, units int64) {
	var buf [8]Permit
	for _, inner := range b.inner(buf[:0], t, slot.Ticket.Live) {
		inner.SetCost(gate, units)
	}
}

// inner appends the permits of a bundle. A racing Done may be about to recycle
// the bundle, so inner takes the lock that recycling takes. It appends nothing
// unless live finds that t still uses the bundle. The copies are
// generation-checked themselves.
func (b *bundle) inner(to []Permit, t slot.Ticket, live func(slot.Ticket) bool) []Permit {
	b.all.mu.Lock()
	defer b.all.mu.Unlock()
	if !live(t) {
		return nil
	}
	return append(to, b.permits...)
}
