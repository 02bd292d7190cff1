package control

import (
	"math"
	"strings"
	"testing"
	"time"
)

func aimd(t *testing.T, cfg AIMDConfig) *AIMD {
	t.Helper()
	cfg.MinSamples = max(1, cfg.MinSamples)
	a, err := NewAIMD(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func ok(inFlight int64, latencies ...time.Duration) *Window {
	return &Window{MaxInFlight: inFlight, OK: int64(len(latencies)), Latencies: latencies, Timed: int64(len(latencies))}
}

func dropped() *Window { return &Window{Overload: 1} }

// The cases are those of Netflix's AIMDLimit, and the exact rule applied to
// small limits.
func TestAIMDSteps(t *testing.T) {
	const ms = time.Millisecond
	tests := []struct {
		name    string
		cfg     AIMDConfig
		windows []*Window
		want    []int64
	}{
		{"grows by one", AIMDConfig{}, []*Window{ok(10, ms)}, []int64{21}},
		{"backs off on a drop", AIMDConfig{Initial: 30}, []*Window{dropped()}, []int64{27}},
		{"stops at Max", AIMDConfig{Initial: 21, Max: 21}, []*Window{ok(10, ms)}, []int64{21}},
		{"does not grow unused", AIMDConfig{}, []*Window{ok(9, ms)}, []int64{20}},
		{"backs off above the threshold only", AIMDConfig{Threshold: 5 * ms},
			[]*Window{ok(20, 5*ms), ok(20, 5*ms+1)}, []int64{21, 18}},
		{"an idle service with one slow call shrinks too", AIMDConfig{Threshold: ms}, []*Window{ok(1, 2*ms)}, []int64{18}},
		{"truncates", AIMDConfig{Initial: 11},
			[]*Window{dropped(), dropped(), dropped(), dropped(), dropped(), dropped()}, []int64{9, 8, 7, 6, 5, 4}},
		{"never below 1", AIMDConfig{Initial: 3},
			[]*Window{dropped(), dropped(), dropped()}, []int64{2, 1, 1}},
		{"abandoned work is a drop", AIMDConfig{Initial: 10}, []*Window{{Abandoned: 1}}, []int64{9}},
		{"failures alone say nothing", AIMDConfig{}, []*Window{{Failed: 100, MaxInFlight: 20}}, []int64{20}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := aimd(t, tt.cfg)
			for i, w := range tt.windows {
				if got := a.Update(w); got.Limit != tt.want[i] || got.Reason == "" {
					t.Errorf("window %d: %d (%s), want %d", i, got.Limit, got.Reason, tt.want[i])
				}
			}
		})
	}
}

func TestAIMDExtendsThinWindows(t *testing.T) {
	a := aimd(t, AIMDConfig{MinSamples: 10})
	w := ok(20, time.Millisecond)
	w.Overload = 8
	if d := a.Update(w); !d.Extend || d.Limit != 20 {
		t.Errorf("9 samples: %+v", d)
	}
	w.Overload = 9
	if d := a.Update(w); d.Extend || d.Limit != 18 {
		t.Errorf("10 samples: %+v", d)
	}
}

func TestAIMDClampsInitial(t *testing.T) {
	if d := aimd(t, AIMDConfig{Initial: 10, Min: 20}).Start(); d.Limit != 20 {
		t.Errorf("initial 10, min 20: %d", d.Limit)
	}
}

func TestAIMDFaults(t *testing.T) {
	_, err := NewAIMD(AIMDConfig{Min: -1, Max: -2, Threshold: -1, Percentile: math.NaN(), Backoff: 1, Window: 1, MinSamples: -1})
	if err == nil {
		t.Fatal("taken")
	}
	for _, field := range []string{"Min: is -1", "Max: -2 will not do", "Threshold: is -1ns", "Percentile: NaN", "Backoff: is 1", "Window: is 1ns", "MinSamples: is -1"} {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("%q is not named in: %v", field, err)
		}
	}
}

