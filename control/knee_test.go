package control

import (
	"math"
	"testing"
	"time"
)

// A climb step by step, and the cuts that end one.

// counted is a window of a climb in full use: so many good answers in a second.
func counted(k *Knee, ok int64, inFlight float64) *Window {
	return &Window{Now: time.Minute, Elapsed: time.Second, Saturated: time.Second, MeanInFlight: inFlight, OK: ok}
}

// stepped returns a Knee that has just gone from 20 to 20·e^stepUp, with 1000
// answers a second before.
func stepped(t *testing.T) *Knee {
	t.Helper()
	k, err := NewKnee(KneeConfig{})
	if err != nil {
		t.Fatal(err)
	}
	var d Decision
	for range 3 { // warm up, settle, count
		d = k.Update(counted(k, 1000, 20))
	}
	if !near(k, 20*math.Exp(stepUp)) || k.mode != settling || d.Limit != 37 || d.Extend {
		t.Fatalf("no step up: %+v", d)
	}
	k.Update(counted(k, 1000, 20))
	return k
}

func TestKneeJudgesAStep(t *testing.T) {
	up := 20 * math.Exp(stepUp)
	grown := func(e float64) int64 { return int64(1000*math.Exp(e*stepUp) + 0.5) }
	tests := []struct {
		name   string
		w      *Window
		idle   bool
		want   float64
		mode   kneeMode
		extend bool
	}{
		{"counts follow", counted(nil, grown(1), up), false, 20 * math.Exp(2*stepUp), settling, false},
		{"just enough", counted(nil, grown(0.6), up), false, 20 * math.Exp(2*stepUp), settling, false},
		{"they do not", counted(nil, 1000, up), false, 20, tracking, false},
		{"a fifth of the way", counted(nil, grown(0.2), up), false, 20 * math.Exp(0.2*stepUp), tracking, false},
		{"they fall", counted(nil, 700, up), false, 20, tracking, false},
		{"unsure", counted(nil, grown(0.42), up), false, up, climbing, true},
		{"nobody used it", counted(nil, 1000, 21), false, 20, climbing, false},
		{"nobody used it, or needs it", counted(nil, 1000, 21), true, 20, climbing, false},
		{"proven and not needed", counted(nil, grown(0.9), up), true, up, tracking, false},
		{"unproven and not needed", counted(nil, 1000, up), true, 20, tracking, false},
		{"hardly proven and not needed", counted(nil, grown(0.44), up), true, 20 * math.Exp(0.44*stepUp), tracking, false},
	}
	for _, tt := range tests {
		k := stepped(t)
		if tt.idle {
			tt.w.Saturated = tt.w.Elapsed / 2
		}
		d := k.Update(tt.w)
		if got := math.Exp(k.at); math.Abs(got/tt.want-1) > 0.001 || k.mode != tt.mode || d.Extend != tt.extend {
			t.Errorf("%s: at %.2f, want %.2f; mode %d, %+v", tt.name, got, tt.want, k.mode, d)
		}
	}
}

func TestKneeLooksAgainThreeTimes(t *testing.T) {
	k := stepped(t)
	w := counted(k, int64(1000*math.Exp(0.42*stepUp)), 20*math.Exp(stepUp))
	for i := range mostAgain {
		if d := k.Update(w); !d.Extend {
			t.Fatalf("look %d: %+v", i, d)
		}
	}
	if d := k.Update(w); d.Extend || k.mode != settling {
		t.Errorf("it does not make up its mind: %+v", d)
	}
}

func TestKneeCountsEnough(t *testing.T) {
	k := stepped(t)
	w := counted(k, climbCount-1, 36)
	w.Elapsed, w.Saturated = climbWait-1, climbWait-1
	if d := k.Update(w); !d.Extend || d.Reason != "counting" {
		t.Errorf("of too few: %+v", d)
	}
	w.Elapsed, w.Saturated = climbWait, climbWait
	if d := k.Update(w); d.Extend {
		t.Errorf("it has waited long enough: %+v", d)
	}
}

