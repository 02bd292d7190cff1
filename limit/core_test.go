package limit

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/gate"
)

// check tests what must hold after every step.
func (l *Limiter) check(t *testing.T) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	var held, heldCost, free, retired int64
	for _, b := range *l.table.Load() {
		switch {
		case b.Held():
			held++
			heldCost += max(1, b.cost)
		case b.IsRetired():
			retired++
		default:
			free++
		}
	}
	if retired != int64(len(l.spare)) {
		t.Fatalf("%d slots retired, %d of them known", retired, len(l.spare))
	}
	if !l.slow {
		if held+free > l.limit {
			t.Fatalf("fast gear: %d held + %d free > limit %d", held, free, l.limit)
		}
		if l.room.Len() > 0 {
			t.Fatalf("fast gear with %d waiting", l.room.Len())
		}
		return
	}
	if free != 0 {
		t.Fatalf("slow gear: %d slots free", free)
	}
	if heldCost+l.bank != l.limit {
		t.Fatalf("slow gear: %d in flight + %d in the bank != limit %d", heldCost, l.bank, l.limit)
	}
	// Of a copy, because looking must not change what the room knows; and at no time,
	// so that the order is the one of the last event: it may turn between two.
	waiting := l.room
	if w := waiting.Next(0); w != nil && l.bank >= min(gate.WaiterOf(w).Cost, l.limit) {
		t.Fatalf("lost wake-up: %d in the bank and somebody waits for %d", l.bank, gate.WaiterOf(w).Cost)
	}
}

func TestGrowWakesShrinkRevokesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := weir.Must(New(Config{Name: "t", Limit: 2}))
		defer l.Close()
		a, _ := l.TryAdmit(weir.Work{})
		b, _ := l.TryAdmit(weir.Work{})
		admitted := make(chan weir.Permit, 3)
		for range 3 {
			go func() {
				p, err := l.Admit(context.Background(), weir.Work{})
				if err != nil {
					t.Error(err)
				}
				admitted <- p
			}()
		}
		synctest.Wait()
		if err := l.SetLimit(4); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(admitted) != 2 {
			t.Fatalf("growing by 2 woke %d", len(admitted))
		}
		if err := l.SetLimit(1); err != nil {
			t.Fatal(err)
		}
		l.check(t)
		a.Done(weir.OK)
		b.Done(weir.OK)
		(<-admitted).Done(weir.OK)
		synctest.Wait()
		if len(admitted) != 1 {
			t.Fatalf("granted with 1 of 1 in flight: %d", len(admitted))
		}
		(<-admitted).Done(weir.OK)
		(<-admitted).Done(weir.OK)
		l.check(t)
		if s := l.Snapshot(); s.InFlight != 0 || s.Admitted != 5 {
			t.Fatalf("in flight %d, admitted %d", s.InFlight, s.Admitted)
		}
	})
}

// Saturation counts from the moment the account begins, not from the next change.
func TestShiftingDownFullIsSaturated(t *testing.T) {
	var now time.Duration
	l := weir.Must(New(Config{Name: "t", Limit: 1, Now: func() time.Duration { return now }}))
	defer l.Close()
	if _, err := l.TryAdmit(weir.Work{}); err != nil {
		t.Fatal(err)
	}
	if _, err := l.TryAdmit(weir.Work{}); err == nil || !l.slow {
		t.Fatalf("slow gear %v, error %v", l.slow, err)
	}
	now = time.Second
	var w control.Window
	l.read(now, &w)
	if w.Saturated != time.Second {
		t.Errorf("saturated for %v of a second without a free slot", w.Saturated)
	}
}

func TestBerthFillsACacheLine(t *testing.T) {
	if size := unsafe.Sizeof(berth{}); unsafe.Sizeof(uintptr(0)) == 8 && size != 64 {
		t.Errorf("a berth takes %d bytes: change its padding", size)
	}
}

// byHand returns a limiter whose clock the test moves.
func byHand(cfg Config) (*Limiter, *time.Duration) {
	now := new(time.Duration)
	cfg.Name, cfg.Now = "t", func() time.Duration { return *now }
	return weir.Must(New(cfg)), now
}

func (l *Limiter) take(t *testing.T, n int) (permits []weir.Permit) {
	t.Helper()
	for range n {
		p, err := l.TryAdmit(weir.Work{})
		if err != nil {
			t.Fatal(err)
		}
		permits = append(permits, p)
	}
	return permits
}