// What the documentation calls the defaults, seen from outside.
func TestAIMDDefaults(t *testing.T) {
	a, err := NewAIMD(AIMDConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if d := a.Start(); d.Limit != 20 || d.Next != time.Second {
		t.Errorf("start: %+v", d)
	}
	step := func(n int, latency time.Duration) Decision {
		w := ok(20)
		for range n {
			w.Latencies = append(w.Latencies, latency)
		}
		w.OK = int64(n)
		return a.Update(w)
	}
	if d := step(9, time.Hour); !d.Extend {
		t.Errorf("9 samples: %+v", d)
	}
	if d := step(10, 5*time.Second); d.Extend || d.Limit != 21 {
		t.Errorf("10 samples at the threshold: %+v", d)
	}
	if d := step(10, 5*time.Second+1); d.Limit != 18 {
		t.Errorf("above it: %+v", d)
	}
}

func TestAIMDKeepsMin(t *testing.T) {
	a := aimd(t, AIMDConfig{Initial: 10, Min: 9})
	a.Update(dropped())
	if d := a.Update(dropped()); d.Limit != 9 {
		t.Errorf("two drops: %d", d.Limit)
	}
	a.Restore(State{Limit: 2})
	if got := a.Save().Limit; got != 9 {
		t.Errorf("restored 2: %v", got)
	}
}

func TestAIMDRestore(t *testing.T) {
	for saved, want := range map[float64]int64{7.9: 7, 1e18: 1000, 0: 20, -5: 20} {
		a := aimd(t, AIMDConfig{})
		a.Restore(State{Limit: saved})
		if got := a.Start().Limit; got != want {
			t.Errorf("restored %v: limit %d, want %d", saved, got, want)
		}
	}
	a := aimd(t, AIMDConfig{})
	a.Restore(State{Limit: math.NaN()})
	if a.Save().Limit != 20 {
		t.Error("NaN was taken up")
	}
}

func TestQuantile(t *testing.T) {
	tests := []struct {
		sorted []time.Duration
		p      float64
		want   time.Duration
	}{
		{[]time.Duration{10, 500, 5000}, 0.5, 500},
		{[]time.Duration{10, 5000, 5000}, 0.5, 5000},
		{[]time.Duration{7}, 0.4, 7}, // rank −1 before clamping
		{[]time.Duration{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 0.04, 1},
		{[]time.Duration{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 0.95, 10},
		{[]time.Duration{1, 2}, 1, 2},
		{nil, 0.5, 0},
	}
	for _, tt := range tests {
		w := Window{Latencies: tt.sorted}
		if got := w.Quantile(tt.p); got != tt.want {
			t.Errorf("p%v of %v: %v, want %v", 100*tt.p, tt.sorted, got, tt.want)
		}
	}
}

func TestMeanAndSaturation(t *testing.T) {
	w := Window{LatencySum: 5510, Timed: 3, Elapsed: 10, Saturated: 4}
	if w.Mean() != 1836 || w.Saturation() != 0.4 {
		t.Errorf("mean %d, saturation %v", w.Mean(), w.Saturation())
	}
	var empty Window
	if empty.Mean() != 0 || empty.Saturation() != 0 {
		t.Error("an empty window is not 0")
	}
}

func TestAIMDSmallLimits(t *testing.T) {
	for from, want := range map[int64]int64{11: 9, 10: 9, 9: 8, 5: 4, 3: 2, 2: 1, 1: 1} {
		if d := aimd(t, AIMDConfig{Initial: from}).Update(dropped()); d.Limit != want {
			t.Errorf("a drop at %d: %d, want %d", from, d.Limit, want)
		}
	}
}

func TestAIMDTake(t *testing.T) {
	const ms = time.Millisecond
	// Mean 40 ms, minimum 10, 95th percentile 100.
	w := ok(20, 10*ms, 10*ms, 100*ms)
	w.LatencySum = 120 * ms
	tests := []struct {
		take      Aggregate
		threshold time.Duration
		want      int64
	}{
		{AggregateMean, 40 * ms, 21},
		{AggregateMean, 40*ms - 1, 18},
		{AggregateMin, 10 * ms, 21},
		{AggregateMin, 10*ms - 1, 18},
		{AggregatePercentile, 100 * ms, 21},
		{AggregatePercentile, 100*ms - 1, 18},
		{"", 100*ms - 1, 18},
	}
	for _, tt := range tests {
		a := aimd(t, AIMDConfig{Take: tt.take, Threshold: tt.threshold})
		if d := a.Update(w); d.Limit != tt.want {
			t.Errorf("%q with a threshold of %v: %d (%s), want %d", tt.take, tt.threshold, d.Limit, d.Reason, tt.want)
		}
	}
}

func TestAIMDTakesEachSample(t *testing.T) {
	const ms = time.Millisecond
	w := &Window{OK: 2, Failed: 1, Samples: []Sample{
		{Latency: ms, Concurrency: 20, Good: true},
		{Latency: ms, Concurrency: 20}, // failed: says nothing
		{Latency: 9 * ms, Concurrency: 1, Good: true},
	}}
	a := aimd(t, AIMDConfig{Take: AggregateEach, Threshold: 5 * ms, MinSamples: 10})
	if d := a.Update(w); d.Limit != 18 || d.Extend { // 20 → 21 → 18.9
		t.Errorf("one up, one down: %+v", d)
	}
	w.Overload = 1
	if d := a.Update(w); d.Limit != 15 { // 18 → 19 → 17.1 → 15.3
		t.Errorf("one up, a drop, one down: %+v", d)
	}
	if d := a.Update(&Window{}); d.Limit != 15 || d.Extend || d.Reason == "" {
		t.Errorf("no samples: %+v", d)
	}
}

// AIMDLimit in its WindowedLimit, as Netflix's concurrency-limits runs it by default.
func TestAIMDAsNetflixRunsIt(t *testing.T) {
	a := aimd(t, AIMDConfig{Min: 20, Max: 200, Take: AggregateMean, MinSamples: 10, DiscardThin: true})
	if d := a.Start(); d.Limit != 20 || d.Next != time.Second {
		t.Errorf("start: %+v", d)
	}
	// Below 10 samples the window goes, with its drops.
	if d := a.Update(&Window{OK: 5, Overload: 4, MaxInFlight: 20}); d.Limit != 20 || d.Extend {
		t.Errorf("a thin window: %+v", d)
	}
	w := &Window{OK: 10, Timed: 10, LatencySum: 50 * time.Second, MaxInFlight: 10}
	if d := a.Update(w); d.Limit != 21 {
		t.Errorf("a mean of 5s: %+v", d)
	}
	w.LatencySum += 10
	if d := a.Update(w); d.Limit != 20 { // 18.9, but 20 is the minimum
		t.Errorf("a mean above 5s: %+v", d)
	}
}

// The 95th percentile of 3 s over a threshold, as Klaviyo describes it.
func TestAIMDAsKlaviyoRunsIt(t *testing.T) {
	a := aimd(t, AIMDConfig{Threshold: 100 * time.Millisecond, Window: 3 * time.Second})
	if d := a.Start(); d.Next != 3*time.Second {
		t.Errorf("start: %+v", d)
	}
	w := ok(20)
	for range 20 {
		w.Latencies = append(w.Latencies, 100*time.Millisecond)
	}
	w.OK = 20
	w.Latencies[19] = time.Second // beyond the 95th percentile
	if d := a.Update(w); d.Limit != 21 {
		t.Errorf("p95 at the threshold: %+v", d)
	}
	w.Latencies[18] = time.Second
	if d := a.Update(w); d.Limit != 18 {
		t.Errorf("p95 above it: %+v", d)
	}
}

func TestTakeFault(t *testing.T) {
	if _, err := NewAIMD(AIMDConfig{Take: "median"}); err == nil || !strings.Contains(err.Error(), `Take: "median"`) {
		t.Errorf("median: %v", err)
	}
}
