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

// ErrSocketInUse is returned by [ListenUnix] for a socket that answers.
var ErrSocketInUse = errors.New("another process answers there; stop it, or choose another path")

// ListenUnix opens a Unix socket that those may connect to whom mode lets write. It gets its name
// only when it is ready. Until then, it is in a directory that nobody else can enter. The socket of a
// process that has died is replaced, one that answers is not. Closing it leaves the name.
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
	ln.SetUnlinkOnClose(false) // it would remove the name that it has no more
	if err = os.Chmod(made, mode); err == nil {
		err = os.Rename(made, path)
	}
	if err != nil {
		ln.Close()
		return nil, err
	}
	return ln, nil
}

// socketName is the name of a Unix socket. Listeners that share the socket share it, and the last one
// to close removes it.
type socketName struct {
	path  string
	info  fs.FileInfo // of the socket that has it
	users atomic.Int32
}

// leave removes the name when nobody uses it any more, unless another process has taken it.
func (n *socketName) leave() {
	if n == nil || n.users.Add(-1) > 0 {
		return
	}
	if now, err := os.Lstat(n.path); err == nil && os.SameFile(now, n.info) {
		_ = os.Remove(n.path) // who connects is refused either way
	}
}
