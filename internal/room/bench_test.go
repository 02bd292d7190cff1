package room

import (
	"fmt"
	"runtime"
	"testing"
	"time"
)

// crowd is so many waiters of so many users with so many tenants each.
type crowd struct {
	users, tenants, each int
	order                Order
}

func (c crowd) String() string {
	s := fmt.Sprintf("%dusers×%dtenants×%d", c.users, c.tenants, c.each)
	if c.order == EDF {
		s += "/edf"
	}
	return s
}

// waiters returns the crowd's, in turn, with names counted from a number.
func (c crowd) waiters(from int) []*Waiter {
	var all []*Waiter
	for k := range c.each {
		for t := range c.tenants {
			for u := range c.users {
				w := &Waiter{Units: 1, Class: 1, Deadline: time.Duration(k*7919%1000) * ms}
				if c.users > 1 {
					w.User = fmt.Sprint("user", from+u)
				}
				if c.tenants > 1 {
					w.Tenant = fmt.Sprint("tenant", from+t)
				}
				all = append(all, w)
			}
		}
	}
	return all
}

func heapInUse() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkRoom is one waiter served and one let in, of a crowd that waits. What a
// waiter takes is measured with its Waiter, and without its names and its list.
func BenchmarkRoom(b *testing.B) {
	for _, c := range []crowd{
		{1, 1, 1, Adaptive}, {1, 1, 10_000, Adaptive}, {1, 10_000, 1, Adaptive}, {10_000, 1, 1, Adaptive},
		{100, 100, 1, Adaptive}, {1, 100, 100, Adaptive}, {1, 10_000, 1, EDF}, {1, 1, 10_000, EDF},
	} {
		b.Run(c.String()+"/same", func(b *testing.B) { turnover(b, c, false) })
		if c.each == 1 {
			b.Run(c.String()+"/others", func(b *testing.B) { turnover(b, c, true) })
		}
	}
}

// turnover has those come that were just served, or others that were served long
// ago.
func turnover(b *testing.B, c crowd, others bool) {
	now := time.Duration(0)
	named := c.waiters(0)
	in := make([]*Waiter, len(named))
	before := heapInUse()
	for i := range in {
		copied := *named[i]
		in[i] = &copied
	}
	var r Room
	r.Configure(len(in), c.order)
	r.SetPace(Pace{Interval: 100 * ms})
	for _, w := range in {
		now++
		w.Expires = now + time.Second
		r.CountArrival(now, w)
		r.Push(now, w)
	}
	waiter := float64(heapInUse()-before) / float64(len(in))
	runtime.KeepAlive(named)
	var absent []*Waiter
	if others {
		absent = c.waiters(10_000_000)
	}
	lap := func(i int) {
		now++
		w := r.Next(now)
		r.Dequeue(w)
		if others {
			w, absent[i%len(absent)] = absent[i%len(absent)], w
		}
		w.Expires = now + time.Second
		r.CountArrival(now, w)
		if _, ok := r.Push(now, w); !ok {
			b.Fatal("no place")
		}
	}
	for i := range 3 * len(in) {
		lap(i)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		lap(i)
		i++
	}
	b.ReportMetric(waiter, "B/waiter")
	runtime.KeepAlive(in)
}
