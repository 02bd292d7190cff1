package control

import (
	"math"
	"runtime"
	"sync"
	"testing"
	"time"
)

// tick is one interval of 1 ms in which thr was finished, given the peaks.
type tick struct {
	thr         int64
	read, write int64
}

// The sizes, states and counters of MongoDB's tests, and of the exact rule.
func TestProbePools(t *testing.T) {
	type sizes = poolSizes
	tests := []struct {
		name   string
		cfg    ProbeConfig
		ticks  []tick
		sizes  poolSizes
		state  probeState
		stable float64
	}{
		{"initial", ProbeConfig{Initial: 64}, nil, sizes{32, 32}, probeStable, 64},
		{"exhausted: up", ProbeConfig{Initial: 64}, []tick{{1, 32, 0}}, sizes{35, 35}, probeUp, 64},
		{"up helped", ProbeConfig{Initial: 64}, []tick{{1, 32, 0}, {2, 32, 0}}, sizes{33, 33}, probeStable, 65.2},
		{"up did not help", ProbeConfig{Initial: 64}, []tick{{2, 32, 0}, {2, 35, 0}}, sizes{32, 32}, probeStable, 64},
		{"not exhausted: down", ProbeConfig{Initial: 64}, []tick{{1, 10, 0}}, sizes{29, 29}, probeDown, 64},
		{"down helped", ProbeConfig{Initial: 64}, []tick{{1, 10, 0}, {2, 10, 0}}, sizes{31, 31}, probeStable, 62.8},
		{"down with equal throughput", ProbeConfig{Initial: 64}, []tick{{1, 10, 0}, {1, 10, 0}}, sizes{32, 32}, probeStable, 64},
		{"exhausted at Max: down", ProbeConfig{Initial: 256}, []tick{{1, 128, 128}}, sizes{115, 115}, probeDown, 256},
		{"little used at Min: stays", ProbeConfig{Initial: 8}, []tick{{1, 3, 0}}, sizes{4, 4}, probeStable, 8},
		{"exhausted at Min: up by one", ProbeConfig{Initial: 8}, []tick{{1, 4, 0}}, sizes{5, 5}, probeUp, 8},
		{"an uneven ratio", ProbeConfig{Initial: 16, ReadRatio: 0.9}, nil, sizes{14, 4}, probeStable, 16},
		{"and up", ProbeConfig{Initial: 16, ReadRatio: 0.9}, []tick{{1, 0, 4}}, sizes{16, 5}, probeUp, 16},
		{"idle: stays", ProbeConfig{Initial: 64}, []tick{{1, 3, 2}}, sizes{32, 32}, probeStable, 64},
		{"both at Min", ProbeConfig{Initial: 8}, nil, sizes{4, 4}, probeStable, 8},
		{"both at Max", ProbeConfig{Initial: 384}, nil, sizes{128, 128}, probeStable, 256},
		{"Initial below the bounds", ProbeConfig{Initial: 1}, nil, sizes{4, 4}, probeStable, 8},
		{"Initial above the bounds", ProbeConfig{Initial: 1000}, nil, sizes{128, 128}, probeStable, 256},
		// Shipped, the step of one leads to 3 and to 129 here.
		{"the step of one stops at Min", ProbeConfig{Initial: 16, ReadRatio: 0.9}, []tick{{1, 10, 0}}, sizes{13, 4}, probeDown, 16},
		{"the step of one stops at Max", ProbeConfig{Initial: 256, ReadRatio: 0.9}, []tick{{1, 128, 26}}, sizes{128, 28}, probeUp, 256},
		{"Min is Max", ProbeConfig{Initial: 8, Max: 4}, []tick{{1, 4, 4}}, sizes{4, 4}, probeStable, 8},
		// 10 → 10.4 → 10.72 → 10.976 → 11.1808: only the fourth success moves the sizes.
		{"fractions add up", ProbeConfig{Initial: 10}, []tick{{1, 5, 5}, {2, 6, 6}, {2, 6, 6}, {3, 6, 6}, {3, 6, 6}, {4, 6, 6}},
			sizes{5, 5}, probeStable, 10.976},
		{"and move", ProbeConfig{Initial: 10}, []tick{{1, 5, 5}, {2, 6, 6}, {2, 6, 6}, {3, 6, 6}, {3, 6, 6}, {4, 6, 6}, {4, 6, 6}, {5, 6, 6}},
			sizes{6, 6}, probeStable, 11.1808},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := pair(t, tt.cfg).pools
			p.tick(time.Millisecond, poolUse{finished: 1000}, poolUse{}) // only starts the account
			for _, k := range tt.ticks {
				p.tick(time.Millisecond, poolUse{finished: k.thr, peak: k.read}, poolUse{peak: k.write})
			}
			if p.sizes != tt.sizes || p.state != tt.state || math.Abs(p.stable-tt.stable) > 1e-9 {
				t.Errorf("%+v, %d, stable %v; want %+v, %d, %v", p.sizes, p.state, p.stable, tt.sizes, tt.state, tt.stable)
			}
		})
	}
}

