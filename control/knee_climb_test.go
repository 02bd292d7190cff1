package control

import (
	"math"
	"testing"
	"time"
)

// A climb step by step, and the cuts that end one.

// counted is a window of a climb in full use: so many good answers in a second.
func counted(k *Knee, ok int64, inFlight float64) *Window {
	return &Window{Now: time.Minute, Elapsed: time.Second, Saturated: time.Second, MeanInFlight: inFlight, OK: ok}
}

// stepped returns a Knee that has just gone from 20 to 20·e^stepUp, with 1000
// answers a second before.
func stepped(t *testing.T) *Knee {
	t.Helper()
	k, err := NewKnee(KneeConfig{})
	if err != nil {
		t.Fatal(err)
	}
	var d Decision
	for range 3 { // warm up, settle, count
		d = k.Update(counted(k, 1000, 20))
	}
	if !near(k, 20*math.Exp(stepUp)) || k.mode != settling || d.Limit != 37 || d.Extend {
		t.Fatalf("no step up: %+v", d)
	}
	k.Update(counted(k, 1000, 20))
	return k
}

func TestKneeJudgesAStep(t *testing.T) {
	up := 20 * math.Exp(stepUp)
	grown := func(e float64) int64 { return int64(1000*math.Exp(e*stepUp) + .5) }
	tests := []struct {
		name   string
		w      *Window
		idle   bool
		want   float64
		mode   kneeMode
		extend bool
	}{
		{"counts follow", counted(nil, grown(1), up), false, 20 * math.Exp(2*stepUp), settling, false},
		{"just enough", counted(nil, grown(.6), up), false, 20 * math.Exp(2*stepUp), settling, false},
		{"they do not", counted(nil, 1000, up), false, 20, tracking, false},
		{"a fifth of the way", counted(nil, grown(.2), up), false, 20 * math.Exp(.2*stepUp), tracking, false},
		{"they fall", counted(nil, 700, up), false, 20, tracking, false},
		{"unsure", counted(nil, grown(.42), up), false, up, climbing, true},
		{"nobody used it", counted(nil, 1000, 21), false, 20, climbing, false},
		{"nobody used it, or needs it", counted(nil, 1000, 21), true, 20, climbing, false},
		{"proven and not needed", counted(nil, grown(.9), up), true, up, tracking, false},
		{"unproven and not needed", counted(nil, 1000, up), true, 20, tracking, false},
		{"hardly proven and not needed", counted(nil, grown(.44), up), true, 20 * math.Exp(.44*stepUp), tracking, false},
	}
	for _, tt := range tests {
		k := stepped(t)
		if tt.idle {
			tt.w.Saturated = tt.w.Elapsed / 2
		}
		d := k.Update(tt.w)
		if got := math.Exp(k.at); math.Abs(got/tt.want-1) > .001 || k.mode != tt.mode || d.Extend != tt.extend {
			t.Errorf("%s: at %.2f, want %.2f; mode %d, %+v", tt.name, got, tt.want, k.mode, d)
		}
	}
}

func TestKneeLooksAgainThreeTimes(t *testing.T) {
	k := stepped(t)
	w := counted(k, int64(1000*math.Exp(.42*stepUp)), 20*math.Exp(stepUp))
	for i := range mostLooks {
		if d := k.Update(w); !d.Extend {
			t.Fatalf("look %d: %+v", i, d)
		}
	}
	if d := k.Update(w); d.Extend || k.mode != settling {
		t.Errorf("it does not make up its mind: %+v", d)
	}
}

func TestKneeCountsEnough(t *testing.T) {
	k := stepped(t)
	w := counted(k, climbCount-1, 36)
	w.Elapsed, w.Saturated = climbWait-1, climbWait-1
	if d := k.Update(w); !d.Extend || d.Reason != "counting" {
		t.Errorf("of too few: %+v", d)
	}
	w.Elapsed, w.Saturated = climbWait, climbWait
	if d := k.Update(w); d.Extend {
		t.Errorf("it has waited long enough: %+v", d)
	}
}

