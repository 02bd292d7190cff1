package server

import (
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

// A deadline that is there already is left if it is late enough, and never comes
// before the one asked for.
func TestWriteDeadlineStays(t *testing.T) {
	ln, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	all := newConns(ln, newDoor(doorLimits{open: 1}), true)
	defer all.Close()
	dial(t, ln.Addr(), "")
	accepted, err := all.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c := accepted.(*conn)
	defer c.Close()
	f := func(what string, in time.Duration, stays bool) {
		t.Helper()
		before := c.writeBy.Load()
		asked := time.Now().Add(in)
		if err := c.SetWriteDeadline(asked); err != nil {
			t.Fatal(err)
		}
		after := c.writeBy.Load()
		late := all.epoch.Add(time.Duration(after)).Sub(asked)
		if (after == before) != stays || late < 0 || late > in/4 {
			t.Errorf("%s: kept %v, want %v; %v later than asked", what, after == before, stays, late)
		}
	}
	f("the first", time.Hour, false)
	f("the same again", time.Hour, true)
	f("a little later", 70*time.Minute, true)
	f("much later", 90*time.Minute, false)
	f("earlier", time.Minute, false)
	none := func() {
		t.Helper()
		if err := c.SetWriteDeadline(time.Time{}); err != nil || c.writeBy.Load() == 0 {
			t.Errorf("none, and nothing written: %v, kept %d", err, c.writeBy.Load())
		}
	}
	none()
	f("after none", time.Minute, true)
	none()
	if _, err := c.Write([]byte("x")); err != nil || c.writeBy.Load() != 0 {
		t.Errorf("written without: %v, kept %d", err, c.writeBy.Load())
	}
	f("after a write without", time.Minute, false)
	if err := c.SetDeadline(time.Time{}); err != nil || c.writeBy.Load() != 0 {
		t.Errorf("none for both: %v, kept %d", err, c.writeBy.Load())
	}
	f("after none for both", time.Minute, false)
	if err := c.SetWriteDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("written after the deadline: %v", err)
	}
	none()
	for _, write := range []func() error{
		func() error { _, err := c.Write([]byte("x")); return err },
		func() error { _, err := c.ReadFrom(strings.NewReader("x")); return err },
	} {
		if err := c.SetWriteDeadline(time.Now().Add(-time.Second)); err != nil {
			t.Fatal(err)
		}
		none()
		if err := write(); err != nil {
			t.Errorf("a deadline that passed while nothing was bound by it: %v", err)
		}
	}
}