// A single pool whose slots are not all in use probes down, as a pair does.
func TestProbeGoesDownWhereSlotsAreFree(t *testing.T) {
	w := &Window{Elapsed: 100 * time.Millisecond, OK: 100, MaxInFlight: 10, InFlight: 10}
	ups, downs := 0, 0
	p, err := NewProbe(ProbeConfig{Initial: 64})
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

// The peak counts from stable tick to stable tick, and starts from what is in
// use then, not from 0.
func TestProbePeak(t *testing.T) {
	p := pair(t, ProbeConfig{Initial: 64}).pools
	step := func(peak, used int64) probeState {
		p.tick(time.Millisecond, poolUse{finished: 1, peak: peak, used: used}, poolUse{})
		return p.state
	}
	step(0, 0)
	for i, s := range []struct {
		peak, used int64
		want       probeState
	}{
		{32, 32, probeUp},
		{0, 0, probeStable}, // no better
		{0, 0, probeUp},     // 32 were still in use when the last stable tick ended
		{40, 0, probeStable},
		{0, 0, probeUp}, // the peak of the probe counts too
		{0, 0, probeStable},
		{0, 0, probeStable}, // nothing in use any more
	} {
		if got := step(s.peak, s.used); got != s.want {
			t.Errorf("tick %d: %d, want %d", i, got, s.want)
		}
	}
}

// What was tried is counted: each probe when it has ended, by whether it finished more.
func TestProbesAreCounted(t *testing.T) {
	p := pair(t, ProbeConfig{Initial: 8}).pools
	for _, k := range []tick{
		{},                                   // only starts the account
		{thr: 1, read: 4}, {thr: 2, read: 5}, // up by one each, and kept
		{thr: 2, read: 5}, {thr: 2, read: 5}, // up, and undone
		{thr: 3, read: 5}, {thr: 4, read: 6}, {thr: 4, read: 5}, {thr: 5, read: 6},
	} {
		p.tick(time.Millisecond, poolUse{finished: k.thr, peak: k.read}, poolUse{peak: k.write})
	}
	want := Probes{Up: 4, UpKept: 3, Nudged: 2, Stable: p.stable, Throughput: 4000, Probed: 5000}
	if got := p.probes(); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	q, err := NewProbe(ProbeConfig{Initial: 64})
	if err != nil {
		t.Fatal(err)
	}
	if got := q.Start().Probes; got != (Probes{Stable: 64}) {
		t.Errorf("at the start: %+v", got)
	}
	few := func(ok int64) *Window {
		return &Window{Elapsed: 100 * time.Millisecond, OK: ok, MaxInFlight: 10, InFlight: 10}
	}
	var got Probes
	for _, ok := range []int64{0, 10, 20, 10, 10} { // down, and kept; down, and undone
		got = q.Update(few(ok)).Probes
	}
	got.Stable = math.Round(got.Stable*1000) / 1000
	if want := (Probes{Down: 2, DownKept: 1, Stable: 62.8, Throughput: 100, Probed: 100}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	w := pair(t, ProbeConfig{Initial: 64}).Write()
	if d, u := w.Start(), w.Update(few(1)); d.Probes.Stable != 64 || u.Probes.Stable != 64 {
		t.Errorf("of the writes: %+v, %+v", d.Probes, u.Probes)
	}
}

func TestProbeTickOfNoLength(t *testing.T) {
	p := pair(t, ProbeConfig{Initial: 64}).pools
	tick := func(elapsed time.Duration, done int64) {
		p.tick(elapsed, poolUse{finished: done, peak: 32}, poolUse{})
	}
	tick(1, 0)
	tick(time.Millisecond, 10)
	tick(0, 6)
	if p.state != probeUp {
		t.Errorf("a tick of no length led to %d", p.state)
	}
	tick(time.Millisecond, 5) // with the 6 from before: more than 10
	if p.stable <= 64 {
		t.Errorf("stable at %v: what was finished in a tick of no length was lost", p.stable)
	}
}

func TestProbeOneGate(t *testing.T) {
	p, err := NewProbe(ProbeConfig{Initial: 32})
	if err != nil {
		t.Fatal(err)
	}
	if d := p.Start(); d.Limit != 32 || d.Next != 100*time.Millisecond || p.Name() != "probe" {
		t.Errorf("start: %+v", d)
	}
	w := func(ok, peak int64) *Window {
		return &Window{Elapsed: 100 * time.Millisecond, OK: ok, Failed: 1000 - ok, MaxInFlight: peak, InFlight: peak}
	}
	// 32 × 1.1; better, so 0.8 × 32 + 0.2 × 35 = 32.6; then not better.
	sameLimits(t, limits(t, p, w(1, 32), w(100, 32), w(101, 35), w(100, 33), w(100, 36)), []int64{32, 35, 33, 36, 33})
	if got := p.Save().Limit; math.Abs(got-32.6) > 1e-9 || p.pair.pools.state != probeStable {
		t.Errorf("stable at %v, %d", got, p.pair.pools.state)
	}
	p.Restore(State{Limit: 1e9})
	if got := p.Save().Limit; got != 128 {
		t.Errorf("restored 1e9: %v", got)
	}
	p.Restore(State{Limit: math.NaN()})
	if got := p.Start().Limit; got != 128 {
		t.Errorf("restored NaN: %v", got)
	}
}

func TestProbeDefaultInitial(t *testing.T) {
	p, err := NewProbe(ProbeConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := p.Start().Limit, int64(min(max(2*runtime.GOMAXPROCS(0), 4), 128)); got != want {
		t.Errorf("%d in one pool, want %d", got, want)
	}
}

func pair(t *testing.T, cfg ProbeConfig) *ProbePair {
	t.Helper()
	p, err := NewProbePair(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestProbePair(t *testing.T) {
	p := pair(t, ProbeConfig{Initial: 64})
	read, write := p.Read(), p.Write()
	if r, w := read.Start(), write.Start(); r.Limit != 32 || w.Limit != 32 || r.Next != 100*time.Millisecond || w.Next != 10*time.Millisecond {
		t.Errorf("start: %+v, %+v", r, w)
	}
	done := func(ok, peak int64) *Window {
		return &Window{Elapsed: 100 * time.Millisecond, OK: ok, MaxInFlight: peak}
	}
	read.Update(done(1, 0))
	// The write gate is exhausted; it learns its new size with its next window.
	if d := write.Update(done(5, 32)); d.Limit != 32 {
		t.Errorf("write before the tick: %d", d.Limit)
	}
	if d := read.Update(done(5, 0)); d.Limit != 35 || p.pools.state != probeUp {
		t.Errorf("read after the tick: %+v", d)
	}
	// Several windows of the write gate add up to one interval.
	for _, ok := range []int64{3, 3} {
		if d := write.Update(done(ok, 20)); d.Limit != 35 {
			t.Errorf("write after the tick: %d", d.Limit)
		}
	}
	if d := read.Update(done(5, 0)); d.Limit != 33 || p.pools.sizes != (poolSizes{33, 33}) {
		t.Errorf("11 in all, before 10: %+v", d)
	}
	if p.pools.stable != 65.2 {
		t.Errorf("stable at %v", p.pools.stable)
	}
}

func TestProbePairRestore(t *testing.T) {
	p := pair(t, ProbeConfig{Initial: 16, ReadRatio: 0.9})
	saver, ok := p.Read().(Saver)
	if !ok {
		t.Fatal("the read controller is no Saver")
	}
	saver.Restore(State{Limit: 45})
	if got := p.pools.sizes; got != (poolSizes{45, 5}) {
		t.Errorf("restored 45: %+v", got)
	}
	if got := saver.Save().Limit; math.Abs(got-45) > 1e-9 {
		t.Errorf("saved %v", got)
	}
	saver.Restore(State{Limit: math.NaN()})
	if got := p.pools.sizes.read; got != 45 {
		t.Errorf("restored NaN: %d", got)
	}
	if _, ok := p.Write().(Saver); ok {
		t.Error("the write controller is a Saver too: two limits would be restored into one state")
	}
}

// The two gates call from goroutines of their own.
func TestProbePairConcurrently(t *testing.T) {
	p := pair(t, ProbeConfig{Initial: 64})
	var wg sync.WaitGroup
	for _, c := range []Controller{p.Read(), p.Write()} {
		wg.Go(func() {
			for i := range int64(1000) {
				d := c.Update(&Window{Elapsed: time.Millisecond, OK: i, MaxInFlight: i})
				if d.Limit < 4 || d.Limit > 128 {
					t.Errorf("limit %d", d.Limit)
				}
			}
		})
	}
	wg.Go(func() {
		for range 1000 {
			p.Read().Start()
			p.Write().Start()
		}
	})
	wg.Wait()
}

func TestProbeFaults(t *testing.T) {
	for _, cfg := range []ProbeConfig{{Min: -1}, {Min: 11, Max: 10}, {Min: 10, Max: 9}} {
		if _, err := NewProbe(cfg); err == nil {
			t.Errorf("%+v was taken", cfg)
		}
	}
	bad := ProbeConfig{Initial: -1, Min: -1, Max: -2, ReadRatio: 1.5, Step: 0.6, Weight: math.NaN(), Interval: 1}
	for name, err := range map[string]error{
		"one":  second(NewProbe(bad)),
		"pair": second(NewProbePair(bad)),
	} {
		t.Run(name, func(t *testing.T) {
			named(t, err, "Initial: is -1", "Min: is -1", "Max: -2 will not do", "ReadRatio: is 1.5", "Step: is 0.6", "Weight: NaN", "Interval: is 1ns")
		})
	}
	named(t, second(NewProbePair(ProbeConfig{ReadRatio: 1})), "ReadRatio: is 1")
}

func second[T any](_ T, err error) error { return err }
