package keyed

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
)

func fixed(n int64) func(string) (map[string]limit.Config, error) {
	return Each(func(string) (limit.Config, error) { return limit.Config{Limit: n}, nil })
}

func newLimiters(t *testing.T, cfg LimitersConfig) *Limiters {
	t.Helper()
	cfg.Name = "l"
	l, err := NewLimiters(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

func admit(t *testing.T, g weir.TryAdmitter, w weir.Work) weir.Permit {
	t.Helper()
	p, err := g.TryAdmit(w)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func turnedAway(t *testing.T, g weir.TryAdmitter, w weir.Work, want weir.Reason, rule string) {
	t.Helper()
	_, err := g.TryAdmit(w)
	if r := weir.AsRejection(err); r == nil || r.Reason != want || r.Rule != rule {
		t.Fatalf("%v, want a refusal for %v by rule %q", err, want, rule)
	}
}

func TestLimitersAreApart(t *testing.T) {
	now := time.Duration(0)
	l := newLimiters(t, LimitersConfig{New: fixed(1), MaxKeys: 2, Now: func() time.Duration { return now }})
	a := admit(t, l, tenant("a"))
	turnedAway(t, l, tenant("a"), weir.ReasonLimit, "")
	b := admit(t, l, tenant("b"))
	turnedAway(t, l, tenant("c"), weir.ReasonLimit, "keys")
	a.Done(weir.OK)
	turnedAway(t, l, tenant("c"), weir.ReasonLimit, "keys") // looked a moment ago
	now += sweepEvery
	admit(t, l, tenant("c"))
	b.Done(weir.OK)
	u := l.Usage(5)
	if u.Keys != 2 || u.Busy != 1 || u.Evicted != 1 || u.InFlight != 1 || u.Limit != 2 || u.Admitted != 3 ||
		u.Rejected[weir.ReasonLimit] != 3 || len(u.Top) != 2 || u.Top[0].Key != "c" {
		t.Errorf("%+v", u)
	}
	if _, ok := l.Limiter("a", ""); ok {
		t.Error("a is still known")
	}
}

// Each key has a controller of its own, and what it learns stays with the key.
func TestLimitersLearnApart(t *testing.T) {
	now := time.Duration(0)
	l := newLimiters(t, LimitersConfig{Now: func() time.Duration { return now }, New: Each(func(key string) (limit.Config, error) {
		c, err := control.NewAIMD(control.AIMDConfig{Threshold: 100 * ms})
		return limit.Config{Controller: c}, err
	})})
	for range 100 {
		slow, fast := admit(t, l, tenant("slow")), admit(t, l, tenant("fast"))
		now += 10 * ms
		fast.Done(weir.OK)
		now += 200 * ms
		slow.Done(weir.Overload)
		if at, ok := l.Next(); ok && at <= now {
			l.Step()
		}
	}
	slow, _ := l.Limiter("slow", "")
	fast, _ := l.Limiter("fast", "")
	if slow.Limit >= fast.Limit {
		t.Errorf("limits %d and %d", slow.Limit, fast.Limit)
	}
}

// A pool for reads and one for writes, for each database, sized together.
func TestReadsAndWrites(t *testing.T) {
	now := time.Duration(0)
	l := newLimiters(t, LimitersConfig{
		Part: func(w weir.Work) string { return w.Op },
		New:  ReadWrite(control.ProbeConfig{Initial: 64}, limit.Config{}),
		Now:  func() time.Duration { return now },
	})
	sizes := func(db string) (read, write int64) {
		r, _ := l.Limiter(db, Reads)
		w, _ := l.Limiter(db, Writes)
		return r.Limit, w.Limit
	}
	step := func(to time.Duration) {
		for {
			at, ok := l.Next()
			if !ok || at > to {
				break
			}
			now = at
			l.Step()
		}
		now = to
	}
	admit(t, l, weir.Work{Tenant: "idle", Op: Writes})
	if r, w := sizes("idle"); r != 32 || w != 32 {
		t.Fatalf("%d and %d", r, w)
	}
	for range 32 { // all reads in use: both pools go up by a tenth
		admit(t, l, weir.Work{Tenant: "busy", Op: Reads})
	}
	step(220 * ms)
	if r, w := sizes("busy"); r != 35 || w != 35 {
		t.Errorf("probing up: %d and %d", r, w)
	}
	if r, w := sizes("idle"); r != 32 || w != 32 {
		t.Errorf("the other database: %d and %d", r, w)
	}
	turnedAway(t, l, weir.Work{Tenant: "busy", Op: "drop"}, weir.ReasonBlocked, "part")
	u := l.Usage(1)
	if u.Keys != 2 || u.Top[0].Key != "busy" || u.Top[0].InFlight != 32 {
		t.Errorf("%+v", u)
	}
}

func TestLimitersReconfigure(t *testing.T) {
	l := newLimiters(t, LimitersConfig{New: fixed(1)})
	p := admit(t, l, tenant("a"))
	cfg := LimitersConfig{New: func(key string) (map[string]limit.Config, error) {
		return map[string]limit.Config{"": {Limit: 2}, "more": {Limit: 5}}, nil
	}}
	if err := l.Reconfigure(cfg); err != nil {
		t.Fatal(err)
	}
	admit(t, l, tenant("a"))
	turnedAway(t, l, tenant("a"), weir.ReasonLimit, "")
	if s, ok := l.Limiter("a", "more"); !ok || s.Limit != 5 {
		t.Errorf("%+v", s)
	}
	cfg.New = func(string) (map[string]limit.Config, error) {
		return map[string]limit.Config{"": {Limit: -1}, "more": {Limit: 6}}, nil
	}
	err := l.Reconfigure(cfg)
	if err == nil || !strings.HasPrefix(err.Error(), `keyed: New("a"), part "": limit: gate "l": Limit -1`) {
		t.Errorf("%v", err)
	}
	if s, _ := l.Limiter("a", ""); s.Limit != 2 || s.InFlight != 2 {
		t.Errorf("%+v", s)
	}
	if s, _ := l.Limiter("a", "more"); s.Limit != 6 {
		t.Errorf("%+v", s)
	}
	turnedAway(t, l, tenant("b"), weir.ReasonBlocked, "new")
	p.Done(weir.OK)
	if err := l.Reconfigure(LimitersConfig{New: fixed(1), MaxKeys: 3}); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"b", "c"} {
		admit(t, l, tenant(key)).Done(weir.OK)
	}
	if err := l.Reconfigure(LimitersConfig{New: fixed(1), MaxKeys: 2}); err != nil {
		t.Fatal(err)
	}
	admit(t, l, tenant("d"))
	if key := l.KeyOf(weir.Work{Tenant: "x"}); key != "x" {
		t.Errorf("the key is %q", key)
	}
	if u, ok := l.Key("a"); !ok || u.Key != "a" || u.InFlight != 1 || u.Limit == 0 {
		t.Errorf("%+v, %v", u, ok)
	}
	if u, ok := l.Key("gone"); ok || u != (KeyUse{Key: "gone"}) {
		t.Errorf("%+v, %v", u, ok)
	}
	if u := l.Usage(0); u.Keys != 2 || u.MaxKeys != 2 || u.Evicted != 2 || u.Busy != 2 { // a still holds one
		t.Errorf("%+v", u)
	}
	l.Close()
	turnedAway(t, l, tenant("a"), weir.ReasonDraining, "")
	if err := l.Reconfigure(LimitersConfig{New: fixed(1)}); !errors.Is(err, limit.ErrClosed) {
		t.Errorf("%v", err)
	}
	if err := l.Reconfigure(LimitersConfig{MaxKeys: -1}); err == nil || !strings.Contains(err.Error(), "New: must be set") ||
		!strings.Contains(err.Error(), "MaxKeys -1") {
		t.Errorf("%v", err)
	}
}

// What a limiter can be told, those of a key can: here that a cost above its limit
// is refused, for reads and writes, and changed while they run.
func TestLimitersRefuseOversize(t *testing.T) {
	of := func(refuse bool) LimitersConfig {
		return LimitersConfig{Part: func(w weir.Work) string { return w.Op },
			New: ReadWrite(control.ProbeConfig{Initial: 64}, limit.Config{RefuseOversize: refuse})}
	}
	l := newLimiters(t, of(true))
	for _, part := range []string{Reads, Writes} {
		turnedAway(t, l, weir.Work{Tenant: "a", Op: part, Cost: 33}, weir.ReasonTooLarge, "")
	}
	if err := l.Reconfigure(of(false)); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{Reads, Writes} {
		admit(t, l, weir.Work{Tenant: "a", Op: part, Cost: 33}).Done(weir.OK)
	}
}

func TestLimitersWaitByClass(t *testing.T) {
	l := newLimiters(t, LimitersConfig{New: fixed(1)})
	for i, key := range []string{"a", "b", "b"} {
		if i < 2 {
			admit(t, l, tenant(key))
		}
		for _, p := range []weir.Priority{weir.Background, weir.High} {
			if _, _, err := l.Arrive(weir.Work{Tenant: key, Priority: p}, func(weir.Permit, error) {}); err != weir.ErrWaiting {
				t.Fatal(err)
			}
		}
	}
	by := l.Snapshot().WaitingByClass
	if len(by) != 2 || by[weir.Background] != 3 || by[weir.High] != 3 {
		t.Errorf("%v", by)
	}
}

func TestLimitersShareTheRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := weir.Must(NewLimiters(LimitersConfig{New: fixed(1), MaxWaiting: 2}))
		defer l.Close()
		p, q := admit(t, l, tenant("a")), admit(t, l, tenant("b"))
		var wg sync.WaitGroup
		wait := func(key string) {
			wg.Go(func() {
				p, err := l.Admit(t.Context(), tenant(key))
				if err != nil {
					t.Error(err)
				}
				p.Done(weir.OK)
			})
			synctest.Wait()
		}
		wait("a")
		_, waiter, err := l.Arrive(tenant("b"), nil)
		if err != weir.ErrWaiting {
			t.Fatal(err)
		}
		if _, err := l.Admit(t.Context(), tenant("b")); weir.AsRejection(err).Reason != weir.ReasonLimit {
			t.Error(err)
		}
		if !waiter.Cancel() || waiter.Cancel() {
			t.Error("cancelled once")
		}
		wait("b")
		p.Done(weir.OK)
		q.Done(weir.OK)
		wg.Wait()
		if n := l.entering.Load(); n != 0 {
			t.Errorf("%d places taken by nobody", n)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := l.Drain(ctx); err != nil {
			t.Error(err)
		}
	})
}

