package rig

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Kernel names the running kernel.
func Kernel() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
}

// ThreadTime is the CPU time that this thread has used, to the nanosecond;
// getrusage only knows it as of the last tick.
func ThreadTime() time.Duration { return clock(unix.CLOCK_THREAD_CPUTIME_ID) }

// ProcessTime is the CPU time that this process has used.
func ProcessTime() time.Duration { return clock(unix.CLOCK_PROCESS_CPUTIME_ID) }

func clock(id int32) time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(id, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// usageOf reads it. What is not there counts as 0: figures, not faults.
func usageOf(pid int) (u Usage) {
	const scheduler = 2 // makes a clock of a process number, see clock_getcpuclockid(3)
	u.CPU = clock(int32(^pid<<3 | scheduler))
	if status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)); err == nil {
		u.Peak, u.Resident = memory(string(status), "VmHWM:"), memory(string(status), "VmRSS:")
	}
	return u
}

// memory reads a line of a process's status, in bytes.
func memory(status, name string) uint64 {
	_, rest, ok := strings.Cut(status, name)
	if !ok {
		return 0
	}
	kb, _ := strconv.ParseUint(strings.Fields(rest)[0], 10, 64)
	return kb << 10
}

// tick is the unit of CPU time in /proc on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// Busy is how long a core has worked for processes so far, or was taken from this
// machine by the one it runs on. Interrupts are left out: on loopback they are the
// work of those that send.
func Busy(core int) time.Duration {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	prefix := fmt.Sprintf("cpu%d ", core)
	for line := range strings.Lines(string(stat)) {
		if !strings.HasPrefix(line, prefix) {
			continue
		}
		// user nice system idle iowait irq softirq steal
		var ticks int64
		for i, field := range strings.Fields(line)[1:] {
			if n, err := strconv.ParseInt(field, 10, 64); err == nil && (i < 3 || i == 7) {
				ticks += n
			}
		}
		return time.Duration(ticks) * tick
	}
	return 0
}
