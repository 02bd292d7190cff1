package weirredis

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// lanes is into how many parts of neighbouring hash slots a cluster's keys are
// divided, so that a node that is gone takes only its own keys with it.
const lanes = 16

// tripAfter is how many decisions in a row fail before the store gives up sending:
// one connection that breaks while idle is no outage.
const tripAfter = 3

// lane is the way to one part of the keys: what is under way there, and whether
// anything is sent at all.
type lane struct {
	inFlight atomic.Int64
	failures atomic.Int64 // in a row
	down     atomic.Bool
	silent   atomic.Int64 // since when the server owes an answer, or had any to give

	mu    sync.Mutex
	since time.Time // down since
	cause error     // of the last failure
}

// enter claims one of the places in flight, and says whether it is the only one that
// is taken, or why there is none. Whoever has one calls leave when the client has let
// go of the decision, however long after the caller has.
func (l *lane) enter(places int64) (alone bool, err *Error) {
	if l.down.Load() {
		return false, fail(Down, l.lastCause())
	}
	for {
		n := l.inFlight.Load()
		if n >= places {
			return false, fail(Full, nil)
		}
		if l.inFlight.CompareAndSwap(n, n+1) {
			if n == 0 {
				l.answered()
			}
			return n == 0, nil
		}
	}
}

func (l *lane) leave() { l.inFlight.Add(-1) }

// silence is for how long the server has to say nothing to a question until it is held
// to be its fault that answers are late: whoever keeps this process busy must not be able
// to open its gates.
const silence = time.Second

// epoch is what times of answers are counted from.
var epoch = time.Now()

// answered notes that the server has, however late, or that it owed no answer till now.
func (l *lane) answered() { l.silent.Store(int64(time.Since(epoch))) }

// busy reports whether a failure for this reason says nothing about the server.
func (l *lane) busy(why Reason) bool {
	switch why {
	case Full:
		return true
	case Down:
		if !late(l.lastCause()) {
			return false
		}
		fallthrough
	case Timeout:
		return time.Since(epoch)-time.Duration(l.silent.Load()) < silence
	}
	return false
}

// late reports whether all that was wrong is that an answer took its time.
func late(cause error) bool {
	var e *Error
	return errors.Is(cause, errDeadline) || errors.As(cause, &e) && e.Reason == Timeout
}

// worked ends a row of failures.
func (l *lane) worked() {
	if l.failures.Load() != 0 {
		l.failures.Store(0)
	}
}

// failed counts a failure, and reports whether this one took the lane down: the
// caller then starts the probing.
func (l *lane) failed(now time.Time, err error) (tripped bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cause = err
	if l.failures.Add(1) < tripAfter || l.down.Load() {
		return false
	}
	l.since = now
	l.down.Store(true)
	return true
}

// up opens the lane again and returns for how long it was closed.
func (l *lane) up(now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failures.Store(0)
	l.down.Store(false)
	return now.Sub(l.since)
}

func (l *lane) lastCause() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

// still keeps why a lane that is down is not up yet.
func (l *lane) still(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cause = err
}
