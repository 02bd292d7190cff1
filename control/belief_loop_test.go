package control

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// outside are backends of which no law is true. Each says when work that is admitted now
// will end.
var outside = map[string]func() func(*world) time.Duration{
	"two stages": func() func(*world) time.Duration {
		first, second := queueOf(40), queueOf(12)
		return func(g *world) time.Duration { return second(first(g.now, g.around(20*ms)), g.around(10*ms)) }
	},
	"a lock that a third need": func() func(*world) time.Duration {
		lock := queueOf(1)
		return func(g *world) time.Duration {
			end := g.now + g.around(20*ms)
			if g.random.IntN(3) > 0 {
				return end
			}
			return lock(end, 3*ms)
		}
	},
	"a cache that warms": func() func(*world) time.Duration {
		places, seen := queueOf(16), 0.0
		return func(g *world) time.Duration {
			seen++
			return places(g.now, g.around(time.Duration(float64(10*ms)+float64(40*ms)*math.Exp(-seen/4000))))
		}
	},
	"pauses of 300 ms every 5 s": func() func(*world) time.Duration {
		places := queueOf(24)
		// Places work in a time of their own, which stands still during a pause.
		const every, pause = 5 * time.Second, 300 * ms
		own := func(t time.Duration) time.Duration { return t/every*(every-pause) + max(0, t%every-pause) }
		clock := func(t time.Duration) time.Duration {
			return t/(every-pause)*every + pause + t%(every-pause)
		}
		return func(g *world) time.Duration { return clock(places(own(g.now), g.around(20*ms))) }
	},
	"costs that alternate by the minute": func() func(*world) time.Duration {
		places := queueOf(20)
		return func(g *world) time.Duration {
			if g.now/time.Minute%2 == 1 {
				return places(g.now, g.around(60*ms))
			}
			return places(g.now, g.around(15*ms))
		}
	},
	"a neighbour that takes half every 10 s": func() func(*world) time.Duration {
		places := queueOf(20)
		return func(g *world) time.Duration {
			if g.now%(20*time.Second) >= 10*time.Second {
				return places(g.now, g.around(40*ms))
			}
			return places(g.now, g.around(20*ms))
		}
	},
}

// queueOf is so many places, taken in the order of arrival.
func queueOf(places int) func(at, takes time.Duration) (end time.Duration) {
	free := make([]time.Duration, places)
	return func(at, takes time.Duration) time.Duration {
		first := 0
		for i := range free {
			if free[i] < free[first] {
				first = i
			}
		}
		free[first] = max(at, free[first]) + takes
		return free[first]
	}
}

// around is a service time with this mean, of half as much to half as much again.
func (g *world) around(mean time.Duration) time.Duration {
	return mean/2 + time.Duration(g.random.Int64N(int64(mean)))
}

// holds is a controller that keeps a limit, for comparison.
type holds struct{ Fixed }

func (holds) Save() State   { return State{} }
func (holds) Restore(State) {}

func (h holds) Start() Decision { return h.Update(nil) }
func (h holds) Update(*Window) Decision {
	return Decision{Limit: int64(h.Fixed), Next: 100 * ms, Reason: "holds"}
}

// done lets time pass, and returns how much was finished in the second half, and the mean of
// the limits then.
func (g *world) done(length time.Duration) (done int64, limit float64) {
	var windows float64
	tell := g.decided
	var before int64
	g.decided = func(d Decision) {
		if tell != nil {
			tell(d)
		}
		n := g.w.OK - before
		if before = g.w.OK; d.Extend == false {
			before = 0
		}
		if g.now > length/2 {
			done, limit, windows = done+n, limit+float64(d.Limit), windows+1
		}
	}
	for g.now < length {
		g.window()
	}
	return done, limit / windows
}

