//go:build !unix && !windows

package signal

import "time"

// processTime says that this system does not tell.
func processTime() (time.Duration, error) {
	return 0, unsupported("this system does not tell how much processor time a process used")
}
