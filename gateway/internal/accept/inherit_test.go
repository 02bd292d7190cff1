package accept

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/weir-go/weir/gateway/internal/config"
)

// file returns a copy of the file behind a socket.
func file(t *testing.T, socket interface{ File() (*os.File, error) }) *os.File {
	t.Helper()
	f, err := socket.File()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// Sockets for this process are taken, and an error names descriptors that are not TCP sockets.
func TestInherit(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	unix, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close()
	open := func(fd int) *os.File {
		switch fd {
		case 3:
			return file(t, tcp.(*net.TCPListener))
		case 4:
			return file(t, unix.(*net.UnixListener))
		}
		return nil
	}
	own := strconv.Itoa(os.Getpid())
	for _, c := range []struct {
		pid, fds string
		sockets  int
		wrong    string
	}{
		{"", "", 0, ""},
		{"1", "1", 0, ""},
		{own, "0", 0, ""},
		{own, "1", 1, ""},
		{own, "2", 0, `file descriptor 4 of LISTEN_FDS is not a listening TCP socket (its network is "unix")`},
		{own, "3", 0, "file descriptor 5 of LISTEN_FDS is not a listening TCP socket"},
		{own, "", 0, `LISTEN_FDS is ""`},
		{own, "-1", 0, `LISTEN_FDS is "-1"`},
		{own, "1001", 0, `LISTEN_FDS is "1001"`},
	} {
		in, err := inherit(func(name string) string { return map[string]string{"LISTEN_PID": c.pid, "LISTEN_FDS": c.fds}[name] }, open)
		switch {
		case c.wrong == "" && err != nil:
			t.Errorf("pid %q, fds %q: %v", c.pid, c.fds, err)
		case c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)):
			t.Errorf("pid %q, fds %q: the error is %v, want %s", c.pid, c.fds, err, c.wrong)
		case c.wrong == "" && c.sockets > 0 && (len(in.sockets) != c.sockets || in.at(tcp.Addr().String()) == nil):
			t.Errorf("pid %q, fds %q: %+v", c.pid, c.fds, in)
		}
	}
}

// A listener uses the socket at its address, and not a socket that is open to more addresses.
func TestFits(t *testing.T) {
	for _, c := range []struct {
		address, at string
		want        bool
	}{
		{"127.0.0.1:80", "127.0.0.1:80", true},
		{"127.0.0.1:80", "127.0.0.1:81", false},
		{"127.0.0.1:80", "127.0.0.2:80", false},
		{"127.0.0.1:80", "0.0.0.0:80", false},
		{":80", "0.0.0.0:80", true},
		{":80", "[::]:80", true},
		{":80", "127.0.0.1:80", false},
		{"0.0.0.0:80", "0.0.0.0:80", true},
		{"0.0.0.0:80", "[::]:80", false},
		{"[::]:80", "[::]:80", true},
		{"[::]:80", "0.0.0.0:80", false},
		{"127.0.0.1:0", "127.0.0.1:80", false},
		{"off", "127.0.0.1:80", false},
	} {
		at, err := net.ResolveTCPAddr("tcp", c.at)
		if err != nil {
			t.Fatal(err)
		}
		if got := fits(c.address, at); got != c.want {
			t.Errorf("%s on a socket at %s: %v, want %v", c.address, c.at, got, c.want)
		}
	}
}

// Each passed socket belongs to one listener; otherwise an error says what does not fit.
func TestInheritedCheck(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	in, addr := &Inherited{sockets: []*net.TCPListener{ln.(*net.TCPListener)}}, ln.Addr().String()
	for wrong, addresses := range map[string][]string{
		"": {"127.0.0.1:1", addr},
		"no listener has that address (the listeners have 127.0.0.1:1, :2)": {"127.0.0.1:1", ":2"},
		"several listeners have that address (":                             {addr, addr},
	} {
		if err := in.Check(addresses); wrong == "" && err != nil || wrong != "" && (err == nil || !strings.Contains(err.Error(), wrong)) {
			t.Errorf("%v: %v, want %q", addresses, err, wrong)
		}
	}
	if err := (*Inherited)(nil).Check([]string{addr}); err != nil {
		t.Error(err)
	}
}

// opened is a listener at the address of an inherited socket.
func opened(t *testing.T, at net.Listener, in *Inherited) *Listener {
	t.Helper()
	l, err := Open(Options{Config: config.DefaultListener(at.Addr().String()), Log: noLog{}, Inherited: in})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// A listener that closes leaves an inherited socket open: another listener accepts the waiting connections.
func TestInheritedStaysOpen(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	in := &Inherited{sockets: []*net.TCPListener{ln.(*net.TCPListener)}}
	for range 3 {
		l := opened(t, ln, in)
		if !l.Inherited() {
			t.Fatal("it does not use the socket")
		}
		client, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		waits, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer waits.Close()
		l.Drain(0)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		next := opened(t, ln, in)
		if c, err = next.Accept(); err != nil || c.RemoteAddr().String() != waits.LocalAddr().String() {
			t.Fatalf("accepted %v, %v; want who waited", c, err)
		}
		c.Close()
		next.Close()
	}
}
