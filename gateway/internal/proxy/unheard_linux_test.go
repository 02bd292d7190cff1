package proxy

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Connections that are never pinged end when nobody acknowledges what is sent on them.
func TestEndUnheard(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, tt := range []struct {
		name  string
		calls bool
		want  time.Duration
	}{{"HTTP/2 only", true, unheardFor}, {"HTTP/1 as well", false, 0}} {
		tr := newTransport(pool{connectTimeout: time.Minute, h2c: tt.calls}, tt.calls)
		c, err := tr.DialContext(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		raw, err := c.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		var got int
		if cerr := raw.Control(func(fd uintptr) { got, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT) }); cerr != nil || err != nil {
			t.Fatal(cerr, err)
		}
		if got := time.Duration(got) * time.Millisecond; got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
