package control

import (
	"math"
	"time"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
)

// KneeConfig configures [NewKnee]. The zero value is meant for everybody: there is no
// latency, no threshold and no size of the backend to configure.
type KneeConfig struct {
	// Initial is the first limit, clamped to Min and Max. It only matters until the
	// limit has been reached for the first time.
	Initial int64 `json:",omitempty" default:"20" min:"1"`
	// Min and Max bound the limit. With one slot the backend idles while an answer and
	// the next request are on their way.
	Min int64 `json:",omitempty" default:"2" min:"1"`
	Max int64 `json:",omitempty" default:"10000" max:"1073741824"`
}

// Knee finds the concurrency beyond which more concurrency buys no more throughput. It
// is weir's default. It needs no target latency, no baseline and no size of the backend.
// It goes by what finishes.
//
// # How it judges
//
// While work waits, Knee sets the limit in turn a little below and a little above its
// estimate. Each step lasts a few service times. Then Knee compares. By Little's law
// throughput is n/W. n is the mean concurrency over the life of the work admitted in a
// stretch. W is its mean service time. G is the share of answers that came in time. Then
//
//	e = 1 − d ln W / d ln n + d ln G / d ln n
//
// is the elasticity of useful throughput. Three stretches in a row make one comparison:
// the middle one against the mean of its neighbours, which cancels drift. Service times
// are cut off at four times the median. Otherwise one request of fifty times the work
// would drown the comparison. The slope is corrected for that. Work belongs to the
// stretch in which it was admitted, whenever it ends. A count of what ends in a stretch
// would mistake young work for fast work.
//
// The estimate then moves towards the point where e equals a price of 0.045. So slots
// that buy next to nothing are left out. How far is the gain of a Kalman filter. Its
// noise is measured by how much comparisons in a row disagree. Few completions move the
// limit little, a clear answer moves it at once.
//
// # When it does not judge
//
// If a slot was free for more than two fifths of a window, the window says nothing
// about the limit and changes nothing. So an idle service does not drift. The cut below
// is the exception, if more than half of the slots were in use.
//
// Refusals are no samples. Failed work is not useful, so failing fast raises nothing.
// The limit is cut by three tenths when more than half of what finishes is late,
// abandoned or refused by the backend. Failed work does not count here. There are at
// most four such cuts in a row. While nothing at all is good, it is cut down to Min.
//
// From a cold start the limit is multiplied by 1.8 as long as throughput follows. When
// the backend suddenly becomes slower, Knee remembers the limit for five minutes. It
// goes back there if the backend becomes faster again.
//
// # Assumptions, and where it fails
//
// Knee assumes that jobs in flight together slow each other down about alike. It also
// assumes that the mix of work is much the same from one stretch to the next. It takes
// some hundred completions to see that a tenth more concurrency buys nothing. Below ten
// requests a second, that is minutes. Where the service runs in this process and burns
// the processor, concurrency means little: see the scheduler's latency in package
// signal. A backend that one slot overloads is not found with Min 2.
//
// Knee should be alone before its backend. Where several share one, each sees what one
// more slot brings to itself, at the others' expense. Together they take far too many.
// Give them fixed shares, or AIMD. Many requests of next to no work blur how the rest
// does, and can cost a fifth of its throughput. Give them a gate of their own. If half
// of the clients leave on purpose, they drag the limit down.
type Knee struct {
	cfg  KneeConfig
	at   float64 // ln of the limit that is believed best
	mode kneeMode

	gap   gap           // how sure it is
	arms  []arm         // the latest stretches; the last one is under way
	high  bool          // the upper limit is in force
	shift shift         // finds sudden changes
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
	var f fault.List
	setting.Complete(&cfg, &f)
	checkBounds(&f, cfg.Min, cfg.Max)
	if err := f.Err("control: knee"); err != nil {
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

// kneeSaturated is the share of a window without a free slot from which the window
// counts.
const kneeSaturated = 0.6

// kneeUsed is a mean share of slots in use. From it on, useless work is a sign against
// the limit, even if the window is not saturated. Few wait where most newcomers are
// refused because they would be late. Then a slot is often free though the limit is
// far too high.
const kneeUsed = 0.5

// Update implements [Controller].
func (k *Knee) Update(w *Window) Decision {
	if len(k.arms) == 0 {
		k.arms = append(k.arms, arm{from: w.Now - w.Elapsed, at: k.at})
	}
	k.measure(w)
	counted := k.yield
	d := k.update(w)
	if d.Extend { // what has ended in the window comes again
		k.yield.good, k.yield.bad = counted.good, counted.bad
	}
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

// measure updates how long work takes, and credits samples to their arms.
func (k *Knee) measure(w *Window) {
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

// decide returns the limit to set: the estimate, or one of the two that are compared.
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

// Save implements [Saver]. The limit is the middle of what is being tried.
func (k *Knee) Save() State { return State{Limit: math.Exp(k.at)} }

// Restore implements [Saver]: the limit is in force at once, and comparisons start from
// there. A limit that equals Initial teaches nothing.
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

// climb is the way up from a limit that is far too low. It goes in steps, as long as
// throughput follows. Throughput is counted, not inferred. A step of four fifths shows in
// few completions. And the step lets in a wave of young work, which does not mislead a
// count.
type climb struct {
	rate  float64 // of good answers before the step, per second; 0 at the start
	count float64 // that it was counted from
	lnN   float64 // ln of the mean in flight before the step
	from  float64 // the limit before the step, in ln
	again int     // how often the verdict was postponed
	warm  bool    // all slots were in use when the first count began
	vain  int     // steps that nobody used
}

// The constants of a climb.
const (
	stepUp    = 0.6  // in ln
	settleFor = 1.2  // service times until a step takes effect
	worthIt   = 0.41 // the elasticity that a step has to show

	climbCount = 15          // completions to count
	climbLeast = 4           // with fewer there is nothing to compare
	climbWait  = time.Second // how long to wait for climbCount
	mostAgain  = 3           // how often an unsure verdict is postponed
	unsure     = 1.5         // standard deviations from worthIt
	mostVain   = 2           // steps that nobody used
)

// ascend is Update during a climb.
func (k *Knee) ascend(w *Window, saturated bool) Decision {
	switch {
	case k.mode == settling && saturated:
		k.mode = climbing
		return k.decide("waiting for a step up to take effect")
	case k.mode == settling:
		k.mode = climbing
		return k.decide("not in full use")
	case !saturated && k.climb.rate == 0:
		return k.decide("not in full use")
	}
	if k.climb.rate == 0 && !k.climb.warm {
		k.climb.warm, k.mode = true, settling
		return k.decide("counting")
	}
	if reason := k.cut(w); reason != "" {
		k.track()
		k.restart(w.Now)
		return k.decide(reason)
	}
	good := float64(w.OK)
	if good < climbLeast || good < climbCount && w.Elapsed < climbWait {
		return k.extend("counting")
	}
	rate, lnN := good/w.Elapsed.Seconds(), lnAtLeast1(w.MeanInFlight)
	if k.climb.rate > 0 {
		if d, done := k.judge(w, rate, lnN, saturated); done {
			return d
		}
	}
	k.climb = climb{rate: rate, count: good, lnN: lnN, from: k.at, warm: true, vain: k.climb.vain}
	k.at += stepUp
	k.mode = settling
	return k.decide("throughput follows: a step up")
}

// judge decides whether the last step was worth it. done is false if it was and
// there is another one to take.
func (k *Knee) judge(w *Window, rate, lnN float64, saturated bool) (d Decision, done bool) {
	c := &k.climb
	apart := lnN - c.lnN
	if apart < 0.1 { // the demand has gone: nothing learned
		k.at, c.rate = c.from, 0
		if c.vain++; c.vain > mostVain {
			k.endClimb(w.Now)
		}
		return k.decide("not in full use"), true
	}
	e := math.Log(max(rate, 1e-9)/c.rate) / apart
	scatter := math.Sqrt(1/max(1, float64(w.OK))+1/max(1, c.count)) / apart
	if saturated && c.again < mostAgain && math.Abs(e-worthIt) < unsure*scatter {
		c.again++
		return k.extend("counting"), true
	}
	switch {
	case e < worthIt, !saturated && e-scatter < worthIt:
		k.at = c.from + max(0, min(1, e))*(k.at-c.from)
		k.endClimb(w.Now)
		return k.decide(inWords(e) + ": high enough"), true
	case !saturated:
		k.endClimb(w.Now)
		return k.decide("not in full use: high enough"), true
	}
	return Decision{}, false
}

func (k *Knee) endClimb(now time.Duration) {
	k.track()
	k.restart(now)
}

// extend counts on in the next window.
func (k *Knee) extend(reason string) Decision {
	d := k.decide(reason)
	d.Extend = true
	return d
}

// yield counts what became of work, over enough of it to judge.
type yield struct {
	good, bad int64
	cuts      int  // in a row
	out       bool // nothing at all was good
}

// The constants of a cut.
const (
	cutCount = 8    // completions to judge by
	cutBy    = 0.35 // in ln
	mostCuts = 4    // in a row, while some work is good
)

// cut lowers the limit while most of what finishes is of no use. It returns why, or
// nothing if it does not cut. When good answers come again after none, a climb begins.
func (k *Knee) cut(w *Window) string {
	y := &k.yield
	y.good += w.OK
	y.bad += w.Dropped()
	total := y.good + y.bad
	if total < cutCount {
		return ""
	}
	good, bad := y.good, y.bad
	y.good, y.bad = 0, 0
	switch {
	case good > total*7/10:
		out := y.out
		y.cuts, y.out = 0, false
		if out && k.mode == tracking {
			k.mode, k.climb = climbing, climb{}
			return "good answers again"
		}
		return ""
	case good > 0 && (bad <= total/2 || y.cuts >= mostCuts):
		return ""
	}
	k.remember(w.Now)
	y.cuts++
	y.out = y.out || good == 0
	k.at -= cutBy
	k.gap.reopen()
	k.shift.broken()
	k.restart(w.Now)
	if good == 0 {
		return "nothing that finished was of use"
	}
	return "less than half of what finished was of use"
}

// shift finds sudden changes of the backend. By Little's law ln(n/W) is throughput. A
// shift is two windows in a row in which it is off its level on the same side.
type shift struct {
	level   [2]float64 // in the lower arm, in the upper one
	known   [2]bool
	streak  int // windows off the level in a row, below zero for slower
	before  float64
	beforeT time.Duration
}

// The constants of shifts.
const (
	offLevel   = 0.25            // what counts as off the level, besides the scatter
	levelGain  = 0.3             // how fast the level follows
	shiftCount = 8               // completions to judge by
	remembered = 5 * time.Minute // how long the limit before a shift is remembered
)

// shifted restarts the comparison after a sudden change, and returns what changed, or
// nothing. When the backend becomes faster again, the limit from before it became
// slower is the first guess.
func (k *Knee) shifted(w *Window) string {
	if len(w.Samples) < shiftCount {
		return ""
	}
	var one arm
	for _, s := range w.Samples {
		one.add(s, clipAt*k.mid)
	}
	if one.n < shiftCount {
		return ""
	}
	side := 0
	if k.high {
		side = 1
	}
	throughput := one.lnN/one.n - math.Log(one.cost/one.n)
	direction := k.shift.observe(side, throughput, math.Sqrt(k.gap.noise/one.n))
	if direction == 0 || direction > 0 && one.good < one.n/2 { // failing fast is no faster backend
		return ""
	}
	k.restart(w.Now)
	k.gap.reopen()
	if direction < 0 {
		k.remember(w.Now)
		return "the backend became slower"
	}
	if k.shift.before > k.at && w.Now-k.shift.beforeT < remembered {
		k.at = k.shift.before
	}
	k.shift.before = 0
	return "the backend became faster"
}

func (k *Knee) remember(now time.Duration) {
	if k.at >= k.shift.before || now-k.shift.beforeT >= remembered {
		k.shift.before, k.shift.beforeT = k.at, now
	}
}

// observe compares the next value of the lower arm (0) or the upper one (1) with its
// level. It reports a shift: -1 slower, +1 faster.
func (s *shift) observe(side int, value, scatter float64) int {
	if !s.known[side] {
		s.level[side], s.known[side] = value, true
	}
	off := value - s.level[side]
	switch {
	case math.Abs(off) <= offLevel+scatter:
		s.streak = 0
		s.level[side] += levelGain * off
	case off > 0:
		s.streak = max(0, s.streak) + 1
	default:
		s.streak = min(0, s.streak) - 1
	}
	if s.streak > -2 && s.streak < 2 {
		return 0
	}
	direction := s.streak / 2
	s.broken()
	s.level[side], s.known[side] = value, true
	return direction
}

// offset moves the levels with a change that is expected.
func (s *shift) offset(by float64) {
	s.level[0] += by
	s.level[1] += by
}

// broken forgets the levels: what comes next cannot be compared with them.
func (s *shift) broken() { s.known, s.streak = [2]bool{}, 0 }

// The constants of arms.
const (
	ditherBy   = 0.2 // their distance from the estimate, in ln
	armFor     = 6.0 // how long they last, in service times
	armAtLeast = 100 * time.Millisecond
	armAtMost  = 4 * time.Second
	armEnough  = 8 // completions
)

// dither ends the arm under way if it has lasted long enough. It learns from the three
// arms before it, because nearly all work admitted in those has ended.
func (k *Knee) dither(w *Window) Decision {
	last := &k.arms[len(k.arms)-1]
	lasted := w.Now - last.from
	long := clampDuration(armFor*k.mean, armAtLeast, armAtMost)
	if lasted < armAtMost && (last.n < armEnough || lasted < long) {
		return k.decide("comparing")
	}
	reason := "comparing"
	if n := len(k.arms); n >= 4 {
		a, b, c := &k.arms[n-4], &k.arms[n-3], &k.arms[n-2]
		if e, variance, ok := contrast(a, b, c); ok {
			// Measurements are true for the limit of their time.
			moved := k.at - (a.at+2*b.at+c.at)/4
			move := k.gap.learn(e-price-curvature*moved, variance)
			k.at += move
			k.shift.offset(move * min(max(e, 0), 1))
			reason = inWords(e)
		}
		copy(k.arms, k.arms[n-3:])
		k.arms = k.arms[:3]
	}
	k.arms[len(k.arms)-1].to = w.Now
	k.high = !k.high
	k.arms = append(k.arms, arm{from: w.Now, at: k.at})
	return k.decide(reason)
}

// pauseAtMost is how long the limit may not be in full use, in arms. After that all
// earlier arms are dropped, because the load is another one by then.
const pauseAtMost = 2

// pause drops the arm under way, because not all slots were in use. If that lasts,
// it drops all arms.
func (k *Knee) pause(now time.Duration) {
	k.shift.broken()
	last := len(k.arms) - 1
	if k.idle == 0 {
		k.idle = now
	}
	if now-k.idle > pauseAtMost*clampDuration(armFor*k.mean, armAtLeast, armAtMost) {
		k.restart(now)
		return
	}
	k.arms[last] = arm{from: now, at: k.at}
}

func (k *Knee) restart(now time.Duration) {
	k.arms = append(k.arms[:0], arm{from: now, at: k.at})
}
