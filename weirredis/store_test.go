//go:build integration

package weirredis

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/quota"
	"github.com/weir-go/weir/weirtest"
)

// The store does what every store does. The clock is the test's, in place of the
// server's, or else the suite would take hours.
func TestConforms(t *testing.T) {
	each(t, func(t *testing.T, start func(...string) *server) {
		addr := start().addr
		var n atomic.Int64
		weirtest.TestStore(t, func(t *testing.T) (quota.Store, weirtest.Clock) {
			var now atomic.Int64
			now.Store(1e12)
			s := open(t, Config{
				Addrs: []string{addr}, Prefix: fmt.Sprintf("test%d:", n.Add(1)),
				Now: func() time.Time { return time.UnixMicro(now.Load()) },
			})
			s.clock = now.Load
			return s, weirtest.Clock{
				Advance: func(d time.Duration) { now.Add(d.Microseconds()) },
				Back:    func(d time.Duration) { now.Add(-d.Microseconds()) },
			}
		})
	})
}

// twin is a store on a server and one in memory, with one clock for both.
type twin struct {
	redis  *Store
	memory *quota.Memory
	now    time.Duration // since 1970
}

func newTwin(t *testing.T, addr string) *twin {
	t.Helper()
	w := &twin{now: 1000 * time.Hour}
	w.redis = open(t, Config{Addrs: []string{addr}, Now: func() time.Time { return time.Unix(0, int64(w.now)) }})
	w.redis.clock = func() int64 { return w.now.Microseconds() }
	var err error
	if w.memory, err = quota.NewMemory(quota.MemoryConfig{Now: func() time.Duration { return w.now }}); err != nil {
		t.Fatal(err)
	}
	return w
}

// take asks both, and fails if they differ by more than a rounding error.
func (w *twin) take(t *testing.T, k *quota.Request) quota.Decision {
	t.Helper()
	got, err := w.redis.Decide(context.Background(), k)
	if err != nil {
		t.Fatalf("%+v: %v", k, err)
	}
	want, err := w.memory.Decide(context.Background(), k)
	if err != nil {
		t.Fatal(err)
	}
	if !alike(got, want, k.Windows) {
		t.Fatalf("at %v %+v:\nredis  %+v\nmemory %+v", w.now, k, got, want)
	}
	return got
}

// alike allows for what Memory leaves out of Remaining: what came back in the last
// millisecond.
func alike(a, b quota.Decision, limits []quota.Window) bool {
	if a.OK != b.OK || a.Window != b.Window || (a.Wait-b.Wait).Abs() > time.Microsecond {
		return false
	}
	close := 1e-9*max(1, math.Abs(b.Remaining)) + limits[b.Window].Rate/1000
	return math.Abs(a.Remaining-b.Remaining) <= close
}

// TestDecidesAsMemory plays the same takes, gifts, changes of limits and steps of
// the clock on both stores.
func TestDecidesAsMemory(t *testing.T) {
	each(t, func(t *testing.T, start func(...string) *server) { playTwins(t, newTwin(t, start().addr)) })
}

func playTwins(t *testing.T, w *twin) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		all := someLimits(r)
		limits := all
		key := fmt.Sprintf("seed %d", seed)
		for range 100 {
			switch r.IntN(12) {
			case 0:
				// A store need not write down when it refused or made a dry run. So that
				// both know between which times the clock steps back, both are charged.
				charge := &quota.Request{Key: key, Windows: limits, Cost: 1, Mode: quota.Permissive}
				w.take(t, charge)
				w.now -= time.Duration(r.Int64N(1e6)) * time.Microsecond
				w.take(t, charge)
			case 1:
				w.now += time.Duration(r.Int64N(1e11)) * time.Microsecond
			case 2, 3, 4:
				w.now += time.Duration(r.Int64N(100)) * time.Microsecond
			default:
				w.now += time.Duration(r.Int64N(2e6)) * time.Microsecond
			}
			if r.IntN(20) == 0 {
				// Charged, for the same reason: the new rates hold from here.
				w.take(t, &quota.Request{Key: key, Windows: limits, Cost: 1, Mode: quota.Permissive})
				limits = changed(r, all)
			}
			if r.IntN(10) == 0 {
				w.give(t, key, limits, (r.Float64()-0.5)*100)
			}
			k := someTake(r, key, limits)
			if res := w.take(t, &k); !res.OK && res.Wait < quota.Never && k.Mode == quota.Strict {
				w.waitOut(t, k, res.Wait)
			}
		}
	}
}

