// Package await is how tests wait on a real clock: for something to hold, with a deadline
// and a name for what did not come true, for a moment that somebody was told, or as long
// as pretended work takes. Nothing else of a test sleeps outside a synctest bubble: a
// sleep that hopes that all is done by then fails on a slow machine, and wastes time on a
// fast one.
package await

import (
	"testing"
	"time"
)

// Looks are soon at first, for what takes no time, and then seldom enough to leave the
// machine to what is waited for.
const (
	shortest = time.Millisecond
	longest  = 20 * time.Millisecond
)

// That waits until ok holds, and ends the test if it does not within most. what is what
// should have come true.
func That(t testing.TB, most time.Duration, what string, ok func() bool) {
	t.Helper()
	if !Holds(most, ok) {
		t.Fatalf("not within %v: %s", most, what)
	}
}

// Holds waits until ok holds, for most at longest, and reports whether it does. ok is
// asked at least twice, however slow the machine is.
func Holds(most time.Duration, ok func() bool) bool {
	end := time.Now().Add(most)
	for pause := shortest; ; pause = min(2*pause, longest) {
		if ok() {
			return true
		}
		if time.Now().After(end) {
			return ok()
		}
		<-time.After(pause)
	}
}

// Moment waits until a time of day, as a client does that was told when to come back.
func Moment(at time.Time) { <-time.After(time.Until(at)) }

// Work takes so long, as what an upstream does for a request.
func Work(d time.Duration) { <-time.After(d) }
