package control

import (
	"math"
	"time"
)

// KneeConfig configures [NewKnee]. The zero value is meant for everybody: there
// is no latency, no threshold and no size of the backend to tell.
type KneeConfig struct {
	// Initial is the first limit, clamped to Min and Max. Default 20. It only
	// matters until the limit has been reached for the first time.
	Initial int64
	// Min and Max bound the limit. Min is at least 1 and 2 by default: with one
	// slot the backend idles while an answer and the next request are on their
	// way. Default of Max 10,000.
	Min, Max int64
}

// Knee finds the concurrency beyond which more of it buys no more throughput:
// weir's default. It knows nothing about the backend but what finishes: no
// latency to hold, no baseline to forget, no size to configure.
//
// # How it judges
//
// While work waits, it holds the limit a little below and a little above its
// estimate in turn, for a few service times each, and compares. By Little's law
// throughput is n/W, so what counts is how the mean service time W of the work
// admitted in each stretch follows the mean concurrency n of its life:
//
//	e = 1 − d ln W / d ln n + d ln G / d ln n
//
// is the elasticity of the useful throughput, where G is the share of answers
// that came in time. Three stretches in a row make one comparison, the middle
// one against the mean of its neighbours, which cancels what drifts meanwhile.
// Service times are cut off at four times the median, and the slope is corrected
// for what that hides: one request of fifty times the work would drown the
// comparison otherwise. Work belongs to the stretch in which it was admitted,
// whenever it ends; counting what ends in a stretch instead mistakes young work
// for fast work.
//
// The estimate then moves by the gain of a Kalman filter on the distance to the
// point where e equals a price of 0.045 (so that slots that buy next to nothing
// are left), with a noise that is measured by how much comparisons in a row
// disagree. Few completions move it little, a clear answer moves it at once.
//
// # When it does not judge
//
// A window in which a slot was free for more than two fifths of the time says
// nothing about the limit and changes nothing: an idle service does not drift.
// Unless more than half of what finished in it, in slots more than half of which
// were in use, came to nothing; see the cut below.
// Refusals are no samples. Failed work is not useful, so failing fast raises
// nothing. When more than half of what finishes, failed work aside, is late,
// abandoned or refused below, the limit is cut by three tenths, at most four times
// in a row; while nothing at all is good, down to Min.
//
// From a cold start it multiplies by 1.8 as long as throughput follows; when the
// backend suddenly became slower it remembers where it was, and when it becomes
// faster again within five minutes it goes back there.
//
// # Assumptions, and where it fails
//
// Jobs that are inside together slow each other down about alike, and the mix of
// work is much the same from one stretch to the next. To see that a tenth more
// concurrency buys nothing takes some hundred completions: below ten requests a
// second it needs minutes. Where the service is in this very process and burns
// the processor, concurrency means little: see the scheduler's latency in package
// signal. A backend that one slot alone overloads is not found with Min 2.
//
// It is meant to be alone before its backend. Where several share one, each sees
// what a slot more brings to itself, at the others' expense, and together they
// take far too many: give them fixed shares, or AIMD. Many requests of next to no
// work blur how the rest fares, and can cost a fifth of it: give them a gate of
// their own. Clients that leave on purpose, half of them and more, drag the limit
// down.
type Knee struct {
	cfg  KneeConfig
	at   float64 // ln of the limit that is believed best
	mode kneeMode

	gap   gap           // how sure
	arms  []arm         // the latest stretches, the last one under way
	high  bool          // it holds the upper limit
	shift shift         // looks for sudden changes
	yield yield         // of good answers
	climb climb         // the state of a climb
	mean  float64       // service time in the last window, seconds
	idle  time.Duration // since when the limit has not been in full use; 0 if it is
	mid   float64       // median service time, smoothed, seconds
}

type kneeMode uint8

const (
	climbing kneeMode = iota // measures what the last step up brought
	settling                 // lets a step up take effect
	tracking                 // compares
)

// NewKnee returns a Knee controller, or an error that names every field out of
// range.
func NewKnee(cfg KneeConfig) (*Knee, error) {
	def(&cfg.Initial, 20)
	def(&cfg.Min, 2)
	def(&cfg.Max, 10_000)
	var f faults
	f.check(cfg.Initial >= 1, "Initial %d: must be at least 1", cfg.Initial)
	f.checkBounds(cfg.Min, cfg.Max)
	if err := f.err("knee"); err != nil {
		return nil, err
	}
	k := &Knee{cfg: cfg, gap: newGap()}
	k.set(float64(cfg.Initial))
	return k, nil
}

