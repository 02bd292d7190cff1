package control

import (
	"math"
	"strings"
	"testing"
	"time"
)

// stub is an inner controller that does as it is told and notes what it saw.
type stub struct {
	limit    int64
	fraction float64
	grow     int64
	next     time.Duration
	extend   bool
	seen     []Window
	restored []State
}

func (s *stub) Name() string { return "stub" }
func (s *stub) Start() Decision {
	return Decision{Limit: s.limit, Fraction: s.fraction, Next: s.next, Reason: "initial"}
}
func (s *stub) Update(w *Window) Decision {
	s.seen = append(s.seen, *w)
	s.limit += s.grow
	return Decision{Limit: s.limit, Fraction: s.fraction, Next: s.next, Extend: s.extend, Reason: "inner"}
}
func (s *stub) Save() State { return State{Limit: float64(s.limit)} }
func (s *stub) Restore(st State) {
	s.restored = append(s.restored, st)
	s.limit = int64(st.Limit)
}

func capped(t *testing.T, inner Controller, cfg CapConfig) *Capped {
	t.Helper()
	c, err := NewCapped(inner, cfg)
	if err != nil {
		t.Fatal(err)
	}
	c.Start()
	return c
}

// gate keeps the time and the limit as a gate does, with everything in use.
type gate struct {
	now, start time.Duration
	d          Decision
}

func (g *gate) window(length time.Duration, readings ...Reading) *Window {
	g.now += length
	return &Window{
		Now: g.now, Elapsed: g.now - g.start, Saturated: g.now - g.start,
		Limit: g.d.Limit, InFlight: g.d.Limit, MaxInFlight: g.d.Limit, Readings: readings,
	}
}

func (g *gate) step(c Controller, length time.Duration, readings ...Reading) Decision {
	g.d = c.Update(g.window(length, readings...))
	if !g.d.Extend {
		g.start = g.now
	}
	return g.d
}

func known(name string, v float64) Reading {
	return Reading{Name: name, Value: v, Known: true}
}

func TestCappedFollowsTheHighestPressure(t *testing.T) {
	c := capped(t, &stub{limit: 40, next: time.Second}, CapConfig{})
	g := gate{d: Decision{Limit: 40}}
	d := g.step(c, 50*time.Millisecond, known("cpu", 1.2), Reading{Name: "unknown", Value: 9},
		known("psi", 1.6), known("nan", math.NaN()))
	if d.Limit != 25 || d.Signal != "psi" || !strings.Contains(d.Reason, "psi at 1.6") || !d.Extend || d.Next != 50*time.Millisecond {
		t.Errorf("40 in flight at a pressure of 1.6: %+v", d)
	}
	if d := g.step(c, 50*time.Millisecond, known("psi", 1)); d.Limit != 25 || d.Signal != "psi" {
		t.Errorf("at a pressure of 1: %+v", d)
	}
}

// A cap is a whole number: no key has one slot more. Nor does one that grew while the cap was the limit.
func TestCapHasNoFraction(t *testing.T) {
	inner := &stub{limit: 40, fraction: 0.5, next: 100 * time.Millisecond}
	c := capped(t, inner, CapConfig{})
	g := gate{d: Decision{Limit: 40}}
	if d := g.step(c, 50*time.Millisecond, known("cpu", 1)); d.Limit != 40 || d.Fraction != 0.5 {
		t.Errorf("without a cap: %+v", d)
	}
	if d := g.step(c, 50*time.Millisecond, known("cpu", 1.6)); d.Limit != 25 || d.Fraction != 0 {
		t.Errorf("capped: %+v", d)
	}
	if d := c.Start(); d.Limit != 25 || d.Fraction != 0 {
		t.Errorf("started again: %+v", d)
	}
	inner.grow, inner.fraction = 1, 0.9
	for range 4 {
		g.step(c, 50*time.Millisecond, known("cpu", 1.2))
	}
	if c.want.Limit != 40 || c.want.Fraction != 0.5 {
		t.Errorf("grown under a cap: %+v", c.want)
	}
}

func TestCappedGoesBySignalsNamed(t *testing.T) {
	c := capped(t, Fixed(40), CapConfig{Signals: []string{"cpu"}})
	g := gate{d: Decision{Limit: 40}}
	if d := g.step(c, 50*time.Millisecond, known("lag", 50_000), known("cpu", 1.6)); d.Limit != 25 || d.Signal != "cpu" {
		t.Errorf("%+v", d)
	}
}

