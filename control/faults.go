package control

import (
	"errors"
	"fmt"
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

// err returns all faults as one error, or nil.
func (f faults) err(what string) error {
	if len(f) == 0 {
		return nil
	}
	return fmt.Errorf("control: %s: %w", what, errors.Join(f...))
}
