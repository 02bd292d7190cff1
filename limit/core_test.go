package limit

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/weir-go/weir"
	"github.com/weir-go/weir/control"
	"github.com/weir-go/weir/internal/room"
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
	if w := waiting.Next(0); w != nil && l.bank >= min(w.Owner.(*waiter).cost, l.limit) {
		t.Fatalf("lost wake-up: %d in the bank and somebody waits for %d", l.bank, w.Owner.(*waiter).cost)
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

// A deadline from a message has no monotonic reading. The system's clock may have
// been set since the limiter was made: then its epoch lies at the wrong time of day.
func TestDeadlineAfterTheClockWasSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := weir.Must(New(Config{Name: "t", Limit: 1}))
		defer l.Close()
		l.epoch = l.epoch.Add(-time.Hour)
		now, left := 3*time.Second, time.Minute
		if got := l.deadline(now, time.Now().Round(0).Add(left)); got != now+left {
			t.Errorf("a deadline in %v is at %v, seen from %v", left, got, now)
		}
		if got := l.deadline(now, time.Unix(1<<40, 0)); got != room.Never {
			t.Errorf("a deadline far away is at %v", got)
		}
	})
}

func TestBerthFillsACacheLine(t *testing.T) {
	if size := unsafe.Sizeof(berth{}); unsafe.Sizeof(uintptr(0)) == 8 && size != 64 {
		t.Errorf("a berth takes %d bytes: change its padding", size)
	}
}
