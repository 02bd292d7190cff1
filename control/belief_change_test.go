package control

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// counting brings a climb to where it counts, in full use, and returns when that was.
func counting(t *testing.T, c Controller) (now time.Duration) {
	t.Helper()
	for range 2 { // all slots are in use, and that has taken effect
		now += 100 * ms
		if d := c.Update(inUse(now, 100*ms, 20, 0)); d.Extend {
			t.Fatalf("%+v", d)
		}
	}
	return now
}

// inUse is a window in full use, in which so much was answered in time and so much was not.
func inUse(now, elapsed time.Duration, good, bad int64) *Window {
	n := good + bad
	return &Window{Now: now, Elapsed: elapsed, Limit: 20, InFlight: 20, MeanInFlight: 20, Saturated: elapsed,
		OK: good, Abandoned: bad, Timed: n, LatencySum: time.Duration(n) * 20 * ms, Latencies: []time.Duration{20 * ms}}
}

// A window that is extended has all that ended in it before. Two clients that leave are no eight.
func TestExtendedWindowsCountOnce(t *testing.T) {
	knee, err := NewKnee(KneeConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []learner{knee, newBelief(t, BeliefConfig{})} {
		begun := counting(t, c)
		for i := range 8 {
			elapsed := time.Duration(i+1) * 100 * ms
			if d := c.Update(inUse(begun+elapsed, elapsed, 0, 2)); d.Limit != 20 || !d.Extend {
				t.Errorf("%s, window %d: %+v", c.Name(), i, d)
			}
		}
		if d := c.Update(inUse(begun+900*ms, 900*ms, 0, 8)); d.Limit >= 20 || d.Extend {
			t.Errorf("%s, eight of eight: %+v", c.Name(), d)
		}
	}
}

// What is usual is a mean over time, to which a window that is extended adds nothing.
func TestExtendedWindowsAreNoTime(t *testing.T) {
	b := newBelief(t, BeliefConfig{})
	begun := counting(t, b)
	for i := range 5 {
		elapsed := time.Duration(i+1) * 100 * ms
		if d := b.Update(inUse(begun+elapsed, elapsed, 2, 0)); !d.Extend {
			t.Fatalf("window %d: %+v", i, d)
		}
	}
	if got := b.pace.seconds; got > begun.Seconds()+1e-9 {
		t.Errorf("%v s count, of %v before", got, begun)
	}
}

// What was admitted while slots were free is part of no stretch, although it ends in one.
func TestBeliefDropsWhatWasAdmittedInAPause(t *testing.T) {
	b := newBelief(t, BeliefConfig{})
	b.Restore(State{Limit: 30})
	now := time.Duration(0)
	window := func(saturated bool, admitted time.Duration) {
		now += 100 * ms
		w := inUse(now, 100*ms, 20, 0)
		if !saturated {
			w.Saturated, w.MeanInFlight = 0, 8
		}
		for range 20 {
			w.Samples = append(w.Samples, Sample{Start: admitted, Latency: 20 * ms, Concurrency: w.MeanInFlight, Good: true})
		}
		b.Update(w)
	}
	for range 6 {
		window(true, now+50*ms)
	}
	n := b.arms[1].n
	if n < minArm || b.full == 0 {
		t.Fatalf("no stretch has ended: %+v", b.arms)
	}
	paused := now + 50*ms
	window(false, paused)
	window(true, paused)
	if got := b.arms[1].n; got != n {
		t.Errorf("%v jobs of the last stretch, %v before the pause", got, n)
	}
}

// While nearly all failed with few inside, nothing was learned of how fast work is alone.
func TestBeliefTakesAnOutageForNoOrigin(t *testing.T) {
	const places = 30
	g := worldOf(newBelief(t, BeliefConfig{}), places)
	before := g.run(20 * time.Second)
	g.demand, g.fails = 4, func(g *world) bool { return true }
	g.run(10 * time.Minute)
	g.fails = nil
	g.run(200 * ms) // a few succeed, and all come back
	g.demand = 0
	highest := int64(0)
	g.decided = func(d Decision) { highest = max(highest, d.Limit) }
	if after := g.run(20 * time.Second); after < before/1.5 || highest > 2*places {
		t.Errorf("%.1f slots after an outage, at most %d; before it %.1f", after, highest, before)
	}
}

// What is cut short ends sooner than expected, and that is no faster backend.
func TestBeliefTakesWhatIsCutShortForNoChange(t *testing.T) {
	g := worldOf(newBelief(t, BeliefConfig{}), 0)
	g.serve = pooled(30, 20*ms)
	g.run(20 * time.Second)
	b := g.k.(*Belief)
	for _, tt := range []struct {
		took   time.Duration // what is late, where the rest takes a millisecond
		faster bool
	}{{2 * ms, false}, {9 * ms, true}} {
		w := late(g.now, b.limit(), tt.took)
		for range 5 {
			w.Samples = append(w.Samples, Sample{Start: g.now - ms, Latency: ms, Concurrency: float64(b.limit()), Good: true})
		}
		b.now, b.arms[0].from = g.now, g.now-b.length()
		b.change.faster = 1
		if b.shifted(w); b.change.faster > 0 != tt.faster {
			t.Errorf("late after %v: %.1f nats for a faster backend", tt.took, b.change.faster)
		}
	}
}

// A limiter that is restored, or comes back from an outage, may meet cold caches.
func TestBeliefRestsBeforeALook(t *testing.T) {
	g := worldOf(newBelief(t, BeliefConfig{}), 0)
	g.serve = pooled(30, 20*ms)
	g.run(time.Minute)
	b := g.k.(*Belief)
	if !b.warm || b.looked == b.landed {
		t.Fatalf("warm %v, landed at %v and looked at %v", b.warm, b.landed, b.looked)
	}
	if b.Restore(State{Limit: 40}); b.warm || b.landed != b.now || b.looked != b.now {
		t.Errorf("restored at %v: warm %v, landed at %v and looked at %v", b.now, b.warm, b.landed, b.looked)
	}
}

// What was before a slow-down is remembered as long as work is slow. One that has ended, or was none, is forgotten.
func TestBeliefForgetsASlowDownThatHasEnded(t *testing.T) {
	g := worldOf(newBelief(t, BeliefConfig{}), 0)
	g.serve = pooled(30, 20*ms)
	g.run(20 * time.Second)
	b := g.k.(*Belief)
	b.set(b.at + 1)
	b.before.keep(b) // a false alarm
	b.set(b.at - 1)
	if b.before.at == 0 {
		t.Fatal("nothing is remembered")
	}
	if g.run(2 * time.Second); b.before.at != 0 {
		t.Errorf("%.0f slots are remembered, and work is as fast as ever", math.Exp(b.before.at))
	}
	g.serve = pooled(30, 80*ms)
	if g.run(20 * time.Second); b.before.at == 0 {
		t.Error("nothing is remembered while work is slow")
	}
	g.serve = pooled(30, 20*ms)
	if g.run(4 * time.Second); b.before.at != 0 {
		t.Errorf("%.0f slots are remembered after the slow-down", math.Exp(b.before.at))
	}
}

// Where workers go one by one, the laws know how slow work is when the cuts come. It is slow all the same, and the limit of before
// stays remembered while most is in time.
func TestBeliefRemembersThroughCuts(t *testing.T) {
	g := worldOf(newBelief(t, BeliefConfig{}), 0)
	g.good = func(life time.Duration) bool { return life < 45*ms }
	g.serve = pooled(30, 20*ms)
	g.run(20 * time.Second)
	b := g.k.(*Belief)
	cuts := 0
	g.decided = func(d Decision) {
		if d.Reason == "less than half of what finished was of use" {
			cuts++
		}
	}
	for left := 29; left >= 6; left-- {
		g.serve = pooled(left, 20*ms)
		g.run(time.Second)
	}
	g.run(10 * time.Second)
	if cuts == 0 || math.Exp(b.before.at) < 25 {
		t.Errorf("%d cuts, %.0f slots, %.0f remembered, and thirty workers had needed as many", cuts, math.Exp(b.at), math.Exp(b.before.at))
	}
}

// A cut after an alarm remembers the speed of before both, though the laws know by then how slow work is.
func TestBeliefRemembersTheSpeedOfBefore(t *testing.T) {
	b := newBelief(t, BeliefConfig{})
	b.before.keep(b)
	speed := b.before.speed
	for i := range b.laws.level {
		b.laws.level[i]--
	}
	b.now = time.Minute
	if b.before.keep(b); b.before.speed != speed || b.before.when != b.now {
		t.Errorf("a speed of %.2f after a minute, %.2f before", b.before.speed, speed)
	}
	b.now += remembered
	if b.before.keep(b); b.before.speed > speed-0.9 {
		t.Errorf("a speed of %.2f is remembered for ever", b.before.speed)
	}
}

// A limit set by hand holds, also if it is the one with which everything began.
func TestBeliefRestoresTheFirstLimit(t *testing.T) {
	for _, after := range []time.Duration{200 * ms, 20 * time.Second} {
		g := worldOf(newBelief(t, BeliefConfig{}), 200)
		g.run(after)
		if g.d.Limit <= 20 {
			t.Fatalf("after %v: %+v", after, g.d)
		}
		g.k.Restore(State{Limit: 20})
		if d := g.k.Start(); d.Limit != 20 {
			t.Errorf("after %v: %+v, want 20", after, d)
		}
	}
}

// A gate looks at its clock a moment before it closes the window. What begins in between does not
// come from a clock that has gone back.
func TestBeliefAfterASuspensionGoesOn(t *testing.T) {
	for lead, counts := range map[time.Duration]bool{0: true, ms: true, time.Second: false} {
		g := worldOf(newBelief(t, BeliefConfig{}), 30)
		g.run(5 * time.Second)
		b := g.k.(*Belief)
		g.now += time.Minute
		g.window()
		now := b.now + 100*ms
		w := inUse(now, 100*ms, 1, 0)
		w.Samples = []Sample{{Start: now + lead, Latency: ms, Concurrency: 20, Good: true}}
		if d := b.Update(w); strings.Contains(d.Reason, "stood still") == counts {
			t.Errorf("begun %v after the window: %+v", lead, d)
		}
	}
}

// Bounds that change in the middle of a climb hold when it goes back.
func TestBeliefGoesBackWithinBounds(t *testing.T) {
	b := newBelief(t, BeliefConfig{})
	now := counting(t, b)
	now += 100 * ms
	b.Update(inUse(now, 100*ms, 100, 0))
	next := newBelief(t, BeliefConfig{Max: 10})
	if next.Succeed(b); next.mode == tracking || math.Exp(next.climb.from) < 19 {
		t.Fatalf("no climb: %+v", next.climb)
	}
	for range 2 {
		now += 100 * ms
		w := inUse(now, 100*ms, 100, 0)
		w.MeanInFlight = 2
		next.Update(w)
	}
	if got := next.Save().Limit; got > 10.001 {
		t.Errorf("%v slots, above the bound of 10", got)
	}
}

// Counts that cannot be do not stick.
func TestBeliefOutlivesImpossibleCounts(t *testing.T) {
	for _, n := range []int64{math.MaxInt64, -1000, math.MinInt64 / 2} {
		b := newBelief(t, BeliefConfig{})
		b.Restore(State{Limit: 100})
		now := time.Second
		w := inUse(now, 100*ms, 0, 0)
		w.OK, w.Abandoned = n, n
		b.Update(w)
		for range 8 {
			now += 500 * ms
			b.Update(late(now, b.limit(), 20*ms))
		}
		if got := b.limit(); got > 20 {
			t.Errorf("%d slots after a count of %d, where nothing is of use", got, n)
		}
	}
}

// While the process stands still nothing is learned, whichever way its clock jumps.
func TestBeliefOutlivesASuspension(t *testing.T) {
	for _, jump := range []time.Duration{time.Minute, -time.Minute, 100 * time.Hour} {
		g := worldOf(newBelief(t, BeliefConfig{}), 30)
		before := g.run(30 * time.Second)
		b := g.k.(*Belief)
		laws := b.laws
		now := g.now + g.d.Next + jump
		d := b.Update(&Window{Now: now, Elapsed: max(0, jump), Limit: g.d.Limit, MeanInFlight: 30, Saturated: max(0, jump), Abandoned: 1000, Timed: 1000,
			LatencySum: 1000 * time.Minute, Latencies: []time.Duration{time.Minute},
			Samples: []Sample{{Start: now - time.Minute, Latency: time.Minute, Concurrency: 30}}})
		if !strings.Contains(d.Reason, "stood still") || b.laws != laws {
			t.Errorf("after %v: %+v", jump, d)
		}
		if after := b.Save().Limit; math.Abs(math.Log(after/before)) > 0.3 {
			t.Errorf("after %v: %v, before %v", jump, after, before)
		}
		// What was inside meanwhile ends in the windows after it too, and what was admitted later counts again.
		mean := b.mean
		for i, admitted := range []time.Duration{g.now, now + ms} {
			now += 100 * ms
			d := b.Update(&Window{Now: now, Elapsed: 100 * ms, Limit: g.d.Limit, MeanInFlight: 30, Saturated: 100 * ms, OK: 1, Timed: 1, LatencySum: time.Minute,
				Latencies: []time.Duration{time.Minute}, Samples: []Sample{{Start: admitted, Latency: time.Minute, Concurrency: 30}}})
			if counts := i == 1; strings.Contains(d.Reason, "stood still") == counts || (b.mean != mean) != counts {
				t.Errorf("window %d after %v: %+v, a mean of %v, before %v", i, jump, d, b.mean, mean)
			}
		}
	}
}

// A process that is suspended for a minute in the middle of a climb goes on with it.
func TestBeliefOutlivesASuspendedClimb(t *testing.T) {
	g := worldOf(newBelief(t, BeliefConfig{}), 200)
	g.run(200 * ms)
	if g.k.(*Belief).mode == tracking {
		t.Fatal("the climb is over already")
	}
	g.now += time.Minute // what was inside ended meanwhile, and is told at once
	if got := g.run(60*time.Second) / 200; got < 0.85 || got > 1.6 {
		t.Errorf("%.2f times as many as there are places", got)
	}
}

// Work becomes so long that most of it is late at any limit. That cuts the limit, and yet it is not
// forgotten that the places are as many as before.
func TestBeliefComesBackFromCuts(t *testing.T) {
	const places = 54
	g := worldOf(newBelief(t, BeliefConfig{}), places)
	queue, mean := queueOf(places), 100*ms
	g.serve = func(g *world) time.Duration {
		return queue(g.now, time.Duration(g.random.ExpFloat64()*float64(mean)))
	}
	g.good = func(life time.Duration) bool { return life <= 260*ms }
	g.run(40 * time.Second)
	mean *= 4
	cuts := 0
	g.decided = func(d Decision) {
		if strings.HasPrefix(d.Reason, "less than half") {
			cuts++
		}
	}
	g.run(30 * time.Second)
	if cuts < 2 {
		t.Fatalf("%d cuts", cuts)
	}
	if got := g.run(30 * time.Second); got < 0.7*places {
		t.Errorf("%.1f slots for %d places, after %d cuts", got, places, cuts)
	}
}

// late is a window of a second in which work ends that took so long, and is of no use.
func late(now time.Duration, limit int64, took time.Duration) *Window {
	w := &Window{Now: now, Elapsed: time.Second, Limit: limit, MeanInFlight: float64(limit), InFlight: limit, Saturated: time.Second}
	for range 20 {
		w.Abandoned++
		w.Timed++
		w.LatencySum += took
		w.Latencies = append(w.Latencies, took)
		w.Samples = append(w.Samples, Sample{Start: now - took, Latency: took, Concurrency: float64(limit)})
	}
	return w
}

// What was admitted before a cut goes on ending long after it. It is no reason for the next.
func TestBeliefCutsOnceForWhatWasInside(t *testing.T) {
	b := newBelief(t, BeliefConfig{})
	b.Restore(State{Limit: 100})
	cuts := map[int]bool{}
	for second := 1; second <= 25; second++ {
		before := b.at
		b.Update(late(time.Duration(second)*time.Second, b.limit(), 10*time.Second))
		if b.at < before {
			cuts[second] = true
		}
	}
	if want := map[int]bool{1: true, 11: true, 21: true}; !maps.Equal(cuts, want) {
		t.Errorf("cuts after %v seconds, want %v", cuts, want)
	}
	// A clock that goes back does not put the next one off.
	limit := b.limit()
	for second := range 12 {
		b.Update(late(time.Duration(second)*time.Second, b.limit(), time.Second))
	}
	if now := b.limit(); float64(now) > 0.5*float64(limit) {
		t.Errorf("%d slots after the clock went back, %d before", now, limit)
	}
}

// A step up after which nothing is of use was too far. It is not an outage, after which a climb
// would begin anew, and where it led is not what was best before.
func TestBeliefStepsTooFar(t *testing.T) {
	places := queueOf(4)
	g := worldOf(newBelief(t, BeliefConfig{}), 0)
	g.serve = func(g *world) time.Duration { return places(g.now, g.around(20*ms)) }
	g.good = func(life time.Duration) bool { return life < 130*ms } // 20 inside take 100 ms
	climbs := 0
	g.decided = func(d Decision) {
		if d.Reason == "good answers again" {
			climbs++
		}
	}
	b := g.k.(*Belief)
	for b.mode != tracking {
		g.window()
	}
	if b.before.at != 0 {
		t.Errorf("after the climb %.0f slots are remembered", math.Exp(b.before.at))
	}
	if got := g.run(20 * time.Second); climbs > 0 || got > 22 {
		t.Errorf("%d more climbs, %.1f slots", climbs, got)
	}
}

// A clock that jumps makes work take an hour, or less than no time. The limit neither
// collapses nor leaves for good.
func TestBeliefAndAClockThatJumps(t *testing.T) {
	const places = 30
	j := &jumping{Belief: newBelief(t, BeliefConfig{})}
	g := worldOf(j, places)
	g.run(20 * time.Second)
	g.decided = func(d Decision) {
		if d.Limit < places/3 || d.Limit > 4*places || d.Estimate != (Estimate{}) && !sensible(d.Estimate) {
			t.Fatalf("%v after a jump to %v: %+v", g.now-j.at, j.ahead, d)
		}
	}
	for i := range 40 {
		j.jump(g.now, []time.Duration{time.Hour, 0, -time.Hour, 0, time.Second, 0}[i%6])
		for g.now < j.at+3*time.Second {
			g.window()
		}
	}
	// It goes on learning by a clock that is behind.
	j.jump(g.now, -time.Hour)
	g.resize(2 * places)
	g.decided = nil
	if got := g.run(2 * time.Minute); got < 1.4*places || got > 3.2*places {
		t.Errorf("%.1f slots for %d places", got, 2*places)
	}
}

// jumping is a belief whose clock is ahead since a moment. What was inside then began by the
// clock as it was, and ends by the clock as it is.
type jumping struct {
	*Belief
	at, ahead, before time.Duration
}

func (j *jumping) jump(at, ahead time.Duration) { j.at, j.before, j.ahead = at, j.ahead, ahead }

func (j *jumping) Update(w *Window) Decision {
	seen := *w
	seen.Now += j.ahead
	seen.Samples = slices.Clone(w.Samples)
	for i := range seen.Samples {
		s := &seen.Samples[i]
		if s.Start >= j.at {
			s.Start += j.ahead
			continue
		}
		s.Start += j.before
		s.Latency += j.ahead - j.before
	}
	return j.Belief.Update(&seen)
}

// Where work makes other work fail, two at a time get most done, and of a hundred nothing succeeds. The
// limit comes down from wherever it begins, and does not go back up there.
func TestBeliefWhereWorkSpoilsOther(t *testing.T) {
	for _, first := range []int64{4, 20, 128, 1000} {
		g := worldOf(newBelief(t, BeliefConfig{Initial: first}), 30)
		g.fails = func(g *world) bool { return g.random.Float64() > math.Pow(0.65, float64(len(g.inside))) }
		g.run(20 * time.Second)
		good, all := int64(0), time.Duration(0)
		g.decided = func(d Decision) { all, good = all+g.w.Elapsed, good+g.w.OK }
		got := g.run(40 * time.Second)
		if rate := float64(good) / all.Seconds(); got > 5 || rate < 0.8*65 {
			t.Errorf("from %d: %.1f slots, %.0f answers a second; with two it would be 65", first, got, rate)
		}
	}
}

// Failing that has nothing to do with the limit leaves it where it was, or brings it back there.
func TestBeliefOutlivesFailing(t *testing.T) {
	const places = 30
	for name, fails := range map[string]func(*world) bool{
		"six of ten, for good":   func(g *world) bool { return g.random.IntN(10) < 6 && g.now > 20*time.Second },
		"all, for five seconds":  func(g *world) bool { return g.now > 20*time.Second && g.now < 25*time.Second },
		"half, for five seconds": func(g *world) bool { return g.random.IntN(2) == 0 && g.now > 20*time.Second && g.now < 25*time.Second },
	} {
		g := worldOf(newBelief(t, BeliefConfig{}), places)
		g.fails = fails
		g.run(30 * time.Second)
		if got := g.run(40 * time.Second); got < 0.85*places || got > 1.6*places {
			t.Errorf("%s: %.1f slots for %d places", name, got, places)
		}
	}
}

// Chance brings as many false alarms as there are windows. So where windows are short, it takes more of them.
func TestAlarmsAreAsRareWhereWindowsAreShort(t *testing.T) {
	for seconds, want := range map[float64]int{0.05: 3, 0.1: 3, 0.5: 2, 1: 2, 1.5: 2} {
		for _, side := range []int{-1, 1} {
			var c cusum
			windows, got := 0, 0
			for ; got == 0 && windows < 100; windows++ {
				got = c.add(float64(side)*math.Ln2, 0.01, seconds)
			}
			if windows != want || got != side {
				t.Errorf("windows of %v s: %d after %d of them, want %d after %d", seconds, got, windows, side, want)
			}
		}
	}
	var c cusum
	for _, seconds := range []float64{0, -1, math.NaN()} {
		if got := c.add(-math.Ln2, 0.01, seconds); got != 0 {
			t.Errorf("a window of %v s: %d", seconds, got)
		}
	}
}

// A cut goes as far as work is slower than usual, within bounds.
func TestBeliefCutsAsFarAsWorkIsSlower(t *testing.T) {
	for took, want := range map[time.Duration]float64{
		10 * ms:   40 * math.Exp(-cutBy),
		20 * ms:   40 * math.Exp(-cutBy),
		25 * ms:   40 * math.Exp(-cutBy),
		32 * ms:   40 * 20. / 32,
		200 * ms:  40 * 0.55,
		time.Hour: 40 * 0.55,
	} {
		b := newBelief(t, BeliefConfig{})
		b.Restore(State{Limit: 40})
		now := time.Duration(0)
		for range 20 { // twenty milliseconds are usual
			now += 100 * ms
			b.Update(inUse(now, 100*ms, 20, 0))
		}
		b.set(math.Log(40))
		b.try = 0
		few := *b
		if d := b.Update(late(now+100*ms, b.limit(), took)); math.Abs(float64(d.Limit)-want) > 1 {
			t.Errorf("work of %v instead of 20 ms: a cut from 40 to %d, want %.1f", took, d.Limit, want)
		}
		w := late(now+100*ms, few.limit(), took)
		w.Timed, w.LatencySum = 1, took // how long one takes says little
		if d := few.Update(w); math.Abs(float64(d.Limit)-40*math.Exp(-cutBy)) > 1 {
			t.Errorf("one that took %v: a cut from 40 to %d", took, d.Limit)
		}
	}
}

// Of fifty workers five are left, and nobody says what is late. Throughput is the same with ten inside and with a hundred, so
// it does not say what to do. Those who wait do. That a few leave for reasons of their own changes nothing.
func TestBeliefPresumesThatClientsDoNotWaitForEver(t *testing.T) {
	for name, tt := range map[string]struct {
		demand int64
		leave  float64 // the odds
		within time.Duration
	}{
		"found in full use":          {0, 0, 20 * time.Second},
		"found while slots are free": {45, 0, 20 * time.Second},
		"three in a thousand leave":  {0, 0.003, 60 * time.Second},
	} {
		for seed := range uint64(4) {
			g := worldOf(newBelief(t, BeliefConfig{}), 50)
			g.random = rand.New(rand.NewPCG(seed, 0))
			g.demand = tt.demand
			g.good = func(time.Duration) bool { return g.random.Float64() >= tt.leave }
			g.run(30 * time.Second)
			g.resize(5)
			g.demand = 0
			slower := false
			g.decided = func(d Decision) { slower = slower || d.Reason == "the backend became slower" }
			g.run(tt.within)
			if got := g.run(20 * time.Second); got > 25 || tt.demand > 0 && !slower {
				t.Errorf("%s, seed %d: %.1f inside for five workers; found to be slower: %v", name, seed, got, slower)
			}
		}
	}
}

// Costly work ends at a low rate for what is inside. That is no slow-down, which would end a climb.
func TestBeliefTakesCostlyWorkForNoSlowDown(t *testing.T) {
	b := newBelief(t, BeliefConfig{Initial: 64})
	now := time.Duration(0)
	window := func(inside float64, saturated bool) Decision {
		now += 100 * ms
		w := &Window{Now: now, Elapsed: 100 * ms, Limit: b.limit(), MeanInFlight: inside, OK: 50, Timed: 50, LatencySum: 100 * ms, Latencies: []time.Duration{2 * ms}}
		if saturated {
			w.Saturated = w.Elapsed
		}
		for range 50 { // fifty of 2 ms in 100 ms are one at a time. Each costs as many slots as are inside
			w.Samples = append(w.Samples, Sample{Start: now - 2*ms, Latency: 2 * ms, Concurrency: inside, Good: true})
		}
		return b.Update(w)
	}
	for range 8 {
		window(20, false)
	}
	for range 6 {
		if d := window(64, true); d.Reason == "the backend became slower" {
			t.Fatalf("%+v", d)
		}
	}
}

// What is of no use counts while a step of a climb takes effect, too.
func TestBeliefIsCutWhileItSettles(t *testing.T) {
	d := &windows{b: newBelief(t, BeliefConfig{})}
	d.pass(20, 25, 0, 40*ms)
	if d.b.mode != settling {
		t.Fatalf("mode %v after the first window in full use", d.b.mode)
	}
	if got := d.pass(20, 0, 25, 400*ms); got >= 20 {
		t.Errorf("%d after a window in which nothing was of use", got)
	}
}

// A cut begins at the limit in force, also where an experiment has it below the best one.
func TestBeliefIsCutFromAnExperiment(t *testing.T) {
	d := windowsAt(t, 40)
	d.b.try = 10
	if got := d.pass(10, 0, 25, 40*ms); got >= 10 {
		t.Errorf("%d after 10, and a window in which nothing was of use", got)
	}
}

// When an outage ends, a climb begins from what was best before. What was tried in the outage does not hold it back.
func TestBeliefClimbsFromBeforeAnOutage(t *testing.T) {
	for _, cores := range []float64{70, 120} {
		b := newBelief(t, BeliefConfig{})
		g, down := worldOf(b, 0), false
		g.serve = func(g *world) time.Duration {
			inside := float64(len(g.inside) + 1)
			return g.now + g.around(time.Duration(float64(20*ms)*math.Exp(-thrashing.lnSpeed(math.Log(inside/cores)))))
		}
		g.good = func(time.Duration) bool { return !down }
		g.run(60 * time.Second)
		down = true
		g.run(20 * time.Second)
		down = false
		for begin := g.now; b.mode == tracking && g.now < begin+10*time.Second; {
			g.window()
		}
		for b.mode != tracking {
			g.window()
		}
		if got := math.Exp(b.at); got < 0.8*cores {
			t.Errorf("%v cores: the climb ends at %.1f", cores, got)
		}
	}
}

// A limit set by hand has to show of what use it is. Cuts, lateness and capacity of before say nothing about it.
func TestBeliefSetByHand(t *testing.T) {
	b := newBelief(t, BeliefConfig{})
	b.Restore(State{Limit: 400})
	now := time.Duration(0)
	windows := func(n int, good, bad int64) {
		for range n {
			now += 100 * ms
			w := inUse(now, 100*ms, good, bad)
			w.Limit, w.InFlight, w.MeanInFlight = b.limit(), b.limit(), float64(b.limit())
			b.Update(w)
		}
	}
	windows(5, 50, 0)
	windows(20, 15, 35)
	if b.yield.cuts == 0 {
		t.Fatal("no cuts")
	}
	b.before.at = math.Log(400)
	b.Restore(State{Limit: 400})
	if got := b.late.share(); got != 0 || b.before.at != 0 {
		t.Errorf("%v late, and %v before", got, b.before.at)
	}
	if windows(20, 15, 35); b.limit() > 200 {
		t.Errorf("still %d, with 70 %% of no use", b.limit())
	}
	windows(40, 0, 50)
	b.Restore(State{Limit: 30})
	if windows(1, 50, 0); b.mode != tracking {
		t.Error("a climb after an outage that ended before the limit was set")
	}
}

// What ends in an extended window counts once in how long work takes, and in what was seen with few inside.
func TestExtendedWindowsTeachOnce(t *testing.T) {
	b := newBelief(t, BeliefConfig{})
	now := counting(t, b)
	now += 100 * ms
	b.Update(inUse(now, 100*ms, 50, 0)) // a step up
	now += 50 * ms
	b.Update(inUse(now, 50*ms, 20, 0)) // takes effect
	long, mid, origin := b.long, b.mid, b.origin
	w := inUse(now+100*ms, 100*ms, 6, 0)
	w.LatencySum, w.Latencies = 6*200*ms, []time.Duration{200 * ms}
	w.Saturated, w.MeanInFlight = 0, 3
	w.Samples = []Sample{{Start: now, Latency: 50 * ms, Concurrency: 3, Good: true}}
	if d := b.Update(w); !d.Extend {
		t.Fatalf("%+v", d)
	}
	if b.long != long || b.mid != mid || b.origin != origin {
		t.Errorf("%v, %v and %v before the window has ended, not %v, %v and %v", b.long, b.mid, b.origin, long, mid, origin)
	}
}

// Connections that leave without an outcome are no work that has ended, so nothing stood still.
func TestBeliefAndWorkWithoutAnOutcome(t *testing.T) {
	d := windowsAt(t, 64)
	d.still(64, 2*time.Second)
	if d.pass(2, 0, 0, 0); d.b.woke != 0 || d.b.stills.longest != 0 {
		t.Errorf("it woke at %v, after %v", d.b.woke, d.b.stills.longest)
	}
}

// If the clock goes back, what was before is not remembered for longer.
func TestBeliefRemembersNotBeyondTheClock(t *testing.T) {
	d := windowsAt(t, 64)
	d.b.before.at, d.b.before.when = math.Log(100), d.b.now
	d.b.Update(&Window{Now: time.Second, Elapsed: 100 * ms, Limit: 64})
	if when := d.b.before.when; when > time.Second {
		t.Errorf("at 1 s, something is remembered of %v", when)
	}
}

// What fails at once says nothing about the limit. What fails after as long as work takes was in the way of it.
func TestBeliefIsNotCutForWhatFailsAtOnce(t *testing.T) {
	for took, cut := range map[time.Duration]bool{200 * time.Microsecond: false, 4 * ms: false, 9 * ms: true} {
		d := windowsAt(t, 40)
		before := d.b.limit()
		for range 6 {
			w := &Window{Now: d.b.now + 50*ms, Elapsed: 50 * ms, Limit: before, InFlight: before, MeanInFlight: float64(before), Saturated: 50 * ms, OK: 5, Failed: 40,
				Timed: 5, LatencySum: 5 * 10 * ms, Latencies: []time.Duration{10 * ms}}
			for range w.Failed {
				w.Samples = append(w.Samples, Sample{Start: w.Now - took, Latency: took, Concurrency: 40, Failed: true})
			}
			if d.b.Update(w); d.b.yield.cuts > 0 {
				break
			}
		}
		if got := d.b.yield.cuts > 0; got != cut {
			t.Errorf("failing after %v: cut %v, want %v", took, got, cut)
		}
	}
}

// Few inside teach after two service times, however few have ended.
func TestBeliefLearnsFromFewInside(t *testing.T) {
	for _, tt := range []struct {
		ended int
		after time.Duration
		want  bool
	}{{1, 100 * ms, true}, {1, 30 * ms, false}, {30, 30 * ms, false}, {0, 100 * ms, false}} {
		b := newBelief(t, BeliefConfig{})
		b.mean, b.now = 0.02, tt.after
		for range tt.ended {
			b.origin.add(Sample{Latency: 20 * ms, Concurrency: 3, Good: true}, 0)
		}
		if got := b.learnOrigin(); got != tt.want {
			t.Errorf("%d ended in %v: %v, want %v", tt.ended, tt.after, got, tt.want)
		}
		if b.origin != (outset{}) {
			t.Errorf("%d ended in %v: %+v is kept", tt.ended, tt.after, b.origin)
		}
	}
}

// When an outage ends, the laws of before hold again, at whatever speed. What was late in it is forgotten.
func TestBeliefRecallsWhatItBelievedBeforeAnOutage(t *testing.T) {
	b := newBelief(t, BeliefConfig{})
	g := worldOf(b, 30)
	g.run(30 * time.Second)
	known := b.laws.gist()
	b.before.keep(b)
	b.before.at = b.at + 1
	b.laws.forget()
	b.laws.spread, b.late, b.yield.out = 0, lateness{n: 100, bad: 50}, true
	for begin := g.now; b.mode == tracking && g.now < begin+10*time.Second; {
		g.window()
	}
	now := b.laws.gist()
	if b.mode != climbing || now.high > 2*known.high || now.low < known.low/2 {
		t.Errorf("it believes in %s, and did in %s", now.inWords(), known.inWords())
	}
	if b.laws.spread < anyLevel || b.late.share() != 0 {
		t.Errorf("the speed is known by %v, and %v late", b.laws.spread, b.late.share())
	}
}

// An old stream that ends now and then, after the process has stood still, hides for a moment only that most is late.
func TestBeliefCutsBesideOldStreams(t *testing.T) {
	d := windowsAt(t, 64)
	d.w.Now += 3 * time.Second // the process stood still
	d.pass(64, 0, 0, 0)
	woke := d.b.woke
	if woke == 0 {
		t.Fatal("it has not noticed")
	}
	for d.b.limit() > 32 {
		w := &d.w
		*w = Window{Now: w.Now + 50*ms, Elapsed: 50 * ms, Saturated: 50 * ms, Limit: d.b.limit(), MeanInFlight: float64(d.b.limit()),
			OK: 1, Overload: 20, Timed: 20, LatencySum: 20 * 20 * ms}
		for range w.Overload {
			w.Samples = append(w.Samples, Sample{Start: w.Now - 20*ms, Latency: 20 * ms, Concurrency: w.MeanInFlight})
			w.Latencies = append(w.Latencies, 20*ms)
		}
		w.Samples = append(w.Samples, Sample{Start: woke - time.Second, Latency: w.Now - woke + time.Second, Concurrency: w.MeanInFlight, Good: true})
		if d.b.Update(w); w.Now > woke+5*time.Second {
			t.Fatalf("the limit is %d after %v in which all else was late", d.b.limit(), w.Now-woke)
		}
	}
}

// One that left before a long idle time does not make the first burst after it a second of useless work.
func TestBeliefForgetsWhoLeftBeforeIdleTime(t *testing.T) {
	burst := func(left int64) int64 {
		d := windowsAt(t, 64)
		d.pass(1, 0, left, 10*ms)
		for range 600 {
			d.pass(0, 0, 0, 0)
		}
		return d.pass(20, 5, 25, 14*ms)
	}
	if calm, after := burst(0), burst(1); after != calm {
		t.Errorf("%d, and %d if one had left half a minute before", calm, after)
	}
}

// The loss that is expected is weighed anew after an alarm, too.
func TestLossAfterAnAlarm(t *testing.T) {
	alarms := 0
	for seed := range uint64(6) {
		b := newBelief(t, BeliefConfig{})
		g := worldOf(b, 0)
		g.random = rand.New(rand.NewPCG(seed, 9))
		g.serve = pooled(30, 20*ms)
		g.run(20 * time.Second)
		g.serve = pooled(30, 10*ms)
		g.decided = func(d Decision) {
			if !strings.Contains(d.Reason, "became faster") {
				return
			}
			alarms++
			now := *b
			now.weighLoss()
			if weighed := 1 - math.Exp(-max(0, now.loss)); math.Abs(d.Estimate.Loss-weighed) > 1e-6 {
				t.Errorf("seed %d: %.3f is said to be lost, and %.3f is", seed, d.Estimate.Loss, weighed)
			}
		}
		g.run(5 * time.Second)
	}
	if alarms == 0 {
		t.Error("no alarm")
	}
}
