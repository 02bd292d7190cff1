package accept

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"
)

// ErrSocketInUse is returned by [ListenUnix] for a socket on which a process answers.
var ErrSocketInUse = errors.New("another process answers there; stop it, or choose another path")

// ListenUnix opens a Unix socket. Users with write permission in mode may connect to it. The socket gets its
// name only when it is ready. Until then, it is in a directory that no other user can enter. ListenUnix
// replaces the socket of a process that has died, but not a socket on which a process answers. Closing the
// listener leaves the name.
func ListenUnix(path string, mode fs.FileMode) (*net.UnixListener, error) {
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&os.ModeSocket == 0 {
			return nil, errors.New("a file that is not a socket is there; remove it, or choose another path")
		}
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			c.Close()
			return nil, ErrSocketInUse
		}
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), ".weir") // mode 0700
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	made := filepath.Join(dir, "s")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: made, Net: "unix"})
	if err != nil {
		return nil, err
	}
	ln.SetUnlinkOnClose(false) // it would remove the first name, which is no longer used
	if err = os.Chmod(made, mode); err == nil {
		err = os.Rename(made, path)
	}
	if err != nil {
		ln.Close()
		return nil, err
	}
	return ln, nil
}

// socketName is the name of a Unix socket. Listeners that share the socket share its name. The last listener
// that closes removes the name.
type socketName struct {
	path  string
	info  fs.FileInfo // of the socket with this name
	users atomic.Int32
}

// leave removes the name after its last use, unless another process has taken it.
func (n *socketName) leave() {
	if n == nil || n.users.Add(-1) > 0 {
		return
	}
	if now, err := os.Lstat(n.path); err == nil && os.SameFile(now, n.info) {
		_ = os.Remove(n.path) // clients are refused in any case
	}
}