// Keys are evicted and come back all the time, and no key ever has more at work
// than its limit.
func TestLimitersStress(t *testing.T) {
	const goroutines, most, spread = 8, 2, 20
	var clock atomic.Int64
	tick := func() time.Duration { return time.Duration(clock.Add(int64(sweepEvery))) }
	l := weir.Must(NewLimiters(LimitersConfig{New: fixed(most), MaxKeys: 10, Now: tick}))
	defer l.Close()
	var working [spread]atomic.Int64
	var wg sync.WaitGroup
	for n := range goroutines {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(n), 1))
			for range 400 {
				key := rng.IntN(spread)
				w := weir.Work{Tenant: fmt.Sprint("k", key), MaxWait: time.Duration(1+rng.IntN(200)) * time.Microsecond}
				p, err := l.Admit(context.Background(), w)
				if err != nil {
					continue
				}
				if n := working[key].Add(1); n > most {
					t.Errorf("%d at work for key %d", n, key)
				}
				working[key].Add(-1)
				p.Done(weir.OK)
			}
		})
	}
	wg.Go(func() {
		for range 20 {
			if err := l.Reconfigure(LimitersConfig{New: fixed(most), MaxKeys: 10}); err != nil {
				t.Error(err)
			}
			l.Usage(2)
		}
	})
	wg.Wait()
	if u := l.Usage(0); u.InFlight != 0 || u.Waiting != 0 || u.Keys > 10 || u.Evicted == 0 || u.Admitted == 0 {
		t.Errorf("%+v", u)
	}
}