// Where no law is true it may be slow to learn, but it neither collapses nor lets in what
// helps nothing.
func TestBeliefOutsideItsLaws(t *testing.T) {
	const length = 4 * time.Minute
	for name, backend := range outside {
		var best int64
		var smallest float64 // of the limits that are nearly as good as the best
		results := map[float64]int64{}
		for _, n := range []int64{6, 12, 18, 26, 40, 60} {
			g := worldOf(holds{Fixed(n)}, 0)
			g.serve = backend()
			done, limit := g.done(length)
			results[limit], best = done, max(best, done)
		}
		smallest = math.Inf(1)
		for limit, done := range results {
			if float64(done) > 0.97*float64(best) {
				smallest = min(smallest, limit)
			}
		}
		g := worldOf(newBelief(t, BeliefConfig{}), 0)
		g.serve = backend()
		g.decided = func(d Decision) {
			if d.Estimate != (Estimate{}) && !sensible(d.Estimate) {
				t.Fatalf("%s: %+v", name, d)
			}
		}
		done, limit := g.done(length)
		t.Logf("%s: %.3f of the best fixed limit (%v), at %.1f slots", name, float64(done)/float64(best), smallest, limit)
		if part := float64(done) / float64(best); part < 0.85 || limit > 4*smallest {
			t.Errorf("%s: %.2f of what the best fixed limit (%v) gets done, with %.1f slots", name, part, smallest, limit)
		}
	}
}

// pooled is so many places where work takes this long on average.
func pooled(places int, mean time.Duration) func(*world) time.Duration {
	wait := queueOf(places)
	return func(g *world) time.Duration { return wait(g.now, g.around(mean)) }
}

// From the shortest work to the longest, at the least limit and at the largest.
func TestBeliefAtTheEnds(t *testing.T) {
	for _, tt := range []struct {
		name      string
		cfg       BeliefConfig
		from      float64 // a limit that was saved; 0: a cold start
		places    int
		mean      time.Duration
		length    time.Duration
		low, high float64 // the mean limit over the second half
	}{
		{"50 µs", BeliefConfig{}, 0, 8, 50 * time.Microsecond, 3 * time.Second, 6, 24},
		{"5 min", BeliefConfig{}, 0, 10, 5 * time.Minute, 96 * time.Hour, 6, 60},
		{"5 min, far too high", BeliefConfig{}, 200, 10, 5 * time.Minute, 96 * time.Hour, 6, 100},
		{"one a minute", BeliefConfig{}, 0, 2, 2 * time.Minute, 96 * time.Hour, 2, 40},
		{"one at a time", BeliefConfig{Min: 1}, 0, 1, 10 * ms, time.Minute, 1, 3},
		{"nothing to choose", BeliefConfig{Min: 1, Max: 1}, 0, 30, 10 * ms, 20 * time.Second, 1, 1},
		{"from 10,000", BeliefConfig{}, 10_000, 20, 10 * ms, 20 * time.Minute, 15, 60},
		{"up to 10,000", BeliefConfig{}, 0, 20_000, 2 * time.Second, 2 * time.Minute, 6000, 10_000},
		{"stays at 10,000", BeliefConfig{Min: 10_000}, 0, 20, ms, 20 * time.Second, 10_000, 10_000},
	} {
		b := newBelief(t, tt.cfg)
		b.Restore(State{Limit: tt.from})
		g := worldOf(b, 0)
		g.serve = pooled(tt.places, tt.mean)
		if tt.places >= 20_000 { // more than there can be inside
			g.serve = func(g *world) time.Duration { return g.now + g.around(tt.mean) }
		}
		g.decided = func(d Decision) {
			if d.Estimate != (Estimate{}) && !sensible(d.Estimate) || d.Next < time.Millisecond {
				t.Fatalf("%s: %+v", tt.name, d)
			}
		}
		_, limit := g.done(tt.length)
		t.Logf("%s: %.1f", tt.name, limit)
		if !(limit >= tt.low && limit <= tt.high) {
			t.Errorf("%s: %.1f slots, want %v to %v", tt.name, limit, tt.low, tt.high)
		}
	}
}

