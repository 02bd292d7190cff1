package keyed

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
)

// drainLoop is a consumer behind the gate, in virtual time. It applies so much a second, in the
// order of admission, and a permit ends when its work was applied. The lag is read every five
// seconds and comes late by as much.
type drainLoop struct {
	rate  float64   // applied a second
	loud  int       // keys that ask for ten times the rate together
	quiet []float64 // what each of the others asks for, a second
}

// drained is what a drainLoop says of all but its first three minutes.
type drained struct {
	least, quiet float64 // the share of what it asked that a quiet key got at least, and all of them
	used         float64 // share of the rate
	low, peak    int     // lag
}

// lateLag is a reading that is late by one.
type lateLag struct{ value, next float64 }

func (l *lateLag) Readings(into []control.Reading) []control.Reading {
	into = append(into, control.Reading{Name: "lag", Value: l.value, Known: true})
	l.value = l.next
	return into
}

func (l drainLoop) run(t *testing.T, cfg Config) drained {
	const step, settled, length = 10 * time.Millisecond, 3 * time.Minute, 8 * time.Minute
	source := &lateLag{}
	cfg.Signals, cfg.Queue = source, limit.Queue{Len: -1}
	g, now := byHand(t, cfg)
	rates := slices.Clone(l.quiet)
	for range l.loud {
		rates = append(rates, 10*l.rate/float64(l.loud))
	}
	works := make([]weir.Work, len(rates))
	for i := range works {
		works[i] = tenant(fmt.Sprint("db-", i))
	}
	var (
		queue           []weir.Permit
		due, asked, got = make([]float64, len(rates)), make([]int, len(rates)), make([]int, len(rates))
		budget          float64
		applied         int
		d               = drained{low: math.MaxInt}
	)
	for *now < length {
		*now += step
		if *now == settled {
			clear(asked)
			clear(got)
			applied = 0
		}
		budget = min(budget, 1) + l.rate*step.Seconds()
		for ; budget >= 1 && len(queue) > 0; budget-- {
			queue[0].Done(weir.OK)
			queue = queue[1:]
			applied++
		}
		for i, rate := range rates {
			refused := false // and so is what comes for this key until something is applied
			for due[i] += rate * step.Seconds(); due[i] >= 1; due[i]-- {
				asked[i]++
				if refused {
					continue
				}
				p, err := g.TryAdmit(works[i])
				if refused = err != nil; !refused {
					got[i]++
					queue = append(queue, p)
				}
			}
		}
		if *now%(5*time.Second) == 0 {
			source.next = float64(len(queue))
			g.Step()
		}
		if *now > settled {
			d.low, d.peak = min(d.low, len(queue)), max(d.peak, len(queue))
		}
	}
	d.least = 1
	var all, admitted int
	for i := range l.quiet {
		d.least = min(d.least, float64(got[i])/float64(asked[i]))
		all, admitted = all+asked[i], admitted+got[i]
	}
	d.quiet = float64(admitted) / float64(all)
	d.used = float64(applied) / l.rate / (length - settled).Seconds()
	return d
}

// uneven are the rates of quiet keys that ask for sum together, the first 49 times as much as the
// last.
func uneven(sum float64) []float64 {
	rates, whole := make([]float64, 49), 0.0
	for i := range rates {
		rates[i] = 1 / float64(1+i)
		whole += rates[i]
	}
	for i := range rates {
		rates[i] *= sum / whole
	}
	return rates
}

// Loud databases send ten times what the drain applies, 49 quiet ones half of it together.
func TestLargestFirst(t *testing.T) {
	if testing.Short() {
		t.Skip("a simulation takes ten times as long under the race detector; run without -short")
	}
	const rate = 200
	even := slices.Repeat([]float64{rate / 2.0 / 49}, 49)
	line := func(low, high int64) func() control.Controller {
		return func() control.Controller {
			return weir.Must(control.NewLagMap(control.LagMapConfig{Min: low, Max: high, Target: 1000, Critical: 10_000}))
		}
	}
	flow := func(low, high int64) func() control.Controller {
		return func() control.Controller {
			return weir.Must(control.NewDrain(control.DrainConfig{Min: low, Max: high, Target: 1000}))
		}
	}
	text, err := os.ReadFile("../docs/howto/pools-by-key.md")
	if err != nil {
		t.Fatal(err)
	}
	page := strings.ReplaceAll(string(text), ",", "")
	tests := []struct {
		name        string
		by          func() control.Controller
		loud        int
		quiet       []float64
		alike, most float64 // the quiet keys get less with one lag for all, and as much in sum with the rule
		shown       bool    // in a table of the page
	}{
		{"lag, one loud key", line(10, 1000), 1, even, 1.01, 0.99, true},
		{"lag, one loud key that may fill the topic", line(1, 10_000), 1, uneven(rate / 2), 1.01, 0.99, false},
		{"lag, ten loud keys that may fill the topic", line(1, 10_000), 10, even, 0.25, 0.95, true},
		{"drain, one loud key, quiet keys that differ", flow(1, 10_000), 1, uneven(rate / 2), 0.95, 0.99, true},
		{"drain, ten loud keys", flow(10, 1000), 10, even, 1.01, 0.99, false},
	}
	for _, tt := range tests {
		l := drainLoop{rate, tt.loud, tt.quiet}
		alike := l.run(t, Config{Controller: tt.by()})
		first := l.run(t, Config{Controller: tt.by(), LargestFirst: true})
		t.Logf("%s: alike %+v, largest first %+v", tt.name, alike, first)
		got := fmt.Sprintf("%.2f", alike.quiet)
		if alike.least < alike.quiet {
			got += fmt.Sprintf(" the largest %.2f", alike.least)
		}
		if row := fmt.Sprintf("| %s | %.2f | %d-%d | %d-%d |", got, first.quiet, alike.low, alike.peak, first.low, first.peak); tt.shown && !strings.Contains(page, row) {
			t.Errorf("%s: the page does not show %s", tt.name, row)
		}
		if alike.quiet >= tt.alike || first.quiet < tt.most {
			t.Errorf("%s: the quiet keys got %.2f and %.2f, want less than %.2f and at least %.2f", tt.name, alike.quiet, first.quiet, tt.alike, tt.most)
		}
		if first.used < 0.98 || first.peak-first.low > alike.peak-alike.low {
			t.Errorf("%s: %+v, all alike %+v", tt.name, first, alike)
		}
	}
}

