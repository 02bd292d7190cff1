package slot_test

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/weir-go/weir/slot"
)

// counter is a gate's side that counts what it is told.
type counter struct {
	slot        slot.Slot
	group       slot.Group
	done, freed atomic.Int64
}

func newCounter() *counter {
	c := &counter{}
	c.group.Holder = c
	c.group.Freed = func(*slot.Slot) { c.freed.Add(1) }
	c.slot.Init(&c.group, 0)
	c.slot.Restore()
	return c
}

func (c *counter) Done(t slot.Ticket, _ uint8) {
	if live, _ := t.Recall(); live {
		c.done.Add(1)
	}
}
func (c *counter) Sample(slot.Ticket, uint8)          {}
func (c *counter) Cancel(slot.Ticket)                 {}
func (c *counter) SetCost(slot.Ticket, string, int64) {}

// A gate that begins to care while permits come and go either sees the slot free
// or is told of its release, never neither: a waiter would wait for ever. And a
// slot is handed out or retired, not both.
func TestNoReleaseGoesUnnoticed(t *testing.T) {
	c := newCounter()
	var taken atomic.Uint64
	var quiet atomic.Int64 // the last round in which the user saw that the gate cares
	var round atomic.Int64
	var wg sync.WaitGroup
	defer wg.Wait()
	defer round.Store(-1)
	wg.Go(func() {
		for i := 0; ; i++ {
			if i%256 == 0 {
				runtime.Gosched()
			}
			now := round.Load()
			if now < 0 {
				return
			}
			if c.group.Attention.Load() != 0 {
				quiet.Store(now)
				runtime.Gosched()
			} else if p, ok := c.slot.Take(); ok {
				taken.Add(1)
				p.Done(0)
			}
		}
	})
	for n := int64(1); n <= 4000; n++ {
		for before := taken.Load(); taken.Load() == before; {
			runtime.Gosched() // until the user is at it
		}
		for range n % 37 {
			round.Load() // at another moment of the user's each time
		}
		round.Store(n)
		c.group.Attention.Store(1)
		seen := c.slot.Retire()
		for quiet.Load() != n {
			runtime.Gosched()
		}
		if !seen && c.done.Load()+c.freed.Load() == 0 {
			t.Fatalf("round %d: given back, and the gate does not know", n)
		}
		if uses := c.slot.Uses(); uses != taken.Load() {
			t.Fatalf("round %d: taken %d times, given back %d", n, taken.Load(), uses)
		}
		c.done.Store(0)
		c.freed.Store(0)
		if c.slot.IsRetired() {
			c.slot.Restore()
		}
		c.group.Attention.Store(0)
	}
}

// A ticket that has been sampled is as live, and as held, as before.
func TestSampledIsStillHeld(t *testing.T) {
	c := newCounter()
	p, _ := c.slot.Take()
	if !p.MarkSampled() || p.MarkSampled() {
		t.Error("marked other than once")
	}
	if !p.Live() || !c.slot.Held() || c.slot.IsRetired() || c.slot.Retire() {
		t.Error("sampling let go of the slot")
	}
	if live, sampled := p.Free(); !live || !sampled {
		t.Errorf("live %v, sampled %v", live, sampled)
	}
	if live, _ := p.Free(); live || p.Live() || c.slot.Held() || c.slot.Uses() != 1 {
		t.Error("given back other than once")
	}
}

// Whoever raises the attention and sees the slot held hears of its release, however close the two come.
func TestAHeldSlotIsHeardOf(t *testing.T) {
	for i := range 300_000 {
		c := newCounter()
		ticket, ok := c.slot.Take()
		if !ok {
			t.Fatal("no slot")
		}
		var released sync.WaitGroup
		released.Go(func() {
			for range i % 64 {
				_ = c.slot.Held()
			}
			ticket.Done(0)
		})
		for range i / 64 % 64 {
			_ = c.slot.Held()
		}
		c.group.Attention.Store(1)
		held := false
		for !held && !c.slot.Retire() && !c.slot.IsRetired() {
			held = c.slot.Held()
		}
		released.Wait()
		if held && c.done.Load()+c.freed.Load() == 0 {
			t.Fatalf("run %d: the slot was held, and nobody has said that it is free", i)
		}
	}
}

// The same with one user who is at work already, so that release and attention meet within nanoseconds. It
// takes many rounds, because only some of them do.
func TestReleaseIsHeardOnceAttentionIsRaised(t *testing.T) {
	if runtime.GOMAXPROCS(0) < 2 {
		t.Skip("needs two processors")
	}
	const rounds = 50_000
	c := newCounter()
	var ticket slot.Ticket
	var begun, ended atomic.Int64
	await := func(n *atomic.Int64, round int64) {
		for spins := 0; n.Load() < round; spins++ {
			if spins > 5000 {
				runtime.Gosched()
			}
		}
	}
	var user sync.WaitGroup
	defer user.Wait()
	defer begun.Store(rounds) // if the test ends early
	user.Go(func() {
		for round := int64(1); round <= rounds; round++ {
			await(&begun, round)
			ticket.Done(0)
			ended.Store(round)
		}
	})
	for round := int64(1); round <= rounds; round++ {
		c.group.Attention.Store(0)
		if c.slot.IsRetired() {
			c.slot.Restore()
		}
		ticket, _ = c.slot.Take()
		before := c.done.Load() + c.freed.Load()
		begun.Store(round)
		for range round % 300 {
			runtime.KeepAlive(round)
		}
		c.group.Attention.Store(1)
		held := c.slot.Held()
		await(&ended, round)
		if held && c.done.Load()+c.freed.Load() == before {
			t.Fatalf("round %d: the slot was held when the gate began to care, and nobody has said that it is free", round)
		}
	}
}

// The count of uses never falls, whenever it is read.
func TestIssuedNeverFalls(t *testing.T) {
	g, s := new(slot.Group), new(slot.Slot)
	s.Init(g, 1)
	s.Restore()
	if n := s.Issued(); n != 0 {
		t.Errorf("%d before any use", n)
	}
	var done atomic.Bool
	go func() {
		defer done.Store(true)
		for range 2_000_000 {
			if tk, ok := s.Take(); ok {
				tk.Free()
			}
		}
	}()
	var last uint64
	for !done.Load() {
		n := s.Issued()
		if n < last {
			t.Fatalf("%d after %d", n, last)
		}
		last = n
	}
	if n := s.Issued(); n != 2_000_000 {
		t.Errorf("%d in the end", n)
	}
}