// hotRow is what PostgreSQL gets done of transactions that all update one row: transactions a second at
// these sizes. From a hundred on fewer would do six times as much, and nothing near there says so.
var hotRow = []struct{ size, rate float64 }{{1, 3158}, {2, 5779}, {4, 5224}, {8, 3822}, {16, 3012}, {32, 2514}, {64, 1828}, {128, 916}, {200, 978}}

// meeting is what PostgreSQL commits of transactions that all update one row, serializable, and how many fail
// because they meet another: each second, at these sizes.
var meeting = []struct{ size, commits, fails float64 }{{1, 3915, 0}, {2, 3193, 2467}, {4, 2043, 3424}, {8, 1074, 4619}, {16, 711, 4917}, {32, 388, 4533}, {64, 222, 3776}, {128, 168, 3745}}

// Work that fails because too much is inside uses slots in vain. The limit is where most succeeds.
func TestBeliefFindsWhereWorkSucceeds(t *testing.T) {
	var rates, shares []struct{ size, rate float64 }
	for _, m := range meeting {
		rates = append(rates, struct{ size, rate float64 }{m.size, m.commits + m.fails})
		shares = append(shares, struct{ size, rate float64 }{m.size, m.commits / (m.commits + m.fails)})
	}
	for _, initial := range []int64{4, 20, 128} {
		g := worldOf(newBelief(t, BeliefConfig{Initial: initial}), 0)
		g.serve = measured(rates)
		g.fails = func(g *world) bool { return g.random.Float64() > between(shares, float64(len(g.inside)+1)) }
		_, limit := g.done(time.Minute)
		t.Logf("from %d: %.1f", initial, limit)
		if !(limit >= 2 && limit <= 3) {
			t.Errorf("from %d: %.1f slots, want 2 to 3", initial, limit)
		}
	}
	// Failures that come whatever the limit say nothing about it.
	g := worldOf(newBelief(t, BeliefConfig{}), 0)
	g.serve = pooled(30, 20*ms)
	g.fails = func(g *world) bool { return g.random.IntN(3) == 0 }
	if _, limit := g.done(time.Minute); !(limit >= 25 && limit <= 45) {
		t.Errorf("a third fails in a pool of 30: %.1f slots", limit)
	}
}

// between is what was measured at a size, by power laws between the sizes that were.
func between(all []struct{ size, rate float64 }, n float64) float64 {
	i := 1
	for i < len(all)-1 && all[i].size < n {
		i++
	}
	a, b := all[i-1], all[i]
	part := min(1, max(0, math.Log(n/a.size)/math.Log(b.size/a.size)))
	return a.rate * math.Pow(b.rate/a.rate, part)
}

// measured is a backend that gets done at each size what was measured, and half as much to half as much again.
func measured(rates []struct{ size, rate float64 }) func(*world) time.Duration {
	return func(g *world) time.Duration {
		n := float64(len(g.inside) + 1)
		rate := between(rates, n)
		return g.now + g.around(time.Duration(n/rate*float64(time.Second)))
	}
}

// A high first limit says nothing about what fewer would get done. So the climb begins below it.
func TestBeliefFromAHighFirstLimit(t *testing.T) {
	for _, tt := range []struct {
		name      string
		serve     func(*world) time.Duration
		initial   int64
		first     int64
		low, high float64 // the mean limit over the second half
	}{
		{"a hot row", measured(hotRow), 128, 64, 1, 4},
		{"a hot row", measured(hotRow), 200, 64, 1, 4},
		{"a hot row", measured(hotRow), 1000, 125, 1, 4},
		{"a hot row", measured(hotRow), 20, 20, 1, 4},
		{"a pool of 12", pooled(12, 20*ms), 128, 64, 9, 24},
		{"a pool of 60", pooled(60, 20*ms), 128, 64, 50, 90},
		{"a pool of 150", pooled(150, 20*ms), 128, 64, 130, 220},
		{"a pool of 600", pooled(600, 50*ms), 1000, 125, 500, 900},
		{"a pool of 60", pooled(60, 20*ms), 63, 63, 50, 90},
	} {
		b := newBelief(t, BeliefConfig{Initial: tt.initial})
		g := worldOf(b, 0)
		g.serve = tt.serve
		if g.d.Limit != tt.first {
			t.Errorf("from %d: the first limit is %d, want %d", tt.initial, g.d.Limit, tt.first)
		}
		_, limit := g.done(time.Minute)
		t.Logf("%s from %d: %.1f", tt.name, tt.initial, limit)
		if b.mode != tracking || !(limit >= tt.low && limit <= tt.high) {
			t.Errorf("%s from %d: %.1f slots, want %v to %v", tt.name, tt.initial, limit, tt.low, tt.high)
		}
	}
}

