package main

import (
	"container/heap"
	"time"
)

// clock is virtual time: events at their times, in order.
type clock struct {
	now    time.Duration
	events events
	seq    int
	gates  []timed
}

// timed is a gate on virtual time.
type timed interface {
	Next() (time.Duration, bool)
	Step()
}

func (c *clock) time() time.Duration { return c.now }

// at has do called at a time.
func (c *clock) at(t time.Duration, do func()) {
	c.seq++
	heap.Push(&c.events, event{t, c.seq, do})
}

// every has do called again and again, from now to before end.
func (c *clock) every(d, end time.Duration, do func()) {
	var again func(t time.Duration)
	again = func(t time.Duration) {
		if t < end {
			c.at(t, func() { do(); again(t + d) })
		}
	}
	again(c.now)
}

// run lets time pass until nothing is left to do, and gates do what is due.
func (c *clock) run() {
	for len(c.events) > 0 {
		e := heap.Pop(&c.events).(event)
		for _, g := range c.gates {
			for at, ok := g.Next(); ok && at <= e.at; at, ok = g.Next() {
				c.now = max(c.now, at)
				g.Step()
			}
		}
		c.now = e.at
		e.do()
	}
}

type event struct {
	at  time.Duration
	seq int
	do  func()
}

type events []event

func (h events) Len() int { return len(h) }
func (h events) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h events) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *events) Push(x any)   { *h = append(*h, x.(event)) }
func (h *events) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	*h = (*h)[:last]
	return e
}