// Steps that nobody used end the climb after the third.
func TestKneeVainSteps(t *testing.T) {
	k := stepped(t)
	for i := range mostVain + 1 {
		if k.mode == tracking {
			t.Fatalf("given up after %d", i)
		}
		k.Update(counted(k, 1000, 20)) // nobody used it
		if !near(k, 20) {
			t.Fatalf("kept %v", k.Save().Limit)
		}
		k.Update(counted(k, 1000, 20)) // counts
		k.Update(counted(k, 1000, 20)) // settles
	}
	if k.mode != tracking {
		t.Errorf("mode %v after %d steps in vain", k.mode, mostVain+1)
	}
}

// bad is a window in full use in which so much was of use, and so much was not.
func bad(good, not int64) *Window {
	return &Window{Now: time.Minute, Elapsed: 100 * ms, Saturated: 100 * ms, OK: good, Abandoned: not - not/2, Overload: not / 2}
}

func TestKneeCutsToMinAndComesBack(t *testing.T) {
	k := kneeAt(t, 100)
	want := 100.0
	for i := range 20 {
		d := k.Update(bad(0, cutCount))
		want = max(2, want*math.Exp(-cutBy))
		if !near(k, want) || d.Reason != "nothing that finished was of use" {
			t.Fatalf("cut %d: %v, want %v: %+v", i, k.Save().Limit, want, d)
		}
	}
	if d := k.Start(); d.Limit != 2 {
		t.Errorf("%+v", d)
	}
	if d := k.Update(bad(6, 2)); d.Reason != "good answers again" || k.mode != climbing || !near(k, 2) {
		t.Errorf("good answers are back: %+v", d)
	}
}

func TestKneeCutsByHalfBad(t *testing.T) {
	for name, tt := range map[string]struct {
		windows []*Window
		cuts    int
	}{
		"too few":                {repeated(bad(0, cutCount-1), 1), 0},
		"over two windows":       {repeated(bad(0, cutCount/2), 2), 1},
		"four times at most":     {repeated(bad(40, 60), 20), mostCuts},
		"exactly half":           {repeated(bad(50, 50), 20), 0},
		"above half":             {repeated(bad(49, 51), 1), 1},
		"good windows forgive":   {append(append(repeated(bad(40, 60), 9), bad(71, 29)), repeated(bad(40, 60), 9)...), 2 * mostCuts},
		"those in between don't": {append(append(repeated(bad(40, 60), 9), bad(70, 30)), repeated(bad(40, 60), 9)...), mostCuts},
		"failures are no sign":   {repeated(&Window{Now: time.Minute, Elapsed: 1, Saturated: 1, Failed: 100}, 9), 0},
	} {
		k := kneeAt(t, 100)
		for _, w := range tt.windows {
			k.Update(w)
		}
		if want := 100 * math.Exp(-cutBy*float64(tt.cuts)); !near(k, want) {
			t.Errorf("%s: %.2f, want %.2f", name, k.Save().Limit, want)
		}
		if tt.cuts > 0 && (math.Abs(math.Exp(k.shift.before)-100) > 1e-6 || k.gap.variance < openGap || len(k.arms) != 1) {
			t.Errorf("%s: %+v, %+v, %d arms", name, k.shift, k.gap, len(k.arms))
		}
	}
}

func repeated(w *Window, n int) (all []*Window) {
	for range n {
		all = append(all, w)
	}
	return all
}

// During a climb a cut ends it.
func TestKneeCutsAClimb(t *testing.T) {
	k := stepped(t)
	if k.Update(bad(0, 100)); k.mode != tracking || !near(k, 20*math.Exp(stepUp-cutBy)) {
		t.Errorf("mode %d at %v", k.mode, k.Save().Limit)
	}
}

