package control_test

import (
	"math"
	"testing"
	"time"

	"github.com/weir-go/weir/control"
)

// drained is a window of a second in which the drain kept so many slots busy.
func drained(lag, busy float64, inFlight int64) *control.Window {
	return &control.Window{
		Elapsed: time.Second, LatencySum: time.Duration(busy * 1e9), InFlight: inFlight, MaxInFlight: inFlight,
		Readings: []control.Reading{{Name: "lag", Value: lag, Known: true}},
	}
}

// The cases are those of MongoDB's flow control, in slots instead of tickets.
func TestDrainSteps(t *testing.T) {
	flow := control.DrainConfig{Max: 100_000, Initial: 10_000, Adder: 1000, PerWork: 2}
	with := func(cfg control.DrainConfig, initial int64) control.DrainConfig {
		cfg.Initial = initial
		return cfg
	}
	tests := []struct {
		name    string
		cfg     control.DrainConfig
		windows []*control.Window
		want    []int64
	}{
		{"at the threshold", flow, []*control.Window{drained(5000, 1000, 10_000)}, []int64{1900}},
		{"at twice the threshold", flow, []*control.Window{drained(10_000, 1000, 10_000)}, []int64{950}},
		{"at three times", flow, []*control.Window{drained(15_000, 1000, 10_000)}, []int64{475}},
		{"below it", with(flow, 1000), []*control.Window{drained(4999, 0, 1000)}, []int64{2100}},
		{"nothing was drained", flow, []*control.Window{drained(5000, 0, 10_000)}, []int64{10}},
		{"never grows above the threshold", with(flow, 1000), []*control.Window{drained(5000, 1000, 1000)}, []int64{1000}},
		{"does not grow unused", with(flow, 1000), []*control.Window{drained(0, 100, 499), drained(0, 100, 500)}, []int64{1000, 2100}},
		{"holds while the lag is worked off", flow, []*control.Window{drained(5000, 1000, 10_001)}, []int64{10_000}},
		{"stops at Max", control.DrainConfig{}, []*control.Window{drained(0, 1, 1000)}, []int64{1000}},
		{"a window of no length", flow, []*control.Window{{LatencySum: 1, Readings: drained(5000, 0, 0).Readings}}, []int64{10_000}},
		{"from Min by a hundredth of Max", control.DrainConfig{Initial: 10}, repeat(drained(0, 10, 1000), 3), []int64{21, 32, 44}},
		{"unknown", control.DrainConfig{Initial: 100, Hold: 1, Safe: 20}, []*control.Window{{}, {}, drained(0, 10, 20)}, []int64{100, 20, 31}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { sameLimits(t, limits(t, drain(t, tt.cfg), tt.windows...), tt.want) })
	}
}

func TestDrainSignal(t *testing.T) {
	d := drain(t, control.DrainConfig{})
	if got := d.Update(drained(0, 1, 1000)); got.Signal != "" || got.Next != 5*time.Second {
		t.Errorf("at Max: %+v", got)
	}
	if got := d.Update(drained(6000, 500, 1000)); got.Signal != "lag" {
		t.Errorf("below it: %+v", got)
	}
}

func TestDrainRestore(t *testing.T) {
	d := drain(t, control.DrainConfig{})
	d.Restore(control.State{Limit: 300.5})
	d.Restore(control.State{Limit: math.NaN()})
	if got := d.Save().Limit; got != 300.5 || d.Start().Limit != 300 {
		t.Errorf("restored 300.5: %v", got)
	}
	d.Restore(control.State{Limit: 1e300})
	if got := d.Start().Limit; got != 1000 {
		t.Errorf("restored 1e300: %v", got)
	}
}

func TestDrainFaults(t *testing.T) {
	_, err := control.NewDrain(control.DrainConfig{
		Min: -1, Max: -2, Initial: -1, Target: -1, Threshold: 2, Interval: 1, Fudge: 2, Decay: math.NaN(), Adder: -1, Multiplier: .5,
		PerWork: math.Inf(1), Hold: -2, Safe: 5,
	})
	named(t, err, "Min -1", "Max -2", "Initial -1", "Target -1", "Threshold 2", "Interval 1ns", "Fudge 2", "Decay NaN", "Adder -1", "Multiplier 0.5",
		"PerWork +Inf", "Hold -2", "Safe 5")
}
