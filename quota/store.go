package quota

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"
)

// Store keeps buckets. [Memory] is one; package weirtest has the tests that every
// Store must pass.
//
// A Store is safe for concurrent use. It keeps tokens and the time at which they
// were last counted, never a time of arrival and never the limit, so a limit that
// changes loses nothing. A bucket that is full again may be forgotten, one that is
// not may not be.
type Store interface {
	// Decide decides about t, in one step for all of its windows. The error is for a
	// take that makes no sense, or for a store that cannot tell now; nothing is
	// known then of what it charged. The take is not kept after the return.
	Decide(ctx context.Context, t *Request) (Decision, error)
	// Refund puts tokens back into each window of key, up to its burst, or takes more
	// if tokens are negative, into debt if need be: to settle what work has really
	// cost, or to undo a take.
	Refund(ctx context.Context, key string, limits []Window, tokens float64) error
}

// ErrBusy is what the error of a Store is, for errors.Is, where nothing need be wrong
// with its server: as many questions are under way as may be, or the answer was late
// and the server has not been silent for long. A gate that is [Open] where the store fails goes by
// its own buckets then, or a flood would be the way past the quota.
var ErrBusy = errors.New("quota: too many decisions are under way")

// Mode says what a [Request] does when there are not enough tokens.
type Mode uint8

// The modes.
const (
	// Strict refuses, and takes nothing.
	Strict Mode = iota
	// Permissive never refuses: it takes what the work costs, into debt if need
	// be, and reports how long until that is paid back. The caller makes whoever
	// asked wait, as Kafka does with clients that know no better.
	Permissive
	// DryRun says what Strict would, and takes nothing.
	DryRun
	// Reserve takes the tokens in advance, and reports how long to wait before
	// the work may start; it refuses what would have to wait longer than MaxWait.
	Reserve
)

// String returns the name: strict, permissive, dry_run or reserve.
func (m Mode) String() string {
	if m > Reserve {
		return fmt.Sprintf("mode(%d)", uint8(m))
	}
	return [...]string{"strict", "permissive", "dry_run", "reserve"}[m]
}

// MaxWindows bounds the windows of one key.
const MaxWindows = 8

// Request is one decision about one key: tokens come out of all of its windows, or
// out of none.
type Request struct {
	// Key says whose buckets these are. Any string will do.
	Key string
	// Windows are the key's windows, from 1 to MaxWindows. A window is known by its
	// place: one that changes keeps its tokens as long as it stays where it is.
	Windows []Window
	// Cost is how many tokens the work takes, of each window. A cost of 0 asks
	// whether there is a debt; a negative one is an error.
	Cost int64
	// Debt lets work through iff no window is in debt before it, whatever it costs
	// (Kafka). Without it, iff each window has as many tokens as it costs.
	Debt bool
	// Mode says what to do when there are not enough tokens.
	Mode Mode
	// MaxWait is how long a Reserve may have to wait.
	MaxWait time.Duration
}

// Decision is what came of a Request.
type Decision struct {
	// OK is false for what was refused.
	OK bool
	// Window is the index of the limit that binds most: the one to wait longest
	// for, or else the one with the fewest tokens left.
	Window int
	// Wait is, for what was refused, the time until it would be let through if
	// nobody else came: whole milliseconds, rounded up, Never if it costs more than
	// a window holds. For Permissive, until the debt is paid back, in the same way;
	// for Reserve, until the work may start, 0 if that is less than a millisecond.
	Wait time.Duration
	// Remaining is how many tokens that window holds now. Negative means a debt.
	// What came back in the last millisecond may be missing.
	Remaining float64
}

// Check reports what is wrong with the take as a whole.
func (t *Request) Check() error {
	if t.Cost >= 0 && t.Mode <= Reserve && validWindows(t.Windows) {
		return nil
	}
	var f faults
	f.check(t.Cost >= 0, "Cost %d: must not be negative", t.Cost)
	f.check(t.Mode <= Reserve, "Mode %d: must be one of this package's", t.Mode)
	checkWindows(&f, "", t.Windows)
	return f.err("take: ")
}

// validWindows is checkWindows without the words.
func validWindows(limits []Window) bool {
	for i := range limits {
		if !limits[i].valid() {
			return false
		}
	}
	return len(limits) > 0 && len(limits) <= MaxWindows
}

func checkWindows(f *faults, where string, limits []Window) {
	f.check(len(limits) > 0 && len(limits) <= MaxWindows, "%sWindows: there are %d, must be from 1 to %d", where, len(limits), MaxWindows)
	for i := range limits {
		limits[i].check(f, fmt.Sprintf("%sWindows[%d].", where, i))
	}
}

// makesSense reports what cannot be true of a result that a store has come to.
func (t *Request) makesSense(r Decision) error {
	switch {
	case r.Window < 0 || r.Window >= len(t.Windows):
		return fmt.Errorf("quota: the store's result is about window %d of %d", r.Window, len(t.Windows))
	case math.IsNaN(r.Remaining) || math.IsInf(r.Remaining, 0):
		return fmt.Errorf("quota: the store says that %v tokens remain", r.Remaining)
	case r.Wait < 0, r.OK && t.Mode == Reserve && r.Wait-time.Millisecond > t.MaxWait:
		return fmt.Errorf("quota: the store says to wait %v, where up to %v would do", r.Wait, t.MaxWait)
	}
	return nil
}