// A brown-out in which everything is abandoned brings the limit to Min, and it
// comes back by itself.
func TestKneeBrownOut(t *testing.T) {
	g := newWorld(t, KneeConfig{}, 50)
	before := g.run(time.Minute)
	g.good = func(time.Duration) bool { return false }
	g.run(time.Minute)
	if got := g.k.Save().Limit; got != 2 {
		t.Errorf("after a minute of nothing good: %v", got)
	}
	g.good = nil
	if got := g.run(30 * time.Second); got < 0.8*before {
		t.Errorf("a minute later: %.1f, before %.1f", got, before)
	}
}

const ms = time.Millisecond

// some makes n samples of work admitted at from.
func some(n int, from, latency time.Duration, concurrency float64, good bool) []Sample {
	s := make([]Sample, n)
	for i := range s {
		s[i] = Sample{Start: from, Latency: latency, Concurrency: concurrency, Good: good}
	}
	return s
}

// alike is an arm of such samples, with those beside them.
func alike(n int, latency time.Duration, concurrency float64, beside ...Sample) *arm {
	var a arm
	for _, s := range append(some(n, 0, latency, concurrency, true), beside...) {
		a.add(s, clipAt*latency.Seconds())
	}
	return &a
}

func TestContrast(t *testing.T) {
	late := func(n int, latency time.Duration, concurrency float64) []Sample {
		return some(n, 0, latency, concurrency, false)
	}
	slow := Sample{Latency: time.Second, Concurrency: 20, Good: true} // 50 times the work
	tests := []struct {
		name    string
		a, b, c *arm
		want    float64
		within  float64
	}{
		{"concurrency costs no time", alike(50, 20*ms, 20), alike(50, 20*ms, 24), alike(50, 20*ms, 20), 1, 1e-9},
		{"the same, the middle one lower", alike(50, 20*ms, 24), alike(50, 20*ms, 20), alike(50, 20*ms, 24), 1, 1e-9},
		{"time in proportion to concurrency", alike(50, 20*ms, 20), alike(50, 24*ms, 24), alike(50, 20*ms, 20), 0, 0.06},
		{"time above proportion", alike(50, 20*ms, 20), alike(50, 28*ms, 24), alike(50, 20*ms, 20), -0.95, 0.2},
		{"half of it costs time", alike(50, 20*ms, 20), alike(50, 22*ms, 24), alike(50, 20*ms, 20), 0.5, 0.06},
		{"drift cancels", alike(50, 18*ms, 20), alike(50, 20*ms, 24), alike(50, 22*ms, 20), 1, 1e-9},
		{"drift beside a slope cancels", alike(50, 18*ms, 20), alike(50, 24*ms, 24), alike(50, 22*ms, 20), 0, 0.06},
		{"an outlier in each", alike(50, 20*ms, 20, slow), alike(50, 20*ms, 24, slow), alike(50, 20*ms, 20, slow), 1, 0.01},
		{"an outlier in one", alike(100, 20*ms, 20), alike(100, 20*ms, 24, slow), alike(100, 20*ms, 20), 0.83, 0.05},
		{"what is cut off hides no slope", alike(50, 20*ms, 20, slow), alike(50, 24*ms, 24, slow), alike(50, 20*ms, 20, slow), 0, 0.3},
		{"lateness grows", alike(50, 20*ms, 20), alike(30, 20*ms, 24, late(20, 20*ms, 24)...), alike(50, 20*ms, 20), -1.5, 0.2},
		{"lateness shrinks", alike(40, 20*ms, 20, late(10, 20*ms, 20)...), alike(50, 20*ms, 24), alike(40, 20*ms, 20, late(10, 20*ms, 20)...), 2.3, 0.2},
	}
	for _, tt := range tests {
		e, variance, ok := contrast(tt.a, tt.b, tt.c)
		if !ok || math.Abs(e-tt.want) > tt.within || !(variance > 0) {
			t.Errorf("%s: e = %.3f with variance %.3g (%v), want %v", tt.name, e, variance, ok, tt.want)
		}
	}
}

