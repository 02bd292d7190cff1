package quota

import (
	"testing"
	"time"
)

// A clock on the wall that is put back to before the process began does not stand
// still: the next day brings its tokens.
func TestWallBeforeTheStart(t *testing.T) {
	m := newMemory(t, MemoryConfig{})
	day := []Limit{Each(5, Day, nil)}
	m.epoch = m.epoch.Add(365 * 24 * time.Hour) // as if it had begun in a year
	if r := take(t, m, Take{Key: "k", Limits: day, Cost: 5}); !r.OK {
		t.Fatalf("%+v", r)
	}
	if r := take(t, m, Take{Key: "k", Limits: day, Cost: 1}); r.OK || r.Wait > 24*time.Hour {
		t.Errorf("%+v, want a wait until midnight", r)
	}
	m.epoch = m.epoch.Add(-24 * time.Hour) // a day passes
	if r := take(t, m, Take{Key: "k", Limits: day, Cost: 5}); !r.OK {
		t.Errorf("%+v, want what the day brings", r)
	}
}
