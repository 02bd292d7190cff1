package quota

import (
	"fmt"
	"math"
	"runtime"
	"sync"
	"testing"
	"time"
)

// A bucket that was full under a quick limit is not under the slow one that has replaced it. One that was full before
// the change may be forgotten, and so may one that is full by each limit that its rule may have now.
func TestReplacedLimitIsNotForgiven(t *testing.T) {
	quick, slow, other := Window{Rate: 10, Burst: 100}, Window{Rate: 1, Burst: 100}, Window{Rate: 20, Burst: 200}
	type change = map[Window][]Window
	there := change{quick: {slow}}
	var many change // more than a class has terms
	for i := range 3 * maxTerms {
		many = change{quick: append(many[quick], Window{Rate: 20 + float64(i), Burst: 100})}
	}
	for _, c := range []struct {
		name   string
		idle   time.Duration // before the changes
		change []change
		kept   time.Duration // from then on
	}{
		{"nothing", 0, nil, 10 * time.Second},
		{"slower", 0, []change{there}, 100 * time.Second},
		{"slower, and back, and again", 0, []change{there, {slow: {quick}}, there}, 100 * time.Second},
		{"two rules that had the same", 0, []change{{quick: {other, slow}}}, 100 * time.Second},
		{"two rules that had the same, in the other order", 0, []change{{quick: {slow, other}}}, 100 * time.Second},
		{"two rules that swap theirs", 0, []change{{quick: {slow}, slow: {quick}}}, 100 * time.Second},
		{"another rule's", 0, []change{{other: {slow}}}, 10 * time.Second},
		{"a replacement that is replaced", 0, []change{{quick: {other}}, {other: {slow}}}, 100 * time.Second},
		{"one of many that is replaced", 0, []change{many, {many[quick][2*maxTerms]: {slow}}}, 100 * time.Second},
		{"not full before", 9 * time.Second, []change{there}, 91 * time.Second},
		{"full before", 10 * time.Second, []change{there}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var clock still
			m := newMemory(t, MemoryConfig{Now: clock.now})
			take(t, m, Request{Key: "k", Windows: []Window{quick}, Cost: 100})
			clock.advance(c.idle)
			for _, by := range c.change {
				m.classes.replaced(by, m.moments())
			}
			if c.kept > 0 {
				clock.advance(c.kept - time.Second)
				if m.Purge(); m.Stats().Keys != 1 {
					t.Errorf("%v after the change it is forgotten", c.kept-time.Second)
				}
			}
			clock.advance(time.Second)
			if m.Purge(); m.Stats().Keys != 0 {
				t.Errorf("%v after the change it is not forgotten", c.kept)
			}
		})
	}
}

// A change visits each number once, also those whose last term stands for many windows. That is seen by what it allocates.
func TestChangeOfManyWindows(t *testing.T) {
	const n = 200
	var clock still
	m := newMemory(t, MemoryConfig{Now: clock.now})
	window := func(change, i int) Window { return Window{Rate: float64(1 + i), Burst: float64(100 + n*change + i)} }
	for i := range n {
		take(t, m, Request{Key: fmt.Sprint(i), Windows: []Window{window(0, i)}, Cost: 50})
	}
	var changes []map[Window][]Window
	for c := range maxTerms + 2 {
		by := map[Window][]Window{}
		for i := range n {
			by[window(c, i)] = []Window{window(c+1, i)}
		}
		changes = append(changes, by)
	}
	next := func() {
		m.classes.replaced(changes[0], m.moments())
		changes = changes[1:]
	}
	for range maxTerms {
		next()
	}
	if allocations := testing.AllocsPerRun(1, next); allocations > 3*n {
		t.Errorf("%v allocations, want some for each of %d numbers", allocations, n)
	}
	if last := m.classes.get(1).terms[maxTerms-1].window; last != (Window{Rate: 1, Burst: window(maxTerms+2, n-1).Burst}) {
		t.Errorf("the last term is %v, want one that is slower than all", last)
	}
}