func TestContrastOfTooLittle(t *testing.T) {
	full, wide := alike(minArm, 20*ms, 20), alike(minArm, 20*ms, 24)
	few, late := alike(minArm-1, 20*ms, 20), alike(0, 20*ms, 20, some(5, 0, 20*ms, 24, false)...)
	for name, arms := range map[string][3]*arm{
		"few first": {few, wide, full}, "few in the middle": {full, few, wide}, "few last": {full, wide, few},
		"nothing":                 {{}, {}, {}},
		"no contrast":             {full, alike(5, 20*ms, 20.3), full},
		"nothing good":            {late, alike(0, 20*ms, 20, some(5, 0, 20*ms, 20, false)...), late},
		"everything was cut off":  {cutOff(20), cutOff(24), cutOff(20)},
		"contrast cancels itself": {alike(5, 20*ms, 16), alike(5, 20*ms, 20), alike(5, 20*ms, 25)},
	} {
		if e, _, ok := contrast(arms[0], arms[1], arms[2]); ok {
			t.Errorf("%s: e = %v of nothing to compare", name, e)
		}
	}
	if _, _, ok := contrast(full, wide, full); !ok {
		t.Error("just enough, and not compared")
	}
}

// cutOff is an arm in which every service time was.
func cutOff(concurrency float64) *arm {
	var a arm
	for _, s := range some(5, 0, time.Second, concurrency, true) {
		a.add(s, 0.01)
	}
	return &a
}

// The variance is that of e, where service times scatter: one comparison says
// less the fewer jobs it rests on and the closer the arms are.
func TestContrastKnowsItsScatter(t *testing.T) {
	arms := func(n int, concurrency float64) *arm {
		return alike(n, 20*ms, concurrency, some(n, 0, 60*ms, concurrency, true)...)
	}
	variance := func(n int, wide float64) float64 {
		_, v, ok := contrast(arms(n, 20), arms(n, wide), arms(n, 20))
		if !ok {
			t.Fatal("nothing to compare")
		}
		return v
	}
	base := variance(25, 24)
	// Half 20 ms, half 60: a relative variance of 1/4, over 50 jobs, and twice 50
	// that count half.
	want := 0.25 * (1./50 + 2./50/4) / math.Pow(math.Log(1.2), 2)
	if math.Abs(base/want-1) > 1e-6 {
		t.Errorf("variance %.4f, want %.4f", base, want)
	}
	if r := variance(100, 24) / base; math.Abs(r-0.25) > 1e-6 {
		t.Errorf("four times as many jobs: %v of the variance", r)
	}
	if r := variance(25, 20*1.2*1.2) / base; math.Abs(r-0.25) > 1e-6 {
		t.Errorf("twice as far apart: %v of the variance", r)
	}
	_, exact, _ := contrast(alike(50, 20*ms, 20), alike(50, 20*ms, 24), alike(50, 20*ms, 20))
	if exact <= 0 || exact > base {
		t.Errorf("nothing scatters: %v", exact)
	}
	lateHalf := func(c float64) *arm { return alike(25, 20*ms, c, some(25, 0, 20*ms, c, false)...) }
	if _, v, _ := contrast(lateHalf(20), lateHalf(24), lateHalf(20)); math.Abs(v/(4*base)-1) > 1e-6 {
		t.Errorf("half of it late: %v, want four times %v", v, base)
	}
}

// Work belongs to the stretch in which it was admitted, whenever it ends.
func TestCredit(t *testing.T) {
	arms := []arm{{from: 100 * ms}, {from: 200 * ms}, {from: 300 * ms}}
	var all []Sample
	for _, start := range []time.Duration{0, 99 * ms, 100 * ms, 199 * ms, 200 * ms, 299 * ms, 299 * ms, 300 * ms, time.Hour, 350 * ms, 310 * ms} {
		all = append(all, Sample{Start: start, Latency: 10 * ms, Concurrency: 2})
	}
	credit(arms, all, 0)
	if arms[0].n != 2 || arms[1].n != 3 || arms[2].n != 4 {
		t.Errorf("%v, %v and %v in the arms", arms[0].n, arms[1].n, arms[2].n)
	}
	credit(nil, all, 0) // no arms: nowhere
}

