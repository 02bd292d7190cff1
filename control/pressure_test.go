package control_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
)

// stub is an inner controller that does as it is told and notes what it saw.
type stub struct {
	limit    int64
	grow     int64
	next     time.Duration
	extend   bool
	seen     []control.Window
	restored []control.State
}

func (s *stub) Name() string { return "stub" }
func (s *stub) Start() control.Decision {
	return control.Decision{Limit: s.limit, Next: s.next, Reason: "initial"}
}
func (s *stub) Update(w *control.Window) control.Decision {
	s.seen = append(s.seen, *w)
	s.limit += s.grow
	return control.Decision{Limit: s.limit, Next: s.next, Extend: s.extend, Reason: "inner"}
}
func (s *stub) Save() control.State { return control.State{Limit: float64(s.limit)} }
func (s *stub) Restore(st control.State) {
	s.restored = append(s.restored, st)
	s.limit = int64(st.Limit)
}

func capped(t *testing.T, inner control.Controller, cfg control.CapConfig) *control.Capped {
	t.Helper()
	c, err := control.NewCapped(inner, cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.Start()
	return c
}

// gate keeps the time and the limit as a gate does, with everything in use.
type gate struct {
	now, start time.Duration
	d          control.Decision
}

func (g *gate) window(length time.Duration, readings ...control.Reading) *control.Window {
	g.now += length
	return &control.Window{
		Now: g.now, Elapsed: g.now - g.start, Saturated: g.now - g.start,
		Limit: g.d.Limit, InFlight: g.d.Limit, MaxInFlight: g.d.Limit, Readings: readings,
	}
}

func (g *gate) step(c control.Controller, length time.Duration, readings ...control.Reading) control.Decision {
	g.d = c.Update(g.window(length, readings...))
	if !g.d.Extend {
		g.start = g.now
	}
	return g.d
}

func known(name string, v float64) control.Reading {
	return control.Reading{Name: name, Value: v, Known: true}
}

func TestCappedFollowsTheHighestPressure(t *testing.T) {
	c := capped(t, &stub{limit: 40, next: time.Second}, control.CapConfig{})
	g := gate{d: control.Decision{Limit: 40}}
	d := g.step(c, 50*time.Millisecond, known("cpu", 1.2), control.Reading{Name: "unknown", Value: 9},
		known("psi", 1.6), known("nan", math.NaN()))
	if d.Limit != 25 || d.Signal != "psi" || !strings.Contains(d.Reason, "psi at 1.6") || !d.Extend || d.Next != 50*time.Millisecond {
		t.Errorf("40 in flight at a pressure of 1.6: %+v", d)
	}
	if d := g.step(c, 50*time.Millisecond, known("psi", 1)); d.Limit != 25 || d.Signal != "psi" {
		t.Errorf("at a pressure of 1: %+v", d)
	}
}

func TestCappedGoesBySignalsNamed(t *testing.T) {
	c := capped(t, control.Fixed(40), control.CapConfig{Signals: []string{"cpu"}})
	g := gate{d: control.Decision{Limit: 40}}
	if d := g.step(c, 50*time.Millisecond, known("lag", 50_000), known("cpu", 1.6)); d.Limit != 25 || d.Signal != "cpu" {
		t.Errorf("%+v", d)
	}
}

// A second look at the same overload, before the signal can have noticed, does
// not punish twice.
func TestCappedPunishesOnce(t *testing.T) {
	c := capped(t, &stub{limit: 40, next: time.Second}, control.CapConfig{})
	g := gate{d: control.Decision{Limit: 40}}
	g.step(c, 50*time.Millisecond, known("psi", 1.6))
	for range 5 {
		if d := g.step(c, 50*time.Millisecond, known("psi", 1.6)); d.Limit < 22 {
			t.Errorf("within a quarter of the memory: %+v", d)
		}
	}
	for range 200 { // but it goes on while the pressure does
		g.step(c, 50*time.Millisecond, known("psi", 1.6))
	}
	if g.d.Limit != 1 {
		t.Errorf("10 s later: %+v", g.d)
	}
}

func TestCappedFallsByHalfAtMost(t *testing.T) {
	c := capped(t, &stub{limit: 100, next: time.Second}, control.CapConfig{Min: 3})
	g := gate{d: control.Decision{Limit: 100}}
	for i, want := range []int64{50, 25, 12, 9} {
		if d := g.step(c, 10*time.Millisecond, known("a", 10)); d.Limit != want {
			t.Errorf("step %d: %d, want %d", i, d.Limit, want)
		}
	}
	for range 1000 {
		g.step(c, 10*time.Millisecond, known("a", 10))
	}
	if g.d.Limit != 3 {
		t.Errorf("below Min: %+v", g.d)
	}
}

func TestCappedIdleGateKeepsItsLimit(t *testing.T) {
	c := capped(t, &stub{limit: 100, next: time.Second}, control.CapConfig{})
	for i := range 20 {
		d := c.Update(&control.Window{Now: time.Duration(i) * 50 * time.Millisecond, Limit: 100, Readings: []control.Reading{known("a", 10)}})
		if d.Limit != 100 || d.Signal != "" {
			t.Fatalf("somebody else's pressure: %+v", d)
		}
	}
}

// The cap rises by itself: used or not, with signals below 1 or none at all.
func TestCappedRecovers(t *testing.T) {
	for name, readings := range map[string][]control.Reading{
		"pressure 0": {known("a", 0)}, "pressure .5": {known("a", .5)}, "unknown": {{Name: "a", Value: 5}}, "none": nil,
	} {
		c := capped(t, &stub{limit: 64, next: time.Second}, control.CapConfig{})
		g := gate{d: control.Decision{Limit: 64}}
		for range 100 {
			g.step(c, 50*time.Millisecond, known("a", 8))
		}
		low := g.d.Limit
		for range 20 {
			g.step(c, 50*time.Millisecond, readings...)
		}
		if g.d.Limit < 2*low || g.d.Limit > 2*low+1 {
			t.Errorf("%s: from %d to %d in one Memory, want twice as much", name, low, g.d.Limit)
		}
		for range 200 {
			d := c.Update(&control.Window{Now: g.now + 50*time.Millisecond, Limit: g.d.Limit, Readings: readings}) // unused
			g.now, g.d = g.now+50*time.Millisecond, d
		}
		if g.d.Limit != 64 || g.d.Signal != "" {
			t.Errorf("%s: 10 s later %+v", name, g.d)
		}
	}
}

// The inner controller keeps its own windows, and sees them whole.
func TestCappedLeavesInnerItsWindows(t *testing.T) {
	inner := &stub{limit: 10, next: 120 * time.Millisecond}
	c := capped(t, inner, control.CapConfig{})
	g := gate{d: control.Decision{Limit: 10}}
	for _, want := range []struct {
		length, next time.Duration
		extend       bool
	}{
		{50 * time.Millisecond, 50 * time.Millisecond, true},
		{50 * time.Millisecond, 20 * time.Millisecond, true},
		{20 * time.Millisecond, 50 * time.Millisecond, false}, // inner's turn
		{50 * time.Millisecond, 50 * time.Millisecond, true},
	} {
		if d := g.step(c, want.length); d.Next != want.next || d.Extend != want.extend {
			t.Errorf("after %v: %+v, want next %v, extend %v", g.now, d, want.next, want.extend)
		}
	}
	if len(inner.seen) != 1 || inner.seen[0].Elapsed != 120*time.Millisecond {
		t.Errorf("inner saw %+v", inner.seen)
	}
	inner.extend = true
	g.step(c, 70*time.Millisecond)
	g.step(c, 120*time.Millisecond)
	if n := len(inner.seen); n != 3 || inner.seen[2].Elapsed != 240*time.Millisecond {
		t.Errorf("an extended window: inner saw %d windows, the last of %v", n, inner.seen[n-1].Elapsed)
	}
}

func TestCappedInnerWithoutWindows(t *testing.T) {
	c := capped(t, control.Fixed(30), control.CapConfig{})
	g := gate{d: control.Decision{Limit: 30}}
	for range 10 {
		if d := g.step(c, 50*time.Millisecond); d.Limit != 30 || d.Extend || d.Next != 50*time.Millisecond {
			t.Fatalf("%+v", d)
		}
	}
	if d := g.step(c, 50*time.Millisecond, known("a", 1.5)); d.Limit != 20 || d.Signal != "a" {
		t.Errorf("%+v", d)
	}
	c.Restore(control.State{Limit: 5})
	if s := c.Save(); s.Limit != 30 {
		t.Errorf("saved %+v", s)
	}
}

// Saturation by the cap is no reason to grow: what inner learned from it is
// undone. Without a cap, and downwards, it stands.
func TestCappedUndoesGrowth(t *testing.T) {
	inner := &stub{limit: 40, next: 50 * time.Millisecond, grow: 5}
	c := capped(t, inner, control.CapConfig{})
	g := gate{d: control.Decision{Limit: 40}}
	if d := g.step(c, 50*time.Millisecond, known("a", 0.1)); d.Limit != 45 {
		t.Fatalf("free to grow: %+v", d)
	}
	g.step(c, 50*time.Millisecond, known("a", 1.5)) // the cap binds from here on
	if inner.limit != 50 {
		t.Fatalf("the window before was free: %d", inner.limit)
	}
	for range 100 {
		g.step(c, 50*time.Millisecond, known("a", 1))
	}
	if inner.limit != 50 || g.d.Limit != 30 || inner.seen[50].Limit != 30 || inner.seen[50].Saturated != 50*time.Millisecond {
		t.Errorf("inner %d, decision %+v, window %+v", inner.limit, g.d, inner.seen[50])
	}
	inner.grow = -3
	g.step(c, 50*time.Millisecond, known("a", 1))
	if inner.limit != 47 {
		t.Errorf("it may shrink: %d", inner.limit)
	}
	inner.grow = -30
	if d := g.step(c, 50*time.Millisecond, known("a", 1)); d.Limit != 17 || d.Signal != "" || d.Reason != "inner" {
		t.Errorf("inner's limit is lower: %+v", d)
	}
	inner.grow = 1
	g.step(c, 50*time.Millisecond, known("a", 1)) // the window before was inner's alone
	if inner.limit != 18 {
		t.Errorf("the cap does not bind any more: %d", inner.limit)
	}
}

func TestCappedPassesStateThrough(t *testing.T) {
	inner := &stub{limit: 40, next: time.Second}
	c := capped(t, inner, control.CapConfig{})
	g := gate{d: control.Decision{Limit: 40}}
	g.step(c, 50*time.Millisecond, known("a", 2))
	if s := c.Save(); s.Limit != 40 {
		t.Errorf("saved the cap: %+v", s)
	}
	c.Restore(control.State{Limit: 60})
	if d := c.Start(); inner.limit != 60 || d.Limit != 20 {
		t.Errorf("restored in the middle: inner %d, %+v; the cap stays", inner.limit, d)
	}
	if c.Name() != "stub" {
		t.Errorf("name %q", c.Name())
	}
}

// Nonsense is for the gate to refuse and count, not to hide.
func TestCappedShowsNonsense(t *testing.T) {
	inner := &stub{limit: 40, next: 50 * time.Millisecond}
	c := capped(t, inner, control.CapConfig{})
	g := gate{d: control.Decision{Limit: 40}}
	inner.grow = -100
	if d := g.step(c, 50*time.Millisecond, known("a", 1.5)); d.Limit != -60 {
		t.Errorf("%+v", d)
	}
}

func TestCappedFaults(t *testing.T) {
	_, err := control.NewCapped(nil, control.CapConfig{Min: -1, Window: 1, Memory: -1, Growth: 1})
	for _, want := range []string{"no controller", "Min -1", "Window 1ns", "Memory -1ns", "Growth 1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want it to say %q", err, want)
		}
	}
}

