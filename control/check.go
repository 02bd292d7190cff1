package control

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// def replaces the zero value of a setting by its default.
func def[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// faults are what is wrong with a configuration.
type faults []error

func (f *faults) check(ok bool, format string, args ...any) {
	if !ok {
		*f = append(*f, fmt.Errorf(format, args...))
	}
}

// err returns all faults as one error, or nil.
func (f faults) err(what string) error {
	if len(f) == 0 {
		return nil
	}
	return fmt.Errorf("control: %s: %w", what, errors.Join(f...))
}

// mostLimit is the largest limit that a gate takes.
const mostLimit = 1 << 30

// shortestWindow is the shortest window that a configuration may ask for.
const shortestWindow = 10 * time.Millisecond

// checkBounds checks Min and Max.
func (f *faults) checkBounds(low, high int64) {
	f.check(low >= 1, "Min %d: must be at least 1", low)
	f.check(high >= low, "Max %d: must not be below Min %d", high, low)
	f.check(high <= mostLimit, "Max %d: must be at most %d", high, int64(mostLimit))
}

// checkWindow checks a window's length.
func (f *faults) checkWindow(name string, length time.Duration) {
	f.check(length >= shortestWindow, "%s %v: must be at least %v", name, length, shortestWindow)
}

// within clamps x to the bounds. NaN becomes low.
func within(x float64, low, high int64) float64 {
	if math.IsNaN(x) {
		return float64(low)
	}
	return min(max(x, float64(low)), float64(high))
}

// product is x·y, rounded. Without the conversion some processors fuse the product with
// the sum it is part of, and a limit would depend on the machine.
func product(x, y float64) float64 { return float64(x * y) }
