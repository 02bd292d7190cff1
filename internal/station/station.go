// Package station is the model of a backend that the simulator and the live
// benchmarks share. It says how fast each of n requests runs, and which one is
// finished next. Time is explicit; a station reads no clock.
package station

import (
	"math"
	"slices"
	"time"
)

// Never is later than everything.
const Never = time.Duration(math.MaxInt64)

// Law says how fast jobs run. The zero Law serves any number at full speed.
type Law struct {
	// Slots is how many are in service at a time; the rest queue in order of
	// arrival. 0 means all.
	Slots int
	// Cores is how many run at full speed at the same time. All share them when
	// there are more, and each job too many costs all of them Thrash. 0 means no
	// such bound.
	Cores  int
	Thrash float64
	// Sigma (contention) and Kappa (coherence) are those of the universal
	// scalability law.
	Sigma, Kappa float64
}

// Speed returns how fast each of n jobs in service runs; 1 is the speed of a
// job alone. The conversions keep products from being fused into sums, so that
// all machines agree.
func (l *Law) Speed(n int) float64 {
	x := float64(n)
	switch {
	case l.Sigma != 0 || l.Kappa != 0:
		return 1 / (1 + float64(l.Sigma*(x-1)) + float64(l.Kappa*x*(x-1)))
	case l.Cores > 0 && n > l.Cores:
		c := float64(l.Cores)
		return c / x / (1 + float64(l.Thrash*(x-c)))
	}
	return 1
}

// Throughput returns how many jobs n of them get done in the time that one
// takes alone.
func (l *Law) Throughput(n int) float64 {
	x := float64(n)
	switch {
	case l.Sigma != 0 || l.Kappa != 0:
		return x / (1 + l.Sigma*(x-1) + l.Kappa*x*(x-1))
	case l.Slots > 0:
		return math.Min(x, float64(l.Slots))
	}
	c := float64(l.Cores)
	return math.Min(x, c) / (1 + l.Thrash*math.Max(0, x-c))
}

// Best returns the least concurrency with the largest throughput, and that
// throughput. Without Kappa there is no such top: then it is where 99 % of the
// limit is reached.
func (l *Law) Best() (n int, throughput float64) {
	switch {
	case l.Kappa != 0:
		n = max(1, int(math.Sqrt(math.Max(0, 1-l.Sigma)/l.Kappa)))
		if l.Throughput(n+1) > l.Throughput(n) {
			n++
		}
	case l.Sigma != 0:
		// X(n) = n/(1−σ+σn) tends to 1/σ; it is 99 % of that at n = 99(1−σ)/σ.
		return max(1, int(math.Ceil(99*(1-l.Sigma)/l.Sigma))), 1 / l.Sigma
	case l.Slots > 0:
		n = l.Slots
	default:
		n = l.Cores
	}
	return n, l.Throughput(n)
}

// Station is a backend at work: jobs enter, are served by its [Law], and finish.
//
// It keeps one clock of work done for each job in service (v). A job that
// enters with w seconds of work is finished when v has grown by w, whatever the
// speed was meanwhile. So arrivals, departures and changes of capacity cost
// O(log n), however many jobs share the station.
type Station struct {
	law   Law
	slots int     // in service at a time, 0: unlimited
	scale float64 // capacity left of the original speed

	v     float64       // work done on each job so far, in seconds
	at    time.Duration // when v was last brought up to date
	rate  float64       // at which v grows now
	order uint32
	jobs  Heap[serving]
	queue ring
}

// serving is a job in service: its finish tag on the clock of work done.
type serving struct {
	tag   float64
	order uint32
	job   int32
}

// Before puts jobs in the order in which they finish.
func (s serving) Before(o serving) bool {
	return s.tag < o.tag || s.tag == o.tag && int32(s.order-o.order) < 0
}

// New returns an empty station.
func New(law Law) Station { return Station{law: law, slots: law.Slots, scale: 1} }

// Len returns the number of jobs in service and in the queue.
func (s *Station) Len() int { return s.jobs.Len() + s.queue.n }

// Enter brings a job that needs work seconds of service at speed 1.
func (s *Station) Enter(now time.Duration, job int32, work float64) {
	s.advance(now)
	if s.slots > 0 && s.jobs.Len() >= s.slots {
		s.queue.push(queued{job, work})
		return
	}
	s.start(job, work)
	s.setRate()
}

// Next returns when the first job will be finished.
func (s *Station) Next() time.Duration {
	if s.jobs.Len() == 0 || s.rate <= 0 {
		return Never
	}
	left := (s.jobs.First().tag - s.v) / s.rate
	if left <= 0 {
		return s.at
	}
	if left > 1e9 {
		return Never
	}
	return s.at + time.Duration(math.Round(left*1e9))
}

