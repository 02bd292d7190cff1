package quota

import (
	"sync"
	"sync/atomic"
	"time"
)

// classes number the limits in use, so that a bucket knows in two bytes by which
// it fills. That is only for forgetting it: every take brings its limit along.
type classes struct {
	list atomic.Pointer[[]class] // grows at its end; what is below never changes

	mu  sync.Mutex
	ids map[Limit]uint16
	// others is the slowest way to fill of all limits beyond the last class.
	others atomic.Pointer[Limit]
}

// class is a limit, and which one has replaced it.
type class struct {
	limit Limit
	next  *atomic.Uint32 // the class plus 1
}

// maxClasses bounds the limits that have a number; the others are class 0.
const maxClasses = 1 << 12

func (c *classes) init() {
	c.ids = map[Limit]uint16{}
	c.list.Store(&[]class{{next: new(atomic.Uint32)}})
}

// of returns the class of l, quickly if it is still was.
func (c *classes) of(l *Limit, was uint16) uint16 {
	if list := *c.list.Load(); list[was].limit == *l {
		return was
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.id(l)
}

// id returns the class of l, with the lock held.
func (c *classes) id(l *Limit) uint16 {
	if id, ok := c.ids[*l]; ok {
		return id
	}
	list := *c.list.Load()
	if len(list) == maxClasses {
		c.other(l)
		return 0
	}
	id := uint16(len(list))
	list = append(list, class{*l, new(atomic.Uint32)})
	c.list.Store(&list)
	c.ids[*l] = id
	return id
}

// other notes a limit that has no class.
func (c *classes) other(l *Limit) {
	slow := *l
	if l.Calendar.set() {
		const month = 31 * 24 * time.Hour
		slow = Limit{Rate: l.Burst / month.Seconds(), Burst: l.Burst}
	}
	if was := c.others.Load(); was != nil {
		slow.Rate, slow.Burst = min(slow.Rate, was.Rate), max(slow.Burst, was.Burst)
	}
	c.others.Store(&slow)
}

// replaced notes that the keys of one limit have another from now on.
func (c *classes) replaced(from, to *Limit) {
	if *from == *to {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if id, ok := c.ids[*from]; ok {
		next := c.id(to)
		(*c.list.Load())[id].next.Store(uint32(next) + 1)
	}
}

// chain is how many replacements of a limit are looked at.
const chain = 16

// all reports whether full holds for the limit of a class and for those that have
// replaced it. A limit that was changed to and fro leads back to itself, hence the
// bound.
func (c *classes) all(id uint16, full func(*Limit) bool) bool {
	for range chain {
		list := *c.list.Load()
		l := &list[id].limit
		if id == 0 {
			if l = c.others.Load(); l == nil {
				return false
			}
		}
		if !full(l) {
			return false
		}
		next := list[id].next.Load()
		if next == 0 {
			return true
		}
		id = uint16(next - 1)
	}
	return true
}
