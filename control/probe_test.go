package control_test

import (
	"math"
	"sync"
	"testing"
	"time"

	"github.com/weir-go/weir/control"
)

// tick is one interval of 1 ms in which thr was finished, given the peaks.
type tick struct {
	thr         int64
	read, write int64
}

// The sizes, states and counters of MongoDB's tests, and of the exact rule.
func TestProbePools(t *testing.T) {
	type sizes = control.ProbeSizes
	tests := []struct {
		name   string
		cfg    control.ProbeConfig
		ticks  []tick
		sizes  control.ProbeSizes
		state  control.ProbeState
		stable float64
		amount int64 // increased less decreased
	}{
		{"initial", control.ProbeConfig{Initial: 64}, nil, sizes{32, 32}, "stable", 64, 0},
		{"exhausted: up", control.ProbeConfig{Initial: 64}, []tick{{1, 32, 0}}, sizes{35, 35}, "up", 64, 0},
		{"up helped", control.ProbeConfig{Initial: 64}, []tick{{1, 32, 0}, {2, 32, 0}}, sizes{33, 33}, "stable", 65.2, 2},
		{"up did not help", control.ProbeConfig{Initial: 64}, []tick{{2, 32, 0}, {2, 35, 0}}, sizes{32, 32}, "stable", 64, 0},
		{"not exhausted: down", control.ProbeConfig{Initial: 64}, []tick{{1, 10, 0}}, sizes{29, 29}, "down", 64, 0},
		{"down helped", control.ProbeConfig{Initial: 64}, []tick{{1, 10, 0}, {2, 10, 0}}, sizes{31, 31}, "stable", 62.8, -2},
		{"down with equal throughput", control.ProbeConfig{Initial: 64}, []tick{{1, 10, 0}, {1, 10, 0}}, sizes{32, 32}, "stable", 64, 0},
		{"exhausted at Max: down", control.ProbeConfig{Initial: 256}, []tick{{1, 128, 128}}, sizes{115, 115}, "down", 256, 0},
		{"little used at Min: stays", control.ProbeConfig{Initial: 8}, []tick{{1, 3, 0}}, sizes{4, 4}, "stable", 8, 0},
		{"exhausted at Min: up by one", control.ProbeConfig{Initial: 8}, []tick{{1, 4, 0}}, sizes{5, 5}, "up", 8, 0},
		{"an uneven ratio", control.ProbeConfig{Initial: 16, ReadRatio: .9}, nil, sizes{14, 4}, "stable", 16, 0},
		{"and up", control.ProbeConfig{Initial: 16, ReadRatio: .9}, []tick{{1, 0, 4}}, sizes{16, 5}, "up", 16, 0},
		{"idle: stays", control.ProbeConfig{Initial: 64}, []tick{{1, 3, 2}}, sizes{32, 32}, "stable", 64, 0},
		{"2 × 8 cores", control.ProbeConfig{Cores: 8}, nil, sizes{8, 8}, "stable", 16, 0},
		{"2 × 2 cores", control.ProbeConfig{Cores: 2}, nil, sizes{4, 4}, "stable", 8, 0},
		{"2 × 192 cores", control.ProbeConfig{Cores: 192}, nil, sizes{128, 128}, "stable", 256, 0},
		{"Initial below the bounds", control.ProbeConfig{Initial: 1}, nil, sizes{4, 4}, "stable", 8, 0},
		{"Initial above the bounds", control.ProbeConfig{Initial: 1000}, nil, sizes{128, 128}, "stable", 256, 0},
		// Shipped, the step of one leads to 3 and to 129 here.
		{"the step of one stops at Min", control.ProbeConfig{Initial: 16, ReadRatio: .9}, []tick{{1, 10, 0}}, sizes{13, 4}, "down", 16, 0},
		{"the step of one stops at Max", control.ProbeConfig{Initial: 256, ReadRatio: .9}, []tick{{1, 128, 26}}, sizes{128, 28}, "up", 256, 0},
		{"Min is Max", control.ProbeConfig{Initial: 8, Max: 4}, []tick{{1, 4, 4}}, sizes{4, 4}, "stable", 8, 0},
		// 10 → 10.4 → 10.72 → 10.976 → 11.1808: only the fourth success moves the sizes.
		{"fractions add up", control.ProbeConfig{Initial: 10}, []tick{{1, 5, 5}, {2, 6, 6}, {2, 6, 6}, {3, 6, 6}, {3, 6, 6}, {4, 6, 6}},
			sizes{5, 5}, "stable", 10.976, 0},
		{"and move", control.ProbeConfig{Initial: 10}, []tick{{1, 5, 5}, {2, 6, 6}, {2, 6, 6}, {3, 6, 6}, {3, 6, 6}, {4, 6, 6}, {4, 6, 6}, {5, 6, 6}},
			sizes{6, 6}, "stable", 11.1808, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := control.NewProbePools(tt.cfg)
			if err != nil {
				t.Fatal(err)
			}
			p.Tick(time.Millisecond, control.PoolUse{Finished: 1000}, control.PoolUse{}) // only starts the account
			for _, k := range tt.ticks {
				p.Tick(time.Millisecond, control.PoolUse{Finished: k.thr, Peak: k.read}, control.PoolUse{Peak: k.write})
			}
			s := p.Stats()
			amount := s.TotalAmountIncreased - s.TotalAmountDecreased
			if p.Sizes() != tt.sizes || p.State() != tt.state || math.Abs(p.Stable()-tt.stable) > 1e-9 || amount != tt.amount {
				t.Errorf("%+v, %s, stable %v, amount %d; want %+v, %s, %v, %d",
					p.Sizes(), p.State(), p.Stable(), amount, tt.sizes, tt.state, tt.stable, tt.amount)
			}
		})
	}
}

