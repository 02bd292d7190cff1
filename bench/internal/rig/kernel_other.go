//go:build !linux

package rig

import (
	"errors"
	"runtime"
	"time"
)

var errNotLinux = errors.New("this benchmark needs Linux: it pins processes to cores and reads /proc")

// Cores fails on this system.
func Cores() (test, rest int, err error) { return 0, 0, errNotLinux }

// PinSelf fails on this system.
func PinSelf(int) error { return errNotLinux }

// Pinned fails on this system.
func Pinned(int, func() error) error { return errNotLinux }

// Kernel names the system.
func Kernel() string { return runtime.GOOS }

// ThreadTime is not known on this system.
func ThreadTime() time.Duration { return 0 }

// ProcessTime is not known on this system.
func ProcessTime() time.Duration { return 0 }

// usageOf is not known on this system.
func usageOf(int) Usage { return Usage{} }

// Busy is not known on this system.
func Busy(int) time.Duration { return 0 }
