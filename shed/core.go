package shed

import (
	"math"
	"sync/atomic"
	"time"
)

// core decides which level is let through. It gets the time as an argument, and shares
// only the counters with the fast path.
type core struct {
	rules Config // complete and checked
	level Level

	last  *reading // the last good one, nil if there was none
	known bool     // it is young enough

	window window
	ready  time.Duration // when the level is decided next
}

// configure takes over new settings. The level stays until the next step.
func (c *core) configure(now time.Duration, rules Config, n *counters) {
	c.rules = rules
	if rules.Cursor != nil {
		c.level = min(c.level, Levels-1)
	}
	c.forget(now, n)
}

// forget begins anew, but keeps the level.
func (c *core) forget(now time.Duration, n *counters) {
	c.window = window{}
	c.window.restart(now, n)
	c.ready = now + c.rules.Interval
}

// step decides the level, given the latest good reading, nil if there was none.
func (c *core) step(now time.Duration, r *reading, n *counters) {
	fresh := r != nil && r != c.last
	if fresh {
		c.last = r
	}
	c.known = c.last != nil && now-c.last.at <= c.rules.Hold
	switch {
	case !c.known:
		c.forget(now, n)
		if c.rules.Blind == Open {
			c.level = 0
		}
	case c.rules.Cursor == nil:
		c.threshold()
		c.ready = now + c.rules.Interval
	default:
		if fresh {
			c.window.read(r.value)
		}
		c.cursor(now, n)
	}
}

// threshold refuses every class whose threshold the pressure has reached. The
// thresholds rise with the class, so all refused classes are below one level.
func (c *core) threshold() {
	c.level = 0
	for class, t := range c.rules.Thresholds.list() {
		if c.last.value >= t {
			c.level = Level((class + 1) * users)
		}
	}
}

// The constants of the cursor. The longest window, alpha and beta are DAGOR's; its
// windows end after 2,000 requests.
const (
	windowAtMost  = time.Second
	windowAtLeast = windowAtMost / 10 // what was let through must show in the pressure
	enough        = 200               // arrivals that end a window

	alpha    = 0.05 // the share of what was admitted that such a window cuts, at least
	mostCut  = 0.9  // and at most
	beta     = 0.01 // the share of what arrived by which another window grows, at least
	mostGrow = 0.16 // and at most
	draining = 2    // windows in which an overload that is going down must be over
)

// cursor ends the window if it is time to, and moves the level.
func (c *core) cursor(now time.Duration, n *counters) {
	w := &c.window
	a := w.arrivals(now, n)
	if now >= c.ends(&a) {
		if w.readings > 0 { // or nothing is known of this window
			c.level = min(w.nextLevel(c.rules.Cursor.Overload, c.level, &a), Levels-1)
		}
		w.restart(now, n)
		a.total = a.total * windowAtLeast.Seconds() / a.seconds // as many a second as before
		a.seconds = windowAtLeast.Seconds()
	}
	c.ready = max(c.ends(&a), now+c.rules.Interval)
}

// ends is when the window ends, if arrivals continue as they came so far.
func (c *core) ends(a *arrivals) time.Duration {
	length := float64(windowAtMost)
	if a.total > 0 {
		length = min(length, a.seconds*1e9*enough/a.total)
	}
	return c.window.began + max(time.Duration(length), windowAtLeast)
}

// window is the stretch over which a cursor counts, and what it remembers of
// earlier ones.
type window struct {
	began             time.Duration
	admitted, refused totals // the counters at its beginning
	sum               float64
	readings          int

	good       float64 // the most admitted a second without overload; 0 if never
	before     float64 // the pressure of the window before
	overloaded bool    // that window was
	growing    int     // windows in a row that were not
}

func (w *window) read(pressure float64) {
	w.sum += pressure
	w.readings++
}

func (w *window) restart(now time.Duration, n *counters) {
	w.began = now
	w.admitted, w.refused = sum(&n.admitted), sum(&n.refused)
	w.sum, w.readings = 0, 0
}

