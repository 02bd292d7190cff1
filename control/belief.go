package control

import (
	"cmp"
	"math"
	"time"

	"github.com/weir-go/weir/internal/fault"
	"github.com/weir-go/weir/internal/setting"
)

// BeliefConfig configures [NewBelief]. The zero value is meant for everybody: there is no
// latency, no threshold and no size of the backend to configure.
type BeliefConfig struct {
	// Initial is the first limit, clamped to Min and Max. It only matters until the
	// limit has been reached for the first time. Of more than 64, an eighth is in force at
	// first, but at least 64. What is let in too far takes long to end.
	Initial int64 `json:",omitempty" default:"20" min:"1"`
	// Min and Max bound the limit. With one slot the backend idles while an answer and
	// the next request are on their way.
	Min int64 `json:",omitempty" default:"2" min:"1"`
	Max int64 `json:",omitempty" default:"10000" max:"1073741824"`
}

// Belief finds the concurrency beyond which more concurrency buys no more useful
// throughput. It needs no target latency, no baseline and no size of the backend. It
// goes by what finishes, and by the time that failed work takes of its slots.
//
// # What it believes
//
// A law says how much slower work becomes, the more of it is inside. The
// shapes are a pool, one with a soft edge, contention, coherence, and cores that thrash. Each
// comes in 64 sizes, from 1 to 12,700. By Bayes' rule a law gains weight when it foretold how
// long work takes. It loses weight when it did not. What was seen fades slowly. So an answer
// that takes thousands of requests is found in the end.
//
// While work waits, the limit is held for four service times, from 0.1 to 4 s. This is a
// stretch. Where work takes seconds, a stretch lasts one and a half service times. What was
// admitted in it says one number to the laws: how fast work was at that concurrency.
// Service times are cut off at sixteen times the median, or at four times the mean if that is
// more. Work belongs to the stretch in which it was admitted, whenever it ends.
//
// # How it decides
//
// A limit n is worth ln X(n) − 0.045 ln n + ln G(n). X is throughput by the law. The second
// term leaves slots out that buy next to nothing. G is the share of answers in time. It is
// expected to change as far as work takes longer or shorter at n. So answers that are late
// whatever the limit pull it nowhere. Nobody waits for ever, so each per cent by which work takes longer
// than four times the usual costs 0.2 %. The limit is the one that is worth most in the mean of
// all that is believed.
//
// The next stretch may try another limit, if it tells enough for what it is expected to cost. So a
// limiter that is sure stays where it is. Where stretches are long, it swings a fifth up and
// down instead: many of those add up. Where they are short, and nothing was seen at half of the limit, half is tried for a
// moment. A law that was only seen at higher limits can be wrong about lower ones.
//
// # What changes
//
// Levels drift, sizes wander, and now and then jump. If two or three windows in a row are far
// from what all laws say, the backend has suddenly become slower or faster. Then the laws keep their
// shapes, and their levels become uncertain. What was believed before a slow-down is remembered for five
// minutes, and holds again when the backend suddenly becomes faster. A slow-down that ends by and by, or was chance,
// is forgotten.
//
// If a slot was free for more than two fifths of a window, the window changes nothing. So an
// idle service does not drift. Ten seconds of it, or forty service times, tell how fast work is with few
// inside. Where most of what ended was of no use, half of the slots in use are enough. If nothing ends for longer than work can take, the backend stands still, and
// what was inside meanwhile is not counted.
//
// The limit is cut by three tenths when more than half of what finishes is late, abandoned or
// refused by the backend. It is cut by more where work takes longer than usual. Work that is
// given up at its deadline leaves its slot, so a limit far too high may never be reached. Where
// few slots are in use, but short work takes clearly longer than usual, the cut begins at twice
// what is inside. Short is less than some 60 ms. The next cut comes a service time later at the
// earliest, because until then what ends is what the last one was for. From a cold
// start the limit is multiplied by 1.8 as long as throughput follows. The climb ends sooner if what
// was seen with few inside says that throughput will not follow.
//
// # Assumptions, and where it fails
//
// Belief assumes one law for all that is inside, of a shape that it knows. Two stages, locks
// and caches that warm up are none of these; then it learns slowly. Where work takes more than some 200 ms and nobody says
// what is late, a first limit several times too high may stay for minutes: set Initial. The mix of work should be much
// the same from one stretch to the next. Below ten requests a second it takes minutes to learn. A
// backend that changes in the middle of a climb looks like another law; at fifty requests a
// second that can take a minute to unlearn.
//
// It should be alone before its backend, as [Knee] should. Where the service runs in this process
// and burns the processor, concurrency means little: see the scheduler's latency in package signal.
type Belief struct {
	cfg  BeliefConfig
	at   float64 // ln of the limit that is believed best
	try  int64   // the limit in force, if it is another one; 0 if not
	mode kneeMode

	laws  posterior
	asOf  time.Duration // up to when laws have let time pass
	noise float64       // how many times as noisy stretches are as single jobs suggest
	raw   float64       // the variance of the last stretch, as single jobs suggest it
	calm  int           // stretches since the last sudden step of the level
	full  int           // stretches in a row with all slots in use

	up     bool          // the last swing was above the best limit
	landed time.Duration // when the last climb ended
	warm   bool          // laws.lowest is not of the first climb any more
	looked time.Duration // when half of the best limit was tried last; the end of a climb counts as one
	arms   [2]stretch    // the one under way, and the one before it
	ended  time.Duration // when the one before it ended
	origin outset        // what was seen with few inside
	late   lateness
	loss   float64 // ln of throughput that the limit lossAt is expected to lose
	lossAt int64
	change cusum
	before past

	yield   yield
	lastCut time.Duration
	climb   climb
	mean    float64       // service time in the last window, seconds
	long    float64       // the same of some hundred jobs
	pace    pace          // how fast work usually is
	mid     float64       // the median, smoothed
	idle    time.Duration // since when the limit has not been in full use; 0 if it is
	useless time.Duration // since when most of what ends is of no use; 0 if it is not
	begun   bool          // a window has ended
	proven  bool          // most of what ended was of use once, or laws were restored
	woke    time.Duration // when the process or the backend had last stood still; 0 if it never did
	still   time.Duration // since when nothing of what is inside has ended; 0 if something has
	stills  stills
	now     time.Duration // of the last window
	next    time.Duration // how long the window under way should last
	longer  bool          // it was extended
	carried int64         // what had ended in it by then

	turnover turnover // in the climb
}

