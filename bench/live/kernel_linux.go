package live

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cores are where the two sides run: one number if the process may use one
// core only.
func cores() (test, rest int, err error) {
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

// pinSelf moves all threads of this process to core. New threads inherit it.
func pinSelf(core int) error {
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

// pinned runs start on a thread of core; a process started there stays there.
func pinned(core int, start func() error) error {
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

// kernel names the running kernel.
func kernel() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
}

// threadTime is the CPU time that this thread has used, to the nanosecond;
// getrusage only knows it as of the last tick.
func threadTime() time.Duration { return clock(unix.CLOCK_THREAD_CPUTIME_ID) }

// processTime is the CPU time that this process has used.
func processTime() time.Duration { return clock(unix.CLOCK_PROCESS_CPUTIME_ID) }

func clock(id int32) time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(id, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// usageOf is what the kernel says about a process.
type usageOf struct {
	cpu  time.Duration
	peak uint64 // resident bytes
}

// tick is the unit of CPU time in /proc on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// usageOfPID reads it. What is not there counts as 0: figures, not faults.
func usageOfPID(pid int) (u usageOf) {
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		// The second field is a name in parentheses; utime and stime are the 12th
		// and 13th after it.
		if i := bytes.LastIndexByte(stat, ')'); i >= 0 {
			if f := strings.Fields(string(stat[i+1:])); len(f) > 12 {
				user, _ := strconv.ParseInt(f[11], 10, 64)
				system, _ := strconv.ParseInt(f[12], 10, 64)
				u.cpu = time.Duration(user+system) * tick
			}
		}
	}
	if status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)); err == nil {
		if _, rest, ok := strings.Cut(string(status), "VmHWM:"); ok {
			kb, _ := strconv.ParseUint(strings.Fields(rest)[0], 10, 64)
			u.peak = kb << 10
		}
	}
	return u
}

// busy is how long a core has worked for processes so far, or was taken from this
// machine by the one it runs on. Interrupts are left out: on loopback they are the
// work of those that send.
func busy(core int) time.Duration {
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
