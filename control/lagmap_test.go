package control_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/control"
)

// lagging is a window with one reading.
func lagging(lag float64) *control.Window {
	return &control.Window{Elapsed: 5 * time.Second, Readings: []control.Reading{{Name: "lag", Value: lag, Known: true}}}
}

func TestLagMap(t *testing.T) {
	defaults := control.LagMapConfig{}
	aggressive := control.LagMapConfig{Max: 2000, Min: 50, Target: 5000, Critical: 50_000}
	tests := []struct {
		cfg  control.LagMapConfig
		lag  float64
		want int64
	}{
		{defaults, 0, 1000},
		{defaults, 9999, 1000},
		{defaults, 10_000, 1000},
		{defaults, 55_000, 505},
		{defaults, 100_000, 10},
		{defaults, 500_000, 10},
		{defaults, 10_001, 999}, // 999.989
		{defaults, 99_999, 10},  // 10.011
		{defaults, 32_500, 752}, // 752.5
		{defaults, 78_181, 250}, // 250.009
		{defaults, -1, 1000},
		{aggressive, 27_500, 1025},
		{control.LagMapConfig{Target: 1e-9, Critical: 10}, 1e-9, 1000},
		{control.LagMapConfig{Target: 1e-9, Critical: 10}, 1, 901},
	}
	for _, tt := range tests {
		d := lagMap(t, tt.cfg).Update(lagging(tt.lag))
		if d.Limit != tt.want || d.Next != 5*time.Second || d.Reason == "" {
			t.Errorf("lag %v: %+v, want %d", tt.lag, d, tt.want)
		}
		if binds := d.Signal == "lag"; binds != (d.Limit < 1000 || tt.cfg.Max == 2000) {
			t.Errorf("lag %v, limit %d: the signal that binds is %q", tt.lag, d.Limit, d.Signal)
		}
	}
}

func TestLagMapUnknown(t *testing.T) {
	unknown := func(value float64, known bool) *control.Window {
		return &control.Window{Readings: []control.Reading{{Name: "lag", Value: value, Known: known}}}
	}
	for name, w := range map[string]*control.Window{
		"not known": unknown(0, false), "NaN": unknown(math.NaN(), true), "+Inf": unknown(math.Inf(1), true),
		"-Inf": unknown(math.Inf(-1), true), "no readings": {},
	} {
		t.Run(name, func(t *testing.T) {
			l := lagMap(t, control.LagMapConfig{Hold: 2, Safe: 20})
			sameLimits(t, limits(t, l, lagging(55_000), w, w, w, w, lagging(55_000), w), []int64{505, 505, 505, 20, 20, 505, 505})
			l.Update(w)
			if d := l.Update(w); !strings.Contains(d.Reason, "safe limit 20") {
				t.Errorf("reason %q", d.Reason)
			}
		})
	}
	// By default 3 intervals, then Min; -1 holds for none.
	w := &control.Window{}
	sameLimits(t, limits(t, lagMap(t, control.LagMapConfig{}), w, w, w, w), []int64{1000, 1000, 1000, 10})
	sameLimits(t, limits(t, lagMap(t, control.LagMapConfig{Hold: -1}), w), []int64{10})
}

func TestLagMapSignal(t *testing.T) {
	w := &control.Window{Readings: []control.Reading{{Name: "cpu", Value: 1, Known: true}, {Name: "lag", Value: 55_000, Known: true}}}
	if d := lagMap(t, control.LagMapConfig{Signal: "lag"}).Update(w); d.Limit != 505 || d.Signal != "lag" {
		t.Errorf("by name: %+v", d)
	}
	if d := lagMap(t, control.LagMapConfig{}).Update(w); d.Limit != 1000 || d.Signal != "" {
		t.Errorf("the first: %+v", d)
	}
	if d := lagMap(t, control.LagMapConfig{Signal: "other", Hold: -1}).Update(w); d.Limit != 10 || d.Signal != "other" {
		t.Errorf("a name that is not there: %+v", d)
	}
}

func TestLagMapDamping(t *testing.T) {
	all := []*control.Window{lagging(55_000), lagging(55_000), lagging(100_000), lagging(0)}
	tests := []struct {
		name string
		cfg  control.LagMapConfig
		want []int64
	}{
		{"none", control.LagMapConfig{}, []int64{505, 505, 10, 1000}},
		{"smoothed", control.LagMapConfig{Smoothing: .5}, []int64{752, 628, 319, 659}},
		{"in steps of 99", control.LagMapConfig{MaxChange: .1}, []int64{901, 802, 703, 802}},
		{"hysteresis", control.LagMapConfig{Initial: 600, Hysteresis: .2}, []int64{600, 600, 10, 1000}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { sameLimits(t, limits(t, lagMap(t, tt.cfg), all...), tt.want) })
	}
}

func TestLagMapRestore(t *testing.T) {
	l := lagMap(t, control.LagMapConfig{})
	l.Restore(control.State{Limit: 300.5})
	if got := l.Start().Limit; got != 300 {
		t.Errorf("restored 300.5: %d", got)
	}
	l.Restore(control.State{Limit: math.NaN()})
	l.Restore(control.State{})
	if got := l.Save().Limit; got != 300.5 {
		t.Errorf("restored nothing: %v", got)
	}
	l.Restore(control.State{Limit: 1e300})
	if got := l.Save().Limit; got != 1000 {
		t.Errorf("restored 1e300: %v", got)
	}
}

func TestLagMapFaults(t *testing.T) {
	_, err := control.NewLagMap(control.LagMapConfig{
		Min: -1, Max: -2, Initial: -1, Target: -1, Critical: -1, Interval: 1, Hold: -2, Safe: 5,
		Smoothing: 2, MaxChange: math.NaN(), Hysteresis: 1,
	})
	named(t, err, "Min -1", "Max -2", "Initial -1", "Target -1", "Critical -1", "Interval 1ns", "Hold -2", "Safe 5", "Smoothing 2", "MaxChange NaN", "Hysteresis 1")
	for field, cfg := range map[string]control.LagMapConfig{
		"Max 9":          {Max: 9, Min: 10},
		"Min -1":         {Min: -1},
		"Critical 10000": {Critical: 10_000},
		"Target -1":      {Target: -1},
		"Target NaN":     {Target: math.NaN()},
		"Critical +Inf":  {Critical: math.Inf(1)},
		"Safe 2000":      {Safe: 2000},
	} {
		_, err := control.NewLagMap(cfg)
		named(t, err, field)
	}
}
