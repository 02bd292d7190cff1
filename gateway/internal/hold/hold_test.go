package hold

import (
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestMean(t *testing.T) {
	var m mean
	m.add(time.Second)
	if m.value() != time.Second {
		t.Errorf("first value: %v", m.value())
	}
	for range 10 * meanWeight {
		m.add(2 * time.Second)
	}
	if d := 2*time.Second - m.value(); d < 0 || d > 10*time.Millisecond {
		t.Errorf("after many of 2s: %v", m.value())
	}
}

// What is quick on one route says nothing about another, and what is stuck nothing good about what
// came after it.
func TestRest(t *testing.T) {
	var s Times
	quick, slow := s.Route("quick"), s.Route("slow")
	f := func(what string, r *Route, worked, want time.Duration) {
		t.Helper()
		if got := s.Rest(r, worked, r.Oldest(1)); got != want {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	s.Add(quick, 10*time.Millisecond, 0)
	f("quick", quick, 0, 10*time.Millisecond)
	f("slow, before its first answer", slow, time.Minute, 0)
	f("one route too many", nil, time.Minute, 0)
	s.Expect(time.Second)
	f("slow, with a guess", slow, 0, time.Second)
	s.Expect(0)
	s.Add(slow, 2*time.Second, 0)
	f("quick after slow", quick, 0, 10*time.Millisecond)
	f("slow", slow, 0, 2*time.Second)
	f("slow and old", slow, 3*time.Second, 3*time.Second)
	quick.Observe(1, time.Second)
	quick.Observe(1, 5*time.Second)
	quick.Observe(1, time.Second)
	f("quick, behind one that is stuck", quick, 0, 5*time.Second)
	quick.Observe(2, 0)
	f("quick, with that one gone", quick, 0, 10*time.Millisecond)
	if got, want := s.Mean(), 10*time.Millisecond+(2*time.Second-10*time.Millisecond)/meanWeight; got != want {
		t.Errorf("over all routes %v, want %v", got, want)
	}
}

// Clients that send slowly do not make work look short where others have shown what it takes.
func TestSlowClients(t *testing.T) {
	var s Times
	r := s.Route("a")
	s.Add(r, 10*time.Millisecond, time.Second)
	if got := s.Rest(r, 0, 0); got != 10*time.Millisecond {
		t.Errorf("with nothing better known: %v", got)
	}
	s.Add(r, time.Second, time.Second)
	for range 10 * meanWeight {
		s.Add(r, 10*time.Millisecond, time.Second)
	}
	if got := s.Rest(r, 0, 0); got != time.Second {
		t.Errorf("%v, want %v", got, time.Second)
	}
}

// However many names there are, what is kept of them is bounded.
func TestRoutesAreBounded(t *testing.T) {
	var s Times
	first := s.Route("0")
	for i := range mostRoutes + 10 {
		s.Route(strconv.Itoa(i))
	}
	if s.Route("one more") != nil || s.Route("0") != first {
		t.Error("more routes than there may be, or one was forgotten")
	}
}

func TestKeeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var k Keeper
		var released atomic.Int64
		release := func() { released.Add(1) }
		k.Hold(0, release)
		k.Hold(time.Second, release)
		if released.Load() != 1 || k.Held() != 1 {
			t.Errorf("%d released, %d held", released.Load(), k.Held())
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if released.Load() != 2 || k.Held() != 0 {
			t.Errorf("%d released, %d held", released.Load(), k.Held())
		}
		k.held.Store(mostHeld)
		k.Hold(time.Second, release)
		if released.Load() != 3 {
			t.Error("more are held than may be")
		}
	})
}
