//go:build !unix && !windows

package signal

import "time"

// processTime is not supported here.
func processTime() (time.Duration, error) {
	return 0, unsupported("this system does not say how much processor time a process used")
}