// More limits than have a number: their buckets are kept until all would be full.
func TestLimitsWithoutNumber(t *testing.T) {
	var clock still
	m := newMemory(t, MemoryConfig{Now: clock.now})
	for i := range maxClasses + 100 {
		take(t, m, Request{Key: fmt.Sprint(i), Windows: []Window{{Rate: 1 + float64(i), Burst: 1000}}, Cost: 500})
	}
	take(t, m, Request{Key: "slowest", Windows: []Window{{Rate: 0.001, Burst: 1000}}, Cost: 500})
	take(t, m, Request{Key: "month", Windows: []Window{PerCalendar(1000, Month, nil)}, Cost: 1})
	clock.advance(time.Hour)
	if m.Purge(); m.Stats().Keys < 100 || m.Stats().Keys > 103 {
		t.Errorf("%+v", m.Stats())
	}
	clock.advance(10_000 * time.Hour)
	if m.Purge(); m.Stats().Keys != 0 {
		t.Errorf("%+v, want no key", m.Stats())
	}
}

// Unlike a number that is retired, the one for all other windows is taken after a change. A bucket of a window that has replaced
// another is not full because it has what the other one holds.
func TestChangeOfALimitWithoutNumber(t *testing.T) {
	var clock still
	m := newMemory(t, MemoryConfig{Now: clock.now})
	m.classes.most = 1
	was, now := Window{Rate: 10, Burst: 50}, Window{Rate: 0.001, Burst: 100}
	take(t, m, Request{Key: "before", Windows: []Window{was}, Cost: 50})
	m.classes.replaced(map[Window][]Window{was: {now}}, m.moments())
	take(t, m, Request{Key: "after", Windows: []Window{now}, Cost: 40})
	if m.Purge(); m.Stats().Keys != 2 {
		t.Errorf("%+v, want both keys", m.Stats())
	}
}

// A calendar without a number of its own is not taken for one that is full again
// before its longest period is over, however little was used, and a debt not before the last one.
func TestCalendarWithoutNumber(t *testing.T) {
	var clock still
	m := newMemory(t, MemoryConfig{Now: clock.now})
	for i := range maxClasses + maxTerms {
		take(t, m, Request{Key: fmt.Sprint(i), Windows: []Window{{Rate: 1 + float64(i), Burst: 10}}, Cost: 5})
	}
	month := []Window{PerCalendar(10, Month, nil)}
	for _, cost := range []int64{1, 10, 25} {
		take(t, m, Request{Key: fmt.Sprint("month ", cost), Windows: month, Cost: cost, Debt: true})
	}
	for _, days := range []int{0, 29, 29 + 28, 29 + 28 + 30, 29 + 28 + 30 + 91} { // from 1 January; a month ends soon after each of the next three
		clock.Store(int64(days) * int64(24*time.Hour))
		m.Purge()
		for _, cost := range []int64{1, 10, 25} {
			want := min(10-float64(cost)+10*Calendar{Period: Month}.passed(m.epoch, m.epoch.Add(clock.now())), 10)
			if got := take(t, m, Request{Key: fmt.Sprint("month ", cost), Windows: month, Mode: DryRun}); got.Remaining != want {
				t.Errorf("used %d, %d days later: %v left, want %v", cost, days, got.Remaining, want)
			}
		}
	}
	if s := m.Stats(); s.Keys != 0 {
		t.Errorf("%+v, want no key", s)
	}
}

// Where a slow window stands for a calendar, alone or with others, a bucket is not full before the longest period is over. It
// is after four.
func TestSlowWindowOfACalendar(t *testing.T) {
	quick := Window{Rate: 1, Burst: 10}
	for _, c := range []struct {
		period    Period
		zone, day string
	}{
		{Hour, "UTC", "2026-10-25"},
		{Day, "Europe/Berlin", "2026-10-25"},     // 25 hours
		{Day, "Pacific/Kwajalein", "1969-09-30"}, // twice
		{Week, "Europe/Berlin", "2026-10-25"},
		{Month, "Europe/Berlin", "2026-10-25"}, // 31 days and an hour
	} {
		w := PerCalendar(10, c.period, place(t, c.zone))
		date, err := time.ParseInLocation(time.DateOnly, c.day, w.Calendar.In)
		if err != nil {
			t.Fatal(err)
		}
		start, end := w.Calendar.Current(date)
		length := end.Sub(start)
		for name, windows := range map[string][]Window{"alone": {w}, "before another": {w, quick}, "after another": {quick, w}} {
			terms := &class{terms: []term{{window: slow(&w)}}}
			if len(windows) > 1 {
				terms = new(class)
				for i := range maxTerms - 1 {
					terms = terms.and(&Window{Rate: 1, Burst: float64(1 + i)}, nil)
				}
				terms = terms.and(&windows[0], nil).and(&windows[1], nil)
			}
			for _, used := range []float64{0.001, 5, 10} {
				b := bucket{tokens: 10 - used}
				if terms.full(b, moment{now: length - time.Second, wall: length - time.Second, epoch: start}) {
					t.Errorf("%v, %s: a bucket that lacks %v is full within %v", w.Calendar, name, used, length)
				}
				if !terms.full(b, moment{now: 4 * length, wall: 4 * length, epoch: start}) {
					t.Errorf("%v, %s: a bucket that lacks %v is not full after %v", w.Calendar, name, used, 4*length)
				}
			}
		}
	}
}

