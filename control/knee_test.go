package control

import (
	"math"
	"strings"
	"testing"
	"time"
)

// stretch is an arm in which n jobs finished that shared the backend with
// inside others and took so long; good of ten were of use.
func stretch(n int, inside, seconds float64, good int) arm {
	var a arm
	for i := range n {
		a.add(Sample{Latency: time.Duration(seconds * 1e9), Concurrency: inside, Good: i%10 < good}, 0)
	}
	return a
}

// By Little's law throughput is n/W: the elasticity is 1 where W stays as it is,
// and about 0 where it grows as n does. Slopes are taken against the mean of all
// three stretches.
func TestContrast(t *testing.T) {
	for _, tt := range []struct {
		name string
		high arm
		e    float64
	}{
		{"twice as much in the same time", stretch(100, 20, .1, 10), 1},
		{"twice as long: a queue", stretch(100, 20, .2, 10), 1 - .1/(.4/3)/math.Ln2},
		{"half as much again, half as long again", stretch(100, 15, .15, 10), 1 - .05/(.35/3)/math.Log(1.5)},
		{"half as many of use", stretch(100, 20, .1, 5), 1 - .5/(2.5/3)/math.Ln2},
	} {
		low := stretch(100, 10, .1, 10)
		e, variance, ok := contrast(&low, &tt.high, &low)
		if !ok || math.Abs(e-tt.e) > 1e-6 || !(variance > 0) {
			t.Errorf("%s: %v (variance %v, %v), want %v", tt.name, e, variance, ok, tt.e)
		}
	}
}

func TestContrastNeedsSomethingToCompare(t *testing.T) {
	low, few, same, useless := stretch(100, 10, .1, 10), stretch(2, 20, .1, 10), stretch(100, 10.1, .1, 10), stretch(100, 20, .1, 0)
	if _, _, ok := contrast(&low, &few, &low); ok {
		t.Error("two jobs are taken for a stretch")
	}
	if _, _, ok := contrast(&low, &same, &low); ok {
		t.Error("stretches of the same concurrency are compared")
	}
	if _, _, ok := contrast(&useless, &useless, &useless); ok {
		t.Error("stretches without a good answer are compared")
	}
}

// What drifts alike in all stretches cancels.
func TestContrastCancelsDrift(t *testing.T) {
	a, b, c := stretch(100, 10, .10, 10), stretch(100, 15, .11, 10), stretch(100, 10, .12, 10)
	if e, _, ok := contrast(&a, &b, &c); !ok || math.Abs(e-1) > 1e-6 {
		t.Errorf("%v (%v), want 1: only time has made it slower", e, ok)
	}
}

// Work counts in the stretch in which it was admitted, whenever it ends.
func TestCredit(t *testing.T) {
	arms := []arm{{from: 1 * time.Second}, {from: 2 * time.Second}}
	credit(arms, []Sample{
		{Start: 500 * time.Millisecond, Latency: time.Second}, // before both
		{Start: 1500 * time.Millisecond, Latency: time.Minute, Good: true},
		{Start: 2 * time.Second, Latency: time.Second},
	}, 2)
	if arms[0].n != 1 || arms[1].n != 1 || arms[0].cost != 2 || arms[0].whole != 0 || arms[1].whole != 1 || arms[0].good != 1 || arms[1].good != 0 {
		t.Errorf("%+v", arms)
	}
}

// The filter moves towards where the elasticity equals the price; the surer it
// is, the less; and a great surprise opens it again.
func TestGapLearns(t *testing.T) {
	g := newGap()
	up := g.learn(.5, .01)
	if up <= 0 || up > largest {
		t.Errorf("moved by %v for an elasticity above the price", up)
	}
	for range 50 {
		g.learn(0, .01)
	}
	sure := g.variance
	if sure >= openGap/4 {
		t.Errorf("variance %v after fifty measurements, was %v", sure, openGap)
	}
	if down := g.learn(-.1, .01); down >= 0 || -down > up {
		t.Errorf("moved by %v", down)
	}
	if move := g.learn(-50, .01); move != -largest || g.variance <= sure {
		t.Errorf("a great surprise moved it by %v, variance %v", move, g.variance)
	}
	g = newGap()
	if move := g.learn(.5, 1e9); math.Abs(move) > 1e-6 {
		t.Errorf("a measurement that says nothing moved it by %v", move)
	}
}

// A change shows in two windows in a row on the same side, in either arm.
func TestShiftTakesTwoWindows(t *testing.T) {
	for _, tt := range []struct {
		name   string
		values []float64
		want   []int
	}{
		{"steady", []float64{1, 1.1, .9, 1}, []int{0, 0, 0, 0}},
		{"one outlier", []float64{1, 3, 1, 3}, []int{0, 0, 0, 0}},
		{"faster", []float64{1, 3, 3, 3}, []int{0, 0, 1, 0}},
		{"slower", []float64{3, 1, 1, 1}, []int{0, 0, -1, 0}},
		{"up and down", []float64{2, 4, 0, 4, 0}, []int{0, 0, 0, 0, 0}},
	} {
		var s shift
		for i, v := range tt.values {
			if got := s.observe(0, v, .05); got != tt.want[i] {
				t.Errorf("%s: value %d: %d, want %d", tt.name, i, got, tt.want[i])
			}
		}
	}
}

