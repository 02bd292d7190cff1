package quota

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/weir-go/weir/internal/fault"
)

// Window is one limit of a quota, kept by a token bucket. The bucket starts full. Work is
// charged its cost. Tokens come back at Rate, or at the start of each period of a
// Calendar, until the bucket is full again. So in any time at most Burst, plus what comes
// back, is admitted.
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

// MaxTokens bounds rates, bursts and debts. Up to here a float64 can count single tokens.
const MaxTokens = 1e15

// MinRate is the slowest rate, in tokens a second: a token in 31 years.
const MinRate = 1e-9

// Never is a wait that does not end.
const Never = time.Duration(math.MaxInt64)

// Per returns the window of n tokens in each d. All n may be used at once. The burst is at
// least 1, or work that costs one could never be admitted.
func Per(n float64, d time.Duration) Window {
	return Window{Rate: n / d.Seconds(), Burst: max(n, 1)}
}

// Samples returns a window in the terms of Kafka's controller mutation quota (KIP-599).
// Its rate is rate a second, its burst rate × samples × window. Kafka's defaults are 11
// samples of one second.
func Samples(rate float64, samples int, window time.Duration) Window {
	return Window{Rate: rate, Burst: rate * float64(samples) * window.Seconds()}
}

// PerCalendar returns the window of n tokens in each period of the calendar, by the wall
// clock of a place. nil means UTC.
func PerCalendar(n float64, period Period, in *time.Location) Window {
	return Window{Burst: n, Calendar: Calendar{period, in}}
}

// Check returns every field out of range.
func (w Window) Check() error {
	var f fault.List
	w.check(&f, nil)
	return f.Err("quota")
}

// check adds every field out of range to f. at is the path of the window.
func (w *Window) check(f *fault.List, at fault.Path) {
	f.Check(w.Burst > 0 && w.Burst <= MaxTokens, at.At("Burst"), w.Burst, "must be above 0 and at most %v", float64(MaxTokens))
	f.Check(w.Calendar.Period <= Month, at.At("Calendar", "Period"), w.Calendar.Period, "must be Hour, Day, Week or Month")
	if w.Calendar.set() {
		f.Check(w.Rate == 0, at.At("Rate"), w.Rate, "leave it 0, the Calendar says when tokens come back")
		return
	}
	f.Check(w.Rate >= MinRate && w.Rate <= MaxTokens, at.At("Rate"), w.Rate, "must be from %v to %v", MinRate, float64(MaxTokens))
	f.Check(w.Calendar.In == nil, at.At("Calendar", "In"), w.Calendar.In, "only used with a Period")
}

// valid is check without the words.
func (w *Window) valid() bool {
	if !(w.Burst > 0 && w.Burst <= MaxTokens) {
		return false
	}
	if w.Calendar.set() {
		return w.Rate == 0 && w.Calendar.Period <= Month
	}
	return w.Rate >= MinRate && w.Rate <= MaxTokens && w.Calendar.In == nil
}

// String returns the window in words: "10/s, burst 20", "1000 a day, UTC". The rate is for
// the shortest unit of time in which it is a whole number, if there is one.
func (w Window) String() string {
	if w.Calendar.set() {
		return fmt.Sprintf("%s a %v", number(w.Burst), w.Calendar)
	}
	rate, unit := w.Rate, "s"
	for _, u := range units {
		if n := w.Rate * u.seconds; isWhole(n) {
			rate, unit = n, u.name
			break
		} else if rate < 1 {
			rate, unit = n, u.name
		}
	}
	return fmt.Sprintf("%s/%s, burst %s", number(rate), unit, number(w.Burst))
}

// units are the units of time of rates, the shortest first.
var units = [...]struct {
	name    string
	seconds float64
}{{"s", 1}, {"min", 60}, {"h", 3600}, {"24h", 86400}}

// isWhole reports whether f is a whole number, except for rounding.
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

// slack is how many tokens a bucket may lack and still have enough. It is the tokens of a
// nanosecond, and the rounding of a float64. Work is charged in full, so the slack does
// not add up.
func (w *Window) slack() float64 { return 1e-9*(1+w.Rate) + 1e-12*w.Burst }

// refillTime returns how long tokens take to come back from at on, as exactly as a float64 can
// say.
func (w *Window) refillTime(tokens float64, at moment) time.Duration {
	if tokens <= w.slack() {
		return 0
	}
	if w.Calendar.set() {
		return at.until(w.Calendar, math.Ceil(tokens/w.Burst-1e-9))
	}
	// A sum of many small parts has rounding errors. They must not cost a nanosecond
	// more: what is missing then is within the slack.
	off := min(1e-14*(w.Burst+tokens), w.slack()/2)
	return nanoseconds((tokens - off) / w.Rate * 1e9)
}

// nanoseconds rounds up to a duration, but not because of rounding errors in ns.
func nanoseconds(ns float64) time.Duration {
	if !(ns < math.MaxInt64/2) {
		return Never
	}
	return time.Duration(math.Ceil(ns - 1e-3 - 1e-15*ns))
}

// Refill returns how long a bucket with so many tokens takes from now to be full, if none
// are used. It returns Never if that is too far off.
func (w Window) Refill(tokens float64, now time.Time) time.Duration {
	return w.refillTime(w.Burst-tokens, moment{epoch: now})
}

// wait is refillTime in whole milliseconds. It rounds up: who comes back then is not too early.
func (w *Window) wait(tokens float64, at moment) time.Duration {
	return roundUp(w.refillTime(tokens, at))
}

// roundUp rounds a wait up to whole milliseconds.
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

// Calendar is periods one after the other, by the wall clock of a place. When the clocks
// change, a day has 23 or 25 hours, and an hour that comes twice counts as two.
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

// Current returns the start of the period that t is in, and the start of the next one.
func (c Calendar) Current(t time.Time) (start, end time.Time) {
	return c.start(t, 0), c.start(t, 1)
}

// start returns the start of the nth period after the one that t is in.
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

// hour is an hour by the wall clock. It ends early if the clocks change by less than one.
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

// midnight returns the first instant of a date. If the clocks change at midnight, midnight
// may come twice, or not at all.
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

// passed returns how many periods have begun after from and until to. A date that comes
// twice begins once.
func (c Calendar) passed(from, to time.Time) float64 {
	const rounding = 1e-6 // of hours
	return max(math.Ceil(c.Number(to)-c.Number(from)-rounding), 0)
}

// Number counts the periods by the date on which the one that t is in begins, and hours as
// they pass. If the clocks change by half an hour, two hours are half apart.
func (c Calendar) Number(t time.Time) float64 {
	t = t.In(c.place())
	days := math.Round(float64(dateOf(t).Unix()) / (24 * 60 * 60))
	switch c.Period {
	case Day:
		return days
	case Week:
		return math.Floor((days + 3) / 7) // 1 January 1970 was a Thursday
	case Month:
		return float64(12*t.Year() + int(t.Month()))
	}
	return float64(fullHour(t).start.Unix()) / (60 * 60)
}
