//go:build integration

package weirredis

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir/quota"
)

// Failures with a success between them are no outage, however many there are.
func TestFailuresNotInARow(t *testing.T) {
	server := startRedis(t)
	s := open(t, Config{Addrs: []string{server.addr}, Deadline: 500 * time.Millisecond, DialTimeout: 10 * time.Second})
	take := func() error {
		_, err := s.Take(context.Background(), &quota.Take{Key: "k", Limits: []quota.Limit{vast}, Cost: 1})
		return err
	}
	for range 2 {
		server.signal(t, syscall.SIGSTOP)
		for range tripAfter - 1 {
			if take() == nil {
				t.Error("a server that stands still answers")
			}
		}
		server.signal(t, syscall.SIGCONT)
		if err := take(); err != nil {
			t.Fatal(err)
		}
	}
	if st := s.Stats(); st.Trips != 0 {
		t.Errorf("%+v, want no outage", st)
	}
}