// NewBelief returns a Belief controller, or an error that names every field out of
// range.
func NewBelief(cfg BeliefConfig) (*Belief, error) {
	var f fault.List
	setting.Complete(&cfg, &f)
	checkBounds(&f, cfg.Min, cfg.Max)
	if err := f.Err("control: belief"); err != nil {
		return nil, err
	}
	first := min(cfg.Initial, max(highFirst, cfg.Initial/firstShare))
	cfg.Initial = min(max(first, cfg.Min), cfg.Max)
	b := &Belief{cfg: cfg, noise: firstNoise, raw: gridVariance, calm: stepRest}
	b.laws.forget()
	b.set(math.Log(float64(cfg.Initial)))
	return b, nil
}

// Name implements [Controller].
func (b *Belief) Name() string { return "belief" }

// Start implements [Controller].
func (b *Belief) Start() Decision { return b.decide("initial") }

// Save implements [Saver].
func (b *Belief) Save() State {
	s := State{Limit: math.Exp(b.at)}
	if b.mode == tracking {
		o := b.laws.outline()
		s.Laws = o.String()
	}
	return s
}

// Restore implements [Saver]: the limit is in force at once. Without laws, a limit equal to that of a climb under way is
// ignored: the climb goes on. So it is with Initial at first.
func (b *Belief) Restore(s State) {
	var o outline
	known := o.parse(s.Laws)
	if !(s.Limit >= 1) || !known && b.mode != tracking && math.Round(s.Limit) == float64(b.limit()) { // NaN too
		return
	}
	b.set(math.Log(s.Limit))
	b.laws.forget()
	if known {
		b.laws.recall(&o)
	} else {
		b.around()
	}
	b.mode, b.try, b.proven = tracking, 0, b.proven || known
	b.yield, b.late, b.before = yield{}, lateness{}, past{}
	b.landed, b.looked, b.warm = b.now, b.now, false
	b.restart()
}