// The limit is what a search through all limits finds, and never below that of one lag for all.
func FuzzLargestFirst(f *testing.F) {
	f.Add([]byte{40, 1, 90, 2, 0, 0, 3})
	f.Add([]byte{255, 255, 1, 1, 1, 1, 1, 1, 200})
	f.Add([]byte{120, 3, 255, 4, 30, 30, 30}) // the largest has a multiple of the others' limit
	f.Add([]byte{0})
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) == 0 {
			return
		}
		cfg := control.LagMapConfig{Min: 2, Max: 120, Target: 10, Critical: 300}
		alike := weir.Must(control.NewLagMap(cfg))
		source := &lateLag{value: float64(data[0]) * 2}
		g, now := byHand(t, Config{Controller: weir.Must(control.NewLagMap(cfg)), LargestFirst: true, Signals: source,
			Overrides: map[string]Override{"db-0": {Limit: 7}, "db-1": {Scale: 2.5}, "db-2": {Target: 50, Critical: 60}}})
		held := map[string]float64{}
		for i, n := range data[1:min(len(data), 30)] {
			key := fmt.Sprint("db-", i)
			for range n {
				if _, err := g.TryAdmit(tenant(key)); err == nil {
					held[key]++
				}
			}
		}
		plain := alike.Update(&control.Window{Readings: []control.Reading{{Value: source.value, Known: true}}}).Limit
		lag, sum := source.value, 0.0
		for _, n := range held {
			sum += n
		}
		*now += 5 * time.Second
		g.Step()
		want := cfg.Min
		for limit := cfg.Min; limit <= cfg.Max; limit++ {
			within := held["db-0"] + held["db-2"]
			for key, n := range held {
				switch key {
				case "db-0", "db-2":
				case "db-1":
					within += min(n, math.Floor(2.5*float64(limit)))
				default:
					within += min(n, float64(limit))
				}
			}
			left := lag
			if within < sum {
				left = lag * (within / sum)
			}
			if d := weir.Must(control.NewLagMap(cfg)).Update(&control.Window{Readings: []control.Reading{{Value: left, Known: true}}}); limit <= d.Limit {
				want = limit
			}
		}
		u, _ := g.Key("db-9")
		if u.Limit != want || u.Limit < plain {
			t.Fatalf("limit %d at a lag of %v, want %d; one lag for all gives %d", u.Limit, lag, want, plain)
		}
		if pinned, _ := g.Key("db-0"); pinned.Limit != 7 {
			t.Fatalf("%+v", pinned)
		}
	})
}

// What keys held one window ago counts, because a reading may be as old as that. What they held before, while the lag was
// unknown or the process stood still, does not: the lag of now would be blamed on who has gone.
func TestWhoHasGone(t *testing.T) {
	const lag, window = 55_000, 5 * time.Second
	unknown := math.NaN()
	for _, tt := range []struct {
		name  string
		lags  []float64     // of the windows after the loud one has gone
		last  time.Duration // how long the window with the lag is
		limit int64
	}{
		{"one window ago", nil, window, 1000},
		{"three windows ago, unknown since", []float64{unknown, unknown}, window, 505},
		{"an hour ago, and no window since", nil, time.Hour, 505},
	} {
		source := &lateLag{}
		g, now := byHand(t, Config{Controller: weir.Must(control.NewLagMap(control.LagMapConfig{})), LargestFirst: true, Signals: source})
		tick := func(lag float64, after time.Duration) {
			source.value, source.next = lag, lag
			*now += after
			g.Step()
		}
		var loud []weir.Permit
		for range 900 {
			loud = append(loud, take(t, g, tenant("loud")))
		}
		tick(10_000, window)
		for _, p := range loud {
			p.Done(weir.OK)
		}
		for i := range 50 {
			take(t, g, tenant(fmt.Sprint("db-", i)))
		}
		for _, lag := range tt.lags {
			tick(lag, window)
		}
		tick(lag, tt.last)
		if u, _ := g.Key("db-1"); u.Limit != tt.limit {
			t.Errorf("%s: a limit of %d, want %d", tt.name, u.Limit, tt.limit)
		}
	}
}

