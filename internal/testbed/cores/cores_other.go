//go:build !linux

// Package cores keeps what is measured and what measures on different cores, so that neither takes
// processor time from the other.
package cores

import "errors"

var errNotLinux = errors.New("this benchmark needs Linux: it pins processes to cores and reads /proc")

// Pair fails on this system.
func Pair() (test, rest int, err error) { return 0, 0, errNotLinux }

// PinSelf fails on this system.
func PinSelf(int) error { return errNotLinux }

// Pinned fails on this system.
func Pinned(int, func() error) error { return errNotLinux }
