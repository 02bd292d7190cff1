package shed

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/control"
)

func known(v float64) func() (float64, bool) { return func() (float64, bool) { return v, true } }

type noSignals struct{}

func (noSignals) Readings(into []control.Reading) []control.Reading { return into }

func TestDefaults(t *testing.T) {
	c := Config{Pressure: known(0), Cursor: &Cursor{Alpha: 0.95}}.withDefaults()
	if err := c.validate(); err != nil {
		t.Fatal(err)
	}
	if c.Interval != 10*time.Millisecond || c.Hold != time.Second || c.Resalt != time.Hour || c.Blind != Open {
		t.Errorf("defaults are %v %v %v %v", c.Interval, c.Hold, c.Resalt, c.Blind)
	}
	if c.Thresholds != (Thresholds{0.75, 0.90, 0.95, 1}) {
		t.Errorf("thresholds are %v", c.Thresholds)
	}
	want := Cursor{Window: time.Second, Requests: 200, Overload: 1, Alpha: 0.95, MaxCut: 0.95, Beta: 0.01, MaxGrow: 0.16}
	if *c.Cursor != want {
		t.Errorf("the cursor is %+v, want %+v", *c.Cursor, want)
	}
}

// The caller's Cursor is not written to.
func TestDefaultsCopy(t *testing.T) {
	mine := &Cursor{}
	if _ = (Config{Cursor: mine}).withDefaults(); *mine != (Cursor{}) {
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
		"heed alone":       {Config{Pressure: known(0), Heed: []string{"cpu"}}, []string{`Heed ["cpu"]`}},
		"all at once": {
			Config{
				Pressure: known(0), Interval: time.Microsecond, Hold: -1, Blind: 7, Resalt: time.Second,
				Thresholds: Thresholds{Background: nan, Normal: -1, High: inf},
				Cursor:     &Cursor{Window: time.Hour, Overload: inf, Alpha: 1, MaxCut: 2, Beta: -1, MaxGrow: nan},
			},
			[]string{
				"Interval 1µs", "Hold -1ns", "Blind 7", "Resalt 1s", "Background NaN", "Normal -1", "High +Inf",
				"Window 1h0m0s", "Overload +Inf", "Alpha 1", "MaxCut 2", "Beta -1", "MaxGrow NaN",
			},
		},
		"not monotone":    {Config{Pressure: known(0), Thresholds: Thresholds{Background: 0.92}}, []string{"Thresholds.Normal 0.9: must not be below Background, which is 0.92"}},
		"window too fine": {Config{Pressure: known(0), Interval: time.Second, Cursor: &Cursor{Window: 100 * time.Millisecond}}, []string{"Window 100ms: must not be below the Interval 1s"}},
		"cut below alpha": {Config{Pressure: known(0), Cursor: &Cursor{Alpha: 0.5, MaxCut: 0.4}}, []string{"MaxCut 0.4: must be from Alpha, 0.5"}},
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
