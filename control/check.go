package control

import (
	"math"
	"time"

	"github.com/weir-go/weir/internal/fault"
)

// def replaces the zero value of a setting by its default.
func def[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// mostLimit is the largest limit that a gate takes.
const mostLimit = 1 << 30

// shortestWindow is the shortest window that a configuration may ask for.
const shortestWindow = 10 * time.Millisecond

// checkBounds checks min and max.
func checkBounds(f *fault.List, low, high int64) {
	f.Check(low >= 1, fault.Path{"min"}, low, "must be at least 1")
	f.Check(high >= low, fault.Path{"max"}, high, "must not be below min %d", low)
	f.Check(high <= mostLimit, fault.Path{"max"}, high, "must be at most %d", int64(mostLimit))
}

// checkWindow checks a window's length.
func checkWindow(f *fault.List, key string, length time.Duration) {
	f.Check(length >= shortestWindow, fault.Path{key}, length, "must be at least %v", shortestWindow)
}

// within clamps x to the bounds. NaN becomes low.
func within(x float64, low, high int64) float64 {
	if math.IsNaN(x) {
		return float64(low)
	}
	return min(max(x, float64(low)), float64(high))
}

// product is x·y, rounded. Without the conversion some processors fuse the product with
// the sum it is part of. A limit would then depend on the machine.
func product(x, y float64) float64 { return float64(x * y) }
