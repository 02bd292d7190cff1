package gate

import (
	"time"

	"github.com/weir-go/weir/internal/room"
)

// Drain estimates how fast slots come back while somebody needs them. The gate
// computes Retry-After from that rate, and refuses work that would wait in vain.
// Drain looks only at intervals with waiters or refusals, because an idle gate's
// releases say nothing about its capacity.
type Drain struct {
	since  time.Duration // start of the interval being counted
	count  int64         // released in it
	busy   bool          // somebody lacked a slot during it
	idle   bool          // a slot lies free, and nobody waits
	Rate   float64       // released per second, smoothed; 0 while unknown
	Wanted time.Duration // when somebody last lacked a slot
	Known  time.Duration // when Rate was last measured
}

// drainInterval is how long an interval lasts at least, drainMin how many
// releases it has at least: fewer say too little.
const (
	drainInterval = 100 * time.Millisecond
	drainMin      = 4
)

// Reset begins an interval.
func (d *Drain) Reset(now time.Duration) { d.since, d.count, d.busy = now, 0, false }

// quiet begins the interval anew if nobody has lacked a slot for longer than stale. The releases of
// such a time show how little was asked for, and a queue would be told to wait for minutes. Those
// that lacked one before, and still wait, are not quiet.
func (d *Drain) quiet(now time.Duration) bool {
	if d.busy && !d.idle || now-max(d.since, d.Wanted) <= stale {
		return false
	}
	d.Reset(now)
	return true
}

// Want notes that somebody lacked a slot: was refused or queued, or would have been.
func (d *Drain) Want(now time.Duration) {
	d.quiet(now)
	d.busy, d.idle, d.Wanted = true, false, now
}

// Finish counts a release of units.
func (d *Drain) Finish(now time.Duration, units int64, wanted bool) {
	if !d.quiet(now) {
		d.count += units
	}
	if wanted {
		d.Want(now)
	}
	if now-d.since >= drainInterval {
		d.measure(now)
	}
}

// Idle notes that a slot lies free after a release, and nobody waits for it.
func (d *Drain) Idle() { d.idle = true }

// measure ends the interval, if enough was released in it.
func (d *Drain) measure(now time.Duration) {
	elapsed := now - d.since
	if d.count < drainMin {
		return
	}
	if d.busy {
		d.Known = now
		rate := float64(d.count) / elapsed.Seconds()
		if d.Rate == 0 {
			d.Rate = rate
		} else {
			d.Rate += 0.3 * (rate - d.Rate)
		}
	}
	d.Reset(now)
}

// stale is how long a rate holds that is not measured again. To that comes the time
// that the releases of four intervals take at that rate.
const stale = time.Second

// Current returns the rate. It is 0 if the rate is not known or too old to
// refuse anybody by it.
func (d *Drain) Current(now time.Duration) float64 {
	if d.Rate == 0 || now-d.Known > stale+Seconds(4*drainMin/d.Rate) {
		return 0
	}
	return d.Rate
}

// The bounds of an estimated wait. Below them the estimate is noise. Above them
// nobody should be told to wait that long because of an estimate. UnknownWait
// is the answer while nothing has been measured.
const (
	minWait = 10 * time.Millisecond
	MaxWait = 30 * time.Second
)

// Wait estimates how long one unit that comes now would wait behind ahead
// others. Slots come back at rate a second. While that is 0, unknown, it goes by how
// long work takes, with all of the limit in use.
func Wait(ahead, rate float64, limit int64, median time.Duration) time.Duration {
	if rate == 0 && median > 0 {
		rate = float64(limit) / median.Seconds()
	}
	if !(rate > 0) {
		return UnknownWait
	}
	seconds := (ahead + 1) / rate
	if seconds >= MaxWait.Seconds() {
		return MaxWait
	}
	return max(minWait, time.Duration(seconds*float64(time.Second)))
}

// ComeBack returns the wait that is told to work of a class which is refused now. It is the
// time until those who wait have had their turn, times how many come for each one that is
// served. Nobody can tell for how long so many will come. So at most as long is added as they
// have come so far, or [UnknownWait] if that is more.
func ComeBack(r *room.Room, now time.Duration, class int, rate float64, limit int64, median time.Duration) time.Duration {
	turn := Wait(r.AheadOf(class), rate, limit, median)
	times, lasted := r.Crowd(now, class)
	if times == 1 {
		return turn
	}
	told := min(turn+max(UnknownWait, lasted), MaxWait)
	if more := times * turn.Seconds(); more < told.Seconds() {
		told = time.Duration(more * float64(time.Second))
	}
	return told
}
