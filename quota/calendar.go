package quota

import (
	"fmt"
	"math"
	"time"
)

// Period is a part of the calendar.
type Period uint8

// The periods. A week begins on Monday (ISO 8601).
const (
	Hour Period = iota + 1
	Day
	Week
	Month
)

// String returns the name: hour, day, week or month.
func (p Period) String() string {
	if p < Hour || p > Month {
		return fmt.Sprintf("period(%d)", uint8(p))
	}
	return [...]string{"hour", "day", "week", "month"}[p-Hour]
}

// Calendar is periods one after the other, as clocks on the wall in a place show
// them. Where clocks are put forward or back, a day has 23 or 25 hours; an hour
// that comes twice is two.
type Calendar struct {
	Period Period
	In     *time.Location // nil means UTC
}

func (c Calendar) set() bool { return c.Period != 0 }

// String returns the period and the place: "day, Europe/Berlin".
func (c Calendar) String() string { return fmt.Sprintf("%v, %v", c.Period, c.place()) }

func (c Calendar) place() *time.Location {
	if c.In == nil {
		return time.UTC
	}
	return c.In
}

// Current returns the period that t is in: its start, and the start of the next.
func (c Calendar) Current(t time.Time) (start, end time.Time) {
	return c.start(t, 0), c.start(t, 1)
}

// start returns the start of the period n after the one that t is in.
func (c Calendar) start(t time.Time, n int) time.Time {
	t = t.In(c.place())
	y, m, d := t.Date()
	switch c.Period {
	case Day:
		return midnight(y, m, d+n, t.Location())
	case Week:
		return midnight(y, m, d-(int(t.Weekday())+6)%7+7*n, t.Location())
	case Month:
		return midnight(y, m+time.Month(n), 1, t.Location())
	}
	for ; n > 0 && n < 100; n-- {
		t = fullHour(t).next
	}
	return fullHour(t.Add(time.Duration(n) * time.Hour)).start
}

// hour is one by the clock on the wall. It ends early where the clocks are moved by
// less than one.
type hour struct{ start, next time.Time }

func fullHour(t time.Time) hour {
	_, offset := t.Zone()
	into := (t.Unix() + int64(offset)) % 3600
	start := t.Truncate(time.Second).Add(-time.Duration(into) * time.Second)
	next := start.Add(time.Hour)
	from, to := t.ZoneBounds()
	if !from.IsZero() && start.Before(from) {
		start = from
	}
	if !to.IsZero() && to.Before(next) {
		next = to
	}
	return hour{start, next}
}

// midnight returns the first instant of a date: where the clocks are moved at
// midnight, it may come twice, or be another hour's.
func midnight(y int, m time.Month, d int, in *time.Location) time.Time {
	want := time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
	t := time.Date(y, m, d, 0, 0, 0, 0, in)
	from, to := t.ZoneBounds()
	if have := dateOf(t); have.Before(want) {
		return to // there is no midnight, and no such date before the change
	}
	if from.IsZero() {
		return t
	}
	_, offset := t.Zone()
	_, before := from.Add(-1).Zone()
	if first := t.Add(time.Duration(offset-before) * time.Second); first.Before(from) && dateOf(first).Equal(want) {
		return first
	}
	return t
}

func dateOf(t time.Time) time.Time {
	y, m, d := t.Date()
	return time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
}

// passed returns how many periods have begun after from and up to to. Where a date
// comes twice, none has.
func (c Calendar) passed(from, to time.Time) float64 {
	return max(c.begun(from.In(c.place()), to.In(c.place())), 0)
}

func (c Calendar) begun(from, to time.Time) float64 {
	const day = 24 * time.Hour
	switch c.Period {
	case Day:
		return math.Round(float64(dateOf(to).Sub(dateOf(from))) / float64(day))
	case Week:
		monday := time.Date(1970, 1, 5, 0, 0, 0, 0, time.UTC) // before all of it
		week := func(t time.Time) float64 { return math.Floor(float64(dateOf(t).Sub(monday)) / float64(7*day)) }
		return week(to) - week(from)
	case Month:
		month := func(t time.Time) float64 { return float64(12*t.Year() + int(t.Month())) }
		return month(to) - month(from)
	}
	return math.Ceil(float64(fullHour(to).start.Sub(fullHour(from).start)) / float64(time.Hour))
}
