// Package await is how tests wait on a real clock. Outside a synctest bubble, no other code of a
// test sleeps. A sleep in the hope that something is over by then fails on a slow machine, and
// wastes time on a fast one.
//
// No test may fail because the machine is slow, so a wait has no deadline that a slow machine could
// miss. A test compares a duration only with the time that a fault would take, or with a
// measurement made in the same seconds.
package await

import (
	"testing"
	"time"
)

// Patience is how long a test waits for what has to come true. Only a fault takes so
// long, on any machine.
const Patience = 3 * time.Minute

// The pauses between two polls are short at first, because many conditions come true at once. Later
// they are long enough to leave the machine to the work in progress.
const (
	shortest = time.Millisecond
	longest  = 20 * time.Millisecond
)

// That waits until ok returns true, and ends the test if it does not within Patience.
// what says what should have come true.
func That(t testing.TB, what string, ok func() bool) {
	t.Helper()
	if !Holds(Patience, ok) {
		t.Fatalf("not within %v: %s", Patience, what)
	}
}

// Count waits until count returns want, and ends the test if it has not risen within Patience. So much
// work takes as long as the machine needs.
func Count(t testing.TB, what string, want int64, count func() int64) {
	t.Helper()
	for n := count(); n != want; {
		before := n
		if !Holds(Patience, func() bool { n = count(); return n > before || n == want }) {
			t.Fatalf("%s: %d of %d, and no more within %v", what, n, want, Patience)
		}
	}
}

// Holds waits until ok returns true, for most at the longest, and reports whether it did.
// It calls ok at least twice, however slow the machine is.
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

// Work takes d, as an upstream does that works on a request.
func Work(d time.Duration) { <-time.After(d) }