func TestArmAdds(t *testing.T) {
	var a arm
	a.add(Sample{Latency: 20 * ms, Concurrency: math.E, Good: true}, 0.1)
	a.add(Sample{Latency: 300 * ms, Concurrency: math.E, Good: true}, 0.1)
	a.add(Sample{Latency: 100 * ms, Concurrency: math.E}, 0.1)
	want := arm{n: 3, lnN: 3, cost: 0.22, cost2: 0.0204, whole: 0.12, good: 2, goodCost: 0.12}
	near := func(x, y float64) bool { return math.Abs(x-y) < 1e-12 }
	if a.n != want.n || a.good != want.good || !near(a.lnN, want.lnN) || !near(a.cost, want.cost) || !near(a.cost2, want.cost2) ||
		!near(a.whole, want.whole) || !near(a.goodCost, want.goodCost) {
		t.Errorf("\n got %+v\nwant %+v", a, want)
	}
	var odd arm
	odd.add(Sample{Latency: -time.Hour, Concurrency: math.Inf(-1)}, 0.1)
	odd.add(Sample{}, 0)
	if math.IsNaN(odd.lnN) || math.IsInf(odd.lnN, 0) || odd.cost <= 0 {
		t.Errorf("%+v of nonsense", odd)
	}
	var uncut arm
	if uncut.add(Sample{Latency: time.Hour, Concurrency: 1}, 0); uncut.cost != 3600 || uncut.whole != 3600 {
		t.Errorf("without a median to go by nothing is cut off: %+v", uncut)
	}
}

func TestGapWeighsByNoise(t *testing.T) {
	last := math.Inf(1)
	for _, variance := range []float64{0.001, 0.01, 0.1, 1, 10} {
		g := newGap()
		move := g.learn(0.3, variance)
		want := 0.3 * openGap * curvature / (openGap*curvature*curvature + variance*firstNoise)
		if !(move < last) || math.Abs(move-want) > 1e-9 {
			t.Errorf("a variance of %v moves it by %v (before: %v), want %v", variance, move, last, want)
		}
		if g := newGap(); g.learn(-0.3, variance) != -move {
			t.Errorf("up is not down at %v", variance)
		}
		last = move
	}
	for _, e := range []float64{50, -50} { // a step is bounded
		g := newGap()
		if move := g.learn(e, 1e-6); math.Abs(move) != largest || move*e < 0 {
			t.Errorf("%v moves it by %v", e, move)
		}
	}
}

// What comparisons in a row disagree on is noise, whatever they claim.
func TestGapLearnsNoise(t *testing.T) {
	g, calm := newGap(), newGap()
	for i := range 60 {
		g.learn(0.3*float64(1-i%2*2), 0.01) // differ by 0.6 where 0.14 is to be expected
		calm.learn(0.01, 0.01)
	}
	if g.noise < 12 || g.noise > mostNoise || calm.noise != 1 {
		t.Errorf("noise %.2f of what disagrees, %.2f of what agrees", g.noise, calm.noise)
	}
	if d, c := g.learn(0.3, 0.01), calm.learn(0.3, 0.01); math.Abs(d) >= c {
		t.Errorf("noisy %v, calm %v", d, c)
	}
	for range 60 {
		g.learn(0.01, 0.01)
	}
	if g.noise > 1.1 {
		t.Errorf("%.2f an hour later", g.noise)
	}
}

