package control

import (
	"math"
	"time"
)

// mostLimit is the largest limit that a gate takes.
const mostLimit = 1 << 30

// shortestWindow is the shortest window that a configuration may ask for.
const shortestWindow = 10 * time.Millisecond

// checkBounds finds fault with Min and Max.
func (f *faults) checkBounds(low, high int64) {
	f.check(low >= 1, "Min %d: must be at least 1", low)
	f.check(high >= low, "Max %d: must not be below Min %d", high, low)
	f.check(high <= mostLimit, "Max %d: must be at most %d", high, int64(mostLimit))
}

// checkWindow finds fault with a window's length.
func (f *faults) checkWindow(name string, length time.Duration) {
	f.check(length >= shortestWindow, "%s %v: must be at least %v", name, length, shortestWindow)
}

// within clamps x to the bounds. What is no number is low.
func within(x float64, low, high int64) float64 {
	if math.IsNaN(x) {
		return float64(low)
	}
	return min(max(x, float64(low)), float64(high))
}

// product is x·y, rounded. Without the conversion some processors would fuse it
// with the sum it is part of, and a limit would depend on the machine.
func product(x, y float64) float64 { return float64(x * y) }
