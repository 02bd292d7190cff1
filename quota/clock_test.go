package quota

import (
	"math/rand/v2"
	"testing"
	"time"
)

const year = 365 * 24 * time.Hour

// A time is read as it was written, however long after the epoch, and never as one
// before that.
func TestNear(t *testing.T) {
	for _, now := range []time.Duration{0, time.Microsecond, year, 8 * year, 9 * year, 56 * year, 200 * year} {
		for _, ago := range []time.Duration{0, time.Microsecond, time.Hour, 8 * year, -time.Hour, -40 * 24 * time.Hour} {
			last := max(now-ago, 0).Truncate(time.Microsecond)
			kept, _ := unpack(0, pack(bucket{last: last}, 7))
			if got := near(kept.last, now); got != last {
				t.Errorf("%v, %v ago: %v, want %v", now, ago, got, last)
			}
		}
	}
	for kept := time.Duration(0); kept < timeSpan; kept += timeSpan / 97 {
		if got := near(kept, 0); got != kept {
			t.Errorf("at the epoch: %v, want %v", got, kept)
		}
	}
}

// However a clock jumps, no more is let through than what it has moved on brings back:
// also not where it was set by more years than a bucket's time holds.
func TestClockJumps(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	jumps := []time.Duration{0, 1, time.Millisecond, time.Second, time.Hour, 25 * time.Hour, 40 * 24 * time.Hour, year, 5 * year, 9 * year, 56 * year}
	for name, tt := range map[string]struct {
		limits []Limit
		back   func(from, to time.Duration) float64 // tokens that come back
	}{
		"rate": {[]Limit{Per(10, time.Hour)}, func(from, to time.Duration) float64 { return min(10*(to-from).Hours(), 10) }},
		"day":  {[]Limit{Each(10, Day, nil)}, func(from, to time.Duration) float64 { return 10 * min(float64(days(to)-days(from)), 1) }},
		"both": {[]Limit{Per(10, time.Minute), Each(10, Day, nil)}, func(from, to time.Duration) float64 { return 10 * min(float64(days(to)-days(from)), 1) }},
	} {
		var now time.Duration
		m := newMemory(t, MemoryConfig{Now: func() time.Duration { return now }})
		through, most := 0., 10.
		for range 3000 {
			from := now
			if jump := jumps[random.IntN(len(jumps))]; random.IntN(3) == 0 {
				now = max(now-jump, 0)
			} else if now+jump < 200*year {
				now += jump
			}
			switch {
			case now > from:
				most += tt.back(from, now)
			case from-now > timeSlack: // may be taken for the years to the next time with these bits
				most += 10
			}
			for range random.IntN(15) {
				if r, err := m.Take(t.Context(), &Take{Key: "k", Limits: tt.limits, Cost: 1}); err != nil {
					t.Fatal(err)
				} else if r.OK {
					through++
				}
			}
			if through > most+1e-6 {
				t.Fatalf("%s: %v let through until %v, at most %v", name, through, now, most)
			}
		}
		if through < 100 {
			t.Errorf("%s: only %v let through", name, through)
		}
	}
}

// days counts the days since the epoch of a clock given as Now.
func days(at time.Duration) int64 { return VirtualEpoch.Add(at).Unix() / 86400 }
