package shed

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
)

func rules(c Config) Config {
	if c.Pressure == nil {
		c.Pressure = known(0)
	}
	c, _ = c.complete()
	return c
}

// The table of thresholds, at both sides of each.
func TestThresholds(t *testing.T) {
	var c core
	var b counters
	c.configure(0, rules(Config{}), &b)
	for i, step := range []struct {
		load    float64
		refused int // classes
	}{
		{0, 0}, {0.5, 0}, {0.7499, 0},
		{0.75, 1}, {0.8999, 1},
		{0.90, 2}, {0.92, 2}, // at 92 % critical and high pass, normal and background do not
		{0.95, 3}, {0.9999, 3},
		{1, 4}, {50, 4}, // the hard cap
		{0.8, 1}, {0.1, 0},
	} {
		now := time.Duration(i) * 10 * time.Millisecond
		c.step(now, &reading{value: step.load, at: now}, &b)
		if want := Level(step.refused * users); c.level != want {
			t.Errorf("at a load of %v the level is %v, want %v", step.load, c.level, want)
		}
		if got := c.retry(now); got != time.Second {
			t.Errorf("at a load of %v the wait is %v, want as long as a pressure holds", step.load, got)
		}
	}
}

// However often the pressure is read, nobody is told to come back at once. With thresholds the
// wait is as long as the gate goes by a pressure, or until the next one, if that is later.
func TestLeastRetry(t *testing.T) {
	for _, tt := range []struct {
		cfg  Config
		want time.Duration
	}{
		{Config{Interval: time.Millisecond}, time.Second},
		{Config{Interval: time.Millisecond, Hold: 2 * time.Millisecond}, 10 * time.Millisecond},
		{Config{Hold: 3 * time.Second}, 3 * time.Second},
		{Config{Hold: time.Hour}, time.Minute},
		{Config{Interval: 5 * time.Second, Hold: 5 * time.Second}, 5 * time.Second},
	} {
		var c core
		var b counters
		c.configure(0, rules(tt.cfg), &b)
		c.step(0, &reading{value: 2}, &b)
		if got := c.retry(0); got != tt.want {
			t.Errorf("read every %v and held for %v: the wait is %v, want %v", c.rules.Interval, c.rules.Hold, got, tt.want)
		}
	}
}

// A clock that goes back decides nothing and makes no long wait.
func TestClockGoesBack(t *testing.T) {
	for _, cursor := range []*Cursor{nil, {}} {
		var c core
		var b counters
		c.configure(time.Hour, rules(Config{Cursor: cursor}), &b)
		arrive(&c, &b, weir.Normal, 1000)
		r := &reading{value: 2, at: time.Hour}
		c.step(time.Hour+time.Second, r, &b)
		level := c.level
		if c.step(0, r, &b); c.level != level || level == 0 {
			t.Errorf("cursor %v: level %v after the clock went back, want %v", cursor, c.level, level)
		}
		if got := c.retry(0); got > time.Minute {
			t.Errorf("cursor %v: a wait of %v", cursor, got)
		}
	}
}

// A pressure that is no longer known stands in for Hold; then Blind says.
func TestBlind(t *testing.T) {
	for _, blind := range []Blind{Open, Keep} {
		for _, cursor := range []*Cursor{nil, {}} {
			var c core
			var b counters
			c.configure(0, rules(Config{Blind: blind, Cursor: cursor}), &b)
			c.step(0, nil, &b)
			if c.level != 0 {
				t.Errorf("blind %v: level %v before the first reading, want 0", blind, c.level)
			}
			arrive(&c, &b, weir.Background, 1000)
			r := &reading{value: 0.97, at: time.Second}
			if cursor != nil {
				r.value = 3
			}
			c.step(time.Second, r, &b)
			level := c.level
			if level == 0 {
				t.Fatalf("blind %v: an overload moves nothing", blind)
			}
			c.step(2*time.Second, r, &b)
			if c.level != level || !c.known {
				t.Errorf("blind %v: level %v after 1s without a reading, want %v still", blind, c.level, level)
			}
			c.step(2*time.Second+1, r, &b)
			if want := map[Blind]Level{Open: 0, Keep: level}[blind]; c.level != want || c.known {
				t.Errorf("blind %v: level %v when the hold is over, want %v", blind, c.level, want)
			}
		}
	}
}

// arrive lets n pieces of work of a class arrive, spread over its users.
func arrive(c *core, b *counters, p weir.Priority, n int) {
	for i := range n {
		l := Level(p.Class()*users + i*users/n)
		if l < c.level {
			b.refused[l].Add(1)
		} else {
			b.admitted[l].Add(1)
		}
	}
}

// steps drives a cursor: in every window the same arrives, at a pressure.
type steps struct {
	core
	counters
	now time.Duration
}

func newSteps() *steps {
	s := &steps{}
	s.configure(0, rules(Config{Cursor: &Cursor{}}), &s.counters)
	return s
}

