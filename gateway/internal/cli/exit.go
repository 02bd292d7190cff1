package cli

import "fmt"

// ExitError is an error that asks for an exit code. The root command prints it,
// unless Err is nil, and exits with Code.
type ExitError struct {
	Code int
	Err  error // nil: everything has been said already
}

// Error returns the text of Err.
func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

// Unwrap returns Err.
func (e *ExitError) Unwrap() error { return e.Err }
