//go:build integration

package weirredis

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-go/weir/quota"
)

// startCutting passes connections on to a server. Where cut is set, the answer to the
// next script is lost and its connection ends.
func startCutting(t *testing.T, server *server) (addr string, cut *atomic.Bool) {
	t.Helper()
	cut = new(atomic.Bool)
	addr = relay(t, server, func(client, upstream net.Conn) {
		var doomed atomic.Bool
		go pass(upstream, client, func(asked []byte) bool {
			if bytes.Contains(asked, []byte("EVAL")) && cut.CompareAndSwap(true, false) {
				doomed.Store(true)
			}
			return true
		})
		go pass(client, upstream, func([]byte) bool { return !doomed.Load() })
	})
	return addr, cut
}

// pass passes on what may be, and ends both connections with what may not.
func pass(to, from net.Conn, may func([]byte) bool) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil || !may(buffer[:n]) {
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// A decision whose connection breaks before the answer is there has been charged, and
// is not sent again: twice is not what was asked for.
func TestAnswerLost(t *testing.T) {
	addr, cut := startCutting(t, startRedis(t))
	s := open(t, Config{Addrs: []string{addr}, DialTimeout: patient})
	l := quota.Limit{Rate: 1e-9, Burst: 100}
	if r := takeOne(t, s, l); !r.OK || r.Remaining != 99 {
		t.Fatalf("%+v", r)
	}
	cut.Store(true)
	_, err := s.Take(context.Background(), &quota.Take{Key: "k", Limits: []quota.Limit{l}, Cost: 1})
	var e *Error
	if !errors.As(err, &e) || e.Reason != Broken || !e.Charged() {
		t.Errorf("%v, want that the connection broke, and that it may be charged", err)
	}
	eventually(t, 10*time.Second, "another connection", func() bool {
		r, err := s.Take(context.Background(), &quota.Take{Key: "k", Limits: []quota.Limit{l}, Mode: quota.DryRun})
		if err == nil && (r.Remaining < 97.5 || r.Remaining > 98.5) {
			t.Errorf("%v left, want 98: 100 less 1, and less 1 that nobody was told of", r.Remaining)
		}
		return err == nil
	})
}