// Under a limit each key keeps that much of what it holds, and no less than a limit of its own.
func TestLoadsWithin(t *testing.T) {
	cfg := Config{Limit: 10, Overrides: map[string]Override{"pinned": {Limit: 4}, "scaled": {Scale: 2}}}
	g, _ := byHand(t, cfg)
	for key, n := range map[string]int{"pinned": 4, "scaled": 7, "plain": 5} {
		for range n {
			take(t, g, tenant(key))
		}
	}
	cfg.Overrides["pinned"] = Override{Limit: 3} // one less than it holds
	if err := g.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
	g.gather(g.settings.Load())
	for limit, want := range map[int64]float64{1: 3 + 2 + 1, 2: 3 + 4 + 2, 4: 3 + 7 + 4, 100: 15} {
		if got := g.loads.within(limit); got != want || g.loads.total != 16 {
			t.Errorf("under %d: %v of %v, want %v of 16", limit, got, g.loads.total, want)
		}
	}
}

// A key with thresholds of its own has the limit that they give, and the others theirs.
func TestOverrideThresholds(t *testing.T) {
	source := &lateLag{value: 55_000, next: 55_000}
	cfg := Config{Controller: weir.Must(control.NewLagMap(control.LagMapConfig{})), Signals: source, Overrides: map[string]Override{
		"strict": {Target: 1000, Critical: 50_000}, "free": {Target: 60_000}, "half": {Critical: 55_000, Scale: 3},
	}}
	g, now := byHand(t, cfg)
	check := func(when string, want map[string]int64) {
		t.Helper()
		for key, limit := range want {
			if u, _ := g.Key(key); u.Limit != limit {
				t.Errorf("%s: %s has a limit of %d, want %d", when, key, u.Limit, limit)
			}
		}
	}
	check("at first", map[string]int64{"strict": 1000, "free": 1000, "half": 3000, "": 1000})
	*now += 5 * time.Second
	g.Step()
	check("at 55,000", map[string]int64{"strict": 10, "free": 1000, "half": 30, "": 505})
	cfg.Overrides = map[string]Override{"strict": {Target: 2000, Critical: 50_000}, "new": {Target: 1}}
	if err := g.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
	check("reconfigured", map[string]int64{"strict": 10, "free": 505, "half": 505, "new": 505})
	source.value, source.next = 0, 0
	*now += 5 * time.Second
	g.Step()
	check("at 0", map[string]int64{"strict": 1000, "new": 1000, "": 1000})
}

// Whoever waits for a key with thresholds of its own is admitted when its limit grows, also if
// that of the others does not.
func TestOverrideThresholdsWake(t *testing.T) {
	source := &lateLag{value: 100, next: 8}
	g, now := byHand(t, Config{Signals: source, Queue: limit.Queue{MaxWait: -1},
		Controller: weir.Must(control.NewLagMap(control.LagMapConfig{Min: 1, Max: 4, Target: 1, Critical: 2})),
		Overrides:  map[string]Override{"own": {Target: 10, Critical: 20}}})
	*now += 5 * time.Second
	g.Step()
	take(t, g, tenant("own"))
	admitted := false
	if _, _, err := g.Arrive(tenant("own"), func(_ weir.Permit, err error) { admitted = err == nil }); err != weir.ErrWaiting {
		t.Fatal(err)
	}
	*now += 5 * time.Second
	g.Step()
	if other, _ := g.Key("other"); !admitted || other.Limit != 1 {
		t.Errorf("admitted: %v, the others have %d", admitted, other.Limit)
	}
}

func TestLargestFirstFaults(t *testing.T) {
	line := weir.Must(control.NewLagMap(control.LagMapConfig{}))
	tests := []struct {
		cfg  Config
		want string
	}{
		{Config{Limit: 5, LargestFirst: true}, "LargestFirst"},
		{Config{Controller: weir.Must(control.NewResource(control.ResourceConfig{})), LargestFirst: true}, "LargestFirst"},
		{Config{Limit: 5, Overrides: map[string]Override{"a": {Target: 5}}}, "controller has none"},
		{Config{Controller: line, Overrides: map[string]Override{"a": {Target: 200_000}}}, "above the target"},
		{Config{Controller: line, Overrides: map[string]Override{"a": {Target: math.NaN()}}}, "Target"},
		{Config{Controller: line, Overrides: map[string]Override{"a": {Target: 5, Limit: 3}}}, "Limit and thresholds"},
		{Config{Controller: weir.Must(control.NewDrain(control.DrainConfig{})), Overrides: map[string]Override{"a": {Critical: 5}}}, "Critical"},
	}
	for _, tt := range tests {
		if _, err := New(tt.cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v, want a word of %q", tt.cfg, err, tt.want)
		}
	}
}
