package gate

import (
	"math"
	"testing"
	"time"
)

// A queue is told the rate at which slots come back while somebody waits, and not how little was asked for in
// the minutes before.
func TestDrainForgetsQuietTimes(t *testing.T) {
	for _, quiet := range []time.Duration{400 * time.Millisecond, 20 * time.Second, time.Hour} {
		var d Drain
		now := time.Duration(0)
		for range drainMin - 1 { // fewer than end an interval
			now += quiet / drainMin
			d.Finish(now, 1, false)
		}
		now += quiet / drainMin
		d.Want(now)
		if rate := d.Current(now); rate != 0 {
			t.Errorf("after %v: %v a second, of which nothing is known", quiet, rate)
		}
		for range 10 { // ten a second
			now += 100 * time.Millisecond
			d.Finish(now, 1, true)
		}
		if rate := d.Current(now); rate < 8 || rate > 20 {
			t.Errorf("after %v: %.3f a second, want 10", quiet, rate)
		}
	}
}

// Those that lacked a slot before a quiet time, and have had it since, do not make it count. Those that
// wait through it do: work may take longer than any quiet time.
func TestDrainForgetsQuietTimesAfterWant(t *testing.T) {
	for _, tt := range []struct {
		name   string
		waited bool // somebody waits all the time
		want   float64
	}{
		{"a slot was free", false, 0},
		{"somebody waited", true, 0.1},
	} {
		var d Drain
		now := time.Duration(0)
		d.Want(now)
		for range 8 { // one in ten seconds, with every slot in use
			now += 10 * time.Second
			d.Finish(now, 1, true)
			if !tt.waited {
				d.Idle()
			}
		}
		if rate := d.Current(now); math.Abs(rate-tt.want) > 1e-9 {
			t.Errorf("%s: %v a second, want %v", tt.name, rate, tt.want)
		}
	}
}
