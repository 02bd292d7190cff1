package accept

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
)

// Inherited are the sockets that a service manager has opened for this process, as systemd does for a socket
// unit. They stay open as long as the process runs. A connection that no listener accepts waits in the queue of
// its socket, even while the service restarts. nil means no sockets.
type Inherited struct{ sockets []*net.TCPListener }

// firstInherited is the file descriptor of the first socket, and mostInherited bounds how many there may be.
const (
	firstInherited = 3
	mostInherited  = 1000
)

// Inherit takes the sockets that the environment announces: LISTEN_FDS is their number, if LISTEN_PID is this
// process. It removes the variables, so that no child process uses them. Call it once.
func Inherit() (*Inherited, error) {
	in, err := inherit(os.Getenv, func(fd int) *os.File { return os.NewFile(uintptr(fd), "LISTEN_FDS") })
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		_ = os.Unsetenv(name) // it fails only for invalid names
	}
	return in, err
}

func inherit(env func(string) string, open func(fd int) *os.File) (*Inherited, error) {
	if env("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		return nil, nil // no sockets, or they are for another process
	}
	n, err := strconv.Atoi(env("LISTEN_FDS"))
	if err != nil || n < 0 || n > mostInherited {
		return nil, fmt.Errorf("LISTEN_FDS is %q; it must be the number of sockets that the service manager passes, at most %d", env("LISTEN_FDS"), mostInherited)
	}
	in := new(Inherited)
	var wrong []error
	for fd := firstInherited; fd < firstInherited+n; fd++ {
		socket, err := inheritSocket(open(fd))
		if err != nil {
			wrong = append(wrong, fmt.Errorf("file descriptor %d of LISTEN_FDS is not a listening TCP socket (%w); in the socket unit, write only ListenStream=PORT or ListenStream=ADDRESS:PORT", fd, err))
			continue
		}
		in.sockets = append(in.sockets, socket)
	}
	return in, errors.Join(wrong...)
}

// inheritSocket makes a listener from a file, and closes the file.
func inheritSocket(f *os.File) (*net.TCPListener, error) {
	if f == nil {
		return nil, os.ErrInvalid
	}
	defer f.Close()
	ln, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	if tcp, ok := ln.(*net.TCPListener); ok {
		return tcp, nil
	}
	_ = ln.Close() // it is not used
	return nil, fmt.Errorf("its network is %q", ln.Addr().Network())
}

// at returns the socket for a listener with this address, or nil.
func (in *Inherited) at(address string) *net.TCPListener {
	if in == nil {
		return nil
	}
	for _, s := range in.sockets {
		if fits(address, s.Addr().(*net.TCPAddr)) {
			return s
		}
	}
	return nil
}

// fits reports whether a listener with this address may use a socket at that one. For ListenStream=80 a socket
// unit opens :80 on all interfaces, however the kernel shows that address.
func fits(address string, at *net.TCPAddr) bool {
	want, err := net.ResolveTCPAddr("tcp", address)
	if err != nil || want.Port != at.Port {
		return false
	}
	return want.IP.Equal(at.IP) || want.IP == nil && at.IP.IsUnspecified()
}

// Check returns an error unless each socket belongs to exactly one listener. A client of a socket without a
// listener would wait for ever. addresses are the addresses of all listeners.
func (in *Inherited) Check(addresses []string) error {
	if in == nil {
		return nil
	}
	var wrong []error
	for _, s := range in.sockets {
		at := s.Addr().(*net.TCPAddr)
		var users []string
		for _, address := range addresses {
			if fits(address, at) {
				users = append(users, address)
			}
		}
		switch {
		case len(users) == 0:
			wrong = append(wrong, fmt.Errorf("the service manager passes a socket at %s, but no listener has that address (the listeners have %s). Write the same address in ListenStream= of the socket unit and in address: of the file",
				at, strings.Join(addresses, ", ")))
		case len(users) > 1:
			wrong = append(wrong, fmt.Errorf("the service manager passes a socket at %s, but several listeners have that address (%s); keep only one of them", at, strings.Join(users, ", ")))
		}
	}
	return errors.Join(wrong...)
}
