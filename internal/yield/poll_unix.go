//go:build unix

package yield

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"
)

// poll is a pipe that the run time's network poller watches. A goroutine writes to it
// and waits until it can be read: then the network has been polled, for all
// connections. There is one for the process; it stays.
var poll struct {
	once    sync.Once
	read    syscall.RawConn
	fd      int // to write to
	keep    [2]*os.File
	callers atomic.Int32
}

// mostPolls bounds how many goroutines wait for a poll. One more poll behind so many
// would show nothing new.
const mostPolls = 64

// pollNetwork returns after the network has been polled. Callers go one by one, so
// each of several that were admitted at once lets arrivals in before it runs.
func pollNetwork() {
	poll.once.Do(openPoll)
	defer poll.callers.Add(-1)
	if poll.callers.Add(1) > mostPolls || poll.read == nil {
		return
	}
	var b [1]byte
	written := false
	// An error means that the pipe cannot be waited for; there is no poll then.
	_ = poll.read.Read(func(fd uintptr) bool {
		if !written {
			written = true
			n, err := syscall.Write(poll.fd, b[:])
			return n != 1 || err != nil // true: do not wait for what was not written
		}
		_, _ = syscall.Read(int(fd), b[:]) // the byte is there; if not, the next call takes it
		return true
	})
}

// openPoll leaves poll.read nil if it can get no pipe, for instance for want of
// descriptors. Requests then yield without a poll.
func openPoll() {
	r, w, err := os.Pipe()
	if err != nil {
		return
	}
	from, err := r.SyscallConn()
	if err == nil {
		err = writeEnd(w)
	}
	if err != nil {
		_, _ = r.Close(), w.Close() // nobody has used them
		return
	}
	poll.read, poll.keep = from, [2]*os.File{r, w}
}

func writeEnd(w *os.File) error {
	to, err := w.SyscallConn()
	if err != nil {
		return err
	}
	return to.Control(func(fd uintptr) { poll.fd = int(fd) })
}
