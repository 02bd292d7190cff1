//go:build integration

package weirredis

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/weirtest"
)

// The store does what every store does. The clock is the test's, in place of the
// server's, or else the suite would take hours.
func TestConforms(t *testing.T) {
	each(t, func(t *testing.T, start func(...string) *server) {
		addr := start().addr
		var n atomic.Int64
		weirtest.TestStore(t, func(t *testing.T) (quota.Store, weirtest.Clock) {
			var now atomic.Int64
			now.Store(1e12)
			s := open(t, Config{
				Addrs: []string{addr}, Prefix: fmt.Sprintf("test%d:", n.Add(1)),
				Now: func() time.Time { return time.UnixMicro(now.Load()) },
			})
			s.clock = now.Load
			return s, weirtest.Clock{
				Advance: func(d time.Duration) { now.Add(d.Microseconds()) },
				Back:    func(d time.Duration) { now.Add(-d.Microseconds()) },
			}
		})
	})
}
