//go:build unix

package quotas

import (
	"errors"
	"os"
	"syscall"
)

var errLocked = errors.New("locked")

// lockFile opens a file that one process at a time can have. The kernel lets go of it
// when the process ends, however it does.
func lockFile(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errLocked
		}
		return nil, err
	}
	return f, nil
}
