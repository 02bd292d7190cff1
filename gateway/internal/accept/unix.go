package accept

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"
)

// ErrSocketInUse is returned by [ListenUnix] for a socket on which a process answers.
var ErrSocketInUse = errors.New("another process answers there; stop it, or choose another path")

// ListenUnix opens a Unix socket. Users with write permission in mode may connect to it. The socket gets its
// name only when it is ready. Until then, it is in a directory that no other user can enter. ListenUnix
// replaces the socket of a process that has died, but not a socket on which a process may answer. Closing the
// listener leaves the name.
func ListenUnix(path string, mode fs.FileMode) (*net.UnixListener, *SocketName, error) {
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&os.ModeSocket == 0 {
			return nil, nil, errors.New("a file that is not a socket is there; remove it, or choose another path")
		}
		switch c, err := net.DialTimeout("unix", path, time.Second); {
		case err == nil:
			c.Close()
			return nil, nil, ErrSocketInUse
		case !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist):
			// Nobody may connect to it, or its process is busy.
			return nil, nil, fmt.Errorf("another process may answer there (%w); stop it and remove the socket, or choose another path", err)
		}
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), ".weir") // mode 0700
	if err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(dir)
	made := filepath.Join(dir, "s")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: made, Net: "unix"})
	if err != nil {
		return nil, nil, err
	}
	ln.SetUnlinkOnClose(false) // it would remove the first name, which is no longer used
	name := &SocketName{path: path}
	name.users.Store(1)
	if err = os.Chmod(made, mode); err == nil {
		name.info, err = os.Lstat(made)
	}
	if err == nil {
		err = os.Rename(made, path)
	}
	if err != nil {
		ln.Close()
		return nil, nil, err
	}
	return ln, name, nil
}

// SocketName is the name of a Unix socket. Listeners that share the socket share its name. The last listener
// that closes removes the name.
type SocketName struct {
	path  string
	info  fs.FileInfo // of the socket with this name
	users atomic.Int32
}

// Leave removes the name after its last use, unless another process has taken it.
func (n *SocketName) Leave() {
	if n == nil || n.users.Add(-1) > 0 {
		return
	}
	if now, err := os.Lstat(n.path); err == nil && os.SameFile(now, n.info) {
		_ = os.Remove(n.path) // clients are refused in any case
	}
}
