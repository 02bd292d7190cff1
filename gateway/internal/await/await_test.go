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