func TestGapGrowsSureAndIsSurprised(t *testing.T) {
	g := newGap()
	for range 40 {
		g.learn(0, 0.01)
	}
	if g.variance > 0.01 {
		t.Fatalf("still unsure: %v", g.variance)
	}
	sure := g
	small := sure.learn(0.05, 0.01)
	g.noise = 1
	before := g.variance
	if g.learn(1, 0.01); g.variance <= before {
		t.Errorf("no surprise: variance %v after %v", g.variance, before)
	}
	again := g.learn(0.05, 0.01)
	if again <= small {
		t.Errorf("moves by %v after a surprise, %v before", again, small)
	}
	if g.reopen(); g.variance != openGap {
		t.Errorf("reopened at %v", g.variance)
	}
}

func TestShift(t *testing.T) {
	type look struct {
		side  int
		value float64
		want  int
	}
	for name, looks := range map[string][]look{
		"the first sets the level":     {{0, 5, 0}, {1, 9, 0}, {0, 5, 0}},
		"slower":                       {{0, 5, 0}, {0, 4, 0}, {0, 4, -1}},
		"faster":                       {{0, 5, 0}, {0, 6, 0}, {0, 6, 1}},
		"one is not enough":            {{0, 5, 0}, {0, 4, 0}, {0, 5, 0}, {0, 4, 0}, {0, 5, 0}},
		"nor are two that disagree":    {{0, 5, 0}, {0, 4, 0}, {0, 6, 0}, {0, 4, 0}},
		"each arm has its level":       {{0, 5, 0}, {1, 6, 0}, {0, 5, 0}, {1, 6, 0}},
		"and both count":               {{0, 5, 0}, {1, 6, 0}, {0, 4, 0}, {1, 5, -1}},
		"the scatter is allowed for":   {{0, 5, 0}, {0, 5.34, 0}, {0, 5.36, 0}, {0, 5.34, 0}},
		"drift is followed":            {{0, 5, 0}, {0, 5.3, 0}, {0, 5.4, 0}, {0, 5.5, 0}},
		"two more from the new level":  {{0, 5, 0}, {0, 4, 0}, {0, 4, -1}, {0, 3, 0}, {0, 3, -1}},
		"and none if it stays so then": {{0, 5, 0}, {0, 4, 0}, {0, 4, -1}, {0, 4, 0}, {0, 4, 0}},
	} {
		var s shift
		for i, l := range looks {
			if got := s.observe(l.side, l.value, 0.1); got != l.want {
				t.Errorf("%s: look %d: %d, want %d", name, i, got, l.want)
			}
		}
	}
}

func TestShiftMovesAlongAndForgets(t *testing.T) {
	var s shift
	s.observe(0, 5, 0)
	s.observe(1, 6, 0)
	s.offset(1) // the limit's own move
	for range 3 {
		if s.observe(0, 6, 0) != 0 || s.observe(1, 7, 0) != 0 {
			t.Fatal("it took its own move for a shift")
		}
	}
	s.observe(0, 3, 0)
	s.broken()
	for range 3 {
		if s.observe(0, 3, 0) != 0 {
			t.Fatal("what came before a break was compared")
		}
	}
}

// kneeAt returns a Knee that compares at a limit.
func kneeAt(t *testing.T, limit float64) *Knee {
	t.Helper()
	k, err := NewKnee(KneeConfig{})
	if err != nil {
		t.Fatal(err)
	}
	k.Restore(State{Limit: limit})
	return k
}

// answers is a window of work that took latency, in full use.
func answers(k *Knee, now, latency time.Duration, n int, concurrency float64) *Window {
	w := &Window{Now: now, Elapsed: 100 * ms, Saturated: 100 * ms, MeanInFlight: concurrency, OK: int64(n), Timed: int64(n),
		LatencySum: time.Duration(n) * latency, Samples: some(n, now-latency, latency, concurrency, true)}
	for range n {
		w.Latencies = append(w.Latencies, latency)
	}
	return w
}

func near(k *Knee, limit float64) bool { return math.Abs(math.Exp(k.at)/limit-1) < 1e-6 }

