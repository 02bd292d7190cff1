package sim

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/weir-go/weir/internal/fault"
	"time"

	"github.com/weir-go/weir/policy"
)

// d shortens durations in tables.
func d(s string) policy.Duration {
	v, err := time.ParseDuration(s)
	if err != nil {
		panic(err)
	}
	return policy.Duration(v)
}

// long marks a test that averages over some hundred thousand requests, all
// on one goroutine: under the race detector it takes ten times as long and has
// nothing to show it, so -short leaves it out.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("statistics take long; run without -short")
	}
}

func within(t *testing.T, what string, got, want, relative float64) {
	t.Helper()
	if math.Abs(got-want) > relative*math.Abs(want) {
		t.Errorf("%s: got %.6g, want %.6g within %.1f %%", what, got, want, 100*relative)
	}
}

// openRun runs an unguarded scenario and returns the mean latency in seconds and
// the run.
func openRun(t *testing.T, b Backend, rps float64, seed uint64) (mean float64, r *Result) {
	t.Helper()
	s := &Scenario{
		Name: "open", Backend: BackendRef{Backend: b},
		Phases:  []Phase{{For: policy.Duration(400_000 / rps * 1e9), RPS: rps}},
		Traffic: []Class{{}}, Seeds: []uint64{seed},
	}
	report, err := Run(context.Background(), s, Options{})
	if err != nil {
		t.Fatal(err)
	}
	r = report.Runs[0]
	// Little's law: mean latency = mean inside / throughput.
	sum := r.Windows[0]
	return sum.Inside.Mean / (float64(sum.Answered) / (sum.To - sum.From).Seconds()), r
}

// erlangC is the probability to wait in M/M/c with offered load a.
func erlangC(c int, a float64) float64 {
	sum, term := 0.0, 1.0
	for k := range c {
		sum += term
		term *= a / float64(k+1)
	}
	last := term * float64(c) / (float64(c) - a)
	return last / (sum + last)
}

func TestQueuesAgreeWithTheory(t *testing.T) {
	long(t)
	exp := Dist{Dist: "exponential", Mean: d("10ms")}
	mmc := func(c int, rps float64) float64 {
		a := rps * 0.010
		return 0.010 + erlangC(c, a)/(float64(c)/0.010-rps)
	}
	tests := []struct {
		name string
		b    Backend
		rps  float64
		want float64
	}{
		{"M/M/1", Backend{Law: "pool", Workers: 1, Service: exp}, 70, 1 / (100. - 70)},
		{"M/M/2", Backend{Law: "cores", Cores: 2, Service: exp}, 160, mmc(2, 160)},
		{"M/M/10", Backend{Law: "pool", Workers: 10, Service: exp}, 850, mmc(10, 850)},
		// Pollaczek-Khinchine: the wait is ρ(1+cv²)/2/(μ−λ), with cv = 0.
		{"M/D/1", Backend{Law: "pool", Workers: 1, Service: Dist{Dist: "constant", Mean: d("10ms")}}, 70, 0.010 + 0.7*0.5/(100-70)},
		{"M/E4/1", Backend{Law: "pool", Workers: 1, Service: Dist{Dist: "erlang", K: 4, Mean: d("10ms")}}, 70, 0.010 + 0.7*(1+0.25)/2/(100-70)},
		{"M/G/1", Backend{Law: "pool", Workers: 1, Service: Dist{Dist: "lognormal", CV: 1.5, Mean: d("10ms")}}, 70, 0.010 + 0.7*(1+2.25)/2/(100-70)},
		// Processor sharing does not care about the distribution.
		{"M/M/1-PS", Backend{Law: "cores", Cores: 1, Discipline: "ps", Service: exp}, 70, 1 / (100. - 70)},
		{"M/D/1-PS", Backend{Law: "cores", Cores: 1, Discipline: "ps", Service: Dist{Dist: "constant", Mean: d("10ms")}}, 70, 1 / (100. - 70)},
		{"mutex", Backend{Law: "mutex", Outside: d("8ms"), Service: exp}, 70, 0.008 + 1/(100.-70)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			mean, _ := openRun(t, tt.b, tt.rps, 7)
			within(t, "mean latency", mean, tt.want, 0.04)
		})
	}
}