// The fast gear is where a limiter starts, and where it comes back to with all
// of its slots.
func TestComesBackToTheFastGear(t *testing.T) {
	l, now := byHand(Config{Limit: 8})
	for range 3 {
		if l.slow {
			t.Fatal("slow without need")
		}
		for _, p := range l.take(t, 8) {
			p.Done(weir.OK)
		}
		if l.slow {
			t.Fatal("slow with a slot for each")
		}
		p, err := l.TryAdmit(weir.Work{Cost: 2})
		if err != nil || !l.slow {
			t.Fatalf("a cost of 2: %v, slow %v", err, l.slow)
		}
		*now += calm
		p.Done(weir.OK)
	}
	ticket, _ := l.search()
	(*holder)(l).Done(ticket, uint8(weir.OK)) // by the long road, but there is nothing to account
	for _, p := range l.take(t, 8) {
		p.Cancel()
	}
	if s := l.Snapshot(); l.slow || s.InFlight != 0 || s.Admitted != 3*9+1 {
		t.Errorf("slow %v, in flight %d, admitted %d", l.slow, s.InFlight, s.Admitted)
	}
}

// The fast gear does not know whose work is in flight, and keeps no names.
func TestForgetsAccountsInTheFastGear(t *testing.T) {
	l, now := byHand(Config{Limit: 4})
	out := l.take(t, 4)
	l.enter(t, weir.Work{User: "u", Tenant: "a"}, func(got weir.Permit, _ error) { out[0] = got })
	out[0].Done(weir.OK)
	if !l.slow || !l.accounting || l.accounts.All == nil {
		t.Fatalf("slow %v, accounting %v, %v: the waiter has no account", l.slow, l.accounting, l.accounts.All)
	}
	for _, p := range out {
		p.Done(weir.OK)
		*now += calm
	}
	if l.slow || l.accounting || l.accounts.All != nil {
		t.Errorf("slow %v, accounting %v, %v", l.slow, l.accounting, l.accounts.All)
	}
}

// In the fast gear nobody would wake who waits.
func TestStaysSlowWhileSomebodyWaits(t *testing.T) {
	l, now := byHand(Config{Limit: 4, Queue: Queue{MaxWait: -1}})
	out := l.take(t, 2)
	admitted := false
	_, _, err := l.Arrive(weir.Work{Cost: 4}, func(weir.Permit, error) { admitted = true })
	if err != weir.ErrWaiting {
		t.Fatal(err)
	}
	*now += 2 * calm
	l.Step()
	l.check(t)
	for _, p := range out {
		p.Done(weir.OK)
	}
	if l.check(t); !admitted {
		t.Error("both slots came back and nobody was woken")
	}
}

// Done found the limiter fast and gave its slot back by itself; by the time it
// tells so, somebody waits for that slot.
func TestLateNewsOfAFreedSlot(t *testing.T) {
	l, now := byHand(Config{Limit: 1})
	ticket, ok := l.search()
	admitted := !ok
	if _, _, err := l.Arrive(weir.Work{}, func(weir.Permit, error) { admitted = true }); err != weir.ErrWaiting {
		t.Fatal(err)
	}
	ticket.Free()
	l.slotFreed(&l.berth(ticket).Slot)
	l.check(t)
	if s := l.Snapshot(); !admitted || s.InFlight != 1 || *now != 0 {
		t.Errorf("admitted %v, in flight %d", admitted, s.InFlight)
	}
}

// Whatever admissions and releases do while the core shifts down, the books
// balance afterwards: no slot is counted as held that has come back unnoticed.
func TestShiftDownBesideTheFastPath(t *testing.T) {
	l, now := byHand(Config{Limit: 2})
	var round, heard atomic.Int64 // odd: the user is to be quiet
	var wg sync.WaitGroup
	defer wg.Wait()
	defer round.Store(-1)
	wg.Go(func() {
		for i := 0; ; i++ {
			n := round.Load()
			if n < 0 {
				return
			}
			if heard.Load() != n {
				heard.Store(n)
			}
			if n%2 == 1 || i%256 == 0 {
				runtime.Gosched()
			}
			if n%2 == 1 {
				continue
			}
			if p, err := l.TryAdmit(weir.Work{}); err != nil {
				t.Error(err)
			} else {
				p.Done(weir.OK)
			}
		}
	})
	tell := func(n int64) {
		round.Store(n)
		for heard.Load() != n {
			runtime.Gosched()
		}
	}
	for n := range int64(1000) {
		if err := l.SetLimit(3 - n%2); err != nil {
			t.Fatal(err)
		}
		tell(2*n + 1)
		l.check(t)
		if s := l.Snapshot(); s.InFlight != 0 {
			t.Fatalf("round %d: in flight %d", n, s.InFlight)
		}
		*now += calm
		if l.Step(); l.slow {
			t.Fatalf("round %d: still slow", n)
		}
		tell(2*n + 2)
		for range n % 37 {
			round.Load() // at another moment of the user's each time
		}
	}
}

