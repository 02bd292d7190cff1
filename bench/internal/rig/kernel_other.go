//go:build !linux

package rig

import (
	"runtime"
	"time"
)

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
