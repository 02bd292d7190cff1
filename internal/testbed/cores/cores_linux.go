// Package cores keeps what is measured and what measures on different cores, so that neither takes
// processor time from the other.
package cores

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"unsafe"
)

// set is a set of cores, a bit for each. The kernel refuses it where there could be more than 1,024.
type set [1024 / 64]uint64

func (s *set) add(core int)      { s[core/64] |= 1 << (core % 64) }
func (s *set) has(core int) bool { return s[core/64]&(1<<(core%64)) != 0 }

// Pair returns two of the cores that this process may use: one for what is measured, and one for the rest. It is
// one number if there is only one.
func Pair() (test, rest int, err error) {
	allowed, err := affinity()
	if err != nil {
		return 0, 0, fmt.Errorf("which cores may be used: %w", err)
	}
	test, rest = -1, -1
	for core := range len(allowed) * 64 {
		if !allowed.has(core) {
			continue
		}
		if rest < 0 {
			rest = core
		}
		test = core
	}
	if rest < 0 {
		return 0, 0, errors.New("no core may be used, says the kernel")
	}
	return test, rest, nil
}

// PinSelf moves all threads of this process to core. New threads and processes inherit it.
func PinSelf(core int) error {
	pinned := map[string]bool{}
	for before := -1; before < len(pinned); { // a thread may begin while others are pinned
		before = len(pinned)
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		for _, t := range tasks {
			tid, err := strconv.Atoi(t.Name())
			if err != nil || pinned[t.Name()] {
				continue
			}
			if err := pin(tid, core); err != nil && err != syscall.ESRCH {
				return fmt.Errorf("pin to core %d: %w", core, err)
			}
			pinned[t.Name()] = true
		}
	}
	return nil
}

// Pinned runs start on a thread of core; a process started there stays there.
func Pinned(core int, start func() error) (err error) {
	runtime.LockOSThread()
	before, err := affinity()
	if err == nil {
		err = pin(0, core)
	}
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("pin to core %d: %w", core, err)
	}
	defer func() {
		if back := setAffinity(0, &before); back != nil { // the thread stays locked, and ends with its goroutine
			err = errors.Join(err, fmt.Errorf("unpin: %w", back))
			return
		}
		runtime.UnlockOSThread()
	}()
	return start()
}

func pin(tid, core int) error {
	var s set
	s.add(core)
	return setAffinity(tid, &s)
}

// affinity returns the cores of the calling thread.
func affinity() (s set, err error) {
	_, _, errno := syscall.RawSyscall(syscall.SYS_SCHED_GETAFFINITY, 0, unsafe.Sizeof(s), uintptr(unsafe.Pointer(&s)))
	if errno != 0 {
		return s, errno
	}
	return s, nil
}

func setAffinity(tid int, s *set) error {
	_, _, errno := syscall.RawSyscall(syscall.SYS_SCHED_SETAFFINITY, uintptr(tid), unsafe.Sizeof(*s), uintptr(unsafe.Pointer(s)))
	if errno != 0 {
		return errno
	}
	return nil
}
