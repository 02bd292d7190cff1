package await

import (
	"testing"
	"testing/synctest"
	"time"
)

// It looks until what is waited for holds or the time is over, and once more then.
func TestHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, after := range []time.Duration{0, time.Millisecond, 300 * time.Millisecond, time.Second, 2 * time.Second} {
			began, looks := time.Now(), 0
			held := Holds(time.Second, func() bool { looks++; return time.Since(began) >= after })
			took := time.Since(began)
			if held != (after <= time.Second) || took < min(after, time.Second) || took > min(after, time.Second)+longest || looks > 60 {
				t.Errorf("after %v: %v in %v with %d looks", after, held, took, looks)
			}
		}
		began := time.Now()
		Moment(began.Add(-time.Hour))
		Moment(began.Add(time.Minute))
		Work(time.Second)
		if took := time.Since(began); took != time.Minute+time.Second {
			t.Errorf("waited for %v", took)
		}
	})
}

// A count may take as long as it likes, if it rises. One that does not ends the test.
func TestCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, most := range []int64{5, 4} {
			began, f := time.Now(), &failed{TB: t}
			func() {
				defer func() { _ = recover() }()
				Count(f, "steps", 5, func() int64 { return min(most, int64(time.Since(began)/(Patience/2))) })
			}()
			if f.failed != (most < 5) || time.Since(began) < 2*Patience {
				t.Errorf("up to %d: failed is %v after %v", most, f.failed, time.Since(began))
			}
		}
	})
}

// failed notes a fatal error, and panics in its place.
type failed struct {
	testing.TB
	failed bool
}

func (f *failed) Fatalf(string, ...any) {
	f.failed = true
	panic("fatal")
}
