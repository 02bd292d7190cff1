package rig

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Cores are where the two sides run: one number if the process may use one
// core only.
func Cores() (test, rest int, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return 0, 0, fmt.Errorf("which cores may be used: %w", err)
	}
	var found []int
	for i := range len(set) * 64 {
		if set.IsSet(i) {
			found = append(found, i)
		}
	}
	if len(found) == 0 {
		return 0, 0, fmt.Errorf("no core may be used, says the kernel")
	}
	return found[len(found)-1], found[0], nil
}

// PinSelf moves all threads of this process to core. New threads inherit it.
func PinSelf(core int) error {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, t := range tasks {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		if err := setAffinity(tid, core); err != nil && err != unix.ESRCH {
			return fmt.Errorf("pin to core %d: %w", core, err)
		}
	}
	return nil
}

// Pinned runs start on a thread of core; a process started there stays there.
func Pinned(core int, start func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		return err
	}
	if err := setAffinity(0, core); err != nil {
		return fmt.Errorf("pin to core %d: %w", core, err)
	}
	defer unix.SchedSetaffinity(0, &before)
	return start()
}

func setAffinity(tid, core int) error {
	var set unix.CPUSet
	set.Set(core)
	return unix.SchedSetaffinity(tid, &set)
}

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