// A Knee goes back to where it was before the backend became slower, if it
// becomes faster soon enough.
func TestKneeRemembers(t *testing.T) {
	for name, tt := range map[string]struct {
		after time.Duration
		want  float64
	}{
		"soon": {time.Minute, 100}, "just": {remembered - ms, 100}, "too late": {remembered, 40},
	} {
		k := kneeAt(t, 100)
		now := time.Second
		k.measure(answers(k, now, 20*ms, 20, 100))
		first := k.shifted(answers(k, now, 20*ms, 20, 100))
		slower := k.shifted(answers(k, now, 80*ms, 20, 100))
		if reason := k.shifted(answers(k, now, 80*ms, 20, 100)); first != "" || slower != "" || reason != "the backend became slower" {
			t.Fatalf("%s: %q, %q, %q", name, first, slower, reason)
		}
		k.set(40)
		k.shifted(answers(k, now, 20*ms, 20, 100))
		if reason := k.shifted(answers(k, now+tt.after, 20*ms, 20, 100)); reason != "the backend became faster" || !near(k, tt.want) {
			t.Errorf("%s: %q, limit %.1f, want %v", name, reason, math.Exp(k.at), tt.want)
		}
		if k.shift.before != 0 || k.gap.variance < openGap {
			t.Errorf("%s: %+v, %+v", name, k.shift, k.gap)
		}
	}
	k := kneeAt(t, 100) // what is remembered lies above, or is not gone to
	k.remember(0)
	k.set(200)
	k.shift.known, k.shift.level[0] = [2]bool{true, true}, -100
	k.shifted(answers(k, time.Second, 20*ms, 20, 100))
	if k.shifted(answers(k, time.Second, 20*ms, 20, 100)); !near(k, 200) {
		t.Errorf("faster, and the limit went down to %.1f", math.Exp(k.at))
	}
	if k.shifted(answers(k, time.Second, time.Hour, shiftCount-1, 100)) != "" {
		t.Error("a shift of too few")
	}
}

func TestKneeRemembersTheHighest(t *testing.T) {
	k := kneeAt(t, 100)
	k.remember(0)
	k.set(50)
	k.remember(time.Minute)
	if math.Abs(math.Exp(k.shift.before)-100) > 1e-6 || k.shift.beforeT != 0 {
		t.Errorf("%+v after a cut in two steps", k.shift)
	}
	if k.remember(remembered); math.Abs(math.Exp(k.shift.before)-50) > 1e-6 {
		t.Errorf("%+v, five minutes later", k.shift)
	}
	k.set(70)
	if k.remember(remembered + ms); math.Abs(math.Exp(k.shift.before)-70) > 1e-6 {
		t.Errorf("%+v, from a higher limit", k.shift)
	}
}

// A pause of two arms is over what came before: nothing is compared across it.
func TestKneePauses(t *testing.T) {
	k := kneeAt(t, 100)
	k.arms = []arm{{from: 0, n: 5}, {from: time.Second, n: 6}}
	k.shift.known[0] = true
	if k.pause(time.Second); len(k.arms) != 2 || k.arms[0].n != 5 || k.arms[1].n != 0 || k.arms[1].from != time.Second || k.shift.known[0] {
		t.Errorf("%+v, %+v", k.arms, k.shift)
	}
	end := time.Second + pauseAtMost*armAtLeast
	if k.pause(end); len(k.arms) != 2 {
		t.Errorf("two arms long, and no longer: %+v", k.arms)
	}
	if k.pause(end + 1); len(k.arms) != 1 || k.arms[0].n != 0 || k.arms[0].from != end+1 || k.arms[0].at != k.at {
		t.Errorf("old arms are still there: %+v", k.arms)
	}
}

