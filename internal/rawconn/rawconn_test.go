package rawconn

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// pairOf returns the two ends of a connection.
func pairOf(t *testing.T, network string) (one, other net.Conn) {
	t.Helper()
	address := "127.0.0.1:0"
	if network == "unix" {
		address = filepath.Join(t.TempDir(), "s")
	}
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if one, err = net.Dial(network, l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { one.Close() })
	if other, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { other.Close() })
	return one, other
}

// What a socket has no room for is written when it has, be it more or less than the scheduler is told of.
func TestWritesAll(t *testing.T) {
	for _, network := range []string{"tcp", "unix"} {
		for _, size := range []int{1, Most, 3 * Most} {
			one, other := pairOf(t, network)
			if err := one.(interface{ SetWriteBuffer(int) error }).SetWriteBuffer(4 << 10); err != nil {
				t.Fatal(err)
			}
			sent := make([]byte, size)
			for i := range sent {
				sent[i] = byte(i % 251)
			}
			wrote := make(chan int, 1)
			go func() {
				n, _ := New(one).Write(sent)
				wrote <- n
				one.Close()
			}()
			got, err := io.ReadAll(New(other))
			if n := <-wrote; n != size || err != nil || !bytes.Equal(got, sent) {
				t.Errorf("%s: of %d bytes %d are written, and %d come: %v", network, size, n, len(got), err)
			}
		}
	}
}

// An error is that of package net.
func TestErrors(t *testing.T) {
	one, other := pairOf(t, "tcp")
	c := New(one)
	check := func(what, op string, err, want error) {
		t.Helper()
		var e *net.OpError
		if !errors.As(err, &e) || e.Op != op || e.Net != "tcp" || e.Addr.String() != one.RemoteAddr().String() || !errors.Is(err, want) {
			t.Errorf("%s: %#v, want a net.OpError of %s with %v", what, err, op, want)
		}
	}
	if err := c.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	_, err := c.Read(make([]byte, 1))
	check("past a deadline", "read", err, os.ErrDeadlineExceeded)
	if err := c.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	other.Close()
	if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("at the end: %d, %v, want EOF", n, err)
	}
	one.Close()
	_, err = c.Read(make([]byte, 1))
	check("closed", "read", err, net.ErrClosed)
	_, err = c.Write(make([]byte, 1))
	check("closed", "write", err, net.ErrClosed)
}

// A close ends a read that waits.
func TestCloseEndsRead(t *testing.T) {
	one, _ := pairOf(t, "tcp")
	c, read := New(one), make(chan error, 1)
	go func() {
		_, err := c.Read(make([]byte, 1))
		read <- err
	}()
	c.Close()
	if err := <-read; !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v, want that it is closed", err)
	}
}

// What has no socket, and what is over a socket as TLS is, stays as it is.
func TestWithoutSocket(t *testing.T) {
	one, _ := net.Pipe()
	defer one.Close()
	if c := New(one); c != one || TCP(c) != nil {
		t.Errorf("a pipe became %T, with the socket %v", c, TCP(c))
	}
	tcp, _ := pairOf(t, "tcp")
	if TCP(New(tcp)) != tcp {
		t.Error("the socket of a connection of TCP is not found")
	}
	unix, _ := pairOf(t, "unix")
	if TCP(New(unix)) != nil {
		t.Error("a Unix socket is taken for one of TCP")
	}
}
