package proxy

import (
	"cmp"
	"slices"
)

// loaded is a seat and how many requests were in progress at its target when somebody looked.
type loaded struct {
	seat *seat
	load int64
}

// inOrder returns the seats as they are to be tried, from the given turn on. They are one after the
// other, or those with the fewest requests in progress come first. Equal ones stay in turn. buf is
// memory to use.
func (u *Upstream) inOrder(turn uint64, buf []loaded) []loaded {
	n := uint64(len(u.seats))
	for i := range n {
		s := &u.seats[(turn+i)%n]
		buf = append(buf, loaded{s, s.inside.Load()})
	}
	if u.leastLoaded {
		slices.SortStableFunc(buf, func(a, b loaded) int { return cmp.Compare(a.load, b.load) })
	}
	return buf
}

// enter counts a request as in progress at its target.
func (x *exchange) enter() {
	x.inside = true
	x.seat.inside.Add(1)
}

// leave is the end of that: the target has nothing left to do for it. It may be called again.
func (x *exchange) leave() {
	if x.inside {
		x.inside = false
		x.seat.inside.Add(-1)
	}
}