// window plays one window of a second and returns the share of each class that
// was let through in it.
func (s *steps) window(pressure float64, background, critical int) (let [2]float64) {
	before := [2]totals{sum(&s.counters.admitted), sum(&s.counters.refused)}
	arrive(&s.core, &s.counters, weir.Background, background)
	arrive(&s.core, &s.counters, weir.Critical, critical)
	after := sum(&s.counters.admitted)
	in, was := after.classes(), before[0].classes()
	let[0] = float64(in[0]-was[0]) / float64(background)
	let[1] = float64(in[3]-was[3]) / float64(critical)
	s.now += time.Second
	s.step(s.now, &reading{value: pressure, at: s.now}, &s.counters)
	return let
}

// One step, however far: a load that grows tenfold over what was well is cut
// back to that at once if the pressure says so, and let through at once when it
// is gone.
func TestCursorFollowsAStep(t *testing.T) {
	s := newSteps()
	s.window(0.5, 900, 100)
	if let := s.window(20, 9000, 1000); let != [2]float64{1, 1} {
		t.Fatalf("before the step %v was let through", let)
	}
	// 1,000 of 10,000 were well: all that is critical.
	if let := s.window(0.9, 9000, 1000); let[0] > 0.02 || let[1] < 1 {
		t.Errorf("one window after the step %v was let through, want [0 1]", let)
	}
	s.window(0.5, 900, 100)
	if let := s.window(0.5, 900, 100); let != [2]float64{1, 1} {
		t.Errorf("one window after the step back %v was let through, want all", let)
	}
}

// After an overload the growth doubles with each window that is well. So a load that is well again is
// soon let through, and not by one small step a window.
func TestCursorGrowsFaster(t *testing.T) {
	s := newSteps()
	s.window(0.5, 900, 100)
	s.window(20, 9000, 1000)
	for n := 1; ; n++ {
		if let := s.window(0.5, 9000, 1000); let == [2]float64{1, 1} {
			if n > 12 {
				t.Errorf("all is let through after %d windows, want 12 at most", n)
			}
			break
		} else if n == 100 {
			t.Fatalf("after %d windows %v is let through", n, let)
		}
	}
}

// A queue that drains is left to drain; one that does not, at what was well, is
// cut further by alpha.
func TestCursorLetsAQueueDrain(t *testing.T) {
	s := newSteps()
	s.window(0.5, 12800, 12800) // all of it is well
	s.window(10, 12800, 12800)  // and no longer
	first := s.level
	if first == 0 {
		t.Fatal("an overload at what was well before moves nothing")
	}
	s.window(5, 12800, 12800) // half in a window: over in the next
	if s.level != first {
		t.Errorf("level %v while the queue drains, want %v", s.level, first)
	}
	s.window(4.9, 12800, 12800)
	if s.level <= first {
		t.Errorf("level %v although the queue hardly drains, want above %v", s.level, first)
	}
}

// Without a reading of its own a window moves nothing, and without arrivals
// everything is let through.
func TestCursorWithoutEvidence(t *testing.T) {
	s := newSteps()
	s.window(0.5, 100, 100)
	s.window(5, 1000, 1000)
	level := s.level
	arrive(&s.core, &s.counters, weir.Background, 1000)
	s.now += 900 * time.Millisecond // the reading is held, but is none of this window
	s.step(s.now, s.last, &s.counters)
	if s.level != level {
		t.Errorf("level %v after a window without a reading, want %v", s.level, level)
	}
	s.now += time.Second
	s.step(s.now, &reading{value: 0.1, at: s.now}, &s.counters)
	s.now += time.Second
	s.step(s.now, &reading{value: 0.1, at: s.now}, &s.counters)
	if s.level != 0 {
		t.Errorf("level %v after windows in which nothing came, want 0", s.level)
	}
}

// Whatever the pressure, the highest level stays open.
func TestCursorLeavesAProbe(t *testing.T) {
	s := newSteps()
	for range 200 {
		s.window(1e300, 1280, 1280)
	}
	if s.level != Levels-1 {
		t.Errorf("level %v after 200 windows of overload, want %v", s.level, Level(Levels-1))
	}
}

// A window ends early when enough has come, but not before a tenth of it, and
// the wait that a refusal names ends with it.
func TestWindowEndsEarly(t *testing.T) {
	var c core
	var b counters
	c.configure(0, rules(Config{Cursor: &Cursor{}}), &b)
	ms := time.Millisecond
	at := func(now time.Duration) { c.step(now, &reading{value: 2, at: now}, &b) }
	arrive(&c, &b, weir.Normal, 100)
	if at(50 * ms); c.level != 0 || c.retry(50*ms) != 50*ms {
		t.Errorf("after 50ms with 100 arrivals: level %v, wait %v; want 0, 50ms", c.level, c.retry(50*ms))
	}
	arrive(&c, &b, weir.Normal, 100)
	if at(90 * ms); c.level != 0 || c.retry(90*ms) != 10*ms {
		t.Errorf("after 90ms with 200 arrivals: level %v, wait %v; want 0, 10ms", c.level, c.retry(90*ms))
	}
	if at(100 * ms); c.level == 0 || c.retry(100*ms) != 100*ms {
		t.Errorf("after 100ms with 200 arrivals: level %v, wait %v; want above 0, 100ms", c.level, c.retry(100*ms))
	}
	arrive(&c, &b, weir.Normal, 20)
	if at(200 * ms); c.retry(200*ms) != 900*ms {
		t.Errorf("at 200 arrivals a second: wait %v, want 900ms", c.retry(200*ms))
	}
}

