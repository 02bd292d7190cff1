package shed

import (
	"sync/atomic"
	"time"
)

// book are the counters of the fast path, which only grow: what has arrived at
// each level, by what became of it. Levels of different users are different
// words, so they also keep processors apart.
type book struct {
	admitted, refused [Levels]atomic.Uint64
	exempt, closed    atomic.Uint64
}

// totals are counts by level.
type totals [Levels]uint64

func sum(of *[Levels]atomic.Uint64) (t totals) {
	for l := range of {
		t[l] = of[l].Load()
	}
	return t
}

// classes adds up the levels of each class.
func (t *totals) classes() (by [Classes]uint64) {
	for l, n := range t {
		by[l/Users] += n
	}
	return by
}

// reading is one look at the pressure that was good.
type reading struct {
	value  float64
	signal string        // which one, if it is one of several
	at     time.Duration // when it was begun
}

// core decides which level is let through. It is told the time and shares with
// the fast path nothing but the book.
type core struct {
	rules Config // complete and valid
	level Level

	last  *reading // the last good one, nil if there was none
	known bool     // it is young enough

	window window
	ready  time.Duration // when the level is decided next
}

// configure takes up new settings. The level stays until the next step.
func (c *core) configure(now time.Duration, rules Config, b *book) {
	c.rules = rules
	if rules.Cursor != nil {
		c.level = min(c.level, Levels-1)
	}
	c.forget(now, b)
}

// forget begins anew, but for the level.
func (c *core) forget(now time.Duration, b *book) {
	c.window = window{}
	c.window.restart(now, b)
	c.ready = now + c.rules.Interval
}

// step takes the latest good reading, nil if there has been none, and decides.
func (c *core) step(now time.Duration, r *reading, b *book) {
	fresh := r != nil && r != c.last
	if fresh {
		c.last = r
	}
	c.known = c.last != nil && now-c.last.at <= c.rules.Hold
	switch {
	case !c.known:
		c.blind(now, b)
	case c.rules.Cursor == nil:
		c.threshold()
		c.ready = now + c.rules.Interval
	default:
		if fresh {
			c.window.read(r.value)
		}
		c.cursor(now, b)
	}
}

// blind decides without a pressure.
func (c *core) blind(now time.Duration, b *book) {
	c.forget(now, b)
	if c.rules.Blind == Open {
		c.level = 0
	}
}

// threshold refuses every class whose threshold the pressure has reached. That
// they rise with the class makes it a level.
func (c *core) threshold() {
	c.level = 0
	for class, t := range c.rules.Thresholds.list() {
		if c.last.value >= t {
			c.level = Level((class + 1) * Users)
		}
	}
}

// limit is what the pressure is held against where work of a class is refused.
func (c *core) limit(class int) float64 {
	if c.rules.Cursor != nil {
		return c.rules.Cursor.Overload
	}
	return c.rules.Thresholds.list()[class]
}

// retry is how long it takes at the earliest until what is refused now is let
// through: until the next decision. Nobody is told to come back sooner than
// leastRetry, as from other gates, or, by a clock that has gone back, later than
// the longest window.
func (c *core) retry(now time.Duration) time.Duration {
	return min(max(c.ready-now, leastRetry), longest)
}

const (
	leastRetry = 10 * time.Millisecond
	longest    = time.Minute // an interval or a window
)
