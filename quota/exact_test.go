package quota

import (
	"testing"
	"time"
)

// A token is told to come back when it does, and is there then, however often it is
// asked for meanwhile: what a float64 is off by costs nobody a millisecond more, and
// brings nobody one less.
func TestWholeWaits(t *testing.T) {
	for _, unit := range []time.Duration{ms, time.Minute, time.Hour} {
		for n := range 200 {
			wait := time.Duration(n+1) * unit
			p := newPail(false, Limit{Rate: 1 / wait.Seconds(), Burst: 1})
			p.take(1)
			for left := wait; left > 0; left -= unit {
				if got := p.take(1); got.OK || got.Wait != left {
					t.Fatalf("%v of %v before its time: %+v, want a refusal for as long", left, wait, got)
				}
				p.advance(unit)
			}
			if got := p.take(1); !got.OK {
				t.Fatalf("after %v: %+v, want it let through", wait, got)
			}
		}
	}
}

// A debt of whole periods is paid back by as many, not by one more.
func TestDebtOfWholePeriods(t *testing.T) {
	for periods := range 5 {
		p := newPail(true, Each(100, Hour, nil))
		p.take(100)
		p.take(int64(100 * periods))
		if periods == 0 {
			continue
		}
		want := time.Duration(periods) * time.Hour
		if got := p.take(1); got.OK || got.Wait != want {
			t.Errorf("a debt of %d periods: %+v, want a refusal for %v", periods, got, want)
		}
		p.advance(want)
		if got := p.take(1); !got.OK {
			t.Errorf("a debt of %d periods, after %v: %+v, want it let through", periods, want, got)
		}
	}
}

// Of several debts the longest is told, wherever it stands.
func TestPermissiveSeveralWindows(t *testing.T) {
	fast, slow := Limit{Rate: 10, Burst: 10}, Limit{Rate: 1, Burst: 10}
	for _, limits := range [][]Limit{{fast, slow}, {slow, fast}, {fast, slow, fast}} {
		p := newPail(true, limits...)
		p.Mode = Permissive
		if got := p.take(30); !got.OK || got.Wait != 20*time.Second {
			t.Errorf("%v: %+v, want 20s", limits, got)
		}
	}
}
