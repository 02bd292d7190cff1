//go:build integration

package weirredis

import (
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir/quota"
)

// soon asks alone until that has a connection of its own.
func soon(t *testing.T, s *Store) (asked int) {
	t.Helper()
	eventually(t, "a connection for who is alone", func() bool {
		takeOne(t, s, vast)
		asked++
		takeOne(t, s, vast)
		asked++
		return s.hasSolo()
	})
	return asked
}

func (s *Store) hasSolo() bool {
	s.solos.mu.Lock()
	defer s.solos.mu.Unlock()
	return s.solos.conn != nil && !s.solos.taken
}

// Whoever asks alone has a connection of its own, with the same user, database and TLS,
// and what it asks counts as it does elsewhere.
func TestAlone(t *testing.T) {
	id := certificate(t)
	user, socket := startRedis(t), filepath.Join(t.TempDir(), "s")
	user.grant(t, rights+" +select")
	startRedis(t, "--unixsocket", socket)
	for what, c := range map[string]Config{
		"plain":        {Addrs: []string{startRedis(t).addr}},
		"a user, a DB": {URL: "redis://weir:secret@" + user.addr + "/3"},
		"a password":   {URL: "redis://:other@" + startRedis(t, "--requirepass", "other").addr},
		"TLS":          {URL: "rediss://" + startTLS(t, id).addr, TLS: id.trust()},
		"a socket":     {URL: "unix://" + socket},
	} {
		t.Run(what, func(t *testing.T) {
			s := open(t, c)
			asked := soon(t, s)
			for range 100 {
				takeOne(t, s, vast)
			}
			if r := takeOne(t, s, vast); r.Remaining != vast.Burst-float64(asked+101) {
				t.Errorf("%v left, want %v", r.Remaining, vast.Burst-float64(asked+101))
			}
			if !s.hasSolo() {
				t.Error("the connection has gone")
			}
		})
	}
}

// A server that stands still keeps who is alone no longer than the deadline, the caller's
// own, or its leaving; each of these is charged at most once.
func TestAloneStandsStill(t *testing.T) {
	t.Parallel() // it mostly waits
	server := startRedis(t)
	for what, tt := range map[string]struct {
		deadline time.Duration
		context  func() (context.Context, context.CancelFunc)
		want     error
	}{
		"the deadline": {300 * time.Millisecond, func() (context.Context, context.CancelFunc) { return context.WithCancel(t.Context()) }, errDeadline},
		"the caller's": {10 * time.Second, func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(t.Context(), 100*time.Millisecond)
		}, context.DeadlineExceeded},
		"it leaves": {10 * time.Second, func() (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(100*time.Millisecond, cancel)
			return ctx, cancel
		}, context.Canceled},
	} {
		t.Run(what, func(t *testing.T) {
			server.ask(t, "FLUSHALL")
			s := open(t, Config{Addrs: []string{server.addr}})
			asked := soon(t, s)
			server.signal(t, syscall.SIGSTOP)
			long := s.cfg.Deadline
			s.cfg.Deadline = tt.deadline
			ctx, cancel := tt.context()
			defer cancel()
			begin := time.Now()
			_, err := s.Decide(ctx, &quota.Request{Key: "k", Windows: []quota.Window{vast}, Cost: 1})
			took := time.Since(begin)
			s.cfg.Deadline = long
			server.signal(t, syscall.SIGCONT)
			var e *Error
			if !errors.Is(err, tt.want) || !errors.As(err, &e) || e.Reason != Timeout || !e.Charged() {
				t.Errorf("%v, want a time-out: %v", err, tt.want)
			}
			if took > 30*time.Second {
				t.Errorf("it took %v", took)
			}
			if st := s.Stats(); st.InFlight != 0 || st.Down {
				t.Errorf("%+v", st)
			}
			var r quota.Decision
			eventually(t, "a decision", func() bool {
				r, err = s.Decide(t.Context(), &quota.Request{Key: "k", Windows: []quota.Window{vast}, Mode: quota.DryRun})
				return err == nil
			})
			if charged := int(vast.Burst - r.Remaining); charged < asked || charged > asked+1 {
				t.Errorf("%d charged, want %d, or one more", charged, asked)
			}
			soon(t, s)
		})
	}
}

