//go:build integration

package weirredis

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weir-go/weir/quota"
)

// sharers are stores with leases on one server, with one clock for all of them and
// for the server.
type sharers struct {
	now    atomic.Int64 // microseconds
	stores []*Store
}

func newSharers(t *testing.T, n int, l Lease) *sharers {
	t.Helper()
	return newSharersAt(t, startRedis(t).addr, n, l, Config{})
}

func newSharersAt(t *testing.T, addr string, n int, l Lease, c Config) *sharers {
	t.Helper()
	w := &sharers{}
	w.now.Store(1e12)
	for range n {
		c.Addrs, c.Lease, c.Now = []string{addr}, l, func() time.Time { return time.UnixMicro(w.now.Load()) }
		s := open(t, c)
		s.clock = w.now.Load
		w.stores = append(w.stores, s)
	}
	return w
}

func (w *sharers) pass(d time.Duration) { w.now.Add(d.Microseconds()) }

func (w *sharers) take(t *testing.T, i int, cost int64, limits ...quota.Window) quota.Decision {
	t.Helper()
	r, err := w.stores[i].Decide(context.Background(), &quota.Request{Key: "k", Windows: limits, Cost: cost})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// left returns what the server's bucket holds.
func (w *sharers) left(t *testing.T, l quota.Window) float64 {
	t.Helper()
	r, err := w.stores[0].Decide(context.Background(), &quota.Request{Key: "k", Windows: []quota.Window{l}, Mode: quota.DryRun})
	if err != nil {
		t.Fatal(err)
	}
	return r.Remaining
}

// TestLeaseBound plays bursts and lulls on three processes, and looks at every
// interval in them: no more is let through than burst + rate·t + processes·N.
func TestLeaseBound(t *testing.T) {
	const processes, tokens = 3, 20
	l := quota.Window{Rate: 100, Burst: 200}
	w := newSharers(t, processes, Lease{Tokens: tokens, For: time.Second})
	r := rand.New(rand.NewPCG(1, 2))
	begin := w.now.Load()
	var admitted, lowest, worst float64 // admitted - rate·t: now, at its lowest, and its greatest rise since
	decisions := 0
	for range 3000 {
		w.pass(time.Duration(r.ExpFloat64() * float64(30*time.Millisecond)))
		if r.IntN(300) == 0 {
			w.pass(3 * time.Second)
		}
		came := l.Rate * float64(w.now.Load()-begin) / 1e6
		lowest = min(lowest, admitted-came)
		for range r.IntN(6) {
			decisions++
			if cost := 1 + r.Int64N(3); w.take(t, r.IntN(processes), cost, l).OK {
				admitted += float64(cost)
			}
		}
		worst = max(worst, admitted-came-lowest)
		for _, s := range w.stores {
			if n := s.leases.tokens("k"); n > tokens {
				t.Fatalf("%d tokens held, at most %d", n, tokens)
			}
		}
	}
	asked, leased, remembered := uint64(0), uint64(0), uint64(0)
	for _, s := range w.stores {
		st := s.Stats()
		asked, leased, remembered = asked+st.Decisions, leased+st.Leased, remembered+st.Remembered
	}
	t.Logf("at most %.0f above rate·t in any interval; %d decisions: the server was asked %d times, leases decided %d, refusals %d",
		worst, decisions, asked, leased, remembered)
	if bound := l.Burst + processes*tokens; worst > bound {
		t.Errorf("%.0f more than rate·t in some interval, the bound is %.0f", worst, bound)
	}
	if worst < l.Burst*0.99 {
		t.Errorf("only %.0f more than rate·t: the test does not reach the limit", worst)
	}
	if asked+leased+remembered != uint64(decisions) || leased < asked {
		t.Errorf("%d asked, %d leased, %d remembered of %d", asked, leased, remembered, decisions)
	}
}

// The bound is no larger than it has to be: every process leases, the bucket fills
// again, and then all is spent at once.
func TestLeaseBoundIsReached(t *testing.T) {
	const processes, tokens = 3, 20
	l := quota.Window{Rate: 100, Burst: 200}
	w := newSharers(t, processes, Lease{Tokens: tokens, For: time.Minute})
	for i := range processes {
		w.take(t, i, 1, l)
	}
	w.pass(10 * time.Second)
	admitted := 0
	for i := range processes {
		for w.take(t, i, 1, l).OK {
			admitted++
		}
	}
	if want := 200 + processes*tokens; admitted != want {
		t.Errorf("%d let through at once, want %d", admitted, want)
	}
}

// While the node of a cluster that has the bucket stands still, each process lets through
// what it holds and no more. Afterwards the bucket lacks what was let through, what is
// held, and what somebody asked for who was not told.
func TestLeaseWithoutItsNode(t *testing.T) {
	t.Parallel()
	const processes, tokens = 3, 20
	nodes := startCluster(t, func(o ...string) *server { return startRedis(t, o...) },
		"--cluster-require-full-coverage", "no")
	w := newSharersAt(t, nodes[0].addr, processes, Lease{Tokens: tokens, For: time.Minute}, Config{Deadline: 200 * time.Millisecond, DialTimeout: 300 * time.Millisecond})
	ask := func(s *Store) error {
		_, err := s.Decide(t.Context(), &quota.Request{Key: "k", Windows: []quota.Window{vast}, Cost: 1})
		return err
	}
	admitted := 0
	for _, s := range w.stores {
		eventually(t, "a lease", func() bool {
			if ask(s) == nil {
				admitted++
			}
			return s.leases.tokens("k") > 0
		})
	}
	nodeOf(nodes, "k").signal(t, syscall.SIGSTOP)
	for i, s := range w.stores {
		n := 0
		for ask(s) == nil {
			n++
		}
		if admitted += n; n > tokens {
			t.Errorf("process %d let %d through without the server, at most %d", i, n, tokens)
		}
	}
	nodeOf(nodes, "k").signal(t, syscall.SIGCONT)
	var held, vain float64
	for _, s := range w.stores {
		eventually(t, "nothing is under way", func() bool { return s.Stats().InFlight == 0 && !s.Stats().Down })
		st := s.Stats()
		held += float64(s.leases.tokens("k"))
		vain += float64(st.Failed[Timeout]+st.Failed[Broken]) * (1 + tokens) // with what was to be lent
	}
	var left float64
	eventually(t, "the bucket", func() bool {
		r, err := w.stores[0].Decide(t.Context(), &quota.Request{Key: "k", Windows: []quota.Window{vast}, Mode: quota.DryRun})
		left = r.Remaining
		return err == nil
	})
	lacks := math.Round(vast.Burst - left)
	t.Logf("%d let through, %.0f held, %.0f perhaps charged; the bucket lacks %.0f", admitted, held, vain, lacks)
	if most := float64(admitted) + held + vain; lacks < float64(admitted)+held || lacks > most {
		t.Errorf("the bucket lacks %.0f, want %.0f to %.0f", lacks, float64(admitted)+held, most)
	}
}

// At the limit the server is asked once for each refusal and its wait, and nothing
// is let through that it would not.
func TestLeaseRefusal(t *testing.T) {
	l := quota.Window{Rate: 10, Burst: 10}
	w := newSharers(t, 1, Lease{Tokens: 5, For: time.Second})
	admitted := 0
	for range 30 {
		if w.take(t, 0, 1, l).OK {
			admitted++
		}
	}
	if admitted != 10 {
		t.Errorf("%d let through at once, want 10", admitted)
	}
	w.pass(40 * time.Millisecond)
	if r := w.take(t, 0, 1, l); r.OK || r.Wait != 60*time.Millisecond {
		t.Errorf("40ms later: %+v, want a wait of 60ms", r)
	}
	asked := w.stores[0].Stats().Decisions
	if r := w.take(t, 0, 7, l); r.OK {
		t.Errorf("what costs more is let through: %+v", r)
	}
	if n := w.stores[0].Stats().Decisions; n != asked {
		t.Errorf("the server was asked %d times about what is known", n-asked)
	}
	w.pass(60 * time.Millisecond)
	if r := w.take(t, 0, 1, l); !r.OK {
		t.Errorf("after the wait: %+v", r)
	}
}

// A refusal that is remembered tells greater costs how long they have to wait, and what can never be admitted that.
func TestLeaseRefusalTellsEachItsWait(t *testing.T) {
	wide, narrow := quota.Window{Rate: 10, Burst: 100}, quota.Window{Rate: 1, Burst: 110}
	for _, c := range []struct {
		limits []quota.Window
		cost   int64
		later  time.Duration
		window int
		wait   time.Duration
	}{
		{[]quota.Window{wide}, 1, 0, 0, 100 * time.Millisecond},
		{[]quota.Window{wide}, 50, 0, 0, 5 * time.Second},
		{[]quota.Window{wide}, 50, 900 * time.Millisecond, 0, 4100 * time.Millisecond},
		{[]quota.Window{wide}, 101, 0, 0, quota.Never},
		{[]quota.Window{wide, narrow}, 5, 0, 0, 500 * time.Millisecond},
		{[]quota.Window{wide, narrow}, 12, 0, 1, 2 * time.Second},
	} {
		w := newSharers(t, 1, Lease{Tokens: 10, For: time.Second})
		w.take(t, 0, 100, c.limits...)
		if r := w.take(t, 0, 1, c.limits...); r.OK || r.Wait != 100*time.Millisecond {
			t.Fatalf("1 of nothing: %+v", r)
		}
		w.pass(c.later)
		asked := w.stores[0].Stats().Decisions
		if r := w.take(t, 0, c.cost, c.limits...); r.OK || r.Wait != c.wait || r.Window != c.window {
			t.Errorf("%+v: %+v", c, r)
		}
		if n := w.stores[0].Stats().Decisions; n != asked {
			t.Errorf("%+v: the server was asked", c)
		}
	}
}

// A refusal says nothing about what costs less.
func TestLeaseRefusalOfMore(t *testing.T) {
	l := quota.Window{Rate: 1e-9, Burst: 10}
	w := newSharers(t, 1, Lease{Tokens: 8, For: time.Minute})
	w.take(t, 0, 8, l) // and one of the two that are left is leased
	if r := w.take(t, 0, 5, l); r.OK {
		t.Errorf("5 of 2: %+v", r)
	}
	for range 2 {
		if r := w.take(t, 0, 1, l); !r.OK {
			t.Errorf("1 of what is left: %+v", r)
		}
	}
}

// A bucket lends half of what it can spare, and less and less.
func TestLeaseIsHalf(t *testing.T) {
	l := quota.Window{Rate: 1e-9, Burst: 101}
	w := newSharers(t, 3, Lease{Tokens: 1000, For: time.Minute})
	for i, want := range []float64{50, 25, 12} { // each takes 1 and half of the rest
		w.take(t, i, 1, l)
		if left := w.left(t, l); left < want-0.5 || left > want+0.5 {
			t.Errorf("after process %d the server has %v, want %v", i, left, want)
		}
	}
}

// Of several windows the one that can spare least says how much is lent: others have to find half of it.
func TestLeaseIsHalfOfEachWindow(t *testing.T) {
	wide, narrow := quota.Window{Rate: 1e-9, Burst: 1e6}, quota.Window{Rate: 1e-9, Burst: 11}
	for _, windows := range [][]quota.Window{{wide, narrow}, {narrow, wide}} {
		w := newSharers(t, 2, Lease{Tokens: 100, For: time.Minute})
		w.take(t, 0, 1, windows...)
		r, err := w.stores[1].Decide(t.Context(), &quota.Request{Key: "k", Windows: windows, Mode: quota.DryRun})
		if err != nil || math.Round(r.Remaining) != 5 || windows[r.Window] != narrow {
			t.Errorf("%v: %+v, %v; want 5 of 11 for others, after 1 was used", windows, r, err)
		}
	}
}

// Many callers at once lease no more than one.
func TestLeaseOnce(t *testing.T) {
	const callers, tokens = 50, 20
	l := quota.Window{Rate: 1e-9, Burst: 10_000}
	w := newSharers(t, 1, Lease{Tokens: tokens, For: time.Minute})
	var wait sync.WaitGroup
	for range callers {
		wait.Go(func() {
			if _, err := w.stores[0].Decide(context.Background(), &quota.Request{Key: "k", Windows: []quota.Window{l}, Cost: 1}); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if held := w.stores[0].leases.tokens("k"); held > tokens {
		t.Errorf("%d tokens held, at most %d", held, tokens)
	}
	if charged := l.Burst - w.left(t, l); charged > callers+tokens+0.5 {
		t.Errorf("%v charged for %d and a lease of %d", charged, callers, tokens)
	}
}

// What is lent to an entry that has gone meanwhile goes back.
func TestLeaseComesTooLate(t *testing.T) {
	w := newSharers(t, 1, Lease{Tokens: 20, For: time.Minute})
	ls := w.stores[0].leases
	if back := ls.record(1, &loan{&held{gone: true}, 20}, quota.Decision{OK: true}, reply{charged: 16}, nil); back != 15 {
		t.Errorf("%d go back, want 15", back)
	}
}

// tokens returns how many are held for a key.
func (ls *leases) tokens(key string) int64 {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if h := ls.keys[key]; h != nil {
		return h.tokens
	}
	return 0
}

// What is not used is given back when its time is over, and by Close.
func TestLeaseGivenBack(t *testing.T) {
	l := quota.Window{Rate: 1e-9, Burst: 100}
	w := newSharers(t, 2, Lease{Tokens: 20, For: 20 * time.Millisecond})
	if r := w.take(t, 0, 1, l); !r.OK || r.Remaining != 99 {
		t.Errorf("%+v, want 99 left, those leased among them", r)
	}
	if left := w.left(t, l); left != 79 {
		t.Errorf("the server has %v, want 79", left)
	}
	if r := w.take(t, 0, 1, l); !r.OK || r.Remaining != 98 {
		t.Errorf("%+v, want 98 left, of which 19 are leased", r)
	}
	w.pass(30 * time.Millisecond)
	eventually(t, "the lease is given back", func() bool { return w.left(t, l) > 97.5 })
	eventually(t, "no lease is held", func() bool { return w.stores[0].Stats().Leases == 0 })
	w.take(t, 1, 1, l)
	if err := w.stores[1].Close(); err != nil {
		t.Fatal(err)
	}
	if left := w.left(t, l); left < 96.5 || left > 97.5 {
		t.Errorf("after Close the server has %v, want 97", left)
	}
}

// Many leases that end together go back together, and leave places to decisions.
func TestLeasesGivenBackTogether(t *testing.T) {
	const keys, places = 20, 128
	server := startRedis(t)
	s := open(t, Config{Addrs: []string{server.addr}, MaxInFlight: places, Lease: Lease{Tokens: 20, For: time.Minute}})
	for i := range keys {
		if err := takeKey(s, strconv.Itoa(i)); err != nil {
			t.Fatal(err)
		}
	}
	server.signal(t, syscall.SIGSTOP)
	go s.leases.sweep(t.Context(), s.now().Add(time.Hour))
	eventually(t, "refunds are under way", func() bool { return s.Stats().InFlight == places/8 })
	server.signal(t, syscall.SIGCONT)
	eventually(t, "all are given back", func() bool { return s.Stats().Refunds == keys })
}

// Close does not wait for a server that stands still until each lease has timed out.
func TestLeasesOfASilentServer(t *testing.T) {
	t.Parallel() // it mostly waits
	server := startRedis(t)
	s := open(t, Config{Addrs: []string{server.addr}, MaxInFlight: 8, Lease: Lease{Tokens: 20, For: time.Minute}})
	for i := range 5 {
		if err := takeKey(s, strconv.Itoa(i)); err != nil {
			t.Fatal(err)
		}
	}
	server.signal(t, syscall.SIGSTOP)
	begin := time.Now()
	s.leases.close()
	if took := time.Since(begin); took > 15*time.Second {
		t.Errorf("%v for five leases, with a deadline of 10s for each", took)
	}
	server.signal(t, syscall.SIGCONT)
}

// A limit that changes ends the lease: the new one holds at once.
func TestLeaseLimitChanges(t *testing.T) {
	w := newSharers(t, 1, Lease{Tokens: 20, For: time.Minute})
	l := quota.Window{Rate: 1e-9, Burst: 100}
	w.take(t, 0, 1, l)
	small := quota.Window{Rate: 1e-9, Burst: 3}
	admitted := 0
	for range 10 {
		if w.take(t, 0, 1, small).OK {
			admitted++
		}
	}
	if admitted != 3 {
		t.Errorf("%d let through after the burst fell to 3", admitted)
	}
}

// Keys beyond the bound ask the server, and are exact.
func TestLeaseMaxKeys(t *testing.T) {
	w := newSharers(t, 1, Lease{Tokens: 10, For: time.Minute, MaxKeys: 2})
	for range 3 {
		for _, key := range []string{"a", "b", "c", "d"} {
			k := quota.Request{Key: key, Windows: []quota.Window{quota.Per(100, time.Hour)}, Cost: 1}
			if r, err := w.stores[0].Decide(context.Background(), &k); err != nil || !r.OK {
				t.Fatalf("%+v, %v", r, err)
			}
		}
	}
	if st := w.stores[0].Stats(); st.Leases != 2 || st.Leased != 4 || st.Decisions != 8 {
		t.Errorf("%d keys with leases, %d decided by them, %d by the server; want 2, 4, 8", st.Leases, st.Leased, st.Decisions)
	}
}

// Only plain strict decisions go by what is leased: a dry run would spend it, and a
// debt or a reservation be made by half a bucket.
func TestLeaseOnlyStrict(t *testing.T) {
	l := quota.Window{Rate: 1e-9, Burst: 100}
	w := newSharers(t, 1, Lease{Tokens: 20, For: time.Minute})
	w.take(t, 0, 1, l)
	leases := w.stores[0].leases
	for _, k := range []quota.Request{{Mode: quota.DryRun}, {Mode: quota.Permissive}, {Mode: quota.Reserve}, {Debt: true}} {
		k.Key, k.Windows, k.Cost = "k", []quota.Window{l}, 1
		if _, err := w.stores[0].Decide(context.Background(), &k); err != nil {
			t.Fatal(err)
		}
		if n := leases.tokens("k"); n != 20 {
			t.Errorf("after %v, debt %v: %d tokens are leased, want 20 as before", k.Mode, k.Debt, n)
		}
	}
}

// A lease that could not be had is asked for again.
func TestLeaseAfterAnError(t *testing.T) {
	w := newSharers(t, 1, Lease{Tokens: 20, For: time.Minute})
	h := &held{fetching: true}
	if back := w.stores[0].leases.record(1, &loan{h, 20}, quota.Decision{}, reply{}, errors.New("no answer")); back != 0 || h.fetching {
		t.Errorf("%d go back, %+v; want nothing, and that somebody may ask again", back, h)
	}
}

// What is leased by a limit that has changed is in the bucket again, before anything
// is decided by the new one.
func TestLeaseOfAChangedLimit(t *testing.T) {
	w := newSharers(t, 1, Lease{Tokens: 20, For: time.Minute})
	w.take(t, 0, 1, quota.Window{Rate: 1e-9, Burst: 100})
	l := quota.Window{Rate: 1e-9, Burst: 99}
	if r := w.take(t, 0, 50, l); !r.OK {
		t.Fatalf("%+v", r)
	}
	if left := w.left(t, l); left < 48.5 || left > 49.5 {
		t.Errorf("the server has %v, want 49: 100 less 1 and 50", left)
	}
}

// A refusal is not repeated from memory for longer than For, however long its wait:
// somebody may have given tokens back.
func TestLeaseForgetsARefusal(t *testing.T) {
	l := quota.Window{Rate: 1e-9, Burst: 10}
	w := newSharers(t, 2, Lease{Tokens: 5, For: time.Minute})
	w.take(t, 0, 10, l)
	if r := w.take(t, 0, 1, l); r.OK {
		t.Fatalf("%+v", r)
	}
	if err := w.stores[1].Refund(context.Background(), "k", []quota.Window{l}, 4); err != nil {
		t.Fatal(err)
	}
	w.pass(time.Minute - time.Millisecond)
	if r := w.take(t, 0, 1, l); r.OK {
		t.Errorf("within For: %+v, want the refusal that is remembered", r)
	}
	w.pass(time.Millisecond)
	if r := w.take(t, 0, 1, l); !r.OK {
		t.Errorf("after For: %+v, want one of those given back", r)
	}
}

// A lease whose time ends while the server's answer about more is on its way makes no
// place for another beside it: the bound would count it once, and it be spent twice.
func TestLeaseOfASlowServer(t *testing.T) {
	t.Parallel() // it mostly waits
	const tokens = 20
	l := quota.Window{Rate: 100, Burst: 200}
	server := startRedis(t)
	slow := startSlowly(t, server)
	w := &sharers{}
	w.now.Store(1e12)
	for _, c := range []Config{
		{Addrs: []string{slow.addr}, Lease: Lease{Tokens: tokens, For: 20 * time.Millisecond}},
		{Addrs: []string{server.addr}},
	} {
		c.Now = func() time.Time { return time.UnixMicro(w.now.Load()) }
		s := open(t, c)
		s.clock = w.now.Load
		w.stores = append(w.stores, s)
	}
	leases := w.stores[0].leases
	left := func() float64 {
		r, err := w.stores[1].Decide(context.Background(), &quota.Request{Key: "k", Windows: []quota.Window{l}, Mode: quota.DryRun})
		if err != nil {
			t.Fatal(err)
		}
		return r.Remaining
	}
	slow.delay.Store(int64(300 * time.Millisecond))
	var wait sync.WaitGroup
	for n := range 3 {
		before := left()
		wait.Go(func() { w.take(t, 0, 1, l) })
		eventually(t, "the server has decided", func() bool { return left() < before })
		if lent := 200 - left() - float64(n+1); lent > tokens {
			t.Errorf("%v tokens lent to one process, at most %d", lent, tokens)
		}
		w.now.Add(1) // so that the bucket fills by next to nothing, and yet For is over
		leases.sweep(t.Context(), time.UnixMicro(w.now.Load()).Add(time.Minute))
	}
	wait.Wait()
}