// Where work is uneven from one moment to the next, and eight get as much done as two hundred, it comes down from a high first limit.
func TestBeliefWhereWorkIsUneven(t *testing.T) {
	if testing.Short() {
		t.Skip("a minute and a half, eight times")
	}
	var limits []int64
	for seed := range uint64(8) {
		g := worldOf(newBelief(t, BeliefConfig{Initial: 128, Max: 200}), 0)
		g.random = rand.New(rand.NewPCG(seed+1, 2))
		uneven := rand.New(rand.NewPCG(seed, 77))
		queue, factors := queueOf(8), []float64{}
		g.serve = func(g *world) time.Duration {
			for len(factors) <= int(g.now/(100*ms)) {
				factors = append(factors, math.Exp(0.4*uneven.NormFloat64()))
			}
			return queue(g.now, time.Duration(float64(2*ms)*g.random.ExpFloat64()*factors[g.now/(100*ms)]))
		}
		var sum, windows int64
		g.decided = func(d Decision) {
			if g.now > 85*time.Second {
				sum, windows = sum+d.Limit, windows+1
			}
		}
		g.run(90 * time.Second)
		limits = append(limits, sum/windows)
	}
	slices.Sort(limits)
	t.Logf("%v", limits)
	if limits[4] > 32 {
		t.Errorf("%v slots, want at most 32 in the median", limits)
	}
}

// warming is how many times as long work takes while caches are cold.
func (g *world) warming() float64 { return 1 + 2*math.Exp(-g.now.Seconds()) }

// A backend that warms up while the limit comes down looks as if few inside got more done. So the belief is sure of a limit far too
// high, until half of it is tried.
func TestBeliefLooksBelow(t *testing.T) {
	var limits []float64
	for seed := range uint64(8) {
		g := worldOf(newBelief(t, BeliefConfig{Initial: 128, Min: 1, Max: 200}), 0)
		g.random = rand.New(rand.NewPCG(seed+1, 2))
		two := queueOf(2)
		g.serve = func(g *world) time.Duration {
			return two(g.now, time.Duration(float64(ms)*0.7*g.warming()*g.random.ExpFloat64()))
		}
		_, limit := g.done(80 * time.Second)
		limits = append(limits, limit)
	}
	slices.Sort(limits)
	t.Logf("%.1f", limits)
	if limits[4] > 4 {
		t.Errorf("%.1f slots where two are enough, want at most 4 in the median", limits)
	}
}

// A limiter that knows what half of its limit would do does not look again and again. Nor does one that can go no further down.
func TestBeliefLooksSeldom(t *testing.T) {
	for _, tt := range []struct {
		places  int
		initial int64
		least   int64
	}{{3, 20, 1}, {5, 20, 4}, {20, 20, 1}, {20, 200, 15}, {60, 20, 1}, {2, 20, 2}} {
		b := newBelief(t, BeliefConfig{Initial: tt.initial, Min: tt.least})
		g := worldOf(b, tt.places)
		looks, looked := 0, time.Duration(0)
		g.decided = func(Decision) {
			if b.looked != looked && b.looked != b.landed {
				looks++
			}
			looked = b.looked
		}
		limit := g.run(10 * time.Minute)
		t.Logf("%d places, from %d, at least %d: %d looks, %.1f slots at the end", tt.places, tt.initial, tt.least, looks, limit)
		if looks > 4 {
			t.Errorf("%d places, from %d, at least %d: %d looks in ten minutes", tt.places, tt.initial, tt.least, looks)
		}
	}
}