// Succeed implements [Successor].
func (b *Belief) Succeed(old Controller) bool {
	before, ok := inside(old).(*Belief)
	if !ok {
		return false
	}
	cfg := b.cfg
	*b = *before
	b.cfg = cfg
	b.set(b.at)
	return true
}

// checkpoint returns what brings back all that is known now, but for the stretches under way.
func (b *Belief) checkpoint() (undo func()) {
	before := *b
	return func() {
		now, next := b.now, b.next
		*b = before
		b.now, b.next, b.still = now, next, 0
		b.restart()
	}
}

func (b *Belief) set(at float64) {
	b.at = min(max(at, math.Log(float64(b.cfg.Min))), math.Log(float64(b.cfg.Max)))
}

// Update implements [Controller].
func (b *Belief) Update(w *Window) Decision {
	stood := b.begun && (w.Now < b.now || w.Now-b.now > 3*b.next+suspended)
	newest, carried := w.Elapsed, b.carried // of a window that was extended, what has come to it
	if b.longer {
		newest = w.Now - b.now
	}
	b.now, b.longer, b.carried = w.Now, false, 0
	if stood || !b.begun {
		b.begun = true
		b.restart()
		b.lastCut, b.before.when = min(b.lastCut, b.now), min(b.before.when, b.now) // the clock may have gone back
		b.landed, b.looked = b.now, b.now
	}
	if stood {
		b.woke, b.still, b.useless = b.now, 0, 0
		return b.decide("the process stood still: what was measured is dropped")
	}
	if b.resumed(w, newest, carried) {
		b.woke = b.now
	}
	if b.straddles(w) {
		b.restart()
		return b.decide("work has ended that was inside while the process or the backend stood still: what was measured is dropped")
	}
	counted, pace, long, mid, origin := b.yield, b.pace, b.long, b.mid, b.origin
	b.measure(w)
	d := b.update(w)
	if d.Extend { // what has ended in the window comes again
		b.longer, b.carried = true, ended(w)
		b.yield.good, b.yield.bad = counted.good, counted.bad
		b.pace, b.long, b.mid, b.origin = pace, long, mid, origin
	}
	if !d.Extend && b.still == 0 && b.mode != tracking {
		b.turnover.add(w, w.Elapsed, 1)
	}
	b.next = d.Next
	return d
}

func (b *Belief) update(w *Window) Decision {
	saturated := w.Saturation() >= kneeSaturated || b.mode == tracking && hopeless(w)
	if !saturated && b.rested() {
		if reason := b.cutUnfilled(w); reason != "" {
			return b.decide(reason)
		}
	}
	if !saturated {
		b.seeOrigin(w)
	} else if b.mode == tracking && b.idle > 0 {
		b.endIdle()
	}
	if b.mode != tracking {
		return b.ascend(w, saturated)
	}
	if !saturated {
		b.pause()
		return b.decide("not in full use")
	}
	b.idle = 0
	if reason := b.cut(w, b.at); reason != "" {
		return b.decide(reason)
	}
	if reason := b.shifted(w); reason != "" {
		return b.decide(reason)
	}
	return b.compare()
}

func (b *Belief) rested() bool {
	return b.mode == tracking || b.mode == climbing && b.climb.rate == 0
}

