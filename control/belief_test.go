package control

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"
)

func newBelief(t *testing.T, cfg BeliefConfig) *Belief {
	t.Helper()
	b, err := NewBelief(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// From anywhere, it comes to the places that there are.
func TestBeliefFindsTheLimit(t *testing.T) {
	for _, places := range []int{4, 20, 100} {
		for _, from := range []float64{0, 2, 10 * float64(places)} { // 0: from a cold start
			g := worldOf(newBelief(t, BeliefConfig{}), places)
			g.k.Restore(State{Limit: from})
			g.d = g.k.Start()
			if got := g.run(60*time.Second) / float64(places); got < 0.85 || got > 1.6 {
				t.Errorf("%d places, from %v: %.2f times as many", places, from, got)
			}
		}
	}
}

// A backend that changes is followed, in both directions.
func TestBeliefFollows(t *testing.T) {
	for _, places := range []int{10, 90} {
		g := worldOf(newBelief(t, BeliefConfig{}), 30)
		g.run(30 * time.Second)
		g.resize(places)
		if got := g.run(80*time.Second) / float64(places); got < 0.85 || got > 1.6 {
			t.Errorf("from 30 to %d places: %.2f times as many", places, got)
		}
	}
}

// What holds of every decision, whatever happens.
func TestBeliefDecides(t *testing.T) {
	at := map[string]func(*world){
		"full use": func(*world) {},
		"unused":   func(g *world) { g.demand = 1 },
		"late":     func(g *world) { g.good = func(d time.Duration) bool { return d <= 20*ms } },
		"failing":  func(g *world) { g.failing = true },
		"nothing":  func(g *world) { g.resize(1); g.free[0] = time.Hour },
	}
	for name, set := range at {
		g := worldOf(newBelief(t, BeliefConfig{Min: 3, Max: 300}), 40)
		again := worldOf(newBelief(t, BeliefConfig{Min: 3, Max: 300}), 40)
		set(g)
		set(again)
		var all []Decision
		g.decided = func(d Decision) {
			all = append(all, d)
			if d.Reason == "" || d.Limit < 3 || d.Limit > 300 || d.Next < time.Millisecond || d.Next > 2*kneeLongest || d.Signal != "" {
				t.Errorf("%s: %+v", name, d)
			}
		}
		again.decided = func(d Decision) {
			if d != all[0] {
				t.Fatalf("%s: %+v, and before %+v", name, d, all[0])
			}
			all = all[1:]
		}
		g.run(20 * time.Second)
		again.run(20 * time.Second)
	}
}

// Work that is late pulls the limit down as far as that helps, and no further.
func TestBeliefWeighsLateness(t *testing.T) {
	g := worldOf(newBelief(t, BeliefConfig{}), 20)
	g.good = func(life time.Duration) bool { return life <= 45*ms }
	if got := g.run(60 * time.Second); got < 15 || got > 36 {
		t.Errorf("%.1f of 20 places, where two in a row are late", got)
	}
	h := worldOf(newBelief(t, BeliefConfig{}), 20)
	i := 0
	h.good = func(time.Duration) bool { i++; return i%4 != 0 } // one in four, whatever the limit
	if got := h.run(60 * time.Second); got < 15 {
		t.Errorf("%.1f of 20 places, where clients leave on purpose", got)
	}
}

// An idle service does not drift.
func TestBeliefStaysWhenIdle(t *testing.T) {
	b := newBelief(t, BeliefConfig{})
	b.Restore(State{Limit: 50})
	before := b.Save()
	for i := range 2000 {
		now := time.Duration(i+1) * 100 * ms
		d := b.Update(&Window{Now: now, Elapsed: 100 * ms, Limit: 50, MeanInFlight: 3, OK: 20, Timed: 1, LatencySum: ms,
			Latencies: []time.Duration{ms}, Samples: []Sample{{Start: now - 5*ms, Latency: ms, Concurrency: 3, Good: true}}})
		if d.Limit != 50 || d.Reason != "not in full use" {
			t.Fatalf("window %d: %+v", i, d)
		}
	}
	if after := b.Save(); after != before {
		t.Errorf("%+v became %+v", before, after)
	}
}

// Answers that fail at once are neither throughput nor a short service.
func TestBeliefFailingFastRaisesNothing(t *testing.T) {
	g := worldOf(newBelief(t, BeliefConfig{}), 40)
	before := g.run(30 * time.Second)
	g.failing = true
	if after := g.run(20 * time.Second); after > 1.2*before {
		t.Errorf("from %.1f to %.1f", before, after)
	}
}

func TestBeliefRestores(t *testing.T) {
	for limit, want := range map[float64]float64{100: 100, 33.3: 33.3, 1: 2, 1e9: 10_000, 20: 20, 20.4: 20, 0: 20, 0.9: 20, -5: 20,
		math.NaN(): 20, math.Inf(-1): 20, math.Inf(1): 10_000} {
		b := newBelief(t, BeliefConfig{})
		b.Restore(State{Limit: limit})
		if got := b.Save().Limit; math.Abs(got/want-1) > 1e-6 {
			t.Errorf("of %v: %v, want %v", limit, got, want)
		}
		if learned := want != 20; (b.mode == tracking) != learned {
			t.Errorf("of %v: mode %v", limit, b.mode)
		}
	}
	// What it knew is known after a restart, also at a limit that equals Initial.
	g := worldOf(newBelief(t, BeliefConfig{}), 20)
	g.run(30 * time.Second)
	state := g.k.Save()
	b := newBelief(t, BeliefConfig{Initial: int64(math.Round(state.Limit))})
	b.Restore(state)
	old, now := g.k.(*Belief).laws.gist(), b.laws.gist()
	if b.mode != tracking || math.Abs(math.Log(now.low/old.low)) > 0.7 || math.Abs(math.Log(now.high/old.high)) > 0.7 {
		t.Errorf("%+v became %+v", old, now)
	}
	// Laws that cannot be read are as good as none.
	b.Restore(State{Limit: 70, Laws: "nonsense"})
	if got := b.Save().Limit; math.Abs(got-70) > 1e-6 {
		t.Errorf("%v", got)
	}
}

// Whatever it is told, no number sticks that is none.
func TestBeliefIsNeverLost(t *testing.T) {
	odd := []float64{math.NaN(), math.Inf(1), math.Inf(-1), 0, -1, 1e300}
	g := worldOf(newBelief(t, BeliefConfig{}), 30)
	g.run(20 * time.Second)
	b := g.k.(*Belief)
	for i := range 500 {
		x := odd[i%len(odd)]
		g.now += g.d.Next
		w := &Window{Now: g.now, Elapsed: g.d.Next, Limit: g.d.Limit, MeanInFlight: x, Saturated: g.d.Next, OK: 10, Timed: 10, LatencySum: 10 * ms}
		for range 20 {
			w.Latencies = append(w.Latencies, time.Duration(i%3)*1e9)
			w.Samples = append(w.Samples, Sample{Start: g.now - ms, Latency: []time.Duration{0, math.MaxInt64, -5, ms}[i%4], Concurrency: odd[(i/7)%len(odd)], Good: i%2 == 0})
		}
		g.d = b.Update(w)
	}
	g.start = g.now
	for i := range g.free {
		g.free[i] = g.now
	}
	g.inside, g.used = nil, 0
	if got := g.run(60 * time.Second); !(got > 20 && got < 50) {
		t.Errorf("%.1f of 30 places after nonsense", got)
	}
}

func TestBeliefBounds(t *testing.T) {
	_, err := NewBelief(BeliefConfig{Initial: -1, Min: -2, Max: -3})
	for _, want := range []string{"belief", "Initial: is -1", "Min: is -2", "Max: -3"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want it to say %q", err, want)
		}
	}
	for _, cfg := range []BeliefConfig{{Min: 1, Max: 1}, {Min: 10_000}, {Initial: 1 << 40, Max: 500}, {Min: 20_000, Max: 1 << 30}} {
		g := worldOf(newBelief(t, cfg), 7)
		low, high := max(1, cfg.Min), cfg.Max
		g.decided = func(d Decision) {
			if d.Limit < low || high > 0 && d.Limit > high {
				t.Fatalf("%+v: %+v", cfg, d)
			}
		}
		g.run(200 * time.Millisecond)
	}
}

// It fits where there is one for each of a hundred thousand keys, and a look costs next to nothing.
func TestBeliefIsSmall(t *testing.T) {
	if size := unsafe.Sizeof(Belief{}); size > 4096 {
		t.Errorf("%d bytes", size)
	}
	g := worldOf(newBelief(t, BeliefConfig{}), 30)
	g.run(5 * time.Second)
	b := g.k.(*Belief)
	seen := Window{Limit: g.d.Limit, MeanInFlight: 30, OK: 40, Timed: 40, LatencySum: 800 * ms, Latencies: []time.Duration{20 * ms}}
	for range 40 {
		seen.Samples = append(seen.Samples, Sample{Latency: 20 * ms, Concurrency: 30, Good: true})
	}
	now, next := g.now, g.d.Next
	if n := testing.AllocsPerRun(200, func() {
		now += next
		seen.Now, seen.Elapsed, seen.Saturated = now, next, next
		for i := range seen.Samples {
			seen.Samples[i].Start = now - 20*ms
		}
		next = b.Update(&seen).Next
	}); n > 6 { // what it says in words
		t.Errorf("%v allocations", n)
	}
}

// The reason says what is believed.
func TestBeliefSaysWhatItBelieves(t *testing.T) {
	g := worldOf(newBelief(t, BeliefConfig{}), 30)
	said := ""
	g.decided = func(d Decision) {
		if strings.Contains(d.Reason, "95 %") {
			said = d.Reason
		}
	}
	g.run(60 * time.Second)
	if !strings.Contains(said, "about") || !strings.Contains(said, "95 % sure the best limit is between ") {
		t.Errorf("%q", said)
	}
	if b := g.k.(*Belief).laws.gist(); b.low > 31 || b.high < 29 {
		t.Errorf("%+v, of 30 places", b)
	}
}

// A look at a window, of which every other ends a stretch.
func BenchmarkBelief(b *testing.B) {
	c, err := NewBelief(BeliefConfig{})
	if err != nil {
		b.Fatal(err)
	}
	c.Restore(State{Limit: 40})
	d, now, w := c.Start(), time.Duration(0), Window{}
	b.ReportAllocs()
	for b.Loop() {
		now += d.Next
		life := time.Duration(10+d.Limit/3) * ms
		w = Window{Now: now, Elapsed: d.Next, Saturated: d.Next, Limit: d.Limit, MeanInFlight: float64(d.Limit),
			OK: 100, Timed: 100, LatencySum: 100 * life, Samples: w.Samples[:0], Latencies: w.Latencies[:0]}
		for i := range 100 {
			taken := life + time.Duration(i%7-3)*ms
			w.Samples = append(w.Samples, Sample{Start: now - taken, Latency: taken, Concurrency: float64(d.Limit), Good: true})
			w.Latencies = append(w.Latencies, taken)
		}
		d = c.Update(&w)
	}
}

// What it believes is told in numbers too, from the end of the climb on.
func TestBeliefEstimates(t *testing.T) {
	g := worldOf(newBelief(t, BeliefConfig{}), 30)
	var last Estimate
	g.decided = func(d Decision) {
		last = d.Estimate
		if d.Estimate != (Estimate{}) && !sensible(d.Estimate) {
			t.Fatalf("%+v", d)
		}
	}
	g.run(60 * time.Second)
	if !slices.Contains(Shapes(), last.Shape) || last.Low > 31 || last.High < 29 || last.Best < 25 || last.Best > 48 || last.Loss > 0.2 {
		t.Errorf("%+v, of 30 places", last)
	}
	if d := newBelief(t, BeliefConfig{}).Start(); d.Estimate != (Estimate{}) {
		t.Errorf("before anything was seen: %+v", d)
	}
}

// sensible reports whether an estimate is one: numbers, in order.
func sensible(e Estimate) bool {
	return slices.Contains(Shapes(), e.Shape) && e.Size >= 1 && e.Best >= 1 && e.Low > 0 && e.Low <= e.High && e.High < 1e6 && e.Loss >= 0 && e.Loss <= 1
}

// After a change of settings it goes on where it was, also in the middle of a climb, and
// whether or not there is a cap.
func TestBeliefSucceeds(t *testing.T) {
	for _, when := range []time.Duration{200 * ms, 30 * time.Second} {
		g := worldOf(newBelief(t, BeliefConfig{}), 60)
		g.run(when)
		before := *g.k.(*Belief)
		next := newBelief(t, BeliefConfig{Initial: 7, Max: 5000})
		capped, err := NewCapped(g.k, CapConfig{})
		if err != nil {
			t.Fatal(err)
		}
		if !next.Succeed(capped) {
			t.Fatal("it does not succeed another of its kind")
		}
		after := *next
		after.cfg = before.cfg
		if after != before || next.cfg.Max != 5000 {
			t.Errorf("after %v something else is known", when)
		}
		again, err := NewCapped(newBelief(t, BeliefConfig{}), CapConfig{})
		if err != nil {
			t.Fatal(err)
		}
		if !again.Succeed(next) || again.Start().Limit != next.Start().Limit {
			t.Errorf("under a cap: %+v, want %+v", again.Start(), next.Start())
		}
		g.k = next
		if got := g.run(60*time.Second) / 60; got < 0.85 || got > 1.6 {
			t.Errorf("a change after %v: %.2f times the 60 places", when, got)
		}
	}
	low := newBelief(t, BeliefConfig{Max: 5})
	before := worldOf(newBelief(t, BeliefConfig{}), 60)
	before.run(10 * time.Second)
	if !low.Succeed(before.k) || low.Start().Limit > 5 {
		t.Errorf("%+v: above its bound", low.Start())
	}
	knee, err := NewKnee(KneeConfig{})
	if err != nil {
		t.Fatal(err)
	}
	fresh := newBelief(t, BeliefConfig{})
	if was := *fresh; fresh.Succeed(knee) || *fresh != was {
		t.Error("it goes on where a knee was")
	}
}

// boundBy is a Capped whose signal says what high says.
type boundBy struct {
	*Capped
	high *bool
}

func (b boundBy) Update(w *Window) Decision {
	pressure := 0.5
	if *b.high {
		pressure = min(1.5, float64(w.Limit)/12)
	}
	w.Readings = []Reading{{Name: "memory", Value: pressure, Known: true}}
	return b.Capped.Update(w)
}

// A signal that binds for minutes neither raises what is believed best nor blurs it.
func TestBeliefUnderACap(t *testing.T) {
	b, high := newBelief(t, BeliefConfig{}), false
	capped, err := NewCapped(b, CapConfig{})
	if err != nil {
		t.Fatal(err)
	}
	g := worldOf(boundBy{capped, &high}, 40)
	before := g.run(30 * time.Second)
	high = true
	g.run(5 * time.Minute)
	e := g.d.Estimate
	if g.d.Limit > 14 || e.Best > 1.5*before || e.High > 6*e.Low {
		t.Errorf("under a cap of 12: %+v; before it %.1f was best", g.d, before)
	}
	high = false
	if after := g.run(30 * time.Second); math.Abs(math.Log(after/before)) > 0.5 {
		t.Errorf("after the cap %.1f, before it %.1f", after, before)
	}
}

// Where more slots bring nothing it does not go and look again and again: that would let in
// what should wait in order.
func TestBeliefGoesUpForAReason(t *testing.T) {
	const places = 100
	g := worldOf(newBelief(t, BeliefConfig{}), places)
	queue := queueOf(places)
	g.serve = func(g *world) time.Duration {
		return queue(g.now, time.Duration(g.random.ExpFloat64()*float64(100*ms)))
	}
	g.run(60 * time.Second)
	var far, all int
	g.decided = func(d Decision) {
		all++
		if d.Limit > 2*places {
			far++
		}
	}
	mean := g.run(20 * time.Minute)
	t.Logf("%.1f on average, %d of %d windows above %d", mean, far, all, 2*places)
	if mean > 1.25*places || far > all/100 {
		t.Errorf("%.1f of %d places on average, and above %d in %d of %d windows", mean, places, 2*places, far, all)
	}
}

// Few inside say how fast work is alone. When the first slots are all in use, that tells a small pool
// from a large one at once.
func TestBeliefKnowsASmallPoolFromItsFirstWork(t *testing.T) {
	const service = 200 * ms
	for _, places := range []int{4, 200} {
		wait := queueOf(places)
		g := worldOf(newBelief(t, BeliefConfig{}), 0)
		g.serve = func(g *world) time.Duration {
			return wait(g.now, time.Duration(g.random.ExpFloat64()*float64(service)))
		}
		g.demand = 3
		for g.now < 6*service {
			g.window()
		}
		g.demand = 0
		highest := int64(0)
		g.decided = func(d Decision) { highest = max(highest, d.Limit) }
		got := g.run(8 * time.Second)
		if small := places < 20; small && (highest > 20 || got > 15) || !small && highest < 100 {
			t.Errorf("%d places: up to %d slots, %.1f in the end", places, highest, got)
		}
	}
}

// What is seen on the way to a limit that is nearly reached is not how fast work is alone.
func TestBeliefTakesFewInsideForFew(t *testing.T) {
	for inside, want := range map[float64]bool{3: true, 10: true, 12: false, 19: false} {
		b := newBelief(t, BeliefConfig{})
		b.Update(&Window{Now: time.Second, Elapsed: time.Second, Limit: 20, MeanInFlight: inside, OK: 1, Timed: 1, LatencySum: 20 * ms,
			Latencies: []time.Duration{20 * ms}, Samples: []Sample{{Start: 900 * ms, Latency: 20 * ms, Concurrency: inside, Good: true}}})
		if got := b.origin.n > 0; got != want {
			t.Errorf("with %v of 20 inside: %v", inside, got)
		}
	}
}

// A count that is shorter than work takes is one of the quick work, however much of that there is.
func TestBeliefCountsForAsLongAsWorkTakes(t *testing.T) {
	b := newBelief(t, BeliefConfig{})
	for i, tt := range []struct {
		counted time.Duration
		extend  bool
	}{{time.Second, false}, {time.Second, false}, {time.Second, true}, {2 * time.Second, true}, {3 * time.Second, false}} {
		n := int64(50 * tt.counted.Seconds())
		d := b.Update(&Window{Now: time.Duration(i+1) * time.Second, Elapsed: tt.counted, Limit: 20, MeanInFlight: 20, InFlight: 20, Saturated: tt.counted,
			OK: n, Timed: n, LatencySum: time.Duration(n) * 5 * time.Second / 2, Latencies: []time.Duration{5 * time.Second / 2}})
		if d.Extend != tt.extend {
			t.Errorf("%v: %+v", tt.counted, d)
		}
	}
}

// Of work that is watched from its first moments, the times of what has ended say too little, and the time of slots for each that has
// ended says too much. What is made of both is seldom worse than the better one.
func TestOutset(t *testing.T) {
	for name, takes := range map[string]func(r *rand.Rand) float64{
		"all alike":   func(*rand.Rand) float64 { return 0.9 },
		"exponential": func(r *rand.Rand) float64 { return r.ExpFloat64() },
		"log-normal":  func(r *rand.Rand) float64 { return math.Exp(1.5*r.NormFloat64() - 1.125) },
	} {
		const rounds = 300
		var times, slots, both float64 // how far they are from the truth, in ln
		truth := 0.0
		if name == "all alike" {
			truth = -math.Log(0.9)
		}
		r := rand.New(rand.NewPCG(1, 2))
		for range rounds {
			var o outset
			for range 6 { // slots, for two service times each
				for at := 0.0; at < 2; {
					took := takes(r)
					o.slots += min(took, 2-at)
					if at += took; at <= 2 {
						o.add(Sample{Latency: time.Duration(took * float64(time.Second)), Concurrency: 6, Good: true}, 0)
						o.ended++
					}
				}
			}
			_, speed, _ := o.seen()
			_, alone, _ := o.stretch.seen()
			times += math.Abs(alone-truth) / rounds
			slots += math.Abs(math.Log(o.ended/o.slots)-truth) / rounds
			both += math.Abs(speed-truth) / rounds
		}
		t.Logf("%s: off by %.2f by times, %.2f by slots, %.2f by both", name, times, slots, both)
		if both > 1.25*min(times, slots)+0.05 || both > 0.7*max(times, slots) {
			t.Errorf("%s: off by %.2f, by times alone %.2f and by slots alone %.2f", name, both, times, slots)
		}
	}
}