func FuzzCapped(f *testing.F) {
	f.Add(1.0, 2.0, int64(5), int64(1), int64(10), true)
	f.Add(math.Inf(1), math.NaN(), int64(-5), int64(1<<62), int64(0), false)
	f.Fuzz(func(t *testing.T, a, b float64, inFlight, limit, elapsed int64, isKnown bool) {
		inner := &stub{limit: 1 + max(0, limit)%1000, next: 70 * time.Millisecond, grow: 1}
		c := capped(t, inner, control.CapConfig{Min: 2})
		w := control.Window{Limit: limit, InFlight: inFlight, MaxInFlight: inFlight, OK: elapsed}
		for i := range 50 {
			w.Now += time.Duration(elapsed % int64(time.Hour))
			w.Elapsed = time.Duration(elapsed)
			v := a
			if i%3 == 0 {
				v = b
			}
			w.Readings = []control.Reading{{Name: "a", Value: v, Known: isKnown}}
			if d := c.Update(&w); d.Limit < 1 || d.Limit > inner.limit || d.Next < time.Millisecond || d.Next > 70*time.Millisecond {
				t.Fatalf("look %d: %+v of inner's %d", i, d, inner.limit)
			}
		}
	})
}

func TestResourceSteps(t *testing.T) {
	used := func(inFlight int64, readings ...control.Reading) *control.Window {
		return &control.Window{MaxInFlight: inFlight, InFlight: inFlight, Readings: readings}
	}
	tests := []struct {
		name   string
		w      *control.Window
		want   int64
		signal string
	}{
		{"in proportion", used(100, known("cpu", 1.25)), 80, "cpu"},
		{"by the highest", used(100, known("cpu", 1.25), known("memory", 1.6)), 62, "memory"},
		{"unused too", used(1, known("cpu", 1.25)), 80, "cpu"},
		{"by half at most", used(100, known("cpu", 7)), 50, "cpu"},
		{"an infinite pressure", used(100, known("cpu", math.Inf(1))), 50, "cpu"},
		{"not when idle", used(0, known("cpu", 7)), 100, ""},
		{"grows when reached", used(100, known("cpu", 0.5)), 110, ""},
		{"towards 1", used(100, known("cpu", 0.95)), 105, ""},
		{"by Growth from nothing", used(100, known("cpu", 0)), 110, ""},
		{"not when not reached", used(99, known("cpu", 0.5)), 100, ""},
		{"stays at 1", used(100, known("cpu", 1)), 100, ""},
		{"holds what is unknown", used(100, control.Reading{Name: "cpu", Value: 9}), 100, ""},
		{"holds without signals", used(100), 100, ""},
		{"nonsense is unknown", used(100, known("cpu", math.NaN()), known("x", -4)), 100, ""},
		{"nonsense beside sense", used(100, known("cpu", math.NaN()), known("x", 2)), 50, "x"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := control.NewResource(control.ResourceConfig{Initial: 100})
			if err != nil {
				t.Fatal(err)
			}
			d := r.Update(tt.w)
			if d.Limit != tt.want || d.Signal != tt.signal || d.Reason == "" || d.Next <= 0 || d.Extend {
				t.Errorf("%+v, want %d by %q", d, tt.want, tt.signal)
			}
		})
	}
}

