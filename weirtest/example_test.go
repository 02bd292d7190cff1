package weirtest_test

import (
	"testing"
	"time"

	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/weirtest"
)

// The tests of a store call TestStore with a store that goes by a clock of theirs.
func ExampleTestStore() {
	_ = func(t *testing.T) {
		weirtest.TestStore(t, func(t *testing.T) (quota.Store, weirtest.Clock) {
			var now time.Duration
			s, err := quota.NewMemory(quota.MemoryConfig{Now: func() time.Duration { return now }})
			if err != nil {
				t.Fatal(err)
			}
			return s, weirtest.Clock{
				Advance: func(d time.Duration) { now += d },
				Back:    func(d time.Duration) { now -= d },
			}
		})
	}
}