// measure updates how long work takes, and credits samples to their stretches.
func (b *Belief) measure(w *Window) {
	if w.Timed > 0 {
		b.mean = w.Mean().Seconds()
		if b.long == 0 {
			b.long = b.mean
		}
		b.long += (b.mean - b.long) * float64(w.Timed) / (float64(w.Timed) + meanKept)
		if w.OK < w.Dropped() {
			b.useless = cmp.Or(b.useless, b.now)
		} else {
			b.useless, b.proven = 0, true
			b.pace.add(b.mean, lnAtLeast1(w.MeanInFlight), w.Elapsed.Seconds())
		}
	}
	if w.Timed == 0 && !(w.MeanInFlight >= crowd) { // nobody says so any more
		b.useless = 0
	}
	// The window's own median, as far as it has samples: a point to cut off at that lags
	// would cut everything off when work becomes slower.
	if mid := w.Quantile(0.5).Seconds(); mid > 0 {
		trust := min(1, float64(len(w.Latencies))/16)
		if b.mid == 0 {
			b.mid = mid
		}
		b.mid *= math.Pow(mid/b.mid, trust)
	}
	if b.mode != tracking {
		return
	}
	now, last := &b.arms[0], &b.arms[1]
	for _, s := range w.Samples {
		switch {
		case s.Start >= now.from:
			now.add(s, b.clip())
		case s.Start >= last.from && s.Start < b.ended:
			last.add(s, b.clip())
		}
	}
}

// clip is where service times are cut off, in seconds.
func (b *Belief) clip() float64 { return max(cutAt*b.mid, cutAtMean*b.long) }

func (b *Belief) limit() int64 {
	limit := roundUp(b.at)
	if b.mode == tracking && b.try > 0 {
		limit = b.try
	}
	return min(max(limit, b.cfg.Min), b.cfg.Max)
}

func (b *Belief) decide(reason string) Decision {
	return Decision{Limit: b.limit(), Next: b.window(), Reason: reason, Estimate: b.estimate()}
}

// estimate is nothing during a climb, which goes by counts.
func (b *Belief) estimate() Estimate {
	if b.mode != tracking {
		return Estimate{}
	}
	if b.lossAt != b.limit() {
		b.weighLoss()
	}
	g := b.laws.gist()
	return Estimate{
		Shape: shapeNames[g.shape], Size: g.size, Best: math.Exp(b.at), Low: g.low, High: g.high,
		Loss: 1 - math.Exp(-min(mostLn, max(0, b.loss))),
	}
}

func (b *Belief) window() time.Duration {
	if b.mode == settling {
		return clampDuration(settleFor*b.mean, kneeShortest/2, kneeLongest)
	}
	next := clampDuration(kneeWindow*b.mean, kneeShortest, kneeLongest)
	if b.mode == tracking {
		if left := b.length() - (b.now - b.arms[0].from); left > next/4 && left < next*3/2 {
			next = left
		}
	}
	return max(next, time.Millisecond)
}

// length is how long a stretch lasts.
func (b *Belief) length() time.Duration {
	return clampDuration(stretchFor*b.mean, stretchAtLeast, clampDuration(stretchSees*b.long, stretchAtMost, longestSeen))
}

// hurry is 1 where stretches are short and 0 where they are long. A mistake costs in
// proportion to how long it lasts, so that short stretches may try more.
func (b *Belief) hurry() float64 {
	return min(1, max(0, (1.5-b.length().Seconds())/1.25))
}

// The constants of stretches.
const (
	stretchFor     = 4.0 // service times
	stretchAtLeast = 100 * time.Millisecond
	stretchAtMost  = 4 * time.Second
	patience       = 40 * time.Second // how long to wait for armEnough completions

	// A stretch is read when the next one ends. Of work that takes longer than both, only
	// the quick would be seen. So where work takes seconds, a stretch lasts stretchSees times as long.
	stretchSees = 1.5
	longestSeen = 24 * time.Hour

	// A limit far below the best one costs throughput while it is tried. So it is tried
	// for half as long, if enough has finished.
	farBelow    = 0.22 // in ln
	briefEnough = 40   // completions

	// lateLonger is how many times as long as work in time late work takes, on average, if it runs to its end. With exponential
	// times and half of them late it is 5.5. What is given up at a deadline takes about twice as long as what makes it.
	lateLonger = 3

	mostInside   = 1 << 30 // a concurrency that can be
	gridVariance = 8e-4    // of an observation, because the laws are on a grid

	// cutAt is where a service time is cut off, in medians. One request of fifty times the
	// work must not drown a stretch. Less would cut off more of work that waits little than
	// of work that waits long, which looks like a law that falls off.
	cutAt = 16
	// Where a part of the work waits and the rest does not, as before a lock, the median
	// says nothing about those that wait. To cut off all of them would hide that they do. So
	// nothing is cut off below cutAtMean times the mean of about meanKept jobs.
	cutAtMean = 4
	meanKept  = 300
)