// With more inside, more is given up at its deadline, and so more ends. A limiter that learned nothing from that kept a limit at
// which nearly all is late.
func TestBeliefComesDownWhereMostIsGivenUp(t *testing.T) {
	const deadline = 4500 * time.Microsecond
	for seed := range uint64(8) {
		g := worldOf(newBelief(t, BeliefConfig{Initial: 128, Min: 1, Max: 200}), 0)
		g.random = rand.New(rand.NewPCG(seed+1, 2))
		g.good = func(life time.Duration) bool { return life < deadline }
		g.serve = func(g *world) time.Duration { // all that is inside shares two processors
			mean := 0.7 * g.warming() * max(1, float64(len(g.inside)+1)/2)
			return g.now + min(deadline, g.around(time.Duration(mean*float64(ms))))
		}
		var good, late int64
		g.decided = func(d Decision) {
			if g.now > 10*time.Second && !d.Extend {
				good, late = good+g.w.OK, late+g.w.Abandoned
			}
		}
		g.run(20 * time.Second)
		if good < 10_000 || good < 4*late {
			t.Errorf("seed %d: %d in time and %d late, at a limit of %d", seed, good, late, g.d.Limit)
		}
	}
}

// Most of what ends is late, and the limit has not been reached. It comes down if fewer inside could be faster.
func TestBeliefComesDownToWhatIsInside(t *testing.T) {
	for _, tt := range []struct {
		name   string
		inside float64
		usual  time.Duration // how long work took before; 0: nothing is known
		late   int64         // of 100
		long   bool          // it lasts more than a second
		good   int           // every so many windows all is in time; 0: none
		down   bool
	}{
		{"nothing is known", 20, 0, 100, false, 0, true},
		{"slower than usual", 20, ms, 100, false, 0, true},
		{"as slow as usual", 20, 4 * ms, 100, false, 0, false},
		{"as slow as usual, for long", 20, 4 * ms, 100, true, 0, true},
		{"as slow as usual, for long, a few in time", 20, 4 * ms, 85, true, 0, false},
		{"as slow as usual, for long, with hardly more inside than usual", 5, 4 * ms, 100, true, 0, false},
		{"faster than usual, for long", 20, 5 * ms, 100, true, 0, false},
		{"a third slower than usual", 20, 3 * ms, 100, false, 0, false},
		{"a third slower than usual, for long", 20, 3 * ms, 100, true, 0, true},
		{"a third slower than usual, on and off", 20, 3 * ms, 100, true, 6, false},
		{"few are inside", 3, ms, 100, true, 0, false},
		{"half of the limit is used", 32, 4 * ms, 100, false, 0, true},
		{"most are in time", 20, ms, 20, true, 0, false},
	} {
		b := newBelief(t, BeliefConfig{Initial: 128})
		first := b.Start().Limit
		w := Window{Limit: first, MeanInFlight: 3, Elapsed: time.Second}
		if tt.usual > 0 {
			w.Now, w.OK, w.Timed, w.LatencySum = time.Second, 1000, 1000, 1000*tt.usual
			b.Update(&w)
		}
		windows := 1
		if tt.long {
			windows = 12
		}
		w.Elapsed, w.MeanInFlight = 100*ms, tt.inside
		w.Timed, w.LatencySum = 100, 400*ms
		got := first
		for i := range windows {
			w.Now += 100 * ms
			w.OK, w.Overload = 100-tt.late, tt.late
			if tt.good > 0 && i%tt.good == tt.good-1 {
				w.OK, w.Overload = 100, 0
			}
			got = b.Update(&w).Limit
		}
		if !tt.down && got != first || tt.down && float64(got) >= 2*tt.inside {
			t.Errorf("%s: %d after %d with %v inside", tt.name, got, first, tt.inside)
		}
	}
}

