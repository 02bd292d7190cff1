//go:build unix

package cost

import (
	"syscall"
	"time"
)

// cpuTime is the CPU time this process has used so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0 // turns on several cores then count as void
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