// In M/M/1 the time in the system is exponential: all quantiles are known.
func TestQuantilesAgreeWithTheory(t *testing.T) {
	long(t)
	b := Backend{Law: "pool", Workers: 1, Service: Dist{Dist: "exponential", Mean: d("10ms")}}
	_, r := openRun(t, b, 50, 3)
	s := r.Windows[0]
	within(t, "p50", s.P50.Seconds(), math.Ln2/50, 0.02)
	within(t, "p99", s.P99.Seconds(), math.Log(100)/50, 0.04)
	within(t, "p999", s.P999.Seconds(), math.Log(1000)/50, 0.08)
}

// throughput measures the backend in a closed loop, as one would measure a real
// one: n clients, each with one request after the other, until jobs of them are
// finished. It returns requests a second.
func throughput(b *Backend, n, jobs int, seed uint64) float64 {
	s := b.newServer()
	rng, draw := stream(seed, streamService, 0), b.Service.sampler()
	var now time.Duration
	for i := range n {
		s.Enter(now, int32(i), draw(rng))
	}
	warm := jobs / 10
	var start time.Duration
	for done := 0; done < warm+jobs; {
		now = s.Next()
		job, finished := s.Step(now)
		if !finished {
			continue
		}
		if done++; done == warm {
			start = now
		}
		s.Enter(now, job, draw(rng))
	}
	return float64(jobs) / (now - start).Seconds()
}

func TestClosedLoopFollowsTheLaw(t *testing.T) {
	exp := Dist{Dist: "exponential", Mean: d("10ms")}
	backends := []Backend{
		{Law: "usl", Sigma: 0.05, Kappa: 0.0005, Service: exp},
		{Law: "usl", Sigma: 0.02, Kappa: 0.002, Service: Dist{Dist: "bimodal", Modes: []Mode{{0.99, d("5ms")}, {0.01, d("250ms")}}}},
		{Law: "cores", Cores: 2, Discipline: "ps", Thrash: 0.01, Service: exp},
		{Law: "cores", Cores: 4, Service: exp},
		{Law: "pool", Workers: 20, Service: exp},
	}
	for _, b := range backends {
		for _, n := range []int{1, 3, 10, 44, 120} {
			t.Run(fmt.Sprint(b.Law, b.Discipline, n), func(t *testing.T) {
				law := b.model()
				within(t, "throughput", throughput(&b, n, 60_000, 1), law.Throughput(n)/b.alone(), 0.05)
			})
		}
	}
}

func TestCapacityIsTheBestOfASweep(t *testing.T) {
	long(t)
	for _, name := range standardBackends() {
		std, err := LoadStandard(name)
		if err != nil {
			t.Fatal(err)
		}
		b := std.Backend
		rps, best := b.Capacity()
		if b.Law == "mutex" {
			best = 60 // the lock is never idle only with many
		}
		within(t, name+" at its best", throughput(&b, best, 60_000, 2), rps, 0.03)
		for _, n := range []int{1, 2, 5, 20, 40, 50, 100, 200} {
			if x := throughput(&b, n, 30_000, 3); x > 1.04*rps {
				t.Errorf("%s: %d at once do %.1f a second, more than the capacity %.1f", name, n, x, rps)
			}
		}
	}
}

func TestStandardCapacities(t *testing.T) {
	want := map[string]struct {
		rps  float64
		best int
	}{"B1": {1000, 2}, "B2": {1074.4, 44}, "B3": {1000, 100}, "B4": {53.72, 44}, "B5": {1000, 9}}
	for name, w := range want {
		std, err := LoadStandard(name)
		if err != nil {
			t.Fatal(err)
		}
		rps, best := std.Backend.Capacity()
		within(t, name, rps, w.rps, 0.001)
		if best != w.best {
			t.Errorf("%s is best at %d, want %d", name, best, w.best)
		}
	}
}

