package quota

import (
	"errors"
	"fmt"
)

// faults collects what is wrong with a configuration.
type faults []error

func (f *faults) check(ok bool, format string, args ...any) {
	if !ok {
		*f = append(*f, fmt.Errorf(format, args...))
	}
}

// err joins the faults, and says whose they are.
func (f faults) err(whose string) error {
	if len(f) == 0 {
		return nil
	}
	return fmt.Errorf("quota: %s%w", whose, errors.Join(f...))
}

// of is err for the configuration of a gate.
func (f faults) of(gate string) error { return f.err(fmt.Sprintf("gate %q: ", gate)) }
