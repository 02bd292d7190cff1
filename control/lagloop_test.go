package control_test

import (
	"math"
	"testing"
	"time"

	"github.com/weir-go/weir/control"
)

// lagLoop is a queue of appliers behind the gates of some tenants. Lag is what
// has been admitted and not yet applied. The lag of all together is sampled every
// period and comes to the controllers, all alike, late by one.
type lagLoop struct {
	tenants int64
	demand  float64 // arrivals a second, all tenants; what finds no slot is refused
	service float64 // applied a second
	length  time.Duration
	// hold is how long work keeps its slot; 0: until it is applied.
	hold time.Duration
}

const (
	lagPeriod = 5 * time.Second
	lagStep   = 10 * time.Millisecond
)

// cohort is work admitted at the same time.
type cohort struct {
	at time.Duration
	n  float64
}

// lagSample is the loop's state when a decision has been made.
type lagSample struct {
	limit   int64
	lag     float64 // as it is, not as it is read
	most    float64 // the most since the last sample
	applied float64 // since the last sample
}

// fifo is work in order of admission.
type fifo struct {
	cohorts []cohort
	total   float64
}

func (f *fifo) add(at time.Duration, n float64) {
	f.cohorts = append(f.cohorts, cohort{at, n})
	f.total += n
}

// take takes up to n of what was added by the time before, and returns how much
// and the sum of the ages.
func (f *fifo) take(n float64, now, before time.Duration) (taken, ages float64) {
	for n > 0 && len(f.cohorts) > 0 && f.cohorts[0].at <= before {
		head := &f.cohorts[0]
		part := min(n, head.n)
		taken, ages = taken+part, ages+part*float64(now-head.at)
		n, head.n = n-part, head.n-part
		if head.n <= 0 {
			f.cohorts = f.cohorts[1:]
		}
	}
	f.total = max(0, f.total-taken)
	return taken, ages
}

func (l lagLoop) run(c control.Controller) []lagSample {
	var (
		queue, held fifo
		late        float64 // the last sample of lag, one period old when it is read
		samples     []lagSample
		s           = lagSample{limit: c.Start().Limit}
		n           = float64(l.tenants)
		perStep     = lagStep.Seconds()

		finished, ages, peak float64 // at the gates, since the last sample
	)
	for now := lagStep; now <= l.length; now += lagStep {
		applied, age := queue.take(l.service*perStep, now, now)
		s.applied += applied
		if l.hold > 0 {
			applied, age = held.take(math.Inf(1), now, now-l.hold)
		}
		finished, ages = finished+applied, ages+age
		inFlight := &queue
		if l.hold > 0 {
			inFlight = &held
		}
		if room := min(l.demand*perStep, n*float64(s.limit)-inFlight.total); room > 0 {
			queue.add(now, room)
			if l.hold > 0 {
				held.add(now, room)
			}
		}
		peak, s.most = max(peak, inFlight.total), max(s.most, queue.total)
		if now%lagPeriod != 0 {
			continue
		}
		s.lag = queue.total
		d := c.Update(&control.Window{
			Now: now, Elapsed: lagPeriod, Limit: s.limit,
			InFlight: int64(inFlight.total / n), MaxInFlight: int64(peak / n),
			OK: int64(finished / n), Timed: int64(finished / n), LatencySum: time.Duration(ages / n),
			Readings: []control.Reading{{Name: "lag", Value: late, Known: true}},
		})
		late = s.lag
		s.limit = d.Limit
		samples = append(samples, s)
		s.applied, s.most = 0, s.lag
		finished, ages, peak = 0, 0, inFlight.total
	}
	return samples
}

// swing is the limit's peak-to-peak over its mean.
func swing(samples []lagSample) float64 {
	low, high, sum := math.Inf(1), 0.0, 0.0
	for _, s := range samples {
		limit := float64(s.limit)
		low, high, sum = min(low, limit), max(high, limit), sum+limit
	}
	return (high - low) / (sum / float64(len(samples)))
}

// mostLag is the highest lag.
func mostLag(samples []lagSample) (most float64) {
	for _, s := range samples {
		most = max(most, s.most)
	}
	return most
}

