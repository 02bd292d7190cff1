package weirtest_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/weirtest"
)

// virtual is the memory store on a clock of its own.
func virtual(*testing.T) (quota.Store, weirtest.Clock) {
	var now atomic.Int64
	s := weir.Must(quota.NewMemory(quota.MemoryConfig{Now: func() time.Duration { return time.Duration(now.Load()) }}))
	return s, weirtest.Clock{
		Advance: func(d time.Duration) { now.Add(int64(d)) },
		Back:    func(d time.Duration) { now.Add(-int64(d)) },
	}
}

func TestMemory(t *testing.T) { weirtest.TestStore(t, virtual) }

// One store for all tests, as a server would be.
func TestMemoryShared(t *testing.T) {
	s, clock := virtual(t)
	weirtest.TestStore(t, func(*testing.T) (quota.Store, weirtest.Clock) { return s, clock })
}