// windows drives a Belief by windows of 50 ms, in which all that ends took the same time.
type windows struct {
	b *Belief
	w Window
}

// windowsAt restores a limit and shows it a hundred windows of work of 10 ms in time.
func windowsAt(t *testing.T, limit float64) *windows {
	t.Helper()
	d := &windows{b: newBelief(t, BeliefConfig{})}
	d.b.Restore(State{Limit: limit})
	for range 100 {
		d.pass(5, 25, 0, 10*ms)
	}
	return d
}

// pass lets a window pass, and returns the limit.
func (d *windows) pass(inside float64, good, late int64, took time.Duration) int64 {
	const length = 50 * ms
	w := &d.w
	*w = Window{
		Now: w.Now + length, Elapsed: length, Limit: d.b.limit(), MeanInFlight: inside,
		OK: good, Overload: late, Timed: good + late, LatencySum: time.Duration(good+late) * took,
	}
	if inside >= float64(w.Limit) {
		w.Saturated = length
	}
	for range good + late {
		w.Latencies = append(w.Latencies, took)
		w.Samples = append(w.Samples, Sample{Start: max(0, w.Now-took), Latency: took, Concurrency: inside, Good: good > 0})
	}
	return d.b.Update(w).Limit
}

// still lets time pass in which nothing ends.
func (d *windows) still(inside float64, lasts time.Duration) {
	for end := d.w.Now + lasts; d.w.Now < end; {
		d.pass(inside, 0, 0, 0)
	}
}

// A backend that stands still says nothing about the limit, and neither does what was inside meanwhile. Work that is heavy, that ends in batches or
// comes after a silence has not stood still, and neither has what takes hardly longer than a single piece of work may.
func TestBeliefAndABackendThatStandsStill(t *testing.T) {
	for _, tt := range []struct {
		name   string
		inside float64 // while nothing ends
		lasts  time.Duration
		took   time.Duration // what ends then, late
		times  int
		cut    bool
	}{
		{"for long", 64, 2 * time.Second, 2 * time.Second, 1, false},
		{"for as long as work may take", 64, 100 * ms, 150 * ms, 1, true},
		{"three are inside", 3, 2 * time.Second, 2 * time.Second, 1, true},
		{"again and again", 64, time.Second, time.Second, 3, true},
		{"heavy work", 64, time.Second, 3 * time.Second, 1, true},
		{"after a silence", 0, time.Minute, 40 * ms, 1, true},
	} {
		d := windowsAt(t, 64)
		before := d.b.limit()
		var got int64
		for range tt.times {
			d.still(tt.inside, tt.lasts)
			got = d.pass(64, 0, 60, tt.took)
		}
		if !tt.cut && got < before || tt.cut && got >= before {
			t.Errorf("%s: %d after %d", tt.name, got, before)
		}
	}
}

// A cap takes back what was learned in a window. The next one has not stood still for that.
func TestBeliefIsNotStillAfterAnUndo(t *testing.T) {
	d := windowsAt(t, 64)
	d.still(20, 2*time.Second)
	undo := d.b.checkpoint()
	before := d.pass(64, 0, 60, 2*time.Second)
	undo()
	if got := d.pass(64, 0, 60, 20*ms); got >= before {
		t.Errorf("%d after %d", got, before)
	}
}

