package signal

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

// faults gathers everything that is wrong with a configuration.
type faults []error

func (f *faults) check(ok bool, format string, args ...any) {
	if !ok {
		*f = append(*f, fmt.Errorf(format, args...))
	}
}

// share checks a threshold that is a part of a whole.
func (f *faults) share(field string, v float64) {
	f.check(v > 0 && v <= 1, "%s %v: must be in (0, 1]", field, v)
}

// over checks the time that a rate is taken over.
func (f *faults) over(v time.Duration) {
	f.check(v >= time.Millisecond && v <= time.Minute, "Over %v: must be from 1ms to 1m", v)
}

// err returns all faults as one error, or nil.
func (f faults) err(what string) error {
	if len(f) == 0 {
		return nil
	}
	return fmt.Errorf("signal: %s: %w", what, errors.Join(f...))
}

// sane reports whether v can be a reading.
func sane(v float64) bool { return v >= 0 && !math.IsInf(v, 1) }