// What fails at once is no faster backend to go back to a former limit for.
func TestKneeShiftFailingFast(t *testing.T) {
	k := kneeAt(t, 200)
	k.remember(0)
	k.set(100)
	k.measure(answers(k, time.Second, 20*ms, 20, 100))
	k.shifted(answers(k, time.Second, 20*ms, 20, 100))
	for range 5 {
		w := answers(k, 2*time.Second, 20*ms, 40, 100)
		w.Samples = append(w.Samples, some(60, time.Second, ms, 100, false)...)
		if reason := k.shifted(w); reason != "" || !near(k, 100) {
			t.Fatalf("%q, limit %.1f", reason, math.Exp(k.at))
		}
	}
}

// Work admitted between two arms belongs to neither: of what a dropped stretch
// admitted, only the slow is still running, and would make the arm before look slow.
func TestKneeCreditsNoArmForAGap(t *testing.T) {
	arms := []arm{{from: 0, to: 10}, {from: 20, to: 30}, {from: 30}}
	for _, start := range []time.Duration{5, 10, 15, 20, 29, 30, 35} {
		credit(arms, []Sample{{Start: start, Latency: time.Second, Concurrency: 1, Good: true}}, 0)
	}
	for i, want := range []float64{1, 2, 2} {
		if arms[i].n != want {
			t.Errorf("arm %d: %v, want %v", i, arms[i].n, want)
		}
	}
}

func TestKneeSaysWhatItFound(t *testing.T) {
	for _, tt := range []struct {
		e    float64
		want string
	}{
		{0.123, "1% more concurrency, 0.12% more throughput"},
		{0, "1% more concurrency, 0.00% more throughput"},
		{-1.684, "1% more concurrency, 1.68% less throughput"},
	} {
		if got := inWords(tt.e); got != tt.want {
			t.Errorf("an elasticity of %v: %q, want %q", tt.e, got, tt.want)
		}
	}
}

// Where newcomers are refused because their answers would come too late, few wait,
// and a slot is free for most of the time: no window is saturated. All that
// finishes is late none the less, and the limit comes down, however it came to be
// so high.
func TestKneeIsNotFrozen(t *testing.T) {
	for name, saved := range map[string]float64{"from the start": 0, "restored": 1300} {
		k, err := NewKnee(KneeConfig{Initial: 1301})
		if err != nil {
			t.Fatal(err)
		}
		k.Restore(State{Limit: saved})
		d := k.Start()
		first := d.Limit
		for now := time.Second; now < 6*time.Second; now += 100 * time.Millisecond {
			d = k.Update(useless(now, d.Limit, 0.4, 0.99))
		}
		if d.Limit != 2 {
			t.Errorf("%s: from %d to %d while nothing that finishes is of use, want 2", name, first, d.Limit)
		}
	}
}

// A gate that is hardly used has nothing to learn from what finishes there.
func TestKneeIdleIsNotCut(t *testing.T) {
	k, err := NewKnee(KneeConfig{})
	if err != nil {
		t.Fatal(err)
	}
	k.Restore(State{Limit: 100})
	d := k.Start()
	first := d.Limit
	for now := time.Second; now < 6*time.Second; now += 100 * time.Millisecond {
		d = k.Update(useless(now, d.Limit, 0.1, 0.3))
	}
	if d.Limit != first {
		t.Errorf("from %d to %d", first, d.Limit)
	}
}

// useless is a window of work that all came too late, a share of it saturated and
// a share of the slots in use.
func useless(now time.Duration, limit int64, saturated, used float64) *Window {
	const elapsed = 100 * time.Millisecond
	w := &Window{
		Now: now, Elapsed: elapsed, Limit: limit, InFlight: limit, MaxInFlight: limit,
		MeanInFlight: used * float64(limit), Saturated: time.Duration(saturated * float64(elapsed)),
		Overload: 50, Timed: 50, LatencySum: 65 * time.Second,
	}
	for range 50 {
		w.Latencies = append(w.Latencies, 1300*time.Millisecond)
		w.Samples = append(w.Samples, Sample{Start: now - 1300*time.Millisecond, Latency: 1300 * time.Millisecond, Concurrency: float64(limit)})
	}
	return w
}