// A second look at the same overload, before the signal can have noticed, does
// not punish twice.
func TestCappedPunishesOnce(t *testing.T) {
	c := capped(t, &stub{limit: 40, next: time.Second}, CapConfig{})
	g := gate{d: Decision{Limit: 40}}
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
	c := capped(t, &stub{limit: 100, next: time.Second}, CapConfig{Min: 3})
	g := gate{d: Decision{Limit: 100}}
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
	c := capped(t, &stub{limit: 100, next: time.Second}, CapConfig{})
	for i := range 20 {
		d := c.Update(&Window{Now: time.Duration(i) * 50 * time.Millisecond, Limit: 100, Readings: []Reading{known("a", 10)}})
		if d.Limit != 100 || d.Signal != "" {
			t.Fatalf("somebody else's pressure: %+v", d)
		}
	}
}

// The cap rises by itself: used or not, with signals below 1 or none at all.
func TestCappedRecovers(t *testing.T) {
	for name, readings := range map[string][]Reading{
		"pressure 0": {known("a", 0)}, "pressure 0.5": {known("a", 0.5)}, "unknown": {{Name: "a", Value: 5}}, "none": nil,
	} {
		c := capped(t, &stub{limit: 64, next: time.Second}, CapConfig{})
		g := gate{d: Decision{Limit: 64}}
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
			d := c.Update(&Window{Now: g.now + 50*time.Millisecond, Limit: g.d.Limit, Readings: readings}) // unused
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
	c := capped(t, inner, CapConfig{})
	g := gate{d: Decision{Limit: 10}}
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
	c := capped(t, Fixed(30), CapConfig{})
	g := gate{d: Decision{Limit: 30}}
	for range 10 {
		if d := g.step(c, 50*time.Millisecond); d.Limit != 30 || d.Extend || d.Next != 50*time.Millisecond {
			t.Fatalf("%+v", d)
		}
	}
	if d := g.step(c, 50*time.Millisecond, known("a", 1.5)); d.Limit != 20 || d.Signal != "a" {
		t.Errorf("%+v", d)
	}
	c.Restore(State{Limit: 5})
	if s := c.Save(); s.Limit != 30 {
		t.Errorf("saved %+v", s)
	}
}

// Saturation by the cap is no reason to grow: what inner learned from it is
// undone. Without a cap, and downwards, it stands.
func TestCappedUndoesGrowth(t *testing.T) {
	inner := &stub{limit: 40, next: 50 * time.Millisecond, grow: 5}
	c := capped(t, inner, CapConfig{})
	g := gate{d: Decision{Limit: 40}}
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
	c := capped(t, inner, CapConfig{})
	g := gate{d: Decision{Limit: 40}}
	g.step(c, 50*time.Millisecond, known("a", 2))
	if s := c.Save(); s.Limit != 40 {
		t.Errorf("saved the cap: %+v", s)
	}
	c.Restore(State{Limit: 60})
	if d := c.Start(); inner.limit != 60 || d.Limit != 20 {
		t.Errorf("restored in the middle: inner %d, %+v; the cap stays", inner.limit, d)
	}
	if c.Name() != "stub" {
		t.Errorf("name %q", c.Name())
	}
}

// A successor with the same signals has the cap, and inner's limit, whatever its inner controller is; but not below its own Min.
func TestCappedSucceeds(t *testing.T) {
	old := capped(t, &stub{limit: 40, next: time.Second}, CapConfig{Signals: []string{"a"}})
	g := gate{d: Decision{Limit: 40}}
	for range 2 {
		g.step(old, 50*time.Millisecond, known("a", 4))
	}
	for _, c := range []struct {
		name  string
		inner Controller
		cfg   CapConfig
		want  int64
		began bool
	}{
		{"a Saver", &stub{limit: 30, next: time.Second}, CapConfig{Signals: []string{"a"}}, 10, true},
		{"no Saver", Fixed(30), CapConfig{Signals: []string{"a"}}, 10, true},
		{"a Successor", func() Controller { b, _ := NewBelief(BeliefConfig{Initial: 30}); return b }(), CapConfig{Signals: []string{"a"}}, 10, true},
		{"a higher Min", Fixed(30), CapConfig{Signals: []string{"a"}, Min: 15}, 15, true},
		{"other signals", Fixed(30), CapConfig{Signals: []string{"b"}}, 30, false},
	} {
		next, err := NewCapped(c.inner, c.cfg)
		if err != nil {
			t.Fatal(err)
		}
		if did, d := next.Succeed(old), next.Start(); did != c.began || d.Limit != c.want {
			t.Errorf("%s: %v, %+v; want a limit of %d", c.name, did, d, c.want)
		}
		if s, ok := c.inner.(*stub); ok && s.limit != 40 {
			t.Errorf("%s: inner has a limit of %d", c.name, s.limit)
		}
	}
	next := capped(t, Fixed(30), CapConfig{Signals: []string{"a"}})
	if next.Succeed(Fixed(20)) {
		t.Error("goes on where nothing was learned")
	}
}

// Nonsense is for the gate to refuse and count, not to hide.
func TestCappedShowsNonsense(t *testing.T) {
	inner := &stub{limit: 40, next: 50 * time.Millisecond}
	c := capped(t, inner, CapConfig{})
	g := gate{d: Decision{Limit: 40}}
	inner.grow = -100
	if d := g.step(c, 50*time.Millisecond, known("a", 1.5)); d.Limit != -60 {
		t.Errorf("%+v", d)
	}
}

func TestCappedFaults(t *testing.T) {
	_, err := NewCapped(nil, CapConfig{Min: -1, Window: 1, Memory: -1, Growth: 1})
	for _, want := range []string{"no controller", "Min: is -1", "Window: is 1ns", "Memory: is -1ns", "Growth: is 1"} {
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
		c := capped(t, inner, CapConfig{Min: 2})
		w := Window{Limit: limit, InFlight: inFlight, MaxInFlight: inFlight, OK: elapsed}
		for i := range 50 {
			w.Now += time.Duration(elapsed % int64(time.Hour))
			w.Elapsed = time.Duration(elapsed)
			v := a
			if i%3 == 0 {
				v = b
			}
			w.Readings = []Reading{{Name: "a", Value: v, Known: isKnown}}
			if d := c.Update(&w); d.Limit < 1 || d.Limit > inner.limit || d.Next < time.Millisecond || d.Next > 70*time.Millisecond {
				t.Fatalf("look %d: %+v of inner's %d", i, d, inner.limit)
			}
		}
	})
}

