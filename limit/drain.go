package limit

import "time"

// drain estimates how fast slots come back while somebody needs them: what an
// honest Retry-After is made of, and by which work is refused that would wait in
// vain. It looks only at intervals with waiters or refusals, because an idle
// gate's releases say nothing about its capacity.
type drain struct {
	since  time.Duration // start of the interval being counted
	count  int64         // released in it
	busy   bool          // somebody was in want during it
	rate   float64       // released per second, smoothed; 0 while unknown
	wanted time.Duration // when somebody was last in want
	known  time.Duration // when rate was last measured
}

// drainInterval is how long an interval lasts at least, drainMin how many
// releases it has at least: fewer say too little.
const (
	drainInterval = 100 * time.Millisecond
	drainMin      = 4
)

func (d *drain) reset(now time.Duration) { d.since, d.count, d.busy = now, 0, false }

// want notes that somebody was refused or queued, or would have been.
func (d *drain) want(now time.Duration) { d.busy, d.wanted = true, now }

// finish counts a release of units.
func (d *drain) finish(now time.Duration, units int64, wanted bool) {
	d.count += units
	if wanted {
		d.busy, d.wanted = true, now
	}
	if now-d.since >= drainInterval {
		d.measure(now)
	}
}

// measure ends the interval, if enough was released in it.
func (d *drain) measure(now time.Duration) {
	elapsed := now - d.since
	if d.count < drainMin {
		return
	}
	if d.busy {
		d.known = now
		rate := float64(d.count) / elapsed.Seconds()
		if d.rate == 0 {
			d.rate = rate
		} else {
			d.rate += 0.3 * (rate - d.rate)
		}
	}
	d.reset(now)
}

// stale is how long a rate holds that is not measured again, beside the time that
// a few intervals take at that rate.
const stale = time.Second

// current returns the rate, or 0 if it is not known or was measured too long ago
// to refuse anybody by it.
func (d *drain) current(now time.Duration) float64 {
	if d.rate == 0 || now-d.known > stale+seconds(4*drainMin/d.rate) {
		return 0
	}
	return d.rate
}

// The bounds of an estimated wait: below, the estimate is noise; above, nobody
// should be told to wait that long on the strength of an estimate. unknownWait
// is the answer while nothing has been measured.
const (
	minWait     = 10 * time.Millisecond
	maxWait     = 30 * time.Second
	unknownWait = time.Second
)

// wait estimates how long one unit that comes now would wait behind ahead
// others, where slots come back at rate a second.
func wait(ahead int64, rate float64) time.Duration {
	if !(rate > 0) {
		return unknownWait
	}
	seconds := float64(ahead+1) / rate
	if seconds >= maxWait.Seconds() {
		return maxWait
	}
	return max(minWait, time.Duration(seconds*float64(time.Second)))
}
