//go:build integration

package weirredis

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/quota"
)

// strangeKeys are keys that users may choose.
func strangeKeys() []string {
	return []string{
		"", " ", "a", "{", "}", "{}", "{a}b", "}{", "a\x00b", "a\x00c", "a\nb", "a\r\nDEL weir:{=a}\r\n", "ä", "\xff\xfe",
		"=a", "#a", "k:probe", strings.Repeat("k", 10<<10), strings.Repeat("k", 10<<10) + "l",
	}
}

// Each has a bucket of its own.
func TestStrangeKeys(t *testing.T) {
	each(t, func(t *testing.T, start func(...string) *server) {
		s := open(t, Config{Addrs: []string{start().addr}})
		for round := range 3 {
			for _, key := range strangeKeys() {
				r, err := s.Take(context.Background(), &quota.Take{Key: key, Limits: []quota.Limit{vast}, Cost: 1})
				if err != nil || r.Remaining != vast.Burst-float64(round+1) {
					t.Fatalf("%.20q, round %d: %+v, %v", key, round, r, err)
				}
			}
		}
	})
}

// What does not make sense is refused before anything is sent, and never gives a
// key without a limit.
func TestBadTakes(t *testing.T) {
	s := open(t, Config{Addrs: []string{startRedis(t).addr}})
	ok := []quota.Limit{quota.Per(10, time.Second)}
	for name, k := range map[string]quota.Take{
		"no limit":      {Cost: 1},
		"negative cost": {Limits: ok, Cost: -1},
		"rate 0":        {Limits: []quota.Limit{{Burst: 1}}, Cost: 1},
		"rate too high": {Limits: []quota.Limit{{Rate: 1e300, Burst: 1}}, Cost: 1},
		"unknown mode":  {Limits: ok, Cost: 1, Mode: 77},
	} {
		if r, err := s.Take(context.Background(), &k); err == nil || r.OK || errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	if r, err := s.Take(context.Background(), &quota.Take{Key: "k", Limits: ok, Cost: 1<<63 - 1}); err != nil || r.OK || r.Wait != quota.Never {
		t.Errorf("the largest cost: %+v, %v", r, err)
	}
	if err := s.Give(context.Background(), "k", nil, 1); err == nil {
		t.Error("a gift to no window")
	}
	if n := s.Stats().Takes; n != 1 {
		t.Errorf("%d sent, want 1", n)
	}
}

// Somebody else's value under a key is an error for that key, and for no other.
func TestForeignValue(t *testing.T) {
	server := startRedis(t)
	s := open(t, Config{Addrs: []string{server.addr}})
	server.ask(t, "SET weir:{=text} hello")
	server.ask(t, "RPUSH weir:{=list} hello")
	for range 2 * tripAfter {
		for _, key := range []string{"text", "list"} {
			_, err := s.Take(context.Background(), &quota.Take{Key: key, Limits: []quota.Limit{vast}, Cost: 1})
			var e *Error
			if !errors.As(err, &e) || e.Reason != Invalid {
				t.Errorf("%s: %v, want invalid", key, err)
			}
		}
	}
	takeOne(t, s, vast)
}

// A server that forgets its scripts is sent the script again, and no decision fails.
func TestScriptForgotten(t *testing.T) {
	server := startRedis(t)
	s := open(t, Config{Addrs: []string{server.addr}})
	for i := range 5 {
		if r := takeOne(t, s, vast); r.Remaining != vast.Burst-float64(i+1) {
			t.Errorf("%+v, want %d charged", r, i+1)
		}
		server.ask(t, "SCRIPT FLUSH")
	}
}

// A key goes when its buckets are full again, and not before: at half the rate.
func TestExpiry(t *testing.T) {
	server := startRedis(t)
	s := open(t, Config{Addrs: []string{server.addr}})
	take := func(key string, cost int64, limits ...quota.Limit) time.Duration {
		t.Helper()
		_, err := s.Take(context.Background(), &quota.Take{Key: key, Limits: limits, Cost: cost, Mode: quota.Permissive})
		if err != nil {
			t.Fatal(err)
		}
		return server.ttl(t, keyOf("weir:", key))
	}
	between := func(what string, got, low, high time.Duration) {
		t.Helper()
		if got < low || got > high {
			t.Errorf("%s: %v, want from %v to %v", what, got, low, high)
		}
	}
	slow, quick := quota.Per(10, 100*time.Second), quota.Per(100, time.Second)
	between("one token of ten", take("a", 1, slow), 19*time.Second, 20*time.Second+2*time.Millisecond)
	between("a debt of ninety", take("b", 100, slow), 1999*time.Second, 2000*time.Second+2*time.Millisecond)
	between("the slowest window counts", take("c", 1, quick, slow), 19*time.Second, 20*time.Second+2*time.Millisecond)
	between("in any order", take("h", 1, slow, quick), 19*time.Second, 20*time.Second+2*time.Millisecond)
	between("a window less", take("c", 1, quick), 18*time.Second, 20*time.Second+2*time.Millisecond)
	between("a token in 31 years", take("d", 1, vast), 555_555*time.Hour, 555_556*time.Hour)
	_, end := quota.Calendar{Period: quota.Day}.Current(time.Now())
	day := quota.Each(10, quota.Day, nil)
	between("a day", take("e", 1, day), time.Until(end)-time.Minute, time.Until(end)+time.Second)
	between("a debt of two days", take("f", 25, day), time.Until(end)+24*time.Hour, time.Until(end)+53*time.Hour)

	take("g", 1, quick) // a hundredth of a second, twice
	eventually(t, 5*time.Second, "the key is gone", func() bool { return strings.HasPrefix(server.ask(t, "EXISTS weir:{=g}"), ":0") })
}

func (s *server) ttl(t *testing.T, key string) time.Duration {
	t.Helper()
	var ms int64
	if answer := s.ask(t, "PTTL "+key); answer == "" {
		t.Fatal("no answer")
	} else if _, err := fmt.Sscanf(answer, ":%d", &ms); err != nil {
		t.Fatalf("%q: %v", answer, err)
	}
	return time.Duration(ms) * time.Millisecond
}

func writeFile(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A dry run leaves nothing behind.
func TestDryRunWritesNothing(t *testing.T) {
	server := startRedis(t)
	s := open(t, Config{Addrs: []string{server.addr}})
	for _, limits := range [][]quota.Limit{{vast}, {vast, vast}} {
		k := quota.Take{Key: "k", Limits: limits, Cost: 1, Mode: quota.DryRun}
		if r, err := s.Take(context.Background(), &k); err != nil || !r.OK {
			t.Fatalf("%+v, %v", r, err)
		}
		if n := server.ask(t, "DBSIZE"); !strings.HasPrefix(n, ":0") {
			t.Errorf("%d windows: %s keys", len(limits), n)
		}
	}
}
