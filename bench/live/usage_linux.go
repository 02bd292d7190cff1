package live

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

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
