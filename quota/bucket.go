package quota

import (
	"time"
)

// moment is a point in time on two clocks, both counted from one epoch.
type moment struct {
	now   time.Duration // by a clock that nobody sets, for rates
	wall  time.Duration // by the clock on the wall, for calendars
	epoch time.Time
}

// by returns the time by the clock that l goes by.
func (at moment) by(l *Limit) time.Duration {
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
func full(l *Limit, at moment) bucket { return bucket{l.Burst, at.by(l)} }

// refill brings the bucket up to date. A clock that has gone back brings nothing,
// and time counts from there again: neither tokens for time that did not pass, nor
// a bucket that stands still until the clock is where it was.
func (b *bucket) refill(l *Limit, at moment) {
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
func (b *bucket) take(l *Limit, tokens float64) {
	b.tokens = min(max(b.tokens-tokens, -MaxTokens), l.Burst)
}

// lacks returns how many tokens have to come back until work of this cost is let
// through: in debt, until there is none; else until there are as many as it costs.
func (b *bucket) lacks(l *Limit, cost float64, debt bool) float64 {
	need := cost
	if debt {
		need = 0
	}
	if lack := need - b.tokens; lack > l.slack() {
		return lack
	}
	return 0
}
