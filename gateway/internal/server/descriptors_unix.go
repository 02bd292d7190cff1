//go:build unix

package server

import "syscall"

// mostDescriptors returns how many file descriptors the process may have open, 0 if that is not known. Go has raised the soft
// limit to the hard one.
func mostDescriptors() uint64 {
	var most syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &most); err != nil {
		return 0
	}
	return uint64(most.Cur)
}