func someLimits(r *rand.Rand) []quota.Window {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		berlin = nil
	}
	all := []quota.Window{
		quota.Per(10, time.Second),
		quota.Per(1000, time.Hour),
		quota.Samples(5, 10, 2*time.Second),
		{Rate: 0.015, Burst: 30},
		{Rate: 1e6, Burst: 1e7},
		{Rate: 1e5, Burst: 50}, // so that waits are shorter than a millisecond
		quota.PerCalendar(100, quota.Hour, nil),
		quota.PerCalendar(1000, quota.Day, berlin),
		quota.PerCalendar(50, quota.Week, nil),
		quota.PerCalendar(500, quota.Month, berlin),
	}
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:1+r.IntN(3)]
}

// changed returns some of the windows from the first on, with other rates and bursts.
func changed(r *rand.Rand, all []quota.Window) []quota.Window {
	limits := slices.Clone(all[:1+r.IntN(len(all))])
	for i := range limits {
		limits[i].Rate *= math.Exp(r.NormFloat64())
		limits[i].Burst *= math.Exp(r.NormFloat64())
	}
	return limits
}

func someTake(r *rand.Rand, key string, limits []quota.Window) quota.Request {
	k := quota.Request{
		Key: key, Windows: limits, Cost: r.Int64N(40), Debt: r.IntN(2) == 0,
		Mode: quota.Mode(r.IntN(4)), MaxWait: time.Duration(r.Int64N(int64(time.Minute))),
	}
	if r.IntN(3) == 0 {
		k.MaxWait = 0
	}
	return k
}

// A reservation reaches as many periods ahead as it may wait.
func TestReservePeriodsAhead(t *testing.T) {
	w := newTwin(t, startRedis(t).addr)
	limits := []quota.Window{quota.PerCalendar(10, quota.Hour, nil), quota.Per(1000, time.Second)}
	w.take(t, &quota.Request{Key: "k", Windows: limits, Cost: 35, Debt: true})
	reserve := quota.Request{Key: "k", Windows: limits, Cost: 1, Debt: true, Mode: quota.Reserve, MaxWait: 2 * time.Hour}
	if r := w.take(t, &reserve); r.OK || r.Wait != 3*time.Hour {
		t.Errorf("%+v, want a refusal for 3h", r)
	}
	reserve.MaxWait = 3 * time.Hour
	if r := w.take(t, &reserve); !r.OK || r.Wait != 3*time.Hour {
		t.Errorf("%+v, want a place in 3h", r)
	}
}

// Where a token is as small as a rounding error, what is larger than the burst is
// refused all the same.
func TestLargerThanBurst(t *testing.T) {
	w := newTwin(t, startRedis(t).addr)
	for i, limits := range [][]quota.Window{{{Rate: 1, Burst: 1e15}}, {{Rate: 1, Burst: 1e15}, quota.PerCalendar(1e15, quota.Day, nil)}} {
		k := quota.Request{Key: fmt.Sprint(i), Windows: limits, Cost: 1e15 + 500}
		if r := w.take(t, &k); r.OK || r.Wait != quota.Never {
			t.Errorf("%+v, want it refused for ever", r)
		}
		k.Cost = 1e15
		if r := w.take(t, &k); !r.OK {
			t.Errorf("%+v, want it let through", r)
		}
	}
}

func (w *twin) give(t *testing.T, key string, limits []quota.Window, tokens float64) {
	t.Helper()
	for _, s := range []quota.Store{w.redis, w.memory} {
		if err := s.Refund(context.Background(), key, limits, tokens); err != nil {
			t.Fatal(err)
		}
	}
}

// waitOut checks that the wait is what it says: the same is refused a millisecond
// before, and let through after.
func (w *twin) waitOut(t *testing.T, k quota.Request, wait time.Duration) {
	t.Helper()
	k.Mode = quota.DryRun
	w.now += wait - time.Millisecond
	if r := w.take(t, &k); r.OK && wait > time.Millisecond {
		t.Fatalf("%+v after %v less a millisecond: %+v", k, wait, r)
	}
	w.now += time.Millisecond
	if r := w.take(t, &k); !r.OK {
		t.Fatalf("%+v after %v: %+v", k, wait, r)
	}
}