// A search that is interrupted anywhere while the table grows goes on in a table that
// has the hint.
func TestSearchWhileTheTableGrows(t *testing.T) {
	var m runtime.MemStats
	for range 500 {
		l := weir.Must(New(Config{Name: "t", Limit: 1 << 10}))
		l.take(t, len(*l.table.Load()))
		searching, grown := make(chan struct{}), atomic.Bool{}
		var wg sync.WaitGroup
		wg.Go(func() {
			for close(searching); !grown.Load(); {
				if ticket, ok := l.search(); ok {
					ticket.Done(uint8(weir.OK))
				}
			}
		})
		<-searching
		runtime.ReadMemStats(&m) // stops the search
		l.take(t, 1)[0].Done(weir.OK)
		grown.Store(true)
		wg.Wait()
		l.Close()
	}
}

// What the slow path refuses, the fast path does not let through: with a free
// slot at hand, a deadline, a context and a cost count all the same.
func TestFastPathLooksAtTheWork(t *testing.T) {
	l := weir.Must(New(Config{Name: "t", Limit: 2}))
	defer l.Close()
	l.take(t, 1)[0].Done(weir.OK) // its slot is the hint now
	done, cancel := context.WithCancel(context.Background())
	cancel()
	late := weir.Work{Deadline: time.Now().Add(-time.Second)}
	if _, err := l.Admit(context.Background(), late); err == nil {
		t.Error("Admit: a deadline gone by")
	}
	if _, err := l.TryAdmit(late); err == nil {
		t.Error("TryAdmit: a deadline gone by")
	}
	if _, err := l.Admit(done, weir.Work{}); err == nil {
		t.Error("Admit: a context that is done")
	}
	if _, err := l.TryAdmit(weir.Work{Cost: -1}); err == nil {
		t.Error("TryAdmit: a negative cost")
	}
	if l.slow {
		t.Fatal("not the fast path")
	}
	if p, err := l.TryAdmit(weir.Work{Cost: 2}); err != nil || l.Snapshot().InFlight != 2 {
		t.Errorf("a cost of 2: %v, in flight %d", err, l.Snapshot().InFlight)
	} else {
		p.Done(weir.OK)
	}
}

// leaving is a context that ends, and has the slot granted, when its waiter
// begins to wait.
type leaving struct {
	context.Context
	grant func()
	err   error
}

func (c *leaving) Err() error { return c.err }
func (c *leaving) Done() <-chan struct{} {
	c.grant()
	c.err = context.Canceled
	over := make(chan struct{})
	close(over)
	return over
}

// The answer and the end of the context come at once: whichever is taken, the
// slot is not lost, and work that has not started is not counted.
func TestGrantedWhileLeaving(t *testing.T) {
	for range 40 {
		l, _ := byHand(Config{Limit: 1})
		out := l.take(t, 1)[0]
		p, err := l.Admit(&leaving{context.Background(), func() { out.Done(weir.OK) }, nil}, weir.Work{})
		if p.Live() != (err == nil) {
			t.Fatalf("live %v: %v", p.Live(), err)
		}
		want := uint64(1)
		if err == nil {
			want++
		}
		p.Done(weir.OK)
		l.check(t)
		if s := l.Snapshot(); s.InFlight != 0 || s.Admitted != want {
			t.Fatalf("in flight %d, admitted %d, want %d", s.InFlight, s.Admitted, want)
		}
	}
}

// A place in the room is used again; the answer of its last holder is not.
func TestPlacesForget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := weir.Must(New(Config{Name: "t", Limit: 1}))
		defer l.Close()
		for range 3 {
			out := l.take(t, 1)[0]
			if _, err := l.Admit(context.Background(), weir.Work{MaxWait: time.Millisecond}); err == nil {
				t.Fatal("admitted above the limit")
			}
			time.AfterFunc(time.Millisecond, func() { out.Done(weir.OK) })
			p, err := l.Admit(context.Background(), weir.Work{})
			if err != nil {
				t.Fatal(err)
			}
			p.Done(weir.OK)
		}
	})
}

// Work in flight gets its start on the way into the slow gear. Who goes there may have read the clock before the last change.
func TestShiftDownIsOfOneClock(t *testing.T) {
	l := weir.Must(New(Config{Name: "g", Limit: 2}))
	p := weir.Must(l.TryAdmit(weir.Work{}))
	l.mu.Lock()
	if l.slow {
		t.Fatal("a fixed limit that is in the slow gear")
	}
	last := l.front.Now() + 100*time.Millisecond
	l.window.Level(last, 1)
	l.shiftDown(last - 2*time.Millisecond)
	held := 0
	for _, b := range *l.table.Load() {
		if b.Held() {
			if held++; b.start != last {
				t.Errorf("its start is %v, before the last change at %v", b.start, last)
			}
		}
	}
	l.mu.Unlock()
	if held != 1 {
		t.Errorf("%d in flight", held)
	}
	p.Done(weir.OK)
}