// stretch is what was admitted in a stretch of time under one limit.
type stretch struct {
	from         time.Duration
	n            float64 // how much of it has finished and has not failed
	failed       float64 // how much has failed
	inside       float64 // sum of the mean concurrency over each life, of what has not failed
	cost, square float64 // sums of all service times, cut off, in seconds, and of their squares
	late         float64 // how much was of no use, besides what has failed
	lateCost     float64 // its part of cost
}

// add counts a sample. Failed work has used a slot in vain: its time is a cost of what has not failed. So
// transactions that fail because they meet speak for fewer, and failing fast speaks for nothing.
func (a *stretch) add(s Sample, clip float64) {
	if !(s.Concurrency > 0) || s.Concurrency > mostInside {
		return
	}
	cost := max(1e-9, s.Latency.Seconds())
	if clip > 0 {
		cost = min(cost, clip)
	}
	a.cost += cost
	a.square += cost * cost
	if s.Failed {
		a.failed++
		return
	}
	a.n++
	a.inside += s.Concurrency
	if !s.Good {
		a.late++
		a.lateCost += cost
	}
}

// cutShort reports whether most of the work was late, and yet did not take much longer than the rest. It failed fast, or was given
// up at its deadline. So its end says nothing about how fast the backend is. Late work that goes on to its end takes longer.
func (a *stretch) cutShort() bool {
	return a.late > a.n/2 && a.lateCost*(a.n-a.late) <= lateLonger*(a.cost-a.lateCost)*a.late
}

// useful is the stretch where late work counts as failed work does: its time is a cost of what was in time.
func (a *stretch) useful() stretch {
	u := *a
	u.n, u.failed, u.late, u.lateCost = a.n-a.late, a.failed+a.late, 0, 0
	u.inside *= u.n / a.n
	return u
}

// fade forgets a part.
func (a *stretch) fade(keep float64) {
	a.n *= keep
	a.failed *= keep
	a.inside *= keep
	a.cost *= keep
	a.square *= keep
	a.late *= keep
	a.lateCost *= keep
}

// seen returns ln of the concurrency and of the speed, and the variance of the latter
// as single jobs suggest it. The speed is how much has not failed in a second of a slot. Before each of these a
// geometrically distributed number has failed, and the variance is that of such sums.
func (a *stretch) seen() (lnN, speed, variance float64) { return a.seenBy(a.scatter()) }

func (a *stretch) seenBy(scatter float64) (lnN, speed, variance float64) {
	failed := a.failed / (a.n + a.failed)
	return math.Log(a.inside / a.n), math.Log(a.n / a.cost), ((1-failed)*scatter+failed)/a.n + gridVariance
}

// scatter is the variance of service times over the square of their mean: 0 if all are alike, 1 if they are exponential.
func (a *stretch) scatter() float64 {
	jobs := a.n + a.failed
	mean := a.cost / jobs
	return max(0, a.square/jobs-mean*mean) / (mean * mean)
}

// pass lets the time up to now pass.
func (b *Belief) pass() {
	b.laws.pass(max(0, (b.now - b.asOf).Seconds()))
	b.asOf = b.now
}

// around lets the laws lean towards the limit. Whoever set it had a reason: it is too low in one of
// twenty cases, or of ten where stretches are long. That it is too high is less of a surprise, because flat laws
// look alike. Where stretches are long it would take long to come back, so that belief is narrower there.
func (b *Belief) around() {
	below := 0.5 + 0.5*b.hurry()
	b.laws.lean(b.at, func(distance float64) float64 {
		if distance > 0 {
			return math.Exp(-1.5 - distance/0.25)
		}
		return math.Exp(distance / below)
	})
}

// restart drops all stretches.
func (b *Belief) restart() {
	b.arms = [2]stretch{{from: b.now}, {from: b.now}}
	b.ended = b.now
	b.full = 0
}