func TestResourceGoesBySignalsNamed(t *testing.T) {
	r, err := control.NewResource(control.ResourceConfig{Initial: 100, Signals: []string{"cpu", "memory"}})
	if err != nil {
		t.Fatal(err)
	}
	w := &control.Window{InFlight: 100, Readings: []control.Reading{known("lag", 50_000), known("memory", 1.25)}}
	if d := r.Update(w); d.Limit != 80 || d.Signal != "memory" {
		t.Errorf("%+v", d)
	}
	w.Readings = w.Readings[:1]
	if d := r.Update(w); d.Limit != 80 || d.Signal != "" {
		t.Errorf("lag alone: %+v", d)
	}
}

func TestResourceBoundsAndState(t *testing.T) {
	r, err := control.NewResource(control.ResourceConfig{Initial: 7, Min: 4, Max: 9})
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		r.Update(&control.Window{InFlight: 9, Readings: []control.Reading{known("cpu", 3)}})
	}
	if s := r.Save(); s.Limit != 4 {
		t.Errorf("below Min: %+v", s)
	}
	for range 30 {
		r.Update(&control.Window{InFlight: 9, Readings: []control.Reading{known("cpu", 0.3)}})
	}
	if s := r.Save(); s.Limit != 9 {
		t.Errorf("above Max: %+v", s)
	}
	for limit, want := range map[float64]int64{6.5: 6, 1: 4, 1e12: 9, math.NaN(): 9, math.Inf(1): 9, -1: 9} {
		r.Restore(control.State{Limit: 9})
		r.Restore(control.State{Limit: limit})
		if d := r.Start(); d.Limit != want {
			t.Errorf("restored %v: %d, want %d", limit, d.Limit, want)
		}
	}
}