// Failures with a success between them are no outage, however many there are.
func TestFailuresNotInARow(t *testing.T) {
	server := startRedis(t)
	s := open(t, Config{Addrs: []string{server.addr}, DialTimeout: 10 * time.Second})
	take := func() error {
		_, err := s.Decide(context.Background(), &quota.Request{Key: "k", Windows: []quota.Window{vast}, Cost: 1})
		return err
	}
	long := s.cfg.Deadline
	for range 2 {
		server.signal(t, syscall.SIGSTOP)
		s.cfg.Deadline = 200 * time.Millisecond // for what fails alone: what succeeds may be late
		for range tripAfter - 1 {
			if take() == nil {
				t.Error("a server that stands still answers")
			}
		}
		s.cfg.Deadline = long
		server.signal(t, syscall.SIGCONT)
		if err := take(); err != nil {
			t.Fatal(err)
		}
	}
	if st := s.Stats(); st.Trips != 0 {
		t.Errorf("%+v, want no outage", st)
	}
}

func newGate(t *testing.T, s *Store, onError quota.OnStoreError) *quota.Quota {
	t.Helper()
	gate, err := quota.New(quota.Config{
		Name: "api", Store: s, OnStoreError: onError,
		Rules: []quota.Rule{{User: quota.Every, Windows: []quota.Window{quota.Per(10, time.Hour), quota.Per(100, 24*time.Hour)}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { gate.Close() })
	return gate
}

func admit(t *testing.T, gate *quota.Quota, n int) (admitted []weir.Permit, last *weir.Rejection) {
	t.Helper()
	for range n {
		p, err := gate.Admit(context.Background(), weir.Work{User: "alice"})
		if err == nil {
			admitted = append(admitted, p)
		} else if !errors.As(err, &last) {
			t.Fatal(err)
		}
	}
	return admitted, last
}

// Gates of the same name in several processes share their buckets, and what is given
// back in one can be used in another.
func TestGatesShare(t *testing.T) {
	addr := startRedis(t).addr
	a := newGate(t, open(t, Config{Addrs: []string{addr}}), quota.Closed)
	b := newGate(t, open(t, Config{Addrs: []string{addr}}), quota.Closed)
	first, _ := admit(t, a, 6)
	second, refused := admit(t, b, 6)
	if len(first)+len(second) != 10 || refused == nil || refused.Reason != weir.ReasonQuota {
		t.Fatalf("%d and %d let through, want 10 in all; %v", len(first), len(second), refused)
	}
	first[0].Cancel()
	for i := range first[1:] {
		first[1+i].Done(weir.OK)
	}
	if again, _ := admit(t, b, 2); len(again) != 1 {
		t.Errorf("%d let through after one was given back, want 1", len(again))
	}
}

// Without the server, a gate does as it was told.
func TestGateWithoutServer(t *testing.T) {
	server := startRedis(t)
	for _, c := range []struct {
		onError quota.OnStoreError
		want    int
	}{{quota.Local, 10}, {quota.Open, 30}, {quota.Closed, 0}} {
		s := open(t, Config{Addrs: []string{server.addr}, Prefix: "p:"})
		gate := newGate(t, s, c.onError)
		server.kill(t)
		through, refused := admit(t, gate, 30)
		if len(through) != c.want {
			t.Errorf("%v: %d let through without a server, want %d", c.onError, len(through), c.want)
		}
		if c.onError == quota.Closed && (refused == nil || refused.Reason != weir.ReasonStore || !errors.Is(refused, ErrUnavailable)) {
			t.Errorf("refused with %v, want why the store cannot tell", refused)
		}
		if n := gate.Faults().StoreErrors; n != 30 {
			t.Errorf("%v: %d errors of the store are told of, want 30", c.onError, n)
		}
		server.start(t)
		eventually(t, "the store is up", func() bool { return !s.Stats().Down })
		if through, _ := admit(t, gate, 12); len(through) != 10 {
			t.Errorf("%v: %d let through by the server, want 10", c.onError, len(through))
		}
		server.ask(t, "FLUSHALL")
	}
}

// A server that answers late opens no gate that is open without it: whoever keeps the
// process busy could make its answers late. One that says nothing for a second does.
func TestOpenGateWithLateServer(t *testing.T) {
	server := startRedis(t)
	slow := startSlowly(t, server)
	s := open(t, Config{Addrs: []string{slow.addr}, Deadline: 50 * time.Millisecond})
	gate := newGate(t, s, quota.Open)
	eventually(t, "an answer in time", func() bool {
		_, err := s.Decide(t.Context(), &quota.Request{Key: "other", Windows: []quota.Window{vast}, Cost: 1})
		return err == nil
	})
	slow.delay.Store(int64(100 * time.Millisecond))
	for tries := 0; ; tries++ { // a machine that stands still for a second is as a server that does
		begin := time.Now()
		through, refused := admit(t, gate, 30)
		if len(through) == 10 && refused != nil {
			break
		}
		if time.Since(begin) < silence || tries == 20 {
			t.Errorf("%d let through by a server that is late, want 10 by buckets of the process; %v", len(through), refused)
			break
		}
		gate = newGate(t, s, quota.Open) // with full buckets of its own
	}
	server.signal(t, syscall.SIGSTOP)
	defer server.signal(t, syscall.SIGCONT)
	eventually(t, "the gate opens", func() bool {
		through, _ := admit(t, gate, 5)
		return len(through) == 5
	})
}

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
				r, err := s.Decide(context.Background(), &quota.Request{Key: key, Windows: []quota.Window{vast}, Cost: 1})
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
	ok := []quota.Window{quota.Per(10, time.Second)}
	for name, k := range map[string]quota.Request{
		"no limit":      {Cost: 1},
		"negative cost": {Windows: ok, Cost: -1},
		"rate 0":        {Windows: []quota.Window{{Burst: 1}}, Cost: 1},
		"rate too high": {Windows: []quota.Window{{Rate: 1e300, Burst: 1}}, Cost: 1},
		"unknown mode":  {Windows: ok, Cost: 1, Mode: 77},
	} {
		if r, err := s.Decide(context.Background(), &k); err == nil || r.OK || errors.Is(err, ErrUnavailable) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	if r, err := s.Decide(context.Background(), &quota.Request{Key: "k", Windows: ok, Cost: 1<<63 - 1}); err != nil || r.OK || r.Wait != quota.Never {
		t.Errorf("the largest cost: %+v, %v", r, err)
	}
	if err := s.Refund(context.Background(), "k", nil, 1); err == nil {
		t.Error("a gift to no window")
	}
	if n := s.Stats().Decisions; n != 1 {
		t.Errorf("%d sent, want 1", n)
	}
}

// Somebody else's value under a key is an error for that key, and for no other. It is told once a minute, so that somebody deletes it.
func TestForeignValue(t *testing.T) {
	server := startRedis(t)
	now := time.Now()
	told := map[string]int{}
	s := open(t, Config{Addrs: []string{server.addr}, Now: func() time.Time { return now }, OnForeign: func(err *Error) { told[err.Key]++ }})
	server.ask(t, "SET weir:{=text} hello")
	server.ask(t, "RPUSH weir:{=list} hello")
	server.set(t, "weir:{=weird}", "\x07"+strings.Repeat("x", 17))
	ask := func(key string) {
		t.Helper()
		_, err := s.Decide(context.Background(), &quota.Request{Key: key, Windows: []quota.Window{vast}, Cost: 1})
		var e *Error
		if !errors.As(err, &e) || e.Reason != Invalid || e.Key != "weir:{="+key+"}" || strings.Contains(err.Error(), e.Key) {
			t.Errorf("%s: %v, want invalid", key, err)
		}
	}
	for minute := range 3 {
		for range 2 * tripAfter {
			for _, key := range []string{"text", "list", "weird"} {
				if ask(key); told["weir:{="+key+"}"] != minute+1 {
					t.Errorf("%s: told %d times in minute %d", key, told["weir:{="+key+"}"], minute+1)
				}
			}
		}
		now = now.Add(time.Minute)
	}
	takeOne(t, s, vast)
	clear(told)
	for i := range 2 * mostTold {
		key := fmt.Sprint(i)
		server.ask(t, "SET weir:{="+key+"} hello")
		ask(key)
	}
	if len(told) != mostTold {
		t.Errorf("%d keys are told in a minute, want %d", len(told), mostTold)
	}
}

// A server that forgets its scripts is sent the script again, and no decision fails.
func TestScriptForgotten(t *testing.T) {
	server, many := startRedis(t), manyRequests()
	s := open(t, Config{Addrs: []string{server.addr}})
	for i := range 5 {
		if r := takeOne(t, s, vast); r.Remaining != vast.Burst-float64(i+1) {
			t.Errorf("%+v, want %d charged", r, i+1)
		}
		server.ask(t, "SCRIPT FLUSH")
		decisions, errs := s.DecideAll(t.Context(), many)
		for j, err := range errs {
			if err != nil || decisions[j].Remaining != vast.Burst-float64(i+1) {
				t.Errorf("request %d: %+v, %v, want %d charged", j, decisions[j], err, i+1)
			}
		}
		server.ask(t, "SCRIPT FLUSH")
	}
}

// Several requests at once need as many places. Where there are fewer in all, each goes by itself.
func TestBatchNeedsPlaces(t *testing.T) {
	server := startRedis(t)
	many := manyRequests()
	for places, full := range map[int]bool{1: true, len(many): false} {
		s := open(t, Config{Addrs: []string{server.addr}, MaxInFlight: places})
		_, errs := s.DecideAll(t.Context(), many)
		decided := 0
		for _, err := range errs {
			var e *Error
			if err == nil {
				decided++
			} else if !errors.As(err, &e) || e.Reason != Full {
				t.Error(err)
			}
		}
		if decided == 0 || !full && decided < len(many) {
			t.Errorf("%d of %d decided with %d places", decided, len(many), places)
		}
		eventually(t, "every place is free", func() bool { return s.Stats().InFlight == 0 })
	}
}

// Several requests at once end with their context, and with the deadline. Their places are kept until
// the server has answered.
func TestBatchIsLate(t *testing.T) {
	server := startRedis(t)
	many := manyRequests()
	s := open(t, Config{Addrs: []string{server.addr}})
	takeOne(t, s, vast)
	server.signal(t, syscall.SIGSTOP)
	s.cfg.Deadline = 300 * time.Millisecond
	if _, errs := s.DecideAll(t.Context(), many); !allTimeouts(errs) {
		t.Errorf("after the deadline: %v", errs)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, errs := s.DecideAll(ctx, many); !allTimeouts(errs) {
		t.Errorf("after the end of the context: %v", errs)
	}
	server.signal(t, syscall.SIGCONT)
	eventually(t, "every place is free", func() bool { return s.Stats().InFlight == 0 })
	eventually(t, "decisions", func() bool {
		_, errs := s.DecideAll(t.Context(), many)
		return !slices.ContainsFunc(errs, func(err error) bool { return err != nil })
	})
}

// allTimeouts reports whether every request has missed its time, or was not sent since the server is
// given up by then.
func allTimeouts(errs []error) bool {
	return !slices.ContainsFunc(errs, func(err error) bool {
		var e *Error
		return !errors.As(err, &e) || e.Reason != Timeout && e.Reason != Down && e.Reason != Broken && e.Reason != Canceled
	})
}

// manyRequests are requests about six keys.
func manyRequests() (many []*quota.Request) {
	for i := range 6 {
		many = append(many, &quota.Request{Key: fmt.Sprint("many", i), Windows: []quota.Window{vast}, Cost: 1})
	}
	return many
}

// A key goes when its buckets are full again, and not before: at half the rate.
func TestExpiry(t *testing.T) {
	server := startRedis(t)
	s := open(t, Config{Addrs: []string{server.addr}})
	begin := time.Now()
	take := func(key string, cost int64, limits ...quota.Window) time.Duration {
		t.Helper()
		_, err := s.Decide(context.Background(), &quota.Request{Key: key, Windows: limits, Cost: cost, Mode: quota.Permissive})
		if err != nil {
			t.Fatal(err)
		}
		return server.ttl(t, keyOf("weir:", key))
	}
	between := func(what string, got, low, high time.Duration) {
		t.Helper()
		low -= 2 * time.Since(begin) // a bucket fills meanwhile, and its key goes by half the rate
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
	ages := quota.Window{Rate: quota.MinRate, Burst: quota.MaxTokens} // longer than a server can say
	for key, windows := range map[string][]quota.Window{"i": {ages}, "j": {ages, ages}} {
		if left := take(key, 1e14, windows...); left >= 0 {
			t.Errorf("%v: the key goes after %v, want never", windows, left)
		}
	}
	day := quota.PerCalendar(10, quota.Day, nil)
	untilNext := func() time.Duration {
		_, end := quota.Calendar{Period: quota.Day}.Current(time.Now())
		return time.Until(end)
	}
	rest := untilNext()
	today, debt := take("e", 1, day), take("f", 25, day)
	if untilNext() < rest { // else it was midnight meanwhile
		between("a day", today, rest-time.Minute, rest+time.Second)
		between("a debt of two days", debt, rest+24*time.Hour, rest+53*time.Hour)
	}

	take("g", 1, quick) // a hundredth of a second, twice
	eventually(t, "the key is gone", func() bool { return strings.HasPrefix(server.ask(t, "EXISTS weir:{=g}"), ":0") })
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
	for _, limits := range [][]quota.Window{{vast}, {vast, vast}} {
		k := quota.Request{Key: "k", Windows: limits, Cost: 1, Mode: quota.DryRun}
		if r, err := s.Decide(context.Background(), &k); err != nil || !r.OK {
			t.Fatalf("%+v, %v", r, err)
		}
		if n := server.ask(t, "DBSIZE"); !strings.HasPrefix(n, ":0") {
			t.Errorf("%d windows: %s keys", len(limits), n)
		}
	}
}