// arrivals are what came in a window: by level, in all, and what was admitted.
type arrivals struct {
	at              totals
	total, admitted float64
	seconds         float64
}

func (w *window) arrivals(now time.Duration, n *counters) (a arrivals) {
	for l := range a.at {
		in := n.admitted[l].Load() - w.admitted[l]
		out := n.refused[l].Load() - w.refused[l]
		a.at[l] = in + out
		a.admitted += float64(in)
		a.total += float64(in + out)
	}
	a.seconds = (now - w.began).Seconds()
	return a
}

// nextLevel decides how much to admit if as much arrives again. It returns the level
// from which that much arrived, in one step, however far away that level is.
func (w *window) nextLevel(overload float64, from Level, a *arrivals) Level {
	pressure := w.sum / float64(w.readings)
	fell := w.before - pressure
	was := w.overloaded
	w.before, w.overloaded = pressure, pressure >= overload
	if !w.overloaded {
		// At once to what was good before, from there on by beta, doubled with
		// each such window in a row.
		w.good = max(w.good, a.admitted/a.seconds)
		grow := min(math.Ldexp(beta, min(w.growing, 64)), mostGrow)
		w.growing++
		return lowest(&a.at, max(a.admitted+grow*a.total, w.good*a.seconds), from)
	}
	w.growing = 0
	if a.admitted*(1-alpha) > w.good*a.seconds {
		// More than was ever good: cut by as much as the pressure is too high, but
		// not below what was good.
		cut := min(max(1-overload/pressure, alpha), mostCut)
		return highest(&a.at, max(a.admitted*(1-cut), w.good*a.seconds), from)
	}
	if was && pressure-overload < draining*fell {
		return from // a queue takes time to drain, and it is draining
	}
	// Either what was good is too much now, or a queue is left. Nothing here shows
	// which, nor how much would be good.
	w.good *= 1 - alpha
	return highest(&a.at, a.admitted*(1-alpha), from)
}

// highest returns the first level, from that one up, from which no more than want
// arrived.
func highest(at *totals, want float64, from Level) Level {
	admitted := 0.0
	for l := Levels - 1; l >= int(from); l-- {
		if admitted += float64(at[l]); admitted > want {
			return Level(l + 1)
		}
	}
	return from
}

// lowest returns the first level, from that one down, from which at least want
// arrived; 0 if all together is less.
func lowest(at *totals, want float64, from Level) Level {
	admitted := 0.0
	for l := Levels - 1; l >= 0; l-- {
		admitted += float64(at[l])
		if l <= int(from) && admitted > 0 && admitted >= want {
			return Level(l)
		}
	}
	return 0
}

// limit is the pressure from which work of a class is refused.
func (c *core) limit(class int) float64 {
	if c.rules.Cursor != nil {
		return c.rules.Cursor.Overload
	}
	return c.rules.Thresholds.list()[class]
}

// retry is when refused work should come back. With a cursor that is the next decision. With
// thresholds the next decision is milliseconds away, and a pressure is rarely gone so soon. A
// client that came back then would be refused many times. So it is at least Hold, for which the
// gate itself takes a pressure as still true. It is at least leastRetry, as in other gates, and at
// most the longest window, for clocks that go back.
func (c *core) retry(now time.Duration) time.Duration {
	least := leastRetry
	if c.rules.Cursor == nil {
		least = max(least, c.rules.Hold)
	}
	return min(max(c.ready-now, least), longest)
}

const (
	leastRetry = 10 * time.Millisecond
	longest    = time.Minute // an interval or a window
)

// counters are written by the fast path and only grow: what arrived at each level,
// by what became of it. users of different levels count in different words, which
// keeps processors apart.
type counters struct {
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
func (t *totals) classes() (by [classes]uint64) {
	for l, n := range t {
		by[l/users] += n
	}
	return by
}

// reading is a good reading of the pressure.
type reading struct {
	value  float64
	signal string        // which one, if it is one of several
	at     time.Duration // when it was begun
}
