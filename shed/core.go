package shed

import (
	"math"
	"sync/atomic"
	"time"
)

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

// cursor ends the window if it is time to, and moves the level.
func (c *core) cursor(now time.Duration, b *book) {
	rules, w := c.rules.Cursor, &c.window
	a := w.arrivals(now, b)
	if now >= c.ends(&a) {
		if w.readings > 0 { // or nothing is known of this window
			c.level = min(w.move(rules, c.level, &a), Levels-1)
		}
		w.restart(now, b)
		a.total = a.total * rules.least().Seconds() / a.seconds // as many a second as before
		a.seconds = rules.least().Seconds()
	}
	c.ready = max(c.ends(&a), now+c.rules.Interval)
}

// ends is when the window ends, if arrivals come on as they came so far.
func (c *core) ends(a *arrivals) time.Duration {
	rules, length := c.rules.Cursor, float64(c.rules.Cursor.Window)
	if rules.Requests > 0 && a.total > 0 {
		length = min(length, a.seconds*1e9*float64(rules.Requests)/a.total)
	}
	return c.window.began + max(time.Duration(length), rules.least())
}

// least is the shortest window: work that was let through must have had time to
// show in the pressure.
func (c *Cursor) least() time.Duration { return c.Window / leastPart }

// leastPart is how many shortest windows are a whole one.
const leastPart = 10

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

// window is the stretch over which a cursor counts, and what it remembers of
// those before.
type window struct {
	began             time.Duration
	admitted, refused totals // the book at its beginning
	sum               float64
	readings          int

	good   float64 // the most admitted a second that was well; 0 if nothing was
	before float64 // the pressure of the window before
	hot    bool    // it was overloaded
	calm   int     // windows in a row that were not
}

func (w *window) read(pressure float64) {
	w.sum += pressure
	w.readings++
}

func (w *window) restart(now time.Duration, b *book) {
	w.began = now
	w.admitted, w.refused = sum(&b.admitted), sum(&b.refused)
	w.sum, w.readings = 0, 0
}

// arrivals are what came in a window: by level, in all, and what was admitted.
type arrivals struct {
	at              totals
	total, admitted float64
	seconds         float64
}

func (w *window) arrivals(now time.Duration, b *book) (a arrivals) {
	for l := range a.at {
		in := b.admitted[l].Load() - w.admitted[l]
		out := b.refused[l].Load() - w.refused[l]
		a.at[l] = in + out
		a.admitted += float64(in)
		a.total += float64(in + out)
	}
	a.seconds = (now - w.began).Seconds()
	return a
}

// move decides how much to let through of as much again, and finds the level
// from which that much arrived: in one step, however far that is.
func (w *window) move(rules *Cursor, from Level, a *arrivals) Level {
	pressure := w.sum / float64(w.readings)
	fell := w.before - pressure
	wasHot := w.hot
	w.before, w.hot = pressure, pressure >= rules.Overload
	switch {
	case rules.Plain && w.hot:
		return within(&a.at, a.admitted*(1-rules.Alpha), from)
	case rules.Plain:
		return reaching(&a.at, a.admitted+rules.Beta*a.total, from)
	case !w.hot:
		return w.grow(rules, from, a)
	}
	w.calm = 0
	if a.admitted*(1-rules.Alpha) > w.good*a.seconds {
		// More than was ever well: by what the pressure is too high, but not
		// below what was.
		cut := min(max(1-rules.Overload/pressure, rules.Alpha), rules.MaxCut)
		return within(&a.at, max(a.admitted*(1-cut), w.good*a.seconds), from)
	}
	if wasHot && pressure-rules.Overload < draining*fell {
		return from // a queue takes time to drain, and it is draining
	}
	// What was well is so no longer, or a queue is left that must drain; which
	// of the two, and how much would be well now, cannot be told.
	w.good *= 1 - rules.Alpha
	return within(&a.at, a.admitted*(1-rules.Alpha), from)
}

// draining is in how many windows the overload must be over, falling as in the
// last one, for the level to be left alone.
const draining = 2

// grow is move without overload: at once to what was well before, from there on
// by Beta.
func (w *window) grow(rules *Cursor, from Level, a *arrivals) Level {
	w.good = max(w.good, a.admitted/a.seconds)
	grow := min(math.Ldexp(rules.Beta, min(w.calm, 64)), rules.MaxGrow)
	w.calm++
	return reaching(&a.at, max(a.admitted+grow*a.total, w.good*a.seconds), from)
}

// within returns the lowest level from which no more than want arrived, at least
// from.
func within(at *totals, want float64, from Level) Level {
	admitted := 0.0
	for l := Levels - 1; l >= int(from); l-- {
		if admitted += float64(at[l]); admitted > want {
			return Level(l + 1)
		}
	}
	return from
}

// reaching returns the highest level from which at least want arrived, at most
// from; 0 if all together is less.
func reaching(at *totals, want float64, from Level) Level {
	admitted := 0.0
	for l := Levels - 1; l >= 0; l-- {
		admitted += float64(at[l])
		if l <= int(from) && admitted > 0 && admitted >= want {
			return Level(l)
		}
	}
	return 0
}

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