// Steps that nobody used end the climb after the third.
func TestKneeVainSteps(t *testing.T) {
	k := stepped(t)
	for i := range mostVain + 1 {
		if k.mode == tracking {
			t.Fatalf("given up after %d", i)
		}
		k.Update(counted(k, 1000, 20)) // nobody used it
		if !near(k, 20) {
			t.Fatalf("kept %v", k.Save().Limit)
		}
		k.Update(counted(k, 1000, 20)) // counts
		k.Update(counted(k, 1000, 20)) // settles
	}
	if k.mode != tracking {
		t.Errorf("mode %v after %d steps in vain", k.mode, mostVain+1)
	}
}

// bad is a window in full use in which so much was of use, and so much was not.
func bad(good, not int64) *Window {
	return &Window{Now: time.Minute, Elapsed: 100 * ms, Saturated: 100 * ms, OK: good, Abandoned: not - not/2, Overload: not / 2}
}

func TestKneeCutsToMinAndComesBack(t *testing.T) {
	k := kneeAt(t, 100)
	want := 100.0
	for i := range 20 {
		d := k.Update(bad(0, cutCount))
		want = max(2, want*math.Exp(-cutBy))
		if !near(k, want) || d.Reason != "nothing that finished was of use" {
			t.Fatalf("cut %d: %v, want %v: %+v", i, k.Save().Limit, want, d)
		}
	}
	if d := k.Start(); d.Limit != 2 {
		t.Errorf("%+v", d)
	}
	if d := k.Update(bad(6, 2)); d.Reason != "good answers again" || k.mode != climbing || !near(k, 2) {
		t.Errorf("good answers are back: %+v", d)
	}
}

func TestKneeCutsByHalfBad(t *testing.T) {
	for name, tt := range map[string]struct {
		windows []*Window
		cuts    int
	}{
		"too few":                {repeated(bad(0, cutCount-1), 1), 0},
		"over two windows":       {repeated(bad(0, cutCount/2), 2), 1},
		"four times at most":     {repeated(bad(40, 60), 20), mostCuts},
		"exactly half":           {repeated(bad(50, 50), 20), 0},
		"above half":             {repeated(bad(49, 51), 1), 1},
		"good windows forgive":   {append(append(repeated(bad(40, 60), 9), bad(71, 29)), repeated(bad(40, 60), 9)...), 2 * mostCuts},
		"those in between don't": {append(append(repeated(bad(40, 60), 9), bad(70, 30)), repeated(bad(40, 60), 9)...), mostCuts},
		"failures are no sign":   {repeated(&Window{Now: time.Minute, Elapsed: 1, Saturated: 1, Failed: 100}, 9), 0},
	} {
		k := kneeAt(t, 100)
		for _, w := range tt.windows {
			k.Update(w)
		}
		if want := 100 * math.Exp(-cutBy*float64(tt.cuts)); !near(k, want) {
			t.Errorf("%s: %.2f, want %.2f", name, k.Save().Limit, want)
		}
		if tt.cuts > 0 && (math.Abs(math.Exp(k.shift.before)-100) > 1e-6 || k.gap.variance < openGap || len(k.arms) != 1) {
			t.Errorf("%s: %+v, %+v, %d arms", name, k.shift, k.gap, len(k.arms))
		}
	}
}

func repeated(w *Window, n int) (all []*Window) {
	for range n {
		all = append(all, w)
	}
	return all
}

// During a climb a cut ends it.
func TestKneeCutsAClimb(t *testing.T) {
	k := stepped(t)
	if k.Update(bad(0, 100)); k.mode != tracking || !near(k, 20*math.Exp(stepUp-cutBy)) {
		t.Errorf("mode %d at %v", k.mode, k.Save().Limit)
	}
}

// A brown-out in which everything is abandoned brings the limit to Min, and it
// comes back by itself.
func TestKneeBrownOut(t *testing.T) {
	g := newWorld(t, KneeConfig{}, 50)
	before := g.run(time.Minute)
	g.good = func(time.Duration) bool { return false }
	g.run(time.Minute)
	if got := g.k.Save().Limit; got != 2 {
		t.Errorf("after a minute of nothing good: %v", got)
	}
	g.good = nil
	if got := g.run(30 * time.Second); got < .8*before {
		t.Errorf("a minute later: %.1f, before %.1f", got, before)
	}
}