func lagMap(t *testing.T, cfg control.LagMapConfig) *control.LagMap {
	t.Helper()
	l, err := control.NewLagMap(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func drain(t *testing.T, cfg control.DrainConfig) *control.Drain {
	t.Helper()
	d, err := control.NewDrain(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// The goal for the linear map: at most 10 % from peak to peak once three samples
// have been taken, at the fixed point. Demand is three times what is applied,
// 10,000 a second; every gate is always full.
//
// The plain map reaches it up to 41 tenants. It cannot with more: it answers each
// reading in full, and a reading is an interval old, so each error comes back two
// samples later, turned over and times the gain g = 0.011 × tenants; after three
// samples e × (g² + g³) is left of the first error e = Max − fixed point, which is
// 19 % of the limit at 50 tenants. From 91 on, g is above 1 and it never settles.
// Smoothing 0.25 reaches it up to 100. At 200, two and a half times demand of the
// appliers stand in line at once, lag takes 20 s to be worked off, and no
// controller that sees it can show a steady limit 15 s after the start: it settles
// in a minute, the plain map never.
func TestLagMapLoop(t *testing.T) {
	tests := []struct {
		tenants   int64
		cfg       control.LagMapConfig
		from      int     // samples left out
		atMost    float64 // swing
		atLeast   float64 // swing: a goal out of reach is held too
		reaches   bool    // the fixed point
		condition string
	}{
		{20, control.LagMapConfig{}, 3, .10, 0, true, "plain"},
		{41, control.LagMapConfig{}, 3, .10, 0, true, "plain"},
		{50, control.LagMapConfig{}, 3, .20, .15, true, "plain, too many tenants for the goal"},
		{91, control.LagMapConfig{}, 24, 2, 1, false, "plain, unstable"},
		{200, control.LagMapConfig{}, 24, 4, 1, false, "plain, unstable"},
		{20, control.LagMapConfig{Smoothing: .25}, 3, .10, 0, true, "smoothed"},
		{50, control.LagMapConfig{Smoothing: .25}, 3, .10, 0, true, "smoothed"},
		{91, control.LagMapConfig{Smoothing: .25}, 3, .10, 0, true, "smoothed"},
		{100, control.LagMapConfig{Smoothing: .25}, 3, .10, 0, true, "smoothed"},
		{200, control.LagMapConfig{Smoothing: .25}, 12, .10, 0, true, "smoothed, settles late"},
		{50, control.LagMapConfig{Hysteresis: .15}, 6, 0, 0, false, "hysteresis: rests beside the fixed point"},
		{50, control.LagMapConfig{MaxChange: .1}, 6, .10, 0, true, "in steps of a tenth"},
	}
	for _, tt := range tests {
		samples := lagLoop{tenants: tt.tenants, demand: 30_000, service: 10_000, length: 4 * time.Minute}.run(lagMap(t, tt.cfg))
		n, k := float64(tt.tenants), 990.0/90_000
		lag := n * (10 + k*100_000) / (1 + n*k)
		last := samples[len(samples)-1]
		got := swing(samples[tt.from:])
		t.Logf("%d tenants, %s: fixed point %.0f slots each, lag %.0f; after %d samples %.1f%% from peak to peak, in the end %d slots, lag %.0f, overshoot %.0f",
			tt.tenants, tt.condition, lag/n, lag, tt.from, 100*got, last.limit, last.lag, mostLag(samples)-lag)
		if got > tt.atMost || got < tt.atLeast {
			t.Errorf("%d tenants, %s: %.3f from peak to peak, want from %v to %v", tt.tenants, tt.condition, got, tt.atLeast, tt.atMost)
		}
		if tt.reaches && math.Abs(last.lag-lag) > .02*lag {
			t.Errorf("%d tenants, %s: lag %.0f in the end, the fixed point is %.0f", tt.tenants, tt.condition, last.lag, lag)
		}
	}
}

// The goal for the drain-rate variant: lag at most 1.1 × Target and a burst, which
// is what all gates let in before the first reading tells, tenants × Initial at
// most. Once that is worked off, at most 1.1 × Target, and the appliers never idle.
func TestDrainLoop(t *testing.T) {
	const target, service = 10_000, 10_000
	for _, tenants := range []int64{1, 20, 50, 91, 200, 280} {
		for _, initial := range []int64{1000, 10} {
			loop := lagLoop{tenants: tenants, demand: 30_000, service: service, length: 4 * time.Minute}
			samples := loop.run(drain(t, control.DrainConfig{Initial: initial}))
			burst := float64(tenants * initial)
			rest := samples[3+int(burst/service/lagPeriod.Seconds()):]
			half := samples[len(samples)/2:]
			applied := 0.0
			for _, s := range half {
				applied += s.applied
			}
			applied /= service * lagPeriod.Seconds() * float64(len(half))
			t.Logf("%d tenants from %d: lag at most %.0f, then at most %.0f, limit %.0f%% from peak to peak; applied %.3f of what could be",
				tenants, initial, mostLag(samples), mostLag(rest), 100*swing(half), applied)
			if most := mostLag(samples); most > 1.1*target+burst {
				t.Errorf("%d tenants from %d: lag %.0f, target %d and a burst of %.0f", tenants, initial, most, target, burst)
			}
			if most := mostLag(rest); most > 1.1*target {
				t.Errorf("%d tenants from %d: lag %.0f after the burst, target %d", tenants, initial, most, target)
			}
			if applied < .99 {
				t.Errorf("%d tenants from %d: the appliers idled, %.3f applied", tenants, initial, applied)
			}
		}
	}
}

// Work that gives its slot back after a quarter of a second, when it has been
// published, long before it is applied: lag is then what the admitted rate adds up
// to, and neither variant holds it. In two intervals demand adds 200,000. Held
// here because the documentation says so.
func TestLoopsOfPublishedWork(t *testing.T) {
	loop := lagLoop{tenants: 50, demand: 30_000, service: 10_000, length: 20 * time.Minute, hold: 250 * time.Millisecond}
	for _, tt := range []struct {
		c    control.Controller
		most float64
	}{
		{drain(t, control.DrainConfig{Initial: 20}), 210_000},
		{lagMap(t, control.LagMapConfig{}), 100_000 + 210_000},
	} {
		samples := loop.run(tt.c)
		rest := samples[len(samples)/2:]
		applied := 0.0
		for _, s := range rest {
			applied += s.applied
		}
		t.Logf("%s: lag at most %.0f, limit %.0f%% from peak to peak; applied %.3f of what could be",
			tt.c.Name(), mostLag(rest), 100*swing(rest), applied/10_000/lagPeriod.Seconds()/float64(len(rest)))
		if most := mostLag(rest); most < 11_000 || most > tt.most {
			t.Errorf("%s: lag up to %.0f; documented is more than 11,000, and here at most %.0f", tt.c.Name(), most, tt.most)
		}
	}
}