// Name implements [Controller].
func (k *Knee) Name() string { return "knee" }

// Start implements [Controller].
func (k *Knee) Start() Decision { return k.decide("initial") }

// Save implements [Saver]. The limit is the middle of what is being tried.
func (k *Knee) Save() State { return State{Limit: math.Exp(k.at)} }

// Restore implements [Saver]: the limit is in force at once, and is judged from
// there. A limit that equals Initial has nothing learned in it.
func (k *Knee) Restore(s State) {
	if !(s.Limit >= 1) || math.Round(s.Limit) == float64(k.cfg.Initial) { // NaN too
		return
	}
	k.set(s.Limit)
	k.track()
	k.arms = k.arms[:0]
}

func (k *Knee) set(limit float64) {
	k.at = math.Log(min(max(limit, float64(k.cfg.Min)), float64(k.cfg.Max)))
}

// kneeSaturated is the share of a window that has to have had no slot free for
// the window to say anything.
const kneeSaturated = 0.6

// kneeUsed is the share of the slots that has to have been in use on the mean for
// work of no use to be a sign against the limit, saturated or not. Where most
// newcomers are refused because their answers would come too late, few wait, and
// some slot is free for much of the time, though the limit is far too high.
const kneeUsed = 0.5

// Update implements [Controller].
func (k *Knee) Update(w *Window) Decision {
	if len(k.arms) == 0 {
		k.arms = append(k.arms, arm{from: w.Now - w.Elapsed, at: k.at})
	}
	k.look(w)
	d := k.update(w)
	k.set(math.Exp(k.at))
	return d
}

func (k *Knee) update(w *Window) Decision {
	saturated := w.Saturation() >= kneeSaturated
	if !saturated && k.rested() && w.MeanInFlight >= kneeUsed*float64(w.Limit) {
		if reason := k.cut(w); reason != "" {
			k.restart(w.Now)
			if k.mode != tracking {
				k.track()
			}
			return k.decide(reason)
		}
	}
	if k.mode != tracking {
		return k.ascend(w, saturated)
	}
	if !saturated {
		k.pause(w.Now)
		return k.decide("not in full use")
	}
	k.idle = 0
	if reason := k.cut(w); reason != "" {
		return k.decide(reason)
	}
	if reason := k.shifted(w); reason != "" {
		return k.decide(reason)
	}
	return k.dither(w)
}

// rested reports whether a window that is not in full use teaches nothing but
// that the limit is too high.
func (k *Knee) rested() bool {
	return k.mode == tracking || k.mode == climbing && k.climb.rate == 0
}

// look takes down how long work takes, and in tracking credits it to its arms.
func (k *Knee) look(w *Window) {
	if w.Timed == 0 {
		return
	}
	k.mean = w.Mean().Seconds()
	if mid := w.Quantile(0.5).Seconds(); k.mid == 0 {
		k.mid = mid
	} else if mid > 0 {
		k.mid *= math.Pow(mid/k.mid, 0.3)
	}
	if k.mode == tracking {
		credit(k.arms, w.Samples, clipAt*k.mid)
	}
}

// track begins to compare, from the present limit on.
func (k *Knee) track() {
	k.mode = tracking
	k.gap.reopen()
	k.shift = shift{}
	k.climb = climb{}
}

// decide puts the state into a limit: the middle one, or one of the two that are
// being compared.
func (k *Knee) decide(reason string) Decision {
	limit := roundUp(k.at)
	if k.mode == tracking {
		low := roundUp(k.at - ditherBy)
		limit = low
		if k.high {
			limit = max(low+1, roundUp(k.at+ditherBy))
		}
	}
	return Decision{Limit: min(max(limit, k.cfg.Min), k.cfg.Max), Next: k.next(), Reason: reason}
}

func roundUp(u float64) int64 { return int64(math.Ceil(math.Exp(u) - 0.01)) }

// Windows last two service times, within bounds: below, there is nothing to
// count; above, changes would be seen late.
const (
	kneeWindow   = 2.0
	kneeShortest = 50 * time.Millisecond
	kneeLongest  = time.Second
)

func (k *Knee) next() time.Duration {
	if k.mode == settling {
		return clampDuration(settleFor*k.mean, kneeShortest/2, kneeLongest)
	}
	return clampDuration(kneeWindow*k.mean, kneeShortest, kneeLongest)
}

func clampDuration(seconds float64, low, high time.Duration) time.Duration {
	if seconds >= high.Seconds() {
		return high
	}
	return max(low, time.Duration(seconds*float64(time.Second)))
}
