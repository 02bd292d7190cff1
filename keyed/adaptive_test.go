package keyed

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
)

func fixed(n int64) func(string) (map[string]limit.Config, error) {
	return PerKey(func(string) (limit.Config, error) { return limit.Config{Limit: n}, nil })
}

func newAdaptive(t *testing.T, cfg AdaptiveConfig) *Adaptive {
	t.Helper()
	cfg.Name = "l"
	l, err := NewAdaptive(cfg)
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

func TestAdaptiveAreApart(t *testing.T) {
	now := time.Duration(0)
	l := newAdaptive(t, AdaptiveConfig{New: fixed(1), MaxKeys: 2, Now: func() time.Duration { return now }})
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
func TestAdaptiveLearnApart(t *testing.T) {
	now := time.Duration(0)
	l := newAdaptive(t, AdaptiveConfig{Now: func() time.Duration { return now }, New: PerKey(func(key string) (limit.Config, error) {
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
	l := newAdaptive(t, AdaptiveConfig{
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

func TestAdaptiveReconfigure(t *testing.T) {
	l := newAdaptive(t, AdaptiveConfig{New: fixed(1)})
	p := admit(t, l, tenant("a"))
	cfg := AdaptiveConfig{New: func(key string) (map[string]limit.Config, error) {
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
	if err == nil || !strings.HasPrefix(err.Error(), `keyed: New("a"), part "": limit: gate "l": Limit: -1`) {
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
	if err := l.Reconfigure(AdaptiveConfig{New: fixed(1), MaxKeys: 3}); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"b", "c"} {
		admit(t, l, tenant(key)).Done(weir.OK)
	}
	if err := l.Reconfigure(AdaptiveConfig{New: fixed(1), MaxKeys: 2}); err != nil {
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
	if err := l.Reconfigure(AdaptiveConfig{New: fixed(1)}); !errors.Is(err, weir.ErrClosed) {
		t.Errorf("%v", err)
	}
	if err := l.Reconfigure(AdaptiveConfig{MaxKeys: -1}); err == nil || !strings.Contains(err.Error(), "New: must be set") ||
		!strings.Contains(err.Error(), "MaxKeys: -1") {
		t.Errorf("%v", err)
	}
}

// A New that panics keeps no key: each can be evicted as before.
func TestPanicOfNew(t *testing.T) {
	l := newAdaptive(t, AdaptiveConfig{New: fixed(1), MaxKeys: 2})
	for _, key := range []string{"a", "b"} {
		admit(t, l, tenant(key)).Done(weir.OK)
	}
	func() {
		defer func() { _ = recover() }()
		err := l.Reconfigure(AdaptiveConfig{MaxKeys: 2, New: func(string) (map[string]limit.Config, error) { panic("no such key") }})
		t.Errorf("no panic: %v", err)
	}()
	if err := l.Reconfigure(AdaptiveConfig{New: fixed(1), MaxKeys: 2}); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"c", "d"} {
		admit(t, l, tenant(key)).Done(weir.OK)
	}
}

// What a limiter can be told, those of a key can: here that a cost above its limit
// is refused, for reads and writes, and changed while they run.
func TestAdaptiveRefuseOversize(t *testing.T) {
	of := func(refuse bool) AdaptiveConfig {
		return AdaptiveConfig{Part: func(w weir.Work) string { return w.Op },
			New: ReadWrite(control.ProbeConfig{Initial: 64}, limit.Config{RefuseOversize: refuse})}
	}
	l := newAdaptive(t, of(true))
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

func TestAdaptiveWaitByClass(t *testing.T) {
	l := newAdaptive(t, AdaptiveConfig{New: fixed(1)})
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

func TestAdaptiveShareTheRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := weir.Must(NewAdaptive(AdaptiveConfig{New: fixed(1), MaxWaiting: 2}))
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

// A waiter that leaves gives its place back, however many do.
func TestAdaptiveCancelGivesThePlaceBack(t *testing.T) {
	l := newAdaptive(t, AdaptiveConfig{New: fixed(1), MaxWaiting: 4})
	p := admit(t, l, tenant("a"))
	defer p.Done(weir.OK)
	for i := range 20 {
		_, waiter, err := l.Arrive(tenant("a"), func(weir.Permit, error) {})
		if err != weir.ErrWaiting {
			t.Fatalf("waiter %d: %v", i, err)
		}
		if !waiter.Cancel() {
			t.Errorf("waiter %d was not there", i)
		}
	}
	if n := l.entering.Load(); n != 0 {
		t.Errorf("%d places taken by nobody", n)
	}
}

// What no limiter refuses, the gate's own hook hears of.
func TestAdaptiveRejected(t *testing.T) {
	var heard []string
	refused := func(hook string) func(weir.Work, *weir.Rejection) {
		return func(w weir.Work, r *weir.Rejection) {
			heard = append(heard, strings.TrimSpace(fmt.Sprint(hook, " ", w.Tenant, " ", r.Reason, " ", r.Rule)))
		}
	}
	cfg := AdaptiveConfig{MaxKeys: 1, Rejected: refused("gate"), Part: func(w weir.Work) string { return w.Op },
		New: PerKey(func(key string) (limit.Config, error) {
			if key == "bad" {
				return limit.Config{}, errors.New("no such key")
			}
			return limit.Config{Limit: 1, Hooks: weir.Hooks{Rejected: refused("limiter")}}, nil
		})}
	l := newAdaptive(t, cfg)
	ask := func(tenant, op string) { _, _ = l.TryAdmit(weir.Work{Tenant: tenant, Op: op}) }
	ask("bad", "")
	ask("a", "")
	ask("a", "")
	ask("a", "part")
	ask("b", "")
	l.Close()
	ask("a", "")
	cfg.Rejected = refused("another")
	_ = l.Reconfigure(cfg) // takes the hook, though the gate is closed
	ask("c", "")
	want := []string{"gate bad blocked new", "limiter a limit", "gate a blocked part", "gate b limit keys", "gate a draining", "another c draining"}
	if !slices.Equal(heard, want) {
		t.Errorf("heard %q\nwant %q", heard, want)
	}
}

// The error of a Drain that is given up names a key that still has work.
func TestAdaptiveDrainNamesTheKey(t *testing.T) {
	l := newAdaptive(t, AdaptiveConfig{New: fixed(1)})
	admit(t, l, tenant("idle")).Done(weir.OK)
	p := admit(t, l, tenant("busy"))
	defer p.Done(weir.OK)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := l.Drain(ctx); !errors.Is(err, context.Canceled) || !strings.HasPrefix(err.Error(), `keyed: key "busy": limit: `) {
		t.Error(err)
	}
}

// Keys are evicted and come back all the time, and no key ever has more at work
// than its limit.
func TestAdaptiveStress(t *testing.T) {
	const goroutines, most, spread = 8, 2, 20
	var clock atomic.Int64
	tick := func() time.Duration { return time.Duration(clock.Add(int64(sweepEvery))) }
	l := weir.Must(NewAdaptive(AdaptiveConfig{New: fixed(most), MaxKeys: 10, Now: tick}))
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
			if err := l.Reconfigure(AdaptiveConfig{New: fixed(most), MaxKeys: 10}); err != nil {
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

// taught is a controller that knows what it was told last.
type taught struct{ limit float64 }

func (*taught) Name() string                              { return "taught" }
func (c *taught) Start() control.Decision                 { return control.Decision{Limit: int64(c.limit)} }
func (c *taught) Update(*control.Window) control.Decision { return c.Start() }
func (c *taught) Save() control.State                     { return control.State{Limit: c.limit} }
func (c *taught) Restore(s control.State)                 { c.limit = s.Limit }

// Whatever comes and goes, a key in use stays, and has in flight what it was given;
// one that returns has the limit that it left with, of as many as are remembered.
func TestComingAndGoing(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		now := time.Duration(0)
		const most, all = 3, 3*(1+remembered) - 1 // whom one goes for counts as well
		l := newAdaptive(t, AdaptiveConfig{MaxKeys: most, Now: func() time.Duration { return now },
			New: PerKey(func(string) (limit.Config, error) { return limit.Config{Controller: &taught{5}}, nil })})
		flying, limits := map[string][]weir.Permit{}, map[string]int64{}
		for range 600 {
			now += sweepEvery
			key := fmt.Sprint(rng.IntN(all))
			switch p, err := l.TryAdmit(tenant(key)); {
			case err == nil:
				flying[key] = append(flying[key], p)
			case len(flying[key]) == 0 && len(flying) < most:
				t.Fatalf("seed %d: %s: %v", seed, key, err)
			}
			if rng.IntN(3) == 0 && len(flying[key]) > 0 {
				limits[key] = int64(1 + rng.IntN(9))
				l.pools[key].parts[""].SetLimit(limits[key])
			}
			for _, other := range slices.Sorted(maps.Keys(flying)) {
				permits := flying[other]
				if rng.IntN(3) > 0 {
					continue
				}
				if permits[0].Done(weir.OK); len(permits) == 1 {
					delete(flying, other)
				} else {
					flying[other] = permits[1:]
				}
			}
			for other := range l.pools {
				s, _ := l.Limiter(other, "")
				if want := limits[other]; want > 0 && s.Limit != want || s.InFlight != int64(len(flying[other])) {
					t.Fatalf("seed %d: %s has %d of %d, want %d of %d", seed, other, s.InFlight, s.Limit, len(flying[other]), want)
				}
			}
			for other := range flying {
				if l.pools[other] == nil {
					t.Fatalf("seed %d: %s is in use and gone", seed, other)
				}
			}
		}
		l.Close()
	}
}

// asked is a controller that says when it is asked.
type asked struct {
	name  string
	order *[]string
}

func (a asked) Name() string            { return a.name }
func (a asked) Start() control.Decision { return control.Decision{Limit: 9, Next: time.Second} }
func (a asked) Update(*control.Window) control.Decision {
	*a.order = append(*a.order, a.name)
	return a.Start()
}

// On virtual time the same happens in every run: what is due at one moment is done
// by keys as they came, and by the names of their parts.
func TestAdaptiveStepInOrder(t *testing.T) {
	want := []string{"b1", "b2", "b3", "b4", "a1", "a2", "a3", "a4"}
	for range 20 {
		var now time.Duration
		var order []string
		l := newAdaptive(t, AdaptiveConfig{
			Part: func(w weir.Work) string { return w.Op },
			New: func(key string) (map[string]limit.Config, error) {
				parts := make(map[string]limit.Config)
				for _, part := range []string{"3", "1", "4", "2"} {
					parts[part] = limit.Config{Controller: asked{key + part, &order}}
				}
				return parts, nil
			},
			Now: func() time.Duration { return now },
		})
		for _, key := range []string{"b", "a"} {
			admit(t, l, weir.Work{Tenant: key, Op: "1"}).Done(weir.OK)
		}
		now = time.Second
		if l.Step(); !slices.Equal(order, want) {
			t.Fatalf("asked %q, want %q", order, want)
		}
	}
}

// learners is a gate whose keys learn their limits, on a clock that the test moves.
type learners struct {
	*Adaptive
	t   *testing.T
	now time.Duration
}

func newLearners(t *testing.T, maxKeys int) *learners {
	l := &learners{t: t}
	l.Adaptive = newAdaptive(t, AdaptiveConfig{MaxKeys: maxKeys, Now: func() time.Duration { return l.now },
		New: PerKey(func(string) (limit.Config, error) {
			c, err := control.NewAIMD(control.AIMDConfig{Threshold: 100 * ms})
			return limit.Config{Controller: c}, err
		})})
	return l
}

// limit is what a key has when it comes (back).
func (l *learners) limit(key string) int64 {
	l.t.Helper()
	l.now += sweepEvery
	admit(l.t, l, tenant(key)).Done(weir.NoSample)
	s, _ := l.Limiter(key, "")
	return s.Limit
}

// cutDown makes the limit of a key smaller than it was at first.
func (l *learners) cutDown(key string) (to int64) {
	l.t.Helper()
	first := l.limit(key)
	for range 100 {
		p := admit(l.t, l, tenant(key))
		l.now += 200 * ms
		p.Done(weir.Overload)
		l.Step()
	}
	if to = l.limit(key); to >= first {
		l.t.Fatalf("a limit of %d, %d at first", to, first)
	}
	return to
}

// A key that was cut down is still cut down when it comes back after it was
// evicted, as long as not too many others were in the meantime.
func TestEvictionForgivesNothing(t *testing.T) {
	l := newLearners(t, 1)
	first, bad := l.limit("other"), l.cutDown("bad")
	l.limit("other")
	if n := l.limit("bad"); n != bad {
		t.Errorf("came back with a limit of %d, left with %d", n, bad)
	}
	for i := range remembered + 1 {
		l.limit(fmt.Sprint("another ", i))
	}
	if n := l.limit("bad"); n != first {
		t.Errorf("a limit of %d after it was forgotten, want %d", n, first)
	}
	if n := len(l.memory.memos); n > remembered || l.memory.order.Len() != n {
		t.Errorf("%d remembered, %d in order", n, l.memory.order.Len())
	}
}

// What counts is when a key was evicted last, not when first.
func TestMemoryIsOfTheLastEviction(t *testing.T) {
	l := newLearners(t, 1)
	bad := l.cutDown("bad")
	for i := range 10 * remembered {
		l.limit(fmt.Sprint("another ", i))
		if i%remembered != 0 {
			continue
		}
		if n := l.limit("bad"); n != bad {
			t.Fatalf("a limit of %d after %d others, left with %d", n, i+1, bad)
		}
	}
}

// Who comes back before it is remembered what its controllers have learned, because
// one of them is at work, has it from them.
func TestReturnOnTheWayOut(t *testing.T) {
	l := newLearners(t, 2)
	bad := l.cutDown("bad")
	l.mu.Lock()
	p := l.pools["bad"]
	l.evict(p)
	l.mu.Unlock()
	if n := l.limit("bad"); n != bad {
		t.Errorf("came back with a limit of %d, left with %d", n, bad)
	}
	again := l.pools["bad"]
	again.parts[""].Restore(control.State{Limit: 11})
	l.mu.Lock()
	l.evict(again)
	l.mu.Unlock()
	l.remember([]*pool{again})
	l.remember([]*pool{p}) // late
	if n := l.limit("bad"); n != 11 || len(l.leaving) > 0 {
		t.Errorf("came back with a limit of %d, left with 11; %d are leaving", n, len(l.leaving))
	}
}

// broken is a controller that panics where it is asked what it has learned.
type broken struct{ control.Fixed }

func (broken) Save() control.State   { panic("broken") }
func (broken) Restore(control.State) {}

// A controller that panics while its key is evicted does so at nobody's expense.
func TestPanicOnTheWayOut(t *testing.T) {
	l := newAdaptive(t, AdaptiveConfig{MaxKeys: 1, New: PerKey(func(string) (limit.Config, error) {
		return limit.Config{Controller: broken{3}}, nil
	})})
	for _, key := range []string{"a", "b", "a"} {
		admit(t, l, tenant(key)).Done(weir.OK)
	}
	if len(l.leaving) > 0 {
		t.Errorf("%d are leaving", len(l.leaving))
	}
}

// The pool for writes has its size from the controller of the other.
func TestPairComesBack(t *testing.T) {
	var now time.Duration
	cfg := AdaptiveConfig{MaxKeys: 1, Part: func(w weir.Work) string { return w.Op }, Now: func() time.Duration { return now },
		New: ReadWrite(control.ProbeConfig{Initial: 64}, limit.Config{})}
	l := newAdaptive(t, cfg)
	sizes := func() string {
		r, _ := l.Limiter("db", Reads)
		w, _ := l.Limiter("db", Writes)
		return fmt.Sprint(r.Limit, " and ", w.Limit)
	}
	admit(t, l, weir.Work{Tenant: "db", Op: Reads}).Done(weir.OK)
	for _, limiter := range l.all() {
		limiter.Restore(control.State{Limit: 100})
	}
	now += time.Second
	l.Step()
	if got := sizes(); got != "100 and 100" {
		t.Fatal(got)
	}
	admit(t, l, weir.Work{Tenant: "another", Op: Reads}).Done(weir.OK)
	now += sweepEvery
	admit(t, l, weir.Work{Tenant: "db", Op: Reads}).Done(weir.OK)
	if got := sizes(); got != "100 and 100" {
		t.Errorf("back with %s", got)
	}
	for range 8 { // the order of a map is not always the same
		if err := l.Reconfigure(cfg); err != nil {
			t.Fatal(err)
		}
		if got := sizes(); got != "100 and 100" {
			t.Fatalf("reconfigured: %s", got)
		}
	}
}

// One key that floods the gate leaves half of the places to the others.
func TestOneKeyCannotTakeAllPlaces(t *testing.T) {
	l := newAdaptive(t, AdaptiveConfig{New: fixed(1), MaxWaiting: 12})
	fill := func(key string) (n int) {
		admit(t, l, tenant(key))
		for {
			_, _, err := l.Arrive(tenant(key), func(weir.Permit, error) {})
			if err != weir.ErrWaiting {
				return n
			}
			n++
		}
	}
	for i, want := range []int{6, 3, 2, 1, 0} {
		if got := fill(fmt.Sprint(i)); got != want {
			t.Errorf("key %d has %d waiting, want %d", i, got, want)
		}
	}
	l.Close()
	if n := l.entering.Load(); n != 0 {
		t.Errorf("%d places taken by nobody", n)
	}
}

// Looking for an idle key in vain takes a small part of the time, however long it
// takes.
func TestSweepsAreRare(t *testing.T) {
	var now time.Duration
	l := newAdaptive(t, AdaptiveConfig{New: fixed(1), MaxKeys: 4, Now: func() time.Duration { now += ms; return now }})
	for i := range 4 {
		admit(t, l, tenant(fmt.Sprint(i)))
	}
	before := now
	turnedAway(t, l, tenant("new"), weir.ReasonLimit, "keys")
	if took := now - before; l.sweep.next-now < (sweepPart-1)*took/2 {
		t.Errorf("the next one in %v, this one took %v", l.sweep.next-now, took)
	}
}

// Among many keys one that is idle is found, in pieces, wherever it is; the lock is
// not held for longer than a piece takes.
func TestSweepsInPieces(t *testing.T) {
	const n = 5 * sweepPiece
	l := newAdaptive(t, AdaptiveConfig{New: fixed(1), MaxKeys: n, Now: func() time.Duration { return 0 }})
	permits := make([]weir.Permit, n)
	for i := range n {
		permits[i] = admit(t, l, tenant(fmt.Sprint(i)))
	}
	for _, idle := range []int{0, n / 2, n - 1} {
		permits[idle].Done(weir.OK)
		l.mu.Lock()
		evicted, ok, again := l.makeRoom()
		l.mu.Unlock()
		if len(evicted) > 0 || ok || !again {
			t.Errorf("a first look: %d, %v, %v", len(evicted), ok, again)
		}
		permits[idle] = admit(t, l, tenant(fmt.Sprint("new ", idle)))
	}
	turnedAway(t, l, tenant("one too many"), weir.ReasonLimit, "keys")
	if u := l.Usage(0); u.Keys != n || u.Evicted != 3 {
		t.Errorf("%+v", u)
	}
}

// A key is often cut from something larger, which must not live as long.
func TestKeysAreCopied(t *testing.T) {
	l := newAdaptive(t, AdaptiveConfig{New: fixed(1)})
	header := strings.Repeat("a lot of headers ", 100) + "key"
	key := header[len(header)-3:]
	admit(t, l, tenant(key))
	if unsafe.StringData(l.pools[key].key) == unsafe.StringData(key) {
		t.Error("the key keeps what it was cut from")
	}
}

// Two that come to a new key at once both get its pool, though it takes the last
// place there is and is in use when the second looks for one.
func TestTheSecondOfANewKeyIsNotOneTooMany(t *testing.T) {
	l := newAdaptive(t, AdaptiveConfig{New: fixed(2), MaxKeys: 1})
	first := admit(t, l, tenant("a"))
	defer first.Done(weir.OK)
	p, parts, refused := l.enter("a")
	if refused != nil || p == nil || len(parts) != 1 {
		t.Fatalf("%v, %v, %v", p, parts, refused)
	}
	l.unpin(p)
}

// What the default controller of a key has learned outlasts its eviction, as that of a
// controller which New has made.
func TestEvictedDefaultComesBack(t *testing.T) {
	l := &learners{t: t}
	l.Adaptive = newAdaptive(t, AdaptiveConfig{MaxKeys: 1, Now: func() time.Duration { return l.now },
		New: PerKey(func(string) (limit.Config, error) { return limit.Config{}, nil })})
	l.limit("a")
	l.pools["a"].parts[""].SetLimit(77)
	l.limit("b")
	if back := l.limit("a"); back < 60 { // e^-0.2 of it, where the lower of two is tried first
		t.Errorf("the limit is %d after an eviction, it was 77", back)
	}
}

// A pool that holds nothing but exempt work is in use.
func TestExemptWorkKeepsItsPool(t *testing.T) {
	now := time.Duration(0)
	l := newAdaptive(t, AdaptiveConfig{New: fixed(1), MaxKeys: 1, Now: func() time.Duration { return now }})
	p := admit(t, l, weir.Work{Tenant: "a", Exempt: true})
	turnedAway(t, l, tenant("b"), weir.ReasonLimit, "keys")
	p.Done(weir.OK)
	now += sweepEvery
	admit(t, l, tenant("b"))
}

// A key whose pool somebody is about to use keeps it, though nothing is in flight yet.
func TestAdaptiveEvictsNoPinnedKey(t *testing.T) {
	var now time.Duration
	l := newAdaptive(t, AdaptiveConfig{New: fixed(1), MaxKeys: 1, Now: func() time.Duration { return now }})
	p, _, refused := l.enter("a")
	if refused != nil {
		t.Fatal(refused)
	}
	if _, _, refused := l.enter("b"); refused == nil {
		t.Error("the only key was evicted while it was in use")
	}
	l.unpin(p)
	now += time.Hour // or it does not look again
	if _, _, refused = l.enter("b"); refused != nil {
		t.Errorf("%v afterwards", refused)
	}
}
