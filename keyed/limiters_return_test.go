package keyed

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/limit"
)

// learners is a gate whose keys learn their limits, on a clock that the test moves.
type learners struct {
	*Limiters
	t   *testing.T
	now time.Duration
}

func newLearners(t *testing.T, maxKeys int) *learners {
	l := &learners{t: t}
	l.Limiters = newLimiters(t, LimitersConfig{MaxKeys: maxKeys, Now: func() time.Duration { return l.now },
		New: Each(func(string) (limit.Config, error) {
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
	l.retire([]*pool{again})
	l.retire([]*pool{p}) // late
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
	l := newLimiters(t, LimitersConfig{MaxKeys: 1, New: Each(func(string) (limit.Config, error) {
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
	cfg := LimitersConfig{MaxKeys: 1, Part: func(w weir.Work) string { return w.Op }, Now: func() time.Duration { return now },
		New: ReadWrite(control.ProbeConfig{Initial: 64}, limit.Config{})}
	l := newLimiters(t, cfg)
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
	l := newLimiters(t, LimitersConfig{New: fixed(1), MaxWaiting: 12})
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
	l := newLimiters(t, LimitersConfig{New: fixed(1), MaxKeys: 4, Now: func() time.Duration { now += ms; return now }})
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
	l := newLimiters(t, LimitersConfig{New: fixed(1), MaxKeys: n, Now: func() time.Duration { return 0 }})
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
	l := newLimiters(t, LimitersConfig{New: fixed(1)})
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
	l := newLimiters(t, LimitersConfig{New: fixed(2), MaxKeys: 1})
	first := admit(t, l, tenant("a"))
	defer first.Done(weir.OK)
	p, parts, refused := l.enter("a")
	if refused != nil || p == nil || len(parts) != 1 {
		t.Fatalf("%v, %v, %v", p, parts, refused)
	}
	l.unpin(p)
}