// knee returns one that compares, from the given limit on.
func knee(t *testing.T, limit float64) *Knee {
	t.Helper()
	k, err := NewKnee(KneeConfig{})
	if err != nil {
		t.Fatal(err)
	}
	k.Restore(State{Limit: limit})
	if k.mode != tracking {
		t.Fatal("a restored limit is not in force at once")
	}
	return k
}

// full is a window of a second in which no slot was free.
func full(now time.Duration, ok, overload int64) *Window {
	return &Window{Now: now, Elapsed: time.Second, Saturated: time.Second, OK: ok, Overload: overload, Timed: ok + overload,
		LatencySum: time.Duration(ok+overload) * 10 * time.Millisecond, Latencies: []time.Duration{10 * time.Millisecond}}
}

func TestKneeCuts(t *testing.T) {
	for _, tt := range []struct {
		name         string
		ok, overload int64
		windows      int
		factor       float64 // of the limit
	}{
		{"too few to tell", 0, cutCount - 1, 1, 1},
		{"nearly all good", 90, 10, 3, 1},
		{"most of no use", 40, 60, 1, math.Exp(-cutBy)},
		{"again and again, while some is good", 40, 60, 20, math.Exp(-mostCuts * cutBy)},
		{"nothing good", 0, 10, 30, 0}, // to Min
	} {
		k := knee(t, 100)
		var d Decision
		for i := range tt.windows {
			d = k.Update(full(time.Duration(i+1)*time.Second, tt.ok, tt.overload))
		}
		if got, want := math.Exp(k.at), max(100*tt.factor, 2); math.Abs(got-want) > 1e-6*want {
			t.Errorf("%s: %v (%s), want %v", tt.name, got, d.Reason, want)
		}
	}
}

// Failing fast is neither useful nor a sign of too much; refusals are nothing.
func TestKneeIsNotFooledByFailures(t *testing.T) {
	k := knee(t, 100)
	for i := range 50 {
		w := full(time.Duration(i+1)*time.Second, 0, 0)
		w.Failed, w.Refused = 10_000, 10_000
		for range 500 {
			w.Samples = append(w.Samples, Sample{Start: w.Now - time.Second, Latency: time.Millisecond, Concurrency: 100})
		}
		k.Update(w)
	}
	if got := math.Exp(k.at); got > 101 {
		t.Errorf("failing fast raised the limit from 100 to %v", got)
	}
}

// When good answers come back after there were none, it climbs from where it is.
func TestKneeComesBackFromABrownOut(t *testing.T) {
	k := knee(t, 100)
	for i := range 30 {
		k.Update(full(time.Duration(i+1)*time.Second, 0, 10))
	}
	d := k.Update(full(31*time.Second, 10, 0))
	if k.mode == tracking || d.Reason != "good answers again" {
		t.Errorf("it goes on comparing at %d: %s", d.Limit, d.Reason)
	}
}

// Idle or half used windows change nothing, however many there are.
func TestKneeDoesNotDriftUnused(t *testing.T) {
	k := knee(t, 100)
	for i := range 1000 {
		w := full(time.Duration(i+1)*time.Second, 50, 20)
		w.Saturated = w.Elapsed / 2
		k.Update(w)
	}
	if got := k.Save().Limit; math.Abs(got-100) > 1e-9 {
		t.Errorf("drifted from 100 to %v", got)
	}
}

// From a cold start it goes up while throughput follows, and stops where it does
// not: before a pool of 200 workers, some way around 200.
func TestKneeClimbs(t *testing.T) {
	k, err := NewKnee(KneeConfig{})
	if err != nil {
		t.Fatal(err)
	}
	d := k.Start()
	now, windows := time.Duration(0), 0
	for ; k.mode != tracking; windows++ {
		if windows > 100 {
			t.Fatalf("still climbing, at %d", d.Limit)
		}
		now += d.Next
		w := full(now, int64(min(float64(d.Limit), 200)/.05*d.Next.Seconds()), 0)
		w.Elapsed, w.Saturated = d.Next, d.Next
		w.MeanInFlight = float64(d.Limit)
		d = k.Update(w)
	}
	if got := math.Exp(k.at); got < 150 || got > 400 {
		t.Errorf("the climb ended at %v (%s), want about 200", got, d.Reason)
	}
	t.Logf("%v after %v, %d windows", math.Exp(k.at), now, windows)
}

func TestKneeRestores(t *testing.T) {
	k, err := NewKnee(KneeConfig{Min: 5, Max: 50})
	if err != nil {
		t.Fatal(err)
	}
	for _, none := range []float64{0, -1, math.NaN(), 20} { // 20 is Initial
		if k.Restore(State{Limit: none}); k.mode != climbing || k.Start().Limit != 20 {
			t.Errorf("%v was restored: %+v", none, k.Start())
		}
	}
	for saved, want := range map[float64]float64{30: 30, 1: 5, 1e9: 50, math.Inf(1): 50} {
		if k.Restore(State{Limit: saved}); math.Abs(k.Save().Limit-want) > 1e-9*want {
			t.Errorf("%v was restored as %v, want %v", saved, k.Save().Limit, want)
		}
	}
}

func TestKneeConfigFaults(t *testing.T) {
	_, err := NewKnee(KneeConfig{Initial: -1, Min: 9, Max: 3})
	for _, want := range []string{"control: knee:", "Initial -1", "Max 3: must not be below Min 9"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %v", want, err)
		}
	}
}