// A limit that is not reached stays where a cut would do harm: where work is slow, so that it takes long to come back, and where the few
// late answers are of times far apart.
func TestBeliefKeepsWhatNobodyReaches(t *testing.T) {
	late := func(n int64, mean time.Duration) Window {
		return Window{MeanInFlight: 20, Overload: n, Timed: n, LatencySum: time.Duration(n) * mean}
	}
	good := Window{MeanInFlight: 2, OK: 1000, Timed: 1000, LatencySum: 1000 * 5 * ms}
	for name, windows := range map[string][]Window{
		"slow work":               {late(100, time.Second)},
		"good answers in between": {good, late(5, 40*ms), good, good, late(5, 40*ms)},
	} {
		b := newBelief(t, BeliefConfig{Initial: 64})
		now := time.Second
		for _, w := range windows {
			now += 100 * ms
			w.Now, w.Elapsed, w.Limit = now, 100*ms, 64
			if got := b.Update(&w).Limit; got != 64 {
				t.Errorf("%s: %d", name, got)
			}
		}
	}
}

// Where many inside are slow, what was let in too far takes minutes to end. So it is not let in.
func TestBeliefLetsInNoMoreThanEnds(t *testing.T) {
	g := worldOf(newBelief(t, BeliefConfig{Initial: 1000}), 0)
	g.serve = measured([]struct{ size, rate float64 }{{1, 5}, {40, 54}, {125, 41}, {1000, 9}})
	most := 0
	g.decided = func(Decision) { most = max(most, len(g.inside)) }
	if got := g.run(time.Minute); got > 80 || most > 300 {
		t.Errorf("%.1f slots, and at most %d inside", got, most)
	}
}

// Neither a bound above an eighth of the first limit nor a saved limit begins a climb further down.
func TestBeliefBeginsWithinBounds(t *testing.T) {
	for _, tt := range []struct {
		cfg  BeliefConfig
		want int64
	}{
		{BeliefConfig{Initial: 128, Min: 100}, 100},
		{BeliefConfig{Initial: 5000, Max: 300}, 300},
		{BeliefConfig{Initial: 1 << 62}, 10_000},
		{BeliefConfig{Initial: 5, Min: 7}, 7},
	} {
		b := newBelief(t, tt.cfg)
		first := b.Start().Limit
		if b.Restore(b.Save()); first != tt.want || b.mode == tracking {
			t.Errorf("%+v: the first limit is %d, want %d; mode %v after it was saved and restored", tt.cfg, first, tt.want, b.mode)
		}
		if b.Restore(State{Limit: 250}); b.Start().Limit != 250 {
			t.Errorf("%+v: %+v after 250 was restored", tt.cfg, b.Start())
		}
	}
}

// Where each job costs some slots, a pool of fifty needs fifty times that. What costs more than the first limit runs alone at first.
func TestBeliefCountsCostlyWork(t *testing.T) {
	for _, tt := range []struct{ cost, initial int64 }{{10, 20}, {10, 100}, {50, 20}, {50, 100}, {200, 20}} {
		g := worldOf(newBelief(t, BeliefConfig{Initial: tt.initial}), 0)
		g.serve, g.cost = pooled(50, 20*ms), tt.cost
		g.run(8 * time.Second)
		early := len(g.inside)
		late := g.run(20*time.Second) / float64(tt.cost)
		t.Logf("%+v: %d and %.1f jobs", tt, early, late)
		if early < 40 || !(late >= 45 && late <= 90) {
			t.Errorf("%+v: %d jobs inside after 8 s, and then room for %.1f in a pool of 50, want at least 40, and 45 to 90", tt, early, late)
		}
	}
}

// A climb that had slots enough for the work there was goes on when there is more.
func TestBeliefGoesOnClimbing(t *testing.T) {
	const places = 50
	queue := queueOf(places)
	g := worldOf(newBelief(t, BeliefConfig{}), 0)
	g.serve = func(g *world) time.Duration { return queue(g.now, 20*ms) }
	g.demand = 25
	for g.now < 10*time.Second {
		g.window()
	}
	if g.d.Limit < 25 || g.d.Limit > 40 {
		t.Fatalf("%+v for 25 at a time", g.d)
	}
	g.demand = 0
	for g.now < 11500*ms {
		g.window()
	}
	if g.d.Limit < 45 || g.d.Limit > 2*places {
		t.Errorf("%+v for %d places, after a second and a half", g.d, places)
	}
}
