package quota

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// Window is one window of a quota: a bucket of tokens. It starts full, each piece
// of work takes its cost out, and tokens come back at Rate, or at the start of
// each period of a Calendar, until the bucket is full again. So no more than
// Burst plus what comes back is let through in any time.
//
// A Window is a value: two that are equal are the same limit.
type Window struct {
	// Rate is how many tokens come back in a second: above 0, at most [MaxTokens],
	// or 0 with a Calendar.
	Rate float64
	// Burst is the most tokens that a bucket holds: above 0, at most [MaxTokens].
	Burst float64
	// Calendar, if set, replaces Rate: Burst tokens come back at the start of each
	// hour, day, week or month.
	Calendar Calendar
}

// MaxTokens bounds rates, bursts and debts. Up to there a float64 tells one token
// from the next.
const MaxTokens = 1e15

// minRate is the slowest that a bucket fills: a token in 31 years.
const minRate = 1e-9

// Never is a wait that does not end.
const Never = time.Duration(math.MaxInt64)

// Per is the limit of n tokens in each d, of which up to n may be taken at once: at
// least one, or else work that costs one could never be.
func Per(n float64, d time.Duration) Window {
	return Window{Rate: n / d.Seconds(), Burst: max(n, 1)}
}

// Samples is a limit in the terms of Kafka's controller mutation quota (KIP-599):
// rate a second, with a burst of rate × samples × window. Kafka's defaults are 11
// samples of one second.
func Samples(rate float64, samples int, window time.Duration) Window {
	return Window{Rate: rate, Burst: rate * float64(samples) * window.Seconds()}
}

// PerCalendar is the limit of n tokens in each period of the calendar, as the clocks on
// the wall in a place show it; nil means UTC.
func PerCalendar(n float64, period Period, in *time.Location) Window {
	return Window{Burst: n, Calendar: Calendar{period, in}}
}

// Check reports every field out of range.
func (l Window) Check() error {
	var f faults
	l.check(&f, "")
	return f.err("")
}

// check adds every field out of range, behind where the limit stands.
func (l *Window) check(f *faults, where string) {
	f.check(l.Burst > 0 && l.Burst <= MaxTokens, "%sBurst %v: must be above 0 and at most %v", where, l.Burst, float64(MaxTokens))
	f.check(l.Calendar.Period <= Month, "%sCalendar.Period %d: must be Hour, Day, Week or Month", where, l.Calendar.Period)
	if l.Calendar.set() {
		f.check(l.Rate == 0, "%sRate %v: leave it 0, the Calendar says when tokens come back", where, l.Rate)
		return
	}
	f.check(l.Rate >= minRate && l.Rate <= MaxTokens, "%sRate %v: must be from %v to %v", where, l.Rate, minRate, float64(MaxTokens))
	f.check(l.Calendar.In == nil, "%sCalendar.In %v: only used with a Period", where, l.Calendar.In)
}

// valid is Validate without the words.
func (l *Window) valid() bool {
	if !(l.Burst > 0 && l.Burst <= MaxTokens) {
		return false
	}
	if l.Calendar.set() {
		return l.Rate == 0 && l.Calendar.Period <= Month
	}
	return l.Rate >= minRate && l.Rate <= MaxTokens && l.Calendar.In == nil
}

// String says the limit in words: "10/s, burst 20", "1000 a day, UTC". The rate is for
// the shortest time in which it is a whole number, if there is one.
func (l Window) String() string {
	if l.Calendar.set() {
		return fmt.Sprintf("%s a %v", number(l.Burst), l.Calendar)
	}
	rate, unit := l.Rate, "s"
	for _, u := range units {
		if n := l.Rate * u.seconds; isWhole(n) {
			rate, unit = n, u.name
			break
		} else if rate < 1 {
			rate, unit = n, u.name
		}
	}
	return fmt.Sprintf("%s/%s, burst %s", number(rate), unit, number(l.Burst))
}

// units are the times that rates are said for, the shortest first.
var units = [...]struct {
	name    string
	seconds float64
}{{"s", 1}, {"min", 60}, {"h", 3600}, {"24h", 86400}}

// isWhole reports whether f is a whole number, but for what a float64 is off by.
func isWhole(f float64) bool {
	n := math.Round(f)
	return n >= 1 && math.Abs(f-n) <= 1e-12*n
}

// number writes tokens: whole ones as they are, others to six digits.
func number(f float64) string {
	if isWhole(f) {
		return strconv.FormatFloat(math.Round(f), 'f', -1, 64)
	}
	return strconv.FormatFloat(f, 'g', 6, 64)
}

// slack is by how many tokens a bucket may fall short and still be taken to have
// enough: what comes back in a nanosecond, and what a float64 is off by. What is
// taken counts in full, so it adds up to no more than this once.
func (l *Window) slack() float64 { return 1e-9*(1+l.Rate) + 1e-12*l.Burst }

// fill returns how long tokens take to come back, as exactly as a float64 knows.
// at is when they begin to.
func (l *Window) fill(tokens float64, at moment) time.Duration {
	if tokens <= l.slack() {
		return 0
	}
	if l.Calendar.set() {
		return at.until(l.Calendar, math.Ceil(tokens/l.Burst-1e-9))
	}
	// A sum of many small parts is off by some ulps of the largest: no nanosecond more
	// for that, as what is missing then is within the slack.
	off := min(1e-14*(l.Burst+tokens), l.slack()/2)
	return nanoseconds((tokens - off) / l.Rate * 1e9)
}

// nanoseconds rounds up to a duration, but not for an error of float64.
func nanoseconds(ns float64) time.Duration {
	if !(ns < math.MaxInt64/2) {
		return Never
	}
	return time.Duration(math.Ceil(ns - 1e-3 - 1e-15*ns))
}

// Refill returns how long it takes from now until a bucket that holds so many
// tokens is full, if nobody takes any: Never if that is not in sight.
func (l Window) Refill(tokens float64, now time.Time) time.Duration {
	return l.fill(l.Burst-tokens, moment{epoch: now})
}

// wait is fill for somebody who is refused: in whole milliseconds, rounded up, so
// that it is not too early then.
func (l *Window) wait(tokens float64, at moment) time.Duration {
	return roundUp(l.fill(tokens, at))
}

// roundUp makes whole milliseconds of a wait.
func roundUp(d time.Duration) time.Duration {
	const most = Never - time.Millisecond
	if d > most || d <= 0 {
		return d
	}
	d += time.Millisecond - 1
	return d - d%time.Millisecond
}

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
