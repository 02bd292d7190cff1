package quota

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/weir-go/weir/internal/fault"
)

// Store keeps buckets. [Memory] is one; package weirtest has the tests that every
// Store must pass.
//
// A Store is safe for concurrent use. For each window of a key it keeps the tokens and
// the time at which they were last counted. It keeps no windows: each request brings
// them, so a window that changes loses nothing. A bucket that is full again may be
// forgotten, any other may not.
type Store interface {
	// Decide decides about r, in one step for all of its windows. It fails if r makes no
	// sense, or if the store cannot decide now; then it may have charged or not. The
	// Store does not keep r.
	Decide(ctx context.Context, r *Request) (Decision, error)
	// Refund gives tokens back to each window of key, up to its burst. If tokens are
	// negative it charges more, into debt if need be.
	Refund(ctx context.Context, key string, windows []Window, tokens float64) error
}

// Batcher is a Store that decides about several requests at the same time. [Quota.ChargeAll] asks it
// once; other stores it asks from a goroutine for each.
type Batcher interface {
	Store
	// DecideAll decides about each request by itself, as Decide does: a refusal of one refuses
	// no other. The decisions and errors are in the order of the requests.
	DecideAll(ctx context.Context, all []*Request) ([]Decision, []error)
}

// ErrBusy is wrapped by the error of a Store if the server may be well. Either too many
// questions are under way, or an answer is late but the server has answered lately. A
// gate that is [Open] then decides by its own buckets; otherwise a flood would be the way
// past the quota.
var ErrBusy = errors.New("quota: too many decisions are under way")

// Mode says what a [Request] does if there are not enough tokens.
type Mode uint8

