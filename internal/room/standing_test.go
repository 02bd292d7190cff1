package room

import (
	"testing"
	"time"
)

func TestPace(t *testing.T) {
	tests := map[float64]Pace{
		0: {Interval: 100 * ms}, 1e-9: {Interval: 10 * time.Second, Keep: 64}, 32: {Interval: 2 * time.Second, Keep: 64},
		640: {Interval: 100 * ms, Keep: 64}, 641: {Interval: 100 * ms, Keep: 64}, 1e9: {Interval: 100 * ms, Keep: 64},
	}
	for rate, want := range tests {
		if got := PaceAt(rate, 0); got != want {
			t.Errorf("%v a second: %+v, want %+v", rate, got, want)
		}
	}
}

func TestServiceMedian(t *testing.T) {
	var s Service
	for i := range serviceMin {
		if got := s.Median(); got != 0 {
			t.Errorf("%v after %d samples", got, i)
		}
		s.Add(100 * ms)
	}
	if got := s.Median(); got != 100*ms {
		t.Errorf("%v after 100 ms each time", got)
	}
	for _, step := range []struct{ sample, want time.Duration }{
		{time.Hour, 105*ms + 1}, {105*ms + 1, 105*ms + 1}, {0, 99750 * time.Microsecond},
	} {
		if s.Add(step.sample); s.Median() != step.want {
			t.Errorf("%v after %v, want %v", s.Median(), step.sample, step.want)
		}
	}
	for range 2000 {
		s.Add(0)
	}
	if got := s.Median(); got > 20 {
		t.Errorf("%v after nothing but 0", got)
	}
	for i := range 3000 { // a third takes 900 ms, the others 40
		s.Add([]time.Duration{40 * ms, 900 * ms, 40 * ms}[i%3])
	}
	if got := s.Median(); got < 35*ms || got > 50*ms {
		t.Errorf("%v, want about 40 ms", got)
	}
}