// What the server refuses is told as elsewhere. What it says of a key leaves the
// connection, what it says of the user does not.
func TestAloneRefused(t *testing.T) {
	server := startRedis(t)
	server.grant(t, rights)
	s := open(t, Config{Addrs: []string{server.addr}, Username: "weir", Password: "secret"})
	asked := soon(t, s)
	server.ask(t, "SCRIPT FLUSH")
	if r := takeOne(t, s, vast); r.Remaining != vast.Burst-float64(asked+1) {
		t.Errorf("%v left after the script was forgotten, want %v", r.Remaining, vast.Burst-float64(asked+1))
	}
	server.ask(t, "RPUSH weir:{=list} x")
	var e *Error
	if _, err := s.Decide(t.Context(), &quota.Request{Key: "list", Windows: []quota.Window{vast}, Cost: 1}); !errors.As(err, &e) || e.Reason != Invalid {
		t.Errorf("%v, want invalid", err)
	}
	if !s.hasSolo() {
		t.Error("the connection has gone")
	}
	server.ask(t, "ACL SETUSER weir -set")
	if _, err := s.Decide(t.Context(), &quota.Request{Key: "k", Windows: []quota.Window{vast}, Cost: 1}); !errors.As(err, &e) || e.Reason != Refused || e.Charged() {
		t.Errorf("%v, want refused", err)
	}
	server.ask(t, "ACL SETUSER weir +set")
	takeOne(t, s, vast)
	if s.hasSolo() {
		t.Error("the connection is there")
	}
	soon(t, s)
}

// After a restart of the server who is alone has a connection again, and after Close
// nothing is left.
func TestAloneServerRestarts(t *testing.T) {
	server := startRedis(t)
	before := runtime.NumGoroutine()
	s := open(t, Config{Addrs: []string{server.addr}})
	soon(t, s)
	server.kill(t)
	server.start(t)
	eventually(t, "a connection again", func() bool {
		_, err := s.Decide(t.Context(), &quota.Request{Key: "k", Windows: []quota.Window{vast}, Cost: 1})
		return err == nil && s.hasSolo()
	})
	server.signal(t, syscall.SIGSTOP)
	done := make(chan error, 1)
	go func() {
		_, err := s.Decide(context.Background(), &quota.Request{Key: "k", Windows: []quota.Window{vast}, Cost: 1})
		done <- err
	}()
	eventually(t, "it is under way", func() bool { return s.Stats().InFlight == 1 })
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	var e *Error
	if err := <-done; !errors.As(err, &e) || e.Reason != Broken {
		t.Errorf("%v, want broken by Close", err)
	}
	server.signal(t, syscall.SIGCONT)
	if err := <-closed; err != nil {
		t.Error(err)
	}
	eventually(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before })
}

// Callers who leave at any moment, also when the answer comes, leave nothing behind that
// ends another's decision.
func TestAloneLeaving(t *testing.T) {
	s := open(t, Config{Addrs: []string{startRedis(t).addr}})
	for i := range 300 {
		s.solos.mu.Lock()
		s.solos.failed = time.Time{} // do not wait before another connection
		s.solos.mu.Unlock()
		soon(t, s)
		ctx, cancel := context.WithCancel(t.Context())
		leave := time.AfterFunc(time.Duration(i)*time.Microsecond, cancel)
		if _, err := s.Decide(ctx, &quota.Request{Key: "k", Windows: []quota.Window{vast}, Cost: 1}); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("%v, want an answer or that the context is over", err)
		}
		takeOne(t, s, vast)
		leave.Stop()
		cancel()
	}
}