func TestResourceFaults(t *testing.T) {
	_, err := control.NewResource(control.ResourceConfig{Min: -1, Max: -2, Window: 1, Growth: 1, Backoff: 1})
	for _, want := range []string{"Min -1", "Max -2", "Window 1ns", "Growth 1", "Backoff 1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want it to say %q", err, want)
		}
	}
}

// processor is a closed loop on virtual time: cores shared by what a limiter has
// admitted, Poisson arrivals, and a signal that follows the jobs in the
// processor with a lag.
type processor struct {
	cores float64
	curve func(jobs float64) float64 // the pressure that so many jobs make in the end
	lag   time.Duration              // of the signal, first order

	now      time.Duration
	pressure float64
	jobs     []job
	random   *rand.Rand
	gate     *limit.Limiter
}

type job struct {
	left   float64 // ms of work
	permit weir.Permit
}

// Readings implements [control.Source].
func (p *processor) Readings(into []control.Reading) []control.Reading {
	return append(into, control.Reading{Name: "load", Value: p.pressure, Known: true})
}

func (p *processor) start(t *testing.T, c control.Controller) {
	t.Helper()
	p.random = rand.New(rand.NewPCG(1, 2))
	gate, err := limit.New(limit.Config{
		Name: "cpu", Controller: c, Signals: p, Queue: limit.Queue{Len: -1},
		Now: func() time.Duration { return p.now },
	})
	if err != nil {
		t.Fatal(err)
	}
	p.gate = gate
}