// Finish removes the first job to be finished, which is due now.
func (s *Station) Finish(now time.Duration) int32 {
	done := s.jobs.Pop()
	s.at, s.v = now, done.tag
	s.refill()
	s.setRate()
	return done.job
}

// Remove takes out a job that is not finished, in service or in the queue, and reports whether it was there. It looks
// at all of them.
func (s *Station) Remove(now time.Duration, job int32) bool {
	s.advance(now)
	if !s.jobs.Remove(func(j serving) bool { return j.job == job }) {
		return s.queue.remove(job)
	}
	s.refill()
	s.setRate()
	return true
}

// SetCapacity changes speed and slots. Jobs in service stay in service.
func (s *Station) SetCapacity(now time.Duration, scale float64, slots int) {
	s.advance(now)
	s.scale, s.slots = scale, slots
	s.refill()
	s.setRate()
}

func (s *Station) refill() {
	for s.queue.n > 0 && (s.slots == 0 || s.jobs.Len() < s.slots) {
		q := s.queue.pop()
		s.start(q.job, q.work)
	}
}

// advance brings the clock of work done up to now. The conversion keeps the
// product from being fused into the sum, so that all machines agree.
func (s *Station) advance(now time.Duration) {
	if now > s.at {
		s.v += float64(s.rate * (now - s.at).Seconds())
		s.at = now
	}
}

func (s *Station) setRate() {
	s.rate = 0
	if n := s.jobs.Len(); n > 0 {
		s.rate = s.scale * s.law.Speed(n)
	} else {
		s.v = 0 // an idle station starts again from zero, which keeps v precise
	}
}

func (s *Station) start(job int32, work float64) {
	s.jobs.Push(serving{s.v + work, s.order, job})
	s.order++
}

// Heap is a queue in the order of its items. It has four children to a node, which is
// shallower than two and touches fewer cache lines.
type Heap[T interface{ Before(T) bool }] struct{ items []T }

// Len returns how many items there are.
func (h *Heap[T]) Len() int { return len(h.items) }

// First returns the first item of a heap that is not empty.
func (h *Heap[T]) First() T { return h.items[0] }

// Push adds an item.
func (h *Heap[T]) Push(item T) {
	h.items = append(h.items, item)
	i := len(h.items) - 1
	for i > 0 {
		parent := (i - 1) / 4
		if !item.Before(h.items[parent]) {
			break
		}
		h.items[i] = h.items[parent]
		i = parent
	}
	h.items[i] = item
}

// Pop removes and returns the first item.
func (h *Heap[T]) Pop() T {
	first := h.items[0]
	h.removeAt(0)
	return first
}

// Remove takes out the first item found that fits, and reports whether there was one.
func (h *Heap[T]) Remove(fits func(T) bool) bool {
	i := slices.IndexFunc(h.items, fits)
	if i >= 0 {
		h.removeAt(i)
	}
	return i >= 0
}

// removeAt puts the last item in the place of one, or where the order has it from there.
func (h *Heap[T]) removeAt(i int) {
	last := len(h.items) - 1
	item := h.items[last]
	h.items = h.items[:last]
	if i == last {
		return
	}
	for i > 0 && item.Before(h.items[(i-1)/4]) {
		h.items[i] = h.items[(i-1)/4]
		i = (i - 1) / 4
	}
	for {
		child := 4*i + 1
		if child >= last {
			break
		}
		least := child
		for c := child + 1; c < min(child+4, last); c++ {
			if h.items[c].Before(h.items[least]) {
				least = c
			}
		}
		if !h.items[least].Before(item) {
			break
		}
		h.items[i] = h.items[least]
		i = least
	}
	h.items[i] = item
}

// queued is a job that waits for a slot.
type queued struct {
	job  int32
	work float64
}

// ring is a queue that keeps its memory.
type ring struct {
	buf     []queued
	head, n int
}

func (r *ring) push(q queued) {
	if r.n == len(r.buf) {
		bigger := make([]queued, max(16, 2*r.n))
		for i := range r.n {
			bigger[i] = r.buf[(r.head+i)%len(r.buf)]
		}
		r.buf, r.head = bigger, 0
	}
	r.buf[(r.head+r.n)%len(r.buf)] = q
	r.n++
}

func (r *ring) pop() queued {
	q := r.buf[r.head]
	r.head = (r.head + 1) % len(r.buf)
	r.n--
	return q
}

// remove takes a job out, and reports whether it was there.
func (r *ring) remove(job int32) bool {
	for i := range r.n {
		if r.buf[(r.head+i)%len(r.buf)].job != job {
			continue
		}
		for ; i < r.n-1; i++ {
			r.buf[(r.head+i)%len(r.buf)] = r.buf[(r.head+i+1)%len(r.buf)]
		}
		r.n--
		return true
	}
	return false
}