// FuzzCore drives the core with any pressures, arrivals and times.
func FuzzCore(f *testing.F) {
	f.Add(true, []byte{0, 200, 9, 255, 3, 7, 100, 100, 100, 1, 1, 1})
	f.Add(false, []byte{250, 0, 0, 250, 255, 255})
	f.Add(true, []byte("the quick brown fox jumps over the lazy dog"))
	f.Fuzz(func(t *testing.T, cursor bool, script []byte) {
		cfg := Config{}
		if cursor {
			cfg.Cursor = &Cursor{}
		}
		var c core
		var b counters
		c.configure(0, rules(cfg), &b)
		now, last := time.Duration(0), (*reading)(nil)
		for ; len(script) >= 3; script = script[3:] {
			arrive(&c, &b, weir.Priority(int8(script[0])%6), int(script[0])*4)
			now += time.Duration(int8(script[1])) * 7 * time.Millisecond // may go back
			if script[2] > 0 {
				last = &reading{value: math.Ldexp(1, int(script[2])-128), at: now}
			}
			from := c.level
			c.step(now, last, &b)
			most := Level(Levels)
			if cursor {
				most = Levels - 1
			}
			if c.level > most {
				t.Fatalf("level %d, at most %d", c.level, most)
			}
			if !cursor && c.level%users != 0 {
				t.Fatalf("thresholds cut through a class: %v", c.level)
			}
			if cursor && c.known && c.window.overloaded && c.window.began == now && c.level < from {
				t.Fatalf("down to %v from %v in an overloaded window", c.level, from)
			}
			if wait := c.retry(now); wait < c.rules.Interval || wait > time.Minute {
				t.Fatalf("a wait of %v", wait)
			}
			if math.IsNaN(c.window.good) || c.window.good < 0 {
				t.Fatalf("%v a second is called well", c.window.good)
			}
		}
	})
}

func known(v float64) func() (float64, bool) { return func() (float64, bool) { return v, true } }

type noSignals struct{}

func (noSignals) Readings(into []control.Reading) []control.Reading { return into }

func TestDefaults(t *testing.T) {
	c, err := Config{Pressure: known(0), Cursor: &Cursor{}}.complete()
	if err != nil {
		t.Fatal(err)
	}
	if c.Interval != 10*time.Millisecond || c.Hold != time.Second || c.Resalt != time.Hour || c.Blind != Open {
		t.Errorf("defaults are %v %v %v %v", c.Interval, c.Hold, c.Resalt, c.Blind)
	}
	if c.Thresholds != (Thresholds{0.75, 0.90, 0.95, 1}) {
		t.Errorf("thresholds are %v", c.Thresholds)
	}
	want := Cursor{Overload: 1}
	if *c.Cursor != want {
		t.Errorf("the cursor is %+v, want %+v", *c.Cursor, want)
	}
}

// The caller's Cursor is not written to.
func TestDefaultsCopy(t *testing.T) {
	mine := &Cursor{}
	if _, _ = (Config{Cursor: mine}).complete(); *mine != (Cursor{}) {
		t.Errorf("the caller's cursor became %+v", *mine)
	}
}

func TestFaults(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for name, c := range map[string]struct {
		cfg  Config
		want []string
	}{
		"nothing to go by": {Config{}, []string{"Pressure:"}},
		"both":             {Config{Pressure: known(0), Signals: noSignals{}}, []string{"Signals:"}},
		"heed alone":       {Config{Pressure: known(0), Heed: []string{"cpu"}}, []string{"Heed: [cpu]"}},
		"all at once": {
			Config{
				Pressure: known(0), Interval: time.Microsecond, Hold: -1, Blind: 7, Resalt: time.Second,
				Thresholds: Thresholds{Background: nan, Normal: -1, High: inf},
				Cursor:     &Cursor{Overload: inf},
			},
			[]string{
				"Interval: is 1µs", "Hold: -1ns", "Blind: 7", "Resalt: 1s", "Background: NaN", "Normal: is -1", "High: is +Inf",
				"Cursor.Overload: is +Inf",
			},
		},
		"not monotone":              {Config{Pressure: known(0), Thresholds: Thresholds{Background: 0.92}}, []string{"Thresholds.Normal: 0.9 will not do; must not be below that of background, which is 0.92"}},
		"interval above the window": {Config{Pressure: known(0), Interval: 2 * time.Second, Cursor: &Cursor{}}, []string{"Interval: 2s will not do; must be at most 1s"}},
	} {
		c.cfg.Name = "front"
		_, err := New(c.cfg)
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		for _, want := range append(c.want, `gate "front"`) {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: the error does not say %q:\n%v", name, want, err)
			}
		}
	}
}