// When numbers run out, those that no bucket has any more are given to other windows. So windows of the past do not
// have the buckets of strangers kept.
func TestNumbersAreGivenAgain(t *testing.T) {
	var clock still
	m := newMemory(t, MemoryConfig{MaxKeys: 100, Now: clock.now})
	m.classes.most = 8
	customer := Request{Key: "customer", Cost: 1}
	for i := range 100 {
		customer.Windows = []Window{{Rate: 0.001, Burst: float64(1000 + i)}}
		take(t, m, customer)
	}
	for i := range 1000 {
		clock.advance(50 * time.Millisecond)
		if i == 500 {
			take(t, m, customer) // and so no bucket is left without a number
		}
		quick := []Window{{Rate: 50 + float64(i/250), Burst: 50}}
		if r := take(t, m, Request{Key: fmt.Sprint(i), Windows: quick, Cost: 5}); r.Remaining != 45 {
			t.Fatalf("stranger %d: %+v, %+v", i, r, m.Stats())
		}
	}
	if s := m.Stats(); s.Overflowed > 0 || s.Purged < 900 {
		t.Errorf("%+v", s)
	}
}

// The sweep keeps the numbers of all buckets, also of those that are shared, and frees those of buckets that it forgets.
func TestSweepOfNumbers(t *testing.T) {
	var clock still
	m := newMemory(t, MemoryConfig{MaxKeys: 1, Now: clock.now})
	m.classes.most = 4
	window := func(n int) Window { return Window{Rate: 1, Burst: float64(10 + n)} }
	for i, c := range []struct {
		key    string
		window int
		after  time.Duration
		number uint16 // that the bucket has then
	}{
		{"resident", 1, 0, 1},
		{"shared", 2, 0, 2},
		{"resident", 3, 0, 3},
		{"resident", 4, 0, 0}, // there is no other
		{"shared too", 5, 2 * time.Second, 3},
		{"resident", 4, 0, 1},
		{"shared as well", 6, 2 * time.Second, 0},
		{"shared as well", 6, 2 * time.Second, 0},
		{"a new resident", 7, time.Hour, 1},
	} {
		clock.advance(c.after)
		w := window(c.window)
		if take(t, m, Request{Key: c.key, Windows: []Window{w}, Cost: 10}); m.classes.ids[w] != c.number {
			t.Errorf("step %d: the number is %d, want %d", i+1, m.classes.ids[w], c.number)
		}
	}
	if w := m.classes.get(2).window; w != window(2) {
		t.Errorf("number 2 stands for %v, and a shared bucket has it", w)
	}
}

// While more windows are in use than have a number, newcomers seldom look for free ones. They look for a place each second.
func TestRoundsInVain(t *testing.T) {
	var clock still
	clock.advance(time.Hour)
	m := newMemory(t, MemoryConfig{MaxKeys: 10, Now: clock.now})
	m.classes.most = 4
	resident := func(i int) {
		take(t, m, Request{Key: fmt.Sprint(i), Windows: []Window{{Rate: 0.001, Burst: float64(10 + i)}}, Cost: 10})
	}
	for i := range 5 {
		resident(i)
	}
	rounds := func(d time.Duration) (n int) {
		for end := clock.now() + d; clock.now() < end; clock.advance(100 * time.Millisecond) {
			was := m.sweep.due
			if m.makeRoom(1); m.sweep.due != was {
				n++
			}
		}
		return n
	}
	if n := rounds(10 * time.Minute); n < 10 || n > 20 {
		t.Errorf("%d rounds for numbers in ten minutes", n)
	}
	clock.advance(-30 * time.Minute)
	if n := rounds(time.Second); n != 1 {
		t.Errorf("%d rounds once the clock was set back", n)
	}
	for i := range 5 {
		resident(5 + i)
	}
	if n := rounds(time.Minute); n < 55 {
		t.Errorf("%d rounds for a place in a minute", n)
	}
	clock.advance(10 * time.Hour)
	if rounds(2 * time.Second); m.classes.scarce.Load() || m.sweep.vain != 0 {
		t.Errorf("numbers are scarce: %v, and the next round comes %v late", m.classes.scarce.Load(), m.sweep.vain)
	}
}