// A single pool whose slots are not all in use probes down, as a pair does.
func TestProbeGoesDownWhereSlotsAreFree(t *testing.T) {
	w := &control.Window{Elapsed: 100 * time.Millisecond, OK: 100, MaxInFlight: 10, InFlight: 10}
	ups, downs := 0, 0
	p, err := control.NewProbe(control.ProbeConfig{Initial: 64})
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		switch d := p.Update(w); {
		case d.Limit > 64:
			ups++
		case d.Limit < 64:
			downs++
		}
	}
	if ups != 0 || downs < 45 {
		t.Errorf("64 slots, 10 in use, 100 ticks: %d probes up, %d down; want none up and about 50 down", ups, downs)
	}
}

func TestProbeStats(t *testing.T) {
	p, err := control.NewProbePools(control.ProbeConfig{Initial: 64})
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []tick{{0, 0, 0}, {1, 32, 0}, {2, 0, 0}, {2, 10, 0}, {3, 0, 0}, {3, 0, 0}} {
		p.Tick(time.Millisecond, control.PoolUse{Finished: k.thr, Peak: k.read}, control.PoolUse{})
	}
	want := control.ProbeStats{
		TimesIncreased: 1, TimesDecreased: 1, TotalAmountIncreased: 2, TotalAmountDecreased: 2,
		TimesProbedStable: 3, TimesProbedUp: 1, TimesProbedDown: 1,
	}
	if got := p.Stats(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// The peak counts from stable tick to stable tick, and starts from what is in
// use then, not from 0.
func TestProbePeak(t *testing.T) {
	p, err := control.NewProbePools(control.ProbeConfig{Initial: 64})
	if err != nil {
		t.Fatal(err)
	}
	step := func(peak, used int64) control.ProbeState {
		p.Tick(time.Millisecond, control.PoolUse{Finished: 1, Peak: peak, Used: used}, control.PoolUse{})
		return p.State()
	}
	step(0, 0)
	for i, s := range []struct {
		peak, used int64
		want       control.ProbeState
	}{
		{32, 32, control.ProbeUp},
		{0, 0, control.ProbeStable}, // no better
		{0, 0, control.ProbeUp},     // 32 were still in use when the last stable tick ended
		{40, 0, control.ProbeStable},
		{0, 0, control.ProbeUp}, // the peak of the probe counts too
		{0, 0, control.ProbeStable},
		{0, 0, control.ProbeStable}, // nothing in use any more
	} {
		if got := step(s.peak, s.used); got != s.want {
			t.Errorf("tick %d: %s, want %s", i, got, s.want)
		}
	}
}

func TestProbeTickOfNoLength(t *testing.T) {
	p, err := control.NewProbePools(control.ProbeConfig{Initial: 64})
	if err != nil {
		t.Fatal(err)
	}
	tick := func(elapsed time.Duration, done int64) {
		p.Tick(elapsed, control.PoolUse{Finished: done, Peak: 32}, control.PoolUse{})
	}
	tick(1, 0)
	tick(time.Millisecond, 10)
	tick(0, 6)
	if p.State() != control.ProbeUp {
		t.Errorf("a tick of no length led to %s", p.State())
	}
	tick(time.Millisecond, 5) // with the 6 from before: more than 10
	if s := p.Stats(); s.TimesIncreased != 1 {
		t.Errorf("%+v: what was finished in a tick of no length was lost", s)
	}
}

func TestProbeOneGate(t *testing.T) {
	p, err := control.NewProbe(control.ProbeConfig{Initial: 32})
	if err != nil {
		t.Fatal(err)
	}
	if d := p.Start(); d.Limit != 32 || d.Next != 100*time.Millisecond || p.Name() != "probe" {
		t.Errorf("start: %+v", d)
	}
	w := func(ok, peak int64) *control.Window {
		return &control.Window{Elapsed: 100 * time.Millisecond, OK: ok, Failed: 1000 - ok, MaxInFlight: peak, InFlight: peak}
	}
	// 32 × 1.1; better, so 0.8 × 32 + 0.2 × 35 = 32.6; then not better.
	sameLimits(t, limits(t, p, w(1, 32), w(100, 32), w(101, 35), w(100, 33), w(100, 36)), []int64{32, 35, 33, 36, 33})
	if p.Stats().TimesIncreased != 1 || p.State() != control.ProbeStable {
		t.Errorf("%+v, %s", p.Stats(), p.State())
	}
	p.Restore(control.State{Limit: 1e9})
	if got := p.Save().Limit; got != 128 {
		t.Errorf("restored 1e9: %v", got)
	}
	p.Restore(control.State{Limit: math.NaN()})
	if got := p.Start().Limit; got != 128 {
		t.Errorf("restored NaN: %v", got)
	}
}

func TestProbeDefaultInitial(t *testing.T) {
	p, err := control.NewProbe(control.ProbeConfig{Cores: 20})
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Start().Limit; got != 40 {
		t.Errorf("2 × 20 cores in one pool: %d", got)
	}
}

func pair(t *testing.T, cfg control.ProbeConfig) *control.ProbePair {
	t.Helper()
	p, err := control.NewProbePair(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestProbePair(t *testing.T) {
	p := pair(t, control.ProbeConfig{Initial: 64})
	read, write := p.Read(), p.Write()
	if r, w := read.Start(), write.Start(); r.Limit != 32 || w.Limit != 32 || r.Next != 100*time.Millisecond || w.Next != 10*time.Millisecond {
		t.Errorf("start: %+v, %+v", r, w)
	}
	done := func(ok, peak int64) *control.Window {
		return &control.Window{Elapsed: 100 * time.Millisecond, OK: ok, MaxInFlight: peak}
	}
	read.Update(done(1, 0))
	// The write gate is exhausted; it learns its new size with its next window.
	if d := write.Update(done(5, 32)); d.Limit != 32 {
		t.Errorf("write before the tick: %d", d.Limit)
	}
	if d := read.Update(done(5, 0)); d.Limit != 35 || p.State() != control.ProbeUp {
		t.Errorf("read after the tick: %+v", d)
	}
	// Several windows of the write gate add up to one interval.
	for _, ok := range []int64{3, 3} {
		if d := write.Update(done(ok, 20)); d.Limit != 35 {
			t.Errorf("write after the tick: %d", d.Limit)
		}
	}
	if d := read.Update(done(5, 0)); d.Limit != 33 || p.Sizes() != (control.ProbeSizes{Read: 33, Write: 33}) {
		t.Errorf("11 in all, before 10: %+v", d)
	}
	if s := p.Stats(); s.TimesIncreased != 1 || s.TotalAmountIncreased != 2 {
		t.Errorf("%+v", s)
	}
}

func TestProbePairRestore(t *testing.T) {
	p := pair(t, control.ProbeConfig{Initial: 16, ReadRatio: .9})
	saver, ok := p.Read().(control.Saver)
	if !ok {
		t.Fatal("the read controller is no Saver")
	}
	saver.Restore(control.State{Limit: 45})
	if got := p.Sizes(); got != (control.ProbeSizes{Read: 45, Write: 5}) {
		t.Errorf("restored 45: %+v", got)
	}
	if got := saver.Save().Limit; math.Abs(got-45) > 1e-9 {
		t.Errorf("saved %v", got)
	}
	saver.Restore(control.State{Limit: math.NaN()})
	if got := p.Sizes().Read; got != 45 {
		t.Errorf("restored NaN: %d", got)
	}
	if _, ok := p.Write().(control.Saver); ok {
		t.Error("the write controller is a Saver too: two limits would be restored into one state")
	}
}

// The two gates call from goroutines of their own.
func TestProbePairConcurrently(t *testing.T) {
	p := pair(t, control.ProbeConfig{Initial: 64})
	var wg sync.WaitGroup
	for _, c := range []control.Controller{p.Read(), p.Write()} {
		wg.Go(func() {
			for i := range int64(1000) {
				d := c.Update(&control.Window{Elapsed: time.Millisecond, OK: i, MaxInFlight: i})
				if d.Limit < 4 || d.Limit > 128 {
					t.Errorf("limit %d", d.Limit)
				}
			}
		})
	}
	wg.Go(func() {
		for range 1000 {
			p.Stats()
			p.Sizes()
			p.State()
		}
	})
	wg.Wait()
	if s := p.Stats(); s.TimesProbedStable+s.TimesProbedUp+s.TimesProbedDown != 999 {
		t.Errorf("%+v: 1000 windows of the read gate, the first starts the account", s)
	}
}

func TestProbeFaults(t *testing.T) {
	for _, cfg := range []control.ProbeConfig{{Min: -1}, {Min: 11, Max: 10}, {Min: 10, Max: 9}} {
		if _, err := control.NewProbe(cfg); err == nil {
			t.Errorf("%+v was taken", cfg)
		}
	}
	bad := control.ProbeConfig{Initial: -1, Min: -1, Max: -2, ReadRatio: 1.5, Step: .6, Weight: math.NaN(), Interval: 1, Cores: -1}
	for name, err := range map[string]error{
		"one":   second(control.NewProbe(bad)),
		"pair":  second(control.NewProbePair(bad)),
		"pools": second(control.NewProbePools(bad)),
	} {
		t.Run(name, func(t *testing.T) {
			named(t, err, "Initial -1", "Min -1", "Max -2", "ReadRatio 1.5", "Step 0.6", "Weight NaN", "Interval 1ns", "Cores -1")
		})
	}
	named(t, second(control.NewProbePair(control.ProbeConfig{ReadRatio: 1})), "ReadRatio 1")
}

func second[T any](_ T, err error) error { return err }
