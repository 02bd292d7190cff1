//go:build integration

package weirredis

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir/quota"
)

// slowly passes connections on to a server, and its answers on after a delay.
type slowly struct {
	addr  string
	delay atomic.Int64
}

func startSlowly(t *testing.T, server *server) *slowly {
	t.Helper()
	p := &slowly{}
	p.addr = relay(t, server, func(client, upstream net.Conn) {
		go p.pass(upstream, client, false)
		go p.pass(client, upstream, true)
	})
	return p
}

// relay accepts connections for a server, and has pass begin to hand on what either side
// says.
func relay(t *testing.T, server *server, pass func(client, upstream net.Conn)) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			upstream, err := net.Dial("tcp", server.addr)
			if err != nil {
				client.Close()
				continue
			}
			pass(client, upstream)
		}
	}()
	return l.Addr().String()
}

func (p *slowly) pass(to, from net.Conn, late bool) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		if late {
			time.Sleep(time.Duration(p.delay.Load()))
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// A server that answers, but later than a decision may take, is down too: a probe
// that it answers late does not count. What it was sent is charged, and nothing is
// sent again.
func TestSlow(t *testing.T) {
	server := startRedis(t)
	slow := startSlowly(t, server)
	s := open(t, Config{Addrs: []string{slow.addr}, Deadline: 100 * time.Millisecond})
	take := func() error {
		_, err := s.Take(context.Background(), &quota.Take{Key: "k", Limits: []quota.Limit{vast}, Cost: 1})
		return err
	}
	eventually(t, 5*time.Second, "a decision", func() bool { return take() == nil })
	slow.delay.Store(int64(250 * time.Millisecond))
	var e *Error
	if err := take(); !errors.As(err, &e) || e.Reason != Timeout || !e.Charged() {
		t.Errorf("%v, want a time-out that may have charged", err)
	}
	eventually(t, 10*time.Second, "the store is down", func() bool { return take() != nil && s.Stats().Down })
	eventually(t, 10*time.Second, "a probe is too slow", func() bool {
		why := s.Stats().Why
		return why != nil && strings.Contains(why.Error(), "a probe took")
	})
	if !s.Stats().Down {
		t.Error("a slow probe takes the store up")
	}
	slow.delay.Store(0)
	eventually(t, 10*time.Second, "the store is up", func() bool { return take() == nil })
}