// pause drops the stretch under way, because not all slots were in use.
func (b *Belief) pause() {
	b.change.reset()
	b.full = 0
	b.try = 0
	if b.idle == 0 {
		b.idle = b.now
	}
	if b.now-b.idle > pauseAtMost*b.length() {
		b.restart()
		return
	}
	b.arms[0] = stretch{from: b.now}
}

// compare ends the stretch under way if it has lasted long enough. It learns from the one
// before it, because nearly all work admitted in that has ended.
func (b *Belief) compare() Decision {
	a := &b.arms[0]
	lasted := b.now - a.from
	brief := b.try > 0 && math.Log(float64(b.try)) < b.at-farBelow && a.n >= briefEnough && lasted >= b.length()/2
	if lasted < b.length()-time.Millisecond && !brief || a.n < armEnough && lasted < patience {
		return b.decide("comparing")
	}
	if a.n < minArm {
		b.restart()
		return b.decide("too little has finished to compare")
	}
	if b.arms[1].n >= minArm {
		b.learn(&b.arms[1])
	}
	b.full++
	b.choose(true, math.Inf(-1), math.Inf(1))
	b.arms[1] = b.arms[0]
	b.ended = b.now
	b.arms[0] = stretch{from: b.now}
	g := b.laws.gist()
	return b.decide(g.inWords())
}

// learn believes what a stretch says.
func (b *Belief) learn(a *stretch) {
	lnN, speed, variance := a.seen()
	if expected, _ := b.laws.speed(lnN); speed > expected && a.cutShort() {
		useful := a.useful()
		if useful.n < minArm {
			return
		}
		lnN, speed, variance = useful.seen()
	}
	b.pass()
	lasted := b.length().Seconds()
	b.laws.wander(wanderFor*lasted*b.noise*variance, min(jumpMost, lasted/jumpEvery))
	excess, stepped := b.laws.observe(lnN, speed, b.noise*variance, b.calm >= stepRest)
	b.raw = variance
	if stepped {
		b.calm = 0
	} else {
		b.calm++
		b.noise = max(1, b.noise+0.1*(min(mostNoise, excess/variance)-b.noise))
	}
	b.late.add(a, lnN)
	b.before.review(b)
}

// What may have changed from one stretch to the next.
const (
	// wanderFor is the variance by which ln K wanders in a second, as a part of that of an observation. So what is
	// known fades as fast as it comes. Where a stretch tells much, K is held more exactly. Where it tells little, chance
	// looks like a law for long, and has to be forgotten too.
	wanderFor = 0.6
	jumpEvery = 300.0 // seconds from one jump of K to the next. A pool that grows is found by this alone: it never becomes slower
	jumpMost  = 0.01  // the odds of a jump in one stretch, however long it lasts: all that is learned of K takes dozens
	stepRest  = 6     // stretches between two sudden steps of the level, or no law would ever be refuted
)

// lateness is which part of the answers was of no use, and at which concurrency.
type lateness struct {
	n, bad, lnN float64 // lnN is a sum
}

// The constants of lateness.
const (
	lateKept  = 0.7  // of what was seen before, after each stretch: three stretches count
	lateDoubt = 15   // answers in time that are assumed besides: of fifteen little can be said
	mostLate  = 0.95 // the share that is counted with: where all is late, a cut comes first
)

func (l *lateness) add(a *stretch, lnN float64) {
	l.n = l.n*lateKept + a.n
	l.bad = l.bad*lateKept + a.late
	l.lnN = l.lnN*lateKept + a.n*lnN
}

func (l *lateness) share() float64 { return min(mostLate, l.bad/(l.n+lateDoubt)) }

// atLeast raises the share, after a cut: what it was cut for is not in any stretch yet.
func (l *lateness) atLeast(share, lnN float64) {
	if l.share() < share {
		const n = 100 - lateDoubt
		*l = lateness{n: n, bad: 100 * share, lnN: n * lnN}
	}
}

// learnAll believes what is known of the stretches under way, before they are dropped.
func (b *Belief) learnAll() {
	if b.mode != tracking {
		return
	}
	for i := len(b.arms) - 1; i >= 0; i-- {
		if a := &b.arms[i]; a.n >= minArm && (b.now-a.from).Seconds() >= 2*b.mean {
			b.learn(a)
		}
	}
}
