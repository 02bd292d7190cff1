package live

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir/internal/station"
)

func ms(n float64) time.Duration { return time.Duration(n * float64(time.Millisecond)) }

// Requests that come at once end when the law says.
func TestStation(t *testing.T) {
	tests := []struct {
		name  string
		law   Law
		scale float64
		work  []float64 // ms
		want  []float64 // ms
	}{
		{"a pool serves two and then two", Law{Law: station.Law{Slots: 2}}, 1, []float64{10, 10, 10, 10}, []float64{10, 10, 20, 20}},
		{"half the capacity takes twice as long", Law{Law: station.Law{Slots: 2}}, 0.5, []float64{10, 10, 10}, []float64{20, 20, 40}},
		{"cores are shared", Law{Law: station.Law{Cores: 1}}, 1, []float64{10, 20}, []float64{20, 30}},
		{"what is too much costs all", Law{Law: station.Law{Cores: 1, Thrash: 1}}, 1, []float64{10, 10}, []float64{40, 40}},
		{"contention", Law{Law: station.Law{Sigma: 0.5}}, 1, []float64{10, 10, 10}, []float64{20, 20, 20}},
		{"coherence", Law{Law: station.Law{Kappa: 0.5}}, 1, []float64{10, 10}, []float64{20, 20}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newTimed(tt.law)
				defer s.timer.Stop()
				s.setScale(tt.scale)
				begin := time.Now()
				got := make([]time.Duration, len(tt.work))
				var wg sync.WaitGroup
				for i, work := range tt.work {
					wg.Go(func() {
						s.do(ms(work))
						got[i] = time.Since(begin)
					})
				}
				wg.Wait()
				slices.Sort(got)
				for i, want := range tt.want {
					if d := got[i] - ms(want); d.Abs() > 2*time.Microsecond {
						t.Errorf("the %d. ended after %v, want %v ms", i+1, got[i], want)
					}
				}
				if a := s.read(); a.Done != int64(len(tt.work)) || a.Inside != 0 || a.MaxInside != len(tt.work) {
					t.Errorf("account %+v", a)
				}
			})
		})
	}
}

// A station whose timer is late finishes what was due, in the order and at the
// times at which it was.
func TestStationLate(t *testing.T) {
	s := newTimed(Law{Law: station.Law{Slots: 1}})
	s.timer.Stop()
	for range 3 {
		s.enter(0, job{work: 0.01, done: make(chan struct{})})
	}
	s.finish(ms(25))
	if s.Done != 2 || s.Inside != 1 {
		t.Fatalf("%d done after 25 ms, %d inside, want 2 and 1", s.Done, s.Inside)
	}
	if next := s.station.Next(); next != ms(30) {
		t.Errorf("the third is due at %v, want 30 ms", next)
	}
}

func TestStationFull(t *testing.T) {
	s := newTimed(Law{Law: station.Law{Slots: 1}})
	s.timer.Stop()
	s.Inside = mostInside
	if s.do(time.Second) {
		t.Error("took more than fit inside")
	}
	if s.Full != 1 {
		t.Errorf("%d turned away, want 1", s.Full)
	}
}

func TestLawBest(t *testing.T) {
	tests := []struct {
		law  Law
		n    int
		rate float64
	}{
		{lawB2, 44, 1073.9},
		{lawB3, 100, 1000},
		{lawPool25, 10, 25},
		{lawUSL53, 44, 53.7},
		{lawCores250, 2, 250},
		{lawPool2000, 40, 2000},
	}
	for _, tt := range tests {
		if n, rate := tt.law.best(); n != tt.n || rate < tt.rate*0.999 || rate > tt.rate*1.001 {
			t.Errorf("%s: %.1f requests/s at %d, want %v at %d", tt.law.Name, rate, n, tt.rate, tt.n)
		}
	}
}
