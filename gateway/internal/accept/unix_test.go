package accept

import (
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/weir-go/weir/gateway/internal/config"
)

// A socket that a dead process has left behind is replaced. A socket on which a process answers is not, and
// neither is a file that is not a socket.
func TestSocketLeftBehind(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	ln, _, err := ListenUnix(path, 0o640)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if _, _, err := ListenUnix(path, 0o640); err != ErrSocketInUse {
		t.Errorf("one that answers: %v", err)
	}
	ln.Close()
	ln, _, err = ListenUnix(path, 0o640)
	if err != nil {
		t.Fatalf("one left behind: %v", err)
	}
	ln.Close()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := ListenUnix(path, 0o640); err == nil {
		t.Error("a file was replaced by a socket")
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "precious" {
		t.Errorf("%q %v", data, err)
	}
}

// A socket whose process is busy stays, and so does one that takes no connections of this kind.
func TestSocketOfABusyProcess(t *testing.T) {
	kept := func(path string) {
		t.Helper()
		before, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := ListenUnix(path, 0o640); err == nil || !strings.Contains(err.Error(), "another process may answer there") {
			t.Errorf("error %v, want one of another process", err)
		}
		if now, err := os.Lstat(path); err != nil || !os.SameFile(before, now) {
			t.Errorf("the socket was replaced: %v", err)
		}
	}
	datagrams, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer datagrams.Close()
	kept(datagrams.LocalAddr().String())

	if runtime.GOOS != "linux" {
		return // elsewhere a full socket refuses, as a dead one does
	}
	path := filepath.Join(t.TempDir(), "s")
	busy, _, err := ListenUnix(path, 0o640)
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	raw, err := busy.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { err = syscall.Listen(int(fd), 0) }); err != nil {
		t.Fatal(err)
	}
	for err == nil { // nobody accepts
		var c net.Conn
		if c, err = net.Dial("unix", path); err == nil {
			defer c.Close()
		}
	}
	kept(path)
}

// Of the listeners that share a Unix socket, the last one removes the name, but not a socket that another
// process has put there.
func TestUnixListener(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	cfg := config.DefaultListener("unix:" + path)
	open := func(share *Listener) *Listener {
		t.Helper()
		l, err := Open(Options{Config: cfg, Trusted: func(netip.Addr) bool { return false }, Share: share})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	speak := func(l *Listener) {
		t.Helper()
		accepted := make(chan error, 1)
		go func() {
			c, err := l.Accept()
			if err == nil {
				err = c.Close()
			}
			accepted <- err
		}()
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := <-accepted; err != nil {
			t.Error(err)
		}
	}
	first := open(nil)
	speak(first)
	second := open(first)
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	_ = first.Close() // once more changes nothing
	speak(second)
	cfg.SocketAccess = config.AccessGroup
	second.Configure(cfg)
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("%v, %v", info, err)
	}
	second.Drain(0)
	_ = second.Close()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the name is left: %v", err)
	}

	third := open(nil)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_ = third.Close()
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("what is another's was removed: %v", err)
	}
}