// seen is what came of a stretch of time.
type seen struct {
	limit, pressure, busy float64 // means
	lowest, highest       int64   // limits
}

// run lets jobs of 2 ms, exponential, come at so many times the capacity.
func (p *processor) run(length time.Duration, load float64) seen {
	const mean = 2.0
	s := seen{lowest: math.MaxInt64}
	steps := 0
	for end := p.now + length; p.now < end; {
		for at := p.random.ExpFloat64(); at < load*p.cores/mean; at += p.random.ExpFloat64() {
			if permit, err := p.gate.TryAdmit(weir.Work{}); err == nil {
				p.jobs = append(p.jobs, job{mean * p.random.ExpFloat64(), permit})
			}
		}
		s.busy += min(1, float64(len(p.jobs))/p.cores)
		p.now += time.Millisecond
		p.work()
		p.gate.Step()
		now := p.gate.Snapshot().Limit
		s.limit += float64(now)
		s.pressure += p.pressure
		s.lowest, s.highest = min(s.lowest, now), max(s.highest, now)
		steps++
	}
	s.limit, s.pressure, s.busy = s.limit/float64(steps), s.pressure/float64(steps), s.busy/float64(steps)
	return s
}

// work lets a millisecond pass.
func (p *processor) work() {
	n := float64(len(p.jobs))
	p.pressure += (p.curve(n) - p.pressure) / (1 + float64(p.lag/time.Millisecond))
	each := min(1, p.cores/max(1, n))
	left := p.jobs[:0]
	for _, j := range p.jobs {
		if j.left -= each; j.left > 0 {
			left = append(left, j)
			continue
		}
		j.permit.Done(weir.OK)
	}
	p.jobs = left
}

// linear is a pressure of 1 at so many jobs.
func linear(wanted float64) func(float64) float64 {
	return func(jobs float64) float64 { return jobs / wanted }
}

// late is what scheduler latency looks like on two cores: nothing up to 7 jobs,
// 1 at 8, and at 17 all it can ever say.
func late(jobs float64) float64 { return min(10, max(0, jobs-7)) }

// share is a processor share over 85 %, on 16 cores: it ends at 1.18.
func share(jobs float64) float64 { return min(1, jobs/16) / 0.85 }