func TestResourceSteps(t *testing.T) {
	used := func(inFlight int64, readings ...Reading) *Window {
		return &Window{MaxInFlight: inFlight, InFlight: inFlight, Readings: readings}
	}
	tests := []struct {
		name   string
		w      *Window
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
		{"holds what is unknown", used(100, Reading{Name: "cpu", Value: 9}), 100, ""},
		{"holds without signals", used(100), 100, ""},
		{"nonsense is unknown", used(100, known("cpu", math.NaN()), known("x", -4)), 100, ""},
		{"nonsense beside sense", used(100, known("cpu", math.NaN()), known("x", 2)), 50, "x"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := NewResource(ResourceConfig{Initial: 100})
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
	r, err := NewResource(ResourceConfig{Initial: 100, Signals: []string{"cpu", "memory"}})
	if err != nil {
		t.Fatal(err)
	}
	w := &Window{InFlight: 100, Readings: []Reading{known("lag", 50_000), known("memory", 1.25)}}
	if d := r.Update(w); d.Limit != 80 || d.Signal != "memory" {
		t.Errorf("%+v", d)
	}
	w.Readings = w.Readings[:1]
	if d := r.Update(w); d.Limit != 80 || d.Signal != "" {
		t.Errorf("lag alone: %+v", d)
	}
}

func TestResourceBoundsAndState(t *testing.T) {
	r, err := NewResource(ResourceConfig{Initial: 7, Min: 4, Max: 9})
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		r.Update(&Window{InFlight: 9, Readings: []Reading{known("cpu", 3)}})
	}
	if s := r.Save(); s.Limit != 4 {
		t.Errorf("below Min: %+v", s)
	}
	for range 30 {
		r.Update(&Window{InFlight: 9, Readings: []Reading{known("cpu", 0.3)}})
	}
	if s := r.Save(); s.Limit != 9 {
		t.Errorf("above Max: %+v", s)
	}
	for limit, want := range map[float64]int64{6.5: 6, 1: 4, 1e12: 9, math.NaN(): 9, math.Inf(1): 9, -1: 9} {
		r.Restore(State{Limit: 9})
		r.Restore(State{Limit: limit})
		if d := r.Start(); d.Limit != want {
			t.Errorf("restored %v: %d, want %d", limit, d.Limit, want)
		}
	}
}

func TestResourceFaults(t *testing.T) {
	_, err := NewResource(ResourceConfig{Min: -1, Max: -2, Window: 1, Growth: 1, Backoff: 1})
	for _, want := range []string{"Min: is -1", "Max: -2 will not do", "Window: is 1ns", "Growth: is 1", "Backoff: is 1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want it to say %q", err, want)
		}
	}
}
