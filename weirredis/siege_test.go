//go:build integration

package weirredis

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/weir-go/weir/quota"
)

// tell is ask of a server that may not answer, or by breaking the connection.
func (s *server) tell(t *testing.T, line string) {
	t.Helper()
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	fmt.Fprintf(c, "%s\r\n", line)
	_, _ = c.Read(make([]byte, 1<<10))
}

// What is done to a server under load ends no decision late, leaves nothing under way,
// and charges what it says it has.
func TestSiege(t *testing.T) {
	for name, tt := range map[string]struct {
		attack, end string
		many        bool // the attack comes again and again
		down        bool
	}{
		"scripts forgotten":  {attack: "SCRIPT FLUSH", many: true},
		"connections killed": {attack: "CLIENT KILL TYPE normal", many: true, down: true},
		"a replica":          {attack: "REPLICAOF 127.0.0.1 1", end: "REPLICAOF NO ONE", down: true},
		"out of memory":      {attack: "CONFIG SET maxmemory 1", end: "CONFIG SET maxmemory 0", down: true},
		"keys taken away":    {attack: "ACL SETUSER weir resetkeys", end: "ACL SETUSER weir ~weir:*", down: true},
		"a user removed":     {attack: "ACL DELUSER weir", end: "ACL SETUSER weir on >secret ~weir:* -@all " + rights, down: true},
		"a long pause":       {attack: "CLIENT PAUSE 500", down: true},
	} {
		t.Run(name, func(t *testing.T) {
			server := startRedis(t)
			server.grant(t, rights)
			before := runtime.NumGoroutine()
			s := open(t, Config{Addrs: []string{server.addr}, Username: "weir", Password: "secret", Deadline: 50 * time.Millisecond})
			const callers = 16
			l := startLoad(t, s, callers)
			l.more(t, 200, "decisions before")
			server.tell(t, tt.attack)
			for i := 0; tt.many && i < 50; i++ {
				server.tell(t, tt.attack)
			}
			if tt.down {
				eventually(t, 5*time.Second, "the store has been down", func() bool { return s.Stats().Trips > 0 })
			}
			if n := runtime.NumGoroutine() - before; n > 2*callers+60 {
				t.Errorf("%d goroutines more than before", n)
			}
			if tt.end != "" {
				server.tell(t, tt.end)
			}
			eventually(t, 10*time.Second, "the store is up", func() bool { return !s.Stats().Down })
			l.more(t, 200, "decisions after")
			l.end()
			l.answersSoon(t)
			eventually(t, 5*time.Second, "nothing is under way", func() bool { return s.Stats().InFlight == 0 })
			r := s.look(t)
			ok, perhaps, charged := l.ok.Load(), l.charged.Load(), int64(vast.Burst-r.Remaining)
			if charged < ok || charged > ok+perhaps {
				t.Errorf("the bucket lacks %d: not from %d to %d", charged, ok, ok+perhaps)
			}
		})
	}
}

// Whatever somebody has put under a key lets no more through than a full bucket does,
// and takes nothing down but that key.
func TestPlanted(t *testing.T) {
	server := startRedis(t)
	s := open(t, Config{Addrs: []string{server.addr}})
	now := float64(time.Now().UnixMicro())
	bucket := func(tokens, last float64) string {
		b := binary.LittleEndian.AppendUint64([]byte{1, 0}, math.Float64bits(tokens))
		return string(binary.LittleEndian.AppendUint64(b, math.Float64bits(last)))
	}
	nan, inf := math.NaN(), math.Inf(1)
	for i, value := range []string{
		"", "hello", bucket(nan, now), bucket(inf, now), bucket(-inf, now), bucket(5, nan), bucket(5, inf), bucket(5, -inf),
		bucket(5, 1e300), bucket(5, -1e300), bucket(1e300, now), bucket(-1e300, now), "\x02" + bucket(1, now)[1:], "\x01\x09" + bucket(1, now)[2:],
		strings.Repeat(bucket(5, now), 50),
	} {
		for j, limits := range [][]quota.Limit{
			{quota.Per(10, time.Hour)}, {quota.Per(10, time.Hour), quota.Per(20, time.Hour)}, {quota.Each(10, quota.Month, nil)},
		} {
			take := quota.Take{Key: fmt.Sprintf("%d-%d", i, j), Limits: limits, Cost: 1}
			server.set(t, keyOf("weir:", take.Key), value)
			through := 0
			for range 25 {
				r, err := s.Take(context.Background(), &take)
				var e *Error
				if err != nil && (!errors.As(err, &e) || e.Reason != Invalid) {
					t.Fatalf("%q: %v, want invalid", value, err)
				}
				if math.IsNaN(r.Remaining) || math.IsInf(r.Remaining, 0) {
					t.Errorf("%q: %+v", value, r)
				}
				if r.OK {
					through++
				}
			}
			if through > 10 {
				t.Errorf("%q, %v: %d let through", value, limits, through)
			}
		}
	}
}

// set puts a value under a key.
func (s *server) set(t *testing.T, key, value string) {
	t.Helper()
	s.ask(t, fmt.Sprintf("*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s", len(key), key, len(value), value))
}
