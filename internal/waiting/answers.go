// Package waiting is what gates with a wait room have in common besides the room:
// how those that wait are answered, and the settings of who gets which part of
// what is served.
//
// A gate decides under its lock and answers when it has released it, because who is
// answered may call the gate again. In between the answers are a list through the
// waiters themselves, so that nothing is allocated for it:
//
//	var out waiting.Answers
//	mu.Lock()
//	... out.Add(&w.Answer, permit, nil) ...
//	mu.Unlock()
//	out.Deliver()
package waiting

import "github.com/weir-go/weir"

// Answer is what becomes of a waiter: a permit, or why there is none. Whatever a gate
// keeps of a waiter embeds one. Before it waits it is made to block ([Answer.Block])
// or to call ([Answer.Call]).
//
// A waiter is answered exactly once, by whoever takes it out of the room under the
// gate's lock.
type Answer struct {
	Permit  weir.Permit
	Refused *weir.Rejection

	ready  chan struct{} // one of the two
	caller Caller
	next   *Answer // in the list
}

// Caller is a waiter that no goroutine waits for. Answered is called once its answer
// is there, with no lock held.
type Caller interface{ Answered() }

// Block makes the answer one that a goroutine waits for. It may be used again and
// again.
func (a *Answer) Block() { a.ready = make(chan struct{}, 1) }

// Call makes the answer one that c is told of.
func (a *Answer) Call(c Caller) { a.caller = c }

// Ready receives when the answer is there. Who asked for one that is on its way has
// to receive it, also if it is no longer wanted.
func (a *Answer) Ready() <-chan struct{} { return a.ready }

// Forget prepares an answer that was received for its next use.
func (a *Answer) Forget() { a.Permit, a.Refused, a.next = weir.Permit{}, nil, nil }

// Answers are those of waiters that have left the room, until they are delivered, in
// the order in which they were added. The zero value is an empty list.
type Answers struct{ first, last *Answer }

// Add settles what becomes of a waiter.
func (l *Answers) Add(a *Answer, p weir.Permit, refused *weir.Rejection) {
	a.Permit, a.Refused = p, refused
	if l.first == nil {
		l.first = a
	} else {
		l.last.next = a
	}
	l.last = a
}

// Remove takes an answer out again, for whoever is answered in another way, and
// reports false if it was not in.
func (l *Answers) Remove(a *Answer) bool {
	var before *Answer
	for at := l.first; at != a; before, at = at, at.next {
		if at == nil {
			return false
		}
	}
	if before == nil {
		l.first = a.next
	} else {
		before.next = a.next
	}
	if l.last == a {
		l.last = before
	}
	a.next = nil
	return true
}

// Deliver tells everybody. The gate's lock must not be held: callbacks may call the
// gate, and a woken goroutine will.
func (l *Answers) Deliver() {
	for a := l.first; a != nil; {
		next := a.next // who is told may be gone, and used again, at once
		if a.caller == nil {
			a.ready <- struct{}{} // never blocks: one answer, one place
		} else {
			a.caller.Answered()
		}
		a = next
	}
}
