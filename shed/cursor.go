package shed

import (
	"math"
	"time"
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
