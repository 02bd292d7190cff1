package control

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// learner is a controller that keeps what it has learned.
type learner interface {
	Controller
	Saver
}

// world is a gate before a backend that serves so many at a time, in the order in
// which they came, each in 10 to 30 ms.
type world struct {
	k          learner
	d          Decision
	now, start time.Duration
	w          Window
	random     *rand.Rand
	inside     []work // by when they end
	used       int64  // of the limit: what all inside cost
	free       []time.Duration
	area       float64 // in flight, integrated

	demand  int64                         // jobs in flight if the limit allows; 0 means without end
	cost    int64                         // of each job; 0 means 1
	good    func(life time.Duration) bool // nil means all
	failing bool                          // all of it, in 1 ms
	fails   func(*world) bool             // whether work that is admitted now will fail; nil: none
	decided func(Decision)
	serve   func(*world) (end time.Duration) // another backend; free is not used
}

type work struct {
	start, end time.Duration
	cost       int64
	area       float64
	fails      bool
}

func newWorld(t *testing.T, cfg KneeConfig, places int) *world {
	t.Helper()
	k, err := NewKnee(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return worldOf(k, places)
}

func worldOf(k learner, places int) *world {
	return &world{k: k, d: k.Start(), free: make([]time.Duration, places), random: rand.New(rand.NewPCG(1, 2))}
}

// resize gives the backend other places. What is inside goes on as it was.
func (g *world) resize(places int) {
	busy := slices.Max(g.free)
	g.free = make([]time.Duration, places)
	for i := range g.free {
		g.free[i] = max(busy, g.now)
	}
}

func (g *world) admit() {
	end := g.now + ms
	switch {
	case g.serve != nil:
		end = g.serve(g)
	case !g.failing:
		first := 0
		for i := range g.free {
			if g.free[i] < g.free[first] {
				first = i
			}
		}
		end = max(g.now, g.free[first]) + 10*ms + time.Duration(g.random.Int64N(int64(20*ms)))
		g.free[first] = end
	}
	i, _ := slices.BinarySearchFunc(g.inside, end, func(w work, end time.Duration) int { return cmp.Compare(w.end, end) })
	w := work{g.now, end, g.price(), g.area, g.failing || g.fails != nil && g.fails(g)}
	g.inside, g.used = slices.Insert(g.inside, i, w), g.used+w.cost
}

func (g *world) finish() {
	done := g.inside[0]
	g.inside, g.used = g.inside[1:], g.used-done.cost
	life := done.end - done.start
	s := Sample{Start: done.start, Latency: life, Concurrency: (g.area - done.area) / float64(life), Good: !done.fails && (g.good == nil || g.good(life)), Failed: done.fails}
	w := &g.w
	w.Samples = append(w.Samples, s)
	if done.fails {
		w.Failed++
		return
	}
	if s.Good {
		w.OK++
	} else {
		w.Abandoned++
	}
	w.Timed++
	w.Cost += done.cost
	w.LatencySum += life
	w.Latencies = append(w.Latencies, life)
}

// price is what a job costs now: as a gate does, it takes what costs more than the limit for as much as the limit.
func (g *world) price() int64 { return max(1, min(g.cost, g.d.Limit)) }

// full reports whether no more work fits into the limit.
func (g *world) full() bool { return g.used+g.price() > g.d.Limit }

// window lets time pass until the next decision.
func (g *world) window() {
	w, end, before := &g.w, g.now+g.d.Next, g.area
	for g.now < end {
		for !g.full() && (g.demand == 0 || int64(len(g.inside)) < g.demand) {
			g.admit()
		}
		next := min(end, g.inside[0].end)
		g.area += float64(g.used) * float64(next-g.now)
		if g.full() {
			w.Saturated += next - g.now
		}
		if g.now = next; next == g.inside[0].end {
			g.finish()
		}
	}
	w.Now, w.Elapsed, w.Limit, w.InFlight = g.now, g.now-g.start, g.d.Limit, g.used
	w.MeanInFlight = (w.MeanInFlight*float64(w.Elapsed-g.d.Next) + g.area - before) / float64(w.Elapsed)
	seen := *w
	seen.Samples = nil
	for i := 0; i < len(w.Samples); i += 1 + len(w.Samples)/512 {
		seen.Samples = append(seen.Samples, w.Samples[i])
	}
	seen.Latencies = slices.Sorted(slices.Values(w.Latencies[max(0, len(w.Latencies)-512):]))
	g.d = g.k.Update(&seen)
	if g.decided != nil {
		g.decided(g.d)
	}
	if !g.d.Extend {
		*w, g.start = Window{}, g.now
	}
}

// run lets time pass and returns the mean of what is believed best over the
// second half.
func (g *world) run(length time.Duration) float64 {
	var sum, count float64
	for begin := g.now; g.now < begin+length; {
		if g.window(); g.now > begin+length/2 {
			sum, count = sum+g.k.Save().Limit, count+1
		}
	}
	return sum / count
}

func TestKneeFindsTheKnee(t *testing.T) {
	for _, places := range []int{4, 20, 100} {
		for _, from := range []float64{0, 2, 10 * float64(places)} { // 0: from a cold start
			g := newWorld(t, KneeConfig{}, places)
			g.k.Restore(State{Limit: from})
			g.d = g.k.Start()
			got := g.run(80*time.Second) / float64(places)
			if got < 0.85 || got > 1.6 {
				t.Errorf("%d places, from %v: %.2f times as many", places, from, got)
			}
		}
	}
}

// A backend that changes is followed, in both directions.
func TestKneeFollows(t *testing.T) {
	for _, places := range []int{10, 90} {
		g := newWorld(t, KneeConfig{}, 30)
		g.run(30 * time.Second)
		g.resize(places)
		got := g.run(80*time.Second) / float64(places)
		if got < 0.85 || got > 1.6 {
			t.Errorf("from 30 to %d places: %.2f times as many", places, got)
		}
	}
}

// What holds of every decision, whatever happens.
func TestKneeDecides(t *testing.T) {
	at := map[string]func(*world){
		"full use": func(*world) {},
		"unused":   func(g *world) { g.demand = 1 },
		"late":     func(g *world) { g.good = func(d time.Duration) bool { return d <= 20*ms } },
		"failing":  func(g *world) { g.failing = true },
		"nothing":  func(g *world) { g.resize(1); g.free[0] = time.Hour },
	}
	for name, set := range at {
		g := newWorld(t, KneeConfig{Min: 3, Max: 300}, 40)
		again := newWorld(t, KneeConfig{Min: 3, Max: 300}, 40)
		set(g)
		set(again)
		var all []Decision
		g.decided = func(d Decision) {
			all = append(all, d)
			if d.Reason == "" || d.Limit < 3 || d.Limit > 300 || d.Next < kneeShortest/2 || d.Next > kneeLongest || d.Signal != "" {
				t.Errorf("%s: %+v", name, d)
			}
			if d.Extend && g.k.(*Knee).mode != climbing {
				t.Errorf("%s: extends while it does not climb: %+v", name, d)
			}
		}
		again.decided = func(d Decision) {
			if d != all[0] {
				t.Fatalf("%s: %+v, and before %+v", name, d, all[0])
			}
			all = all[1:]
		}
		g.run(30 * time.Second)
		again.run(30 * time.Second)
	}
}

// An idle service does not drift, at whatever limit and for however long.
func TestKneeUnsaturatedWindowsChangeNothing(t *testing.T) {
	for _, limit := range []float64{2, 100} {
		k := kneeAt(t, limit)
		for i := range 2000 {
			now := time.Duration(i) * 100 * ms
			w := answers(k, now, time.Duration(1+i%7)*ms, 50, 1)
			w.Saturated = time.Duration(kneeSaturated*float64(w.Elapsed)) - 1
			if i%3 == 0 {
				w.Abandoned = 40
			}
			d := k.Update(w)
			if !near(k, limit) || d.Reason != "not in full use" || k.mode != tracking {
				t.Fatalf("window %d: %+v, limit %v", i, d, k.Save().Limit)
			}
		}
	}
	k, _ := NewKnee(KneeConfig{})
	for i := range 2000 {
		w := answers(k, time.Duration(i)*100*ms, ms, 50, 1)
		w.Saturated = 0
		if d := k.Update(w); d.Limit != 20 || d.Extend {
			t.Fatalf("cold, window %d: %+v", i, d)
		}
	}
}

// Answers that fail at once are neither throughput nor a short service.
func TestKneeFailingFastRaisesNothing(t *testing.T) {
	for name, cfg := range map[string]State{"cold": {}, "at 40": {Limit: 40}} {
		g := newWorld(t, KneeConfig{}, 40)
		g.k.Restore(cfg)
		g.d = g.k.Start()
		limit := g.k.Save().Limit
		g.failing = true
		g.decided = func(d Decision) {
			if got := g.k.Save().Limit; got > limit*(1+1e-9) {
				t.Fatalf("%s: to %v from %v at %v: %+v", name, got, limit, g.now, d)
			}
		}
		g.run(20 * time.Second)
	}
	g := newWorld(t, KneeConfig{}, 40) // and in the middle of it
	before := g.run(30 * time.Second)
	g.failing = true
	if after := g.run(20 * time.Second); after > 1.2*before {
		t.Errorf("from %.1f to %.1f", before, after)
	}
}

func TestKneeRestores(t *testing.T) {
	for limit, want := range map[float64]float64{100: 100, 33.3: 33.3, 1: 2, 1e9: 10_000, 20: 20, 20.4: 20, 0: 20, 0.9: 20, -5: 20,
		math.NaN(): 20, math.Inf(-1): 20, math.Inf(1): 10_000} {
		k, _ := NewKnee(KneeConfig{})
		k.Restore(State{Limit: limit})
		if got := k.Save().Limit; math.Abs(got-want) > 1e-6 {
			t.Errorf("of %v: %v, want %v", limit, got, want)
		}
		learned := want != 20
		if (k.mode == tracking) != learned {
			t.Errorf("of %v: mode %v", limit, k.mode)
		}
		if d := k.Start(); math.Abs(math.Log(float64(d.Limit)/want)) > ditherBy+0.02 && want > 2 {
			t.Errorf("of %v: starts at %d", limit, d.Limit)
		}
	}
	// What equals Initial says nothing: it climbs on.
	g := newWorld(t, KneeConfig{Initial: 5}, 200)
	g.k.Restore(State{Limit: 5})
	if got := g.run(20 * time.Second); got < 150 {
		t.Errorf("20 s after a restart it is at %.1f of 200", got)
	}
}

// A long climb in steps, and none beyond what brings throughput.
func TestKneeClimbsInSteps(t *testing.T) {
	g := newWorld(t, KneeConfig{Initial: 5}, 200)
	steps, took := 0, time.Duration(0)
	g.decided = func(d Decision) {
		if strings.Contains(d.Reason, "a step up") && !strings.Contains(d.Reason, "waiting") {
			steps++
		}
		if g.k.(*Knee).mode == tracking && took == 0 {
			took = g.now
			if got := g.k.Save().Limit; got < 180 || got > 330 {
				t.Errorf("the climb ends at %.1f of 200", got)
			}
		}
	}
	g.run(20 * time.Second)
	if steps < 7 || steps > 8 || took > 3*time.Second {
		t.Errorf("%d steps in %v", steps, took)
	}
}

// Both limits are tried in turn, around what is believed best.
func TestKneeDithers(t *testing.T) {
	g := newWorld(t, KneeConfig{}, 50)
	g.k.Restore(State{Limit: 50})
	g.d = g.k.Start()
	var low, high int
	g.decided = func(d Decision) {
		at := g.k.Save().Limit
		switch {
		case float64(d.Limit) < at:
			low++
		case float64(d.Limit) > at:
			high++
		}
		if off := math.Abs(math.Log(float64(d.Limit) / at)); off < ditherBy-0.05 || off > ditherBy+0.05 {
			t.Errorf("%d around %.1f", d.Limit, at)
		}
	}
	g.run(30 * time.Second)
	if r := float64(low) / float64(high); r < 0.7 || r > 1.4 {
		t.Errorf("%d windows low, %d high", low, high)
	}
	k := kneeAt(t, 2) // next to each other they still differ
	if k.high = false; k.decide("low").Limit != 2 {
		t.Errorf("%+v", k.decide("low"))
	}
	if k.high = true; k.decide("high").Limit != 3 {
		t.Errorf("%+v", k.decide("high"))
	}
}

func TestKneeWindowsLastTwoServices(t *testing.T) {
	for mean, want := range map[float64]time.Duration{0: 50 * ms, 0.001: 50 * ms, 0.1: 200 * ms, 0.5: time.Second, 1e300: time.Second} {
		k := kneeAt(t, 50)
		if k.mean = mean; k.next() != want {
			t.Errorf("of %v s: %v, want %v", mean, k.next(), want)
		}
	}
	k := kneeAt(t, 50)
	k.mode, k.mean = settling, 0.1
	if k.next() != 120*ms {
		t.Errorf("settles for %v", k.next())
	}
}

func TestKneeBounds(t *testing.T) {
	_, err := NewKnee(KneeConfig{Initial: -1, Min: -2, Max: -3})
	for _, want := range []string{"knee", "Initial: is -1", "Min: is -2", "Max: -3 will not do"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want it to say %q", err, want)
		}
	}
	k, err := NewKnee(KneeConfig{Initial: 1 << 40, Max: 500})
	if err != nil || k.Start().Limit != 500 || k.Name() != "knee" {
		t.Errorf("%+v, %v", k.Start(), err)
	}
}