func TestCapacityChanges(t *testing.T) {
	constant := Dist{Dist: "constant", Mean: d("10ms")}
	tests := []struct {
		name string
		b    Backend
		// Two jobs enter at 0, the capacity halves at 4 ms.
		want []time.Duration
	}{
		{"speed", Backend{Law: "pool", Workers: 2, Loses: "speed", Service: constant}, []time.Duration{16e6, 16e6}},
		{"workers finish what they have begun", Backend{Law: "pool", Workers: 2, Service: constant}, []time.Duration{10e6, 10e6}},
		{"cores", Backend{Law: "cores", Cores: 1, Service: constant}, []time.Duration{16e6, 36e6}},
		{"sharing", Backend{Law: "cores", Cores: 1, Discipline: "ps", Service: constant}, []time.Duration{36e6, 36e6}},
		{"mutex", Backend{Law: "mutex", Outside: d("2ms"), Service: constant}, []time.Duration{20e6, 40e6}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := tt.b.newServer()
			s.Enter(0, 0, 0.010)
			s.Enter(0, 1, 0.010)
			for s.Next() <= 4e6 {
				s.Step(s.Next())
			}
			s.setCapacity(4e6, 0.5)
			var got []time.Duration
			for s.Len() > 0 {
				at := s.Next()
				if _, finished := s.Step(at); finished {
					got = append(got, at)
				}
			}
			for i := range tt.want {
				if diff := got[i] - tt.want[i]; diff < -10 || diff > 10 {
					t.Errorf("job %d finished at %v, want %v", i, got[i], tt.want[i])
				}
			}
		})
	}
}

func TestWorkersAreLostAndComeBack(t *testing.T) {
	b := Backend{Law: "pool", Workers: 4, Service: Dist{Dist: "constant", Mean: d("10ms")}}
	s := b.newServer()
	for i := range 8 {
		s.Enter(0, int32(i), 0.010)
	}
	s.setCapacity(1e6, 0.25) // four are served, one worker is left
	finish := func() time.Duration {
		at := s.Next()
		s.Step(at)
		return at
	}
	for range 4 {
		finish()
	}
	if at := finish(); at != 20e6 {
		t.Errorf("the fifth finished at %v, want 20ms", at)
	}
	s.setCapacity(25e6, 1)
	if at := finish(); at != 30e6 {
		t.Errorf("the sixth finished at %v, want 30ms", at)
	}
	if at := finish(); at != 35e6 {
		t.Errorf("the seventh finished at %v, want 35ms: two workers came back at 25ms", at)
	}
}

func TestBackoffDoesNotOverflow(t *testing.T) {
	c := newClass(0, &Class{Retry: &Retry{Attempts: 50, Backoff: d("24h"), MaxBackoff: d("48h")}},
		&Backend{Service: Dist{Dist: "constant", Mean: d("1ms")}}, nil, 1)
	for tries := range 50 {
		if got := c.backoff(tries+1, 0); got < 0 || got > 48*time.Hour {
			t.Errorf("pause %v after %d tries", got, tries+1)
		}
	}
}

func TestDistributionsHaveTheirMoments(t *testing.T) {
	long(t)
	tests := []struct {
		name     string
		dist     Dist
		mean, cv float64
	}{
		{"constant", Dist{Dist: "constant", Mean: d("10ms")}, 0.010, 0},
		{"exponential", Dist{Dist: "exponential", Mean: d("10ms")}, 0.010, 1},
		{"erlang", Dist{Dist: "erlang", K: 4, Mean: d("10ms")}, 0.010, 0.5},
		{"lognormal", Dist{Dist: "lognormal", CV: 2, Mean: d("10ms")}, 0.010, 2},
		// 99 % x 1, 1 % x 50: the mean is 1.49, the second moment 25.99.
		{"bimodal", Dist{Dist: "bimodal", Modes: []Mode{{99, d("1ms")}, {1, d("50ms")}}}, 0.00149, math.Sqrt(25.99-1.49*1.49) / 1.49},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var f fault.List
			tt.dist.check(&f, fault.Path{"service"})
			if err := f.Err(""); err != nil {
				t.Fatal(err)
			}
			const n = 2_000_000
			rng, draw := stream(1, streamService, 0), tt.dist.sampler()
			var sum, squares float64
			for range n {
				x := draw(rng)
				sum += x
				squares += x * x
			}
			mean := sum / n
			within(t, "mean", mean, tt.mean, 0.01)
			within(t, "mean by formula", tt.dist.mean(), tt.mean, 1e-9)
			cv := math.Sqrt(math.Max(0, squares/n-mean*mean)) / mean
			if math.Abs(cv-tt.cv) > 0.02*tt.cv+1e-5 {
				t.Errorf("coefficient of variation: got %.4f, want %.4f", cv, tt.cv)
			}
		})
	}
}
