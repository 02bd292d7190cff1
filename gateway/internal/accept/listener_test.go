package accept

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/gateway/internal/config"
)

// noLog is a Log that nobody reads.
type noLog struct{}

func (noLog) ConnectionRefused(*weir.Rejection, netip.AddrPort, bool) {}
func (noLog) CertificateRefused(string, string, net.Addr, error)      {}
func (noLog) AuthorityExpired(string, string)                         {}
func (noLog) CertificateExpired(string, time.Time)                    {}

// open opens a listener for that number of connections.
func open(t *testing.T, most int) *Listener {
	t.Helper()
	cfg := config.DefaultListener("127.0.0.1:0")
	cfg.MaxConnections = most
	l, err := Open(Options{Config: cfg, Log: noLog{}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// dial connects to a listener.
func dial(t *testing.T, l *Listener) {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
}

// An existing deadline stays if it is late enough, and is never earlier than the requested one.
func TestWriteDeadlineStays(t *testing.T) {
	all := open(t, 1)
	dial(t, all)
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

// AwaitRest waits for connections that are new or in use, but no longer than its context lasts.
func TestAwaitRest(t *testing.T) {
	all := open(t, 2)
	dial(t, all)
	c, err := all.Accept()
	if err != nil {
		t.Fatal(err)
	}
	f := func(state http.ConnState, want bool) {
		t.Helper()
		setState(tls.Server(c, nil), state)
		if got := all.AtRest(); got != want {
			t.Errorf("%v: at rest %v, want %v", state, got, want)
		}
	}
	f(http.StateIdle, true)
	f(http.StateActive, false)
	f(http.StateHijacked, true)
	f(http.StateNew, false)
	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	all.AwaitRest(short) // returns
	setState(c, http.StateIdle)
	all.AwaitRest(t.Context())
	if !all.AtRest() {
		t.Error("idle, and not at rest")
	}
}

// Two addresses have one set of limits: a connection at one counts at the other. A refused connection on a bare
// listener is reset.
func TestListenersWithOneLimit(t *testing.T) {
	first := open(t, 1)
	second, err := Open(Options{Config: config.DefaultListener("127.0.0.1:0"), Log: noLog{}, With: first, Bare: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { second.Close() })
	dial(t, first)
	one, err := first.Accept()
	if err != nil {
		t.Fatal(err)
	}
	refused, err := net.Dial("tcp", second.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer refused.Close()
	accepted := make(chan net.Conn)
	go func() {
		c, err := second.Accept()
		if err != nil {
			t.Error(err)
		}
		accepted <- c
	}()
	if n, err := refused.Read(make([]byte, 1)); n != 0 || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("one too many reads %d bytes, %v", n, err)
	}
	one.Close()
	dial(t, second)
	c := <-accepted
	defer c.Close()
	if s := first.Snapshot(); s.InFlight != 1 || s.Refused["max_connections"] != 1 || s.Admitted != 2 {
		t.Errorf("%+v", s)
	}
}

// A connection that a gate refuses after it was accepted is reset, and makes room for another one.
func TestResetMakesRoom(t *testing.T) {
	l := open(t, 1)
	for range 2 {
		client, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		accepted, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		Reset(accepted)
		if _, err := client.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("read %v", err)
		}
	}
	if n := l.count(); n != 0 {
		t.Errorf("%d connections are open", n)
	}
}