func resource(t *testing.T) control.Controller {
	t.Helper()
	r, err := control.NewResource(control.ResourceConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func capOn(n int64) func(*testing.T) control.Controller {
	return func(t *testing.T) control.Controller {
		t.Helper()
		return capped(t, control.Fixed(n), control.CapConfig{})
	}
}

// Under three times the load, each controller brings the pressure to 1 and keeps
// the processor busy, whether the signal is quick or slow, without falling far
// below on the way.
func TestPressureSettles(t *testing.T) {
	const slow = 500 * time.Millisecond
	for name, tt := range map[string]struct {
		controller func(*testing.T) control.Controller
		wanted     float64
		lag        time.Duration
	}{
		"resource":                    {resource, 16, 0},
		"resource, slow signal":       {resource, 64, slow / 2},
		"capped":                      {capOn(1000), 16, 0},
		"capped, slow signal":         {capOn(1000), 16, 2 * slow},
		"capped, high":                {capOn(1000), 64, slow},
		"capped, few":                 {capOn(1000), 4, slow / 5},
		"capped, inner close to best": {capOn(20), 16, slow},
	} {
		t.Run(name, func(t *testing.T) {
			p := &processor{cores: 2, curve: linear(tt.wanted), lag: tt.lag}
			p.start(t, tt.controller(t))
			defer p.gate.Close()
			p.run(time.Second, 0.5)
			first, then := p.run(8*time.Second, 3), p.run(4*time.Second, 3)
			t.Logf("first %+v, then %+v", first, then)
			if first.lowest < int64(0.7*tt.wanted) && first.lowest < 20 || then.lowest < int64(0.7*tt.wanted) {
				t.Errorf("fell to %d and %d, %v wanted", first.lowest, then.lowest, tt.wanted)
			}
			if then.pressure < 0.9 || then.pressure > 1.1 || then.limit > 1.1*tt.wanted || then.busy < 0.95 {
				t.Errorf("settled at %+v", then)
			}
		})
	}
}

// Signals that are no straight line: one that is steep, one that ends a little
// above 1. The cap moves more, and the processor stays busy.
func TestPressureCurves(t *testing.T) {
	for name, tt := range map[string]struct {
		cores           float64
		curve           func(float64) float64
		lowest, highest int64
		busy            float64
	}{
		"late":  {2, late, 4, 10, 0.97},
		"share": {16, share, 11, 17, 0.75},
	} {
		t.Run(name, func(t *testing.T) {
			p := &processor{cores: tt.cores, curve: tt.curve, lag: 50 * time.Millisecond}
			p.start(t, capOn(100)(t))
			defer p.gate.Close()
			p.run(15*time.Second, 3)
			s := p.run(5*time.Second, 3)
			t.Logf("%+v", s)
			if s.lowest < tt.lowest || s.highest > tt.highest || s.busy < tt.busy {
				t.Errorf("%+v, want limits from %d to %d and at least %v busy", s, tt.lowest, tt.highest, tt.busy)
			}
		})
	}
}

// When the load is gone, so is the cap.
func TestCapIsLifted(t *testing.T) {
	p := &processor{cores: 2, curve: linear(16), lag: 100 * time.Millisecond}
	p.start(t, capOn(200)(t))
	defer p.gate.Close()
	p.run(10*time.Second, 3)
	if s := p.gate.Snapshot(); s.Limit > 20 || s.Signal != "load" {
		t.Errorf("under load: limit %d by %q", s.Limit, s.Signal)
	}
	p.run(5*time.Second, 0.2)
	if s := p.gate.Snapshot(); s.Limit != 200 || s.Signal != "" {
		t.Errorf("5 s later: limit %d by %q", s.Limit, s.Signal)
	}
}

// AIMD takes half of its limit in use for leave to grow. Behind a cap it must
// not, however long that lasts.
func TestInnerDoesNotDrift(t *testing.T) {
	inner := aimd(t, control.AIMDConfig{Initial: 20, Threshold: time.Hour, Window: 100 * time.Millisecond})
	p := &processor{cores: 2, curve: linear(16), lag: 100 * time.Millisecond}
	p.start(t, capped(t, inner, control.CapConfig{}))
	defer p.gate.Close()
	p.run(5*time.Second, 3)
	before := inner.Save().Limit
	p.run(20*time.Second, 3)
	if after := inner.Save().Limit; after > before || before > 40 {
		t.Errorf("drifted from %v to %v behind the cap", before, after)
	}
	p.curve = linear(1000)
	p.run(5*time.Second, 3)
	if after := inner.Save().Limit; after < before+20 {
		t.Errorf("without the cap it grows: %v, was %v", after, before)
	}
}

// What Resource's doc says of its blind spot.
func TestResourceIsBlindToWaiting(t *testing.T) {
	p := &processor{cores: 2, curve: linear(math.Inf(1))}
	p.start(t, resource(t))
	defer p.gate.Close()
	p.run(5*time.Second, 3)
	if s := p.gate.Snapshot(); s.Limit < 100 {
		t.Errorf("limit %d where nothing presses, want it to go on growing", s.Limit)
	}
}