// Decide does t on windows that hold these tokens at this time, one window for
// each limit, and leaves in tokens what they hold afterwards. It is for a [Store]
// whose buckets are elsewhere: it says of them what [Memory] would.
func (t *Request) Decide(tokens []float64, now time.Time) Decision {
	var room [MaxWindows]bucket
	buckets := room[:len(t.Windows)]
	for i := range buckets {
		buckets[i].tokens = tokens[i]
	}
	r := t.decide(buckets, moment{epoch: now})
	for i := range buckets {
		tokens[i] = buckets[i].tokens
	}
	return r
}

// decide does a Request on its buckets, one for each limit. Whatever it decides, the
// buckets are up to date afterwards.
func (t *Request) decide(buckets []bucket, at moment) (r Decision) {
	cost := float64(t.Cost)
	r = Decision{OK: true}
	for i := range buckets {
		l, b := &t.Windows[i], &buckets[i]
		b.refill(l, at)
		if !t.Debt && cost > l.Burst {
			r = Decision{Window: i, Wait: Never}
			continue
		}
		if wait := l.fill(b.lacks(l, cost, t.Debt), at); wait > r.Wait || wait == Never {
			r = Decision{Window: i, Wait: wait}
		}
	}
	switch t.Mode {
	case Permissive:
		r = Decision{OK: true}
	case Reserve:
		if r.Wait < time.Millisecond {
			r = Decision{OK: true}
		}
		r.OK = r.Wait <= t.MaxWait && r.Wait < Never
	}
	if !r.OK {
		r.Wait = max(roundUp(r.Wait), time.Millisecond)
	} else if t.Mode != DryRun {
		for i := range buckets {
			buckets[i].take(&t.Windows[i], cost)
		}
	}
	t.report(&r, buckets, at)
	return r
}

// report fills in which window binds, and what is in it.
func (t *Request) report(r *Decision, buckets []bucket, at moment) {
	if r.OK {
		r.Window = 0
	}
	for i := range buckets {
		l, b := &t.Windows[i], &buckets[i]
		if r.OK && b.tokens < buckets[r.Window].tokens {
			r.Window = i
		}
		if t.Mode == Permissive {
			if wait := l.wait(b.lacks(l, 0, true), at); wait > r.Wait {
				r.Wait = wait
			}
		}
	}
	r.Remaining = buckets[r.Window].tokens
}

// moment is a point in time on two clocks, both counted from one epoch.
type moment struct {
	now   time.Duration // by a clock that nobody sets, for rates
	wall  time.Duration // by the clock on the wall, for calendars
	epoch time.Time
}

// by returns the time by the clock that l goes by.
func (at moment) by(l *Window) time.Duration {
	if l.Calendar.set() {
		return at.wall
	}
	return at.now
}

// until returns how long it is to the start of the nth period from now.
func (at moment) until(c Calendar, n float64) time.Duration {
	const most = 200 * 365 * 24 // hours in what a Duration can hold
	if !(n <= most) {
		return Never
	}
	wall := at.epoch.Add(at.wall)
	d := c.start(wall, int(n)).Sub(wall)
	if d <= 0 {
		return Never // beyond what a Duration can hold
	}
	return d
}

// bucket is the state of one window of one key: how many tokens there were when it
// was last touched, and when that was. Nothing in it depends on the limit, so a
// limit that changes leaves tokens and debts as they are.
type bucket struct {
	tokens float64 // negative: a debt
	last   time.Duration
}

// full is the bucket of a key that has not been seen.
func full(l *Window, at moment) bucket { return bucket{l.Burst, at.by(l)} }

// refill brings the bucket up to date. A clock that has gone back brings nothing,
// and time counts from there again: neither tokens for time that did not pass, nor
// a bucket that stands still until the clock is where it was.
func (b *bucket) refill(l *Window, at moment) {
	now := at.by(l)
	if passed := now - b.last; passed > 0 {
		if l.Calendar.set() {
			b.tokens += l.Burst * l.Calendar.passed(at.epoch.Add(b.last), at.epoch.Add(now))
		} else {
			b.tokens += l.Rate * passed.Seconds()
		}
	}
	b.last = now
	b.tokens = min(b.tokens, l.Burst)
}

// take takes tokens out, or puts some back where they are negative. A debt beyond
// MaxTokens is not counted.
func (b *bucket) take(l *Window, tokens float64) {
	b.tokens = min(max(b.tokens-tokens, -MaxTokens), l.Burst)
}

// lacks returns how many tokens have to come back until work of this cost is let
// through: in debt, until there is none; else until there are as many as it costs.
func (b *bucket) lacks(l *Window, cost float64, debt bool) float64 {
	need := cost
	if debt {
		need = 0
	}
	if lack := need - b.tokens; lack > l.slack() {
		return lack
	}
	return 0
}
