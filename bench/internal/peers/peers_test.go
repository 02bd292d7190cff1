package peers

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/weir-go/weir/limit"
	"github.com/weir-go/weir/policy"
	"github.com/weir-go/weir/sim"
)

// short is a scenario of the simulator's on a backend, cut to its first seconds.
func short(t *testing.T, name, backend, gates string, length time.Duration) *sim.Scenario {
	t.Helper()
	s, err := sim.Load(name)
	if err != nil {
		t.Fatal(err)
	}
	if s, err = s.With(backend, gates); err != nil {
		t.Fatal(err)
	}
	s.Phases = []sim.Phase{s.Phases[0]}
	s.Phases[0].For = policy.Duration(length)
	s.Goals = []sim.Goal{{Metric: "goodput"}, {Metric: "inside_max"}, {Metric: "p99"}}
	return s
}

// TestBubbleIsTheSimulator: the same gate gives the same figures on the wall
// clock of a bubble as on the simulator's own, but for the order of what happens
// at one instant.
func TestBubbleIsTheSimulator(t *testing.T) {
	fixed := peer{Name: "fixed", make: func(*env) (*limiter, error) { // as scenarios/backends/B2.json has it
		return weirGate(limit.Config{Name: "fixed", Limit: 44, Queue: limit.Queue{MaxWait: 250 * time.Millisecond, Order: limit.Adaptive}})
	}}
	s := short(t, "S1", "B2", "fixed", 5*time.Second)
	want, err := sim.Run(context.Background(), s, sim.Options{Seeds: []uint64{1, 2}})
	if err != nil {
		t.Fatal(err)
	}
	got, err := run(t, s, &fixed, []uint64{1, 2})
	if err != nil {
		t.Fatal(err)
	}
	for i := range want.Runs {
		w, g := want.Runs[i].Windows[0], got.Runs[i].Windows[0]
		if w.Offered != g.Offered {
			t.Errorf("seed %d: %d requests, %d in the simulator", i+1, g.Offered, w.Offered)
		}
		if math.Abs(w.Ratio-g.Ratio) > 0.03 || w.Inside.Max != g.Inside.Max {
			t.Errorf("seed %d: goodput %v, at most %v inside; in the simulator %v and %v", i+1, g.Ratio, g.Inside.Max, w.Ratio, w.Inside.Max)
		}
	}
}

// TestSemaphores: never more inside than the size, and waiting pays where
// refusing does not.
func TestSemaphores(t *testing.T) {
	s := short(t, "S9", "B3", "none", 10*time.Second) // 100 at a time, a load of 0.7
	var served [2]float64
	for i, waits := range []bool{false, true} {
		p := peer{Name: "semaphore", make: func(e *env) (*limiter, error) {
			e.Best = 75
			return newSemaphore(waits)(e)
		}}
		r, err := run(t, s, &p, []uint64{1})
		if err != nil {
			t.Fatal(err)
		}
		if most := r.Spread(sim.Goal{Metric: "inside_max"}).Max; most != 75 {
			t.Errorf("at most %v inside a semaphore of 75", most)
		}
		served[i] = r.Spread(sim.Goal{Metric: "served"}).Median
	}
	if served[1] <= served[0] || served[1] < 0.99 {
		t.Errorf("served %v refusing, %v waiting", served[0], served[1])
	}
}

// TestEverybody: each peer runs, and serves what is easily served.
func TestEverybody(t *testing.T) {
	b, err := Limits()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range peers() {
		r, err := run(t, short(t, "S3", "B4", "none", 20*time.Second), &p, []uint64{1}) // a load of 0.5
		if err != nil {
			t.Fatalf("%s: %v", p.Name, err)
		}
		if g := r.Spread(sim.Goal{Metric: "served"}).Median; g < 0.5 || g > 1 {
			t.Errorf("%s served %v at half load", p.Name, g)
		}
	}
	for _, row := range b.Rows {
		for _, f := range row.Figures {
			if from, to := f.Goal.Stretch(row.scenario); from >= to || to > row.scenario.Duration() {
				t.Errorf("%s %s: %v to %v of %v", row.Name, f.Name, from, to, row.scenario.Duration())
			}
		}
	}
}

// TestComputing: the peers that watch the processor refuse when they are told
// that it is busy, and only then.
func TestComputing(t *testing.T) {
	s := short(t, "S1", "B1", "none", 20*time.Second)
	for _, p := range peers() {
		if p.Name != "aegis BBR (waiting)" && p.Name != "go-zero (waiting)" && !p.Computing {
			continue
		}
		r, err := run(t, s, &p, []uint64{1})
		if err != nil {
			t.Fatal(err)
		}
		refused := r.Spread(sim.Goal{Metric: "refused"}).Median
		if p.Computing != (refused > 0) {
			t.Errorf("%s refused a share of %v", p.Name, refused)
		}
	}
}

// TestReading: half busy reads half, and what is left of a pool is busy sooner.
func TestReading(t *testing.T) {
	s := &sim.Scenario{Phases: []sim.Phase{
		{For: policy.Duration(time.Minute), Load: 1},
		{For: policy.Duration(time.Minute), Load: 1, Capacity: 0.5},
	}}
	s.Backend.Backend = sim.Backend{Law: "pool", Workers: 10}
	u := newUsage(&env{Scenario: s, Best: 10})
	r := &reading{of: u, every: 500 * time.Millisecond}
	u.add(0, 5)
	for _, tt := range []struct {
		at   time.Duration
		want int64 // thousandths; it truncates at each tick
	}{
		{0, 0},
		{499 * time.Millisecond, 0},
		{500 * time.Millisecond, 25},
		{time.Second, 48},
		{time.Minute, 481},
		{2 * time.Minute, 981}, // five of five
		{3 * time.Minute, 500}, // the phases begin again
	} {
		if got := r.now(tt.at); got != tt.want {
			t.Errorf("at %v it reads %d, want %d", tt.at, got, tt.want)
		}
	}
}