// A change of rules need not visit numbers that were retired long ago.
func TestRetiredNumbersAreFreed(t *testing.T) {
	var clock still
	m := newMemory(t, MemoryConfig{Now: clock.now})
	for i := range 4 * manyRetired {
		clock.advance(sweepEvery)
		was, now := Window{Rate: 100, Burst: float64(10 + i)}, Window{Rate: 100, Burst: float64(11 + i)}
		for _, key := range []string{"same", fmt.Sprint(i)} {
			take(t, m, Request{Key: key, Windows: []Window{was}, Cost: 1})
		}
		m.classes.replaced(map[Window][]Window{was: {now}}, m.moments())
		if used := m.classes.given - len(m.classes.free); used > 2*manyRetired {
			t.Fatalf("%d numbers are used after %d changes", used, i+1)
		}
	}
}

// How many retired numbers are too many depends on how many of them the last round has seen in buckets.
func TestTooManyRetiredNumbers(t *testing.T) {
	var c classes
	c.init()
	next := 0
	retire := func(n int) (ids []uint16) {
		by := map[Window][]Window{}
		for range n {
			next++
			w := Window{Rate: 1, Burst: float64(next)}
			ids = append(ids, c.of(&w, 0))
			by[w] = []Window{{Rate: 2, Burst: 1}}
		}
		c.replaced(by, moment{})
		return ids
	}
	round := func(seen ...uint16) {
		var n numbers
		for _, id := range seen {
			n.add(id)
		}
		c.beginRound()
		c.endRound(&n)
	}
	expect := func(what string, scarce bool) {
		t.Helper()
		if c.scarce.Load() != scarce {
			t.Errorf("%s: numbers are scarce: %v", what, !scarce)
		}
	}
	retire(manyRetired - 1)
	expect("one less than too many", false)
	kept := retire(100)
	expect("too many", true)
	round(kept...)
	retire(manyRetired + 99)
	expect("one less than too many, and two for each that has buckets", false)
	retire(1)
	expect("as many more", true)
	round()
	retire(manyRetired)
	expect("too many, and none has buckets any more", true)
}

// Whoever takes a number for a bucket has locked that, or its part of the store, until it is written. Else a round of the sweep
// might come in between, and free the number.
func TestNumberIsTakenUnderALock(t *testing.T) {
	one, two := []Window{{Rate: 1, Burst: 10}}, []Window{{Rate: 1, Burst: 10}, {Rate: 1, Burst: 20}}
	for name, c := range map[string]struct {
		known, now []Window
		give       bool
	}{
		"a known key":                    {known: one, now: []Window{{Rate: 2, Burst: 10}}},
		"a known key of several windows": {known: two, now: []Window{{Rate: 2, Burst: 10}, {Rate: 2, Burst: 20}}},
		"a correction":                   {known: one, now: []Window{{Rate: 2, Burst: 10}}, give: true},
		"a new key":                      {now: one},
		"a new key of several windows":   {now: two},
	} {
		m := newMemory(t, MemoryConfig{})
		hash := m.hash.String("k")
		sh := m.shard(hash)
		if c.known != nil {
			take(t, m, Request{Key: "k", Windows: c.known, Cost: 5})
		}
		locked := func() bool {
			if s := sh.table.Load().find(windowID(hash, 0)); s != nil {
				return s.tokens.Load() == busy
			}
			if sh.mu.TryLock() {
				sh.mu.Unlock()
				return false
			}
			return true
		}
		m.classes.mu.Lock() // so whoever wants a number waits
		var asks sync.WaitGroup
		asks.Go(func() {
			if c.give {
				_ = m.Refund(ctx, "k", c.now, -1)
			} else {
				_, _ = m.Decide(ctx, &Request{Key: "k", Windows: c.now, Cost: 1, Mode: Permissive}) // never without a look at the number
			}
		})
		for end := time.Now().Add(10 * time.Second); !locked(); runtime.Gosched() {
			if time.Now().After(end) {
				t.Errorf("%s: nothing is locked by who waits for a number", name)
				break
			}
		}
		m.classes.mu.Unlock()
		asks.Wait()
	}
}

