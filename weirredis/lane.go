package weirredis

import (
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
			return n == 0, nil
		}
	}
}

func (l *lane) leave() { l.inFlight.Add(-1) }

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
