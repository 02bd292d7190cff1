package quota

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"
)

var ctx = context.Background()

// still is a clock that its owner moves.
type still struct{ atomic.Int64 }

func (c *still) now() time.Duration      { return time.Duration(c.Load()) }
func (c *still) advance(d time.Duration) { c.Add(int64(d)) }

func newMemory(t testing.TB, cfg MemoryConfig) *Memory {
	t.Helper()
	m, err := NewMemory(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func take(t testing.TB, s Store, tk Request) Decision {
	t.Helper()
	r, err := s.Decide(ctx, &tk)
	if err != nil {
		t.Fatalf("%+v: %v", tk, err)
	}
	return r
}

func TestBadMemory(t *testing.T) {
	for _, n := range []int{-1, mostKeys + 1} {
		if _, err := NewMemory(MemoryConfig{MaxKeys: n}); err == nil || !strings.Contains(err.Error(), fmt.Sprint("MaxKeys ", n)) {
			t.Errorf("MaxKeys %d: %v", n, err)
		}
	}
	m := newMemory(t, MemoryConfig{})
	limits := []Window{Per(1, time.Second)}
	for _, l := range []Window{{}, {Rate: math.NaN(), Burst: 1}, {Rate: 1, Burst: math.NaN()}, {Rate: 1e300, Burst: 1}, {Rate: -1, Burst: 1}} {
		take(t, m, Request{Key: "k", Windows: limits, Debt: true})
		if r, err := m.Decide(ctx, &Request{Key: "k", Windows: []Window{l}, Cost: 1}); err == nil || r.OK {
			t.Errorf("%#v: %+v", l, r)
		}
		if err := m.Refund(ctx, "k", []Window{l}, 1); err == nil {
			t.Errorf("give %#v is taken", l)
		}
	}
	if err := m.Refund(ctx, "k", limits, math.NaN()); err == nil {
		t.Error("NaN is given")
	}
	if r := take(t, m, Request{Key: "k", Windows: limits, Cost: 1}); !r.OK || math.Abs(r.Remaining) > 0.1 {
		t.Errorf("the bucket afterwards: %+v", r)
	}
}

// A store does what the bucket does, take by take: on a clock of its own, which may
// go back, and on that of the process, where it takes short cuts.
func TestMemoryIsTheBucket(t *testing.T) {
	for seed := range uint64(30) {
		var clock still
		clock.advance(time.Hour)
		m := newMemory(t, MemoryConfig{Now: clock.now})
		alike(t, m, seed, func(d time.Duration) time.Duration {
			d = max(d, -clock.now())
			clock.advance(d)
			return d
		})
		synctest.Test(t, func(t *testing.T) {
			alike(t, newMemory(t, MemoryConfig{}), seed, func(d time.Duration) time.Duration {
				d = max(d, -d)
				time.Sleep(d)
				return d
			})
		})
	}
}

// alike plays the same on a store and on its buckets. advance moves the clock and
// returns by how much.
func alike(t *testing.T, m *Memory, seed uint64, advance func(time.Duration) time.Duration) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	limits := []Window{Per(float64(1+r.IntN(5000)), time.Second), Per(float64(1+r.IntN(50_000)), time.Hour), PerCalendar(30_000, Day, nil)}[:1+r.IntN(3)]
	p := newPail(seed%2 == 0, limits...)
	p.Key, p.at.epoch = "key", m.epoch
	p.at.now = time.Duration(m.now()) * time.Microsecond
	p.at.wall = p.at.now
	for range 400 {
		d := time.Duration(r.IntN(2000)) * time.Microsecond
		if r.IntN(20) == 0 {
			d = time.Duration(r.IntN(100_000)-20_000) * time.Millisecond
		}
		p.advance(advance(d))
		if r.IntN(30) == 0 {
			give := float64(r.IntN(20) - 10)
			for i := range limits {
				p.buckets[i].refill(&limits[i], p.at)
				p.buckets[i].charge(&limits[i], -give)
			}
			if err := m.Refund(ctx, "key", limits, give); err != nil {
				t.Fatal(err)
			}
		}
		p.Mode, p.MaxWait = Strict, time.Duration(r.IntN(2000))*time.Millisecond
		if r.IntN(2) == 0 {
			p.Mode = Mode(r.IntN(4))
		}
		p.Cost = int64(r.IntN(20))
		got, want := take(t, m, p.Request), p.decide(p.buckets, p.at)
		off := got.Remaining - want.Remaining
		if got.OK != want.OK || (got.Wait-want.Wait).Abs() > time.Microsecond || off > 1e-6 || off < -1e-6-limits[0].Rate/1000 {
			t.Fatalf("seed %d: %+v: %+v, the bucket says %+v", seed, p.Request, got, want)
		}
	}
}

// Many at one key, on the machine's clock: no token is spent twice, none is lost.
func TestHotKey(t *testing.T) {
	m := newMemory(t, MemoryConfig{})
	limit := Window{Rate: 20_000, Burst: 20_000} // not full again while the machine is busy with others
	began := time.Now()
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			limits := []Window{limit}
			if g%2 == 0 { // the same first window, and one that is never short
				limits = append(limits, Window{Rate: 1e9, Burst: 1e12})
			}
			for range 20_000 {
				if r, err := m.Decide(ctx, &Request{Key: "hot", Windows: limits, Cost: 1}); err != nil {
					t.Error(err)
				} else if r.OK {
					admitted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	most := limit.Burst + limit.Rate*time.Since(began).Seconds()
	left := take(t, m, Request{Key: "hot", Windows: []Window{limit}}).Remaining
	if got := float64(admitted.Load()); got > most || got+left < limit.Burst {
		t.Errorf("admitted %v, %v left; no more than %v came", got, left, most)
	}
	took := time.Since(began)
	if got := float64(admitted.Load()); took < time.Second && got+left < 0.9*min(most, 160_000) {
		t.Errorf("admitted %v, %v left: tokens are lost, %v came", got, left, most)
	}
}

// Takes that do not wait for tokens to come back lose none, in whatever order
// buckets move meanwhile.
func TestMovingBuckets(t *testing.T) {
	const each, keys, workers = 300, 200, 4
	m := newMemory(t, MemoryConfig{MaxKeys: 20_000})
	slow := []Window{{Rate: MinRate, Burst: each*workers + 1}}
	stop := make(chan struct{})
	var wg, others sync.WaitGroup
	others.Go(func() {
		quick := []Window{Per(1e6, time.Second)}
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			take(t, m, Request{Key: fmt.Sprint("passing ", i), Windows: quick, Cost: 1})
			if i%1000 == 0 {
				m.Purge()
			}
		}
	})
	for range workers {
		wg.Go(func() {
			for range each {
				for k := range keys {
					if r, err := m.Decide(ctx, &Request{Key: fmt.Sprint(k), Windows: slow, Cost: 1}); err != nil || !r.OK {
						t.Errorf("key %d: %+v, %v", k, r, err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	others.Wait()
	for k := range keys {
		if r := take(t, m, Request{Key: fmt.Sprint(k), Windows: slow, Mode: DryRun}); math.Abs(r.Remaining-1) > 1e-3 {
			t.Errorf("key %d has %v left, want 1", k, r.Remaining)
		}
	}
}

// The cells of a key with several windows are in one table, also if the table grows while they are collected.
func TestSeveralWindowsInATableThatGrows(t *testing.T) {
	var clock still
	m := newMemory(t, MemoryConfig{Now: clock.now})
	windows := []Window{{Rate: 1, Burst: 3}, {Rate: 1, Burst: 1000}, {Rate: 1, Burst: 1000}}
	for i := range 20_000 {
		for n := range 4 {
			if d := take(t, m, Request{Key: fmt.Sprint(i), Windows: windows, Cost: 1}); d.OK != (n < 3) {
				t.Fatalf("key %d, request %d: %+v", i, n, d)
			}
		}
	}
}

// Full buckets are forgotten when there is no place; debts and half-empty ones are
// not, whoever comes.
func TestForgetsOnlyTheFull(t *testing.T) {
	var clock still
	m := newMemory(t, MemoryConfig{MaxKeys: 1000, Now: clock.now})
	limits := []Window{{Rate: 1, Burst: 10}}
	for i := range 500 {
		take(t, m, Request{Key: fmt.Sprint("debtor ", i), Windows: limits, Cost: 1000, Debt: true})
	}
	for i := range 500 {
		take(t, m, Request{Key: fmt.Sprint("guest ", i), Windows: limits, Cost: 5})
	}
	clock.advance(6 * time.Second)
	for i := range 10_000 {
		if take(t, m, Request{Key: fmt.Sprint("flood ", i), Windows: limits, Cost: 10}); i%1000 == 0 {
			clock.advance(time.Second)
		}
	}
	for i := range 500 {
		if r := take(t, m, Request{Key: fmt.Sprint("debtor ", i), Windows: limits, Cost: 1, Debt: true}); r.OK || math.Abs(r.Remaining-(clock.now().Seconds()-990)) > 1e-6 {
			t.Fatalf("debtor %d: %+v", i, r)
		}
	}
	s := m.Stats()
	if s.Keys != 1000 || s.Purged < 500 || s.Overflowed < 8000 {
		t.Errorf("%+v", s)
	}
	clock.advance(time.Hour)
	if m.Purge(); m.Stats().Keys != 0 || m.Stats().Bytes > 30_000 {
		t.Errorf("an hour later %+v", m.Stats())
	}
}

// Whoever there is no place for shares one bucket: a flood of keys gets no more
// than one key would.
func TestFloodOfKeys(t *testing.T) {
	var clock still
	m := newMemory(t, MemoryConfig{MaxKeys: 100, Now: clock.now})
	for _, limits := range [][]Window{{Window{Rate: 1, Burst: 10}}, {Window{Rate: 1, Burst: 20}, Per(1e6, time.Second)}} {
		admitted := 0
		for i := range 5000 {
			if take(t, m, Request{Key: fmt.Sprintf("%d of %v", i, limits), Windows: limits, Cost: 5}).OK {
				admitted++
			}
		}
		if most := 100 + int(limits[0].Burst)/5; admitted > most {
			t.Errorf("%v: admitted %d, want at most %d", limits, admitted, most)
		}
	}
	if s := m.Stats(); s.Keys > 100 || s.Overflowed == 0 {
		t.Errorf("%+v", s)
	}
	for i := range mostOverflow + 100 { // limits without end make no buckets without end
		limits := []Window{{Rate: 1, Burst: float64(100 + i)}}
		take(t, m, Request{Key: fmt.Sprint("own limit ", i), Windows: limits, Cost: 1})
	}
	if m.overflow.used != mostOverflow || m.Stats().Bytes > 40*(mostOverflow+100) {
		t.Errorf("%d strays, %d bytes", m.overflow.used, m.Stats().Bytes)
	}
}

func TestGiveToAStranger(t *testing.T) {
	m := newMemory(t, MemoryConfig{})
	limits := []Window{Per(10, time.Hour)}
	if err := m.Refund(ctx, "k", limits, 5); err != nil || m.Stats().Keys != 0 {
		t.Errorf("%v, %+v", err, m.Stats())
	}
	if err := m.Refund(ctx, "k", limits, -15); err != nil {
		t.Error(err)
	}
	if r := take(t, m, Request{Key: "k", Windows: limits, Debt: true}); r.OK || r.Remaining > -4.9 {
		t.Errorf("%+v, want a debt of 5", r)
	}
}

// Odd keys are keys like others.
func TestOddKeys(t *testing.T) {
	m := newMemory(t, MemoryConfig{})
	limits := []Window{Per(10, time.Hour)}
	for _, k := range []string{"", "\x00", "\x00\x00", "a\nb", "{}", "{a}", strings.Repeat("x", 10<<10), strings.Repeat("x", 10<<10) + "y"} {
		if r := take(t, m, Request{Key: k, Windows: limits, Cost: 10}); !r.OK {
			t.Errorf("%.20q shares its bucket", k)
		}
		if r := take(t, m, Request{Key: k, Windows: limits, Cost: 10}); r.OK {
			t.Errorf("%.20q is unlimited", k)
		}
	}
}

// What a bucket takes, the slack of growth and of tables that are being replaced
// included. A table is as large for this many as for more.
func TestBytesOfABucket(t *testing.T) {
	if size := unsafe.Sizeof(cell{}); size != cellSize {
		t.Errorf("a cell takes %d bytes", size)
	}
	if size := unsafe.Sizeof(shard{}); size != 64 {
		t.Errorf("a shard takes %d bytes", size)
	}
	n := 1 << 16
	if testing.Short() {
		t.Skip("what many buckets take is seconds of work under the race detector; run without -short")
	}
	heap := func() int64 {
		var ms runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&ms)
		return int64(ms.HeapAlloc)
	}
	before := heap()
	m := newMemory(t, MemoryConfig{MaxKeys: n})
	limits := []Window{{Rate: 0.001, Burst: 10}}
	var worst float64
	for i := 1; i <= n; i++ {
		if r, err := m.decide(rand.Uint64(), &Request{Windows: limits, Cost: 1}); err != nil || !r.OK {
			t.Fatal(r, err)
		}
		if i >= n/4 && i%(n/12) == 0 {
			worst = max(worst, float64(heap()-before)/float64(i))
		}
	}
	t.Logf("%.1f bytes each at worst, %.1f in the end", worst, float64(m.Stats().Bytes)/float64(n))
	if worst > 40 {
		t.Errorf("a bucket takes %.1f bytes, want at most 40", worst)
	}
	runtime.KeepAlive(m)
}

func TestMemoryAllocatesNothing(t *testing.T) {
	m := newMemory(t, MemoryConfig{})
	for _, limits := range [][]Window{{Per(100, time.Second)}, {Per(100, time.Second), PerCalendar(1e9, Day, nil)}} {
		tk := &Request{Key: "someone", Windows: limits, Cost: 1}
		if n := testing.AllocsPerRun(1000, func() { _, _ = m.Decide(ctx, tk) }); n != 0 {
			t.Errorf("%d windows: %v allocations", len(limits), n)
		}
	}
}

// Buckets that are full again at once are not forgotten and made anew for ever: the
// tables grow until they hold what comes in a second.
func TestTablesGrowForTheFull(t *testing.T) {
	if testing.Short() {
		t.Skip("a hundred thousand keys take seconds under the race detector; run without -short")
	}
	var clock still
	m := newMemory(t, MemoryConfig{MaxKeys: 20_000, Now: clock.now})
	tk := Request{Windows: []Window{{Rate: 1e9, Burst: 1e6}}, Cost: 1}
	pass := func() (purged uint64) {
		before := m.Stats().Purged
		for i := range 15_000 {
			tk.Key = fmt.Sprint(i)
			take(t, m, tk)
			clock.advance(time.Microsecond)
		}
		return m.Stats().Purged - before
	}
	first := pass()
	for range 30 {
		pass()
	}
	if last := pass(); first < 1000 || last > 0 || m.Stats().Overflowed > 0 {
		t.Errorf("%d forgotten in the first pass, %d in the last; %+v", first, last, m.Stats())
	}
}

// On the way for which a bucket in use is charged most quickly, too, what costs more
// than a burst is refused for ever, and not until it would have as many tokens.
func TestTooLargeForABucketInUse(t *testing.T) {
	m := newMemory(t, MemoryConfig{})
	tk := Request{Key: "k", Windows: []Window{{Rate: 1e-6, Burst: 10}}, Cost: 1}
	take(t, m, tk)
	tk.Cost = 20
	for range 3 {
		if r := take(t, m, tk); r.OK || r.Wait != Never {
			t.Errorf("20 of a burst of 10: %+v, want it refused for ever", r)
		}
	}
}

// A clock on the wall that somebody else has read a moment later is moved up to that;
// one that was set back is gone by, or the bucket would stand still until it is there
// again. The clock for rates is never set.
func TestSteady(t *testing.T) {
	m := newMemory(t, MemoryConfig{})
	day, rate := PerCalendar(1, Day, nil), Per(1, time.Second)
	for _, c := range []struct {
		limit     *Window
		back, off time.Duration // of the clock, and after steady
	}{
		{&day, 500 * ms, 0},
		{&day, 2 * time.Second, 2 * time.Second},
		{&day, 30 * time.Minute, 30 * time.Minute},
		{&day, -time.Second, -time.Second},
		{&rate, 30 * time.Minute, 0},
		{&rate, -time.Second, -time.Second},
	} {
		b := bucket{last: 10 * time.Hour}
		now := b.last - c.back
		at := m.steady(moment{now: now, wall: now, epoch: m.epoch}, &b, c.limit)
		if got := b.last - at.by(c.limit); got != c.off {
			t.Errorf("%v, %v back: %v back after steady, want %v", *c.limit, c.back, got, c.off)
		}
	}
}

// crowded is a store of one place, which a key that never fills has taken.
func crowded(t *testing.T, clock *still) *Memory {
	m := newMemory(t, MemoryConfig{MaxKeys: 1, Now: clock.now})
	take(t, m, Request{Key: "resident", Windows: []Window{{Rate: 1, Burst: 60}}, Cost: 60})
	return m
}

// A debt made without a place of one's own is still there when there is one.
func TestDebtOutlivesOverflow(t *testing.T) {
	var clock still
	m := crowded(t, &clock)
	limits := []Window{{Rate: 1, Burst: 10}}
	if r := take(t, m, Request{Key: "debtor", Windows: limits, Cost: 1010, Debt: true}); !r.OK || r.Remaining != -1000 {
		t.Fatalf("%+v", r)
	}
	clock.advance(100 * time.Second) // the resident's bucket is full: there is a place
	for _, key := range []string{"debtor", "somebody else"} {
		peek := take(t, m, Request{Key: key, Windows: limits, Cost: 1, Debt: true, Mode: DryRun})
		r := take(t, m, Request{Key: key, Windows: limits, Cost: 1, Debt: true})
		if r.OK || r.Wait != 900*time.Second || math.Abs(r.Remaining+900) > 1e-6 || peek != r {
			t.Errorf("%s: %+v, before %+v", key, r, peek)
		}
	}
	if s := m.Stats(); s.Keys != 1 || s.Purged != 1 {
		t.Errorf("%+v", s)
	}
}

// A look at a key that is not known tells what a charge would, and the key stays unknown. Where there is no
// place, the look is at the bucket that all share.
func TestDryRunMakesNoBucket(t *testing.T) {
	limits := []Window{{Rate: 1e-6, Burst: 10}, {Rate: 1e-6, Burst: 100}}
	var clock still
	for _, now := range []func() time.Duration{nil, clock.now} {
		for n := 1; n <= 2; n++ {
			m := newMemory(t, MemoryConfig{MaxKeys: n, Now: now})
			for i := range 3 {
				if d := take(t, m, Request{Key: fmt.Sprint(i), Windows: limits[:n], Cost: 11, Mode: DryRun}); d.OK || d.Remaining != 10 {
					t.Errorf("%d windows: %+v", n, d)
				}
			}
			if s := m.Stats(); s.Keys != 0 || s.Overflowed != 0 {
				t.Errorf("%d windows: %+v", n, s)
			}
			take(t, m, Request{Key: "resident", Windows: limits[:n], Cost: 1})
			take(t, m, Request{Key: "shares", Windows: limits[:n], Cost: 4})
			d := take(t, m, Request{Key: "newcomer", Windows: limits[:n], Cost: 6, Mode: DryRun})
			if s := m.Stats(); !d.OK || math.Abs(d.Remaining-6) > 0.001 || s.Keys != int64(n) || s.Overflowed != uint64(n) {
				t.Errorf("%d windows: %+v, %+v", n, d, s)
			}
			if d := take(t, m, Request{Key: "resident", Windows: limits[:n], Mode: DryRun}); math.Abs(d.Remaining-9) > 0.001 {
				t.Errorf("%d windows: the resident has %+v", n, d)
			}
		}
	}
}

// In a store that is short of places and of shared buckets, a look tells what comes of a charge.
func TestDryRunWithoutRoom(t *testing.T) {
	roomless := 0
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 2))
		var clock still
		m := newMemory(t, MemoryConfig{MaxKeys: 1 + r.IntN(8), Now: clock.now})
		m.overflow.most = r.IntN(6)
		for range 1000 {
			clock.advance(time.Duration(r.IntN(3000)) * time.Millisecond)
			tk := Request{Key: fmt.Sprint(r.IntN(12)), Cost: int64(r.IntN(20)), Debt: r.IntN(2) == 0}
			for range 1 + r.IntN(3) {
				tk.Windows = append(tk.Windows, Window{Rate: 1 + float64(r.IntN(3)), Burst: 10})
			}
			tk.Mode = DryRun
			look := take(t, m, tk)
			tk.Mode = Strict
			d := take(t, m, tk)
			if d.OK {
				d.Remaining += float64(tk.Cost)
			} else if m.overflow.used == m.overflow.most {
				roomless++
			}
			if look.OK != d.OK || look.Wait != d.Wait || math.Abs(look.Remaining-d.Remaining) > 1e-6 {
				t.Fatalf("seed %d: %+v: told %+v, then %+v", seed, tk, look, d)
			}
		}
	}
	if roomless < 1000 {
		t.Errorf("only %d times was there no room", roomless)
	}
}

// What is taken from the shared bucket and given back to one's own is no gain.
func TestRefundAfterOverflow(t *testing.T) {
	var clock still
	m := crowded(t, &clock)
	limits := []Window{{Rate: 1e-6, Burst: 500}}
	if r := take(t, m, Request{Key: "k", Windows: limits, Cost: 499}); !r.OK {
		t.Fatalf("%+v", r)
	}
	clock.advance(60 * time.Second)
	if r := take(t, m, Request{Key: "k", Windows: limits, Cost: 2}); r.OK || m.Stats().Purged != 1 {
		t.Fatalf("%+v, %+v", r, m.Stats())
	}
	if err := m.Refund(ctx, "k", limits, 499); err != nil {
		t.Fatal(err)
	}
	if r := take(t, m, Request{Key: "k", Windows: limits, Cost: 500, Mode: DryRun}); !r.OK {
		t.Errorf("%+v, want 500 of 500", r)
	}
	if r := take(t, m, Request{Key: "k", Windows: limits, Cost: 501, Mode: DryRun}); r.OK {
		t.Errorf("%+v, want 500 of 500", r)
	}
}

// Once the shared bucket is full again it is forgotten, and newcomers start with a
// full one.
func TestOverflowIsForgotten(t *testing.T) {
	var clock still
	m := crowded(t, &clock)
	for i := range 100 {
		take(t, m, Request{Key: fmt.Sprint(i), Windows: []Window{{Rate: 1, Burst: float64(10 + i)}}, Cost: 10})
	}
	if n := m.overflow.used; n != 100 {
		t.Fatalf("%d shared buckets, want 100", n)
	}
	clock.advance(time.Hour)
	if r := take(t, m, Request{Key: "new", Windows: []Window{{Rate: 1, Burst: 10}}, Cost: 10}); !r.OK {
		t.Errorf("%+v", r)
	}
	if m.overflow.used != 0 || m.overflow.any.Load() || m.Stats().Keys != 1 {
		t.Errorf("%d shared buckets left, %+v", m.overflow.used, m.Stats())
	}
}

// The overflow grows while a key with several windows gets its buckets there. None of them is left
// in the table of before.
func TestOverflowGrowsForSeveralWindows(t *testing.T) {
	var clock still
	m := crowded(t, &clock)
	for i := range 200 {
		limits := []Window{{Rate: 1, Burst: float64(10 + i)}, {Rate: 2, Burst: float64(10 + i)}}
		tk := Request{Key: fmt.Sprint(i), Windows: limits, Cost: int64(10 + i)}
		if r := take(t, m, tk); !r.OK || r.Remaining != 0 {
			t.Errorf("key %d: %+v, want all of its burst", i, r)
		}
		if r := take(t, m, tk); r.OK {
			t.Errorf("key %d: %+v, want the charge in both windows", i, r)
		}
	}
}

// For more windows than have a shared bucket there is none. Whoever comes is refused, and nobody fills
// the bucket of another, until there is room. How soon that is does not depend on the limit.
func TestNoRoomForAWindow(t *testing.T) {
	var clock still
	m := crowded(t, &clock)
	some := []Window{{Rate: 1, Burst: 100}}
	for i := range mostOverflow {
		take(t, m, Request{Key: fmt.Sprint(i), Windows: []Window{{Rate: 1, Burst: float64(100 + i)}}, Cost: 50})
	}
	slow, quick := Per(5, 24*time.Hour), Per(1e6, time.Second)
	for range 10 {
		for _, limits := range [][]Window{{quick}, {slow}, {slow, quick}, {some[0], slow}, {PerCalendar(5, Day, nil)}} {
			tk := Request{Key: fmt.Sprint(limits), Windows: limits, Cost: 1}
			for _, tk.Mode = range []Mode{Strict, DryRun, Reserve} {
				for _, tk.Debt = range []bool{false, true} {
					tk.MaxWait = 100 * 24 * time.Hour
					if r := take(t, m, tk); r.OK || r.Wait != sweepEvery || r.Remaining != 0 {
						t.Errorf("%v: %+v, want it refused until there may be room", tk, r)
					}
				}
			}
			tk.Mode = Permissive
			if r := take(t, m, tk); !r.OK || r.Wait <= 0 {
				t.Errorf("%v: %+v, want a wait", tk, r)
			}
			if err := m.Refund(ctx, tk.Key, limits, -1); err != nil {
				t.Error(err)
			}
		}
		clock.advance(time.Second)
	}
	debtor := Request{Key: "resident", Windows: []Window{some[0], slow}, Cost: 1} // has a place for its first bucket
	take(t, m, Request{Key: "resident", Windows: some, Cost: 1000, Mode: Permissive})
	for _, mode := range []Mode{Strict, DryRun, Reserve} {
		if r := take(t, m, Request{Key: "k", Windows: []Window{slow}, Cost: 6, Mode: mode}); r.OK || r.Wait != Never {
			t.Errorf("%v: %+v, want it refused for ever", mode, r)
		}
		if debtor.Mode = mode; take(t, m, debtor).Wait < 900*time.Second {
			t.Errorf("%v: want the wait for the debt", mode)
		}
	}
	clock.advance(time.Minute)
	take(t, m, Request{Key: "resident", Windows: []Window{{Rate: 1, Burst: 60}}, Cost: 60}) // has its place for another minute
	for _, mode := range []Mode{DryRun, Strict} {
		if r := take(t, m, Request{Key: "slow", Windows: []Window{slow}, Cost: 5, Mode: mode}); !r.OK || m.Stats().Purged != 0 {
			t.Errorf("%v: %+v, want all of its burst; %+v", mode, r, m.Stats())
		}
	}
}

// Permissive work without a place runs up the debt of its window, however many other windows there are. Nobody else pays
// for it, a correction of its cost adds to it, and whoever gets a place later begins with it.
func TestDebtWithoutPlace(t *testing.T) {
	var clock still
	m := crowded(t, &clock)
	const many = 3000
	window := func(i int) []Window { return []Window{{Rate: 1, Burst: float64(100 + i)}} }
	for i := range many {
		key, windows := fmt.Sprint(i), window(i)
		if r := take(t, m, Request{Key: key, Windows: windows, Cost: int64(100+i) + 1000, Mode: Permissive}); !r.OK || r.Wait != 1000*time.Second {
			t.Fatalf("window %d: %+v, want a debt of 1000 s", i, r)
		}
		if err := m.Refund(ctx, key, windows, -500); err != nil {
			t.Fatal(err)
		}
	}
	for i := range many {
		if r := take(t, m, Request{Key: fmt.Sprint(i), Windows: window(i), Mode: Permissive}); r.Wait != 1500*time.Second {
			t.Fatalf("window %d: %+v, want a debt of 1500 s", i, r)
		}
	}
	clock.advance(100 * time.Second) // the resident's bucket is full: there is a place
	for _, i := range []int{many - 1, 0} {
		if r := take(t, m, Request{Key: "newcomer", Windows: window(i), Debt: true}); r.OK || r.Wait != 1400*time.Second {
			t.Errorf("window %d: %+v, want the debt that is left", i, r)
		}
	}
	if r := take(t, m, Request{Key: "innocent", Windows: window(many), Debt: true}); !r.OK || m.Stats().Purged != 1 {
		t.Errorf("%+v, want no debt of others; %+v", r, m.Stats())
	}
}

// However small the store, a newcomer finds the place of a bucket that is full again,
// in whichever part of the store that is.
func TestSmallStoreServesNewcomers(t *testing.T) {
	for _, most := range []int{1, 3, 10, 100} {
		for windows := range 2 {
			if windows >= most {
				continue
			}
			t.Run(fmt.Sprintf("%d keys, %d windows", most, windows+1), func(t *testing.T) {
				var clock still
				m := newMemory(t, MemoryConfig{MaxKeys: most, Now: clock.now})
				limits := []Window{{Rate: 10, Burst: 10}, {Rate: 5, Burst: 10}}[:windows+1]
				for i := range 10 * most {
					if r := take(t, m, Request{Key: fmt.Sprint(i), Windows: limits, Cost: 10}); !r.OK {
						t.Fatalf("newcomer %d: %+v", i, r)
					}
					clock.advance(2 * time.Second)
				}
				if s := m.Stats(); s.Overflowed != 0 {
					t.Errorf("%+v", s)
				}
			})
		}
	}
}

// A clock that was set back does not end the search for places.
func TestPlacesAfterTheClockWentBack(t *testing.T) {
	var clock still
	clock.advance(time.Hour)
	m := newMemory(t, MemoryConfig{MaxKeys: 1, Now: clock.now})
	limits := []Window{{Rate: 1, Burst: 10}}
	take(t, m, Request{Key: "a", Windows: limits, Cost: 10})
	take(t, m, Request{Key: "b", Windows: limits, Cost: 10}) // searched, in vain
	clock.advance(-30 * time.Minute)
	take(t, m, Request{Key: "a", Windows: limits, Cost: 0}) // time counts from here
	clock.advance(11 * time.Second)
	if take(t, m, Request{Key: "c", Windows: limits, Cost: 1}); m.Stats().Purged != 1 {
		t.Errorf("%+v", m.Stats())
	}
}

// Whoever comes and goes, in whatever bucket a key is counted: it is let through
// only what a bucket of its own would have let through.
func TestNoKeyEscapesByOverflow(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 10
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 1))
		var clock still
		m := newMemory(t, MemoryConfig{MaxKeys: 1 + r.IntN(8), Now: clock.now})
		own := newMemory(t, MemoryConfig{Now: clock.now})
		limits := []Window{{Rate: 1, Burst: 20}, {Rate: 0.5, Burst: 30}}[:1+r.IntN(2)]
		debt := r.IntN(2) == 0
		for range 2000 {
			key, cost := fmt.Sprint(r.IntN(12)), int64(r.IntN(20))
			switch r.IntN(10) {
			case 0:
				clock.advance(time.Duration(r.IntN(10)) * time.Second)
			case 1: // settled: it cost less, or more
				tokens := float64(r.IntN(40)-20) / 4
				_ = m.Refund(ctx, key, limits, tokens)
				_ = own.Refund(ctx, key, limits, tokens)
			default:
				tk := Request{Key: key, Windows: limits, Cost: cost, Debt: debt}
				if !take(t, m, tk).OK {
					continue
				}
				if r := take(t, own, tk); !r.OK {
					t.Fatalf("seed %d: key %s was let through, and its own bucket says %+v", seed, key, r)
				}
			}
		}
		if s := m.Stats(); s.Keys > s.MaxKeys || s.Overflowed == 0 || s.Purged == 0 {
			t.Fatalf("seed %d: %+v", seed, s)
		}
	}
}

// A clock on the wall that is put back to before the process began does not stand
// still: the next day brings its tokens.
func TestWallBeforeTheStart(t *testing.T) {
	m := newMemory(t, MemoryConfig{})
	day := []Window{PerCalendar(5, Day, nil)}
	m.epoch = m.epoch.Add(365 * 24 * time.Hour) // as if it had begun in a year
	if r := take(t, m, Request{Key: "k", Windows: day, Cost: 5}); !r.OK {
		t.Fatalf("%+v", r)
	}
	if r := take(t, m, Request{Key: "k", Windows: day, Cost: 1}); r.OK || r.Wait > 24*time.Hour {
		t.Errorf("%+v, want a wait until midnight", r)
	}
	m.epoch = m.epoch.Add(-24 * time.Hour) // a day passes
	if r := take(t, m, Request{Key: "k", Windows: day, Cost: 5}); !r.OK {
		t.Errorf("%+v, want what the day brings", r)
	}
}

// A new key with several windows gets all its buckets in a store that is small for them.
func TestSeveralWindowsInASmallMemory(t *testing.T) {
	for _, most := range []int{8, 50, 1000} {
		for _, n := range []int{2, 3, MaxWindows} {
			m := newMemory(t, MemoryConfig{MaxKeys: most})
			var windows []Window
			for i := range n {
				windows = append(windows, Per(float64(10*(i+1)), time.Duration(i+1)*time.Hour))
			}
			for i := range 3 * most {
				if _, err := m.Decide(t.Context(), &Request{Key: fmt.Sprint(i), Windows: windows, Cost: 1}); err != nil {
					t.Fatal(err)
				}
			}
			if s := m.Stats(); s.Keys > int64(most) {
				t.Errorf("%d windows: %d buckets of %d", n, s.Keys, most)
			}
		}
	}
}

// A key that is new gets what its windows give, in a table of any size.
func TestNewKeysWithSeveralWindows(t *testing.T) {
	for _, n := range []int{2, 3, 4, 5, MaxWindows} {
		m := newMemory(t, MemoryConfig{})
		var windows []Window
		for i := range n {
			windows = append(windows, Per(float64(10*(i+1)), time.Duration(i+1)*time.Hour))
		}
		for i := range 4000 {
			key := fmt.Sprint(i)
			for left := 9; left >= 8; left-- {
				d, err := m.Decide(t.Context(), &Request{Key: key, Windows: windows, Cost: 1})
				if err != nil || !d.OK || d.Remaining < float64(left) || d.Remaining > float64(left)+0.1 {
					t.Fatalf("%d windows, key %d: %+v, %v; want %d left", n, i, d, err, left)
				}
			}
		}
	}
}