// What a round of the sweep frees: numbers that it has seen in no bucket, and that nobody has taken meanwhile.
func TestRoundOfNumbers(t *testing.T) {
	var c classes
	c.init()
	c.most = 4
	at := func(rate float64) *Window { return &Window{Rate: rate, Burst: 1} }
	for i, want := range []uint16{1, 2, 3, 0} {
		if id := c.of(at(float64(i+1)), 0); id != want {
			t.Fatalf("window %d has the number %d", i+1, id)
		}
	}
	for _, round := range []struct {
		name        string
		seen, taken []uint16
		scarce      bool
		again       []uint16 // what another four windows get
	}{
		{"all seen", []uint16{0, 1, 2, 3}, nil, true, []uint16{0, 0}},
		{"one taken", []uint16{0, 1, 2}, []uint16{3}, true, []uint16{0}},
		{"two free", []uint16{0, 1}, nil, false, []uint16{3, 2, 0}},
		{"without a number no more", []uint16{1, 2, 3}, nil, true, nil},
	} {
		c.beginRound()
		var seen numbers
		for _, id := range round.seen {
			seen.add(id)
		}
		for _, id := range round.taken {
			w := c.get(id).window
			if got := c.of(&w, 0); got != id {
				t.Errorf("%s: %v has the number %d, want %d", round.name, w, got, id)
			}
		}
		if c.endRound(&seen); c.scarce.Load() != round.scarce || (c.get(0).terms == nil) == seen.has(0) {
			t.Errorf("%s: numbers are scarce: %v; %d terms of class 0", round.name, c.scarce.Load(), len(c.get(0).terms))
		}
		for i, want := range round.again {
			if id := c.of(at(float64(100+i)), 0); id != want {
				t.Errorf("%s: another window gets the number %d, want %d", round.name, id, want)
			}
			if c.get(want).window != *at(float64(100 + i)) && want != 0 {
				t.Errorf("%s: number %d stands for %v", round.name, want, c.get(want).window)
			}
		}
	}
}

// Buckets keep what they have while rules change, numbers are freed and given again, and tables are made anew.
func TestNumbersUnderLoad(t *testing.T) {
	const each, keys, workers = 200, 50, 4
	m := newMemory(t, MemoryConfig{MaxKeys: 100})
	m.classes.most = 4
	slow := func(n int) Window { return Window{Rate: MinRate * float64(1+n%8), Burst: each*workers + 2} }
	for k := range keys {
		take(t, m, Request{Key: fmt.Sprint(k), Windows: []Window{slow(0), slow(1)}, Cost: 1})
	}
	stop := make(chan struct{})
	var wg, others sync.WaitGroup
	others.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			m.sweep.mu.Lock()
			m.sweep.due, m.sweep.vain = 0, 0 // every newcomer begins a round
			m.sweep.mu.Unlock()
			take(t, m, Request{Key: fmt.Sprint("passing ", i), Windows: []Window{Per(1e6+float64(i%100), time.Second)}, Cost: 1})
			if i%10 == 0 {
				m.classes.replaced(map[Window][]Window{slow(i): {slow(i + 1), slow(i + 2)}}, m.moments())
			}
		}
	})
	for g := range workers {
		wg.Go(func() {
			for i := range each {
				for k := range keys {
					windows := []Window{slow(g + i + k)}
					if k%5 == 0 {
						windows = append(windows, slow(i))
					}
					if r, err := m.Decide(ctx, &Request{Key: fmt.Sprint(k), Windows: windows, Cost: 1}); err != nil || !r.OK {
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
		if r := take(t, m, Request{Key: fmt.Sprint(k), Windows: []Window{slow(0)}, Mode: DryRun}); math.Abs(r.Remaining-1) > 1e-3 {
			t.Errorf("key %d has %v left, want 1", k, r.Remaining)
		}
	}
}
