package live

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
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
