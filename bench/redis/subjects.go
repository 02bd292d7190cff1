package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/weirredis"
)

// subject is something that decides.
type subject struct {
	name string
	take func(ctx context.Context, key string, l load) (bool, error)
}

// patience is the deadline of decisions: with the default, 50 ms, one that is late on a
// busy machine would end the run. The peer has none.
const patience = time.Second

func newSubjects(addr string) (subjects []subject, closeAll func(), err error) {
	client := redis.NewClient(&redis.Options{Addr: addr, PoolSize: slices.Max(callers)})
	limiter := redis_rate.NewLimiter(client)
	plain, err := weirredis.New(weirredis.Config{Addrs: []string{addr}, Deadline: patience})
	if err != nil {
		return nil, nil, err
	}
	leased, err := weirredis.New(weirredis.Config{
		Addrs: []string{addr}, Deadline: patience, Prefix: "leased:", Lease: weirredis.Lease{Tokens: 100},
	})
	if err != nil {
		return nil, nil, err
	}
	closeAll = func() {
		plain.Close()
		leased.Close()
		client.Close()
	}
	return []subject{
		{"weirredis", of(plain)},
		{"redis_rate v10", func(ctx context.Context, key string, l load) (bool, error) {
			r, err := limiter.Allow(ctx, key, redis_rate.Limit{Rate: l.rate, Burst: l.burst, Period: time.Second})
			if err != nil {
				return false, err
			}
			return r.Allowed > 0, nil
		}},
		{"weirredis, leases of 100", of(leased)},
	}, closeAll, nil
}

func of(s *weirredis.Store) func(context.Context, string, load) (bool, error) {
	return func(ctx context.Context, key string, l load) (bool, error) {
		limits := [1]quota.Window{{Rate: float64(l.rate), Burst: float64(l.burst)}}
		r, err := s.Decide(ctx, &quota.Request{Key: key, Windows: limits[:], Cost: 1})
		return r.OK, err
	}
}

// startServer starts a server that keeps nothing on disk, on a free port.
func startServer(program string) (addr string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	addr = l.Addr().String()
	l.Close()
	_, port, _ := net.SplitHostPort(addr)
	cmd := exec.Command(program, "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--loglevel", "warning")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return "", nil, fmt.Errorf("%w: run scripts/parts, or name another with -server", err)
	}
	stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	for range 200 {
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			return addr, stop, nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	return "", nil, fmt.Errorf("%s does not accept connections at %s", program, addr)
}
