package proxy

import (
	"sync/atomic"
	"time"
)

// mean is the moving mean of the time an upstream takes to answer. Two updates
// at the same moment may lose one of them, which a mean does not mind.
type mean struct{ ns atomic.Int64 }

// meanWeight is how many answers the mean looks back, roughly.
const meanWeight = 32

func (m *mean) add(d time.Duration) {
	old := m.ns.Load()
	if old == 0 {
		m.ns.Store(int64(d))
		return
	}
	m.ns.Store(old + (int64(d)-old)/meanWeight)
}

func (m *mean) value() time.Duration { return time.Duration(m.ns.Load()) }