// The modes.
const (
	// Strict refuses, and charges nothing.
	Strict Mode = iota
	// Permissive never refuses. It charges what the work costs, into debt if need be,
	// and says how long until the debt is paid back. The caller makes the client wait,
	// as Kafka does with older clients.
	Permissive
	// DryRun says what Strict would do, and charges nothing.
	DryRun
	// Reserve charges in advance and says how long to wait before the work may start. It
	// refuses if that would be longer than MaxWait.
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

// Request asks a [Store] to charge one key: all of its windows or none.
type Request struct {
	// Key says whose buckets these are. Any string will do.
	Key string
	// Windows are the key's windows, from 1 to MaxWindows. A window is known by its
	// index: if it changes it keeps its tokens as long as its index stays.
	Windows []Window
	// Cost is how many tokens the work costs, in each window. A cost of 0 asks whether
	// there is a debt; a negative one is an error.
	Cost int64
	// Debt admits work if no window is in debt before it, whatever the work costs
	// (Kafka). Without it, each window must have as many tokens as the work costs.
	Debt bool
	// Mode says what to do if there are not enough tokens.
	Mode Mode
	// MaxWait is the longest wait of a Reserve.
	MaxWait time.Duration
}

// Decision is what came of a Request.
type Decision struct {
	// OK is false if the work is refused.
	OK bool
	// Window is the index of the window that binds most. That is the one with the
	// longest wait, or else with the fewest tokens left.
	Window int
	// Wait depends on the mode. It is in whole milliseconds, rounded up.
	//
	//   - For work that is refused, until it would be admitted if nobody else came. It is
	//     Never if the work costs more than a window can have.
	//   - For Permissive, until the debt is paid back.
	//   - For Reserve, until the work may start; 0 if that is less than a millisecond.
	Wait time.Duration
	// Remaining is how many tokens that window has now. Negative means a debt.
	// Tokens that came back in the last millisecond may be missing.
	Remaining float64
}

// Check returns every fault of the request.
func (r *Request) Check() error {
	if r.Cost >= 0 && r.Mode <= Reserve && validWindows(r.Windows) {
		return nil
	}
	var f fault.List
	f.Check(r.Cost >= 0, fault.Path{"Cost"}, r.Cost, "must not be negative")
	f.Check(r.Mode <= Reserve, fault.Path{"Mode"}, r.Mode, "must be one of this package's")
	checkWindows(&f, nil, r.Windows)
	return f.Err("quota: request")
}

// validWindows is checkWindows without the words.
func validWindows(windows []Window) bool {
	for i := range windows {
		if !windows[i].valid() {
			return false
		}
	}
	return len(windows) > 0 && len(windows) <= MaxWindows
}

// checkWindows adds what is wrong with windows to f. at is the path of what has them.
func checkWindows(f *fault.List, at fault.Path, windows []Window) {
	f.Require(len(windows) > 0 && len(windows) <= MaxWindows, at.At("Windows"), "there are %d; give from 1 to %d", len(windows), MaxWindows)
	for i := range windows {
		windows[i].check(f, at.At("Windows").Index(i))
	}
}

// checkDecision returns what cannot be true of a store's decision.
func (r *Request) checkDecision(d Decision) error {
	switch {
	case d.Window < 0 || d.Window >= len(r.Windows):
		return fmt.Errorf("quota: the store's decision is about window %d of %d", d.Window, len(r.Windows))
	case math.IsNaN(d.Remaining) || math.IsInf(d.Remaining, 0):
		return fmt.Errorf("quota: the store says that %v tokens remain", d.Remaining)
	case d.Wait < 0, d.OK && r.Mode == Reserve && d.Wait-time.Millisecond > r.MaxWait:
		return fmt.Errorf("quota: the store says to wait %v; the longest wait is %v", d.Wait, r.MaxWait)
	}
	return nil
}

// Decide decides about r by the tokens that each window has at a time. It writes what
// they are afterwards into tokens. A [Store] that keeps its buckets elsewhere uses it to
// answer as [Memory] would.
func (r *Request) Decide(tokens []float64, now time.Time) Decision {
	var buf [MaxWindows]bucket
	buckets := buf[:len(r.Windows)]
	for i := range buckets {
		buckets[i].tokens = tokens[i]
	}
	d := r.decide(buckets, moment{epoch: now})
	for i := range buckets {
		tokens[i] = buckets[i].tokens
	}
	return d
}

// decide decides about r on its buckets, one for each window. Whatever it decides, the
// buckets are up to date afterwards.
func (r *Request) decide(buckets []bucket, at moment) (d Decision) {
	cost := float64(r.Cost)
	d = Decision{OK: true}
	for i := range buckets {
		w, b := &r.Windows[i], &buckets[i]
		b.refill(w, at)
		if !r.Debt && cost > w.Burst {
			d = Decision{Window: i, Wait: Never}
			continue
		}
		if wait := w.refillTime(b.lacks(w, cost, r.Debt), at); wait > d.Wait || wait == Never {
			d = Decision{Window: i, Wait: wait}
		}
	}
	switch r.Mode {
	case Permissive:
		d = Decision{OK: true}
	case Reserve:
		if d.Wait < time.Millisecond {
			d = Decision{OK: true}
		}
		d.OK = d.Wait <= r.MaxWait && d.Wait < Never
	}
	if !d.OK {
		d.Wait = max(roundUp(d.Wait), time.Millisecond)
	} else if r.Mode != DryRun {
		for i := range buckets {
			buckets[i].charge(&r.Windows[i], cost)
		}
	}
	r.describe(&d, buckets, at)
	return d
}

// describe fills in which window binds, and what it has.
func (r *Request) describe(d *Decision, buckets []bucket, at moment) {
	for i := range buckets {
		w, b := &r.Windows[i], &buckets[i]
		if r.Mode == Permissive {
			if wait := w.wait(b.lacks(w, 0, true), at); wait > d.Wait {
				d.Wait, d.Window = wait, i
			}
		}
		if d.OK && d.Wait == 0 && b.tokens < buckets[d.Window].tokens {
			d.Window = i
		}
	}
	d.Remaining = buckets[d.Window].tokens
}

// bucket is the state of one window of one key. It says how many tokens the key had when
// it was last touched, and when that was. It does not depend on the window, so a window
// that changes leaves tokens and debts as they are.
type bucket struct {
	tokens float64 // negative: a debt
	last   time.Duration
}

// full is the bucket of a key that has not been seen.
func full(w *Window, at moment) bucket { return bucket{w.Burst, at.by(w)} }

// refill brings the bucket up to date. If the clock has gone back, no tokens come back,
// and time counts on from there. So the bucket does not stand still until the clock has
// caught up.
func (b *bucket) refill(w *Window, at moment) {
	now := at.by(w)
	if passed := now - b.last; passed > 0 {
		if w.Calendar.set() {
			b.tokens += w.Burst * w.Calendar.passed(at.epoch.Add(b.last), at.epoch.Add(now))
		} else {
			b.tokens += w.Rate * passed.Seconds()
		}
	}
	b.last = now
	b.tokens = min(b.tokens, w.Burst)
}

// charge removes tokens, or adds them if they are negative. It does not count a debt
// beyond MaxTokens.
func (b *bucket) charge(w *Window, tokens float64) {
	b.tokens = min(max(b.tokens-tokens, -MaxTokens), w.Burst)
}

// lacks returns how many tokens have to come back until work of this cost is admitted.
// Without debt, work needs as many as it costs. With debt, it waits until there is no
// debt.
func (b *bucket) lacks(w *Window, cost float64, debt bool) float64 {
	need := cost
	if debt {
		need = 0
	}
	if lack := need - b.tokens; lack > w.slack() {
		return lack
	}
	return 0
}

// moment is a point in time on two clocks, both counted from one epoch.
type moment struct {
	now   time.Duration // by a clock that nobody sets, for rates
	wall  time.Duration // by the wall clock, for calendars
	epoch time.Time
}

// by returns the time by the clock that w goes by.
func (at moment) by(w *Window) time.Duration {
	if w.Calendar.set() {
		return at.wall
	}
	return at.now
}

// until returns how long it is to the start of the nth period from now.
func (at moment) until(c Calendar, n float64) time.Duration {
	const most = 200 * 365 * 24 // hours that fit into a Duration
	if !(n <= most) {
		return Never
	}
	wall := at.epoch.Add(at.wall)
	d := c.start(wall, int(n)).Sub(wall)
	if d <= 0 {
		return Never // does not fit into a Duration
	}
	return d
}
